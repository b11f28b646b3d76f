"""Display names of classes that are called by ids."""

from pathlib import Path

import pytest
from PIL import Image

import fewtags as ft
from fewtags.check.check import check
from fewtags.config.sections import DataConfig
from fewtags.engine.tables import read_named
from fewtags.errors import DataError
from fewtags.formats.class_names import read_names
from fewtags.formats.options import ReadOptions

FILES = {
    "a.csv": "n02012849,crane\nn03126707,crane\n",
    "header.csv": "name,wnid\ncrane,n02012849\ncrane,n03126707\n",
    "synset.txt": "n02012849 crane\nn03126707 crane\n",
    "tabs.tsv": "id\tname\nn02012849\tcrane\nn03126707\tcrane\n",
    "a.json": '{"n02012849": "crane", "n03126707": "crane"}',
    "list.json": '[{"id": "n02012849", "name": "crane"}, {"id": "n03126707", "name": "crane"}]',
    "imagenet.json": '{"0": ["n02012849", "crane"], "1": ["n03126707", "crane"]}',
}


@pytest.fixture
def photos(tmp_path: Path) -> Path:
    for n, name in enumerate(("n02012849", "n03126707")):
        (tmp_path / "photos" / name).mkdir(parents=True)
        Image.new("RGB", (8, 8), (90 * n, 5, 5)).save(tmp_path / "photos" / name / f"{n}.png")
    return tmp_path


@pytest.mark.parametrize("name", FILES)
def test_files_of_names(photos: Path, name: str) -> None:
    (photos / name).write_text(FILES[name])
    table = ft.read(photos / "photos", options=ReadOptions(names=str(photos / name)))
    assert table.classes.ids == ("n02012849", "n03126707")
    assert table.classes.display == ("crane [n02012849]", "crane [n03126707]")


def test_names_with_commas_and_blanks(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("n02012849 crane, bird\nn03126707 crane\n")
    assert read_names(tmp_path / "a.txt") == {"n02012849": "crane, bird", "n03126707": "crane"}
    (tmp_path / "b.csv").write_text('n02012849,"crane, bird"\nn03126707,building crane\n')
    assert read_names(tmp_path / "b.csv") == {"n02012849": "crane, bird", "n03126707": "building crane"}


def test_an_unknown_id_is_an_error_that_names_it(photos: Path) -> None:
    file = photos / "names.csv"
    file.write_text("n02012849,crane\nn0312670,crane\n")
    with pytest.raises(DataError, match=r"'n0312670' is not the id of a class \(did you mean 'n03126707'\?\)"):
        ft.read(photos / "photos", options=ReadOptions(names=str(file)))


def test_a_file_of_more_classes_is_used(photos: Path) -> None:
    file = photos / "names.csv"
    file.write_text(FILES["a.csv"] + "n01440764,tench\n")
    table = ft.read(photos / "photos", options=ReadOptions(names=str(file)))
    assert "names.csv: display names for 2 of 2 classes; 1 other id not used, 'n01440764'" in table.notes.messages


def test_splits_may_lack_classes(photos: Path) -> None:
    """An id that only the validation labels have is known."""
    file = photos / "names.csv"
    file.write_text(FILES["a.csv"] + "n01440764,tench\n")
    (photos / "val" / "n01440764").mkdir(parents=True)
    Image.new("RGB", (8, 8), (5, 200, 5)).save(photos / "val" / "n01440764" / "v.png")
    (photos / "val" / "other").mkdir()
    Image.new("RGB", (8, 8), (5, 200, 99)).save(photos / "val" / "other" / "w.png")
    tables = read_named(DataConfig(train=str(photos / "photos"), val=str(photos / "val"), names=str(file)))
    assert tables["val"].classes.names == ("tench", "other")
    assert tables["train"].classes.names == ("crane", "crane")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("n02012849,crane\nn02012849,tench\n", "row 2: 'n02012849' is called 'tench' here and 'crane' before"),
        ("n02012849,\n", "row 1: expected an id and a name"),
        ("n02012849\n", "row 1: 'n02012849' is not an id and a name; write it as n02012849,crane"),
        ("n02012849,crane, bird\nn03126707,crane\n", "row 1: 3 cells; write a name with a ',' in quotes"),
        ("", "there is no row with an id and a name"),
    ],
)
def test_broken_files(tmp_path: Path, text: str, message: str) -> None:
    (tmp_path / "names.csv").write_text(text)
    with pytest.raises(DataError) as error:
        read_names(tmp_path / "names.csv")
    assert message in str(error.value)


def test_ids_without_names_get_a_hint(photos: Path) -> None:
    report = check({"train": ft.read(photos / "photos")})
    (found,) = [finding for finding in report.findings if finding.code == "ids"]
    assert found.items == ("n02012849", "n03126707")
    (photos / "a.csv").write_text(FILES["a.csv"])
    named = ft.read(photos / "photos", options=ReadOptions(names=str(photos / "a.csv")))
    assert not [finding for finding in check({"train": named}).findings if finding.code == "ids"]
