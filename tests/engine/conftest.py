"""Tiny photos, nets and runs; nothing here is downloaded."""

from pathlib import Path

import pytest
from search_runs import SIZES, SOLVED
from two_processes import load

from fewtags.config.parse import apply_overrides, parse
from fewtags.config.sections import ObjectiveConfig
from fewtags.demo_set import make_scenes
from fewtags.engine.methods import settings_models
from fewtags.engine.tables import Tables

HERE = Path(__file__).parent


@pytest.fixture(scope="session")
def tiny():
    """The functions of `fit_worker.py`."""
    return load(HERE / "fit_worker.py")


@pytest.fixture(scope="session")
def duo():
    """The functions of `two_processes_worker.py`."""
    return load(HERE / "two_processes_worker.py")


@pytest.fixture(scope="session")
def scenes(tmp_path_factory):
    """Demo scenes of 64 px: 24 for training (one digit annotated), 11 for validation, 5 for testing (complete)."""
    return make_scenes(tmp_path_factory.mktemp("photos") / "scenes", train=24, val=11, test=5, size=64, seed=0)


@pytest.fixture
def tables(scenes):
    """The tables of a run on the scenes."""
    return Tables(scenes.train, scenes.val, scenes.test, scenes.train_truth)


@pytest.fixture(scope="session")
def make_config():
    """Make a configuration that trains in a second or two; dotted keys change it, `objective` replaces the method."""

    def make(objective=None, **changes):
        base = {
            "data": {"train": "(tables in memory)"},
            "model": {"backbone": "test_resnet", "weights": "none"},
            "augment": {"size": 64},
            "objective": objective or {"name": "expected_negative", "scl_weight": 0.3, "cl_weight": 0.1},
            "train": {
                "preset": "views",
                "workers": 0,
                "batch_size": 8,
                "cached_views": 2,
                "stages": [
                    {"name": "warmup", "epochs": 1, "lr": 1e-2, "trainable": "head", "warmup": True},
                    {"name": "main", "epochs": 2, "lr": 1e-2, "trainable": "head"},
                ],
            },
        }
        flat = {key.replace("__", "."): value for key, value in changes.items()}
        return parse(apply_overrides(base, flat), settings_models(), "the test")

    return make


@pytest.fixture
def search_config(make_config):
    """A configuration that searches, without a method of its own."""

    def make(**changes):
        found = make_config(**{**SOLVED, **SIZES, **changes})
        if "objective" not in changes:
            found = found.model_copy(update={"objective": ObjectiveConfig()})
        return found

    return make
