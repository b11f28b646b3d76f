"""What the paths of a command name: models, encoders, photos. Torch is not imported: wrong paths are reported fast."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

from fewtags.engine.runfolder import MODEL_FILE, PRETRAINING, TRAINING, RunFolder
from fewtags.errors import CheckpointError, DataError
from fewtags.formats.folder import walk
from fewtags.formats.locate import is_photo
from fewtags.text import flag

WORDS = ("none", "offline", "hub")
"""Words for weights that are not a file; they need the name of an architecture."""


def model_path(place: Path | str) -> Path:
    """Return the path of the model file in a run folder, or the path of a file unchanged."""
    place = Path(place)
    return place / MODEL_FILE if place.is_dir() else place


def refuse_missing_model(place: Path | str) -> None:
    """Raise CheckpointError if there is no model file at a path, or its run is not finished or pretrains."""
    path = model_path(place)
    if path.exists():
        return
    if path.name == MODEL_FILE and RunFolder(path.parent, TRAINING).has_begun:
        raise CheckpointError(
            f"{path.parent} is a run that is not finished, so it has no model yet; finish it with "
            f"`fewtags resume {path.parent}`."
        )
    if path.name == MODEL_FILE and RunFolder(path.parent, PRETRAINING).has_begun:
        raise CheckpointError(
            f"{path.parent} is a pretraining run, which has no classes; train a model from it: "
            f"`fewtags train LABELS --init {path.parent}`."
        )
    raise CheckpointError(f"{path} does not exist; give a run folder or its {MODEL_FILE}.")


def refuse_unfinished_run(path: Path) -> None:
    """Raise CheckpointError if a folder is not a training run, or the run has no model yet."""
    if not (path / MODEL_FILE).exists():
        state = "is not finished; `fewtags resume` it first" if (path / "run.toml").exists() else "is not a run folder"
        raise CheckpointError(f"{path} {state}.")


def refuse_missing_encoder(place: Path | str, backbone: str | None = None) -> None:
    """Raise CheckpointError if an encoder is asked for at a path where nothing exists, see `find_encoder`."""
    if backbone is None and str(place) not in WORDS and not Path(place).exists():
        named = f"{flag('backbone', 'NAME')}"
        raise CheckpointError(
            f"{place} does not exist; give a run folder, a weight file with {named}, or one of {', '.join(WORDS)} "
            f"with {named}."
        )


def find_photos(places: Sequence[Path | str]) -> tuple[list[Path], list[str]]:
    """Find all photos among files and folders, in order, each once. A file that is named itself is always included.

    Folders are searched as the reader of class folders does: links are followed, hidden files are skipped.

    Returns:
        the photos, and messages about skipped files. Unreadable photos are included; reading them reports the error.

    Raises:
        DataError: a path does not exist, or there is no photo.
    """
    found: dict[str, None] = {}  # texts: a set of a million paths takes three times as long
    notes: list[str] = []
    for place in map(Path, places):
        if not place.exists():
            raise DataError(f"{place} does not exist; give photos or folders of photos.")
        if not place.is_dir():
            found[str(place)] = None
            continue
        inside = walk(place, any_name=True)
        damaged = [e.item for e in inside.notes.excluded if is_photo(e.item)]
        start = "" if place == Path() else os.path.join(place, "")  # noqa: PTH118
        found |= dict.fromkeys(start + key for key in sorted([*inside.photos, *damaged]))
        if others := inside.others:
            kinds = ", ".join(f"{kind} {count:,}" for kind, count in sorted(others.items()))
            notes.append(f"skipped in {place}, because they are not photos: {kinds}")
        notes += [f"skipped {place / e.item}: {e.reason}" for e in inside.notes.excluded if not is_photo(e.item)]
    if not found:
        raise DataError("; ".join([f"there is no photo in {', '.join(map(str, places))}", *notes]) + ".")
    return [*map(Path, found)], notes
