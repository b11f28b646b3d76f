import pytest

from fewtags.errors import DataError
from fewtags.transfer.dense.batches import batch_keys, read_batches


def square(epoch, n):
    return epoch, n * n


def broken(epoch, n):
    if n == 2:
        raise DataError(f"photo {n} is broken.")
    return n


def test_every_epoch_is_a_permutation_and_batches_run_on():
    """5 photos, batches of 3: 15 samples are epochs 0, 1 and 2, each with every photo once."""
    flat = [key for batch in batch_keys(5, 3, 5, seed=1) for key in batch]
    assert [epoch for epoch, _ in flat] == [0] * 5 + [1] * 5 + [2] * 5
    orders = [[n for e, n in flat if e == epoch] for epoch in range(3)]
    assert all(sorted(order) == [0, 1, 2, 3, 4] for order in orders)
    assert len({tuple(order) for order in orders}) > 1


def test_the_order_depends_on_the_seed_alone():
    assert list(batch_keys(9, 4, 3, seed=0)) == list(batch_keys(9, 4, 3, seed=0))
    assert list(batch_keys(9, 4, 3, seed=0)) != list(batch_keys(9, 4, 3, seed=1))
    assert list(batch_keys(9, 4, 3, seed=0)) == list(batch_keys(9, 4, 5, seed=0))[:3]


@pytest.mark.parametrize("workers", [0, 1])
def test_batches_are_the_results_of_read(workers):
    keys = [[(0, 1), (0, 3)], [(1, 2)]]
    assert list(read_batches(square, keys, workers)) == [[(0, 1), (0, 9)], [(1, 4)]]


@pytest.mark.parametrize("workers", [0, 1])
def test_an_error_keeps_its_message(workers):
    batches = read_batches(broken, [[(0, 1)], [(0, 2)]], workers)
    assert next(batches) == [1]
    with pytest.raises(DataError, match=r"^photo 2 is broken\.$"):
        next(batches)
