"""Random views, labels and maps for heatmaps."""

import numpy as np
import torch

from fewtags.geometry import View
from fewtags.labels import Label

P, N, U = Label.POSITIVE, Label.NEGATIVE, Label.UNKNOWN
WHOLE = View.identity()
FLOAT16_STEP = 2**-11  # between neighbours in 0.5..1, the coarsest in 0..1


def random_labels(rng, samples, classes):
    return torch.from_numpy(rng.choice(np.array([P, N, U], np.int8), size=(samples, classes)))


def random_maps(rng, samples, classes, grid):
    return torch.from_numpy(rng.random((samples, classes, *grid), np.float32))


def filled(store, values):
    """The store with its rows set, as if every row and cell had been visited before."""
    store.values.copy_(values)
    store.visits.fill_(1)
    return store
