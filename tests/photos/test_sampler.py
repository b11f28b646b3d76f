"""Which photos are in which batch, for each epoch, rank and start."""

from hypothesis import given
from hypothesis import strategies as st

from fewtags.photos.loader import EpochSampler


def test_batches_of_ten_by_four():
    """Ten samples need three batches of at most four: 4, 3, 3."""
    sampler = EpochSampler(10, 4)
    assert sampler.steps == 3
    assert [len(batch) for batch in sampler.batches(0)] == [4, 3, 3]


def test_two_ranks_of_five_by_four():
    """Even indices belong to rank 0, odd ones to rank 1: five each, 3 + 2."""
    for rank in range(2):
        batches = list(EpochSampler(10, 4, rank=rank, world=2).batches(0))
        assert [len(batch) for batch in batches] == [3, 2]
        assert sorted(index for batch in batches for _, index in batch) == list(range(rank, 10, 2))


def test_no_rank_is_left_without_a_batch():
    """Three samples on two ranks, one by one: rank 0 has two, rank 1 has one, so there can be only one step."""
    ranks = [EpochSampler(3, 1, rank=rank, world=2) for rank in range(2)]
    assert [sampler.steps for sampler in ranks] == [1, 1]
    assert [[len(batch) for batch in sampler.batches(0)] for sampler in ranks] == [[2], [1]]


samplers = st.builds(
    lambda world, more, size, seed: (world, world + more, size, seed),
    st.integers(1, 5),
    st.integers(0, 60),
    st.integers(1, 20),
    st.integers(0, 2**64 - 1),
)


@given(samplers, st.integers(0, 1000))
def test_every_sample_once_per_epoch_on_its_own_rank(case, epoch):
    world, samples, size, seed = case
    ranks = [EpochSampler(samples, size, seed, rank=rank, world=world) for rank in range(world)]
    assert len({sampler.steps for sampler in ranks}) == 1
    seen = []
    for rank, sampler in enumerate(ranks):
        batches = list(sampler.batches(epoch))
        assert len(batches) == sampler.steps
        sizes = [len(batch) for batch in batches]
        assert 1 <= min(sizes) <= max(sizes) <= min(sizes) + 1
        assert max(sizes) <= size + (size == 1)
        assert all(pair[0] == epoch for batch in batches for pair in batch)
        mine = [index for batch in batches for _, index in batch]
        assert all(index % world == rank for index in mine)
        seen += mine
    assert sorted(seen) == list(range(samples))


@given(samplers, st.integers(0, 1000), st.integers(0, 30))
def test_starting_later_gives_the_rest(case, epoch, start):
    world, samples, size, seed = case
    sampler = EpochSampler(samples, size, seed, rank=world - 1, world=world)
    assert list(sampler.batches(epoch, start)) == list(sampler.batches(epoch))[start:]


def test_epochs_and_seeds_have_their_own_order():
    orders = {
        tuple(index for batch in EpochSampler(20, 3, seed).batches(epoch) for _, index in batch)
        for seed in range(3)
        for epoch in range(3)
    }
    assert len(orders) == 9
