"""Photos that cannot be read while training, and settings that are refused."""

import pytest
from batches import collated
from loaded import COUNT, PLAIN

from fewtags.errors import ConfigError, DataError
from fewtags.photos.augment import SquareCrop, WholeImage
from fewtags.photos.dataset import (
    EvalSet,
    Failure,
    PhotoFolder,
    TrainSet,
)
from fewtags.photos.decode import read_image
from fewtags.photos.loader import EpochSampler, EvalLoader, TrainLoader
from fewtags.photos.workers import Workers

# Python 3.12 and later warn of every fork of a process with threads.
pytestmark = pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning")


# Errors


@pytest.fixture
def broken(photos, tmp_path):
    """The same photos, number 6 of which is cut off."""
    for index in range(COUNT):
        path = tmp_path / photos.keys[index].as_py()
        path.parent.mkdir(exist_ok=True)
        content = photos.path(index).read_bytes()
        path.write_bytes(content[: len(content) // 2] if index == 6 else content)
    return PhotoFolder(tmp_path, photos.keys)


@pytest.mark.parametrize("workers", [None, Workers(2)], ids=["alone", "two workers"])
def test_an_unreadable_photo_is_named(broken, labels, workers):
    """torch would put a traceback into the message of an error that comes from a worker."""
    with pytest.raises(DataError) as expected:
        read_image(broken.path(6))
    loader = TrainLoader(
        TrainSet(photos=broken, labels=labels, policy=SquareCrop(size=8)), EpochSampler(COUNT, 4), PLAIN, workers
    )
    with pytest.raises(DataError) as caught:
        list(loader.batches(0))
    assert str(caught.value) == str(expected.value)
    assert str(caught.value).startswith(f"{broken.path(6)}: ")
    with pytest.raises(DataError) as caught:
        list(EvalLoader(EvalSet(broken, labels, WholeImage(size=8)), 4, PLAIN, workers))
    assert str(caught.value) == str(expected.value)


def test_batches_before_the_unreadable_photo_are_good(broken, labels):
    loader = EvalLoader(EvalSet(broken, labels, WholeImage(size=8)), 4, PLAIN)
    assert next(iter(loader)).index.tolist() == [0, 1, 2, 3]


def test_a_data_set_gives_a_failure_in_place_of_a_sample(broken, labels):
    failure = TrainSet(photos=broken, labels=labels, policy=SquareCrop(size=8))[0, 6]
    assert isinstance(failure, Failure)
    assert collated(PLAIN, [EvalSet(broken, labels, WholeImage(size=8))[1], failure]) is failure


def test_the_pixel_limit_holds(photos, labels, monkeypatch):
    monkeypatch.setenv("FEWTAGS_PIXEL_LIMIT", "100")
    failure = EvalSet(photos, labels, WholeImage(size=8))[0]
    assert isinstance(failure, Failure)
    assert "more than the limit of 0.0 million" in failure.message


class Bug:
    """A policy with a mistake of ours in it."""

    size = 8

    def sample(self, rng, aspect):
        raise KeyError("a bug")


@pytest.mark.parametrize("workers", [None, Workers(1)])
def test_our_own_bugs_keep_their_type(photos, labels, workers):
    loader = TrainLoader(TrainSet(photos=photos, labels=labels, policy=Bug()), EpochSampler(COUNT, 4), PLAIN, workers)
    with pytest.raises(KeyError, match="a bug"):
        list(loader.batches(0))


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: EpochSampler(10, 0), "batch size 0 must be 1 or more."),
        (lambda: EpochSampler(0, 4), "0 training images cannot be shared by 1 processes; add images or use fewer."),
        (
            lambda: EpochSampler(3, 4, rank=1, world=4),
            "3 training images cannot be shared by 4 processes; add images or use fewer.",
        ),
    ],
)
def test_impossible_settings(make, message):
    with pytest.raises(ConfigError) as caught:
        make()
    assert str(caught.value) == message
