"""Options of expected negatives: intervals of K, second scores, answers, distances and stores."""

import dataclasses

import numpy as np
import pytest
import torch
from expected_cases import NET, N, P, Pass, U, at, batch_of, int8, problem_of, visit

from fewtags.errors import ConfigError
from fewtags.labels import LabelMatrix
from fewtags.losses.consistency import consistency
from fewtags.objectives.expected_negative import ExpectedNegative

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
