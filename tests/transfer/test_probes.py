"""Nearest neighbours and the SVM: by hand, a slow reference, unknown cells."""

import math

import numpy as np
import pytest
from sklearn.model_selection import StratifiedKFold, cross_val_score
from sklearn.svm import LinearSVC

from fewtags.errors import ConfigError
from fewtags.labels import Label
from fewtags.metrics.neighbours import unit
from fewtags.transfer.probes import knn_scores, svm_scores

P, N, U = Label.POSITIVE, Label.NEGATIVE, Label.UNKNOWN


def int8(rows):
    return np.array(rows, np.int8)


def angles(*degrees):
    """Unit vectors in the plane, times a length that must not matter."""
    radians = np.deg2rad(degrees)
    return np.stack([np.cos(radians), np.sin(radians)], 1).astype(np.float32) * 3


TRAIN = angles(0, 60, 90, 180)


def test_knn_by_hand():
    """The test photo at 0 degrees has cosines 1, 1/2, 0, -1; three neighbours at temperature 1/2.

    Votes relative to the first: 1, e^-1, e^-2. Class 0: photo 0; class 1: photos 1 and 2.
    """
    labels = int8([[P, N], [N, P], [N, P], [P, N]])
    found = knn_scores(TRAIN, labels, angles(0), "single", k=3, temperature=0.5)
    np.testing.assert_allclose(found, [[1.0, math.exp(-1) + math.exp(-2)]], rtol=1e-6)


def test_knn_of_several_classes_by_hand():
    """The same votes, 1, e^-1, e^-2 of photos 0, 1, 2.

    Class 0 is known in photos 0 (yes) and 1 (no): 1 / (1 + e^-1). Class 1 is unknown in all three: its share among the
    training photos in which it is known, the fourth (yes) only: 1. Class 2 is known in none: 0.
    """
    labels = int8([[P, U, U], [N, U, U], [U, U, U], [N, P, U]])
    found = knn_scores(TRAIN, labels, angles(0), "multi", k=3, temperature=0.5)
    np.testing.assert_allclose(found, [[1 / (1 + math.exp(-1)), 1.0, 0.0]], rtol=1e-6)


@pytest.mark.parametrize("kind", ["single", "multi"])
@pytest.mark.parametrize("k", [1, 5, 40])
def test_knn_slow_reference(kind, k):
    """Several blocks of test photos, one photo after the other."""
    rng = np.random.default_rng(k)
    train, test = (rng.normal(size=(n, 6)).astype(np.float32) for n in (40, 300))
    labels = rng.choice(int8([P, N, U]), (40, 4))
    expected = np.zeros((300, 4))
    for m, photo in enumerate(test):
        cosines = [float(a @ photo / np.linalg.norm(a) / np.linalg.norm(photo)) for a in train]
        nearest = sorted(range(40), key=lambda i: -cosines[i])[:k]
        for c in range(4):
            votes = {s: sum(math.exp((cosines[i] - max(cosines)) / 0.1) for i in nearest if labels[i, c] == s)
                     for s in (P, N)}  # fmt: skip
            known = labels[:, c][labels[:, c] != U]
            if kind == "single":
                expected[m, c] = votes[P]
            else:
                expected[m, c] = votes[P] / (votes[P] + votes[N]) if votes[P] + votes[N] else (known == P).mean()
    found = knn_scores(train, labels, test, kind, k=k, temperature=0.1)
    np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-9)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"k": 5}, "--neighbours 5: there are 4 training photos; give 1 to 4"),
        ({"k": 0}, "--neighbours 0: there are 4 training photos; give 1 to 4"),
        ({"k": 1, "temperature": 0.0}, "the temperature must be above 0, got 0"),
    ],
)
def test_knn_refuses(options, words):
    with pytest.raises(ConfigError) as error:
        knn_scores(TRAIN, int8([[P]] * 4), TRAIN, "single", **options)
    assert str(error.value) == f"{words}."


def clouds(count=60, classes=2, noise=0.3, seed=0):
    """Features around one centre per class, and their labels."""
    rng = np.random.default_rng(seed)
    centres = rng.normal(size=(classes, 8))
    of = np.arange(count) % classes
    labels = np.where(of[:, None] == np.arange(classes), P, N).astype(np.int8)
    return (centres[of] + noise * rng.normal(size=(count, 8))).astype(np.float32), labels


def test_svm_is_the_protocols():
    """Class weights, cost, loss and unit features, against scikit-learn as the protocol calls it."""
    x, labels = clouds(noise=1.5)
    test, _ = clouds(noise=1.5, seed=0)
    oracle = LinearSVC(C=0.5, class_weight={1: 2, -1: 1}, loss="squared_hinge", dual=False)
    found = svm_scores(x, labels, test)
    for c in range(2):
        expected = oracle.fit(unit(x), labels[:, c]).decision_function(unit(test))
        np.testing.assert_allclose(found.scores[:, c], expected, rtol=1e-3, atol=1e-4)
    assert found.costs.tolist() == [0.5, 0.5]
    assert found.unconverged == ()


def test_svm_does_not_see_unknown_cells():
    """What is unknown in class 0 may be anything; class 1 does change."""
    x, labels = clouds()
    labels[:10, 0] = U
    other = x.copy()
    other[:10] = 7.0
    one, two = (svm_scores(features, labels, x).scores for features in (x, other))
    np.testing.assert_array_equal(one[:, 0], two[:, 0])
    assert not np.allclose(one[:, 1], two[:, 1])


def test_a_class_without_positives_or_negatives_has_no_classifier():
    x, labels = clouds()
    labels = np.concatenate([labels, np.full((60, 1), N), np.full((60, 1), P), np.full((60, 1), U)], 1).astype(np.int8)
    found = svm_scores(x, labels, x)
    assert np.isnan(found.costs).tolist() == [False, False, True, True, True]
    assert not found.scores[:, 2:].any()


def test_several_costs_are_chosen_per_class_over_three_folds():
    """Against scikit-learn's own cross-validation; class 2 has two positives, too few for three folds: the first."""
    x, labels = clouds(noise=1.0)
    x += 20.0
    few = np.full((60, 1), N, np.int8)
    few[:2] = P
    labels = np.concatenate([labels, few], 1)
    costs = (1e-9, 0.5, 10.0)
    found = svm_scores(x, labels, x, costs=costs)
    assert found.costs[2] == 1e-9
    for c in range(2):
        means = [
            cross_val_score(
                LinearSVC(C=cost, class_weight={1: 2, -1: 1}, dual=False), unit(x), labels[:, c],
                cv=StratifiedKFold(3), scoring="average_precision",
            ).mean()
            for cost in costs
        ]  # fmt: skip
        assert found.costs[c] == costs[int(np.argmax(means))] != 1e-9
        alone = svm_scores(x, labels, x, costs=(float(found.costs[c]),))
        np.testing.assert_array_equal(found.scores[:, c], alone.scores[:, c])


@pytest.mark.parametrize(("costs", "message"), [((), "none"), ((0.5, 0.0), "0.5, 0")])
def test_svm_refuses(costs, message):
    with pytest.raises(ConfigError) as error:
        svm_scores(*clouds(), clouds()[0], costs=costs)
    assert str(error.value) == f"the cost of an SVM must be above 0, got {message}."
