"""The one training loop, for every objective."""

from __future__ import annotations

import json
import math
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import asdict, dataclass, field, replace
from itertools import islice
from pathlib import Path
from typing import Any, Literal, Protocol, final

import torch
import torch.distributed as dist
from accelerate import Accelerator
from accelerate.state import AcceleratorState
from torch import Tensor, nn
from torch.nn.utils import get_total_norm
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn

from fewtags.config.sections import StageConfig
from fewtags.engine.autocast import Autocast, repeatable, seeded
from fewtags.engine.checkpoint import CheckpointFolder, load_part, load_pickled, load_tensors, save_part, save_tensors
from fewtags.engine.events import Ended, EpochEnded, EpochStarted, Event, Saved, Started, StepEnded
from fewtags.engine.solve import ChannelStatistics, HeadSolver
from fewtags.errors import CheckpointError, ConfigError, TrainingError
from fewtags.files import write_text
from fewtags.labels import Batch
from fewtags.nets.encoder import Encoder
from fewtags.nets.freezing import freeze
from fewtags.nets.spatial import SpatialNet
from fewtags.objectives.base import Objective, Part, Problem, Progress, Step

Metrics = Mapping[str, float]
SGD_MOMENTUM = 0.9
SOLVE_BATCH = 2048  # images at a time while a head is solved; the result is the same for all sizes, to rounding
SINCE = {"optimizer": "adam", "patience": "0", "fallback": "pessimistic_mAP"}
"""What checkpoints mean that were written before these settings were."""


class BatchSource(Protocol):
    """Where training batches come from."""

    @property
    def steps_per_epoch(self) -> int:
        """Batches in an epoch, the same on every process."""
        ...

    def batches(self, epoch: int, start: int) -> Iterator[Batch]:
        """The batches of an epoch from number `start` on; a function of the arguments and nothing else."""
        ...


class FixedSource(Protocol):
    """One view of every training image of this process, through a trunk that stays as it is."""

    def statistics(self, device: torch.device | None = None) -> ChannelStatistics:
        """Of the pooled features of all processes, which exchange tensors on `device`."""
        ...

    def in_order(self, epoch: int, size: int) -> Iterator[Batch]:
        """All images once, `size` at a time."""
        ...


