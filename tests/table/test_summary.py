"""Summaries: counted by hand, and their printed form."""

import dataclasses
import json

import numpy as np
import pytest

from fewtags.labels import ClassNames
from fewtags.table.merge import merge
from fewtags.table.table import LabelTable


def table_of(cells, classes=("cat", "dog"), n=3, **more):
    """A table from (image, class, state) tuples."""
    image, class_, state = np.array(cells, int).reshape(-1, 3).T
    keys = [f"{i}.jpg" for i in range(n)]
    return LabelTable.build(keys, ClassNames.of(classes), image=image, class_=class_, state=state, **more)


def test_summary_by_hand():
    """Image 0: cat (a box and a point). Image 1: complete for both, has dog. Image 2: cat contradicts itself."""
    nan = np.nan
    boxes = table_of(
        [(0, 0, 1), (0, 0, 1), (1, 1, 1), (2, 0, 1)],
        locations=np.array([[0, 0, 0.5, 1], [0.5, 0.5, 0.5, 0.5], [nan] * 4, [nan] * 4]),
        complete_set=np.array([-1, 0, -1]),
        complete_classes=np.ones((1, 2), bool),
    )
    table = merge({"boxes": boxes, "tags": table_of([(2, 0, -1)])})
    found = table.summary()
    assert (found.images, found.kind) == (3, "partial")
    assert (found.positives, found.negatives, found.unknowns) == ((1, 1), (1, 0), (1, 2))
    assert (found.without_label, found.without_positive) == (1, 1)
    assert (found.points, found.boxes) == (1, 1)
    assert (found.points_of, found.boxes_of) == ((1, 0), (1, 0))
    assert found.sources == {"boxes": 4, "tags": 1}
    assert found.positives_per_image == pytest.approx(2 / 3)
    assert found.contradictions == 1
    assert [str(c) for c in found.contradicting] == ["2.jpg: cat is positive in boxes, negative in tags"]
    assert str(found) == (
        "3 images, 2 classes: partial\n"
        "labels: 2 positive (33.3%), 1 negative (16.7%), 3 unknown (50.0%)\n"
        "positives per image: 0.67 on average; 1 image has none, 1 has no label at all\n"
        "locations: 1 point, 1 box\n"
        "facts per source: boxes 4, tags 1\n"
        "contradictions, counted as unknown: 1, such as 2.jpg: cat is positive in boxes, negative in tags\n"
        "class     positive     negative      unknown\n"
        "cat              1            1            1\n"
        "dog              1            0            2"
    )


@pytest.mark.parametrize(
    ("cells", "complete_set", "kind"),
    [
        ([], None, "unlabelled"),
        ([(0, 0, 1), (1, 1, 1)], None, "single positive"),
        ([(0, 0, 1), (0, 1, 1), (1, 1, 1)], None, "positives only"),
        ([(0, 0, 1), (1, 1, -1)], None, "partial"),
        ([(0, 0, 1), (0, 1, -1), (1, 0, 1), (1, 1, 1), (2, 0, -1), (2, 1, -1)], None, "full"),
        ([(0, 0, 1)], [0, 0, 0], "full"),
        ([(0, 0, 1), (1, 1, 1)], [-1, -1, 0], "partial"),
        ([(0, 0, 1), (0, 0, -1)], [0, 0, 0], "partial"),
    ],
)
def test_kinds(cells, complete_set, kind):
    complete_set = None if complete_set is None else np.array(complete_set)
    complete_classes = None if complete_set is None else np.ones((1, 2), bool)
    assert table_of(cells, complete_set=complete_set, complete_classes=complete_classes).summary().kind == kind


def test_an_empty_table_has_a_summary():
    found = table_of([], n=0).summary()
    assert (found.images, found.kind, found.positives_per_image) == (0, "unlabelled", 0.0)
    assert "facts per source: none" in str(found)
    assert str(table_of([], classes=(), n=0).summary()).startswith(
        "0 images, 0 classes: unlabelled\nlabels: 0 positive"
    )


def test_a_long_vocabulary_is_shown_from_both_ends():
    """Class j is positive in 60 - j images, so the first 20 and the last 20 of 60 are shown."""
    cells = [(i, j, 1) for j in range(60) for i in range(60 - j)]
    lines = str(table_of(cells, [f"c{j:02}" for j in range(60)], n=60).summary()).splitlines()
    rows = lines[lines.index(next(line for line in lines if line.startswith("class"))) + 1 :]
    assert [r.split()[0] for r in rows] == [f"c{j:02}" for j in range(20)] + ["..."] + [f"c{j}" for j in range(40, 60)]
    assert rows[20] == "... 20 more classes"


def test_only_the_first_contradictions_are_listed_but_all_are_counted():
    cells = [(i, 0, s) for i in range(30) for s in (1, -1)]
    found = table_of(cells, n=30).summary()
    assert found.contradictions == 30
    assert [c.image for c in found.contradicting] == [f"{i}.jpg" for i in range(20)]


def test_contradictions_inside_one_source_are_told_apart_and_come_first():
    """Image 0: "tags" and "boxes" disagree. Image 1: "boxes" alone says both. Image 2: both kinds at once."""
    boxes = table_of([(0, 0, 1), (1, 0, 1), (1, 0, -1), (2, 0, 1), (2, 0, -1)])
    found = merge({"boxes": boxes, "tags": table_of([(0, 0, -1), (2, 0, 1), (2, 1, 1)])}).summary()
    assert (found.contradictions, found.contradictions_inside) == (3, 2)
    assert [(c.image, c.inside, c.sources) for c in found.contradicting] == [
        ("1.jpg", True, ("boxes",)),
        ("2.jpg", True, ("boxes", "tags")),
        ("0.jpg", False, ("boxes", "tags")),
    ]
    assert table_of([(0, 0, 1), (1, 0, -1)]).summary().contradictions_inside == 0


def test_a_summary_goes_into_json():
    found = json.loads(json.dumps(dataclasses.asdict(table_of([(0, 0, 1)]).summary())))
    assert found["positives"] == [1, 0]
    assert found["classes"]["ids"] == ["cat", "dog"]
