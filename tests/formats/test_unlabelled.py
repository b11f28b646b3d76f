"""Photos without labels, from folders, lists and label files."""

import numpy as np
import pytest
from PIL import Image

from fewtags.check.check import check
from fewtags.errors import DataError
from fewtags.formats import unlabelled as module
from fewtags.formats.read import ReadOptions
from fewtags.formats.unlabelled import check_photos, unlabelled
from fewtags.labels import ClassNames, Label
from fewtags.photos.augment import ResizedCrop
from fewtags.photos.dataset import EvalSet, PhotoFolder, TrainSet
from fewtags.photos.loader import Collate, EpochSampler, EvalLoader, TrainLoader
from fewtags.table.merge import merge
from fewtags.table.storage import load, save
from fewtags.table.table import Excluded, LabelTable

COLLATE = Collate((0.0, 0.0, 0.0), (1.0, 1.0, 1.0))


def photo(path, seed=0, side=40):
    path.parent.mkdir(parents=True, exist_ok=True)
    pixels = np.random.default_rng(seed).integers(0, 256, (side, side, 3), np.uint8)
    Image.fromarray(pixels).save(path)


@pytest.fixture
def tree(tmp_path):
    """Five photos in three places, and what is none."""
    root = tmp_path / "photos"
    for seed, key in enumerate(("b/2.jpg", "b/deep/1.PNG", "a/3.jpeg", "0.jpg", "a/10.jpg")):
        photo(root / key, seed)
    (root / "notes.txt").write_text("not a photo")
    (root / ".hidden").mkdir()
    photo(root / ".hidden/x.jpg")
    return root


KEYS = ["0.jpg", "a/10.jpg", "a/3.jpeg", "b/2.jpg", "b/deep/1.PNG"]


def keys(table):
    return table.images.to_pylist()


# Folders


def test_a_folder_is_all_photos_below_it(tree):
    table = unlabelled(tree)
    assert keys(table) == KEYS
    assert table.root == tree
    assert len(table.classes) == len(table.facts) == 0
    assert table.matrix.shape == (5, 0)
    assert table.notes.messages == (f"{tree}: 5 photos in 4 folders; folder names are not used",)
    assert [str(r) for r in table.notes.readings] == [
        f"{tree}: (hidden) -> ignored, not a photo (1)",
        f"{tree}: *.txt -> ignored, not a photo (1)",
    ]
    assert not table.notes.warnings
    assert keys(unlabelled(str(tree), format="folder")) == KEYS


def test_a_flat_folder_has_no_folder_names_to_speak_of(tmp_path):
    photo(tmp_path / "x.jpg")
    assert unlabelled(tmp_path).notes.messages == (f"{tmp_path}: 1 photo",)


def test_names_of_class_folders_are_kept_where_labels_are(tmp_path):
    """Two photos of cats (one in a folder below), two of dogs: each photo has its class and lacks the other."""
    for name in ("train/cat/1.jpg", "train/cat/night/2.jpg", "val/dog/3.jpg", "train/dog/4.jpg"):
        photo(tmp_path / name)
    table = unlabelled(tmp_path, keep_labels=True)
    assert dict(zip(keys(table), table.matrix.dense().tolist(), strict=True)) == {
        "train/cat/1.jpg": [Label.POSITIVE, Label.NEGATIVE],
        "train/cat/night/2.jpg": [Label.POSITIVE, Label.NEGATIVE],
        "train/dog/4.jpg": [Label.NEGATIVE, Label.POSITIVE],
        "val/dog/3.jpg": [Label.NEGATIVE, Label.POSITIVE],
    }
    assert table.classes.ids == ("cat", "dog")
    assert table.notes.messages[0] == (
        f"{tmp_path}: 4 photos in 4 folders; folder names are not used for training, only to log how many nearest "
        "photos share one of 2 names"
    )
    assert not len(unlabelled(tmp_path).classes)


@pytest.mark.parametrize(
    "names",
    [("1.jpg", "a/2.jpg", "b/3.jpg", "b/4.jpg"), ("a/1.jpg", "a/2.jpg"), ("a/1.jpg", "b/2.jpg", "c/3.jpg", "c/4.jpg")],
    ids=["a photo outside", "one folder", "a folder for each photo"],
)
def test_other_folders_are_not_classes(tmp_path, names):
    for name in names:
        photo(tmp_path / name)
    table = unlabelled(tmp_path, keep_labels=True)
    assert table.matrix.shape == (len(names), 0)
    assert "folder names are not used" in table.notes.messages[0]


