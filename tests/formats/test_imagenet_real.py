"""ReaL's lists of class numbers; `test_real.py` reads real files."""

import json

import bench_sets
import pytest

from fewtags.errors import DataError
from fewtags.formats.options import ReadOptions
from fewtags.formats.read import read
from fewtags.labels import Label

P, N, U = (int(state) for state in (Label.POSITIVE, Label.NEGATIVE, Label.UNKNOWN))


@pytest.fixture
def own(tmp_path):
    """Three photos that are not ImageNet's, in the order of their names, and names of the classes."""
    for name in ("x/b.jpg", "x/c.jpg", "y/a.jpg"):
        bench_sets.photo(tmp_path / "images" / name, [])
    (tmp_path / "classes.txt").write_text("cat\ndog\n")
    (tmp_path / "real.json").write_text("[[0, 1], [], [1]]")
    return tmp_path / "real.json"


def test_lists_are_about_the_photos_by_name(own):
    """The names without their folders decide: a, b, c. An empty list says nothing, even if the others are complete."""
    table = read(own, images=own.parent / "images")
    assert table.images.to_pylist() == ["y/a.jpg", "x/b.jpg", "x/c.jpg"]
    assert table.classes.ids == ("cat", "dog")
    assert table.matrix.dense().tolist() == [[P, P], [U, U], [U, P]]
    whole = read(own, images=own.parent / "images", options=ReadOptions(complete=True))
    assert whole.matrix.dense().tolist() == [[P, P], [U, U], [N, P]]


def test_photos_of_imagenet_are_found_by_number_in_any_folder(tmp_path):
    for n, folder in ((2, "n01440764"), (1, "n01443537")):
        bench_sets.photo(tmp_path / "val" / folder / f"ILSVRC2012_val_{n:08}.JPEG", [])
    (tmp_path / "real.json").write_text("[[1], [0]]")
    table = read(tmp_path / "real.json", images=tmp_path / "val")
    names = ["n01443537/ILSVRC2012_val_00000001.JPEG", "n01440764/ILSVRC2012_val_00000002.JPEG"]
    assert table.images.to_pylist() == names
    assert table.classes.ids[:2] == ("n01440764", "n01443537")
    assert len(table.classes) == 1000


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ([[0], [1]], "has 2 lists, but"),
        ([[0], [True], [1]], "list 2 has True, which is not the number of a class."),
        ([[0], [-1], [1]], "list 2 has -1, which is not the number of a class."),
        ([[], [], []], "no list has the number of a class, so there is nothing to learn."),
        ([[0], [5], [1]], "class 5 has no name in"),
    ],
)
def test_damaged_lists(own, content, message):
    own.write_text(json.dumps(content))
    with pytest.raises(DataError) as error:
        read(own, images=own.parent / "images", format="real")
    assert message in str(error.value)
