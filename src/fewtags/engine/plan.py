"""The plan of a run: everything that it needs, derived from checked tables before anything is trained or written."""

from __future__ import annotations

from collections.abc import Iterator
from copy import copy
from dataclasses import dataclass, replace
from pathlib import Path
from typing import final

import torch

from fewtags.check.check import CheckReport
from fewtags.config.presets import MOST_CELLS, Resolved
from fewtags.config.pretrain import PretrainResolved
from fewtags.config.search import described
from fewtags.config.sections import Config, ObjectiveConfig
from fewtags.engine.label_counts import can_rank, positives_per_image
from fewtags.engine.machine import processes, step_text, worker_notes
from fewtags.engine.memory import refuse_large_stores
from fewtags.engine.methods import derive_objective, settled
from fewtags.engine.preset_facts import resolve_settings, run_facts
from fewtags.engine.sources import CachePlan, plan_cache
from fewtags.engine.tables import Tables
from fewtags.engine.teacher import Teacher, refuse_teacher
from fewtags.errors import ConfigError
from fewtags.labels import Label, LabelMatrix
from fewtags.nets.backbones import create_net
from fewtags.nets.freezing import freeze
from fewtags.nets.pool import Pool
from fewtags.nets.spatial import HeadPlan, SpatialNet, refuse_without_maps
from fewtags.objectives.base import Objective, Problem, RunFacts
from fewtags.objectives.table import DEFAULT_METHOD
from fewtags.photos.workers import Workers, shared_memory_notes
from fewtags.stores.shard import Shard
from fewtags.text import counted, flag

EVAL_BATCH = 64
"""Photos of an evaluation batch, on a GPU."""


@final
@dataclass(frozen=True, kw_only=True)
class RunPlan:
    """A run, ready to start.

    Attributes:
        resolved: the user's settings, `config`, with everything derived.
        tables: without the images that cannot be read.
        report: findings of the check; None if the tables come from a resumed run.
        net: the net, with its initial weights.
        grid: (height, width) of its maps.
        heatmap_bytes: size of the objective's large stores (`Objective.memory`), such as heatmaps.
        cache: how views of the frozen trunk are cached; None without a cache.
        fixed: how the view is cached on which a head is solved; None if no stage solves the head.
        notes: sentences about what was derived.
        processes: the number of processes that train together.
        teacher: scores for the training photos; None without a teacher.
    """

    config: Config
    resolved: Resolved
    tables: Tables
    report: CheckReport | None
    objective: Objective
    net: SpatialNet
    grid: tuple[int, int]
    heatmap_bytes: int
    cache: CachePlan | None
    fixed: CachePlan | None
    notes: tuple[str, ...]
    processes: int = 1
    teacher: Teacher | None = None

    @property
    def baseline(self) -> bool:
        """Whether the run is compared with logistic regression: not for an untrained trunk, nor for too many cells."""
        samples, classes = self.tables.train.matrix.shape
        known = self.resolved.weights != "none"
        return self.config.train.baseline and known and samples * classes <= MOST_CELLS

    @property
    def method(self) -> ObjectiveConfig:
        """The settings of the method, whether named or derived."""
        return settled(self.config.objective, self.resolved.method, self.resolved.preset_objective)

    def lines(self) -> Iterator[str]:
        """Describe for people how the labels were read and what the run will do."""
        if self.report is not None:
            yield from self.report.lines()
            if rows := len(self.report.excluded_rows()):
                yield f"left out: {counted(rows, 'item')}; excluded.csv in the run folder lists them with their reasons"
        r, settings = self.resolved, self.method.model_dump(exclude={"name"}, exclude_defaults=True)
        chosen = ", ".join(f"{k} {v}" for k, v in settings.items())
        yield f"method: {r.method}" + (f" ({chosen})" if chosen else "")
        maps = f"maps {self.grid[0]} x {self.grid[1]}" if self.net.head.plan.has_maps else "class token, no maps"
        size = f"{r.size} px, {maps}"
        yield f"net: {r.backbone}, weights {r.weights}, {size}; preset {r.preset}, seed {r.seed}"
        for stage in r.stages:
            trained = {"head": "the head", "all": "all layers"}.get(
                str(stage.trainable), f"the last {stage.trainable} blocks"
            )
            if stage.solved:
                tried = ", ".join(f"{v:g}" for v in stage.logit_variances)
                yield f"stage {stage.name}: solves the head on one view of each photo; logit variances {tried}"
                if stage.answer_weights:
                    weights = ", ".join(f"{w:g}" for w in stage.answer_weights)
                    yield f"stage {stage.name}: then answers with the weights {weights}; the best on validation counts"
                continue
            batch = step_text(r.batch_size, self.processes, r.accumulate)
            how = f"{stage.epochs} epochs, lr {stage.lr:g} {stage.schedule}, {batch}, trains {trained}"
            yield f"stage {stage.name}: {how}"
        if r.search:
            tried = "; ".join(described(candidate, r.search) for candidate in r.search)
            yield f"search: first tries {tried}, each by solving the head; the best on validation is trained"
        yield from self.notes


