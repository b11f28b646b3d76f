"""Batches of photos for dense tasks: the photos of every step, read in this process or in workers."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any, Generic, TypeVar, final

from torch.utils.data import Dataset

from fewtags.errors import DataError, FewtagsError
from fewtags.photos.dataset import Failure
from fewtags.photos.workers import WorkerLoader, Workers
from fewtags.seeds import rng

T = TypeVar("T")
Key = tuple[int, int]
"""(epoch, photo)."""
ORDER, CHANGE, HOLD_OUT, HEAD = 0, 1, 104, 103
"""Random streams: order of the photos, augmentation, held-out photos, weights of the heads."""


def batch_keys(photos: int, batch_size: int, iterations: int, seed: int) -> Iterator[list[Key]]:
    """Yield the (epoch, photo) keys of every step. Each epoch is a permutation; batches may span two epochs.

    >>> [len({n for _, n in batch}) for batch in batch_keys(4, 2, 4, seed=0)]
    [2, 2, 2, 2]
    """
    endless = ((epoch, int(n)) for epoch in range(2**62) for n in rng(seed, epoch, 0, ORDER).permutation(photos))
    for _ in range(iterations):
        yield [next(endless) for _ in range(batch_size)]


def read_batches(read: Callable[[int, int], T], keys: Iterable[list[Key]], workers: int = 0) -> Iterator[list[T]]:
    """Yield the results of `read(epoch, photo)` in batches. The number of workers does not change them.

    Args:
        read: called in this process or in the workers.
        keys: keys of each batch.
        workers: processes that read ahead; 0: this process.

    Raises:
        DataError: `read` raised an error.
    """
    loader = WorkerLoader(_Guarded(read), keys, list, Workers(workers))
    for batch in loader:
        for sample in batch:
            if isinstance(sample, Failure):
                raise DataError(sample.message)
        yield batch


@final
@dataclass(frozen=True)
class _Guarded(Dataset[Any], Generic[T]):
    read: Callable[[int, int], T]

    def __getitem__(self, key: Key) -> T | Failure:
        try:
            return self.read(*key)
        except FewtagsError as error:
            return Failure(str(error))
