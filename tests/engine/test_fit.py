"""The loop: resume gives the same bits, steps that did not happen are not committed, stages, averages, events."""

import dataclasses
import json
import math
import shutil
import subprocess
import sys

import pytest
import torch
from accelerate import Accelerator
from accelerate.optimizer import AcceleratedOptimizer
from torch import nn

from fewtags.config import StageConfig
from fewtags.data.augment import SquareCrop
from fewtags.data.loader import Collate, EpochSampler, Photos, TrainLoader, TrainSet, Workers
from fewtags.engine.checkpoint import load_pickled, load_tensors
from fewtags.engine.events import Ended, EpochEnded, EpochStarted, Saved, Started, StepEnded
from fewtags.engine.fit import Fit, FitConfig, make_accelerator
from fewtags.errors import CheckpointError, ConfigError, TrainingError
from fewtags.nets.spatial import SpatialHead, SpatialNet
from fewtags.objectives.assume_negative import AssumeNegative
from fewtags.objectives.base import Problem
from fewtags.objectives.expected_negative import ExpectedNegative

STEPS = 6  # batches in an epoch of `fit_worker.make_fit`
TIMINGS = ("seconds", "cpu_seconds")

VARIANTS = {
    "plain": {},
    "checkpoints inside epochs": {"checkpoint_every_steps": 2},
    "accumulate": {"accumulate": 4, "checkpoint_every_steps": 1},
    "averaged weights": {"weight_ema": 0.8, "checkpoint_every_steps": 4},
    "bf16": {"precision": "bf16", "checkpoint_every_steps": 4},
    "heatmaps on disk": {"method": {"heatmap_storage": "disk"}, "checkpoint_every_steps": 4},
    "everything": {
        "method": {"heatmap_storage": "disk", "heatmap_rounding": "stochastic", "corrected_averages": True},
        "accumulate": 2,
        "weight_ema": 0.9,
        "precision": "bf16",
        "clip_norm": 0.1,
        "weight_decay": 1e-3,
        "checkpoint_every_steps": 2,
    },
}


def take(fit, steps=None, resume=False):
    """Run to the end, or leave the iteration after so many optimiser steps."""
    events = []
    for event in fit.run(resume):
        events.append(event)
        if isinstance(event, StepEnded):
            steps = None if steps is None else steps - 1
            if steps == 0:
                break
    return events


def records(out):
    """The lines of metrics.jsonl without what a clock says."""
    lines = [json.loads(line) for line in (out / "metrics.jsonl").read_text().splitlines()]
    return [{key: value for key, value in line.items() if key not in TIMINGS} for line in lines]


def state(fit):
    """Copies of everything that a run ends with."""
    nets = {"net": fit.net} | ({} if fit.averaged is None else {"averaged": fit.averaged})
    held = {name: net.state_dict() for name, net in nets.items()}
    held |= {name: part.state_dict() for name, part in fit.parts.items()}
    return {(name, key): value.clone() for name, values in held.items() for key, value in values.items()}


def assert_same_state(one, two):
    assert one.keys() == two.keys()
    for key, value in one.items():
        assert torch.equal(value, two[key]), key


def assert_same_run(fit, out, whole, whole_out):
    assert_same_state(state(fit), state(whole))
    assert records(out) == records(whole_out)
    assert (out / "best.safetensors").read_bytes() == (whole_out / "best.safetensors").read_bytes()
    (path,), (other,) = ([*(o / "checkpoints").glob("step-*")] for o in (out, whole_out))
    assert path.name == other.name
    adam, reference = (load_pickled(p / "optimizer.pt")["optimizer"]["state"] for p in (path, other))
    assert adam.keys() == reference.keys()
    for number, entries in adam.items():
        for key, value in entries.items():
            assert torch.equal(value, reference[number][key]), (number, key)


# --- interrupted and resumed


