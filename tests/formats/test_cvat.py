import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from seen import facts, labels, readings

from fewtags.errors import DataError
from fewtags.formats.common import ellipse_bounds
from fewtags.formats.cvat import _rotated, read_cvat
from fewtags.formats.options import ReadOptions
from fewtags.labels import Label

P, N, U = Label.POSITIVE, Label.NEGATIVE, Label.UNKNOWN
LABELS = ("person", "cat", "dog")


def meta(*names, subset=""):
    declared = "".join(f"<label><name>{name}</name><type>any</type></label>" for name in names or LABELS)
    return f"<meta><task><id>1</id><subset>{subset}</subset><labels>{declared}</labels></task></meta>"


def image(name, *shapes, size=(200, 100), more=""):
    return f'<image id="0" name="{name}" width="{size[0]}" height="{size[1]}" {more}>{"".join(shapes)}</image>'


def box(label, x0=20, y0=10, x1=60, y1=30, more=""):
    return f'<box label="{label}" source="manual" occluded="0" xtl="{x0}" ytl="{y0}" xbr="{x1}" ybr="{y1}" {more}/>'


def tag(label, source="manual"):
    return f'<tag label="{label}" source="{source}"></tag>'


@pytest.fixture
def write(tmp_path):
    def write(*parts, head=None):
        file = tmp_path / "annotations.xml"
        body = "".join((meta() if head is None else head, *parts))
        file.write_text(
            f'<?xml version="1.0" encoding="utf-8"?><annotations><version>1.1</version>{body}</annotations>'
        )
        return file

    return write


def test_tags_boxes_and_points(write):
    """20 10 60 30 of 200 x 100 is .1 .1 .3 .3; points are places without a size. "person" is in no image."""
    points = '<points label="dog" source="manual" points="100,50;150,25" />'
    table = read_cvat(write(image("sub/b.jpg", box("cat"), points, tag("dog")), image("a.jpg")))
    assert table.classes.ids == LABELS
    assert table.images.to_pylist() == ["sub/b.jpg", "a.jpg"]
    assert facts(table) == [
        ("sub/b.jpg", "cat", P, (0.1, 0.1, 0.3, 0.3)),
        ("sub/b.jpg", "dog", P, (0.5, 0.5, 0.5, 0.5)),
        ("sub/b.jpg", "dog", P, (0.75, 0.25, 0.75, 0.25)),
    ]
    assert labels(table) == {"sub/b.jpg": {"cat": P, "dog": P}, "a.jpg": {}}
    assert readings(table) == {
        "box 'cat'": ("positive, with its box", 1),
        "points 'dog'": ("positive, with each point", 1),
        "tag 'dog'": ("positive", 1),
        "source 'manual'": ("positive, as the others", 3),
        "class that is not named in an image": ("unknown", 4),
        "image without shape or tag": ("nothing known", 1),
    }
    assert (table.root, table.split_names, table.notes.excluded) == (None, None, ())
    assert table.facts["source"].unique().to_pylist() == ["annotations.xml"]


def test_complete(write):
    table = read_cvat(write(image("a.jpg", box("cat")), image("b.jpg")), options=ReadOptions(complete=True))
    nothing = dict.fromkeys(LABELS, N)
    assert labels(table) == {"a.jpg": nothing | {"cat": P}, "b.jpg": nothing}
    assert readings(table)["class that is not named in an image"] == ("negative (complete)", 5)


def test_a_tag_none(write):
    """b says that nothing is there and boxes a cat: both facts stay, the cell is unknown. No class is called none."""
    file = write(image("a.jpg", tag("None")), image("b.jpg", tag("None"), box("cat")), head=meta(*LABELS, "None"))
    table = read_cvat(file)
    assert table.classes.ids == LABELS
    nothing = dict.fromkeys(LABELS, N)
    assert labels(table) == {"a.jpg": nothing, "b.jpg": {"person": N, "dog": N}}
    assert table.summary().contradictions == 1
    assert readings(table)["tag 'None'"] == ("none of the classes", 2)
    assert "image without shape or tag" not in readings(table)
    assert (
        "annotations.xml: 1 label is in an image that is stated to show none of the classes: unknown"
        in table.notes.messages
    )
    assert read_cvat(file, options=ReadOptions(none_folder="")).classes.ids == (*LABELS, "None")


