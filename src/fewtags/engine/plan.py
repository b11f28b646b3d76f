"""Make a plan from a configuration: everything that a run needs, before anything is trained or written."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from copy import copy
from dataclasses import dataclass, replace
from pathlib import Path
from typing import final

import numpy as np
import torch

from fewtags.check.check import CheckReport, check
from fewtags.config.presets import IN_STEPS, MOST_CELLS, SOLVED, Facts, Resolved, resolve, why_in_steps
from fewtags.config.pretrain import PretrainResolved
from fewtags.config.sections import UNNAMED_METHODS, Config, DataConfig, ObjectiveConfig, paths_of
from fewtags.engine.machine import facts, processes, step_text, worker_notes
from fewtags.engine.memory import refuse_large_stores
from fewtags.engine.methods import derive_objective, make_objective, settled
from fewtags.engine.near_copies import copy_groups, leave_out_alike
from fewtags.engine.sources import CachePlan, plan_cache
from fewtags.engine.teacher import Teacher, match_scores, refuse_teacher
from fewtags.errors import ConfigError, DataError
from fewtags.formats.answers import answers_path, last_step, read_answers
from fewtags.formats.class_names import name_classes
from fewtags.formats.options import ReadOptions
from fewtags.formats.scores import ScoreTable, read_scores
from fewtags.formats.several import read_sources, refuse_unknown_sources
from fewtags.labels import Label, LabelMatrix
from fewtags.nets.backbones import create_net
from fewtags.nets.freezing import freeze
from fewtags.nets.pool import Pool
from fewtags.nets.spatial import HeadPlan, SpatialNet
from fewtags.objectives.base import Objective, Problem, RunFacts
from fewtags.photos.scan import Tick
from fewtags.photos.workers import Workers, shared_memory_notes
from fewtags.stores.shard import Shard
from fewtags.table.answered import with_answers
from fewtags.table.exclusive import ClassGroups
from fewtags.table.merge import common_vocabulary, match_images
from fewtags.table.overlap import leave_out_measured
from fewtags.table.table import Excluded, LabelTable, Notes
from fewtags.text import counted, flag, reading_of

EVAL_BATCH = 64
"""Photos of an evaluation batch, on a GPU."""

# Guess of the positives per annotated positive if labels are incomplete. Per image: ImageNet 1.2, VOC 1.5, COCO 2.9.
ASSUMED_POSITIVES = 1.5
# Number of completely labelled images from which on their mean is used.
COMPLETE_IMAGES = 20
# Known positives and negatives determine class frequencies only if at least this share of the cells is known.
KNOWN_SHARE = 0.25


@final
@dataclass(frozen=True)
class Tables:
    """The label tables of a run, under one vocabulary.

    Attributes:
        train: labels for training.
        val: labels on which the epoch and the thresholds are chosen.
        test: labels for one final evaluation.
        truth: complete labels of the training images, for diagnostics.
    """

    train: LabelTable
    val: LabelTable
    test: LabelTable | None = None
    truth: LabelTable | None = None

    def splits(self) -> dict[str, LabelTable]:
        """Return the tables of train, val and test that exist, by name."""
        named = {"train": self.train, "val": self.val, "test": self.test}
        return {name: table for name, table in named.items() if table is not None}


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
        r, settings = self.resolved, self.method.model_dump(exclude={"name"}, exclude_defaults=True)
        chosen = ", ".join(f"{k} {v}" for k, v in settings.items())
        yield f"method: {r.method}" + (f" ({chosen})" if chosen else "")
        size = f"{r.size} px, maps {self.grid[0]} x {self.grid[1]}"
        yield f"net: {r.backbone}, weights {r.weights}, {size}; preset {r.preset}, seed {r.seed}"
        for stage in r.stages:
            trained = {"head": "the head", "all": "all layers"}.get(
                str(stage.trainable), f"the last {stage.trainable} blocks"
            )
            if stage.solved:
                tried = ", ".join(f"{v:g}" for v in stage.logit_variances)
                yield f"stage {stage.name}: solves the head on one view of each photo; logit variances {tried}"
                continue
            batch = step_text(r.batch_size, self.processes, r.accumulate)
            how = f"{stage.epochs} epochs, lr {stage.lr:g} {stage.schedule}, {batch}, trains {trained}"
            yield f"stage {stage.name}: {how}"
        yield from self.notes


def read_options(data: DataConfig) -> ReadOptions:
    """Return the reading options of a configuration."""
    return ReadOptions(**{name: getattr(data, name) for name in ReadOptions.model_fields})


def read_one(
    data: DataConfig,
    given: str | tuple[str, ...] | None = None,
    complete: bool | None = None,
    folder: str | tuple[str, ...] | None = None,
) -> LabelTable:
    """Read the files of `data.train`, or others the same way, into one table; `folder` replaces `data.images`.

    Raises:
        DataError: a file cannot be used, or the files do not fit together.
        ConfigError: a setting names a file that is not among the labels.
    """
    options = read_options(data)
    if complete is not None:
        options = options.model_copy(update={"complete": complete})
    every = [path for files in (data.train, data.val, data.test, data.truth) for path in paths_of(files)]
    refuse_unknown_sources(data.covers, every, "data.covers")
    refuse_unknown_sources(data.complete_files, every, "data.complete_files")
    paths, images = paths_of(given or data.train), paths_of(folder or data.images)
    if given is not None and len(images) > 1 and folder is None and len(images) != len(paths):
        images = ()  # one folder for each file of `train`
    return read_sources(
        paths,
        images=images,
        format=data.format,
        options=options,
        covers=data.covers,
        complete=data.complete_files,
    )


def read_named(data: DataConfig) -> dict[str, LabelTable]:
    """Read the tables of train, val and test that exist, by name. val and test have their own files, or are splits.

    Raises:
        DataError: a file cannot be used, or names splits but no training images.
    """
    if data.names is not None:
        return name_classes(read_named(data.model_copy(update={"names": None})), data.names)
    whole = read_one(data)
    named = {} if whole.split_names is None else whole.named_splits()
    tables = {"train": _training_part(whole, named)}
    for split, path, folder in (("val", data.val, data.val_images), ("test", data.test, data.test_images)):
        if path:
            shown = " and ".join(paths_of(path))
            with reading_of(split):
                measured = _read_measured(data, path, folder, tables["train"])
            tables[split] = _part_of(measured, split, shown)
            if split in named:
                said = f"{split}: {shown} is used, and not the {len(named[split]):,} images of split {split!r}"
                tables["train"] = tables["train"].noting(said)
        elif split in named:
            tables[split] = named[split]
    return tables


def _read_measured(
    data: DataConfig, path: str | tuple[str, ...], folder: str | tuple[str, ...] | None, train: LabelTable
) -> LabelTable:
    """Read labels to validate or test on; without a folder of photos, try that of the training photos."""
    table = read_one(data, path, data.val_complete, folder)
    if table.root is not None or train.root is None:
        return table
    try:
        found = read_one(data, path, data.val_complete, str(train.root))
    except DataError:  # the photos are elsewhere; `require_root` says which option names their folder
        return table
    shown = " and ".join(paths_of(path))
    return found.noting(f"{shown}: the photos are looked for in {train.root}, the folder of the training photos")


def _training_part(whole: LabelTable, named: Mapping[str, LabelTable]) -> LabelTable:
    """Return the images of split "train"; if there is no such split, all images outside val and test.

    Images of other splits are left out if there is a split "train"; each is listed.
    """
    others = [name for name in named if name not in ("train", "val", "test")]
    if "train" in named:
        rest = {name: named[name] for name in others}
        lines = tuple(f"{_split_words(name)}: {counted(len(part), 'image')} left out" for name, part in rest.items())
        return _noting_rest(named["train"], rest, "not train, val or test", "train", lines)
    if not {"val", "test"} & set(named):
        return whole
    if not others:
        raise DataError(
            f"the labels name the splits {' and '.join(sorted(named))}, so that no image is left to learn from; call "
            "the split of those images 'train', or leave it empty."
        )
    names = np.array([str(name) for name in (whole.split_names or ())])
    kept = whole.subset(~np.isin(names, ("val", "test")))
    said = " and ".join(map(_split_words, others))
    return kept.noting(f"no split is called 'train': the {len(kept):,} images of {said} are learned from")


def _split_words(name: str) -> str:
    return f"split {name!r}" if name else "no split"


def _part_of(table: LabelTable, split: str, path: str) -> LabelTable:
    """Return the images of a file that was given for `split`: all, or its split of this name if it names splits."""
    named = {} if table.split_names is None else table.named_splits()
    if not any(named):
        return table
    sizes = ", ".join(f"{name or 'no split'} {len(part):,}" for name, part in named.items())
    if split not in named:
        raise DataError(
            f"{path} is given as {flag(split)} and names splits itself ({sizes}), but none of them is {split!r}. Call "
            f"the split of the images that are meant {split!r}, or take the split names out of the file."
        )
    rest = {name: part for name, part in named.items() if name != split}
    said = f"{split}: of {path}, which names splits itself ({sizes}), only the images of split {split!r} are used"
    return _noting_rest(named[split], rest, f"of {path}, only split {split!r} is used", split, (said,) if rest else ())


def _noting_rest(
    table: LabelTable, rest: Mapping[str, LabelTable], why: str, where: str, messages: tuple[str, ...]
) -> LabelTable:
    """Return the table, and list each image of the other splits, which are left out, in its notes."""
    excluded = [
        Excluded(str(key), f"{_split_words(name)}: {why}", where, "splits" if where == "train" else "excluded")
        for name, part in rest.items()
        for key in part.images.to_pylist()
    ]
    return replace(table, notes=table.notes + Notes((), tuple(excluded), messages))


def read_tables(data: DataConfig, seed: int) -> Tables:
    """Read all label files of a configuration and split off validation where none is given.

    Photos of given validation and test labels leave training (`leave_out_measured`), and photos with the same content
    stay on one side of the split.

    Raises:
        DataError: a file cannot be used.
    """
    tables = leave_out_measured(read_named(data))
    if data.near_copies == "leave_out":
        tables = leave_out_alike(tables)
    if "val" not in tables:
        train, val = hold_out(tables["train"], data.val_share, seed, data.group_by, near=data.near_copies != "off")
        tables = {"train": train, "val": val, **{k: v for k, v in tables.items() if k != "train"}}
    tables = common_vocabulary(with_answers(tables, given_answers(data)) if data.answers else tables)
    plain = data.model_copy(update={"names": None})
    truth = match_images(read_one(plain, data.truth, complete=True), tables["train"]) if data.truth else None
    tables, truth = with_groups(data, tables, truth)
    return Tables(tables["train"], tables["val"], tables.get("test"), truth)


def given_answers(data: DataConfig) -> list[LabelTable]:
    """Read the answers of a configuration, see `read_answers`.

    Raises:
        DataError: a file does not exist or cannot be read.
        ConfigError: there is a step for another number of files.
    """
    places = paths_of(data.answers)
    if data.answers_step and len(data.answers_step) != len(places):
        raise ConfigError(
            f"data.answers_step has {counted(len(data.answers_step), 'step')} for {counted(len(places), 'file')} of "
            "data.answers; give one for each, or leave it out."
        )
    steps = data.answers_step or (None,) * len(places)
    return [table for place, step in zip(places, steps, strict=True) for table in read_answers(place, step)]


def with_last_steps(config: Config) -> Config:
    """Return the settings with the last step of each file of answers, so that later answers do not change the run."""
    data = config.data
    if data.answers is None or data.answers_step:
        return config
    steps = tuple(last_step(answers_path(place)) for place in paths_of(data.answers))
    return config.model_copy(update={"data": data.model_copy(update={"answers_step": steps})})


def class_groups(data: DataConfig) -> ClassGroups:
    """Return the groups of classes of a configuration."""
    return ClassGroups(data.exactly_one, data.at_most_one)


def with_groups(
    data: DataConfig, tables: Mapping[str, LabelTable], truth: LabelTable | None = None
) -> tuple[dict[str, LabelTable], LabelTable | None]:
    """Return tables under one vocabulary, and complete labels, with what follows from the groups of classes.

    Raises:
        ConfigError: see `ClassGroups.resolved`.
    """
    if not (asked := class_groups(data)):
        return dict(tables), truth
    groups = asked.resolved(next(iter(tables.values())).classes)
    found = {split: groups.applied(table, split) for split, table in tables.items()}
    return found, None if truth is None else groups.applied(truth, "truth")


def hold_out(
    whole: LabelTable, share: float = 0.1, seed: int = 0, group_by: str | None = None, *, near: bool = False
) -> tuple[LabelTable, LabelTable]:
    """Split a share of the images off for validation; photos with the same content stay together.

    With `near`, photos that look alike stay together too, see `copy_groups`.

    With `group_by`, a regular expression, images whose first group agrees stay together instead.

    Raises:
        DataError: the table has no folder of photos, or too few images.
    """
    groups, together = (group_by, "groups kept together") if group_by else copy_groups(whole, near)
    train, val = whole.split(val=share, seed=seed, groups=groups)
    return train.noting(f"val: {len(val):,} of {len(whole):,} images held out (seed {seed}), {together}"), val


def make_plan(
    config: Config,
    *,
    tables: Tables | None = None,
    scores: ScoreTable | None = None,
    out: Path | None = None,
    cpu: bool = False,
    progress: Tick | None = None,
) -> RunPlan:
    """Read, check and resolve.

    `tables` are label tables in memory (Python interface), and `scores` those of a teacher; None reads them. The disk
    of the run folder `out`, by default the working directory, needs room for stores. `progress` is called with the
    number of checked photos.

    Raises:
        DataError: labels or photos that cannot be used.
        ConfigError: settings that do not fit the data or the machine.
    """
    if config.objective.name is not None:
        make_objective(config.objective)  # so that a value out of range is refused before anything is read
        if config.data.teacher is not None:
            refuse_teacher(config.objective.name)
    if scores is None and config.data.teacher is not None:
        scores = read_scores(Path(config.data.teacher))
    tables = tables or read_tables(config.data, config.train.seed)
    resolve(
        config, _facts(config, tables.train, cpu)
    )  # so that settings that do not fit are refused before photos are read
    for split, table in tables.splits().items():
        option = "images" if split == "train" else f"{split}-images"
        table.require_root(f"the {split} labels", flag(option, "FOLDER"))
    near = config.data.near_copies != "off"
    found = check(tables.splits(), decode=config.data.decode, near_copies=near, progress=progress).going_on()
    kept: Mapping[str, LabelTable] = found.clean(tables.splits())
    truth = None if tables.truth is None else match_images(tables.truth, kept["train"])
    cleaned = Tables(kept["train"], kept["val"], kept.get("test"), truth)
    teacher = None if scores is None else match_scores(scores, cleaned.splits())
    return derive(config, cleaned, found, out=out, cpu=cpu, teacher=teacher)


def derive(
    config: Config,
    tables: Tables,
    report: CheckReport | None,
    *,
    out: Path | None = None,
    cpu: bool = False,
    resolved: Resolved | None = None,
    teacher: Teacher | None = None,
) -> RunPlan:
    """Derive a plan from checked tables.

    A resumed run passes its own `resolved`, because another machine must not change it. Its stores fitted when it
    began, so their size is not checked again.

    Raises:
        ConfigError: settings that do not fit the data or the machine.
    """
    train, going_on = tables.train, resolved is not None
    if not train.matrix.counts(Label.POSITIVE).any():
        raise ConfigError(
            "no training image has a positive label, so there is nothing to learn; look at `fewtags check`."
        )
    resolved = resolved or resolve(config, _facts(config, train, cpu))
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
    notes = _location_notes(objective, settings, about_run, named=config.objective.name is not None) + explained
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
    if config.train.preset in (None, SOLVED) and resolved.preset == IN_STEPS and config.train.stages is None:
        notes.insert(0, f"preset {IN_STEPS} was taken, since {why_in_steps(config, _facts(config, train, cpu))}")
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


def _facts(config: Config, train: LabelTable, cpu: bool) -> Facts:
    """Collect what `resolve` needs to know about data, machine and method."""
    located = len(train.locations) > 0
    method = settled(config.objective, config.objective.name or UNNAMED_METHODS[located])
    # The question is whether a head can be solved, so settings that are open are those of a run that solves it.
    taught = config.data.teacher is not None
    solved = RunFacts(samples=len(train), classes=len(train.classes), head_solved=True, teacher=taught)
    objective, _ = derive_objective(method, solved)
    found = facts(len(train), len(train.classes), cpu, located)
    return found.model_copy(
        update={key: getattr(objective, key) for key in ("solvable", "solvable_warmup", "needs_maps")}
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
    )


def _location_notes(objective: Objective, settings: ObjectiveConfig, facts: RunFacts, *, named: bool) -> list[str]:
    """Return whether points and boxes are used, and why a method was chosen that the user did not name."""
    if not (facts.points or facts.boxes):
        return []
    tags_only, located = UNNAMED_METHODS
    labels = f"{counted(facts.points, 'point')} and {counted(facts.boxes, 'box', 'boxes')}"
    if not objective.uses_locations:
        return [f"{labels} count as tags only: {settings.name} does not use locations; {flag('method', located)} does"]
    return [] if named else [f"{located} was chosen because of {labels}; without them: {flag('method', tags_only)}"]


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


def can_rank(table: LabelTable) -> bool:
    """Whether a class has known positives and known negatives, so that AP has a meaning."""
    counts = (table.matrix.counts(state) > 0 for state in (Label.POSITIVE, Label.NEGATIVE))
    return bool(np.logical_and(*counts).any())


def positives_per_image(tables: Tables) -> tuple[float, str]:
    """Return K of SCL eq. (3) and its source: complete images, known positives and negatives, or a guess."""
    for name, table in (("val", tables.val), ("train", tables.train)):
        complete = np.flatnonzero(table.matrix.image_counts(Label.UNKNOWN) == 0)
        if len(complete) >= COMPLETE_IMAGES:
            mean = float(table.matrix.subset(complete).image_counts(Label.POSITIVE).mean())
            if mean > 0:
                source = f"the mean of {len(complete):,} completely labelled {name} images"
                return mean, f"positives per image: {mean:.2f}, {source}"
    classes, limit = len(tables.train.classes), ""
    if (mean := _positives_among_known(tables.train.matrix)) > 0:
        if mean > classes:
            mean, limit = float(classes), f" (limited to the {counted(classes, 'class', 'classes')})"
        return mean, (
            f"positives per image: {mean:.2f}{limit}, the sum over classes of positives / known training cells, taking "
            "cells as blank at random. If blank cells are mostly negative, it is less: set "
            "objective.positives_per_image."
        )
    observed = tables.train.matrix.image_counts(Label.POSITIVE)
    annotated = float(observed[observed > 0].mean())
    guess = ASSUMED_POSITIVES * annotated
    if guess > classes:
        guess, limit = float(classes), f", but not more than the {counted(classes, 'class', 'classes')}"
    return guess, (
        f"positives per image: {guess:.2f}, a guess ({ASSUMED_POSITIVES} x the {annotated:.2f} annotated{limit}), "
        f"since fewer than {COMPLETE_IMAGES} images are completely labelled. Count the classes in twenty photos and "
        "set objective.positives_per_image."
    )


def _positives_among_known(labels: LabelMatrix) -> float:
    """Return the sum over classes of positives / (positives + negatives); 0 if too little is known.

    Sparse verified labels are not blank at random (somebody chose the cells to ask about), so `KNOWN_SHARE` of all
    cells must be known. Classes with fewer than `COMPLETE_IMAGES` known cells are taken at the average ratio of the
    others, which must contain at least 90 % of the positives.
    """
    positives, negatives = labels.counts(Label.POSITIVE), labels.counts(Label.NEGATIVE)
    known = positives + negatives
    judged = (known >= COMPLETE_IMAGES) & (negatives > 0)
    covered = positives[judged].sum() / max(int(positives.sum()), 1)
    if known.sum() < KNOWN_SHARE * labels.shape[0] * labels.shape[1] or covered < 0.9:
        return 0.0
    return float((positives[judged] / known[judged]).sum() / covered)
