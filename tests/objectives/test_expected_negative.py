import dataclasses
import json
import re
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode

from fewtags.batched_views import stack_views
from fewtags.errors import ConfigError
from fewtags.geometry import View
from fewtags.labels import Batch, Label, LabelMatrix
from fewtags.losses import partial
from fewtags.losses.consistency import consistency
from fewtags.nets.spatial import Output
from fewtags.objectives.base import Problem, Progress
from fewtags.objectives.expected_negative import ExpectedNegative

SCL = json.loads((Path(__file__).parents[1] / "golden" / "scl.json").read_text())
STATE = {1: Label.POSITIVE, 0: Label.NEGATIVE, -1: Label.UNKNOWN}  # the encoding of the golden files
P, N, U = Label.POSITIVE, Label.NEGATIVE, Label.UNKNOWN
READINGS = ["all_then_or", "fill", "unannotated_only"]


class Pass(nn.Module):
    """A net whose images are its map logits."""

    def forward(self, images):
        return Output(images.mean((2, 3)), images, images)


NET = Pass()


def int8(rows):
    return torch.tensor(rows, dtype=torch.int8)


def golden_labels(which):
    return int8([[STATE[v] for v in row] for row in SCL[f"labels_{which}"]])


def problem_of(labels, **more):
    return Problem(labels=LabelMatrix.from_dense(labels.numpy()), **{"grid": (1, 1), "epochs": 9} | more)


def batch_of(maps, labels, index=None, view=None):
    """Maps [b, c, h, w], or logits [b, c] as 1 x 1 maps; the same view for all, the whole image by default."""
    maps = torch.as_tensor(maps, dtype=torch.float32)
    maps = maps[:, :, None, None] if maps.ndim == 2 else maps
    index = torch.arange(len(maps)) if index is None else torch.tensor(index)
    return Batch(
        images=maps, labels=labels[index], index=index, views=stack_views([view or View.identity()] * len(maps))
    )


def at(epoch, step=0, steps=2):
    return Progress(epoch, step, steps)


def visit(method, batch, epoch):
    """One step with its commit."""
    out = method.step(NET, batch, at(epoch))
    method.commit(NET, batch, out)
    return out


# --- an interval of K


def test_cells_between_the_cuts_of_both_limits_have_half_weight():
    """Four images and one class; s after a visit with mu = 0 ranks them 0 (annotated), 1, 2, 3; p = 2 and 3.

    Then, with logits 0: cell 0 positive, log 2; 1 ignored; 2 between the cuts, log 2 / 2; 3 negative, log 2. The mean
    over 4 cells is 2.5 log 2 / 4. Gradients: f - 1 = -1/2, 0, f / 2 = 1/4, f = 1/2, all over 4.
    """
    labels = int8([[P], [U], [U], [U]])
    method = ExpectedNegative(positives_per_image=0.6, positives_interval=(0.5, 0.75), momentum=0.0, scl_weight=0.0)
    parts = method.setup(NET, problem_of(labels))
    assert {*parts} == {"scores", "expected_positives", "possible_positives"}
    visit(method, batch_of([[3.0], [2.0], [1.0], [0.0]], labels), 0)
    method.on_epoch_start(1)
    batch = batch_of(torch.zeros(4, 1), labels)
    logits = batch.images.requires_grad_()
    loss = method.step(NET, dataclasses.replace(batch, images=logits), at(1)).loss
    assert loss.item() == pytest.approx(2.5 * np.log(2) / 4, rel=1e-6)
    loss.backward()
    assert logits.grad.flatten().tolist() == pytest.approx([-0.125, 0.0, 0.0625, 0.125], rel=1e-6)


def test_limits_scale_a_class_prior():
    """Shares .5 and .25 add up to .75; limits .375 and 1.5 make them .25 and .125, and 1 and .5, of eight images."""
    method = ExpectedNegative(class_prior=(0.5, 0.25), positives_interval=(0.375, 1.5), scl_weight=0.0)
    method.setup(NET, problem_of(int8([[U, U]] * 8)))
    assert method._counts.tolist() == [2, 1]
    assert method._most_counts.tolist() == [8, 4]


