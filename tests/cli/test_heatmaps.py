"""Names of files."""

import os
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fewtags.cli.heatmaps import NameKey, file_names, output_names, verdict
from fewtags.engine.own_thresholds import class_position
from fewtags.errors import ConfigError, DataError
from fewtags.labels import ClassNames


def test_names_of_photos(tmp_path: Path) -> None:
    """In a folder: the path below it. Given alone: the name. Equal apart from case or ending: numbered."""
    for name in ("a/x/1.jpg", "a/y/1.jpg", "a/y/1.png", "a/y/1-2.jpg", "b/1.JPG"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).touch()
    photos = [tmp_path / n for n in ("a/x/1.jpg", "a/y/1.jpg", "a/y/1.png", "a/y/1-2.jpg", "b/1.JPG")]
    names, notes = output_names([tmp_path / "a", tmp_path / "b" / "1.JPG"], photos)
    assert [str(n) for n in names.values()] == ["x/1", "y/1", "y/1-2", "y/1-2-2", "1"]
    assert notes == [
        f"{photos[2]} is written as y/1-2, because y/1 is taken",
        f"{photos[3]} is written as y/1-2-2, because y/1-2 is taken",
    ]


def test_names_that_differ_in_case_only(tmp_path: Path) -> None:
    names, _ = output_names([], [tmp_path / "a" / "Cat.jpg", tmp_path / "b" / "cat.jpg"])
    assert [str(n) for n in names.values()] == ["Cat", "cat-2"]


def test_names_that_are_not_utf8(tmp_path: Path) -> None:
    """Below a folder whose name is Latin-1."""
    folder, plain = tmp_path / os.fsdecode(b"\xe9"), tmp_path / "b.jpg"
    names, notes = output_names([tmp_path], [folder / "a.jpg", plain])
    assert [str(n) for n in names.values()] == ["\\xe9/a", "b"]
    assert notes == [
        "1 photo has a name that is not UTF-8 or has control characters, written with \\xNN for these bytes and "
        "\\\\ for a backslash: \\xe9/a"
    ]


def test_the_table_lists_only_changed_names(tmp_path: Path) -> None:
    """Two photos named "a", one of them numbered; class "cat/dog" cannot be part of a file name, "cat" can."""
    key = NameKey(tmp_path)
    key.add(
        Path("x/a.jpg"),
        Path("a"),
        {tmp_path / "a.npy": None, tmp_path / "a.cat.png": "cat", tmp_path / "a.cat_dog.png": "cat/dog"},
    )
    key.add(Path("y/a.jpg"), Path("a-2"), {tmp_path / "a-2.npy": None, tmp_path / "a-2.cat.png": "cat"})
    assert key.write() == f"3 files could not be named PHOTO.CLASS; see {tmp_path / 'names.csv'}"
    assert (tmp_path / "names.csv").read_text("utf-8") == (
        "file,image,class\na.cat_dog.png,x/a.jpg,cat/dog\na-2.npy,y/a.jpg,\na-2.cat.png,y/a.jpg,cat\n"
    )


def test_no_table_if_every_name_says_what_it_is(tmp_path: Path) -> None:
    key = NameKey(tmp_path)
    key.add(Path("x/sub/a.jpg"), Path("sub/a"), {tmp_path / "sub" / "a.cat.png": "cat"})
    assert key.write() == ""
    assert not [*tmp_path.iterdir()]


def test_rows_of_an_earlier_call_are_kept_until_their_file_is_overwritten(tmp_path: Path) -> None:
    """Then "a-2.cat.png" is overwritten by a photo whose name really is "a-2"."""
    (tmp_path / "names.csv").write_text("file,image,class\na-2.cat.png,y/a.jpg,cat\nb-2.cat.png,y/b.jpg,cat\n")
    key = NameKey(tmp_path)
    key.add(Path("z/a-2.jpg"), Path("a-2"), {tmp_path / "a-2.cat.png": "cat"})
    assert key.write() == ""
    assert (tmp_path / "names.csv").read_text("utf-8") == "file,image,class\nb-2.cat.png,y/b.jpg,cat\n"


@pytest.mark.parametrize("content", ["", "name,born\nann,1990\n", "file,image,class\na,b\n", "\xff\xfe"])
def test_another_file_named_names_csv_is_not_replaced(tmp_path: Path, content: str) -> None:
    (tmp_path / "names.csv").write_text(content, "latin-1")
    with pytest.raises(ConfigError) as error:
        NameKey(tmp_path)
    assert str(error.value) == (
        f"{tmp_path / 'names.csv'} exists and is not a table of heatmap names (columns file, image, class); move it, "
        "or give another --out."
    )


@given(st.lists(st.text(max_size=8), max_size=12, unique=True))
def test_no_two_classes_share_a_file(ids: list[str]) -> None:
    names = file_names(ids)
    assert len({n.casefold() for n in names}) == len(ids)
    assert not any(ch in name for name in names for ch in "/\\:\0")


def test_long_class_ids_are_cut_to_100_characters() -> None:
    """File systems allow 255 bytes a name. Ids that are equal up to the cut are numbered."""
    ids = ["a" * 100, "a" * 101, "b" * 99, "c" * 300]
    assert file_names(ids) == ["a" * 100, "a" * 100 + "-2", "b" * 99, "c" * 100]


def test_classes_are_found_by_id_and_by_display_name() -> None:
    classes = ClassNames.of(["c1", "c2", "c3"], ["crane", "crane", "owl"])
    assert [class_position(classes, word) for word in ("c2", "owl", "crane [c1]")] == [1, 2, 0]
    with pytest.raises(DataError, match=r"'owls' is not a class of this model \(did you mean 'owl'\?\)\."):
        class_position(classes, "owls")


def test_the_caption_says_what_was_decided() -> None:
    """Of classes that exclude each other, one below its threshold may be tagged, and one above it may not."""
    assert verdict(0.3, 0.5, tagged=True) == "0.30 < 0.50, tagged as the best of its group"
    assert verdict(0.6, 0.5, tagged=False) == "0.60 ≥ 0.50, another of its group is tagged"
