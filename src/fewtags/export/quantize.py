"""Quantise an exported ONNX file to int8, and compare it with the float model on the validation photos of its run.

Convolutional nets are quantised statically: training photos set the range of every activation. Transformers are
quantised dynamically, in their matrix products only, as onnxruntime advises. The normalisation and the head stay in
float32, because they are a small part of the work and decide the scale of the scores.
"""

from __future__ import annotations

import logging
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, final

import numpy as np
from numpy.typing import NDArray

from fewtags.engine.evaluate import Evaluation, evaluate_logits, sigmoid
from fewtags.engine.model import ModelInfo, make_policy
from fewtags.engine.onnx_net import INPUT, load_onnx, needs_extra
from fewtags.engine.own_thresholds import validation_scores
from fewtags.engine.predict import ScoredTable, score_table
from fewtags.errors import ConfigError, DataError
from fewtags.files import replacing
from fewtags.metrics.decisions import decide_cells
from fewtags.nets.spatial import SpatialNet
from fewtags.photos.dataset import read_through
from fewtags.table.storage import load
from fewtags.table.table import LabelTable
from fewtags.text import counted

CALIBRATION = 128
"""Training photos that set the ranges of activations, spread evenly over the table."""


@final
@dataclass(frozen=True, kw_only=True)
class Int8Export:
    """A quantised file, and its results on the validation photos beside those of the float model.

    Attributes:
        path: the file.
        float_map: mAP of the float model, nan if no class has known positives and negatives; `int8_map` likewise.
        gap: mean difference of a probability.
        agreement: share of cells with the same decision at the thresholds.
        photos: number of validation photos.
        sizes: bytes of the float file and of this one.
    """

    path: Path
    float_map: float
    int8_map: float
    gap: float
    agreement: float
    photos: int
    sizes: tuple[int, int]

    def lines(self) -> Iterator[str]:
        """Say what the quantisation changes."""
        before, after = (size / 1e6 for size in self.sizes)
        yield f"int8: {after:.1f} MB instead of {before:.1f}"
        start = f"on {counted(self.photos, 'validation photo')}: "
        if np.isfinite(self.float_map):
            start += f"mAP {100 * self.float_map:.2f} float, {100 * self.int8_map:.2f} int8; "
        yield f"{start}mean |dp| {self.gap:.4f}, the same decision in {self.agreement:.2%} of the cells"
        if self.float_map - self.int8_map > 0.01:
            yield "warning: int8 loses more than one point of mAP; use the float file"


def export_int8(net: SpatialNet, run: Path, source: Path, out: Path) -> Int8Export:
    """Quantise the ONNX file `source` of a run folder, and evaluate both on its validation photos.

    Raises:
        ConfigError: onnx or onnxruntime is missing, the run has no tables, or its files do not belong together.
        DataError: the photos of the run cannot be read.
    """
    try:
        from onnxruntime.quantization import QuantType, quantize_dynamic, quantize_static
    except ModuleNotFoundError as error:
        raise needs_extra(error) from error
    _, info = load_onnx(source)
    logits, labels = validation_scores(info, run, what="--int8")
    train, val = (load(run / "tables" / f"{name}.parquet") for name in ("train", "val"))
    with tempfile.TemporaryDirectory() as folder, replacing(out) as temporary, _without_advice():
        plain = Path(folder) / "float.onnx"
        head = _prepare(source, plain)
        common: dict[str, Any] = {"per_channel": True, "reduce_range": True, "weight_type": QuantType.QInt8}
        if net.layout == "NCHW":
            photos = _Calibration(info, train)
            quantize_static(plain, temporary, photos, activation_type=QuantType.QUInt8, nodes_to_exclude=head, **common)
        else:
            quantize_dynamic(plain, temporary, op_types_to_quantize=["MatMul"], nodes_to_exclude=head, **common)
    quantised, info = load_onnx(out)
    scored = score_table(quantised, info, val, cpu=True)
    return _compared(info, out, source, scored, logits[scored.index], labels[scored.index])


@contextmanager
def _without_advice() -> Iterator[None]:
    """Silence the advice of onnxruntime to fold normalisations first, which torch has done already."""
    root = logging.getLogger()
    root.addFilter(_is_no_advice)
    try:
        yield
    finally:
        root.removeFilter(_is_no_advice)


def _is_no_advice(record: logging.LogRecord) -> bool:
    return "pre-processing" not in record.getMessage()


def _compared(
    info: ModelInfo, out: Path, source: Path, scored: ScoredTable, logits: NDArray[np.float32], labels: NDArray[np.int8]
) -> Int8Export:
    thresholds = np.array(info.thresholds)

    def evaluated(values: NDArray[np.float32]) -> Evaluation:
        return evaluate_logits(values, labels, info.classes, thresholds, info.groups)

    before, after = sigmoid(logits), sigmoid(scored.logits)
    same = decide_cells(before, thresholds, info.groups) == decide_cells(after, thresholds, info.groups)
    return Int8Export(
        path=out,
        float_map=evaluated(logits).mean_average_precision,
        int8_map=evaluated(scored.logits).mean_average_precision,
        gap=float(np.abs(before - after).mean()),
        agreement=float(same.mean()),
        photos=len(labels),
        sizes=(source.stat().st_size, out.stat().st_size),
    )


def _prepare(source: Path, target: Path) -> list[str]:
    """Copy a file with the shapes of all values, which quantisation needs; return the nodes that stay in float32."""
    import onnx

    model = onnx.shape_inference.infer_shapes(onnx.load(source))
    onnx.save(model, target)
    return [node.name for node in model.graph.node if "backbone/" not in node.name]


@final
class _Calibration:
    """Gives onnxruntime one photo after the other, as `CalibrationDataReader` asks.

    Raises:
        DataError: no photo can be read.
    """

    def __init__(self, info: ModelInfo, table: LabelTable) -> None:
        rows = np.unique(np.linspace(0, len(table) - 1, min(len(table), CALIBRATION)).round().astype(int))
        keys = table.images.to_pylist()
        self._paths = [table.require_root() / keys[row] for row in rows]
        self._policy = make_policy(info.policy, info.size)
        self._photos = self._pixels()
        self._first: NDArray[np.uint8] | None = next(self._photos, None)
        if self._first is None:
            raise ConfigError(
                f"none of {counted(len(self._paths), 'training photo')} that --int8 needs can be read, for example "
                f"{self._paths[0]}; put the photos where they were, or leave out --int8."
            )

    def _pixels(self) -> Iterator[NDArray[np.uint8]]:
        for path in self._paths:
            try:
                pixels, _ = read_through(path, self._policy.test_view, self._policy.size)
            except DataError:  # the validation photos are reported when they are scored
                continue
            yield np.ascontiguousarray(pixels.transpose(2, 0, 1))[None]

    def get_next(self) -> dict[str, NDArray[np.uint8]] | None:
        """Return the next photo, or None at the end."""
        found, self._first = self._first, None
        found = next(self._photos, None) if found is None else found
        return None if found is None else {INPUT: found}
