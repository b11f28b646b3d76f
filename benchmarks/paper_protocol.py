"""A paper's own protocol on its own data: buy, train, measure, and print the tables beside the published numbers.

    python benchmarks/paper_protocol.py benchmarks/protocols/mscoco.toml --data /data/coco --out mscoco.jsonl

trains every budget, type, method and seed of the file that `--out` does not have yet, one after the other, and then
prints the tables of `budget_table.py`. An interrupted run goes on from its last checkpoint. `--only`, `--seeds` and
another `--out` spread the runs over several GPUs; `python benchmarks/budget_table.py *.jsonl` joins them. `--set
key=value` replaces what the file says. What is the paper's and what is our reading: docs/paper_protocols.md.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import statistics
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from budget_table import report
from budgets import LOCATED, receipt
from datasets import chance
from fewtags.api import Classifier
from fewtags.budget.costs import CostModel, find_cost
from fewtags.budget.purchase import PointRule, simulate_budget
from fewtags.engine.events import EpochEnded, Event
from fewtags.engine.machine import cores, torch_device
from fewtags.engine.methods import make_objective, settings_models
from fewtags.engine.model import ModelInfo, load_model, make_policy
from fewtags.engine.runfolder import MODEL_FILE
from fewtags.engine.tensor_files import load_tensors
from fewtags.errors import FewtagsError
from fewtags.labels import Label
from fewtags.metrics.locate import LocateOptions, locate_report
from fewtags.metrics.ranking import ranking_report
from fewtags.nets.spatial import Output, SpatialNet
from fewtags.photos.dataset import EvalSet, PhotoFolder
from fewtags.photos.loader import Collate, EvalLoader
from fewtags.photos.workers import Workers
from fewtags.table.table import LabelTable
from paper_data import RESOLUTION, PaperData
from paper_files import PaperJob, PaperProtocol, choose_runs, read_finished, read_paper
from table import read_results

LOCATE = LocateOptions(size=RESOLUTION, cuts=(0.5,))
"""The cut is for boxes, which are not reported."""

EVAL_BATCH = 64
Record = dict[str, Any]


def run(protocol: PaperProtocol, job: PaperJob, data: PaperData, folder: Path, *, cpu: bool = False) -> Record:
    """Buy, train in a run folder (or go on there), and measure on the test part."""
    truth = data.train(job.annotation, job.seed)
    cost = find_cost(protocol.cost, truth)
    bought = buy(protocol, job, truth, cost)
    if not (folder / MODEL_FILE).exists():
        fit(protocol, job, data, bought, truth, folder, cpu)
    net, info = load_model(folder)
    net = net.to(torch_device(cpu))
    workers = int(protocol.run.get("train", {}).get("workers", min(8, cores() - 1)))
    test = data.test
    logits = np.concatenate([out.logits.cpu().numpy() for out in look(net, info, test, workers)])
    found = localise(net, info, data, logits, workers) if len(data.located) else None
    epochs = [json.loads(line) for line in (folder / "metrics.jsonl").read_text("utf-8").splitlines()]
    last = mean_ap(logits, info, test)
    best_epoch, best = len(epochs), last
    if (folder / "best.safetensors").exists():
        net.load_state_dict(load_tensors(folder / "best.safetensors"))
        best_epoch = 1 + int(np.argmax([record["val/mAP"] for record in epochs]))
        best = mean_ap(np.concatenate([out.logits.cpu().numpy() for out in look(net, info, test, workers)]), info, test)
    on_object = data.on_object(job.annotation, job.seed, net.grid((info.size, info.size)))
    return {
        **identity(protocol, job, data, truth, cost),
        "epochs": len(epochs),
        "bought": {**receipt(bought), "on_object": None if on_object is None else _percent(on_object)},
        "last": {"mAP": last},
        "best": {"epoch": best_epoch, "mAP": best},
        "localisation": found,
        "pseudo": None,
        "paper": protocol.published(job),
        "train_loss_by_epoch": [round(record["train/loss"], 6) for record in epochs],
        "val_mAP_by_epoch": [_percent(record["val/mAP"]) for record in epochs],
        "cpu_seconds_per_epoch": round(statistics.median(record["cpu_seconds"] for record in epochs), 4),
        "machine": f"{_device(net)}, torch {torch.__version__}",
    }


def buy(protocol: PaperProtocol, job: PaperJob, truth: LabelTable, cost: CostModel) -> LabelTable:
    """What the budget buys, on the training images that the method learns from."""
    rule: PointRule = "centre" if protocol.points == "centre" else "uniform"  # a point in a mask is one already
    bought = simulate_budget(truth, job.budget, job.annotation, job.seed, cost, mode=protocol.mode, points=rule)
    if protocol.methods[job.method].unlabelled:
        return bought
    return bought.subset(bought.matrix.image_counts(Label.UNKNOWN) < len(bought.classes))


def fit(
    protocol: PaperProtocol,
    job: PaperJob,
    data: PaperData,
    bought: LabelTable,
    truth: LabelTable,
    folder: Path,
    cpu: bool,
) -> None:
    """Train through the library's Python interface; checkpoints are removed at the end."""
    settings = protocol.settings(job.method, job.annotation)
    objective = make_objective(settings_models()[settings["name"]].model_validate(settings))
    own = dict(dotted(protocol.run)) | {"data.decode": False, "train.select": "last"}

    def tell(event: Event) -> None:
        if isinstance(event, EpochEnded):
            record = event.record
            print(
                f"{job}: epoch {int(record['epoch']) + 1}, loss {record['train/loss']:.4f}, val mAP "
                f"{_percent(float(record['val/mAP'])):.1f}",
                file=sys.stderr,
            )

    folder.parent.mkdir(parents=True, exist_ok=True)
    classifier = Classifier(objective=objective, seed=job.seed, device="cpu" if cpu else None)
    known = truth if protocol.methods[job.method].unlabelled else None
    classifier.fit(bought, val=data.val, truth=known, out=folder, settings=own, on_event=tell)
    shutil.rmtree(folder / "checkpoints")


