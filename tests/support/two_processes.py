"""Two processes of one group on this machine, and what each of them ends with.

A test calls `both(worker, folder)`; the worker is a script beside it that ends with `main(function)`.
"""

import gc
import importlib.util
import os
import subprocess
import sys
from contextlib import ExitStack
from pathlib import Path

import torch
import torch.distributed as dist

from fewtags.stores.shard import Shard


def load(path):
    """The module in a file, which need not be on any path."""
    spec = importlib.util.spec_from_file_location(path.stem, path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def both(worker, folder, timeout=250):
    """Run a script as rank 0 and rank 1 in a folder; what each of them saved there."""
    paths = os.pathsep.join([str(Path(__file__).parent), os.environ.get("PYTHONPATH", "")]).rstrip(os.pathsep)
    with ExitStack() as stack:
        logs = [stack.enter_context((folder / f"{rank}.log").open("w")) for rank in range(2)]
        ranks = [
            subprocess.Popen(
                [sys.executable, "-W", "error", str(worker), str(rank), str(folder)],
                env=os.environ | {"OMP_NUM_THREADS": "1", "PYTHONPATH": paths},
                stderr=log,
            )
            for rank, log in enumerate(logs)
        ]
        try:
            codes = [rank.wait(timeout=timeout) for rank in ranks]
        finally:
            for rank in ranks:
                rank.kill()
                rank.wait()
    assert codes == [0, 0], [(folder / f"{rank}.log").read_text()[-3000:] for rank in range(2)]
    return [torch.load(folder / f"{rank}.pt", weights_only=True) for rank in range(2)]


def main(function):
    """In the script: join the group, and save what `function(folder, shard)` returns."""
    torch.set_num_threads(1)
    gc.freeze()  # every stage collects garbage, and looking through all of torch takes longer than a stage
    rank, folder = int(sys.argv[1]), Path(sys.argv[2])
    os.environ |= {"RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": "2", "LOCAL_WORLD_SIZE": "2"}
    dist.init_process_group("gloo", store=dist.FileStore(str(folder / "rendezvous"), 2), rank=rank, world_size=2)
    torch.save(function(folder, Shard(rank, 2)), folder / f"{rank}.pt")
    dist.destroy_process_group()
