"""metadata.jsonl of Hugging Face: tags, class columns, boxes, splits, and what is refused."""

import json

import numpy as np
import pytest
from annotated import save_photo, write_text
from seen import labels

from fewtags.errors import DataError
from fewtags.formats.options import ReadOptions
from fewtags.formats.read import read
from fewtags.labels import Label


def write(file, *records):
    return write_text(file, "".join(json.dumps(record) + "\n" for record in records))


@pytest.fixture
def root(tmp_path):
    for n, name in enumerate("abc"):
        save_photo(tmp_path / f"{name}.jpg", (40, 20), 50 * n)
    return tmp_path


def photos(*columns):
    return [{"file_name": f"{name}.jpg"} | more for name, more in zip("abc", columns, strict=False)]


def test_lists_of_tags(root):
    """Commas and apostrophes belong to names; null and [] state nothing."""
    write(root / "metadata.jsonl", *photos({"labels": ["dog's toy", "a, b\\c"]}, {"labels": []}, {"labels": "cat"}))
    table = read(root)
    assert table.notes.messages[0] == f"{root.name}: read as metadata, it has metadata.jsonl"
    assert table.classes.ids == ("a, b\\c", "cat", "dog's toy")
    assert table.matrix.dense().tolist() == [[1, 0, 1], [0, 0, 0], [0, 1, 0]]


def test_a_blank_before_the_name_of_a_photo(root):
    """It belongs to the name if there is such a photo; else it is noise."""
    save_photo(root / " c.jpg", (40, 20), 9)
    records = photos({"tags": ["cat"]}, {"tags": None}, {"tags": ["dog"]})
    for record in records:
        record["file_name"] = f" {record['file_name']}"
    write(root / "metadata.jsonl", *records)
    table = read(root, options=ReadOptions(complete=True))
    assert labels(table) == {
        "a.jpg": {"cat": Label.POSITIVE, "dog": Label.NEGATIVE},
        "b.jpg": {},
        " c.jpg": {"cat": Label.NEGATIVE, "dog": Label.POSITIVE},
    }


def test_a_text_with_commas_beside_lists(root):
    """Beside lists it may be one name or several: neither is taken without a word. A line break ends a tag."""
    records = photos(
        {"tags": ["cat, small"]}, {"tags": "cat, dog", "note": ["x"]}, {"tags": "owl\ncat", "note": "y, z"}
    )
    path = write(root / "metadata.jsonl", *records)
    with pytest.raises(DataError) as error:
        read(path)
    assert str(error.value) == (
        f"{path} row 2: 'tags' is 'cat, dog', which may be several tags or one name; other rows have lists. Write a "
        "list there, too; or pass ReadOptions(tags_separator=',') if ',' separates tags, or "
        "ReadOptions(tags_separator='|') if it belongs to the name."
    )
    apart = {"cat, small", "cat", "dog", "owl"}
    for separator, classes in ((",", apart), ("|", {"cat, small", "cat, dog", "owl", "cat"})):
        assert {*read(path, options=ReadOptions(tags_separator=separator)).classes.ids} == classes


@pytest.mark.parametrize(("yes", "no"), [(True, False), (1, 0), ("yes", "no")])
def test_class_columns(root, yes, no):
    """null and a key that is missing are unknown."""
    write(root / "metadata.jsonl", *photos({"cat": yes, "dog": no}, {"cat": None, "dog": yes}, {"dog": no}))
    table = read(root / "metadata.jsonl")
    assert table.classes.ids == ("cat", "dog")
    assert table.matrix.dense().tolist() == [[1, -1], [0, 1], [0, -1]]


@pytest.mark.parametrize("listed", [False, True])
def test_boxes(root, listed):
    boxes, names = [[4, 2, 20, 10], [0, 0, 40, 20]], ["cat", 3]
    objects = {"bbox": boxes, "categories": names, "area": [1, 2]}
    if listed:
        objects = [{"bbox": box, "category": name} for box, name in zip(boxes, names, strict=True)]
    write(root / "metadata.jsonl", *photos({"objects": objects, "note": "x"}, {"objects": None}, {}))
    table = read(root)
    assert table.classes.ids == ("3", "cat")
    assert np.allclose(table.locations.boxes, [[0.1, 0.1, 0.6, 0.6], [0, 0, 1, 1]])
    assert table.matrix.dense().tolist() == [[1, 1], [0, 0], [0, 0]]
    assert table.notes.warnings == (f"{root.name}: the columns 'note' beside 'objects' are not read",)
    complete = read(root, options=ReadOptions(complete=True))
    assert complete.matrix.dense()[1].tolist() == [Label.NEGATIVE] * 2


def test_folders_of_splits(tmp_path):
    """Names are relative to the file beside them; the classes are joined."""
    for n, split in enumerate(("train", "validation")):
        save_photo(tmp_path / split / "a.jpg", (40, 20), 50 * n)
        write(tmp_path / split / "metadata.jsonl", {"file_name": "a.jpg", "tags": ["cat", "dog"][: n + 1]})
    table = read(tmp_path)
    assert table.images.to_pylist() == ["train/a.jpg", "validation/a.jpg"]
    assert table.split_names.to_pylist() == ["train", "val"]
    assert table.matrix.dense().tolist() == [[1, 0], [1, 1]]


