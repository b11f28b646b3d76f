"""Figures of photos: heatmaps of runs side by side, their progress in training, and crops with their nearest crops.

Each returns a drawing and its numbers, which are written beside it as JSON.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, NamedTuple, final

import numpy as np
import torch
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle
from numpy.typing import NDArray

from fewtags.engine.gallery import GalleryPhoto, Panel
from fewtags.engine.inference import load_predictor
from fewtags.engine.model import make_policy
from fewtags.engine.predict import heatmaps
from fewtags.engine.running_maps import saved_averages
from fewtags.errors import CheckpointError, ConfigError
from fewtags.geometry import View
from fewtags.labels import Label
from fewtags.report.figures import plain
from fewtags.report.gallery import Picture, read_picture
from fewtags.report.load import RunData
from fewtags.report.nearest_crops import Crop
from fewtags.report.overlay import HeatScale, overlay
from fewtags.table.storage import load
from fewtags.table.table import LabelTable
from fewtags.text import quoted, suggest

Which = Literal["both", "averages", "net"]
SIDE = 260
TILE = 1.9
"""Inches of a picture."""
BOX = "#ffd400"
AVERAGES, NET = "running averages", "the net's maps"


class Drawn(NamedTuple):
    """A drawing, and its numbers for JSON."""

    drawing: Figure
    numbers: list[dict[str, Any]]


# --- heatmaps of runs side by side


@final
@dataclass(frozen=True)
class MapRow:
    """The heatmaps of one photo by one run: `maps` [C, h, w] in the frame of `view`; `prob` [C]."""

    run: str
    kind: str
    prob: NDArray[np.float32]
    maps: NDArray[np.float32]
    view: View


def draw_maps(
    runs: Sequence[Path],
    table: LabelTable,
    keys: Sequence[str],
    *,
    classes: Sequence[str] = (),
    top: int = 5,
    which: Which = "both",
    device: torch.device,
) -> Drawn:
    """Draw photos with the heatmaps of one or several runs: figs. 4, H.1, K.1, K.2 of SCL, and fig. 5 of PatchML.

    Each photo has its boxes, and a row for each run and kind of map; the columns are classes.

    Args:
        runs: training runs of the same classes.
        table: labels and boxes of the photos.
        keys: photos of the table.
        classes: that are shown; none: the `top` classes by the probability of the first run.
        top: see `classes`.
        which: running averages (of training photos of runs with SCL), the net's maps, or both.
        device: to compute on.

    Raises:
        ConfigError: a photo or class that does not exist.
        CheckpointError: `which` is "averages", and a run has none of a photo.
    """
    rows = _find_rows(table, keys)
    found: list[list[MapRow]] = [[] for _ in keys]
    names: tuple[str, ...] = ()
    for run in runs:
        net, info = load_predictor(run, device)
        names = names or info.class_ids
        if info.class_ids != names:
            raise ConfigError(f"{run} has other classes than {runs[0]}; give runs of the same classes.")
        whole = View.identity()
        means = {} if which == "net" else _averages(run, table, keys, must=which == "averages")
        for n, key in enumerate(keys):
            path = table.require_root() / key
            prob, maps = heatmaps(net, info, path, device)
            if key in means:
                found[n].append(MapRow(run.name, AVERAGES, prob, means[key], whole))
            if which != "averages":
                view = make_policy(info.policy, info.size).test_view(read_picture(table, key, SIDE).aspect)
                found[n].append(MapRow(run.name, NET, prob, maps, view))
    if unknown := [name for name in classes if name not in names]:
        raise ConfigError(f"--classes: {unknown[0]!r} is not a class{suggest(unknown[0], names)}.")
    count = len(classes) or min(top, len(names))
    lines = sum(len(rows_) for rows_ in found)
    drawing = Figure(figsize=(TILE * (1 + count), (TILE + 0.35) * lines), layout="constrained")
    grid = drawing.subplots(lines, 1 + count, squeeze=False)
    numbers, line = [], 0
    for key, row, own in zip(keys, rows, found, strict=True):
        shown = [names.index(name) for name in classes] or np.argsort(-own[0].prob, kind="stable")[:count].tolist()
        states, boxes = _states(table, row, names), _boxes(table, row, names)
        picture = read_picture(table, key, SIDE)
        for c in shown:
            numbers += [_map_numbers(key, names[c], states[c], r, c, boxes.get(c, [])) for r in own]
        scales = {c: HeatScale.of([r.maps[c] for r in own]) for c in shown}
        for r in own:
            _photo(grid[line][0], picture, f"{r.run}\n{r.kind}", [b for c in shown for b in boxes.get(c, [])])
            for axes, c in zip(grid[line][1:], shown, strict=True):
                drawn = overlay(picture.pixels, scales[c].apply(r.maps[c]), view=r.view)
                state = {Label.POSITIVE: " (labelled)", Label.NEGATIVE: " (absent)"}.get(Label(states[c]), "")
                _show(axes, drawn, f"{names[c]}{state}\n{r.prob[c]:.2f}{_scale(scales[c])}")
            line += 1
    return Drawn(drawing, numbers)


def _find_rows(table: LabelTable, keys: Sequence[str]) -> list[int]:
    row = {key: n for n, key in enumerate(table.images.to_pylist())}
    if missing := [key for key in keys if key not in row]:
        raise ConfigError(f"--photos: {quoted(missing[0])} is not a photo of these labels{suggest(missing[0], row)}.")
    return [row[key] for key in keys]


def _averages(run: Path, table: LabelTable, keys: Sequence[str], *, must: bool) -> dict[str, NDArray[np.float32]]:
    """The running averages of the photos that the run was trained on; none if it keeps none, unless it must."""
    folder = run if run.is_dir() else run.parent
    train = load(folder / "tables" / "train.parquet")
    places = {(train.require_root() / key).resolve(): n for n, key in enumerate(train.images.to_pylist())}
    index = {key: places.get((table.require_root() / key).resolve()) for key in keys}
    if must and (other := [key for key, n in index.items() if n is None]):
        raise CheckpointError(f"{run} was not trained on {other[0]}, so it has no running average of it.")
    known = {key: n for key, n in index.items() if n is not None}
    try:
        return dict(zip(known, saved_averages(folder, list(known.values()), train.matrix), strict=True))
    except CheckpointError:
        if must:
            raise
        return {}


def _states(table: LabelTable, row: int, names: Sequence[str]) -> list[int]:
    labels = table.matrix.rows([row])[0]
    return [int(labels[table.classes.index(n)]) if n in table.classes else int(Label.UNKNOWN) for n in names]


def _boxes(table: LabelTable, row: int, names: Sequence[str]) -> dict[int, list[tuple[float, float, float, float]]]:
    _, classes, boxes = table.locations.rows(np.array([row]))
    found: dict[int, list[tuple[float, float, float, float]]] = {}
    for class_, box in zip(classes.tolist(), boxes.tolist(), strict=True):
        if (name := table.classes.ids[class_]) in names:
            found.setdefault(names.index(name), []).append(tuple(box))
    return found


def _map_numbers(
    key: str, name: str, state: int, row: MapRow, class_: int, boxes: Sequence[tuple[float, ...]]
) -> dict[str, Any]:
    map_ = row.maps[class_].astype(np.float64)
    h, w = map_.shape
    centres = np.stack(np.meshgrid((np.arange(w) + 0.5) / w, (np.arange(h) + 0.5) / h), -1).reshape(-1, 2)
    place = row.view.to_image(centres)
    inside = np.zeros(len(place), np.bool_)
    for x0, y0, x1, y1 in boxes:
        inside |= (place >= (x0, y0)).all(1) & (place <= (x1, y1)).all(1)
    flat = map_.reshape(-1)
    return {
        "photo": key,
        "class": name,
        "label": Label(state).name.lower(),
        "run": row.run,
        "map": row.kind,
        "probability": round(float(row.prob[class_]), 4),
        "mean": round(float(flat.mean()), 4),
        "highest": round(float(flat.max()), 4),
        "share_in_boxes": round(float(flat[inside].sum() / flat.sum()), 4) if boxes and flat.sum() > 0 else None,
        "highest_in_a_box": bool(inside[int(flat.argmax())]) if boxes else None,
    }


# --- progress in training


def draw_progress(run: RunData, photos: int = 1) -> Drawn:
    """Draw the heatmaps of training photos over the epochs that the run kept: fig. 3 of SCL.

    Each class that the gallery shows (an annotated positive, an unannotated positive, a negative) has a row with its
    running averages, if the method keeps them, and one with the net's maps. Photos with all three roles come first.

    Raises:
        CheckpointError: the run has no maps of training photos.
    """
    training = sorted(
        (shown for shown in run.gallery if shown.split == "train"),
        key=lambda shown: -len({panel.role for panel in shown.panels}),
    )[:photos]
    if not training or not run.progress:
        raise CheckpointError(f"{run.path} has no maps of training photos.")
    rows: list[tuple[GalleryPhoto, Panel, str]] = []
    for shown in training:
        for panel in shown.panels:
            then = [_panel_of(at, shown.key, panel.class_) for at in run.progress.values()]
            kept = [AVERAGES] if any(p is not None and p.average is not None for p in then) else []
            rows += [(shown, panel, kind) for kind in (*kept, NET)]
    epochs = [*run.progress]
    drawing = Figure(figsize=(TILE * (1 + len(epochs)), (TILE + 0.3) * len(rows)), layout="constrained")
    grid = drawing.subplots(len(rows), 1 + len(epochs), squeeze=False)
    numbers = []
    for line, (shown, panel, kind) in enumerate(rows):
        picture = read_picture(run.tables["train"], shown.key, SIDE)
        name = run.info.classes.display[panel.class_]
        _photo(grid[line][0], picture, f"{name}: {panel.role}\n{kind}", [])
        view = make_policy(run.info.policy, run.info.size).test_view(picture.aspect)
        found = {epoch: _panel_of(run.progress[epoch], shown.key, panel.class_) for epoch in epochs}
        maps = {e: m for e, p in found.items() if p is not None and (m := _map_of(p, kind)) is not None}
        heat_scale = HeatScale.of([*maps.values()])
        for axes, epoch in zip(grid[line][1:], epochs, strict=True):
            at = found[epoch]
            if at is None or epoch not in maps:
                axes.axis("off")  # the class was not among the panels then
                continue
            drawn = overlay(picture.pixels, heat_scale.apply(maps[epoch]), view=None if kind == AVERAGES else view)
            _show(axes, drawn, f"epoch {epoch + 1}\n{at.prob:.2f}{_scale(heat_scale)}")
            numbers.append(
                {
                    **{"photo": shown.key, "class": run.info.class_ids[panel.class_], "role": panel.role, "map": kind},
                    **{"epoch": epoch + 1, "probability": round(at.prob, 4)},
                    **{"mean": round(float(maps[epoch].mean(dtype=np.float64)), 4)},
                    "highest": round(float(maps[epoch].max()), 4),
                }
            )
    return Drawn(drawing, numbers)


def _panel_of(shown: Sequence[GalleryPhoto], key: str, class_: int) -> Panel | None:
    panels = (p for photo in shown if (photo.split, photo.key) == ("train", key) for p in photo.panels)
    return next((panel for panel in panels if panel.class_ == class_), None)


def _map_of(panel: Panel, kind: str) -> NDArray[np.float16] | None:
    return panel.average if kind == AVERAGES else panel.map


# --- crops


def draw_crops(found: Sequence[Sequence[Crop]], table: LabelTable) -> Drawn:
    """Draw photos with a crop (red), each followed by the photos with the nearest crops (yellow): figs. 4 to 6 of MLS.

    Args:
        found: rows of crops; the first of a row is the query.
        table: of the photos.
    """
    across = max(len(row) for row in found)
    drawing = Figure(figsize=(TILE * across, (TILE + 0.2) * len(found)), layout="constrained")
    grid = drawing.subplots(len(found), across, squeeze=False)
    numbers = []
    for line, row in enumerate(found):
        for axes, crop in zip(grid[line], row, strict=False):
            title = "query" if crop.cosine is None else f"{crop.cosine:.2f}"
            colour = "#e8112d" if crop.cosine is None else BOX
            _photo(axes, read_picture(table, crop.key, SIDE), title, [crop.box], colour)
            cosine = None if crop.cosine is None else round(crop.cosine, 4)
            box = [round(value, 4) for value in crop.box]
            numbers.append({"query": line, "photo": crop.key, "box": box, "cosine": cosine})
        for axes in grid[line][len(row) :]:
            axes.axis("off")
    return Drawn(drawing, numbers)


# --- panels


def _photo(axes: Axes, picture: Picture, title: str, boxes: Sequence[Sequence[float]], colour: str = BOX) -> None:
    _show(axes, picture.pixels, title)
    height, width = picture.pixels.shape[:2]
    for x0, y0, x1, y1 in boxes:
        size = (max((x1 - x0) * width, 2), max((y1 - y0) * height, 2))  # a point is a small square
        place = (x0 * width - 0.5, y0 * height - 0.5)
        axes.add_patch(Rectangle(place, *size, fill=False, edgecolor=colour, linewidth=1.6))


def _scale(heat_scale: HeatScale) -> str:
    """Describe colours that do not go from 0 to 1."""
    return f"; scale {'-'.join(heat_scale.ends)}" if heat_scale.relative else ""


def _show(axes: Axes, pixels: NDArray[np.uint8], title: str) -> None:
    axes.imshow(pixels)
    axes.set_title("\n".join(plain(part) for part in title.split("\n")), fontsize=8)
    axes.set_xticks([])
    axes.set_yticks([])
