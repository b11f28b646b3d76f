"""Probes that train: a linear layer on frozen features of random crops, and the whole network."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from copy import deepcopy
from dataclasses import dataclass, replace
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
from fewtags.engine.machine import keep_freed_memory
from fewtags.engine.sources import CachePlan, StoredViews, Tick, ViewFeatures, fill_views
from fewtags.errors import ConfigError
from fewtags.nets.encoder import Encoder, pooled
from fewtags.nets.freezing import freeze
from fewtags.nets.spatial import SpatialHead, SpatialNet
from fewtags.objectives.assume_negative import BCE
from fewtags.objectives.base import Problem
from fewtags.photos.augment import Policy
from fewtags.photos.loader import Collate, EpochSampler, EvalLoader, EvalSet, TrainLoader, TrainSet, Workers
from fewtags.stores.shard import Shard
from fewtags.table.table import LabelTable
from fewtags.transfer.features import BATCH, photos_of
from fewtags.transfer.measure import measure
from fewtags.transfer.softmax import Softmax
from fewtags.transfer.task import Task

Follow = Callable[[Iterable[Event]], None]
"""Consumes the events of a training."""

DROPS = (0.6, 0.8)
"""Where MoCo's linear probe divides its learning rate by 10: epochs 60 and 80 of 100."""


