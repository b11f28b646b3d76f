"""From a configuration to everything that a run needs, before anything is trained or written."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, fields, is_dataclass, replace
from pathlib import Path
from typing import final

import numpy as np
import torch

from fewtags.check.check import CheckReport, check
from fewtags.config.presets import IN_STEPS, MOST_CELLS, SOLVED, Facts, Resolved, resolve, why_in_steps
from fewtags.config.sections import UNNAMED_METHODS, Config, DataConfig, ObjectiveConfig
from fewtags.engine.machine import facts
from fewtags.engine.memory import heatmap_memory
from fewtags.engine.methods import make_objective, settled
from fewtags.engine.sources import CachePlan, plan_cache
from fewtags.errors import ConfigError, DataError
from fewtags.formats.common import ReadOptions
from fewtags.formats.read import read
from fewtags.labels import Label, LabelMatrix
from fewtags.nets.backbones import create_net
from fewtags.nets.freezing import freeze
from fewtags.nets.pool import Pool
from fewtags.nets.spatial import HeadPlan, SpatialNet
from fewtags.objectives.base import Objective, Problem
from fewtags.objectives.expected_negative import SCL_WEIGHT, ExpectedNegative
from fewtags.objectives.supervised import Settings as Supervised
from fewtags.objectives.supervised import even_patches, unknown_classes
from fewtags.photos.scan import Progress as ScanProgress
from fewtags.stores.heatmaps import heatmap_bytes
from fewtags.table.content import content_groups
from fewtags.table.table import Excluded, LabelTable, Notes
from fewtags.table.vocabulary import common_vocabulary, match_images
from fewtags.text import counted

# Without a complete label list nobody knows how many classes an image holds. ImageNet 1.2, VOC 1.5, COCO 2.9.
ASSUMED_POSITIVES = 1.5
# So many completely labelled images are needed to take their mean.
COMPLETE_IMAGES = 20
# Known positives and negatives tell the frequency of classes only where at least this share of the cells is known.
KNOWN_SHARE = 0.25


@final
@dataclass(frozen=True)
class Tables:
    """The label tables of a run, under one vocabulary.

    Attributes:
        train: what is learned from.
        val: what epochs and thresholds are chosen on.
        test: what is measured on once; None if there is none.
        truth: complete labels of the training images, for diagnostics.
    """

    train: LabelTable
    val: LabelTable
    test: LabelTable | None = None
    truth: LabelTable | None = None

    def splits(self) -> dict[str, LabelTable]:
        """What there is of train, val and test."""
        named = {"train": self.train, "val": self.val, "test": self.test}
        return {name: table for name, table in named.items() if table is not None}


@final
@dataclass(frozen=True)
class Plan:
    """A run, ready to start.

    Attributes:
        config: what was asked for.
        resolved: what that means here.
        tables: without the images that cannot be read.
        report: what the check found; None where the tables come from a run that is resumed.
        objective: the method.
        net: the net, with its initial weights.
        grid: (height, width) of its maps.
        heatmap_bytes: what heatmaps take; 0 for methods without.
        cache: how views of the frozen trunk are cached; None where they are not.
        fixed: how the one view is cached on which a head is solved; None where no head is.
        notes: what was derived, in words.
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

    @property
    def baseline(self) -> bool:
        """Whether the run is compared with logistic regression: not where the trunk knows nothing, or on too much."""
        samples, classes = self.tables.train.matrix.shape
        known = self.resolved.weights != "none"
        return self.config.train.baseline and known and samples * classes <= MOST_CELLS

    @property
    def method(self) -> ObjectiveConfig:
        """The settings of the method, be it named or derived."""
        return settled(self.config.objective, self.resolved.method)

    def lines(self) -> Iterator[str]:
        """What was understood and what will be done, for people."""
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
            how = f"{stage.epochs} epochs, lr {stage.lr:g} {stage.schedule}, batch {r.batch_size}"
            yield f"stage {stage.name}: {how}, trains {trained}"
        yield from self.notes


def read_options(data: DataConfig) -> ReadOptions:
    """The reading options of a configuration."""
    return ReadOptions(**{field.name: getattr(data, field.name) for field in fields(ReadOptions)})


