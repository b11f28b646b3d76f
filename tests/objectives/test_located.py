"""Points and boxes beside a loss of images: the patch loss of PatchML is added to other methods."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import nn

from fewtags.batched_views import stack_views
from fewtags.errors import ConfigError
from fewtags.geometry import View
from fewtags.labels import Batch, Label, LabelMatrix, Places
from fewtags.nets.spatial import Output
from fewtags.objectives.assume_negative import BCE, AssumeNegative
from fewtags.objectives.base import Derived, Problem, Progress, RunFacts
from fewtags.objectives.expected_negative import ExpectedNegative
from fewtags.objectives.patchml import PatchML

P, U, N = Label.POSITIVE, Label.UNKNOWN, Label.NEGATIVE
PLAIN = (0.0, 0.0, 0.0)
LABELS = [[P, U, N], [U, P, U]]


class Maps(nn.Module):
    """Takes [b, C, h, w] for maps and features alike."""

    def forward(self, images):
        return Output(images.mean((2, 3)), images, images)


def batch(labels, rows):
    maps = torch.from_numpy(np.random.default_rng(0).normal(size=(2, 3, 2, 2)).astype(np.float32)).requires_grad_()
    labels = torch.tensor(labels, dtype=torch.int8)
    boxes = torch.tensor([[0.7, 0.7, 0.7, 0.7], [0.0, 0.0, 0.5, 1.0]])
    where = Places(torch.tensor(rows), torch.tensor(rows), boxes[list(rows)]) if rows else None
    views = stack_views([View.identity()] * 2)
    return Batch(images=maps, labels=labels, index=torch.arange(2), views=views, places=where)


def loss_and_gradient(method, *, epoch=0, labels=LABELS, rows=(0, 1)):
    """`rows` are the images with a place of the class with the same number."""
    data = batch(labels, rows)
    method.setup(Maps(), Problem(labels=LabelMatrix.from_dense(np.array(labels, np.int8)), grid=(2, 2), epochs=2))
    method.on_epoch_start(epoch)
    out = method.step(Maps(), data, Progress(epoch, 0, 1))
    out.loss.backward()
    return out, data.images.grad


def expected_negative(**settings):
    return ExpectedNegative(positives_per_image=1.0, scl_weight=0.0, **settings)


METHODS = {"en": expected_negative, "an": AssumeNegative, "bce": BCE}


ABSENT = {"en": [[P, N, N], [N, P, N]], "an": [[P, N, N], [N, P, N]], "bce": LABELS}
"""What the loss of images takes the labels for. Nobody is expected in the first epoch of EN."""


@pytest.mark.parametrize("name", METHODS)
def test_the_loss_of_patches_is_that_of_patchml(name):
    """The difference that places make, in value and gradient, is L_patch of PatchML, whose image loss has weight 0."""
    settings = {"patch_weight": 0.5, "patch_weights": (4.0, 1.0, 1.0), "patch_gammas": (0.0, 1.0, 2.0)}
    with_places, gradient = loss_and_gradient(METHODS[name](**settings))
    without, before = loss_and_gradient(METHODS[name](patch_weight=0.0))
    patchml, patches = loss_and_gradient(PatchML(image_weight=0.0, cropped="keep", **settings), labels=ABSENT[name])
    assert with_places.loss.item() - without.loss.item() == pytest.approx(patchml.loss.item(), rel=1e-5)
    assert with_places.logs["patch"].item() == pytest.approx(patchml.loss.item() / 0.5)
    torch.testing.assert_close(gradient - before, patches)
    assert patches.abs().sum() > 0
    assert "patch" not in without.logs


@pytest.mark.parametrize("gamma", [1.0, 2.0])
def test_with_complete_labels_a_focus_on_negatives_is_that_of_patchml(gamma):
    settings = {"patch_weight": 1.0, "patch_weights": (4.0, 1.0, 1.0)}
    ours, gradient = loss_and_gradient(expected_negative(negative_gamma=gamma, **settings), labels=ABSENT["en"])
    theirs, same = loss_and_gradient(PatchML(image_gammas=(0.0, gamma, 0.0), **settings), labels=ABSENT["en"])
    assert ours.loss.item() == pytest.approx(theirs.loss.item(), rel=1e-6)
    torch.testing.assert_close(gradient, same)


@pytest.mark.parametrize(("gamma", "factor"), [(0.0, 3.0), (1.0, 2.0), (2.0, 1.5)])
def test_assumed_negatives_have_the_focus_and_expected_positives_no_loss(gamma, factor):
    """Of four cells with f = .5, one positive and two negatives count: log 2 (1 + 2 x .5^gamma) / 4."""
    method = ExpectedNegative(
        class_prior=(1.0, 0.0), scl_weight=0.0, warmup_loss="expected_negative", negative_gamma=gamma
    )
    labels = torch.tensor([[P, U], [U, N]], dtype=torch.int8)
    method.setup(Maps(), Problem(labels=LabelMatrix.from_dense(labels.numpy()), grid=(1, 1), epochs=2))
    method.on_epoch_start(1)
    views = stack_views([View.identity()] * 2)
    data = Batch(images=torch.zeros(2, 2, 1, 1), labels=labels, index=torch.arange(2), views=views)
    assert method.step(Maps(), data, Progress(1, 0, 1)).loss.item() == pytest.approx(np.log(2) * factor / 4)


def test_negatives_have_a_focus_where_a_head_is_solved_from_complete_tags_and_places():
    """In all other runs EN is that of the paper; a note says where it is not."""
    facts = RunFacts(samples=2, classes=3, positives=2, negatives=4, points=1, head_solved=True)
    derived = ExpectedNegative().derived(facts)["negative_gamma"]
    assert derived.value == 1
    assert derived.note.endswith("(objective.negative_gamma)")
    for other in ({"points": 0}, {"negatives": 3}, {"head_solved": False}):
        assert ExpectedNegative().derived(replace(facts, **other))["negative_gamma"] == Derived(0.0)
    # Difficult objects and crowds are unknown: up to one label in a hundred.
    for negatives, value in ((97, 1), (96, 0)):
        nearly = replace(facts, samples=10, classes=10, negatives=negatives)
        assert ExpectedNegative().derived(nearly)["negative_gamma"].value == value
    for method in (ExpectedNegative(patch_weight=0.0), ExpectedNegative(expected_positives="positive")):
        assert method.derived(facts)["negative_gamma"] == Derived(0.0)


def test_weights_of_patches_are_not_explained_if_the_patch_loss_is_off():
    facts = RunFacts(samples=2, classes=3, positives=2, points=1, grid=(2, 2))
    for weight, words in ((None, "a located patch weighs 4"), (1.0, "a located patch weighs 4"), (0.0, "")):
        note = ExpectedNegative(patch_weight=weight).derived(facts)["patch_weights"].note
        assert note.startswith(words)
        assert bool(note) == bool(words)


def test_expected_positives_are_unknown_patches():
    """Every class is expected in both images, so that only the annotated cells have a loss, as in BCE."""
    settings = {"patch_weight": 1.0, "patch_weights": (4.0, 1.0, 1.0)}
    method = ExpectedNegative(class_prior=(1.0,) * 3, scl_weight=0.0, warmup_loss="expected_negative", **settings)
    ours, _ = loss_and_gradient(method, epoch=1)
    theirs, _ = loss_and_gradient(BCE(**settings))
    assert ours.logs["patch"].item() == pytest.approx(theirs.logs["patch"].item())


def test_images_without_a_place_say_nothing_about_patches():
    """Only their known negatives do: here class 2 of the first image, whose place is taken away."""
    method = AssumeNegative(patch_weight=1.0, patch_gammas=PLAIN)
    _, gradient = loss_and_gradient(method, rows=(1,))
    _, alone = loss_and_gradient(AssumeNegative(patch_weight=0.0), rows=(1,))
    touched = (gradient - alone).abs().amax((2, 3)) > 0
    assert touched.tolist() == [[False, False, True], [True, True, True]]


def test_patchml_with_unknown_classes_as_negative_is_assume_negative_with_places():
    """Up to the patches of unknown classes, which PatchML leaves out: here all labels are known."""
    settings = {"patch_weights": (4.0, 1.0, 1.0), "patch_weight": 1.0}
    complete = ABSENT["an"]
    ours, gradient = loss_and_gradient(AssumeNegative(**settings), labels=complete)
    theirs, same = loss_and_gradient(PatchML(image_gammas=PLAIN, **settings), labels=complete)
    assert ours.loss.item() == pytest.approx(theirs.loss.item(), rel=1e-6)
    torch.testing.assert_close(gradient, same)


@pytest.mark.parametrize("name", METHODS)
def test_without_places_known_negatives_are_patches_too(name):
    out, _ = loss_and_gradient(METHODS[name](patch_weight=1.0), rows=())
    alone, _ = loss_and_gradient(PatchML(image_weight=0.0), rows=())
    assert out.logs["patch"].item() == pytest.approx(alone.loss.item())


@pytest.mark.parametrize("name", METHODS)
def test_places_are_used_if_there_are_some(name):
    """A run without places keeps the loss of the method, and its fast solver on pooled features."""
    method = METHODS[name]()
    for facts, weight in ((RunFacts(samples=2, classes=3), 0.0), (RunFacts(samples=2, classes=3, points=1), 1.0)):
        derived = method.derived(facts)
        assert derived["patch_weight"].value == weight
        settled = METHODS[name](patch_weight=weight)
        assert settled.uses_locations == settled.needs_maps == bool(weight)
        assert settled.solvable_warmup is not bool(weight)
        assert settled.solvable
    assert method.derived(RunFacts(samples=2, classes=3, grid=(3, 5), boxes=2))["patch_weights"].value == (15, 1, 1)


@pytest.mark.parametrize("name", METHODS)
@pytest.mark.parametrize(
    ("setting", "value"),
    [("patch_weight", -1.0), ("patch_weights", (1.0, 1.0)), ("patch_gammas", (0.0, -1.0, 0.0)), ("coverage", 0.0)],
)
def test_settings_out_of_range_are_refused(name, setting, value):
    with pytest.raises(ConfigError, match=setting):
        METHODS[name](**{setting: value})
