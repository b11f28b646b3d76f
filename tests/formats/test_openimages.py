import re

import pytest
from seen import labels

from fewtags.errors import DataError
from fewtags.formats.openimages import read_openimages
from fewtags.formats.options import ReadOptions
from fewtags.labels import Label

P, N, U = Label.POSITIVE, Label.NEGATIVE, Label.UNKNOWN
LABELS = "ImageID,Source,LabelName,Confidence\n"
BOXES = (
    "ImageID,Source,LabelName,Confidence,XMin,XMax,YMin,YMax,IsOccluded,IsTruncated,IsGroupOf,IsDepiction,IsInside\n"
)
NAMES = "/m/01yrx,Cat\n/m/0bt9lr,Dog\n/m/0g6b5,Crane\n/m/03m3pdh,Crane\n"


@pytest.fixture
def write(tmp_path):
    def write(**texts):
        """Underscores stand for what the names of real files have."""
        for name, text in texts.items():
            (tmp_path / f"{name.replace('_', '-')}.csv").write_text(text)
        return tmp_path

    return write


def facts(table):
    return [
        (
            table.images[f["image"]].as_py(),
            table.classes.ids[f["class"]],
            f["state"],
            None if f["x0"] is None else tuple(round(f[n], 6) for n in ("x0", "y0", "x1", "y1")),
            f["source"],
        )
        for f in table.facts.to_pylist()
    ]


def readings(table):
    return {(r.where, r.value): (r.meaning, r.count) for r in table.notes.readings}


def test_verified_labels(write):
    """1 and 0 are verified; what a machine says is a guess, whatever its confidence."""
    file = write(
        train_annotations_human_imagelabels=LABELS
        + "b1,verification,/m/01yrx,1\nb1,crowdsource-verification,/m/0bt9lr,0\na2,verification,/m/0g6b5,1\n"
        + "a2,machine,/m/01yrx,1\na2,machine,/m/0bt9lr,0.7\n",
        class_descriptions=NAMES,
    )
    table = read_openimages(file)
    name = "train-annotations-human-imagelabels.csv"
    assert table.classes.ids == ("Cat", "Crane#/m/0g6b5", "Dog")
    assert table.classes.names == ("Cat", "Crane", "Dog")
    assert table.images.to_pylist() == ["b1.jpg", "a2.jpg"]
    assert facts(table) == [
        ("b1.jpg", "Cat", P, None, f"{name}: verification"),
        ("b1.jpg", "Dog", N, None, f"{name}: crowdsource-verification"),
        ("a2.jpg", "Crane#/m/0g6b5", P, None, f"{name}: verification"),
    ]
    assert table.split_names.to_pylist() == ["train", "train"]
    assert readings(table) == {
        (name, "label, Source verification, Confidence 1"): ("positive", 2),
        (name, "label, Source crowdsource-verification, Confidence 0"): ("negative", 1),
        (name, "label, Source machine, Confidence 1"): ("unknown (not verified)", 1),
        (name, "label, Source machine, Confidence 0.7"): ("unknown (not verified)", 1),
        (file.name, "class that is not named in an image"): ("unknown", 1),
    }


def test_complete_leaves_guesses_open(write):
    folder = write(labels=LABELS + "a,verification,/m/01yrx,1\na,machine,/m/0bt9lr,0.7\nb,verification,/m/0g6b5,1\n")
    table = read_openimages(folder, options=ReadOptions(complete=True))
    assert labels(table) == {
        "a.jpg": {"/m/01yrx": P, "/m/0g6b5": N},
        "b.jpg": {"/m/01yrx": N, "/m/0bt9lr": N, "/m/0g6b5": P},
    }
    assert any("3 classes have no name in a file of class descriptions" in m for m in table.notes.messages)


