"""Batches that are made without a loader."""

from fewtags.photos.dataset import Failure


def collated(collate, samples):
    """A normalised batch, or the first failure among its samples."""
    stacked = collate.stack(samples)
    return stacked if isinstance(stacked, Failure) else collate.normalise(stacked)
