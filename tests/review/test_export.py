"""Answers as CSV, COCO and Label Studio: what is written can be read again."""

import json

import numpy as np
import pytest
from PIL import Image
from typer.testing import CliRunner

import fewtags
from fewtags.cli.main import app
from fewtags.review.store import AnswerStore, CellKey, Given

BOX, POINT = (0.25, 0.5, 0.75, 1.0), (0.125, 0.25, 0.125, 0.25)


@pytest.fixture
def run(tmp_path):
    """A run with answers: a dog with a box, a cat with a point, a bird without a place, no dog, a dispute."""
    folder, run = tmp_path / "photos", tmp_path / "first"
    folder.mkdir()
    run.mkdir()
    for name, size in (("a.png", (40, 20)), ("b.png", (16, 64))):
        Image.new("RGB", size).save(folder / name)
    store = AnswerStore(run / "answers.sqlite")

    def say(image, class_, word, who="ann", regions=()):
        store.answer(who, [Given(CellKey(str(folder), image, class_), word)], regions=regions)

    say("a.png", "dog", "yes", regions=[BOX])
    say("a.png", "cat", "yes", regions=[POINT])
    say("a.png", "bird", "yes")
    say("b.png", "dog", "no")
    say("b.png", "cat", "yes")
    say("b.png", "cat", "no", who="bob")
    store.close()
    return run


def export(run, out, *more):
    return CliRunner().invoke(app, ["answers", "export", str(run), "--out", str(out), *more])


@pytest.mark.parametrize(
    ("to", "name", "places"), [("csv", "a.csv", 2), ("coco", "a.json", 1), ("label-studio", "a.json", 2)]
)
def test_what_is_written_can_be_read(run, tmp_path, to, name, places):
    result = export(run, tmp_path / name, "--to", to)
    assert result.exit_code == 0, (result.stderr, result.exception)
    assert "left out: 1 disputed label" in result.stderr
    table = fewtags.read(tmp_path / name, images=tmp_path / "photos")
    dense = table.matrix.dense()
    found = {
        (key, class_): int(dense[i, c])
        for i, key in enumerate(table.images.to_pylist())
        for c, class_ in enumerate(table.classes.ids)
        if dense[i, c]
    }
    assert found == {("a.png", "dog"): 1, ("a.png", "cat"): 1, ("a.png", "bird"): 1, ("b.png", "dog"): -1}
    assert len(table.locations) == places  # COCO has no points of classes
    boxes = [*map(tuple, np.round(table.locations.boxes, 4).tolist())]
    assert BOX in boxes
    assert (POINT in boxes) == (places == 2)


def test_coco_has_pixels_and_says_what_others_ignore(run, tmp_path):
    result = export(run, tmp_path / "a.json", "--to", "coco")
    content = json.loads((tmp_path / "a.json").read_text())
    assert [a["bbox"] for a in content["annotations"] if "bbox" in a] == [[10, 10, 20, 10]]
    assert [a["keypoints"] for a in content["annotations"] if "keypoints" in a] == [[5, 5, 2]]
    assert [(i["width"], i["height"], len(i["neg_category_ids"])) for i in content["images"]] == [
        (40, 20, 0),
        (16, 64, 1),
    ]
    assert "1 label has no box, which COCO tools may ignore" in result.stderr


def test_errors(run, tmp_path):
    assert (
        "--to yolo: expected one of csv, coco, label-studio." in export(run, tmp_path / "a.json", "--to", "yolo").stderr
    )
    assert "a file of the format coco ends in .json" in export(run, tmp_path / "a.csv", "--to", "coco").stderr
    assert "give --to coco or --to label-studio" in export(run, tmp_path / "a.json").stderr
    store = AnswerStore(tmp_path / "first" / "answers.sqlite")
    while store.undo("ann") or store.undo("bob"):
        pass
    store.close()
    assert "has no answers yet" in export(run, tmp_path / "a.csv").stderr
