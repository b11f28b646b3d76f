"""What every reader of `FORMATS` must do, checked on the same photos written in each format."""

import re
import unicodedata
from dataclasses import replace

import annotated
import pytest
from annotated import CLASSES, PHOTOS, WRITERS, Photo, save_photo, write_text
from seen import labels

from fewtags.errors import DataError
from fewtags.formats import FORMATS
from fewtags.formats.options import ReadOptions
from fewtags.formats.read import read
from fewtags.labels import Label
from fewtags.shards.photos import photo_exists

NAMES = sorted(WRITERS)
LOCATED = [name for name in NAMES if WRITERS[name].located]
NUMBERED = {"hill", "nuswide", "real"}  # a list of names, in which the position is the number of a class
SEARCHING = [name for name in NAMES if WRITERS[name].looks_for_photos]


def test_every_format_has_a_writer():
    assert WRITERS.keys() == FORMATS.keys()


@pytest.fixture
def write(tmp_path):
    """Writes photos and their annotation in a format; returns the path to read."""

    def write(name, photos=PHOTOS, orientation=1, missing=()):
        for i, photo in enumerate(photos):
            if photo.name not in missing:
                save_photo(tmp_path / f"images/{photo.name}.jpg", photo.size, 50 * i, orientation)
        return WRITERS[name].write(tmp_path, photos)

    return write


def content(table):
    """{photo name: sorted (class, corners)} of the positive facts; the corners are None without a region."""
    found = {key.rpartition("/")[2].removesuffix(".jpg"): [] for key in table.images.to_pylist()}
    for fact in table.facts.to_pylist():
        assert fact["state"] == Label.POSITIVE
        corners = None if fact["x0"] is None else tuple(round(fact[n], 4) for n in ("x0", "y0", "x1", "y1"))
        name = table.images[fact["image"]].as_py().rpartition("/")[2].removesuffix(".jpg")
        found[name].append((table.classes.ids[fact["class"]], corners))
    return {name: sorted(rows) for name, rows in found.items()}


def expected(name, photos=PHOTOS):
    """The same, of the photos that were written."""
    writer = WRITERS[name]
    found = {}
    for photo in photos:
        boxes = [(c, tuple(round(v, 4) for v in box)) for c, box in photo.fractions]
        found[photo.name] = sorted(boxes) if writer.located else sorted((c, None) for c in {c for c, _ in boxes})
    return {key: rows for key, rows in found.items() if rows or writer.silent}


def orphans(table):
    """How many labels are reported to belong to photos that are left out."""
    text = r"([\d,]+) labels? belongs? to (?:a photo that is|photos that are) left out"
    found = [re.search(text, message) for message in table.notes.messages]
    return sum(int(match[1].replace(",", "")) for match in found if match)


@pytest.mark.parametrize("name", NAMES)
def test_the_format_is_detected_and_says_what_was_written(write, name, tmp_path):
    table = read(write(name))
    assert f": read as {name}, " in table.notes.messages[0]
    assert content(table) == expected(name)
    assert sorted(table.classes.ids) == sorted(CLASSES)
    assert table.split_names is None
    # A saved table does not name a folder.
    assert name == "parquet" or photo_exists(table.root / table.images[0].as_py())
    assert table.notes.excluded == ()
    assert not table.notes.warnings


@pytest.mark.parametrize("name", NAMES)
def test_a_path_whose_format_is_given(write, name):
    path = write(name)
    table = read(path, format=name)
    assert table.fingerprint == read(path).fingerprint


@pytest.mark.parametrize("name", LOCATED)
@pytest.mark.parametrize("orientation", [6, 8])
def test_boxes_in_the_displayed_frame_of_photos_that_exif_turns(write, name, orientation):
    """Annotation tools show the photo as it is displayed; the declared size, if any, is that of the displayed photo."""
    assert content(read(write(name, orientation=orientation))) == expected(name)


