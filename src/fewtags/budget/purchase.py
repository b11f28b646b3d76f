"""Simulate a time budget: buy tags, points or boxes for (image, class) pairs of fuller labels (PatchML).

An annotator answers about one class in one image at a time. "No" takes the same time for every type; "yes" takes longer
if a location must be marked. A budget therefore buys many tags, fewer points, or even fewer boxes.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal, final, get_args

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from fewtags.budget.costs import Annotation, CostModel, budget_seconds
from fewtags.budget.simulate import MOST_CELLS
from fewtags.errors import ConfigError, DataError
from fewtags.labels import Label
from fewtags.table.keyed_random import content_hashes, mixed, seeded, uniform
from fewtags.table.table import CORNERS, LabelTable, implied_facts, with_column
from fewtags.text import suggest

Mode = Literal["flat", "exact"]
PointRule = Literal["centre", "uniform"]

CENTRE_SIGMA = 0.02
"""Standard deviation of points around the centre of a box, in fractions of the image (PatchML on Objects365)."""

_ORDER, _INSTANCE, _ACROSS, _DOWN = range(1, 5)
"""Streams of random numbers: order of the pairs, choice of the object, and position in it (x, y)."""

_BLOCK = 500_000


def simulate_budget(
    table: LabelTable,
    budget: str | float,
    annotation: str,
    seed: int,
    cost: CostModel,
    mode: Mode = "flat",
    points: PointRule = "centre",
) -> LabelTable:
    """Buy answers about random (image, class) pairs until the budget is spent; all other pairs become unknown.

    Each seed puts all known pairs into one random order, which depends only on image keys and class ids; the purchase
    is the beginning of this order. A larger budget therefore contains a smaller one, and the pairs of an expensive type
    are among those of a cheap one (probably also in PatchML: its counts agree better than independent draws would).

    Absent classes become negatives. Present classes get, by type: only the label (I), a point in a random object (SP),
    the box of a random object (SB), a point in every object (AP), every box (AB). An object has the same point in SP
    and AP, and SP and SB choose the same object if the source has only boxes. A pair without a usable location (a point
    is not a box) gets a tag. Pairs that are unknown in the source are skipped at no cost. Notes count these pairs.
    Images without a bought label remain in the table.

    Args:
        table: fuller labels, ideally complete and with boxes. Points of the source are used unchanged. To draw points
            on the objects, as the paper does, read the labels with `places="outlines"`.
        budget: see `budget_seconds`; a share refers to all N x C pairs, including unknown ones.
        annotation: see `Annotation.of`.
        seed: selects the order.
        cost: seconds and averages, see `costs.PROFILES` and `CostModel.measured`.
        mode: "flat": the same cost for every pair, as in PatchML. "exact": the cost of each pair by its answer.
        points: in boxes. "centre": normal around the centre with standard deviation 0.02 of the image in x and y,
            clipped to the image, as PatchML does for boxes (Objects365). "uniform": anywhere in the box.

    Raises:
        ConfigError: an unknown option, or a budget that buys nothing.
        DataError: no known pair in the table, or too many pairs (`MOST_CELLS`).
    """
    kind = Annotation.of(annotation)
    for what, word, choices in (("mode", mode, get_args(Mode)), ("point rule", points, get_args(PointRule))):
        if word not in choices:
            raise ConfigError(f"{what} {word!r} is not known{suggest(word, choices)}; known: {', '.join(choices)}.")
    cells = len(table) * len(table.classes)
    known = cells - int(table.matrix.counts(Label.UNKNOWN).sum())
    if not known:
        raise DataError(f"none of the {len(table):,} images has a label, so there is nothing to buy.")
    seconds = budget_seconds(budget, cells * cost.tag)
    limit = seconds * (1 + 1e-9)  # more than the rounding error of long sums
    flat = cost.seconds_per_pair(kind) if mode == "flat" else None
    most = cost.pairs_for(budget, kind, cells) if flat else math.floor(limit / cost.least(kind))
    if (wanted := min(most, known)) > MOST_CELLS:
        raise DataError(
            f"the budget {budget} buys {wanted:,} pairs, which would be written out one by one; at most {MOST_CELLS:,} "
            "are allowed. Spend less, or use fewer images."
        )
    pairs = _first_pairs(table, max(1, wanted), known, seed)
    places = _Regions.of(table, pairs, kind)
    spent = np.cumsum(np.full(len(pairs), flat) if flat else cost.exact_seconds(kind, places.count))
    bought = wanted if flat else int(np.searchsorted(spent, limit, side="right"))
    if not bought:
        raise ConfigError(f"the budget {budget} is {seconds:.6g} s and buys nothing: a pair costs {spent[0]:.6g} s.")
    pairs = pairs.take(slice(bought))
    positives, tags, left_out = places.bought(table, pairs, kind, points, seed)
    result = table.with_facts(pa.concat_tables([positives, *_negatives(table, pairs)]).unify_dictionaries())
    took = float(spent[bought - 1])
    head = f"simulated a budget of {budget} ({kind.described()}, {mode} costs, seed {seed})"
    place = "box" if kind.boxed else "point or box"
    rest = seconds - took if bought == known else 0.0
    remarks = {
        f"{tags:,} positive pairs have no {place} in the source and became tags": tags and kind is not Annotation.TAGS,
        f"{left_out:,} points in the source were left out because they are not boxes": left_out,
        f"{cells - known:,} pairs are unknown in the source, so they were skipped at no cost": cells - known,
        f"all known pairs are bought, and {_time(rest)} are left": rest >= 1,
    }
    notes = [remark for remark, applies in remarks.items() if applies]
    return result.noting(f"{head}: {_receipt(result, pairs, took)}", f"costs: {cost}", *notes)


@final
@dataclass(frozen=True, eq=False)
class _Pairs:
    """Pairs in the order of the questions; every array is [T]."""

    image: NDArray[np.int64]
    class_: NDArray[np.int64]
    state: NDArray[np.int8]  # positive or negative
    word: NDArray[np.uint64]  # a hash of the image's key and the class id, the same for every seed

    def __len__(self) -> int:
        return len(self.image)

    def take(self, index: NDArray[np.int64] | slice) -> _Pairs:
        return _Pairs(self.image[index], self.class_[index], self.state[index], self.word[index])


def _first_pairs(table: LabelTable, wanted: int, known: int, seed: int) -> _Pairs:
    """The first pairs in the order of a seed. For large tables, only about as many as needed are in memory."""
    share = (wanted + 6 * math.sqrt(wanted) + 64) / known
    while True:
        pairs, draw = _pairs_below(table, share, seed)
        if len(pairs) >= wanted:
            return pairs.take(np.argsort(draw, kind="stable")[:wanted])
        share *= 2


def _pairs_below(table: LabelTable, share: float, seed: int) -> tuple[_Pairs, NDArray[np.uint64]]:
    """The known pairs whose random number is in the lowest `share` of all numbers, and these numbers."""
    limit = np.uint64(min(2**64 - 1, int(share * 2.0**64)))
    images, classes = content_hashes(table.images.to_pylist()), content_hashes(table.classes.ids)
    blocks, draws = [], []
    step = max(1, _BLOCK // max(1, len(classes)))
    for start in range(0, len(images), step):
        state = table.matrix.rows(np.arange(start, min(start + step, len(images))))
        word = mixed(images[start : start + step, None], classes[None])
        draw = _stream(word, _ORDER, seed)
        row, class_ = np.nonzero((draw <= limit) & (state != Label.UNKNOWN))
        blocks.append(_Pairs(start + row, class_, state[row, class_], word[row, class_]))
        draws.append(draw[row, class_])
    columns = ([getattr(block, name) for block in blocks] for name in ("image", "class_", "state", "word"))
    return _Pairs(*map(np.concatenate, columns)), np.concatenate(draws)


def _stream(words: NDArray[np.uint64], stream: int, seed: int) -> NDArray[np.uint64]:
    return seeded(seeded(words, stream), seed)


@final
@dataclass(frozen=True, eq=False, kw_only=True)
class _Regions:
    """The facts of positive pairs, sorted by pair; facts that the type can use first."""

    fact: NDArray[np.int64]  # [K], row in the table's facts
    pair: NDArray[np.int64]  # [K], position of the pair, ascending
    rank: NDArray[np.int64]  # [K], number among the facts of the pair
    usable: NDArray[np.bool_]  # [K], whether the fact has a location that the type can use
    box: NDArray[np.float32]  # [K, 4], the location; NaN for none
    count: NDArray[np.int64]  # [T], usable facts of each pair

    @classmethod
    def of(cls, table: LabelTable, pairs: _Pairs, kind: Annotation) -> _Regions:
        fact, pair = _facts_of(table, pairs, Label.POSITIVE)
        box = np.stack([table.facts[corner].to_numpy()[fact] for corner in CORNERS], 1).astype(np.float32)
        usable = ~np.isnan(box[:, 0])
        if kind is Annotation.TAGS:
            usable[:] = False
        elif kind.boxed:
            usable &= ~_is_point(box)
        order = np.lexsort((*box.T[::-1], ~usable, pair))
        pair, usable = pair[order], usable[order]
        return cls(
            fact=fact[order],
            pair=pair,
            rank=np.arange(len(pair)) - np.searchsorted(pair, pair),
            usable=usable,
            box=box[order],
            count=np.bincount(pair[usable], minlength=len(pairs)),
        )

    def bought(
        self, table: LabelTable, pairs: _Pairs, kind: Annotation, points: PointRule, seed: int
    ) -> tuple[pa.Table, int, int]:
        """The facts bought with the first pairs, the number of tags among them, and the number of unused locations."""
        k = int(np.searchsorted(self.pair, len(pairs)))
        fact, pair, rank, usable = self.fact[:k], self.pair[:k], self.rank[:k], self.usable[:k]
        lot = np.floor(uniform(_stream(pairs.word, _INSTANCE, seed)) * self.count[: len(pairs)])
        chosen = rank == lot[pair]
        if kind.every:
            chosen |= usable
        where = np.where(usable[:, None], self.box[:k], np.float32(np.nan))[chosen]
        if kind.pointed:
            words = mixed(pairs.word[pair], rank.astype(np.uint64))[chosen]
            where = _points_in(where, words, points, seed)
        left_out = ~usable & ~np.isnan(self.box[:k, 0]) & (self.count[pair] > 0) & kind.every
        facts = _placed(table.facts.take(pa.array(fact[chosen])), where)
        return facts, int((chosen & ~usable).sum()), int(left_out.sum())


def _is_point(box: NDArray[np.float32]) -> NDArray[np.bool_]:
    return np.asarray((box[:, 0] == box[:, 2]) & (box[:, 1] == box[:, 3]))


def _facts_of(table: LabelTable, pairs: _Pairs, state: Label) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """The facts in `state` of the pairs in `state`: row in the table's facts, and position of the pair."""
    asked = np.flatnonzero(pairs.state == state)
    cell = pairs.image[asked] * len(table.classes) + pairs.class_[asked]
    order = np.argsort(cell)
    cell, asked = cell[order], asked[order]
    fact = np.flatnonzero(table.facts["state"].to_numpy() == state)
    stated = table.fact_cells[fact]
    place = np.searchsorted(cell, stated)
    found = np.append(cell, -1)[place] == stated
    return fact[found], asked[place[found]]


