"""Scenes, and a classifier that was trained on them once."""

import pytest
from api_calls import SETTINGS, classifier

import fewtags as ft
from fewtags.demo_set import make_scenes


@pytest.fixture(scope="session")
def scenes(tmp_path_factory):
    """24 scenes with one annotated digit, and 11 complete ones."""
    return make_scenes(tmp_path_factory.mktemp("photos") / "scenes", train=24, val=11, test=1, size=64, seed=0)


@pytest.fixture(scope="session")
def fitted(scenes, tmp_path_factory):
    """A trained classifier, its run folder, and the events."""
    out, events = tmp_path_factory.mktemp("runs") / "first", []
    method = ft.ExpectedNegative(positives_per_image=2.9, scl_weight=0.5)
    clf = classifier(objective=method).fit(
        scenes.train, scenes.val, out=out, truth=scenes.train_truth, on_event=events.append, settings=SETTINGS
    )
    return clf, out, events
