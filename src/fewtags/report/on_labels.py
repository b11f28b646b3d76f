"""Evaluate finished runs on labels that are given now, so that runs with other validation photos can be compared."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import final

import numpy as np

from fewtags.engine.inference import load_predictor
from fewtags.engine.machine import torch_device
from fewtags.engine.predict import ScoredTable, score_table
from fewtags.engine.trained_on import trained_on
from fewtags.errors import DataError
from fewtags.report.load import RunData
from fewtags.table.table import LabelTable


@final
@dataclass(frozen=True)
class OnLabels:
    """Labels to evaluate runs on.

    Attributes:
        table: the labels and the folder of their photos.
        name: what the page calls them, for example the name of the file.
        cpu: whether to compute on the CPU.
    """

    table: LabelTable
    name: str
    cpu: bool = False


def measured(runs: Sequence[RunData], on: OnLabels) -> tuple[list[RunData], list[str]]:
    """Return the runs with one more evaluation, of the photos that can be read, and what is to be known about it.

    Thresholds are those of the models.

    Raises:
        DataError: a model knows none of the classes, or no photo can be read.
    """
    scored: list[ScoredTable] = []
    notes: list[str] = []
    for run in runs:
        net, info = load_predictor(run.path / "model.safetensors", torch_device(on.cpu))
        scored.append(score_table(net, info, on.table, cpu=on.cpu))
        head = f"{run.name}, {on.name}: " if len(runs) > 1 else f"{on.name}: "
        notes += [head + note.removeprefix("warning: ") for note in scored[-1].notes]
        notes += [head + note.removeprefix("warning: ") for note in trained_on(run.path, on.table)]
    index = scored[0].index
    for found in scored[1:]:
        index = np.intersect1d(index, found.index)
    if not len(index):
        raise DataError(f"{on.name} has no photo that all runs can read.")
    return [_with(run, found.rows(index), on) for run, found in zip(runs, scored, strict=True)], notes


def _with(run: RunData, scored: ScoredTable, on: OnLabels) -> RunData:
    info, keys = run.info, on.table.images.take(scored.index).to_pylist()
    image, class_ = np.nonzero(scored.labels)
    table = LabelTable.build(
        keys,
        info.classes,
        image=image,
        class_=class_,
        state=scored.labels[image, class_],
        source=on.name,
        root=on.table.root,
    )
    content = {**scored.evaluate(info).to_dict(), "threshold_rules": list(info.threshold_rules)}
    return replace(
        run,
        evaluations={**run.evaluations, on.name: content},
        logits={**run.logits, on.name: scored.logits},
        tables={**run.tables, on.name: table},
    )