@pytest.mark.parametrize("name", [name for name in LOCATED if WRITERS[name].declares_size])
def test_boxes_in_the_stored_frame_of_photos_that_exif_turns(write, name, tmp_path):
    """The photo is stored 80 x 40 and displayed 40 x 80, with orientation 6: x' = 1 - y, y' = x.

    Its box (8, 4) to (40, 20) is (.1, .1) to (.5, .5) as stored, so (.5, .1) to (.9, .5) as displayed.
    """
    path = write(name, [Photo("a", (80, 40), [("cat", 8, 4, 40, 20)])])
    save_photo(tmp_path / "images/a.jpg", (40, 80), orientation=6)
    table = read(path)
    assert content(table) == {"a": [("cat", (0.5, 0.1, 0.9, 0.5))]}
    assert any("turned by EXIF, and the boxes with the photo" in message for message in table.notes.messages)


@pytest.mark.parametrize("name", [name for name in NAMES if "complete" in FORMATS[name].options])
def test_complete_annotation(write, name):
    """Without `complete` nothing is absent; with it, an image with a label has no unknown class."""
    path = write(name)
    assert not (read(path).matrix.dense() == Label.NEGATIVE).any()
    found = labels(read(path, options=ReadOptions(complete=True)))
    for key, states in found.items():
        photo = next(p for p in PHOTOS if key.endswith(f"{p.name}.jpg"))
        present = {c for c, *_ in photo.boxes}
        every = {c: Label.POSITIVE if c in present else Label.NEGATIVE for c in CLASSES}
        assert states == every or (not present and states == {})


@pytest.mark.parametrize("name", [name for name in NAMES if WRITERS[name].broken])
def test_a_broken_region_is_reported(write, name, tmp_path):
    """It stops the reader with the place of the fault, or it is in the excluded list and its label is kept."""
    path = write(name)
    pattern, old, new = WRITERS[name].broken
    (file,) = tmp_path.glob(pattern)
    text = file.read_text()
    assert text.count(old) == 1
    file.write_text(text.replace(old, new))
    try:
        table = read(path)
    except DataError as error:
        message = str(error)
    else:
        message = ""
    if message:
        assert file.name in message
        return
    assert len(table.notes.excluded) == 1
    assert content(table)["b"] == [("dog", None)]
    assert {k: v for k, v in content(table).items() if k != "b"} == {
        k: v for k, v in expected(name).items() if k != "b"
    }


@pytest.mark.parametrize("name", NAMES)
def test_hidden_files_are_ignored(write, name, tmp_path):
    """macOS leaves files without use beside others ("._b.jpg"), and Jupyter old copies in hidden folders."""
    path = write(name)
    before = read(path)
    for file in [f for f in tmp_path.rglob("*") if f.is_file()]:
        write_text(file.with_name(f"._{file.name}"), "\0\0 not a file of that kind")
        (file.parent / ".ipynb_checkpoints").mkdir(exist_ok=True)
        for copy in (file.with_name(f".{file.name}"), file.parent / ".ipynb_checkpoints" / file.name):
            copy.write_bytes(file.read_bytes())
    after = read(path)
    assert (after.fingerprint, after.split_names) == (before.fingerprint, before.split_names)
    assert after.notes.excluded == ()


@pytest.mark.parametrize("name", [name for name in NAMES if WRITERS[name].splits])
def test_splits(write, name):
    splits = dict(zip("abcd", ("train", "val", "test", "train"), strict=True))
    photos = [replace(photo, split=splits[photo.name]) for photo in PHOTOS]
    if name == "folder":  # a photo without a label has no folder of its own in a split
        photos = photos[:3]
    table = read(write(name, photos))
    keys = [key.rpartition("/")[2].removesuffix(".jpg") for key in table.images.to_pylist()]
    found = dict(zip(keys, table.split_names.to_pylist(), strict=True))
    assert found.items() <= splits.items()
    assert found.keys() >= {"a", "b", "c"}


