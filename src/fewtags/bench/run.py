"""One run of a protocol: make the labels, train in a run folder or continue there, and measure on the test images."""

from __future__ import annotations

import json
import shutil
import statistics
from collections.abc import Callable, Iterator, Mapping
from importlib.metadata import version
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from fewtags.api import Classifier
from fewtags.bench.data import Observed, SetData
from fewtags.bench.details import detail_measures, identity, machine_of, percent, percent_or_none
from fewtags.bench.located import RESOLUTION
from fewtags.bench.protocol import Job, Protocol
from fewtags.bench.transfer import check_transfer_settings
from fewtags.config.parse import apply_overrides, parse
from fewtags.config.presets import resolve
from fewtags.config.sections import Config
from fewtags.engine.events import Event
from fewtags.engine.machine import cores, facts, torch_device
from fewtags.engine.methods import make_objective, settings_models
from fewtags.engine.model import ModelInfo, load_model, make_policy
from fewtags.engine.runfolder import MODEL_FILE
from fewtags.engine.tensor_files import load_tensors
from fewtags.errors import ConfigError
from fewtags.labels import ClassNames, Label
from fewtags.metrics.locate import LocateOptions, locate_report
from fewtags.metrics.ranking import positive_only_report, ranking_report
from fewtags.nets.backbones import create_backbone
from fewtags.nets.spatial import Output, SpatialHead, SpatialNet
from fewtags.photos.dataset import EvalSet, PhotoFolder
from fewtags.photos.loader import Collate, EvalLoader
from fewtags.photos.workers import Workers
from fewtags.table.merge import common_vocabulary
from fewtags.table.table import LabelTable

LOCATED = {"mAP-loc": "mAP-loc", "pointing": "pointing", "PxAP": "PxAP"}
"""Measures of heatmaps that are recorded, by their key in a `locate_report`."""
LOCATE = LocateOptions(size=RESOLUTION, cuts=(0.5,))
"""The cut is for boxes, which are not reported."""
MOST_LABELS = 4
"""Images of ReaL with so many labels or more are one group of table 3 of Verelst et al."""
EVAL_BATCH = 64
FIXED: Mapping[str, Any] = {
    "data.decode": False,
    "data.near_copies": "off",
    "train.select": "last",
    "train.baseline": False,
}
"""Settings of all runs: the protocols decide what is in which split, and both epochs are measured afterwards."""
Record = dict[str, Any]
OnEvent = Callable[[Event], None] | None


def run(
    protocol: Protocol, job: Job, data: SetData, folder: Path, *, cpu: bool = False, on_event: OnEvent = None
) -> Record:
    """Train (or continue) in a run folder, and return the record of what was measured, in percent."""
    if protocol.measure == "statistics":
        return {**identity(protocol, job), **counts(data)}
    if protocol.rows[job.row].untrained:
        return _untrained(protocol, job, data, cpu)
    observed = data.observed(job)
    if not (folder / MODEL_FILE).exists():
        fit(protocol, job, observed, data.val, folder, cpu=cpu, on_event=on_event)
    net, info = load_model(folder)
    net = net.to(torch_device(cpu))
    epochs = [json.loads(line) for line in (folder / "metrics.jsonl").read_text("utf-8").splitlines()]
    validated = [record.get("val/mAP") for record in epochs]
    measured = measures(protocol, net, info, data)
    found: Record = {"last": {"epoch": len(epochs), "val": percent_or_none(validated[-1]), **measured}}
    if protocol.measure != "real" and (folder / "best.safetensors").exists():
        best = int(np.nanargmax([np.nan if v is None else v for v in validated]))
        if best + 1 < len(epochs):
            net.load_state_dict(load_tensors(folder / "best.safetensors"))
            measured = measures(protocol, net, info, data)
        found["best"] = {"epoch": best + 1, "val": percent_or_none(validated[best]), **measured}
    return {
        **identity(protocol, job),
        **found,
        "sizes": {"train": len(observed.labels), "val": len(data.val), "test": len(data.test)},
        "labels": {
            state.name.lower(): int(observed.labels.matrix.counts(state).sum())
            for state in (Label.POSITIVE, Label.NEGATIVE)
        },
        **({} if observed.cost is None else {"bought": _bought(job, data, observed, net, info)}),
        "train_loss_by_epoch": [round(record["train/loss"], 6) for record in epochs],
        "val_by_epoch": [percent_or_none(value) for value in validated],
        "seconds_per_epoch": round(statistics.median(record["seconds"] for record in epochs), 3),
        "machine": machine_of(next(net.parameters()).device),
    }


