"""Writing predictions to files."""

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

from fewtags.engine.model import ModelInfo
from fewtags.engine.predict import Prediction, decide
from fewtags.errors import ConfigError

FORMATS = (".csv", ".parquet", ".jsonl")
ROWS_PER_GROUP = 50_000


@final
class PredictionWriter:
    """Predictions as they come, to CSV, Parquet or JSON lines; a file appears under its name when it is complete.

    Long form (default): image, class, name, probability, threshold; one row per tag, best first. A photo without any
    tag has no row in it and is counted. Wide form: image, then one column per class with its probability.

    Args:
        out: the file; None writes CSV to stdout.
        info: of the model.
        wide: the wide form.
        threshold: replaces the stored thresholds.
        max_tags: at most so many tags per photo.

    Attributes:
        failed: photos that could not be read.
        untagged: photos without a row in the long form.

    Raises:
        ConfigError: an ending that is not known, or a wide form with a class that is called "image".
    """

    def __init__(
        self, out: Path | None, info: ModelInfo, wide: bool, threshold: float | None, max_tags: int | None
    ) -> None:
        self._format = ".csv" if out is None else out.suffix.lower()
        if self._format not in FORMATS:
            raise ConfigError(f"--out {out}: expected a file ending in {', '.join(FORMATS)}.")
        if out is not None and out.is_dir():
            raise ConfigError(f"--out {out} is a folder; give a file in it, for example {out / 'tags.csv'}.")
        if wide and "image" in info.class_ids:
            raise ConfigError("a class is called 'image', like the column of the photos; leave out --wide.")
        self.out, self.info, self.wide, self.max_tags = out, info, wide, max_tags
        values = np.array(info.thresholds) if threshold is None else np.full(len(info.class_ids), threshold)
        self.thresholds = values
        self.failed: list[Prediction] = []
        self.untagged = 0
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
        if self._format == ".parquet":
            self._parquet = pq.ParquetWriter(self._temporary, self.schema)
        else:
            self._file = sys.stdout if self.out is None else self._temporary.open("w", encoding="utf-8", newline="")
            if self._format == ".csv":
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
            tags = decide(prob, self.thresholds, self.max_tags)
            self.untagged += not len(tags)
            self._rows += [
                {
                    "image": str(found.path),
                    "class": ids[c],
                    "name": names[c],
                    "probability": round(float(prob[c]), 6),
                    "threshold": round(float(self.thresholds[c]), 6),
                }
                for c in tags
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
        elif kind is None and self._file is not None:
            self._file.flush()  # a pipe that was closed must show here, not when the interpreter ends
