"""Concurrent requests share batches; errors, limits and the end."""

import threading

import pytest

from fewtags.serve.batcher import Batcher, BusyError, ClosedError


def test_items_that_wait_share_a_batch():
    """While the first item is computed, five more gather: batches of 1, 4 (the largest) and 1."""
    began, go, seen = threading.Event(), threading.Event(), []

    def double(items):
        seen.append([*items])
        began.set()
        assert go.wait(10)
        return [2 * item for item in items]

    batcher = Batcher(double, largest=4, waiting=10)
    futures = [batcher.submit(0)]
    assert began.wait(10)
    futures += [batcher.submit(n) for n in range(1, 6)]
    go.set()
    assert [future.result(10) for future in futures] == [0, 2, 4, 6, 8, 10]
    assert seen == [[0], [1, 2, 3, 4], [5]]
    assert batcher.batches == [1, 4, 1]
    batcher.close()


def test_too_many_items_are_refused_and_the_end_finishes_the_others():
    began, go = threading.Event(), threading.Event()

    def slow(items):
        began.set()
        assert go.wait(10)
        return items

    batcher = Batcher(slow, largest=1, waiting=2)
    futures = [batcher.submit(0)]
    assert began.wait(10)
    futures += [batcher.submit(1), batcher.submit(2)]
    with pytest.raises(BusyError, match="too many photos wait"):
        batcher.submit(3)
    closing = threading.Thread(target=batcher.close)
    closing.start()
    go.set()
    closing.join(10)
    assert [future.result(0) for future in futures] == [0, 1, 2]
    with pytest.raises(ClosedError):
        batcher.submit(4)


def test_an_error_reaches_its_batch_only_and_given_up_items_are_skipped():
    def fail_on_zero(items):
        return [1 // item for item in items]

    batcher = Batcher(fail_on_zero, largest=1, waiting=4)
    with pytest.raises(ZeroDivisionError):
        batcher.submit(0).result(10)
    assert batcher.submit(1).result(10) == 1
    batcher.close()
