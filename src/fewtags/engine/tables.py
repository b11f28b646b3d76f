"""Read the label tables of a run: train, val, test and the truth, under one vocabulary. Torch is not imported."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import final

import numpy as np

from fewtags.config.sections import Config, DataConfig, paths_of
from fewtags.engine.near_copies import copy_groups, leave_out_alike
from fewtags.errors import ConfigError, DataError
from fewtags.formats.answers import answers_path, last_step, read_answers
from fewtags.formats.class_names import name_classes
from fewtags.formats.options import ReadOptions
from fewtags.formats.several import read_sources, refuse_unknown_sources
from fewtags.table.answered import with_answers
from fewtags.table.exclusive import ClassGroups
from fewtags.table.merge import common_vocabulary, match_images
from fewtags.table.overlap import leave_out_measured
from fewtags.table.table import Excluded, LabelTable, Notes
from fewtags.text import counted, flag, reading_of


@final
@dataclass(frozen=True)
class Tables:
    """The label tables of a run, under one vocabulary.

    Attributes:
        train: labels for training.
        val: labels on which the epoch and the thresholds are chosen.
        test: labels for one final evaluation.
        truth: complete labels of the training images, for diagnostics.
        positives_per_image: K as the user gives it; None: derived from the labels.
    """

    train: LabelTable
    val: LabelTable
    test: LabelTable | None = None
    truth: LabelTable | None = None
    positives_per_image: float | None = None

    def splits(self) -> dict[str, LabelTable]:
        """Return the tables of train, val and test that exist, by name."""
        named = {"train": self.train, "val": self.val, "test": self.test}
        return {name: table for name, table in named.items() if table is not None}


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
    return kept.noting(f"no split is called 'train': training uses the {counted(len(kept), 'image')} of {said}")


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
