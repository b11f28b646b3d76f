import math

import numpy as np
import pytest

from fewtags.errors import DataError
from fewtags.metrics.neighbours import highest, nearest, neighbour_precision, unit

# Four directions, 0, 10, 90 and 100 degrees; lengths do not matter.
ANGLES = np.deg2rad([0.0, 10.0, 90.0, 100.0])
FEATURES = (np.stack([np.cos(ANGLES), np.sin(ANGLES)], 1) * np.array([[1.0], [3.0], [0.5], [2.0]])).astype(np.float32)


def test_the_nearest_are_those_of_the_smallest_angle():
    near, cosine = nearest(FEATURES, np.array([0, 3]), 2)
    assert near.tolist() == [[1, 2], [2, 1]]
    np.testing.assert_allclose(cosine, np.cos(np.deg2rad([[10, 90], [10, 90]])), atol=1e-6)


@pytest.mark.parametrize("k", [1, 2, 5, 9, 10])
def test_highest_equals_a_stable_sort_with_ties_and_nan(k):
    """Scores are whole numbers 0..3, so most of them tie; one row has a nan."""
    scores = np.random.default_rng(k).integers(0, 4, (50, 10)).astype(np.float32)
    scores[0, 3] = np.nan
    expected = np.argsort(-scores, axis=1, kind="stable")[:, :k]
    columns, values = highest(scores, k)
    np.testing.assert_array_equal(columns, expected)
    np.testing.assert_array_equal(values, np.take_along_axis(scores, expected, 1))


def test_unit_length_and_rows_of_zeros():
    assert unit(np.array([[3.0, 4.0], [0.0, 0.0]], np.float32)).tolist() == [
        [pytest.approx(0.6), pytest.approx(0.8)],
        [0, 0],
    ]


def test_precision_by_hand():
    """Images 0 and 1 hold a, 2 and 3 hold b, all else is known absent.

    With k = 2 each image finds its partner (right) and one of the others (wrong): precision 1/2. Of the three others
    one is right: chance 1/3.
    """
    labels = np.array([[1, -1], [1, -1], [-1, 1], [-1, 1]], np.int8)
    report = neighbour_precision(FEATURES, labels, 2)
    assert (report.images, report.precision) == (4, 0.5)
    assert report.chance == pytest.approx(1 / 3)


def test_what_is_not_known_is_not_judged():
    """Image 2's b is unknown for image 0's class a: neighbour 2 is neither right nor wrong. Image 3 is without a."""
    labels = np.array([[1, 0], [1, 0], [0, 1], [-1, 0]], np.int8)
    report = neighbour_precision(FEATURES, labels, 2)
    assert (report.images, report.precision, report.chance) == (2, 1.0, 0.5)
    only_positives = np.array([[1, 0], [1, 0], [0, 1], [0, 0]], np.int8)
    assert neighbour_precision(FEATURES, only_positives, 2).images == 0
    nothing = neighbour_precision(FEATURES, np.zeros((4, 2), np.int8), 2)
    assert nothing.images == 0
    assert math.isnan(nothing.precision)


def test_a_slow_reference_on_random_partial_labels():
    rng = np.random.default_rng(0)
    features = rng.normal(size=(40, 6)).astype(np.float32)
    labels = rng.integers(-1, 2, (40, 5)).astype(np.int8)
    shares, chances = [], []
    for i in range(40):
        asked = np.flatnonzero(labels[i] == 1)
        verdicts = {}
        for j in range(40):
            if j != i and len(asked):
                if (labels[j, asked] == 1).any():
                    verdicts[j] = 1
                elif (labels[j, asked] == -1).all():
                    verdicts[j] = 0
        cosine = features @ features[i] / np.linalg.norm(features, axis=1)
        cosine[i] = -np.inf
        judged = [verdicts[j] for j in np.argsort(-cosine)[:7] if j in verdicts]
        if judged and 0 in verdicts.values():
            shares.append(np.mean(judged))
            chances.append(np.mean([*verdicts.values()]))
    report = neighbour_precision(features, labels, 7)
    assert report.images == len(shares)
    assert report.precision == pytest.approx(np.mean(shares))
    assert report.chance == pytest.approx(np.mean(chances))


def test_too_few_or_other_images_are_refused():
    with pytest.raises(DataError, match=r"^4 neighbours need 5 images, got 4; ask for fewer\.$"):
        nearest(FEATURES, np.array([0]), 4)
    with pytest.raises(DataError, match=r"^features are of 4 images and labels of 3; give the same images\.$"):
        neighbour_precision(FEATURES, np.zeros((3, 2), np.int8), 1)
