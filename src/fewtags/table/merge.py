"""Several label tables as one: classes by id, images by file, and what each source is complete for.

Knowledge is added up and never invented: a class that one source does not label stays unknown in that source's images,
unless the source says (or `covers` says for it) that it would have named it.
"""

from __future__ import annotations

import os
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from fewtags.errors import DataError
from fewtags.labels import ClassNames, Label
from fewtags.table.table import FACTS, MOST_CLOSURES, LabelTable, Notes


def merge(
    tables: Mapping[str, LabelTable] | Sequence[LabelTable],
    covers: Mapping[str, Collection[str]] | None = None,
    *,
    prefix: bool = False,
) -> LabelTable:
    """Put tables together.

    Classes are joined by id, in order of appearance. Images are joined by file: where the tables lie in different
    folders, keys are first made relative to the folder that holds them all, so that equal keys in different folders
    stay two images and one file that two sources name differently becomes one. All facts are kept, each with its
    source; where sources contradict each other the cell is unknown. An image that several sources are complete for is
    closed for all that they cover together.

    Args:
        tables: the tables by source name. Facts are then marked with that name (followed by the file, where they have
            one). In a plain sequence the names are "1", "2", ..., and facts keep their marks.
        covers: class ids that a source is complete for: in its images, those that it does not name are absent. This is
            on top of what the tables say about themselves.
        prefix: for tables without a folder: name every image "source/key", so that equal keys stay different images.

    Raises:
        DataError: no table; a covered class or a source that does not exist; one class id with two display names;
            images that cannot be matched because their folders are unknown; one image in two different splits.
    """
    named = dict(tables) if isinstance(tables, Mapping) else {str(n): t for n, t in enumerate(tables, 1)}
    if not named:
        raise DataError("there is nothing to merge; give at least one label table.")
    classes = _union_classes(named)
    root, keys = _common_keys(named, prefix)
    encoded = pa.chunked_array([array.cast(pa.string()) for array in keys]).combine_chunks().dictionary_encode()
    ends = np.cumsum([len(k) for k in keys])[:-1]
    positions = [part.astype(np.int64) for part in np.split(encoded.indices.to_numpy(), ends)]
    images = encoded.dictionary
    columns = [np.array([classes.index(i) for i in t.classes.ids], np.int64) for t in named.values()]
    closures = [
        _own_closures(name, table, column, classes, (covers or {}).get(name))
        for (name, table), column in zip(named.items(), columns, strict=True)
    ]
    if covers and (wrong := [name for name in covers if name not in named]):
        raise DataError(f"{wrong[0]!r} covers classes but is no source; the sources are {', '.join(map(repr, named))}.")
    closed, rows = _union_closures(len(images), positions, closures, len(classes))
    mark = isinstance(tables, Mapping)
    facts = [
        _moved(table.facts, position, column, name if mark else None)
        for (name, table), position, column in zip(named.items(), positions, columns, strict=True)
    ]
    merged = LabelTable(
        images,
        classes,
        pa.concat_tables(facts).unify_dictionaries(),
        closed,
        rows,
        root,
        _union_splits(named, positions, images),
        sum((t.notes for t in named.values()), Notes()),
    )
    return merged.noting(*_messages(named, classes, merged, facts, positions, closures))


def _union_classes(named: Mapping[str, LabelTable]) -> ClassNames:
    display: dict[str, tuple[str, str]] = {}
    for source, table in named.items():
        for class_id, name in zip(table.classes.ids, table.classes.names, strict=True):
            earlier, where = display.get(class_id, (class_id, source))
            if earlier != class_id and name not in (class_id, earlier):
                raise DataError(
                    f"class id {class_id!r} is called {earlier!r} in {where!r} and {name!r} in {source!r}. If both are "
                    "the same class, give it the same display name in both sources; if not, give it another id in one."
                )
            # A name that only repeats the id says nothing; the other source's name stands.
            display[class_id] = (name, source) if earlier == class_id else (earlier, where)
    return ClassNames.of(display, (name for name, _ in display.values()))


