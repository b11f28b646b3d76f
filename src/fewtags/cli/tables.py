"""Write predictions to files."""

from __future__ import annotations

import csv
import json
import os
import re
import sys
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from pathlib import Path
from types import TracebackType
from typing import Any, Self, TextIO, final

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from fewtags.engine.model import ModelInfo
from fewtags.engine.predict import Prediction, decide
from fewtags.errors import ConfigError
from fewtags.files import replacing
from fewtags.text import counted, printable, safe_cell

FORMATS = (".csv", ".parquet", ".jsonl")
ROWS_PER_GROUP = 50_000
_ESCAPE = re.compile(r"\\x[0-9a-f]{2}")


def text_name(path: Path) -> str:
    r"""Return a path as UTF-8 text; other bytes and control characters become `\xNN`, and backslashes are then doubled.

    Different paths give different texts: in a path that spells `\xNN` itself, backslashes are doubled, too.

    >>> print(text_name(Path("caf\udce9.jpg")), text_name(Path(r"caf\xe9.jpg")), text_name(Path("café.jpg")))
    caf\xe9.jpg caf\\xe9.jpg café.jpg
    """
    raw = os.fsencode(path)
    name = raw.decode("utf-8", "surrogateescape")
    if not _ESCAPE.search(name) and printable(name) == name and "\n" not in name and "\t" not in name:
        return name
    text = printable(raw.replace(b"\\", b"\\\\").decode("utf-8", "backslashreplace"))
    return text.replace("\n", r"\x0a").replace("\t", r"\x09")


def escaped_names(names: Sequence[str]) -> str:
    """Return one line about photos whose names `text_name` changed."""
    return (
        f"{counted(len(names), 'photo has', 'photos have')} a name that is not UTF-8 or has control characters, "
        f"written with \\xNN for these bytes and \\\\ for a backslash: {names[0]}{', ...' if len(names) > 1 else ''}"
    )


def no_effect_on_wide(option: str) -> str:
    """Return why an option about tags cannot be given with --wide."""
    return f"--wide writes the probabilities of all classes, so {option} has no effect; remove one option."


@final
class PredictionWriter:
    """Write predictions to CSV, Parquet or JSON lines; the file gets its name when it is complete.

    Long form (default): image, class, name, probability, threshold; one row per tag, best first. A photo without a tag
    has no row and is counted. Wide form: image, then one column per class with its probability.

    Without a file, CSV is written to stdout. `raw` writes texts into CSV
    cells unchanged, see `text.safe_cell`.

    Attributes:
        failed: photos that could not be read.
        untagged: number of photos without a row in the long form.
        escaped: written names of photos whose names are not UTF-8, see `text_name`.
    """

    def __init__(
        self,
        out: Path | None,
        info: ModelInfo,
        wide: bool,
        max_tags: int | None,
        *,
        raw: bool = False,
    ) -> None:
        self._format = ".csv" if out is None else out.suffix.lower()
        if self._format not in FORMATS:
            raise ConfigError(f"--out {out}: expected a file ending in {', '.join(FORMATS)}.")
        if wide and max_tags is not None:
            raise ConfigError(no_effect_on_wide("--max-tags"))
        if wide and "image" in info.class_ids:
            raise ConfigError("a class is named 'image', like the column of the photos; leave out --wide.")
        self.out, self.info, self.wide, self.max_tags = out, info, wide, max_tags
        self.thresholds = np.array(info.thresholds)
        self.failed: list[Prediction] = []
        self.untagged = 0
        self.escaped: list[str] = []
        words, numbers = (
            (("image",), info.class_ids) if wide else (("image", "class", "name"), ("probability", "threshold"))
        )
        self.schema = pa.schema([(w, pa.string()) for w in words] + [(number, pa.float64()) for number in numbers])
        self._cell: Callable[[str], str] = str if raw else safe_cell
        self._rows: list[dict[str, Any]] = []
        self._file: TextIO | None = None
        self._csv: csv.DictWriter[str] | None = None
        self._parquet: pq.ParquetWriter | None = None
        self._open = ExitStack()

    def __enter__(self) -> Self:
        if self.out is None:
            self._file = sys.stdout
        else:
            self.out.parent.mkdir(parents=True, exist_ok=True)
            temporary = self._open.enter_context(replacing(self.out))
            if self._format == ".parquet":
                self._parquet = self._open.enter_context(pq.ParquetWriter(temporary, self.schema))
            else:
                self._file = self._open.enter_context(temporary.open("w", encoding="utf-8", newline=""))
        if self._format == ".csv":
            assert self._file is not None
            self._csv = csv.DictWriter(self._file, self.schema.names, lineterminator="\n")
            self._csv.writerow({name: self._cell(name) for name in self.schema.names})
        return self

    def add(self, found: Prediction) -> None:
        """Add one prediction; a failed one is kept in `failed`."""
        if found.prob is None:
            self.failed.append(found)
            return
        ids, names, prob = self.info.class_ids, self.info.classes.display, found.prob
        image = text_name(Path(str(found.path)))
        if image != str(found.path):
            self.escaped.append(image)
        if self.wide:
            self._rows.append({"image": image, **dict(zip(ids, prob.round(6).tolist(), strict=True))})
        else:
            tags = decide(prob, self.thresholds, self.max_tags, self.info.groups)
            self.untagged += not len(tags)
            self._rows += [
                {
                    "image": image,
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
            self._csv.writerows(
                {key: self._cell(value) if isinstance(value, str) else value for key, value in row.items()}
                for row in self._rows
            )
        elif self._file is not None:
            self._file.writelines(json.dumps(row, ensure_ascii=False) + "\n" for row in self._rows)
        self._rows.clear()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if kind is None:
            self._flush()
            if self._file is not None:
                self._file.flush()  # a closed pipe must raise here, not when the interpreter ends
        self._open.__exit__(kind, error, trace)
