"""Thresholds of the user: `fewtags thresholds`, and --threshold and --precision of other commands."""

import csv
import io
import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from typer.testing import Result

Run = Callable[..., Result]


@pytest.fixture
def photos(dataset: Path) -> Path:
    return dataset / "images" / "val"


def rows(result: Result) -> list[dict[str, str]]:
    assert result.exit_code == 0, result.stderr
    return list(csv.DictReader(io.StringIO(result.stdout)))


def test_predict_with_a_threshold_of_one_class(run: Run, model: Path, photos: Path) -> None:
    """red is tagged everywhere, and the other classes as without the option."""
    plain = rows(run("predict", model, photos, "--cpu"))
    own = rows(run("predict", model, photos, "--cpu", "--threshold", "Red=0"))
    assert sum(row["class"] == "red" for row in own) == 12
    others = [row for row in plain if row["class"] != "red"]
    assert [row for row in own if row["class"] != "red"] == others


def test_all_classes_then_one_class(run: Run, model: Path, photos: Path) -> None:
    found = rows(run("predict", model, photos, "--cpu", "--threshold", "green=1", "--threshold", "0"))
    assert {(row["class"], row["threshold"]) for row in found} == {("red", "0.0"), ("blue", "0.0")}


def test_json_lines_have_the_own_thresholds(run: Run, model: Path, photos: Path, tmp_path: Path) -> None:
    file = tmp_path / "t.csv"
    file.write_text("class;threshold\nred;0,0\nblue;1\ngreen;1\n", "utf-8")
    out = tmp_path / "tags.jsonl"
    assert run("predict", model, photos, "--cpu", "--threshold", file, "--out", out).exit_code == 0
    found = [json.loads(line) for line in out.read_text("utf-8").splitlines()]
    assert [(row["class"], row["threshold"]) for row in found] == [("red", 0.0)] * 12


@pytest.mark.parametrize("option", [("--threshold", "red=0.2"), ("--precision", "0.5")])
def test_wide_has_no_thresholds(run: Run, model: Path, photos: Path, option: tuple[str, str]) -> None:
    result = run("predict", model, photos, "--wide", *option)
    assert result.exit_code == 1
    assert f"so {option[0]} has no effect" in result.stderr


def test_evaluate_decides_at_the_own_thresholds(run: Run, model: Path, dataset: Path) -> None:
    """At threshold 0 every class is predicted everywhere; above all probabilities, none is."""
    words = ("evaluate", model, dataset / "val.parquet", "--cpu", "--json", "--threshold", "0", "--threshold", "red=1")
    content = json.loads(run(*words).stdout)
    assert [(c["threshold"], c["recall"]) for c in content["per_class"]] == [(1.0, 0.0), (0.0, 1.0), (0.0, 1.0)]
    assert content["cardinality"]["predicted"] == 2.0


def test_heatmaps_of_classes_at_own_thresholds(run: Run, model: Path, photos: Path, tmp_path: Path) -> None:
    words = ("heatmap", model, photos / "0.png", "--out", tmp_path / "maps", "--cpu")
    assert run(*words, "--threshold", "0", "--threshold", "blue=1").exit_code == 0
    assert {path.name for path in (tmp_path / "maps").glob("*.png")} == {"0.red.png", "0.green.png"}
    both = run(*words, "--class", "red", "--threshold", "0.1")
    assert "error: --class says which classes to draw, so --threshold has no effect" in both.stderr


def test_a_table_of_thresholds_can_be_edited_and_stored(run: Run, model: Path, dataset: Path, tmp_path: Path) -> None:
    """What --store writes is what predict, evaluate and the evaluation of the run use afterwards."""
    copy, file = tmp_path / "run", tmp_path / "thresholds.json"
    shutil.copytree(model, copy)
    shown = run("thresholds", copy, "--json")
    content = json.loads(shown.stdout)
    assert [row["class"] for row in content["thresholds"]] == ["red", "green", "blue"]
    content["thresholds"][1]["threshold"] = 0.0
    file.write_text(json.dumps(content), "utf-8")
    stored = run("thresholds", copy, "--threshold", file, "--store")
    assert stored.exit_code == 0, stored.stderr
    assert f"stored in {copy / 'model.safetensors'}" in stored.stderr
    assert "evaluation of val is computed again at these thresholds" in stored.stderr
    assert "report.html shows the earlier thresholds" in stored.stderr
    assert stored.stdout.splitlines()[2].split() == ["green", "0.000", "own"]
    found = rows(run("predict", copy, dataset / "images" / "val", "--cpu"))
    assert sum(row["class"] == "green" for row in found) == 12
    recorded = json.loads((copy / "evaluation" / "val.json").read_text("utf-8"))
    assert recorded["per_class"][1]["recall"] == 1.0
    assert recorded["threshold_rules"][1] == "own"
    again = json.loads(run("evaluate", copy, dataset / "val.parquet", "--cpu", "--json").stdout)
    assert [c["threshold"] for c in again["per_class"]] == [c["threshold"] for c in recorded["per_class"]]
    assert run("report", copy).exit_code == 0


def test_store_without_thresholds_is_refused(run: Run, model: Path) -> None:
    assert run("thresholds", model, "--store").stderr == (
        "error: --store needs thresholds to store: give --threshold or --precision.\n"
    )


def test_a_wanted_precision_names_classes_that_do_not_reach_it(run: Run, model: Path) -> None:
    """Of 12 validation photos each class is positive in 6; the precision of all photos is a half."""
    low = run("thresholds", model, "--precision", "0.5", "--json")
    assert {row["rule"] for row in json.loads(low.stdout)["thresholds"]} == {"precision"}
    assert low.stderr == ""
    stored = {row["class"]: row for row in json.loads(run("thresholds", model, "--json").stdout)["thresholds"]}
    high = run("thresholds", model, "--precision", "1", "--json")
    for row in json.loads(high.stdout)["thresholds"]:
        if row["rule"] != "precision":
            assert row == stored[row["class"]]
            assert f"{row['name']} (at best 0." in high.stderr


def test_precision_needs_the_run(run: Run, model: Path, tmp_path: Path) -> None:
    alone = shutil.copy(model / "model.safetensors", tmp_path / "m.safetensors")
    result = run("thresholds", alone, "--precision", "0.9")
    assert result.exit_code == 1
    assert "error: --precision needs the validation scores of the run; give the run folder" in result.stderr
    beside = run("thresholds", model / "model.safetensors", "--precision", "0.5")
    assert beside.exit_code == 0, beside.stderr
    assert "--precision 90: expected a number above 0 and at most 1 (did you mean 0.9?)." in (
        run("thresholds", model, "--precision", "90").stderr
    )
