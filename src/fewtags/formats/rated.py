"""Objects with scores of a model: predictions are not labels. One rule for all formats that name objects."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, final

from fewtags.errors import DataError
from fewtags.formats.common import finite_number, xml_number
from fewtags.formats.options import fold
from fewtags.table.table import Notes
from fewtags.text import counted, some

SCORE_NAMES = frozenset({"score", "scores", "confidence", "conf", "probability", "prob", "proba", "certainty"})
"""Names of columns, keys and elements of scores."""


@final
@dataclass(kw_only=True)
class Scores:
    """The scores of the objects of a file; grows while they are read.

    Attributes:
        what: what the file calls an object, in one word.
        values: the scores.
        keys: their names as the file writes them.
    """

    what: str
    values: list[float] = field(default_factory=list)
    keys: dict[str, None] = field(default_factory=dict)

    def add(self, key: str, value: object) -> None:
        """Add a value of an object, if it is the number of a score."""
        if fold(key) not in SCORE_NAMES or isinstance(value, bool):
            return
        number = xml_number(value) if isinstance(value, str) else finite_number(value)
        if not math.isnan(number):
            self.values.append(number)
            self.keys[key] = None

    def notes(self, path: Path, objects: int) -> Notes:
        """Return a note about scores that are not read.

        Args:
            path: the file.
            objects: number of its objects, for messages.

        Raises:
            DataError: the scores are between 0 and 1, as those of a detector.
        """
        if not self.values:
            return Notes()
        low, high = min(self.values), max(self.values)
        keys, some_of = some([*self.keys]), f"{len(self.values):,} of {counted(objects, self.what)}"
        if low >= 0 and high <= 1 and any(0 < value < 1 for value in self.values):
            raise DataError(
                f"{path}: there is a {keys} between 0 and 1 ({low:g} to {high:g}) in {some_of}, as in the results of a "
                f"detector, and predictions are not labels. To train on those that people have checked, keep the right "
                f"ones, and remove {keys} from them."
            )
        text = f"{path.resolve().name}: {keys} of {some_of} is not read"
        if low == high:
            return Notes(messages=(f"{text}: it is always {low:g}",))
        return Notes(
            warnings=(
                f"{text} ({low:g} to {high:g}). If a model gave it, these are predictions, which are not labels.",
            )
        )


def scores_of_records(what: str, records: Iterable[Mapping[str, Any]]) -> Scores:
    """Return the scores of objects of a JSON file, which are their keys or are among their `attributes`."""
    found = Scores(what=what)
    for record in records:
        for key, value in _values(record):
            found.add(key, value)
    return found


def _values(record: Mapping[str, Any]) -> Iterator[tuple[str, object]]:
    yield from ((key, record[key]) for key in record if fold(key) in SCORE_NAMES)
    if isinstance(attributes := record.get("attributes"), dict):
        yield from attributes.items()
