import os
from pathlib import Path

import numpy as np
import pytest
from seen import labels

from fewtags.errors import DataError
from fewtags.formats.folder import read_folder
from fewtags.formats.options import ReadOptions
from fewtags.labels import Label
from fewtags.table.table import Excluded

P, N, U = Label.POSITIVE, Label.NEGATIVE, Label.UNKNOWN


def readings(table):
    return {(r.value, r.meaning): r.count for r in table.notes.readings}


def test_a_plain_tree(tmp_path, make_photo):
    make_photo("dog/b.JPG", 1)
    make_photo("cat/z.jpeg", 2)
    make_photo("cat/a.png", 3)
    table = read_folder(tmp_path)
    assert table.classes.ids == ("cat", "dog")
    assert table.images.to_pylist() == ["cat/a.png", "cat/z.jpeg", "dog/b.JPG"]
    assert labels(table) == {"cat/a.png": {"cat": P}, "cat/z.jpeg": {"cat": P}, "dog/b.JPG": {"dog": P}}
    assert (table.root, table.split_names) == (tmp_path, None)
    assert readings(table) == {("cat/", "positive: cat"): 2, ("dog/", "positive: dog"): 1}
    assert table.notes.messages == ("class = folder below the root",)
    assert table.facts["source"].unique().to_pylist() == [tmp_path.name]


def test_the_same_photo_in_several_folders_is_one_image(tmp_path, make_photo):
    """Content 1 lies in three folders, content 2 twice in one, content 3 once."""
    for key, content in [("cat/x.jpg", 1), ("dog/y.jpg", 1), ("bird/x.jpg", 1)]:
        make_photo(key, content)
    make_photo("dog/1.jpg", 2)
    make_photo("dog/2.jpg", 2)
    make_photo("cat/other.jpg", 3)
    table = read_folder(tmp_path)
    assert labels(table) == {
        "bird/x.jpg": {"bird": P, "cat": P, "dog": P},
        "cat/other.jpg": {"cat": P},
        "dog/1.jpg": {"dog": P},
    }
    assert table.notes.excluded == ()  # nothing is lost
    (joined,) = table.notes.lists
    assert joined.code == "joined-copies"
    assert joined.message == ("3 copies of 2 photos joined: equal bytes; each photo has the labels of all its folders")
    assert joined.items == ("cat/x.jpg = bird/x.jpg", "dog/2.jpg = dog/1.jpg", "dog/y.jpg = bird/x.jpg")


def test_equal_size_is_not_equal_content(tmp_path):
    for name, last in [("a/1.jpg", b"x"), ("b/2.jpg", b"y")]:
        (tmp_path / name).parent.mkdir()
        (tmp_path / name).write_bytes(b"0" * 5000 + last)
    (tmp_path / "b/3.jpg").write_bytes(b"1" + b"0" * 4999 + b"x")  # equal to 1.jpg in size and in the last 4 KiB
    assert len(read_folder(tmp_path)) == 3


def test_comma_separated_names(tmp_path, make_photo):
    make_photo("cat, dog/a.jpg", 1)
    make_photo("dog,,bird/b.jpg", 2)
    assert labels(read_folder(tmp_path)) == {
        "cat, dog/a.jpg": {"cat": P, "dog": P},
        "dog,,bird/b.jpg": {"dog": P, "bird": P},
    }


def test_none_means_known_to_hold_nothing(tmp_path, make_photo):
    make_photo("cat/a.jpg", 1)
    make_photo("None/b.jpg", 2)
    table = read_folder(tmp_path)
    assert table.classes.ids == ("cat",)
    assert labels(table) == {"None/b.jpg": {"cat": N}, "cat/a.jpg": {"cat": P}}
    assert readings(table)["None/", "none of the classes"] == 1
    other = read_folder(tmp_path, options=ReadOptions(none_folder="empty"))
    assert other.classes.ids == ("None", "cat")
    assert read_folder(tmp_path, options=ReadOptions(none_folder="")).classes.ids == ("None", "cat")


def test_a_photo_in_a_class_folder_and_in_none_is_contradictory(tmp_path, make_photo):
    make_photo("cat/a.jpg", 1)
    make_photo("none/a.jpg", 1)
    make_photo("dog/b.jpg", 2)
    table = read_folder(tmp_path)
    assert labels(table) == {"cat/a.jpg": {"dog": N}, "dog/b.jpg": {"dog": P}}
    assert table.summary().contradictions == 1
    assert "1 photo is in a folder of a class and of its absence: unknown" in table.notes.messages


