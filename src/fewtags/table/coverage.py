"""What each of several merged sources covers, and what it states."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import replace

import numpy as np
import pyarrow as pa

from fewtags.errors import DataError
from fewtags.labels import ClassNames, Label
from fewtags.table.table import LabelTable, Listed, with_column
from fewtags.table.vocabulary import folded
from fewtags.text import counted, some, suggest


def restricted(named: Mapping[str, LabelTable], covers: Mapping[str, Collection[str]]) -> dict[str, LabelTable]:
    """Return the tables, where those named in `covers` have these classes only, given by id or by name.

    Labels of other classes are left out, and a message counts them. Images that are completely annotated are complete
    for the covered classes, also for those that the table does not name.

    Raises:
        DataError: a class that no table has, or the name of several classes.
    """
    known: dict[str, str] = {}
    for table in named.values():
        known |= {i: name for i, name in zip(table.classes.ids, table.classes.names, strict=True) if i not in known}
    out = dict(named)
    for source, given in covers.items():
        if isinstance(given, str):
            raise DataError(f"covers of {source!r} is the text {given!r}; give a list of classes.")
        ids = dict.fromkeys(_class_id(word, known, source) for word in given)
        if not ids:
            raise DataError(f"covers of {source!r} has no class; name at least one, or leave the source out.")
        out[source] = _covering(named[source], source, ClassNames.of(ids, [known[i] for i in ids]))
    return out


def _class_id(word: str, known: Mapping[str, str], source: str) -> str:
    """Return the id of a class that is given by id, by display name or in another spelling of one of these."""
    fits = [word] if word in known else [i for i, name in known.items() if name == word]
    fits = fits or [i for i, name in known.items() if folded(word) in (folded(i), folded(name))]
    if not fits:
        hint = suggest(word, [*known, *known.values()])
        raise DataError(f"covers of {source!r} has the class {word!r}, which no source names{hint}; fix the name.")
    if len(fits) > 1:
        raise DataError(f"covers of {source!r} has {word!r}, which may be {some(fits)}; give the id of one.")
    return fits[0]


def _covering(table: LabelTable, source: str, classes: ClassNames) -> LabelTable:
    """Return a table under exactly the given classes; labels of other classes are left out."""
    position = np.array([classes.index(i) if i in classes else -1 for i in table.classes.ids], np.int64)
    column = position[table.facts["class"].to_numpy()]
    kept = column >= 0
    sets = np.ones((len(table.complete_classes), len(classes)), np.bool_)
    for c, place in enumerate(position.tolist()):
        if place >= 0:
            sets[:, place] = table.complete_classes[:, c]
    facts = with_column(table.facts.filter(pa.array(kept)), "class", pa.array(column[kept].astype(np.int32)))
    left_out = [i for i in table.classes.ids if i not in classes]
    out = replace(table, classes=classes, facts=facts, complete_classes=sets)
    if not left_out:
        return out
    count = counted(int((~kept).sum()), "label", "labels")
    return out.noting(f"{source}: {count} of {some(left_out)} left out: it does not cover these classes (covers)")


def source_counts(named: Mapping[str, LabelTable], classes: ClassNames) -> tuple[Listed, ...]:
    """Describe what each source states: images, covered classes, and positive and negative labels by class."""
    found = []
    for source, table in named.items():
        positives, negatives = (table.matrix.counts(state).tolist() for state in (Label.POSITIVE, Label.NEGATIVE))
        labels = zip(table.classes.display, positives, negatives, strict=True)
        message = (
            f"{source}: {counted(len(table), 'image')}, covers {len(table.classes):,} of "
            f"{counted(len(classes), 'class', 'classes')}; {sum(positives):,} positive and {sum(negatives):,} negative "
            "labels"
        )
        found.append(Listed("source", message, tuple(f"{name} +{p:,} -{n:,}" for name, p, n in labels)))
    return tuple(found)
