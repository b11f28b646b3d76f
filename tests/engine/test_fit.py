"""The loop: steps that did not happen, events and records."""

import dataclasses
import json
import math

import pytest
import torch
from accelerate import Accelerator
from accelerate.optimizer import AcceleratedOptimizer
from fits import STEPS, assert_same_run, assert_same_state, stages, state, take

from fewtags.engine.events import Ended, EpochEnded, EpochStarted, Saved, Started, StepEnded
from fewtags.engine.fit import Fit
from fewtags.engine.tensor_files import load_tensors
from fewtags.errors import ConfigError, TrainingError
from fewtags.objectives.expected_negative import ExpectedNegative

# --- steps that did not happen


class Broken:
    """A batch source whose images are NaN at one (epoch, step)."""

    def __init__(self, source, at):
        self.source, self.at = source, at

    @property
    def steps_per_epoch(self):
        return self.source.steps_per_epoch

    def batches(self, epoch, start):
        for step, batch in enumerate(self.source.batches(epoch, start), start):
            yield dataclasses.replace(batch, images=batch.images * math.nan) if (epoch, step) == self.at else batch


def test_a_loss_that_is_not_a_number_stops_with_the_step_named_and_changes_nothing(tiny, tmp_path):
    options = {"weight_ema": 0.9, "checkpoint_every_steps": 2}
    fit = tiny.make_fit(tmp_path / "broken", **options)
    fit.source = Broken(fit.source, (1, 3))
    run = fit.run()
    for event in run:
        if isinstance(event, StepEnded) and event.global_step == STEPS + 3:
            break
    before = state(fit)
    with pytest.raises(TrainingError) as error:
        next(run)
    assert str(error.value) == (
        "the loss is nan at epoch 1, step 3; weights and stores are as before it. Lower the learning rate, set "
        'train.clip_norm = 1.0, or use train.precision = "no", and start again.'
    )
    after = state(fit)
    running = [key for key in before if key[1].endswith(("running_mean", "running_var", "num_batches_tracked"))]
    for key in set(before) - set(running):
        assert torch.equal(after[key], before[key]), key

    # What is on the disk is good: with sane images the run goes on as if nothing had been wrong.
    whole, second = tiny.make_fit(tmp_path / "whole", **options), tiny.make_fit(tmp_path / "broken", **options)
    take(whole)
    take(second, resume=True)
    assert_same_run(second, tmp_path / "broken", whole, tmp_path / "whole")


class BrokenGradient(torch.autograd.Function):
    """The loss as it is, with a gradient that is nan."""

    @staticmethod
    def forward(ctx, loss):
        return loss.clone()

    @staticmethod
    def backward(ctx, gradient):
        return gradient * math.nan


@pytest.mark.parametrize("clip_norm", [0.0, 1.0])
def test_a_gradient_that_is_not_a_number_stops_before_it_is_applied(tiny, tmp_path, monkeypatch, clip_norm):
    """The loss is fine; applied, the step would make every weight NaN, and the next checkpoint would keep that."""
    fit = tiny.make_fit(tmp_path / "broken", checkpoint_every_steps=2, clip_norm=clip_norm)
    step = fit.objective.step

    def broken(net, batch, at):
        out = step(net, batch, at)
        return dataclasses.replace(out, loss=BrokenGradient.apply(out.loss)) if (at.epoch, at.step) == (1, 3) else out

    monkeypatch.setattr(fit.objective, "step", broken)
    with pytest.raises(TrainingError, match=r"the loss is \d\.\d+ but its gradient is not finite at epoch 1, step 3;"):
        take(fit)
    assert all(value.isfinite().all() for key, value in state(fit).items() if key[1] != "cut_score")
    whole, second = (
        tiny.make_fit(tmp_path / "whole", checkpoint_every_steps=2, clip_norm=clip_norm),
        tiny.make_fit(tmp_path / "broken", checkpoint_every_steps=2, clip_norm=clip_norm),
    )
    take(whole)
    take(second, resume=True)
    assert_same_state(state(second), state(whole))


def test_problem_and_config_must_have_the_same_epochs(tiny):
    fit = tiny.make_fit(None)
    problem = dataclasses.replace(fit.problem, warmup_epochs=fit.config.warmup_epochs + 1)
    with pytest.raises(
        ConfigError, match=r"^Problem has warmup_epochs=2, epochs=4, but FitConfig has 1 and 4; build it from"
    ):
        Fit(fit.net, fit.objective, fit.source, fit.config, problem, accelerator=fit.accelerator)


