"""Worker processes that make batches, and the ways in which they fail.

torch passes tensors from worker processes through shared memory (/dev/shm on Linux). Containers often have only 64 MiB
of it (Docker's default). When it is full, the batch is lost and the main process waits forever. Here, batches go
through pipes if shared memory is too small for them, a wait ends after `TIMEOUT` seconds, and the failure of a worker
is one sentence.
"""

from __future__ import annotations

import ast
import multiprocessing
import pickle
import sys
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, final

import torch
from torch.utils.data import DataLoader, Dataset

from fewtags.photos.worker_failures import SHARED_MEMORY, TIMEOUT, free_shared_memory, worker_errors

TYPICAL_BATCH = 64 * 2**20
"""Bytes of a batch whose size is not known."""


@final
@dataclass(frozen=True)
class Workers:
    """How batches are made: in this process, or ahead of time in others. The batches are the same.

    Attributes:
        count: worker processes; 0: this process.
        prefetch: batches that each worker prepares ahead.
        pin_memory: put batches into page-locked memory, for faster copies to a GPU.
    """

    count: int = 0
    prefetch: int = 2
    pin_memory: bool = False


def shared_memory_is_short(workers: Workers, batch_bytes: int = TYPICAL_BATCH) -> bool:
    """Whether the batches that can exist at a time fill more than half of the free shared memory.

    Other loaders and other programs need some, too.
    """
    free = free_shared_memory()
    # Every worker has `prefetch` batches waiting and one in the making, and one is in use.
    return (
        workers.count > 0 and free is not None and (workers.count * (workers.prefetch + 1) + 1) * batch_bytes > free / 2
    )


def shared_memory_notes(workers: Workers, batch_bytes: int) -> list[str]:
    """A sentence for the user if batches have to go through pipes; else nothing."""
    if not shared_memory_is_short(workers, batch_bytes):
        return []
    free = (free_shared_memory() or 0) / 2**20
    return [
        f"note: shared memory ({SHARED_MEMORY}) has {free:,.0f} MiB free, too little for the batches of "
        f"{workers.count} worker processes; batches go through pipes, which is slower. In Docker: --shm-size=1g"
    ]


@final
class WorkerLoader:
    """A torch `DataLoader` over given batches of keys, whose failures are a `WorkerError`.

    Args:
        data: returns a sample for a key.
        batches: yields the keys of each batch.
        collate: makes a batch of samples, in the worker.
        workers: how many, and what they prepare; None: this process makes the batches.
        persistent: workers stay for the next iteration.
        batch_bytes: size of the largest batch.
    """

    def __init__(
        self,
        data: Dataset[Any],
        batches: Any,
        collate: Callable[[Any], Any],
        workers: Workers | None = None,
        *,
        persistent: bool = False,
        batch_bytes: int = TYPICAL_BATCH,
    ) -> None:
        workers = workers or Workers()
        if workers.count and not workers_can_start():
            warnings.warn(
                "photos are read without worker processes, because here these would run your script a second time. Put "
                'the code of the script below `if __name__ == "__main__":`, or set workers = 0.',
                UserWarning,
                stacklevel=2,
            )
            workers = Workers()
        busy = workers.count > 0
        self._pickled = shared_memory_is_short(workers, batch_bytes)
        with _without_advice():
            self._loader: DataLoader[Any] = DataLoader(
                data,
                batch_sampler=batches,
                collate_fn=_Pickled(collate) if self._pickled else collate,
                num_workers=workers.count,
                prefetch_factor=workers.prefetch if busy else None,
                persistent_workers=persistent and busy,
                pin_memory=workers.pin_memory,
                timeout=TIMEOUT if busy else 0,
                # Workers get a seed that nobody uses; drawing it must not advance the global generator.
                generator=torch.Generator(),
            )

    def __len__(self) -> int:
        return len(self._loader)

    def __iter__(self) -> Iterator[Any]:
        with worker_errors():
            with _without_advice():
                batches = iter(self._loader)
            for batch in batches:
                yield pickle.loads(batch) if self._pickled else batch  # from our own worker


@contextmanager
def _without_advice() -> Iterator[None]:
    """Silence what torch says about more workers than cores: the number is the user's, and the plan shows it."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="This DataLoader will create")
        yield


@final
@dataclass(frozen=True)
class _Pickled:
    """Makes the bytes of a batch: bytes go through a pipe, tensors through shared memory."""

    collate: Callable[[Any], Any]

    def __call__(self, samples: Any) -> bytes:
        return pickle.dumps(self.collate(samples), pickle.HIGHEST_PROTOCOL)


# --- start of workers


def workers_can_start() -> bool:
    """Whether worker processes can start without running the user's script a second time.

    Where processes are not forked (macOS, Windows, Python 3.14 and later), each of them imports the main script. A
    script without `if __name__ == "__main__":` would then start the whole run again in every worker.
    """
    if multiprocessing.get_start_method() == "fork":
        return True
    main = sys.modules["__main__"]
    path = getattr(main, "__file__", None)
    if getattr(main, "__spec__", None) is not None or path is None:  # python -m, or an interactive session
        return True
    try:
        statements = ast.parse(Path(path).read_bytes()).body
    except (OSError, SyntaxError, ValueError):  # for example "<stdin>", which workers cannot import
        return False
    return any(isinstance(one, ast.If) and "__name__" in ast.dump(one.test) for one in statements)