def test_other_columns(root):
    write(
        root / "x.jsonl", *photos({"tags": "cat", "meta": {"a": 1}, "split": "test"}, {"tags": "dog", "split": "train"})
    )
    table = read(root / "x.jsonl")
    assert table.split_names.to_pylist() == ["test", "train"]
    assert "x.jsonl: the columns 'meta' have objects or lists of lists, and are not read" in table.notes.warnings


CAPTION = "A golden retriever plays with a ball on the grass"


@pytest.mark.parametrize(
    ("columns", "message"),
    [
        (({"text": CAPTION}, {"text": "Two cats sleep on a red sofa, side by side."}), "looks like a caption, and"),
        (({"texts": [CAPTION, "A dog plays outside in the sun"]},), "looks like a caption, and captions are not tags"),
        (({"tags": "cat"}, {"file_name": ""}), "row 2: 'file_name' is ''; expected the name of a photo"),
        (({"objects": {"bbox": [[1, 1, 2, 2]], "categories": []}},), "row 1: 'objects' has 1 box and 0 classes"),
        (({"objects": {"bbox": [[1, 1, 2, 2]], "categories": [None]}},), "an object in 'objects' has the class None"),
        (({"objects": {"bbox": []}}, {"objects": 3}), "row 2: 'objects' is 3; expected bbox and categories"),
        (({"objects": {"bbox": []}},), "no object in 'objects' has a class, so there is nothing to learn"),
        (({"cat": 1}, {"cat": "maybe"}, {"cat": 0}), "row 2, column 'cat': 'maybe' means neither present"),
    ],
)
def test_what_is_refused(root, columns, message):
    write(root / "metadata.jsonl", *photos(*columns))
    with pytest.raises(DataError, match=message):
        read(root)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('{"file_name": "a.jpg", "tags": "cat"}\n{"file_name"\n', "row 2: not JSON"),
        ('{"file_name": "a.jpg", "tags": "cat"}\n\n[1]\n', r"row 3: '\[1\]'; expected an object such as"),
        ('{"tags": "cat"}\n', r"no row has 'file_name'; there are 'tags'. Pass ReadOptions\(image_column='NAME'\)"),
        ("\n", "the file is empty; expected lines such as"),
    ],
)
def test_broken_files(root, text, message):
    write_text(root / "metadata.jsonl", text)
    with pytest.raises(DataError, match=message):
        read(root / "metadata.jsonl", format="metadata")


def test_captions_are_tags_if_the_user_says_so(root):
    write(root / "metadata.jsonl", *photos({"text": CAPTION}, {"text": "Two cats sleep on a red sofa"}))
    table = read(root, options=ReadOptions(tags_separator=","))
    assert table.classes.ids == (CAPTION, "Two cats sleep on a red sofa")


def test_long_names_of_classes_are_not_captions(root):
    write(root / "metadata.jsonl", *photos({"tags": CAPTION}, {"tags": CAPTION}, {"tags": "cat"}))
    assert read(root).classes.ids == (CAPTION, "cat")


def test_columns_that_cannot_be_read_are_named_with_the_cure(root):
    write(root / "metadata.jsonl", *photos({"labels": [["cat"]]}, {"labels": {"cat": 1}}))
    with pytest.raises(
        DataError, match=r"The columns 'labels' have objects or lists of lists, .* write lists of names\."
    ):
        read(root)


def test_scores_beside_tags_are_refused(root):
    write(
        root / "metadata.jsonl",
        *photos({"tags": ["cat", "dog"], "scores": [0.9, 0.2]}, {"tags": ["cat"], "scores": [1]}),
    )
    with pytest.raises(DataError, match="'scores' are between 0 and 1, as the probabilities that a model predicts"):
        read(root)


@pytest.mark.parametrize(
    "objects",
    [
        {"bbox": [[1, 1, 2, 2]], "categories": ["cat"], "score": [0.5]},
        [{"bbox": [1, 1, 2, 2], "category": "cat", "score": 0.5}],
    ],
)
def test_results_of_a_detector_are_refused(root, objects):
    write(root / "metadata.jsonl", *photos({"objects": objects}))
    with pytest.raises(
        DataError, match=r"'score' between 0 and 1 \(0\.5 to 0\.5\) in 1 of 1 object, as in the results"
    ):
        read(root)


def test_null_tags_are_unknown_also_beside_complete_labels(root):
    """An empty list says that none of the classes is there; a null says nothing."""
    write(root / "metadata.jsonl", *photos({"tags": ["cat"]}, {"tags": []}, {"tags": None}))
    found = labels(read(root, options=ReadOptions(complete=True)))
    assert [*found.values()] == [{"cat": Label.POSITIVE}, {"cat": Label.NEGATIVE}, {}]


def test_null_is_not_a_word(root):
    """In columns of classes with boxes, and of splits, a null is a blank cell."""
    boxes = {"class": "cat", "x0": 0.1, "y0": 0.1, "x1": 0.5, "y1": 0.5, "split": "train"}
    write(root / "metadata.jsonl", *photos(boxes, dict.fromkeys(boxes)))
    table = read(root)
    assert table.classes.ids == ("cat",)
    assert set(table.split_names.to_pylist()) <= {"train", "", None}
