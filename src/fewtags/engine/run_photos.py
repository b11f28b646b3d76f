"""The photos of a training run: batches, features of a frozen trunk, and predictions of every split."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import TypeVar, final

import torch
from accelerate import Accelerator
from torch import Tensor, nn

from fewtags.engine.autocast import repeatable
from fewtags.engine.evaluate import Logits, epoch_metrics, own_logits, predict_logits
from fewtags.engine.fit import BatchSource
from fewtags.engine.model import make_policy
from fewtags.engine.photo_cache import make_cache
from fewtags.engine.plan import EVAL_BATCH, RunPlan
from fewtags.engine.sources import StoredViews, fill_fixed, fill_views, head_inputs
from fewtags.engine.thresholds import scored_rows
from fewtags.labels import Locations
from fewtags.nets.freezing import freeze
from fewtags.nets.spatial import SpatialNet
from fewtags.photos.augment import Jitter
from fewtags.photos.augment_fixmatch import Strong
from fewtags.photos.dataset import EvalSet, PhotoFolder, TrainSet
from fewtags.photos.loader import Collate, EpochSampler, EvalLoader, TrainLoader
from fewtags.photos.scan import Tick
from fewtags.photos.workers import Workers
from fewtags.stores.shard import Shard
from fewtags.table.table import LabelTable

T = TypeVar("T")


@final
class RunPhotos:
    """The photos of a plan, of one process.

    `compute` puts them through the trunk where it stays frozen, and keeps the features; `tick` is called with the
    numbers of photos done and to do. Then `inputs` has the head's inputs of every split but train, and `fixed` those of
    train that a head is solved on.
    """

    def __init__(self, plan: RunPlan, accelerator: Accelerator, tick: Tick | None = None) -> None:
        self.plan, self.accelerator, self.tick = plan, accelerator, tick
        self.shard = Shard(accelerator.process_index, accelerator.num_processes)
        r, net = plan.resolved, plan.net
        # Made first: it refuses more processes than photos, where a process without photos would stop the others.
        self.sampler = EpochSampler(len(plan.tables.train), r.batch_size, r.seed, self.shard.rank, self.shard.world)
        self.collate = Collate(net.preprocessing.mean, net.preprocessing.std)
        self.policy = make_policy(r.policy, r.size, r.min_area, r.flip, r.max_area)
        self.workers = Workers(r.workers, pin_memory=accelerator.device.type == "cuda")
        self.inputs: Mapping[str, Tensor] = {}
        self.fixed: StoredViews | None = None
        self._train_inputs: Tensor | None = None  # of the head, through the test view, on this process
        self._done = 0
        self._loader: TrainLoader | None = None

    @property
    def problem(self) -> str:
        """Why the cache of photos could not be written; "" if it could, or without a cache."""
        return "" if self._loader is None else self._loader.problem

    @property
    def device(self) -> torch.device:
        """Where the net is."""
        device: torch.device = self.accelerator.device
        return device

    @property
    def frozen(self) -> bool:
        """Whether the trunk never changes."""
        return all(stage.trainable == "head" for stage in self.plan.resolved.stages)

    # --- features

    def take(self, other: RunPhotos) -> None:
        """Take over the features of another plan, if it shows the same photos to the same trunk."""
        if self._features_key() == other._features_key():
            self.inputs, self.fixed = dict(other.inputs), other.fixed

    def _features_key(self) -> tuple[object, ...]:
        """What decides the features of the test view, beside the photos."""
        r, net = self.plan.resolved, self.plan.net
        return r.backbone, r.weights, r.output_stride, r.size, r.policy, net.head.plan.commutes, self.plan.fixed

    def compute(self) -> None:
        """Compute what the head sees, before training, unless it was taken over."""
        self.plan.net.to(self.device)
        self.inputs = self._head_inputs()
        self.fixed = self.fixed or self._fixed()
        self._train_inputs = None if self.fixed is None else self.fixed.filled.features[0]

    def pooled(self, split: str) -> Tensor:
        """Compute the mean features [N, d] of a split through the trunk, on every process."""
        table = self.plan.tables.splits()[split]
        if split == "train" and self.fixed is not None:
            local = self.fixed.filled.features[0]
        elif split in self.inputs:
            local = self.inputs[split]
        else:
            local = self._with_progress(partial(self._inputs_of, table, pooled=True))
        local = local.float().mean((2, 3)).to(self.device)
        return self.shard.gather(local, len(table)).cpu()

    def source(self) -> BatchSource:
        """Return training batches: photos, or cached features of a frozen trunk."""
        plan, train, sampler, cache = self.plan, self.plan.tables.train, self.sampler, self.plan.cache
        if self.fixed is not None and all(stage.solved for stage in plan.resolved.stages):
            return self.fixed
        photos = self.train_set(None if cache is None else cache.views)
        self._loader = loader = TrainLoader(photos, sampler, self.collate, self.workers, self.device)
        if cache is None:
            return loader
        freeze(plan.net, "head")
        with repeatable(self.device):
            filled = self._with_progress(
                lambda tick: fill_views(plan.net, loader, cache, shard=self.shard, device=self.device, tick=tick)
            )
        return StoredViews(filled, sampler, train.matrix, locations=_locations(train), shard=self.shard)

    def _head_inputs(self) -> dict[str, Tensor]:
        """Compute the head's inputs of every split but train once, where the trunk is frozen while they are used."""
        inputs: dict[str, Tensor] = {}
        for name, table in self.plan.tables.splits().items():
            if name in self.inputs:
                inputs[name] = self.inputs[name]
            elif (self.frozen and name != "train") or (name == "val" and self.plan.fixed is not None):
                inputs[name] = self._with_progress(partial(self._inputs_of, table))
        return inputs

    def _inputs_of(self, table: LabelTable, tick: Tick | None = None, *, pooled: bool = False) -> Tensor:
        with repeatable(self.device):  # a resumed run computes them again
            return head_inputs(self.plan.net, self.eval_loader(table), self.device, tick, pooled=pooled)

    def _fixed(self) -> StoredViews | None:
        """Compute the features of every training photo's test view, for stages that solve the head."""
        plan, train, cache = self.plan, self.plan.tables.train, self.plan.fixed
        if cache is None:
            return None
        loader, rows = self.eval_loader(train), self.shard.rows(len(train))
        freeze(plan.net, "head")
        with repeatable(self.device):
            filled = self._with_progress(
                lambda tick: fill_fixed(plan.net, loader, cache, rows, device=self.device, tick=tick)
            )
        return StoredViews(filled, self.sampler, train.matrix, locations=_locations(train), shard=self.shard)

    @property
    def to_compute(self) -> int:
        """How many photos this process puts through the trunk before training, each view counted."""
        splits, plan = self.plan.tables.splits(), self.plan
        early = self.frozen or plan.baseline
        passes = [t for n, t in splits.items() if n != "train" and (early or (n == "val" and plan.fixed))]
        passes += [plan.tables.train] if plan.baseline and plan.fixed is None else []
        passes += [plan.tables.train] * ((plan.fixed is not None) + (plan.cache.views if plan.cache else 0))
        return sum(self.shard.rows(len(table)) for table in passes)

    def _with_progress(self, compute: Callable[[Tick], T]) -> T:
        """Call a function that puts photos through the trunk; report photos done of all before training."""
        total, began = self.to_compute, self._done

        def tick(done: int, _: int) -> None:
            self._done = began + done
            if self.tick is not None:
                self.tick(self._done, total)

        return compute(tick)

    def train_set(self, views_cycle: int | None) -> TrainSet:
        """Return the random views of the training photos; `views_cycle`: how many different ones, None for no end."""
        plan, train = self.plan, self.plan.tables.train
        return TrainSet(
            photos=_photos(train),
            labels=train.matrix,
            policy=self.policy,
            seed=plan.resolved.seed,
            jitter=Jitter(*[plan.resolved.jitter] * 3),
            views_cycle=views_cycle,
            locations=_locations(train),
            second_view=Strong() if plan.objective.needs_second_view else None,
            cache=make_cache(plan.resolved.photo_cache, plan.resolved.size),
        )

    # --- predictions

    def eval_loader(self, table: LabelTable) -> EvalLoader:
        """Return this process's share of the photos of a table, through the test view."""
        data = EvalSet(_photos(table), table.matrix, self.policy)
        # On a CPU, small batches are as fast as large ones: their activations stay in the processor's cache.
        size = 16 if self.device.type == "cpu" else EVAL_BATCH
        shard = self.shard
        return EvalLoader(
            data, size, self.collate, self.workers, rank=shard.rank, world=shard.world, device=self.device
        )

    def validation(self) -> Callable[[nn.Module], Mapping[str, float]]:
        """Return the function that measures a net on validation after each epoch."""
        labels, trunk = self.plan.tables.val.matrix.dense(), self.plan.net.backbone
        trained = [stage.trainable != "head" for stage in self.plan.resolved.stages]
        head_first = trained == sorted(trained)

        def validate(module: nn.Module) -> Mapping[str, float]:
            # While the first stages train only the head, its inputs stay the same.
            moved = not head_first or any(parameter.requires_grad for parameter in trunk.parameters())
            return epoch_metrics(self.logits(as_spatial(module), "val", moved=moved), labels)

        return validate

    def logits(self, net: SpatialNet, split: str, *, moved: bool) -> Logits:
        """Return the logits [N, C] of all photos of a split, on every process; `moved`: the trunk has changed."""
        table = self.plan.tables.splits()[split]
        if moved or split not in self.inputs:
            return predict_logits(net, self.eval_loader(table), len(table), self.device, self.shard)
        with torch.no_grad():
            parts = self.inputs[split].split(EVAL_BATCH)
            local = torch.cat([net.head.predict_logits(part.to(self.device)) for part in parts])
        return self.shard.gather(local, len(table)).cpu().numpy()

    def predict_train(self, module: nn.Module) -> Tensor:
        """Return the logits [rows, C] of this process's training photos, through the test view."""
        net, train = as_spatial(module), self.plan.tables.train
        if self.frozen and self._train_inputs is None:
            # The trunk never changes, so one pass over the photos is enough.
            self._train_inputs = self._inputs_of(train)
        if self.frozen and self._train_inputs is not None:
            return self._of_train_inputs(net, self._train_inputs)
        return own_logits(net, self.eval_loader(train), self.device)

    def train_logits(self, net: SpatialNet) -> Logits:
        """Return logits [M, C] of training photos, on every process: of all from cached features, or a sample."""
        train = self.plan.tables.train
        if self.frozen and self._train_inputs is not None:
            with torch.no_grad():
                local = self._of_train_inputs(net, self._train_inputs)
            return self.shard.gather(local, len(train)).cpu().numpy()
        sample = train.subset(scored_rows(len(train)))
        return predict_logits(net, self.eval_loader(sample), len(sample), self.device, self.shard)

    def _of_train_inputs(self, net: SpatialNet, inputs: Tensor) -> Tensor:
        parts = inputs.split(EVAL_BATCH)
        return torch.cat([net.head.predict_logits(part.to(self.device, torch.float32)) for part in parts])


def as_spatial(module: nn.Module) -> SpatialNet:
    """Return the net of a run, with its type."""
    assert isinstance(module, SpatialNet)
    return module


def _photos(table: LabelTable) -> PhotoFolder:
    return PhotoFolder(table.require_root(), table.images)


def _locations(table: LabelTable) -> Locations | None:
    return table.locations if len(table.locations) else None