def read_one(data: DataConfig, path: str | None = None, complete: bool | None = None) -> LabelTable:
    """Read one label file: `data.train`, or another `path` the same way.

    Raises:
        DataError: the file is not what it should be.
    """
    options = read_options(data)
    if complete is not None:
        options = replace(options, complete=complete)
    images = None if data.images is None else Path(data.images)
    return read(Path(path or data.train), images=images, format=data.format, options=options)


def read_named(data: DataConfig) -> dict[str, LabelTable]:
    """What there is of train, val and test: from files of their own, or from the splits that the source names.

    Raises:
        DataError: a file is not what it should be, or names splits but no training images.
    """
    whole = read_one(data)
    named = {} if whole.split_names is None else whole.named_splits()
    tables = {"train": _training_part(whole, named)}
    for split, path in (("val", data.val), ("test", data.test)):
        if path:
            tables[split] = _part_of(read_one(data, path, data.val_complete), split, path)
            if split in named:
                said = f"{split}: {path} is used, and not the {len(named[split]):,} images of split {split!r}"
                tables["train"] = tables["train"].noting(said)
        elif split in named:
            tables[split] = named[split]
    return tables


def _training_part(whole: LabelTable, named: Mapping[str, LabelTable]) -> LabelTable:
    """The images to learn from: split "train"; or, of a source without one, all that are not for val or test.

    Images of further splits beside "train" are left out with a line each.
    """
    others = [name for name in named if name not in ("train", "val", "test")]
    if "train" in named:
        rest = {name: named[name] for name in others}
        lines = tuple(f"split {name!r}: {len(table):,} images left out" for name, table in rest.items())
        return _noting_rest(named["train"], rest, "is none of train, val, test", "train", lines)
    if not {"val", "test"} & set(named):
        return whole
    if not others:
        raise DataError(
            f"the labels name the splits {' and '.join(sorted(named))}, so that no image is left to learn from; call "
            "the split of those images 'train', or leave it empty."
        )
    names = np.array([str(name) for name in (whole.split_names or ())])
    kept = whole.subset(~np.isin(names, ("val", "test")))
    said = " and ".join(repr(name) for name in others)
    return kept.noting(f"no split is called 'train': the {len(kept):,} images of {said} are learned from")


def _part_of(table: LabelTable, split: str, path: str) -> LabelTable:
    """The images that a file of labels for `split` has for it: all, unless the file itself names splits.

    Raises:
        DataError: it names splits, and this is none of them.
    """
    named = {} if table.split_names is None else table.named_splits()
    if not any(named):
        return table
    sizes = ", ".join(f"{name or 'no split'} {len(part):,}" for name, part in named.items())
    if split not in named:
        raise DataError(
            f"{path} is given as --{split} and names splits itself ({sizes}), but none of them is {split!r}. Call the "
            f"split of the images that are meant {split!r}, or take the split names out of the file."
        )
    rest = {name: part for name, part in named.items() if name != split}
    said = f"{split}: of {path}, which names splits itself ({sizes}), only the images of split {split!r} are used"
    return _noting_rest(named[split], rest, f"of {path} is not {split}", split, (said,) if rest else ())


def _noting_rest(
    table: LabelTable, rest: Mapping[str, LabelTable], why: str, where: str, messages: tuple[str, ...]
) -> LabelTable:
    """The table with a line for each image of the other splits, which are left out."""
    excluded = [
        Excluded(str(key), f"split {name!r} {why}", where, "splits" if where == "train" else "excluded")
        for name, part in rest.items()
        for key in part.images.to_pylist()
    ]
    return replace(table, notes=table.notes + Notes((), tuple(excluded), messages))


def read_tables(data: DataConfig, seed: int) -> Tables:
    """Read all label files of a configuration and split off validation where none is given.

    Images with the same content stay on one side of that split.

    Raises:
        DataError: a file is not what it should be.
    """
    tables = read_named(data)
    if "val" not in tables:
        train, val = hold_out(tables["train"], data.val_share, seed, data.group_by)
        tables = {"train": train, "val": val, **{k: v for k, v in tables.items() if k != "train"}}
    tables = common_vocabulary(tables)
    truth = match_images(read_one(data, data.truth, complete=True), tables["train"]) if data.truth else None
    return Tables(tables["train"], tables["val"], tables.get("test"), truth)


