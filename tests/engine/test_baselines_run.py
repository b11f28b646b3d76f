"""Runs with the methods of other authors: all train, and those that need predictions get the right ones."""

import pytest
import torch

from fewtags.engine.evaluate import predict_logits
from fewtags.engine.events import Ended, StepEnded
from fewtags.engine.planning import make_plan
from fewtags.engine.train_run import TrainRun, open_run
from fewtags.errors import ConfigError
from fewtags.objectives.curriculum import CurriculumLabelling
from fewtags.objectives.table import METHODS

OLDER = {"bce", "assume_negative", "expected_negative", "patchml", "fixmatch"}
PREDICTING = {
    "curriculum": {"label_from": 1, "positive_above": 0.5},
    "em": {"soft_weight": 0.5, "soft_from": 1, "soft_scores": "pass"},
}
FINETUNE = {
    "train__stages": [
        {"name": "warmup", "epochs": 1, "lr": 1e-2, "trainable": "head", "warmup": True},
        {"name": "main", "epochs": 2, "lr": 1e-3, "trainable": 1},
    ],
    "train__cached_views": 0,
    "train__weight_ema": 0.5,
    "train__checkpoint_every_steps": 2,
}


def start(config, tables, out):
    return TrainRun(make_plan(config, tables=tables, cpu=True), out, cpu=True).start()


@pytest.mark.parametrize("name", sorted(METHODS.keys() - OLDER))
def test_every_method_trains_a_model(name, tables, make_config, tmp_path):
    *_, ended = start(make_config({"name": name}), tables, tmp_path / "run")
    assert isinstance(ended, Ended)
    assert (tmp_path / "run" / "model.safetensors").exists()


@pytest.mark.parametrize("stages", [{}, FINETUNE], ids=["frozen", "finetune"])
def test_predictions_are_those_of_the_evaluated_net_on_test_views(stages, tables, make_config, tmp_path, monkeypatch):
    given = []
    take = lambda self, epoch, logits: given.append((epoch, logits))  # noqa: E731
    monkeypatch.setattr(CurriculumLabelling, "on_predictions", take)
    run = TrainRun(
        make_plan(make_config({"name": "curriculum", **PREDICTING["curriculum"]}, **stages), tables=tables, cpu=True),
        tmp_path / "run",
        cpu=True,
    )
    wanted, original = [], run.photos.predict_train

    def predicted(net):
        device = torch.device("cpu")
        wanted.append(predict_logits(net, run.photos.eval_loader(tables.train), len(tables.train), device))
        return original(net)

    monkeypatch.setattr(run.photos, "predict_train", predicted)
    list(run.start())
    assert [epoch for epoch, _ in given] == [1, 2]
    for (_, logits), expected in zip(given, wanted, strict=True):
        torch.testing.assert_close(logits, torch.from_numpy(expected), rtol=0, atol=1e-4)
    assert not torch.equal(given[0][1], given[1][1])


@pytest.mark.parametrize(
    ("name", "stages"),
    [
        pytest.param("curriculum", {}, id="curriculum-frozen"),
        pytest.param("curriculum", FINETUNE, id="curriculum-finetune"),
        pytest.param("em", FINETUNE, id="em-finetune"),
        pytest.param("role", {}, id="role-frozen"),
    ],
)
def test_an_interrupted_run_ends_with_the_same_bits(name, stages, tables, make_config, tmp_path):
    config = make_config({"name": name, **PREDICTING.get(name, {})}, **stages)
    list(start(config, tables, tmp_path / "whole"))
    for event in start(config, tables, tmp_path / "left"):
        if isinstance(event, StepEnded) and event.global_step == 8:  # in the last epoch
            break
    list(open_run(tmp_path / "left", cpu=True).resume())
    whole, left = ((tmp_path / run / "model.safetensors").read_bytes() for run in ("whole", "left"))
    assert left == whole


def test_a_loop_without_predictions_refuses_a_method_that_needs_them(tiny):
    fit = tiny.make_fit(None, objective=CurriculumLabelling(label_from=1, unknown="negative"), validate=False)
    with pytest.raises(ConfigError, match="CurriculumLabelling needs predictions of the training images"):
        list(fit.run())
