"""What every objective must do. A new method or option adds one line to METHODS.

The environment variable FEWTAGS_OBJECTIVE=module:Class adds a method of your own, called "own-method".

The loop here is the smallest that keeps the contract; what belongs to the real one (loader workers, AMP, processes) is
tested with the engine.
"""

import copy
import dataclasses
import functools
import os
import pickle

import numpy as np
import pytest
import torch
from contract_loop import ContractLoop, assert_same
from torch import nn

from fewtags.batched_views import maps_to_crop, stack_views
from fewtags.engine.methods import method_class
from fewtags.geometry import View
from fewtags.labels import Batch, Label, LabelMatrix, Places, SecondView
from fewtags.nets.spatial import Output
from fewtags.objectives.assume_negative import BCE, AssumeNegative
from fewtags.objectives.base import Part, Problem, Progress
from fewtags.objectives.class_aware import ClassAwareSelective
from fewtags.objectives.counted import EPR, ROLE, PairwiseRanking
from fewtags.objectives.curriculum import CurriculumLabelling
from fewtags.objectives.expected_negative import ExpectedNegative
from fewtags.objectives.fixmatch import FixMatch
from fewtags.objectives.focusing import SPLC, AsymmetricLoss, Focal, Hill
from fewtags.objectives.large_loss import LargeLoss
from fewtags.objectives.patchml import PatchML
from fewtags.objectives.temporal import TemporalEnsembling
from fewtags.objectives.uncertain import EntropyMaximisation, GeneralisedRobust

SAMPLES, CLASSES, SIZE, BATCH, EPOCHS = 24, 5, 12, 8, 4
STEPS = SAMPLES // BATCH
STOPS = (2, 6, 10)  # inside the warm-up, at the end of an epoch, and in the middle of one that has a ranking


def expected_negative(**options):
    return lambda: ExpectedNegative(**{"positives_per_image": 1.8, "scl_weight": 0.0} | options)