def test_an_interval_of_one_point_is_that_point():
    labels = int8([[P, U, U], [U, P, U], [U, U, P], [U, U, U]])
    maps = torch.linspace(-2, 2, 12).reshape(4, 3)
    losses = []
    for interval in (None, (1.5, 1.5)):
        method = ExpectedNegative(positives_per_image=1.5, positives_interval=interval, scl_weight=0.0)
        method.setup(NET, problem_of(labels))
        visit(method, batch_of(maps, labels), 0)
        method.on_epoch_start(1)
        losses.append(method.step(NET, batch_of(maps, labels), at(1)).loss.item())
    assert losses[0] == losses[1] > 0


# --- a second score, and heatmaps as labels


def test_prototypes_rank_from_the_third_epoch_on():
    """Five images and one class, p = 2: the annotated image 0 and one more. mu = 0, so s is the last probability.

    The images are their own features of two channels, of which the first is the class. Image 0 is (1.5, 4.5), so the
    prototype points to it. Image 1 is (2, -3) and has the largest s of the others; image 2, (1, 2), is nearest to the
    prototype. So the ranking by s expects image 1, and that by the distance alone image 2. With the second channel
    known to be absent, nothing else is expected.
    """
    labels = int8([[P, N], [U, N], [U, N], [U, N], [U, N]])
    maps = [[1.5, 4.5], [2.0, -3.0], [1.0, 2.0], [-1.0, 0.0], [-2.0, 1.0]]
    expected = {}
    for weight in (0.0, 1.0):
        method = ExpectedNegative(class_prior=(0.4, 0.0), momentum=0.0, scl_weight=0.0, prototype_weight=weight)
        method.setup(NET, problem_of(labels, features_dim=2))
        for epoch in range(3):
            method.on_epoch_start(epoch)
            if epoch:  # a logit of 0 has the gradient 0 if its cell is ignored
                batch = batch_of(maps, labels)
                images = batch.images.requires_grad_()
                method.step(NET, dataclasses.replace(batch, images=images), at(epoch)).loss.backward()
                expected[weight, epoch] = (images.grad[:, 0, 0, 0] == 0).nonzero().flatten().tolist()
            visit(method, batch_of(maps, labels), epoch)
    assert expected[0.0, 1] == expected[1.0, 1] == expected[0.0, 2] == [1]
    assert expected[1.0, 2] == [2]


def test_heatmaps_are_soft_labels_of_expected_positives():
    """One class, two images of 1 x 2 cells; mu = 0, and p = 2, so the unknown image 1 is an expected positive.

    After a visit with the logits (0, log 3) its heatmap has the levels .5 and .75, in four columns .5, .5625, .6875,
    .75. Seen in two cells again they are .53125 and .71875, so the soft labels are 1/8 and 7/8. With logits 0, each of
    its two cells has log 2; the other two have no loss: 2 log 2 / 4, times the weight 3. EN ignores image 1, and image
    0 has log 2: log 2 / 2.
    """
    labels = int8([[P], [U]])
    method = ExpectedNegative(class_prior=(1.0,), momentum=0.0, scl_weight=0.0, heatmap_patch_weight=3.0)
    assert method.solvable
    assert method.needs_maps
    parts = method.setup(NET, problem_of(labels, grid=(1, 2)))
    assert {*parts} == {"scores", "expected_positives", "heatmaps"}
    first = visit(method, batch_of([[[[0.0, 0.0]]], [[[0.0, float(np.log(3))]]]], labels), 0)
    assert first.logs["soft_patch"].item() == 0.0  # no heatmap yet
    method.on_epoch_start(1)
    batch = batch_of(torch.zeros(2, 1, 1, 2), labels)
    images = batch.images.requires_grad_()
    out = method.step(NET, dataclasses.replace(batch, images=images), at(1))
    assert out.logs["soft_patch"].item() == pytest.approx(np.log(2) / 2, rel=1e-3)
    assert out.loss.item() == pytest.approx(np.log(2) / 2 + 3 * np.log(2) / 2, rel=1e-3)
    out.loss.backward()
    # w (f - t) / 4 in each cell, to the rounding of heatmaps to 1/255.
    assert images.grad[1].flatten().tolist() == pytest.approx([3 * 0.375 / 4, -3 * 0.375 / 4], abs=0.01)


