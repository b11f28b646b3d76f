"""Export a trained model to one ONNX file: normalisation, net, scores and maps, with everything to use it as metadata.

The file has one input, `pixels`: uint8 [n, 3, h, w], RGB, the photo through the test view. uint8 leaves no doubt about
the scale, and is a quarter of the bytes of float32. The outputs are `scores` [n, C] and `maps` [n, C, r, c], both
probabilities, and `logits` [n, C].

torch has two exporters. This module uses the older one, which traces (`dynamo=False`). Measured with torch 2.14 on one
core: MobileNetV2 takes 5 s with any image size; the newer one took 116 s with one size, and more than four minutes of
CPU time with any size for EfficientNet-Lite0, whose padding depends on the size.
"""

from __future__ import annotations

import copy
import io
import json
import warnings
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, final

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from fewtags.engine.model import MODEL_FORMAT, ModelInfo
from fewtags.engine.onnx_net import ENDING, INPUT, KEY, LOGITS, MAPS, OUTPUTS, SCORES, needs_extra
from fewtags.errors import ConfigError
from fewtags.files import replacing
from fewtags.nets.spatial import SpatialNet
from fewtags.photos.augment import ResizedCrop

OPSET = 17
"""Version of the ONNX operators in the files; onnxruntime 1.12 and newer, OpenCV and TensorRT have it."""
LIMIT = 1e-4
"""Largest difference of a probability from torch's that an export may have."""
LARGEST_FILE = 2**31 - 2**20
"""Bytes of the largest file that is written: ONNX files end at 2 GiB."""
_OTHER_SIZES = ((1.5, 1.0), (0.75, 1.25))
"""(height, width) of the other sizes that are compared with torch, as a share of the input size."""


@final
@dataclass(frozen=True)
class Parity:
    """The largest differences of probabilities between the file and torch, and what was compared.

    Attributes:
        scores: of the image scores.
        maps: of the maps.
        compared: (photos, height, width) of each batch.
    """

    scores: float
    maps: float
    compared: tuple[tuple[int, int, int], ...]

    def __str__(self) -> str:
        batches = ", ".join(f"{n} x {h} x {w}" for n, h, w in self.compared)
        return f"max |dp| {self.scores:.1e} of scores, {self.maps:.1e} of maps, on batches {batches}"


@final
@dataclass(frozen=True)
class OnnxExport:
    """An ONNX file that was written.

    Attributes:
        path: the file.
        parity: the comparison with torch.
        fixed: why the file takes one image size only; "" if it takes any.
        has_maps: whether the model has class maps.
    """

    path: Path
    parity: Parity
    fixed: str = ""
    has_maps: bool = True

    def lines(self, size: int) -> Iterator[str]:
        """Say what the file takes and gives."""
        sides = f"{size}, {size}" if self.fixed else "h, w"
        yield f"input {INPUT}: uint8 [n, 3, {sides}], RGB; normalisation is inside; ONNX opset {OPSET}"
        cells = "rows, columns] (probabilities)" if self.has_maps else "1, 1] (the scores: the model has no maps)"
        yield f"outputs: {SCORES} [n, C], {MAPS} [n, C, {cells}, {LOGITS} [n, C]"
        if self.fixed:
            yield f"the image size is fixed ({self.fixed})"
        yield f"compared with torch: {self.parity}"


