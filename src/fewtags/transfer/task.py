"""What a transfer task is: photos to learn from, photos to test on, and whether a photo has one class or several."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal, final

import numpy as np
from numpy.typing import NDArray

from fewtags.errors import ConfigError, DataError
from fewtags.labels import Label
from fewtags.table.merge import common_vocabulary
from fewtags.table.table import LabelTable

Kind = Literal["single", "multi"]
"""One class per photo (softmax, top-1), or any number of them (one decision per class, AP)."""

HELD_OUT = 0.2
"""Share of the training photos that settings are chosen on where there are no photos for that."""


@final
@dataclass(frozen=True, eq=False)
class Task:
    """Photos to learn from and to test on, under one vocabulary.

    Attributes:
        name: of the data set, see `sets.SETS`; "" for other labels.
        kind: one class per photo, or any number.
        train: what is learned from.
        test: what is measured on.
        val: what settings are chosen on; None: a share of the training photos, which are learned from in the end.
    """

    name: str
    kind: Kind
    train: LabelTable
    test: LabelTable
    val: LabelTable | None = None

    def __post_init__(self) -> None:
        tables = {"training": self.train, "test": self.test}
        if self.kind == "single":
            for words, table in tables.items():
                targets(table, words)

    @property
    def classes(self) -> int:
        """C."""
        return len(self.train.classes)

    def with_train(self, index: NDArray[np.int64]) -> Task:
        """The same with fewer photos to learn from; the test stays as it is."""
        return replace(self, train=self.train.subset(index))

    def for_choice(self, seed: int) -> Task:
        """The task that settings are chosen on: its test is `val`, or photos that are held out of training.

        Raises:
            DataError: too few photos to hold any out.
        """
        if self.val is not None:
            return replace(self, test=self.val, val=None)
        train, val = self.train.split(val=HELD_OUT, seed=seed)
        return replace(self, train=train, test=val)


def make_task(
    train: LabelTable,
    test: LabelTable,
    val: LabelTable | None = None,
    *,
    name: str = "",
    kind: Kind | None = None,
) -> Task:
    """A task from tables.

    Args:
        train: what is learned from.
        test: what is measured on.
        val: what settings are chosen on.
        name: of the data set.
        kind: None: single if every photo for training and testing has exactly one known positive, else multi.

    Raises:
        DataError: no photos, single classes that are not single, or tests that AP has no meaning on.
    """
    tables = {"train": train, "test": test} | ({} if val is None else {"val": val})
    for split, table in tables.items():
        if not len(table):
            raise DataError(f"there are no photos for {split}; give labels that have some.")
    tables = common_vocabulary(tables)
    if kind is None:
        ones = all((tables[s].matrix.image_counts(Label.POSITIVE) == 1).all() for s in ("train", "test"))
        kind = "single" if ones else "multi"
    task = Task(name, kind, tables["train"], tables["test"], tables.get("val"))
    if kind == "multi":
        both = [task.test.matrix.counts(state) > 0 for state in (Label.POSITIVE, Label.NEGATIVE)]
        if not (both[0] & both[1]).any():
            raise DataError(
                "no class has both known positives and known negatives in the test photos, so average precision has no "
                "meaning; where what is not named is absent, read the labels with --complete."
            )
    return task


def targets(table: LabelTable, words: str) -> NDArray[np.int64]:
    """int64 [N]: the one class of each photo.

    Args:
        table: the labels.
        words: what they are for, for the message.

    Raises:
        DataError: a photo with no class or several.
    """
    matrix = table.matrix
    counts = matrix.image_counts(Label.POSITIVE)
    if wrong := np.flatnonzero(counts != 1).tolist():
        raise DataError(
            f"{len(wrong):,} of {len(table):,} {words} photos do not have exactly one class, for example "
            f"{table.images[wrong[0]].as_py()!r} with {counts[wrong[0]]}; take the task as multi-label (--kind multi)."
        )
    classes: NDArray[np.int64] = matrix.classes[matrix.states == Label.POSITIVE].astype(np.int64)
    return classes


def few_photos(
    table: LabelTable, *, share: float | None = None, per_class: int | None = None, seed: int = 0
) -> NDArray[np.int64]:
    """Positions of a few training photos, ascending; another seed, other photos.

    Args:
        table: what they are drawn from.
        share: of all photos, at least one, at random.
        per_class: photos of each class; all of a class that has fewer. In multi-label sets a photo that is drawn for
            one class keeps all its labels, so that frequent classes get more than that many.
        seed: of the draw.

    Raises:
        ConfigError: both or neither of the two, or out of range.
    """
    if (share is None) == (per_class is None):
        raise ConfigError("give a share of the training photos or a number of photos per class, one of the two.")
    rng = np.random.default_rng(seed)
    if share is not None:
        if not 0 < share <= 1:
            raise ConfigError(f"a share of the training photos is above 0 and at most 1, got {share:g}.")
        return np.sort(rng.permutation(len(table))[: max(1, round(share * len(table)))])
    assert per_class is not None
    if per_class < 1:
        raise ConfigError(f"photos per class must be 1 or more, got {per_class}.")
    chosen = np.zeros(len(table), np.bool_)
    for c in range(len(table.classes)):
        positive = np.flatnonzero(table.matrix.columns(c, c + 1)[:, 0] == Label.POSITIVE)
        chosen[rng.permutation(positive)[:per_class]] = True
    return np.flatnonzero(chosen)
