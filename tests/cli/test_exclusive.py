"""Groups of classes from `check` to `evaluate`."""

import csv
import io
import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from typer.testing import Result

from fewtags.labels import ClassNames
from fewtags.table.storage import load, save
from fewtags.table.table import LabelTable

Run = Callable[..., Result]
GROUP = ("--set", 'data.exactly_one=[["red", "green", "blue"]]')


@pytest.fixture(scope="module")
def labels(dataset: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """The photos of the tiny data set, with one label each; green is a class of train only."""
    folder = tmp_path_factory.mktemp("labels")
    for name in ("train", "val"):
        whole = load(dataset / f"{name}.parquet")
        classes = ClassNames.of(("red", "green", "blue") if name == "train" else ("red", "blue"))
        image = np.arange(len(whole))
        made = LabelTable.build(
            whole.images.to_pylist(), classes, image=image, class_=image % len(classes), state=np.ones(len(whole)),
            root=whole.root,
        )  # fmt: skip
        save(made, folder / f"{name}.parquet", keep_root=True)
    return folder / "train.parquet", folder / "val.parquet"


@pytest.fixture(scope="module")
def grouped(
    run: Run, train_command: tuple[str, ...], labels: tuple[Path, Path], tmp_path_factory: pytest.TempPathFactory
) -> Path:
    out = tmp_path_factory.mktemp("runs") / "grouped"
    words = [*train_command]
    words[1], words[3] = map(str, labels)
    result = run(*words, *GROUP, "--out", out)
    assert result.exit_code == 0, (result.stderr, result.exception)
    return out


def test_check_counts_what_follows(run: Run, labels: tuple[Path, Path]) -> None:
    """24 + 12 photos with one positive, which excludes two classes in each; val knows green through the group."""
    result = run("check", labels[0], "--val", labels[1], *GROUP)
    assert result.exit_code == 0, result.stdout
    assert "note: train: exactly one of red, green, blue: 48 negative labels follow from known ones" in result.stdout
    assert "note: val: exactly one of red, green, blue: 24 negative labels follow from known ones" in result.stdout
    content = json.loads(run("check", labels[0], "--val", labels[1], *GROUP, "--json").stdout)
    assert content["splits"]["train"]["kind"] == content["splits"]["val"]["kind"] == "full"


def test_check_names_contradictions(run: Run, dataset: Path) -> None:
    """Half of the validation photos have two colours."""
    result = run("check", dataset / "val.parquet", *GROUP)
    assert result.exit_code == 1
    assert "error: 6 photos contradict a group of classes." in result.stdout
    assert (
        "val/0.png in train: red and green are present, but exactly one of red, green, blue is possible"
        in result.stdout
    )


def test_predict_gives_exactly_one(run: Run, grouped: Path, dataset: Path) -> None:
    """Even at thresholds that no photo, or every photo, reaches."""
    for threshold in ([], ["--threshold", 1], ["--threshold", 0]):
        result = run("predict", grouped, dataset / "images" / "val", "--cpu", *threshold)
        rows = list(csv.DictReader(io.StringIO(result.stdout)))
        assert len(rows) == len({row["image"] for row in rows}) == 12


def test_evaluate_decides_for_one_class(run: Run, grouped: Path, labels: tuple[Path, Path]) -> None:
    """Labels that know red and blue only: green is absent where one of them is present."""
    result = run("evaluate", grouped, labels[1], "--cpu", "--json", "--threshold", 0)
    content = json.loads(result.stdout)
    assert "exactly one of red, green, blue: 24 negative labels follow from known ones" in result.stderr
    assert content["cardinality"]["predicted"] == 1.0
    assert content["known_cells"] == 36
    recorded = json.loads((grouped / "evaluation" / "val.json").read_text("utf-8"))
    assert recorded["cardinality"]["predicted"] == 1.0


def test_a_stored_threshold_keeps_the_group(run: Run, grouped: Path) -> None:
    assert run("thresholds", grouped, "--threshold", 0, "--store").exit_code == 0
    recorded = json.loads((grouped / "evaluation" / "val.json").read_text("utf-8"))
    assert recorded["cardinality"]["predicted"] == 1.0


def test_an_unknown_class_is_refused(run: Run, labels: tuple[Path, Path]) -> None:
    result = run("check", labels[0], "--set", 'data.at_most_one=[["red", "gren"]]')
    assert result.exit_code == 1
    assert result.stderr == (
        "error: data.at_most_one: 'gren' is not a class of these labels (did you mean 'green'?).\n"
    )
