"""Loading for evaluation: every photo once, whole, and in order."""

import numpy as np
import pytest
from loaded import COUNT, PLAIN, equal, indices

from fewtags.errors import ConfigError
from fewtags.geometry import View
from fewtags.photos.augment import SquareCrop, WholeImage
from fewtags.photos.dataset import (
    EvalSet,
)
from fewtags.photos.decode import read_image
from fewtags.photos.loader import EvalLoader
from fewtags.photos.workers import Workers

# Python 3.12 and later warn of every fork of a process with threads.
pytestmark = pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning")


def test_evaluation_sees_the_whole_photo(photos, labels):
    data = EvalSet(photos, labels, SquareCrop(size=10))
    assert len(data) == COUNT
    sample = data[2]
    assert sample.view == View.identity()
    np.testing.assert_array_equal(sample.pixels, read_image(photos.path(2), size=(10, 10)))


@pytest.mark.parametrize("workers", [None, Workers(2)])
@pytest.mark.parametrize(("world", "size"), [(1, 4), (2, 4), (3, 1), (3, 100)])
def test_evaluation_takes_every_photo_once_in_order(photos, labels, world, size, workers):
    data = EvalSet(photos, labels, WholeImage(size=8))
    seen = []
    for rank in range(world):
        loader = EvalLoader(data, size, PLAIN, workers if size == 4 else None, rank=rank, world=world)
        batches = indices(loader)
        mine = list(range(rank, COUNT, world))
        assert batches == [mine[i : i + size] for i in range(0, len(mine), size)]
        assert len(loader) == len(batches)
        seen += [index for batch in batches for index in batch]
    assert sorted(seen) == list(range(COUNT))


def test_evaluation_of_a_rank_without_photos(photos, labels):
    data = EvalSet(photos, labels, WholeImage(size=8))
    assert list(EvalLoader(data, 4, PLAIN, rank=COUNT, world=COUNT + 1)) == []


def test_evaluation_can_be_repeated(photos, labels):
    loader = EvalLoader(EvalSet(photos, labels, WholeImage(size=8)), 4, PLAIN)
    assert all(equal(*pair) for pair in zip(loader, loader, strict=True))


def test_impossible_evaluation_batches(photos, labels):
    with pytest.raises(ConfigError, match=r"batch size 0 must be 1 or more\."):
        EvalLoader(EvalSet(photos, labels, WholeImage(size=8)), 0, PLAIN)
