import itertools

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from sklearn.metrics import f1_score

from fewtags.errors import DataError
from fewtags.labels import Label
from fewtags.metrics.thresholds import (
    ThresholdRule,
    best_f1_threshold,
    count_thresholds,
    fit_thresholds,
    precision_thresholds,
)

P, N, U = Label.POSITIVE, Label.NEGATIVE, Label.UNKNOWN


def int8(rows):
    return np.array(rows, np.int8)


# --- derived by hand


def test_best_f1_by_hand():
    """Ranking + - + -: F1 = 2 tp / (taken + 2) is 2/3, 2/4, 4/5, 4/6, so three are taken: midway of .5 and .2."""
    assert best_f1_threshold(np.array([0.9, 0.7, 0.5, 0.2]), int8([P, N, P, N])) == 0.35


def test_equally_good_thresholds_give_the_highest():
    """Ranking + - - +: F1 is 2/3, 2/4, 2/5, 4/6; the first and the last are equal."""
    assert best_f1_threshold(np.array([0.8, 0.6, 0.4, 0.2]), int8([P, N, N, P])) == pytest.approx(0.7)


def test_a_tie_is_not_split():
    """+ and - tie at .5: taking both gives F1 2/3, and there is no way to take one of them."""
    assert best_f1_threshold(np.array([0.5, 0.5, 0.1]), int8([P, N, N])) == pytest.approx(0.3)


def test_thresholds_at_the_ends():
    """All present: midway to 0. None known present: midway to 1, and above 1 where a probability of 1 must not pass."""
    assert best_f1_threshold(np.array([0.5, 0.4]), int8([P, P])) == pytest.approx(0.2)
    assert best_f1_threshold(np.array([0.5, 0.4]), int8([N, N])) == pytest.approx(0.75)
    assert best_f1_threshold(np.array([1.0, 0.4]), int8([N, N])) == np.nextafter(1.0, 2.0)
    assert best_f1_threshold(np.zeros(0), int8([])) == 0.5


def test_neighbouring_numbers_are_told_apart():
    low, high = 0.5, float(np.nextafter(0.5, 1))
    threshold = best_f1_threshold(np.array([high, low]), int8([P, N]))
    assert (high >= threshold, low >= threshold) == (True, False)


def test_count_thresholds_by_hand():
    """Class 0: two of .9 .6 .2: midway of .6 and .2. Class 1: 2 is unreachable (.5 .5 .5 tie): 3 is nearer than 0.

    Class 2: 1.5 lies between the reachable 1 and 2: the smaller. Class 3: none: midway of .3 and 1. Class 4: all.
    """
    prob = np.array([[0.9, 0.5, 0.9, 0.3, 0.9], [0.6, 0.5, 0.7, 0.2, 0.8], [0.2, 0.5, 0.1, 0.1, 0.4]])
    got = count_thresholds(prob, np.array([2, 2, 1.5, 0, 99.0]))
    np.testing.assert_allclose(got, [0.4, 0.25, 0.8, 0.65, 0.2], rtol=1e-12)


def rules_of(fitted):
    return [str(rule) for rule in fitted.rules]


def test_each_class_gets_the_best_rule_that_its_labels_allow():
    """Class 0 has 2 positives and a negative; class 1 one positive only; class 2 no negative; class 3 nothing.

    Known cells of classes 0 and 1, ranked: .9 + (c0), .85 + (c1), .8 + (c0), .7 - (c1), .5 - (c0). F1 with 3 positives:
    2/4, 4/5, 6/6, 6/7, 6/8. Three are taken: midway of .8 and .7.
    """
    prob = np.array([[0.9, 0.85, 0.6, 0.3], [0.8, 0.7, 0.9, 0.2], [0.5, 0.1, 0.2, 0.1]])
    labels = int8([[P, P, P, U], [P, N, U, U], [N, U, U, U]])
    fitted = fit_thresholds(prob, labels, minimum_positives=2)
    np.testing.assert_allclose(fitted.values, [0.65, 0.75, 0.75, 0.75], rtol=1e-12)
    assert rules_of(fitted) == ["class_f1", "pooled_f1", "pooled_f1", "pooled_f1"]

    fitted = fit_thresholds(prob, labels, minimum_positives=2, expected_count=np.array([3.0, 3.0, 1.0, 2.0]))
    np.testing.assert_allclose(fitted.values, [0.65, 0.75, 0.75, 0.15], rtol=1e-12)
    assert rules_of(fitted) == ["class_f1", "pooled_f1", "expected_count", "expected_count"]


