"""The training loop, the same one for every objective."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import asdict, dataclass, replace
from itertools import islice
from pathlib import Path
from typing import Any, Protocol, final

import torch
from accelerate import Accelerator
from torch import Tensor, nn
from torch.nn.utils import get_total_norm
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn

from fewtags.config.sections import StageConfig
from fewtags.engine.autocast import Autocast, repeatable, seeded
from fewtags.engine.distributed import batch_weights, broadcast_buffers, mean_over_processes, reduce_gradients
from fewtags.engine.events import Ended, EpochEnded, EpochStarted, Event, Saved, Started, StepEnded
from fewtags.engine.fit_state import FitState, FitStorage
from fewtags.engine.optimizer import Name, make_optimizer, set_learning_rate
from fewtags.engine.solve import ChannelStatistics, HeadSolver, Trial, next_trial
from fewtags.errors import ConfigError, TrainingError
from fewtags.labels import Batch
from fewtags.nets.encoder import Encoder
from fewtags.nets.freezing import freeze
from fewtags.nets.spatial import SpatialNet
from fewtags.objectives.base import Objective, Part, Problem, Progress, Step
from fewtags.seeds import seed_of

Metrics = Mapping[str, float]
ITERATIONS, MAP_ITERATIONS = 100, 40
"""Iterations of L-BFGS at most, on pooled features and on all cells of the maps.

