"""evaluate, predict, heatmap."""

import csv
import io
import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest
from PIL import Image
from typer.testing import Result

Run = Callable[..., Result]


@pytest.fixture
def model(trained: tuple[Path, Result]) -> Path:
    return trained[0]


@pytest.fixture
def photos(dataset: Path) -> Path:
    return dataset / "images" / "val"


def read(path: Path) -> list[dict[str, object]]:
    if path.suffix == ".parquet":
        return pq.read_table(path).to_pylist()
    if path.suffix == ".jsonl":
        return [json.loads(line) for line in path.read_text("utf-8").splitlines()]
    with path.open(encoding="utf-8", newline="") as file:
        return [dict(row) for row in csv.DictReader(file)]


# evaluate


def test_evaluate_tells_headline_and_classes(run: Run, model: Path, dataset: Path) -> None:
    result = run("evaluate", model, dataset / "val.parquet", "--cpu")
    assert result.exit_code == 0, result.stderr
    assert result.stderr == "measuring on 12 images\n"
    lines = result.stdout.splitlines()
    assert lines[0].startswith("mAP ")
    assert lines[0].endswith("3 of 3 classes counted, 12 images, 36 known cells.")
    assert {line.split()[0] for line in lines[-3:]} == {"red", "green", "blue"}


def test_evaluate_json_equals_what_training_measured(run: Run, model: Path, dataset: Path) -> None:
    result = run("evaluate", model, dataset / "val.parquet", "--cpu", "--json")
    told = json.loads(result.stdout)
    stored = json.loads((model / "evaluation" / "val.json").read_text("utf-8"))
    assert told["mAP"] == pytest.approx(stored["mAP"], abs=1e-12)
    assert [c["positives"] for c in told["per_class"]] == [c["positives"] for c in stored["per_class"]]


def test_evaluate_without_known_negatives(run: Run, model: Path, dataset: Path) -> None:
    result = run("evaluate", model / "model.safetensors", dataset / "train.parquet", "--cpu")
    assert result.exit_code == 0, result.stderr
    assert "AP has no meaning" in result.stdout
    assert "hit@1" in result.stdout


def test_evaluate_with_something_that_is_no_model(run: Run, dataset: Path) -> None:
    result = run("evaluate", dataset, dataset / "val.parquet")
    assert result.exit_code == 1
    assert "model.safetensors does not exist; give a run folder" in result.stderr


# predict


@pytest.mark.parametrize("ending", [".csv", ".parquet", ".jsonl", ".CSV"])
@pytest.mark.parametrize("wide", [False, True])
def test_predict_writes_every_form(
    run: Run, model: Path, photos: Path, tmp_path: Path, ending: str, wide: bool
) -> None:
    out = tmp_path / "new" / f"tags{ending}"
    result = run("predict", model, photos, "--threshold", 0, "--out", out, "--cpu", *(["--wide"] if wide else []))
    assert (result.exit_code, result.stdout) == (0, f"{out}\n"), result.stderr
    assert [p.name for p in out.parent.iterdir()] == [out.name]
    rows = read(out if ending != ".CSV" else out.rename(out.with_suffix(".csv")))
    keys = sorted(str(p) for p in photos.iterdir())
    if wide:
        assert list(rows[0]) == ["image", "red", "green", "blue"]
        assert sorted(str(row["image"]) for row in rows) == keys
    else:
        assert list(rows[0]) == ["image", "class", "name", "probability", "threshold"]
        assert sorted({str(row["image"]) for row in rows}) == keys
        assert len(rows) == 3 * len(keys)
        first = [float(str(row["probability"])) for row in rows[:3]]
        assert first == sorted(first, reverse=True)


def test_long_and_wide_agree(run: Run, model: Path, photos: Path) -> None:
    words = ("predict", model, photos / "0.png", "--threshold", 0, "--cpu")
    long = list(csv.DictReader(io.StringIO(run(*words).stdout)))
    wide = next(csv.DictReader(io.StringIO(run(*words, "--wide").stdout)))
    assert {row["class"]: row["probability"] for row in long} == {k: v for k, v in wide.items() if k != "image"}


def test_threshold_and_max_tags(run: Run, model: Path, photos: Path) -> None:
    every = run("predict", model, photos, "--threshold", 0, "--max-tags", 1, "--cpu")
    rows = list(csv.DictReader(io.StringIO(every.stdout)))
    assert len(rows) == len({row["image"] for row in rows}) == 12
    assert {row["threshold"] for row in rows} == {"0.0"}
    none = run("predict", model, photos, "--threshold", 1, "--cpu")
    assert none.exit_code == 0
    assert none.stdout == "image,class,name,probability,threshold\n"
    assert none.stderr == "12 of 12 photos got no tag and have no row; --wide lists all photos.\n"


