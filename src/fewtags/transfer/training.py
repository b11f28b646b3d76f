"""Trained probes: a linear layer on frozen features of random crops, and fine-tuning of the whole network."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from copy import deepcopy
from dataclasses import dataclass, replace
from functools import partial
from itertools import product
from typing import Literal, NamedTuple, final

import numpy as np
import torch
from accelerate import Accelerator
from jaxtyping import Float
from numpy.typing import NDArray
from torch import Tensor, nn

from fewtags.config.sections import StageConfig
from fewtags.engine.evaluate import predict_logits
from fewtags.engine.events import Event
from fewtags.engine.fit import BatchSource, Fit, FitConfig
from fewtags.engine.machine import prepare_process
from fewtags.engine.sources import CachePlan, StoredViews, ViewFeatures, fill_views
from fewtags.errors import ConfigError
from fewtags.nets.encoder import Encoder, pooled
from fewtags.nets.freezing import freeze
from fewtags.nets.spatial import SpatialHead, SpatialNet
from fewtags.objectives.assume_negative import BCE
from fewtags.objectives.base import Problem
from fewtags.photos.augment import Policy
from fewtags.photos.dataset import EvalSet, TrainSet
from fewtags.photos.loader import Collate, EpochSampler, EvalLoader, TrainLoader
from fewtags.photos.scan import Tick
from fewtags.photos.workers import Workers
from fewtags.stores.shard import Shard
from fewtags.table.table import LabelTable
from fewtags.transfer.features import BATCH, photos_of
from fewtags.transfer.measure import measure
from fewtags.transfer.softmax import Softmax
from fewtags.transfer.task import Task

EventConsumer = Callable[[Iterable[Event]], None]
"""Runs a training by consuming its events."""

DROPS = (0.6, 0.8)
"""MoCo's linear probe divides its learning rate by 10 at epochs 60 and 80 of 100."""


@final
@dataclass(frozen=True, kw_only=True)
class TrainSettings:
    """Settings of a trained probe: SGD with momentum 0.9.

    Attributes:
        epochs: passes over the training photos.
        lr: initial learning rate.
        weight_decay: L2 penalty, added to the gradient.
        batch_size: photos per step and process.
        schedule: "cosine" to 0; "steps": divided by 10 after 60 % and 80 % of the epochs; or "constant".
        batchnorm_eval: keep BatchNorm statistics fixed; used only if the whole network is trained.
        precision: "no" (float32), "bf16" or "fp16".
        seed: seed of the head, the order and the crops.

    Raises:
        ConfigError: a number is out of range.
    """

    epochs: int
    lr: float
    weight_decay: float
    batch_size: int
    schedule: Literal["cosine", "steps", "constant"]
    batchnorm_eval: bool = False
    precision: str = "no"
    seed: int = 0
    workers: int = 0

    def __post_init__(self) -> None:
        for name, least in (("epochs", 1), ("batch_size", 1), ("weight_decay", 0), ("workers", 0)):
            if (value := getattr(self, name)) < least:
                raise ConfigError(f"{name.replace('_', ' ')} must be {least} or more, got {value}.")
        if not self.lr > 0:
            raise ConfigError(f"the learning rate must be above 0, got {self.lr:g}.")

    def stages(self, trainable: Literal["head", "all"]) -> tuple[StageConfig, ...]:
        """Return the training stages. Every step of "steps" is its own stage and starts without momentum."""
        make = partial(StageConfig, trainable=trainable)
        if self.schedule != "steps":
            return (make(name="main", epochs=self.epochs, lr=self.lr, schedule=self.schedule),)
        lengths = np.diff([0, *(round(share * self.epochs) for share in DROPS), self.epochs]).tolist()
        rates = [self.lr / 10**i for i in range(len(lengths))]
        return tuple(
            make(name=f"lr {lr:g}", epochs=n, lr=lr, schedule="constant")
            for n, lr in zip(lengths, rates, strict=True)
            if n
        )


@final
class _Pooled(nn.Module):
    """An encoder with its features pooled to one cell, so a cached view is one vector."""

    def __init__(self, encoder: Encoder) -> None:
        super().__init__()
        self.encoder = encoder

    def forward(self, images: Float[Tensor, "b 3 H W"]) -> Float[Tensor, "b d 1 1"]:
        """Return the mean of the features."""
        return pooled(self.encoder.features(images))[:, :, None, None]


@final
class ProbeContext(NamedTuple):
    """Device, processes and precision (`accelerator`), and training crops and test view (`policy`) of a probe."""

    accelerator: Accelerator
    policy: Policy

    @property
    def shard(self) -> Shard:
        """This process's share of the photos."""
        return Shard(self.accelerator.process_index, self.accelerator.num_processes)

    @property
    def device(self) -> torch.device:
        """Device of the network."""
        device: torch.device = self.accelerator.device
        return device


def view_features(
    encoder: Encoder,
    table: LabelTable,
    context: ProbeContext,
    views: int,
    *,
    seed: int = 0,
    workers: int = 0,
    tick: Tick | None = None,
) -> ViewFeatures:
    """Compute mean features of `views` random crops of every photo with a frozen encoder; for one process.

    Epoch e of a probe uses crop e mod `views`. The seed determines the crops.
    """
    prepare_process()
    net = SpatialNet(_Pooled(encoder), _head(encoder.features_dim, 1, seed))
    freeze(net, "head")
    net.to(context.device)
    pre = encoder.preprocessing
    data = TrainSet(photos=photos_of(table), labels=table.matrix, policy=context.policy, seed=seed, views_cycle=views)
    sampler, collate = EpochSampler(len(table), BATCH, seed), Collate(pre.mean, pre.std)
    loader = TrainLoader(data, sampler, collate, Workers(workers), context.device)
    plan = CachePlan(views, torch.float32, views * len(table) * encoder.features_dim * 4)
    return fill_views(net, loader, plan, device=context.device, tick=tick)