def _common_keys(named: Mapping[str, LabelTable], prefix: bool) -> tuple[Path | None, list[pa.Array]]:
    """The folder that holds all images, and each table's keys relative to it."""
    roots = {name: table.root for name, table in named.items()}
    known = {name: root.resolve() for name, root in roots.items() if root is not None}
    if prefix:
        if known:
            raise DataError(
                f"prefix names images 'source/key', which is no path in {str(roots[next(iter(known))])!r}. It is for "
                "tables without a folder; tables with folders need none, their images are told apart by file."
            )
        return None, [pc.binary_join_element_wise(name, t.images, "/") for name, t in named.items()]
    if len(set(known.values())) <= 1:
        return next((root for root in roots.values() if root is not None), None), [t.images for t in named.values()]
    if without := [name for name, root in roots.items() if root is None]:
        raise DataError(
            f"the images of {without[0]!r} have no folder, and the other sources have different ones "
            f"({', '.join(map(str, dict.fromkeys(known.values())))}); say which with `with_root`."
        )
    try:
        common = Path(os.path.commonpath(known.values()))
    except ValueError as error:
        raise DataError(
            f"no folder holds {', '.join(map(str, dict.fromkeys(known.values())))} together; "
            "move or link the photos into one."
        ) from error
    ways = {name: root.relative_to(common).as_posix() for name, root in known.items()}
    return common, [
        t.images if ways[name] == "." else pc.binary_join_element_wise(ways[name], t.images, "/")
        for name, t in named.items()
    ]


Closures = tuple[NDArray[np.int16], NDArray[np.bool_]]


def _own_closures(
    source: str, table: LabelTable, column: NDArray[np.int64], classes: ClassNames, covered: Collection[str] | None
) -> Closures:
    """What a table's images are closed for, in the merged vocabulary: int [n] row or -1, bool [s, C]."""
    rows = np.zeros((len(table.covers), len(classes)), np.bool_)
    rows[:, column] = table.covers
    if covered is None:
        return table.closed, rows
    if isinstance(covered, str):
        raise DataError(f"{source!r} covers {covered!r}, which is one word; give a list of class ids.")
    extra = np.zeros((1, len(classes)), np.bool_)
    try:
        extra[0, [classes.index(i) for i in covered]] = True
    except DataError as error:
        raise DataError(f"{source!r} cannot cover a class that no source has: {error}") from error
    closed = np.where(table.closed >= 0, table.closed, np.int16(len(rows)))
    return closed.astype(np.int16), np.concatenate([rows | extra, extra])


