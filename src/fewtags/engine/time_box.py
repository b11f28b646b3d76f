"""Fit a run into a number of minutes: measure this machine, and choose how many epochs of fine-tuning there are."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass, replace
from itertools import cycle, islice
from types import MappingProxyType
from typing import final

import torch

from fewtags.config.presets import MOST_CELLS, SOLVED, Candidate, Resolved, rescaled
from fewtags.config.search import methods_at, starting
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

    def at(self, scale: float) -> Speed:
        """Return the speed on photos whose side is `scale` times as long: the net's time grows with the pixels."""
        return replace(self, forward=self.forward * scale**2, step=self.step * scale**2)


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
class _Option:
    """Something that can be compared: photos of `size` px through a net with this `speed` at that size."""

    size: int
    speed: Speed
    start: str = ""


@final
@dataclass(frozen=True)
class Fitting:
    """What fits after the search if its candidate of this input size is the best: `epochs` of `epoch` seconds each.

    `start` describes the start of the candidate; "" if starts are not compared. `head` are the seconds that solving the
    head takes, before the epochs or in place of them.
    """

    size: int
    epochs: int
    epoch: float
    start: str = ""
    head: float = 0.0

    @property
    def what(self) -> str:
        """What distinguishes it, after a number of epochs."""
        return f"from {self.start}" if self.start else f"at {self.size} px"


@final
@dataclass(frozen=True)
class TimeBox:
    """What fits into a number of minutes.

    Attributes:
        sizes: the input sides that are compared first, or the starts, or the size of the run alone; fewer than
            `LEAST_EPOCHS` epochs in steps are none.
        rest: estimated seconds of everything but the epochs and the head, with the comparison.
        methods: the methods that are compared at each size; none if the run has one.
    """

    sizes: tuple[Fitting, ...]
    rest: float
    methods: tuple[str, ...] = ()

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
        compared = self._compared()
        if not self.epochs:
            return (
                f"{limit}: {compared}too short for fine-tuning, since an epoch takes about {self.first.epoch:.0f} s "
                f"here: the preset {SOLVED}, which trains only the head"
            )
        epochs = "; ".join(
            f"{counted(fitting.epochs, 'epoch')} of about {fitting.epoch:.0f} s"
            + (f" {fitting.what}" if len(self.sizes) > 1 else "")
            for fitting in self.sizes
        )
        whole = (self.rest + max(fitting.head + fitting.epochs * fitting.epoch for fitting in self.sizes)) / 60
        return (
            f"{limit}: {compared}{epochs}, and {self.rest:.0f} s of other work; about "
            f"{counted(max(1, round(whole)), 'minute')} in all"
        )

    def _compared(self) -> str:
        """Say what is compared first, as a part of a line; "" if it is nothing."""
        listed = _listed([fitting.start or str(fitting.size) for fitting in self.sizes])
        methods = f"the methods {_listed(self.methods)}"
        if len(self.sizes) == 1:
            return f"first compares {methods}; " if len(self.methods) > 1 else ""
        what = listed if self.first.start else f"photos of {listed} px"
        return f"first compares {what}{f', each with {methods}' if len(self.methods) > 1 else ''}; "


