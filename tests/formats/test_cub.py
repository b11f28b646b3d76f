"""Attributes of CUB-200-2011."""

import bench_sets
import pytest

from fewtags.errors import DataError
from fewtags.formats.read import detect, read
from fewtags.labels import Label

P, N, U = (int(state) for state in (Label.POSITIVE, Label.NEGATIVE, Label.UNKNOWN))


@pytest.fixture
def birds(tmp_path):
    """Three photos and two attributes; the second photo lacks its first attribute."""
    base = tmp_path / "CUB_200_2011"
    for n in (1, 2, 3):
        bench_sets.photo(base / f"images/001.Bird/{n}.jpg", [])
    (base / "attributes").mkdir()
    (tmp_path / "attributes.txt").write_text("1 has_bill::long\n2 has_wing::blue\n")
    (base / "images.txt").write_text("".join(f"{n} 001.Bird/{n}.jpg\n" for n in (1, 2, 3)))
    (base / "train_test_split.txt").write_text("1 1\n2 0\n3 1\n")
    rows = ("1 1 1 4 3.2", "1 2 0 1 2.0", "2 2 1 3 0.5", "3 1 0 2 1 0 9.9", "3 2 0 4 1.0")
    (base / "attributes/image_attribute_labels.txt").write_text("".join(f"{row}\n" for row in rows))
    return base


def test_attributes_are_classes_and_columns_after_the_third_are_not_read(birds):
    assert detect(birds)[0] == "cub"
    table = read(birds)
    assert table.classes.ids == ("has_bill::long", "has_wing::blue")
    assert table.images.to_pylist() == [f"001.Bird/{n}.jpg" for n in (1, 2, 3)]
    assert table.matrix.dense().tolist() == [[P, N], [U, P], [N, N]]
    assert {name: len(part) for name, part in table.named_splits().items()} == {"train": 2, "test": 1}


@pytest.mark.parametrize(
    ("file", "text", "message"),
    [
        ("attributes/image_attribute_labels.txt", "1 1 2 4 1\n", "line 1: expected image, attribute and 0 or 1, got"),
        ("attributes/image_attribute_labels.txt", "9 1 1 4 1\n", "line 1: image 9 or attribute 1 is not in the lists."),
        ("images.txt", "1 a.jpg\n1 b.jpg\n", "images.txt line 2: expected a number of its own and a name, got"),
        ("../attributes.txt", "", "attributes.txt is empty."),
    ],
)
def test_damaged_files(birds, file, text, message):
    (birds / file).write_text(text)
    with pytest.raises(DataError) as error:
        read(birds, format="cub")
    assert message in str(error.value)


def test_missing_names(birds):
    (birds.parent / "attributes.txt").unlink()
    with pytest.raises(
        DataError, match=r"the names of the attributes are missing: attributes\.txt, in it or beside it"
    ):
        read(birds)
