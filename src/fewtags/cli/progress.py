"""Show the events of a run: a live bar on a terminal, one plain line an epoch when piped. Everything goes to stderr."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

if TYPE_CHECKING:
    from fewtags.engine.events import Event


def stderr() -> Console:
    """A console on stderr that does not wrap or colour when piped."""
    return Console(stderr=True, soft_wrap=True, highlight=False)


def show(events: Iterable[Event], label: str = "") -> None:
    """Consume a run's events and show them."""
    from fewtags.engine.events import EpochEnded, EpochStarted, Started, StepEnded

    console = stderr()
    live = sys.stderr.isatty()
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    epochs, began = 0, time.perf_counter()
    with Progress(*columns, console=console, disable=not live, transient=True) as bar:
        task = bar.add_task(label, total=None)
        for event in events:
            if isinstance(event, Started):
                epochs = event.epochs
                if event.resumed_from is not None:
                    console.print(f"{label}resuming at epoch {event.epoch + 1}/{epochs} from {event.resumed_from}")
                bar.update(task, total=epochs * event.steps_per_epoch)
            elif isinstance(event, EpochStarted):
                bar.update(task, description=f"{label}epoch {event.epoch + 1}/{epochs}")
            elif isinstance(event, StepEnded):
                bar.update(task, completed=event.at.epoch * event.at.steps_per_epoch + event.at.step)
            elif isinstance(event, EpochEnded):
                console.print(f"{label}{epoch_line(event.record, epochs, event.best)}")
    if live:
        console.print(f"{label}{epochs} epochs in {time.perf_counter() - began:.0f} s")


def epoch_line(record: Mapping[str, float | int | str], epochs: int, best: bool) -> str:
    """One line about an epoch.

    >>> epoch_line({"epoch": 0, "stage": "warmup", "train/loss": 0.5, "val/mAP": 0.25, "seconds": 1.0}, 3, True)
    'epoch 1/3 warmup  loss 0.5000  val mAP 25.0 (best so far)  1.0 s'
    """
    parts = [f"epoch {int(record['epoch']) + 1}/{epochs} {record['stage']}", f"loss {float(record['train/loss']):.4f}"]
    shown = {
        "val/mAP": "val mAP",
        "val/hit@1": "val hit@1",
        "val/pessimistic_mAP": "val mAP, unknown counted as absent",
    }
    for key, name in shown.items():
        if key in record:
            parts.append(
                f"{name} {100 * float(record[key]):.1f}{' (best so far)' if best and key == 'val/mAP' else ''}"
            )
    if "train/sum_of_probabilities" in record:
        parts.append(f"predicted positives/image {float(record['train/sum_of_probabilities']):.2f}")
    parts.append(f"{float(record['seconds']):.1f} s")
    return "  ".join(parts)


@contextmanager
def counting(label: str) -> Iterator[Callable[[int, int], None]]:
    """A bar for (done, total) calls on a terminal; silent when piped."""
    with Progress(
        TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), console=stderr(),
        disable=not sys.stderr.isatty(), transient=True,
    ) as bar:  # fmt: skip
        task = bar.add_task(label, total=None)

        def tick(done: int, total: int) -> None:
            bar.update(task, completed=done, total=total or None)

        yield tick
