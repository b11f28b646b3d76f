import unicodedata
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fewtags.errors import DataError
from fewtags.formats.locate import extension, is_photo, key_of, locate, spelling
from fewtags.table.table import Excluded


@pytest.mark.parametrize(
    ("name", "photo"),
    [
        *((name, True) for name in ("a.jpg", "A.JPEG", "b.TIFF", "a.webp", "x/y.png")),
        *((name, False) for name in ("a.txt", "jpg", ".jpg", "a.jpg/b", "a.jpg.rf.1f3b")),
    ],
)
def test_photo_names(name, photo):
    assert is_photo(name) == photo


def test_extension_is_lower_case():
    assert (extension("A.b.JPG"), extension("none"), extension("a.b/none")) == (".jpg", "", "")


FILE, ROOT = Path("/data/lists/a.csv"), Path("/data/photos")


@pytest.mark.parametrize(
    ("name", "key"),
    [
        ("a.jpg", "a.jpg"),
        (" a.jpg\t", "a.jpg"),
        ("b/ä 1.jpg", "b/ä 1.jpg"),
        ("b\\c.jpg", "b/c.jpg"),
        ("./b//c/../a.jpg", "b/a.jpg"),
        ("a..jpg", "a..jpg"),
        (".hidden/a.jpg", ".hidden/a.jpg"),
        ("...jpg", "...jpg"),
        ("/data/photos/b/a.jpg", "b/a.jpg"),
        ("../photos/a.jpg", "a.jpg"),  # from the folder of the file
        ("../a.jpg", None),
        ("/elsewhere/a.jpg", None),
        ("b/../../../etc/passwd", None),
        ("..", None),
        (".", None),
        ("/data/photos", None),
        ("C:\\photos\\a.jpg", None),
        ("C:\\data\\a.jpg", None),
    ],
)
def test_keys(name, key):
    assert key_of(name, FILE, ROOT) == key


@given(st.text("ab./\\:", max_size=12))
def test_keys_never_leave_the_root(name):
    key = key_of(name, FILE, ROOT)
    assert key is None or (key and not key.startswith("/") and ".." not in key.split("/") and "\\" not in key)
    assert key is None or key_of(key, FILE, ROOT) == key


def test_without_a_folder_names_are_keys(tmp_path):
    found = locate(["b.jpg", "a.jpg", "b.jpg"], file=tmp_path / "x.csv")
    assert (found.keys, found.image.tolist(), found.root) == (["b.jpg", "a.jpg"], [0, 1, 0], None)
    assert found.notes.messages == ("photos: none found beside the file; give images='FOLDER' to use them",)


def test_the_folder_is_found_beside_the_file(tmp_path, make_photo):
    make_photo("images/a.jpg")
    make_photo("images/b.jpg")
    found = locate(["a.jpg", "b.jpg"], file=tmp_path / "x.csv", beside=[tmp_path, tmp_path / "images"])
    assert (found.keys, found.root) == (["a.jpg", "b.jpg"], tmp_path / "images")
    assert found.notes.messages == (f"photos: {tmp_path / 'images'}",)


def test_absolute_names_have_their_common_folder(tmp_path, make_photo):
    make_photo("p/x/a.jpg")
    make_photo("p/y/b.jpg")
    found = locate([f"{tmp_path}/p/x/a.jpg", f"{tmp_path}/p/y/b.jpg"], file=tmp_path / "q" / "x.csv")
    assert (found.keys, found.root) == (["x/a.jpg", "y/b.jpg"], tmp_path / "p")


def test_missing_photos_are_left_out_with_a_reason(tmp_path, make_photo):
    make_photo("p/a.jpg")
    make_photo("p/c.jpg")
    file = tmp_path / "x.csv"
    found = locate(["a.jpg", "b.jpg", "c.jpg", "b.jpg", "a.jpg"], file=file, images=tmp_path / "p")
    assert (found.keys, found.image.tolist()) == (["a.jpg", "c.jpg"], [0, -1, 1, -1, 0])
    assert found.notes.excluded == (Excluded("b.jpg", f"photo not found: {tmp_path}/p/b.jpg", str(file), "missing"),)
    assert found.notes.messages == ("x.csv: 1 of 3 photos left out: not found",)
    outside = locate(["a.jpg", "c.jpg", "../secret.jpg"], file=file, images=tmp_path / "p")
    assert outside.notes.excluded == (Excluded("../secret.jpg", "is outside the images folder", str(file), "missing"),)


def test_most_missing_is_an_error_with_a_path_that_was_tried(tmp_path, make_photo):
    make_photo("p/a.jpg")
    with pytest.raises(DataError) as error:
        locate(["a.jpg", "b.jpg", "c.jpg"], file=tmp_path / "x.csv", images=tmp_path / "p")
    assert str(error.value) == (
        f"{tmp_path}/x.csv: 2 of 3 photos do not exist; 'b.jpg' photo not found: {tmp_path}/p/b.jpg. "
        "Pass the folder that the paths in the file are relative to: images='FOLDER'."
    )


