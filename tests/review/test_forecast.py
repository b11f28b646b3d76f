"""What answers are expected to buy: by hand, and against the simulated reviews of benchmarks/review.py."""

import json
import math
from pathlib import Path

import pytest

from fewtags.review.forecast import GAIN, SCALE, Estimate, expected_gain, forecast

RESULTS = Path(__file__).parents[2] / "benchmarks" / "results" / "review.jsonl"


def test_by_hand():
    """10,000 cells, 370 answers since training: s = SCALE, so the gain is GAIN (1 - 1/e) = .0234.

    The curve's half width is 1.96 sqrt((.6 .0234)^2 + .006^2) = .0299, the measured one .04; together .05.
    """
    found = forecast(Estimate(0.6, 0.56, 0.64), cells=10_000, trained=0, answered=370, seconds=2.0)
    gain = GAIN * (1 - 1 / math.e)
    half = 1.959964 * math.hypot(0.6 * gain, 0.006)
    assert found.now.value == pytest.approx(0.6 + gain)
    assert found.now.low == pytest.approx(found.now.value - math.hypot(0.04, half))
    assert found.now.high == pytest.approx(found.now.value + math.hypot(0.04, half))
    assert found.more.value == pytest.approx(0.6 + GAIN * (1 - math.exp(-470 / 10_000 / SCALE)))
    assert found.hour == pytest.approx(GAIN * (math.exp(-1) - math.exp(-(370 + 1800) / 10_000 / SCALE)))


def test_what_the_model_learned_from_is_measured_already():
    found = forecast(Estimate(0.6, 0.56, 0.64), cells=10_000, trained=370, answered=370, seconds=None)
    assert found.now == found.trained
    assert found.hour is None


def test_without_a_measurement_the_gain_is_still_known():
    found = forecast(None, cells=1_000, trained=0, answered=30, seconds=3.0)
    assert (found.trained, found.now, found.more) == (None, None, None)
    assert found.hour > 0
    assert forecast(None, cells=1_000, trained=0, answered=19, seconds=3.0).hour is None


def test_every_cell_is_answered_at_most_once():
    assert expected_gain(1.0, 5.0) == 0.0


def test_the_curve_agrees_with_the_simulations():
    """All gains between two rounds of all runs with right answers: the 95 % intervals contain about 95 % of them."""
    rows = [json.loads(line) for line in RESULTS.read_text("utf-8").splitlines()]
    runs = [r["rounds"] for r in rows if r["order"] == "balanced" and not r["wrong"]]
    inside, errors = [], []
    for rounds in runs:
        for i, first in enumerate(rounds):
            for second in rounds[i + 1 :]:
                start = Estimate(first["test"] / 100, first["test"] / 100, first["test"] / 100)
                cells = 10**6
                trained, answered = (round(r["share"] * cells) for r in (first, second))
                now = forecast(start, cells=cells, trained=trained, answered=answered, seconds=None).now
                inside.append(now.low <= second["test"] / 100 <= now.high)
                errors.append(now.value - second["test"] / 100)
    assert len(runs) == 20
    assert 0.92 <= sum(inside) / len(inside) <= 0.98
    assert abs(sum(errors) / len(errors)) < 0.002
