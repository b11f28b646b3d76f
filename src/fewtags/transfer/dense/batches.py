"""Steps of dense trainings: the photos of every step, read in this process or in workers, and the optimiser step."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Generic, TypeVar, final

import torch
from torch.utils.data import Dataset

from fewtags.errors import DataError, FewtagsError, TrainingError
from fewtags.photos.dataset import Failure
from fewtags.photos.workers import WorkerLoader, Workers
from fewtags.seeds import rng

T = TypeVar("T")
Key = tuple[int, ...]
"""Arguments of a function that reads a photo: (epoch, photo) in training, (photo,) in tests."""
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


def read_batches(read: Callable[..., T], keys: Iterable[Sequence[Key]], workers: int = 0) -> Iterator[list[T]]:
    """Yield the results of `read(*key)` in batches. `workers` processes read ahead; they do not change the results.

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
    read: Callable[..., T]

    def __getitem__(self, key: Key) -> T | Failure:
        try:
            return self.read(*key)
        except FewtagsError as error:
            return Failure(str(error))


def take_step(optimizer: torch.optim.Optimizer, loss: torch.Tensor, step: int, lr: float) -> float:
    """Take one optimiser step at a learning rate; return the loss, or raise `TrainingError` if it is not finite."""
    for group in optimizer.param_groups:
        group["lr"] = lr
    optimizer.zero_grad(set_to_none=True)
    loss.backward()
    optimizer.step()
    value = loss.item()
    if not math.isfinite(value):
        raise TrainingError(f"the loss of step {step + 1} is {value}; lower the learning rate.")
    return value
