"""Expected negatives and their consistency: golden values, and what depends on the epoch."""

import dataclasses
import json
from pathlib import Path

import numpy as np
import pytest
import torch
from expected_cases import NET, N, P, U, at, batch_of, int8, problem_of, visit

from fewtags.geometry import View
from fewtags.labels import Label
from fewtags.losses import partial
from fewtags.objectives.expected_negative import ExpectedNegative

SCL = json.loads((Path(__file__).parents[1] / "golden" / "scl.json").read_text())
STATE = {1: Label.POSITIVE, 0: Label.NEGATIVE, -1: Label.UNKNOWN}  # the encoding of the golden files
READINGS = ["all_then_or", "fill", "unannotated_only"]


def golden_labels(which):
    return int8([[STATE[v] for v in row] for row in SCL[f"labels_{which}"]])


# --- golden


@pytest.mark.parametrize("reading", READINGS)
@pytest.mark.parametrize("which", ["single_positive", "partial"])
@pytest.mark.parametrize(("treatment", "loss"), [("ignore", "EN"), ("positive", "EP")])
def test_golden_epochs_0_and_1(which, reading, treatment, loss):
    """Epoch 0 is AN; its forward moves s; epoch 1 ranks by s and gives EN or EP, at the same logits."""
    labels = golden_labels(which)
    method = ExpectedNegative(
        positives_per_image=SCL["K"], reading=reading, expected_positives=treatment, scl_weight=0.0
    )
    method.setup(NET, problem_of(labels))
    batch, golden = batch_of(SCL["logits"], labels), SCL["losses_per_image"]
    method.on_epoch_start(0)
    assert visit(method, batch, 0).loss.item() == pytest.approx(np.mean(golden[f"{which}_AN"]), rel=1e-5)
    method.on_epoch_start(1)
    out = method.step(NET, batch, at(1))
    assert out.loss.item() == pytest.approx(np.mean(golden[f"{which}_{reading}_{loss}"]), rel=1e-5)
    assert out.logs[loss.lower()].item() == out.loss.item()


@pytest.mark.parametrize("reading", READINGS)
@pytest.mark.parametrize("cl_weight", [0.0, 0.5])
def test_nobody_is_expected_where_a_word_says_so(reading, cl_weight):
    """AN (+ CL) of table 2 in every epoch, without K: the annotated positives are the only ones."""
    labels = golden_labels("single_positive")
    method = ExpectedNegative(expected_positives="none", reading=reading, cl_weight=cl_weight, scl_weight=0.0)
    method.setup(NET, problem_of(labels))
    batch, negative = batch_of(SCL["logits"], labels), np.mean(SCL["losses_per_image"]["single_positive_AN"])
    for epoch in range(3):
        found = method.on_epoch_start(epoch)
        out = visit(method, batch, epoch)
        cl = cl_weight * out.logs["cl"].item() if cl_weight else 0.0
        assert out.loss.item() == pytest.approx(negative + cl, rel=1e-5)
        assert found.get("expected_positives_per_image", 1.0) == pytest.approx((labels == P).sum() / len(labels))


@pytest.mark.parametrize("weights", [{"cl_weight": 0.5, "scl_weight": 0.0}, {"cl_weight": 0.0, "scl_weight": 0.5}])
def test_epr_with_consistency(weights):
    """EPR (+ CL or SCL) of table 2 by hand: K = 2 of 3 classes; unknown labels have no loss but the penalty."""
    labels, logits = int8([[P, U, U], [U, N, P]]), torch.tensor([[1.0, -1.0, 0.5], [0.0, 2.0, -0.5]])
    method = ExpectedNegative(expected_positives="counted", positives_per_image=2.0, **weights)
    method.setup(NET, problem_of(labels))
    f = logits.double().sigmoid()
    known = -(f[0, 0].log() + (1 - f[1, 1]).log() + f[1, 2].log()) / 6
    epr = known + ((f.sum(1).mean() - 2) / 3) ** 2
    for epoch in range(2):
        method.on_epoch_start(epoch)
        out = visit(method, batch_of(logits, labels), epoch)
        assert out.logs["epr"].item() == pytest.approx(epr.item(), rel=1e-5)
        term = out.logs["cl" if weights["cl_weight"] else "scl"].item()
        assert term > 0
        assert out.loss.item() == pytest.approx(epr.item() + 0.5 * term, rel=1e-5)
    assert not method.solvable
    assert not method.solvable_warmup