def test_complete(tmp_path, make_photo):
    """The photo in no class folder stays unknown: nobody has looked at it."""
    make_photo("cat/a.jpg", 1)
    make_photo("dog/b.jpg", 2)
    make_photo("c.jpg", 3)
    table = read_folder(tmp_path, options=ReadOptions(complete=True))
    assert labels(table) == {"c.jpg": {}, "cat/a.jpg": {"cat": P, "dog": N}, "dog/b.jpg": {"cat": N, "dog": P}}


def test_photos_in_the_root_and_deeper_folders(tmp_path, make_photo):
    make_photo("loose.jpg", 1)
    make_photo("dog/poodle/old/a.jpg", 2)
    make_photo("dog/b.jpg", 3)
    table = read_folder(tmp_path)
    assert labels(table) == {"dog/b.jpg": {"dog": P}, "dog/poodle/old/a.jpg": {"dog": P}, "loose.jpg": {}}
    assert readings(table)["(in no class folder)", "nothing known"] == 1
    assert "1 photo is deeper than its class folder and belongs to it" in table.notes.messages


def test_split_folders(tmp_path, make_photo):
    make_photo("Train/cat/a.jpg", 1)
    make_photo("Train/dog/same.jpg", 2)
    make_photo("valid/dog/b.jpg", 3)
    make_photo("valid/cat/same.jpg", 2)
    make_photo("test/c.jpg", 4)
    table = read_folder(tmp_path)
    assert labels(table) == {
        "Train/cat/a.jpg": {"cat": P},
        "Train/dog/same.jpg": {"dog": P},
        "test/c.jpg": {},
        "valid/cat/same.jpg": {"cat": P},
        "valid/dog/b.jpg": {"dog": P},
    }
    assert table.split_names.to_pylist() == ["train", "train", "test", "val", "val"]
    assert table.notes.messages == ("splits: Train, test, valid; the class is the folder below",)
    (found,) = table.notes.lists
    assert str(found) == ("1 photo is in several splits, with equal bytes (Train/dog/same.jpg = valid/cat/same.jpg)")


@pytest.mark.parametrize(
    "keys",
    [
        ["train/a.jpg", "bus/b.jpg"],
        ["train/old/a.jpg", "bus/b.jpg"],
        ["train/old/a.jpg", "train/b.jpg", "train/new/c.jpg", "bus/b.jpg"],
    ],
)
def test_a_class_may_be_called_train(tmp_path, make_photo, keys):
    for content, key in enumerate(keys):
        make_photo(key, content)
    table = read_folder(tmp_path)
    assert table.split_names is None
    assert table.classes.ids == tuple(sorted({key.split("/")[0] for key in keys}))


def test_photos_beside_the_splits_are_left_out_with_a_line_each(tmp_path, make_photo):
    """train and valid both have a folder cat: these are splits, and extra is not a class."""
    keys = ["train/cat/a.jpg", "train/dog/b.jpg", "valid/cat/c.jpg", "extra/cat/d.jpg", "extra/e.jpg", "f.jpg"]
    for content, key in enumerate(keys):
        make_photo(key, content)
    table = read_folder(tmp_path)
    assert labels(table) == {
        "train/cat/a.jpg": {"cat": P},
        "train/dog/b.jpg": {"dog": P},
        "valid/cat/c.jpg": {"cat": P},
    }
    assert table.split_names.to_pylist() == ["train", "train", "val"]
    assert table.notes.excluded == tuple(
        Excluded(key, "is in none of the splits train, valid", str(tmp_path), "splits")
        for key in ("extra/cat/d.jpg", "extra/e.jpg", "f.jpg")
    )
    assert "3 photos are in none of the splits and are left out, see the excluded list" in table.notes.messages


@pytest.mark.parametrize(
    ("keys", "splits", "others"),
    [
        (["train/cat/a.jpg", "val/dog/b.jpg", "extra/c.jpg"], "'train', 'val'", "'extra'"),  # no class in common
        (["train/a.jpg", "val/b.jpg", "extra/c.jpg", "more/d.jpg"], "'train', 'val'", "'extra', 'more'"),
        (["Training/cat/a.jpg", "Training/dog/b.jpg", "notes/c.jpg"], "'Training'", "'notes'"),
    ],
)
def test_splits_are_never_learnt_as_classes(tmp_path, make_photo, keys, splits, others):
    for content, key in enumerate(keys):
        make_photo(key, content)
    with pytest.raises(DataError) as error:
        read_folder(tmp_path)
    assert str(error.value) == (
        f"{tmp_path}: looks like splits ({splits}) plus {others}. If they are splits, move the other folders into one "
        "of them, or elsewhere; if all of them are classes, rename those with the name of a split."
    )