# name -> (how to make it, warm-up epochs)
METHODS = {
    "bce": (BCE, 0),
    "an": (AssumeNegative, 1),
    "an-ls": (lambda: AssumeNegative(smoothing=0.1), 0),
    "wan": (lambda: AssumeNegative(negative_weight="weak"), 0),
    "en": (expected_negative(), 1),
    "en-prior": (expected_negative(positives_per_image=None, class_prior=(0.4,) * CLASSES, reading="fill"), 0),
    "en-interval": (expected_negative(positives_interval=(1.2, 2.6)), 1),
    "en-prototypes": (expected_negative(prototype_weight=0.5), 1),
    "en-prototypes-interval": (
        expected_negative(prototype_weight=1.0, positives_interval=(1.2, 2.6), scl_weight=0.5, heatmap_top_k=3),
        0,
    ),
    "en-soft-patches": (expected_negative(heatmap_patch_weight=1.0), 1),
    "en-scl-soft-patches": (
        expected_negative(scl_weight=0.5, heatmap_patch_weight=0.5, corrected_averages=True, heatmap_top_k=3),
        0,
    ),
    "ep": (expected_negative(expected_positives="positive", reading="unannotated_only"), 1),
    "en-cl": (expected_negative(cl_weight=0.5, distance="l2", score_dtype="float16"), 1),
    "en-scl": (expected_negative(scl_weight=1.0), 1),
    "en-scl-scratch": (expected_negative(scl_weight=1.0, cl_weight=0.1, distance="jsd"), 0),
    "en-scl-disk": (expected_negative(scl_weight=1.0, heatmap_dtype="float16", heatmap_storage="disk"), 1),
    "en-scl-topk": (expected_negative(scl_weight=1.0, heatmap_top_k=2), 0),
    "en-scl-stochastic": (expected_negative(scl_weight=1.0, heatmap_rounding="stochastic"), 1),
    "en-scl-remedy": (
        expected_negative(
            cl_weight=0.3, scl_weight=1.0, warmup_loss="expected_negative", corrected_averages=True, ramp_epochs=2
        ),
        2,
    ),
    "epr-cl": (expected_negative(expected_positives="counted", cl_weight=0.5, distance="l2"), 0),
    "epr-scl": (expected_negative(expected_positives="counted", scl_weight=1.0), 1),
    "en-places": (
        expected_negative(patch_weight=1.0, patch_weights=(9.0, 1.0, 1.0), patch_gammas=(0.0,) * 3),
        0,
    ),
    "en-scl-places": (expected_negative(scl_weight=1.0, patch_weight=0.5), 1),
    "an-places": (lambda: AssumeNegative(patch_weight=2.0, patch_gammas=(0.0,) * 3), 0),
    "bce-taught": (BCE, 0),
    "an-taught": (lambda: AssumeNegative(teacher_weight=0.5), 1),
    "en-taught": (expected_negative(), 1),
    "en-scl-taught-start": (expected_negative(scl_weight=1.0, scores_start="teacher", teacher_weight=0.0), 1),
    "em-taught": (lambda: EntropyMaximisation(teacher_above=0.6), 0),
    "em-apl-taught": (lambda: EntropyMaximisation(soft_weight=0.5, soft_from=2, teacher_above=0.6), 0),
    "em-taught-soft": (lambda: EntropyMaximisation(teacher_as="soft"), 0),
    "gr-taught": (
        lambda: GeneralisedRobust(teacher_top_k=2, teacher_negatives=0.3, count_weight=0.1, positives_per_image=1.8),
        1,
    ),
    "epr": (lambda: EPR(positives_per_image=1.8), 0),
    "role": (lambda: ROLE(positives_per_image=1.8), 1),
    "pairwise-ranking": (PairwiseRanking, 0),
    "ll-r": (lambda: LargeLoss(share=0.05), 1),
    "ll-ct": (lambda: LargeLoss(mode="correct", share=0.05), 0),
    "ll-cp": (lambda: LargeLoss(mode="correct_for_good", share=0.05), 0),
    "focal": (Focal, 0),
    "asl": (AsymmetricLoss, 0),
    "asl-attached": (lambda: AsymmetricLoss(attached=True), 0),
    "hill": (Hill, 0),
    "splc": (SPLC, 1),
    "csl": (ClassAwareSelective, 0),
    "csl-ignore": (lambda: ClassAwareSelective(mode="ignore"), 0),
    "csl-ignore-normalised": (lambda: ClassAwareSelective(mode="ignore_normalised"), 0),
    "csl-negative": (lambda: ClassAwareSelective(mode="negative"), 0),
    "csl-prior": (lambda: ClassAwareSelective(top_k=1, prior_threshold=0.4, prior_epochs=2), 0),
    "em": (EntropyMaximisation, 0),
    "em-apl": (lambda: EntropyMaximisation(soft_weight=0.5, soft_from=2), 0),
    "em-apl-pass": (lambda: EntropyMaximisation(soft_weight=0.5, soft_from=2, soft_scores="pass"), 1),
    "gr": (GeneralisedRobust, 0),
    "temporal-ensembling": (TemporalEnsembling, 0),
    "curriculum": (lambda: CurriculumLabelling(label_from=1, positive_above=0.6, unknown="negative"), 0),
    "curriculum-ignore": (
        lambda: CurriculumLabelling(label_from=2, every=2, positive_above=0.6, negative_below=0.3, unknown="ignore"),
        1,
    ),
    "patchml": (PatchML, 0),
    "patchml-cross-entropy": (lambda: PatchML(image_gammas=(0.0,) * 3, patch_gammas=(0.0,) * 3), 0),
    "patchml-selective": (
        lambda: PatchML(
            image_unknown="selective",
            patch_unknown="selective",
            image_top_k=1,
            patch_top_k=2,
            prior_threshold=0.9,
            patch_weights=(9.0, 1.0, 0.5),
        ),
        1,
    ),
    "patchml-cluster": (
        lambda: PatchML(pseudo_weight=1.0, pseudo_patch_weight=0.5, pseudo_from=2, near=0.4, pseudo_fill="unknown"),
        1,
    ),
    "patchml-image-cluster": (
        lambda: PatchML(
            image_unknown="negative",
            pseudo_weight=0.5,
            pseudo_from=1,
            prototypes_of="images",
            near=0.02,
            prototype_momentum=0.5,
            negative_below=0.3,
            min_count=2,
            cropped="keep",
            pseudo_fill="unknown",
        ),
        0,
    ),
    "fixmatch": (
        lambda: FixMatch(pseudo_weight=0.2, pseudo_from=1, pseudo_fill="unknown", positive_from=0.55, negative_to=0.5),
        1,
    ),
    "fixmatch-uncertain": (
        lambda: FixMatch(
            pseudo_weight=0.2,
            pseudo_from=1,
            pseudo_fill="unknown",
            patch_unknown="selective",
            positive_from=0.55,
            negative_to=0.5,
            per_selected=True,
            uncertainty_views=3,
            uncertain_positive=0.2,
            uncertain_negative=0.2,
        ),
        0,
    ),
}
if OWN := os.environ.get("FEWTAGS_OBJECTIVE"):
    METHODS["own-method"] = (method_class(OWN), 0)
