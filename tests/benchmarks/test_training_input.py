"""The benchmark of the training input runs, and both competitors give batches of the same form."""

import importlib
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"
sys.path.insert(0, str(BENCHMARKS))
training_input = importlib.import_module("training_input")
sys.path.remove(str(BENCHMARKS))


@pytest.fixture
def files(tmp_path: Path) -> list[Path]:
    noise = np.random.default_rng(0).integers(0, 256, (3, 30, 40, 3), dtype=np.uint8)
    for n, pixels in enumerate(noise):
        Image.fromarray(pixels).save(tmp_path / f"{n}.jpg")
    return sorted(tmp_path.iterdir())


@pytest.mark.parametrize("policy", training_input.POLICIES)
def test_all_give_normalised_batches(files: list[Path], policy: str, tmp_path: Path) -> None:
    cached = training_input.of_fewtags(files, policy, 16, lambda _: tmp_path / "cache")
    plain = [make(files, policy, 16) for make in (training_input.of_torchvision, training_input.of_fewtags)]
    for competitor in (*plain, cached):
        batch = competitor([0, 2], 1)
        assert (batch.shape, batch.dtype) == ((2, 3, 16, 16), torch.float32)
        assert batch.mean().abs() < 1  # noise around the middle of 0 to 1, normalised
    assert len(list((tmp_path / "cache").rglob("*.rgb"))) == 2


def test_lines(files: list[Path], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["training_input.py", str(files[0].parent), "--side", "60", "--size", "16", "--rounds", "1"]
    monkeypatch.setattr(sys, "argv", words)
    monkeypatch.setattr(torch, "set_num_threads", lambda _: None)
    training_input.main()
    *lines, last = capsys.readouterr().out.splitlines()
    assert [line.split(":")[0] for line in lines] == ["imagenet"] * 4 + ["coco"] * 4
    assert all("CPU ms a photo" in line for line in lines)
    assert sum("times the photos per CPU second" in line for line in lines) == 6
    assert last.endswith("copies: 2 kB")  # 32 x 24 pixels
