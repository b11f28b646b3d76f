"""PatchML: what each part of the loss adds, and what is kept for pseudo-labels."""

import json
import re
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

from fewtags.batched_views import stack_views
from fewtags.errors import ConfigError
from fewtags.geometry import View
from fewtags.labels import Batch, Label, LabelMatrix, Places
from fewtags.losses.selective import PerLabel, patch_loss, selective_loss
from fewtags.nets.spatial import Output
from fewtags.objectives.base import Problem, Progress
from fewtags.objectives.patchml import PatchML

GOLDEN = json.loads((Path(__file__).parents[1] / "golden" / "patch_losses.json").read_text())["asl"]
P, U, N = Label.POSITIVE, Label.UNKNOWN, Label.NEGATIVE
AT = Progress(0, 0, 1)
PLAIN = (0.0, 0.0, 0.0)


class Maps(nn.Module):
    """Takes [b, C, h, w] for maps and features alike."""

    def forward(self, images):
        return Output(images.mean((2, 3)), images, images)


def batch(maps, labels, places=None, views=None):
    maps, labels = torch.tensor(maps, dtype=torch.float32), torch.tensor(labels, dtype=torch.int8)
    maps = maps.requires_grad_()
    views = stack_views(views or [View.identity()] * len(maps))
    if places is not None:
        row, class_, boxes = zip(*places, strict=True)
        places = Places(torch.tensor(row), torch.tensor(class_), torch.tensor(boxes, dtype=torch.float32))
    return Batch(images=maps, labels=labels, index=torch.arange(len(maps)), views=views, places=places)


def problem(labels, truth=None):
    matrices = [
        None if dense is None else LabelMatrix.from_dense(np.array(dense, np.int8)) for dense in (labels, truth)
    ]
    return Problem(labels=matrices[0], grid=(1, 2), epochs=20, truth=matrices[1], features_dim=np.shape(labels)[1])


def step(method, data, at=AT, truth=None):
    parts = method.setup(Maps(), problem(data.labels.numpy(), truth))
    return method.step(Maps(), data, at), parts


def bce(logit, positive):
    return float(np.logaddexp(0, -logit if positive else logit))


def test_a_point_by_hand():
    """One image, two classes, cells (0, 2) and (1, -1). Class 0 is positive with a point in its right cell, class 1
    unknown. All gammas 0, everything unknown ignored, weights 1.

    Image logit of class 0: 1, so L_image = -log f(1) / 2 (two classes). L_patch = -log f(2) / 4 (four cells).
    """
    data = batch([[[[0, 2]], [[1, -1]]]], [[P, U]], [(0, 0, (0.75, 0.5, 0.75, 0.5))])
    method = PatchML(image_gammas=PLAIN, patch_gammas=PLAIN, image_weight=2.0, patch_weight=3.0)
    out, parts = step(method, data)
    assert parts == {}
    assert out.logs["image"].item() == pytest.approx(bce(1, True) / 2)
    assert out.logs["patch"].item() == pytest.approx(bce(2, True) / 4)
    assert out.loss.item() == pytest.approx(2 * bce(1, True) / 2 + 3 * bce(2, True) / 4)
    out.loss.backward()
    assert data.images.grad[0, 1].abs().sum() == 0, "an unknown class gets no gradient"


def test_a_negative_tag_is_negative_in_every_patch():
    """Logit 0.5 of cells 2 and -1: L_image = -log(1 - f(.5)), L_patch = the mean over both cells."""
    out, _ = step(PatchML(image_gammas=PLAIN, patch_gammas=PLAIN), batch([[[[2, -1]]]], [[N]]))
    assert out.logs["image"].item() == pytest.approx(bce(0.5, False))
    assert out.logs["patch"].item() == pytest.approx((bce(2, False) + bce(-1, False)) / 2)


def test_a_class_that_is_cropped_away_is_not_taken_as_absent():
    """The view does not show the point of class 0; class 1 was never named. "negative" is about the latter alone."""
    point = (0, 0, (0.1, 0.5, 0.1, 0.5))
    data = batch([[[[0, 2]], [[1, -1]]]], [[P, U]], [point], [View.crop(0.5, 0.0, 1.0, 1.0)])
    out, _ = step(PatchML(image_unknown="negative", image_gammas=PLAIN), data)
    assert out.logs["image"].item() == pytest.approx(bce(0, False) / 2)