def test_links_are_followed_but_not_in_circles(tree, tmp_path):
    photo(tmp_path / "elsewhere/far.jpg")
    (tree / "link").symlink_to(tmp_path / "elsewhere")
    (tree / "b/loop").symlink_to(tree)
    table = unlabelled(tree)
    assert keys(table) == [*KEYS, "link/far.jpg"]
    assert table.notes.excluded == (Excluded("b/loop", "a link to a folder that contains it", str(tree)),)


def test_empty_files_are_left_out_by_name(tree):
    (tree / "a/none.jpg").touch()
    table = unlabelled(tree)
    assert keys(table) == KEYS
    assert table.notes.excluded == (Excluded("a/none.jpg", "empty file", str(tree), "unreadable"),)


def test_photos_that_are_held_out_elsewhere_are_named(tmp_path):
    for seed, folder in enumerate(("Train/cat", "valid/cat", "test")):
        photo(tmp_path / folder / "x.jpg", seed)
    messages = unlabelled(tmp_path).notes.messages
    assert messages[1] == (
        f"{tmp_path}: photos in 'test', 'valid' are used, too; to leave them out, pass {tmp_path / 'Train'}"
    )


def test_masks_are_suspected(tmp_path):
    for seed, key in enumerate(("JPEGImages/1.jpg", "SegmentationClass/1.png", "SegmentationClass/x/2.png")):
        photo(tmp_path / key, seed)
    assert unlabelled(tmp_path).notes.warnings == (
        f"{tmp_path}: 2 pictures in folders called 'SegmentationClass' may be masks and not photos; move that folder "
        "out if they are.",
    )


# Lists


def test_a_list_keeps_its_order_and_takes_each_photo_once(tree):
    path = tree / "list.txt"
    path.write_text("\ufeffb/2.jpg\r\n\r\n  a/3.jpeg \r\nb/2.jpg\r\n")
    table = unlabelled(path)
    assert keys(table) == ["b/2.jpg", "a/3.jpeg"]
    assert table.root == tree
    assert table.notes.messages[:2] == (
        "list.txt: read as a list, one photo a line",
        "list.txt: 1 line repeats another one; each photo once",
    )


def test_names_without_extension_and_missing_ones(tree, tmp_path):
    path = tmp_path / "train.txt"
    path.write_text("10\n3\nnot_there\n")
    table = unlabelled(path, tree / "a")
    assert keys(table) == ["10.jpg", "3.jpeg"]
    assert table.notes.excluded == (
        Excluded("not_there", f"photo not found: {tree / 'a'}/not_there", str(path), "missing"),
    )


def test_absolute_paths_need_no_folder(tree, tmp_path):
    path = tmp_path / "somewhere.txt"
    path.write_text(f"{tree}/b/2.jpg\n{tree}/b/deep/1.PNG\n")
    table = unlabelled(path)
    assert table.root == tree / "b"
    assert keys(table) == ["2.jpg", "deep/1.PNG"]


@pytest.mark.parametrize("name", ["list.csv", "list.txt"])
def test_a_header_is_no_photo(tree, name):
    (tree / name).write_text("image\nb/2.jpg\n0.jpg\n")
    table = unlabelled(tree / name)
    assert keys(table) == ["b/2.jpg", "0.jpg"]
    assert f"{name}: its first line, 'image', is read as a header" in table.notes.messages


def test_a_comma_may_be_part_of_a_name_in_a_text_file(tree):
    photo(tree / "a, b.jpg")
    (tree / "list.txt").write_text("a, b.jpg\n")
    assert keys(unlabelled(tree / "list.txt")) == ["a, b.jpg"]


# Label files


def test_labels_are_forgotten(tree):
    """Also if the path of the photo ends the line: the cells of the first line make it a table, not a list."""
    path = tree / "tags.csv"
    path.write_text("tags,image,split\ncat,0.jpg,train\ndog,b/2.jpg,test\n")
    table = unlabelled(path, options=ReadOptions(complete=True))
    assert keys(table) == ["0.jpg", "b/2.jpg"]
    assert (len(table.classes), len(table.facts), table.complete_set.tolist()) == (0, 0, [-1, -1])
    assert table.split_names.to_pylist() == ["train", "test"]
    assert table.notes.readings == ()
    assert table.notes.messages[-2:] == (
        "tags.csv: its labels (2 classes) are not used",
        "tags.csv: names splits (train 1, test 1); the photos of all of them are used",
    )
    path.write_text("tags,image\ncat,0.jpg\ndog,b/2.jpg\n")
    assert keys(unlabelled(path)) == ["0.jpg", "b/2.jpg"]