def test_boxes(write):
    """The columns come as XMin, XMax, YMin, YMax. A group is a crowd; a depiction is an object like others."""
    rows = (
        "a,xclick,/m/01yrx,1,0.1,0.3,0.2,0.4,1,0,0,0,0\n"
        "a,xclick,/m/0bt9lr,1,0.5,1.0,0,0.5,0,0,1,0,0\n"
        "a,activemil,/m/0g6b5,1,0,1,0,1,-1,0,0,1,0\n"
    )
    folder = write(validation_annotations_bbox=BOXES + rows, class_descriptions_boxable=NAMES)
    table = read_openimages(folder / "validation-annotations-bbox.csv")
    name = "validation-annotations-bbox.csv"
    assert facts(table) == [
        ("a.jpg", "Cat", P, (0.1, 0.2, 0.3, 0.4), f"{name}: xclick"),
        ("a.jpg", "Dog", P, (0.5, 0.0, 1.0, 0.5), f"{name}: xclick"),
        ("a.jpg", "Crane#/m/0g6b5", P, (0.0, 0.0, 1.0, 1.0), f"{name}: activemil"),
    ]
    assert table.split_names.to_pylist() == ["val"]
    assert readings(table) == {
        (name, "box, Source xclick, Confidence 1"): ("positive, with its box", 2),
        (name, "box, Source activemil, Confidence 1"): ("positive, with its box", 1),
        (name, "box, IsOccluded = 1"): ("positive, as the others", 1),
        (name, "box, IsGroupOf = 1"): ("positive (a group of objects)", 1),
        (name, "box, IsDepiction = 1"): ("positive (a picture of the object)", 1),
    }
    left_open = read_openimages(folder / name, options=ReadOptions(crowd="unknown", complete=True))
    assert labels(left_open) == {"a.jpg": {"Cat": P, "Crane#/m/0g6b5": P}}


POINTS = "ImageId,X,Y,Label,EstimatedYesNo,Source,YesVotes,NoVotes,UnsureVotes,TextLabel\n"


def test_points(write):
    """ "no" is about the point, so that the class stays unknown; "yes" elsewhere in the photo makes it positive.

    In complete reading a class that was asked about is not absent for want of a "yes".
    """
    rows = (
        "a,0.25,0.75,/m/01yrx,yes,ih,3,0,0,Cat\na,0.5,0.5,/m/01yrx,no,ih,0,3,0,Cat\n"
        "a,1.0,0.0,/m/0bt9lr,no,cc,0,1,0,Dog\nb,0.5,0.25,/m/0g6b5,unsure,cc,1,1,1,Crane\n"
        "a,0.125,0.5,/m/01yrx,yes,cc,1,0,0,Cat\n"
    )
    folder = write(oidv7_val_annotations_point_labels=POINTS + rows, oidv7_class_descriptions=NAMES)
    name = "oidv7-val-annotations-point-labels.csv"
    table = read_openimages(folder / name)
    assert table.classes.ids == ("Cat", "Crane#/m/0g6b5", "Dog")
    assert facts(table) == [
        ("a.jpg", "Cat", P, (0.25, 0.75, 0.25, 0.75), f"{name}: ih"),
        ("a.jpg", "Cat", P, (0.125, 0.5, 0.125, 0.5), f"{name}: cc"),
    ]
    assert labels(table) == {"a.jpg": {"Cat": P}, "b.jpg": {}}
    assert table.split_names.to_pylist() == ["val", "val"]
    nothing = "unknown (nothing about the rest of the photo)"
    assert readings(table) == {
        (name, "point, Source ih, EstimatedYesNo yes"): ("positive, with its point", 1),
        (name, "point, Source ih, EstimatedYesNo no"): (nothing, 1),
        (name, "point, Source cc, EstimatedYesNo yes"): ("positive, with its point", 1),
        (name, "point, Source cc, EstimatedYesNo no"): (nothing, 1),
        (name, "point, Source cc, EstimatedYesNo unsure"): (nothing, 1),
        (name, "class that is not named in an image"): ("unknown", 3),
    }
    assert table.notes.messages[-2:] == (
        f"{name}: 2 points answered 'no' state nothing about the rest of the photo; the class stays unknown there",
        f"{name}: 1 point answered 'unsure' states nothing; the class stays unknown there",
    )
    closed = read_openimages(folder / name, options=ReadOptions(complete=True))
    assert labels(closed) == {"a.jpg": {"Cat": P, "Crane#/m/0g6b5": N}, "b.jpg": {"Cat": N, "Dog": N}}


def test_points_and_labels_of_a_folder_are_joined(write):
    """A verified absence beside a "no" stays a negative; a point says more than the label of its class."""
    folder = write(
        train_labels=LABELS + "a,verification,/m/01yrx,1\na,verification,/m/0bt9lr,0\n",
        train_points=POINTS + "a,0.5,0.5,/m/0bt9lr,no,ih,0,1,0,Dog\na,0.5,0.5,/m/01yrx,yes,ih,1,0,0,Cat\n",
    )
    table = read_openimages(folder)
    assert labels(table) == {"a.jpg": {"/m/01yrx": P, "/m/0bt9lr": N}}
    assert len(table.facts) == 2
    assert len(table.locations) == 1


