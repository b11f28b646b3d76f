"""PatchML's tables as curves: the printed numbers at the printed budgets, and what the paper says about them."""

import json
from pathlib import Path

import pytest

from fewtags.budget.costs import PROFILES, Annotation
from fewtags.budget.paper_curves import paper_curves, paper_resolution, paper_source

GOLDEN = json.loads((Path(__file__).parents[1] / "golden" / "curves.json").read_text())["rows"]
PAIRS = 82_783 * 80


def said(short, budget, measure="mAP"):
    kind = Annotation.of(short)
    return paper_curves()[kind].estimate(PROFILES["coco"].pairs_for(f"{budget}%", kind, PAIRS), 80, measure)


@pytest.mark.parametrize(
    ("table", "short", "budget", "cls", "loc"),
    [row for row in GOLDEN if (row[0] == "table1") == (row[1] in ("I", "SP", "SB"))],
)
def test_printed_numbers(table, short, budget, cls, loc):
    found = said(short, budget)
    assert found.value == pytest.approx(cls / 100, abs=1e-9)
    assert (found.low, found.high, found.extrapolated) == (None, None, False)
    if loc is not None:
        assert said(short, budget, "mAP_loc").value == pytest.approx(loc / 100, abs=1e-9)
    else:
        assert said(short, budget, "mAP_loc").refused == "the paper has no value"


def test_points_over_tags_at_equal_budget():
    """Table 1: +3.8, +3.4, +3.3, +2.7, +1.5; a shrinking gap."""
    gaps = [100 * (said("SP", b).value - said("I", b).value) for b in (0.25, 0.5, 1, 2, 4)]
    assert gaps == pytest.approx([3.82, 3.41, 3.33, 2.72, 1.49])


@pytest.mark.parametrize("budget", [0.25, 0.3, 0.7, 1, 1.5, 3, 4])
def test_one_point_before_one_box_before_tags_at_every_budget(budget):
    assert said("SP", budget).value > said("SB", budget).value > said("I", budget).value


def test_between_printed_budgets_it_is_linear_in_the_logarithm():
    """Half way between 1 % and 4 % on a log scale is 2 %; between 1 % and 2 %, sqrt(2) %: (55.53 + 60.57) / 2."""
    labels = PAIRS / 100 * 2**0.5
    assert paper_curves()[Annotation.TAGS].estimate(labels, 80).value == pytest.approx(0.5805, abs=1e-5)


def test_as_many_labels_per_class_are_as_good():
    curve = paper_curves()[Annotation.TAGS]
    assert curve.estimate(66_226, 80).value == curve.estimate(66_226 / 4, 20).value


def test_outside_the_printed_budgets_nothing_is_said():
    """4 % of 82,783 tags a class are 3,311, 0.25 % are 207."""
    curve = paper_curves()[Annotation.TAGS]
    found = curve.estimate(80_000, 20)
    assert (found.value, found.extrapolated) == (None, False)
    assert found.refused == "4,000 labels per class are more than the 207 to 3,311 of the paper"
    assert curve.estimate(2_000, 20).refused == "100 labels per class are fewer than the 207 to 3,311 of the paper"


def test_resolution_is_what_the_paper_differs_from_itself():
    """One box at 0.25 %: 42.27 in table 1, 40.63 in table 2."""
    assert paper_resolution() == pytest.approx(0.0164)
    assert "MS-COCO" in paper_source()
