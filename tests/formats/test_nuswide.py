"""NUS-WIDE: the official lists, and the arrays of Cole et al."""

import bench_sets
import numpy as np
import pytest

from fewtags.errors import DataError
from fewtags.formats.read import detect, read
from fewtags.labels import Label

P, N = int(Label.POSITIVE), int(Label.NEGATIVE)


def photos(root, names):
    for name in names:
        bench_sets.photo(root / "Flickr" / name, [])


@pytest.fixture
def official(tmp_path):
    r"""Two training photos and a test photo of the concepts sky and sea; names have a backslash, as published."""
    photos(tmp_path, ("actor/1.jpg", "actor/2.jpg", "beach/3.jpg"))
    (tmp_path / "ConceptsList").mkdir()
    (tmp_path / "ConceptsList/Concepts81.txt").write_text("sky\nsea\n")
    (tmp_path / "ImageList").mkdir()
    (tmp_path / "ImageList/TrainImagelist.txt").write_text("actor\\1.jpg\r\nactor\\2.jpg\r\n")
    (tmp_path / "ImageList/TestImagelist.txt").write_text("beach\\3.jpg\n")
    labels = tmp_path / "Groundtruth/TrainTestLabels"
    labels.mkdir(parents=True)
    for split, columns in (("Train", {"sky": "1\n0\n", "sea": "0\n0\n"}), ("Test", {"sky": "0\n", "sea": "1\n"})):
        for concept, text in columns.items():
            (labels / f"Labels_{concept}_{split}.txt").write_text(text)
    return tmp_path


def test_official_lists(official):
    assert detect(official)[0] == "nuswide"
    table = read(official)
    assert table.classes.ids == ("sky", "sea")
    assert table.images.to_pylist() == ["actor/1.jpg", "actor/2.jpg", "beach/3.jpg"]
    assert table.matrix.dense().tolist() == [[P, N], [N, N], [N, P]]
    assert {name: len(part) for name, part in table.named_splits().items()} == {"train": 2, "test": 1}


@pytest.fixture
def arrays(tmp_path):
    photos(tmp_path, ("actor/1.jpg", "actor/2.jpg"))
    for split, name, labels in (("train", "actor/1.jpg", [[1, 0, 1]]), ("val", "actor/2.jpg", [[0, 0, 0]])):
        np.save(tmp_path / f"formatted_{split}_images.npy", np.array([name]))
        np.save(tmp_path / f"formatted_{split}_labels.npy", np.array(labels, float))
    return tmp_path


def test_arrays_name_concepts_by_number(arrays):
    table = read(arrays)
    assert table.classes.ids == ("0", "1", "2")
    assert table.matrix.dense().tolist() == [[P, N, P], [N, N, N]]
    assert {name: len(part) for name, part in table.named_splits().items()} == {"train": 1, "val": 1}


@pytest.mark.parametrize(
    ("labels", "message"),
    [
        ([[1, 0, 2]], "formatted_train_labels.npy: expected 0 or 1 for each of 1 images and class."),
        ([[1, 0, 1]] * 2, "formatted_train_labels.npy: expected 0 or 1 for each of 1 images and class."),
        ([[1, 0]], "the arrays have different numbers of classes: [2, 3]."),
    ],
)
def test_damaged_arrays(arrays, labels, message):
    np.save(arrays / "formatted_train_labels.npy", np.array(labels, float))
    with pytest.raises(DataError) as error:
        read(arrays)
    assert str(error.value).endswith(message)


def test_an_array_of_objects_is_not_unpickled(arrays):
    np.save(arrays / "formatted_train_images.npy", np.array(["actor/1.jpg"], object), allow_pickle=True)
    with pytest.raises(DataError, match=r"formatted_train_images\.npy: not an array of numbers or texts"):
        read(arrays)


@pytest.mark.parametrize(
    ("text", "message"),
    [("1\n", "has 1 lines, but its list has 2 photos."), ("1\n-1\n", "line 2: expected 0 or 1, got '-1'.")],
)
def test_damaged_lists(official, text, message):
    (official / "Groundtruth/TrainTestLabels/Labels_sea_Train.txt").write_text(text)
    with pytest.raises(DataError) as error:
        read(official)
    assert str(error.value).endswith(message)
