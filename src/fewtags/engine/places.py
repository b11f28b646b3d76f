"""What the paths of a command name: models, encoders, photos. Torch is not imported: wrong paths are reported fast."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

from fewtags.engine.runfolder import MODEL_FILE, PRETRAINING, TRAINING, RunFolder
from fewtags.errors import CheckpointError, DataError
from fewtags.formats.folder_walk import walk
from fewtags.formats.locate import is_photo
from fewtags.shards.photos import photo_exists, shard_problem
from fewtags.shards.places import Url, expand, is_shard, place
from fewtags.shards.remote import missing
from fewtags.text import MOST_NAMED, flag

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
    """Find all photos among files, folders, shards and URLs, in order, each once. A photo that is named is included.

    Folders are searched as the reader of class folders does: links are followed, hidden files are skipped. A folder
    without photos has those of its shards (tar and Parquet files). Patterns such as `x-{000..009}.tar` and `*.tar` name
    several places, see `expand`.

    Returns:
        the photos, and messages about skipped files. Unreadable photos are included, and so is a damaged shard beside
        the photos that it still has: reading them reports the error.

    Raises:
        DataError: a path does not exist, there is no photo, or a server cannot be used.
    """
    found: dict[str, None] = {}  # texts: a set of a million paths takes three times as long
    notes: list[str] = []
    damaged_shards = 0
    among = [at for given in places for at in expand(given)]
    for at in among:
        if _is_photo_file(at):
            found[str(at)] = None
            continue
        inside = walk(at, any_name=True, shards=True)
        damaged = {e.item for e in inside.notes.excluded if is_photo(e.item) or is_shard(e.item)}
        damaged_shards += sum(map(is_shard, damaged))
        start = "" if at == Path() else os.path.join(at, "")  # noqa: PTH118
        keys = [*inside.photos, *sorted(damaged)] if inside.in_shards else sorted([*inside.photos, *damaged])
        found |= dict.fromkeys(start + key for key in keys)
        if is_shard(at.name) and at.name in damaged:  # the shard itself
            found[str(at)] = found.pop(start + at.name)
        if others := inside.others:
            kinds = ", ".join(f"{kind} {count:,}" for kind, count in sorted(others.items()))
            notes.append(f"skipped in {at}, because they are not photos: {kinds}")
        notes += inside.notes.messages if inside.in_shards else ()
        notes += [f"skipped {at / e.item}: {e.reason}" for e in inside.notes.excluded if e.item not in damaged]
    if damaged_shards and len(found) == damaged_shards:
        raise DataError("; ".join(f"{name}: {shard_problem(name)}" for name in [*found][:MOST_NAMED]) + ".")
    if not found:
        raise DataError("; ".join([f"there is no photo in {', '.join(map(str, among))}", *notes]) + ".")
    return [*map(place if any(isinstance(at, Url) for at in among) else Path, found)], notes


def _is_photo_file(at: Path) -> bool:
    """Return whether a place is one photo, and not a folder or a shard."""
    if isinstance(at, Url):
        if is_photo(at.name):  # reading it says whether it exists; some servers have no list of their files
            return True
        if not at.exists():
            raise missing(str(at))
        return not is_shard(at.name) and not at.is_dir()
    if not photo_exists(at):
        raise DataError(f"{at} does not exist; give photos, folders of photos, or shards.")
    return not at.is_dir() and not (is_shard(at.name) and at.is_file())
