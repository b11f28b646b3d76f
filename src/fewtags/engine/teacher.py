"""The scores of a teacher for the training photos of a run: matched, described, and kept in the run folder."""

from __future__ import annotations

import hashlib
import os
from collections import defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, final

import numpy as np
from numpy.typing import NDArray

from fewtags.engine.checkpoint import BAD_ARRAY, write_array
from fewtags.engine.methods import method_class
from fewtags.errors import CheckpointError, ConfigError, DataError
from fewtags.formats.locate import folders_differ, key_of
from fewtags.formats.locate_end import PhotosBelow, find_by_end, is_address, loose
from fewtags.formats.scores import ScoreTable
from fewtags.labels import Label
from fewtags.objectives.table import METHODS
from fewtags.table.table import LabelTable
from fewtags.table.vocabulary import Matching
from fewtags.text import MOST_NAMED, counted, flag, quoted, some, suggest

TEACHER_FILE = "teacher.npy"
"""The scores in a run folder, float16 [N, C]."""
ROWS_AT_ONCE = 4096


@final
@dataclass(frozen=True, eq=False)
class Teacher:
    """Scores of a teacher for the cells of the training table.

    Attributes:
        values: float16 [N, C] in 0..1; NaN for no score.
        source: the file that they are from, or a word for scores in memory.
        notes: what was matched, and what was not.
    """

    values: NDArray[np.float16]
    source: str
    notes: tuple[str, ...] = ()

    @property
    def digest(self) -> str:
        """SHA-256 of the scores."""
        return hashlib.sha256(np.ascontiguousarray(self.values).data).hexdigest()


def refuse_teacher(method: str) -> None:
    """Raise ConfigError if a method cannot use a teacher; the message lists those that can."""
    if method_class(method).uses_teacher:
        return
    able = [name for name in METHODS if method_class(name).uses_teacher]
    raise ConfigError(
        f"{flag('teacher')}: the method {method} cannot use the scores of a teacher. These can: {', '.join(able)} "
        f"({flag('method', 'NAME')})."
    )


def match_scores(scores: ScoreTable, tables: Mapping[str, LabelTable]) -> Teacher:
    """Return the scores for the training photos; `tables` are those of train, val and test, under one vocabulary.

    Photos are found by their name relative to the folder of the labels or to the working directory, and else by the
    end of their path, as in label files; classes by id, or else as in `Matching`.

    Raises:
        DataError: no photo, or no class, matches; or two names of one photo have different scores.
    """
    train = tables["train"]
    matching = Matching.of(scores.classes, train.classes)
    column = np.full(len(scores.classes), -1, np.int64)
    for number, class_id in enumerate(scores.classes.ids):
        if (same := matching.pairs.get(class_id, class_id)) in train.classes:
            column[number] = train.classes.index(same)
    row, found_by_end = _rows(scores, tables)
    where = scores.where
    if not (column >= 0).any():
        raise DataError(
            f"{where}: none of its classes ({some(scores.classes.ids)}) is a class of the labels "
            f"({some(train.classes.ids)}){suggest(scores.classes.ids[0], train.classes.ids)}. Name the "
            "classes as in the labels."
        )
    if not (row >= 0).any():
        raise DataError(
            f"{where}: none of its photos ({some(scores.images, 2)}) is a training photo "
            f"({some([str(train.images[n]) for n in range(min(2, len(train)))], 2)}). Write the paths as in the "
            "labels, or complete ones."
        )
    image, class_ = row[scores.image], column[scores.class_]
    kept = (image >= 0) & (class_ >= 0)
    cell = image[kept] * len(train.classes) + class_[kept]
    values = np.full(len(train) * len(train.classes), np.nan, np.float16)
    values[cell] = scores.score[kept]
    if len(clash := np.flatnonzero(np.abs(values[cell].astype(np.float64) - scores.score[kept]) > 1e-3)):
        first = np.flatnonzero(kept)[clash[0]]
        same_row = [n for n, found in enumerate(row) if found == image[first]]
        same_class = [n for n, found in enumerate(column) if found == class_[first]]
        names = (
            [scores.images[n] for n in same_row] if len(same_row) > 1 else [scores.classes.ids[n] for n in same_class]
        )
        raise DataError(f"{where}: {some(names)} are the same, and have different scores; keep one of them.")
    matrix = values.reshape(len(train), len(train.classes))
    notes = [*_match_notes(scores, train, matching, column, row), *found_by_end, *_judgement(matrix, train)]
    return Teacher(matrix, where, tuple(f"teacher: {note}" for note in notes))