every_method = pytest.mark.parametrize("name", METHODS)


class Net(nn.Module):
    """Backbone with BatchNorm, 1x1 head before the pool; 12 x 12 pixels become a grid of 3 x 3."""

    def __init__(self, seed):
        super().__init__()
        with torch.random.fork_rng():
            torch.manual_seed(seed)
            self.body = nn.Sequential(
                nn.Conv2d(3, 8, 3, 2, 1), nn.BatchNorm2d(8), nn.ReLU(), nn.Conv2d(8, 12, 3, 2, 1), nn.ReLU()
            )
            self.head = nn.Conv2d(12, CLASSES, 1)

    def forward(self, images):
        features = self.body(images)
        maps = self.head(features)
        return Output(maps.mean((2, 3)), maps, features)


@dataclasses.dataclass(frozen=True, eq=False)
class Scenes:
    """Class c paints its own texture into a quarter; one positive an image is told, and a few negatives.

    Attributes:
        images: float32 [N, 3, 12, 12].
        labels: int8 [N, C], what is told.
        truth: int8 [N, C], complete.
        boxes: float32 [N, 4], where the told positive is: in turn not said, a box, a point.
        teacher: float16 [N, C], scores that are better than chance; NaN for some cells.
    """

    images: torch.Tensor
    labels: torch.Tensor
    truth: torch.Tensor
    boxes: torch.Tensor
    teacher: torch.Tensor

    @classmethod
    def make(cls):
        rng, half = np.random.default_rng(0), SIZE // 2
        textures = rng.normal(size=(CLASSES, 3, half, half))
        present = rng.random((SAMPLES, CLASSES)) < 0.3
        present[np.arange(SAMPLES), rng.integers(CLASSES, size=SAMPLES)] = True
        images = 0.3 * rng.normal(size=(SAMPLES, 3, SIZE, SIZE))
        labels = np.full((SAMPLES, CLASSES), Label.UNKNOWN, np.int8)
        boxes = np.full((SAMPLES, 4), np.nan)
        for n in range(SAMPLES):
            corners = {}
            for c in np.flatnonzero(present[n]):
                corners[c] = y, x = half * rng.integers(2, size=2)
                images[n, :, y : y + half, x : x + half] += textures[c]
            labels[n, told := rng.choice(np.flatnonzero(present[n]))] = Label.POSITIVE
            y, x = corners[told] / SIZE
            if n % 3:
                boxes[n] = (x, y, x + 0.5, y + 0.5) if n % 3 == 1 else (x + 0.25, y + 0.25) * 2
        labels[~present & (rng.random(present.shape) < 0.1)] = Label.NEGATIVE
        truth = np.where(present, Label.POSITIVE, Label.NEGATIVE).astype(np.int8)
        arrays = (torch.from_numpy(values) for values in (labels, truth))
        teacher = 0.3 * present + 0.7 * rng.random(present.shape)
        teacher[rng.random(present.shape) < 0.1] = np.nan
        scores = torch.from_numpy(teacher).half()
        return cls(torch.from_numpy(images).float(), *arrays, torch.from_numpy(boxes).float(), scores)

    def batch(self, epoch, step):
        """Crops and flips, and stronger contrast in the second ones: a function of (epoch, step) alone."""
        return copy.deepcopy(self._batch(epoch, step))

    @functools.cache  # noqa: B019  (all methods see the same few batches)
    def _batch(self, epoch, step):
        index = np.random.default_rng([1, epoch]).permutation(SAMPLES)[step * BATCH : (step + 1) * BATCH]
        (views, strong), index = (crops([k, epoch, step], len(index)) for k in (2, 3)), torch.from_numpy(index)
        row = (self.boxes[index, 0] >= 0).nonzero()[:, 0]
        places = Places(row, (self.labels[index] == Label.POSITIVE).int().argmax(1)[row], self.boxes[index[row]])
        seen, changed = (maps_to_crop(self.images[index], those, (SIZE, SIZE)) for those in (views, strong))
        return Batch(
            images=seen,
            labels=self.labels[index],
            index=index,
            views=views,
            places=places,
            second_view=SecondView(1.5 * changed, strong),
        )