@pytest.mark.parametrize("name", ["prototype_weight", "heatmap_patch_weight"])
@pytest.mark.parametrize("word", ["none", "counted"])
def test_what_needs_expected_positives_is_refused_without_them(name, word):
    with pytest.raises(ConfigError) as error:
        ExpectedNegative(positives_per_image=1.0, expected_positives=word, **{name: 0.5})
    assert str(error.value) == (
        f"{name} needs expected positives, and expected_positives={word!r} has none. Leave one of them out."
    )


# --- answers


@pytest.mark.parametrize("weight", [1.0, 4.0])
def test_answers_have_a_weight_in_the_loss(weight):
    """Logits 0, so every cell that counts has log 2; of 4 cells, two are answered: (2 + 2 w) log 2 / 4 in epoch 0."""
    labels, answered = int8([[P, N], [U, P]]), int8([[U, N], [U, P]])
    method = ExpectedNegative(positives_per_image=1.0, scl_weight=0.0, answer_weight=weight)
    method.setup(NET, problem_of(labels, answered=LabelMatrix.from_dense(answered.numpy())))
    method.on_epoch_start(0)
    out = method.step(NET, batch_of(torch.zeros(2, 2), labels), at(0))
    assert out.loss.item() == pytest.approx((2 + 2 * weight) * np.log(2) / 4)


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


# --- options


@pytest.mark.parametrize("distance", ["l1", "l2", "l2_norm", "jsd"])
def test_distance_is_that_of_both_consistencies(distance):
    rng = np.random.default_rng(0)
    labels, maps = int8([[P, U, N], [U, P, U]]), torch.from_numpy(rng.normal(size=(2, 3, 2, 2)).astype(np.float32))
    method = ExpectedNegative(positives_per_image=1.0, cl_weight=1.0, scl_weight=1.0, distance=distance)
    method.setup(NET, problem_of(labels, grid=(2, 2)))
    out, start = method.step(NET, batch_of(maps, labels), at(0)), (labels == P).float()
    assert out.logs["cl"].item() == pytest.approx(consistency(maps.mean((2, 3)), start, distance=distance).item())
    spread = start[:, :, None, None].expand_as(maps).clone()
    assert out.logs["scl"].item() == pytest.approx(consistency(maps, spread, distance=distance).item())


def test_corrected_averages_of_nothing_have_no_weight():
    """First visit: nothing was averaged, CL and SCL are 0. Second, at other logits: the distance to the first."""
    labels = int8([[P, U]])
    method = ExpectedNegative(positives_per_image=1.0, cl_weight=1.0, scl_weight=1.0, corrected_averages=True)
    method.setup(NET, problem_of(labels))
    out = visit(method, batch_of([[0.0, 0.0]], labels), 0)
    assert (out.logs["cl"].item(), out.logs["scl"].item()) == (0, 0)
    assert out.loss.item() == out.logs["en"].item()
    out = visit(method, batch_of([[np.log(3), -np.log(3)]], labels), 0)  # f = 3/4, 1/4 against 1/2
    assert out.logs["cl"].item() == pytest.approx(0.25)
    assert out.logs["scl"].item() == pytest.approx(0.25, abs=0.5 / 255)


def test_classes_without_a_heatmap_have_target_0_and_stay_in_the_mean():
    """Four classes, k = 1: targets 1, 0, 0, 0 at f = 1/2 give a mean of 1/2 over all four."""
    labels = int8([[P, U, U, U]])
    method = ExpectedNegative(positives_per_image=1.0, scl_weight=1.0, heatmap_top_k=1)
    method.setup(NET, problem_of(labels))
    method.on_epoch_start(1)
    out = method.step(NET, batch_of(torch.zeros(1, 4, 1, 1), labels), at(1))
    assert out.logs["scl"].item() == pytest.approx(0.5)


def test_averages_get_no_gradient_and_the_payload_has_none():
    labels = int8([[P, U]])
    method = ExpectedNegative(positives_per_image=1.0, cl_weight=1.0, scl_weight=1.0, prototype_weight=0.5)
    method.setup(NET, problem_of(labels, features_dim=2))
    batch = batch_of([[0.2, 0.1]], labels)
    out = method.step(NET, dataclasses.replace(batch, images=batch.images.requires_grad_()), at(0))
    assert out.loss.requires_grad
    assert not any(value.requires_grad for value in (*out.logs.values(), *out.payload))


