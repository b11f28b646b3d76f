"""Add the answers of people who looked at photos to label tables."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from fewtags.labels import Label, LabelMatrix
from fewtags.table.merge import common_vocabulary, merge
from fewtags.table.overlap import leave_out_measured
from fewtags.table.table import LabelTable, Listed, Notes
from fewtags.text import counted

ANSWERS = "answers of "
"""How the source of facts that people answered begins."""
_OVERRULED = ("label contradicts an answer, which counts", "labels contradict an answer, which counts")
_DISPUTED = ("answer is disputed, so it is unknown", "answers are disputed, so they are unknown")


def with_answers(tables: Mapping[str, LabelTable], answers: Sequence[LabelTable]) -> dict[str, LabelTable]:
    """Return the tables of train, val and test with what people answered about their images.

    An answer counts more than other sources, because somebody looked at this class in this photo: facts that
    contradict it are left out, and the notes list them. A disputed cell (positive and negative answers) is unknown,
    whatever other sources say. Photos that are in none of the tables join "train", except copies of photos in the
    others. Classes that only the answers have are added.

    Args:
        tables: by split.
        answers: one table for each folder of photos, see `formats.answers.read_answers`. Where a folder no longer
            exists, images are found by their keys.
    """
    out = dict(tables)
    for given in answers:
        found = _owners(out, given)
        rest = np.ones(len(given), np.bool_)
        counts: dict[str, int] = {}
        for split in tables:
            rows = [row for row, (owner, _) in found.items() if owner == split]
            if rows:
                rest[rows] = False
                keys = pa.array([found[row][1] for row in rows], pa.string())
                part = replace(given.subset(np.array(rows)), images=keys, root=out[split].root)
                counts[split] = len(np.unique(part.fact_cells))
                out[split] = _added(out[split], part)
        new = given.subset(rest)
        if len(new):
            out["train"] = _joined(out["train"], new)
            counts["train"] = counts.get("train", 0) + len(np.unique(new.fact_cells))
            out = leave_out_measured(out)
        source = given.facts["source"].chunk(0).dictionary[0].as_py() if len(given.facts) else "answers"
        where = " and ".join(f"{count:,} in {split}" for split, count in counts.items())
        out["train"] = out["train"].noting(f"{source}: {where or 'none'}")
    return out


def answered(table: LabelTable) -> LabelMatrix | None:
    """Return the cells of a table that people answered, with their states; None if there are none."""
    mask = _from_answers(table)
    if not mask.any():
        return None
    none = np.full(len(table), -1, np.int16)
    return replace(table, facts=table.facts.filter(pa.array(mask)), complete_set=none).matrix


def has_answers(table: LabelTable) -> bool:
    """Whether people answered a cell of a table: a look at the names of its sources, which are few."""
    sources = table.facts["source"].unique().cast(pa.string())
    return bool(pc.any(pc.starts_with(sources, pattern=ANSWERS), min_count=0).as_py())


def without_answers(table: LabelTable) -> LabelTable:
    """Return a table without the facts that people answered. What was asked for does not say what is frequent."""
    mask = _from_answers(table)
    return replace(table, facts=table.facts.filter(pa.array(~mask))) if mask.any() else table


def _from_answers(table: LabelTable) -> NDArray[np.bool_]:
    sources = table.facts["source"].cast(pa.string())
    return np.asarray(pc.starts_with(sources, pattern=ANSWERS), np.bool_)


def _owners(tables: Mapping[str, LabelTable], given: LabelTable) -> dict[int, tuple[str, str]]:
    """Return the split and key in `tables` of each row of `given` that is in one of them."""
    known: dict[str, tuple[str, str]] = {}
    by_key = given.root is not None and not given.root.exists()
    for split, table in tables.items():
        for key in table.images.to_pylist():
            known.setdefault(key if by_key else _path(table.root, key), (split, key))
    own = given.images.to_pylist()
    places = {row: key if by_key else _path(given.root, key) for row, key in enumerate(own)}
    return {row: known[place] for row, place in places.items() if place in known}


def _path(root: Path | None, key: str) -> str:
    return key if root is None else os.path.normpath(root.absolute() / key)


def _joined(train: LabelTable, new: LabelTable) -> LabelTable:
    """Return the training table with photos that no table has."""
    if train.root is not None and new.root is not None and train.root.absolute() == new.root.absolute():
        new = new.with_root(train.root)
    notes = train.notes + Notes(messages=(f"{counted(len(new), 'photo')} with answers only join training",))
    return replace(merge([train, new]), notes=notes)


def _added(table: LabelTable, part: LabelTable) -> LabelTable:
    """Return the table with the facts of `part`, whose images it has, and without the facts that these contradict."""
    both = common_vocabulary({"table": table, "answers": part})
    base, new = both["table"], both["answers"]
    width = len(base.classes)
    position = {key: n for n, key in enumerate(base.images.to_pylist())}
    image = np.array([position[key] for key in new.images.to_pylist()], np.int32)
    facts = new.facts.set_column(0, new.facts.schema.field(0), pa.array(image[new.facts["image"].to_numpy()]))
    cells = facts["image"].to_numpy().astype(np.int64) * width + facts["class"].to_numpy()
    state = facts["state"].to_numpy()
    settled = {s: np.setdiff1d(cells[state == s], cells[state == -s]) for s in (Label.POSITIVE, Label.NEGATIVE)}
    wrong = np.zeros(len(base.facts), np.bool_)
    own_cells, own_state = base.fact_cells, base.facts["state"].to_numpy()
    for s, answered in settled.items():
        wrong |= np.isin(own_cells, answered) & (own_state != s)
    disputed = np.intersect1d(cells[state == Label.POSITIVE], cells[state == Label.NEGATIVE])
    lists = (
        *_listed(base, np.unique(own_cells[wrong]), "overruled", _OVERRULED),
        *_listed(base, disputed, "disputed", _DISPUTED),
    )
    kept = pa.concat_tables([base.facts.filter(pa.array(~wrong)), facts]).unify_dictionaries()
    return replace(base, facts=kept, notes=table.notes + Notes(lists=lists))


def _listed(table: LabelTable, cells: NDArray[np.int64], code: str, words: tuple[str, str]) -> tuple[Listed, ...]:
    if not len(cells):
        return ()
    width = len(table.classes)
    items = tuple(f"{table.images[int(cell // width)]}: {table.classes.ids[cell % width]}" for cell in cells)
    return (Listed(code, counted(len(cells), *words), items, warns=True),)