@final
class _Exported(nn.Module):
    """Pixels uint8 [n, 3, h, w] -> scores, maps, logits."""

    def __init__(self, net: SpatialNet) -> None:
        super().__init__()
        self.net = net
        self.mean: Tensor
        self.std: Tensor
        for name, values in (("mean", net.preprocessing.mean), ("std", net.preprocessing.std)):
            self.register_buffer(name, 255 * torch.tensor(values)[None, :, None, None])

    def forward(self, pixels: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        features = self.net.features((pixels.float() - self.mean) / self.std)
        maps = self.net.head(features).maps
        logits = self.net.head.predict_logits(features)
        return logits.sigmoid(), maps.sigmoid(), logits


def export_onnx(net: SpatialNet, info: ModelInfo, out: Path) -> OnnxExport:
    """Write an ONNX file, after its results were compared with torch's on batches of several sizes.

    The number of images is dynamic. So is their size, unless the net fixes it.

    Raises:
        ConfigError: a package of the extra `export` is missing, torch cannot export the net, a probability differs by
            more than `LIMIT`, or `out` does not end in .onnx.
    """
    try:
        import onnx  # noqa: F401 (torch needs it to write the file)
        import onnxruntime  # noqa: F401
    except ModuleNotFoundError as error:
        raise needs_extra(error) from error
    if out.suffix.lower() != ENDING:
        raise ConfigError(f"{out}: an ONNX file ends in {ENDING}; choose another name.")
    cpu = copy.deepcopy(net).to("cpu").eval()
    content, parity, fixed = _traced(cpu, info)
    out.parent.mkdir(parents=True, exist_ok=True)
    written = with_metadata(content, {**metadata(info), "parity": str(parity)})
    with replacing(out, len(written)) as temporary:
        temporary.write_bytes(written)
    return OnnxExport(out, parity, fixed, info.head.has_maps)


def _traced(net: SpatialNet, info: ModelInfo) -> tuple[bytes, Parity, str]:
    """Return a file, its parity, and why it takes one image size only; "" if it takes any."""
    fixed = "the position embeddings of a transformer have one size"
    if net.layout != "NLC":
        try:
            return *_trace(net, info.size, any_size=True), ""
        except _RefusedError as error:
            fixed = f"of all sizes, {error}"
    try:
        fix_size(net, info.size)
        return *_trace(net, info.size, any_size=False), fixed
    except _RefusedError as error:
        raise ConfigError(f"{info.backbone} cannot be exported to ONNX: {error}; use the run folder itself.") from error


class _RefusedError(Exception):
    """A net has no ONNX file of the wanted kind."""


def _trace(net: SpatialNet, size: int, *, any_size: bool) -> tuple[bytes, Parity]:
    """Return an ONNX file without metadata, and its parity with torch.

    Raises _RefusedError if torch cannot trace the net, the file does not run, or a probability differs by more than
    `LIMIT`.
    """
    target = io.BytesIO()
    sides: dict[int, str] = {2: "h", 3: "w"} if any_size else {}
    axes = {name: {0: "n"} for name in (INPUT, *OUTPUTS)}
    axes[INPUT] |= sides
    axes[MAPS] |= {2: "rows", 3: "columns"} if any_size else {}
    try:
        with warnings.catch_warnings(), torch.no_grad():
            # Of the older exporter itself; traced constants (TracerWarning) would show in the comparison with torch.
            warnings.simplefilter("ignore")
            torch.onnx.export(
                _Exported(net).eval(),
                (_pixels(2, size, size),),
                target,  # type: ignore[arg-type]  # a file object is accepted by this exporter
                input_names=[INPUT],
                output_names=list(OUTPUTS),
                dynamic_axes=axes,
                opset_version=OPSET,
                dynamo=False,
            )
            content = target.getvalue()
    except (RuntimeError, TypeError, ValueError, NotImplementedError) as error:
        raise _RefusedError(f"torch says: {str(error).strip().splitlines()[0][:200]}") from error
    if len(content) > LARGEST_FILE:
        raise ConfigError(f"the net has {len(content) / 1e9:.1f} GB of weights; one ONNX file can have 2 GB.")
    parity = compare(net, content, size, any_size=any_size)
    if not max(parity.scores, parity.maps) <= LIMIT:
        raise _RefusedError(f"the results differ from those of torch by more than {LIMIT:g}: {parity}")
    return content, parity


def other_sizes(size: int) -> list[tuple[int, int]]:
    """Heights and widths beside `size` that a file is compared at: multiples of 32, which all CNNs take.

    >>> other_sizes(224)
    [(320, 224), (160, 288)]
    """
    return [(max(32, round(a * size / 32) * 32), max(32, round(b * size / 32) * 32)) for a, b in _OTHER_SIZES]


def fix_size(net: SpatialNet, size: int) -> None:
    """Give a transformer position embeddings of one image size, so that it resamples none when it runs."""
    backbone: Any = net.backbone
    if getattr(backbone, "pos_embed", None) is not None and callable(getattr(backbone, "set_input_size", None)):
        backbone.set_input_size(img_size=(size, size))


def compare(net: SpatialNet, content: bytes, size: int, *, any_size: bool) -> Parity:
    """Compare the content of a file with a net of torch on several batches, of several sizes if it takes any.

    Raises _RefusedError if one of both cannot run.
    """
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4  # a failure is reported by the error
    session = onnxruntime.InferenceSession(content, options, providers=["CPUExecutionProvider"])
    reference = _Exported(net).eval()
    batches = [(1, size, size), (5, size, size), (2, size, size)]
    if any_size:
        batches += [(2, height, width) for height, width in other_sizes(size)]
    worst = np.zeros(2)
    for seed, batch in enumerate(batches):
        pixels = _pixels(*batch, seed=seed)
        try:
            with torch.no_grad():
                wanted = reference(pixels)
            found = session.run([SCORES, MAPS], {INPUT: pixels.numpy()})
        except Exception as error:  # the errors of onnxruntime have no common base, nor do those of backbones
            raise _RefusedError(f"a batch of {' x '.join(map(str, batch))} fails") from error
        for n, values in enumerate(found):
            same = wanted[n].shape == values.shape
            gap = float(np.abs(wanted[n].numpy() - values).max()) if same else np.inf
            worst[n] = max(worst[n], gap) if np.isfinite(gap) else np.inf
    return Parity(float(worst[0]), float(worst[1]), tuple(batches))


def _pixels(count: int, height: int, width: int, seed: int = 0) -> Tensor:
    """uint8 [n, 3, h, w]: coarse colours with fine noise, as photos have; the first image is black on the left."""
    rng = np.random.default_rng([seed, count, height, width])
    coarse = rng.integers(0, 256, (count, 3, -(-height // 16), -(-width // 16)))
    large: NDArray[np.int64] = np.kron(coarse, np.ones((1, 1, 16, 16), np.int64))[:, :, :height, :width]
    pixels = (large + rng.integers(-20, 21, large.shape)).clip(0, 255).astype(np.uint8)
    pixels[0, :, :, : width // 2] = 0
    return torch.from_numpy(pixels)


def metadata(info: ModelInfo) -> dict[str, str]:
    """Return the metadata of a file: `fewtags` is read by fewtags; the other entries are for other programs, as JSON.

    `class_ids`, `class_names` and `thresholds` have C entries; a class is present if its score is at least its
    threshold (in groups: `exactly_one` and `at_most_one` in `fewtags`).
    """
    pool = {"name": info.head.pool.name, "head_kernel": info.head.kernel}
    return {
        KEY: json.dumps({"format": MODEL_FORMAT, **asdict(info)}),
        "class_ids": json.dumps(info.class_ids, ensure_ascii=False),
        "class_names": json.dumps(info.classes.display, ensure_ascii=False),
        "thresholds": json.dumps(info.thresholds),
        "pool": json.dumps(pool),
        "preprocessing": json.dumps(preprocessing(info)),
    }


def preprocessing(info: ModelInfo) -> dict[str, Any]:
    """Describe how a photo becomes the input: orientation, crop, size, filter, and the normalisation inside."""
    crop = "none; the whole photo is stretched to the size"
    share = 1.0
    if info.policy == "imagenet":
        share = ResizedCrop(info.size).centre
        crop = "the centre square, whose side is `crop_share` of the photo's shorter side"
    return {
        "orientation": "EXIF orientation is applied",
        "transparency": "composited on white",
        "channels": "RGB, uint8, channels first",
        "crop": crop,
        "crop_share": share,
        "size": [info.size, info.size],
        "resize": "bilinear, widened with the reduction (antialias); Pillow's Image.resize(BILINEAR, box)",
        "normalisation": {"inside_the_file": True, "mean": list(info.mean), "std": list(info.std)},
    }


def with_metadata(content: bytes, entries: dict[str, str]) -> bytes:
    """Return an ONNX file with metadata, checked by onnx."""
    import onnx

    model = onnx.load_from_string(content)
    model.producer_name = "fewtags"
    model.doc_string = (
        f"{INPUT}: uint8 [n, 3, h, w], RGB. {SCORES} [n, C], {MAPS} [n, C, rows, columns]: probabilities. "
        f"{LOGITS} [n, C]. Preprocessing, classes and thresholds are in the metadata."
    )
    del model.metadata_props[:]
    onnx.helper.set_model_props(model, entries)
    onnx.checker.check_model(model)
    written: bytes = model.SerializeToString()
    return written
