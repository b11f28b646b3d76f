"""Photos and labels for the tests of loading."""

import numpy as np
import pyarrow as pa
import pytest
from loaded import COUNT
from PIL import Image

from fewtags.labels import LabelMatrix
from fewtags.photos.augment import SquareCrop
from fewtags.photos.dataset import (
    PhotoFolder,
    TrainSet,
)


@pytest.fixture(scope="module")
def photos(tmp_path_factory):
    """Eleven small photos of several shapes, one of them turned by EXIF."""
    root = tmp_path_factory.mktemp("photos")
    draw = np.random.default_rng(0)
    turned = Image.Exif()
    turned[274] = 6
    keys = [f"{'ab'[i % 2]}/{i}.{('jpg', 'png')[i % 2]}" for i in range(COUNT)]
    for i, key in enumerate(keys):
        (root / key).parent.mkdir(exist_ok=True)
        pixels = draw.integers(0, 256, (20 + i, 40 - i, 3), dtype=np.uint8)
        Image.fromarray(pixels).save(root / key, exif=turned if i == 4 else Image.Exif())
    return PhotoFolder(root, pa.array(keys))


@pytest.fixture(scope="module")
def labels():
    dense = np.random.default_rng(1).integers(-1, 2, (COUNT, 4)).astype(np.int8)
    return LabelMatrix.from_dense(dense)


@pytest.fixture(scope="module")
def data(photos, labels):
    return TrainSet(photos=photos, labels=labels, policy=SquareCrop(size=12), seed=7)