def hold_out(
    whole: LabelTable, share: float = 0.1, seed: int = 0, group_by: str | None = None
) -> tuple[LabelTable, LabelTable]:
    """Split a share of the images off for validation; photos with the same content stay together.

    Args:
        whole: the labels.
        share: of the images, for validation.
        seed: of the split.
        group_by: regular expression; images whose first group agrees stay together, instead of those with the same
            content.

    Raises:
        DataError: the table has no folder of photos, or too few images.
    """
    groups = group_by or content_groups(whole)
    train, val = whole.split(val=share, seed=seed, groups=groups)
    together = "groups kept together" if group_by else "equal photos together"
    return train.noting(f"val: {len(val):,} of {len(whole):,} images held out (seed {seed}), {together}"), val


def make_plan(
    config: Config,
    *,
    tables: Tables | None = None,
    out: Path | None = None,
    cpu: bool = False,
    progress: ScanProgress | None = None,
) -> Plan:
    """Read, check and resolve.

    Args:
        config: the settings.
        tables: label tables that are there already (Python interface); None reads them.
        out: the run folder, whose disk must hold what is kept there; None: the working directory's.
        cpu: ignore GPUs.
        progress: told how many photos have been looked at.

    Raises:
        DataError: labels or photos that cannot be used.
        ConfigError: settings that do not fit the data or the machine.
    """
    if config.objective.name is not None:
        make_objective(config.objective)  # so that a value out of range is refused before anything is read
    tables = tables or read_tables(config.data, config.train.seed)
    _resolve(config, tables.train, cpu)  # likewise, before photos are looked at
    for split, table in tables.splits().items():
        if table.root is None:
            raise ConfigError(f"the {split} labels do not say where the photos are; give --images FOLDER.")
    found = check(tables.splits(), decode=config.data.decode, progress=progress)
    cleaned = _clean(tables, found)
    return derive(config, cleaned, found, out=out, cpu=cpu)


def derive(
    config: Config,
    tables: Tables,
    report: CheckReport | None,
    *,
    out: Path | None = None,
    cpu: bool = False,
    resolved: Resolved | None = None,
) -> Plan:
    """The part of `make_plan` that follows from the tables.

    A run that is resumed enters here with its own `resolved`: another machine must not change it. Its heatmaps had room
    when it began, and the file on disk is its own already.

    Raises:
        ConfigError: settings that do not fit the data or the machine.
    """
    train, going_on = tables.train, resolved is not None
    if not train.matrix.counts(Label.POSITIVE).any():
        raise ConfigError(
            "no training image has a positive label, so there is nothing to learn; look at `fewtags check`."
        )
    resolved = resolved or _resolve(config, train, cpu)
    if resolved.select == "best" and not can_rank(tables.val):
        raise ConfigError(
            'train.select = "best" needs a class with known positives and known negatives in the validation images, '
            'and there is none; use "auto" or "last".'
        )
    positives, why = positives_per_image(tables)
    settings = settled(config.objective, resolved.method)
    net = create_net(
        resolved.backbone, len(train.classes), weights=resolved.weights, size=resolved.size, seed=resolved.seed,
        drop_path=resolved.drop_path or None, output_stride=resolved.output_stride or None, head=head_plan(resolved),
    )  # fmt: skip
    grid = net.grid((resolved.size, resolved.size))
    objective = make_objective(
        settings, positives_per_image=positives, image_unknown=unknown_classes(train.matrix),
        patch_weights=even_patches(grid),
        scl_weight=0.0 if any(s.solved and not s.warmup for s in resolved.stages) else SCL_WEIGHT,
        warmup_loss="expected_negative" if resolved.stages[0].solved else "assume_negative",
    )  # fmt: skip
    notes = _place_notes(train, objective, settings, named=config.objective.name is not None)
    if isinstance(objective, ExpectedNegative) and objective.class_prior is None:
        notes += [why] if settings.model_dump()["positives_per_image"] is None else []
    for stage in resolved.stages:  # so that a stage that cannot begin is refused before the first one is trained
        freeze(net, stage.trainable)
    freeze(net, "all")
    _rehearse(objective, net, tables, grid, resolved)
    cache, fixed, limit = None, None, int(config.train.cache_gib * 2**30)
    features = (net.head.features_dim, *grid)
    if resolved.cached_views:
        cache = plan_cache(len(train), features, resolved.cached_views, limit, second_view=objective.needs_second_view)
        notes += _cache_note(cache, resolved.cached_views, config.train.cache_gib)
    if any(stage.solved for stage in resolved.stages):
        warmup = all(stage.warmup for stage in resolved.stages if stage.solved) and objective.solvable_warmup
        pooled = net.head.plan.commutes and (warmup or not objective.needs_maps)
        try:
            fixed = plan_cache(len(train), features, 1, limit, pooled=pooled)
        except ConfigError as error:
            reason = str(error).split(" Raise ")[0]
            raise ConfigError(f"{reason} Raise train.cache_gib, or train in steps (--preset views).") from None
        notes += _cache_note(fixed, 1, config.train.cache_gib)
    if config.train.preset in (None, SOLVED) and resolved.preset == IN_STEPS and config.train.stages is None:
        notes.insert(0, f"preset {IN_STEPS} was taken, since {why_in_steps(config, _facts(config, train, cpu))}")
    needed = 0
    if isinstance(objective, ExpectedNegative):
        if going_on:
            plan, kept = objective.heatmap_plan(), objective.gamma > 0
            needed = heatmap_bytes(len(train), len(train.classes), grid, plan) if kept else 0
        else:
            most = int(train.matrix.image_counts(Label.POSITIVE).max())
            needed = heatmap_memory(
                objective, len(train), len(train.classes), grid, out=out, most_positives=most, cpu=cpu
            )
        if needed:
            place = "on disk" if objective.heatmap_storage == "disk" else "in memory"
            size = f"{2 * grid[0]} x {2 * grid[1]} per image and class"
            notes.append(f"heatmaps: {needed / 1e6:,.1f} MB {place} ({size})")
    return Plan(config, resolved, tables, report, objective, net, grid, needed, cache, fixed, tuple(notes))


