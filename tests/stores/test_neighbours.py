"""Neighbours of every image, and how many of them stay."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from fewtags.errors import CheckpointError
from fewtags.stores.neighbours import NO_NEIGHBOUR, Neighbours, agreement
from fewtags.stores.shard import Shard


def int64(values):
    return torch.tensor(values, dtype=torch.int64)


def test_what_is_written_is_read():
    """Five images, two neighbours each; the last one that is written counts, and nobody is -1."""
    neighbours = Neighbours(5, 2)
    assert neighbours.read(torch.arange(5)).tolist() == [[NO_NEIGHBOUR, NO_NEIGHBOUR]] * 5
    neighbours.write(int64([3, 0]), int64([[1, 4], [2, NO_NEIGHBOUR]]))
    neighbours.write(int64([0]), int64([[4, 1]]))
    assert neighbours.read(int64([0, 1, 3])).tolist() == [[4, 1], [-1, -1], [1, 4]]
    assert neighbours.read(int64([0])).dtype == torch.int64


def test_a_process_keeps_its_own_rows():
    """Images 1, 3, 5 of 6 belong to the second of two processes; neighbours are global numbers."""
    neighbours = Neighbours(6, 1, shard=Shard(1, 2))
    neighbours.write(int64([5, 1]), int64([[4], [2]]))
    assert neighbours.ids.tolist() == [[2], [NO_NEIGHBOUR], [4]]
    assert neighbours.read(int64([5])).tolist() == [[4]]
    with pytest.raises(AssertionError, match="rank=1"):
        neighbours.read(int64([4]))


def test_state_comes_back_in_place():
    one, other = Neighbours(3, 2), Neighbours(3, 2)
    one.write(int64([1]), int64([[2, 0]]))
    kept = other.ids
    other.load_state_dict({name: value.clone() for name, value in one.state_dict().items()})
    assert kept.tolist() == [[-1, -1], [2, 0], [-1, -1]]
    with pytest.raises(
        CheckpointError, match=r"neighbours\.ids is int32 \[3, 2\] in the checkpoint and int32 \[3, 1\]"
    ):
        Neighbours(3, 1).load_state_dict(one.state_dict())


def test_agreement_by_hand():
    """First image: of 1, 2 and nobody, 1 and 2 are there and 2 was chosen. Second: of 3, 4, 5 only 4 is there: chosen.

    Could be met again: (2 + 1) / 2; were: (1 + 1) / 2.
    """
    met, kept = agreement(int64([[1, 2, -1], [3, 4, 5]]), int64([[2, 7], [4, -1]]), int64([1, 2, 4, 7, -1]))
    assert (met.item(), kept.item()) == (1.5, 1.0)


def test_at_first_nobody_is_met():
    """Empty slots are -1 too, which is nobody and no neighbour."""
    met, kept = agreement(int64([[-1, -1]]), int64([[-1, 3]]), int64([-1, 3]))
    assert (met.item(), kept.item()) == (0, 0)


@given(st.integers(1, 4), st.integers(1, 4), st.integers(1, 4), st.integers(0, 2**32 - 1))
def test_agreement_is_that_of_sets(images, before, now, seed):
    rng = np.random.default_rng(seed)

    def chosen(count):
        """Distinct numbers per image, some of them nobody."""
        rows = np.stack([rng.permutation(9)[:count] for _ in range(images)])
        return np.where(rng.random(rows.shape) < 0.3, NO_NEIGHBOUR, rows)

    old, new = chosen(before), chosen(now)
    there = rng.choice(np.arange(-1, 9), size=rng.integers(0, 6))
    sets = [({*a} - {NO_NEIGHBOUR}, {*b}) for a, b in zip(old.tolist(), new.tolist(), strict=True)]
    met, kept = agreement(*(torch.from_numpy(np.asarray(rows, np.int64)) for rows in (old, new, there)))
    assert met.item() == pytest.approx(np.mean([len(a & {*there.tolist()}) for a, _ in sets]))
    assert kept.item() == pytest.approx(np.mean([len(a & b) for a, b in sets]))
