"""Use a model on photos: scores, tags, heatmaps."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import final

import numpy as np
import pyarrow as pa
import torch
from numpy.typing import NDArray
from torch.utils.data import DataLoader, Dataset

from fewtags.data.formats.photos import is_photo
from fewtags.data.images import open_photo
from fewtags.data.loader import Collate, EvalLoader, EvalSet, Photos, Sample, Workers
from fewtags.data.table import LabelTable
from fewtags.engine.evaluate import Evaluation, evaluate_logits, predict_logits, sigmoid
from fewtags.engine.gallery import class_maps
from fewtags.engine.machine import torch_device
from fewtags.engine.model import ModelInfo, make_policy
from fewtags.errors import DataError, FewtagsError
from fewtags.labels import Batch, Label
from fewtags.nets.spatial import SpatialNet


def find_photos(places: Sequence[Path | str]) -> list[Path]:
    """All photos among files and folders (searched through), in order, each once.

    Raises:
        DataError: a place does not exist, or there is no photo.
    """
    found: dict[Path, None] = {}
    for place in map(Path, places):
        if not place.exists():
            raise DataError(f"{place} does not exist; give photos or folders of photos.")
        inside = sorted(p for p in place.rglob("*") if p.is_file() and is_photo(p.name)) if place.is_dir() else [place]
        found |= dict.fromkeys(inside)
    if not found:
        raise DataError(f"there is no photo in {', '.join(map(str, places))}.")
    return list(found)


@final
@dataclass(frozen=True)
class Prediction:
    """What a model says about one photo: probabilities float64 [C], or why it could not be read."""

    path: Path
    prob: NDArray[np.float64] | None
    error: str = ""


@final
class _Files(Dataset[Sample | str]):
    """Photos by number, through the test view; an unreadable one is the text of its error."""

    def __init__(self, paths: Sequence[Path], info: ModelInfo) -> None:
        # Not a list: worker processes would slowly copy all of its objects. Bytes: a name need not be text.
        self.paths = pa.array([os.fsencode(p) for p in paths], pa.binary())
        self.policy = make_policy(info.policy, info.size)
        self.classes = len(info.class_ids)

    def __len__(self) -> int:
        return len(self.paths)

    def __getitem__(self, index: int) -> Sample | str:
        try:
            with open_photo(Path(os.fsdecode(self.paths[index].as_py()))) as photo:
                view = self.policy.test_view(photo.info.aspect)
                pixels = photo.read(view, (self.policy.size, self.policy.size))
        except FewtagsError as error:
            return str(error)
        return Sample(pixels, np.full(self.classes, Label.UNKNOWN, np.int8), index, view)


def _as_list(samples: list[Sample | str]) -> list[Sample | str]:
    return samples


def predict_photos(
    net: SpatialNet,
    info: ModelInfo,
    paths: Sequence[Path],
    device: torch.device,
    *,
    batch_size: int = 32,
    workers: int = 0,
) -> Iterator[Prediction]:
    """Probabilities of every photo, in order; an unreadable photo yields its error and the rest goes on."""
    collate = Collate(info.mean, info.std)
    net.to(device).eval()
    loader = DataLoader(
        _Files(paths, info), batch_size, num_workers=workers, collate_fn=_as_list, generator=torch.Generator()
    )
    done = 0
    for samples in loader:
        good = [s for s in samples if isinstance(s, Sample)]
        prob: Iterator[NDArray[np.float64]] = iter(())
        if good:
            batch = collate(good)
            assert isinstance(batch, Batch)
            with torch.no_grad():
                logits = net.predict_logits(batch.images.to(device, memory_format=torch.channels_last))
            prob = iter(sigmoid(logits.float().cpu().numpy()))
        for sample in samples:
            yield (
                Prediction(paths[done], next(prob))
                if isinstance(sample, Sample)
                else Prediction(paths[done], None, sample)
            )
            done += 1


def evaluate_table(
    net: SpatialNet, info: ModelInfo, table: LabelTable, *, cpu: bool = False, workers: int = 0
) -> tuple[Evaluation, list[str]]:
    """Measure a model on a table; classes are matched by id.

    Returns:
        the evaluation, and what was left out, in words: classes that the model does not know.

    Raises:
        DataError: no class of the table is known to the model, or the table has no photos.
    """
    device = torch_device(cpu)
    known = [i for i in table.classes.ids if i in info.classes]
    if not known:
        raise DataError(
            f"none of the classes {', '.join(table.classes.ids[:5])} is known to the model, which has "
            f"{', '.join(info.class_ids[:5])}."
        )
    if table.root is None:
        raise DataError("the labels do not say where the photos are; give --images FOLDER.")
    notes = [f"left out: {i!r}, which the model does not know" for i in table.classes.ids if i not in info.classes]
    labels = np.full((len(table), len(info.class_ids)), Label.UNKNOWN, np.int8)
    dense = table.matrix.dense()
    for class_id in known:
        labels[:, info.classes.index(class_id)] = dense[:, table.classes.index(class_id)]
    data = EvalSet(Photos(table.root, table.images), table.matrix, make_policy(info.policy, info.size))
    loader = EvalLoader(data, 64, Collate(info.mean, info.std), Workers(workers))
    logits = predict_logits(net.to(device), loader, len(table), device)
    return evaluate_logits(logits, labels, info.classes, np.array(info.thresholds)), notes


def decide(
    prob: NDArray[np.float64], thresholds: NDArray[np.float64], max_tags: int | None = None
) -> NDArray[np.int64]:
    """Classes that are present, best first: at or above their threshold, at most `max_tags`.

    >>> decide(np.array([0.2, 0.9, 0.6]), np.array([0.5, 0.5, 0.5])).tolist()
    [1, 2]
    """
    order = np.argsort(-prob, kind="stable")
    present = order[prob[order] >= thresholds[order]]
    return present if max_tags is None else present[:max_tags]


def heatmaps(
    net: SpatialNet, info: ModelInfo, path: Path, device: torch.device
) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
    """Probabilities [C] and probability maps [C, h, w] of one photo, in the frame of its test view.

    For policies `coco` and `none` that frame is the whole photo, stretched; for `imagenet` it is the centre crop.
    """
    return class_maps(
        net.to(device).eval(), path, make_policy(info.policy, info.size), Collate(info.mean, info.std), device
    )
