"""The model of the service: from the bytes of a photo to its scores and maps."""

from __future__ import annotations

import base64
import io
import os
import tempfile
from collections.abc import Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from pathlib import Path
from typing import final

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image

from fewtags.engine.evaluate import sigmoid
from fewtags.engine.machine import prepare_process
from fewtags.engine.model import ModelInfo, make_policy
from fewtags.engine.onnx_net import Predictor
from fewtags.engine.predict import decide
from fewtags.errors import DataError
from fewtags.photos.augment import Pixels
from fewtags.photos.dataset import read_through
from fewtags.photos.decode import probe, read_image
from fewtags.photos.loader import Collate
from fewtags.report.overlay import HeatScale, overlay
from fewtags.serve.batcher import Batcher

SIDE = 640
"""Longest side of a heatmap picture in pixels."""


@final
@dataclass(frozen=True, kw_only=True)
class Limits:
    """What the service accepts.

    Attributes:
        bytes: of a request.
        pixels: of a photo; a larger one is refused before it is decoded.
        photos: in a request.
        batch: photos that the model sees together at most.
        waiting: photos that may wait; more are refused with status 503.
        decoders: threads that decode photos.
    """

    bytes: int = 20_000_000
    pixels: int = 50_000_000
    photos: int = 16
    batch: int = 16
    waiting: int = 256
    decoders: int = 2


@final
@dataclass(frozen=True)
class Tag:
    """A class with its probability in one photo, and its threshold."""

    id: str
    name: str
    probability: float
    threshold: float


@final
@dataclass(frozen=True)
class Maps:
    """Probabilities [C] and maps [C, h, w] of one photo."""

    prob: NDArray[np.float64]
    maps: NDArray[np.float64]


@final
@dataclass(frozen=True)
class _Asked:
    """Pixels of a photo through the test view, and whether maps are wanted."""

    pixels: Pixels
    maps: bool


@final
class ServedModel:
    """A model that many threads may ask. `close` ends it.

    Args:
        net: the net, which one thread uses.
        info: its metadata.
        device: where the net computes.
        limits: see `Limits`.
    """

    def __init__(self, net: Predictor, info: ModelInfo, device: torch.device, limits: Limits) -> None:
        prepare_process()
        self.info, self.limits = info, limits
        self._net, self._device = net.to(device).eval(), device
        self._policy = make_policy(info.policy, info.size)
        self._collate = Collate(info.mean, info.std)
        self._thresholds = np.array(info.thresholds)
        self.batcher: Batcher[_Asked, Maps] = Batcher(self._compute, largest=limits.batch, waiting=limits.waiting)

    def close(self) -> None:
        """Finish what waits."""
        self.batcher.close()

    def ask(self, content: bytes, name: str, *, maps: bool = False) -> Future[Maps]:
        """Decode a photo, and give it to the model; `name` is for messages.

        Raises:
            DataError: the photo cannot be read, or has too many pixels.
            BusyError: too many photos wait.
        """
        with _File(content, name) as path:
            self._refuse_large(path)
            pixels, _ = read_through(path, self._policy.test_view, self._policy.size)
        return self.batcher.submit(_Asked(pixels, maps))

    def tags(self, prob: NDArray[np.float64], most: int | None, threshold: float | None) -> list[Tag]:
        """Return the classes that are present, best first; `threshold` replaces those of the model."""
        values = self._thresholds if threshold is None else np.full_like(self._thresholds, threshold)
        return [self.tag(prob, int(c), values) for c in decide(prob, values, most, self.info.groups)]

    def tag(self, prob: NDArray[np.float64], c: int, thresholds: NDArray[np.float64] | None = None) -> Tag:
        """Return one class with its probability."""
        values = self._thresholds if thresholds is None else thresholds
        return Tag(self.info.class_ids[c], self.info.classes.display[c], float(prob[c]), float(values[c]))

    def pictures(self, content: bytes, name: str, found: Maps, classes: Sequence[int]) -> list[tuple[str, str]]:
        """Return, for each class, a PNG of the photo with its heatmap as a data URL, and the scale of the colours."""
        with _File(content, name) as path:
            photo = read_image(path, size=_fitted(path))
        view = self._policy.test_view(photo.shape[1] / photo.shape[0])
        heat_scale = HeatScale.of([found.maps[c] for c in classes]) if classes else None
        drawn = []
        for c in classes:
            assert heat_scale is not None
            picture = io.BytesIO()
            Image.fromarray(overlay(photo, heat_scale.apply(found.maps[c]), view=view)).save(picture, "PNG")
            drawn.append((f"data:image/png;base64,{base64.b64encode(picture.getvalue()).decode()}", heat_scale.text))
        return drawn

    def _refuse_large(self, path: Path) -> None:
        info = probe(path)
        if info.width * info.height > self.limits.pixels:
            raise DataError(
                f"{path}: has {info.width:,} x {info.height:,} pixels, more than the limit of "
                f"{self.limits.pixels / 1e6:,.0f} million; shrink the photo."
            )

    def _compute(self, asked: Sequence[_Asked]) -> list[Maps]:
        """Compute a batch; maps only if one of its photos wants them."""
        images = self._collate.pixels([one.pixels for one in asked], self._device)
        with torch.inference_mode():
            if any(one.maps for one in asked):
                output = self._net(images)
                logits, maps = output.logits, output.maps.float().cpu().numpy()
            else:
                logits = self._net.predict_logits(images)
                maps = np.zeros((len(asked), 0, 0, 0), np.float32)
        prob = sigmoid(logits.float().cpu().numpy())
        return [Maps(p, sigmoid(m)) for p, m in zip(prob, maps, strict=True)]


@final
class _File:
    """A photo in a temporary file, because photos are read from files; errors name the photo as its sender did."""

    def __init__(self, content: bytes, name: str) -> None:
        self._content, self._name = content, name
        self._path = Path()

    def __enter__(self) -> Path:
        handle, path = tempfile.mkstemp(prefix="fewtags-", suffix=Path(self._name).suffix[:8])
        self._path = Path(path)
        with os.fdopen(handle, "wb") as file:
            file.write(self._content)
        return self._path

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        self._path.unlink(missing_ok=True)
        if isinstance(error, DataError):
            raise DataError(str(error).replace(str(self._path), self._name)) from None


def _fitted(path: Path) -> tuple[int, int]:
    """Return the (height, width) of a photo with its longest side at most `SIDE`."""
    info = probe(path)
    factor = min(1.0, SIDE / max(info.width, info.height))
    return max(1, round(info.height * factor)), max(1, round(info.width * factor))
