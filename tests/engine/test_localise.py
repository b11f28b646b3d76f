"""Nets whose maps are the colours of the photo: what they are worth is known."""

import weakref
from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from model_info import plain_info
from PIL import Image
from torch import nn

from fewtags.engine import localise as localising
from fewtags.engine.localise import (
    WITHOUT_BOXES,
    even_cuts,
    has_boxes,
    localise_table,
    refuse_without_boxes,
    regions_in_view,
)
from fewtags.engine.predict import ScoredTable, score_table
from fewtags.errors import DataError
from fewtags.geometry import View
from fewtags.labels import ClassNames, Label
from fewtags.metrics.locate import DEFAULT, LocateOptions
from fewtags.nets.spatial import SpatialHead, SpatialNet
from fewtags.table.table import LabelTable

P, N, U = Label.POSITIVE, Label.NEGATIVE, Label.UNKNOWN
COLOURS = ("red", "green", "blue")
NO = (np.nan,) * 4
SMALL = LocateOptions(size=(4, 4), cuts=(0.0, 0.5), bins=10)


def colour_net(size, cell, policy="none"):
    """Maps of red, green and blue: 4 x (the colour's mean in cells of `cell` pixels) - 2, so -2 and 2 of pure ones."""
    head = SpatialHead(3, 3)
    with torch.no_grad():
        head.weight.copy_(4 * torch.eye(3))
        head.bias.fill_(-2.0)
    info = plain_info(COLOURS, size=size, policy=policy)
    return SpatialNet(nn.AvgPool2d(cell), head), info


def draw(path, size, *squares):
    """A black photo with squares (colour, x0, y0, x1, y1 in pixels)."""
    pixels = np.zeros((size, size, 3), np.uint8)
    for colour, x0, y0, x1, y1 in squares:
        pixels[y0:y1, x0:x1, COLOURS.index(colour)] = 255
    Image.fromarray(pixels).save(path)


def table_of(folder, facts, images, classes=COLOURS):
    """A table of the facts (image, colour, state, box in 0..1)."""
    image, colour, state, where = zip(*facts, strict=True)
    return LabelTable.build(
        [f"{n}.png" for n in range(images)], ClassNames.of(classes), image=np.array(image),
        class_=np.array([classes.index(c) for c in colour]), state=np.array(state, np.int8),
        locations=np.array(where, np.float32), root=folder,
    )  # fmt: skip


FACTS = [
    *[(0, "red", P, (0.0, 0.0, 0.5, 0.5)), (0, "green", N, NO), (0, "blue", N, NO)],
    *[(1, "red", N, NO), (1, "green", P, (0.5, 0.0, 1.0, 1.0)), (1, "blue", N, NO)],
    *[(2, "red", N, NO), (2, "green", N, NO), (2, "blue", P, NO)],
    (3, "green", P, (0.25, 0.5, 0.25, 0.5)),
]


@pytest.fixture
def drawn(tmp_path):
    """Red where its box is; green in the left half, though its box is the right one; blue without a box; a point."""
    draw(tmp_path / "0.png", 32, ("red", 0, 0, 16, 16))
    draw(tmp_path / "1.png", 32, ("green", 0, 0, 16, 32))
    draw(tmp_path / "2.png", 32, ("blue", 0, 0, 16, 16))
    draw(tmp_path / "3.png", 32, ("green", 0, 0, 16, 16))
    return table_of(tmp_path, FACTS, 4)


def measured(model, table, **changes):
    arguments = {"cpu": True, "options": SMALL} | changes
    return localise_table(*model, table, score_table(*model, table, cpu=True), **arguments)


# --- derived by hand


def test_one_map_on_its_box_and_one_beside_it(drawn):
    """On 4 x 4 cells red's map is 1 on its box (4 cells) and 0 elsewhere, green's 0 on its box (8 cells) and 1 beside.

    So pointing, IoA-P and boxes are right once of twice; flat maps reach (4 + 8) / 2 of 16 cells. Both classes are
    ranked right: mAP-cl 1, of which red alone is located. Without regions: only green's box takes half of the image, so
    1/2. Scores all alike: 1 positive of 3 known cells each (the unlocated point is left out). The whole image overlaps
    the boxes by 1/4 and 1/2: one right at .3 and .5, none at .7. Pixels at the value 1: 4 inside and 8 outside; all: 12
    and 20; PxAP = 4/12 x 4/12 + 8/12 x 12/32.
    """
    found = measured(colour_net(32, 8), drawn)
    report = found.report
    assert (report.images, report.present.pairs) == (4, 2)
    assert (found.tags, found.points, found.cropped) == (1, 1, 0)
    assert (report.present.pointing, report.present.chance) == (0.5, 0.375)
    assert report.present.ioa.tolist() == report.present.ioa_hits.tolist() == [0.5] * 4
    assert (report.ranked.map_loc, report.ranked.map_cl, report.ranked_chance) == (0.5, 1.0, 0.5)
    assert report.ranked.map_cl_chance == pytest.approx(1 / 3)
    assert (report.boxes.max_box_acc, report.boxes.chance) == (0.5, pytest.approx(1 / 3))
    assert report.pixels.pxap == pytest.approx(13 / 36)
    assert report.pixels.chance == 0.375
    assert report.ranked.excluded == {2: "no located positive"}


