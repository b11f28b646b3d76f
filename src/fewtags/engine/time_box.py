"""Fit a run into a number of minutes: measure this machine, and choose how many epochs of fine-tuning there are."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from copy import deepcopy
from dataclasses import dataclass
from itertools import cycle, islice
from typing import final

import torch

from fewtags.config.presets import MOST_CELLS, SOLVED, Candidate, Resolved, rescaled
from fewtags.engine.autocast import Autocast
from fewtags.engine.machine import torch_device
from fewtags.engine.model import make_policy
from fewtags.engine.tables import Tables
from fewtags.errors import ConfigError
from fewtags.nets.freezing import freeze
from fewtags.nets.spatial import SpatialNet
from fewtags.photos.dataset import PhotoFolder, TrainSet
from fewtags.table.table import LabelTable
from fewtags.text import counted, named

LEAST_EPOCHS = 2
"""With fewer epochs of fine-tuning, its learning rate falls before the net has changed."""
RESERVE = 0.85
"""Share of the time that is planned; the rest is for the report, and for a machine that is busier later."""
DECODED = 16  # photos whose decoding is measured


@final
@dataclass(frozen=True)
class Speed:
    """Wall-clock seconds for a photo on this machine: decoding by one process, the net forward, and in a step."""

    decoding: float
    forward: float
    step: float


def measure_speed(net: SpatialNet, resolved: Resolved, train: LabelTable, *, cpu: bool = False) -> Speed:
    """Time a few photos, and two steps of the last stage on random pixels. The net is not changed."""
    photos = TrainSet(
        photos=PhotoFolder(train.require_root(), train.images),
        labels=train.matrix,
        policy=make_policy(resolved.policy, resolved.size, resolved.min_area, resolved.flip, resolved.max_area),
        seed=resolved.seed,
    )
    began = time.perf_counter()
    for index in islice(cycle(range(len(train))), DECODED):
        photos[0, index]
    decoding = (time.perf_counter() - began) / DECODED
    device, size = torch_device(cpu), resolved.size
    own = deepcopy(net).to(device).to(memory_format=torch.channels_last)
    generator = torch.Generator().manual_seed(0)
    images = torch.randn(resolved.batch_size, 3, size, size, generator=generator)
    images = images.to(device, memory_format=torch.channels_last)
    freeze(own, resolved.stages[-1].trainable, batchnorm_eval=resolved.batchnorm_eval)
    model = Autocast(own, device.type, resolved.precision)

    def step() -> None:
        model(images).logits.float().square().mean().backward()

    def forward() -> None:
        with torch.no_grad():
            model(images)

    own.train()
    step_seconds = _seconds(step, device)
    own.eval()
    return Speed(decoding, _seconds(forward, device) / len(images), step_seconds / len(images))


def _seconds(work: Callable[[], None], device: torch.device) -> float:
    """Return the wall-clock seconds of the second of two calls; the first one warms up."""
    times = []
    for _ in range(2):
        began = time.perf_counter()
        work()
        if device.type == "cuda":
            torch.cuda.synchronize(device)
        times.append(time.perf_counter() - began)
    return times[-1]


@final
@dataclass(frozen=True)
class Fitting:
    """What fits after the search if its candidate of this input size is the best: `epochs` of `epoch` seconds each."""

    size: int
    epochs: int
    epoch: float


@final
@dataclass(frozen=True)
class TimeBox:
    """What fits into a number of minutes.

    Attributes:
        sizes: the input sides that are compared first, or the one of the run; fewer than `LEAST_EPOCHS` epochs in steps
            are none.
        rest: estimated seconds of everything but the epochs, with the comparison.
    """

    sizes: tuple[Fitting, ...]
    rest: float

    @property
    def first(self) -> Fitting:
        """The size that is compared first."""
        return self.sizes[0]

    @property
    def epochs(self) -> int:
        """The most epochs in steps that follow."""
        return max(fitting.epochs for fitting in self.sizes)

    def line(self, minutes: float) -> str:
        """Describe the plan in one line."""
        limit = f"{minutes:g} minute" + ("" if minutes == 1 else "s")
        compared = ""
        if len(self.sizes) > 1:
            *most, last = (str(fitting.size) for fitting in self.sizes)
            compared = f"first compares photos of {', '.join(most)} and {last} px; "
        if not self.epochs:
            return (
                f"{limit}: {compared}too short for fine-tuning, since an epoch takes about {self.first.epoch:.0f} s "
                f"here: the preset {SOLVED}, which trains only the head"
            )
        epochs = "; ".join(
            f"{counted(fitting.epochs, 'epoch')} of about {fitting.epoch:.0f} s"
            + (f" at {fitting.size} px" if compared else "")
            for fitting in self.sizes
        )
        whole = (self.rest + max(fitting.epochs * fitting.epoch for fitting in self.sizes)) / 60
        return (
            f"{limit}: {compared}{epochs}, and {self.rest:.0f} s of other work; about "
            f"{counted(max(1, round(whole)), 'minute')} in all"
        )


def time_box(
    minutes: float,
    resolved: Resolved,
    tables: Tables,
    speed: Speed,
    spent: float = 0.0,
    sizes: Sequence[int] = (),
    *,
    maps: bool = False,
) -> TimeBox:
    """Choose the input sides to compare, and for each the number of epochs in steps: at most that of the preset.

    Args:
        minutes: for all of the run.
        resolved: settings of the run, to which `speed` belongs.
        tables: the photos.
        speed: of this machine.
        spent: seconds that reading and checking took.
        sizes: sides that may be compared, the first ones that fit; the first one is that of the run.
        maps: whether the head is solved on the cells of the maps, as places need it.
    """
    train, val = len(tables.train), len(tables.val)
    everything = sum(len(table) for table in tables.splits().values())
    workers = max(1, resolved.workers)
    most = sum(stage.epochs for stage in resolved.stages if not stage.solved)
    planned = 60 * minutes * RESERVE

    def seconds(photos: int, each: float, size: int) -> float:
        # Worker processes decode while the net computes. The time of the net grows with the number of pixels.
        decoding, each = speed.decoding / workers, each * (size / resolved.size) ** 2
        return photos * (max(each, decoding) if resolved.workers else each + decoding)

    def rest(compared: Sequence[int]) -> float:
        # One pass for the head that is solved or for logistic regression, and one at the end over the other splits.
        # Features of the test photos are computed for the best size only, at worst the largest.
        largest = max(compared)
        solving = sum(solving_seconds(train, len(tables.train.classes), size if maps else 0) for size in compared)
        passes = sum(seconds(train + val, speed.forward, size) for size in compared)
        others = everything - train - val
        return spent + passes + solving + seconds(others + everything - train, speed.forward, largest)

    compared = tuple(sizes) or (resolved.size,)
    while len(compared) > 1 and rest(compared) > planned:
        compared = compared[:-1]
    fixed = rest(compared)

    def fitting(size: int) -> Fitting:
        epoch = seconds(train, speed.step, size) + seconds(val, speed.forward, size)
        epochs = min(most, int((planned - fixed) / epoch))
        return Fitting(size, epochs if epochs >= LEAST_EPOCHS else 0, epoch)

    return TimeBox(tuple(map(fitting, compared)), fixed)


def refuse_too_short(minutes: float, preset: str, box: TimeBox) -> None:
    """Raise ConfigError if `LEAST_EPOCHS` of a preset that the user named do not fit."""
    if not box.epochs:
        needed = (box.rest + LEAST_EPOCHS * box.first.epoch) / 60 / RESERVE
        raise ConfigError(
            f"{named('train.minutes', minutes)} is too short for preset {preset!r}: {LEAST_EPOCHS} epochs take about "
            f"{counted(max(1, round(needed)), 'minute')} here. Give more, or leave the preset out."
        )


def within(resolved: Resolved, box: TimeBox) -> Resolved:
    """Return the settings with the epochs of a time box, and with its sizes to compare if there are several."""
    if box.epochs:
        resolved = resolved.model_copy(update={"stages": rescaled(resolved.stages, box.epochs, None)})
    if len(box.sizes) == 1:
        return resolved
    own = {name: getattr(resolved, name) for name in ("backbone", "weights", "pool", "method")}
    tried = tuple(Candidate(**own, size=fitting.size, epochs=fitting.epochs) for fitting in box.sizes)
    return resolved.model_copy(update={"search": tried})


def solving_seconds(photos: int, classes: int, size: int = 0) -> float:
    """Estimate the seconds that one core takes to solve a head of 1,280 channels for all strengths.

    `size` is the input side if the head is solved on the cells of the maps; 0: on pooled features.

    >>> round(solving_seconds(1000, 20)), round(solving_seconds(1000, 20, 288))
    (2, 146)
    """
    return 1800.0 / MOST_CELLS * photos * classes * max(1, size // 32) ** 2