def crops(key, count):
    """Random views, float32 [count, 2, 3]."""
    rng, views = np.random.default_rng(key), []
    for _ in range(count):
        side = rng.uniform(0.6, 1)
        left, top = rng.uniform(0, 1 - side, 2)
        view = View.crop(left, top, left + side, top + side)
        views.append(view.then(View.flip()) if rng.random() < 0.5 else view)
    return stack_views(views)


DATA = Scenes.make()


class Fit(ContractLoop):
    """The loop on the scenes; the first epochs train the head alone."""

    steps = STEPS

    def __init__(self, name, folder, *, data=DATA, net=None, epochs=EPOCHS):
        make, self.warmup = METHODS[name]
        self.net, self.data, self.epochs, self.method = net or Net(0), data, epochs, make()
        self.problem = Problem(
            labels=LabelMatrix.from_dense(data.labels.numpy()),
            grid=(3, 3),
            warmup_epochs=self.warmup,
            epochs=epochs,
            seed=3,
            state_dir=folder,
            truth=LabelMatrix.from_dense(data.truth.numpy()),
            features_dim=12,
            teacher=data.teacher.numpy() if "taught" in name else None,
        )
        self.parts = self.method.setup(self.net, self.problem)
        self.optimizer = torch.optim.SGD(self.net.parameters(), lr=0.3, momentum=0.9)
        self.begin()

    def batch(self):
        self.net.body.requires_grad_(self.epoch >= self.warmup)
        return self.data.batch(self.epoch, self.step)

    def predictions(self):
        self.net.eval()
        with torch.no_grad():
            logits = self.net(self.data.images).logits
        self.net.train()
        return logits


@dataclasses.dataclass(frozen=True)
class Whole:
    """A run to the end; its checkpoints by step; what was seen before it, and what is the same afterwards."""

    fit: Fit
    saved: dict
    loose: tuple
    tensors: tuple
    generators: tuple


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """Make the uninterrupted run of a method, once for all tests that only look at it."""

    @functools.cache
    def make(name):
        fit = Fit(name, tmp_path_factory.mktemp("whole"))
        seen, saved = ([loose(fit)], [tensors(fit)], [generators()]), {}
        for steps in STOPS:
            saved[steps] = fit.run(stop_after=steps - len(fit.losses)).save()
        fit.run()
        for values, now in zip(seen, (loose(fit), tensors(fit), generators()), strict=True):
            values.append(now)
        return Whole(fit, saved, *map(tuple, seen))

    return make


def loose(fit):
    """The state of a method that is not in its parts."""
    parts = {id(part) for part in fit.parts.values()}
    return {key: pickle.dumps(value) for key, value in vars(fit.method).items() if id(value) not in parts}


def tensors(fit):
    return {(name, key): value for name, part in fit.parts.items() for key, value in part.state_dict().items()}


def generators():
    return torch.get_rng_state().tolist(), np.random.get_state()[1].tolist()  # noqa: NPY002


@every_method
def test_trained_beats_fresh_on_a_fixed_batch(name, tmp_path):
    fit = Fit(name, tmp_path, epochs=8).run()
    # Pseudo-labels follow from a net's own opinion, so that two nets would be measured against different ones.
    own = "cluster" in name or "fixmatch" in name
    batch, at = DATA.batch(0, 0), Progress(0 if own else 7, 0, STEPS)
    if name in ("asl", "csl-negative"):
        # Their factor is detached, so that training follows the slope of another function than the loss.
        trained, fresh = (margin(net, batch) for net in (Net(1), fit.net))
    else:
        trained, fresh = (fit.method.step(net, batch, at).loss.item() for net in (fit.net, Net(1)))
    assert trained < fresh