OTHER_SPLIT = -2
"""In rows: the photo is one to validate or to test on."""


def _rows(scores: ScoreTable, tables: Mapping[str, LabelTable]) -> tuple[NDArray[np.int64], list[str]]:
    """Return the row of each image in the training table, -1 or `OTHER_SPLIT`, and notes about photos found by ends."""
    place: dict[str, int] = {}
    keys: dict[str, int] = {}
    alike: dict[str, set[int]] = defaultdict(set)  # keys that differ in case or in the encoding of accents only
    for split, table in tables.items():
        folder = table.require_root().absolute().as_posix()
        for number, key in enumerate(table.images.to_pylist()):
            own = number if split == "train" else OTHER_SPLIT
            place.setdefault(os.path.normpath(f"{folder}/{key}"), own)
            alike[loose(key)].add(keys.setdefault(key, own))
    root, file = tables["train"].require_root(), Path(scores.where)
    found: dict[str, int] = {}
    for name in scores.images:
        key = key_of(name, file, root)
        direct = os.path.normpath(os.path.join(os.getcwd(), name))  # noqa: PTH109, PTH118 (a name may be an address)
        if key is not None and key in keys:
            found[name] = keys[key]
        elif direct in place:
            found[name] = place[direct]
        elif key is not None and len(same := alike.get(loose(key), set())) == 1:
            found[name] = next(iter(same))
    rest = [name for name in scores.images if name not in found]
    if len(rest) * 2 <= len(scores.images):
        rest = [name for name in rest if is_address(name)]
    notes: list[str] = []
    if rest:
        taken = {*found.values()}
        free = {path.lstrip("/"): own for path, own in place.items() if own == OTHER_SPLIT or own not in taken}
        ends, _ = find_by_end(rest, PhotosBelow.among(free))
        found |= {name: free[path] for name, path in ends.items()}
        used = {name: path for name, path in ends.items() if free[path] >= 0}
        if used:
            name, path = next(iter(used.items()))
            notes.append(
                f"{counted(len(used), 'photo')} found by the end of the path, for example {quoted(path)} for "
                f"{quoted(name)}"
            )
        if apart := [f"{name} = {path}" for name, path in used.items() if folders_differ(name, path)]:
            notes.append(
                f"warning: {counted(len(apart), 'photo was', 'photos were')} found in another folder than the name "
                f"says, {some(apart, 2)}; check"
            )
    return np.fromiter((found.get(name, -1) for name in scores.images), np.int64, len(scores.images)), notes