def derive(
    config: Config,
    tables: Tables,
    report: CheckReport | None,
    *,
    out: Path | None = None,
    cpu: bool = False,
    resolved: Resolved | None = None,
    teacher: Teacher | None = None,
    going_on: bool = False,
) -> RunPlan:
    """Derive a plan from checked tables.

    A resumed run passes its own `resolved`, because another machine must not change it. With `going_on`, the stores
    fitted when the run began, so their size is not checked again.

    Raises:
        ConfigError: settings that do not fit the data or the machine.
    """
    train = tables.train
    if not train.matrix.counts(Label.POSITIVE).any():
        raise ConfigError(
            "no training image has a positive label, so there is nothing to learn; look at `fewtags check`."
        )
    tables = replace(tables, positives_per_image=config.data.positives_per_image)
    resolved = resolved or resolve_settings(config, run_facts(config, tables, cpu))
    if resolved.select == "best" and not can_rank(tables.val):
        raise ConfigError(
            'train.select = "best" needs a class with known positives and known negatives in the validation images, '
            'and there is none; use "auto" or "last".'
        )
    settings = settled(config.objective, resolved.method, resolved.preset_objective)
    if teacher is not None:
        refuse_teacher(resolved.method)
    net = create_net(
        resolved.backbone,
        len(train.classes),
        weights=resolved.weights,
        size=resolved.size,
        seed=resolved.seed,
        drop_path=resolved.drop_path or None,
        output_stride=resolved.output_stride or None,
        head=head_plan(resolved),
    )
    grid = net.grid((resolved.size, resolved.size))
    about_run = _run_facts(tables, resolved, grid, teacher)
    objective, explained = derive_objective(settings, about_run)
    if objective.needs_maps:
        changed = [f"objective.{name}" for name in ("scl_weight", "patch_weight") if vars(objective).get(name)]
        otherwise = f", or set {' and '.join(changed)} to 0" if changed else ""
        refuse_without_maps(net.head.plan, f"the loss of {resolved.method} with these settings", otherwise)
    notes = _location_notes(objective, settings, about_run) + explained
    for stage in resolved.stages:  # so that a stage that cannot begin is refused before the first one is trained
        freeze(net, stage.trainable)
    freeze(net, "all")
    # A copy is set up on a device without memory: settings that do not fit the labels raise their error now.
    problem = make_problem(resolved, train.matrix, net.head.features_dim, grid, torch.device("meta"))
    problem = problem if teacher is None else replace(problem, teacher=teacher.values)
    copy(objective).setup(net, problem)
    cache, fixed, limit = None, None, int(config.train.cache_gib * 2**30)
    features = (net.head.features_dim, *grid)
    if resolved.cached_views:
        cache = plan_cache(len(train), features, resolved.cached_views, limit, second_view=objective.needs_second_view)
        notes += _cache_note(cache, resolved.cached_views, config.train.cache_gib)
    if any(stage.solved for stage in resolved.stages):
        warmup = all(stage.warmup for stage in resolved.stages if stage.solved) and objective.solvable_warmup
        pooled = net.head.plan.commutes and (warmup or not objective.needs_maps)
        remedy = f"Raise train.cache_gib, or train in steps ({flag('preset', 'views')})."
        fixed = plan_cache(len(train), features, 1, limit, pooled=pooled, remedy=remedy)
        notes += _cache_note(fixed, 1, config.train.cache_gib)
    stores = objective.memory(about_run)
    if not going_on:
        refuse_large_stores(stores, len(train), len(train.classes), out=out, cpu=cpu)
    listed = [store for store in stores if store.detail]
    for store in listed:
        place = "on disk" if store.on_disk else "in memory"
        notes.append(f"{store.name}: {store.size(len(train)) / 1e6:,.1f} MB {place} ({store.detail})")
    notes += objective.notes(about_run)
    notes += () if teacher is None else teacher.notes
    tuned = any(stage.trainable != "head" for stage in resolved.stages)
    if tuned and not resolved.batchnorm_eval and processes() > 1:
        batch = counted(resolved.batch_size, "photo")
        notes.append(f"note: BatchNorm takes its statistics from the {batch} of each process, not from the whole step")
    views = 2 if objective.needs_second_view else 1
    largest = 3 * resolved.size**2 * max(resolved.batch_size * views, EVAL_BATCH)
    notes += shared_memory_notes(Workers(resolved.workers), largest)
    notes += worker_notes(resolved.workers)
    needed = sum(store.size(len(train)) for store in listed)
    return RunPlan(
        config=config,
        resolved=resolved,
        tables=tables,
        report=report,
        objective=objective,
        net=net,
        grid=grid,
        heatmap_bytes=needed,
        cache=cache,
        fixed=fixed,
        notes=tuple(notes),
        processes=processes(),
        teacher=teacher,
    )


