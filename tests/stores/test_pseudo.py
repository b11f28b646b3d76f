"""Pseudo-labels: kept by sample, counted, and judged where the truth is known."""

import numpy as np
import torch

from fewtags.labels import Label, LabelMatrix
from fewtags.stores.pseudo import PseudoCount, PseudoLabels
from fewtags.stores.shard import Shard

P, U, N = Label.POSITIVE, Label.UNKNOWN, Label.NEGATIVE


def int8(rows):
    return torch.tensor(rows, dtype=torch.int8)


def test_by_hand():
    """Written twice: the second one counts. Image 2 is never written.

    Positives: (0, 0) true, (0, 1) false, (1, 2) of unknown truth. Negatives: (1, 0) true.
    """
    made = PseudoLabels(3, 3)
    made.write(torch.tensor([1]), int8([[P, P, P]]))
    made.write(torch.tensor([0, 1]), int8([[P, P, U], [N, U, P]]))
    assert made.values.tolist() == [[P, P, U], [N, U, P], [U, U, U]]
    truth = LabelMatrix.from_dense(np.array([[1, -1, -1], [-1, 1, 0], [1, 1, 1]], np.int8))
    assert made.judge(truth) == PseudoCount(3, 2, 1, 1, 1, 1)
    assert made.judge(None) == PseudoCount(3, 0, 0, 1, 0, 0)


def test_in_blocks_as_at_once(monkeypatch):
    draw = np.random.default_rng(0)
    values, truth = (draw.integers(-1, 2, (11, 4)).astype(np.int8) for _ in range(2))
    made = PseudoLabels(11, 4)
    made.write(torch.arange(11), torch.from_numpy(values))
    monkeypatch.setattr("fewtags.stores.pseudo.ROWS_AT_ONCE", 3)
    expected = [
        part
        for state in (1, -1)
        for part in (values == state, (values == state) & (truth != 0), (values == state) & (truth == state))
    ]
    assert made.judge(LabelMatrix.from_dense(truth)) == tuple(cells.sum() for cells in expected)


def test_a_process_keeps_its_own_rows():
    made = PseudoLabels(5, 2, shard=Shard(1, 2))
    assert made.values.shape == (2, 2)
    made.write(torch.tensor([3]), int8([[P, N]]))
    assert made.values.tolist() == [[U, U], [P, N]]


def test_state_comes_back_in_place():
    made, other = PseudoLabels(2, 2), PseudoLabels(2, 2)
    made.write(torch.tensor([1]), int8([[P, N]]))
    kept = other.values
    other.load_state_dict({name: value.clone() for name, value in made.state_dict().items()})
    assert kept.tolist() == [[U, U], [P, N]]
