"""Questions about unknown cells: which to ask, why, and where the model sees the class.

`suggest` is all that a page or a command needs. `suggest_from` does the same with scores that are already there, so
that a server scores its photos once and asks again after every few answers:

    scored = score_table(net, info, table)          # engine.predict; slow, once for each model
    questions = suggest_from(scored, info, table, share, limit=50)
    questions = add_evidence(questions, net, info, table)

`unasked(questions, answers)` drops what was answered meanwhile. `answers` are (image, class id) pairs.
"""

from __future__ import annotations

import os
from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import final

import numpy as np
from numpy.typing import NDArray

from fewtags.engine.calibration import assumed_share, stored_calibration
from fewtags.engine.checkpoint import reading_record
from fewtags.engine.machine import torch_device
from fewtags.engine.model import ModelInfo
from fewtags.engine.onnx_net import Predictor
from fewtags.engine.places import find_photos
from fewtags.engine.predict import ScoredTable, matched, predict_maps, score_table
from fewtags.errors import CheckpointError, ConfigError, DataError
from fewtags.geometry import View
from fewtags.labels import ClassNames
from fewtags.metrics.calibration import calibrate, expected_unknown
from fewtags.metrics.localisation import normalise_map
from fewtags.metrics.wsol import component_boxes
from fewtags.review.orders import DEFAULT_ORDER, ORDERS, Cells, choose, gain
from fewtags.shards.places import Url, place
from fewtags.table.answered import without_answers
from fewtags.table.storage import load
from fewtags.table.table import LabelTable
from fewtags.text import counted, flag
from fewtags.text import suggest as closest

LIMIT = 100
"""Default number of questions."""
EVIDENCE_CUT = 0.5
"""Evidence is the largest part of a map, scaled to 0..1, above this value."""

Box = tuple[float, float, float, float]


@final
@dataclass(frozen=True, kw_only=True)
class Question:
    """One unknown cell to ask about: "does this photo show this class?".

    Attributes:
        image: key of the photo in the table; its file is `table.root / image`.
        class_: id of the class; its display name is `name`.
        name: display name of the class.
        probability: that the answer is yes, calibrated, in 0..1.
        rank: position among the unknown cells of the class by probability; 1 is the most probable.
        expected: how many of these unknown cells are expected to be positive.
        reason: a sentence.
        box: where the model sees the class: x0, y0, x1, y1 in 0..1 of the photo; None if nothing stands out.
        gain: how much the answer is expected to teach (`orders.gain`), as a multiple of an average unknown cell.
    """

    image: str
    class_: str
    name: str
    probability: float
    rank: int
    expected: float
    reason: str
    box: Box | None = None
    gain: float = 0.0


def suggest(
    net: Predictor,
    info: ModelInfo,
    table: LabelTable,
    *,
    share: NDArray[np.floating] | None = None,
    order: str = DEFAULT_ORDER,
    limit: int = LIMIT,
    per_class: int | None = None,
    seed: int = 0,
    cpu: bool = False,
    workers: int = 0,
) -> list[Question]:
    """Return questions about the unknown cells of a table, best first, with evidence.

    Args:
        net: the model.
        info: its metadata.
        table: photos and what is known about them. Photos that cannot be read are left out.
        share: [C], share of images that contain each class of the model; None: see `assumed_share`.
        order: a key of `ORDERS`.
        limit: most questions.
        per_class: most questions about one class.
        seed: of random orders.
        cpu: do not use a GPU.
        workers: processes that decode photos.

    Raises:
        ConfigError: no such order, or a limit below 1.
        DataError: see `score_table`.
    """
    check_order(order, limit, per_class)
    table, _ = matched(info, table)
    scored = score_table(net, info, table, cpu=cpu, workers=workers)
    asked = suggest_from(scored, info, table, share, order=order, limit=limit, per_class=per_class, seed=seed)
    return add_evidence(asked, net, info, table, cpu=cpu, workers=workers)


def check_order(order: str, limit: int, per_class: int | None) -> None:
    """Raise ConfigError if there is no such order, or a limit is below 1."""
    if order not in ORDERS:
        raise ConfigError(f"{order!r} is not an order{closest(order, ORDERS)}; known: {', '.join(ORDERS)}.")
    for name, value in (("limit", limit), ("per_class", per_class)):
        if value is not None and value < 1:
            raise ConfigError(f"{name} is {value}; expected 1 or more.")


def suggest_from(
    scored: ScoredTable,
    info: ModelInfo,
    table: LabelTable,
    share: NDArray[np.floating] | None = None,
    *,
    order: str = DEFAULT_ORDER,
    limit: int = LIMIT,
    per_class: int | None = None,
    seed: int = 0,
) -> list[Question]:
    """Return questions without evidence, from the scores of a table; arguments as in `suggest`."""
    check_order(order, limit, per_class)
    cells = make_cells(scored, info, share)
    keys = table.images.take(scored.index).to_pylist()
    ids, display = info.class_ids, info.classes.display
    image, class_ = choose(cells, ORDERS[order](cells, seed), limit, per_class)
    teaches = gain(cells, seed)
    average = max(float(teaches[cells.unknown].mean()), 1e-12) if len(image) else 1.0
    return [
        Question(
            image=keys[i],
            class_=ids[c],
            name=display[c],
            probability=float(cells.prob[i, c]),
            rank=int(cells.rank[i, c]),
            expected=float(cells.expected[c]),
            reason=reason_of(display[c], int(cells.rank[i, c]), float(cells.expected[c])),
            gain=float(teaches[i, c]) / average,
        )
        for i, c in zip(image.tolist(), class_.tolist(), strict=True)
    ]