@pytest.mark.parametrize(
    ("shape", "corners"),
    [
        ('<polygon label="cat" points="20,30;60,10;40,20"/>', (0.1, 0.1, 0.3, 0.3)),
        ('<polyline label="cat" points="20,30;60,10"/>', (0.1, 0.1, 0.3, 0.3)),
        ('<mask label="cat" rle="1, 2" left="20" top="10" width="40" height="20"/>', (0.1, 0.1, 0.3, 0.3)),
        ('<ellipse label="cat" cx="40" cy="20" rx="20" ry="10"/>', (0.1, 0.1, 0.3, 0.3)),
        # Turned by a quarter, the half axes change places: 10 to the sides, 20 up and down.
        ('<ellipse label="cat" cx="40" cy="20" rx="20" ry="10" rotation="90"/>', (0.15, 0.0, 0.25, 0.4)),
        # A box of 40 x 20 about (40, 20), turned by a quarter, is 20 x 40 about it.
        (box("cat", more='rotation="90"'), (0.15, 0.0, 0.25, 0.4)),
        (
            '<cuboid label="cat" xtl1="20" ytl1="12" xbl1="20" ybl1="30" xtr1="50" ytr1="12" xbr1="50" ybr1="30" '
            'xtl2="60" ytl2="10" xbl2="60" ybl2="28" xtr2="55" ytr2="10" xbr2="55" ybr2="28"/>',
            (0.1, 0.1, 0.3, 0.3),
        ),
        (
            '<skeleton label="cat"><points label="ear" outside="0" points="20,10"/>'
            '<points label="tail" outside="0" points="60,30"/>'
            '<points label="paw" outside="1" points="0,0"/></skeleton>',
            (0.1, 0.1, 0.3, 0.3),
        ),
    ],
)
def test_shapes(write, shape, corners):
    table = read_cvat(write(image("a.jpg", shape)))
    assert facts(table) == [("a.jpg", "cat", P, corners)]
    assert table.classes.ids == LABELS


@given(*[st.floats(-50, 50)] * 2, *[st.floats(1, 40)] * 2, st.floats(-400, 400))
def test_turned_boxes_agree_with_turned_corners(cx, cy, w, h, degrees):
    a = math.radians(degrees)
    corners = np.array([[-w, -h], [w, -h], [w, h], [-w, h]]) / 2
    turned = corners @ np.array([[math.cos(a), math.sin(a)], [-math.sin(a), math.cos(a)]]) + [cx, cy]
    np.testing.assert_allclose(_rotated(cx, cy, w, h, degrees), [*turned.min(0), *turned.max(0)], atol=1e-9)


@given(*[st.floats(1, 40)] * 2, st.floats(-400, 400))
def test_rotated_ellipses_agree_with_many_points_of_them(rx, ry, degrees):
    """4,000 points of an outline miss its extremes by less than (pi / 4000)^2 / 2 of the larger half axis."""
    a, t = math.radians(degrees), np.linspace(0, 2 * np.pi, 4001)
    x = rx * np.cos(t) * math.cos(a) - ry * np.sin(t) * math.sin(a)
    y = rx * np.cos(t) * math.sin(a) + ry * np.sin(t) * math.cos(a)
    expected = [3 + x.min(), 5 + y.min(), 3 + x.max(), 5 + y.max()]
    np.testing.assert_allclose(ellipse_bounds(3, 5, rx, ry, degrees), expected, atol=2e-5)


