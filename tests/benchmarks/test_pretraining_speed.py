"""The comparison of speed: ratios, interleaving, steps that train, and what it says without the other library."""

import importlib
import math
import sys
from pathlib import Path

import pytest
import torch

from fewtags.nets.encoder import create_encoder

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"

# Benchmarks are scripts that import each other from their folder.
sys.path.insert(0, str(BENCHMARKS))
speed = importlib.import_module("pretraining_speed")
sys.path.remove(str(BENCHMARKS))


def test_ratios_are_of_steps_of_the_same_round():
    """Twice the reference in a slow round and in a fast one is 2 exactly.

    Ratios 1 and 4: logarithms 0 and log 4, mean log 2, sd log 4 / sqrt(2), half width 12.706 sd / sqrt(2).
    """
    assert speed.ratio([2.0, 20.0, 4.0], [1.0, 10.0, 2.0]) == pytest.approx((2.0, 2.0, 2.0))
    mean, low, high = speed.ratio([1.0, 4.0], [1.0, 1.0])
    assert mean == pytest.approx(2.0)
    half = 12.7062 * math.log(4) / 2
    assert (math.log(low), math.log(high)) == pytest.approx((math.log(2) - half, math.log(2) + half), rel=1e-5)


def test_every_method_takes_every_step_on_the_same_images():
    seen = {"one": [], "two": []}
    takes = {
        name: lambda first, second, number, name=name: seen[name].append(
            (number, first[0, 0, 0, 0], second[0, 0, 0, 0])
        )
        for name in seen
    }
    taken = speed.measure(takes, 4, 5)
    assert {name: len(values) for name, values in taken.items()} == {"one": 5, "two": 5}
    assert seen["one"] == seen["two"]
    assert [number for number, *_ in seen["one"]] == list(range(speed.WARMUP + 5))


@pytest.mark.parametrize("method", list(speed.METHODS))
def test_a_step_of_ours_trains_and_fills_the_queue(method):
    encoder = create_encoder("test_resnet", weights="none", size=32).train()
    before = next(encoder.parameters()).clone()
    take = speed.Ours(encoder, 32, speed.METHODS[method])
    views = torch.randn(2, speed.BATCH, 3, 32, 32, generator=torch.Generator().manual_seed(0))
    for number in range(2):
        take(*views, number)
    assert not torch.equal(next(encoder.parameters()), before)
    queue = getattr(take.objective, "_queues", None) or take.objective._queue
    assert int(queue.counted().sum()) == 2 * speed.BATCH


def test_without_lightly_it_says_what_to_do(monkeypatch):
    """`sys.exit` of a text exits with 1."""
    monkeypatch.setitem(sys.modules, "lightly", None)
    monkeypatch.setattr(sys, "argv", ["pretraining_speed.py"])
    with pytest.raises(SystemExit) as caught:
        speed.main()
    assert "pip install --target .lightly --no-deps lightly lightly_utils" in str(caught.value.code)
    assert str(caught.value.code).startswith("lightly is not installed (")
