"""A search over the weights that training starts from."""

import shutil

import pytest
import torch
from train_runs import take, train

from fewtags.engine import search
from fewtags.engine.encoder_file import EncoderInfo, save_encoder
from fewtags.engine.events import Noted
from fewtags.engine.planning import make_plan
from fewtags.engine.search import read_search
from fewtags.engine.tensor_files import load_tensors
from fewtags.engine.train_run import TrainRun, open_run
from fewtags.errors import CheckpointError, ConfigError
from fewtags.nets.encoder import create_encoder
from fewtags.report.build import render
from fewtags.report.load import load_run


def encoder_run(folder, *, seed=None):
    """The folder of a pretraining run whose encoder has random weights, or sees nothing without a seed."""
    encoder = create_encoder("test_resnet", weights="none", size=32, seed=seed or 0)
    if seed is None:
        with torch.no_grad():
            for tensor in encoder.state_dict().values():
                tensor.zero_()
    pre = encoder.preprocessing
    folder.mkdir(parents=True)
    info = EncoderInfo(backbone="test_resnet", size=32, mean=pre.mean, std=pre.std, method={"name": "moco"})
    save_encoder(folder / "encoder.safetensors", encoder, info)
    return str(folder)


@pytest.fixture
def starting_from(search_config):
    """Make a configuration that compares starts; `own` are the weights of a run without an encoder."""

    def make(*starts, own="none", **changes):
        made = {"search__sizes": [], "augment__size": 32, "train__baseline": False, "model__weights": own}
        return search_config(**{"search__starts": [*starts], **made, **changes})

    return make


@pytest.mark.parametrize("encoder_sees", [True, False])
def test_training_starts_from_what_is_better_on_validation(starting_from, tables, tmp_path, monkeypatch, encoder_sees):
    """A net that sees nothing loses, as the encoder and as the weights that the run would have without one."""
    monkeypatch.chdir(tmp_path)
    seeing, blind = encoder_run(tmp_path / "runs/seeing", seed=1), encoder_run(tmp_path / "runs/blind")
    given, own = (seeing, f"{blind}/encoder.safetensors") if encoder_sees else (blind, "none")
    events = train(starting_from("preset", given, own=own), tables, tmp_path / "run")
    found = read_search(tmp_path / "run")
    assert [tried.candidate.weights for tried in found.trials] == [own, f"{given}/encoder.safetensors"]
    assert found.chosen == int(encoder_sees)
    name = "weights seeing/encoder.safetensors" if encoder_sees else "weights none"
    assert [e.text for e in events if isinstance(e, Noted) and e.text.startswith(f"search: {name} is trained (+")]
    run = load_run(tmp_path / "run")
    assert run.resolved["weights"] == (f"{seeing}/encoder.safetensors" if encoder_sees else "none")
    assert run.tried[0].name == name
    assert name in render([run])
    # The model is that of a run that starts there alone.
    alone = run.resolved["weights"]
    train(starting_from(own=alone, search__starts=[]), tables, tmp_path / "alone")
    one, two = (load_tensors(tmp_path / folder / "model.safetensors") for folder in ("run", "alone"))
    assert all(torch.equal(value, two[name]) for name, value in one.items())


def test_a_search_of_starts_goes_on_from_another_folder(starting_from, tables, tmp_path, monkeypatch):
    """The model is the same to the bit, and so is what is said of the choice."""
    for name in ("there", "else"):
        (tmp_path / name).mkdir()
    monkeypatch.chdir(tmp_path / "there")
    encoder_run(tmp_path / "there" / "pre" / "a", seed=1)
    search_config = starting_from("preset", "pre/a")
    train(search_config, tables, tmp_path / "whole")
    run = TrainRun(make_plan(search_config, tables=tables, cpu=True), tmp_path / "run", cpu=True).start()
    next(run)
    run.close()
    monkeypatch.chdir(tmp_path / "else")
    take(open_run(tmp_path / "run", cpu=True).resume())
    one, two = (load_tensors(tmp_path / folder / "model.safetensors") for folder in ("whole", "run"))
    assert all(torch.equal(value, two[name]) for name, value in one.items())
    assert read_search(tmp_path / "whole").why == read_search(tmp_path / "run").why


def test_an_encoder_that_changed_after_its_trial_is_refused(starting_from, tables, tmp_path, monkeypatch):
    pre = encoder_run(tmp_path / "pre", seed=1)
    monkeypatch.setattr(search, "best_of", lambda trials: 1)
    run = TrainRun(make_plan(starting_from("preset", pre), tables=tables, cpu=True), tmp_path / "run", cpu=True).start()
    next(run)
    next(run)
    run.close()
    shutil.rmtree(pre)
    encoder_run(tmp_path / "pre", seed=2)
    with pytest.raises(CheckpointError, match=r"encoder.safetensors are not those that .*run tried; restore them"):
        take(open_run(tmp_path / "run", cpu=True).resume())


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        (
            {"search__backbones": ["resnet18"], "model__backbone": None},
            "search.backbones and search.starts both choose",
        ),
        ({"search__starts": ["PRE"]}, "search.starts tries several values, and weights='none' fixes one"),
        ({"search__starts": ["preset", "preset"]}, "search.starts has preset twice"),
        ({"search__starts": ["preset", "PRE", "PRE/encoder.safetensors"]}, "search.starts has .*pre twice"),
        ({"search__starts": ["preset", "nowhere"]}, "nowhere does not exist; give the folder of a pretraining run"),
        ({"model__backbone": "resnet18"}, "pre is a test_resnet, not a resnet18; leave the backbone out"),
    ],
)
def test_starts_that_contradict_each_other_are_refused(starting_from, tables, tmp_path, changes, words):
    pre = encoder_run(tmp_path / "pre", seed=1)
    changes = {"search__starts": ["preset", "PRE"], **changes}
    starts = [start.replace("PRE", pre) for start in changes.pop("search__starts")]
    with pytest.raises((ConfigError, CheckpointError), match=words):
        make_plan(starting_from(*starts, **changes), tables=tables, cpu=True)