def _match_notes(
    scores: ScoreTable, train: LabelTable, matching: Matching, column: NDArray[np.int64], row: NDArray[np.int64]
) -> Iterator[str]:
    """Yield what was matched, and every mismatch."""
    photos, classes = np.unique(row[row >= 0]), np.unique(column[column >= 0])
    yield (
        f"{scores.where} has scores for {len(photos):,} of {counted(len(train), 'training photo')} and "
        f"{len(classes):,} of {counted(len(train.classes), 'class', 'classes')}"
    )
    yield from matching.notes("the labels").messages
    for old, alike in matching.unclear.items():
        yield (
            f"warning: its class {old!r} looks like {some(alike, MOST_NAMED)} of the labels and is not matched; if it "
            f"is the same class, rename it to {alike[0]!r} in the scores"
        )
    unused = [i for i, c in zip(scores.classes.ids, column, strict=True) if c < 0 and i not in matching.unclear]
    if unused:
        what = counted(len(unused), "class of it is not a class", "classes of it are not classes")
        yield f"{what} of the labels: {some(unused, MOST_NAMED)}"
    if len(classes) < len(train.classes):
        lacking = [i for n, i in enumerate(train.classes.ids) if n not in {*classes.tolist()}]
        yield f"warning: {counted(len(lacking), 'class has', 'classes have')} no score: {some(lacking, MOST_NAMED)}"
    if len(photos) < len(train):
        lacks = np.ones(len(train), np.bool_)
        lacks[photos] = False
        names = [str(train.images[int(n)]) for n in np.flatnonzero(lacks)[:5]]
        count = int(lacks.sum())
        rest = f" and {count - len(names):,} more" if count > len(names) else ""
        listed = ", ".join(map(repr, names)) + rest
        yield f"warning: {counted(count, 'training photo has', 'training photos have')} no score: {listed}"
    if measured := int((row == OTHER_SPLIT).sum()):
        yield f"{counted(measured, 'photo')} of it to validate or test on: not used"
    others = [name for name, number in zip(scores.images, row.tolist(), strict=True) if number == -1]
    if others:
        yield (
            f"{counted(len(others), 'photo of it is', 'photos of it are')} not among the photos of the labels: "
            + some(others)
        )


def _judgement(values: NDArray[np.float16], train: LabelTable) -> Iterator[str]:
    """Yield the mean scores of annotated positives and of unknown cells; warn if the first is not above the second."""
    sums, counts = np.zeros(2), np.zeros(2)
    for first in range(0, len(values), ROWS_AT_ONCE):
        index = np.arange(first, min(first + ROWS_AT_ONCE, len(values)))
        part, labels = values[index].astype(np.float64), train.matrix.rows(index)
        for n, state in enumerate((Label.POSITIVE, Label.UNKNOWN)):
            chosen = part[(labels == state) & ~np.isnan(part)]
            sums[n] += chosen.sum()
            counts[n] += len(chosen)
    unknown = int(train.matrix.image_counts(Label.UNKNOWN).sum())
    if not unknown:
        yield "warning: no label of the training photos is unknown, so the teacher has no effect"
        return
    yield f"{counts[1] / unknown:.0%} of the unknown labels have a score"
    if counts.all():
        positive, others = sums / counts
        yield f"mean score of annotated positives {positive:.3f}, of unknown labels {others:.3f}"
        if positive <= others:
            yield (
                "warning: annotated positives do not have higher scores than unknown labels; check that the photos and "
                "classes of the scores are those of the labels"
            )


# --- in a run folder


def teacher_record(teacher: Teacher | None) -> dict[str, Any] | None:
    """Return what the record of a run says about its teacher."""
    return None if teacher is None else {"source": teacher.source, "sha256": teacher.digest}


def save_teacher(teacher: Teacher | None, out: Path) -> None:
    """Write the scores into a run folder."""
    if teacher is not None:
        write_array(out / TEACHER_FILE, teacher.values)


def load_teacher(out: Path, environment: Mapping[str, Any]) -> Teacher | None:
    """Return the scores of a run, as a memory map; None if it has no teacher.

    Raises:
        CheckpointError: they are missing, damaged, or not those that the run began with.
    """
    record = environment.get("teacher")
    if record is None:
        return None
    path = out / TEACHER_FILE
    try:
        teacher = Teacher(np.load(path, mmap_mode="r", allow_pickle=False), str(record["source"]))
        same = teacher.digest == record["sha256"]
    except (*BAD_ARRAY, KeyError, TypeError) as error:
        raise CheckpointError(f"{path} is damaged ({error}); restore it, or start a new run.") from None
    if not same:
        raise CheckpointError(f"{path} has changed since the run began; restore it, or start a new run.")
    return teacher
