"""Combine label tables: merge sources, give several splits one vocabulary, match images.

Merging adds no knowledge: a class that one source does not label stays unknown in the images of that source, unless the
source is complete for the class.
"""

from __future__ import annotations

import os
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from fewtags.errors import DataError
from fewtags.labels import ClassNames, Label
from fewtags.shards.places import place
from fewtags.table.coverage import restricted, source_counts
from fewtags.table.table import MAX_COMPLETE_SETS, LabelTable, Listed, Notes, with_column
from fewtags.table.vocabulary import folded, match_classes
from fewtags.text import counted, flag, quoted, setting, some


def merge(
    tables: Mapping[str, LabelTable] | Sequence[LabelTable],
    complete_classes: Mapping[str, Collection[str]] | None = None,
    *,
    covers: Mapping[str, Collection[str]] | None = None,
    prefix: bool = False,
) -> LabelTable:
    """Merge label tables.

    Classes are joined by id, in order of appearance. Names of later tables that differ from those of earlier ones only
    in spelling are matched, see `vocabulary.match_classes`. Images are joined by file: if the tables have different
    folders, keys are first made relative to the common parent folder. Equal keys in different folders then remain two
    images, and a file that two sources name differently becomes one. All facts are kept, each with its source; a cell
    with contradicting facts is unknown. An image of several complete sources is complete for all of their classes
    together.

    Args:
        tables: the tables by source name. Facts are then marked with that name (followed by their file, if they have
            one). In a plain sequence the names are "1", "2", ..., and facts keep their marks.
        complete_classes: class ids for which a source is complete: classes of these that it does not name in its images
            are absent there. Added to the `complete_classes` of the table.
        covers: classes (ids or names) that a source covers, by source; default: those that it names. Labels of other
            classes in it are left out, and its completely annotated images are complete for these classes.
        prefix: for tables without a folder: name every image "source/key", so that equal keys remain different images.

    Raises:
        DataError: no table; a source, a complete or a covered class that does not exist; one class id with two display
            names; images that cannot be matched because their folders are unknown; one image in two different splits.
    """
    named = dict(tables) if isinstance(tables, Mapping) else {str(n): t for n, t in enumerate(tables, 1)}
    if not named:
        raise DataError("there is nothing to merge; give at least one label table.")
    for argument, given in (("complete_classes", complete_classes), ("covers", covers)):
        if wrong := [name for name in given or () if name not in named]:
            sources = ", ".join(map(repr, named))
            raise DataError(f"{argument} names {wrong[0]!r}, which is not a source; the sources are {sources}.")
    named = restricted(_matched_classes(named), covers or {})
    classes = _union_classes(named)
    root, keys = _common_keys(named, prefix)
    encoded = pa.chunked_array([array.cast(pa.string()) for array in keys]).combine_chunks().dictionary_encode()
    images, ends = encoded.dictionary, np.cumsum([len(k) for k in keys])[:-1]
    positions = [part.astype(np.int64) for part in np.split(encoded.indices.to_numpy(), ends)]
    columns = [np.array([classes.index(i) for i in t.classes.ids], np.int64) for t in named.values()]
    complete = [
        _own_complete_sets(name, table, column, classes, (complete_classes or {}).get(name))
        for (name, table), column in zip(named.items(), columns, strict=True)
    ]
    complete_set, sets = _union_complete_sets(len(images), positions, complete, len(classes))
    facts = [
        _moved(table.facts, position, column, name if isinstance(tables, Mapping) else None)
        for (name, table), position, column in zip(named.items(), positions, columns, strict=True)
    ]
    merged = LabelTable(
        images=images,
        classes=classes,
        facts=pa.concat_tables(facts).unify_dictionaries(),
        complete_set=complete_set,
        complete_classes=sets,
        root=root,
        split_names=_union_splits(named, positions, images),
        notes=sum((t.notes for t in named.values()), Notes()),
    )
    lists = _overruled(merged, list(named), facts, positions, complete)
    if isinstance(tables, Mapping) and len(named) > 1:
        lists = (*source_counts(named, classes), *lists)
    return replace(merged, notes=merged.notes + Notes(messages=tuple(_messages(named, merged)), lists=lists))


