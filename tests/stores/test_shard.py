import pytest
import torch

from fewtags.stores.shard import SINGLE_PROCESS, Shard


@pytest.mark.parametrize("samples", [0, 1, 2, 3, 7, 8])
@pytest.mark.parametrize("world", [1, 2, 3])
def test_every_row_has_exactly_one_owner(samples, world):
    owned = [Shard(rank, world).owned(samples) for rank in range(world)]
    assert sorted(torch.cat(owned).tolist()) == list(range(samples))
    for rank, index in enumerate(owned):
        assert len(index) == Shard(rank, world).rows(samples)
        assert Shard(rank, world).local(index).tolist() == list(range(len(index)))


def test_a_row_of_another_rank_is_our_own_bug():
    with pytest.raises(AssertionError, match="rank=1"):
        Shard(1, 2).local(torch.tensor([1, 2]))


def test_gather_of_one_process_copies_nothing():
    rows = torch.arange(6.0).view(3, 2)
    assert SINGLE_PROCESS.gather(rows, 3) is rows
    assert SINGLE_PROCESS.collect(rows, 3, 0) is rows


def test_concatenating_of_one_process_copies_nothing():
    rows = torch.arange(6.0).view(3, 2)
    together, first = SINGLE_PROCESS.concatenate(rows)
    assert together is rows
    assert first == 0
