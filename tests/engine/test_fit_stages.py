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