def test_a_folder_with_a_format_is_read_as_annotations(tmp_path):
    photo(tmp_path / "images/1.jpg")
    photo(tmp_path / "images/2.jpg")
    (tmp_path / "labels").mkdir()
    (tmp_path / "labels/1.txt").write_text("0 0.5 0.5 0.2 0.2\n")
    (tmp_path / "data.yaml").write_text("names: [cat]\ntrain: images\n")
    assert keys(unlabelled(tmp_path)) == ["images/1.jpg", "images/2.jpg"]
    table = unlabelled(tmp_path, format="yolo")
    assert len(table.classes) == len(table.facts) == 0
    assert any("its labels (1 classes) are not used" in message for message in table.notes.messages)


def test_a_stored_table_with_its_folder(tree, tmp_path):
    none = np.zeros(0, np.int64)
    stored = LabelTable.build(
        ["0.jpg"], ClassNames.of(["cat"]), image=np.array([0]), class_=np.array([0]), state=np.array([Label.POSITIVE])
    )
    save(stored, tmp_path / "t.parquet")
    table = unlabelled(tmp_path / "t.parquet", tree)
    expected = LabelTable.build(["0.jpg"], ClassNames.of(()), image=none, class_=none, state=none)
    assert (table.fingerprint, table.root) == (expected.fingerprint, tree)


# No classes: what the rest of the library makes of it


def test_batches_have_labels_of_no_class(tree):
    table = unlabelled(tree)
    photos, policy = PhotoFolder(table.root, table.images), ResizedCrop(8)
    train = TrainSet(photos=photos, labels=table.matrix, policy=policy, locations=table.locations)
    batches = [*TrainLoader(train, EpochSampler(5, 3), COLLATE).batches(0)]
    batches += EvalLoader(EvalSet(photos, table.matrix, policy), 3, COLLATE)
    assert [tuple(batch.labels.shape) for batch in batches] == [(3, 0), (2, 0)] * 2
    assert {str(batch.labels.dtype) for batch in batches} == {"torch.int8"}
    assert sorted(batches[0].index.tolist() + batches[1].index.tolist()) == [0, 1, 2, 3, 4]


def test_tables_without_classes_are_tables(tree, tmp_path):
    table = unlabelled(tree)
    assert [table.matrix.counts(state).tolist() for state in Label] == [[], [], []]
    assert [table.matrix.image_counts(state).tolist() for state in Label] == [[0] * 5] * 3
    assert (table.summary().kind, table.summary().without_label) == ("unlabelled", 5)
    assert keys(table.subset([3, 0])) == ["b/2.jpg", "0.jpg"]
    parts = table.split(val=0.4, seed=1)
    assert sorted(key for part in parts for key in keys(part)) == KEYS
    assert [len(part) for part in parts] == [3, 2]
    save(table, tmp_path / "t.parquet")
    assert load(tmp_path / "t.parquet").fingerprint == table.fingerprint
    assert table.fingerprint != table.subset([1, 0, 2, 3, 4]).fingerprint
    assert len(merge([table.subset([0, 1]), table.subset([1, 2])])) == 3
    assert [f.code for f in check({"train": table}).errors] == ["unlabelled"]


# Photos that cannot be read


