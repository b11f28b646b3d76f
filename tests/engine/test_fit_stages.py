"""The loop: stages, one after the other, with their own layers, learning rates and optimizers."""

import math

import pytest
import torch
from fits import STEPS, assert_same_run, stages, take

from fewtags.engine.events import EpochEnded, EpochStarted, StepEnded

# --- stages


def test_the_learning_rate_is_a_cosine_over_each_stage(tiny):
    """Stage 0: constant. Stage 1, three epochs of six steps: lr (1 + cos(pi s / 18)) / 2 at its step s."""
    fit = tiny.make_fit(None, validate=False)
    seen = [fit.optimizer.param_groups[0]["lr"] for event in fit.run() if isinstance(event, StepEnded)]
    expected = [1e-2] * 6 + [1e-2 * (1 + math.cos(math.pi * s / 18)) / 2 for s in range(18)]
    assert seen == pytest.approx(expected, rel=1e-12)


def test_a_resumed_stage_goes_on_with_its_cosine(tiny, tmp_path):
    take(tiny.make_fit(tmp_path, checkpoint_every_steps=2), STEPS + 5)
    fit = tiny.make_fit(tmp_path, checkpoint_every_steps=2)
    seen = [fit.optimizer.param_groups[0]["lr"] for event in fit.run(resume=True) if isinstance(event, StepEnded)]
    assert seen == pytest.approx([1e-2 * (1 + math.cos(math.pi * s / 18)) / 2 for s in range(4, 18)], rel=1e-12)


def test_each_stage_trains_its_own_layers_with_an_optimizer_of_its_own(tiny):
    fit = tiny.make_fit(None, validate=False)
    trunk = {key: value.clone() for key, value in fit.net.backbone.state_dict().items()}
    for event in fit.run():
        if isinstance(event, EpochEnded) and event.record["epoch"] == 0:
            # The frozen trunk has not moved, its BatchNorm statistics included.
            assert all(torch.equal(value, trunk[key]) for key, value in fit.net.backbone.state_dict().items())
            assert len(fit.optimizer.state) == 2
            assert not torch.equal(fit.net.head.weight, tiny.make_net().head.weight)
        if isinstance(event, StepEnded) and event.global_step == STEPS + 1:
            assert len(fit.optimizer.state) == 2 + 8
            assert {int(entry["step"]) for entry in fit.optimizer.state.values()} == {1}
    assert not any(torch.equal(fit.net.backbone.state_dict()[key], trunk[key]) for key in trunk)


def test_batchnorm_eval_holds_the_statistics_of_trained_blocks(tiny):
    fit = tiny.make_fit(None, batchnorm_eval=True, validate=True)
    take(fit)
    assert not torch.equal(fit.net.backbone[1].weight, tiny.make_net().backbone[1].weight)
    assert torch.equal(fit.net.backbone[1].running_mean, tiny.make_net().backbone[1].running_mean)


@pytest.mark.parametrize("epochs", [(0, 2), (1, 0, 1), (1, 1, 0)])
def test_stages_without_epochs_are_passed_over(tiny, tmp_path, epochs):
    options = {"stages": stages(*epochs), "checkpoint_every_steps": 2}
    whole = tiny.make_fit(tmp_path / "whole", **options)
    events = take(whole)
    names = [event.stage for event in events if isinstance(event, EpochStarted)]
    assert names == [f"stage {i}" for i, n in enumerate(epochs) for _ in range(n)]
    for stop in (3, STEPS, STEPS + 1):
        out = tmp_path / f"stop-{stop}"
        take(tiny.make_fit(out, **options), stop)
        second = tiny.make_fit(out, net_seed=5, **options)
        take(second, resume=True)
        assert_same_run(second, out, whole, tmp_path / "whole")


def test_one_batch_may_hold_all_there_is(tiny, tmp_path):
    fit = tiny.make_fit(tmp_path, samples=3, validate=False, accumulate=4)
    events = take(fit)
    assert events[0].steps_per_epoch == 1
    assert [event.at.step for event in events if isinstance(event, StepEnded)] == [1] * 4
    assert fit.parts["scores"].state_dict()["visits"].tolist() == [4, 4, 4]


# --- other schedules and optimisers, and stopping early


def test_cosine_epoch_changes_the_rate_between_epochs_only(tiny):
    """MoCo's: lr (1 + cos(pi e / E)) / 2 in all steps of epoch e."""
    fit = tiny.make_fit(None, validate=False, stages=stages(3, schedule="cosine_epoch"))
    seen = [fit.optimizer.param_groups[0]["lr"] for event in fit.run() if isinstance(event, StepEnded)]
    assert seen == pytest.approx([1e-2 * (1 + math.cos(math.pi * e / 3)) / 2 for e in range(3) for _ in range(STEPS)])