def test_everything_is_float32_when_the_net_computes_in_bfloat16():
    class Half(Pass):
        def forward(self, images):
            return super().forward(images.bfloat16())

    labels = int8([[P, U]])
    method = ExpectedNegative(positives_per_image=1.0, cl_weight=1.0, scl_weight=1.0, prototype_weight=0.5)
    method.setup(NET, problem_of(labels, features_dim=2))
    out = method.step(Half(), batch_of([[0.2, 0.1]], labels), at(0))
    assert {t.dtype for t in (out.loss, *out.logs.values(), *out.payload)} == {torch.float32}


def test_scores_may_be_float16():
    method = ExpectedNegative(positives_per_image=1.0, score_dtype="float16", scl_weight=0.0)
    assert method.setup(NET, problem_of(int8([[P, U]])))["scores"].values.dtype == torch.float16


def test_heatmaps_may_live_in_a_file_of_each_process(tmp_path):
    method = ExpectedNegative(positives_per_image=1.0, scl_weight=1.0, heatmap_storage="disk")
    labels = int8([[P, U]])
    method.setup(NET, problem_of(labels, state_dir=tmp_path))
    visit(method, batch_of([[0.0, 0.0]], labels), 0)
    assert (tmp_path / "heatmaps-0.bin").read_bytes() == bytes([230] * 4 + [26] * 4)  # .8 * 255 + 25.5, 25.5, to even


# --- diagnostics


def test_diagnostics_by_hand():
    """Five images, one class; s after one visit with mu = 0: .75 (annotated), .5, .5, .25, .25; sum 2.25.

    K = .6 and one annotation: p = .6 * 5 * 1 / 1 = 3, images 0, 1 and 2. Truth of the unannotated ones: 1 yes, 2 not
    known, 3 yes, 4 no. Expected and judged: 1, rightly; truly positive: 1 and 3.
    """
    labels, truth = int8([[P], [U], [U], [U], [U]]), np.array([[P], [P], [U], [P], [N]], np.int8)
    method = ExpectedNegative(positives_per_image=0.6, momentum=0.0, scl_weight=0.0)
    method.setup(NET, problem_of(labels, truth=LabelMatrix.from_dense(truth)))
    assert method.on_epoch_start(0) == {}
    third = np.log(3)
    visit(method, batch_of([[third], [0.0], [0.0], [-third], [-third]], labels), 0)
    assert method.on_epoch_start(1) == pytest.approx(
        {
            "predicted_positives_per_image": 2.25 / 5,
            "expected_positives_per_image": 3 / 5,
            "expected_positives_precision": 1.0,
            "expected_positives_recall": 0.5,
        }
    )


def test_diagnostics_count_right_guesses_and_leave_out_what_is_annotated():
    """Two of three expected cells are unannotated, one of them right; two unannotated cells are truly positive."""
    labels = int8([[P, U], [U, U], [U, P]])
    truth = LabelMatrix.from_dense(np.array([[P, P], [P, N], [N, P]], np.int8))
    method = ExpectedNegative(class_prior=(2 / 3, 2 / 3), momentum=0.0, scl_weight=0.0)
    method.setup(NET, problem_of(labels, truth=truth))
    visit(method, batch_of([[2.0, -3.0], [1.0, 2.0], [-3.0, 3.0]], labels), 0)
    found = method.on_epoch_start(1)
    assert found["expected_positives_per_image"] == pytest.approx(4 / 3)  # (0,0) (1,0) (2,1) (1,1)
    assert found["expected_positives_precision"] == pytest.approx(1 / 2)  # (1,0) yes, (1,1) no
    assert found["expected_positives_recall"] == pytest.approx(1 / 2)  # (1,0) of (1,0), (0,1)


def test_without_truth_or_ranking_there_is_less_to_report():
    labels = int8([[P, U], [U, P]])
    method = ExpectedNegative(positives_per_image=1.0, scl_weight=0.0)
    method.setup(NET, problem_of(labels, warmup_epochs=2))
    assert set(method.on_epoch_start(1)) == {"predicted_positives_per_image"}
    assert set(method.on_epoch_start(2)) == {"predicted_positives_per_image", "expected_positives_per_image"}


