"""Photos are read ahead, in order."""

import threading

import pytest

from fewtags.photos.threads import AHEAD, read_ahead


@pytest.mark.parametrize("threads", [1, 3])
def test_results_come_in_the_order_of_the_keys(threads):
    """Later keys finish first: each waits for its successor, or, as the last of its batch, for nothing."""
    done = [threading.Event() for _ in range(12)]

    def read(key):
        if threads > 1 and key % 3 != 2:
            assert done[key + 1].wait(30)
        done[key].set()
        return key * key

    batches = [range(0, 3), range(3, 6), range(6, 9), range(9, 12)]
    assert [*read_ahead(read, batches, threads)] == [[key * key for key in batch] for batch in batches]
    assert [*read_ahead(read, [], threads)] == []


def test_batches_are_read_before_they_are_asked_for():
    """While the caller has the first of 10 batches, two more are read, and no others."""
    begun = [threading.Event() for _ in range(20)]
    results = read_ahead(lambda key: begun[key].set(), [(2 * n, 2 * n + 1) for n in range(10)], 2)
    next(results)
    assert all(event.wait(30) for event in begun[: 2 * AHEAD + 2])
    assert not any(event.is_set() for event in begun[2 * AHEAD + 2 :])
    results.close()
    assert not any(event.is_set() for event in begun[2 * AHEAD + 2 :])


def test_an_exception_is_raised_at_its_batch():
    def read(key):
        if key == 3:
            raise ValueError(key)
        return key

    results = read_ahead(read, [(0, 1), (2, 3), (4, 5)], 2)
    assert next(results) == [0, 1]
    with pytest.raises(ValueError, match="3"):
        next(results)