def test_every_loss_of_an_accumulated_step_is_named(tiny):
    fit = tiny.make_fit(None, accumulate=2, validate=False)
    fit.source = Broken(fit.source, (0, 3))
    with pytest.raises(TrainingError, match=r"the loss is 0\.\d+, nan at epoch 0, step 2;"):
        take(fit)


def test_a_step_that_mixed_precision_skipped_is_not_committed(tiny, monkeypatch):
    fit = tiny.make_fit(None, weight_ema=0.9, validate=False)
    run = fit.run()
    for event in run:
        if isinstance(event, StepEnded) and event.global_step == STEPS + 1:
            break
    assert event.applied
    before = state(fit)
    with monkeypatch.context() as patch:
        patch.setattr(AcceleratedOptimizer, "step", lambda self, closure=None: None)
        patch.setattr(Accelerator, "optimizer_step_was_skipped", True)
        skipped = next(run)
    assert (skipped.applied, skipped.global_step, skipped.at.step) == (False, STEPS + 2, 2)
    after = state(fit)
    for key in before:
        if "running" not in key[1] and "num_batches" not in key[1]:
            assert torch.equal(after[key], before[key]), key
    index = next(fit.source.batches(1, 1)).index
    assert fit.parts["heatmaps"].state_dict()["visits"][index].tolist() == [0] * len(index)
    next(run)  # and the loop goes on
    assert not torch.equal(fit.net.head.weight, before["net", "head.weight"])


def test_a_gradient_scaler_skips_commits_and_comes_back_at_a_stage_boundary(tiny, tmp_path):
    """A real scaler on the CPU whose scale is too large for the second stage: steps are skipped until it has halved.

    The scale must survive a resume, also where the checkpoint stands at the beginning of a stage, which has a new Adam.
    """

    def make(name, net_seed=0):
        fit = tiny.make_fit(tmp_path / name, net_seed=net_seed, method={"cl_weight": 300.0})
        fit.accelerator.scaler = torch.amp.GradScaler("cpu", init_scale=2.0**120, growth_interval=3)
        return fit

    whole = make("whole")
    events = take(whole)
    applied = [event.applied for event in events if isinstance(event, StepEnded)]
    assert applied[:STEPS] == [True] * STEPS
    assert applied[STEPS] is False
    assert sum(applied[STEPS:]) > STEPS
    seen = whole.parts["scores"].state_dict()["visits"].sum()
    sizes = [len(batch.index) for epoch in range(4) for batch in whole.source.batches(epoch, 0)]
    assert seen == sum(size for size, done in zip(sizes, applied, strict=True) if done)
    for stop in (STEPS + 1, STEPS + 4, 2 * STEPS + 3):
        out = f"stop-{stop}"
        take(make(out), stop)
        second = make(out, net_seed=5)
        take(second, resume=True)
        assert_same_run(second, tmp_path / out, whole, tmp_path / "whole")
        assert second.accelerator.scaler.state_dict() == whole.accelerator.scaler.state_dict()


# --- events and records


class Counting(ExpectedNegative):
    """EN that notes the epochs it was told of."""

    epochs: list

    def on_epoch_start(self, epoch):
        self.epochs.append(epoch)
        return super().on_epoch_start(epoch)


def test_an_epoch_starts_once_also_over_an_interruption(tiny, tmp_path):
    epochs = []
    options = {"checkpoint_every_steps": 2, "validate": False}
    for resume in (False, True):
        method = Counting(positives_per_image=1.8)
        method.epochs = epochs
        take(tiny.make_fit(tmp_path, objective=method, **options), STEPS + 2 if not resume else None, resume)
    # Left after the eighth step and its checkpoint had not been written: the events stop before it.
    assert epochs == [0, 1, 1, 2, 3]
    again = Counting(positives_per_image=1.8)
    again.epochs = []
    out = tmp_path / "second"
    fit = tiny.make_fit(out, objective=again, **options)
    for event in fit.run():
        if isinstance(event, Saved) and event.path.name == f"step-{STEPS + 2:09d}":
            break
    take(tiny.make_fit(out, objective=again, **options), resume=True)
    assert again.epochs == [0, 1, 2, 3]


