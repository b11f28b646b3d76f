"""Photos of dense tasks in batches: which ones in which step, and read by whom."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any, Generic, TypeVar, cast, final

import torch
from torch.utils.data import DataLoader, Dataset

from fewtags.errors import DataError, FewtagsError
from fewtags.photos.dataset import Failure
from fewtags.seeds import rng

T = TypeVar("T")
Key = tuple[int, int]
"""(epoch, photo)."""
ORDER, CHANGE, HOLD_OUT, HEAD = 0, 1, 104, 103
"""Streams of random numbers: the order of the photos, how each is changed, which are held out, the heads' weights."""


def draws(photos: int, batch_size: int, iterations: int, seed: int) -> Iterator[list[Key]]:
    """The samples of every step. Each epoch is a permutation of its own; batches run on across its end.

    >>> [len({n for _, n in batch}) for batch in draws(4, 2, 4, seed=0)]
    [2, 2, 2, 2]
    """
    endless = ((epoch, int(n)) for epoch in range(2**62) for n in rng(seed, epoch, 0, ORDER).permutation(photos))
    for _ in range(iterations):
        yield [next(endless) for _ in range(batch_size)]


def read_batches(read: Callable[[int, int], T], keys: Iterable[list[Key]], workers: int = 0) -> Iterator[list[T]]:
    """What `read(epoch, photo)` gives, batch by batch; the number of workers changes nothing else.

    Args:
        read: called in this process or in others.
        keys: of each batch.
        workers: processes that read ahead; 0 reads in this one.

    Raises:
        DataError: what `read` raised.
    """
    loader: DataLoader[Any] = DataLoader(
        _Guarded(read),
        batch_sampler=cast("Any", keys),
        collate_fn=list,
        num_workers=workers,
        # Workers get a seed that nobody uses; drawing it must not advance the global generator.
        generator=torch.Generator(),
    )
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