def test_stored_thresholds_are_used(run: Run, model: Path, photos: Path) -> None:
    stored = {c["id"]: c["threshold"] for c in json.loads((model / "evaluation" / "val.json").read_text())["per_class"]}
    wide = list(csv.DictReader(io.StringIO(run("predict", model, photos, "--wide", "--cpu").stdout)))
    expected = {(r["image"], c) for r in wide for c, t in stored.items() if float(r[c]) > t + 1e-6}
    doubtful = {(r["image"], c) for r in wide for c, t in stored.items() if abs(float(r[c]) - t) <= 1e-6}
    long = csv.DictReader(io.StringIO(run("predict", model, photos, "--cpu").stdout))
    assert {(row["image"], row["class"]) for row in long} - doubtful == expected


def test_unreadable_photo_is_named_and_the_others_are_done(run: Run, model: Path, photos: Path, tmp_path: Path) -> None:
    (tmp_path / "broken.png").write_bytes((photos / "0.png").read_bytes()[:200])
    result = run("predict", model, photos, tmp_path, "--wide", "--out", tmp_path / "tags.csv", "--cpu")
    assert result.exit_code == 1
    assert result.stdout == f"{tmp_path / 'tags.csv'}\n"
    first, last = result.stderr.splitlines()
    assert first.startswith("error: ")
    assert "broken.png" in first
    assert last == "1 of 13 photos could not be read; the others are done."
    assert len(read(tmp_path / "tags.csv")) == 12


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("--out", "tags.xlsx"), "error: --out tags.xlsx: expected a file ending in .csv, .parquet, .jsonl.\n"),
        (("--out", "."), "error: --out .: expected a file ending in .csv, .parquet, .jsonl.\n"),
        (("nowhere.jpg",), "error: nowhere.jpg does not exist; give photos or folders of photos.\n"),
    ],
)
def test_predict_refuses(run: Run, model: Path, photos: Path, words: tuple[str, ...], message: str) -> None:
    result = run("predict", model, photos, *words)
    assert (result.exit_code, result.stdout, result.stderr) == (1, "", message)


def test_threshold_outside_0_to_1_is_a_usage_error(run: Run, model: Path, photos: Path) -> None:
    assert run("predict", model, photos, "--threshold", 1.5).exit_code == 2


# heatmap


def test_heatmaps_of_a_folder_keep_their_place(run: Run, model: Path, dataset: Path, tmp_path: Path) -> None:
    """train/0.png and val/0.png have the same name; neither overwrites the other."""
    result = run("heatmap", model, dataset / "images", "--class", "red", "--arrays", "--out", tmp_path, "--cpu")
    assert (result.exit_code, result.stdout) == (0, f"{tmp_path}\n"), result.stderr
    assert result.stderr == "36 overlays of 36 photos\n"
    assert len(list(tmp_path.rglob("*.red.png"))) == 36
    with Image.open(tmp_path / "val" / "0.red.png") as overlaid:
        assert overlaid.size == (64, 48)
    maps = np.load(tmp_path / "train" / "0.npy")
    assert maps.dtype == np.float32
    assert maps.shape[0] == 3
    assert np.all((maps >= 0) & (maps <= 1))


def test_photos_with_the_same_name_are_numbered(run: Run, model: Path, dataset: Path, tmp_path: Path) -> None:
    first, second = dataset / "images" / "train" / "0.png", dataset / "images" / "val" / "0.png"
    result = run("heatmap", model, first, second, "--class", "red", "--out", tmp_path, "--cpu")
    assert {p.name for p in tmp_path.iterdir()} == {"0.red.png", "0-2.red.png"}
    assert f"{second} is written as 0-2, since 0 is taken\n" in result.stderr


def test_predicted_classes_are_drawn_by_default(run: Run, model: Path, photos: Path, tmp_path: Path) -> None:
    run("heatmap", model, photos / "0.png", "--out", tmp_path, "--cpu")
    tags = csv.DictReader(io.StringIO(run("predict", model, photos / "0.png", "--cpu").stdout))
    assert {p.name for p in tmp_path.iterdir()} == {f"0.{row['class']}.png" for row in tags}


def test_unknown_class_is_suggested(run: Run, model: Path, photos: Path, tmp_path: Path) -> None:
    result = run("heatmap", model, photos, "--class", "gren", "--out", tmp_path / "maps", "--cpu")
    assert result.exit_code == 1
    assert result.stderr == "error: 'gren' is not a class of this model (did you mean 'green'?).\n"
    assert not (tmp_path / "maps").exists()


def test_heatmaps_name_an_unreadable_photo(run: Run, model: Path, photos: Path, tmp_path: Path) -> None:
    (tmp_path / "broken.png").write_bytes(b"no picture")
    result = run(
        *("heatmap", model, tmp_path / "broken.png", photos / "1.png", "--class", "blue", "--out", tmp_path / "maps"),
        "--cpu",
    )
    assert result.exit_code == 1
    assert "broken.png" in result.stderr
    assert result.stderr.endswith("1 of 2 photos could not be read; the others are done.\n")
    assert [p.name for p in (tmp_path / "maps").iterdir()] == ["1.blue.png"]