def time_box(
    minutes: float,
    resolved: Resolved,
    tables: Tables,
    speed: Speed,
    spent: float = 0.0,
    sizes: Sequence[int] = (),
    *,
    maps: bool = False,
    starts: Mapping[str, Speed] = MappingProxyType({}),
    methods: Sequence[str] = (),
) -> TimeBox:
    """Choose the input sides to compare, and for each the number of epochs in steps: at most that of the preset.

    Args:
        minutes: for all of the run.
        resolved: settings of the run, to which `speed` belongs.
        tables: the photos.
        speed: of this machine.
        spent: seconds that reading and checking took.
        sizes: sides that may be compared, the first ones that fit; the first one is that of the run.
        maps: whether the head is solved on the cells of the maps, as places need it. Before epochs it is trained in
            steps then, since features are pooled there (`Objective.solvable_warmup`).
        starts: speeds of the starts that are compared, by their descriptions; then `sizes` are not. They are compared
            even if that takes longer than `minutes`.
        methods: the methods that are compared at each size; none if the run has one.
    """
    train, val = len(tables.train), len(tables.val)
    everything = sum(len(table) for table in tables.splits().values())
    workers = max(1, resolved.workers)
    most = sum(stage.epochs for stage in resolved.stages if not stage.solved)
    planned = 60 * minutes * RESERVE

    options = [_Option(size, speed.at(size / resolved.size)) for size in sizes or (resolved.size,)]
    if starts:
        options = [_Option(resolved.size, found, start) for start, found in starts.items()]

    def seconds(photos: int, each: float) -> float:
        # Worker processes decode while the net computes.
        decoding = speed.decoding / workers
        return photos * (max(each, decoding) if resolved.workers else each + decoding)

    def solving(option: _Option) -> float:
        return solving_seconds(train, len(tables.train.classes), option.size if maps else 0)

    def rest(compared: Sequence[_Option]) -> float:
        # One pass for the head that is solved or for logistic regression, and one at the end over the other splits.
        # Features of the test photos are computed for the best only, at worst the slowest.
        slowest = max(option.speed.forward for option in compared)
        each = max(1, len(methods))
        trials = each * sum(map(solving, compared)) if each * len(compared) > 1 else 0.0
        passes = sum(seconds(train + val, option.speed.forward) for option in compared)
        others = everything - train - val
        return spent + passes + trials + seconds(others + everything - train, slowest)

    def fitting(option: _Option, left: float) -> Fitting:
        epoch = seconds(train, option.speed.step) + seconds(val, option.speed.forward)
        before = 0.0 if maps else solving(option)
        epochs = min(most, int((left - before) / epoch))
        if epochs >= LEAST_EPOCHS:
            return Fitting(option.size, epochs, epoch, option.start, before)
        return Fitting(option.size, 0, epoch, option.start, solving(option))

    def is_too_long(compared: Sequence[_Option]) -> bool:
        left = planned - rest(compared)
        largest = fitting(compared[-1], left)
        return largest.head + largest.epochs * largest.epoch > left

    while len(options) > 1 and not starts and is_too_long(options):
        options = options[:-1]
    fixed = rest(options)
    return TimeBox(tuple(fitting(option, planned - fixed) for option in options), fixed, tuple(methods))


def refuse_too_short(minutes: float, preset: str, box: TimeBox) -> None:
    """Raise ConfigError if `LEAST_EPOCHS` of a preset that the user named do not fit."""
    if not box.epochs:
        needed = (box.rest + LEAST_EPOCHS * box.first.epoch) / 60 / RESERVE
        raise ConfigError(
            f"{named('train.minutes', minutes)} is too short for preset {preset!r}: {LEAST_EPOCHS} epochs take about "
            f"{counted(max(1, round(needed)), 'minute')} here. Give more, or leave the preset out."
        )


def within(resolved: Resolved, box: TimeBox, starts: Sequence[Candidate] = ()) -> Resolved:
    """Return the settings with the epochs of a time box, and with what it compares: sizes and methods, or `starts`."""
    if box.epochs:
        resolved = resolved.model_copy(update={"stages": rescaled(resolved.stages, box.epochs, None)})
    if starts:
        timed = zip(starts, box.sizes, strict=True)
        return starting(resolved, tuple(one.model_copy(update={"epochs": found.epochs}) for one, found in timed))
    methods = box.methods or (resolved.method,)
    if len(box.sizes) * len(methods) == 1:
        return resolved
    of_sizes = (methods_at(resolved, methods, fitting.size, fitting.epochs) for fitting in box.sizes)
    tried = tuple(candidate for several in of_sizes for candidate in several)
    return resolved.model_copy(update={"search": tried})


def _listed(words: Sequence[str]) -> str:
    """Join words as a sentence has them.

    >>> _listed(["64"]), _listed(["64", "96", "128"])
    ('64', '64, 96 and 128')
    """
    return " and ".join(part for part in (", ".join(words[:-1]), words[-1]) if part) if words else ""


def solving_seconds(photos: int, classes: int, size: int = 0) -> float:
    """Estimate the seconds that one core takes to solve a head of 1,280 channels for all strengths.

    `size` is the input side if the head is solved on the cells of the maps; 0: on pooled features.

    >>> round(solving_seconds(1000, 20)), round(solving_seconds(1000, 20, 288))
    (2, 146)
    """
    return 1800.0 / MOST_CELLS * photos * classes * max(1, size // 32) ** 2
