"""Split label tables: seeded, grouped, and stratified by class, rarest classes first.

The stratification is that of Sechidis, Tsoumakas & Vlahavas (On the Stratification of Multi-Label Data, ECML 2011),
done per class at once instead of per image, and with these differences:

- Counts of a class are rounded so that the parts keep their share of *images*. (The original gives each remainder to
  the part that needs the class most: a 10 % part stays empty if all classes have fewer than 5 images.)
- A surplus from rarer classes is compensated by at most the fair share of a part, for the same reason.
- The first part gets the first image of every class, so that every class can be learned.
- Groups are kept whole; a class is assigned from its largest group to its smallest.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, final

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from fewtags.errors import ConfigError, DataError
from fewtags.labels import Label, LabelMatrix
from fewtags.table.keyed_random import content_hashes, seeded
from fewtags.text import counted, flag, quoted

if TYPE_CHECKING:
    from fewtags.table.table import LabelTable

Groups = Sequence[str] | Sequence[int] | NDArray[Any] | str | Callable[[str], str | int | None]
"""N group ids, or a regular expression on image keys, or a function of an image key."""


def split_table(
    table: LabelTable,
    fractions: Mapping[str, float],
    *,
    seed: int = 0,
    groups: Groups | None = None,
    stratify: bool = True,
) -> dict[str, LabelTable]:
    """Split a table into named parts; every image is in exactly one of them, in the original order.

    The result depends on the seed, the image keys and the labels, not on the order of the images.

    Args:
        table: the table to split.
        fractions: share of the images for each part, in (0, 1), with sum 1. The first part is for training: every class
            with a positive has one there.
        seed: selects the split.
        groups: images to keep together (one patient, one camera, one video): N group ids; or a regular expression on
            the image key, whose groups (or whole match) name the group; or a function of the image key.
        stratify: give each part its share of each class's positives, rarest classes first.

    Raises:
        ConfigError: fractions outside (0, 1) or whose sum is not 1; an invalid regular expression.
        DataError: groups that do not fit the images; an empty part.
    """
    _check(fractions)
    ids, names = (np.arange(len(table)), table.images.to_pylist()) if groups is None else _group_ids(table, groups)
    units = _Units.of(table.matrix, ids, seeded(content_hashes(names), seed), stratify)
    part = _Assigner(units, np.array(list(fractions.values()))).assign()[ids]
    parts = {name: table.subset(part == number) for number, name in enumerate(fractions)}
    if empty := [name for name in parts if not len(parts[name])]:
        what = f"{len(table):,} images" + ("" if groups is None else f" in {len(names):,} groups")
        cure = "give it a larger share (data.val_share), label more images, or name the images yourself "
        cure += f"({flag('val', 'LABELS')})"
        if stratify:
            cure += ". The first part keeps one image of every class, so few images of many classes cannot be split"
        share = fractions[empty[0]]
        raise DataError(f"{what} leave no image for {empty[0]!r} with its share of {share:g}; {cure}.")
    how = " stratified by class," if stratify else ""
    how += f" {len(names):,} groups kept whole," if groups is not None else ""
    sizes = ", ".join(f"{name} {len(p):,}" for name, p in parts.items())
    return {
        name: p.noting(f"split of {len(table):,} images,{how} seed {seed}: {sizes}", *_absent(table, name, p))
        for name, p in parts.items()
    }


def _group_ids(table: LabelTable, groups: Groups) -> tuple[NDArray[np.int64], list[str]]:
    """Number the groups: int64 [N], position of each image's group in the list of names; and the names."""
    keys: list[str] = table.images.to_pylist()
    name = _group_name(groups) if isinstance(groups, str) else groups
    found: Sequence[str | int | None] | NDArray[Any] = [name(key) for key in keys] if callable(name) else name
    if len(found) != len(keys):
        raise DataError(f"{len(found):,} group ids for {len(keys):,} images; give one id per image.")
    try:
        encoded = pa.array(found, from_pandas=True).dictionary_encode()
    except pa.ArrowException as error:
        raise DataError(f"group ids must be all text or all whole numbers ({error}).") from error
    if encoded.null_count:
        first = keys[int(np.argmax(encoded.is_null().to_numpy(zero_copy_only=False)))]
        what = f"data.group_by = {groups!r} does not match" if isinstance(groups, str) else "there is no group for"
        raise DataError(
            f"{what} {encoded.null_count:,} of {len(keys):,} image keys (the first: {quoted(first)}). "
            "Every image needs a group; give a single image a group of its own."
        )
    return encoded.indices.to_numpy().astype(np.int64), [str(name) for name in encoded.dictionary.to_pylist()]


