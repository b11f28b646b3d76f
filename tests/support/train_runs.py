"""Runs of tests: whole, or stopped after so many steps."""

import json

from fewtags.engine.events import StepEnded
from fewtags.engine.planning import make_plan
from fewtags.engine.train_run import TrainRun

FINETUNE = {
    "train__stages": [
        {"name": "warmup", "epochs": 1, "lr": 1e-2, "trainable": "head", "warmup": True},
        {"name": "main", "epochs": 1, "lr": 1e-3, "trainable": 1},
    ],
    "train__cached_views": 0,
    "train__weight_ema": 0.9,
    "train__checkpoint_every_steps": 2,
    "objective__heatmap_storage": "disk",
}


def train(config, tables, out, stop=None):
    """Run in a folder, or leave after so many steps; the events."""
    return take(TrainRun(make_plan(config, tables=tables, cpu=True), out, cpu=True).start(), stop)


def take(events, stop=None):
    seen = []
    for event in events:
        seen.append(event)
        if isinstance(event, StepEnded) and event.global_step == stop:
            break
    return seen


def read_json(path):
    return json.loads(path.read_text("utf-8"))
