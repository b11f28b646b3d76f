"""The gallery: a few photos whose heatmaps are saved during training and shown in the report."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, final

import numpy as np
import torch
from numpy.typing import NDArray

from fewtags.engine.onnx_net import Predictor
from fewtags.engine.running_maps import averages_of
from fewtags.files import replacing, write_text
from fewtags.labels import Label
from fewtags.nets.spatial import SpatialNet
from fewtags.photos.augment import Policy
from fewtags.photos.dataset import read_through
from fewtags.photos.in_memory import NamedImage
from fewtags.photos.loader import Collate
from fewtags.stores.heatmaps import HeatmapStore
from fewtags.table.table import LabelTable

Role = Literal["annotated", "unannotated positive", "predicted", "negative"]


@final
@dataclass(frozen=True)
class Panel:
    """A class of a photo: why it is shown, its probability, and its map [h, w] in the frame of the test view.

    `average` [H, W] is the running average of the maps of a training photo, in the photo's frame; None if the method
    keeps none.
    """

    class_: int
    role: Role
    prob: float
    map: NDArray[np.float16]
    average: NDArray[np.float16] | None = None


@final
@dataclass(frozen=True)
class GalleryPhoto:
    """A photo of the gallery with its panels."""

    split: str
    key: str
    panels: tuple[Panel, ...]


@final
@dataclass(frozen=True, kw_only=True)
class Gallery:
    """Photos that are chosen before training; `compute_maps` makes their maps at any time.

    `split` and `index` are the split and the row of each photo. `truth` has complete training labels.
    """

    split: tuple[str, ...]
    index: tuple[int, ...]
    tables: dict[str, LabelTable]
    truth: LabelTable | None
    policy: Policy
    collate: Collate

    @classmethod
    def choose(
        cls,
        tables: dict[str, LabelTable],
        truth: LabelTable | None,
        policy: Policy,
        collate: Collate,
        *,
        each: int = 4,
        seed: int = 0,
    ) -> Gallery:
        """Choose `each` photos of the training set and of the last other split, first those with several positives."""
        rng = np.random.default_rng(seed)
        last = [name for name in tables if name != "train"][-1]
        chosen: list[tuple[str, int]] = []
        for name in ("train", last):
            table = truth if name == "train" and truth is not None else tables[name]
            positives = table.matrix.image_counts(Label.POSITIVE)
            order = rng.permutation(len(positives))
            # Photos with two to four classes are the most informative; photos without any come last.
            rank = np.where(positives >= 2, 0, np.where(positives == 1, 1, 2))[order]
            chosen += [(name, int(i)) for i in order[np.argsort(rank, kind="stable")][:each]]
        split, index = zip(*chosen, strict=True)
        return cls(split=split, index=index, tables=tables, truth=truth, policy=policy, collate=collate)

    def compute_maps(
        self, net: SpatialNet, device: torch.device, averages: HeatmapStore | None = None
    ) -> tuple[GalleryPhoto, ...]:
        """Compute the maps of all photos through the test view; the net keeps its train or eval mode.

        If the model has no maps (`HeadPlan.has_maps`), the result is empty.
        `averages` are the running averages of the maps of the training photos, if the method keeps them.
        """
        if not net.head.plan.has_maps:
            return ()
        mode = net.training
        net.eval()
        shown = []
        for split, index in zip(self.split, self.index, strict=True):
            table = self.tables[split]
            key: str = table.images[index].as_py()
            assert table.root is not None
            prob, maps = class_maps(net, table.root / key, self.policy, self.collate, device)
            labels = table.matrix.rows([index])[0]
            complete = self.truth.matrix.rows([index])[0] if split == "train" and self.truth is not None else labels
            roles = choose_roles(labels, complete, prob)
            mean = None
            if averages is not None and split == "train":
                mean = averages_of(averages, index, table.matrix)
            panels = tuple(
                Panel(c, role, float(prob[c]), _half(maps[c]), None if mean is None else _half(mean[c]))
                for c, role in roles
            )
            shown.append(GalleryPhoto(split, key, panels))
        net.train(mode)
        return tuple(shown)


def _half(map_: NDArray[np.float32]) -> NDArray[np.float16]:
    return map_.astype(np.float16)


def class_maps(
    net: Predictor, path: Path | NamedImage, policy: Policy, collate: Collate, device: torch.device
) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
    """Compute the probabilities [C] and probability maps [C, h, w] of one photo through the test view."""
    pixels, _ = read_through(path, policy.test_view, policy.size)
    with torch.inference_mode():
        out = net(collate.pixels([pixels], device))
    return out.logits[0].float().sigmoid().cpu().numpy(), out.maps[0].float().sigmoid().cpu().numpy()


def choose_roles(
    labels: NDArray[np.int8], complete: NDArray[np.int8], prob: NDArray[np.float32], limit: int = 4
) -> list[tuple[int, Role]]:
    """Choose the classes of a photo to show, each with its role.

    These are annotated positives; then positives that were not annotated, by the complete labels, or without them the
    unknown classes with the highest scores; then the absent class with the highest score, the most likely error.
    """
    order = np.argsort(-prob, kind="stable")
    annotated = [int(c) for c in order if labels[c] == Label.POSITIVE]
    hidden = [int(c) for c in order if labels[c] != Label.POSITIVE and complete[c] == Label.POSITIVE]
    unknown = [int(c) for c in order if complete[c] == Label.UNKNOWN]
    absent = [int(c) for c in order if complete[c] == Label.NEGATIVE]
    roles: list[tuple[int, Role]] = [(c, "annotated") for c in annotated[: 1 if hidden else 2]]
    roles += [(c, "unannotated positive") for c in hidden[:2]]
    roles += [(c, "predicted") for c in unknown[: 1 if hidden else 2]]
    roles += [(c, "negative") for c in absent[:1]]
    return roles[:limit]


def save_gallery(folder: Path, name: str, shown: Sequence[GalleryPhoto]) -> None:
    """Write `gallery/<name>.npz` with the maps and `gallery/<name>.json` with their descriptions."""
    folder = folder / "gallery"
    folder.mkdir(exist_ok=True)
    panels = {f"{i}_{j}": panel for i, photo in enumerate(shown) for j, panel in enumerate(photo.panels)}
    arrays = {place: panel.map for place, panel in panels.items()}
    arrays |= {f"{place}_average": p.average for place, p in panels.items() if p.average is not None}
    with replacing(folder / f"{name}.npz") as temporary, temporary.open("wb") as file:
        np.savez_compressed(file, **arrays)  # type: ignore[arg-type]
    content = []
    for photo in shown:
        described = [{"class": p.class_, "role": p.role, "prob": p.prob} for p in photo.panels]
        content.append({"split": photo.split, "key": photo.key, "panels": described})
    write_text(folder / f"{name}.json", json.dumps(content, indent=1))


def load_gallery(folder: Path, name: str) -> tuple[GalleryPhoto, ...]:
    """Read what `save_gallery` wrote."""
    content = json.loads((folder / "gallery" / f"{name}.json").read_text("utf-8"))
    shown = []
    with np.load(folder / "gallery" / f"{name}.npz", allow_pickle=False) as arrays:
        for i, photo in enumerate(content):
            panels = []
            for j, p in enumerate(photo["panels"]):
                mean = arrays.get(f"{i}_{j}_average")
                panels.append(Panel(p["class"], p["role"], p["prob"], arrays[f"{i}_{j}"], mean))
            shown.append(GalleryPhoto(photo["split"], photo["key"], tuple(panels)))
    return tuple(shown)