def test_ratios_without_a_denominator_are_left_out():
    """Everything is annotated: no unannotated cell is expected, none is positive."""
    labels = int8([[P, N], [N, P]])
    method = ExpectedNegative(positives_per_image=1.0, scl_weight=0.0)
    method.setup(NET, problem_of(labels, truth=LabelMatrix.from_dense(labels.numpy())))
    assert set(method.on_epoch_start(1)) == {"predicted_positives_per_image", "expected_positives_per_image"}


def test_blocks_of_classes_give_the_same_epoch_start(monkeypatch):
    """With 1.3 million images a block is a few classes wide; here one."""
    import fewtags.objectives.ranking as module

    rng = np.random.default_rng(3)
    labels = torch.from_numpy(rng.choice(np.array([P, U, U, N], np.int8), size=(9, 5)))
    truth = LabelMatrix.from_dense(rng.choice(np.array([P, N], np.int8), size=(9, 5)))
    batch, states = batch_of(rng.normal(size=(9, 5)), labels), []
    for cells in (module.BLOCK_CELLS, 9):
        monkeypatch.setattr(module, "BLOCK_CELLS", cells)
        method = ExpectedNegative(positives_per_image=2.0, scl_weight=0.0)
        parts = method.setup(NET, problem_of(labels, truth=truth))
        visit(method, batch, 0)
        found = method.on_epoch_start(1)
        states.append((found, *(t.tolist() for t in parts["expected_positives"].state_dict().values())))
    assert states[0][1:] == states[1][1:]
    assert states[0][0] == pytest.approx(states[1][0])


# --- speed that can be counted


class Waits(TorchDispatchMode):
    """Collects operations that make the host wait for a GPU: reading a value, or a shape that depends on values."""

    def __init__(self):
        super().__init__()
        self.found = []

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        name = func.overloadpacket.__name__
        indices = args[1] if name in ("index", "index_put", "index_put_") else []
        if name in ("_local_scalar_dense", "nonzero", "masked_select", "is_nonzero", "unique", "_unique2") or any(
            i is not None and i.dtype in (torch.bool, torch.uint8) for i in indices
        ):
            self.found.append(name)
        return func(*args, **kwargs or {})


def test_the_counter_sees_waits():
    with Waits() as waits:
        values = torch.ones(3)
        values[values > 0].sum().item()
    assert len(waits.found) >= 2


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"heatmap_top_k": 2, "corrected_averages": True, "heatmap_rounding": "stochastic"},
        {"heatmap_patch_weight": 1.0, "prototype_weight": 0.5},
    ],
)
def test_step_and_commit_never_wait_for_the_device(options):
    labels = int8([[P, U, N], [U, P, U]])
    method = ExpectedNegative(positives_per_image=1.0, cl_weight=1.0, scl_weight=1.0, ramp_epochs=3, **options)
    method.setup(NET, problem_of(labels, grid=(2, 2), features_dim=3))
    method.on_epoch_start(0)
    batch = batch_of(torch.zeros(2, 3, 2, 2), labels)
    visit(method, batch, 0)
    method.on_epoch_start(1)
    with Waits() as waits:
        visit(method, batch, 1)
    assert waits.found == []


# --- errors

ERRORS = [
    ({"positives_per_image": 0.0}, "positives_per_image must be above 0, got 0.0."),
    ({"positives_per_image": float("nan")}, "positives_per_image must be above 0, got nan."),
    ({"class_prior": (0.5, 1.5)}, "class_prior must contain numbers in 0..1, got (0.5, 1.5)."),
    ({"cl_weight": -1.0}, "cl_weight must be at least 0, got -1.0."),
    ({"ramp_epochs": -1}, "ramp_epochs must be at least 0, got -1."),
    ({"momentum": 1.1}, "momentum must be in 0..1, got 1.1."),
    (
        {"momentum": 0.999, "corrected_averages": True},
        "corrected_averages needs a momentum up to 0.996 (it counts only 255 visits), got 0.999.",
    ),
    ({"heatmap_top_k": 0}, "heatmap_top_k must be at least 1, got 0."),
    ({"prototype_weight": 1.5}, "prototype_weight must be in 0..1, got 1.5."),
    ({"heatmap_patch_weight": -1.0}, "heatmap_patch_weight must be at least 0, got -1.0."),
    ({"negative_gamma": -1.0}, "negative_gamma must be at least 0, got -1.0."),
    (
        {"negative_gamma": 1.0, "expected_positives": "positive"},
        "negative_gamma is for EN's loss, and expected_positives='positive' has another one. Leave one of them out.",
    ),
    (
        {"positives_interval": (0.5, 0.9)},
        "positives_interval is (low, high), with positives_per_image 1 in it; got (0.5, 0.9).",
    ),
    (
        {"positives_interval": (0.5, 2.0), "expected_positives": "positive"},
        "positives_interval is for expected_positives='ignore': its cells count half as negative. Leave it out for "
        "'positive'.",
    ),
    (
        {"heatmap_dtype": "float16", "heatmap_rounding": "stochastic"},
        "heatmap_rounding='stochastic' is for heatmap_dtype='uint8', got 'float16'.",
    ),
]


