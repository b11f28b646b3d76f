"""What the methods of other authors do over time. Their losses are tested in losses/test_golden.py."""

import math

import numpy as np
import pytest
import torch
from torch import nn

from fewtags.errors import ConfigError
from fewtags.labels import Batch, Label, LabelMatrix
from fewtags.losses.counted import online_estimation
from fewtags.losses.partial import assume_negative, bce
from fewtags.losses.uncertain import generalised_robust
from fewtags.nets.spatial import Output
from fewtags.objectives.base import Problem, Progress, RunFacts
from fewtags.objectives.class_aware import ClassAwareSelective
from fewtags.objectives.counted import EPR, ROLE
from fewtags.objectives.curriculum import CurriculumLabelling
from fewtags.objectives.focusing import SPLC, Focal, Hill
from fewtags.objectives.large_loss import LargeLoss
from fewtags.objectives.temporal import TemporalEnsembling
from fewtags.objectives.uncertain import EntropyMaximisation, GeneralisedRobust

P, N, U = Label.POSITIVE, Label.NEGATIVE, Label.UNKNOWN
SAMPLES, CLASSES = 12, 4
SINGLE = np.eye(CLASSES, dtype=np.int8)[np.arange(SAMPLES) % CLASSES]


class Pass(nn.Module):
    """A net whose images are its logits."""

    def forward(self, images):
        return Output(images[:, :, 0, 0], images, images)


def problem(labels=SINGLE, **options):
    return Problem(labels=LabelMatrix.from_dense(labels), grid=(1, 1), **{"epochs": 10} | options)


def batch(logits, labels=SINGLE, index=None):
    index = torch.arange(len(logits)) if index is None else index
    return Batch(
        images=logits[:, :, None, None],
        labels=torch.from_numpy(labels)[index],
        index=index,
        views=torch.zeros(len(logits), 2, 3),
    )


def at(epoch, lr=0.0):
    return Progress(epoch=epoch, step=0, steps_per_epoch=1, lr=lr)


def random_logits(seed=0):
    return torch.from_numpy(np.random.default_rng(seed).normal(size=(SAMPLES, CLASSES))).float()


def both_steps(method, logits, epoch=0, labels=SINGLE, lr=0.0):
    """One step and its commit."""
    out = method.step(Pass(), batch(logits, labels), at(epoch, lr))
    method.commit(Pass(), batch(logits, labels), out)
    return out


def test_role_trains_as_one_adam_over_net_and_estimated_labels():
    """The public code has one Adam with a tenfold rate for the estimated labels, all of which move in every step."""
    method = ROLE(positives_per_image=1.5)
    estimated = method.setup(Pass(), problem(seed=7))["estimated_labels"]
    start = estimated.state_dict()["values"].clone()
    theirs = nn.Parameter(start.clone())
    mine, other = (nn.Parameter(random_logits()) for _ in range(2))
    adam = torch.optim.Adam([mine], lr=0.01)
    together = torch.optim.Adam([{"params": [other]}, {"params": [theirs], "lr": 0.1}], lr=0.01)
    for step in range(6):
        index = torch.arange(SAMPLES).roll(step)[:5]
        seen = batch(mine[index], index=index)
        out = method.step(Pass(), seen, at(0, lr=0.01))
        adam.zero_grad()
        out.loss.backward()
        adam.step()
        method.commit(Pass(), seen, out)
        together.zero_grad()
        online_estimation(other[index], theirs[index], torch.from_numpy(SINGLE)[index], 1.5).backward()
        together.step()
    torch.testing.assert_close(mine, other, rtol=0, atol=1e-6)
    torch.testing.assert_close(estimated.state_dict()["values"], theirs.detach(), rtol=0, atol=1e-5)
    assert not torch.equal(estimated.state_dict()["values"], start)


def test_role_starts_near_what_is_known():
    labels = SINGLE.copy()
    labels[0, 1] = N
    method = ROLE(positives_per_image=1.5)
    start = method.setup(Pass(), problem(labels))["estimated_labels"].state_dict()["values"].sigmoid()
    torch.testing.assert_close(start[labels == P], torch.full((SAMPLES,), 0.995))
    assert start[0, 1].item() == pytest.approx(0.005)
    rest = start[labels == U]
    assert ((rest > 0.4) & (rest < 0.6)).all()
    assert rest.min() < 0.45 < 0.55 < rest.max()


def test_epr_compares_the_mean_of_the_batch_with_k():
    """Half of the images predict nothing and half everything: the mean count is 2 of 4."""
    logits = torch.full((SAMPLES, CLASSES), -50.0)
    logits[::2] = 50.0
    method = EPR(positives_per_image=1.0)
    method.setup(Pass(), problem())
    out = method.step(Pass(), batch(logits), at(0))
    assert out.logs["count_penalty"].item() == pytest.approx((2 - 1) ** 2 / CLASSES**2)
    known = bce(logits, torch.from_numpy(SINGLE)).item()
    assert out.loss.item() == pytest.approx(known + (2 - 1) ** 2 / CLASSES**2)


