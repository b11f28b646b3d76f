"""FixMatch: what the weak view teaches the strong one, and when."""

import re

import numpy as np
import pytest
import torch
from torch import nn

from fewtags.batched_views import stack_views
from fewtags.errors import ConfigError
from fewtags.geometry import View
from fewtags.labels import Batch, Label, LabelMatrix, Places, SecondView
from fewtags.nets.spatial import Output
from fewtags.objectives.base import Objective, Problem, Progress
from fewtags.objectives.fixmatch import FixMatch
from fewtags.objectives.patchml import PatchML

P, U, N = Label.POSITIVE, Label.UNKNOWN, Label.NEGATIVE
PLAIN = (0.0, 0.0, 0.0)

# Image 0 has a label, image 1 has none; two classes, one cell.
LABELS = [[P, U], [U, U]]
TRUTH = [[P, N], [P, P]]
WEAK, STRONG = [[1.0, -3.0], [3.0, -3.0]], [[0.5, 0.5], [-1.0, 2.0]]


class Maps(nn.Module):
    """Takes [b, C, h, w] for maps and features alike, and remembers how often it was asked."""

    def __init__(self):
        super().__init__()
        self.asked = []

    def forward(self, images):
        self.asked.append(len(images))
        return Output(images.mean((2, 3)), images, images)


def cells(logits):
    return torch.tensor(logits, dtype=torch.float32)[:, :, None, None].requires_grad_()


def batch(weak=WEAK, strong=STRONG, labels=LABELS, places=None):
    views = stack_views([View.identity()] * len(weak))
    second = None if strong is None else SecondView(cells(strong), views)
    return Batch(
        images=cells(weak),
        labels=torch.tensor(labels, dtype=torch.int8),
        index=torch.arange(len(weak)),
        views=views,
        places=places,
        second_view=second,
    )


def problem(labels=LABELS, truth=TRUTH):
    matrices = [LabelMatrix.from_dense(np.array(dense, np.int8)) for dense in (labels, truth)]
    return Problem(labels=matrices[0], grid=(1, 1), epochs=20, truth=matrices[1], features_dim=np.shape(labels)[1])


def made(**options):
    method = FixMatch(**{"pseudo_from": 1, "image_gammas": PLAIN, "patch_gammas": PLAIN} | options)
    return method, method.setup(Maps(), problem())


def at(epoch):
    return Progress(epoch, 0, 1)


def bce(logit, positive):
    return float(np.logaddexp(0, -logit if positive else logit))


def test_by_hand():
    """Image 1: f(3) = .953 is positive and f(-3) = .047 negative; its strong logits are -1 and 2.

    L_pseudo = (-log f(-1) - log(1 - f(2))) / 4 cells. L_image = -log f(1) / 4. No box, so no patch of a positive.
    """
    method, parts = made(pseudo_weight=0.5)
    net, data = Maps(), batch()
    out = method.step(net, data, at(1))
    assert net.asked == [4], "both views go through the net together"
    expected = (bce(-1, True) + bce(2, False)) / 4
    assert out.logs["pseudo"].item() == pytest.approx(expected)
    assert out.logs["image"].item() == pytest.approx(bce(1, True) / 4)
    assert out.loss.item() == pytest.approx(bce(1, True) / 4 + 0.5 * expected)
    out.loss.backward()
    assert data.images.grad[1].abs().sum() == 0, "the teacher is not taught"
    assert data.second_view.images.grad[0].abs().sum() == 0, "the labelled image has no pseudo-label"
    assert (data.second_view.images.grad[1].flatten().sign().tolist()) == [-1, 1]
    assert parts["pseudo_labels"].values.abs().sum() == 0
    method.commit(net, data, out)
    assert parts["pseudo_labels"].values.tolist() == [[U, U], [P, N]]
    assert method.on_epoch_start(1) == {}
    assert method.on_epoch_start(2) == {
        "pseudo_positives_per_image": 0.5,
        "pseudo_negatives_per_image": 0.5,
        "pseudo_positive_precision": 1.0,
        "pseudo_negative_precision": 0.0,
    }