def _group_name(pattern: str) -> Callable[[str], str | None]:
    """The function from an image key to the name of its group."""
    try:
        search = re.compile(pattern).search
    except re.error as error:
        raise ConfigError(f"data.group_by = {pattern!r} is not a regular expression: {error}.") from error

    def name(key: str) -> str | None:
        if (match := search(key)) is None:
            return None
        return "\0".join(part or "" for part in match.groups()) if match.re.groups else match[0]

    return name


def _check(fractions: Mapping[str, float]) -> None:
    if len(fractions) < 2:
        raise ConfigError(f"cannot split into {dict(fractions)}; give at least two shares, such as train=0.9, val=0.1.")
    for name, share in fractions.items():
        if not 0 < share < 1:
            expected = "expected a share above 0 and below 1 (0.1 for a tenth)"
            raise ConfigError(f"the share of {name!r} is {share}; {expected}.")
    if abs((total := sum(fractions.values())) - 1) > 1e-6:
        raise ConfigError(f"the shares {dict(fractions)} add up to {total:g}; they must add up to 1.")


def _absent(table: LabelTable, name: str, part: LabelTable) -> list[str]:
    gone = np.flatnonzero((table.matrix.counts(Label.POSITIVE) > 0) & (part.matrix.counts(Label.POSITIVE) == 0))
    some = ", ".join(table.classes.display[i] for i in gone[:5]) + (", ..." if len(gone) > 5 else "")
    classes = counted(len(gone), "class that has", "classes that have")
    return [f"{name}: no positive of {classes} positives elsewhere ({some})"] if some else []


@final
@dataclass(frozen=True, kw_only=True)
class _Units:
    """Units that are assigned as a whole: images, or groups of images."""

    size: NDArray[np.int64]  # [U], number of images
    draw: NDArray[np.uint64]  # [U], random order
    classes: NDArray[np.int64]  # [E], classes of the positives of each unit, sorted by unit
    weight: NDArray[np.int64]  # [E], number of images of the unit with this positive
    indptr: NDArray[np.int64]  # [U + 1], first entry of each unit
    classes_count: int

    @classmethod
    def of(cls, labels: LabelMatrix, ids: NDArray[np.int64], draw: NDArray[np.uint64], stratify: bool) -> _Units:
        c = labels.shape[1]
        row = np.repeat(ids, np.diff(labels.indptr))
        chosen = labels.states == Label.POSITIVE if stratify else np.zeros(len(row), np.bool_)
        cells, weight = np.unique(row[chosen] * c + labels.classes[chosen], return_counts=True)
        return cls(
            size=np.bincount(ids, minlength=len(draw)),
            draw=draw,
            classes=cells % max(c, 1),
            weight=weight,
            indptr=np.searchsorted(cells, np.arange(len(draw) + 1) * c),
            classes_count=c,
        )

    def entries(self, units: NDArray[np.int64]) -> NDArray[np.int64]:
        """Positions of the entries of `units`."""
        start, count = self.indptr[units], self.indptr[units + 1] - self.indptr[units]
        positions: NDArray[np.int64] = np.repeat(start - np.cumsum(count) + count, count) + np.arange(count.sum())
        return positions


