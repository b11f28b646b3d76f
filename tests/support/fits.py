"""Running the loop of `engine/fit_worker.py`, and comparing what it ends with."""

import json

import torch

from fewtags.config.sections import StageConfig
from fewtags.engine.events import StepEnded
from fewtags.engine.tensor_files import load_pickled

STEPS = 6  # batches in an epoch of `fit_worker.make_fit`
TIMINGS = ("seconds", "cpu_seconds")


def stages(*epochs, **options):
    return tuple(StageConfig(name=f"stage {i}", epochs=n, lr=1e-2, **options) for i, n in enumerate(epochs))


def take(fit, steps=None, resume=False):
    """Run to the end, or leave the iteration after so many optimiser steps."""
    events = []
    for event in fit.run(resume):
        events.append(event)
        if isinstance(event, StepEnded):
            steps = None if steps is None else steps - 1
            if steps == 0:
                break
    return events


def records(out):
    """The lines of metrics.jsonl without what a clock says."""
    lines = [json.loads(line) for line in (out / "metrics.jsonl").read_text().splitlines()]
    return [{key: value for key, value in line.items() if key not in TIMINGS} for line in lines]


def state(fit):
    """Copies of everything that a run ends with."""
    nets = {"net": fit.net} | ({} if fit.averaged is None else {"averaged": fit.averaged})
    held = {name: net.state_dict() for name, net in nets.items()}
    held |= {name: part.state_dict() for name, part in fit.parts.items()}
    return {(name, key): value.clone() for name, values in held.items() for key, value in values.items()}


def assert_same_state(one, two):
    assert one.keys() == two.keys()
    for key, value in one.items():
        assert torch.equal(value, two[key]), key


def assert_same_run(fit, out, whole, whole_out):
    assert_same_state(state(fit), state(whole))
    assert records(out) == records(whole_out)
    assert (out / "best.safetensors").read_bytes() == (whole_out / "best.safetensors").read_bytes()
    (path,), (other,) = ([*(o / "checkpoints").glob("step-*")] for o in (out, whole_out))
    assert path.name == other.name
    adam, reference = (load_pickled(p / "optimizer.pt")["optimizer"]["state"] for p in (path, other))
    assert adam.keys() == reference.keys()
    for number, entries in adam.items():
        for key, value in entries.items():
            assert torch.equal(value, reference[number][key]), (number, key)
