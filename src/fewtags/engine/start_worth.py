"""What initial weights are worth: nearest photos that share a class, beside other weights, or after pretraining."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import final

import numpy as np
import torch

from fewtags.config.presets import resolve
from fewtags.config.search import PRESET_START
from fewtags.engine.encoder_file import METADATA
from fewtags.engine.plan import RunPlan
from fewtags.engine.preset_facts import preset_facts
from fewtags.engine.sources import pooled_features
from fewtags.engine.tensor_files import read_metadata
from fewtags.files import write_text
from fewtags.metrics.neighbours import NeighbourReport, neighbour_precision, some_pair_differs
from fewtags.nets.backbones import create_net
from fewtags.nets.spatial import SpatialNet, Trunk
from fewtags.photos.loader import EvalLoader
from fewtags.table.table import LabelTable

WORTH_FILE, PRETRAINED_WORTH_FILE = "init.json", "worth.json"
PHOTOS, NEIGHBOURS = 200, 10
"""Most photos that are compared, and nearest photos of each."""


@final
@dataclass(frozen=True, kw_only=True)
class StartWorth:
    """Shares, in 0..1, of the nearest photos that share a class with a photo, by pooled features without training.

    Attributes:
        photos: number of photos that were compared.
        split: their split: train, or val if the labels of train decide of no pair whether it shares a class.
        init: with the encoder of `--init`.
        other: with the weights `other_name`: "BACKBONE, WEIGHTS" of a run without `--init`; "none", random weights of
            the same backbone; in older runs also "offline".
        chance: of random photos.
    """

    photos: int
    split: str
    init: float
    other: float
    other_name: str
    chance: float

    def __str__(self) -> str:
        name = {"none": "random weights", "offline": "offline weights"}.get(
            self.other_name, f"the weights of the preset ({self.other_name})"
        )
        text = (
            f"init: {100 * self.init:.0f} % of the {NEIGHBOURS} nearest photos share a class before training, "
            f"{name} {100 * self.other:.0f} %, by chance {100 * self.chance:.0f} % "
            f"({self.photos:,} {self.split} photos)"
        )
        if "," not in self.other_name or self.init >= self.other:
            return text
        choice = f"with --init {PRESET_START} --init RUN, validation chooses"
        return f"{text}, so the weights of the preset look better; {choice}"


@final
@dataclass(frozen=True, kw_only=True)
class PretrainingWorth:
    """Shares as in `StartWorth`, with the weights that pretraining began with and with those that it ended with."""

    photos: int
    before: float
    after: float
    chance: float

    def __str__(self) -> str:
        text = (
            f"worth: {100 * self.before:.0f} % of the {NEIGHBOURS} nearest photos share a class before pretraining, "
            f"{100 * self.after:.0f} % after it, by chance {100 * self.chance:.0f} % ({self.photos:,} photos)"
        )
        return text if self.after > self.before else f"{text}, so it did not help by this measure"


def start_worth(
    plan: RunPlan, loader: Callable[[SpatialNet, LabelTable], EvalLoader], device: torch.device
) -> StartWorth | None:
    """Compare the encoder of a pretraining run with the weights that a run without it would have.

    Nothing is downloaded: if those weights are not on this machine, they are random weights of the encoder's backbone.
    None if the run does not start from such an encoder, or if the labels decide of no pair of photos whether they share
    a class. `loader` reads photos for a net.
    """
    r = plan.resolved
    sampled = {n: sample(table, r.seed) for n, table in (("train", plan.tables.train), ("val", plan.tables.val))}
    split, table = next(((n, found) for n, found in sampled.items() if found is not None), ("", None))
    if table is None or not _is_encoder(r.weights):
        return None
    backbone, weights = _own_start(plan, device)
    name = f"{backbone}, {weights}"
    if weights == "hub":
        backbone, weights, name = r.backbone, "none", "none"
    own = create_net(backbone, len(table.classes), weights=weights, size=r.size, seed=r.seed)
    found, other = (shared_classes(net, table, loader(net, table), device) for net in (plan.net, own))
    if not found.images or not other.images:
        return None
    return StartWorth(
        photos=len(table),
        split=split,
        init=found.precision,
        other=other.precision,
        other_name=name,
        chance=found.chance,
    )


def sample(table: LabelTable, seed: int) -> LabelTable | None:
    """Return photos to compare; None if they are too few, or labels decide of no pair whether it shares a class."""
    if len(table) <= NEIGHBOURS:
        return None
    chosen = table.subset(np.sort(np.random.default_rng(seed).permutation(len(table))[:PHOTOS]))
    return chosen if some_pair_differs(chosen.matrix.dense()) else None


def shared_classes(net: Trunk, table: LabelTable, loader: EvalLoader, device: torch.device) -> NeighbourReport:
    """Measure how many of the nearest photos share a class; `loader` reads the photos of the table."""
    features = pooled_features(net.to(device), loader, device)
    return neighbour_precision(features.numpy(), table.matrix.dense(), NEIGHBOURS)


def _own_start(plan: RunPlan, device: torch.device) -> tuple[str, str]:
    """Return the backbone and the weights of a run without an encoder."""
    without = plan.config.model.model_copy(update={"backbone": None, "weights": None})
    facts = preset_facts(plan.config, plan.tables.train, device.type == "cpu")
    own = resolve(plan.config.model_copy(update={"model": without}), facts)
    return own.backbone, own.weights


def _is_encoder(weights: str) -> bool:
    path = Path(weights)
    return path.is_file() and path.suffix == ".safetensors" and METADATA in read_metadata(path)


def write_worth(run: Path, found: StartWorth | PretrainingWorth) -> None:
    """Write the comparison into a run folder."""
    name = WORTH_FILE if isinstance(found, StartWorth) else PRETRAINED_WORTH_FILE
    write_text(run / name, json.dumps(asdict(found), indent=1))
