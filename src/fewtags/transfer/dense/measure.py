"""Run a detector and measure it: COCO's AP with faster-coco-eval, Pascal VOC's AP with our own code."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, final

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from fewtags.engine.machine import prepare_process
from fewtags.errors import ConfigError, DataError
from fewtags.metrics.detection_voc import PredictedBoxes, TrueBoxes, voc_average_precision
from fewtags.photos.scan import Tick
from fewtags.transfer.dense.batches import read_batches
from fewtags.transfer.dense.detection import as_image
from fewtags.transfer.dense.scenes import Scene, Scenes

MASK_AT = 0.5
"""A pixel belongs to the mask above this probability."""


@final
@dataclass(frozen=True, eq=False, kw_only=True)
class Detections:
    """Detected objects of a photo of this height and width, in its pixels.

    Attributes:
        boxes: float32 [k, 4], x0, y0, x1, y1.
        classes: int64 [k], 0..C - 1.
        scores: float32 [k].
        masks: run lengths of each object as faster-coco-eval encodes them; None: no masks.
    """

    height: int
    width: int
    boxes: NDArray[np.float32]
    classes: NDArray[np.int64]
    scores: NDArray[np.float32]
    masks: tuple[dict[str, Any], ...] | None


@torch.no_grad()
def detect_objects(
    net: nn.Module, data: Scenes, device: torch.device, *, workers: int = 0, tick: Tick | None = None
) -> list[Detections]:
    """Detect objects in every photo. The network is put into eval mode; `workers` processes read the photos.

    Raises:
        DataError: a photo cannot be used.
    """
    prepare_process()
    net.to(device).eval()
    found = []
    keys = [[(n,)] for n in range(len(data))]
    for done, (pixels,) in enumerate(read_batches(data.pixels, keys, workers), 1):
        (out,) = net([as_image(pixels).to(device)])
        height, width, _ = pixels.shape
        masks = tuple(_encoded(mask[0] > MASK_AT) for mask in out["masks"]) if "masks" in out else None
        boxes, labels, scores = (out[name].cpu().numpy() for name in ("boxes", "labels", "scores"))
        found.append(
            Detections(height=height, width=width, boxes=boxes, classes=labels - 1, scores=scores, masks=masks)
        )
        if tick is not None:
            tick(done, len(data))
    return found


def measure_detections(data: Scenes, found: Sequence[Detections]) -> dict[str, float]:
    """Compute AP by the rules of the data's layout, 0..1. `found` has the detections of each photo, in the same order.

    COCO: "box_AP", "box_AP50", "box_AP75", and the same of masks ("mask_AP") if the detector predicts masks: IoU .50 to
    .95, 101 recall points, 100 detections per photo, crowds ignored.
    VOC: the same names for boxes, with 11 recall points (VOC2007), means over IoU .50 to .95 as detectron2 prints them,
    difficult objects ignored.

    Raises:
        ConfigError: faster-coco-eval is not installed.
        DataError: no photo has an object that counts.
    """
    assert len(found) == len(data), (len(found), len(data))
    if not any((~scene.ignored).any() for scene in data.scenes):
        raise DataError("no test photo has an object that counts; give photos with annotated objects.")
    if data.layout == "voc":
        # VOC numbers the first and the last pixel of a box from 1; our corners are continuous.
        shift = np.array([1.0, 1.0, 0.0, 0.0])
        truth = [
            TrueBoxes(scene.boxes_in(one.height, one.width) + shift, scene.classes, scene.ignored)
            for scene, one in zip(data.scenes, found, strict=True)
        ]
        predicted = [
            PredictedBoxes(one.boxes.astype(np.float64) + shift, one.classes, one.scores.astype(np.float64))
            for one in found
        ]
        result = voc_average_precision(truth, predicted, len(data.classes))
        return {"box_AP": result.mean, "box_AP50": result.at(0.5), "box_AP75": result.at(0.75)}
    annotations = _coco_truth(data, found)
    values = _coco_ap(annotations, _results(found, masks=False), "box", "bbox")
    if all(one.masks is not None for one in found):
        values |= _coco_ap(annotations, _results(found, masks=True), "mask", "segm")
    return values


def require_measure() -> None:
    """Raise `ConfigError` before training if faster-coco-eval, which computes AP afterwards, is not installed."""
    _library()


def _library() -> Any:
    try:
        import faster_coco_eval
    except ImportError:
        raise ConfigError(
            "COCO's AP needs faster-coco-eval, which is not installed; run pip install 'fewtags[coco]'."
        ) from None
    return faster_coco_eval


def _encoded(mask: Tensor | NDArray[np.bool_]) -> dict[str, Any]:
    pixels = mask.cpu().numpy() if isinstance(mask, Tensor) else mask
    encoded: dict[str, Any] = _library().mask.encode(np.asfortranarray(pixels, np.uint8))
    return encoded


def _coco_truth(data: Scenes, found: Sequence[Detections]) -> dict[str, Any]:
    """Return the annotations as a COCO file, in pixels of the photos."""
    images: list[dict[str, Any]] = []
    annotations: list[dict[str, Any]] = []
    for n, (scene, one) in enumerate(zip(data.scenes, found, strict=True), 1):
        images.append({"id": n, "width": one.width, "height": one.height})
        across, down = one.width / scene.width, one.height / scene.height
        for i, (x0, y0, x1, y1) in enumerate(scene.boxes_in(one.height, one.width).tolist()):
            annotation = {
                "id": len(annotations) + 1,
                "image_id": n,
                "category_id": int(scene.classes[i]) + 1,
                "bbox": [x0, y0, x1 - x0, y1 - y0],
                "area": float(scene.areas[i]) * across * down,
                "iscrowd": int(scene.ignored[i]),
            }
            if one.masks is not None:
                annotation["segmentation"] = _segmentation(scene, i, one)
            annotations.append(annotation)
    categories = [{"id": c, "name": name} for c, name in enumerate(data.classes, 1)]
    return {"images": images, "annotations": annotations, "categories": categories}


def _segmentation(scene: Scene, i: int, one: Detections) -> Any:
    outline = scene.outlines[i]
    if outline is None:  # a crowd without an outline counts as its box
        x0, y0, x1, y1 = scene.boxes_in(one.height, one.width)[i]
        return [[x0, y0, x1, y0, x1, y1, x0, y1]]
    if isinstance(outline, list):
        return scene.scaled(i, one.height, one.width)
    if (one.height, one.width) == (scene.height, scene.width):
        return outline
    return _encoded(scene.mask(i, one.height, one.width))


def _results(found: Sequence[Detections], *, masks: bool) -> list[dict[str, Any]]:
    results = []
    for n, one in enumerate(found, 1):
        for i, (x0, y0, x1, y1) in enumerate(one.boxes.tolist()):
            outline = one.masks[i] if masks and one.masks is not None else None
            region = {"bbox": [x0, y0, x1 - x0, y1 - y0]} if outline is None else {"segmentation": outline}
            class_, score = int(one.classes[i]) + 1, float(one.scores[i])
            results.append({"image_id": n, "category_id": class_, "score": score, **region})
    return results


def _coco_ap(truth: dict[str, Any], results: list[dict[str, Any]], name: str, kind: str) -> dict[str, float]:
    library = _library()
    own = library.COCO(truth)
    found = own.loadRes(results)
    measured = library.COCOeval_faster(own, found, iouType=kind, print_function=lambda *_words: None)
    measured.evaluate()
    measured.accumulate()
    measured.summarize()
    return {f"{name}_AP{at}": float(value) for at, value in zip(("", "50", "75"), measured.stats[:3], strict=True)}