def _points_in(box: NDArray[np.float32], words: NDArray[np.uint64], rule: PointRule, seed: int) -> NDArray[np.float32]:
    """Draw a point in each box, as boxes [K, 4] without extent. Points and NaN rows do not change."""
    across, down = (uniform(_stream(words, stream, seed)) for stream in (_ACROSS, _DOWN))
    low, high = box[:, :2].astype(np.float64), box[:, 2:].astype(np.float64)
    if rule == "uniform":
        point = low + np.stack([across, down], 1) * (high - low)
    else:
        # Box & Muller (1958): two uniform numbers are a radius and an angle.
        radius, angle = CENTRE_SIGMA * np.sqrt(-2 * np.log1p(-across)), 2 * math.pi * down
        offset = radius[:, None] * np.stack([np.cos(angle), np.sin(angle)], 1)
        point = np.where(_is_point(box)[:, None], low, np.clip((low + high) / 2 + offset, 0, 1))
    return np.concatenate([point, point], 1).astype(np.float32)


def _placed(facts: pa.Table, where: NDArray[np.float32]) -> pa.Table:
    """Replace the locations of facts by float32 [F, 4]; NaN for none."""
    missing = np.isnan(where[:, 0])
    for i, corner in enumerate(CORNERS):
        facts = with_column(facts, corner, pa.array(where[:, i], mask=missing))
    return facts


