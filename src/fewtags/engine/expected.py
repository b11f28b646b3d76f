"""`fewtags estimate-k`: K and class priors with intervals, from complete photos, from known labels, or from tags."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, final

import numpy as np
from numpy.typing import NDArray

from fewtags.engine.label_counts import COMPLETE_IMAGES, KNOWN_SHARE
from fewtags.errors import ConfigError, DataError
from fewtags.files import write_text
from fewtags.formats.answers import read_answers
from fewtags.labels import ClassNames, Label
from fewtags.metrics.counts import FAR, Counts, estimate_counts, possible_mean, share_by_known
from fewtags.table.answered import answered, with_answers
from fewtags.table.keyed_random import content_hashes, seeded
from fewtags.table.merge import with_classes
from fewtags.table.table import LabelTable
from fewtags.table.vocabulary import match_classes
from fewtags.text import counted, some

Kind = Literal["complete", "partial", "tags"]
KINDS: tuple[Kind, ...] = ("complete", "partial", "tags")
SHOWN = 40
"""Classes that the text lists."""


@final
@dataclass(frozen=True, eq=False, kw_only=True)
class Estimate:
    """K, the mean number of classes in a photo, and the share of photos with each class.

    Attributes:
        classes: the vocabulary.
        kind: what the estimate comes from.
        mean: K.
        interval: (low, high) of K.
        prior: float64 [C]; nan where nothing is known.
        prior_interval: float64 [C, 2]; nan where there is none.
        meaning: what the interval is, for example "95 % interval".
        source: what was counted.
        notes: assumptions and doubts.
    """

    classes: ClassNames
    kind: Kind
    mean: float
    interval: tuple[float, float]
    prior: NDArray[np.float64]
    prior_interval: NDArray[np.float64]
    meaning: str
    source: str
    notes: tuple[str, ...] = ()

    def to_dict(self) -> dict[str, Any]:
        """Return plain values for JSON; classes of which nothing is known are left out."""
        rows = zip(self.classes.ids, self.prior.tolist(), self.prior_interval.tolist(), strict=True)
        known = [(c, share, limits) for c, share, limits in rows if np.isfinite(share)]
        return {
            "positives_per_image": self.mean,
            "interval": list(self.interval),
            "class_prior": {c: share for c, share, _ in known},
            "class_prior_interval": {c: limits for c, _, limits in known if np.isfinite(limits).all()},
            "kind": self.kind,
            "meaning": self.meaning,
            "source": self.source,
            "notes": list(self.notes),
        }

    def lines(self) -> Iterator[str]:
        """Describe the estimate for people."""
        low, high = self.interval
        yield f"K = {self.mean:.2f} classes in a photo; {self.meaning} {low:.2f} to {high:.2f}"
        yield f"from {self.source}"
        yield from self.notes
        order = np.argsort(-np.nan_to_num(self.prior, nan=-1), kind="stable")
        width = min(40, max([5, *map(len, self.classes.display)]))
        yield f"{'class':<{width}}  share of photos"
        for c in order[:SHOWN].tolist():
            yield f"{self.classes.display[c][:width]:<{width}}  {_share(self.prior[c], self.prior_interval[c])}"
        if len(order) > SHOWN:
            yield f"and {counted(len(order) - SHOWN, 'more class', 'more classes')}; --json prints all of them"

    def write(self, path: Path) -> None:
        """Write JSON that `fewtags train --expected` reads. Raises DiskError."""
        path.parent.mkdir(parents=True, exist_ok=True)
        write_text(path, json.dumps(self.to_dict(), ensure_ascii=False, indent=1) + "\n")


def _share(prior: float, limits: NDArray[np.float64]) -> str:
    if not np.isfinite(prior):
        return "unknown"
    if not np.isfinite(limits).all():
        return f"{100 * prior:5.1f} %"
    return f"{100 * prior:5.1f} %  ({100 * limits[0]:.1f} to {100 * limits[1]:.1f} %)"


def draw_photos(table: LabelTable, count: int, seed: int) -> LabelTable:
    """Return `count` random photos, a function of the seed and their names, in random order.

    A larger count has the photos of a smaller one first, so that a list can be continued.

    Raises:
        ConfigError: there are fewer photos.
    """
    if count > len(table):
        raise ConfigError(f"--ask {count:,}: there are only {counted(len(table), 'photo')}.")
    words = seeded(content_hashes(table.images.to_pylist()), seed)
    return table.subset(np.argsort(words, kind="stable")[:count])


def default_kind(table: LabelTable) -> Kind:
    """Return what the labels allow: complete photos, else known positives and negatives, else tags."""
    labels = table.matrix
    if (labels.image_counts(Label.UNKNOWN) == 0).sum() >= COMPLETE_IMAGES:
        return "complete"
    known = labels.counts(Label.POSITIVE) + labels.counts(Label.NEGATIVE)
    if known.sum() >= KNOWN_SHARE * labels.shape[0] * labels.shape[1] and labels.counts(Label.NEGATIVE).any():
        return "partial"
    return "tags"


def from_complete(labels: NDArray[np.int8], classes: ClassNames, population: int, *, drawn: bool) -> Estimate:
    """Estimate from photos that people labelled completely; cells about which they were unsure do not count.

    Args:
        labels: int8 [m, C], values of `Label`.
        classes: C.
        population: number of photos that the estimate is about.
        drawn: whether the photos were drawn at random by `draw_photos`.

    Raises:
        DataError: there are no photos, or a class is known in none of them.
    """
    if not len(labels):
        raise DataError("no photo is completely labelled; draw some with --ask 100, and fill them in.")
    found = estimate_counts(labels, population)
    _refuse_unknown(found, classes)
    unsure = int((labels == Label.UNKNOWN).sum())
    notes = [f"{counted(unsure, 'unsure cell')} left out"] if unsure else []
    every = len(labels) == population
    if not drawn and not every:
        notes.append(
            "assumes that these photos are a random part of all; if they were chosen, draw others with --ask 100."
        )
    whole = "" if every else f" of {population:,}"
    how = ", drawn at random" if drawn and not every else ""
    return _estimate(found, classes, "complete", f"{len(labels):,} completely labelled photos{whole}{how}", notes)


def from_partial(table: LabelTable) -> Estimate:
    """Estimate from known positives and negatives, taking cells as blank at random within each class.

    Raises:
        DataError: no class has a known negative.
    """
    labels, classes = table.matrix.dense(), table.classes
    positives, negatives = (labels == Label.POSITIVE).sum(0), (labels == Label.NEGATIVE).sum(0)
    judged = negatives > 0
    if not judged.any():
        raise DataError(
            "no class has a known negative, so positives are not blank at random and say nothing about the blank "
            "cells; use --from tags, or draw photos to label with --ask 100."
        )
    used = np.where(judged, labels, np.int8(Label.UNKNOWN))
    found = estimate_counts(used, len(table))
    low, high = possible_mean(labels)
    notes = [
        "assumes that within each class cells are blank at random: whether a class is in a photo had no influence on "
        "whether this was labelled.",
        f"without this assumption, K may be anything from {low:.2f} to {high:.2f}.",
    ]
    compared = share_by_known(used)
    if compared is not None:
        text = (
            f"{100 * compared.many:.0f} % of the known cells are positive in photos with many of them, and "
            f"{100 * compared.few:.0f} % in photos with few (same classes)"
        )
        doubt = abs(compared.z) > FAR
        notes.append(
            f"warning: {text}, so cells are not blank at random; draw photos to label completely with --ask 100."
            if doubt
            else f"{text}, which agrees with the assumption but does not prove it."
        )
    scale = 1.0
    if (alone := np.flatnonzero(~judged & (positives > 0))).size:
        scale = positives.sum() / max(int(positives[judged].sum()), 1)
        notes.append(
            f"{some([classes.display[c] for c in alone])}: positives without negatives are not blank at random; K is "
            f"multiplied by {scale:.2f}, their part of all positives, which is a guess."
        )
    known = int((used != Label.UNKNOWN).sum())
    share = known / max(labels.size, 1)
    source = f"{known:,} known cells of {found.images:,} photos ({100 * share:.0f} % of all cells)"
    return _estimate(found, classes, "partial", source, notes, scale)


def _estimate(
    found: Counts, classes: ClassNames, kind: Kind, source: str, notes: list[str], scale: float = 1.0
) -> Estimate:
    return Estimate(
        classes=classes,
        kind=kind,
        mean=min(found.mean * scale, len(classes)),
        interval=(min(found.interval[0] * scale, len(classes)), min(found.interval[1] * scale, len(classes))),
        prior=found.prior,
        prior_interval=found.prior_interval,
        meaning=f"{100 * found.level:.0f} % interval",
        source=source,
        notes=tuple(notes),
    )


def _refuse_unknown(found: Counts, classes: ClassNames) -> None:
    if (missing := np.flatnonzero(np.isnan(found.prior))).size:
        raise DataError(
            f"{some([classes.display[c] for c in missing])}: not answered in any photo. Fill in these columns, too, or "
            "leave the classes out of the labels."
        )


def was_drawn(table: LabelTable, sheet: LabelTable, seed: int) -> bool:
    """Whether the photos of a sheet are those that `draw_photos` draws with this seed."""
    count = len(sheet)
    return count <= len(table) and {*draw_photos(table, count, seed).images.to_pylist()} == {*sheet.images.to_pylist()}


def answered_photos(
    table: LabelTable, sheet: LabelTable, filled: LabelTable
) -> tuple[NDArray[np.int8], tuple[str, ...]]:
    """Return the answers about photos with a mark, int8 [m, C] in the classes of `table`, and notes.

    Args:
        table: the labels that the photos were drawn from.
        sheet: the filled list, with blanks as unknown.
        filled: the same list, with blanks as absent.

    Raises:
        DataError: a photo is not one of the table, a class is not known, or no photo has a mark.
    """
    rows = _rows_in(table, sheet)
    marked = np.flatnonzero(sheet.matrix.image_counts(Label.UNKNOWN) < len(sheet.classes))
    if not len(marked):
        raise DataError(
            "no photo of the answers has a mark; write 1 in the column of each class that a photo shows, or in the "
            "column none."
        )
    columns = with_classes(match_classes(filled, table.classes, where="answers", theirs="labels"), table.classes)
    labels = columns.matrix.rows(marked)
    notes = []
    if open_ := len(sheet) - len(marked):
        notes.append(
            f"{counted(open_, 'photo')} without a mark left out; that is right if they were not looked at, and wrong "
            "if they show none of the classes (write 1 in the column none)."
        )
    given = table.matrix.rows(rows[marked])
    if denied := int(((given == Label.POSITIVE) & (labels == Label.NEGATIVE)).sum()):
        notes.append(
            f"warning: {counted(denied, 'answer says', 'answers say')} absent where the labels say present; the "
            "answers count. Look for blanks that were forgotten."
        )
    return labels, tuple(notes)


def reviewed_photos(table: LabelTable, run: Path) -> tuple[NDArray[np.int8], tuple[str, ...]]:
    """Return the photos of a table that a review completed, int8 [m, C], and notes; see `formats.answers`.

    Raises:
        DataError: the run has no answers.
    """
    merged = with_answers({"train": table}, read_answers(run))["train"]
    cells = answered(merged)
    asked = (
        np.zeros(0, np.int64) if cells is None else np.flatnonzero(cells.image_counts(Label.UNKNOWN) < cells.shape[1])
    )
    labels = merged.matrix.rows(asked)[:, : len(table.classes)]  # classes that people added come last
    complete = (labels != Label.UNKNOWN).all(1)
    notes = []
    if part := int((~complete).sum()):
        notes.append(
            f"{counted(part, 'photo')} answered in part and left out; the page asks about one photo after the other "
            "with --order complete-images."
        )
    return labels[complete], tuple(notes)


def _rows_in(table: LabelTable, sheet: LabelTable) -> NDArray[np.int64]:
    position = {key: row for row, key in enumerate(table.images.to_pylist())}
    keys = sheet.images.to_pylist()
    if unknown := [key for key in keys if key not in position]:
        raise DataError(
            f"answers: {some(unknown, 3)} not among the {len(table):,} photos of the labels; the column image has the "
            "names that --ask wrote."
        )
    return np.array([position[key] for key in keys], np.int64)