def margin(net, batch):
    """By how much annotated positives have a higher probability than all other cells."""
    prob, positive = net(batch.images).logits.sigmoid(), batch.labels == Label.POSITIVE
    return (prob[positive].mean() - prob[~positive].mean()).item()


@every_method
def test_an_interrupted_run_is_bitwise_equal(name, whole, tmp_path):
    """Stopped inside the warm-up, at the end of an epoch, and in the middle of one that has a ranking."""
    whole, saved = whole(name).fit, whole(name).saved
    for stop in STOPS:
        with torch.random.fork_rng():
            torch.manual_seed(999)  # a new process has another global generator
            second = Fit(name, tmp_path / f"second-{stop}", net=Net(5)).load(saved[stop]).run()
        assert second.losses == whole.losses[stop:]
        assert second.diagnostics == whole.diagnostics[len(whole.diagnostics) - len(second.diagnostics) :]
        assert_same(second.state(), whole.state())


@every_method
def test_step_changes_no_part_and_repeats_itself(name, whole, tmp_path):
    fit = Fit(name, tmp_path).load(whole(name).saved[10])
    batch, before = DATA.batch(fit.epoch, fit.step), fit.parts_now()
    inputs = copy.deepcopy(batch)
    fit.net.eval()
    one, two = (fit.method.step(fit.net, batch, fit.at()) for _ in range(2))
    assert one.loss.item() == two.loss.item()
    assert_same(dict(one.logs), dict(two.logs))
    assert_same(fit.parts_now(), before)
    fit.method.commit(fit.net, batch, one)
    for name in ("images", "labels", "index", "views"):
        assert torch.equal(getattr(batch, name), getattr(inputs, name)), name
    for now, then in ((batch.places, inputs.places), (batch.second_view, inputs.second_view)):
        assert all(torch.equal(a, b) for a, b in zip(now, then, strict=True))


class Head(nn.Module):
    """The head of a `Net` alone, on its features."""

    def __init__(self, net):
        super().__init__()
        self.head = net.head

    def forward(self, features):
        maps = self.head(features)
        return Output(maps.mean((2, 3)), maps, features)


def on_features(fit, pooled):
    """The next batch of a fit as its body sees it, in cells or pooled, and the head that looks at that."""
    batch = DATA.batch(fit.epoch, fit.step)
    fit.net.eval()
    with torch.no_grad():
        features = fit.net(batch.images).features
    features = features.mean((2, 3), keepdim=True) if pooled else features
    return dataclasses.replace(batch, images=features), Head(fit.net)


@every_method
def test_pooled_features_are_enough_where_no_maps_are_needed(name, whole, tmp_path):
    """To rounding of the mean over 9 cells: 1e-6 of a loss near 1. What needs maps must say so."""
    fit = Fit(name, tmp_path).load(whole(name).saved[10])
    if fit.method.needs_maps:
        return
    losses = [fit.method.step(*reversed(on_features(fit, pooled)), fit.at()).loss.item() for pooled in (True, False)]
    assert losses[0] == pytest.approx(losses[1], abs=1e-5)


@every_method
def test_what_is_solvable_is_smooth_and_looks_at_one_view(name, whole, tmp_path):
    """Along a line of weights the gradient is the slope of the loss, everywhere: no jumps, no changed labels.

    patchml is looked at without its focal factor ("patchml-cross-entropy"), which is detached on purpose.
    """
    fit = Fit(name, tmp_path).load(whole(name).saved[10])
    if not fit.method.solvable or name == "patchml":
        return
    assert not fit.method.needs_second_view
    batch, head = on_features(fit, pooled=not fit.method.needs_maps)
    weight = head.head.weight
    start = weight.detach().clone()
    direction = torch.randn(start.shape, generator=torch.Generator().manual_seed(0))

    def at(t):
        with torch.no_grad():
            weight.copy_(start + t * direction)
        head.zero_grad()
        loss = fit.method.step(head, batch, fit.at()).loss
        loss.backward()
        return loss.item(), float((weight.grad * direction).sum())

    for t in np.linspace(-2, 2, 9):
        (low, _), (_, slope), (high, _) = (at(t + d) for d in (-0.01, 0.0, 0.01))
        assert (high - low) / 0.02 == pytest.approx(slope, rel=0.02, abs=2e-3)