def _resolve(config: Config, train: LabelTable, cpu: bool) -> Resolved:
    return resolve(config, _facts(config, train, cpu))


def _facts(config: Config, train: LabelTable, cpu: bool) -> Facts:
    """Data, machine and method, as `resolve` wants to know them."""
    located = len(train.locations) > 0
    method = settled(config.objective, config.objective.name or UNNAMED_METHODS[located])
    objective = make_objective(method, scl_weight=0.0)  # where nobody asked for consistency, it can be left out
    found = facts(len(train), len(train.classes), cpu, located)
    return found.model_copy(
        update={
            "solvable": objective.solvable,
            "solvable_warmup": objective.solvable_warmup,
            "needs_maps": objective.needs_maps,
        }
    )


def _place_notes(train: LabelTable, objective: Objective, settings: ObjectiveConfig, *, named: bool) -> list[str]:
    """Why a method was taken that nobody named, and what becomes of points and boxes and of unknown classes."""
    counts = train.summary()
    where = (counts.points, counts.boxes)
    places = f"{counted(counts.points, 'point')} and {counted(counts.boxes, 'box', 'boxes')}"
    if not isinstance(objective, Supervised):
        ignored = f"{places} count as tags only: {settings.name} does not look at where; --method patchml does"
        return [ignored] if any(where) else []
    notes = []
    if not named:
        notes.append(f"patchml was taken because of {places}; without them: --method expected_negative")
    if settings.model_dump()["image_unknown"] is None:
        taken = {"ignore": "ignored", "negative": "taken as negative"}[objective.image_unknown or ""]
        known = f"{sum(counts.positives):,} positives and {sum(counts.negatives):,} negatives are known"
        notes.append(f"unknown classes of labelled photos are {taken}, since {known} (objective.image_unknown)")
    if settings.model_dump()["patch_weights"] is None and objective.patch_weights is not None and any(where):
        notes.append(
            f"a located patch weighs {objective.patch_weights[0]:g}, as all of a map (objective.patch_weights)"
        )
    return notes