@final
@dataclass(frozen=True)
class TrainSettings:
    """How a probe is trained: SGD with a momentum of 0.9.

    Attributes:
        epochs: how many times every photo is seen.
        lr: learning rate at the start.
        weight_decay: added to the gradient.
        batch_size: per process.
        schedule: "cosine" to 0; "steps": divided by 10 after 60 % and 80 % of the epochs; or "constant".
        batchnorm_eval: hold BatchNorm statistics fixed; only where the whole network is trained.
        precision: "no" (float32), "bf16" or "fp16".
        seed: of the head, the order and the crops.
        workers: processes that read photos.

    Raises:
        ConfigError: a number out of range.
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
        """The stages of the loop; steps are stages of their own, of which each begins without momentum."""
        if self.schedule != "steps":
            return (StageConfig(name="main", epochs=self.epochs, lr=self.lr, trainable=trainable,
                                schedule=self.schedule),)  # fmt: skip
        cuts = [0, *(round(share * self.epochs) for share in DROPS), self.epochs]
        lengths = np.diff(cuts).tolist()
        return tuple(
            StageConfig(
                name=f"lr {self.lr / 10**i:g}", epochs=n, lr=self.lr / 10**i, trainable=trainable, schedule="constant"
            )
            for i, n in enumerate(lengths)
            if n
        )


@final
class _Pooled(nn.Module):
    """An encoder whose features are pooled to one cell, so that a view of a photo is one vector in a cache."""

    def __init__(self, encoder: Encoder) -> None:
        super().__init__()
        self.encoder = encoder

    def forward(self, images: Float[Tensor, "b 3 H W"]) -> Float[Tensor, "b d 1 1"]:
        """The mean of the features."""
        return pooled(self.encoder.features(images))[:, :, None, None]


@final
class Place(NamedTuple):
    """Where training happens.

    Attributes:
        accelerator: device, processes, precision.
        policy: gives the crops and the test view.
    """

    accelerator: Accelerator
    policy: Policy

    @property
    def shard(self) -> Shard:
        """This process among all."""
        return Shard(self.accelerator.process_index, self.accelerator.num_processes)

    @property
    def device(self) -> torch.device:
        """Where the net is."""
        device: torch.device = self.accelerator.device
        return device


# --- a linear layer


def view_features(
    encoder: Encoder,
    table: LabelTable,
    place: Place,
    views: int,
    *,
    seed: int = 0,
    workers: int = 0,
    tick: Tick | None = None,
) -> ViewFeatures:
    """Mean features of so many random crops of every photo, by a frozen encoder; for one process.

    Args:
        encoder: frozen, in place.
        table: the photos.
        place: device and crops.
        views: crops per photo; a probe sees number e mod `views` in epoch e.
        seed: of the crops.
        workers: processes that read photos.
        tick: told about progress.
    """
    keep_freed_memory()
    net = SpatialNet(_Pooled(encoder), _head(encoder.features_dim, 1, seed))
    freeze(net, "head")
    net.to(place.device)
    pre = encoder.preprocessing
    data = TrainSet(photos_of(table), table.matrix, place.policy, seed, views_cycle=views)
    sampler, collate = EpochSampler(len(table), BATCH, seed), Collate(pre.mean, pre.std)
    loader = TrainLoader(data, sampler, collate, Workers(workers), place.device)
    plan = CachePlan(views, torch.float32, views * len(table) * encoder.features_dim * 4)
    return fill_views(net, loader, plan, device=place.device, tick=tick)


def linear_scores(
    filled: ViewFeatures, test: NDArray[np.float32], task: Task, place: Place, settings: TrainSettings, follow: Follow
) -> NDArray[np.float32]:
    """Logits of test photos by a linear layer on frozen features; for one process.

    Multi-label: binary cross-entropy, unknown cells masked; single classes: softmax.

    Args:
        filled: of the task's training photos, see `view_features`.
        test: mean features float32 [M, d] of its test photos.
        task: the labels.
        place: where it is trained.
        settings: how.
        follow: is given the events.

    Returns:
        float32 [M, C], by the weights of the last epoch.

    Raises:
        TrainingError: the loss is no number.
    """
    net = SpatialNet(nn.Identity(), _head(filled.features.shape[2], task.classes, settings.seed))
    sampler = EpochSampler(len(task.train), settings.batch_size, settings.seed)
    source = StoredViews(filled, sampler, task.train.matrix)
    follow(_fit(net, source, task, place, settings, "head", (1, 1), net.head).run())
    with torch.inference_mode():
        logits = net.head.predict_logits(torch.from_numpy(test).to(place.device)[:, :, None, None])
    scores: NDArray[np.float32] = logits.float().cpu().numpy()
    return scores


def choose_settings(
    candidates: Sequence[TrainSettings],
    task: Task,
    try_out: Callable[[TrainSettings], NDArray[np.floating]],
) -> tuple[TrainSettings, list[float]]:
    """The settings with the best mAP or top-1 on a task that is there for choosing (`Task.for_choice`).

    Args:
        candidates: of equally good ones the first is taken.
        task: for choosing.
        try_out: from settings to scores of its test photos.

    Returns:
        the settings, and what each candidate reached.
    """
    metric = "top1" if task.kind == "single" else "mAP"
    reached = [measure(task, try_out(candidate))[metric] for candidate in candidates]
    return candidates[int(np.argmax(reached))], reached


def grid(settings: TrainSettings, lrs: Sequence[float], decays: Sequence[float]) -> list[TrainSettings]:
    """The settings with every pair of learning rate and weight decay."""
    return [replace(settings, lr=lr, weight_decay=decay) for lr, decay in product(lrs, decays)]


# --- the whole network


def finetuned_scores(
    encoder: Encoder, task: Task, place: Place, settings: TrainSettings, follow: Follow
) -> NDArray[np.float32]:
    """Logits of the test photos by a fresh linear head and a copy of the encoder, trained together.

    Multi-label: binary cross-entropy, unknown cells masked; single classes: softmax. The learning rate of the head is
    that of the trunk.

    Args:
        encoder: stays as it is.
        task: the photos and labels.
        place: device, processes, crops.
        settings: how it is trained.
        follow: is given the events.

    Returns:
        float32 [M, C], by the weights of the last epoch.

    Raises:
        ConfigError: the encoder cannot take crops of the policy's size.
        DataError: a photo cannot be read.
        TrainingError: the loss is no number.
    """
    copied, pre, table = deepcopy(encoder), encoder.preprocessing, task.train
    net = SpatialNet(
        copied.backbone, _head(encoder.features_dim, task.classes, settings.seed), layout=encoder.layout,
        prefix_tokens=encoder.prefix_tokens, preprocessing=pre, origin=encoder.origin,
    )  # fmt: skip
    shard, collate = place.shard, Collate(pre.mean, pre.std)
    workers = Workers(settings.workers, pin_memory=place.device.type == "cuda")
    sampler = EpochSampler(len(table), settings.batch_size, settings.seed, shard.rank, shard.world)
    source = TrainLoader(
        TrainSet(photos_of(table), table.matrix, place.policy, settings.seed), sampler, collate, workers, place.device
    )
    grid_ = net.grid((place.policy.size, place.policy.size))
    follow(_fit(net, source, task, place, settings, "all", grid_, net).run())
    data = EvalSet(photos_of(task.test), task.test.matrix, place.policy)
    loader = EvalLoader(data, BATCH, collate, workers, rank=shard.rank, world=shard.world, device=place.device)
    return predict_logits(net, loader, len(task.test), place.device, shard)


# --- shared


def _head(features: int, classes: int, seed: int) -> SpatialHead:
    return SpatialHead(features, classes, generator=torch.Generator().manual_seed(seed))


def _fit(
    net: SpatialNet,
    source: BatchSource,
    task: Task,
    place: Place,
    settings: TrainSettings,
    trainable: Literal["head", "all"],
    cells: tuple[int, int],
    model: nn.Module,
) -> Fit:
    keep_freed_memory()
    config = FitConfig(
        stages=settings.stages(trainable),
        seed=settings.seed,
        weight_decay=settings.weight_decay,
        precision=settings.precision,
        batchnorm_eval=settings.batchnorm_eval,
        optimizer="sgd",
    )
    problem = Problem(
        task.train.matrix, cells, 0, config.epochs, settings.seed, place.shard, place.device,
        features_dim=net.head.features_dim, precision=settings.precision,
    )  # fmt: skip
    objective = Softmax() if task.kind == "single" else BCE()
    return Fit(net, objective, source, config, problem, accelerator=place.accelerator, model=model)
