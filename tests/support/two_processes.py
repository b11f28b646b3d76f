"""Two processes of one group on this machine, and what each of them ends with.

A test calls `both(worker, folder)`; the worker is a script beside it that ends with `main(function)`.
"""

import gc
import importlib.util
import multiprocessing
import os
import runpy
import sys
import time
import traceback
import warnings
from pathlib import Path

import torch
import torch.distributed as dist
from accelerate.state import AcceleratorState

from fewtags.stores.shard import Shard


def load(path):
    """The module in a file, which need not be on any path."""
    spec = importlib.util.spec_from_file_location(path.stem, path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def both(worker, folder, timeout=250):
    """Run a script as rank 0 and rank 1 in a folder; what each of them saved there.

    The processes are forked: a new interpreter needs several seconds until it has imported torch.
    """
    context = multiprocessing.get_context("fork")
    ranks = [context.Process(target=_run, args=(worker, rank, folder)) for rank in range(2)]
    try:
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", message=".*multi-threaded.*fork", category=DeprecationWarning)
            for rank in ranks:
                rank.start()
        until = time.monotonic() + timeout
        for rank in ranks:
            rank.join(max(0.0, until - time.monotonic()))
    finally:
        for rank in ranks:
            rank.kill()
            rank.join()
    codes = [rank.exitcode for rank in ranks]
    assert codes == [0, 0], [(folder / f"{rank}.log").read_text()[-3000:] for rank in range(2)]
    return [torch.load(folder / f"{rank}.pt", weights_only=True) for rank in range(2)]


def _run(worker, rank, folder):
    """In the forked process: nothing of the parent's training is left, and the script runs as in a new interpreter."""
    with (folder / f"{rank}.log").open("w", buffering=1) as sys.stderr:
        os.dup2(sys.stderr.fileno(), 2)
        warnings.simplefilter("error")
        AcceleratorState._reset_state(reset_partial_state=True)
        sys.argv = [str(worker), str(rank), str(folder)]
        try:
            runpy.run_path(str(worker), run_name="__main__")
        except BaseException:
            traceback.print_exc()
            os._exit(1)
        os._exit(0)  # without the parent's exit handlers


def main(function):
    """In the script: join the group, and save what `function(folder, shard)` returns."""
    torch.set_num_threads(1)
    gc.freeze()  # every stage collects garbage, and looking through all of torch takes longer than a stage
    rank, folder = int(sys.argv[1]), Path(sys.argv[2])
    os.environ |= {"RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": "2", "LOCAL_WORLD_SIZE": "2"}
    dist.init_process_group("gloo", store=dist.FileStore(str(folder / "rendezvous"), 2), rank=rank, world_size=2)
    torch.save(function(folder, Shard(rank, 2)), folder / f"{rank}.pt")
    dist.destroy_process_group()
