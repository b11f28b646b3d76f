"""Evaluate heatmaps against the boxes of a table: all metrics of `metrics.locate`, photo by photo.

A label table stores boxes and points only. So the region of a class is the union of its boxes, also if the source had
polygons or masks.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any, TypeVar, final

import numpy as np
from numpy.typing import NDArray

from fewtags.engine.machine import torch_device
from fewtags.engine.model import ModelInfo
from fewtags.engine.onnx_net import Predictor
from fewtags.engine.predict import ScoredTable, matched, predict_maps
from fewtags.errors import DataError
from fewtags.geometry import View
from fewtags.labels import ClassNames, Label, Locations
from fewtags.metrics.locate import DEFAULT, LocateOptions, LocateReport, Region, locate_report
from fewtags.metrics.metric import table_with_chance
from fewtags.nets.spatial import refuse_without_maps
from fewtags.patches import SLACK
from fewtags.photos.scan import Tick
from fewtags.table.table import LabelTable
from fewtags.text import counted, flag

Maps = NDArray[np.float64]
_Item = TypeVar("_Item")
_First = TypeVar("_First")
_Second = TypeVar("_Second")

WITHOUT_BOXES = replace(DEFAULT, cuts=(0.0,))
"""Options for callers that do not read MaxBoxAccV2, which takes most of the time."""


def even_cuts(count: int) -> LocateOptions:
    """Return the default options with `count` >= 1 thresholds for boxes: 0, 1 / count, 2 / count, ..."""
    return replace(DEFAULT, cuts=tuple(k / count for k in range(count)))


@final
@dataclass(frozen=True, eq=False, kw_only=True)
class Localisation:
    """Localisation metrics of a model on one table, and the counts of labels that were left out.

    Attributes:
        classes: the vocabulary.
        report: all metrics.
        cuts: number of thresholds at which boxes were derived from the maps.
        tags: positive labels without a region.
        points: positive labels with an object that has only a point.
        cropped: positive labels whose objects all lie outside the test view.
    """

    classes: ClassNames
    report: LocateReport
    cuts: int
    tags: int
    points: int
    cropped: int

    def to_dict(self) -> dict[str, Any]:
        """Return plain values for JSON, fractions in 0..1; nan becomes None."""
        result, names = self.report.to_dict(), zip(self.classes.ids, self.classes.display, strict=True)
        rows = result.pop("per_class")
        return {
            **result,
            "left_out": {"no_place": self.tags, "point_only": self.points, "cropped_away": self.cropped},
            "cuts": self.cuts,
            "per_class": [{"id": i, "name": name, **row} for (i, name), row in zip(names, rows, strict=True)],
        }

    def __str__(self) -> str:
        """What was measured, and a table in percent."""
        return "\n".join([*self.headline(), *table_with_chance(self.report.metrics())])

    def headline(self) -> list[str]:
        """Return one or two sentences: the counts behind the numbers, and what was left out."""
        pairs, ranked = self.report.present.pairs, self.report.ranked
        classes = len(self.classes) - len(ranked.excluded)
        lines = [
            f"Localisation on {counted(pairs, 'positive label')} with boxes, {counted(self.report.images, 'image')}; "
            f"mAP-loc over {classes} of {len(self.classes)} classes, those that also have known negatives."
        ]
        reasons = {
            "without a region": self.tags,
            "with an object that has only a point": self.points,
            "cropped away by the test view": self.cropped,
        }
        if left := ", ".join(f"{count:,} {why}" for why, count in reasons.items() if count):
            total = self.tags + self.points + self.cropped
            lines.append(f"Left out: {counted(total, 'positive label')}: {left}.")
        return lines


def refuse_without_boxes(info: ModelInfo, table: LabelTable) -> None:
    """Check that a model has maps, and a table boxes to evaluate them against, before anything is computed.

    Raises:
        ConfigError: the model has no maps.
        DataError: no positive label of a class that the model knows has a box; or see `matched`.
    """
    refuse_without_maps(info.head, "localisation")
    table, _ = matched(info, table)
    if has_boxes(info, table):
        return
    known = _numbers(info, table) >= 0
    positives = int(table.matrix.counts(Label.POSITIVE)[known].sum())
    points = int(known[table.locations.classes].sum())
    raise DataError(
        f"localisation needs boxes, but these labels have {counted(positives, 'positive label')} of the model's "
        f"classes with {counted(points, 'point')} and no box; give labels with boxes, or leave {flag('localise')} out."
    )


def has_boxes(info: ModelInfo, table: LabelTable) -> bool:
    """Whether a positive label of a class that the model knows has a box."""
    known = _numbers(info, table)[table.locations.classes] >= 0
    return bool((known & _has_area(table.locations.boxes)).any())


def localise_table(
    net: Predictor,
    info: ModelInfo,
    table: LabelTable,
    scored: ScoredTable,
    *,
    cpu: bool = False,
    workers: int = 0,
    options: LocateOptions = DEFAULT,
    tick: Tick | None = None,
) -> Localisation:
    """Evaluate the maps of a model against the boxes of a table; `scored` is from `score_table` with the same table.

    This is a second pass over the photos that have boxes, so that only one map is in memory at a time. mAP-loc ranks by
    the logits of the first pass. If the test view is a crop, boxes are moved into it and clipped. An object counts if
    any part of it is visible (`min_visible` of training is not used). A positive label whose objects are all cropped
    away is left out. `tick` gets the number of photos done, and of all photos with boxes.

    Raises:
        DataError: no positive label has a box that is visible in the test view of a readable photo, or a photo can
            no longer be read.
    """
    refuse_without_boxes(info, table)
    table, _ = matched(info, table)
    root = table.require_root()
    objects, points = _boxed(info, table, scored)
    rows = scored.index[np.diff(objects.indptr) > 0]
    if not len(rows):
        raise DataError("none of the photos with boxes can be read; localisation needs at least one.")
    paths = [root / table.images[int(row)].as_py() for row in rows]
    maps = predict_maps(net, info, paths, torch_device(cpu), workers=workers)
    left: Counter[str] = Counter(points=points)
    seen, regions = _unzipped(_photos(maps, objects, len(info.class_ids), left, tick))
    report = locate_report(seen, scored.logits.astype(np.float64), scored.labels, regions, options=options)
    points, cropped = left["points"], left["cropped"]
    tags = int(report.ranked.unlocated.sum()) - points - cropped
    return Localisation(
        classes=info.classes, report=report, cuts=len(options.cuts), tags=tags, points=points, cropped=cropped
    )


def _boxed(info: ModelInfo, table: LabelTable, scored: ScoredTable) -> tuple[Locations, int]:
    """Return the objects of positive labels that have a box, by scored photo; and how many labels have points only."""
    row, classes, boxes = table.locations.rows(scored.index)
    numbers = _numbers(info, table)[classes]
    row, numbers, boxes = row[numbers >= 0], numbers[numbers >= 0], boxes[numbers >= 0]
    cell = row * len(info.class_ids) + numbers
    boxed = np.unique(cell[_has_area(boxes)])
    kept = np.isin(cell, boxed)
    indptr = np.searchsorted(row[kept], np.arange(len(scored.index) + 1)).astype(np.int64)
    return Locations(indptr, numbers[kept].astype(np.int32), boxes[kept]), len(np.unique(cell)) - len(boxed)


def _photos(
    maps: Iterator[tuple[View, Maps]], objects: Locations, classes: int, left: Counter[str], tick: Tick | None
) -> Iterator[tuple[Maps, Mapping[int, Region]]]:
    """Yield maps and regions of every photo in the frame of its view; labels that are left out are counted in `left`.

    Photos without an object get flat maps: no map is computed for them.
    """
    flat, done, measured = np.zeros((classes, 1, 1)), 0, 0
    total = int((np.diff(objects.indptr) > 0).sum())
    for first, last in pairwise(objects.indptr.tolist()):
        if first == last:
            yield flat, {}
            continue
        view, own = next(maps)
        regions, cropped = regions_in_view(objects.classes[first:last], objects.boxes[first:last], view)
        points = sum(not region.has_extent for region in regions.values())
        left.update(points=points, cropped=cropped)
        measured += len(regions) - points
        yield own, regions
        done += 1
        if tick is not None:
            tick(done, total)
    if not measured:
        lost = counted(left["cropped"], "positive label is", "positive labels are")
        raise DataError(
            f"no box can be measured in {counted(total, 'photo')}: {lost} cropped away by the model's test view, "
            f"{counted(left['points'], 'has', 'have')} an object that has only a point; give other photos."
        )


def _unzipped(pairs: Iterator[tuple[_First, _Second]]) -> tuple[Iterator[_First], Iterator[_Second]]:
    """Split pairs into two iterators. Only the items that one is ahead are kept (`itertools.tee` keeps 57 always)."""
    first: deque[_First] = deque()
    second: deque[_Second] = deque()

    def read(own: deque[_Item]) -> Iterator[_Item]:
        while True:
            while not own:
                if (pair := next(pairs, None)) is None:
                    return
                first.append(pair[0])
                second.append(pair[1])
                del pair
            yield own.popleft()

    return read(first), read(second)


def regions_in_view(
    classes: NDArray[np.int32], boxes: NDArray[np.float32], view: View
) -> tuple[dict[int, Region], int]:
    """Return the regions of the classes of a photo in `view` (crop -> photo), and the number of classes outside it.

    `boxes` are float32 [m, 4], x0, y0, x1, y1 in 0..1 of the photo, one for each object of `classes`, int32 [m]. They
    are clipped to the view; a box that only touches it from outside is not visible.
    """
    moved, share = view.boxes_to_crop(boxes.astype(np.float64))
    seen = share > SLACK
    regions = {c: Region(moved[seen & (classes == c)]) for c in np.unique(classes[seen]).tolist()}
    return regions, len(np.unique(classes)) - len(regions)


def _numbers(info: ModelInfo, table: LabelTable) -> NDArray[np.int64]:
    """Return the model's number of each class of the table, int64 [C]; -1 for classes that the model does not know."""
    known = info.classes
    return np.array([known.index(i) if i in known else -1 for i in table.classes.ids], np.int64)


def _has_area(boxes: NDArray[np.float32]) -> NDArray[np.bool_]:
    """Return which boxes [m, 4] are not points."""
    x0, y0, x1, y1 = boxes.T
    area: NDArray[np.bool_] = (x0 < x1) & (y0 < y1)
    return area
