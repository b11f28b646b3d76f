"""`datasets` of Hugging Face become label tables, and label tables become `datasets`."""

import io

import numpy as np
import pytest
from PIL import Image

import fewtags as ft
from fewtags.errors import ConfigError, DataError
from fewtags.photos.decode import read_image

datasets = pytest.importorskip("datasets")


def photo(n, kind="PNG"):
    out = io.BytesIO()
    Image.fromarray(np.full((6, 8, 3), 40 * n, np.uint8)).save(out, kind)
    return {"bytes": out.getvalue(), "path": None}


def made(labels, feature, **columns):
    features = {"image": datasets.Image(), "label": feature, **{name: f for name, (_, f) in columns.items()}}
    kinds = ["PNG", "JPEG", "PNG", "PNG"]
    content = {"image": [photo(n, kind) for n, kind in zip(range(len(labels)), kinds, strict=False)], "label": labels}
    content |= {name: values for name, (values, _) in columns.items()}
    return datasets.Dataset.from_dict(content, features=datasets.Features(features))


def test_one_class_a_row(tmp_path):
    """-1 is a hidden label. A class that no row has stays in the vocabulary."""
    table = ft.from_datasets(made([1, 0, -1], datasets.ClassLabel(names=["owl", "cat", "bee"])), tmp_path / "photos")
    assert table.classes.ids == ("owl", "cat", "bee")
    assert table.matrix.dense().tolist() == [[0, 1, 0], [1, 0, 0], [0, 0, 0]]
    assert table.images.to_pylist() == ["00000000.png", "00000001.jpg", "00000002.png"]
    assert (tmp_path / "photos" / "00000001.jpg").read_bytes() == photo(1, "JPEG")["bytes"]
    assert (read_image(table.root / "00000002.png") == 80).all()
    assert "1 photo has no labels (None or -1): unknown" in table.notes.messages
    complete = ft.from_datasets(
        made([1, 0, -1], datasets.ClassLabel(names=["owl", "cat"])), tmp_path / "again", complete=True
    )
    assert complete.matrix.dense().tolist() == [[-1, 1], [1, -1], [0, 0]]


def test_lists_of_classes(tmp_path):
    """An empty list is a row with labels, and None is one without."""
    given = made([["b", "a"], [], None], datasets.Sequence(datasets.Value("string")))
    table = ft.from_datasets(given, tmp_path / "photos", labels="label", complete=True)
    assert table.classes.ids == ("a", "b")
    dense = table.matrix.dense().tolist()
    assert dense[:2] == [[1, 1], [-1, -1]]


def test_there_and_back(tmp_path):
    first = ft.from_datasets(
        made(
            [[0], [1, 2], []],
            datasets.Sequence(datasets.ClassLabel(names=["a", "b", "c"])),
            negatives=([[1], [], [0, 2]], datasets.Sequence(datasets.ClassLabel(names=["a", "b", "c"]))),
        ),
        tmp_path / "first",
    )
    assert first.matrix.dense().tolist() == [[1, -1, 0], [0, 1, 1], [-1, 0, -1]]
    back = ft.to_datasets(first)
    assert back.column_names == ["image", "labels", "negatives"]
    assert [np.asarray(row["image"])[0, 0, 0] for row in back.select([0, 2])] == [0, 80]
    again = ft.from_datasets(back, tmp_path / "again")
    assert again.classes == first.classes
    assert (again.matrix.dense() == first.matrix.dense()).all()


def test_what_cannot_be_read(tmp_path, monkeypatch):
    one = made([1, 0], datasets.ClassLabel(names=["a", "b"]))
    (tmp_path / "used").mkdir()
    (tmp_path / "used" / "file").touch()
    for given, options, message in (
        ([1], {}, "expected a datasets.Dataset, got an object of the type list."),
        (
            datasets.DatasetDict({"test": one}),
            {},
            "expected one split, got a DatasetDict; pass for example dataset['test'].",
        ),
        (
            one.remove_columns("image"),
            {},
            "expected one column of images, found none; select columns.",
        ),
        (
            one.remove_columns("label"),
            {},
            "expected one column of ClassLabels, found none; pass labels=COLUMN.",
        ),
        (one, {"labels": "tag"}, "there is no column 'tag'; the data set has 'image', 'label'."),
    ):
        with pytest.raises(DataError) as error:
            ft.from_datasets(given, tmp_path / "photos", **options)
        assert str(error.value) == message
    with pytest.raises(DataError) as error:
        ft.from_datasets(one, tmp_path / "used")
    assert str(error.value) == f"{tmp_path / 'used'} has files; give a new folder for the photos of the data set."
    monkeypatch.setitem(__import__("sys").modules, "datasets", None)
    with pytest.raises(ConfigError, match=r"pip install 'fewtags\[datasets\]'"):
        ft.to_datasets(None)
