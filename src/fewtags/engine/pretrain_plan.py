"""The plan of a pretraining run: from settings and photos to everything that training needs."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, final

import torch

from fewtags.config.parse import parse_as
from fewtags.config.pretrain import PretrainConfig, PretrainResolved, resolve_pretrain
from fewtags.engine.machine import facts
from fewtags.engine.methods import make_objective, pretrain_settings_models
from fewtags.errors import ConfigError
from fewtags.formats.unlabelled import check_photos, unlabelled
from fewtags.nets.encoder import Encoder, create_encoder
from fewtags.objectives.base import Objective, Problem
from fewtags.photos.loader import EpochSampler
from fewtags.photos.scan import Progress as ScanProgress
from fewtags.stores.shard import Shard
from fewtags.table.table import LabelTable

DEFAULT_METHOD = "mls"


@final
@dataclass(frozen=True, kw_only=True)
class PretrainPlan:
    """A pretraining run, ready to start.

    Attributes:
        config: the settings that the user gave.
        resolved: the settings with nothing left to derive.
        photos: a table without classes, of the photos that can be read.
        objective: the method.
        encoder: the net, with its initial weights.
        grid: (height, width) of its features.
        notes: messages about what was found and derived.
    """

    config: PretrainConfig
    resolved: PretrainResolved
    photos: LabelTable
    objective: Objective
    encoder: Encoder
    grid: tuple[int, int]
    notes: tuple[str, ...]

    def lines(self) -> Iterator[str]:
        """Describe the run, a line each."""
        yield from self.photos.notes.messages
        yield from excluded_lines(self.photos)
        r = self.resolved
        settings = ", ".join(f"{k} {v}" for k, v in r.objective.items() if k != "name" and v is not None)
        yield f"{len(self.photos):,} photos; method: {r.objective['name']} ({settings})"
        yield (
            f"net: {r.backbone}, weights {r.weights}, {r.size} px, features {self.encoder.features_dim} x "
            f"{self.grid[0]} x {self.grid[1]}; preset {r.preset}, seed {r.seed}"
        )
        (stage,) = r.stages
        yield (
            f"{stage.epochs} epochs, SGD, lr {stage.lr:g} {stage.schedule}, batch {r.batch_size}, "
            f"weight decay {r.weight_decay:g}"
        )
        yield from self.notes


def excluded_lines(photos: LabelTable, most: int = 5) -> Iterator[str]:
    """Name the first photos that were left out, a line each, and count the others."""
    excluded = photos.notes.excluded
    yield from (f"  {row.item}: {row.reason}" for row in excluded[:most])
    if len(excluded) > most:
        yield f"  and {len(excluded) - most:,} more"


def read_settings(tree: Mapping[str, Any], where: str) -> PretrainConfig:
    """Make the settings of a pretraining run from plain values; `where` is the file for messages.

    Raises:
        ConfigError: one line for each problem.
    """
    return parse_as(PretrainConfig, tree, pretrain_settings_models(), where, DEFAULT_METHOD)


def make_pretrain_plan(
    config: PretrainConfig,
    *,
    photos: LabelTable | None = None,
    cpu: bool = False,
    processes: int = 1,
    progress: ScanProgress | None = None,
) -> PretrainPlan:
    """Find the photos, check them, and resolve the settings.

    Args:
        config: the settings.
        photos: a table in memory, whose labels are ignored; None reads the photos.
        cpu: ignore GPUs.
        processes: number of training processes.
        progress: called with the number of photos checked.

    Raises:
        DataError: no photo can be read.
        ConfigError: settings do not fit the data or the machine.
    """
    make_objective(config.objective)  # raises an error for a value out of range before photos are read
    table = (
        photos if photos is not None else unlabelled(config.data.train, config.data.images, format=config.data.format)
    )
    resolve_pretrain(config, facts(len(table), 0, cpu), processes)
    table = check_photos(table, decode=config.data.decode, progress=progress)
    return derive_pretrain(config, table, cpu=cpu, processes=processes)


def derive_pretrain(
    config: PretrainConfig,
    photos: LabelTable,
    *,
    cpu: bool = False,
    processes: int = 1,
    resolved: PretrainResolved | None = None,
) -> PretrainPlan:
    """Derive a plan from checked photos; a resumed run passes its own `resolved`.

    Raises:
        ConfigError: settings do not fit the data or the machine.
    """
    resolved = resolved or resolve_pretrain(config, facts(len(photos), 0, cpu), processes)
    _refuse_small_batches(resolved, len(photos), processes)
    encoder = create_encoder(
        resolved.backbone,
        weights=resolved.weights,
        size=resolved.size,
        seed=resolved.seed,
        drop_path=resolved.drop_path or None,
    )
    objective = objective_of(resolved)
    grid = encoder.grid((resolved.size, resolved.size))
    # A copy is set up on a device without memory: settings that do not fit raise their error now.
    problem = pretrain_problem(photos, resolved, encoder, grid, torch.device("meta"), Shard())
    objective_of(resolved).setup(encoder, problem)
    return PretrainPlan(
        config=config,
        resolved=resolved,
        photos=photos,
        objective=objective,
        encoder=encoder,
        grid=grid,
        notes=tuple(_warnings(resolved, len(photos), processes)),
    )


def _refuse_small_batches(resolved: PretrainResolved, photos: int, processes: int) -> None:
    """Check that BatchNorm and the measured spread get at least two images in every batch and group.

    Raises:
        ConfigError: a batch of a process has fewer.
    """
    groups = int(resolved.objective.get("batchnorm_groups") or 1)
    if photos < processes:
        raise ConfigError(f"{photos} photo(s) cannot be shared by {processes} processes; add photos.")
    steps = EpochSampler(photos, resolved.batch_size, resolved.seed, 0, processes).steps
    smallest = photos // processes // steps
    if smallest < 2 * groups:
        parts = f" in each of {groups} BatchNorm groups" if groups > 1 else ""
        raise ConfigError(
            f"{photos:,} photos on {processes} process(es) with train.batch_size = {resolved.batch_size} give a batch "
            f"of {smallest}, but two images are needed{parts}; change the batch size"
            f"{', lower objective.batchnorm_groups' if groups > 1 else ''} or add photos."
        )


def objective_of(resolved: PretrainResolved) -> Objective:
    """Make the objective that the resolved settings describe."""
    name = resolved.objective["name"]
    return make_objective(pretrain_settings_models()[name].model_validate(resolved.objective))


def pretrain_problem(
    photos: LabelTable,
    resolved: PretrainResolved,
    encoder: Encoder,
    grid: tuple[int, int],
    device: torch.device,
    shard: Shard,
) -> Problem:
    """Describe the training problem to the objective."""
    return Problem(
        labels=photos.matrix,
        grid=grid,
        warmup_epochs=0,
        epochs=sum(stage.epochs for stage in resolved.stages),
        seed=resolved.seed,
        shard=shard,
        device=device,
        features_dim=encoder.features_dim,
        precision=resolved.precision,
    )


def _warnings(resolved: PretrainResolved, photos: int, processes: int) -> Iterator[str]:
    """Warn of settings that are known to work badly with so few photos."""
    queue, k = resolved.objective.get("queue_size"), resolved.objective.get("k")
    if queue and queue > photos / 4:
        # The share of queries whose own older key is in the queue, if every epoch is a new permutation.
        share = min(1.0, (queue / photos) ** 2 / 2 if queue < photos else 1.0)
        role = "neighbour" if resolved.objective["name"] == "nnclr" else "negative"
        yield (
            f"warning: a queue of {queue:,} for {photos:,} photos: {100 * share:.0f} % of the queries see an older "
            f"key of their own image as a {role}; set objective.queue_size to {max(1, photos // 16):,}"
        )
    if queue and k and k > max(1, queue / 20):
        yield f"warning: k = {k} of a queue of {queue:,}: more than a twentieth are positives; lower objective.k"
    if photos <= resolved.batch_size * processes:
        if queue and resolved.stages[0].epochs == 1:
            yield f"warning: {photos:,} photos make a single step, with an empty queue: nothing will be learned"
        else:
            yield f"note: {photos:,} photos make one step an epoch"