def dotted(tree: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """The values of nested sections by dotted key.

    >>> dict(dotted({"train": {"epochs": 2}}))
    {'train.epochs': 2}
    """
    for key, value in tree.items():
        if isinstance(value, Mapping):
            yield from dotted(value, f"{prefix}{key}.")
        else:
            yield prefix + key, value


def identity(protocol: PaperProtocol, job: PaperJob, data: PaperData, truth: LabelTable, cost: CostModel) -> Record:
    """What a line says beside its results."""
    scored, test = scored_classes(data.test), data.test
    return {
        "benchmark": protocol.name,
        "set": protocol.name,
        "command": f"python benchmarks/paper_protocol.py benchmarks/protocols/{protocol.name}.toml",
        "budget": job.budget,
        "annotation": job.annotation,
        "method": job.method,
        "seed": job.seed,
        "label": protocol.methods[job.method].label,
        "order": [
            protocol.budgets.index(job.budget),
            protocol.types.index(job.annotation),
            list(protocol.methods).index(job.method),
        ],
        "protocol": protocol.protocol(job),
        "scored": len(scored),
        "classes": len(test.classes),
        "images": len(truth),
        "chance_mAP": _percent(chance(test, scored)),
        "positives_per_image": round(float(test.matrix.image_counts(Label.POSITIVE).mean()), 4),
        "seconds_per_pair": round(cost.seconds_per_pair(job.annotation), 4),
    }


def scored_classes(test: LabelTable) -> NDArray[np.int64]:
    """The classes with positives and negatives in the test part."""
    there = [test.matrix.counts(state) > 0 for state in (Label.POSITIVE, Label.NEGATIVE)]
    return np.flatnonzero(there[0] & there[1])


@torch.no_grad()
def look(net: SpatialNet, info: ModelInfo, table: LabelTable, workers: int) -> Iterator[Output]:
    """What the net says about the images of a table, batch by batch, in order."""
    assert table.root is not None
    net.eval()
    device = next(net.parameters()).device
    photos = EvalSet(PhotoFolder(table.root, table.images), table.matrix, make_policy(info.policy, info.size))
    for batch in EvalLoader(photos, EVAL_BATCH, Collate(info.mean, info.std), Workers(workers)):
        yield net(batch.images.to(device))


def mean_ap(logits: NDArray[np.float32], info: ModelInfo, test: LabelTable) -> float:
    """mAP-cl of the scored classes, in percent."""
    scored, column = scored_classes(test), columns(info, test)
    ranking = ranking_report(logits[:, column][:, scored].astype(np.float64), test.matrix.dense()[:, scored])
    return _percent(ranking.mean_average_precision)


def columns(info: ModelInfo, table: LabelTable) -> list[int]:
    """The net's output of each class of a table."""
    return [info.classes.index(class_id) for class_id in table.classes.ids]


def localise(net: SpatialNet, info: ModelInfo, data: PaperData, logits: NDArray[np.float32], workers: int) -> Record:
    """mAP-loc by IoA-P, pointing game and PxAP of the probability maps, in percent."""
    part, column = data.test.subset(data.located), columns(info, data.test)
    maps = (image[column] for out in look(net, info, part, workers) for image in out.maps.sigmoid().cpu().numpy())
    found = locate_report(maps, logits[data.located][:, column], part.matrix.dense(), iter(data.places), options=LOCATE)
    values = found.to_dict()
    return {"pairs": found.present.pairs, **{name: _percent(values[name]) for name in LOCATED}}


def _device(net: SpatialNet) -> str:
    device = next(net.parameters()).device
    return torch.cuda.get_device_name(device) if device.type == "cuda" else f"{cores()} cores"


def _percent(value: float) -> float:
    return round(100 * float(value), 3)


def arguments() -> argparse.ArgumentParser:
    """What is asked for on the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("protocol", type=Path, help="a file of benchmarks/protocols")
    parser.add_argument("--data", type=Path, required=True, help="folder with labels and photos as they are published")
    parser.add_argument("--out", type=Path, required=True, help="file of JSON lines; what is in it is not done again")
    parser.add_argument("--runs", type=Path, help="folder of the run folders (default: runs, beside --out)")
    parser.add_argument("--only", help="comma-separated BUDGET:TYPE:METHOD, parts may be empty")
    parser.add_argument("--seeds", help="0-2, or 0,2")
    parser.add_argument("--set", metavar="KEY=VALUE", action="append", default=[], dest="assignments")
    parser.add_argument("--cpu", action="store_true", help="ignore GPUs")
    return parser


def main(given: list[str] | None = None) -> None:
    options = arguments().parse_args(given)
    try:
        protocol = read_paper(options.protocol, options.assignments)
        done = read_finished(options.out, protocol)
        data = PaperData(protocol, options.data)
        runs = (options.runs or options.out.parent / "runs") / protocol.name
        options.out.parent.mkdir(parents=True, exist_ok=True)
        for job in choose_runs(protocol, options.only, options.seeds):
            if job not in done:
                result = run(protocol, job, data, runs / job.folder, cpu=options.cpu)
                with options.out.open("a", encoding="utf-8") as file:
                    file.write(json.dumps(result) + "\n")
                    file.flush()
                    os.fsync(file.fileno())
        records = read_results([options.out], ("budget", "annotation", "method"))
        print("\n".join(report(records, f"python benchmarks/budget_table.py {options.out}")).rstrip())
    except FewtagsError as error:
        sys.exit(str(error))


if __name__ == "__main__":
    main()