def make_cells(scored: ScoredTable, info: ModelInfo, share: NDArray[np.floating] | None = None) -> Cells:
    """Return what orders know about a scored table."""
    share = assumed_share(info, scored.labels) if share is None else share
    expected = expected_unknown(scored.labels, share)
    # What an answer teaches depends on the probabilities that the loss sees.
    logits = stored_calibration(info).inverse.logits(scored.logits).astype(scored.logits.dtype)
    prob = calibrate(logits, scored.labels, expected)
    return Cells(logits=logits, labels=scored.labels, prob=prob, expected=expected)


def run_table(run: Path) -> LabelTable:
    """Return the training photos of a run, with their labels.

    Raises:
        CheckpointError: the folder has no training labels, or they are damaged.
    """
    file = run / "tables" / "train.parquet"
    if not file.exists():
        raise CheckpointError(
            f"{run} has no record of its training photos (tables/{file.name}); give labels (DATA) or photos "
            f"({flag('photos')})."
        )
    with reading_record(file):
        return load(file)


def run_share(run: Path, info: ModelInfo) -> NDArray[np.float64] | None:
    """Return `assumed_share` for the training labels of a run without answers; None if there is no record of them."""
    if not (run / "tables" / "train.parquet").exists():
        return None
    table = run_table(run)
    if table.classes.ids != info.class_ids:
        return None
    return assumed_share(info, without_answers(table).matrix.dense())


def unlabelled(places: Sequence[Path], classes: ClassNames) -> tuple[LabelTable, list[str]]:
    """Return a table of photos about which nothing is known, and messages about skipped files.

    Raises:
        DataError: see `find_photos`; or only some of the places are URLs.
    """
    found, notes = find_photos(places)
    paths = [path.absolute() for path in found]
    if len({isinstance(path, Url) for path in paths}) > 1:
        raise DataError(
            "photos on a disk and behind a URL have no folder in common; ask about them one after the other."
        )
    root = place(os.path.commonpath([path.parent for path in paths]))
    none = np.zeros(0, np.int64)
    table = LabelTable.build(
        [path.relative_to(root).as_posix() for path in paths], classes, image=none, class_=none, state=none, root=root
    )
    return table, notes


def reason_of(name: str, rank: int, expected: float) -> str:
    """Return why a cell is asked about, as a sentence.

    >>> reason_of("dog", 12, 310.2)
    "ranked 12th for 'dog' among the photos without an answer, where 310 positives are expected"
    """
    more = counted(round(expected), "positive is", "positives are")
    return f"ranked {ordinal(rank)} for {name!r} among the photos without an answer, where {more} expected"


def ordinal(number: int) -> str:
    """Return 1st, 2nd, 3rd, 11th and so on."""
    ending = "th" if number % 100 in (11, 12, 13) else {1: "st", 2: "nd", 3: "rd"}.get(number % 10, "th")
    return f"{number:,}{ending}"


def add_evidence(
    questions: Sequence[Question],
    net: Predictor,
    info: ModelInfo,
    table: LabelTable,
    *,
    cpu: bool = False,
    workers: int = 0,
) -> list[Question]:
    """Return the questions with the boxes of their evidence; each photo goes through the net once.

    Raises:
        DataError: a photo cannot be read.
    """
    cells = [(q.image, q.class_) for q in questions]
    boxes = evidence_boxes(cells, net, info, table, cpu=cpu, workers=workers)
    return [replace(q, box=box) for q, box in zip(questions, boxes, strict=True)]


def evidence_boxes(
    cells: Sequence[tuple[str, str]],
    net: Predictor,
    info: ModelInfo,
    table: LabelTable,
    *,
    cpu: bool = False,
    workers: int = 0,
) -> list[Box | None]:
    """Return the box of the evidence of each cell (image, class id); each photo goes through the net once.

    A model without maps has seen the whole photo, so that there is no box.

    Raises:
        DataError: a photo cannot be read.
    """
    if not info.head.has_maps:
        return [None] * len(cells)
    asked: dict[str, list[str]] = {}
    for image, class_ in cells:
        asked.setdefault(image, []).append(class_)
    root, boxes = table.require_root(), dict[tuple[str, str], Box | None]()
    found = predict_maps(net, info, [root / key for key in asked], torch_device(cpu), workers=workers)
    for key, (view, maps) in zip(asked, found, strict=True):
        boxes |= {(key, c): evidence_box(maps[info.classes.index(c)], view) for c in asked[key]}
    return [boxes[cell] for cell in cells]


def evidence_box(heatmap: NDArray[np.floating], view: View) -> Box | None:
    """Return the box around the largest part of a map [h, w], in 0..1 of the photo; None if it is the whole map.

    The map is scaled to 0..1 and cut at `EVIDENCE_CUT`.
    """
    boxes = component_boxes(normalise_map(heatmap, "minmax") >= EVIDENCE_CUT, parts="outer")
    h, w = heatmap.shape
    areas = (boxes[:, 2] - boxes[:, 0]) * (boxes[:, 3] - boxes[:, 1])
    if heatmap.max() <= heatmap.min() or areas.max() == h * w:
        return None
    x0, y0, x1, y1 = boxes[np.argmax(areas)].tolist()
    corners = view.to_image(np.array([[x0 / w, y0 / h], [x1 / w, y1 / h]]))
    left, top, right, bottom = np.clip(np.concatenate([corners.min(0), corners.max(0)]), 0.0, 1.0).tolist()
    return left, top, right, bottom


def unasked(questions: Sequence[Question], answers: Collection[tuple[str, str]]) -> list[Question]:
    """Return the questions whose (image, class id) is not among the answers, in their order."""
    answered = set(answers)
    return [q for q in questions if (q.image, q.class_) not in answered]
