"""What objectives share. The losses themselves are tested with `PatchML` and `FixMatch`, which must agree on them."""

import numpy as np
import pytest
import torch

from fewtags.labels import Label, LabelMatrix
from fewtags.objectives.supervised import class_shares, only_fillable, pseudo_diagnostics
from fewtags.stores.pseudo import PseudoCount

P, U, N = Label.POSITIVE, Label.UNKNOWN, Label.NEGATIVE


def test_shares_of_the_images_asked():
    """Class 0: two of three; class 1: one of one; class 2: nobody asked."""
    labels = np.array([[P, P, U], [P, U, U], [N, U, U]], np.int8)
    assert class_shares(LabelMatrix.from_dense(labels)).tolist() == pytest.approx([2 / 3, 1, 0])


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
