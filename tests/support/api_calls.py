"""A small classifier of the Python interface, and photos for it."""

import fewtags as ft

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