def test_sgd_is_torchs_with_a_momentum_of_09(tiny, tmp_path):
    fit = tiny.make_fit(None, validate=False, optimizer="sgd", weight_decay=0.1, stages=stages(1))
    for event in fit.run():
        if isinstance(event, StepEnded) and event.global_step == 1:
            (group,) = fit.optimizer.param_groups
            assert (group["momentum"], group["weight_decay"], group["nesterov"]) == (0.9, 0.1, False)
            assert all("momentum_buffer" in entry for entry in fit.optimizer.state.values())
    options = {"optimizer": "sgd", "stages": stages(2), "checkpoint_every_steps": 2}
    whole = tiny.make_fit(tmp_path / "whole", **options)
    take(whole)
    take(tiny.make_fit(tmp_path / "again", **options), STEPS + 3)
    again = tiny.make_fit(tmp_path / "again", **options)
    take(again, resume=True)
    assert_same_run(again, tmp_path / "again", whole, tmp_path / "whole")


def scores(values):
    """A validation that finds these, one an epoch."""
    left = iter(values)
    return lambda net: {"mAP": next(left)}


@pytest.mark.parametrize(
    ("found", "trained"),
    [
        ([0.1, 0.2, 0.3, 0.4, 0.5, 0.6], 6),  # never
        ([0.5, 0.4, 0.4, 0.9, 0.9, 0.9], 3),  # best in epoch 1 of the stage; two that are not better
        ([0.1, 0.5, 0.4, 0.6, 0.6, 0.6], 6),  # equal is not better: it ends with the sixth by itself
        ([0.1, 0.5, 0.4, 0.45, 0.9, 0.9], 4),
        ([math.nan] * 6, 6),  # nothing to compare
    ],
)
def test_patience_ends_the_last_stage(tiny, found, trained):
    fit = tiny.make_fit(None, patience=2, stages=stages(6))
    fit.validate = scores(found)
    events = take(fit)
    assert sum(isinstance(event, EpochEnded) for event in events) == trained
    assert events[-1].epochs == trained


def test_patience_begins_with_the_last_stage(tiny):
    """The best value of all is in the first stage; the second has its own two epochs to better it."""
    fit = tiny.make_fit(None, patience=2, stages=stages(3, 4))
    fit.validate = scores([0.9, 0.1, 0.1, 0.2, 0.3, 0.4, 0.5])
    assert sum(isinstance(event, EpochEnded) for event in take(fit)) == 5


def test_a_run_that_stopped_early_stays_stopped_when_resumed(tiny, tmp_path):
    options = {"patience": 1, "stages": stages(4)}
    fit = tiny.make_fit(tmp_path, **options)
    fit.validate = scores([0.5, 0.4, 0.9, 0.9])
    take(fit)
    again = tiny.make_fit(tmp_path, **options)
    again.validate = scores([0.9, 0.9])
    events = take(again, resume=True)
    assert not any(isinstance(event, EpochEnded) for event in events)
    assert (events[-1].epochs, events[-1].best_epoch) == (2, 0)


# --- groups of parameters


def test_the_head_has_its_own_rate(tiny):
    """Ten times the rate of the other layers, through the cosine; a record names the rate of the stage."""
    stage = stages(1, head_factor=10.0, trainable="all")
    fit = tiny.make_fit(None, validate=False, stages=stage)
    seen, head = [], {id(p) for p in fit.net.head.parameters()}
    for event in fit.run():
        if isinstance(event, StepEnded):
            rates = {g["factor"]: g["lr"] for g in fit.optimizer.param_groups}
            assert rates[10.0] == pytest.approx(10 * rates[1.0])
            seen.append(rates[1.0])
            own = {id(p) for g in fit.optimizer.param_groups if g["factor"] == 10.0 for p in g["params"]}
            assert own == head
        if isinstance(event, EpochEnded):
            assert event.record["lr"] == pytest.approx(seen[-1])
    assert seen[0] == pytest.approx(1e-2)


def test_adamw_decays_matrices_and_kernels_only(tiny):
    fit = tiny.make_fit(None, validate=False, stages=stages(1), optimizer="adamw", weight_decay=0.3)
    for event in fit.run():
        if isinstance(event, StepEnded):
            decays = {p.ndim: g["weight_decay"] for g in fit.optimizer.param_groups for p in g["params"]}
            assert decays == {1: 0.0, 2: 0.3, 4: 0.3}
            assert isinstance(fit.optimizer.optimizer, torch.optim.AdamW)


def test_adam_adds_weight_decay_to_every_gradient(tiny):
    fit = tiny.make_fit(None, validate=False, stages=stages(1), weight_decay=0.3)
    for event in fit.run():
        if isinstance(event, StepEnded):
            assert {g["weight_decay"] for g in fit.optimizer.param_groups} == {0.3}
