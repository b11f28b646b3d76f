"""Read photos ahead in threads, while the net works on the batch before."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TypeVar

_Key = TypeVar("_Key")
_Result = TypeVar("_Result")
AHEAD = 2
"""Batches that are read ahead."""


def read_ahead(
    read: Callable[[_Key], _Result], batches: Iterable[Iterable[_Key]], threads: int
) -> Iterator[list[_Result]]:
    """Yield the results of `read` for each batch of keys, in order. `threads` read while the caller works.

    Pillow decodes and resizes without the interpreter lock, so that threads do the work of processes without copies.
    An exception of `read` is raised at its batch.
    """
    pool = ThreadPoolExecutor(threads, "fewtags-decode")
    try:
        waiting: deque[list[Future[_Result]]] = deque()
        for keys in batches:
            waiting.append([pool.submit(read, key) for key in keys])
            if len(waiting) > AHEAD:
                yield [future.result() for future in waiting.popleft()]
        while waiting:
            yield [future.result() for future in waiting.popleft()]
    finally:
        # Ctrl-C, or a caller that stops early, must not wait for the remaining photos.
        pool.shutdown(cancel_futures=True)
