"""Tiny photos of one or two colours, and a tiny encoder."""

import numpy as np
import pytest
import torch
from PIL import Image

from fewtags.engine.distributed import make_accelerator
from fewtags.labels import ClassNames, Label
from fewtags.nets.encoder import create_encoder
from fewtags.photos.augment import WholeImage
from fewtags.table.table import LabelTable
from fewtags.transfer.task import make_task
from fewtags.transfer.training import ProbeContext

SIDE = 32
COLOURS = {"blue": (40, 60, 230), "green": (30, 200, 40), "red": (220, 30, 30)}


def paint(path, halves, seed=0):
    """A photo whose left and right half have these colours, with some noise."""
    rng = np.random.default_rng(seed)
    pixels = rng.integers(0, 20, (SIDE, SIDE, 3))
    for half, colour in zip((slice(0, SIDE // 2), slice(SIDE // 2, SIDE)), halves, strict=True):
        pixels[:, half] += np.array(COLOURS[colour])
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(pixels.clip(0, 255).astype(np.uint8)).save(path)


def single_table(folder, prefix, count):
    """Photo i has colour i mod 3, all over; complete labels."""
    keys = [f"{prefix}/{i}.png" for i in range(count)]
    for i, key in enumerate(keys):
        paint(folder / key, [list(COLOURS)[i % 3]] * 2, i)
    return LabelTable.build(
        keys, ClassNames.of(COLOURS), image=np.arange(count), class_=np.arange(count) % 3,
        state=np.full(count, Label.POSITIVE), complete_set=np.zeros(count, np.int16),
        complete_classes=np.ones((1, 3), np.bool_), root=folder,
    )  # fmt: skip


def multi_table(folder, prefix, count):
    """Photo i has the colours i mod 3 and, if i is odd, the next one; complete labels."""
    keys, cells = [f"{prefix}/{i}.png" for i in range(count)], []
    for i, key in enumerate(keys):
        present = [i % 3, (i + i % 2) % 3]
        paint(folder / key, [list(COLOURS)[c] for c in present], i)
        cells += [(i, c) for c in sorted(set(present))]
    image, class_ = np.array(cells).T
    return LabelTable.build(
        keys, ClassNames.of(COLOURS), image=image, class_=class_, state=np.full(len(image), Label.POSITIVE),
        complete_set=np.zeros(count, np.int16), complete_classes=np.ones((1, 3), np.bool_), root=folder,
    )  # fmt: skip


@pytest.fixture(scope="session")
def single(tmp_path_factory):
    folder = tmp_path_factory.mktemp("single")
    return make_task(single_table(folder, "train", 18), single_table(folder, "test", 9))


@pytest.fixture(scope="session")
def multi(tmp_path_factory):
    folder = tmp_path_factory.mktemp("multi")
    return make_task(multi_table(folder, "train", 18), multi_table(folder, "test", 12))


@pytest.fixture
def encoder():
    """Random weights; made anew for every test, because probes freeze it."""
    return create_encoder("test_resnet", weights="none", size=SIDE)


@pytest.fixture(scope="session")
def context():
    return ProbeContext(make_accelerator(cpu=True), WholeImage(SIDE))


@pytest.fixture(scope="session")
def cpu():
    return torch.device("cpu")
