"""Write heatmaps to files."""

from __future__ import annotations

import csv
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import chain, count
from pathlib import Path
from typing import final

import numpy as np
import torch

from fewtags.cli.tables import escaped_names, text_name
from fewtags.engine.checkpoint import write_array
from fewtags.engine.model import ModelInfo, make_policy
from fewtags.engine.onnx_net import Predictor
from fewtags.engine.predict import decide, heatmaps
from fewtags.errors import ConfigError
from fewtags.files import replacing
from fewtags.photos.decode import read_image
from fewtags.report.heatmap_picture import heatmap_picture
from fewtags.report.overlay import HeatScale, ScaleKind
from fewtags.shards.places import is_shard, is_url, place, splits
from fewtags.text import apart, counted, safe_cell

_KEY_COLUMNS = ["file", "image", "class"]
_MOST_LETTERS = 100
"""Class ids are cut to this length in file names, which file systems limit to 255 bytes."""


def output_names(places: Sequence[Path], photos: Sequence[Path]) -> tuple[dict[Path, Path], list[str]]:
    """Return a unique name without ending for every photo, and remarks about changed names.

    Photos in a folder or shard of `places` keep their path below it, those in other shards that below the folder of
    the shard; other photos keep their name. Of names that differ in case
    at most, the later ones are numbered; names that are not UTF-8 are written as by `text_name`.
    """
    folders = [at for at in map(place, places) if at.is_dir() or is_shard(at.name)]
    names: dict[Path, Path] = {}
    notes: list[str] = []
    taken: set[str] = set()
    escaped: list[str] = []
    for photo in photos:
        shard = next((place(s) for s, _ in splits(str(photo)) if is_url(s) or Path(s).is_file()), photo)
        folder = next((f for f in folders if photo != f and photo.is_relative_to(f)), shard.parent)
        relative = photo.relative_to(folder).with_suffix("")
        plain = Path(text_name(relative))
        if plain != relative:
            escaped.append(str(plain))
        names[photo] = name = Path(_unique(str(plain), taken))
        if name != plain:
            notes.append(f"{text_name(photo)} is written as {name}, because {plain} is taken")
    return names, [*notes, *([escaped_names(escaped)] if escaped else [])]


def file_names(ids: Sequence[str]) -> list[str]:
    """Return a unique part of a file name for every class id, cut to 100 characters.

    >>> file_names(["traffic light", "cat/dog", "cat_dog"])
    ['traffic_light', 'cat_dog', 'cat_dog-2']
    """
    taken: set[str] = set()
    plain = ["".join(ch if ch.isalnum() or ch in "-_" else "_" for ch in class_id)[:_MOST_LETTERS] for class_id in ids]
    return [_unique(name, taken) for name in plain]


def _unique(plain: str, taken: set[str]) -> str:
    """Return a name, with a number if it is taken (without regard to case), and add it to the taken names."""
    candidates = chain([plain], (f"{plain}-{number}" for number in count(2)))
    name = next(name for name in candidates if name.casefold() not in taken)
    taken.add(name.casefold())
    return name


@final
class NameKey:
    """Table `names.csv` of a heatmap folder: photo and class of every file whose name does not spell them.

    Rows of earlier calls are kept, like their files. Another kind of file named `names.csv` is refused.
    """

    def __init__(self, folder: Path) -> None:
        self._folder, self._path = folder, folder / "names.csv"
        self._rows: dict[str, tuple[str, str]] = {}
        self._changed = False
        self._added = 0
        if not self._path.exists():
            return
        with self._path.open(encoding="utf-8", errors="replace", newline="") as file:
            header, *rows = [*csv.reader(file)] or [[]]
        if header != _KEY_COLUMNS or any(len(row) != len(header) for row in rows):
            raise ConfigError(
                f"{self._path} exists and is not a table of heatmap names (columns {', '.join(_KEY_COLUMNS)}); move "
                "it, or give another --out."
            )
        self._rows = {file: (image, class_id) for file, image, class_id in rows}

    def add(self, photo: Path, name: Path, files: Mapping[Path, str | None]) -> None:
        """Add the files that `write_heatmaps` wrote for a photo named `name` in the folder."""
        spelt = photo.with_suffix("").parts[-len(name.parts) :] == name.parts
        for file, class_id in files.items():
            place = file.relative_to(self._folder).as_posix()
            before = self._rows.pop(place, None)
            row = None
            if not spelt or (class_id is not None and file.name != f"{name.name}.{class_id}.png"):
                row = self._rows[place] = (text_name(photo), class_id or "")
                self._added += 1
            self._changed |= row != before

    def write(self) -> str:
        """Write the file if it changed; return a remark about the rows that were added, or ""."""
        if self._changed:
            with replacing(self._path) as temporary, temporary.open("w", encoding="utf-8", newline="") as file:
                writer = csv.writer(file, lineterminator="\n")
                writer.writerow(_KEY_COLUMNS)
                writer.writerows([safe_cell(cell) for cell in (place, *row)] for place, row in self._rows.items())
        if not self._added:
            return ""
        return f"{counted(self._added, 'file')} could not be named PHOTO.CLASS; see {self._path}"


