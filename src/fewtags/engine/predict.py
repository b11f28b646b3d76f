"""Apply a model to photos: probabilities, tags, heatmaps, evaluation."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Protocol, final

import numpy as np
import pyarrow as pa
import torch
from numpy.typing import NDArray
from torch.utils.data import BatchSampler, Dataset

from fewtags.engine.evaluate import Evaluation, Logits, evaluate_logits, sigmoid
from fewtags.engine.gallery import class_maps
from fewtags.engine.machine import cores, prepare_process, torch_device
from fewtags.engine.model import ModelInfo, make_policy
from fewtags.engine.object_sizes import cell_sizes
from fewtags.engine.onnx_net import OnnxNet, Predictor, torch_net
from fewtags.errors import ConfigError, DataError, FewtagsError
from fewtags.geometry import View
from fewtags.labels import Label
from fewtags.metrics.decisions import Groups, decide_cells
from fewtags.nets.spatial import refuse_without_maps
from fewtags.nets.tscam import coupled_maps
from fewtags.nets.zero_shot import ZeroShotNet
from fewtags.photos.dataset import Sample, read_through
from fewtags.photos.in_memory import NamedImage
from fewtags.photos.loader import Collate
from fewtags.photos.threads import read_ahead
from fewtags.photos.workers import WorkerLoader, Workers
from fewtags.shards.places import place
from fewtags.table.table import LabelTable, Notes
from fewtags.table.vocabulary import Matching
from fewtags.text import MOST_NAMED, counted

_NAMED_CLASSES = 5


@final
@dataclass(frozen=True)
class Prediction:
    """The result for one photo: probabilities float64 [C], or None and the error of reading it."""

    path: Path | NamedImage
    prob: NDArray[np.float64] | None
    error: str = ""


class Engine(Protocol):
    """What computes predictions: this process, or machines elsewhere.

    An engine yields one prediction for each photo, in order. The photos begin a batch, and the batches are those of one
    process, so that all engines give the same numbers.
    """

    def __call__(self, paths: Sequence[Path], /) -> Iterator[Prediction]:
        """Yield the prediction for every photo, in order; an unreadable photo yields its error."""


@final
class _Files(Dataset[Sample | str]):
    """Photos by index, through the test view; an unreadable photo is the text of its error."""

    def __init__(self, paths: Sequence[Path | NamedImage], info: ModelInfo) -> None:
        # An Arrow array: worker processes would copy the objects of a list. Bytes: a file name need not be text.
        self.paths = pa.array([os.fsencode(p) if isinstance(p, Path) else None for p in paths], pa.binary())
        self.images = {n: image for n, image in enumerate(paths) if isinstance(image, NamedImage)}
        self.policy = make_policy(info.policy, info.size)
        self.classes = len(info.class_ids)

    def __len__(self) -> int:
        return len(self.paths)

    def __getitem__(self, index: int) -> Sample | str:
        try:
            path = self.images.get(index) or place(os.fsdecode(self.paths[index].as_py()))
            pixels, view = read_through(path, self.policy.test_view, self.policy.size)
        except FewtagsError as error:
            return str(error)
        return Sample(pixels=pixels, labels=np.full(self.classes, Label.UNKNOWN, np.int8), index=index, view=view)


def predict_photos(
    net: Predictor | ZeroShotNet,
    info: ModelInfo,
    paths: Sequence[Path | NamedImage],
    device: torch.device,
    *,
    batch_size: int = 16,
    workers: int = 0,
    threads: int | None = None,
) -> Iterator[Prediction]:
    """Yield the prediction for every photo, in order; an unreadable photo yields its error.

    Photos are decoded by `workers` processes, or without these by `threads` threads; default: one for each core.
    """
    found = _logits(net, info, paths, device, batch_size, workers, threads)
    for path, logits in zip(paths, found, strict=True):
        yield Prediction(path, None, logits) if isinstance(logits, str) else Prediction(path, sigmoid(logits))


def _logits(
    net: Predictor | ZeroShotNet,
    info: ModelInfo,
    paths: Sequence[Path | NamedImage],
    device: torch.device,
    batch_size: int,
    workers: int,
    threads: int | None = None,
) -> Iterator[Logits | str]:
    """Yield float32 [C] for every photo, in order, or the error of reading it."""
    net.to(device).eval()
    for samples, images in _read(net, info, paths, device, batch_size, workers, threads):
        rows: Iterator[Logits] = iter(())
        if images is not None:
            with torch.inference_mode():
                rows = iter(net.predict_logits(images).float().cpu().numpy())
        yield from (next(rows) if isinstance(sample, Sample) else sample for sample in samples)


def _read(
    net: Predictor | ZeroShotNet,
    info: ModelInfo,
    paths: Sequence[Path | NamedImage],
    device: torch.device,
    batch_size: int,
    workers: int,
    threads: int | None = None,
) -> Iterator[tuple[list[Sample | str], torch.Tensor | None]]:
    """Yield batches: a sample or error for each photo, in order, and a tensor of the readable ones if there are any."""
    prepare_process()
    collate = Collate(info.mean, info.std)
    files, batches = _Files(paths, info), BatchSampler(range(len(paths)), batch_size, drop_last=False)
    if workers:
        loader: Iterable[list[Sample | str]] = WorkerLoader(files, batches, list, Workers(workers))
    else:
        # An image in memory may be decoded when it is first used, and may be given twice: not for several threads.
        loader = read_ahead(files.__getitem__, batches, 1 if files.images else threads or cores())
    for samples in loader:
        crops = [sample.pixels for sample in samples if isinstance(sample, Sample)]
        if not crops:
            yield samples, None
        elif isinstance(net, OnnxNet):  # it normalises the pixels itself
            yield samples, torch.from_numpy(np.stack(crops)).permute(0, 3, 1, 2).to(device)
        else:
            yield samples, collate.pixels(crops, device)


def predict_maps(
    net: Predictor,
    info: ModelInfo,
    paths: Sequence[Path | NamedImage],
    device: torch.device,
    *,
    batch_size: int = 16,
    workers: int = 0,
) -> Iterator[tuple[View, NDArray[np.float64]]]:
    """Yield the test view of every photo, in order, and its probability maps [C, h, w] in the frame of that view.

    Raises:
        ConfigError: the model has no maps.
        DataError: a photo cannot be read.
    """
    refuse_without_maps(info.head, "a heatmap")
    net.to(device).eval()
    for samples, images in _read(net, info, paths, device, batch_size, workers):
        for sample in samples:
            if isinstance(sample, str):
                raise DataError(sample)
        assert images is not None
        with torch.inference_mode():
            maps = net(images).maps.float().cpu().numpy()
        yield from ((s.view, sigmoid(own)) for s, own in zip(samples, maps, strict=True) if isinstance(s, Sample))


@final
@dataclass(frozen=True, eq=False, kw_only=True)
class ScoredTable:
    """The logits of a model for the readable photos of a table, with their labels.

    Attributes:
        index: int64 [n], rows of the photos in the table.
        logits: float32 [n, C], for the model's classes.
        labels: int8 [n, C], values of `Label`; classes that the table does not have are unknown.
        sizes: float64 [n, C] of the objects, see `cell_sizes`; None without boxes.
        unreadable: number of photos that could not be read.
        notes: messages about what was left out.
    """

    index: NDArray[np.int64]
    logits: Logits
    labels: NDArray[np.int8]
    sizes: NDArray[np.float64] | None = None
    unreadable: int = 0
    notes: tuple[str, ...] = ()

    def rows(self, index: NDArray[np.int64]) -> ScoredTable:
        """Return the photos with these rows in the table, in order."""
        kept = np.isin(self.index, index)
        sizes = None if self.sizes is None else self.sizes[kept]
        return replace(self, index=self.index[kept], logits=self.logits[kept], labels=self.labels[kept], sizes=sizes)

    def evaluate(self, info: ModelInfo) -> Evaluation:
        """Evaluate the logits at the thresholds of the model.

        Raises:
            DataError: there is no photo.
        """
        thresholds = np.array(info.thresholds)
        result = evaluate_logits(self.logits, self.labels, info.classes, thresholds, info.groups, self.sizes)
        return replace(result, unreadable=self.unreadable)


def evaluate_table(
    net: Predictor, info: ModelInfo, table: LabelTable, *, cpu: bool = False
) -> tuple[Evaluation, list[str]]:
    """Evaluate a model on a table; return the evaluation, and messages about what was left out. See `score_table`."""
    scored = score_table(net, info, table, cpu=cpu)
    return scored.evaluate(info), [*scored.notes]


def score_table(
    net: Predictor, info: ModelInfo, table: LabelTable, *, cpu: bool = False, workers: int = 0
) -> ScoredTable:
    """Compute the logits of a model for the photos of a table; classes are matched as in `matched`.

    Raises:
        DataError: no class of the table is known to the model, the table has no photos, or none can be read.
    """
    device = torch_device(cpu)
    table, alike = matched(info, table)
    root = table.require_root()
    known = [i for i in table.classes.ids if i in info.classes]
    labels = np.full((len(table), len(info.class_ids)), Label.UNKNOWN, np.int8)
    dense = table.matrix.dense()
    for class_id in known:
        labels[:, info.classes.index(class_id)] = dense[:, table.classes.index(class_id)]
    labels, follows = info.class_groups.settled(labels, info.classes)
    logits, errors = np.zeros(labels.shape, np.float32), {}
    paths = [root / key for key in table.images.to_pylist()]
    for i, found in enumerate(_logits(net, info, paths, device, 16 if device.type == "cpu" else 64, workers)):
        if isinstance(found, str):
            errors[i] = found
        else:
            logits[i] = found
    if paths and len(errors) == len(paths):
        raise DataError(f"none of the {len(paths):,} photos can be read, for example {errors[0]}")
    read = np.delete(np.arange(len(paths)), list(errors))
    notes = [*errors.values()][:MOST_NAMED]
    if len(errors) > MOST_NAMED:
        notes.append(f"and {counted(len(errors) - MOST_NAMED, 'more photo', 'more photos')} that cannot be read")
    if unknown := [i for i in table.classes.ids if i not in info.classes]:
        named = ", ".join(map(repr, unknown[:_NAMED_CLASSES])) + (", ..." if len(unknown) > _NAMED_CLASSES else "")
        lost = counted(len(unknown), "class", "classes")
        notes.insert(0, f"left out: {lost} that the model does not know ({named})")
    notes[:0] = [*alike.messages, *(f"warning: {text}" for text in alike.warnings), *follows]
    sizes = cell_sizes(table, info.classes)
    return ScoredTable(
        index=read,
        logits=logits[read],
        labels=labels[read],
        sizes=None if sizes is None else sizes[read],
        unreadable=len(errors),
        notes=tuple(notes),
    )


def matched(info: ModelInfo, table: LabelTable) -> tuple[LabelTable, Notes]:
    """Return a table with its classes named as in a model where only the spelling differs, and notes about that.

    Raises:
        DataError: the model knows none of the classes, or there is no folder of photos.
    """
    found = Matching.of(table.classes, info.classes)
    notes = found.notes("the model")
    table = found.rename(table, info.classes)
    if not any(i in info.classes for i in table.classes.ids):
        why = (
            f"none of the classes {', '.join(table.classes.ids[:5])} is known to the model, which has "
            f"{', '.join(info.class_ids[:5])}."
        )
        raise DataError(" ".join([why, *notes.warnings[:1]]))
    table.require_root()
    return table, notes


def decide(
    prob: NDArray[np.float64], thresholds: NDArray[np.float64], max_tags: int | None = None, groups: Groups = ()
) -> NDArray[np.int64]:
    """Return the classes that are taken as present (`decide_cells`), best first, at most `max_tags`.

    Raises:
        ConfigError: `max_tags` is below 1.

    >>> decide(np.array([0.2, 0.9, 0.6]), np.array([0.5, 0.5, 0.5])).tolist()
    [1, 2]
    """
    if max_tags is not None and max_tags < 1:
        raise ConfigError(f"max_tags is {max_tags}; expected 1 or more, or None for all tags.")
    order = np.argsort(-prob, kind="stable")
    present: NDArray[np.int64] = order[decide_cells(prob[None], thresholds, groups)[0, order]]
    return present if max_tags is None else present[:max_tags]


def heatmaps(
    net: Predictor, info: ModelInfo, path: Path | NamedImage, device: torch.device, *, coupled: bool = False
) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
    """Compute the probabilities [C] and maps [C, h, w] of one photo, in the frame of its test view.

    That frame is the whole photo, resized to a square; for the policy `imagenet` it is the centre crop. With `coupled`,
    the maps are those of TS-CAM instead of probability maps: the class token's attention times the class logits
    (`coupled_maps`). They may be negative, and are comparable only within one map.

    Raises:
        ConfigError: the model has no maps; `coupled` needs a ViT with a class token, and no ONNX file.
        DataError: the photo cannot be read.
    """
    refuse_without_maps(info.head, "a heatmap")
    net, policy, collate = net.to(device).eval(), make_policy(info.policy, info.size), Collate(info.mean, info.std)
    if not coupled:
        return class_maps(net, path, policy, collate, device)
    pixels, _ = read_through(path, policy.test_view, policy.size)
    with torch.inference_mode():
        found = coupled_maps(torch_net(net, "give attention"), collate.pixels([pixels], device))
    return found.output.logits[0].float().sigmoid().cpu().numpy(), found.maps[0].float().cpu().numpy()
