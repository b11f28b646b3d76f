"""Comparisons of loaded batches."""

import torch

from fewtags.photos.loader import Collate

PLAIN = Collate((0.0, 0.0, 0.0), (1.0, 1.0, 1.0))
COUNT = 11


def equal(first, second):
    """Bitwise."""
    fields = ("images", "labels", "index", "views")
    pairs = [(getattr(first, name), getattr(second, name)) for name in fields]
    pairs += list(zip(first.places or (), second.places or (), strict=True))
    return all(torch.equal(*pair) for pair in pairs)


def indices(loader_or_batches):
    return [batch.index.tolist() for batch in loader_or_batches]
