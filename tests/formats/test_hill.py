"""Lists of photos with numbers of classes (Hill, SPLC)."""

import bench_sets
import pytest

from fewtags.errors import DataError
from fewtags.formats.options import ReadOptions
from fewtags.formats.read import read
from fewtags.labels import Label

P, N, U = (int(state) for state in (Label.POSITIVE, Label.NEGATIVE, Label.UNKNOWN))


@pytest.fixture
def listed(tmp_path):
    """Three photos; the second has no number."""
    for name in "abc":
        bench_sets.photo(tmp_path / f"{name}.jpg", [])
    path = tmp_path / "list.txt"
    path.write_text("a.jpg, 0 2\nb.jpg,\n\nc.jpg, 1\n")
    return path


def test_numbers_are_positive_and_the_rest_is_unknown(listed):
    table = read(listed)
    assert table.classes.ids == ("0", "1", "2")
    assert table.images.to_pylist() == ["a.jpg", "b.jpg", "c.jpg"]
    assert table.matrix.dense().tolist() == [[P, U, P], [U, U, U], [U, P, U]]


def test_complete_photos_need_a_number(listed):
    """A photo without a number says nothing, not that all classes are absent."""
    dense = read(listed, options=ReadOptions(complete=True)).matrix.dense()
    assert dense.tolist() == [[P, N, P], [U, U, U], [N, P, N]]


def test_names_beside_the_list(listed):
    (listed.parent / "classes.txt").write_text("cat\ndog\ncow\n")
    assert read(listed).classes.ids == ("cat", "dog", "cow")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("a.jpg, 0\nb.jpg; 1\n", "list.txt line 2: expected a photo and numbers, as in a.jpg, 8 41; got 'b.jpg; 1'."),
        ("a.jpg,\nb.jpg,\n", "list.txt: no line has the number of a class, so there is nothing to learn."),
    ],
)
def test_damaged_lists(listed, text, message):
    listed.write_text(text)
    with pytest.raises(DataError) as error:
        read(listed, format="hill")
    assert str(error.value).endswith(message)
