"""Counts over a label table: classes, states, contradictions."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, final

import numpy as np
import pyarrow.compute as pc
from numpy.typing import NDArray

from fewtags.labels import ClassNames, Label
from fewtags.text import counted

if TYPE_CHECKING:
    from fewtags.table.table import LabelTable

LabelKind = Literal["single positive", "positives only", "partial", "full", "unlabelled"]

_LISTED = 20
"""The most contradictions listed, and the most classes at each end of the printed table."""


@final
@dataclass(frozen=True)
class Contradiction:
    """A cell with a positive and a negative fact; it counts as unknown."""

    image: str  # the key
    class_id: str
    positive: tuple[str, ...]  # sources that say so
    negative: tuple[str, ...]
    inside: bool  # whether a single source has both facts

    @property
    def sources(self) -> tuple[str, ...]:
        """All sources of the cell."""
        return tuple(dict.fromkeys((*self.positive, *self.negative)))

    def __str__(self) -> str:
        if self.inside:
            return f"{self.image}: {self.class_id} is both positive and negative ({', '.join(self.sources)})"
        return (
            f"{self.image}: {self.class_id} is positive in {' and '.join(self.positive)}, negative in "
            f"{' and '.join(self.negative)}"
        )


@final
@dataclass(frozen=True, kw_only=True)
class Summary:
    """Counts over a label table.

    Attributes:
        images: N.
        classes: the vocabulary.
        kind: "unlabelled": no cell is known; "full": every cell is known; "single positive": no negative is known and
            no image has more than one positive; "positives only": no negative is known; "partial": anything else.
        positives: number of images in which each class is positive, C numbers.
        negatives: likewise for negative; implied negatives are included.
        unknowns: likewise for unknown.
        without_label: images without a known cell.
        without_positive: images without a positive, including those without any label.
        points_of: points of each class, C numbers.
        boxes_of: boxes of each class, C numbers.
        sources: facts per source.
        contradictions: cells with a positive and a negative fact; they count as unknown.
        contradictions_inside: contradictions inside one source.
        contradicting: the first 20 contradictions, those inside one source first.
    """

    images: int
    classes: ClassNames
    kind: LabelKind
    positives: tuple[int, ...]
    negatives: tuple[int, ...]
    unknowns: tuple[int, ...]
    without_label: int
    without_positive: int
    points_of: tuple[int, ...]
    boxes_of: tuple[int, ...]
    sources: Mapping[str, int]
    contradictions: int
    contradictions_inside: int
    contradicting: tuple[Contradiction, ...]

    @property
    def points(self) -> int:
        """All points."""
        return sum(self.points_of)

    @property
    def boxes(self) -> int:
        """All boxes."""
        return sum(self.boxes_of)

    @property
    def positives_per_image(self) -> float:
        """Mean over all images, including those without a positive."""
        return sum(self.positives) / self.images if self.images else 0.0

    def __str__(self) -> str:
        cells = max(self.images * len(self.classes), 1)
        counts = {"positive": sum(self.positives), "negative": sum(self.negatives), "unknown": sum(self.unknowns)}
        lines = [
            f"{counted(self.images, 'image')}, {counted(len(self.classes), 'class', 'classes')}: {self.kind}",
            "labels: " + ", ".join(f"{n:,} {state} ({n / cells:.1%})" for state, n in counts.items()),
            f"positives per image: {self.positives_per_image:.2f} on average; "
            f"{counted(self.without_positive, 'image has', 'images have')} none, "
            f"{counted(self.without_label, 'has', 'have')} no label at all",
            f"locations: {counted(self.points, 'point')}, {counted(self.boxes, 'box', 'boxes')}",
            "facts per source: " + (", ".join(f"{s or '(unnamed)'} {n:,}" for s, n in self.sources.items()) or "none"),
        ]
        if self.contradictions:
            example = self.contradicting[0]
            lines.append(f"contradictions, counted as unknown: {self.contradictions:,}, such as {example}")
        return "\n".join(lines + self._class_lines())

    def _class_lines(self) -> list[str]:
        shown, left_out = self.listed_classes()
        names = [name if len(name) <= 40 else f"{name[:37]}..." for name in self.classes.display]
        width = max([5, *(len(names[c]) for c in shown)])
        lines = [f"{'class':<{width}}  {'positive':>11}  {'negative':>11}  {'unknown':>11}"] if shown else []
        for c in shown:
            counts = (self.positives[c], self.negatives[c], self.unknowns[c])
            lines.append(f"{names[c]:<{width}}" + "".join(f"  {n:>11,}" for n in counts))
        if left_out:
            lines.insert(1 + _LISTED, left_out)
        return lines

    def listed_classes(self) -> tuple[list[int], str]:
        """Return the classes to print, most positives first; and the line to print in the middle for the others."""
        order = sorted(range(len(self.classes)), key=lambda c: (-self.positives[c], c))
        left_out = len(order) - 2 * _LISTED
        if left_out <= 1:
            return order, ""
        return order[:_LISTED] + order[-_LISTED:], f"... {left_out:,} more classes"


def summarise(table: LabelTable) -> Summary:
    """Count the labels of a table."""
    labels = table.matrix
    positives, negatives, unknowns = (
        tuple(labels.counts(s).tolist()) for s in (Label.POSITIVE, Label.NEGATIVE, Label.UNKNOWN)
    )
    positive_images, unknown_cells = labels.image_counts(Label.POSITIVE), labels.image_counts(Label.UNKNOWN)
    located = table.facts.filter(table.facts["x0"].is_valid())
    x0, y0, x1, y1 = (located[corner].to_numpy() for corner in ("x0", "y0", "x1", "y1"))
    is_point, class_ = (x0 == x1) & (y0 == y1), located["class"].to_numpy()
    points, boxes = (
        tuple(np.bincount(class_[kind], minlength=len(table.classes)).tolist()) for kind in (is_point, ~is_point)
    )
    counts = table.facts["source"].cast("string").value_counts()
    sources = zip(counts.field("values").to_pylist(), counts.field("counts").to_pylist(), strict=True)
    contradicting, inside = _contradicting(table)
    return Summary(
        images=len(table),
        classes=table.classes,
        kind=_kind(sum(positives), sum(negatives), sum(unknowns), int(positive_images.max(initial=0))),
        positives=positives,
        negatives=negatives,
        unknowns=unknowns,
        without_label=int((unknown_cells == len(table.classes)).sum()),
        without_positive=int((positive_images == 0).sum()),
        points_of=points,
        boxes_of=boxes,
        sources=dict(sorted(sources, key=lambda pair: (-pair[1], pair[0]))),
        contradictions=int((labels.states == Label.UNKNOWN).sum()),
        contradictions_inside=inside,
        contradicting=contradicting,
    )


def _kind(positives: int, negatives: int, unknowns: int, most: int) -> LabelKind:
    if not positives + negatives:
        return "unlabelled"
    if not unknowns:
        return "full"
    if negatives:
        return "partial"
    return "single positive" if most == 1 else "positives only"


def _contradicting(table: LabelTable) -> tuple[tuple[Contradiction, ...], int]:
    """The first contradictions, and the number of contradictions inside one source."""
    labels = table.matrix
    entries = np.flatnonzero(labels.states == Label.UNKNOWN)
    owner = np.searchsorted(labels.indptr, entries, side="right") - 1
    cells = owner.astype(np.int64) * len(table.classes) + labels.classes[entries]
    inside = np.isin(cells, _inside(table, cells))
    found = []
    for n in np.argsort(~inside, kind="stable")[:_LISTED]:
        image, class_ = int(owner[n]), int(labels.classes[entries[n]])
        cell = pc.and_(pc.equal(table.facts["image"], image), pc.equal(table.facts["class"], class_))
        facts = table.facts.filter(cell)
        said = zip(facts["state"].to_pylist(), facts["source"].to_pylist(), strict=True)
        by_state: dict[int, dict[str, None]] = {Label.POSITIVE: {}, Label.NEGATIVE: {}}
        for state, source in said:
            by_state[state][source] = None
        found.append(
            Contradiction(
                image=str(table.images[image].as_py()),
                class_id=table.classes.ids[class_],
                positive=tuple(by_state[Label.POSITIVE]),
                negative=tuple(by_state[Label.NEGATIVE]),
                inside=bool(inside[n]),
            )
        )
    return tuple(found), int(inside.sum())


def _inside(table: LabelTable, cells: NDArray[np.int64]) -> NDArray[np.int64]:
    """Select the cells (image * C + class) with a positive and a negative fact of the same source."""
    cell, source = table.fact_cells, table.facts["source"].unify_dictionaries().combine_chunks()
    rows = np.flatnonzero(np.isin(cell, cells))
    if not len(rows):
        return cells[:0]
    cell_source = cell[rows] * len(source.dictionary) + source.indices.to_numpy()[rows]
    positive = table.facts["state"].to_numpy()[rows] == Label.POSITIVE
    both: NDArray[np.bool_] = np.isin(cell_source, cell_source[positive]) & np.isin(cell_source, cell_source[~positive])
    found: NDArray[np.int64] = cell[rows[both]]
    return found