@pytest.mark.parametrize(("settings", "message"), ERRORS)
def test_settings_out_of_range_are_refused(settings, message):
    with pytest.raises(ConfigError, match=f"^{re.escape(message)}$"):
        ExpectedNegative(**{"positives_per_image": 1.0} | settings)


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("reading", "top", "reading must be one of all_then_or, fill, unannotated_only, got 'top'."),
        ("heatmap_storage", "disc", "heatmap_storage must be one of memory, disk, got 'disc' (did you mean 'disk'?)."),
    ],
)
def test_words_outside_the_vocabulary_are_refused(name, value, message):
    """Set afterwards, because the type checker of the tests refuses them at the door, which users do not have."""
    method = ExpectedNegative(positives_per_image=1.0, scl_weight=0.0)
    setattr(method, name, value)
    with pytest.raises(ConfigError, match=f"^{re.escape(message)}$"):
        method.__post_init__()


MISFITS = [
    (
        {},
        "expected_negative needs positives_per_image, the mean number of classes in an image (2.9 on COCO, "
        "1.5 on VOC). Count the classes in twenty photos, or give a validation set with complete labels.",
    ),
    ({"positives_per_image": 4.0}, "positives_per_image is 4.0, but there are 3 classes."),
    ({"class_prior": (0.1, 0.2)}, "class_prior has 2 shares, but there are 3 classes."),
    (
        {"positives_per_image": 2.0, "positives_interval": (1.0, 3.5), "scl_weight": 0.0},
        "positives_interval has the limit 3.5, but there are 3 classes.",
    ),
    (
        {"positives_per_image": 2.0, "scl_weight": 1.0, "heatmap_top_k": 1},
        "heatmap_top_k=1 is less than the 2 annotated positives of training image 1, which all need a heatmap; "
        "use at least 2.",
    ),
    (
        {"positives_per_image": 2.0, "scl_weight": 1.0, "heatmap_storage": "disk"},
        "heatmap_storage='disk' needs a run folder to keep the file in; give one (out=...).",
    ),
]


def test_consistency_that_outweighs_the_labels_is_a_warning():
    """gamma 4 x .05 = .2 of a loss of .3: two thirds. At gamma 1 it is .05 of .15: a third."""
    heavy = ExpectedNegative(positives_per_image=1.0, scl_weight=4.0)
    assert [*heavy.remarks({"loss": 0.3, "en": 0.1, "scl": 0.05})] == [
        "consistency is 67 % of the loss, so labels have little influence; lower objective.scl_weight"
    ]
    assert not [*ExpectedNegative(positives_per_image=1.0, scl_weight=1.0).remarks({"loss": 0.15, "scl": 0.05})]
    (line,) = ExpectedNegative(positives_per_image=1.0, cl_weight=2.0).remarks({"loss": 0.3, "cl": 0.1, "scl": 0.0})
    assert line.endswith("lower objective.cl_weight")
    assert not [*heavy.remarks({"loss": 0.1, "en": 0.1})]


@pytest.mark.parametrize(("settings", "message"), MISFITS)
def test_settings_that_do_not_fit_the_problem_are_refused(settings, message):
    with pytest.raises(ConfigError, match=f"^{re.escape(message)}$"):
        ExpectedNegative(**settings).setup(NET, problem_of(int8([[P, U, U], [P, P, U]])))
