"""Searches that are refused: settings that contradict each other, damaged records, other trials."""

import json

import numpy as np
import pytest
from search_runs import FACTS
from train_runs import take, train

from fewtags.config.presets import resolve
from fewtags.config.search import candidates
from fewtags.engine import planning, preset_facts
from fewtags.engine.planning import make_plan
from fewtags.engine.runfolder import SEARCH_FILE
from fewtags.engine.search import Search
from fewtags.engine.train_run import TrainRun, open_run
from fewtags.errors import CheckpointError, ConfigError


def test_a_damaged_search_is_named(search_config, tables, tmp_path):
    run = TrainRun(make_plan(search_config(), tables=tables, cpu=True), tmp_path / "run", cpu=True).start()
    next(run)
    run.close()
    (tmp_path / "run" / SEARCH_FILE).write_text("{")
    with pytest.raises(CheckpointError, match=r"search.json is damaged \(.*\); delete search.json, and everything is"):
        open_run(tmp_path / "run", cpu=True)


def test_damaged_scores_of_a_trial_are_named(search_config, tables, tmp_path, monkeypatch):
    with monkeypatch.context() as patch:
        patch.setattr(Search, "_why", lambda self, chosen: (_ for _ in ()).throw(KeyboardInterrupt))
        with pytest.raises(KeyboardInterrupt):
            train(search_config(), tables, tmp_path / "run")
    assert json.loads((tmp_path / "run" / "seconds.json").read_text())["search"] > 0
    path = tmp_path / "run" / "search" / "trial-000.npy"
    shape = np.load(path).shape
    for bad in (np.zeros((3, 3), np.float32), np.full(shape, np.nan, np.float32), np.zeros(shape)):
        np.save(path, bad)
        with pytest.raises(CheckpointError, match=r"trial-000.npy is damaged \(it has .*; delete search.json"):
            take(open_run(tmp_path / "run", cpu=True).resume())
    path.unlink()
    with pytest.raises(CheckpointError, match=r"trial-000.npy is missing; delete search.json"):
        take(open_run(tmp_path / "run", cpu=True).resume())


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"augment__size": 64}, "search.sizes tries several values, and size=64 fixes one"),
        ({"search__sizes": [32, 32]}, "search.sizes has 32 twice"),
        (
            {"search__pools": ["mean"], "model__pool": "max"},
            'search.pools tries several values, and model.pool = "max" fixes',
        ),
        ({"search__methods": ["bce"], "objective": {"name": "bce"}}, "objective='bce' fixes one"),
        (
            {"search__backbones": ["resnet18"]},
            "search.backbones tries several values, and backbone='test_resnet'",
        ),
        (
            {"search__backbones": ["resnet18", "resnet34"], "model__backbone": None, "model__weights": "net.pth"},
            "search.backbones tries several values, and the weights net.pth are those of one; leave",
        ),
        (
            {"search__backbones": "test_resnet", "model__weights": "pretrained/encoder.safetensors"},
            "the weights pretrained/encoder.safetensors are those of one, test_resnet; leave",
        ),
    ],
)
def test_settings_that_contradict_a_search_are_refused(search_config, changes, words):
    found = search_config(**changes)
    with pytest.raises(ConfigError, match=words):
        candidates(found, resolve(found, FACTS), FACTS)


def test_a_search_is_for_one_process(search_config):
    facts = FACTS.model_copy(update={"processes": 2})
    with pytest.raises(ConfigError, match="in one process, and there are 2"):
        candidates(search_config(), resolve(search_config(), facts), facts)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        (
            {"search__methods": ["splc", "bce"], "search__sizes": []},
            "search cannot try splc: the method compares views",
        ),
        ({"search__methods": ["nothing"], "search__sizes": []}, "'nothing' is not a method"),
        ({"search__sizes": [32, 64], "search__pools": ["lse"], "train__cache_gib": 1e-6}, "Raise train.cache_gib"),
    ],
)
def test_a_candidate_that_cannot_be_tried_is_refused_before_training(search_config, tables, changes, words):
    with pytest.raises(ConfigError, match=words):
        make_plan(search_config(**changes), tables=tables, cpu=True)


def test_weights_that_the_user_gave_are_not_dropped(search_config, tables, monkeypatch):
    for module in (preset_facts, planning):
        monkeypatch.setattr(module, "has_answers", lambda _: True)
    solve = {"name": "own", "logit_variances": [1.0], "answer_weights": [1.0, 4.0], "trainable": "head"}
    changes = {"search__methods": ["expected_negative", "bce"], "search__sizes": [], "augment__size": 32}
    with pytest.raises(ConfigError) as error:
        make_plan(search_config(**changes, train__stages=[solve]), tables=tables, cpu=True)
    assert str(error.value) == (
        "stage 'own' has answer_weights, but bce, which search tries, does not weigh answers; leave them out, or "
        "leave the method out of search.methods."
    )