def test_a_teacher_ranks_the_photos_from_the_first_epoch_on():
    """K = 1.5 over two photos and classes: 1.5 of class 0, so p = 2 by rounding: the photo with a score is expected."""
    labels, teacher = int8([[P, U], [U, P]]), np.array([[0.5, 0.2], [0.9, np.nan]], np.float16)
    logits = torch.zeros(2, 2)
    for start, ignored in (("teacher", 2), ("labels", 0)):
        method = ExpectedNegative(positives_per_image=1.5, scl_weight=0.0, scores_start=start, teacher_weight=0.0)
        method.setup(NET, problem_of(labels, warmup_epochs=1, teacher=teacher))
        method.on_epoch_start(0)
        out = method.step(NET, batch_of(logits, labels), at(0))
        assert out.loss.item() == pytest.approx((4 - ignored) / 4 * np.log(2), rel=1e-5)


def test_distillation_beside_expected_negatives():
    """teacher_weight times the cross-entropy with the scores is added; a known label has none."""
    labels, teacher = int8([[P, U], [U, N]]), np.array([[0.5, 0.25], [np.nan, 0.9]], np.float16)
    logits = torch.tensor([[0.0, 1.0], [2.0, 0.0]])
    losses = []
    for weight in (0.0, 2.0):
        method = ExpectedNegative(positives_per_image=1.0, scl_weight=0.0, teacher_weight=weight)
        method.setup(NET, problem_of(labels, teacher=teacher))
        losses.append(method.step(NET, batch_of(logits, labels), at(0)).loss.item())
    f = 1 / (1 + np.exp(-1.0))
    assert losses[1] - losses[0] == pytest.approx(2 * (-0.25 * np.log(f) - 0.75 * np.log(1 - f)) / 4, rel=1e-4)


def test_golden_consistency_with_the_start_values():
    labels = golden_labels("single_positive")
    method = ExpectedNegative(positives_per_image=SCL["K"], cl_weight=1.0, scl_weight=0.0)
    method.setup(NET, problem_of(labels))
    out = method.step(NET, batch_of(SCL["logits"], labels), at(0))
    golden = np.mean(SCL["losses_per_image"]["CL_mean_l1_against_scores_init"])
    assert out.logs["cl"].item() == pytest.approx(golden, rel=1e-5)
    assert out.loss.item() == pytest.approx((out.logs["en"] + out.logs["cl"]).item(), rel=1e-6)


@pytest.mark.parametrize("case", range(6))
def test_golden_spatial(case):
    """Scored by what uint8 holds: half a level from the golden float heatmap."""
    spatial, case = SCL["spatial"], SCL["spatial"]["cases"][case]
    labels = int8([[U, U], [P, P]])
    method = ExpectedNegative(positives_per_image=2.0, scl_weight=1.0, momentum=SCL["mu"])
    heatmaps = method.setup(NET, problem_of(labels, grid=(4, 4)))["heatmaps"]
    heatmaps.values[0] = torch.tensor(case["heatmap_uint8_before"])
    heatmaps.visits[0] = 1
    top, left, height, width = (float(v) for v in case["crop_top_left_height_width_fraction"])
    view = View.crop(left, top, left + width, top + height)
    view = view.then(View.flip()) if case["hflip_after_crop"] else view
    out = visit(method, batch_of([spatial["score_logits"]], labels, [0], view), 0)
    assert out.logs["scl"].item() == pytest.approx(case["scl_mean_l1"], abs=0.5 / 255)
    assert heatmaps.values[0].tolist() == case["heatmap_uint8_after_round_nearest_even"]
    # Sigmoid after pooling: f is not the mean of the map's probabilities.
    assert out.payload.prob[0].tolist() == pytest.approx(spatial["pooled_probability_sigmoid_of_mean_logit"], rel=1e-5)


# --- time


def test_losses_read_the_averages_from_before_the_step():
    """s = 1 for the annotated class, f = 1/2 at logit 0: CL is 1/2 before and |.5 - .9| = .4 after the commit."""
    labels = int8([[P, U]])
    method = ExpectedNegative(positives_per_image=1.0, cl_weight=1.0, scl_weight=0.0)
    method.setup(NET, problem_of(labels))
    batch = batch_of([[0.0, -99.0]], labels)
    assert visit(method, batch, 0).logs["cl"].item() == pytest.approx(0.25)
    assert visit(method, batch, 0).logs["cl"].item() == pytest.approx(0.20)


WARMUP = {"assume_negative": [False, False, False, True, True], "expected_negative": [False, True, True, True, True]}