def linear_scores(
    filled: ViewFeatures,
    test: NDArray[np.float32],
    task: Task,
    context: ProbeContext,
    settings: TrainSettings,
    consume: EventConsumer,
) -> NDArray[np.float32]:
    """Train a linear layer on frozen features and return its logits of the test photos; for one process.

    Multi-label: binary cross-entropy, unknown cells masked. Single-label: softmax.

    `filled` has features of the task's training photos (see `view_features`), `test` mean features float32 [M, d] of
    its test photos. The logits are float32 [M, C], by the weights of the last epoch.

    Raises:
        TrainingError: the loss is not finite.
    """
    net = SpatialNet(nn.Identity(), _head(filled.features.shape[2], task.classes, settings.seed))
    sampler = EpochSampler(len(task.train), settings.batch_size, settings.seed)
    source = StoredViews(filled, sampler, task.train.matrix)
    consume(_fit(net, source, task, context, settings, "head", (1, 1), net.head).run())
    with torch.inference_mode():
        logits = net.head.predict_logits(torch.from_numpy(test).to(context.device)[:, :, None, None])
    scores: NDArray[np.float32] = logits.float().cpu().numpy()
    return scores


def choose_settings(
    candidates: Sequence[TrainSettings], task: Task, score: Callable[[TrainSettings], NDArray[np.floating]]
) -> tuple[TrainSettings, list[float]]:
    """Return the first settings with the best mAP or top-1 on a validation task, and the metric of each candidate.

    `score` returns the scores of the task's test photos.
    """
    metric = "top1" if task.kind == "single" else "mAP"
    values = [measure(task, score(candidate))[metric] for candidate in candidates]
    return candidates[int(np.argmax(values))], values


def grid(settings: TrainSettings, lrs: Sequence[float], decays: Sequence[float]) -> list[TrainSettings]:
    """Return the settings with every pair of learning rate and weight decay."""
    return [replace(settings, lr=lr, weight_decay=decay) for lr, decay in product(lrs, decays)]


def finetuned_scores(
    encoder: Encoder, task: Task, context: ProbeContext, settings: TrainSettings, consume: EventConsumer
) -> NDArray[np.float32]:
    """Train a copy of the encoder with a new linear head and return the logits of the test photos.

    Multi-label: binary cross-entropy, unknown cells masked. Single-label: softmax. Head and encoder share one learning
    rate. The logits are float32 [M, C], by the weights of the last epoch.

    Raises:
        ConfigError: the encoder does not accept crops of the policy's size.
        DataError: a photo cannot be read.
        TrainingError: the loss is not finite.
    """
    copied, pre, table = deepcopy(encoder), encoder.preprocessing, task.train
    net = SpatialNet(
        copied.backbone,
        _head(encoder.features_dim, task.classes, settings.seed),
        layout=encoder.layout,
        prefix_tokens=encoder.prefix_tokens,
        preprocessing=pre,
        origin=encoder.origin,
    )
    shard, collate = context.shard, Collate(pre.mean, pre.std)
    workers = Workers(settings.workers, pin_memory=context.device.type == "cuda")
    sampler = EpochSampler(len(table), settings.batch_size, settings.seed, shard.rank, shard.world)
    crops = TrainSet(photos=photos_of(table), labels=table.matrix, policy=context.policy, seed=settings.seed)
    source = TrainLoader(crops, sampler, collate, workers, context.device)
    grid_ = net.grid((context.policy.size, context.policy.size))
    consume(_fit(net, source, task, context, settings, "all", grid_, net).run())
    data = EvalSet(photos_of(task.test), task.test.matrix, context.policy)
    loader = EvalLoader(data, BATCH, collate, workers, rank=shard.rank, world=shard.world, device=context.device)
    return predict_logits(net, loader, len(task.test), context.device, shard)


def _head(features: int, classes: int, seed: int) -> SpatialHead:
    return SpatialHead(features, classes, generator=torch.Generator().manual_seed(seed))


def _fit(
    net: SpatialNet,
    source: BatchSource,
    task: Task,
    context: ProbeContext,
    settings: TrainSettings,
    trainable: Literal["head", "all"],
    cells: tuple[int, int],
    model: nn.Module,
) -> Fit:
    prepare_process()
    config = FitConfig(
        stages=settings.stages(trainable),
        seed=settings.seed,
        weight_decay=settings.weight_decay,
        precision=settings.precision,
        batchnorm_eval=settings.batchnorm_eval,
        optimizer="sgd",
    )
    problem = Problem(
        labels=task.train.matrix,
        grid=cells,
        epochs=config.epochs,
        seed=settings.seed,
        shard=context.shard,
        device=context.device,
        features_dim=net.head.features_dim,
        precision=settings.precision,
    )
    objective = Softmax() if task.kind == "single" else BCE()
    return Fit(net, objective, source, config, problem, accelerator=context.accelerator, model=model)