On the cells, an iteration costs 50 to 100 times as much. 40 gave the same loss as 100 to four digits (docs/LOG.md).
"""
SOLVE_BATCH = 2048  # images at a time while a head is solved; the result does not depend on it, up to rounding


class BatchSource(Protocol):
    """Where training batches come from."""

    @property
    def steps_per_epoch(self) -> int:
        """Batches in an epoch, the same number on every process."""
        ...

    def batches(self, epoch: int, start: int) -> Iterator[Batch]:
        """Yield the batches of an epoch from number `start` on; they depend on the arguments only."""
        ...


class FixedSource(Protocol):
    """The features of one view of every training image of this process, from a trunk that does not change."""

    def statistics(self, device: torch.device | None = None) -> ChannelStatistics:
        """Compute statistics of the pooled features of all processes, which exchange tensors on `device`."""
        ...

    def in_order(self, epoch: int, size: int) -> Iterator[Batch]:
        """Yield all images once, `size` in a batch."""
        ...


@final
@dataclass(frozen=True, kw_only=True)
class FitConfig:
    """How to train. `config.sections.TrainConfig` describes the settings that both have; 0 switches one off.

    Attributes:
        stages: trained one after the other, each with a new optimiser.
        weight_decay: see `engine.optimizer.make_optimizer`.
        precision: of the net; losses are always float32.
        monitor: validation metric whose maximum marks the best epoch.
        fallback: used in place of a monitor that is not known, if a stage solves the head.
        patience: stop the last stage after so many epochs without a better value of the monitor.
    """

    stages: tuple[StageConfig, ...]
    seed: int = 0
    weight_decay: float = 0.0
    accumulate: int = 1
    clip_norm: float = 0.0
    precision: str = "no"
    weight_ema: float = 0.0
    batchnorm_eval: bool = False
    checkpoint_every_steps: int = 0
    monitor: str = "mAP"
    fallback: str = "pessimistic_mAP"
    optimizer: Name = "adam"
    patience: int = 0

    @property
    def epochs(self) -> int:
        """Epochs of all stages together."""
        return sum(stage.epochs for stage in self.stages)

    @property
    def warmup_epochs(self) -> int:
        """Epochs of the warm-up stages."""
        return sum(stage.epochs for stage in self.stages if stage.warmup)


@final
class Fit:
    """One run of the loop. `run()` yields events; leave the iteration to stop it early.

    A resumed run has the same bits as an uninterrupted one. For this, a CUDA device uses deterministic kernels inside
    the loop and its previous settings between events (`autocast.repeatable`).

    Args:
        net: the net that is saved and evaluated; each stage freezes some of its layers.
        model: the module that the objective calls on `batch.images`: the head if features are cached; None for
            `net`.
        fixed: features of one view of every image, for stages that solve the head.
        out: run folder for checkpoints, `best.safetensors` and `metrics.jsonl`; None writes nothing.
        validate: called after each epoch with the net (or its averaged copy) in eval mode; returns metrics.
        predict: called with the same net; returns the logits float32 [rows, C] of the training images of this process,
            in the order of `Shard.owned`. Only objectives that need predictions need it.

    Raises:
        TrainingError: the loss is not finite (parts and weights are as before that step, except for BatchNorm's
            running statistics).
        CheckpointError: the checkpoint to resume from is damaged, or of another run.
        ConfigError: `config` and `problem` have different numbers of epochs.
    """

    def __init__(
        self,
        net: SpatialNet | Encoder,
        objective: Objective,
        source: BatchSource,
        config: FitConfig,
        problem: Problem,
        *,
        accelerator: Accelerator,
        model: nn.Module | None = None,
        fixed: FixedSource | None = None,
        out: Path | None = None,
        validate: Callable[[nn.Module], Metrics] | None = None,
        predict: Callable[[nn.Module], Tensor] | None = None,
    ) -> None:
        if (problem.warmup_epochs, problem.epochs) != (config.warmup_epochs, config.epochs):
            raise ConfigError(
                f"Problem has warmup_epochs={problem.warmup_epochs}, epochs={problem.epochs}, but FitConfig has "
                f"{config.warmup_epochs} and {config.epochs}; build it from config.warmup_epochs and config.epochs."
            )
        if any(stage.solved for stage in config.stages) and (fixed is None or not isinstance(net, SpatialNet)):
            raise ConfigError("a stage with logit_variances needs a classifier and its fixed features (fixed=...).")
        self.net, self.objective, self.source, self.config, self.problem = net, objective, source, config, problem
        self.accelerator, self.validate, self.predict, self.fixed = accelerator, validate, predict, fixed
        self.base = net if model is None else model
        net.to(accelerator.device).to(memory_format=torch.channels_last)
        self.parts: dict[str, Part] = dict(objective.setup(net, problem))
        self.averaged: AveragedModel | None = None
        if config.weight_ema:
            average = get_ema_multi_avg_fn(config.weight_ema)
            self.averaged = AveragedModel(net, multi_avg_fn=average, use_buffers=True)
        self.storage: FitStorage | None = None
        if out is not None:
            self.storage = FitStorage(out, net, self.averaged, self.parts, accelerator, self._identity())
        self.state = FitState()
        self.model: nn.Module = self.base
        self.optimizer: Any = None

    @property
    def evaluated(self) -> nn.Module:
        """The net whose predictions count: the averaged one if weights are averaged."""
        return self.net if self.averaged is None else self.averaged.module

    def _identity(self) -> dict[str, Any]:
        """What must be equal when the run is resumed, as it comes back from JSON."""
        settings = {key: str(value) for key, value in asdict(self.config).items() if key != "checkpoint_every_steps"}
        processes, steps = self.accelerator.num_processes, self.source.steps_per_epoch
        return {"parts": sorted(self.parts), "processes": processes, "steps per epoch": steps, **settings}

    def run(self, resume: bool = False) -> Iterator[Event]:
        """Train, yielding events; with `resume`, continue from the last checkpoint in `out` if there is one.

        Every process sees the events of its own; records are means over all processes.
        """
        path = None
        if self.storage is not None:
            self.storage.out.mkdir(parents=True, exist_ok=True)
            path = self.storage.folder.last() if resume else None
            if path is not None:
                self.state = self.storage.load(path)
        yield Started(self.config.epochs, self.source.steps_per_epoch, path, self.state.epoch)
        first = 0
        for stage in self.config.stages:
            if first <= self.state.epoch < first + stage.epochs:
                self._begin_stage(stage)
                if self.storage is not None and path is not None:
                    inside = (self.state.epoch, self.state.step) != (first, 0)
                    # A stage that has not begun has a new optimiser.
                    self.storage.load_optimizer(path, self.optimizer if inside else None)
                path = None
                while self.state.epoch < first + stage.epochs and not self._is_exhausted(first):
                    yield from self._solved_epoch(stage, first) if stage.solved else self._epoch(stage, first)
            first += stage.epochs
        self._end_stage()
        yield Ended(self.state.epoch, self.state.best_epoch, self.state.best_value)

    def _is_exhausted(self, first: int) -> bool:
        """Whether the last stage, which began with epoch `first`, has nothing left to try.

        It has had no better epoch for too long; or it would try weights of answers, and validation cannot compare them.
        """
        state, patience, last = self.state, self.config.patience, self.config.stages[-1]
        if first != self.config.epochs - last.epochs:
            return False
        if state.best_epoch is None:
            return bool(last.answer_weights) and state.epoch - first >= len(last.logit_variances)
        if not patience:
            return False
        return state.step == 0 and state.epoch - 1 - max(state.best_epoch, first - 1) >= patience

    # --- stages

    def _begin_stage(self, stage: StageConfig) -> None:
        self._end_stage()
        freeze(self.net, stage.trainable, batchnorm_eval=self.config.batchnorm_eval)
        if stage.solved:
            assert isinstance(self.net, SpatialNet)
            self.model = self.net.head
            return
        accelerator, config = self.accelerator, self.config
        head = self.net.head if isinstance(self.net, SpatialNet) else None
        parameters = [*_trainable(self.base), *self._part_parameters()]
        optimizer = make_optimizer(config.optimizer, stage, parameters, head, config.weight_decay)
        self.optimizer = accelerator.prepare_optimizer(optimizer)
        model: nn.Module = Autocast(self.base, accelerator.device.type, config.precision)
        if accelerator.num_processes > 1:
            # A new wrapper for every stage, because DDP does not notice that parameters are frozen or unfrozen.
            on_gpu = accelerator.device.type == "cuda"
            model = nn.parallel.DistributedDataParallel(model, device_ids=[accelerator.device] if on_gpu else None)
        self.model = model

    def _end_stage(self) -> None:
        # Released first, so that garbage collection removes the wrapper's hooks from the parameters.
        self.model, self.optimizer = self.base, None
        self.accelerator.free_memory()

    def _part_parameters(self) -> list[nn.Parameter]:
        modules = [part for part in self.parts.values() if isinstance(part, nn.Module)]
        return [parameter for module in modules for parameter in _trainable(module)]

    def _parameters(self) -> list[nn.Parameter]:
        """Return everything that the current stage trains."""
        return [*_trainable(self.model if self.optimizer is None else self.base), *self._part_parameters()]

    # --- an epoch in steps

    def _epoch(self, stage: StageConfig, first: int) -> Iterator[Event]:
        state, started, cpu = self.state, time.perf_counter(), time.process_time()
        yield self._start_epoch(stage)
        self.net.train()
        # Sums stay on the device, so that logging does not wait for it.
        device = self.accelerator.device
        zero = torch.zeros((), dtype=torch.float32 if device.type == "mps" else torch.float64, device=device)
        totals: dict[str, Tensor] = {k: zero + v for k, v in state.sums.items()}
        steps = self.source.steps_per_epoch
        batches = self.source.batches(state.epoch, state.step)
        while group := list(islice(batches, self.config.accumulate)):
            set_learning_rate(self.optimizer, stage, state.epoch - first, state.step, steps)
            weights = batch_weights(self.accelerator, group)
            with repeatable(device):
                outs, applied = self._optimise(group, weights)
            for out, weight in zip(outs, weights, strict=True):
                for key, value in {"loss": out.loss, **out.logs}.items():
                    totals[key] = totals.get(key, zero) + value.detach() * weight
            state.step += len(group)
            state.global_step += 1
            yield StepEnded(Progress(state.epoch, state.step, steps), state.global_step, applied)
            every = self.config.checkpoint_every_steps
            if self.storage is not None and every and state.global_step % every == 0 and state.step < steps:
                state.sums = mean_over_processes(self.accelerator, totals)
                totals = {k: zero + v for k, v in state.sums.items()}
                yield Saved(self.storage.save(state, self.optimizer))
        means = {k: v / steps for k, v in mean_over_processes(self.accelerator, totals).items()}
        yield from self._end_epoch(stage, means, started, cpu, {"lr": _learning_rate(self.optimizer)})

    def _start_epoch(self, stage: StageConfig) -> EpochStarted:
        """Let the objective prepare for an epoch, once."""
        state = self.state
        if state.step == 0:
            state.sums = {}
            if self.objective.needs_predictions(state.epoch):
                self._predict()
            with repeatable(self.accelerator.device):
                state.diagnostics = dict(self.objective.on_epoch_start(state.epoch))
        return EpochStarted(state.epoch, stage.name, state.diagnostics)

    def _predict(self) -> None:
        """Give the objective predictions for the training images."""
        if self.predict is None:
            raise ConfigError(
                f"{type(self.objective).__name__} needs predictions of the training images (predict=...)."
            )
        net = self.evaluated
        training = net.training
        net.eval()
        with torch.no_grad(), repeatable(self.accelerator.device):
            self.objective.on_predictions(self.state.epoch, self.predict(net).to(self.problem.device))
        net.train(training)

    def _optimise(self, group: list[Batch], weights: list[Tensor | float]) -> tuple[list[Step], bool]:
        """Take one optimiser step over the batches of `group`, and let the objective commit if it was applied."""
        state, accelerator = self.state, self.accelerator
        self.optimizer.zero_grad(set_to_none=True)
        outs: list[Step] = []
        moved: list[Batch] = []
        for i, (batch, weight) in enumerate(zip(group, weights, strict=True)):
            batch = _channels_last(batch.to(accelerator.device))
            at = Progress(state.epoch, state.step + i, self.source.steps_per_epoch, _learning_rate(self.optimizer))
            with self._seeded(at), nullcontext() if i == len(group) - 1 else accelerator.no_sync(self.model):
                out = self.objective.step(self.model, batch, at)
                accelerator.backward(out.loss * weight / len(group))
            outs.append(out)
            moved.append(batch)
        reduce_gradients(accelerator, self._part_parameters(), "mean")  # DDP averages those of the net
        self._refuse_infinite(outs)
        if self.config.clip_norm:
            accelerator.clip_grad_norm_(self._parameters(), self.config.clip_norm)
        self.optimizer.step()
        applied = not accelerator.optimizer_step_was_skipped
        if applied:
            if self.averaged is not None:
                self.averaged.update_parameters(self.net)
            for batch, out in zip(moved, outs, strict=True):
                self.objective.commit(self.model, batch, out)
        return outs, applied

    def _refuse_infinite(self, outs: list[Step]) -> None:
        """Raise TrainingError unless the losses and gradients of all processes are finite, before the step is applied.

        This is the only time in a step that the loop waits for the device: an applied step cannot be undone.
        """
        accelerator, state = self.accelerator, self.state
        finite = torch.stack([out.loss.detach() for out in outs]).isfinite().all()
        if accelerator.scaler is None:  # a scaler skips such steps and lowers its scale
            finite &= get_total_norm([p.grad for p in self._parameters() if p.grad is not None]).isfinite()
        if bool(accelerator.reduce(finite.float(), "sum") == accelerator.num_processes):
            return
        losses = [out.loss.item() for out in outs]
        gradient = " but its gradient is not finite" if all(map(math.isfinite, losses)) else ""
        raise TrainingError(
            f"the loss is {', '.join(f'{loss:g}' for loss in losses)}{gradient} at epoch {state.epoch}, step "
            f"{state.step}; weights and stores are as before it. Lower the learning rate, set train.clip_norm = 1.0, "
            'or use train.precision = "no", and start again.'
        )

    def _seeded(self, at: Progress) -> AbstractContextManager[None]:
        """Seed the global generators, which dropout uses, by (seed, epoch, step, rank) inside a `with` block."""
        seed = seed_of(self.config.seed, at.epoch, at.step, self.accelerator.process_index)
        return seeded(self.accelerator.device, seed)

    def _end_epoch(
        self, stage: StageConfig, means: Mapping[str, float], started: float, cpu: float, how: Mapping[str, float]
    ) -> Iterator[Event]:
        """Validate, record the epoch, and save a checkpoint."""
        state = self.state
        seconds, cpu_seconds = time.perf_counter() - started, time.process_time() - cpu
        metrics: Metrics = {}
        broadcast_buffers(self.accelerator, (self.net, self.evaluated))
        if self.validate is not None:
            net = self.evaluated
            net.eval()
            with torch.no_grad(), repeatable(self.accelerator.device):
                metrics = self.validate(net)
            net.train()
        record: dict[str, float | int | str] = {
            "epoch": state.epoch,
            "stage": stage.name,
            "step": state.global_step,
            **how,
            "seconds": round(seconds, 3),
            "cpu_seconds": round(cpu_seconds, 3),
            **{f"train/{k}": v for k, v in means.items()},
            **{f"state/{k}": v for k, v in state.diagnostics.items()},
            **{f"val/{k}": v for k, v in metrics.items()},
        }
        value = self._monitored(metrics)
        best = math.isfinite(value) and (state.best_value is None or value > state.best_value)
        if best:
            state.best_epoch, state.best_value = state.epoch, value
        state.history.append(record)
        state.epoch, state.step, state.sums = state.epoch + 1, 0, {}
        if self.storage is not None:
            self.storage.write_history(state, self.evaluated if best else None)
        yield EpochEnded(record, best)
        if self.storage is not None:
            yield Saved(self.storage.save(state, self.optimizer))

    def _monitored(self, metrics: Metrics) -> float:
        """Return the value that decides which epoch is the best; nan if it is not known.

        A solved head needs some measure to choose its regularisation, so runs with such a stage use the fallback, in
        all stages, so that the values can be compared.
        """
        value = metrics.get(self.config.monitor, math.nan)
        if not math.isfinite(value) and any(stage.solved for stage in self.config.stages):
            value = metrics.get(self.config.fallback, math.nan)
        return value

    # --- an epoch that solves the head

    def _solved_epoch(self, stage: StageConfig, first: int) -> Iterator[Event]:
        """Solve the head with the next prior variance and weight of answers of the stage."""
        state, started, cpu = self.state, time.perf_counter(), time.process_time()
        yield self._start_epoch(stage)
        values = [self._monitored(_metrics_of(record)) for record in state.history[first:]]
        trial = next_trial(stage.logit_variances, stage.answer_weights, values)
        with repeatable(self.accelerator.device):
            logs = self._solve(trial)
        state.step, state.global_step = self.source.steps_per_epoch, state.global_step + 1
        yield StepEnded(Progress(state.epoch, state.step, state.step), state.global_step, applied=True)
        means = mean_over_processes(self.accelerator, logs)
        how = {"logit_variance": trial.variance}
        if trial.answer_weight is not None:
            how["answer_weight"] = trial.answer_weight
        yield from self._end_epoch(stage, means, started, cpu, how)

    def _solve(self, trial: Trial) -> dict[str, Tensor]:
        """Minimise the penalised loss over all images, then commit; return the logs, means over the images."""
        net, objective, fixed, accelerator = self.net, self.objective, self.fixed, self.accelerator
        assert isinstance(net, SpatialNet)
        assert fixed is not None
        device = accelerator.device
        samples, classes = self.problem.labels.shape
        batches = [batch.to(device) for batch in fixed.in_order(self.state.epoch, SOLVE_BATCH)]
        steps, weight = len(batches), trial.answer_weight
        at = [Progress(self.state.epoch, step, steps, answer_weight=weight) for step in range(steps)]
        before = [parameter.detach().clone() for parameter in self._parameters()]
        net.train()

        def loss() -> Tensor:
            total = torch.zeros((), device=device)
            for batch, progress in zip(batches, at, strict=True):
                with self._seeded(progress):
                    out = objective.step(self.model, batch, progress)
                # The prior belongs to a sum over classes, but losses are means over them.
                part = out.loss * (classes * len(batch.index) / samples)
                part.backward()
                total += part.detach()
            reduce_gradients(accelerator, self._parameters(), "sum")
            return accelerator.reduce(total, "sum") if accelerator.num_processes > 1 else total

        maps = batches[0].images[0, 0].numel() > 1
        solver = HeadSolver(
            net.head,
            fixed.statistics(device),
            self._part_parameters(),
            max_iterations=MAP_ITERATIONS if maps else ITERATIONS,
        )
        if not math.isfinite(value := solver.minimise(loss, trial.variance, samples)):
            with torch.no_grad():
                for parameter, old in zip(self._parameters(), before, strict=True):
                    parameter.copy_(old)
            raise TrainingError(
                f"the loss is {value:g} for logit variance {trial.variance:g} in epoch {self.state.epoch}; weights and "
                'stores are as before it. The features may not be finite: try train.precision = "no", or other weights.'
            )
        logs: dict[str, Tensor] = {}
        with torch.no_grad():
            outs = [objective.step(self.model, batch, progress) for batch, progress in zip(batches, at, strict=True)]
            for batch, out in zip(batches, outs, strict=True):
                objective.commit(self.model, batch, out)
                share = len(batch.index) * accelerator.num_processes / samples
                for key, log in {"loss": out.loss, **out.logs}.items():
                    logs[key] = logs.get(key, torch.zeros((), device=device)) + log.detach() * share
        for parameter in self._parameters():
            parameter.grad = None
        if self.averaged is not None:  # a mean of solutions is not a solution
            self.averaged.module.load_state_dict(net.state_dict())
            self.averaged.n_averaged.zero_()
        return logs


def _metrics_of(record: Mapping[str, float | int | str]) -> dict[str, float]:
    """Return the validation metrics in the record of an epoch."""
    return {key.removeprefix("val/"): float(value) for key, value in record.items() if key.startswith("val/")}


def _learning_rate(optimizer: Any) -> float:
    """Return the learning rate of parameters with the factor 1."""
    group = optimizer.param_groups[0]
    return float(group["lr"]) / float(group["factor"])


def _trainable(module: nn.Module) -> list[nn.Parameter]:
    return [parameter for parameter in module.parameters() if parameter.requires_grad]


def _channels_last(batch: Batch) -> Batch:
    """Return the batch with images in the memory format that is fastest for convolutions."""
    second_view = batch.second_view
    if second_view is not None:
        second_view = second_view._replace(images=second_view.images.contiguous(memory_format=torch.channels_last))
    return replace(batch, images=batch.images.contiguous(memory_format=torch.channels_last), second_view=second_view)
