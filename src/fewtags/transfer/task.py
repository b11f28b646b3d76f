"""Transfer tasks: training and test photos with single-label or multi-label classes."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal, final

import numpy as np
from numpy.typing import NDArray

from fewtags.errors import ConfigError, DataError
from fewtags.labels import Label
from fewtags.table.merge import common_vocabulary
from fewtags.table.table import LabelTable
from fewtags.text import quoted

TaskKind = Literal["single", "multi"]
"""One class per photo (softmax, top-1), or any number of classes (one decision per class, AP)."""

HELD_OUT = 0.2
"""Share of the training photos that are held out to choose settings, if the task has no validation photos."""


@final
@dataclass(frozen=True, eq=False)
class Task:
    """Training and test photos under one vocabulary.

    Attributes:
        name: data set, see `sets.SETS`; "" for other labels.
        val: photos to choose settings on; None: a share of the training photos, on which the final run trains as well.
    """

    name: str
    kind: TaskKind
    train: LabelTable
    test: LabelTable
    val: LabelTable | None = None

    def __post_init__(self) -> None:
        if self.kind == "single":
            targets(self.train, "training")
            targets(self.test, "test")

    @property
    def classes(self) -> int:
        """Number of classes, C."""
        return len(self.train.classes)

    @property
    def unlearned(self) -> tuple[str, ...]:
        """Classes that count on the test photos, but have no known positive or no known negative in training."""
        if self.kind == "single":
            return ()
        missing = _both_known(self.test) & ~_both_known(self.train)
        return tuple(self.train.classes.display[c] for c in np.flatnonzero(missing))

    def with_train(self, index: NDArray[np.int64]) -> Task:
        """Return the task with a subset of the training photos and the same test photos."""
        return replace(self, train=self.train.subset(index))

    def for_choice(self, seed: int) -> Task:
        """Return the task to choose settings on: it tests on `val`, or on held-out training photos.

        Raises:
            DataError: there are too few photos to hold any out, or AP is undefined on `val`.
        """
        if self.val is not None:
            if self.kind == "multi":
                _refuse_undefined(self.val, "validation")
            return replace(self, test=self.val, val=None)
        train, val = self.train.split(val=HELD_OUT, seed=seed)
        return replace(self, train=train, test=val)


def make_task(
    train: LabelTable, test: LabelTable, val: LabelTable | None = None, *, name: str = "", kind: TaskKind | None = None
) -> Task:
    """Make a task from tables, see `Task`.

    `kind` None is "single" if every training and test photo has exactly one known positive, else "multi".

    Raises:
        DataError: a table is empty, a photo of a single-label task has no class or several, AP is undefined on the
            test photos, or no class can be learned from the training photos.
    """
    tables = {"train": train, "test": test} | ({} if val is None else {"val": val})
    for split, table in tables.items():
        if not len(table):
            raise DataError(f"the {split} labels have no photos; give labels that have some.")
    tables = common_vocabulary(tables)
    if kind is None:
        ones = all((tables[s].matrix.image_counts(Label.POSITIVE) == 1).all() for s in ("train", "test"))
        kind = "single" if ones else "multi"
    task = Task(name, kind, tables["train"], tables["test"], tables.get("val"))
    if kind == "multi":
        _refuse_undefined(task.test, "test")
        if len(task.unlearned) == np.count_nonzero(_both_known(task.test)):
            raise DataError(
                "no class of the test has both known positives and known negatives in the training photos, so that "
                "there is nothing to tell apart; if classes that are not listed are absent, pass --complete."
            )
    return task


def _both_known(table: LabelTable) -> NDArray[np.bool_]:
    """Return which classes have known positives and known negatives, bool [C]."""
    positive, negative = (table.matrix.counts(state) > 0 for state in (Label.POSITIVE, Label.NEGATIVE))
    both: NDArray[np.bool_] = positive & negative
    return both


def _refuse_undefined(table: LabelTable, words: str) -> None:
    if not _both_known(table).any():
        raise DataError(
            f"no class has both known positives and known negatives in the {words} photos, so average precision is "
            "undefined; if classes that are not listed are absent, pass --complete."
        )


def targets(table: LabelTable, words: str) -> NDArray[np.int64]:
    """Return the one class of each photo, int64 [N]; `words` names the table in the error message.

    Raises:
        DataError: a photo has no class or several.
    """
    matrix = table.matrix
    counts = matrix.image_counts(Label.POSITIVE)
    if wrong := np.flatnonzero(counts != 1).tolist():
        raise DataError(
            f"{len(wrong):,} of {len(table):,} {words} photos do not have exactly one class, for example "
            f"{quoted(table.images[wrong[0]].as_py())} with {counts[wrong[0]]}; run the task as "
            "multi-label (--kind multi)."
        )
    classes: NDArray[np.int64] = matrix.classes[matrix.states == Label.POSITIVE].astype(np.int64)
    return classes


def sample_photos(
    table: LabelTable, *, share: float | None = None, per_class: int | None = None, seed: int = 0
) -> NDArray[np.int64]:
    """Sample training photos; return their positions in ascending order. The seed selects the subset.

    `share` is the share of all photos, at least one photo. `per_class` is the number of photos of each class, or all
    photos of a class that has fewer. In multi-label tables a photo that is sampled for one class keeps all its labels,
    so frequent classes get more photos.

    Raises:
        ConfigError: both or neither of `share` and `per_class` are given, or the value is out of range.
    """
    if (share is None) == (per_class is None):
        raise ConfigError("give either a share of the training photos or a number of photos per class.")
    rng = np.random.default_rng(seed)
    if share is not None:
        if not 0 < share <= 1:
            raise ConfigError(f"the share of the training photos must be above 0 and at most 1, got {share:g}.")
        return np.sort(rng.permutation(len(table))[: max(1, round(share * len(table)))])
    assert per_class is not None
    if per_class < 1:
        raise ConfigError(f"photos per class must be 1 or more, got {per_class}.")
    chosen = np.zeros(len(table), np.bool_)
    for c in range(len(table.classes)):
        positive = np.flatnonzero(table.matrix.columns(c, c + 1)[:, 0] == Label.POSITIVE)
        chosen[rng.permutation(positive)[:per_class]] = True
    return np.flatnonzero(chosen)