@final
@dataclass(frozen=True)
class HeatmapOptions:
    """Files to write for every photo.

    Attributes:
        classes: numbers of the classes to draw; empty: those at or above their threshold.
        arrays: whether to write the maps of all classes as well.
        coupled: draw TS-CAM's maps, attention times class logits, instead of probability maps. They have no common
            scale, so each is drawn from its lowest to its highest value, as in TS-CAM. Arrays are not scaled.
        scale: of the colours of probability maps, see `HeatScale.of`.
    """

    classes: Sequence[int] = ()
    arrays: bool = False
    coupled: bool = False
    scale: ScaleKind = "auto"


def write_heatmaps(
    net: Predictor, info: ModelInfo, path: Path, name: Path, options: HeatmapOptions, device: torch.device
) -> dict[Path, str | None]:
    """Write pictures of a photo and its maps as `<name>.<class>.png`, and the maps of all classes as `<name>.npy`.

    A picture has the photo, the map over it, the class with its probability and threshold, the name of the photo, and
    the scale of the colours (`heatmap_picture`).

    Returns:
        the files, each with the id of its class; None for the array.
    """
    prob, maps = heatmaps(net, info, path, device, coupled=options.coupled)
    photo = read_image(path)
    view = make_policy(info.policy, info.size).test_view(photo.shape[1] / photo.shape[0])
    name.parent.mkdir(parents=True, exist_ok=True)
    files: dict[Path, str | None] = {}
    if options.arrays:
        files[array := name.with_name(f"{name.name}.npy")] = None
        write_array(array, maps)
    tagged = decide(prob.astype(np.float64), np.array(info.thresholds), groups=info.groups).tolist()
    parts = file_names(info.class_ids)
    for c in options.classes or tagged:
        files[place := name.with_name(f"{name.name}.{parts[c]}.png")] = info.class_ids[c]
        said = f"{info.classes.display[c]}  {verdict(prob[c], info.thresholds[c], tagged=c in tagged)}"
        heat_scale = HeatScale.of([maps[c]], "relative" if options.coupled else options.scale)
        picture = heatmap_picture(photo, maps[c], view, heat_scale, (said, text_name(path)))
        with replacing(place) as temporary:
            picture.save(temporary, "PNG", compress_level=3)  # a third of the time for 10 % more room
    return files


def verdict(prob: float, threshold: float, *, tagged: bool) -> str:
    """Return a probability beside its threshold, with enough digits to show which is higher, and what was decided.

    The decision differs from the comparison only for classes that exclude each other.

    >>> verdict(0.83, 0.5, tagged=True), verdict(0.496, 0.5, tagged=False)
    ('0.83 ≥ 0.50, tagged', '0.496 < 0.500')
    """
    shown, limit = apart(prob, threshold)
    above = bool(prob >= threshold)
    decision = {
        (True, True): ", tagged",
        (False, True): ", tagged as the best of its group",
        (True, False): ", another of its group is tagged",
        (False, False): "",
    }
    return f"{shown} {'≥' if above else '<'} {limit}{decision[above, tagged]}"
