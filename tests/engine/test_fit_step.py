"""The loop: what one step does, and what each setting changes in it."""

import dataclasses
from contextlib import contextmanager
from types import SimpleNamespace

import pytest
import torch
from fits import STEPS, assert_same_run, take

from fewtags.engine import fit as fitting
from fewtags.engine.distributed import make_accelerator
from fewtags.engine.events import StepEnded
from fewtags.errors import ConfigError
from fewtags.objectives.assume_negative import AssumeNegative
from fewtags.objectives.base import Progress
from fewtags.objectives.expected_negative import ExpectedNegative


def test_accumulated_batches_are_one_step_on_their_mean(tiny):
    """Adam's first step is -lr sign(g) where |g| >> eps: the very sign and size follow from the mean of two losses."""
    fit = tiny.make_fit(None, accumulate=2, dropout=0.0, validate=False)
    reference = tiny.make_fit(None, dropout=0.0, validate=False)
    head = reference.net.train().head
    for parameter in reference.net.backbone.parameters():
        parameter.requires_grad_(False)
    reference.net.train()
    batches = [*reference.source.batches(0, 0)][:2]
    losses = [
        reference.objective.step(reference.net, batch, Progress(0, step, STEPS)).loss
        for step, batch in enumerate(batches)
    ]
    gradient = torch.autograd.grad(sum(losses) / 2, head.weight)[0]
    before = head.weight.detach().clone()
    run = fit.run()
    (step,) = [next(run) for _ in range(3)][2:]
    assert (step.global_step, step.at.step) == (1, 2)
    torch.testing.assert_close(fit.net.head.weight.grad, gradient)
    torch.testing.assert_close(fit.net.head.weight, before - 1e-2 * gradient / (gradient.abs() + 1e-8))


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

    def needs_predictions(self, epoch):
        return False

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


def until_step(run):
    """The next optimiser step of a run."""
    return next(event for event in run if isinstance(event, StepEnded))


def test_the_last_group_of_an_epoch_is_the_mean_of_what_it_holds(tiny):
    """Six batches, four a step: two are left for the second step, and each has half of its weight."""
    fit = tiny.make_fit(None, accumulate=4, dropout=0.0, validate=False)
    run, weight = fit.run(), fit.net.head.weight
    until_step(run)
    losses = [
        fit.objective.step(fit.net, batch, Progress(0, step, STEPS)).loss
        for step, batch in enumerate(fit.source.batches(0, 4), 4)
    ]
    assert len(losses) == 2
    gradient = torch.autograd.grad(sum(losses) / 2, weight)[0]
    event = until_step(run)
    assert (event.global_step, event.at.step) == (2, STEPS)
    torch.testing.assert_close(weight.grad, gradient)


@pytest.mark.parametrize("accumulate", [1, 4])
def test_the_objective_is_told_the_number_of_each_batch(tiny, monkeypatch, accumulate):
    """From 0, also of those that share an optimiser step; random numbers are drawn by it."""
    fit = tiny.make_fit(None, accumulate=accumulate, validate=False)
    step, told = fit.objective.step, []
    monkeypatch.setattr(fit.objective, "step", lambda net, batch, at: told.append(at) or step(net, batch, at))
    take(fit)
    places = [dataclasses.replace(at, lr=0.0) for at in told]
    assert places == [Progress(epoch, number, STEPS) for epoch in range(4) for number in range(STEPS)]
    assert all(at.lr > 0 for at in told)


def test_weight_decay_is_added_to_the_gradient(tiny):
    """Adam's first step is -lr g' / (|g'| + eps), with g' = g + decay w; here the decay turns many of its signs."""
    fit = tiny.make_fit(None, weight_decay=30.0, validate=False)
    weight, run = fit.net.head.weight, fit.run()
    before = weight.detach().clone()
    until_step(run)
    pull = weight.grad + 30 * before
    torch.testing.assert_close(weight.detach(), before - 1e-2 * pull / (pull.abs() + 1e-8), rtol=1e-4, atol=1e-7)
    assert (pull.sign() != weight.grad.sign()).float().mean() > 0.2


def test_images_and_weights_lie_channels_last(tiny):
    """So that convolutions need no copies; 3 and 8 channels, so that it is another order than the plain one."""
    fit, seen = tiny.make_fit(None, validate=False), []
    fit.net.backbone[0].register_forward_pre_hook(lambda module, given: seen.append(given[0]))
    take(fit, 1)
    for tensor in (seen[0], fit.net.backbone[0].weight, fit.net.backbone[4].weight):
        assert tensor.is_contiguous(memory_format=torch.channels_last)
        assert not tensor.is_contiguous()


def test_modules_of_the_objective_are_trained_saved_and_resumed(tiny, tmp_path):
    """Bitwise, with their Adam; the one that goes on began with other weights."""
    options = {"checkpoint_every_steps": 2}
    whole = tiny.make_fit(tmp_path / "whole", objective=tiny.OwnLayer(0), **options)
    began = {key: value.clone() for key, value in whole.parts["layer"].state_dict().items()}
    take(whole)
    assert all(not torch.equal(value, began[key]) for key, value in whole.parts["layer"].state_dict().items())
    take(tiny.make_fit(tmp_path / "left", objective=tiny.OwnLayer(0), **options), STEPS + 3)
    second = tiny.make_fit(tmp_path / "left", net_seed=5, objective=tiny.OwnLayer(1), **options)
    assert not torch.equal(second.parts["layer"].weight, began["weight"])
    take(second, resume=True)
    assert_same_run(second, tmp_path / "left", whole, tmp_path / "whole")


@pytest.mark.parametrize(
    "other", [(4, 2, 3, 1), (3, 1, 3, 1), (3, 2, 4, 1), (3, 2, 3, 0)], ids=["seed", "epoch", "step", "rank"]
)
def test_masks_are_drawn_by_seed_epoch_step_and_rank(tiny, other):
    """Two processes with the same masks would see half of the randomness."""

    def draw(seed, epoch, step, rank):
        fit = tiny.make_fit(None)
        fit.config = dataclasses.replace(fit.config, seed=seed)
        fit.accelerator = SimpleNamespace(process_index=rank, device=torch.device("cpu"))
        with fit._seeded(Progress(epoch, step, STEPS)):
            return torch.rand(8).tolist()

    assert draw(3, 2, 3, 1) == draw(3, 2, 3, 1) != draw(*other)


def test_a_gpu_works_by_rule_while_the_loop_works_and_as_it_was_told_between(tiny, monkeypatch):
    inside, seen = [], []

    @contextmanager
    def spy(device):
        inside.append(device.type)
        yield
        inside.pop()

    monkeypatch.setattr(fitting, "repeatable", spy)
    method = ExpectedNegative(positives_per_image=1.8)
    for name in ("on_epoch_start", "step", "commit"):
        original = getattr(method, name)
        watched = lambda *given, name=name, call=original: seen.append((name, [*inside])) or call(*given)  # noqa: E731
        monkeypatch.setattr(method, name, watched)
    fit = tiny.make_fit(None, objective=method, validate=lambda net: seen.append(("validate", [*inside])) or {})
    assert all(inside == [] for _ in fit.run())
    assert {name for name, _ in seen} == {"on_epoch_start", "step", "commit", "validate"}
    assert all(where == ["cpu"] for _, where in seen)