def test_sources_attributes_and_occlusion(write):
    """Automatic shapes count, and carry their source."""
    red = '<attribute name="colour">red</attribute><attribute name="note"></attribute>'
    shape = f'<box label="dog" source="auto" occluded="1" xtl="20" ytl="10" xbr="60" ybr="30">{red}</box>'
    table = read_cvat(write(image("a.jpg", shape, box("cat"), tag("person", "semi-auto"))))
    sources = table.facts["source"].to_pylist()
    assert dict(zip([f[1] for f in facts(table)], sources, strict=True)) == {
        "dog": "annotations.xml: auto",
        "cat": "annotations.xml",
        "person": "annotations.xml: semi-auto",
    }
    assert readings(table) | {"x": 1} == readings(table) | {"x": 1} | {
        "occluded = 1": ("positive, as the others", 1),
        "source 'auto'": ("positive, as the others", 1),
        "source 'semi-auto'": ("positive, as the others", 1),
        "attribute 'colour' = 'red'": ("not used", 1),
        "attribute 'note' = ''": ("not used", 1),
    }


def test_attributes_with_many_values(write):
    shapes = [
        f'<tag label="cat"><attribute name="id">{i}</attribute></tag>' for i in [*range(25), *range(20), *range(20)]
    ]
    assert readings(read_cvat(write(image("a.jpg", *shapes))))["attribute 'id' = 5 other values"] == ("not used", 5)


def test_labels_that_are_not_declared_come_last(write):
    table = read_cvat(write(image("a.jpg", box("zebra"), box("cat"))))
    assert table.classes.ids == (*LABELS, "zebra")
    assert read_cvat(write(image("a.jpg", box("zebra"), box("cat")), head="")).classes.ids == ("zebra", "cat")


def test_parts_of_skeletons_are_no_classes(write):
    head = meta().replace("</labels>", "<label><name>ear</name><parent>cat</parent></label></labels>")
    assert read_cvat(write(image("a.jpg", box("cat")), head=head)).classes.ids == LABELS


def test_splits_of_a_project_and_of_a_task(write):
    project = [image(f"{n}.jpg", box("cat"), more=f'subset="{s}"') for n, s in (("a", "Train"), ("b", "Validation"))]
    table = read_cvat(write(*project, image("c.jpg")))
    assert table.split_names.to_pylist() == ["train", "val", ""]
    assert readings(table)["subset 'Validation'"] == ("split 'val'", 1)
    assert read_cvat(write(image("c.jpg"), head=meta(subset="test"))).split_names.to_pylist() == ["test"]


def test_photos_are_found_below_their_subset(write, make_photo, tmp_path):
    for name in ("Train/a", "Val/a"):
        make_photo(f"images/{name}.jpg", size=(200, 100))
    file = write(*(image("a.jpg", box(c), more=f'subset="{s}"') for c, s in (("cat", "Train"), ("dog", "Val"))))
    assert labels(read_cvat(file)) == {"Train/a.jpg": {"cat": P}, "Val/a.jpg": {"dog": P}}
    assert read_cvat(tmp_path).root == tmp_path / "images"


def test_an_image_that_is_listed_twice(write):
    table = read_cvat(write(image("a.jpg", box("cat")), image("a.jpg", tag("dog"))))
    assert labels(table) == {"a.jpg": {"cat": P, "dog": P}}
    assert "annotations.xml: 1 image is listed again, and joined with the one before" in table.notes.messages


def test_boxes_follow_a_photo_that_exif_turns(write, make_photo):
    """Stored 200 x 100 with orientation 6: x' = 1 - y, y' = x. The point of (20, 30): .7, .1."""
    make_photo("images/a.jpg", size=(200, 100), orientation=6)
    table = read_cvat(write(image("a.jpg", box("cat"), '<points label="dog" points="20,30"/>')))
    assert facts(table) == [
        ("a.jpg", "cat", P, (0.7, 0.1, 0.9, 0.3)),
        ("a.jpg", "dog", P, (0.7, 0.1, 0.7, 0.1)),
    ]
    assert "1 photo is turned by EXIF, and the boxes and points with the photo" in table.notes.messages


