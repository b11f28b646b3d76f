"""Logistic regression beside every run: its strength is chosen on validation, and a run that loses says so."""

import numpy as np
import pytest
import torch

from fewtags.engine.baseline import Baseline, Measured, compare, logistic_regression
from fewtags.labels import Label, LabelMatrix
from fewtags.metrics.ranking import ranking_report

N, D, C = 40, 5, 2


@pytest.fixture(scope="module")
def split():
    rng = np.random.default_rng(0)
    x = rng.normal(size=(2 * N, D))
    truth = x @ rng.normal(size=(D, C)) + rng.normal(size=(2 * N, C)) > 0
    dense = np.where(truth, Label.POSITIVE, Label.NEGATIVE).astype(np.int8)
    hidden = np.where(truth & (rng.random(truth.shape) < 0.5), Label.POSITIVE, Label.UNKNOWN).astype(np.int8)
    return torch.from_numpy(x).float(), dense, hidden


def test_the_strength_is_chosen_on_validation_and_never_on_test(split):
    """The test labels are turned round: whatever is good on val is bad on test, and val decides."""
    x, dense, hidden = split
    val = Measured(x[N:], dense[N:])
    measured = {"val": val, "test": Measured(x[N:], -dense[N:])}
    found = logistic_regression(x[:N], LabelMatrix.from_dense(hidden[:N]), measured, (0.01, 0.1, 1.0, 10.0))
    each = [
        logistic_regression(x[:N], LabelMatrix.from_dense(hidden[:N]), {"val": val}, variances)
        for variances in ((0.01,), (0.01, 0.1), (0.01, 0.1, 1.0), (0.01, 0.1, 1.0, 10.0))
    ]
    assert found.measure == "mAP"
    assert found.values["val"] == max(e.values["val"] for e in each)
    assert found.values["val"] > 0.7 > 0.5 > found.values["test"]


def test_unknown_is_absent_and_known_negatives_are_no_different(split):
    x, dense, hidden = split
    val = {"val": Measured(x[N:], dense[N:])}
    closed = np.where(hidden[:N] == Label.POSITIVE, Label.POSITIVE, Label.NEGATIVE).astype(np.int8)
    one, two = (logistic_regression(x[:N], LabelMatrix.from_dense(y), val) for y in (hidden[:N], closed))
    assert one == two


def test_without_known_negatives_the_rest_counts_as_absent(split):
    x, _, hidden = split
    found = logistic_regression(x[:N], LabelMatrix.from_dense(hidden[:N]), {"val": Measured(x[N:], hidden[N:])}, (1.0,))
    assert found.measure == "pessimistic_mAP"
    assert 0 < found.values["val"] < 1


def test_nothing_to_measure_with(split):
    x, _, hidden = split
    nothing = np.full((N, C), Label.UNKNOWN, np.int8)
    assert logistic_regression(x[:N], LabelMatrix.from_dense(hidden[:N]), {"val": Measured(x[N:], nothing)}) is None


def test_its_map_is_that_of_the_ranking_report(split):
    """One strength, so that nothing is chosen: the value is the mean AP of a head solved by hand."""
    from fewtags.engine.solve import HeadSolver, channel_statistics
    from fewtags.losses.partial import assume_negative
    from fewtags.nets.spatial import SpatialHead

    x, dense, hidden = split
    labels = LabelMatrix.from_dense(hidden[:N])
    found = logistic_regression(x[:N], labels, {"val": Measured(x[N:], dense[N:])}, (1.0,))
    head, y = SpatialHead(D, C), torch.from_numpy(hidden[:N])
    cells = x[:N, :, None, None]

    def loss():
        value = C * assume_negative(head.predict_logits(cells), y)
        value.backward()
        return value.detach()

    HeadSolver(head, channel_statistics(cells[None], N)).minimise(loss, 1.0, N)
    scores = head.predict_logits(x[N:, :, None, None]).detach().double().numpy()
    assert found.values["val"] == pytest.approx(ranking_report(scores, dense[N:]).mean_average_precision, abs=2e-3)


def evaluation(value):
    return {"mAP": value, "positive_only": None}


def test_a_run_that_loses_is_told():
    baseline = Baseline("mAP", {"val": 0.6, "test": 0.55}, 1.0).to_dict()
    better = compare(baseline, {"val": evaluation(0.59), "test": evaluation(0.56)})
    assert better == (
        "baseline, logistic regression on the same features, unknown taken as absent: "
        "mAP val 60.0 (this run 59.0), test 55.0 (this run 56.0)",
    )
    worse = compare(baseline, {"val": evaluation(0.61), "test": evaluation(0.54)})
    assert worse[1].startswith("The baseline is better on test by 1.0. To get it as a model")
    assert len(compare(baseline, {"val": evaluation(0.6), "test": evaluation(0.55)})) == 1


def test_a_run_without_negatives_is_compared_by_the_same_measure():
    baseline = Baseline("pessimistic_mAP", {"val": 0.3}, 1.0).to_dict()
    only = {"mAP": None, "positive_only": {"mAP, unknown counted as absent (pessimistic)": 0.25}}
    lines = compare(baseline, {"val": only})
    assert lines[0].endswith("mAP with unknown counted as absent val 30.0 (this run 25.0)")
    assert "better on val by 5.0" in lines[1]