@pytest.mark.parametrize(("cropped", "expected"), [("unknown", 0.0), ("keep", bce(1, True))])
def test_a_crop_that_shows_no_known_object(cropped, expected):
    """The point lies left, the view shows the right half: is the class there? Unknown, unless told to keep it."""
    point = (0, 0, (0.1, 0.5, 0.1, 0.5))
    data = batch([[[[0, 2]]]], [[P]], [point], [View.crop(0.5, 0.0, 1.0, 1.0)])
    out, _ = step(PatchML(image_gammas=PLAIN, cropped=cropped), data)
    assert out.logs["image"].item() == pytest.approx(expected)
    assert out.logs["patch"].item() == 0


def test_gammas_and_weights_arrive():
    data = batch([[[[0, 2]], [[1, -1]], [[3, 1]]]], [[P, N, U]], [(0, 0, (0.75, 0.5, 0.75, 0.5))])
    method = PatchML(
        image_unknown="negative", patch_unknown="negative", image_gammas=(1.0, 2.0, 3.0), patch_gammas=(3.0, 2.0, 1.0),
        patch_weights=(5.0, 4.0, 3.0),
    )  # fmt: skip
    out, _ = step(method, data)
    everywhere = torch.ones(1, 3, dtype=torch.bool)
    image = selective_loss(data.images.mean((2, 3)), data.labels, everywhere, gammas=PerLabel(1.0, 2.0, 3.0))
    patches = torch.tensor([[[[U, P]], [[N, N]], [[U, U]]]], dtype=torch.int8)
    patch = patch_loss(
        data.images, patches, torch.ones_like(patches, dtype=torch.bool), gammas=PerLabel(3.0, 2.0, 1.0),
        weights=PerLabel(5.0, 4.0, 3.0),
    )  # fmt: skip
    assert out.logs["image"].item() == pytest.approx(image.item())
    assert out.logs["patch"].item() == pytest.approx(patch.item())


def test_clip_by_hand():
    """Known negatives with f = .02, .2 and .5, gammas 0, clip .05: q = min(1, 1.05 - f) = 1, .85 and .55.

    The first counts as done: no loss and no gradient. The positive class keeps -log .5. Patches know no clip.
    """
    logits = [float(np.log(f / (1 - f))) for f in (0.02, 0.2, 0.5, 0.5)]
    data = batch([[[[x, x]] for x in logits]], [[N, N, N, P]])
    method = PatchML(image_gammas=PLAIN, patch_gammas=PLAIN, image_clip=0.05, patch_weight=0.0)
    out, _ = step(method, data)
    assert out.logs["image"].item() == pytest.approx(-np.log([0.85, 0.55, 0.5]).sum() / 4, rel=1e-6)
    with_patches, _ = step(replace(method, patch_weight=1.0), data)
    assert with_patches.logs["patch"].item() == pytest.approx(-np.log([0.98, 0.8, 0.5]).sum() / 4, rel=1e-6)
    out.loss.backward()
    assert data.images.grad[0, :, 0, 0].ne(0).tolist() == [False, True, True, True]


@pytest.mark.parametrize(
    "case", [case for case in GOLDEN["cases"] if case["kw"]["clip"]], ids=lambda case: str(case["kw"])
)
def test_it_is_the_asymmetric_loss_on_full_labels(case):
    """ASL's own code, which sums; golden labels are 1 and 0."""
    labels = np.where(np.array(GOLDEN["targets"]) == 1, P, N).astype(int)
    data = batch(np.array(GOLDEN["logits"])[:, :, None, None], labels)
    gammas = (float(case["kw"]["gamma_pos"]), float(case["kw"]["gamma_neg"]), 0.0)
    out, _ = step(PatchML(image_gammas=gammas, image_clip=case["kw"]["clip"], patch_weight=0.0), data)
    assert out.loss.item() == pytest.approx(case["loss"] / labels.size, rel=1e-5)


def test_selective_modes_ignore_the_likely_ones():
    """Of the unknown classes (logits 1 and 3) the higher stays ignored; of three unknown patches, the highest."""
    maps = [[[[0, 2, 5, -4]], [[1, 1, 1, 1]], [[3, 3, 3, 3]]]]
    data = batch(maps, [[P, U, U]], [(0, 0, (0.1, 0.5, 0.1, 0.5))])
    method = PatchML(
        image_unknown="selective", patch_unknown="selective", image_top_k=1, patch_top_k=1, image_gammas=PLAIN,
        patch_gammas=PLAIN,
    )  # fmt: skip
    out, _ = step(method, data)
    assert out.logs["image"].item() == pytest.approx((bce(0.75, True) + bce(1, False)) / 3)
    assert out.logs["patch"].item() == pytest.approx((bce(0, True) + bce(2, False) + bce(-4, False)) / 12)