def test_what_is_said(drawn):
    assert str(measured(colour_net(32, 8), drawn)).splitlines() == [
        "Localisation on 2 positive labels with boxes, 4 images; mAP-loc over 2 of 3 classes, those that also have "
        "known negatives.",
        "Left out: 2 positive labels: 1 without a region, 1 with an object that has only a point.",
        "metric                    value  chance",
        "pointing game              50.0    37.5  2 regions",
        "IoA-P                      50.0    37.5  2 regions",
        "IoA-P hits                 50.0    50.0  2 regions",
        "mAP-loc                    50.0    50.0  2 classes",
        "mAP-loc, best threshold    50.0       -  2 classes",
        "mAP-cl, same cells        100.0    33.3  2 classes",
        "MaxBoxAccV2                50.0    33.3  2 regions",
        "PxAP                       36.1    37.5  2 regions",
        "mean PxAP                  75.0       -  2 classes",
    ]


def test_what_json_holds(drawn):
    found = measured(colour_net(32, 8), drawn)
    told, plain = found.to_dict(), found.report.to_dict()
    per_class, rows = told.pop("per_class"), plain.pop("per_class")
    assert per_class == [{"id": c, "name": c, **row} for c, row in zip(COLOURS, rows, strict=True)]
    assert told["mAP-cl_same_cells_chance"] == pytest.approx(1 / 3)
    assert told == plain | {
        "left_out": {"no_place": 1, "point_only": 1, "cropped_away": 0},
        "cuts": 2,
    }


def test_without_known_negatives_nothing_is_ranked(drawn, tmp_path):
    """No class is counted, so mAP-loc and mAP-cl have no value and no chance level; the other measures stay."""
    table = table_of(tmp_path, [fact for fact in FACTS if fact[2] == P], 4)
    found = measured(colour_net(32, 8), table)
    assert "mAP-loc                       -       -  0 classes" in str(found).splitlines()
    assert "mAP-cl, same cells            -       -  0 classes" in str(found).splitlines()
    assert found.to_dict()["mAP-cl_same_cells_chance"] is None
    assert found.report.present.pointing == 0.5


# --- crops


def test_boxes_are_moved_into_a_cropped_view(tmp_path):
    """The test view of `imagenet` is the middle 28 of 32 pixels: the square at 9..23 fills 7..21 of its 28.

    Boxes that stayed where they are would end at 7.9 and 20.1, an overlap of (12.25 / 14)^2 = .77. Green's box lies in
    the border of 2 pixels, so it is cropped away; blue's reaches 4 pixels into the corner of the view.
    """
    draw(tmp_path / "0.png", 32, ("red", 9, 9, 23, 23), ("blue", 0, 0, 6, 6))
    draw(tmp_path / "1.png", 32)
    edge = 2 / 32
    facts = [
        (0, "red", P, (9 / 32, 9 / 32, 23 / 32, 23 / 32)),
        (0, "green", P, (0.0, 0.0, edge, 1.0)),
        (0, "blue", P, (0.0, 0.0, 6 / 32, 6 / 32)),
        *[(1, colour, N, NO) for colour in COLOURS],
    ]
    options = LocateOptions(size=(28, 28), cuts=(0.5,), overlaps=(0.99,), bins=10)
    found = measured(colour_net(28, 1, "imagenet"), table_of(tmp_path, facts, 2), options=options)
    report = found.report
    assert (report.present.pairs, found.tags, found.points, found.cropped) == (2, 0, 0, 1)
    assert (report.boxes.max_box_acc, report.pixels.pxap, report.present.pointing) == (1.0, 1.0, 1.0)
    assert report.present.chance == pytest.approx((14**2 + 4**2) / 2 / 28**2)
    assert found.headline()[1] == "Left out: 1 positive label: 1 cropped away by the test view."