def test_positives_without_a_negative_do_not_make_a_threshold_of_their_own():
    """Class 1 has two positives and no negative: its own best F1 would take everything as present, and so would the
    common one if its cells had a say. Of class 0: .9 +, .8 +, .7 -, two are taken.
    """
    prob, labels = np.array([[0.9, 0.3], [0.8, 0.2], [0.7, 0.0]]), int8([[P, P], [P, P], [N, U]])
    fitted = fit_thresholds(prob, labels, minimum_positives=2)
    np.testing.assert_allclose(fitted.values, [0.75, 0.75], rtol=1e-12)
    assert rules_of(fitted) == ["class_f1", "pooled_f1"]


def test_without_negatives_the_expected_count_decides_and_without_that_one_half():
    prob, labels = np.array([[0.9, 0.2], [0.4, 0.1]]), int8([[P, U], [U, P]])
    fitted = fit_thresholds(prob, labels)
    assert fitted.values.tolist() == [0.5, 0.5]
    assert fitted.rules == (ThresholdRule.HALF,) * 2
    fitted = fit_thresholds(prob, labels, expected_count=np.array([1.0, 1.0]))
    np.testing.assert_allclose(fitted.values, [0.65, 0.15])
    assert fitted.rules == (ThresholdRule.EXPECTED_COUNT,) * 2


# --- a slow reference: every threshold that makes a difference

RANKED = st.integers(1, 12).flatmap(
    lambda n: st.tuples(
        hnp.arrays(np.int64, n, elements=st.integers(0, 6)).map(lambda a: a / 6),
        hnp.arrays(np.int8, n, elements=st.integers(-1, 1)),
    )
)


def decisions_of(prob):
    """All ways to take what is above a threshold, fewest first."""
    return [prob >= t for t in [np.inf, *sorted(set(prob.tolist()), reverse=True)]]


@given(RANKED)
def test_best_f1_equals_a_search_over_all_thresholds(problem):
    prob, labels = problem
    known = labels != U
    prob, labels = prob[known], labels[known]
    got = prob >= best_f1_threshold(*problem)
    if not (labels == P).any():
        assert not got.any()
        return
    f1 = [f1_score(labels == P, d, zero_division=0.0) for d in decisions_of(prob)]
    assert f1_score(labels == P, got, zero_division=0.0) == pytest.approx(max(f1))
    assert got.sum() == decisions_of(prob)[int(np.argmax(np.round(f1, 12)))].sum()


@given(RANKED, st.integers(0, 26).map(lambda k: k / 2))
def test_counts_are_the_nearest_that_can_be_reached(problem, expected):
    prob = problem[0][:, None]
    got = int((prob >= count_thresholds(prob, np.array([expected]))).sum())
    reachable = [int(d.sum()) for d in decisions_of(prob[:, 0])]
    assert got == min(reachable, key=lambda k: (abs(k - expected), k))


@given(RANKED)
def test_thresholds_lie_between_probabilities_and_keep_a_distance(problem):
    """A relative disturbance of 1e-6 (another device, another batch size) decides the same."""
    prob, labels = problem
    threshold = best_f1_threshold(prob, labels)
    known = labels != U
    if 0 < threshold <= 1:
        for factor in (1 - 1e-6, 1 + 1e-6):
            np.testing.assert_array_equal((prob * factor >= threshold)[known], (prob >= threshold)[known])


