"""Tensors in files: the same bits come back, and damage is reported."""

import os

import numpy as np
import pytest
import torch

from fewtags.engine import tensor_files
from fewtags.engine.tensor_files import load_part, load_pickled, load_tensors, save_part, save_tensors
from fewtags.errors import CheckpointError


def test_tensors_come_back_with_their_bits(tmp_path):
    tensors = {
        "a": torch.randn(2, 3, 4, 5).to(memory_format=torch.channels_last),
        "b": torch.tensor(3),
        "c.d": torch.eye(2)[:, 1],
    }
    save_tensors(tmp_path / "x.safetensors", tensors, {"ä": "ü"})
    loaded = load_tensors(tmp_path / "x.safetensors")
    assert loaded.keys() == tensors.keys()
    assert all(torch.equal(loaded[key], value) for key, value in tensors.items())
    assert [p.name for p in tmp_path.iterdir()] == ["x.safetensors"]


@pytest.mark.parametrize("stream", [0, 10**9], ids=["streamed", "together"])
def test_a_part_comes_back_with_its_bits(tmp_path, monkeypatch, stream):
    """Also what does not fit into one file, scalars, and other parts with a name that begins alike."""
    monkeypatch.setattr(tensor_files, "STREAM_BYTES", stream)
    state = {
        "values": torch.randn(5, 3),
        "visits": torch.arange(5),
        "head.weight": torch.ones(2).half(),
        "n": 3,
        "none": torch.zeros(0, 4),
    }
    save_part(tmp_path, "scores", state)
    save_part(tmp_path, "scores2", {"values": torch.zeros(1)})
    loaded = load_part(tmp_path, "scores")
    assert loaded.keys() == state.keys()
    assert loaded.pop("n") == state.pop("n")
    for key, value in state.items():
        assert loaded[key].dtype == value.dtype
        assert torch.equal(loaded[key], value)
    assert (tmp_path / "scores.values.npy").exists() == (stream == 0)


def test_nothing_that_is_loaded_writes_into_the_checkpoint(tmp_path, monkeypatch):
    monkeypatch.setattr(tensor_files, "STREAM_BYTES", 0)
    save_part(tmp_path, "scores", {"values": torch.zeros(4)})
    load_part(tmp_path, "scores")["values"] += 1
    assert np.load(tmp_path / "scores.values.npy").tolist() == [0, 0, 0, 0]


def test_a_memory_mapped_tensor_can_be_saved(tmp_path, monkeypatch):
    monkeypatch.setattr(tensor_files, "STREAM_BYTES", 0)
    mapped = torch.from_numpy(np.memmap(tmp_path / "map.bin", np.uint8, "w+", shape=(2, 3)))
    mapped += 7
    save_part(tmp_path, "heatmaps", {"values": mapped})
    assert load_part(tmp_path, "heatmaps")["values"].tolist() == [[7] * 3] * 2


@pytest.mark.parametrize(
    "damage", [lambda b: b[:-9], lambda b: b"", lambda b: b"nonsense"], ids=["cut", "empty", "other"]
)
def test_a_damaged_streamed_tensor_is_named(tmp_path, monkeypatch, damage):
    monkeypatch.setattr(tensor_files, "STREAM_BYTES", 0)
    save_part(tmp_path, "scores", {"values": torch.zeros(40)})
    file = tmp_path / "scores.values.npy"
    file.write_bytes(damage(file.read_bytes()))
    with pytest.raises(CheckpointError, match=r"scores\.values\.npy cannot be read \(.+\); restore it, or start"):
        load_part(tmp_path, "scores")


def test_a_pickle_is_never_run(tmp_path):
    class Evil:
        def __reduce__(self):
            return (os.mkdir, (str(tmp_path / "evil"),))

    torch.save({"x": Evil()}, tmp_path / "x.pt")
    with pytest.raises(CheckpointError, match=r"x\.pt cannot be read"):
        load_pickled(tmp_path / "x.pt")
    assert not (tmp_path / "evil").exists()
