"""Show progress on stderr, for commands and Python: a live bar on a terminal or in a notebook, plain lines otherwise.

A notebook shows the bar if ipywidgets is installed, which rich needs there.
"""

from __future__ import annotations

import math
import os
import sys
import time
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping
from contextlib import closing, contextmanager
from importlib.util import find_spec
from itertools import chain
from typing import TYPE_CHECKING

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from fewtags.text import printable

if TYPE_CHECKING:
    from fewtags.engine.events import Event, Noted
    from fewtags.photos.scan import Tick

# Seconds between progress lines if there is no bar.
PLAIN_EVERY = 30.0
# For more items than MANY, the total time is estimated after SAMPLE of them.
MANY, SAMPLE = 200_000, 2_000


def is_main_process() -> bool:
    """Whether this is the only process, or rank 0 of those that `torchrun` or `accelerate launch` started."""
    return os.environ.get("RANK", "0") == "0"


def say(*lines: str) -> None:
    """Print plain lines on stderr, if there is one, from the main process only."""
    for line in lines if is_main_process() and sys.stderr is not None else ():
        print(printable(line), file=sys.stderr, flush=True)


def _bar(live: bool) -> Progress:
    columns = (TextColumn("{task.description}", markup=False), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    console = Console(stderr=True, soft_wrap=True, highlight=False, markup=False)
    return Progress(*columns, console=console, disable=not live, transient=True)


def _live() -> bool:
    if not is_main_process() or sys.stderr is None:
        return False
    return sys.stderr.isatty() or (Console(stderr=True).is_jupyter and find_spec("ipywidgets") is not None)


def watch(
    start: Callable[[Tick], Iterator[Event]], *, features: bool = True, quiet: bool = False
) -> Generator[Event, None, None]:
    """Start or resume a run, and yield its events while they are shown; nothing is printed if `quiet`.

    The argument of `start` shows the progress before training begins: `features` says whether features are computed.
    """
    from fewtags.engine.events import Noted

    with counting("computing features of the frozen trunk", quiet=quiet or not features) as tick:
        events = start(tick)
        for first in events:
            if not isinstance(first, Noted):
                break
            if not quiet:
                say(note_line(first))
            yield first
    with closing(shown(chain([first], events), quiet=quiet)) as seen:
        yield from seen


def show(events: Iterable[Event], label: str = "") -> None:
    """Consume the events of a run and show them; each line starts with `label`."""
    for _ in shown(events, label):
        pass


def shown(events: Iterable[Event], label: str = "", *, quiet: bool = False) -> Generator[Event, None, None]:
    """Yield events, and show each of them first; each line starts with `label`."""
    from fewtags.engine.events import EpochEnded, EpochStarted, Noted, Started, StepEnded

    if quiet:
        yield from events
        return
    epochs, live = 0, _live()
    with _bar(live) as bar:
        # With a live bar, lines must be printed through its console.
        line = (lambda text: bar.console.print(printable(text))) if live else say
        task = bar.add_task(label, total=None)
        for event in events:
            if isinstance(event, Started):
                epochs = event.epochs
                if event.resumed_from is not None:
                    line(f"{label}resuming at epoch {event.epoch + 1}/{epochs} from {event.resumed_from}")
                bar.update(task, total=epochs * event.steps_per_epoch)
            elif isinstance(event, EpochStarted):
                bar.update(task, description=f"{label}epoch {event.epoch + 1}/{epochs}")
            elif isinstance(event, StepEnded):
                bar.update(task, completed=event.at.epoch * event.at.steps_per_epoch + event.at.step)
            elif isinstance(event, Noted):
                line(f"{label}{note_line(event)}")
            elif isinstance(event, EpochEnded):
                line(f"{label}{epoch_line(event.record, epochs, event.best)}")
            yield event


def note_line(note: Noted) -> str:
    """Describe a message in one line.

    >>> from fewtags.engine.events import Noted
    >>> note_line(Noted("the loss rises"))
    'warning: the loss rises'
    """
    return f"{'warning: ' if note.warning else ''}{note.text}"


def epoch_line(record: Mapping[str, float | int | str], epochs: int, best: bool) -> str:
    """Describe an epoch in one line.

    >>> epoch_line({"epoch": 0, "stage": "warmup", "train/loss": 0.5, "val/mAP": 0.25, "seconds": 1.0}, 3, True)
    'epoch 1/3 warmup  loss 0.5000  val mAP 25.0 (best so far)  1.0 s'
    """
    parts = [f"epoch {int(record['epoch']) + 1}/{epochs} {record['stage']}"]
    if "logit_variance" in record:
        parts.append(f"logit variance {float(record['logit_variance']):g}")
    if "answer_weight" in record:
        parts.append(f"answer weight {float(record['answer_weight']):g}")
    parts.append(f"loss {float(record['train/loss']):.4f}")
    shown = {
        "val/mAP": "val mAP",
        "val/hit@1": "val hit@1",
        "val/pessimistic_mAP": "val mAP, unknown counted as absent",
    }
    for key, name in shown.items():
        if key in record and math.isfinite(float(record[key])):
            mark = " (best so far)" if best and key != "val/hit@1" else ""
            parts.append(f"{name} {100 * float(record[key]):.1f}{mark}")
    if "train/sum_of_probabilities" in record:
        parts.append(f"predicted positives/image {float(record['train/sum_of_probabilities']):.2f}")
    if "train/spread" in record:
        parts.append(f"spread {float(record['train/spread']):.2f}")
    if "state/neighbour_purity" in record:
        purity, chance = (100 * float(record[f"state/neighbour_{key}"]) for key in ("purity", "chance"))
        parts.append(f"neighbours that share a class {purity:.0f} % (chance {chance:.0f} %)")
    parts.append(f"{float(record['seconds']):.1f} s")
    return "  ".join(parts)


@contextmanager
def counting(label: str, quiet: bool = False, faster: str = "") -> Iterator[Callable[[int, int], None]]:
    """Yield a function to call with items done and to do; show a bar, or a plain line every 30 s without a terminal.

    If there are very many items, the estimated time is printed with the hint `faster`.
    """
    live, began = _live() and not quiet, time.perf_counter()
    last_line, estimated = began, False
    with _bar(live) as bar:
        task = bar.add_task(label, total=None)

        def tick(done: int, total: int) -> None:
            nonlocal last_line, estimated
            bar.update(task, completed=done, total=total or None)
            if faster and not estimated and total > MANY and done >= SAMPLE:
                estimated = True
                minutes = (time.perf_counter() - began) * total / done / 60
                line = bar.console.print if live else say
                line(f"{label}: {total:,} will take about {max(1, round(minutes)):,} min; {faster}")
            if not live and not quiet and time.perf_counter() - last_line >= PLAIN_EVERY:
                last_line = time.perf_counter()
                left = (last_line - began) * (total - done) / done if total and done else 0.0
                say(f"{label}: {done:,}" + (f" of {total:,}, about {left:.0f} s left" if left else ""))

        yield tick
