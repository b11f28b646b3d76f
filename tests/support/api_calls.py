"""A small classifier of the Python interface, and photos for it."""

import pytest

import fewtags as ft
from fewtags.engine.events import StepEnded

SETTINGS = {
    "train.batch_size": 8,
    "train.workers": 0,
    "train.cached_views": 2,
    "train.checkpoint_every_steps": 1,
    "train.stages": [{"name": "main", "epochs": 3, "lr": 1e-2, "trainable": "head"}],
}


def classifier(**options):
    return ft.Classifier(
        **{"backbone": "test_resnet", "weights": "none", "size": 64, "preset": "cpu", "device": "cpu"} | options
    )


def photos(table, count=3):
    return [table.root / key for key in table.images.to_pylist()[:count]]


class LeftError(Exception):
    """Somebody stopped the fit."""


def stop_after(steps):
    def look(event):
        if isinstance(event, StepEnded) and event.global_step == steps:
            raise LeftError

    return look


def interrupted(scenes, out, steps, **options):
    with pytest.raises(LeftError):
        classifier().fit(scenes.train, out=out, on_event=stop_after(steps), settings=SETTINGS, **options)
