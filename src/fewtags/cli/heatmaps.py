"""Writing heatmaps to files."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch
from PIL import Image

from fewtags.data.images import read_image
from fewtags.engine.model import ModelInfo, make_policy
from fewtags.engine.predict import decide, heatmaps
from fewtags.errors import DataError
from fewtags.labels import ClassNames, suggest
from fewtags.nets.spatial import SpatialNet
from fewtags.report.overlay import overlay


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
    name twice, the later photo is numbered.

    Args:
        places: files and folders, as given.
        photos: what was found in them.

    Returns:
        photo -> name, and which photos were numbered, in words.
    """
    folders = [place for place in places if place.is_dir()]
    names: dict[Path, Path] = {}
    notes: list[str] = []
    taken: set[str] = set()
    for photo in photos:
        folder = next((f for f in folders if photo.is_relative_to(f)), photo.parent)
        plain = name = photo.relative_to(folder).with_suffix("")
        number = 1
        while str(name).casefold() in taken:
            number += 1
            name = plain.with_name(f"{plain.name}-{number}")
        if number > 1:
            notes.append(f"{photo} is written as {name}, since {plain} is taken")
        taken.add(str(name).casefold())
        names[photo] = name
    return names, notes


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


def write_heatmaps(
    net: SpatialNet, info: ModelInfo, path: Path, name: Path, classes: Sequence[int], arrays: bool, device: torch.device
) -> int:
    """Overlays of one photo as `<name>.<class>.png`; the maps of all classes as `<name>.npy`.

    Args:
        net: the model.
        info: of the model.
        path: the photo.
        name: where the files go, without ending.
        classes: which ones to draw; none: those at or above their threshold.
        arrays: write the maps, too.
        device: where the model runs.

    Returns:
        how many overlays were written.

    Raises:
        DataError: the photo cannot be read.
    """
    prob, maps = heatmaps(net, info, path, device)
    photo = read_image(path)
    view = make_policy(info.policy, info.size).test_view(photo.shape[1] / photo.shape[0])
    name.parent.mkdir(parents=True, exist_ok=True)
    if arrays:
        np.save(f"{name}.npy", maps)
    drawn = list(classes) or decide(prob.astype(np.float64), np.array(info.thresholds)).tolist()
    parts = file_names(info.class_ids)
    for c in drawn:
        Image.fromarray(overlay(photo, maps[c], view=view)).save(f"{name}.{parts[c]}.png")
    return len(drawn)