def test_splits_without_class_folders_are_refused(tmp_path, make_photo):
    make_photo("train/a.jpg", 1)
    make_photo("val/b.jpg", 2)
    with pytest.raises(DataError) as error:
        read_folder(tmp_path)
    assert str(error.value) == (
        f"{tmp_path}: 'train', 'val' have photos but no class folders; expected {tmp_path}/train/CLASS/PHOTO.jpg. "
        "If it is a class and not a split, rename it."
    )


def test_other_files_are_counted_by_kind(tmp_path, make_photo):
    make_photo("cat/a.jpg", 1)
    make_photo("cat/._a.jpg", 2)  # what macOS leaves on other disks
    make_photo("__MACOSX/cat/a.jpg", 3)
    make_photo(".cache/a.jpg", 4)
    for name in ("cat/notes.TXT", "labels.txt", "cat/README", "cat/movie.mp4"):
        (tmp_path / name).write_text("x")
    (tmp_path / "empty folder").mkdir()
    table = read_folder(tmp_path)
    assert table.images.to_pylist() == ["cat/a.jpg"]
    ignored = {v: n for (v, meaning), n in readings(table).items() if meaning == "ignored, not a photo"}
    assert ignored == {"*.txt": 2, "(no extension)": 1, "*.mp4": 1, "(hidden)": 3}


def test_names_that_differ_in_case_stay_apart(tmp_path, make_photo):
    make_photo("Cat/a.jpg", 1)
    make_photo("cat/b.jpg", 2)
    table = read_folder(tmp_path)
    assert table.classes.ids == ("Cat", "cat")


def test_empty_and_broken_files_are_left_out(tmp_path, make_photo):
    """Empty files are all the same; they must not become one photo with every label."""
    make_photo("cat/a.jpg")
    (tmp_path / "dog").mkdir()
    (tmp_path / "dog/b.jpg").touch()
    (tmp_path / "cat/c.jpg").touch()
    (tmp_path / "cat/d.jpg").symlink_to(tmp_path / "gone.jpg")
    table = read_folder(tmp_path)
    assert table.images.to_pylist() == ["cat/a.jpg"]
    assert {(e.item, e.reason, e.kind) for e in table.notes.excluded} == {
        ("cat/c.jpg", "empty file", "unreadable"),
        ("dog/b.jpg", "empty file", "unreadable"),
        ("cat/d.jpg", "cannot be read: No such file or directory", "unreadable"),
    }
    assert "3 files or folders left out, see the excluded list" in table.notes.messages


def test_links_are_followed_but_not_in_circles(tmp_path, make_photo):
    make_photo("store/a.jpg", 1)
    make_photo("root/dog/b.jpg", 2)
    root = tmp_path / "root"
    (root / "cat").symlink_to(tmp_path / "store")
    (root / "dog/again").symlink_to(root)
    (tmp_path / "store/self").symlink_to(tmp_path / "store")
    table = read_folder(root)
    assert labels(table) == {"cat/a.jpg": {"cat": P}, "dog/b.jpg": {"dog": P}}
    assert [e.item for e in table.notes.excluded] == ["cat/self", "dog/again"]
    # Its photos are there by their own path, so that nothing is lost.
    assert {(e.reason, e.kind) for e in table.notes.excluded} == {("a link to a folder that contains it", "excluded")}


def test_names_that_are_not_utf8_are_left_out(tmp_path, make_photo):
    make_photo("cat/a.jpg")
    try:
        Path(os.fsdecode(bytes(tmp_path / "cat") + b"/\xff.jpg")).write_bytes(b"x")
    except OSError:
        pytest.skip("this file system takes UTF-8 only")
    table = read_folder(tmp_path)
    assert table.images.to_pylist() == ["cat/a.jpg"]
    (left_out,) = table.notes.excluded
    assert (left_out.reason, left_out.kind) == ("the name is not valid UTF-8; rename it", "unreadable")


