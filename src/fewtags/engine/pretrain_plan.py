"""The plan of a pretraining run: from settings and photos to everything that training needs."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import final

import numpy as np
import torch

from fewtags.config.pretrain import PretrainConfig, PretrainResolved, resolve_pretrain
from fewtags.engine.machine import facts, step_text, worker_notes
from fewtags.engine.methods import make_objective, pretrain_settings_models
from fewtags.engine.photo_cache import cache_note, make_cache, refuse_cache
from fewtags.engine.plan import make_problem
from fewtags.errors import ConfigError
from fewtags.formats.unlabelled import check_photos, unlabelled
from fewtags.labels import LabelMatrix
from fewtags.nets.encoder import Encoder, create_encoder
from fewtags.objectives.base import Objective, RunFacts
from fewtags.photos.loader import EpochSampler
from fewtags.photos.scan import Tick
from fewtags.photos.workers import Workers, shared_memory_notes
from fewtags.table.table import LabelTable
from fewtags.text import named


@final
@dataclass(frozen=True, kw_only=True)
class PretrainPlan:
    """A pretraining run, ready to start; attributes as those of `RunPlan`.

    `photos` are those that can be read. Their labels, or the names of their class folders, are only used to log
    `neighbour_purity`.
    """

    config: PretrainConfig
    resolved: PretrainResolved
    photos: LabelTable
    objective: Objective
    encoder: Encoder
    grid: tuple[int, int]
    notes: tuple[str, ...]
    processes: int = 1

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
            f"{stage.epochs} epochs, SGD, lr {stage.lr:g} {stage.schedule}, {step_text(r.batch_size, self.processes)}, "
            f"weight decay {r.weight_decay:g}"
        )
        yield from self.notes


def excluded_lines(photos: LabelTable) -> Iterator[str]:
    """Name the first photos that were left out, a line each, and count the others."""
    excluded, most = photos.notes.excluded, 5
    yield from (f"  {row.item}: {row.reason}" for row in excluded[:most])
    if len(excluded) > most:
        yield f"  and {len(excluded) - most:,} more"


def make_pretrain_plan(
    config: PretrainConfig,
    *,
    photos: LabelTable | None = None,
    cpu: bool = False,
    processes: int = 1,
    progress: Tick | None = None,
) -> PretrainPlan:
    """Find the photos, check them, and resolve the settings; the labels of a table `photos` do not change training.

    Raises:
        DataError: no photo can be read.
        ConfigError: settings do not fit the data or the machine.
    """
    objective = make_objective(config.objective)  # raises an error for a value out of range before photos are read
    refuse_cache(config.data.photo_cache or "")
    table = (
        photos
        if photos is not None
        else unlabelled(config.data.train, config.data.images, format=config.data.format, keep_labels=True)
    )
    resolve_pretrain(config, facts(len(table), 0, cpu), objective, processes)
    table = check_photos(table, decode=config.data.decode, progress=progress)
    return derive_pretrain(config, table, cpu=cpu, processes=processes)


def derive_pretrain(
    config: PretrainConfig,
    photos: LabelTable,
    *,
    cpu: bool = False,
    processes: int = 1,
    resolved: PretrainResolved | None = None,
    going_on: bool = False,
) -> PretrainPlan:
    """Derive a plan from checked photos; a resumed run passes its own `resolved` and is `going_on`.

    Raises:
        ConfigError: settings do not fit the data or the machine.
    """
    if resolved is None:
        objective = make_objective(config.objective)
        resolved = resolve_pretrain(config, facts(len(photos), 0, cpu), objective, processes)
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
    problem = make_problem(resolved, no_labels(photos), encoder.features_dim, grid, torch.device("meta"))
    objective_of(resolved).setup(encoder, problem)
    cache = make_cache(resolved.photo_cache, resolved.size)
    about_cache = [] if cache is None or going_on else [cache_note(cache, photos)]
    return PretrainPlan(
        config=config,
        resolved=resolved,
        photos=photos,
        objective=objective,
        encoder=encoder,
        grid=grid,
        notes=(*about_cache, *_notes(resolved, objective, len(photos), processes)),
        processes=processes,
    )


def no_labels(photos: LabelTable) -> LabelMatrix:
    """Return labels of the photos without a class: methods of pretraining see no label."""
    return LabelMatrix.from_dense(np.zeros((len(photos), 0), np.int8))


def _refuse_small_batches(resolved: PretrainResolved, photos: int, processes: int) -> None:
    """Check that BatchNorm and the measured spread get at least two images in every batch and group."""
    groups = int(resolved.objective.get("batchnorm_groups") or 1)
    if photos < processes:
        raise ConfigError(f"{photos} photo(s) cannot be shared by {processes} processes; add photos.")
    steps = EpochSampler(photos, resolved.batch_size, resolved.seed, 0, processes).steps
    smallest = photos // processes // steps
    if smallest < 2 * groups:
        parts = f" in each of {groups} BatchNorm groups" if groups > 1 else ""
        batch = named("train.batch_size", resolved.batch_size)
        raise ConfigError(
            f"{photos:,} photos on {processes} process(es) with {batch} give a batch of "
            f"{smallest}, but two images are needed{parts}; change the batch size"
            f"{', lower objective.batchnorm_groups' if groups > 1 else ''} or add photos."
        )


def objective_of(resolved: PretrainResolved) -> Objective:
    """Make the objective that the resolved settings describe."""
    name = resolved.objective["name"]
    return make_objective(pretrain_settings_models()[name].model_validate(resolved.objective))


def _notes(resolved: PretrainResolved, objective: Objective, photos: int, processes: int) -> Iterator[str]:
    """Yield the warnings of the objective, and a note if an epoch is a single step."""
    epochs, single = resolved.stages[0].epochs, photos <= resolved.batch_size * processes
    about_run = RunFacts(samples=photos, classes=0, epochs=epochs, steps_per_epoch=1 if single else 0)
    warnings = list(objective.notes(about_run))
    yield from warnings
    queue, step = resolved.objective.get("queue_size"), min(photos, resolved.batch_size * processes)
    if queue and queue < step:
        yield (
            f"warning: the queue has {queue:,} slots, but a step has {step:,} photos: {step - queue:,} keys of each "
            "step are not stored; raise objective.queue_size (half of the photos is possible) or lower "
            f"{named('train.batch_size')}"
        )
    yield from shared_memory_notes(Workers(resolved.workers), 2 * 3 * resolved.size**2 * resolved.batch_size)
    yield from worker_notes(resolved.workers)
    if resolved.objective.get("batchnorm_groups") == 1 and processes == 1:
        yield (
            "note: BatchNorm sees the whole batch at once, and keys are not shuffled, so the net can recognise keys of "
            "its own batch; objective.batchnorm_groups = 8 shuffles them as on eight GPUs"
        )
    if single and not (warnings and epochs == 1):
        yield f"note: {photos:,} photos make one step an epoch"