def with_classes(table: LabelTable, classes: ClassNames) -> LabelTable:
    """Return the same labels under a vocabulary that contains all classes of the table.

    Completely annotated images remain complete for the same classes; new classes are unknown in them. A class that is
    not in `classes` is a `DataError`.
    """
    if table.classes == classes:
        return table
    if missing := [i for i in table.classes.ids if i not in classes]:
        some = ", ".join(classes.ids[:5])
        raise DataError(f"class {quoted(missing[0])} of the table is not in the vocabulary ({some}, ...).")
    position = np.array([classes.index(i) for i in table.classes.ids], np.int32)
    complete_classes = np.zeros((len(table.complete_classes), len(classes)), np.bool_)
    complete_classes[:, position] = table.complete_classes
    facts = with_column(table.facts, "class", pa.array(position[table.facts["class"].to_numpy()]))
    return replace(table, classes=classes, facts=facts, complete_classes=complete_classes)


def common_vocabulary(tables: Mapping[str, LabelTable]) -> dict[str, LabelTable]:
    """Return all tables under the union of their classes, in order of appearance.

    Class names of later tables that differ from those of earlier ones only in spelling are matched, see
    `vocabulary.match_classes`. Classes that a table lacks are unknown in its images; a message lists them.

    Raises:
        DataError: two tables give one class id different display names; "val" or "test" shares no class with "train".
    """
    tables = _matched_classes(tables)
    for split in ("val", "test"):
        own, known = (tables[name].classes.ids if name in tables else () for name in (split, "train"))
        if own and known and not {*own} & {*known}:
            raise DataError(
                f"{split}: none of its classes {some(own)} is a class of the training labels, {some(known)}. Give "
                f"other labels as {flag(split)}, or rename the classes: {setting('rename', [f'{own[0]}={known[0]}'])}."
            )
    classes = _union_classes(tables)
    out = {split: with_classes(table, classes) for split, table in tables.items()}
    for split, table in tables.items():
        if new := [i for i in classes.ids if i not in table.classes]:
            occur = counted(len(new), "class occurs", "classes occur")
            message = f"{split}: {occur} in other splits only, and is unknown here: {some(new)}"
            message = message if len(new) == 1 else message.replace("and is unknown", "and are unknown")
            out[split] = out[split].noting(message)
    return out


def match_images(truth: LabelTable, table: LabelTable) -> LabelTable:
    """Return the rows of `truth` for the images of `table`, in the order and under the classes of `table`.

    Class names that differ only in spelling are matched.

    It is a `DataError` if `truth` lacks an image, or has a class that `table` lacks.
    """
    truth = match_classes(truth, table.classes, where="complete labels", theirs="train")
    position = {key: n for n, key in enumerate(truth.images.to_pylist())}
    keys = table.images.to_pylist()
    if missing := [key for key in keys if key not in position]:
        raise DataError(
            f"the complete labels lack {len(missing)} of {len(keys)} images, for example {quoted(missing[0])}."
        )
    return with_classes(truth.subset(np.array([position[key] for key in keys])), table.classes)


def _matched_classes(named: Mapping[str, LabelTable]) -> dict[str, LabelTable]:
    """Match the class names of each table to those of the tables before it."""
    out: dict[str, LabelTable] = {}
    known = ClassNames.of(())
    for name, table in named.items():
        before = " and ".join(out) if len(out) < 3 else "the labels before"
        out[name] = match_classes(table, known, where=name, theirs=before)
        shown = dict(zip(known.ids, known.names, strict=True))
        shown |= {i: n for i, n in zip(out[name].classes.ids, out[name].classes.names, strict=True) if i not in shown}
        known = ClassNames.of(shown, shown.values())
    return out


def _union_classes(named: Mapping[str, LabelTable]) -> ClassNames:
    display: dict[str, tuple[str, str]] = {}
    for source, table in named.items():
        for class_id, name in zip(table.classes.ids, table.classes.names, strict=True):
            earlier, where = display.get(class_id, (class_id, source))
            if earlier != class_id and name != class_id and folded(name) != folded(earlier):
                raise DataError(
                    f"class id {class_id!r} is called {earlier!r} in {where!r} and {name!r} in {source!r}. If both are "
                    "the same class, give it the same display name in both sources; if not, give it another id in one."
                )
            # A name that only repeats the id gives way to the name of the other source.
            display[class_id] = (name, source) if earlier == class_id else (earlier, where)
    return ClassNames.of(display, (name for name, _ in display.values()))