def test_what_cannot_be_read_is_left_out_with_a_line_each(tree):
    whole = (tree / "b/2.jpg").read_bytes()
    (tree / "a/10.jpg").write_bytes(whole[: len(whole) // 2])
    (tree / "a/3.jpeg").write_text("<html>")
    before = unlabelled(tree)
    (tree / "0.jpg").unlink()
    table = check_photos(before)
    assert keys(table) == ["b/2.jpg", "b/deep/1.PNG"]
    found = {e.item: (e.kind, e.where, e.reason) for e in table.notes.excluded}
    assert found.keys() == {"0.jpg", "a/10.jpg", "a/3.jpeg"}
    assert found["0.jpg"] == ("missing", str(tree), "no such file")
    assert found["a/3.jpeg"][2] == "is a web page or other markup, not a photo; download it again, or remove it"
    assert found["a/10.jpg"][0] == "unreadable"
    assert found["a/10.jpg"][2].startswith("truncated")
    assert table.notes.messages == (
        *before.notes.messages,
        "3 photos left out: not readable, see the excluded list",
    )
    headers = check_photos(before, decode=False)
    assert keys(headers) == ["a/10.jpg", "b/2.jpg", "b/deep/1.PNG"]


def test_a_table_without_fault_stays_what_it_is(tree):
    table = unlabelled(tree)
    checked = check_photos(table)
    assert checked.fingerprint == table.fingerprint
    assert checked.notes == table.notes


@pytest.mark.parametrize("block", [1, 2, 5])
def test_photos_are_looked_at_in_blocks(tree, monkeypatch, block):
    """Positions and progress count from the first photo, not from the block's."""
    (tree / "b/2.jpg").write_text("x")
    monkeypatch.setattr(module, "_BLOCK", block)
    found = []
    table = check_photos(unlabelled(tree), progress=lambda done, total: found.append((done, total)))
    assert keys(table) == ["0.jpg", "a/10.jpg", "a/3.jpeg", "b/deep/1.PNG"]
    assert found == [(done, 5) for done in range(1, 6) if done % block == 0 or done == 5]


def test_copies_are_counted_and_kept(tree, monkeypatch):
    """Three files of one content and two of another: three of the five could go."""
    for source, copies in (("0.jpg", ("a/c1.jpg", "b/c2.jpg")), ("b/2.jpg", ("c3.jpg",))):
        for copy in copies:
            (tree / copy).write_bytes((tree / source).read_bytes())
    table = unlabelled(tree)
    checked = check_photos(table)
    assert len(checked) == 8
    message = "3 photos are copies of others, byte for byte, and kept"
    assert checked.notes.messages[-1] == message
    assert message not in check_photos(table, decode=False).notes.messages
    monkeypatch.setattr(module, "MOST_COMPARED", 7)
    assert message not in check_photos(table).notes.messages


def test_tiny_photos_are_suspected(tree):
    photo(tree / "icon.png", side=31)
    photo(tree / "small.png", side=32)
    assert check_photos(unlabelled(tree)).notes.warnings == (
        "1 photo has a side shorter than 32 pixels; check that this is intended",
    )


# Errors


def message_of(function, *arguments, **keywords):
    with pytest.raises(DataError) as error:
        function(*arguments, **keywords)
    return str(error.value)


def test_no_photos(tmp_path):
    empty = tmp_path / "empty"
    empty.mkdir()
    expected = "Expected a folder with photos in it, or a file that names them."
    assert message_of(unlabelled, empty) == f"{empty}: there is no photo. {expected}"
    (empty / "labels.xml").write_text("")
    (empty / "no.jpg").touch()
    assert message_of(unlabelled, empty) == (
        f"{empty}: there is no photo; there are *.xml 1, no.jpg: empty file. {expected}"
    )
    path = tmp_path / "list.txt"
    path.write_text(" \n\n")
    assert message_of(unlabelled, path) == f"{path}: the file is empty; expected the path of a photo in each line."
    path.write_bytes(b"caf\xe9.jpg\n")
    assert message_of(unlabelled, path) == (f"{path}: not UTF-8 text (byte 3); save it as UTF-8.")


def test_no_such_place(tree):
    wrong = tree.with_name("photo")
    assert message_of(unlabelled, wrong).startswith(f"{str(wrong)!r} does not exist (did you mean {str(tree)!r}?); ")


def test_photos_that_are_not_beside_their_list(tmp_path):
    path = tmp_path / "list.txt"
    path.write_text("x/1.jpg\n")
    assert message_of(unlabelled, path) == (
        f"{path}: its photos, such as 'x/1.jpg', are not beside it; pass the folder that their names are "
        "relative to: images='FOLDER'."
    )
    (tmp_path / "other").mkdir()
    assert message_of(unlabelled, path, tmp_path / "other").startswith(f"{path}: 1 of 1 photos do not exist; ")


def test_nothing_left_to_read(tree):
    table = unlabelled(tree)
    for key in KEYS:
        (tree / key).write_text("x")
    assert message_of(check_photos, table) == (
        "no photo can be read, for example 0.jpg: is not a photo (its first bytes are b'x'); remove it, or export it "
        "as JPEG or PNG."
    )
    assert message_of(check_photos, table.subset([])) == "no photo can be read: there is none."
    assert message_of(check_photos, table.with_root(None)) == (
        "the table does not know where its photos are; set their folder with with_root(FOLDER)."
    )