@pytest.mark.parametrize("warmup_loss", WARMUP)
def test_expected_negatives_start_after_the_warmup_or_in_its_second_epoch(warmup_loss):
    """One image of two is annotated, and K = 1 expects the class in both: EN is below AN as soon as it acts."""
    labels = int8([[P], [U]])
    method = ExpectedNegative(positives_per_image=1.0, warmup_loss=warmup_loss, scl_weight=0.0)
    method.setup(NET, problem_of(labels, warmup_epochs=3))
    batch, acting = batch_of([[2.0], [2.0]], labels), []
    for epoch in range(5):
        method.on_epoch_start(epoch)
        loss = visit(method, batch, epoch).loss
        acting.append(loss.item() < partial.assume_negative(batch.images[:, :, 0, 0], labels).item())
    assert acting == WARMUP[warmup_loss]


def logged(method, labels, warmup_epochs, epochs=4):
    """Names of what is logged in each epoch."""
    method.setup(NET, problem_of(labels, warmup_epochs=warmup_epochs, grid=(2, 2)))
    batch, names = batch_of(torch.zeros(2, 3, 2, 2), labels), []
    for epoch in range(epochs):
        method.on_epoch_start(epoch)
        names.append(set(visit(method, batch, epoch).logs) - {"en", "sum_of_probabilities"})
    return names


def test_consistency_starts_after_the_warmup():
    labels, both = int8([[P, U, U], [U, P, U]]), {"cl", "scl"}
    method = ExpectedNegative(positives_per_image=1.0, cl_weight=0.5, scl_weight=0.5)
    assert logged(method, labels, warmup_epochs=2) == [set(), set(), both, both]
    assert logged(method, labels, warmup_epochs=0) == [both, both, both, both]


def test_a_choice_of_classes_waits_for_scores():
    labels, both = int8([[P, U, U], [U, P, U]]), {"cl", "scl"}
    method = ExpectedNegative(positives_per_image=1.0, cl_weight=0.5, scl_weight=0.5, heatmap_top_k=2)
    assert logged(method, labels, warmup_epochs=2) == [set(), set(), both, both]
    assert logged(method, labels, warmup_epochs=0) == [{"cl"}, both, both, both]
    everything = dataclasses.replace(method, heatmap_top_k=3)
    assert logged(everything, labels, warmup_epochs=0) == [both, both, both, both]


def test_heatmaps_stay_at_their_start_during_the_warmup():
    labels = int8([[P, U]])
    method = ExpectedNegative(positives_per_image=1.0, scl_weight=1.0)
    parts = method.setup(NET, problem_of(labels, warmup_epochs=1))
    batch = batch_of([[0.0, 0.0]], labels)
    visit(method, batch, 0)
    assert parts["heatmaps"].visits.tolist() == [0]
    assert parts["scores"].visits.tolist() == [1]
    out = visit(method, batch, 1)
    assert out.logs["scl"].item() == pytest.approx(0.5)  # |.5 - 1| and |.5 - 0|
    assert parts["heatmaps"].visits.tolist() == [1]


def test_heatmap_classes_are_chosen_from_the_scores_after_the_warmup():
    labels = int8([[P, U, U, U]])
    method = ExpectedNegative(positives_per_image=1.0, scl_weight=1.0, heatmap_top_k=2)
    parts = method.setup(NET, problem_of(labels, warmup_epochs=1))
    for epoch, logits in enumerate([[-3.0, 0.0, 1.0, 3.0], [-3.0, 3.0, 0.0, -3.0], [-3.0, 9.0, 9.0, -9.0]]):
        method.on_epoch_start(epoch)
        visit(method, batch_of([logits], labels), epoch)
    assert parts["heatmaps"].class_ids.tolist() == [[0, 3]]  # annotated, and the best of epoch 0


def test_weights_rise_linearly_over_the_ramp():
    """Two steps an epoch, warm-up 1, ramp 2: the share is (epoch + step / 2 - 1) / 2, between 0 and 1."""
    labels = int8([[P, U]])
    batch = batch_of([[0.3, -0.2]], labels)
    method = ExpectedNegative(positives_per_image=1.0, cl_weight=0.7, scl_weight=0.3, ramp_epochs=2)
    method.setup(NET, problem_of(labels, warmup_epochs=1))
    shares = []
    for epoch, step in [(1, 0), (1, 1), (2, 0), (2, 1), (3, 0), (5, 1)]:
        out = method.step(NET, batch, at(epoch, step))
        whole = 0.7 * out.logs["cl"] + 0.3 * out.logs["scl"]
        shares.append(((out.loss - out.logs["en"]) / whole).item())
    assert shares == pytest.approx([0, 0.25, 0.5, 0.75, 1, 1], abs=1e-6)