@pytest.mark.parametrize("name", SEARCHING)
@pytest.mark.parametrize(("in_file", "on_disk"), [("NFC", "NFD"), ("NFD", "NFC"), ("NFC", "NFC")])
def test_names_in_unicode(write, name, in_file, on_disk, tmp_path):
    """Both ways to write an accented letter are the same photo; the key is the name of the file."""
    photos = [replace(photo, name=f"Käse 北 {photo.name}") for photo in PHOTOS]
    path = write(name, [replace(photo, name=unicodedata.normalize(in_file, photo.name)) for photo in photos])
    for file in sorted((tmp_path / "images").iterdir()):
        file.rename(file.with_name(unicodedata.normalize(on_disk, file.name)))
    table = read(path)
    named = [replace(photo, name=unicodedata.normalize(on_disk, photo.name)) for photo in photos]
    assert content(table) == expected(name, named)
    assert all((table.root / key).is_file() for key in table.images.to_pylist())


@pytest.mark.parametrize("other", ["cafe\u0301", "caf\u00e9\u200b", "\u00a0caf\u00e9\u202e "])
@pytest.mark.parametrize("name", sorted(WRITERS.keys() - {"parquet"} - NUMBERED))
def test_class_names_that_look_the_same_are_one_class_and_named(write, name, other, monkeypatch):
    """Accents in another form, and invisible characters; a saved label table keeps the classes that it has."""
    names = dict(zip(CLASSES, ("caf\u00e9", other, "owl"), strict=True))
    monkeypatch.setattr(annotated, "CLASSES", (*names.values(),))
    table = read(write(name, [replace(p, boxes=[(names[c], *box) for c, *box in p.boxes]) for p in PHOTOS]))
    assert sorted(table.classes.ids) == ["caf\u00e9", "owl"]
    found = {key: {c for c, _ in facts} for key, facts in content(table).items() if facts}
    assert found == {"a": {"caf\u00e9"}, "b": {"caf\u00e9"}, "c": {"owl"}}
    (warning,) = table.notes.warnings
    assert "spellings that look the same ('caf\u00e9') are one class each" in warning


@pytest.mark.parametrize("name", sorted(NUMBERED))
def test_numbered_classes_with_the_same_name_are_refused(write, name, monkeypatch):
    """The position of a name in its list is the number of a class; two numbers cannot be one class."""
    monkeypatch.setattr(annotated, "CLASSES", ("caf\u00e9", "cafe\u0301", "owl"))
    renamed = dict(zip(CLASSES, annotated.CLASSES, strict=True))
    with pytest.raises(DataError, match="the name 'caf\u00e9' occurs twice; give each class its own"):
        read(write(name, [replace(p, boxes=[(renamed[c], *box) for c, *box in p.boxes]) for p in PHOTOS]))


@pytest.mark.parametrize("name", SEARCHING)
def test_a_photo_that_is_missing_is_reported_with_its_labels(write, name):
    """ "b" has one label, which is counted; the other photos keep theirs."""
    table = read(write(name, missing="b"))
    wanted = expected(name)
    lost = wanted.pop("b")
    assert content(table) == wanted
    assert sum("b" in e.item for e in table.notes.excluded if e.kind in ("missing", "partial")) == 1
    assert orphans(table) == len(lost)


@pytest.mark.parametrize("name", SEARCHING)
def test_annotations_without_any_photo_are_read(write, name):
    """The labels are of use without the photos; a message says that there are none."""
    table = read(write(name, missing="abcd"))
    assert table.root is None
    assert any("none found beside the file" in message for message in table.notes.messages)
    assert {key: [c for c, _ in rows] for key, rows in content(table).items()} == {
        key: [c for c, _ in rows] for key, rows in expected(name).items()
    }


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("missing", ["", "a"])
def test_no_label_is_lost_in_silence(write, name, missing):
    """Each label that was written is a fact or belongs to a photo that is reported to be left out."""
    missing = missing if name in SEARCHING else ""
    written = sum(map(len, expected(name).values()))
    table = read(write(name, missing=missing))
    assert len(table.facts) + orphans(table) == written
    read_as = [r for r in table.notes.readings if r.meaning.startswith("positive") and "as the others" not in r.meaning]
    assert not read_as or sum(r.count for r in read_as) in (written, len(table.facts))
