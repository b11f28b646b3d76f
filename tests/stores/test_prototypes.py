"""Class prototypes of annotated patches and the pseudo-labels they give."""

import json
from pathlib import Path

import numpy as np
import pytest
import torch

from fewtags.errors import CheckpointError
from fewtags.labels import Label
from fewtags.stores.prototypes import Prototypes, sum_patches, unit

GOLDEN = json.loads((Path(__file__).parents[1] / "golden/patchml_cluster.json").read_text())
STATES = {1: Label.POSITIVE, 0: Label.NEGATIVE, -1: Label.UNKNOWN}  # the golden file's code


def randn(*shape, seed=0):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def golden_features():
    """round(sin(0.61 i), 3), shape (3 images, 4 patches, 5), as [b, d, h, w] with 2 x 2 patches."""
    values = np.round(np.sin(0.61 * np.arange(60)), 3).reshape(3, 4, 5)
    return torch.from_numpy(values).float().transpose(1, 2).reshape(3, 5, 2, 2)


def golden_patches():
    positive = torch.zeros(3, 3, 4, dtype=torch.bool)
    for image, class_, patches in GOLDEN["annotated"]:
        positive[image, class_, patches] = True
    return positive.view(3, 3, 2, 2)


def filled(classes, dim, **options):
    """Prototypes of the unit axes: class c is axis c."""
    made = Prototypes(classes, dim, **options)
    features = torch.eye(dim)[:classes].T.reshape(1, dim, 1, classes)
    made.add(sum_patches(features, torch.eye(classes, dtype=torch.bool).view(1, classes, 1, classes)))
    made.refresh()
    return made


def test_by_hand():
    """Patches (3, 4) and (0, 2) of class 0: unit vectors (.6, .8) and (0, 1), their sum (.6, 1.8), length sqrt(3.6).

    Similarity of (1, 0): .6 / sqrt(3.6) = .3162; of (0, 1): .9487. Nearest patch: distance 1 - .9487.
    """
    made = Prototypes(2, 2)
    features = torch.tensor([[3.0, 0.0], [4.0, 2.0]]).view(1, 2, 1, 2)
    made.add(sum_patches(features, torch.tensor([[True, True], [False, False]]).view(1, 2, 1, 2)))
    assert made.counts.tolist() == [2.0, 0.0]
    made.refresh()
    np.testing.assert_allclose(made.vectors[0], np.array([0.6, 1.8]) / 3.6**0.5, rtol=1e-6)
    assert made.known.tolist() == [True, False]
    axes = torch.eye(2).view(1, 2, 1, 2)
    assert made.distance(axes)[0, 0].item() == pytest.approx(1 - 1.8 / 3.6**0.5, abs=1e-6)
    assert made.counts.tolist() == [0.0, 0.0]


def test_golden_prototypes_and_pseudo_labels():
    made = Prototypes(3, 5)
    features = golden_features()
    made.add(sum_patches(features, golden_patches()))
    counts = made.counts.clone()
    mean = made.sums / counts.clamp(min=1)[:, None]
    np.testing.assert_allclose(mean, GOLDEN["prototype_mean_of_unit_vectors"], atol=1e-6)
    assert counts.tolist() == GOLDEN["count"]
    made.refresh()
    last = features[2:]
    expected = np.min(np.array(GOLDEN["cos_dist_image2"])[:, :2], axis=0)
    np.testing.assert_allclose(made.distance(last)[0, :2], expected, atol=1e-5)
    for near, far, key in ((0.35, 0.6, "dp_0_35_dn_0_6"), (0.05, 0.2, "dp_0_05_dn_0_2")):
        expected = [STATES[value] for value in GOLDEN[f"pseudo_label_{key}"]]
        assert made.pseudo_labels(last, near, far)[0].tolist() == expected


def test_near_far_and_between():
    """Image 0 is class 0's axis, image 1 halfway between the axes (distance 1 - sqrt(.5) = .29) of both."""
    made = filled(2, 2)
    features = torch.tensor([[1.0, 0.0], [1.0, 1.0]]).view(2, 2, 1, 1)
    found = made.pseudo_labels(features, near=0.2, far=0.5)
    assert found.dtype == torch.int8
    assert found.tolist() == [[Label.POSITIVE, Label.NEGATIVE], [Label.UNKNOWN, Label.UNKNOWN]]
    assert made.pseudo_labels(features, 0.3, 0.5)[1].tolist() == [Label.POSITIVE, Label.POSITIVE]
    assert made.pseudo_labels(features, 0.1, 0.2)[1].tolist() == [Label.NEGATIVE, Label.NEGATIVE]


def test_one_near_patch_is_enough_and_one_far_patch_is_not():
    made = filled(1, 2)
    both = torch.tensor([[1.0, 0.0], [0.0, 1.0]]).view(1, 2, 1, 2)  # one patch on the axis, one across
    assert made.pseudo_labels(both, 0.1, 0.5).item() == Label.POSITIVE


def test_a_class_with_too_few_patches_has_no_prototype_and_is_never_labelled():
    made = filled(2, 2, min_count=2)
    assert made.known.tolist() == [False, False]
    assert (made.pseudo_labels(randn(3, 2, 2, 2), 1.0, 0.5) == Label.UNKNOWN).all()


def test_the_length_of_features_does_not_matter():
    features, positive = randn(2, 4, 2, 2), randn(2, 3, 2, 2, seed=1) > 0
    one, other = Prototypes(3, 4), Prototypes(3, 4)
    one.add(sum_patches(features, positive))
    other.add(sum_patches(features * randn(2, 1, 2, 2, seed=2).abs(), positive))
    torch.testing.assert_close(one.sums, other.sums)
    torch.testing.assert_close(unit(features).norm(dim=1), torch.ones(2, 2, 2))


def test_batches_add_up():
    features, positive = randn(4, 5, 2, 2), randn(4, 3, 2, 2, seed=1) > 0.5
    whole, parts = Prototypes(3, 5), Prototypes(3, 5)
    whole.add(sum_patches(features, positive))
    for row in range(4):
        parts.add(sum_patches(features[row : row + 1], positive[row : row + 1]))
    torch.testing.assert_close(parts.sums, whole.sums)
    assert torch.equal(parts.counts, whole.counts)


@pytest.mark.parametrize(("momentum", "expected"), [(0.0, [0.0, 1.0]), (1.0, [1.0, 0.0]), (0.5, [0.5**0.5] * 2)])
def test_refreshing_again(momentum, expected):
    """Class 0 moves from (1, 0) to (0, 1): made anew, kept, or the middle; then an epoch without it changes nothing."""
    made = filled(1, 2, momentum=momentum)
    made.add(sum_patches(torch.tensor([0.0, 1.0]).view(1, 2, 1, 1), torch.ones(1, 1, 1, 1, dtype=torch.bool)))
    for _ in range(2):
        made.refresh()
        np.testing.assert_allclose(made.vectors[0], expected, atol=1e-6)


def test_state_comes_back_in_place():
    made, other = filled(2, 3), Prototypes(2, 3)
    kept = other.vectors
    other.load_state_dict({name: value.clone() for name, value in made.state_dict().items()})
    assert torch.equal(kept, made.vectors)
    with pytest.raises(CheckpointError, match="prototypes"):
        Prototypes(2, 4).load_state_dict(made.state_dict())