def fit(
    protocol: Protocol, job: Job, observed: Observed, val: LabelTable, folder: Path, *, cpu: bool, on_event: OnEvent
) -> None:
    """Train through the library's Python interface; checkpoints are removed at the end."""
    settings = protocol.method(job)
    objective = make_objective(settings_models()[settings["name"]].model_validate(settings))
    own = {**FIXED, **protocol.training(job)}
    folder.parent.mkdir(parents=True, exist_ok=True)
    classifier = Classifier(objective=objective, seed=job.seed, device="cpu" if cpu else None)
    tables = common_vocabulary({"train": observed.labels, "val": val})
    classifier.fit(
        tables["train"],
        val=tables["val"],
        truth=observed.truth,
        out=folder,
        settings=own,
        progress=False,
        on_event=on_event,
    )
    shutil.rmtree(folder / "checkpoints")


def check_settings(protocol: Protocol) -> None:
    """Raise ConfigError if the settings of training have unknown keys or values."""
    if protocol.tasks:
        check_transfer_settings(protocol)
        return
    for known, row in product(protocol.knowns, ("", *(name for name, row in protocol.rows.items() if row.settings))):
        _config(protocol, known, row)


# --- measures


def measures(protocol: Protocol, net: SpatialNet, info: ModelInfo, data: SetData) -> Record:
    """What a protocol measures on the test images, in percent."""
    logits = logits_of(net, info, data.test, _workers(protocol))
    if protocol.measure == "real":
        return real_measures(logits, info, data)
    scored = ranking_of(logits, info, data.test)
    found = {"mAP": percent(scored[0]), "scored": scored[1]}
    if protocol.measure == "located" and len(data.located) and info.head.has_maps:
        found |= localise(net, info, data, logits, _workers(protocol))
    if protocol.details:
        validated = logits_of(net, info, data.val, _workers(protocol))[:, columns(info, data.val)]
        found |= detail_measures(protocol.details, validated, data)
    return found


def ranking_of(logits: NDArray[np.float32], info: ModelInfo, test: LabelTable) -> tuple[float, int]:
    """The mAP of the classes with known positives and negatives, and their number."""
    ranking = ranking_report(logits[:, columns(info, test)].astype(np.float64), test.matrix.dense())
    return ranking.mean_average_precision, len(test.classes) - len(ranking.excluded)


def real_measures(logits: NDArray[np.float32], info: ModelInfo, data: SetData) -> Record:
    """Top-1 of single labels, top-1 of ReaL (eq. 9 of Verelst et al.), and mAP by the number of labels (table 3)."""
    labels, scores = data.test.matrix.dense(), logits[:, columns(info, data.test)].astype(np.float64)
    found: Record = {}
    if data.single is not None:
        single = np.full(labels.shape, Label.NEGATIVE, np.int8)
        single[np.arange(len(single)), data.single] = Label.POSITIVE
        found["top-1 IN-val"] = percent(positive_only_report(scores, single, ks=()).hit_at_1)
    count = (labels == Label.POSITIVE).sum(1)
    found["top-1 ReaL"] = percent(positive_only_report(scores, labels, ks=()).hit_at_1)
    groups = {"k = all": count > 0, **{f"k = {k}": count == k for k in range(1, MOST_LABELS)}}
    groups[f"k >= {MOST_LABELS}"] = count >= MOST_LABELS
    for name, group in groups.items():
        found[f"images, {name}"] = int(group.sum())
        value = ranking_report(scores[group], labels[group]).mean_average_precision if group.any() else np.nan
        found[f"mAP ReaL, {name}"] = percent_or_none(value)
    return found


def localise(net: SpatialNet, info: ModelInfo, data: SetData, logits: NDArray[np.float32], workers: int) -> Record:
    """mAP-loc by IoA-P, pointing game and PxAP of the probability maps, in percent."""
    part, column = data.test.subset(data.located), columns(info, data.test)
    maps = (image[column] for out in look(net, info, part, workers) for image in out.maps.sigmoid().cpu().numpy())
    found = locate_report(maps, logits[data.located][:, column], part.matrix.dense(), iter(data.places), options=LOCATE)
    values = found.to_dict()
    same = percent(values["mAP-cl_same_cells"])
    return {
        "pairs": found.present.pairs,
        "mAP-cl_same_cells": same,
        **{n: percent(values[k]) for n, k in LOCATED.items()},
    }


@torch.no_grad()
def look(net: SpatialNet, info: ModelInfo, table: LabelTable, workers: int) -> Iterator[Output]:
    """What the net says about the images of a table, batch by batch, in order."""
    net.eval()
    device = next(net.parameters()).device
    photos = EvalSet(PhotoFolder(table.require_root(), table.images), table.matrix, make_policy(info.policy, info.size))
    for batch in EvalLoader(photos, EVAL_BATCH, Collate(info.mean, info.std), Workers(workers)):
        yield net(batch.images.to(device))


def logits_of(net: SpatialNet, info: ModelInfo, table: LabelTable, workers: int) -> NDArray[np.float32]:
    """float32 [N, C] of the images of a table, in order."""
    return np.concatenate([out.logits.float().cpu().numpy() for out in look(net, info, table, workers)])


