"""Hidden files are counted wherever they are skipped."""

from pathlib import Path

import pytest
from PIL import Image

import fewtags as ft


def _yolo(root: Path) -> Path:
    for part in ("images", "labels"):
        (root / part).mkdir()
    (root / "labels" / "a.txt").write_text("0 0.5 0.5 0.2 0.2\n")
    (root / "data.yaml").write_text("path: .\ntrain: images\nnames: [cat]\n")
    return root / "data.yaml"


def _openimages(root: Path) -> Path:
    (root / "images").mkdir()
    (root / "class-descriptions.csv").write_text("/m/1,cat\n")
    (root / "train-annotations-human-imagelabels.csv").write_text(
        "ImageID,Source,LabelName,Confidence\na,verification,/m/1,1\n"
    )
    return root


@pytest.mark.parametrize("write", [_yolo, _openimages])
def test_hidden_files_are_counted(tmp_path: Path, write) -> None:
    path = write(tmp_path)
    Image.new("RGB", (9, 9)).save(tmp_path / "images" / "a.jpg")
    for name in ("._a.jpg", ".DS_Store"):
        (tmp_path / "images" / name).write_bytes(b"x")
    for name in ("__MACOSX", "@eaDir", "$RECYCLE.BIN"):
        (tmp_path / "images" / name).mkdir()
        Image.new("RGB", (9, 9)).save(tmp_path / "images" / name / "a.jpg")
    table = ft.read(path)
    (found,) = [reading for reading in table.notes.readings if reading.value == "hidden files"]
    assert (found.meaning, found.count) == ("skipped", 5)
    assert table.images.to_pylist() == ["images/a.jpg"]