def _common_keys(named: Mapping[str, LabelTable], prefix: bool) -> tuple[Path | None, list[pa.Array]]:
    """The common parent folder of all images, and the keys of each table relative to it."""
    roots = {name: table.root for name, table in named.items() if table.root is not None}
    known = {name: root.resolve() for name, root in roots.items()}
    folders = ", ".join(map(str, dict.fromkeys(known.values())))
    if prefix and known:
        raise DataError(
            f"prefix names images 'source/key', which is not a path in {str(next(iter(roots.values())))!r}. It is "
            "for tables without a folder; tables with folders need none, their images are distinguished by file."
        )
    if prefix:
        return None, [pc.binary_join_element_wise(name, t.images, "/") for name, t in named.items()]
    if len(set(known.values())) <= 1:
        return next(iter(roots.values()), None), [t.images for t in named.values()]
    if without := [name for name in named if name not in roots]:
        raise DataError(
            f"the images of {without[0]!r} have no folder, and the other sources have different ones ({folders}); say "
            "which with `with_root`."
        )
    try:
        common = place(os.path.commonpath(known.values()))
    except ValueError as error:
        raise DataError(f"no folder contains {folders} together; move or link the photos into one.") from error
    prefixes = [root.relative_to(common).as_posix() for root in known.values()]
    return common, [
        t.images if way == "." else pc.binary_join_element_wise(way, t.images, "/")
        for way, t in zip(prefixes, named.values(), strict=True)
    ]


CompleteSets = tuple[NDArray[np.int16], NDArray[np.bool_]]
"""`complete_set` int16 [N] and `complete_classes` bool [S, C] of a `LabelTable`."""


def _own_complete_sets(
    source: str, table: LabelTable, column: NDArray[np.int64], classes: ClassNames, added: Collection[str] | None
) -> CompleteSets:
    """The complete sets of one table in the merged vocabulary, extended by the classes `added`."""
    sets = np.zeros((len(table.complete_classes), len(classes)), np.bool_)
    sets[:, column] = table.complete_classes
    if added is None:
        return table.complete_set, sets
    if isinstance(added, str):
        raise DataError(f"complete_classes of {source!r} is the string {added!r}; give a list of class ids.")
    extra = np.zeros((1, len(classes)), np.bool_)
    try:
        extra[0, [classes.index(i) for i in added]] = True
    except DataError as error:
        raise DataError(f"complete_classes of {source!r} has a class that no source has: {error}") from error
    complete_set = np.where(table.complete_set >= 0, table.complete_set, np.int16(len(sets)))
    return complete_set.astype(np.int16), np.concatenate([sets | extra, extra])