def test_some_methods_are_solvable_and_some_need_no_maps():
    made = {name: make() for name, (make, _) in METHODS.items()}
    assert {name for name, method in made.items() if method.solvable} >= {"bce", "an", "en", "patchml"}
    assert not any(
        made[name].solvable for name in ("en-cl", "en-scl", "patchml-cluster", "patchml-selective", "fixmatch")
    )
    assert {name for name, method in made.items() if not method.needs_maps} >= {"bce", "an", "en"}


@every_method
def test_all_that_changes_is_in_a_part(name, whole):
    before, after = whole(name).loose
    assert after == before


@every_method
def test_parts_hold_flat_names_and_tensors_and_are_written_in_place(name, whole):
    assert all(isinstance(part, Part) for part in whole(name).fit.parts.values())
    before, after = whole(name).tensors
    for key, value in before.items():
        assert isinstance(value, torch.Tensor)
        assert after[key].data_ptr() == value.data_ptr(), key


@every_method
def test_hidden_truth_never_reaches_a_loss(name, whole, tmp_path):
    lie = dataclasses.replace(DATA, truth=-DATA.truth)
    honest, deceived = whole(name).fit, Fit(name, tmp_path, data=lie).run()
    assert honest.losses == deceived.losses
    assert_same(honest.state(), deceived.state())


@every_method
def test_the_global_generator_is_left_alone(name, whole):
    before, after = whole(name).generators
    assert after == before


# Stochastic rounding, the start of ROLE and the order of equal scores (float16) draw by cell: another class order is
# another draw.
@pytest.mark.parametrize("name", [name for name in METHODS if name not in ("en-scl-stochastic", "role", "en-cl")])
def test_classes_permute(name, whole, tmp_path):
    order = torch.tensor([3, 0, 4, 1, 2])
    other = Scenes(DATA.images, DATA.labels[:, order], DATA.truth[:, order], DATA.boxes, DATA.teacher[:, order])
    net = Net(0)
    with torch.no_grad():
        for parameter in net.head.parameters():
            parameter.copy_(parameter[order])
    plain, permuted = whole(name).fit, Fit(name, tmp_path, data=other, net=net).run()
    # Sums over classes are taken in another order, and a level of uint8 may round to its neighbour.
    assert permuted.losses == pytest.approx(plain.losses, rel=1e-3)
    torch.testing.assert_close(permuted.net.head.weight, plain.net.head.weight[order], rtol=0, atol=1e-3)
    if "scores" in plain.parts:
        scores = (fit.parts["scores"].state_dict()["values"].float() for fit in (permuted, plain))
        torch.testing.assert_close(next(scores), next(scores)[:, order], rtol=0, atol=1e-3)


@every_method
def test_a_batch_of_only_unknown_labels_works(name, whole, tmp_path):
    fit = Fit(name, tmp_path).load(whole(name).saved[10])
    batch = DATA.batch(fit.epoch, fit.step)
    fit.train(dataclasses.replace(batch, labels=torch.full_like(batch.labels, Label.UNKNOWN)))
    assert np.isfinite(fit.losses[-1])
    assert all(value.isfinite().all() for key, value in fit.parts_now().items() if key[1] != "cut_score")
    assert all(parameter.isfinite().all() for parameter in fit.net.parameters())


@every_method
def test_a_loss_that_is_not_a_number_leaves_the_parts_untouched(name, whole, tmp_path):
    fit = Fit(name, tmp_path).load(whole(name).saved[10])
    batch, before = DATA.batch(fit.epoch, fit.step), fit.parts_now()
    with pytest.raises(FloatingPointError):
        fit.train(dataclasses.replace(batch, images=batch.images * float("nan")))
    assert_same(fit.parts_now(), before)
