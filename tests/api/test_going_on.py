"""The Python interface: an interrupted fit goes on."""

import json
import shutil

import numpy as np
import pytest
from api_calls import SETTINGS, LeftError, classifier, interrupted, stop_after

import fewtags as ft
from fewtags.errors import ConfigError


@pytest.mark.parametrize("steps", [1, 5], ids=["before the first checkpoint", "in the second epoch"])
def test_fitting_again_in_the_folder_of_an_interrupted_fit_goes_on(scenes, tmp_path, steps):
    whole = classifier().fit(scenes.train, out=tmp_path / "whole", settings=SETTINGS)
    interrupted(scenes, tmp_path / "left", steps)
    events = []
    again = classifier().fit(scenes.train, out=tmp_path / "left", on_event=events.append, settings=SETTINGS)
    assert (events[0].resumed_from is not None) == (steps > 1)
    assert (tmp_path / "left" / "model.safetensors").read_bytes() == (
        tmp_path / "whole" / "model.safetensors"
    ).read_bytes()
    assert again.info_ == whole.info_


def test_a_fit_whose_photos_were_partly_unreadable_goes_on(scenes, tmp_path):
    root = shutil.copytree(scenes.train.root, tmp_path / "images")
    (root / scenes.train.images[4].as_py()).write_bytes(b"no photo")
    train = scenes.train.with_root(root)
    with pytest.raises(LeftError):
        classifier().fit(train, scenes.val, out=tmp_path / "run", on_event=stop_after(5), settings=SETTINGS)
    assert classifier().fit(train, scenes.val, out=tmp_path / "run", settings=SETTINGS).fitted


def test_another_fit_may_not_go_on(scenes, tmp_path):
    out = tmp_path / "run"
    interrupted(scenes, out, 5)
    message = f"{out} has an interrupted run with other settings; use those in {out / 'run.toml'}, or another "
    for other, options in (
        (classifier(seed=1), {}),
        (classifier(objective=ft.AssumeNegative()), {}),
        (classifier(), {"settings": SETTINGS | {"train.batch_size": 4}}),
    ):
        with pytest.raises(ConfigError) as error:
            other.fit(scenes.train, out=out, **{"settings": SETTINGS} | options)
        assert str(error.value) == message + "folder."
    for tables, split in (((scenes.train.subset(np.arange(23)),), "train"), ((scenes.train, scenes.val), "train")):
        with pytest.raises(ConfigError) as error:
            classifier().fit(*tables, out=out, settings=SETTINGS)
        assert str(error.value) == f"{out} has an interrupted run on other {split} labels; use another folder."


def test_photos_need_not_be_decoded_beforehand(scenes, tmp_path):
    """The one setting of [data] beside the split's that is not about label files."""
    with pytest.raises(LeftError):
        classifier().fit(
            scenes.train, out=tmp_path / "run", on_event=stop_after(1), settings=SETTINGS | {"data.decode": False}
        )
    assert json.loads((tmp_path / "run" / "check.json").read_text("utf-8"))["photos"]["decoded"] is False


def test_a_finished_run_is_not_overwritten(fitted, scenes):
    _, out, _ = fitted
    before = (out / "model.safetensors").read_bytes()
    with pytest.raises(ConfigError, match=r"first is not empty; choose another out\.$"):
        classifier().fit(scenes.train, scenes.val, out=out, settings=SETTINGS)
    assert (out / "model.safetensors").read_bytes() == before