def test_float32_probabilities_decide_alike_at_every_neighbour():
    rng = np.random.default_rng(0)
    base = rng.random(200, dtype=np.float32)
    prob = np.sort(np.concatenate([base, np.nextafter(base, np.float32(1))]))
    for cut in range(0, len(prob), 13):
        labels = np.where(np.arange(len(prob)) >= cut, P, N).astype(np.int8)
        if len({*prob[max(cut - 1, 0) : cut + 1].tolist()}) == 2:
            np.testing.assert_array_equal(prob >= np.array(best_f1_threshold(prob, labels)), labels == P)


def test_classes_do_not_influence_each_other_under_their_own_rule():
    rng = np.random.default_rng(1)
    prob, labels = rng.random((60, 5)), int8(rng.integers(-1, 2, (60, 5)))
    whole = fit_thresholds(prob, labels)
    assert set(whole.rules) == {ThresholdRule.CLASS_F1}
    for order in itertools.islice(itertools.permutations(range(5)), 0, 120, 37):
        np.testing.assert_array_equal(
            fit_thresholds(prob[:, order], labels[:, order]).values, whole.values[list(order)]
        )


# --- errors


def test_logits_are_refused():
    with pytest.raises(DataError) as error:
        fit_thresholds(np.array([[-2.0, 3.5]]), int8([[P, N]]))
    assert str(error.value) == "thresholds need probabilities in 0..1, got -2..3.5; apply a sigmoid to logits first."


def test_a_probability_that_is_not_a_number_is_named():
    with pytest.raises(DataError, match=r"^the score of image 0, class 1 is not a number;"):
        fit_thresholds(np.array([[0.5, np.nan]]), int8([[P, N]]))


# --- a wanted precision


def test_precision_by_hand():
    """Ranking + + - + -, minimum 2. Precisions of 2, 3, 4, 5 cells: 1, 2/3, 3/4, 3/5; the lowest with .7 takes four."""
    prob, labels = np.array([[0.9], [0.8], [0.6], [0.5], [0.2]]), int8([[P], [P], [N], [P], [N]])
    found = precision_thresholds(prob, labels, 0.7, minimum_positives=2)
    assert (found.values[0], found.judged[0], found.best[0]) == (0.35, True, 1.0)
    assert precision_thresholds(prob, labels, 0.8, minimum_positives=2).values[0] == pytest.approx(0.7)
    three = precision_thresholds(prob, labels, 0.8, minimum_positives=3)
    assert np.isnan(three.values[0])
    assert three.best[0] == 0.75


def test_precision_is_not_judged_without_five_positives_or_a_negative():
    prob = np.linspace(0.1, 0.9, 8)[:, None] * np.ones((1, 3))
    labels = np.full((8, 3), N, np.int8)
    labels[:4, 0], labels[:, 1], labels[:5, 2] = P, P, P
    found = precision_thresholds(prob, labels, 0.5)
    assert found.judged.tolist() == [False, False, True]
    assert np.isnan(found.best[:2]).all()


@given(
    hnp.arrays(
        np.float64, st.tuples(st.integers(1, 12), st.just(2)), elements=st.integers(0, 10).map(lambda v: v / 10)
    ),
    st.data(),
    st.sampled_from([0.3, 0.5, 0.8, 1.0]),
)
def test_precision_is_reached_with_the_most_tags(prob, data, wanted):
    """Against every distinct probability as a threshold, counted directly."""
    labels = data.draw(hnp.arrays(np.int8, prob.shape, elements=st.sampled_from([-1, 0, 1])))
    found = precision_thresholds(prob, labels, wanted, minimum_positives=1)
    for c in range(2):
        counts = []
        for threshold in np.unique(prob[:, c]):
            taken = (prob[:, c] >= threshold) & (labels[:, c] != U)
            hits = int((taken & (labels[:, c] == P)).sum())
            if hits and hits / taken.sum() >= wanted:
                counts.append(int(taken.sum()))
        if not found.judged[c] or not counts:
            assert np.isnan(found.values[c])
        else:
            assert ((prob[:, c] >= found.values[c]) & (labels[:, c] != U)).sum() == max(counts)
