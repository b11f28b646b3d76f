"""What the encoder of `--init` is worth before training: nearest photos that share a class, beside other weights."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import asdict, dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import final

import numpy as np
import torch

from fewtags.engine.encoder_file import METADATA
from fewtags.engine.plan import RunPlan
from fewtags.engine.sources import head_inputs
from fewtags.engine.tensor_files import read_metadata
from fewtags.files import write_text
from fewtags.metrics.neighbours import NeighbourReport, neighbour_precision, some_pair_differs
from fewtags.nets.backbones import create_net
from fewtags.nets.spatial import SpatialNet
from fewtags.nets.weights import OFFLINE_BACKBONE, OFFLINE_PACKAGE
from fewtags.photos.loader import EvalLoader
from fewtags.table.table import LabelTable

WORTH_FILE = "init.json"
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
        other: with the weights `other_name` ("offline" or "none", random weights).
        chance: of random photos.
    """

    photos: int
    split: str
    init: float
    other: float
    other_name: str
    chance: float

    def __str__(self) -> str:
        name = "random weights" if self.other_name == "none" else f"{self.other_name} weights"
        return (
            f"init: {100 * self.init:.0f} % of the {NEIGHBOURS} nearest photos share a class before training, "
            f"{name} {100 * self.other:.0f} %, by chance {100 * self.chance:.0f} % "
            f"({self.photos:,} {self.split} photos)"
        )


def start_worth(
    plan: RunPlan, loader: Callable[[SpatialNet, LabelTable], EvalLoader], device: torch.device
) -> StartWorth | None:
    """Compare the encoder of a pretraining run with the weights that a run without it would have.

    Those are the offline weights of the backbone if they are installed, else random ones; nothing is downloaded. None
    if the run does not start from such an encoder, or if the labels decide of no pair of photos whether they share a
    class. `loader` reads photos for a net.
    """
    r, splits = plan.resolved, {"train": plan.tables.train, "val": plan.tables.val}
    sampled = {
        name: table.subset(np.sort(np.random.default_rng(r.seed).permutation(len(table))[:PHOTOS]))
        for name, table in splits.items()
        if len(table) > NEIGHBOURS
    }
    split = next((name for name, table in sampled.items() if some_pair_differs(table.matrix.dense())), None)
    if split is None or not _is_encoder(r.weights):
        return None
    table = sampled[split]

    def precision(net: SpatialNet) -> NeighbourReport:
        features = head_inputs(net.to(device), loader(net, table), device, pooled=True)
        return neighbour_precision(features.flatten(1).numpy(), table.matrix.dense(), NEIGHBOURS)

    found = precision(plan.net)
    installed = r.backbone == OFFLINE_BACKBONE and find_spec(OFFLINE_PACKAGE) is not None
    name = "offline" if installed else "none"
    other = precision(create_net(r.backbone, len(table.classes), weights=name, size=r.size, seed=r.seed))
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


def _is_encoder(weights: str) -> bool:
    path = Path(weights)
    return path.is_file() and path.suffix == ".safetensors" and METADATA in read_metadata(path)


def write_worth(run: Path, found: StartWorth) -> None:
    """Write the comparison into a run folder."""
    write_text(run / WORTH_FILE, json.dumps(asdict(found), indent=1))
