"""Small label tables by their rows of states."""

import numpy as np

from fewtags.labels import ClassNames
from fewtags.table.table import LabelTable

CLASSES = ClassNames.of(["a", "b", "c", "d"])


def from_rows(rows, prefix="x", root=None):
    """A table of dense rows; 1, -1 and 0."""
    dense = np.array(rows, np.int8).reshape(-1, len(CLASSES))
    image, class_ = np.nonzero(dense)
    keys = [f"{prefix}{i}.jpg" for i in range(len(dense))]
    return LabelTable.build(keys, CLASSES, image=image, class_=class_, state=dense[image, class_], root=root)


SINGLE = [[1, 0, 0, 0], [0, 1, 0, 0]]
