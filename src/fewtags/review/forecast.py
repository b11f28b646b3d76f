"""What more answers are expected to buy: the measured mAP of the model, and a curve from simulated reviews.

The curve is the mean gain of test mAP in `benchmarks/review.py` (default order, right answers, four sets of photos with
one positive label for each photo): GAIN (1 - exp(-s / SCALE)), where s is the share of the cells without a label that
are answered. The share explained the gain of a set that was left out of the fit better than the number of answers or of
positives that they found. docs/review.md has the errors.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import final

GAIN, SCALE = 0.037, 0.037
RELATIVE, ABSOLUTE = 0.6, 0.006
"""Standard deviation of a gain g: the root of (RELATIVE g)^2 + ABSOLUTE^2; sets differ, and so do training runs."""
STOP_BELOW = 0.5
"""Points of mAP: an hour that is expected to buy less is not worth it."""
NEXT = 100
"""Answers that the forecast looks ahead."""
FEWEST = 20
"""Answers from which their mean time is a pace."""
_Z = 1.959964  # of a 95 % interval


@final
@dataclass(frozen=True)
class Estimate:
    """An mAP with a 95 % interval, all in 0..1."""

    value: float
    low: float
    high: float


@final
@dataclass(frozen=True, kw_only=True)
class Forecast:
    """What a review has reached, and what it can reach.

    Attributes:
        trained: mAP of the model that asks, as measured on validation photos; None if there is no measurement.
        answers: answers that it learned from.
        now: expected after training with all answers so far; None without a measurement.
        more: expected after `NEXT` more answers.
        hour: expected gain of one more hour of answers, in 0..1; None before there are `FEWEST` answers.
    """

    trained: Estimate | None
    answers: int
    now: Estimate | None
    more: Estimate | None
    hour: float | None


def forecast(measured: Estimate | None, *, cells: int, trained: int, answered: int, seconds: float | None) -> Forecast:
    """Return what more answers are expected to buy.

    Args:
        measured: mAP of the model that asks, with its interval.
        cells: cells that had no label before the first answer, at least 1.
        trained: answers that this model learned from.
        answered: answers so far.
        seconds: mean time of an answer; None if it is not known.
    """
    hour = None
    if seconds is not None and answered >= FEWEST:
        hour = expected_gain(answered / cells, (answered + 3600 / max(seconds, 0.05)) / cells)
    now, more = (
        None if measured is None else _after(measured, trained / cells, n / cells) for n in (answered, answered + NEXT)
    )
    return Forecast(trained=measured, answers=trained, now=now, more=more, hour=hour)


def expected_gain(before: float, after: float) -> float:
    """Return the expected gain of mAP, 0..1, if the share of answered cells goes from `before` to `after`.

    >>> round(expected_gain(0.0, 0.05), 4)
    0.0274
    """
    return GAIN * (math.exp(-min(before, 1.0) / SCALE) - math.exp(-min(after, 1.0) / SCALE))


def _after(measured: Estimate, before: float, after: float) -> Estimate:
    """Return the mAP after more answers; the errors of the measurement and of the curve are independent."""
    gain = expected_gain(before, after)
    half = _Z * math.hypot(RELATIVE * gain, ABSOLUTE) if after > before else 0.0
    value = min(1.0, measured.value + gain)
    low = value - math.hypot(measured.value - measured.low, half)
    return Estimate(value, max(0.0, low), min(1.0, value + math.hypot(measured.high - measured.value, half)))
