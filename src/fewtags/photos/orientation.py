"""EXIF orientation as a `View`: how a viewer rotates and flips the pixels of a file.

The *stored* frame is the pixel grid in the file; the *displayed* frame is what a viewer shows. Label tables use only
the displayed frame.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from fewtags.geometry import View

# Tag 274 gives the side of the displayed photo on which the stored row 0 and column 0 are. For example, 6 is "row 0 at
# the right, column 0 at the top", hence y = 1 - u and x = v (Exif 2.32, section 4.6.4).
_VIEWS = {
    1: View.identity(),
    2: View((-1.0, 0.0, 1.0, 0.0, 1.0, 0.0)),
    3: View((-1.0, 0.0, 1.0, 0.0, -1.0, 1.0)),
    4: View((1.0, 0.0, 0.0, 0.0, -1.0, 1.0)),
    5: View((0.0, 1.0, 0.0, 1.0, 0.0, 0.0)),
    6: View((0.0, 1.0, 0.0, -1.0, 0.0, 1.0)),
    7: View((0.0, -1.0, 1.0, -1.0, 0.0, 1.0)),
    8: View((0.0, -1.0, 1.0, 1.0, 0.0, 0.0)),
}


def orientation_view(orientation: int) -> View:
    """Return the map from the displayed frame (u, v) to the stored frame (x, y) of an EXIF orientation.

    Values outside 1..8 occur in practice (mostly 0) and mean "as stored", as in every viewer.

    >>> orientation_view(6).to_image(np.array([[1.0, 0.0]])).tolist()  # the displayed top right is the stored top left
    [[0.0, 0.0]]
    """
    return _VIEWS.get(orientation, _VIEWS[1])


def swaps_axes(orientation: int) -> bool:
    """Whether width and height are exchanged between the stored and the displayed frame."""
    return 5 <= orientation <= 8


def boxes_to_displayed(boxes: NDArray[np.float64], orientation: int) -> NDArray[np.float64]:
    """Map boxes [n, 4] (x0, y0, x1, y1 in 0..1) of the stored frame to the displayed frame."""
    return orientation_view(orientation).boxes_to_crop(boxes)[0]
