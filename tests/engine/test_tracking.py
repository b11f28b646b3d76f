"""Runs are logged by the trackers of Accelerate."""

import pytest

from fewtags.engine.events import Ended, EpochEnded, Started
from fewtags.engine.tracking import TRACKERS, check_tracker, tracked
from fewtags.errors import ConfigError

EVENTS = (
    Started(2, 5, None, 0),
    EpochEnded({"epoch": 0, "stage": "main", "lr": 0.5, "val/mAP": 0.25}, best=True),
    EpochEnded({"epoch": 1, "stage": "main", "lr": 0.25, "val/mAP": 0.75}, best=True),
    Ended(2, 1, 0.75),
)
SETTINGS = '[train]\nlr = 0.5\nepochs = 2\n[objective]\nname = "bce"\nnames = ["a", "b"]\n'


def test_unknown_and_missing_trackers(monkeypatch):
    with pytest.raises(ConfigError) as error:
        check_tracker("tensorbord")
    assert str(error.value) == (
        "--track tensorbord (did you mean 'tensorboard'?) is not one of tensorboard, wandb, mlflow, trackio."
    )
    monkeypatch.setattr("fewtags.engine.tracking.find_spec", lambda name: None)
    for name, cure in TRACKERS.items():
        with pytest.raises(ConfigError) as error:
            check_tracker(name)
        assert str(error.value) == f"--track {name} needs {name}, which is not installed: {cure}."


def test_tensorboard(tmp_path):
    """Every event passes; the files have the settings, and each number of an epoch at the number of the epoch."""
    pytest.importorskip("tensorboard")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    (tmp_path / "run.toml").write_text(SETTINGS)
    check_tracker("tensorboard")
    assert [*tracked(iter(EVENTS), "tensorboard", tmp_path, "run.toml")] == [*EVENTS]
    read = EventAccumulator(str(tmp_path / "tensorboard")).Reload()
    assert {*read.Tags()["scalars"]} == {"lr", "val/mAP"}
    assert [(e.step, e.value) for e in read.Scalars("val/mAP")] == [(0, 0.25), (1, 0.75)]
    assert [(e.step, e.value) for e in read.Scalars("lr")] == [(0, 0.5), (1, 0.25)]
    (settings,) = (tmp_path / "tensorboard").rglob("hparams.yml")
    text = settings.read_text()
    assert "train.lr: 0.5" in text
    assert "objective.names: '[''a'', ''b'']'" in text


@pytest.mark.parametrize("name", ["wandb", "mlflow", "trackio"])
def test_other_trackers_of_accelerate(name, tmp_path, monkeypatch):
    """Without their packages: what Accelerate's class is made with, and which of its methods are called."""
    from accelerate import tracking

    calls = []

    class Recorded:
        def __init__(self, *positional, **named):
            calls.append(("made", positional, named))

        def start(self):
            calls.append(("start",))

        def store_init_configuration(self, values):
            calls.append(("settings", values["train.lr"]))

        def log(self, values, step):
            calls.append(("log", values, step))

        def finish(self):
            calls.append(("finish",))

    kinds = {"wandb": "WandBTracker", "mlflow": "MLflowTracker", "trackio": "TrackioTracker"}
    monkeypatch.setattr(tracking, kinds[name], Recorded)
    folder = tmp_path / "first"
    folder.mkdir()
    (folder / "run.toml").write_text(SETTINGS)
    events = tracked(iter(EVENTS), name, folder, "run.toml")
    next(events)
    next(events)
    events.close()  # as after Ctrl-C
    named = {
        "wandb": {"name": "first", "dir": str(folder)},
        "mlflow": {"run_name": "first"},
        "trackio": {"name": "first"},
    }
    assert calls == [
        ("made", ("fewtags",), named[name]),
        ("start",),
        ("settings", 0.5),
        ("log", {"lr": 0.5, "val/mAP": 0.25}, 0),
        ("finish",),
    ]
