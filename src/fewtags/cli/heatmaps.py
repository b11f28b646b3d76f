"""Writing heatmaps to files."""

from __future__ import annotations

import csv
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import final

import numpy as np
import torch
from PIL import Image

from fewtags.cli.tables import escaped_names, text_name
from fewtags.engine.model import ModelInfo, make_policy
from fewtags.engine.predict import decide, heatmaps
from fewtags.errors import ConfigError, DataError
from fewtags.files import replacing
from fewtags.labels import ClassNames
from fewtags.metrics.localisation import normalise_map
from fewtags.nets.spatial import SpatialNet
from fewtags.photos.decode import read_image
from fewtags.report.overlay import overlay
from fewtags.text import counted, suggest

_KEY_COLUMNS = ["file", "image", "class"]


def class_position(classes: ClassNames, word: str) -> int:
    """Position of a class that is called by its id or by its display name.

    Raises:
        DataError: no such class; the closest is suggested.

    >>> class_position(ClassNames.of(["n02085936", "n02123045"], ["Maltese", "tabby"]), "tabby")
    1
    """
    if word in classes:
        return classes.index(word)
    if word in classes.display:
        return classes.display.index(word)
    known = dict.fromkeys((*classes.ids, *classes.display))
    raise DataError(f"{word!r} is not a class of this model{suggest(word, known)}.")


def output_names(places: Sequence[Path], photos: Sequence[Path]) -> tuple[dict[Path, Path], list[str]]:
    """A name without ending for every photo, no two alike, not even where case does not count.

    Photos of a folder keep their place below it; photos named one by one keep their name. Where that gives the same
    name twice, the later photo is numbered; where it is not UTF-8, it is written as `text_name` does.

    Args:
        places: files and folders, as given.
        photos: what was found in them.

    Returns:
        photo -> name, and whose names were changed, in words.
    """
    folders = [place for place in places if place.is_dir()]
    names: dict[Path, Path] = {}
    notes: list[str] = []
    taken: set[str] = set()
    escaped: list[str] = []
    for photo in photos:
        folder = next((f for f in folders if photo.is_relative_to(f)), photo.parent)
        said = photo.relative_to(folder).with_suffix("")
        plain = name = Path(text_name(said))
        if plain != said:
            escaped.append(str(plain))
        number = 1
        while str(name).casefold() in taken:
            number += 1
            name = plain.with_name(f"{plain.name}-{number}")
        if number > 1:
            notes.append(f"{text_name(photo)} is written as {name}, since {plain} is taken")
        taken.add(str(name).casefold())
        names[photo] = name
    return names, [*notes, *([escaped_names(escaped)] if escaped else [])]


def file_names(ids: Sequence[str]) -> list[str]:
    """Class ids as parts of file names, no two alike.

    >>> file_names(["traffic light", "cat/dog", "cat_dog"])
    ['traffic_light', 'cat_dog', 'cat_dog-2']
    """
    names: list[str] = []
    taken: set[str] = set()
    for class_id in ids:
        plain = name = "".join(ch if ch.isalnum() or ch in "-_" else "_" for ch in class_id)[:100]
        number = 1
        while name.casefold() in taken:
            number += 1
            name = f"{plain}-{number}"
        taken.add(name.casefold())
        names.append(name)
    return names


@final
class NameKey:
    """`names.csv` of a folder of heatmaps: which photo and class a file shows, where its name does not spell them.

    Rows of earlier calls stay, since their files do.

    Args:
        folder: where the heatmaps go.

    Raises:
        ConfigError: there is another file of that name.
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
                f"{self._path} is not a key of heatmap names, and one would be written there; move it, or give another "
                "--out."
            )
        self._rows = {file: (image, class_id) for file, image, class_id in rows}

    def add(self, photo: Path, name: Path, files: Mapping[Path, str | None]) -> None:
        """Take what `write_heatmaps` wrote of a photo that is called `name` in the folder."""
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
        """Write the file if there is anything new; which it is, in words, or ""."""
        if self._changed:
            with replacing(self._path) as temporary, temporary.open("w", encoding="utf-8", newline="") as file:
                writer = csv.writer(file, lineterminator="\n")
                writer.writerow(_KEY_COLUMNS)
                writer.writerows([place, *row] for place, row in self._rows.items())
        if not self._added:
            return ""
        shows = "it shows" if self._added == 1 else "they show"
        return f"{counted(self._added, 'file')} could not be called PHOTO.CLASS; {self._path} says what {shows}"


@final
@dataclass(frozen=True)
class Wanted:
    """What is written of every photo.

    Attributes:
        classes: numbers of those to draw; none: those at or above their threshold.
        arrays: the maps of all classes, too.
        coupled: TS-CAM's maps, attention times class logits, in the place of probability maps. They have no common
            scale: each is drawn from its own lowest (no heat) to its own highest value (full heat), as TS-CAM does, so
            that heat says where in a photo and nothing about how sure. Arrays hold the products as they are.
    """

    classes: Sequence[int] = ()
    arrays: bool = False
    coupled: bool = False


def write_heatmaps(
    net: SpatialNet, info: ModelInfo, path: Path, name: Path, wanted: Wanted, device: torch.device
) -> dict[Path, str | None]:
    """Overlays of one photo as `<name>.<class>.png`; the maps of all classes as `<name>.npy`.

    Args:
        net: the model.
        info: of the model.
        path: the photo.
        name: where the files go, without ending.
        wanted: which files, and which maps they show.
        device: where the model runs.

    Returns:
        the files, each with the id of its class; None for the array.

    Raises:
        ConfigError: coupled maps of a backbone that is no ViT with a class token.
        DataError: the photo cannot be read.
    """
    prob, maps = heatmaps(net, info, path, device, coupled=wanted.coupled)
    photo = read_image(path)
    view = make_policy(info.policy, info.size).test_view(photo.shape[1] / photo.shape[0])
    name.parent.mkdir(parents=True, exist_ok=True)
    files: dict[Path, str | None] = {}
    if wanted.arrays:
        files[array := name.with_name(f"{name.name}.npy")] = None
        np.save(array, maps)
    drawn = list(wanted.classes) or decide(prob.astype(np.float64), np.array(info.thresholds)).tolist()
    parts = file_names(info.class_ids)
    for c in drawn:
        files[place := name.with_name(f"{name.name}.{parts[c]}.png")] = info.class_ids[c]
        heat = normalise_map(maps[c], "minmax") if wanted.coupled else maps[c]
        Image.fromarray(overlay(photo, heat, view=view)).save(place)
    return files
