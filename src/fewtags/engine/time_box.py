"""Fit a run into a number of minutes: measure this machine, and choose how many epochs of fine-tuning there are."""

from __future__ import annotations

import time
from collections.abc import Callable
from copy import deepcopy
from dataclasses import dataclass
from itertools import cycle, islice
from typing import final

import torch

from fewtags.config.presets import SOLVED, Resolved, rescaled
from fewtags.engine.autocast import Autocast
from fewtags.engine.machine import torch_device
from fewtags.engine.model import make_policy
from fewtags.engine.tables import Tables
from fewtags.errors import ConfigError
from fewtags.nets.freezing import freeze
from fewtags.nets.spatial import SpatialNet
from fewtags.photos.dataset import PhotoFolder, TrainSet
from fewtags.table.table import LabelTable
from fewtags.text import counted

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
class TimeBox:
    """How many epochs of all stages in steps fit.

    Attributes:
        epochs: 0 if fewer than `LEAST_EPOCHS` fit.
        epoch: estimated seconds of an epoch, with its validation.
        rest: estimated seconds of everything else, without solving the head.
    """

    epochs: int
    epoch: float
    rest: float

    def line(self, minutes: float) -> str:
        """Describe the plan in one line."""
        limit = f"{minutes:g} minute" + ("" if minutes == 1 else "s")
        if not self.epochs:
            return (
                f"{limit}: too short for fine-tuning, since an epoch takes about {self.epoch:.0f} s here: the "
                f"preset {SOLVED}, which trains only the head"
            )
        epochs = f"{counted(self.epochs, 'epoch')} of about {self.epoch:.0f} s"
        whole = (self.rest + self.epochs * self.epoch) / 60
        return f"{limit}: {epochs}, and {self.rest:.0f} s of other work; about {counted(round(whole), 'minute')} in all"


def time_box(minutes: float, resolved: Resolved, tables: Tables, speed: Speed, spent: float = 0.0) -> TimeBox:
    """Choose the number of epochs in steps: at most that of the preset.

    `spent` are the seconds that reading and checking took.
    """
    train, val = len(tables.train), len(tables.val)
    everything = sum(len(table) for table in tables.splits().values())
    workers = max(1, resolved.workers)

    def seconds(photos: int, each: float) -> float:
        # Worker processes decode while the net computes.
        decoding = speed.decoding / workers
        return photos * (max(each, decoding) if resolved.workers else each + decoding)

    epoch = seconds(train, speed.step) + seconds(val, speed.forward)
    # One pass for the head that is solved or for logistic regression, and one at the end over the other splits.
    rest = spent + seconds(everything, speed.forward) + seconds(everything - train, speed.forward)
    most = sum(stage.epochs for stage in resolved.stages if not stage.solved)
    fitting = min(most, int((60 * minutes * RESERVE - rest) / epoch))
    return TimeBox(fitting if fitting >= LEAST_EPOCHS else 0, epoch, rest)


def refuse_too_short(minutes: float, preset: str, box: TimeBox) -> None:
    """Raise ConfigError if `LEAST_EPOCHS` of a preset that the user named do not fit."""
    if not box.epochs:
        needed = (box.rest + LEAST_EPOCHS * box.epoch) / 60 / RESERVE
        raise ConfigError(
            f"train.minutes = {minutes:g} is too short for preset {preset!r}: {LEAST_EPOCHS} epochs take about "
            f"{counted(max(1, round(needed)), 'minute')} here. Give more, or leave the preset out."
        )


def within(resolved: Resolved, box: TimeBox) -> Resolved:
    """Return the settings with the epochs of a time box, which has some."""
    return resolved.model_copy(update={"stages": rescaled(resolved.stages, box.epochs, None)})