def test_unknown_classes_of_labelled_images_may_be_filled_too():
    """Class 1 of image 0, f(-3); its known class 0 is left alone however sure the net is."""
    method, _ = made(pseudo_fill="unknown")
    assert method.step(Maps(), batch(), at(1)).payload.pseudo.tolist() == [[U, N], [P, N]]
    sure = batch(weak=[[-9.0, 0.0], [0.0, 0.0]])
    assert method.step(Maps(), sure, at(1)).payload.pseudo.tolist() == [[U, U], [U, U]]


def test_limits_by_class():
    """f(3) = .953, f(-3) = .047."""
    for positive, negative, expected in [
        ((0.96, 0.5), 0.05, [U, N]),
        (0.9, (0.05, 0.04), [P, U]),
        ((0.9, 0.04), (0.01, 0.03), [P, P]),
    ]:
        method, _ = made(positive_from=positive, negative_to=negative)
        assert method.step(Maps(), batch(), at(1)).payload.pseudo[1].tolist() == expected


def test_loss_per_selected_cell():
    """Image 1 has two selected cells, image 0 none: the mean of two, and a mean over two images."""
    method, _ = made(per_selected=True)
    out = method.step(Maps(), batch(), at(1))
    assert out.logs["pseudo"].item() == pytest.approx((bce(-1, True) + bce(2, False)) / 2 / 2)


def test_before_its_time_the_strong_view_is_not_looked_at():
    method, parts = made()
    net, data = Maps(), batch()
    out = method.step(net, data, at(0))
    assert net.asked == [2]
    assert out.payload.pseudo is None
    assert "pseudo" not in out.logs
    method.commit(net, data, out)
    assert parts["pseudo_labels"].values.abs().sum() == 0


def test_uncertain_cells_are_left_out():
    """Three views of image 1, class 0: f = .98, .96, .99, mean .9767, deviation .0153; class 1: .04, .01, .04, mean
    .03, deviation .0173. kappa+ .016 takes the first; kappa- .017 does not take the second, .018 does.
    """

    def seen(negative_kappa):
        method, parts = made(uncertainty_views=3, uncertain_positive=0.016, uncertain_negative=negative_kappa)
        for epoch, prob in enumerate([(0.98, 0.04), (0.96, 0.01), (0.99, 0.04)]):
            data = batch(weak=[[0.0, 0.0], torch.tensor(prob).logit().tolist()])
            out = method.step(Maps(), data, at(epoch))
            method.commit(Maps(), data, out)
            if epoch == 1:
                assert out.payload.pseudo.tolist() == [[U, U], [U, U]], "two views of three"
        assert parts["recent_scores"].visits.tolist() == [3, 3]
        return out.payload.pseudo[1].tolist()

    assert seen(0.017) == [P, U]
    assert seen(0.018) == [P, N]


