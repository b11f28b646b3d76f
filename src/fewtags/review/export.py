"""Write answers as a CSV, a COCO file or tasks of Label Studio. Each can be read again as labels."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from fewtags.errors import ConfigError, DataError
from fewtags.files import write_text
from fewtags.formats.answers import read_answers
from fewtags.labels import Label
from fewtags.photos.decode import probe
from fewtags.table.merge import merge
from fewtags.table.storage import write_csv
from fewtags.table.table import CORNERS, LabelTable
from fewtags.text import counted, suggest

FORMATS = {"csv": ".csv", "coco": ".json", "label-studio": ".json"}
"""Name of each format, and the ending of its files."""


def answers_table(places: Sequence[Path | str]) -> LabelTable:
    """Return the answers of runs as one table without the cells that nobody could settle.

    Raises:
        DataError: a run has no answers, or nothing is settled.
    """
    tables = [table for place in places for table in read_answers(place)]
    if not tables:
        raise DataError(f"{places[0]} has no answers yet; give some with `fewtags review {places[0]}`.")
    table = tables[0] if len(tables) == 1 else merge(tables)
    settled = _settled_cells(table)
    if not len(settled):
        raise DataError(f"{places[0]}: no answer is yes or no without a dispute, so there is nothing to export.")
    disputed = len(np.setdiff1d(table.fact_cells, settled))
    kept = table.with_facts(table.facts.filter(pa.array(np.isin(table.fact_cells, settled))))
    return kept.noting(f"left out: {counted(disputed, 'disputed label')}") if disputed else kept


def _settled_cells(table: LabelTable) -> NDArray[np.int64]:
    labels = table.matrix
    image = np.repeat(np.arange(len(table), dtype=np.int64), np.diff(labels.indptr))
    return np.asarray((image * len(table.classes) + labels.classes)[labels.states != Label.UNKNOWN])


def export_answers(table: LabelTable, out: Path, to: str) -> list[str]:
    """Write a table of answers to a file, atomically; return notes about what the format cannot express.

    Args:
        table: see `answers_table`.
        out: the file.
        to: a key of `FORMATS`.

    Raises:
        ConfigError: no such format, or a file name with another ending.
        DataError: a photo cannot be read (COCO needs the sizes of photos).
    """
    if to not in FORMATS:
        raise ConfigError(f"--to {to}: expected one of {', '.join(FORMATS)}{suggest(to, FORMATS)}.")
    if out.suffix.lower() != FORMATS[to]:
        raise ConfigError(f"--out {out}: a file of the format {to} ends in {FORMATS[to]}.")
    if to == "csv":
        write_csv(table, out)
        return []
    content, notes = coco(table) if to == "coco" else label_studio(table)
    write_text(out, json.dumps(content, ensure_ascii=False, indent=1))
    return notes


def coco(table: LabelTable) -> tuple[dict[str, Any], list[str]]:
    """Return the content of a COCO file; negatives are `neg_category_ids`, as in LVIS.

    A positive without a box is an annotation without `bbox`; a point is written as one keypoint.
    """
    root = table.require_root()
    ids = {c: n for n, c in enumerate(table.classes.ids, 1)}
    categories = [{"id": n, "name": c} for c, n in ids.items()]
    images, sizes = [], []
    for n, key in enumerate(table.images.to_pylist()):
        info = probe(root / key)
        sizes.append((info.width, info.height))
        images.append(
            {"id": n + 1, "file_name": key, "width": info.width, "height": info.height, "neg_category_ids": []}
        )
    annotations: list[dict[str, Any]] = []
    points = whole = 0
    for fact in table.facts.to_pylist():
        category = ids[table.classes.ids[fact["class"]]]
        if fact["state"] == Label.NEGATIVE:
            images[fact["image"]]["neg_category_ids"].append(category)
            continue
        made: dict[str, Any] = {
            "id": len(annotations) + 1,
            "image_id": fact["image"] + 1,
            "category_id": category,
            "iscrowd": 0,
        }
        width, height = sizes[fact["image"]]
        if fact["x0"] is None:
            whole += 1
        elif fact["x0"] == fact["x1"] and fact["y0"] == fact["y1"]:
            points += 1
            made |= {"keypoints": [round(fact["x0"] * width, 2), round(fact["y0"] * height, 2), 2], "num_keypoints": 1}
        else:
            x, y = fact["x0"] * width, fact["y0"] * height
            w, h = fact["x1"] * width - x, fact["y1"] * height - y
            made |= {"bbox": [round(v, 2) for v in (x, y, w, h)], "area": round(w * h, 2)}
        annotations.append(made)
    notes = [
        f"{counted(count, 'label has', 'labels have')} {what}, which COCO tools may ignore"
        for count, what in ((whole, "no box"), (points, "a point and no box"))
        if count
    ]
    return {"images": images, "annotations": annotations, "categories": categories}, notes


def label_studio(table: LabelTable) -> tuple[list[dict[str, Any]], list[str]]:
    """Return tasks with one annotation each: a control with Yes or No for each class, and regions in per cent."""
    facts: dict[int, list[dict[str, Any]]] = defaultdict(list)
    for fact in table.facts.to_pylist():
        facts[fact["image"]].append(fact)
    tasks = []
    for n, key in enumerate(table.images.to_pylist()):
        result: list[dict[str, Any]] = []
        asked: set[str] = set()
        for fact in facts[n]:
            name = table.classes.ids[fact["class"]]
            if name not in asked:
                asked.add(name)
                word = "Yes" if fact["state"] == Label.POSITIVE else "No"
                result.append({"type": "choices", "from_name": name, "to_name": "image", "value": {"choices": [word]}})
            if fact["x0"] is not None:
                result.append(_region(name, *(100 * fact[corner] for corner in CORNERS)))
        tasks.append({"id": n + 1, "data": {"image": key}, "annotations": [{"id": n + 1, "result": result}]})
    return tasks, []


def _region(name: str, x0: float, y0: float, x1: float, y1: float) -> dict[str, Any]:
    if x0 == x1 and y0 == y1:
        kind, value = "keypointlabels", {"x": x0, "y": y0, "width": 0.5}
    else:
        kind, value = "rectanglelabels", {"x": x0, "y": y0, "width": x1 - x0, "height": y1 - y0, "rotation": 0}
    return {"type": kind, "from_name": "where", "to_name": "image", "value": {**value, kind: [name]}}