@pytest.mark.parametrize("method", [EPR, ROLE])
def test_k_is_derived(method):
    facts = RunFacts(samples=5, classes=3, positives_per_image=1.7, positives_source="a guess")
    derived = method().derived(facts)["positives_per_image"]
    assert (derived.value, derived.note) == (1.7, "a guess")
    assert method(positives_per_image=1.7).assumed_positives == 1.7


def changed(method, logits, epoch):
    return method.step(Pass(), batch(logits), at(epoch)).logs["changed_labels"].item() * SAMPLES


def test_large_losses_grow_with_the_epochs_after_the_warmup():
    """48 cells, 1 in 24 per epoch: 2 cells in epoch 1 after a warm-up of 3, 4 in epoch 2."""
    logits = random_logits()
    method = LargeLoss(share=1 / 24)
    method.setup(Pass(), problem(warmup_epochs=3))
    assert [round(changed(method, logits, epoch)) for epoch in (0, 2, 3, 4, 5)] == [0, 0, 0, 2, 4]
    first = method.step(Pass(), batch(logits), at(3)).loss
    assert first.item() == assume_negative(logits, torch.from_numpy(SINGLE)).item()


def test_what_is_corrected_for_good_stays_positive():
    logits = random_logits()
    method = LargeLoss(mode="correct_for_good", share=1 / 24)
    marks = method.setup(Pass(), problem())["corrected_labels"]
    both_steps(method, logits, epoch=0)
    assert not marks.state_dict()["values"].any()
    both_steps(method, logits, epoch=1)
    before = marks.state_dict()["values"].clone()
    assert before.sum() == 2
    both_steps(method, logits, epoch=1)
    after = marks.state_dict()["values"]
    assert after.sum() == 4, "two more, and none of the first two again"
    assert (after[before == 1] == 1).all()
    assert not after[torch.from_numpy(SINGLE) == P].any()


def test_splc_corrects_from_its_first_epoch_on():
    logits = torch.full((SAMPLES, CLASSES), 3.0)
    method = SPLC(from_epoch=2)
    counts = [method.step(Pass(), batch(logits), at(epoch)).logs["changed_labels"].item() for epoch in (0, 1, 2)]
    assert counts == [0, 0, CLASSES - 1]


def test_gr_moves_linearly_over_the_epochs():
    logits, labels = random_logits(), torch.from_numpy(SINGLE)
    method = GeneralisedRobust(slope=(0.0, 4.0), offset=(-2.0, -1.0), centre=(0.5, 0.9), width=(2.0, 1.0))
    method.setup(Pass(), problem(epochs=5))
    found = [method.step(Pass(), batch(logits), at(epoch)).loss.item() for epoch in (0, 2, 4)]
    wanted = [
        generalised_robust(logits, labels, slope=s, offset=o, centre=c, width=w).item()
        for s, o, c, w in ((0, -2, 0.5, 2), (2, -1.5, 0.7, 1.5), (4, -1, 0.9, 1))
    ]
    assert found == pytest.approx(wanted, rel=1e-6)


def test_temporal_ensembling_agrees_with_the_mean_of_earlier_predictions():
    """Two visits with the momentum 1/2: weights 1/3 and 2/3."""
    one, two, three = (random_logits(seed) for seed in range(3))
    method = TemporalEnsembling(momentum=0.5, weight=2.0, ramp=0.0)
    method.setup(Pass(), problem())
    first = both_steps(method, one, epoch=0)
    assert first.logs["consistency"].item() == 0
    both_steps(method, two, epoch=1)
    out = method.step(Pass(), batch(three), at(2))
    target = (one.sigmoid() + 2 * two.sigmoid()) / 3
    agreement = (three.sigmoid() - target).square().mean()
    assert out.logs["consistency"].item() == pytest.approx(agreement.item(), rel=1e-5)
    an = assume_negative(three, torch.from_numpy(SINGLE)).item()
    assert out.loss.item() == pytest.approx(an + 2 * agreement.item(), rel=1e-5)


def test_temporal_ensembling_rises_slowly():
    method = TemporalEnsembling(ramp=0.5)
    method.setup(Pass(), problem(epochs=20))
    assert [method._rise(epoch) for epoch in (0, 5, 10, 19)] == [0.0, pytest.approx(math.exp(-5 / 4)), 1.0, 1.0]