def _union_complete_sets(
    n: int, positions: Sequence[NDArray[np.int64]], complete: Sequence[CompleteSets], width: int
) -> CompleteSets:
    """One set for every combination of complete sources that an image has."""
    complete_set, sets = np.full(n, -1, np.int64), np.zeros((0, width), np.bool_)
    for position, (own, own_sets) in zip(positions, complete, strict=True):
        # Row 0 means "not complete" on both sides.
        old_sets, new_sets = (np.concatenate([np.zeros((1, width), np.bool_), r]) for r in (sets, own_sets))
        both = np.zeros((n, 2), np.int64)
        both[:, 0] = complete_set + 1
        both[position, 1] = own.astype(np.int64) + 1
        pairs, pair = np.unique(both[:, 0] * len(new_sets) + both[:, 1], return_inverse=True)
        sets = old_sets[pairs // len(new_sets)] | new_sets[pairs % len(new_sets)]
        unique, again = np.unique(sets, axis=0, return_inverse=True)
        keep = unique.any(1)
        number = np.where(keep, np.cumsum(keep) - 1, -1)
        complete_set, sets = number[again.reshape(-1)][pair.reshape(-1)], unique[keep]
    if len(sets) > MAX_COMPLETE_SETS:
        raise DataError(
            f"the sources are complete for {len(sets):,} different sets of classes; a table can have at most "
            f"{MAX_COMPLETE_SETS:,}. Merge fewer sources at once."
        )
    return complete_set.astype(np.int16), sets


def _moved(facts: pa.Table, position: NDArray[np.int64], column: NDArray[np.int64], source: str | None) -> pa.Table:
    """Facts with the merged table's image and class numbers, marked with their source."""
    image = position[facts["image"].to_numpy()].astype(np.int32)
    class_ = column[facts["class"].to_numpy()].astype(np.int32)
    facts = with_column(with_column(facts, "image", pa.array(image)), "class", pa.array(class_))
    if source is None:
        return facts
    marks = facts["source"].unify_dictionaries().combine_chunks()
    names = [source if old in ("", source) else f"{source}: {old}" for old in marks.dictionary.to_pylist()]
    return with_column(facts, "source", pa.DictionaryArray.from_arrays(marks.indices, pa.array(names, pa.string())))


def _union_splits(
    named: Mapping[str, LabelTable], positions: Sequence[NDArray[np.int64]], images: pa.Array
) -> pa.Array | None:
    if all(table.split_names is None for table in named.values()):
        return None
    names = np.full(len(images), "", object)
    for (source, table), position in zip(named.items(), positions, strict=True):
        if table.split_names is None:
            continue
        own, before = np.array(pc.fill_null(table.split_names, "").to_pylist(), object), names[position]
        if np.any(clash := (own != "") & (before != "") & (own != before)):
            at = int(clash.argmax())
            raise DataError(
                f"{quoted(images[int(position[at])].as_py())} is in split {before[at]!r} and, in {source!r}, in split "
                f"{own[at]!r} ({clash.sum():,} such images); decide on one, or drop the split names of one source."
            )
        names[position] = np.where(own == "", before, own)
    return pa.array(names, pa.string())


def _messages(named: Mapping[str, LabelTable], merged: LabelTable) -> list[str]:
    classes = merged.classes
    sizes = ", ".join(f"{source} {len(table):,}" for source, table in named.items())
    messages = [
        f"merged {len(named)} sources ({sizes} images) into {counted(len(merged), 'image')}, "
        f"{counted(len(classes), 'class', 'classes')}"
    ]
    ids_of: dict[str, list[str]] = {}
    for class_id, name in zip(classes.ids, classes.names, strict=True):
        ids_of.setdefault(name, []).append(class_id)
    messages += [
        f"classes {', '.join(map(repr, ids))} are all called {name!r} and stay apart, because their ids differ"
        for name, ids in ids_of.items()
        if len(ids) > 1
    ]
    return messages


def _overruled(
    merged: LabelTable,
    names: Sequence[str],
    facts: Sequence[pa.Table],
    positions: Sequence[NDArray[np.int64]],
    complete: Sequence[CompleteSets],
) -> tuple[Listed, ...]:
    """Per source: positives of other sources in cells that are implied negatives of this source."""
    n, width = len(merged), len(merged.classes)
    cells = [f["image"].to_numpy().astype(np.int64) * width + f["class"].to_numpy() for f in facts]
    positive = [c[f["state"].to_numpy() == Label.POSITIVE] for c, f in zip(cells, facts, strict=True)]
    lists = []
    for me, (position, (own, sets)) in enumerate(zip(positions, complete, strict=True)):
        complete_set = np.full(n, -1, np.int64)
        complete_set[position] = own
        others = np.concatenate([cells[me][:0], *(p for other, p in enumerate(positive) if other != me)])
        others = others[complete_set[others // width] >= 0]
        # Sorting is ten times as fast as the hashing of `numpy.unique` and `numpy.isin`.
        others = np.sort(others[sets[complete_set[others // width], others % width]])
        others = others[np.diff(others, prepend=-1) > 0]
        known = np.sort(cells[me]) if len(others) else others
        found = others[np.append(known, -1)[np.searchsorted(known, others)] != others]
        if not len(found):
            continue
        who = [name for other, name in enumerate(names) if other != me and np.isin(found, positive[other]).any()]
        items = tuple(f"{merged.images[int(cell // width)]}: {merged.classes.ids[cell % width]}" for cell in found)
        count = counted(len(items), "label is", "labels are")
        text = (
            f"{count} positive in {' or '.join(map(repr, who))}, but {names[me]!r} has the image, is complete for the "
            "class and does not name it there; they count as positive. Decide which source is right."
        )
        lists.append(Listed("overruled", text, items, warns=True))
    return tuple(lists)