@pytest.mark.parametrize("variant", VARIANTS)
def test_an_interrupted_run_is_bitwise_equal(tiny, tmp_path, variant):
    """Left inside the warm-up, at its end, and inside and at the end of later epochs.

    What goes on starts from another net, whose weights the checkpoint replaces, and another global generator.
    """
    options = VARIANTS[variant]
    whole = tiny.make_fit(tmp_path / "whole", **options)
    events = take(whole)
    assert whole.parts.keys() == {"scores", "heatmaps", "expected_positives"}
    steps = events[-3].record["step"]  # EpochEnded, Saved, Ended
    for stop in sorted({2, steps // 4, steps // 2 + 1, steps}):
        out = tmp_path / f"stop-{stop}"
        take(tiny.make_fit(out, **options), stop)
        second = tiny.make_fit(out, net_seed=5 if (out / "checkpoints").exists() else 0, **options)
        with torch.random.fork_rng():
            torch.manual_seed(999)
            take(second, resume=True)
        assert_same_run(second, out, whole, tmp_path / "whole")


@pytest.mark.parametrize("every", [1, 2])
def test_a_run_that_is_interrupted_again_and_again_is_bitwise_equal(tiny, tmp_path, every):
    options = {"checkpoint_every_steps": every, "weight_ema": 0.9}
    whole = tiny.make_fit(tmp_path / "whole", **options)
    take(whole)
    fits = 0
    while True:
        fit = tiny.make_fit(tmp_path / "pieces", net_seed=fits, **options)
        fits += 1
        if isinstance(take(fit, 3, resume=fits > 1)[-1], Ended):
            break
    assert fits >= 4 * STEPS // 3
    assert_same_run(fit, tmp_path / "pieces", whole, tmp_path / "whole")


def test_kill_9_in_the_middle_of_an_epoch(tiny, tmp_path):
    """Processes that got SIGKILL between two steps, and while they wrote a checkpoint.

    Checkpoints come after steps 4, 6 (end of the epoch), 8 and 12, and the fourth one is never completed: in both cases
    the last one is of step 8, in the second epoch.
    """
    options = {
        "checkpoint_every_steps": 4,
        "weight_ema": 0.9,
        "method": {"heatmap_storage": "disk", "positives_per_image": 1.8},
    }
    whole = tiny.make_fit(tmp_path / "whole", **options)
    take(whole)
    deaths = {"between steps": {"die_after": 10}, "while saving": {"die_saving": 4}}
    jobs = {str(tmp_path / name): options | death for name, death in deaths.items()}
    command = [sys.executable, "-W", "error", tiny.__file__, json.dumps(jobs)]
    done = subprocess.run(command, check=True, stdout=subprocess.PIPE, timeout=200)
    assert done.stdout.split() == [b"-9", b"-9"]
    assert (tmp_path / "while saving" / "checkpoints" / ".step-000000012.tmp" / "net.safetensors").exists()
    for name in deaths:
        out = tmp_path / name
        second = tiny.make_fit(out, net_seed=5, **options)
        events = take(second, resume=True)
        assert events[0].resumed_from == out / "checkpoints" / "step-000000008"
        assert_same_run(second, out, whole, tmp_path / "whole")
        assert [p.name for p in (out / "checkpoints").iterdir() if p.name.startswith(".")] == []


def test_resume_without_a_checkpoint_starts_from_the_beginning(tiny, tmp_path):
    whole = tiny.make_fit(tmp_path / "whole")
    take(whole)
    take(tiny.make_fit(tmp_path / "early"), 3)
    assert not (tmp_path / "early" / "checkpoints").exists()
    second = tiny.make_fit(tmp_path / "early")
    events = take(second, resume=True)
    assert events[0] == Started(4, STEPS, None, 0)
    assert_same_run(second, tmp_path / "early", whole, tmp_path / "whole")


def test_resume_of_a_run_that_was_done_ends_at_once(tiny, tmp_path):
    whole = tiny.make_fit(tmp_path)
    ended = take(whole)[-1]
    again = tiny.make_fit(tmp_path, net_seed=5)
    assert take(again, resume=True) == [Started(4, STEPS, tmp_path / "checkpoints" / "step-000000024", 4), ended]
    assert_same_state(state(again), state(whole))


def test_the_global_generators_are_left_alone(tiny):
    fit = tiny.make_fit(None)
    before = torch.get_rng_state()
    take(fit)
    assert torch.equal(torch.get_rng_state(), before)


def test_dropout_draws_by_seed_and_step(tiny):
    """Without the generator of the step, two runs would differ: what the global generator holds must not matter."""
    weights = []
    for seed in (1, 2):
        fit = tiny.make_fit(None, dropout=0.5)
        with torch.random.fork_rng():
            torch.manual_seed(seed)
            take(fit)
        weights.append(fit.net.head.weight)
    without = tiny.make_fit(None, dropout=0.0)
    take(without)
    assert torch.equal(*weights)
    assert not torch.equal(weights[0], without.net.head.weight)


@pytest.mark.parametrize("left", [None, 4], ids=["uninterrupted", "resumed"])
def test_two_loader_workers_give_the_run_of_none(scenes, tmp_path, left):
    """Photos from disk, crops drawn in worker processes; also where a run goes on in the middle of an epoch."""
    train = scenes.train

    def make(out, workers, seed=0):
        generator = torch.Generator().manual_seed(seed)
        body = nn.Sequential(nn.Conv2d(3, 8, 3, 2, 1), nn.BatchNorm2d(8), nn.ReLU())
        net = SpatialNet(body, SpatialHead(8, len(train.classes), generator=generator))
        for name, parameter in net.named_parameters():
            if name.startswith("backbone"):
                nn.init.normal_(parameter, 0, 0.3, generator=generator)
        photos = TrainSet(Photos(train.root, train.images), train.matrix, SquareCrop(16), seed=3)
        collate = Collate((0.5, 0.5, 0.5), (0.25, 0.25, 0.25))
        loader = TrainLoader(photos, EpochSampler(len(train), 5, 3), collate, Workers(workers))
        stages = (StageConfig(name="main", epochs=2, lr=1e-2),)
        method = ExpectedNegative(positives_per_image=2.9, scl_weight=0.5)
        problem = Problem(train.matrix, (8, 8), 0, 2, 3)
        config = FitConfig(stages, seed=3, checkpoint_every_steps=3)
        return Fit(net, method, loader, config, problem, accelerator=make_accelerator(cpu=True), out=out)

    fits = []
    for workers in (0, 2):
        out = tmp_path / str(workers)
        if left is not None:
            take(make(out, workers), left)
        fits.append(make(out, workers, seed=0 if left is None else 1))
        take(fits[-1], resume=left is not None)
    assert_same_state(state(fits[1]), state(fits[0]))
    assert records(tmp_path / "2") == records(tmp_path / "0")


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
    """The loss as it is, with a gradient that is no number."""

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
    with pytest.raises(
        TrainingError, match=r"the loss is \d\.\d+, with a gradient that is no number, at epoch 1, step 3;"
    ):
        take(fit)
    assert all(value.isfinite().all() for key, value in state(fit).items() if key[1] != "cut_score")
    whole, second = (
        tiny.make_fit(tmp_path / "whole", checkpoint_every_steps=2, clip_norm=clip_norm),
        tiny.make_fit(tmp_path / "broken", checkpoint_every_steps=2, clip_norm=clip_norm),
    )
    take(whole)
    take(second, resume=True)
    assert_same_state(state(second), state(whole))


def test_the_objective_must_be_told_what_will_be_trained(tiny):
    fit = tiny.make_fit(None)
    problem = dataclasses.replace(fit.problem, warmup_epochs=fit.config.warmup_epochs + 1)
    with pytest.raises(ConfigError, match=r"^the objective is told \d warm-up epochs of \d, but \d of \d come: make"):
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


# --- what does not fit is refused


def edit(path, **changes):
    file = path / "progress.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | changes))


LEFT = {"checkpoint_every_steps": 2, "weight_ema": 0.9}


@pytest.fixture(scope="module")
def left(tiny, tmp_path_factory):
    """A run left in its second epoch."""
    out = tmp_path_factory.mktemp("left") / "run"
    take(tiny.make_fit(out, **LEFT), STEPS + 3)
    return out


@pytest.fixture
def interrupted(left, tmp_path):
    """A copy of it, its checkpoint, and how it was made."""
    out = shutil.copytree(left, tmp_path / "run")
    return out, out / "checkpoints" / f"step-{STEPS + 2:09d}", LEFT


def refusal(fit):
    with pytest.raises(CheckpointError) as error:
        take(fit, resume=True)
    return str(error.value)


def test_another_method_is_refused(tiny, interrupted):
    out, path, options = interrupted
    fit = tiny.make_fit(out, objective=AssumeNegative(), **options)
    assert refusal(fit) == (
        f"{path} was written with parts ['expected_positives', 'heatmaps', 'scores'], this run has []; resume it the "
        "way it began."
    )


def test_another_number_of_processes_is_refused(tiny, interrupted):
    out, path, options = interrupted
    edit(path, processes=2)
    assert refusal(tiny.make_fit(out, **options)) == (
        f"{path} was written with processes 2, this run has 1; resume it the way it began."
    )


def test_other_settings_are_refused(tiny, interrupted):
    out, path, options = interrupted
    assert refusal(tiny.make_fit(out, **options | {"accumulate": 2})) == (
        f"{path} was written with accumulate 1, this run has 2; resume it the way it began."
    )
    assert "steps per epoch 6, this run has 5" in refusal(tiny.make_fit(out, samples=20, **options))
    # Where checkpoints are written changes nothing else.
    take(tiny.make_fit(out, **options | {"checkpoint_every_steps": 5}), resume=True)


def test_another_format_is_refused(tiny, interrupted):
    out, path, options = interrupted
    edit(path, format=99)
    assert refusal(tiny.make_fit(out, **options)) == (
        f"{path} has checkpoint format 99, this version reads 1; go on with the version that wrote it, or start a new "
        "run."
    )


def test_stores_of_other_shapes_are_refused(tiny, interrupted):
    out, _, options = interrupted
    fit = tiny.make_fit(out, method={"heatmap_dtype": "float16"}, **options)
    assert "heatmaps.values is uint8 [22, 4, 6, 6] in the checkpoint and float16 [22, 4, 6, 6]" in refusal(fit)


def test_another_net_is_refused(tiny, interrupted):
    out, path, options = interrupted
    fit = tiny.make_fit(out, **options)
    fit.net.head = SpatialHead(12, 5)
    assert refusal(fit).startswith(f"{path / 'net.safetensors'} holds another net than this run has: ")


FILES = ["net.safetensors", "averaged.safetensors", "optimizer.pt", "progress.json", *[f"parts-0/{p}.pt" for p in (
    "scores", "heatmaps", "expected_positives")]]  # fmt: skip


@pytest.mark.parametrize("damage", ["truncated", "overwritten", "missing"])
@pytest.mark.parametrize("name", FILES)
def test_a_damaged_checkpoint_is_named(tiny, interrupted, name, damage):
    out, path, options = interrupted
    file = path / name
    if damage == "truncated":
        file.write_bytes(file.read_bytes()[:-20])
    elif damage == "overwritten":
        file.write_bytes(b"\x00" * 100)
    else:
        file.unlink()
    message = refusal(tiny.make_fit(out, **options))
    assert str(path) in message or path.name in message
    assert message.endswith("restore it, or start a new run.")


# --- what a step does


def test_accumulated_batches_are_one_step_on_their_mean(tiny):
    """Adam's first step is -lr sign(g) where |g| >> eps: the very sign and size follow from the mean of two losses."""
    fit = tiny.make_fit(None, accumulate=2, dropout=0.0, validate=False)
    reference = tiny.make_fit(None, dropout=0.0, validate=False)
    head = reference.net.train().head
    for parameter in reference.net.backbone.parameters():
        parameter.requires_grad_(False)
    reference.net.train()
    batches = [*reference.source.batches(0, 0)][:2]
    losses = [reference.objective.step(reference.net, batch, event_at(step)).loss for step, batch in enumerate(batches)]
    gradient = torch.autograd.grad(sum(losses) / 2, head.weight)[0]
    before = head.weight.detach().clone()
    run = fit.run()
    (step,) = [next(run) for _ in range(3)][2:]
    assert (step.global_step, step.at.step) == (1, 2)
    torch.testing.assert_close(fit.net.head.weight.grad, gradient)
    torch.testing.assert_close(fit.net.head.weight, before - 1e-2 * gradient / (gradient.abs() + 1e-8))


def event_at(step):
    from fewtags.objectives.base import Progress

    return Progress(0, step, STEPS, warmup=True)


def test_gradients_are_clipped_over_all_parameters(tiny):
    fit = tiny.make_fit(None, clip_norm=0.01, validate=False)
    norms = []
    for event in fit.run():
        if isinstance(event, StepEnded):
            gradients = [p.grad for p in fit.net.parameters() if p.grad is not None]
            norms.append(torch.stack([g.norm() for g in gradients]).norm().item())
    assert max(norms) <= 0.01 * (1 + 1e-5)
    assert min(norms) >= 0.0099


def test_averaged_weights_follow_every_step(tiny, tmp_path):
    """w_1 = v_1, then w_t = .8 w_(t-1) + .2 v_t, over the weights after each step; they are what is evaluated."""
    seen = []
    fit = tiny.make_fit(tmp_path, weight_ema=0.8, validate=lambda net: seen.append(net.head.weight.clone()) or {})
    expected = None
    for event in fit.run():
        if isinstance(event, StepEnded):
            now = fit.net.head.weight.detach()
            expected = now.clone() if expected is None else 0.8 * expected + 0.2 * now
    torch.testing.assert_close(fit.averaged.module.head.weight, expected)
    assert fit.evaluated is fit.averaged.module
    assert torch.equal(seen[-1], fit.averaged.module.head.weight)
    assert not torch.equal(seen[-1], fit.net.head.weight)


def test_bf16_computes_in_bf16_and_gives_the_objective_float32(tiny):
    kinds = set()

    class Spy(AssumeNegativeSpy):
        def look(self, out):
            kinds.add((out.logits.dtype, out.maps.dtype, out.features.dtype))

    fit = tiny.make_fit(None, precision="bf16", objective=Spy(), validate=False)
    inner = []
    fit.net.backbone[0].register_forward_hook(lambda module, given, out: inner.append(out.dtype))
    take(fit, 2)
    assert kinds == {(torch.float32,) * 3}
    assert set(inner) == {torch.bfloat16}
    assert all(p.dtype == torch.float32 for p in fit.net.parameters())


class AssumeNegativeSpy:
    """AN that lets a test look at what the net said."""

    def __init__(self):
        self.method = AssumeNegative()

    def setup(self, net, problem):
        return {}

    def on_epoch_start(self, epoch):
        return {}

    def look(self, out):
        raise NotImplementedError

    def step(self, net, batch, at):
        self.look(net(batch.images))
        return self.method.step(net, batch, at)

    def commit(self, net, batch, out):
        pass


def test_fp16_without_a_gpu_is_refused():
    with pytest.raises(ConfigError) as error:
        make_accelerator("fp16", cpu=True)
    assert str(error.value) == 'train.precision = "fp16" needs a GPU; use bf16 or no.'


def test_one_process_may_make_accelerators_of_every_precision():
    assert [make_accelerator(p, cpu=True).mixed_precision for p in ("no", "bf16", "no")] == ["no", "bf16", "no"]


# --- stages


def stages(*epochs, **options):
    return tuple(StageConfig(name=f"stage {i}", epochs=n, lr=1e-2, **options) for i, n in enumerate(epochs))


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


def test_a_record_holds_means_over_the_epoch(tiny, tmp_path):
    """The mean loss of six batches, taken while they are trained on."""
    fit, losses = tiny.make_fit(tmp_path, stages=stages(1)), []
    optimise = fit._optimise

    def watched(*given):
        outs, applied = optimise(*given)
        losses.extend(out.loss.item() for out in outs)
        return outs, applied

    fit._optimise = watched
    record = next(event.record for event in fit.run() if isinstance(event, EpochEnded))
    assert len(losses) == STEPS
    assert record["train/loss"] == pytest.approx(sum(losses) / STEPS, rel=1e-6)
    assert (record["epoch"], record["stage"], record["step"]) == (0, "stage 0", STEPS)
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


def test_nothing_to_monitor_is_no_best_epoch(tiny, tmp_path):
    ended = take(tiny.make_fit(tmp_path, validate=lambda net: {"hit@1": 1.0}))[-1]
    assert ended == Ended(4, None, None)
    assert not (tmp_path / "best.safetensors").exists()


def test_without_a_folder_nothing_is_written(tiny, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    events = take(tiny.make_fit(None, checkpoint_every_steps=1))
    assert not any(isinstance(event, Saved) for event in events)
    assert [*tmp_path.iterdir()] == []