def test_unicode_names(tmp_path, make_photo):
    make_photo("Bücherregal/日本 語.jpg")
    assert labels(read_folder(tmp_path)) == {"Bücherregal/日本 語.jpg": {"Bücherregal": P}}


def test_errors(tmp_path, make_photo):
    with pytest.raises(DataError) as error:
        read_folder(tmp_path)
    assert str(error.value) == (
        f"{tmp_path}: no class folders with photos in them, no photos at all; expected {tmp_path}/CLASS/PHOTO.jpg, or "
        "the file with the labels."
    )
    make_photo("a.jpg")
    with pytest.raises(DataError, match="no class folders with photos in them, 1 photo without a folder; expected"):
        read_folder(tmp_path)
    (tmp_path / "labels.csv").touch()
    with pytest.raises(DataError, match=r"but label files; pass one of them instead of the folder: 'labels\.csv'\."):
        read_folder(tmp_path)
    (tmp_path / "a.xml").touch()
    with pytest.raises(DataError, match=r"but 1 XML file; for VOC annotations pass format='voc'\."):
        read_folder(tmp_path)
    make_photo("none/b.jpg")
    with pytest.raises(DataError, match=r"there is no class folder beside 'none'; make one folder for each class\."):
        read_folder(tmp_path)
    with pytest.raises(DataError, match=r"'.*/labels.csv' is not a folder; pass the folder that contains"):
        read_folder(tmp_path / "labels.csv")


def test_contradictory_folder_names(tmp_path, make_photo):
    make_photo("none,cat/a.jpg")
    with pytest.raises(DataError, match=r"the folder 'none,cat' says both 'none' and a class; rename it\."):
        read_folder(tmp_path)
    (tmp_path / "none,cat").rename(tmp_path / ",")
    with pytest.raises(DataError, match=r"the folder ',' names no class; rename it\."):
        read_folder(tmp_path)


def test_one_level_too_high(tmp_path, make_photo):
    make_photo("images/cat/a.jpg")
    with pytest.raises(
        DataError, match=r"'images' is the only folder, .* if these are the classes, pass '.*/images'\."
    ):
        read_folder(tmp_path)
    assert read_folder(tmp_path / "images").classes.ids == ("cat",)


def test_a_folder_of_photos_beside_a_label_file_is_no_class(tmp_path, make_photo):
    make_photo("images/a.jpg")
    (tmp_path / "labels.csv").touch()
    with pytest.raises(DataError) as error:
        read_folder(tmp_path)
    assert str(error.value) == (
        f"{tmp_path}: 'images' would be the only class, and there are label files; pass one of them instead of the "
        "folder: 'labels.csv'."
    )
    make_photo("none/b.jpg", 1)
    assert read_folder(tmp_path).classes.ids == ("images",)


def test_a_relative_root_keeps_relative_keys(tmp_path, make_photo, monkeypatch):
    make_photo("cat/a.jpg")
    monkeypatch.chdir(tmp_path)
    table = read_folder(Path())
    assert table.images.to_pylist() == ["cat/a.jpg"]
    assert np.array_equal(table.facts["source"].unique().to_pylist(), [tmp_path.name])


def test_split_folders_of_other_names(tmp_path, make_photo):
    for n, key in enumerate(("training_set/cat/a.jpg", "ValImages/cat/b.jpg", "test2017/dog/c.jpg")):
        make_photo(key, n)
    table = read_folder(tmp_path)
    assert (table.classes.ids, table.split_names.to_pylist()) == (("cat", "dog"), ["val", "test", "train"])


def test_folders_that_share_the_names_of_their_folders_are_not_classes(tmp_path, make_photo):
    for n, key in enumerate(("f1/cat/a.jpg", "f1/dog/b.jpg", "f2/cat/c.jpg", "f2/dog/d.jpg")):
        make_photo(key, n)
    with pytest.raises(DataError, match="'f1', 'f2' have no photos themselves, but folders of the same names"):
        read_folder(tmp_path)


def test_classes_that_vanish_and_tag_files(tmp_path, make_photo):
    make_photo("cat/a.jpg")
    (tmp_path / "cat/a.txt").write_text("cat, sofa")
    (tmp_path / "dog").mkdir()
    (tmp_path / "dog/a.jxl").write_bytes(b"x")
    unknown, tags = read_folder(tmp_path).notes.warnings
    assert "unknown ending (.jxl)" in unknown
    assert "'dog' has no other files, so this class is lost" in unknown
    assert "1 photo has a text file of the same name; to read tags from them, pass format='tagfiles'" in tags