@final
class _Assigner:
    """Assigns units to K parts, and counts images and classes of each part."""

    def __init__(self, units: _Units, shares: NDArray[np.float64]) -> None:
        self.units = units
        self.shares = shares
        self.part = np.full(len(units.size), -1, np.int64)
        self.images = np.zeros(len(shares), np.int64)
        self.given = np.zeros((len(shares), units.classes_count), np.int64)
        self.total = np.bincount(units.classes, weights=units.weight, minlength=units.classes_count).astype(np.int64)
        self.left = self.total.copy()

    def assign(self) -> NDArray[np.int64]:
        """Part of each unit, int64 [U]."""
        unit = np.repeat(np.arange(len(self.part)), np.diff(self.units.indptr))
        order = np.lexsort((self.units.draw[unit], -self.units.weight, self.units.classes))
        unit, weight = unit[order], self.units.weight[order]
        begin = np.searchsorted(self.units.classes[order], np.arange(self.units.classes_count + 1))
        never = np.iinfo(np.int64).max
        while self.left.any():
            rarest = int(np.where(self.left > 0, self.left, never).argmin())
            members = slice(begin[rarest], begin[rarest + 1])
            free = self.part[unit[members]] < 0
            self._assign_class(rarest, unit[members][free], weight[members][free])
        rest = np.flatnonzero(self.part < 0)
        rest = rest[np.lexsort((self.units.draw[rest], -self.units.size[rest]))]
        self._assign_runs(rest, self.units.size[rest], self.shares * self.units.size.sum() - self.images)
        return self.part

    def _assign_class(self, class_: int, units: NDArray[np.int64], weight: NDArray[np.int64]) -> None:
        if not self.given[0, class_]:
            self._give(units[:1], 0)
            units, weight = units[1:], weight[1:]
        # A surplus from rarer classes is compensated by at most the fair share: a part cannot get less than nothing,
        # and a larger correction in the other direction would make small parts too large.
        fair = self.shares * weight.sum()
        correction = self.shares * self.total[class_] - self.given[:, class_] - fair
        excess = (np.abs(correction) / np.maximum(fair, 1e-9)).max()
        self._assign_runs(units, weight, fair + correction / max(excess, 1.0))

    def _assign_runs(self, units: NDArray[np.int64], weight: NDArray[np.int64], want: NDArray[np.float64]) -> None:
        """Assign units of descending weight, all units of one weight at a time."""
        for run in np.split(np.arange(len(units)), np.flatnonzero(np.diff(weight)) + 1):
            if not len(run):
                continue
            each = int(weight[run[0]])
            exact = _fill(want, len(run), each)
            whole = np.floor(exact + 1e-9).astype(np.int64)
            taken = units[run]
            for part, count in enumerate(whole):
                self._give(taken[:count], part)
                taken = taken[count:]
            rest = exact - whole
            for unit in taken:
                # A remaining unit goes to the part that needs most of it and lacks most images.
                size = self.units.size[unit]
                short = self.shares * (self.images.sum() + size) - self.images + rest * size
                part = int(np.where(rest > 1e-9, short.round(9), -np.inf).argmax())
                self._give(np.array([unit]), part)
                whole[part] += 1
                rest[part] = 0
            want = want - whole * each

    def _give(self, units: NDArray[np.int64], part: int) -> None:
        self.part[units] = part
        self.images[part] += self.units.size[units].sum()
        entries = self.units.entries(units)
        np.add.at(self.given[part], self.units.classes[entries], self.units.weight[entries])
        np.subtract.at(self.left, self.units.classes[entries], self.units.weight[entries])


def _fill(want: NDArray[np.float64], count: int, each: int) -> NDArray[np.float64]:
    """Distribute `count` units of weight `each` to parts without a surplus, as fractions; minimise the largest need."""
    falling = np.sort(want)[::-1]
    level = (np.cumsum(falling) - count * each) / np.arange(1, len(want) + 1)
    # The largest number of parts whose need is above the common level after filling.
    parts = int(np.flatnonzero(falling >= level - 1e-12)[-1])
    exact: NDArray[np.float64] = np.maximum(want - level[parts], 0) / each
    return exact
