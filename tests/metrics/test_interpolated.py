"""The three average precisions: golden values, a slow reference in fractions, ties, unknown cells."""

import json
from fractions import Fraction
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fewtags.errors import DataError
from fewtags.labels import Label
from fewtags.metrics.interpolated import average_precision_by

GOLDEN = json.loads((Path(__file__).parents[1] / "golden" / "mls.json").read_text())["metrics"]
P, N, U = Label.POSITIVE, Label.NEGATIVE, Label.UNKNOWN
DEFINITIONS = ("non_interpolated", "all_point", "11_point")


def column(word):
    """Labels and falling scores of one class: "+" positive, "-" negative, "?" unknown."""
    labels = np.array([[{"+": P, "-": N, "?": U}[c]] for c in word], np.int8)
    return -np.arange(len(word), dtype=np.float64)[:, None], labels


@pytest.mark.parametrize(
    ("definition", "expected"),
    [
        ("non_interpolated", (1 / 2 + 2 / 3 + 3 / 5) / 3),
        ("all_point", 2 / 3 * 2 / 3 + 1 / 3 * 3 / 5),
        ("11_point", (7 * 2 / 3 + 4 * 3 / 5) / 11),
    ],
)
def test_by_hand(definition, expected):
    """- + + - +: precision 1/2, 2/3, 3/5 at recall 1/3, 2/3, 1.

    The best precision from a recall on is 2/3 up to recall 2/3 (seven of the eleven points: 0 to 0.6), then 3/5.
    """
    assert average_precision_by(definition, *column("-++-+")).tolist() == [pytest.approx(expected, abs=1e-15)]


def test_recall_of_exactly_three_tenths_counts_at_its_point():
    """Three positives, 97 negatives, seven positives: precision 1 up to recall 3/10, then at best 10/107.

    In floats 3 * 0.1 is above 0.3, and the point would be lost.
    """
    expected = (4 * 1 + 7 * 10 / 107) / 11
    found = average_precision_by("11_point", *column("+++" + 97 * "-" + 7 * "+"))
    assert found.tolist() == [pytest.approx(expected, abs=1e-15)]


@pytest.mark.parametrize(
    ("definition", "key"),
    [("non_interpolated", "ap_noninterp"), ("all_point", "ap_allpoint"), ("11_point", "ap_11point")],
)
def test_golden(definition, key):
    labels = np.where(np.array(GOLDEN["y"]) == 1, P, N).astype(np.int8)
    found = average_precision_by(definition, np.array(GOLDEN["scores"]), labels)
    np.testing.assert_allclose(found, GOLDEN[key], rtol=0, atol=1e-15)


def test_golden_with_difficult_cells_left_out():
    """The golden file writes dropped cells as -1 and negatives as 0."""
    told = np.array(GOLDEN["y_difficult"])
    labels = np.select([told == 1, told == 0], [P, N], U).astype(np.int8)
    found = average_precision_by("non_interpolated", np.array(GOLDEN["scores"]), labels)
    np.testing.assert_allclose(found, GOLDEN["ap_noninterp_difficult_dropped"], rtol=0, atol=1e-15)


def slow(definition, scores, labels):
    """Fractions, one threshold after the other."""
    known = [(s, y) for s, y in zip(scores, labels, strict=True) if y != U]
    total = sum(y == P for _, y in known)
    curve = []
    for cut in sorted({s for s, _ in known}, reverse=True):
        inside = [y for s, y in known if s >= cut]
        hits = sum(y == P for y in inside)
        curve.append((Fraction(hits, total), Fraction(hits, len(inside))))

    def best(recall):
        return max(p for r, p in curve if r >= recall)

    if definition == "11_point":
        return sum(best(Fraction(k, 10)) for k in range(11)) / 11
    area, before = Fraction(0), Fraction(0)
    for recall, precision in curve:
        area += (recall - before) * (best(recall) if definition == "all_point" else precision)
        before = recall
    return area


CELLS = st.lists(st.tuples(st.integers(0, 4), st.sampled_from([P, N, U])), min_size=2, max_size=14).filter(
    lambda cells: {P, N} <= {y for _, y in cells}
)


@pytest.mark.parametrize("definition", DEFINITIONS)
@given(cells=CELLS)
def test_slow_reference_with_ties_and_unknown_cells(definition, cells):
    scores = np.array([[float(s)] for s, _ in cells])
    labels = np.array([[y] for _, y in cells], np.int8)
    expected = slow(definition, *zip(*cells, strict=True))
    assert average_precision_by(definition, scores, labels)[0] == pytest.approx(float(expected), abs=1e-12)
    assert average_precision_by(definition, scores[::-1], labels[::-1])[0] == pytest.approx(float(expected), abs=1e-12)


@pytest.mark.parametrize("definition", DEFINITIONS)
def test_a_class_that_cannot_be_counted_is_nan(definition):
    labels = np.array([[P, N, U, P], [P, N, U, N]], np.int8)
    found = average_precision_by(definition, np.array([[1.0, 1.0, 1.0, 1.0], [0.0, 0.0, 0.0, 0.0]]), labels)
    assert np.isnan(found).tolist() == [True, True, True, False]
    assert found[3] == 1.0


def test_a_score_that_is_no_number_is_refused():
    with pytest.raises(DataError, match="the score of image 0, class 0 is not a number"):
        average_precision_by("all_point", np.array([[np.nan], [0.0]]), np.array([[P], [N]], np.int8))