@final
@dataclass(frozen=True)
class FitConfig:
    """How to train.

    Attributes:
        stages: one after the other, each with a new optimiser.
        seed: decides everything random.
        weight_decay: added to the gradient (coupled), as in the papers.
        accumulate: batches per optimiser step.
        clip_norm: largest gradient norm; 0: no clipping.
        precision: "no" (float32), "bf16" or "fp16" autocast; losses are float32 always.
        weight_ema: decay of the averaged weights that are then evaluated and kept; 0: none.
        batchnorm_eval: hold BatchNorm statistics of trained blocks fixed.
        checkpoint_every_steps: beside the checkpoint after every epoch; 0: only that.
        monitor: validation metric whose maximum is "best".
        fallback: the same where the monitor is not known and some stage solves the head.
        optimizer: "adam"; "adamw", with decoupled weight decay that spares biases and norms; or "sgd" with a
            momentum of 0.9.
        patience: stop after so many epochs, of the last stage, that did not better the monitor; 0: never.
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
    optimizer: Literal["adam", "adamw", "sgd"] = "adam"
    patience: int = 0

    @property
    def epochs(self) -> int:
        """Epochs of all stages together."""
        return sum(stage.epochs for stage in self.stages)

    @property
    def warmup_epochs(self) -> int:
        """Epochs of the warm-up stages."""
        return sum(stage.epochs for stage in self.stages if stage.warmup)


@dataclass
class _State:
    """Where the loop is; saved in every checkpoint."""

    epoch: int = 0
    step: int = 0
    global_step: int = 0
    sums: dict[str, float] = field(default_factory=dict)
    diagnostics: dict[str, float] = field(default_factory=dict)
    history: list[dict[str, float | int | str]] = field(default_factory=list)
    best_epoch: int | None = None
    best_value: float | None = None


def make_accelerator(precision: str = "no", cpu: bool = False) -> Accelerator:
    """An Accelerator; Accelerate keeps a process-wide state that refuses another precision or device: it is reset.

    Raises:
        ConfigError: fp16 without a GPU.
    """
    # Without a GPU several processes need to be told so: Accelerate would take each for the only one.
    cpu = cpu or not torch.accelerator.is_available()
    if precision == "fp16" and cpu:
        raise ConfigError('train.precision = "fp16" needs a GPU; use bf16 or no.')
    AcceleratorState._reset_state(reset_partial_state=not dist.is_initialized())
    return Accelerator(mixed_precision=precision, cpu=cpu)


@final
class Fit:
    """One run of the loop. `run()` yields events; stop it early by leaving the iteration.

    Resuming gives the same bits. For that a CUDA device takes deterministic kernels while the loop works, and what it
    was told otherwise between events (`autocast.repeatable`).

    Args:
        net: what is saved and evaluated, a classifier or an encoder; each stage freezes its own part of it.
        model: what the objective calls on `batch.images`: `net`, or its head where features are cached.
        objective: the method.
        source: training batches.
        fixed: one view of every image through the frozen trunk, for stages that solve the head; None where there are
            none.
        config: how to train.
        problem: what the objective may know.
        accelerator: device, processes, precision.
        out: run folder for checkpoints, `best.safetensors` and `metrics.jsonl`; None writes nothing.
        validate: called after each epoch with the net (or its averaged copy) in eval mode; returns metrics.

    Raises:
        TrainingError: the loss is not finite (parts and weights are as before that step, BatchNorm's running
            statistics excepted).
        CheckpointError: resuming from something that does not fit.
        ConfigError: `config` and `problem` disagree about the epochs.
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
    ) -> None:
        told, planned = ((p.warmup_epochs, p.epochs) for p in (problem, config))
        if told != planned:
            raise ConfigError(
                f"the objective is told {told[0]} warm-up epochs of {told[1]}, but {planned[0]} of {planned[1]} come: "
                "make the Problem with config.warmup_epochs and config.epochs."
            )
        self.net, self.objective, self.source, self.config, self.problem = net, objective, source, config, problem
        if any(stage.solved for stage in config.stages) and (fixed is None or not isinstance(net, SpatialNet)):
            raise ConfigError("a stage with logit_variances solves the head of a classifier on fixed features of it.")
        self.accelerator, self.out, self.validate, self.fixed = accelerator, out, validate, fixed
        self.base = net if model is None else model
        self.folder = None if out is None else CheckpointFolder(out / "checkpoints")
        net.to(accelerator.device).to(memory_format=torch.channels_last)
        self.parts: dict[str, Part] = dict(objective.setup(net, problem))
        self.averaged: AveragedModel | None = None
        if config.weight_ema:
            average = get_ema_multi_avg_fn(config.weight_ema)
            self.averaged = AveragedModel(net, multi_avg_fn=average, use_buffers=True)
        self.state = _State()
        self.model: nn.Module = self.base
        self.optimizer: Any = None

    @property
    def evaluated(self) -> nn.Module:
        """The net whose predictions count: the averaged one if weights are averaged."""
        return self.net if self.averaged is None else self.averaged.module

    def run(self, resume: bool = False) -> Iterator[Event]:
        """Train, yielding events. With `resume` it goes on from the last checkpoint in `out`, if there is one.

        On several processes every one sees all events of its own; records are means over all of them.
        """
        if self.out is not None:
            self.out.mkdir(parents=True, exist_ok=True)
        path = self.folder.last() if resume and self.folder is not None else None
        if path is not None:
            self._load(path)
        yield Started(self.config.epochs, self.source.steps_per_epoch, path, self.state.epoch)
        first = 0
        for stage in self.config.stages:
            if first <= self.state.epoch < first + stage.epochs:
                self._begin_stage(stage)
                if path is not None:
                    # A stage begins with an optimizer of its own.
                    self._load_optimizer(path, inside=(self.state.epoch, self.state.step) != (first, 0))
                path = None
                while self.state.epoch < first + stage.epochs and not self._exhausted(first):
                    yield from self._solution(stage, first) if stage.solved else self._epoch(stage, first)
            first += stage.epochs
        self._end_stage()
        yield Ended(self.state.epoch, self.state.best_epoch, self.state.best_value)

    def _exhausted(self, first: int) -> bool:
        """Whether the last stage, which began with epoch `first`, has not become better for long enough."""
        state, patience = self.state, self.config.patience
        if not patience or first != self.config.epochs - self.config.stages[-1].epochs or state.best_epoch is None:
            return False
        return state.step == 0 and state.epoch - 1 - max(state.best_epoch, first - 1) >= patience

    def _solution(self, stage: StageConfig, first: int) -> Iterator[Event]:
        """One epoch that trains the head to the end, with the next prior variance of the stage."""
        state, started, cpu = self.state, time.perf_counter(), time.process_time()
        yield self._start_epoch(stage)
        variance = stage.logit_variances[state.epoch - first]
        with repeatable(self.accelerator.device):
            logs = self._solve(variance)
        state.step, state.global_step = self.source.steps_per_epoch, state.global_step + 1
        yield StepEnded(Progress(state.epoch, state.step, state.step), state.global_step, applied=True)
        record, best = self._end_epoch(stage, self._over_processes(logs), started, cpu, {"logit_variance": variance})
        yield EpochEnded(record, best)
        if self.folder is not None:
            yield Saved(self._save())

    def _solve(self, variance: float) -> dict[str, Tensor]:
        """Minimise the penalised loss over all images, then commit; returns the logs, means over the images."""
        net, objective, fixed, device = self.net, self.objective, self.fixed, self.accelerator.device
        assert isinstance(net, SpatialNet)
        assert fixed is not None
        samples, classes = self.problem.labels.shape
        batches = [batch.to(device) for batch in fixed.in_order(self.state.epoch, SOLVE_BATCH)]
        at = [Progress(self.state.epoch, step, len(batches)) for step in range(len(batches))]
        before = [parameter.detach().clone() for parameter in self._parameters()]
        self.net.train()

        def loss() -> Tensor:
            total = torch.zeros((), device=device)
            for batch, progress in zip(batches, at, strict=True):
                with self._randomness(progress):
                    out = objective.step(self.model, batch, progress)
                # The prior is about a sum over classes; losses are means over them.
                part = out.loss * (classes * len(batch.index) / samples)
                part.backward()
                total += part.detach()
            for parameter in self._parameters():
                if self.accelerator.num_processes > 1 and parameter.grad is not None:
                    parameter.grad = self.accelerator.reduce(parameter.grad, "sum")
            return self.accelerator.reduce(total, "sum") if self.accelerator.num_processes > 1 else total

        solver = HeadSolver(net.head, fixed.statistics(device), self._part_parameters())
        if not math.isfinite(found := solver.minimise(loss, variance, samples)):
            with torch.no_grad():
                for parameter, value in zip(self._parameters(), before, strict=True):
                    parameter.copy_(value)
            raise TrainingError(
                f"the loss is {found:g} for logit variance {variance:g} in epoch {self.state.epoch}; weights and "
                "stores are as before it. Look for features that are not finite: --set train.precision=no, or other "
                "weights."
            )
        logs: dict[str, Tensor] = {}
        with torch.no_grad():
            outs = [objective.step(self.model, batch, progress) for batch, progress in zip(batches, at, strict=True)]
            for batch, out in zip(batches, outs, strict=True):
                objective.commit(self.model, batch, out)
                share = len(batch.index) * self.accelerator.num_processes / samples
                for key, value in {"loss": out.loss, **out.logs}.items():
                    logs[key] = logs.get(key, torch.zeros((), device=device)) + value.detach() * share
        for parameter in self._parameters():
            parameter.grad = None
        if self.averaged is not None:  # a mean over solutions would be none of them
            self.averaged.module.load_state_dict(net.state_dict())
            self.averaged.n_averaged.zero_()
        return logs

    def _start_epoch(self, stage: StageConfig) -> EpochStarted:
        """Let the objective prepare for an epoch, once."""
        state = self.state
        if state.step == 0:
            state.sums = {}
            with repeatable(self.accelerator.device):
                state.diagnostics = dict(self.objective.on_epoch_start(state.epoch))
        return EpochStarted(state.epoch, stage.name, state.diagnostics)

    def _epoch(self, stage: StageConfig, first: int) -> Iterator[Event]:
        state, started, cpu = self.state, time.perf_counter(), time.process_time()
        yield self._start_epoch(stage)
        self.net.train()
        # Sums stay on the device, so that logging waits for nothing.
        device = self.accelerator.device
        zero = torch.zeros((), dtype=torch.float32 if device.type == "mps" else torch.float64, device=device)
        totals: dict[str, Tensor] = {k: zero + v for k, v in state.sums.items()}
        steps = self.source.steps_per_epoch
        batches = self.source.batches(state.epoch, state.step)
        while group := list(islice(batches, self.config.accumulate)):
            self._set_lr(stage, first)
            shares = self._shares(group)
            with repeatable(device):
                outs, applied = self._optimise(group, shares)
            for out, share in zip(outs, shares, strict=True):
                for key, value in {"loss": out.loss, **out.logs}.items():
                    totals[key] = totals.get(key, zero) + value.detach() * share
            state.step += len(group)
            state.global_step += 1
            yield StepEnded(Progress(state.epoch, state.step, steps), state.global_step, applied)
            every = self.config.checkpoint_every_steps
            if self.folder is not None and every and state.global_step % every == 0 and state.step < steps:
                state.sums = self._over_processes(totals)
                totals = {k: zero + v for k, v in state.sums.items()}
                yield Saved(self._save())
        means = {k: v / steps for k, v in self._over_processes(totals).items()}
        group = self.optimizer.param_groups[0]
        rate = {"lr": float(group["lr"]) / float(group["factor"])}
        record, best = self._end_epoch(stage, means, started, cpu, rate)
        yield EpochEnded(record, best)
        if self.folder is not None:
            yield Saved(self._save())

    def _shares(self, group: list[Batch]) -> list[Tensor | float]:
        """What this process's mean over each batch counts; not quite 1 where another process's batch is larger."""
        accelerator = self.accelerator
        if accelerator.num_processes == 1:
            return [1.0] * len(group)
        own = torch.tensor([float(len(batch.index)) for batch in group], device=accelerator.device)
        return list((own * accelerator.num_processes / accelerator.reduce(own, "sum")).unbind())

    def _over_processes(self, totals: Mapping[str, Tensor]) -> dict[str, float]:
        return {key: float(self.accelerator.reduce(value, "mean")) for key, value in totals.items()}

    def _optimise(self, group: list[Batch], shares: list[Tensor | float]) -> tuple[list[Step], bool]:
        """One optimiser step over the batches of `group`; commits what really happened."""
        state, accelerator = self.state, self.accelerator
        self.optimizer.zero_grad(set_to_none=True)
        outs: list[Step] = []
        moved: list[Batch] = []
        for i, (batch, share) in enumerate(zip(group, shares, strict=True)):
            batch = batch.to(accelerator.device)
            batch = _channels_last(batch)
            at = Progress(state.epoch, state.step + i, self.source.steps_per_epoch)
            with self._randomness(at), nullcontext() if i == len(group) - 1 else accelerator.no_sync(self.model):
                out = self.objective.step(self.model, batch, at)
                accelerator.backward(out.loss * share / len(group))
            outs.append(out)
            moved.append(batch)
        self._reduce_parts()
        finite = torch.stack([out.loss.detach() for out in outs]).isfinite().all()
        if accelerator.scaler is None:  # a scaler skips such steps, and lowers its scale
            finite &= get_total_norm([p.grad for p in self._parameters() if p.grad is not None]).isfinite()
        # The one time in a step that the device is waited for: a step that is applied cannot be taken back.
        if not bool(accelerator.reduce(finite.float(), "sum") == accelerator.num_processes):
            losses = ", ".join(f"{out.loss.item():g}" for out in outs)
            bad_loss = not all(math.isfinite(out.loss.item()) for out in outs)
            raise TrainingError(
                f"the loss is {losses}{'' if bad_loss else ', with a gradient that is no number,'} at epoch "
                f"{state.epoch}, step {state.step}; weights and stores are as before it. "
                'Lower the learning rate, set train.clip_norm = 1.0, or use train.precision = "no", and start again.'
            )
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

    def _randomness(self, at: Progress) -> AbstractContextManager[None]:
        """Dropout and the like draw from a generator that is a function of (seed, epoch, step, rank)."""
        key = (self.config.seed, at.epoch, at.step, self.accelerator.process_index)
        return seeded(self.accelerator.device, hash(key) % 2**63)

    def _begin_stage(self, stage: StageConfig) -> None:
        self._end_stage()
        freeze(self.net, stage.trainable, batchnorm_eval=self.config.batchnorm_eval)
        if stage.solved:
            assert isinstance(self.net, SpatialNet)
            self.model = self.net.head
            return
        accelerator = self.accelerator
        groups, rate, decay = self._groups(stage), _rate(stage), self.config.weight_decay
        if self.config.optimizer == "sgd":
            optimizer: torch.optim.Optimizer = torch.optim.SGD(
                groups, lr=rate, momentum=SGD_MOMENTUM, weight_decay=decay
            )
        elif self.config.optimizer == "adamw":
            optimizer = torch.optim.AdamW(groups, lr=rate, weight_decay=decay)
        else:
            optimizer = torch.optim.Adam(groups, lr=rate, weight_decay=decay)
        self.optimizer = accelerator.prepare_optimizer(optimizer)
        model: nn.Module = Autocast(self.base, accelerator.device.type, self.config.precision)
        if accelerator.num_processes > 1:
            # Wrapped anew at every stage, since DDP must not see parameters freeze or thaw.
            on_gpu = accelerator.device.type == "cuda"
            model = nn.parallel.DistributedDataParallel(model, device_ids=[accelerator.device] if on_gpu else None)
        self.model = model

    def _end_stage(self) -> None:
        # Let go first: what is collected then takes its hooks off the parameters.
        self.model, self.optimizer = self.base, None
        self.accelerator.free_memory()

    def _part_parameters(self) -> list[nn.Parameter]:
        modules = [part for part in self.parts.values() if isinstance(part, nn.Module)]
        return [p for module in modules for p in module.parameters() if p.requires_grad]

    def _parameters(self) -> list[nn.Parameter]:
        trained = self.base if self.optimizer is not None else self.model
        return [*(p for p in trained.parameters() if p.requires_grad), *self._part_parameters()]

    def _groups(self, stage: StageConfig) -> list[dict[str, Any]]:
        """What is trained, by learning rate and weight decay; each group has its `factor` of the stage's rate."""
        head = {id(p) for p in self.net.head.parameters()} if isinstance(self.net, SpatialNet) else set[int]()
        apart = self.config.optimizer == "adamw"
        groups: dict[tuple[float, bool], list[nn.Parameter]] = {}
        for parameter in self._parameters():
            factor = stage.head_factor if id(parameter) in head else 1.0
            groups.setdefault((factor, apart and parameter.ndim < 2), []).append(parameter)
        return [
            {"params": parameters, "factor": factor, **({"weight_decay": 0.0} if spared else {})}
            for (factor, spared), parameters in groups.items()
        ]

    def _reduce_parts(self) -> None:
        """Average the gradients of the objective's own modules over processes (the net's are averaged by DDP)."""
        if self.accelerator.num_processes > 1:
            for parameter in self._part_parameters():
                if parameter.grad is not None:
                    parameter.grad = self.accelerator.reduce(parameter.grad, "mean")

    def _set_lr(self, stage: StageConfig, first: int) -> None:
        """Cosine from lr to 0 over the stage, in steps or in epochs, or constant."""
        steps = self.source.steps_per_epoch
        inside = 0 if stage.schedule == "cosine_epoch" else self.state.step
        done = ((self.state.epoch - first) * steps + inside) / (stage.epochs * steps)
        lr = _rate(stage) * (1.0 if stage.schedule == "constant" else 0.5 * (1 + math.cos(math.pi * done)))
        for group in self.optimizer.param_groups:
            group["lr"] = lr * group["factor"]

    def _end_epoch(
        self, stage: StageConfig, means: Mapping[str, float], started: float, cpu: float, how: Mapping[str, float]
    ) -> tuple[dict[str, float | int | str], bool]:
        state = self.state
        seconds, cpu_seconds = time.perf_counter() - started, time.process_time() - cpu
        metrics: Metrics = {}
        self._same_buffers()
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
        value = metrics.get(self.config.monitor, math.nan)
        if not math.isfinite(value) and any(stage.solved for stage in self.config.stages):
            # How strongly to regularise has to be chosen somehow: the known positives against all other cells will do.
            # Stages in steps are then measured alike, so that they can be better than the solution they begin with.
            value = metrics.get(self.config.fallback, math.nan)
        best = math.isfinite(value) and (state.best_value is None or value > state.best_value)
        if best:
            state.best_epoch, state.best_value = state.epoch, value
        state.history.append(record)
        state.epoch, state.step, state.sums = state.epoch + 1, 0, {}
        if self.out is not None and self.accelerator.is_main_process:
            if best:
                save_tensors(self.out / "best.safetensors", self.evaluated.state_dict())
            lines = [_json_line(line) for line in state.history]
            write_text(self.out / "metrics.jsonl", "".join(lines))
        return record, best

    def _same_buffers(self) -> None:
        """Give every process the first one's BatchNorm statistics, which are the ones that are saved.

        DDP does so before a forward pass; the last batch of an epoch would leave each process with another net.
        """
        if self.accelerator.num_processes > 1:
            for net in {id(net): net for net in (self.net, self.evaluated)}.values():
                for buffer in net.buffers():
                    dist.broadcast(buffer, 0)

    def _save(self) -> Path:
        assert self.folder is not None
        accelerator, step = self.accelerator, self.state.global_step
        temporary = self.folder.root / f".step-{step:09d}.tmp"
        if accelerator.is_main_process:
            self.folder.begin(step)
            save_tensors(temporary / "net.safetensors", self.net.state_dict())
            if self.averaged is not None:
                save_tensors(temporary / "averaged.safetensors", self.averaged.state_dict())
            # A head that is solved starts anew with each epoch.
            extra = {"optimizer": {} if self.optimizer is None else self.optimizer.state_dict()}
            if accelerator.scaler is not None:
                extra["scaler"] = accelerator.scaler.state_dict()
            torch.save(extra, temporary / "optimizer.pt")
        accelerator.wait_for_everyone()
        for name, part in self.parts.items():
            save_part(temporary / f"parts-{accelerator.process_index}", name, part.state_dict())
        accelerator.wait_for_everyone()
        path = self.folder.root / f"step-{step:09d}"
        if accelerator.is_main_process:
            path = self.folder.finish(step, {"state": asdict(self.state), **self._identity()})
        accelerator.wait_for_everyone()
        return path

    def _load(self, path: Path) -> None:
        progress = CheckpointFolder.progress(path)
        for what, now in self._identity().items():
            if (saved := progress.get(what, SINCE.get(what))) != now:
                raise CheckpointError(
                    f"{path} was written with {what} {saved}, this run has {now}; resume it the way it began."
                )
        _load_weights(self.net, path / "net.safetensors")
        if self.averaged is not None:
            _load_weights(self.averaged, path / "averaged.safetensors")
        for name, part in self.parts.items():
            part.load_state_dict(load_part(path / f"parts-{self.accelerator.process_index}", name))
        self.state = _State(**progress["state"])

    def _identity(self) -> dict[str, Any]:
        """What has to be the same when a run goes on, as JSON gives it back."""
        settings = {key: str(value) for key, value in asdict(self.config).items() if key != "checkpoint_every_steps"}
        return {
            "parts": sorted(self.parts),
            "processes": self.accelerator.num_processes,
            "steps per epoch": self.source.steps_per_epoch,
            **settings,
        }

    def _load_optimizer(self, path: Path, *, inside: bool) -> None:
        extra = load_pickled(path / "optimizer.pt")
        if inside and self.optimizer is not None:
            self.optimizer.load_state_dict(extra["optimizer"])
        if self.accelerator.scaler is not None:
            self.accelerator.scaler.load_state_dict(extra["scaler"])


def _rate(stage: StageConfig) -> float:
    assert stage.lr is not None, stage  # only a stage that solves the head has none
    return stage.lr


def _channels_last(batch: Batch) -> Batch:
    """Images as convolutions want them in memory."""
    second_view = batch.second_view
    if second_view is not None:
        second_view = second_view._replace(images=second_view.images.contiguous(memory_format=torch.channels_last))
    return replace(batch, images=batch.images.contiguous(memory_format=torch.channels_last), second_view=second_view)


def _load_weights(module: nn.Module, path: Path) -> None:
    try:
        module.load_state_dict(load_tensors(path))
    except RuntimeError as error:
        reason = " ".join(str(error).split())
        raise CheckpointError(f"{path} holds another net than this run has: {reason[:300]}") from None


def _json_line(record: Mapping[str, float | int | str]) -> str:
    return (
        json.dumps({k: None if isinstance(v, float) and not math.isfinite(v) else v for k, v in record.items()}) + "\n"
    )
