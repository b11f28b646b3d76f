"""Tasks of other tools: written by us, read again by our readers."""

import json

import numpy as np
import pytest
from PIL import Image

from fewtags.formats.cvat import read_cvat
from fewtags.formats.labelstudio import read_labelstudio
from fewtags.labels import Label
from fewtags.review.exchange import cvat_annotations, fiftyone_labels, label_studio_config, label_studio_tasks
from fewtags.review.questions import Question

SIZES = {"a/one two.png": (40, 20), "b.png": (10, 10)}


def question(image, class_, probability, box=(0.25, 0.5, 0.5, 1.0)):
    return Question(
        image=image,
        class_=class_,
        name=class_.title(),
        probability=probability,
        rank=1,
        expected=3.0,
        reason="why",
        box=box,
    )


@pytest.fixture
def asked():
    return [
        question("a/one two.png", "cat", 0.9),
        question("b.png", "dog", 0.2, None),
        question("a/one two.png", "dog", 0.6),
    ]


@pytest.fixture
def photos(tmp_path):
    for name, (width, height) in SIZES.items():
        (tmp_path / "photos" / name).parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(np.zeros((height, width, 3), np.uint8)).save(tmp_path / "photos" / name)
    return tmp_path / "photos"


def test_label_studio_tasks(asked):
    """One task for each photo; per cent; Yes only from one half on; the rectangle has no label."""
    tasks = label_studio_tasks(asked, SIZES, "/data/local-files/?d=")
    assert [t["data"]["image"] for t in tasks] == ["/data/local-files/?d=a/one%20two.png", "/data/local-files/?d=b.png"]
    assert tasks[0]["data"]["ask"] == "Cat, Dog"
    (prediction,) = tasks[0]["predictions"]
    kinds = [(r["from_name"], r["type"]) for r in prediction["result"]]
    assert kinds == [("cat", "choices"), ("evidence", "rectangle"), ("dog", "choices"), ("evidence", "rectangle")]
    assert prediction["result"][1]["value"] == {"x": 25, "y": 50, "width": 25, "height": 50, "rotation": 0}
    assert (prediction["result"][1]["original_width"], prediction["result"][1]["original_height"]) == (40, 20)
    assert prediction["score"] == 0.9
    assert tasks[1]["predictions"][0]["result"] == []


def test_answers_in_label_studio_are_read_as_states(asked, photos, tmp_path):
    """What an annotator submits: the filled-in cat, No for the dog, and the rectangle, which says nothing."""
    tasks = label_studio_tasks(asked, SIZES)
    for task in tasks:
        task["annotations"] = [{"result": task.pop("predictions")[0]["result"]}]
    result = tasks[0]["annotations"][0]["result"]
    result[2]["value"]["choices"] = ["No"]
    (tmp_path / "export.json").write_text(json.dumps(tasks))
    table = read_labelstudio(tmp_path / "export.json", photos)
    labels = table.matrix.dense()[table.images.to_pylist().index("a/one two.png")]
    states = dict(zip(table.classes.ids, labels.tolist(), strict=True))
    assert states == {"cat": Label.POSITIVE, "dog": Label.NEGATIVE}


def test_label_studio_interface_names_every_control_of_the_tasks(asked):
    config = label_studio_config(asked)
    for result in label_studio_tasks(asked, SIZES)[0]["predictions"][0]["result"]:
        assert f'name="{result["from_name"]}" toName="{result["to_name"]}"' in config
    assert '<Image name="image" value="$image"' in config


def test_names_are_escaped():
    config = label_studio_config([question("b.png", 'a"<&', 0.5)])
    assert "a&quot;&lt;&amp;" in config


def test_cvat_is_read_again_with_boxes_and_tags(asked, photos, tmp_path):
    """The box .25 .5 .5 1 of 40 x 20 pixels is 10 10 20 20."""
    (tmp_path / "annotations.xml").write_text(text := cvat_annotations(asked, SIZES))
    assert 'xtl="10.00" ytl="10.00" xbr="20.00" ybr="20.00"' in text
    table = read_cvat(tmp_path / "annotations.xml", photos)
    assert table.classes.ids == ("cat", "dog")
    keys = table.images.to_pylist()
    assert table.matrix.dense()[keys.index("a/one two.png")].tolist() == [Label.POSITIVE, Label.POSITIVE]
    _, classes, boxes = table.locations.rows([keys.index("a/one two.png")])
    assert classes.tolist() == [0, 1]
    assert boxes[0].tolist() == [0.25, 0.5, 0.5, 1.0]
    assert not len(table.locations.rows([keys.index("b.png")])[1])


def test_fiftyone_boxes_are_corner_and_size(asked):
    labels = fiftyone_labels(asked)["labels"]
    assert [*labels] == ["a/one two", "b"]
    assert labels["a/one two"][0]["bounding_box"] == [0.25, 0.5, 0.25, 0.5]
    assert labels["b"][0]["bounding_box"] == [0, 0, 1, 1]
    assert labels["b"][0]["attributes"]["rank"] == 1