def test_the_images_folder_must_be_one(tmp_path):
    with pytest.raises(DataError, match=r"'.*/nowhere' is not a folder; pass the folder with the photos"):
        locate(["a.jpg"], file=tmp_path / "x.csv", images=tmp_path / "nowhere")


def test_a_name_without_extension_means_the_only_photo_of_that_name(tmp_path, make_photo):
    for key in ("p/train_0.jpg", "p/v1.2.PNG", "p/both.jpg", "p/both.png", "p/d/x.jpg"):
        make_photo(key)
    (tmp_path / "p/train_0.txt").touch()
    found = locate(["train_0", "v1.2", "d/x", "both"], file=tmp_path / "x.csv", images=tmp_path / "p")
    assert found.keys == ["train_0.jpg", "v1.2.PNG", "d/x.jpg"]
    assert [e.item for e in found.notes.excluded] == ["both"]
    assert found.notes.messages[-1] == "x.csv: 3 names lack the ending of the file, or differ in spelling"


def test_names_that_differ_only_in_case_and_mean_one_photo_are_reported(tmp_path, make_photo):
    """a.jpg is there, A.JPG is not: both names mean it, as on Windows. "b" and "./b.jpg" differ otherwise."""
    make_photo("p/a.jpg")
    make_photo("p/b.jpg")
    names = ["a.jpg", "b", "A.JPG", "./b.jpg", "a.jpg"]
    found = locate(names, file=tmp_path / "x.csv", images=tmp_path / "p")
    assert (found.keys, found.image.tolist()) == (["a.jpg", "b.jpg"], [0, 1, 0, 1, 0])
    assert found.notes.warnings == (
        "x.csv: 1 photo is called by several names that differ only in case or in how accents are encoded, "
        "'a.jpg = A.JPG'; the labels of all names are joined. Rename them if they are different photos.",
    )
    make_photo("p/A.JPG", 1)
    both = locate(names, file=tmp_path / "x.csv", images=tmp_path / "p")
    assert both.notes.warnings == ()  # two files; that other systems cannot hold both is for `check` to say


def test_another_unicode_form_or_case_is_the_same_photo(tmp_path, make_photo):
    """macOS writes é as e and an accent; Windows users write .JPG for .jpg."""
    composed, apart = unicodedata.normalize("NFC", "é.jpg"), unicodedata.normalize("NFD", "é.jpg")
    assert composed != apart
    make_photo(f"p/{apart}")
    make_photo("p/b.jpg")
    found = locate([composed, "b.JPG"], file=tmp_path / "x.csv", images=tmp_path / "p")
    assert found.keys == [apart, "b.jpg"]


def test_two_names_of_one_photo_are_one_image(tmp_path, make_photo):
    make_photo("p/a.jpg")
    found = locate(["a.jpg", "./a.jpg", "a"], file=tmp_path / "x.csv", images=tmp_path / "p")
    assert (found.keys, found.image.tolist()) == (["a.jpg"], [0, 0, 0])


def test_no_names_at_all(tmp_path):
    found = locate([], file=tmp_path / "x.csv", images=tmp_path)
    assert (found.keys, len(found.image)) == ([], 0)


@pytest.mark.parametrize("name", ["a\0b.jpg", "x" * 5000 + ".jpg", "d" * 300 + "/a.jpg"])
def test_names_that_no_file_can_have_are_missing(tmp_path, make_photo, name):
    make_photo("p/a.jpg")
    found = locate(["a.jpg", name], file=tmp_path / "x.csv", images=tmp_path / "p")
    assert found.image.tolist() == [0, -1]


def test_the_spelling_under_which_photos_are_there(tmp_path, make_photo):
    make_photo("p/cat.jpg")
    make_photo("q/up/x-cat.jpg")
    variants = [["up/x-cat.jpg"], ["x-cat.jpg"], ["cat.jpg"]]
    file = tmp_path / "a.json"
    assert spelling(variants, file=file, images=tmp_path / "p") == ["cat.jpg"]
    assert spelling(variants, file=file, images=tmp_path / "q") == ["up/x-cat.jpg"]
    assert spelling(variants, file=file, images=tmp_path / "q/up", beside=[tmp_path / "p"]) == ["x-cat.jpg"]
    assert spelling(variants, file=file, beside=[tmp_path / "p", tmp_path / "q"]) == ["up/x-cat.jpg"]
    assert spelling(variants, file=file) == ["up/x-cat.jpg"]


def test_a_spelling_that_makes_two_photos_one_is_not_taken(tmp_path, make_photo):
    make_photo("a.jpg")
    for variants in ([["1/a.jpg", "2/a.jpg"], ["a.jpg"] * 2], [["a.jpg"] * 2, ["1/a.jpg", "2/a.jpg"]]):
        assert spelling(variants, file=tmp_path / "x", images=tmp_path) == ["1/a.jpg", "2/a.jpg"]
