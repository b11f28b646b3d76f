"""Features and fine-tuning in two processes: both end with the same, and nothing is lost or out of place."""

from pathlib import Path

import numpy as np
import pytest
import torch
from two_processes import both, load

from fewtags.nets.encoder import create_encoder
from fewtags.photos.augment import WholeImage
from fewtags.transfer.features import photo_features

WORKER = Path(__file__).with_name("two_processes_worker.py")


@pytest.fixture(scope="module")
def results(tmp_path_factory):
    return both(WORKER, tmp_path_factory.mktemp("two"))


def test_both_end_with_the_same(results):
    first, second = results
    for key, value in first.items():
        assert torch.equal(value, second[key]), key


def test_every_photo_is_seen_once_and_in_order(results, tmp_path, cpu):
    made, worker = (load(WORKER.with_name(name)) for name in ("conftest.py", WORKER.name))
    table = made.single_table(tmp_path, "train", worker.TRAIN)
    encoder = create_encoder("test_resnet", weights="none", size=made.SIDE)
    alone = photo_features(encoder, table, WholeImage(made.SIDE), cpu)
    np.testing.assert_allclose(results[0]["features"].numpy(), alone, rtol=1e-4, atol=1e-6)


def test_the_network_has_learned(results):
    """Test photo i has class i mod 3; chance is 1/3."""
    right = results[0]["scores"].argmax(1) == torch.arange(9) % 3
    assert right.float().mean() > 0.6