def _union_closures(
    n: int, positions: Sequence[NDArray[np.int64]], closures: Sequence[Closures], width: int
) -> Closures:
    """One row for every combination of sources that really closes an image."""
    closed, rows = np.full(n, -1, np.int64), np.zeros((0, width), np.bool_)
    for position, (own, own_rows) in zip(positions, closures, strict=True):
        # Row 0 stands for "not closed" on both sides.
        old_rows, new_rows = (np.concatenate([np.zeros((1, width), np.bool_), r]) for r in (rows, own_rows))
        both = np.zeros((n, 2), np.int64)
        both[:, 0] = closed + 1
        both[position, 1] = own.astype(np.int64) + 1
        pairs, closed = np.unique(both[:, 0] * len(new_rows) + both[:, 1], return_inverse=True)
        rows = old_rows[pairs // len(new_rows)] | new_rows[pairs % len(new_rows)]
        unique, again = np.unique(rows, axis=0, return_inverse=True)
        keep = unique.any(1)
        number = np.where(keep, np.cumsum(keep) - 1, -1)
        closed, rows = number[again.reshape(-1)][closed.reshape(-1)], unique[keep]
    if len(rows) > MOST_CLOSURES:
        raise DataError(
            f"the sources are complete for {len(rows):,} different sets of classes; a table holds {MOST_CLOSURES:,}. "
            "Merge fewer sources at once."
        )
    return closed.astype(np.int16), rows


def _moved(facts: pa.Table, position: NDArray[np.int64], column: NDArray[np.int64], source: str | None) -> pa.Table:
    """Facts with the merged table's image and class numbers, marked with their source."""
    image = position[facts["image"].to_numpy()].astype(np.int32)
    class_ = column[facts["class"].to_numpy()].astype(np.int32)
    facts = facts.set_column(0, FACTS.field(0), pa.array(image)).set_column(1, FACTS.field(1), pa.array(class_))
    if source is None:
        return facts
    marks = facts["source"].unify_dictionaries().combine_chunks()
    names = [source if old in ("", source) else f"{source}: {old}" for old in marks.dictionary.to_pylist()]
    return facts.set_column(
        7, FACTS.field(7), pa.DictionaryArray.from_arrays(marks.indices, pa.array(names, pa.string()))
    )


def _union_splits(
    named: Mapping[str, LabelTable], positions: Sequence[NDArray[np.int64]], images: pa.Array
) -> pa.Array | None:
    if all(table.split_names is None for table in named.values()):
        return None
    names = np.full(len(images), "", object)
    for (source, table), position in zip(named.items(), positions, strict=True):
        if table.split_names is None:
            continue
        own = np.array(pc.fill_null(table.split_names, "").to_pylist(), object)
        before = names[position]
        if np.any(clash := (own != "") & (before != "") & (own != before)):
            at = int(clash.argmax())
            raise DataError(
                f"{images[int(position[at])].as_py()!r} is in split {before[at]!r} and, in {source!r}, in split "
                f"{own[at]!r} ({clash.sum():,} such images); decide on one, or drop the split names of one source."
            )
        names[position] = np.where(own == "", before, own)
    return pa.array(names, pa.string())


def _messages(
    named: Mapping[str, LabelTable],
    classes: ClassNames,
    merged: LabelTable,
    facts: Sequence[pa.Table],
    positions: Sequence[NDArray[np.int64]],
    closures: Sequence[Closures],
) -> list[str]:
    sizes = ", ".join(f"{source} {len(table):,}" for source, table in named.items())
    messages = [f"merged {len(named)} sources ({sizes} images) into {len(merged):,} images, {len(classes):,} classes"]
    twins: dict[str, list[str]] = {}
    for class_id, name in zip(classes.ids, classes.names, strict=True):
        twins.setdefault(name, []).append(class_id)
    messages += [
        f"classes {', '.join(map(repr, ids))} are all called {name!r} and stay apart, because their ids differ"
        for name, ids in twins.items()
        if len(ids) > 1
    ]
    for source, overruled in zip(named, _overruled(len(merged), facts, positions, closures), strict=True):
        if overruled:
            messages.append(
                f"{overruled:,} cells are positive in another source though {source!r} is complete for the class and "
                "does not name it there; taken as positive"
            )
    return messages


def _overruled(
    n: int, facts: Sequence[pa.Table], positions: Sequence[NDArray[np.int64]], closures: Sequence[Closures]
) -> list[int]:
    """Per source: positives of other sources under its blanket, in cells that it has no fact about itself."""
    width = max((rows.shape[1] for _, rows in closures), default=0)
    cells = [f["image"].to_numpy().astype(np.int64) * width + f["class"].to_numpy() for f in facts]
    positive = [c[f["state"].to_numpy() == Label.POSITIVE] for c, f in zip(cells, facts, strict=True)]
    counts = []
    for me, (position, (own, rows)) in enumerate(zip(positions, closures, strict=True)):
        if not np.any(own >= 0):
            counts.append(0)
            continue
        closed = np.full(n, -1, np.int64)
        closed[position] = own
        others = np.concatenate([p for other, p in enumerate(positive) if other != me] or [cells[me][:0]])
        others = others[closed[others // width] >= 0]
        others = others[rows[closed[others // width], others % width]]
        counts.append(_distinct_beyond(others, cells[me]))
    return counts


def _distinct_beyond(values: NDArray[np.int64], known: NDArray[np.int64]) -> int:
    """How many different values are not known; by sorting, ten times as fast as the hashing of `numpy.unique`."""
    values, known = np.sort(values), np.append(np.sort(known), -1)
    values = values[np.diff(values, prepend=-1) > 0]
    return int((known[np.searchsorted(known[:-1], values)] != values).sum())