def test_the_mean_of_the_views_is_compared_with_the_limits():
    """f = .9 and .99: the second alone would be sure, their mean .945 is not."""
    method, _ = made(uncertainty_views=2, uncertain_positive=1.0)
    for epoch, prob in enumerate((0.9, 0.99)):
        data = batch(weak=[[0.0, 0.0], [torch.tensor(prob).logit().item(), 0.0]])
        out = method.step(Maps(), data, at(epoch))
        method.commit(Maps(), data, out)
    assert out.payload.pseudo[1].tolist() == [U, U]


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"patch_weights": (9.0, 1.0, 0.5), "image_weight": 0.5, "patch_weight": 2.0, "image_clip": 0.05},
        {"image_unknown": "selective", "patch_unknown": "selective", "image_top_k": 0, "patch_top_k": 1},
        {"image_unknown": "negative", "prior_threshold": 0.2, "cropped": "keep"},
    ],
)
def test_points_and_boxes_count_as_they_do_in_patchml(options):
    """The rival differs in its pseudo-labels and in nothing else."""
    draw = np.random.default_rng(0)
    weak, strong = (torch.from_numpy(draw.normal(size=(3, 4, 3, 3))).float() for _ in range(2))
    labels = torch.from_numpy(draw.integers(-1, 2, (3, 4))).to(torch.int8)
    labels[2] = U
    places = Places(
        torch.tensor([0, 1, 1]), torch.tensor([0, 2, 3]),
        torch.tensor([[0.1, 0.1, 0.1, 0.1], [0.0, 0.2, 0.7, 0.9], [0.9, 0.9, 0.9, 0.9]]),
    )  # fmt: skip
    labels[places.row, places.classes] = P
    views = stack_views([View.identity(), View.crop(0.0, 0.0, 0.6, 0.6), View.flip()])
    data = Batch(
        images=weak,
        labels=labels,
        index=torch.arange(3),
        views=views,
        places=places,
        second_view=SecondView(strong, views),
    )
    known = problem(labels.tolist(), labels.tolist())
    ours, theirs = FixMatch(pseudo_from=0, **options), PatchML(**options)
    logs = []
    for method in (ours, theirs):
        method.setup(Maps(), known)
        logs.append(method.step(Maps(), data, at(0)).logs)
    assert logs[1]["patch"] > 0
    for name in ("image", "patch"):
        assert logs[0][name].item() == logs[1][name].item()


def test_who_needs_a_strong_view():
    assert FixMatch.needs_second_view
    assert not PatchML.needs_second_view
    assert not Objective.needs_second_view
    method, _ = made()
    with pytest.raises(ConfigError) as error:
        method.step(Maps(), batch(strong=None), at(1))
    assert str(error.value) == (
        "FixMatch needs batches with a second view; load them from a TrainSet that has a `second_view`."
    )


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"pseudo_fill": "unlabeled"}, "pseudo_fill must be one of unlabelled, unknown, got 'unlabeled' (did you mean "
         "'unlabelled'?)."),
        ({"pseudo_weight": 0.0}, "pseudo_weight must be at least 1e-06, got 0.0."),
        ({"uncertainty_views": 1}, "uncertainty_views compares at least 2 views, or is 0 (off), got 1."),
        ({"positive_from": 0.5, "negative_to": 0.5}, "negative_to must be below positive_from, got 0.5 and 0.5."),
        ({"positive_from": (0.9, 0.5), "negative_to": 0.6}, "negative_to of class 1 must be below positive_from, got "
         "0.6 and 0.5."),
        ({"positive_from": (0.9, 0.5), "negative_to": (0.1,)}, "negative_to has 1 values and positive_from 2; give one "
         "per class."),
    ],
)  # fmt: skip
def test_settings_that_make_no_sense(options, message):
    """Set afterwards: the type checker of the tests would not let some of them through the constructor."""
    method = FixMatch()
    vars(method).update(options)
    with pytest.raises(ConfigError, match=f"^{re.escape(message)}$"):
        method.__post_init__()


def test_settings_that_do_not_fit_the_labels():
    with pytest.raises(ConfigError) as error:
        FixMatch(positive_from=(0.9, 0.9, 0.9)).setup(Maps(), problem())
    assert str(error.value) == "positive_from has 3 values for 2 classes; give one number, or one per class."
    full = problem([[P, U], [U, N]])
    with pytest.raises(ConfigError) as error:
        FixMatch().setup(Maps(), full)
    assert str(error.value) == (
        "each of the 2 training images has a label, so that pseudo_fill = 'unlabelled' fills none; add images without "
        "labels, or set pseudo_fill = 'unknown'."
    )
    FixMatch(pseudo_fill="unknown").setup(Maps(), full)


@pytest.mark.parametrize("late", [{"pseudo_from": 20}, {"uncertainty_views": 21}])
def test_pseudo_labels_that_would_never_begin_are_refused(late):
    with pytest.raises(ConfigError, match=r"would begin with epoch 21, but training has 20; lower objective\.pseudo_"):
        made(**late).setup(torch.nn.Identity(), problem())
