"""The tags of photos, as `Classifier.predict` returns them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, final

import numpy as np
from numpy.typing import NDArray

from fewtags.labels import ClassNames
from fewtags.notebook import data_frame, html_table, photo_frame
from fewtags.text import counted


@final
@dataclass(frozen=True, eq=False, repr=False, kw_only=True)
class Predictions:
    """The tags of n photos. It behaves as a list with a list of class ids, best first, for each photo.

    Attributes:
        photos: n names; paths, or image-0001 and so on for images in memory.
        tags: n lists of class ids.
        prob: float64 [n, C].
        classes: the vocabulary.
        thresholds: float64 [C].
    """

    photos: tuple[str, ...]
    tags: tuple[list[str], ...]
    prob: NDArray[np.float64]
    classes: ClassNames
    thresholds: NDArray[np.float64]

    def __len__(self) -> int:
        return len(self.tags)

    def __iter__(self) -> Iterator[list[str]]:
        return iter(self.tags)

    def __getitem__(self, index: int | slice) -> Any:
        return list(self.tags)[index]

    def __eq__(self, other: object) -> bool:
        """Whether the tags are those of a list or of other predictions."""
        if not isinstance(other, list | tuple | Predictions):
            return NotImplemented
        return [*self] == [*other]

    __hash__ = None  # type: ignore[assignment]  # equal to lists, which have no hash

    def to_pandas(self, *, wide: bool = False) -> Any:
        """Return a DataFrame with a row per tag (image, class, name, probability, threshold), as `fewtags predict`.

        With `wide`, it has a row per photo, and a column with the probability of each class after the column image.
        Raises ConfigError if pandas is not installed.
        """
        if wide:
            return photo_frame(self.photos, dict(zip(self.classes.ids, self.prob.T, strict=True)))
        rows = [*self._rows()]
        names = ("image", "class", "name", "probability", "threshold")
        return data_frame({name: [row[n] for row in rows] for n, name in enumerate(names)})

    def _rows(self) -> Iterator[tuple[str, str, str, float, float]]:
        for image, tags, prob in zip(self.photos, self.tags, self.prob, strict=True):
            for tag in tags:
                c = self.classes.index(tag)
                yield image, tag, self.classes.display[c], float(prob[c]), float(self.thresholds[c])

    def __repr__(self) -> str:
        tags = sum(map(len, self.tags))
        return f"Predictions({counted(len(self), 'photo')}, {counted(len(self.classes), 'class', 'classes')}, " + (
            f"{counted(tags, 'tag')})"
        )

    def _repr_html_(self) -> str:
        rows = [
            (image, ", ".join(f"{self.classes.display[c]} {prob[c]:.2f}" for c in map(self.classes.index, tags)))
            for image, tags, prob in zip(self.photos, self.tags, self.prob, strict=True)
        ]
        return html_table(repr(self), ("photo", "tags with probability"), rows)