def test_events_come_in_order_and_say_where_training_is(tiny, tmp_path):
    events = take(tiny.make_fit(tmp_path, stages=stages(1, 1), accumulate=4))
    kinds = [type(event) for event in events]
    epoch = [EpochStarted, StepEnded, StepEnded, EpochEnded, Saved]
    assert kinds == [Started, *epoch, *epoch, Ended]
    assert events[0] == Started(2, STEPS, None, 0)
    steps = [event for event in events if isinstance(event, StepEnded)]
    assert [(e.at.epoch, e.at.step, e.global_step) for e in steps] == [(0, 4, 1), (0, 6, 2), (1, 4, 3), (1, 6, 4)]
    assert [event.path.name for event in events if isinstance(event, Saved)] == ["step-000000002", "step-000000004"]


@pytest.mark.parametrize(("accumulate", "steps"), [(1, STEPS), (4, 2)])
def test_a_record_holds_means_over_the_epoch(tiny, tmp_path, accumulate, steps):
    """The mean loss of six batches, taken while they are trained on."""
    fit, losses = tiny.make_fit(tmp_path, stages=stages(1), accumulate=accumulate), []
    optimise = fit._optimise

    def watched(*given):
        outs, applied = optimise(*given)
        losses.extend(out.loss.item() for out in outs)
        return outs, applied

    fit._optimise = watched
    record = next(event.record for event in fit.run() if isinstance(event, EpochEnded))
    assert len(losses) == STEPS
    assert record["train/loss"] == pytest.approx(sum(losses) / STEPS, rel=1e-6)
    assert (record["epoch"], record["stage"], record["step"]) == (0, "stage 0", steps)
    assert {"seconds", "cpu_seconds", "train/en", "val/mAP", "val/predicted_positives"} <= record.keys()
    assert json.loads((tmp_path / "metrics.jsonl").read_text()) == record


def test_what_is_not_a_number_is_null_in_the_file(tiny, tmp_path):
    take(tiny.make_fit(tmp_path, stages=stages(1), validate=lambda net: {"mAP": math.nan}))
    assert json.loads((tmp_path / "metrics.jsonl").read_text())["val/mAP"] is None


def test_the_best_epoch_is_the_first_with_the_highest_metric(tiny, tmp_path):
    values, weights = iter([math.nan, 0.3, 0.5, 0.4, 0.5]), []

    def validate(net):
        assert not net.training
        assert not torch.is_grad_enabled()
        weights.append(net.head.weight.clone())
        return {"mAP": next(values)}

    fit = tiny.make_fit(tmp_path, stages=stages(5), validate=validate)
    events = take(fit)
    assert [event.best for event in events if isinstance(event, EpochEnded)] == [False, True, True, False, False]
    assert events[-1] == Ended(5, 2, 0.5)
    assert torch.equal(load_tensors(tmp_path / "best.safetensors")["head.weight"], weights[2])
    assert not torch.equal(weights[2], weights[4])


def test_the_best_weights_are_the_averaged_ones(tiny, tmp_path):
    kept, raw = [], []

    def validate(net):
        kept.append({key: value.clone() for key, value in net.state_dict().items()})
        raw.append(fit.net.head.weight.clone())
        return {"mAP": (0.2, 0.6, 0.4)[len(kept) - 1]}

    fit = tiny.make_fit(tmp_path, stages=stages(3), validate=validate, weight_ema=0.8)
    assert take(fit)[-1] == Ended(3, 1, 0.6)
    best = load_tensors(tmp_path / "best.safetensors")
    assert best.keys() == kept[1].keys()
    assert all(torch.equal(value, kept[1][key]) for key, value in best.items())
    assert not torch.equal(best["head.weight"], raw[1])


def test_the_best_epoch_is_the_best_by_the_metric_that_is_monitored(tiny, tmp_path):
    found = iter([{"mAP": 0.9, "hit@1": 0.1}, {"mAP": 0.5, "hit@1": 0.3}, {"mAP": 0.1, "hit@1": 0.2}])
    fit = tiny.make_fit(tmp_path, stages=stages(3), monitor="hit@1", validate=lambda net: next(found))
    assert take(fit)[-1] == Ended(3, 1, 0.3)


def test_nothing_to_monitor_is_no_best_epoch(tiny, tmp_path):
    ended = take(tiny.make_fit(tmp_path, validate=lambda net: {"hit@1": 1.0}))[-1]
    assert ended == Ended(4, None, None)
    assert not (tmp_path / "best.safetensors").exists()


def test_without_a_folder_nothing_is_written(tiny, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    events = take(tiny.make_fit(None, checkpoint_every_steps=1))
    assert not any(isinstance(event, Saved) for event in events)
    assert [*tmp_path.iterdir()] == []
