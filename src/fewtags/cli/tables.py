"""Writing predictions and heatmaps to files."""

from __future__ import annotations

import csv
import json
import sys
from pathlib import Path
from types import TracebackType
from typing import Any, Self, TextIO, final

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import torch
from PIL import Image

from fewtags.data.images import read_image
from fewtags.engine.model import ModelInfo
from fewtags.engine.predict import Prediction, decide, heatmaps
from fewtags.errors import ConfigError, FewtagsError
from fewtags.nets.spatial import SpatialNet
from fewtags.report.overlay import overlay

FORMATS = (".csv", ".parquet", ".jsonl")
ROWS_PER_GROUP = 50_000


@final
class PredictionWriter:
    """Predictions as they come, to CSV, Parquet or JSON lines; a file appears under its name when it is complete.

    Long form (default): image, class, name, probability, threshold; one row per tag, best first. A photo without any
    tag has no row in it. Wide form: image, then one column per class with its probability.

    Args:
        out: the file; None writes CSV to stdout.
        info: of the model.
        wide: the wide form.
        threshold: replaces the stored thresholds.
        max_tags: at most so many tags per photo.

    Raises:
        ConfigError: an ending that is not known.
    """

    def __init__(
        self, out: Path | None, info: ModelInfo, wide: bool, threshold: float | None, max_tags: int | None
    ) -> None:
        if out is not None and out.suffix not in FORMATS:
            raise ConfigError(f"--out {out}: expected a file ending in {', '.join(FORMATS)}.")
        self.out, self.info, self.wide, self.max_tags = out, info, wide, max_tags
        values = np.array(info.thresholds) if threshold is None else np.full(len(info.class_ids), threshold)
        self.thresholds = values
        self.failed: list[Prediction] = []
        fields = [("image", pa.string())]
        if wide:
            fields += [(class_id, pa.float64()) for class_id in info.class_ids]
        else:
            fields += [
                ("class", pa.string()),
                ("name", pa.string()),
                ("probability", pa.float64()),
                ("threshold", pa.float64()),
            ]
        self.schema = pa.schema(fields)
        self._rows: list[dict[str, Any]] = []
        self._file: TextIO | None = None
        self._csv: csv.DictWriter[str] | None = None
        self._parquet: pq.ParquetWriter | None = None

    def __enter__(self) -> Self:
        if self.out is not None:
            self.out.parent.mkdir(parents=True, exist_ok=True)
            self._temporary = self.out.with_name(f".{self.out.name}.tmp")
        if self.out is not None and self.out.suffix == ".parquet":
            self._parquet = pq.ParquetWriter(self._temporary, self.schema)
        else:
            self._file = sys.stdout if self.out is None else self._temporary.open("w", encoding="utf-8", newline="")
            if self.out is None or self.out.suffix == ".csv":
                self._csv = csv.DictWriter(self._file, self.schema.names, lineterminator="\n")
                self._csv.writeheader()
        return self

    def add(self, found: Prediction) -> None:
        """Take one prediction; failures are kept aside."""
        if found.prob is None:
            self.failed.append(found)
            return
        ids, names, prob = self.info.class_ids, self.info.classes.display, found.prob
        if self.wide:
            self._rows.append({"image": str(found.path), **dict(zip(ids, prob.round(6).tolist(), strict=True))})
        else:
            self._rows += [
                {
                    "image": str(found.path),
                    "class": ids[c],
                    "name": names[c],
                    "probability": round(float(prob[c]), 6),
                    "threshold": round(float(self.thresholds[c]), 6),
                }
                for c in decide(prob, self.thresholds, self.max_tags)
            ]
        if self._parquet is None or len(self._rows) >= ROWS_PER_GROUP:
            self._flush()

    def _flush(self) -> None:
        if self._parquet is not None:
            self._parquet.write_table(pa.Table.from_pylist(self._rows, self.schema))
        elif self._csv is not None:
            self._csv.writerows(self._rows)
        elif self._file is not None:
            self._file.writelines(json.dumps(row, ensure_ascii=False) + "\n" for row in self._rows)
        self._rows.clear()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if kind is None:
            self._flush()
        if self._parquet is not None:
            self._parquet.close()
        if self.out is not None:
            if self._file is not None:
                self._file.close()
            if kind is None:
                self._temporary.replace(self.out)
            else:
                self._temporary.unlink(missing_ok=True)


def write_heatmaps(
    net: SpatialNet, info: ModelInfo, path: Path, out: Path, classes: list[int], arrays: bool, device: torch.device
) -> str:
    """Overlays of one photo as `<photo>.<class>.png`; the maps of all classes as `<photo>.npy`.

    Returns:
        Why the photo could not be read, or an empty string.
    """
    try:
        prob, maps = heatmaps(net, info, path, device)
        photo = read_image(path)
    except FewtagsError as error:
        return str(error)
    out.mkdir(parents=True, exist_ok=True)
    if arrays:
        np.save(out / f"{path.stem}.npy", maps)
    for c in classes or decide(prob.astype(np.float64), np.array(info.thresholds)).tolist():
        name = "".join(ch if ch.isalnum() or ch in "-_" else "_" for ch in info.class_ids[c])
        Image.fromarray(overlay(photo, maps[c])).save(out / f"{path.stem}.{name}.png")
    return ""