def _run_facts(tables: Tables, resolved: Resolved, grid: tuple[int, int], teacher: Teacher | None) -> RunFacts:
    train, counts = tables.train, tables.train.summary()
    positives, source = positives_per_image(tables)
    return RunFacts(
        samples=len(train),
        classes=len(train.classes),
        grid=grid,
        epochs=sum(stage.epochs for stage in resolved.stages),
        positives=sum(counts.positives),
        negatives=sum(counts.negatives),
        most_positives=int(train.matrix.image_counts(Label.POSITIVE).max()),
        points=counts.points,
        boxes=counts.boxes,
        positives_per_image=positives,
        positives_source=source,
        head_solved=any(stage.solved and not stage.warmup for stage in resolved.stages),
        warmup_solved=resolved.stages[0].solved,
        teacher=teacher is not None,
        answer_weights=bool(resolved.stages[-1].answer_weights),
    )


def _location_notes(objective: Objective, settings: ObjectiveConfig, facts: RunFacts) -> list[str]:
    """Return a note if there are points or boxes, and the method does not use them."""
    if not (facts.points or facts.boxes):
        return []
    labels = f"{counted(facts.points, 'point')} and {counted(facts.boxes, 'box', 'boxes')}"
    if objective.uses_locations:
        return []
    if "patch_weight" in type(settings).model_fields:
        return [f"{labels} count as tags only, since objective.patch_weight is 0"]
    method = flag("method", DEFAULT_METHOD)
    return [f"{labels} count as tags only: {settings.name} does not use locations; {method} does"]


def make_problem(
    resolved: Resolved | PretrainResolved,
    labels: LabelMatrix,
    features_dim: int,
    grid: tuple[int, int],
    device: torch.device,
    shard: Shard | None = None,
) -> Problem:
    """Describe the training problem to the objective."""
    return Problem(
        labels=labels,
        grid=grid,
        warmup_epochs=sum(stage.epochs for stage in resolved.stages if stage.warmup),
        epochs=sum(stage.epochs for stage in resolved.stages),
        seed=resolved.seed,
        shard=shard or Shard(),
        device=device,
        features_dim=features_dim,
        precision=resolved.precision,
    )


def _cache_note(plan: CachePlan, wanted: int, gib: float) -> list[str]:
    """Return a note if fewer views or a smaller dtype than wanted are cached."""
    if plan.views == wanted and plan.dtype == torch.float32:
        return []
    kind = str(plan.dtype).removeprefix("torch.")
    return [f"cached views: {plan.views} of {wanted} per image, in {kind}, since train.cache_gib allows {gib:g} GiB"]


def head_plan(resolved: Resolved) -> HeadPlan:
    """Return kernel and pool of the head."""
    r = resolved
    return HeadPlan(r.head_kernel, Pool(r.pool, r.pool_temperature, r.pool_weight, r.pool_boost))
