"""One of two processes: trains the tiny loop in several ways, and a whole run, and saves what it ends with.

`two_processes_worker.py RANK FOLDER`; FOLDER holds `scenes`, a demo set.
"""

import dataclasses
import math
from pathlib import Path

import torch
from two_processes import load, main

from fewtags.config.parse import parse
from fewtags.demo_set import make_scenes
from fewtags.engine.evaluate import predict_logits
from fewtags.engine.events import Ended, EpochEnded, StepEnded
from fewtags.engine.methods import settings_models
from fewtags.engine.model import load_model, make_policy
from fewtags.engine.planning import make_plan
from fewtags.engine.tables import Tables
from fewtags.engine.train_run import TrainRun, open_run
from fewtags.errors import TrainingError
from fewtags.photos.dataset import EvalSet, PhotoFolder
from fewtags.photos.loader import Collate, EvalLoader

SAMPLES = 23  # 12 of one process, 11 of the other: batches of different sizes
EQUAL = {"samples": SAMPLES, "batchnorm_eval": True, "dropout": 0.0, "weight_ema": 0.9, "checkpoint_every_steps": 2}
TRAINED = {"weight_ema": 0.9, "accumulate": 2, "checkpoint_every_steps": 1}
CONFIG = {
    "data": {"train": "(tables in memory)"},
    "model": {"backbone": "test_resnet", "weights": "none"},
    "augment": {"size": 64},
    "objective": {"name": "expected_negative", "scl_weight": 0.3},
    "train": {
        "preset": "views", "workers": 0, "batch_size": 6, "cached_views": 2, "checkpoint_every_steps": 1,
        "stages": [{"name": "main", "epochs": 2, "lr": 1e-2, "trainable": "head"}],
    },
}  # fmt: skip


def end_of(fit, *, resume=False, stop=None):
    """What a fit ends with: nets, stores, and the records of its epochs."""
    found = []
    for event in fit.run(resume):
        if isinstance(event, EpochEnded):
            found.append({k: v for k, v in event.record.items() if k not in ("seconds", "cpu_seconds")})
        if isinstance(event, StepEnded) and event.global_step == stop:
            break
    held = {name: dict(part.state_dict()) for name, part in fit.parts.items()}
    held |= {"net": fit.net.state_dict(), "averaged": fit.averaged.state_dict()}
    return {"state": {name: {k: v.clone() for k, v in s.items()} for name, s in held.items()}, "records": found}


class BrokenOnOne:
    """Images that are NaN at the third step, on rank 1 only."""

    def __init__(self, source, rank):
        self.source, self.rank = source, rank

    @property
    def steps_per_epoch(self):
        return self.source.steps_per_epoch

    def batches(self, epoch, start):
        for step, batch in enumerate(self.source.batches(epoch, start), start):
            bad = self.rank == 1 and step == 2
            yield dataclasses.replace(batch, images=batch.images * math.nan) if bad else batch


def fits(folder, shard):
    """The loop: whole, left and resumed, with BatchNorm in training mode, with a layer of the objective's, and with a
    loss that is not a number.
    """
    tiny = load(Path(__file__).with_name("fit_worker.py"))
    whole = end_of(tiny.make_fit(folder / "whole", shard=shard, **EQUAL))
    end_of(tiny.make_fit(folder / "left", shard=shard, **EQUAL), stop=9)
    resumed = end_of(tiny.make_fit(folder / "left", shard=shard, net_seed=5, **EQUAL), resume=True)
    trained = end_of(tiny.make_fit(folder / "trained", shard=shard, **TRAINED))
    end_of(tiny.make_fit(folder / "trained and left", shard=shard, **TRAINED), stop=5)
    back = end_of(tiny.make_fit(folder / "trained and left", shard=shard, net_seed=5, **TRAINED), resume=True)
    layer = end_of(tiny.make_fit(None, shard=shard, objective=tiny.OwnLayer(0), **EQUAL))
    broken = tiny.make_fit(None, shard=shard, validate=False, **TRAINED)
    broken.source = BrokenOnOne(broken.source, shard.rank)
    try:
        end_of(broken)
    except TrainingError as error:
        stopped = str(error)
    return {
        "whole": whole, "resumed": resumed, "trained": trained, "trained and resumed": back, "stopped": stopped,
        "layer": layer,
    }  # fmt: skip


def runs(folder, shard):
    """A run in a folder, one that is left and resumed, and logits of fewer photos than processes."""
    scenes = make_scenes(folder / "scenes", train=24, val=11, test=5, size=64, seed=0)
    tables = Tables(scenes.train, scenes.val, scenes.test, scenes.train_truth)
    config = parse(CONFIG, settings_models(), "the test")
    at_once = False
    for name, stop in (("run", None), ("left run", 3)):
        for event in TrainRun(make_plan(config, tables=tables, cpu=True), folder / name, cpu=True).start():
            at_once |= isinstance(event, Ended) and (folder / name / "model.safetensors").exists()
            if isinstance(event, StepEnded) and event.global_step == stop:
                break
    for _ in open_run(folder / "left run", cpu=True).resume():
        pass
    net, info = load_model(folder / "run")
    one = scenes.val.subset([3])
    data = EvalSet(PhotoFolder(one.root, one.images), one.matrix, make_policy(info.policy, info.size))
    loader = EvalLoader(data, 4, Collate(info.mean, info.std), rank=shard.rank, world=shard.world)
    logits = predict_logits(net, loader, 1, torch.device("cpu"), shard)
    return {"one photo": torch.from_numpy(logits), "model at once": at_once}


def rare(folder):
    """Runs whose validation labels have no negatives, so that training scores help to choose thresholds."""
    scenes = make_scenes(folder / "scenes", train=24, val=11, test=5, size=64, seed=0)
    tables = Tables(scenes.train, scenes.train.subset(range(3)))
    for name, trainable in (("frozen", "head"), ("moving", "all")):
        stages = [{"name": "main", "epochs": 1, "lr": 1e-2, "trainable": trainable}]
        train = CONFIG["train"] | {"stages": stages, "cached_views": 0 if trainable == "all" else 1}
        config = parse(CONFIG | {"train": train}, settings_models(), "the test")
        for _ in TrainRun(make_plan(config, tables=tables, cpu=True), folder / name, cpu=True).start():
            pass
    return {}


if __name__ == "__main__":
    main(lambda folder, shard: fits(folder, shard) | runs(folder, shard) | rare(folder))
