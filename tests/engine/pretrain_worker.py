"""One of two processes: pretrains whole, and interrupted and resumed; saves what it ends with."""

from pathlib import Path

import torch
from two_processes import main

from fewtags.engine.events import EpochEnded, StepEnded
from fewtags.engine.methods import read_pretrain_settings
from fewtags.engine.pretrain_plan import make_pretrain_plan
from fewtags.engine.pretrain_run import PretrainRun, open_pretrain_run
from fewtags.engine.tensor_files import load_part

TREE = {
    "model": {"backbone": "test_resnet"},
    "augment": {"size": 32},
    "objective": {"name": "mls", "k": 2, "queue_size": 9, "projection_dim": 8, "momentum": 0.9},
    "train": {"epochs": 2, "batch_size": 4, "lr": 0.05, "workers": 0, "checkpoint_every_steps": 1},
}


def finish(events, stop=None):
    found = []
    for event in events:
        if isinstance(event, EpochEnded):
            found.append({k: v for k, v in event.record.items() if k not in ("seconds", "cpu_seconds")})
        if isinstance(event, StepEnded) and event.global_step == stop:
            break
    return found


def parts_of(out, rank):
    """What this process checkpointed last."""
    (folder,) = (out / "checkpoints").glob(f"step-*/parts-{rank}")
    names = ("queues", "neighbours", "projector", "follower")
    return {name: {k: torch.as_tensor(v).clone() for k, v in load_part(folder, name).items()} for name in names}


def work(folder: Path, shard):
    def plan():
        tree = {**TREE, "data": {"train": str(folder / "photos")}}
        return make_pretrain_plan(read_pretrain_settings(tree, "test"), cpu=True, processes=2)

    whole, stopped = folder / "whole", folder / "stopped"
    records = finish(PretrainRun(plan(), whole, cpu=True).start())
    finish(PretrainRun(plan(), stopped, cpu=True).start(), 3)
    resumed = finish(open_pretrain_run(stopped, cpu=True).resume())
    return {
        "records": records,
        "resumed": resumed,
        "whole": parts_of(whole, shard.rank),
        "again": parts_of(stopped, shard.rank),
    }


if __name__ == "__main__":
    main(work)