def test_frequent_classes_stay_ignored():
    """Class 0 is positive in half of the images asked, class 1 in none; the threshold is a quarter."""
    data = batch([[[[1, 1]], [[3, 3]]]], [[U, N]])
    method = PatchML(image_unknown="selective", image_top_k=0, prior_threshold=0.25, image_gammas=PLAIN)
    method.setup(Maps(), problem([[P, N], [N, N], [U, U]]))
    assert method.step(Maps(), data, AT).logs["image"].item() == pytest.approx(bce(3, False) / 2)


@pytest.mark.parametrize("mode", ["negative", "selective"])
def test_images_without_any_label_are_no_part_of_the_supervised_loss(mode):
    data = batch([[[[1, 1]], [[3, 3]]]], [[U, U]])
    out, _ = step(PatchML(image_unknown=mode, patch_unknown=mode), data)
    out.loss.backward()
    assert out.loss.item() == 0
    assert data.images.grad.abs().sum() == 0


# Three images of two cells; features are the maps, so class c looks like axis c. Image 0 has a point on (1, 0), image 1
# one on (0, 1); image 2 has no label, and cells (4, 1) and (1, 1).
LABELS = [[P, U], [U, P], [U, U]]
TRUTH = [[P, N], [N, P], [P, N]]
SCENE = [[[[5, 0]], [[0, 0]]], [[[0, 0]], [[0, 5]]], [[[4, 1]], [[1, 1]]]]
POINTS = [(0, 0, (0.2, 0.5, 0.2, 0.5)), (1, 1, (0.8, 0.5, 0.8, 0.5))]


def trained(**options):
    """An epoch that fills the prototypes, and the next one's step."""
    method = PatchML(pseudo_weight=0.5, pseudo_from=1, image_gammas=PLAIN, patch_gammas=PLAIN, **options)
    data = batch(SCENE, LABELS, POINTS)
    out, parts = step(method, data, truth=TRUTH)
    assert method.on_epoch_start(0) == {}
    method.commit(Maps(), data, out)
    logs = method.on_epoch_start(1)
    return method, data, parts, logs, method.step(Maps(), data, Progress(1, 0, 1))


def test_maps_are_needed_for_patches_and_their_prototypes():
    """Without them, pooled features are enough: the same loss, and the same pseudo-labels of whole images."""
    assert PatchML().needs_maps
    assert PatchML(patch_weight=0.0, pseudo_weight=1.0).needs_maps
    method = PatchML(patch_weight=0.0, pseudo_weight=1.0, prototypes_of="images", pseudo_fill="unknown", pseudo_from=1)
    assert not method.needs_maps
    maps, labels = [[[[4.0, 0.0]], [[-1.0, 1.0]]], [[[0.0, 2.0]], [[5.0, 1.0]]]], [[P, U], [U, P]]
    pooled = np.mean(maps, (2, 3), keepdims=True).tolist()
    found = []
    for own in (maps, pooled):
        data = batch(own, labels)
        out, _ = step(method, data)
        method.commit(Maps(), data, out)
        method.on_epoch_start(1)
        later = method.step(Maps(), data, Progress(1, 0, 1))
        assert "patch" not in later.logs
        found.append([out.loss.item(), later.loss.item(), *later.payload.pseudo.flatten().tolist()])
    assert found[0] == pytest.approx(found[1])


def test_pseudo_labels_by_hand():
    """Prototypes (1, 0) and (0, 1). Patches of image 2: (4, 1) / sqrt 17, distances .03 and .76; (1, 1) / sqrt 2, .29
    of both. Nearest: .03 and .29. Near .1 and far .2: class 0 positive, class 1 negative.
    """
    method, data, parts, logs, out = trained(near=0.1, far=0.2)
    assert logs == {"classes_with_prototype": 2.0}
    assert out.payload.pseudo.tolist() == [[U, U], [U, U], [P, N]]
    # Logits of image 2: 2.5 and 1, among six cells.
    expected = (bce(2.5, True) + bce(1, False)) / 6
    assert out.logs["pseudo"].item() == pytest.approx(expected)
    assert out.loss.item() == pytest.approx((out.logs["image"] + out.logs["patch"]).item() + 0.5 * expected)
    method.commit(Maps(), data, out)
    assert parts["pseudo_labels"].values.tolist() == [[U, U], [U, U], [P, N]]
    assert method.on_epoch_start(2) == {
        "classes_with_prototype": 2.0,
        "pseudo_positives_per_image": 1 / 3,
        "pseudo_negatives_per_image": 1 / 3,
        "pseudo_positive_precision": 1.0,
        "pseudo_negative_precision": 1.0,
    }


