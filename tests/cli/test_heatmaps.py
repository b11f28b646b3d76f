"""Names of files."""

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fewtags.cli.heatmaps import class_position, file_names, output_names
from fewtags.errors import DataError
from fewtags.labels import ClassNames


def test_names_of_photos(tmp_path: Path) -> None:
    """Below a folder: the place in it. By itself: the name. Same name, or same but for case or ending: numbered."""
    for name in ("a/x/1.jpg", "a/y/1.jpg", "a/y/1.png", "a/y/1-2.jpg", "b/1.JPG"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).touch()
    photos = [tmp_path / n for n in ("a/x/1.jpg", "a/y/1.jpg", "a/y/1.png", "a/y/1-2.jpg", "b/1.JPG")]
    names, notes = output_names([tmp_path / "a", tmp_path / "b" / "1.JPG"], photos)
    assert [str(n) for n in names.values()] == ["x/1", "y/1", "y/1-2", "y/1-2-2", "1"]
    assert notes == [
        f"{photos[2]} is written as y/1-2, since y/1 is taken",
        f"{photos[3]} is written as y/1-2-2, since y/1-2 is taken",
    ]


def test_names_that_differ_in_case_only(tmp_path: Path) -> None:
    names, _ = output_names([], [tmp_path / "a" / "Cat.jpg", tmp_path / "b" / "cat.jpg"])
    assert [str(n) for n in names.values()] == ["Cat", "cat-2"]


@given(st.lists(st.text(max_size=8), max_size=12, unique=True))
def test_no_two_classes_share_a_file(ids: list[str]) -> None:
    names = file_names(ids)
    assert len({n.casefold() for n in names}) == len(ids)
    assert not any(ch in name for name in names for ch in "/\\:\0")


def test_classes_are_found_by_id_and_by_display_name() -> None:
    classes = ClassNames.of(["c1", "c2", "c3"], ["crane", "crane", "owl"])
    assert [class_position(classes, word) for word in ("c2", "owl", "crane [c1]")] == [1, 2, 0]
    with pytest.raises(DataError, match=r"'owls' is not a class of this model \(did you mean 'owl'\?\)\."):
        class_position(classes, "owls")