def test_places_in_a_view():
    """The left half, mirrored: x of 0.1..0.3 becomes 0.4..0.8; what reaches beyond is clipped, the rest is not seen.

    Class 2 keeps one of its two boxes; class 5 touches the view from outside; the point of class 7 stays a point.
    """
    boxes = [
        [0.1, 0.0, 0.3, 1.0],
        [0.4, 0.2, 0.9, 0.4],
        [0.6, 0.0, 0.9, 1.0],
        [0.5, 0.0, 0.6, 1.0],
        [0.25, 0.5, 0.25, 0.5],
    ]
    view = View.crop(0.0, 0.0, 0.5, 1.0).then(View.flip())
    regions, cropped = regions_in_view(np.array([0, 2, 2, 5, 7], np.int32), np.array(boxes, np.float32), view)
    assert (sorted(regions), cropped) == ([0, 2, 7], 1)
    np.testing.assert_allclose(regions[0].boxes, [[0.4, 0.0, 0.8, 1.0]], atol=1e-6)
    np.testing.assert_allclose(regions[2].boxes, [[0.0, 0.2, 0.2, 0.4]], atol=1e-6)
    np.testing.assert_allclose(regions[7].boxes, [[0.5, 0.5, 0.5, 0.5]], atol=1e-6)
    assert [regions[c].has_extent for c in (0, 2, 7)] == [True, True, False]


@given(
    st.lists(st.tuples(st.integers(0, 3), *[st.integers(0, 16)] * 4), min_size=1, max_size=8),
    st.tuples(*[st.integers(0, 15)] * 2, *[st.integers(1, 16)] * 2),
)
def test_every_class_is_seen_or_cropped_away(objects, crop):
    """On a grid of sixteenths: a box is seen if it overlaps the crop, a point if it lies in it."""
    classes = np.array([c for c, *_ in objects], np.int32)
    boxes = np.array([[min(a, c), min(b, d), max(a, c), max(b, d)] for _, a, b, c, d in objects], np.float32)
    x0, y0, width, height = crop
    x1, y1 = x0 + width, y0 + height
    view = View.crop(*(v / 16 for v in (x0, y0, x1, y1)))
    regions, cropped = regions_in_view(classes, boxes / 16, view)
    seen = set()
    for c, (a, b, right, low) in zip(classes.tolist(), boxes.tolist(), strict=True):
        area = (right - a) * (low - b) > 0
        inside = x0 <= a <= right <= x1 and y0 <= b <= low <= y1
        if (min(right, x1) > max(a, x0) and min(low, y1) > max(b, y0)) if area else inside:
            seen.add(c)
    assert set(regions) == seen
    assert cropped == len(set(classes.tolist()) - seen)


# --- properties


def test_classes_are_matched_by_id(drawn, tmp_path):
    """The same facts with the classes in another order, and one with boxes that the model does not know."""
    facts = [*FACTS, (2, "dragon", P, (0.0, 0.0, 0.5, 0.5))]
    other = table_of(tmp_path, facts, 4, ("dragon", "blue", "green", "red"))
    model = colour_net(32, 8)
    assert measured(model, other).to_dict() == measured(model, drawn).to_dict()


def test_photos_that_cannot_be_read_are_not_there(drawn, tmp_path):
    """The result is that of the table without them, whatever they were; none with boxes: an error."""
    model = colour_net(32, 8)
    expected = measured(model, drawn.subset(np.array([1, 2, 3])))
    (tmp_path / "0.png").write_bytes(b"no photo")
    found = measured(model, drawn)
    assert found.report.images == 3
    assert found.to_dict() == expected.to_dict()
    (tmp_path / "1.png").unlink()
    with pytest.raises(DataError) as error:
        measured(model, drawn)
    assert str(error.value) == "none of the photos with boxes can be read; localisation needs at least one."


def test_a_photo_that_breaks_between_the_passes(drawn, tmp_path):
    model = colour_net(32, 8)
    scored = score_table(*model, drawn, cpu=True)
    (tmp_path / "0.png").write_bytes(b"no photo")
    with pytest.raises(DataError, match=r"0\.png: "):
        localise_table(*model, drawn, scored, cpu=True)


def test_ranks_are_those_of_the_evaluation(drawn):
    """The logits are taken as they were scored: green above its positive in photo 0 halves its precision."""
    model = colour_net(32, 8)
    scored = score_table(*model, drawn, cpu=True)
    logits = scored.logits.copy()
    logits[0, 1] = 100.0
    other = ScoredTable(index=scored.index, logits=logits, labels=scored.labels)
    report = localise_table(*model, drawn, other, cpu=True, options=SMALL).report
    assert report.ranked.classified[:2].tolist() == [1.0, 0.5]