def test_names_that_look_the_same_are_one_class(tmp_path, make_photo):
    make_photo("cafe\u0301/a.jpg")
    make_photo("caf\u00e9\u200b/b.jpg", 1)
    table = read_folder(tmp_path)
    assert table.classes.ids == ("caf\u00e9",)
    assert table.notes.warnings[-1].startswith(f"{tmp_path}: spellings that look the same ('caf\u00e9')")


@pytest.mark.parametrize(("table", "named"), [("train/_classes.csv", "_classes.csv"), ("train.csv", "train.csv")])
def test_label_files_of_folders_of_splits_are_named(tmp_path, make_photo, table, named):
    """Roboflow's _classes.csv and metadata.csv of Hugging Face lie in the folders of splits, those of Kaggle above."""
    make_photo("train/a.jpg")
    make_photo("valid/b.jpg", 1)
    (tmp_path / table).touch()
    with pytest.raises(DataError, match=f"but there are label files, '[a-z/]*{named}'; pass that of train instead"):
        read_folder(tmp_path)


def test_splits_below_the_classes(tmp_path, make_photo):
    for n, key in enumerate(("cat/train/a.jpg", "cat/val/b.jpg", "dog/train/c.jpg", "dog/val/d.jpg")):
        make_photo(key, n)
    with pytest.raises(DataError, match=r"put the splits above the classes, as in .*/train/cat/PHOTO\.jpg\."):
        read_folder(tmp_path)


def test_a_name_that_says_only_that_photos_are_there_is_no_class(tmp_path, make_photo):
    make_photo("images/a.jpg")
    with pytest.raises(DataError, match="'images' would be the only class, but its name says only that it has photos"):
        read_folder(tmp_path)
    make_photo("masks/a.png", 1)
    with pytest.raises(DataError, match="'images' would be the only class"):
        read_folder(tmp_path)
    (tmp_path / "xmls").mkdir()
    (tmp_path / "xmls/a.xml").touch()
    with pytest.raises(DataError, match="and there is 1 XML file; for VOC annotations pass format='voc'"):
        read_folder(tmp_path)


def test_folders_of_masks_are_named(tmp_path, make_photo):
    """A class "mask" has photos of its own."""
    for n, key in enumerate(("cat/a.jpg", "dog/b.jpg", "masks/b.png", "mask/c.png")):
        make_photo(key, n)
    (warning,) = read_folder(tmp_path).notes.warnings
    assert "'masks' is read as a class, but its photos have the names of photos in other folders" in warning


def test_classes_that_may_be_one_level_deeper(tmp_path, make_photo):
    make_photo("animal/cat/a.jpg")
    make_photo("plant/rose/b.jpg", 1)
    (warning,) = read_folder(tmp_path).notes.warnings
    assert "no photo lies directly in 'animal', 'plant'" in warning
    assert "the folders below them, 'cat', 'rose', are not. If those are the classes, move them up." in warning
    make_photo("plant/c.jpg", 2)
    assert not read_folder(tmp_path).notes.warnings


@pytest.mark.parametrize("name", ["cat+dog", "cat_dog", "cat and dog", "dog_and_cat", "cat-dog"])
def test_a_folder_of_several_classes_needs_a_comma(tmp_path, make_photo, name):
    for n, folder in enumerate(("cat", "dog", name, "hot dog")):
        make_photo(f"{folder}/a.jpg", n)
    (warning,) = read_folder(tmp_path).notes.warnings
    assert f"the folder {name!r} is read as one class, but its parts are classes themselves" in warning


def test_a_class_folder_without_photos_is_named(tmp_path, make_photo):
    """An empty folder, and one with a text only; photos in a deeper folder, or of another split, count."""
    make_photo("train/cat/a.jpg", 1)
    make_photo("train/dog/deep/b.jpg", 2)
    make_photo("val/bird/c.jpg", 3)
    for name in ("train/bird", "train/owl", "val/fox", "val/cat"):
        (tmp_path / name).mkdir(parents=True)
    (tmp_path / "val/fox/readme.md").write_text("soon")
    messages = read_folder(tmp_path).notes.messages
    assert "2 folders have no photos and are not classes: 'fox', 'owl'" in messages
    (tmp_path / "train/owl").rmdir()
    assert "1 folder has no photos and is not a class: 'fox'" in read_folder(tmp_path).notes.messages
