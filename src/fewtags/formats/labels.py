"""The labels that an annotation file states, as arrays and as a list that grows."""

from __future__ import annotations

import math
from array import array
from dataclasses import dataclass
from typing import final

import numpy as np
from numpy.typing import NDArray

from fewtags.formats.common import NO_CORNERS, Corners, Point, distinct
from fewtags.formats.masks import Outline, draws
from fewtags.formats.options import ReadOptions
from fewtags.labels import Label

_NO_REGION, _BOX, _POINT = range(3)


@final
class Stated:
    """A list of stated labels, 60 bytes each.

    A file can also state that a label is unknown: its cell stays unknown in an otherwise completely annotated image.
    `origins` has the name of each label for messages, if the reader gives it.
    """

    def __init__(self, options: ReadOptions | None = None) -> None:
        """Make an empty list; `options` say whether points are drawn in outlines."""
        self.origins: list[str] = []
        self._options = options or ReadOptions()
        self._inner: dict[int, Point] = {}
        self._image, self._class, self._state = array("q"), array("q"), array("b")
        self._region, self._corners, self._source = array("b"), array("d"), array("q")
        self._unread: list[tuple[int, str]] = []

    def __len__(self) -> int:
        return len(self._image)

    def add(
        self,
        image: int,
        class_: int,
        *,
        state: Label = Label.POSITIVE,
        box: Corners | None = None,
        point: Point | None = None,
        source: int = 0,
        outline: Outline | None = None,
        unread: str = "",
        origin: str | None = None,
    ) -> None:
        """Append one label, see `Labels`.

        The region is a box x0, y0, x1, y1 (NaN if its numbers are broken) or a point x, y. If points are drawn, one is
        drawn in `outline`; it depends on `origin`. `unread` is why a region cannot be read, `origin` is the name of the
        label in the excluded list.
        """
        if outline is not None and self._options.draws_points:
            draw = draws(self._options.point_seed, origin or f"label {len(self)}")
            self._inner[len(self)] = outline.point(draw) or (math.inf, math.inf)
        if unread:
            self._unread.append((len(self), unread))
        self._image.append(image)
        self._class.append(class_)
        self._state.append(state)
        self._region.append(_POINT if point is not None else _NO_REGION if box is None else _BOX)
        self._corners.extend(point * 2 if point is not None else box or NO_CORNERS)
        self._source.append(source)
        if origin is not None:
            self.origins.append(origin)

    def labels(self) -> Labels:
        """Return the labels as arrays."""
        region = np.array(self._region, np.int8)
        inner = np.full((len(self), 2), np.nan) if self._inner else None
        if inner is not None:
            inner[[*self._inner]] = [*self._inner.values()]
        return Labels(
            image=np.array(self._image, np.int64),
            class_=np.array(self._class, np.int64),
            state=np.array(self._state, np.int8),
            corners=np.array(self._corners, np.float64).reshape(-1, 4),
            located=region != _NO_REGION,
            point=region == _POINT,
            source=np.array(self._source, np.int64),
            unread=tuple(self._unread),
            inner=inner,
        )


@final
@dataclass(frozen=True, kw_only=True)
class Labels:
    """F stated labels as arrays.

    Attributes:
        image: int64 [F], position of the image in the file's list of image names.
        class_: int64 [F], position of the class.
        state: int8 [F], values of `Label`.
        corners: float64 [F, 4] x0, y0, x1, y1 of a box or, twice, x, y of a point; NaN without a region.
        located: bool [F], whether there is a region.
        point: bool [F], whether the region is a point.
        source: int64 [F], position in `Source.sources`.
        unread: labels with a region that cannot be read: position, and why.
        inner: float64 [F, 2], a random point x, y in the outline of each object: NaN without an outline, infinite if
            the outline has no pixel; None: no label has an outline, or no points are drawn.
    """

    image: NDArray[np.int64]
    class_: NDArray[np.int64]
    state: NDArray[np.int8]
    corners: NDArray[np.float64]
    located: NDArray[np.bool_]
    point: NDArray[np.bool_]
    source: NDArray[np.int64]
    unread: tuple[tuple[int, str], ...] = ()
    inner: NDArray[np.float64] | None = None

    @classmethod
    def of_images(cls, image: NDArray[np.int64], class_: NDArray[np.int64], state: NDArray[np.int8]) -> Labels:
        """Return labels without regions. Their corners take no memory."""
        corners = np.broadcast_to(np.float64(np.nan), (len(image), 4))
        none, source = np.zeros(len(image), np.bool_), np.zeros(len(image), np.int64)
        return cls(image=image, class_=class_, state=state, corners=corners, located=none, point=none, source=source)

    def count_unnamed(self, images: int, classes: int) -> int:
        """Return the number of cells of an image and a class about which nothing is stated."""
        return images * classes - len(distinct(self.image * classes + self.class_))
