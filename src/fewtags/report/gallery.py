"""The photos of a report with heatmaps over them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, final

import numpy as np
from numpy.typing import NDArray

from fewtags.engine.gallery import GalleryPhoto, Panel
from fewtags.engine.model import make_policy
from fewtags.errors import DataError
from fewtags.photos.decode import open_photo
from fewtags.report.figures import jpeg
from fewtags.report.load import RunData
from fewtags.report.overlay import HeatScale, overlay
from fewtags.table.table import LabelTable
from fewtags.text import apart

# Longest side of the pictures in pixels: sharp on a dense screen, and the page stays below a few megabytes.
SIDE, SMALL = 400, 200
PROGRESS_PHOTOS, PROGRESS_CLASSES = 2, 3


@final
@dataclass(frozen=True, eq=False)
class Picture:
    """A small photo, uint8 [h, w, 3]; or a grey picture and why the photo could not be read."""

    pixels: NDArray[np.uint8]
    missing: str = ""

    @property
    def aspect(self) -> float:
        """Width / height."""
        return float(self.pixels.shape[1] / self.pixels.shape[0])


def read_picture(table: LabelTable, key: str, side: int = SIDE) -> Picture:
    """Read a photo of a table. A photo that was removed since training becomes a grey picture with the reason."""
    grey = np.full((side * 3 // 4, side, 3), 128, np.uint8)
    if table.root is None:
        return Picture(grey, "the labels do not say where the photos are")
    try:
        with open_photo(table.root / key) as photo:
            scale = min(1.0, side / max(photo.info.width, photo.info.height))
            size = (max(1, round(photo.info.height * scale)), max(1, round(photo.info.width * scale)))
            return Picture(photo.read(size=size))
    except DataError as error:
        return Picture(grey, str(error))


def cards(runs: Sequence[RunData]) -> list[dict[str, Any]]:
    """Return the photos of the first run's gallery, each with one row of overlays per run that shows the same photo."""
    found = []
    for shown in runs[0].gallery:
        picture = read_picture(runs[0].tables[shown.split], shown.key)
        same = [(run, s) for run in runs for s in run.gallery if (s.split, s.key) == (shown.split, shown.key)]
        # One scale for a class of a photo, so that the runs can be compared.
        maps: dict[str, list[NDArray[np.float16]]] = {}
        for run, photo in same:
            for p in photo.panels:
                maps.setdefault(run.info.class_ids[p.class_], []).append(p.map)
        scales = {class_id: HeatScale.of(found_maps) for class_id, found_maps in maps.items()}
        rows = [
            {
                "run": run.name,
                "panels": [_panel(run, picture, p, scales[run.info.class_ids[p.class_]]) for p in photo.panels],
            }
            for run, photo in same
        ]
        small = {"picture": jpeg(picture.pixels), "missing": picture.missing}
        columns = 1 + max(len(photo.panels) for _, photo in same)
        found.append({"split": shown.split, "key": shown.key, "columns": columns, **small, "rows": rows})
    return found


def _panel(run: RunData, picture: Picture, panel: Panel, heat_scale: HeatScale) -> dict[str, Any]:
    threshold = run.info.thresholds[panel.class_]
    # Of classes that exclude each other, the best is tagged, and the panel does not know the others.
    excluded = any(panel.class_ in members for _, members in run.info.groups)
    prob, limit = apart(panel.prob, threshold)
    return {
        "name": run.info.classes.display[panel.class_],
        "role": panel.role,
        "prob": prob,
        "threshold": limit,
        "present": panel.prob >= threshold,
        "tagged": panel.prob >= threshold and not excluded,
        "scale": heat_scale.text if heat_scale.relative else "",
        "picture": _overlaid(run, picture, panel, heat_scale, SIDE),
    }


def _overlaid(run: RunData, picture: Picture, panel: Panel, heat_scale: HeatScale, side: int) -> str:
    view = make_policy(run.info.policy, run.info.size).test_view(picture.aspect)
    return jpeg(overlay(picture.pixels, heat_scale.apply(panel.map), side, view))


def over_epochs(run: RunData) -> list[dict[str, Any]]:
    """Return the maps of some training photos and classes over the epochs that were kept (SCL paper, fig. 3).

    Every row has a step for each of these epochs; its picture is empty if the class was not recorded then.
    """
    rows: list[dict[str, Any]] = []
    training = [shown for shown in run.gallery if shown.split == "train"]
    for final_ in training[:PROGRESS_PHOTOS]:
        picture = read_picture(run.tables["train"], final_.key, SMALL)
        for panel in final_.panels[:PROGRESS_CLASSES]:
            then = {epoch: _same_panel(shown, final_, panel) for epoch, shown in run.progress.items()}
            # One scale for the row, so that its epochs can be compared.
            heat_scale = HeatScale.of([p.map for p in (panel, *then.values()) if p is not None])
            steps = [
                {"epoch": epoch + 1, "prob": 0.0, "picture": ""}
                if p is None
                else {"epoch": epoch + 1, "prob": p.prob, "picture": _overlaid(run, picture, p, heat_scale, SMALL)}
                for epoch, p in then.items()
            ]
            name = run.info.classes.display[panel.class_]
            relative = heat_scale.text if heat_scale.relative else ""
            rows.append({"key": final_.key, "name": name, "role": panel.role, "scale": relative, "steps": steps})
    return rows


def _same_panel(shown: Sequence[GalleryPhoto], photo: GalleryPhoto, panel: Panel) -> Panel | None:
    """Return the panel of the same photo and class at another time; the classes shown may change with their scores."""
    then = next((s for s in shown if (s.split, s.key) == (photo.split, photo.key)), None)
    return None if then is None else next((p for p in then.panels if p.class_ == panel.class_), None)