def test_maps_are_not_kept(tmp_path, monkeypatch):
    """Of 30 photos, no more than four maps live at any time, and all are told of."""
    facts = [(n, "red", P, (0.0, 0.0, 0.5, 0.5)) for n in range(30)]
    table = table_of(tmp_path, facts, 30)
    alive, done = [], []

    def maps(net, info, paths, device, *, workers):
        for _ in paths:
            one = np.random.default_rng(0).random((3, 4, 4))
            alive.append(weakref.ref(one))
            assert sum(ref() is not None for ref in alive) <= 4
            yield View.identity(), one

    monkeypatch.setattr(localising, "predict_maps", maps)
    scored = ScoredTable(index=np.arange(30), logits=np.zeros((30, 3), np.float32), labels=table.matrix.dense())
    model = colour_net(32, 8)
    localise_table(*model, table, scored, cpu=True, options=SMALL, tick=lambda *counts: done.append(counts))
    assert len(alive) == 30
    assert done == [(n, 30) for n in range(1, 31)]


def test_few_cuts_change_boxes_only(drawn):
    model = colour_net(32, 8)
    few, usual = (measured(model, drawn, options=replace(o, size=(8, 8))).to_dict() for o in (WITHOUT_BOXES, DEFAULT))
    for name in ("MaxBoxAccV2", "by_overlap", "cuts"):
        few.pop(name), usual.pop(name)
    for found in (few, usual):
        found["metrics"] = [metric for metric in found["metrics"] if metric["key"] != "MaxBoxAccV2"]
    assert few == usual


def test_even_cuts():
    assert even_cuts(4) == replace(DEFAULT, cuts=(0.0, 0.25, 0.5, 0.75))
    assert even_cuts(100) == DEFAULT


# --- what is refused


def test_labels_without_boxes_are_refused(tmp_path):
    """Before any photo is read: there are none."""
    model = colour_net(32, 8)
    points = [(0, "red", P, (0.5, 0.5, 0.5, 0.5)), (1, "green", P, NO), (1, "red", N, NO)]
    dragon = (0, "dragon", P, (0.0, 0.0, 1.0, 1.0))
    table = table_of(tmp_path, [*points, dragon], 2, (*COLOURS, "dragon"))
    assert not has_boxes(model[1], table)
    expected = (
        "localisation needs boxes, but these labels have 2 positive labels of the model's classes with 1 point and no "
        "box; give labels with boxes, or leave localise out."
    )
    scored = ScoredTable(index=np.arange(2), logits=np.zeros((2, 3), np.float32), labels=np.zeros((2, 3), np.int8))
    for refused in (
        lambda: refuse_without_boxes(model[1], table),
        lambda: localise_table(*model, table, scored, cpu=True),
    ):
        with pytest.raises(DataError) as error:
            refused()
        assert str(error.value) == expected
    boxed = table_of(tmp_path, [*points, (1, "red", P, (0.0, 0.0, 1.0, 1.0))], 2)
    assert not has_boxes(model[1], boxed)  # red is called absent and present there
    assert has_boxes(model[1], table_of(tmp_path, [(1, "red", P, (0.0, 0.0, 1.0, 1.0))], 2))


def test_labels_of_other_classes_are_refused_as_ever(tmp_path):
    table = table_of(tmp_path, [(0, "dragon", P, (0.0, 0.0, 1.0, 1.0))], 1, ("dragon",))
    with pytest.raises(DataError) as error:
        refuse_without_boxes(colour_net(32, 8)[1], table)
    assert str(error.value) == "none of the classes dragon is known to the model, which has red, green, blue."


def test_everything_cropped_away(tmp_path):
    """Red lies outside of the view, and of green a point is left."""
    draw(tmp_path / "0.png", 32)
    facts = [
        (0, "red", P, (0.0, 0.0, 1.0, 0.05)),
        (0, "green", P, (0.0, 0.0, 1.0, 0.05)),
        (0, "green", P, (0.5, 0.5, 0.5, 0.5)),
    ]
    with pytest.raises(DataError) as error:
        measured(colour_net(28, 1, "imagenet"), table_of(tmp_path, facts, 1))
    assert str(error.value) == (
        "no box can be measured in 1 photo: 1 positive label is cropped away by the model's test view, 1 has an object "
        "that has only a point; give other photos."
    )
