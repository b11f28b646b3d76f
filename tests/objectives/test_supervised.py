"""What objectives share. The losses themselves are tested with `PatchML` and `FixMatch`, which must agree on them."""

import numpy as np
import pytest
import torch

from fewtags.errors import ConfigError
from fewtags.labels import Label, LabelMatrix
from fewtags.objectives.base import RunFacts
from fewtags.objectives.fixmatch import FixMatch
from fewtags.objectives.located import even_patches
from fewtags.objectives.patchml import PatchML
from fewtags.objectives.supervised import (
    class_shares,
    only_fillable,
    pseudo_diagnostics,
    refuse_without_negatives,
    unknown_classes,
)
from fewtags.stores.pseudo import PseudoCount

P, U, N = Label.POSITIVE, Label.UNKNOWN, Label.NEGATIVE


def test_shares_of_the_images_asked():
    """Class 0: two of three; class 1: one of one; class 2: nobody asked."""
    labels = np.array([[P, P, U], [P, U, U], [N, U, U]], np.int8)
    assert class_shares(LabelMatrix.from_dense(labels)).tolist() == pytest.approx([2 / 3, 1, 0])


@pytest.mark.parametrize(
    ("rows", "expected"),
    [
        ([[P, U, U], [U, P, U]], "negative"),
        ([[P, U, U], [U, P, N]], "negative"),
        ([[P, N, U], [U, P, N]], "ignore"),
        ([[P, N, N]], "ignore"),
        ([[U, U, U]], "ignore"),
    ],
)
def test_unknown_classes_count_as_absent_where_fewer_negatives_than_positives_are_known(rows, expected):
    labels = np.array(rows, np.int8)
    assert unknown_classes(int((labels == P).sum()), int((labels == N).sum())) == expected


def test_a_located_patch_weighs_as_much_as_a_map():
    assert even_patches(RunFacts(samples=1, classes=1, grid=(6, 7))).value == (42, 1, 1)


@pytest.mark.parametrize(
    ("fill", "expected"), [("unlabelled", [[U, U], [P, N], [U, U]]), ("unknown", [[U, N], [P, N], [U, U]])]
)
def test_which_cells_may_be_filled(fill, expected):
    """Image 0 has one label, image 1 none, image 2 a negative and a positive one."""
    pseudo = torch.tensor([[P, N]] * 3, dtype=torch.int8)
    labels = torch.tensor([[P, U], [U, U], [N, P]], dtype=torch.int8)
    assert only_fillable(pseudo, labels, fill).tolist() == expected


def test_ratios_without_a_denominator_are_left_out():
    assert pseudo_diagnostics(PseudoCount(3, 0, 0, 4, 2, 1), 2) == {
        "pseudo_positives_per_image": 1.5,
        "pseudo_negatives_per_image": 2.0,
        "pseudo_negative_precision": 0.5,
    }


@pytest.mark.parametrize("method", [PatchML, FixMatch])
def test_class_shares_without_any_negative_are_refused(method):
    """Every share is 1, so every unknown cell would be ignored and every class predicted everywhere."""
    positives = LabelMatrix.from_dense(np.array([[P, U], [U, P]], np.int8))
    selective = method(image_unknown="selective", prior_threshold=0.05)
    with pytest.raises(
        ConfigError, match=r"^objective.prior_threshold=0.05 with image_unknown='selective' needs known neg"
    ):
        refuse_without_negatives(selective, positives)
    refuse_without_negatives(selective, LabelMatrix.from_dense(np.array([[P, N], [U, P]], np.int8)))
    refuse_without_negatives(method(image_unknown="selective"), positives)
    refuse_without_negatives(method(image_unknown="negative", prior_threshold=0.05), positives)