def _rehearse(objective: Objective, net: SpatialNet, tables: Tables, grid: tuple[int, int], resolved: Resolved) -> None:
    """Let a copy of the method set itself up on a device without memory, so that it refuses now what it cannot do.

    Raises:
        ConfigError: settings of the method that do not fit the labels.
    """
    assert is_dataclass(objective)
    assert not isinstance(objective, type)
    copy = (
        replace(objective, heatmap_storage="memory") if isinstance(objective, ExpectedNegative) else replace(objective)
    )
    warmup = sum(stage.epochs for stage in resolved.stages if stage.warmup)
    epochs = sum(stage.epochs for stage in resolved.stages)
    nowhere, dim = torch.device("meta"), net.head.features_dim
    copy.setup(net, Problem(tables.train.matrix, grid, warmup, epochs, resolved.seed, device=nowhere, features_dim=dim))


def _cache_note(plan: CachePlan, wanted: int, gib: float) -> list[str]:
    """What is cached, if it is not all that was asked for."""
    if plan.views == wanted and plan.dtype == torch.float32:
        return []
    kind = str(plan.dtype).removeprefix("torch.")
    return [f"cached views: {plan.views} of {wanted} per image, in {kind}, since train.cache_gib allows {gib:g} GiB"]


def head_plan(resolved: Resolved) -> HeadPlan:
    """Kernel and pool of the head."""
    return HeadPlan(resolved.head_kernel, Pool(resolved.pool, resolved.pool_temperature, resolved.pool_weight))


def can_rank(table: LabelTable) -> bool:
    """Whether a class has known positives and known negatives, so that AP has a meaning."""
    counts = (table.matrix.counts(state) > 0 for state in (Label.POSITIVE, Label.NEGATIVE))
    return bool(np.logical_and(*counts).any())


def positives_per_image(tables: Tables) -> tuple[float, str]:
    """K of SCL eq. (3), and where it comes from: complete images, known positives and negatives, or a guess."""
    for name, table in (("val", tables.val), ("train", tables.train)):
        complete = np.flatnonzero(table.matrix.image_counts(Label.UNKNOWN) == 0)
        if len(complete) >= COMPLETE_IMAGES:
            mean = float(table.matrix.subset(complete).image_counts(Label.POSITIVE).mean())
            if mean > 0:
                return (
                    mean,
                    f"positives per image: {mean:.2f}, the mean of {len(complete):,} completely labelled {name} images",
                )
    if (mean := _positives_among_known(tables.train.matrix)) > 0:
        return mean, (
            f"positives per image: {mean:.2f}, the sum over classes of positives / known training cells, taking cells "
            "as blank at random. If blank cells are mostly negative, it is less: set objective.positives_per_image."
        )
    observed = tables.train.matrix.image_counts(Label.POSITIVE)
    annotated = float(observed[observed > 0].mean())
    guess = min(ASSUMED_POSITIVES * annotated, float(len(tables.train.classes)))
    return guess, (
        f"positives per image: {guess:.2f}, a guess ({ASSUMED_POSITIVES} x the {annotated:.2f} annotated), since fewer "
        f"than {COMPLETE_IMAGES} images are completely labelled. Count the classes in twenty photos and set "
        "objective.positives_per_image."
    )


def _positives_among_known(labels: LabelMatrix) -> float:
    """Sum over classes of positives / (positives + negatives); 0 where too little is known to say.

    Sparse verified labels are not blank at random (somebody chose the cells to ask about), so `KNOWN_SHARE` of all
    cells must be known. Classes with fewer than `COMPLETE_IMAGES` known cells are taken at the average ratio of the
    others, which must hold most annotations.
    """
    positives, negatives = labels.counts(Label.POSITIVE), labels.counts(Label.NEGATIVE)
    known = positives + negatives
    judged = (known >= COMPLETE_IMAGES) & (negatives > 0)
    covered = positives[judged].sum() / max(int(positives.sum()), 1)
    if known.sum() < KNOWN_SHARE * labels.shape[0] * labels.shape[1] or covered < 0.9:
        return 0.0
    return min(float((positives[judged] / known[judged]).sum() / covered), float(labels.shape[1]))


def _clean(tables: Tables, report: CheckReport) -> Tables:
    cleaned: Mapping[str, LabelTable] = report.clean(tables.splits())
    truth = None if tables.truth is None else match_images(tables.truth, cleaned["train"])
    return Tables(cleaned["train"], cleaned["val"], cleaned.get("test"), truth)