def test_curriculum_labels_what_is_clear_and_unknown():
    labels = SINGLE.copy()
    labels[0, 1] = N
    method = CurriculumLabelling(label_from=2, every=3, positive_above=0.9, negative_below=0.2, unknown="ignore")
    truth = LabelMatrix.from_dense(np.where(SINGLE == P, P, N).astype(np.int8))
    method.setup(Pass(), problem(labels, truth=truth))
    assert [epoch for epoch in range(10) if method.needs_predictions(epoch)] == [2, 5, 8]
    logits = torch.zeros(SAMPLES, CLASSES)
    logits[0] = 5.0  # the annotated positive, the known negative, and two that become positive
    logits[1, 3] = -5.0
    method.on_predictions(2, logits)
    report = method.on_epoch_start(2)
    assert report["new_positives_per_image"] == 2 / SAMPLES
    assert report["new_negatives_per_image"] == 1 / SAMPLES
    assert (report["new_positive_precision"], report["new_negative_precision"]) == (0, 1)
    expected = labels.copy()
    expected[0, 2:], expected[1, 3] = P, N
    out = method.step(Pass(), batch(random_logits(), labels), at(2))
    assert out.loss.item() == pytest.approx(bce(random_logits(), torch.from_numpy(expected)).item(), rel=1e-6)


def test_csl_measures_its_prior_once():
    labels = np.where(SINGLE == P, P, U).astype(np.int8)
    labels[:, 0] = np.where(labels[:, 0] == P, P, N)
    method = ClassAwareSelective(prior_threshold=0.5, prior_epochs=2, top_k=0, gammas=(0.0, 0.0, 0.0))
    prior = method.setup(Pass(), problem(labels))["class_prior"]
    assert [epoch for epoch in range(5) if method.needs_predictions(epoch)] == [2]
    logits = torch.zeros(SAMPLES, CLASSES)
    logits[:, 1] = 2.0
    ignored = method.step(Pass(), batch(logits, labels), at(1)).loss
    assert ignored.item() == pytest.approx(bce(logits, torch.from_numpy(labels)).item(), rel=1e-6)
    method.on_predictions(2, logits)
    assert prior.state_dict()["values"].tolist() == pytest.approx([0.5, torch.tensor(2.0).sigmoid().item(), 0.5, 0.5])
    as_negative = labels.copy()
    as_negative[:, 2:] = np.where(labels[:, 2:] == U, N, labels[:, 2:])  # class 1 is frequent and stays ignored
    selected = method.step(Pass(), batch(logits, labels), at(2)).loss
    assert selected.item() == pytest.approx(bce(logits, torch.from_numpy(as_negative)).item(), rel=1e-6)


@pytest.mark.parametrize("scores", ["running", "pass"])
def test_apl_labels_an_equal_number_of_the_lowest_scores_in_every_epoch(scores):
    """Nine unknown cells of each class, 2/3 of them in two epochs: three each."""
    method = EntropyMaximisation(soft_weight=0.5, soft_from=2, soft_share=2 / 3, soft_scores=scores)
    soft = method.setup(Pass(), problem(epochs=4))["soft_labels"]
    logits = random_logits()
    for epoch in range(4):
        if method.needs_predictions(epoch):
            assert scores == "pass"
            method.on_predictions(epoch, logits)
        report = method.on_epoch_start(epoch)
        given = (soft.state_dict()["values"] > 0).sum(0).tolist()
        assert given == [[0] * 4, [0] * 4, [3] * 4, [6] * 4][epoch]
        assert report == ({} if epoch < 2 else {"soft_labels_per_image": sum(given) / SAMPLES})
        both_steps(method, logits, epoch)
    values = soft.state_dict()["values"].float()
    for c in range(CLASSES):
        unknown = np.flatnonzero(SINGLE[:, c] == U)
        lowest = unknown[np.argsort(logits[unknown, c].numpy())[:6]]
        assert set(np.flatnonzero(values[:, c].numpy() > 0)) == set(lowest)
        torch.testing.assert_close(values[lowest, c], logits[lowest, c].sigmoid(), rtol=1e-3, atol=1e-6)


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: EntropyMaximisation(soft_weight=0.5, soft_from=10), "soft labels would begin with epoch 11"),
        (lambda: ClassAwareSelective(mode="ignore"), "needs known negatives"),
        (lambda: ClassAwareSelective(prior_threshold=0.5), "needs known negatives"),
        (lambda: CurriculumLabelling(unknown="ignore", label_from=1), "needs known negatives"),
    ],
)
def test_settings_that_do_not_fit_the_labels_are_refused(make, words):
    with pytest.raises(ConfigError, match=words):
        make().setup(Pass(), problem())


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: ClassAwareSelective(prior_epochs=2), "prior_epochs=2 has no effect"),
        (lambda: ClassAwareSelective(gammas=(0.0, -1.0, 2.0)), "gammas must be numbers of at least 0"),
        (lambda: CurriculumLabelling(positive_above=0.3, negative_below=0.5), "a cell would be both"),
        (lambda: Focal(gamma=-1.0), "gamma must be at least 0"),
        (lambda: Hill(peak=0.5), "peak must be at least 1"),
        (lambda: LargeLoss(share=1.5), "share must be in 0..1"),
        (lambda: GeneralisedRobust(width=(0.0, 1.0)), "width must contain numbers above 0"),
    ],
)
def test_wrong_settings_are_refused(make, words):
    with pytest.raises(ConfigError, match=words):
        make()