def _negatives(table: LabelTable, pairs: _Pairs) -> list[pa.Table]:
    """One fact for each negative pair: the fact of the source, or a new one for an implied negative."""
    fact, pair = _facts_of(table, pairs, Label.NEGATIVE)
    pair, first = np.unique(pair, return_index=True)
    own = _placed(table.facts.take(pa.array(fact[first])), np.full((len(pair), 4), np.nan, np.float32))
    implied = pairs.state == Label.NEGATIVE
    implied[pair] = False
    rest = pairs.take(np.flatnonzero(implied))
    return [own, implied_facts(rest.image, rest.class_)]


def _receipt(result: LabelTable, pairs: _Pairs, seconds: float) -> str:
    positives, box = int((pairs.state == Label.POSITIVE).sum()), result.locations.boxes
    points, images = int(_is_point(box).sum()), np.count_nonzero(np.bincount(pairs.image))
    places = [f"{n:,} {what}" for n, what in ((points, "points"), (len(box) - points, "boxes")) if n]
    return (
        f"{len(pairs):,} pairs ({positives:,} positive{' with ' if places else ''}{' and '.join(places)}, "
        f"{len(pairs) - positives:,} negative) in {images:,} of {len(result):,} images for {_time(seconds)}, "
        f"{seconds / len(pairs):.4g} s a pair"
    )


def _time(seconds: float) -> str:
    return f"{seconds:,.0f} s ({seconds / 3600:,.2f} h)"