def test_a_point_outside_the_photo_leaves_the_label(write):
    table = read_openimages(write(p=POINTS + "a,1.5,0.5,/m/01yrx,yes,ih,1,0,0,Cat\n"))
    assert labels(table) == {"a.jpg": {"/m/01yrx": P}}
    assert [(e.item, e.reason) for e in table.notes.excluded] == [
        ("p.csv row 2", "its point lies outside the photo; its label is kept")
    ]


def test_labels_and_boxes_of_a_folder_are_joined(write):
    """A box says more than the label of its class; the label of another class stays."""
    folder = write(
        train_labels=LABELS + "a,verification,/m/01yrx,1\na,verification,/m/0bt9lr,0\n",
        train_bbox=BOXES + "a,xclick,/m/01yrx,1,0.1,0.3,0.2,0.4,0,0,0,0,0\nc,xclick,/m/01yrx,1,0,1,0,1,0,0,0,0,0\n",
        test_labels=LABELS + "b,verification,/m/01yrx,0\n",
        relationships="ImageID,LabelName1,LabelName2\na,x,y\n",
    )
    table = read_openimages(folder)
    assert labels(table) == {
        "b.jpg": {"/m/01yrx": N},
        "a.jpg": {"/m/01yrx": P, "/m/0bt9lr": N},
        "c.jpg": {"/m/01yrx": P},
    }
    assert len(table.facts) == 4
    assert table.split_names.to_pylist() == ["test", "train", "train"]
    assert "relationships.csv has neither labels, boxes nor points, and is ignored" in table.notes.messages
    alone = read_openimages(folder / "train-labels.csv")
    assert labels(alone) == {"a.jpg": {"/m/01yrx": P, "/m/0bt9lr": N}}


def test_present_and_absent_at_once_is_unknown(write):
    table = read_openimages(write(l=LABELS + "a,one,/m/01yrx,1\na,two,/m/01yrx,0\n"))
    assert labels(table) == {"a.jpg": {}}
    assert table.summary().contradictions == 1


def test_photos_are_found_by_their_id_and_others_left_out(write, make_photo, tmp_path):
    make_photo("train/a.jpg", 1)
    make_photo("images/deep/b.png", 2)
    make_photo("images/deep/deeper/c.jpg", 3)
    make_photo("train/other.jpg", 4)
    folder = write(labels=LABELS + "".join(f"{i},verification,/m/01yrx,1\n" for i in "zabc"))
    table = read_openimages(folder)
    assert (table.root, labels(table)) == (
        tmp_path,
        {"train/a.jpg": {"/m/01yrx": P}, "images/deep/b.png": {"/m/01yrx": P}},
    )
    assert [(e.item, e.reason) for e in table.notes.excluded] == [("'z', 'c'", f"photo not found in {tmp_path}")]
    assert f"{folder.name}: 2 of 4 images left out: their photos do not exist" in table.notes.messages
    given = read_openimages(folder, tmp_path / "images")
    assert (given.root, given.images.to_pylist()) == (tmp_path / "images", ["deep/b.png", "deep/deeper/c.jpg"])


def test_photos_beside_a_folder_of_annotations(make_photo, tmp_path):
    make_photo("data/a.jpg")
    (tmp_path / "labels").mkdir()
    (tmp_path / "labels/classifications.csv").write_text(LABELS + "a,verification,/m/01yrx,1\n")
    for path in (tmp_path, tmp_path / "labels", tmp_path / "labels/classifications.csv"):
        assert labels(read_openimages(path)) == {"data/a.jpg": {"/m/01yrx": P}}
    (tmp_path / "labels").rename(tmp_path / "mine")
    assert read_openimages(tmp_path / "mine").root is None


def test_a_photo_that_is_there_twice(write, make_photo):
    make_photo("train/a.jpg", 1)
    make_photo("x/a.jpg", 1)
    table = read_openimages(write(labels=LABELS + "a,verification,/m/01yrx,1\n"))
    assert table.images.to_pylist() == ["train/a.jpg"]
    assert any("1 photo exists more than once; the first is used" in m for m in table.notes.messages)


def test_photos_that_are_not_in_the_folder_that_is_given(write, tmp_path):
    folder = write(labels=LABELS + "a,verification,/m/01yrx,1\n")
    with pytest.raises(DataError, match=r"no photo in '.*' has the name of an image of .*, such as a\.jpg\."):
        read_openimages(folder, tmp_path)
    with pytest.raises(DataError, match="is not a folder; pass the folder with the photos"):
        read_openimages(folder, tmp_path / "gone")


