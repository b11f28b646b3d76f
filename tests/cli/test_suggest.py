"""`fewtags suggest`: questions about a run's own photos, labels and photos; suspicious labels; files; errors."""

import csv
import json
from collections.abc import Callable
from pathlib import Path

import pytest
from typer.testing import Result

from fewtags.labels import Label
from fewtags.table.storage import load

Run = Callable[..., Result]


def test_the_runs_own_photos_and_all_files(run: Run, model: Path, dataset: Path, tmp_path: Path) -> None:
    files = {
        "--out": tmp_path / "q.csv",
        "--label-studio": tmp_path / "tasks.json",
        "--cvat": tmp_path / "boxes.xml",
        "--fiftyone": tmp_path / "labels.json",
    }
    options = [word for pair in files.items() for word in pair]
    result = run("suggest", model, "--cpu", "--limit", "40", *options)
    assert result.exit_code == 0, result.stderr
    assert max(map(len, result.stdout.splitlines())) <= 80
    with files["--out"].open(newline="") as file:
        rows = list(csv.DictReader(file))
    table = load(dataset / "train.parquet")
    labels, keys = table.matrix.dense(), table.images.to_pylist()
    assert len(rows) == 40
    assert all(labels[keys.index(r["image"]), table.classes.index(r["class"])] == Label.UNKNOWN for r in rows)
    tasks = json.loads(files["--label-studio"].read_text())
    assert [t["data"]["image"][len("/data/local-files/?d=") :] for t in tasks] == list(
        dict.fromkeys(r["image"] for r in rows)
    )
    assert (tmp_path / "tasks.xml").read_text().count("<Choices") == 3
    assert files["--cvat"].read_text().count("<image ") == len(tasks)
    assert len(json.loads(files["--fiftyone"].read_text())["labels"]) == len(tasks)


def test_labels_and_photos_of_others(run: Run, model: Path, dataset: Path) -> None:
    """Complete labels have no unknown cell. The same photos without labels have 12 x 3."""
    none = run("suggest", model, dataset / "val.parquet", "--cpu")
    assert none.stdout.strip() == "nothing to ask: every class is known in every photo"
    every = run("suggest", model, "--photos", dataset / "images" / "val", "--cpu", "--json")
    assert len(json.loads(every.stdout)) == 36


def test_wrong_labels(run: Run, model: Path, dataset: Path) -> None:
    rows = json.loads(
        run("suggest", model, dataset / "val.parquet", "--wrong", "--cpu", "--json", "--limit", "5").stdout
    )
    assert len(rows) == 5
    assert [r["suspicion"] for r in rows] == sorted((r["suspicion"] for r in rows), reverse=True)
    assert all(r["suspicion"] > 0 and r["label"] in ("positive", "negative") for r in rows)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--order", "bst"], "'bst' is not an order (did you mean 'best'?)"),
        (["--out", "q.txt"], "--out q.txt: expected a file ending in .csv or .parquet."),
        (["--cvat", "q.json"], "--cvat q.json: expected a file ending in .xml."),
        (["--label-studio", "q.json", "--fiftyone", "q.json"], "two options would write"),
        (["--label-studio", "q.json", "--cvat", "q.xml"], "two options would write"),
        (["--wrong", "--order", "best"], "--order is for questions, so it has no effect with --wrong"),
        (["labels.csv", "--photos", "."], "--photos is for photos without labels, instead of label files"),
    ],
)
def test_errors(run: Run, model: Path, arguments: list[str], message: str) -> None:
    result = run("suggest", model, *arguments)
    assert result.exit_code == 1
    assert message in result.stderr


def test_a_model_without_a_run(run: Run, model: Path, tmp_path: Path) -> None:
    (tmp_path / "model.safetensors").write_bytes((model / "model.safetensors").read_bytes())
    result = run("suggest", tmp_path / "model.safetensors")
    assert result.exit_code == 1
    assert (
        "has no record of its training photos (tables/train.parquet); give labels (DATA) or photos (--photos)."
        in result.stderr
    )