def test_pseudo_labels_of_patches_by_hand():
    """Class 0 of image 2: (4, 1) is near its prototype, (1, 1) is not. Class 1 is absent, so both cells are negative.

    The cells are the maps: 4 of class 0, and 1 and 1 of class 1, among 12 cells of three images.
    """
    *_, out = trained(near=0.1, far=0.2, pseudo_patch_weight=2.0)
    expected = (bce(4, True) + 2 * bce(1, False)) / 12
    assert out.logs["pseudo_patch"].item() == pytest.approx(expected)
    parts = out.logs["image"] + out.logs["patch"] + 0.5 * out.logs["pseudo"]
    assert out.loss.item() == pytest.approx(parts.item() + 2 * expected)


def test_unknown_classes_of_labelled_images_may_be_filled_too():
    """Image 0's cells are (5, 0) and (0, 0): class 1 is at distance 1. Annotated cells are left alone."""
    out = trained(near=0.1, far=0.2, pseudo_fill="unknown")[-1]
    assert out.payload.pseudo.tolist() == [[U, N], [N, U], [P, N]]


def test_a_negative_that_the_net_doubts_is_not_taken():
    """Class 1 of image 2 has probability f(1) = .73."""
    assert trained(near=0.1, far=0.2, negative_below=0.5)[-1].payload.pseudo[2].tolist() == [P, U]
    assert trained(near=0.1, far=0.2, negative_below=0.8)[-1].payload.pseudo[2].tolist() == [P, N]


def test_prototypes_of_whole_images():
    """Mean features of image 2: (2.5, 1) / sqrt 7.25, distances .07 and .63; the points play no part."""
    out = trained(near=0.1, far=0.6, prototypes_of="images")[-1]
    assert out.payload.pseudo[2].tolist() == [P, N]
    assert trained(near=0.1, far=0.6)[-1].payload.pseudo[2].tolist() == [P, U]


def test_no_pseudo_labels_before_their_time():
    method, data, _, _, _ = trained(near=0.1, far=0.2)
    early = method.step(Maps(), data, Progress(0, 0, 1))
    assert early.payload.pseudo is None
    assert "pseudo" not in early.logs


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"image_unknown": "selectve"}, "image_unknown must be one of ignore, negative, selective, got 'selectve' (did "
         "you mean 'selective'?)."),
        ({"patch_gammas": (1.0, 2.0)}, "patch_gammas must be three numbers of at least 0, for positive, negative and "
         "unknown; got (1.0, 2.0)."),
        ({"coverage": 0.0}, "coverage must be in 1e-06..1, got 0.0."),
        ({"pseudo_from": 0}, "pseudo_from must be at least 1, got 0."),
        ({"near": 0.9, "far": 0.3}, "near must be below far, got 0.9 and 0.3."),
        ({"pseudo_patch_weight": 1.0}, 'pseudo_patch_weight needs pseudo_weight above 0 and prototypes_of = "patches"; '
         'leave it out.'),
    ],
)  # fmt: skip
def test_settings_that_make_no_sense(options, message):
    """Set afterwards: the type checker of the tests would not let some of them through the constructor."""
    method = PatchML()
    vars(method).update(options)
    with pytest.raises(ConfigError, match=f"^{re.escape(message)}$"):
        method.__post_init__()


def test_pseudo_labels_that_would_never_begin_are_refused():
    method = PatchML(pseudo_weight=1.0, pseudo_from=20)
    with pytest.raises(
        ConfigError,
        match=r"would begin with epoch 21, but training has 20; lower objective\.pseudo_from, or train longer\.",
    ):
        method.setup(torch.nn.Identity(), problem([[P, U]]))
    PatchML(pseudo_weight=0.0, pseudo_from=20).setup(torch.nn.Identity(), problem([[P, U]]))


def test_class_shares_need_a_known_negative():
    """`setup` refuses it, as that of bce does."""
    method = PatchML(image_unknown="selective", prior_threshold=0.5)
    with pytest.raises(ConfigError, match="needs known negatives"):
        method.setup(nn.Identity(), problem(np.array([[1, 0], [0, 1]], np.int8)))