@pytest.mark.parametrize(
    ("shape", "fault"),
    [
        (box("cat", x1=20), "its box has no width or no height"),
        (box("cat", x0="wide"), "its box has coordinates that are not numbers"),
        (box("cat", more='rotation="inf"'), "its box has coordinates that are not numbers"),
        ('<box label="cat"/>', "its box has coordinates that are not numbers"),
        ('<polygon label="cat" points=""/>', "its box has coordinates that are not numbers"),
        ('<polygon label="cat" points="1,2;3"/>', "its box has coordinates that are not numbers"),
        ('<skeleton label="cat"/>', "its box has coordinates that are not numbers"),
        ('<ellipse label="cat" cx="40" cy="20" rx="-20" ry="10"/>', "its box has coordinates that are not numbers"),
        ('<points label="cat" points="1 2"/>', "its point has coordinates that are not numbers"),
        ('<points label="cat" points="300,20"/>', "its point lies outside the photo"),
    ],
)
def test_a_place_that_cannot_be_used_leaves_the_label(write, shape, fault):
    table = read_cvat(write(image("a.jpg", tag("dog"), shape)))
    assert facts(table) == [("a.jpg", "dog", P, None), ("a.jpg", "cat", P, None)]
    kind = shape[1 : shape.index(" ")]
    assert [(e.item, e.reason) for e in table.notes.excluded] == [
        (f"a.jpg, {kind} 2 (cat)", f"{fault}; its label is kept")
    ]


def test_what_is_left_out(write):
    table = read_cvat(write('<image id="7" name=""/>', image("a.jpg", box(""), box("cat"), "<remark/>")))
    assert [(e.item, e.reason) for e in table.notes.excluded] == [
        ("image 7", "has no name"),
        ("a.jpg, box 1", "has no label"),
    ]
    assert {e.kind for e in table.notes.excluded} == {"unusable"}
    assert "annotations.xml: 1 element <remark> in images ignored" in table.notes.messages
    assert "annotations.xml: 2 images, shapes or tags left out, see the excluded list" in table.notes.messages


def test_labels_in_unknown_places_are_not_lost_in_silence(write):
    """A shape of another version, and images one level deeper than they should be."""
    table = read_cvat(write(image("a.jpg", tag("cat"), '<sphere label="dog"/>'), f"<job>{image('b.jpg')}</job>"))
    assert labels(table) == {"a.jpg": {"cat": P}}
    assert [(e.item, e.reason, e.kind) for e in table.notes.excluded] == [
        ("a.jpg, sphere 2 (dog)", "has an unknown shape", "unusable"),
        ("element <job>", "is an unknown element", "unusable"),
    ]


def test_an_image_of_two_sizes_is_refused(write):
    """Its boxes would be scaled by the wrong one. A size that is missing contradicts nothing."""
    file = write(image("a.jpg", box("cat")), image("a.jpg", box("dog"), size=(400, 200)))
    with pytest.raises(DataError) as error:
        read_cvat(file)
    assert str(error.value) == (
        f"{file}: gives image 'a.jpg' 200 x 100 and 400 x 200 pixels; export it again as 'CVAT for images 1.1'."
    )
    assert len(read_cvat(write(image("a.jpg", box("cat")), image("a.jpg", box("dog"), size=("", "")))).facts) == 2


@pytest.mark.parametrize(
    ("text", "trouble"),
    [
        (
            '<!DOCTYPE annotations [<!ENTITY a "lol">]><annotations>&a;</annotations>',
            "defines XML entities, which annotations do not need and attacks are made of",
        ),
        ("<annotations><image>", "is not valid XML (no element found: line 1, column 20)"),
        (
            "<annotation/>",
            "begins with <annotation> (a VOC file: pass its folder) instead of <annotations>",
        ),
        ("<annotations><track/></annotations>", "has tracks, as in 'CVAT for video'"),
    ],
)
def test_broken_and_dangerous_xml(tmp_path, text, trouble):
    file = tmp_path / "a.xml"
    file.write_text(text)
    with pytest.raises(DataError) as error:
        read_cvat(file)
    assert str(error.value) == f"{file}: {trouble}; export it again as 'CVAT for images 1.1'."


def test_nothing_to_learn(write, tmp_path):
    with pytest.raises(DataError, match="the file names no label, so there is nothing to learn"):
        read_cvat(write(image("a.jpg"), head=""))
    (tmp_path / "annotations.xml").unlink()
    with pytest.raises(DataError, match=r"expected the annotations\.xml of CVAT, or its folder"):
        read_cvat(tmp_path)
