"""Two processes pretrain one encoder: the same queues on both, one owner of every image, resume to the same bits."""

from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from safetensors.torch import load_file
from two_processes import both

PHOTOS = 15  # 8 of one process, 7 of the other: batches of different sizes


@pytest.fixture(scope="module")
def ended(tmp_path_factory):
    folder, rng = tmp_path_factory.mktemp("two"), np.random.default_rng(0)
    (folder / "photos").mkdir()
    for n in range(PHOTOS):
        Image.fromarray(rng.integers(0, 255, (40, 50, 3), np.uint8)).save(folder / "photos" / f"{n:02}.png")
    return folder, both(Path(__file__).with_name("pretrain_worker.py"), folder)


def test_queues_and_projector_are_the_same_on_both(ended):
    """2 epochs of 15 images through 9 slots: filled, and 30 mod 9 = 3 ahead."""
    _, (one, two) = ended
    for part in ("queues", "projector"):
        for name, value in one["whole"][part].items():
            assert torch.equal(value, two["whole"][part][name]), (part, name)
    assert int(one["whole"]["queues"]["pointer"]) == 30 % 9
    assert int(one["whole"]["queues"]["filled"]) == 9
    assert len(set(one["whole"]["queues"]["ids"].tolist())) == 9


def test_momentum_encoders_have_the_same_weights(ended):
    """Their BatchNorm statistics are each one's own."""
    _, (one, two) = ended
    for name, value in one["whole"]["follower"].items():
        if "running" not in name and "tracked" not in name:
            assert torch.equal(value, two["whole"]["follower"][name]), name


def test_every_image_has_its_neighbours_from_its_own_process(ended):
    folder, results = ended
    found = np.load(folder / "whole" / "neighbours.npy")
    assert found.shape == (PHOTOS, 2)
    for rank, result in enumerate(results):
        assert np.array_equal(found[rank::2], result["whole"]["neighbours"]["ids"].numpy())
    assert not (found == np.arange(PHOTOS)[:, None]).all()


def test_records_are_means_over_both(ended):
    _, (one, two) = ended
    assert one["records"] == two["records"]
    assert len(one["records"]) == 2


def test_an_interrupted_run_has_the_same_bits(ended):
    folder, results = ended
    for result in results:
        assert result["resumed"][-1] == result["records"][-1]
        for part, values in result["whole"].items():
            assert all(torch.equal(value, result["again"][part][name]) for name, value in values.items()), part
    one, two = (load_file(folder / name / "encoder.safetensors") for name in ("whole", "stopped"))
    assert all(torch.equal(value, two[name]) for name, value in one.items())
