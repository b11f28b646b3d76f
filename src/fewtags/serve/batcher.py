"""One thread that runs the model, on all photos that wait together."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from typing import Generic, TypeVar, final

from fewtags.errors import FewtagsError

Item = TypeVar("Item")
Result = TypeVar("Result")


class BusyError(FewtagsError):
    """Too many photos wait already."""


class ClosedError(FewtagsError):
    """The service ends, and takes no more photos."""


@final
class Batcher(Generic[Item, Result]):
    """Calls a function with as many items as wait, so that concurrent requests share a batch.

    Nobody waits for a batch to fill: while the function runs, the next items gather.

    Args:
        function: from a batch to one result for each item; called in one thread only.
        largest: items in a batch at most.
        waiting: items that may wait at most.
    """

    def __init__(self, function: Callable[[Sequence[Item]], Sequence[Result]], *, largest: int, waiting: int) -> None:
        self._function, self._largest = function, largest
        self._queue: queue.Queue[tuple[Item, Future[Result]] | None] = queue.Queue(waiting)
        self._lock = threading.Lock()
        self._closed = False
        self.batches: list[int] = []
        """Sizes of the latest batches."""
        self._thread = threading.Thread(target=self._run, name="model", daemon=True)
        self._thread.start()

    def submit(self, item: Item) -> Future[Result]:
        """Add an item.

        Raises:
            BusyError: too many items wait.
            ClosedError: `close` was called.
        """
        future: Future[Result] = Future()
        with self._lock:
            if self._closed:
                raise ClosedError("the service is ending; ask again in a moment.")
            try:
                self._queue.put_nowait((item, future))
            except queue.Full:
                raise BusyError("too many photos wait; ask again in a moment.") from None
        return future

    def close(self) -> None:
        """Finish the items that wait, then end the thread."""
        with self._lock:
            if self._closed:
                return
            self._closed = True
        self._queue.put(None)
        self._thread.join()

    def _run(self) -> None:
        going = True
        while going:
            taken = [self._queue.get()]
            while len(taken) < self._largest and taken[-1] is not None:
                try:
                    taken.append(self._queue.get_nowait())
                except queue.Empty:
                    break
            going = taken[-1] is not None
            # A request may have been given up while it waited.
            batch = [one for one in taken if one is not None and one[1].set_running_or_notify_cancel()]
            if not batch:
                continue
            self.batches = [*self.batches[-99:], len(batch)]
            try:
                results = self._function([item for item, _ in batch])
            except Exception as error:  # goes to whoever asked
                for _, future in batch:
                    future.set_exception(error)
            else:
                for (_, future), result in zip(batch, results, strict=True):
                    future.set_result(result)