def test_splits_of_an_image_list(write):
    folder = write(
        labels=LABELS + "a,verification,/m/01yrx,1\nb,verification,/m/01yrx,0\n",
        image_ids="ImageID,Subset,Rotation\nb,validation,90\nz,train,\n",
    )
    table = read_openimages(folder)
    assert table.split_names.to_pylist() == ["", "val"]
    assert "image-ids.csv: 1 of 2 images without a label or box here" in table.notes.messages


def test_an_image_in_two_splits(write):
    row = "a,verification,/m/01yrx,1\n"
    table = read_openimages(write(train_l=LABELS + row, test_l=LABELS + row))
    assert table.split_names.to_pylist() == ["test"]
    assert "1 image is in several splits; the first of them counts" in table.notes.messages
    (clash,) = table.notes.excluded
    assert (clash.reason, clash.kind) == ("is in test and in train; the first of them counts", "splits")


def test_photos_that_exif_turns(write, make_photo):
    """Nothing declares a size: the displayed frame is assumed, and a message reports it."""
    make_photo("a.jpg", size=(20, 10), orientation=6)
    table = read_openimages(write(bbox=BOXES + "a,xclick,/m/01yrx,1,0.1,0.3,0.2,0.4,0,0,0,0,0\n"))
    assert facts(table)[0][3] == (0.1, 0.2, 0.3, 0.4)
    start = "1 photo is turned or mirrored by EXIF; the file does not show the frame of the boxes"
    assert any(m.startswith(start) for m in table.notes.messages)


@pytest.mark.parametrize(
    ("corners", "fault"),
    [
        ("0.3,0.3,0.2,0.4", "has no width or no height"),
        ("nan,0.3,0.2,0.4", "has coordinates that are not numbers"),
        (",0.3,0.2,0.4", "has coordinates that are not numbers"),
        ("1.5,1.7,0.2,0.4", "lies outside the photo"),
    ],
)
def test_a_box_that_cannot_be_used_leaves_the_label(write, corners, fault):
    folder = write(
        labels=LABELS + "b,verification,/m/01yrx,1\n",
        xbox=BOXES + f"a,xclick,/m/01yrx,1,0,1,0,1,0,0,0,0,0\na,xclick,/m/0bt9lr,1,{corners},0,0,0,0,0\n",
    )
    table = read_openimages(folder)
    assert labels(table)["a.jpg"] == {"/m/01yrx": P, "/m/0bt9lr": P}
    assert [(e.item, e.reason) for e in table.notes.excluded] == [
        ("xbox.csv row 3", f"its box {fault}; its label is kept")
    ]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (
            LABELS + "a,v,/m/1,1\na,v,/m/1,yes\n",
            " row 3: the Confidence is 'yes'; expected a number from 0 to 1.",
        ),
        (LABELS + "a,v,/m/1,2\n", " row 2: the Confidence is '2'; expected a number from 0 to 1."),
        (LABELS + "a,v,/m/1,nan\n", " row 2: the Confidence is 'nan'; expected a number from 0 to 1."),
        (LABELS + "a,v,/m/1,1\n,v,/m/1,1\n", " row 3: there is no ImageID; fill it in, or remove the row."),
        (LABELS + "a,v,,1\n", " row 2: there is no LabelName; fill it in, or remove the row."),
        (LABELS + "a,v\n", ": its rows do not fit its header (CSV parse error"),
        (
            BOXES + "a,v,/m/1,1,left,1,0,1,0,0,0,0,0\n",
            ": its rows do not fit its header (In CSV column #4: Row #2",
        ),
    ],
)
def test_broken_rows(write, text, message):
    folder = write(l=text)
    with pytest.raises(DataError) as error:
        read_openimages(folder)
    assert str(error.value).startswith(f"{folder}/l.csv{message}")


def test_bytes_that_are_no_text(tmp_path):
    (tmp_path / "l.csv").write_bytes(LABELS.encode() + b"a,v,\xff\xfe,1\n")
    with pytest.raises(DataError, match=r"l\.csv: its rows do not fit its header \(.*UTF8"):
        read_openimages(tmp_path)


def test_nothing_to_read(write, tmp_path):
    with pytest.raises(DataError, match="no row names a class, so there is nothing to learn"):
        read_openimages(write(l=LABELS))
    wrong = re.escape(
        "no CSV with the columns ImageID, LabelName and Confidence (labels), or also XMin, XMax, YMin and"
    )
    with pytest.raises(DataError, match=wrong):
        read_openimages(write(l="image,label\n"))
    with pytest.raises(DataError, match=wrong):
        read_openimages(write(l=LABELS, c=NAMES) / "c.csv")
