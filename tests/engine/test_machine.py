"""What a run may know about the machine."""

import shutil
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from fewtags.engine.machine import free_disk, share_of_images


@pytest.mark.parametrize(
    ("device", "world", "here", "share"),
    [
        ("cpu", None, None, 1.0),
        ("cuda", None, None, 1.0),
        ("cpu", "4", None, 1.0),  # nobody says how many machines there are: all processes may be on this one
        ("cpu", "4", "4", 1.0),
        ("cpu", "8", "2", 0.25),
        ("cuda", "8", "2", 0.125),
    ],
)
def test_how_much_of_the_rows_lies_in_one_memory(monkeypatch, device, world, here, share):
    for name, value in (("WORLD_SIZE", world), ("LOCAL_WORLD_SIZE", here)):
        if value is None:
            monkeypatch.delenv(name, raising=False)
        else:
            monkeypatch.setenv(name, value)
    assert share_of_images(torch.device(device)) == share


def test_free_space_is_that_of_the_folder_that_will_hold_it(monkeypatch, tmp_path):
    """The folder itself does not exist yet; a relative path is one of the working directory."""
    asked = []

    def usage(path):
        asked.append(path)
        return SimpleNamespace(free=1)

    monkeypatch.setattr(shutil, "disk_usage", usage)
    monkeypatch.chdir(tmp_path)
    (tmp_path / "runs").mkdir()
    assert free_disk(tmp_path / "runs" / "a" / "b") == 1
    assert free_disk(Path("runs/x")) == 1
    assert asked == [tmp_path / "runs", tmp_path / "runs"]