def columns(info: ModelInfo, table: LabelTable) -> list[int]:
    """The net's output of each class of a table."""
    return [info.classes.index(class_id) for class_id in table.classes.ids]


def _bought(job: Job, data: SetData, observed: Observed, net: SpatialNet, info: ModelInfo) -> Record:
    """Counts of what a budget bought, and the share of labelled patches that are on their object."""
    table, cost = observed.labels, observed.cost
    assert cost is not None
    places = table.locations
    points = int((places.boxes[:, :2] == places.boxes[:, 2:]).all(1).sum()) if len(places) else 0
    share = data.on_object(job, net.grid((info.size, info.size))) if info.head.has_maps else None
    return {
        "images": int((table.matrix.image_counts(Label.UNKNOWN) < len(table.classes)).sum()),
        "points": points,
        "boxes": len(places) - points,
        "classes without a positive": int((table.matrix.counts(Label.POSITIVE) == 0).sum()),
        "seconds per pair": round(cost.seconds_per_pair(job.known.partition(" ")[0]), 4),
        "patches on the object": percent_or_none(share),
    }


# --- the published net, and counts


def _untrained(protocol: Protocol, job: Job, data: SetData, cpu: bool) -> Record:
    """Measure the net of the settings as it is published, with its own classifier."""
    net, info = published_net(protocol, job.known, data.test.classes)
    net = net.to(torch_device(cpu))
    found = measures(protocol, net, info, data)
    return {
        **identity(protocol, job),
        "last": {"epoch": 0, "val": None, **found},
        "machine": machine_of(next(net.parameters()).device),
    }


def published_net(protocol: Protocol, known: str, classes: ClassNames) -> tuple[SpatialNet, ModelInfo]:
    """Return the backbone of the settings with the classifier of its weights; output i is class i of `classes`.

    Raises:
        ConfigError: the weights have no classifier, or one with another number of classes.
    """
    resolved = resolve(_config(protocol, known), facts(1, len(classes)))
    made = create_backbone(resolved.backbone, weights=resolved.weights, size=resolved.size)
    found = 0 if made.classifier is None else len(made.classifier.bias)
    if made.classifier is None or found != len(classes):
        raise ConfigError(
            f"the weights {resolved.weights!r} of {resolved.backbone} have a classifier of {found:,} classes, but the "
            f"labels have {len(classes):,}. Give the weights of the whole published net (--set model.weights=FILE), or "
            "choose other rows with --methods."
        )
    head = SpatialHead(made.features_dim, len(classes))
    head.load_state_dict({"weight": made.classifier.weight, "bias": made.classifier.bias})
    pre = made.preprocessing
    net = SpatialNet(
        made.module, head, layout=made.layout, prefix_tokens=made.prefix_tokens, preprocessing=pre, origin=made.origin
    )
    info = ModelInfo(
        backbone=resolved.backbone,
        output_stride=0,
        head=head.plan,
        size=resolved.size,
        policy=resolved.policy,
        class_ids=classes.ids,
        class_names=classes.names,
        thresholds=(0.5,) * len(classes),
        threshold_rules=("half",) * len(classes),
        mean=pre.mean,
        std=pre.std,
        method={"name": "none"},
        selection="the published net",
        version=version("fewtags"),
    )
    return net, info


def counts(data: SetData) -> Record:
    """Numbers of images and labels of each part, K, and of each class its labels and the share that is drawn."""
    parts = data.complete_parts()
    found: Record = {"classes": len(parts["test"].classes)}
    for name, table in parts.items():
        found[f"images, {name}"] = (
            int((table.matrix.image_counts(Label.POSITIVE) > 0).sum()) if data.is_real else len(table)
        )
        found[f"labels, {name}"] = int(table.matrix.counts(Label.POSITIVE).sum())
    measured = "val" if "val" in parts else "test"
    found["K"] = round(found[f"labels, {measured}"] / max(found[f"images, {measured}"], 1), 3)
    named = {f"labels, {name}": table for name, table in parts.items()}
    named |= {f"drawn, {name}": table for name, table in data.drawn_parts().items()}
    of_class = {
        name: dict(zip(table.classes.ids, table.matrix.counts(Label.POSITIVE).tolist(), strict=True))
        for name, table in named.items()
    }
    found["by class"] = {
        class_id: {name: count.get(class_id, 0) for name, count in of_class.items()}
        for class_id in parts["test"].classes.ids
    }
    return found


def _config(protocol: Protocol, known: str, row: str = "") -> Config:
    """The settings of training of a row under a condition, with any labels; "": those that rows share."""
    own = protocol.training(Job("", known, row, "", 0))
    tree = apply_overrides({"data": {"train": "."}}, {**FIXED, **own})
    return parse(tree, settings_models(), f"the settings of {protocol.name}")


def _workers(protocol: Protocol) -> int:
    return int(protocol.settings.get("train", {}).get("workers", min(8, cores() - 1)))
