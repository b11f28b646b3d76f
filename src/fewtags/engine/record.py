"""The record of a run: what its folder says before anything is trained, and what has to be the same to go on."""

from __future__ import annotations

import csv
import json
import os
import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, final

import numpy as np
from numpy.typing import NDArray
from pydantic import BaseModel, ValidationError

from fewtags.config.parse import dump_toml, load_toml, parse
from fewtags.config.presets import Resolved
from fewtags.config.sections import Config
from fewtags.engine.checkpoint import CheckpointFolder, write_array
from fewtags.engine.encoder_file import ENCODER_FILE, PRETRAIN_SETTINGS
from fewtags.engine.machine import environment
from fewtags.engine.methods import method_source, settings_models
from fewtags.engine.plan import Plan, Tables, read_tables
from fewtags.errors import CheckpointError, ConfigError, DataError, FewtagsError
from fewtags.files import refuse_folder, write_text
from fewtags.table.content import each, photo_paths
from fewtags.table.storage import load, save
from fewtags.table.table import LabelTable

IN_MEMORY = "(tables in memory)"
"""`data.train` of a run on tables that were never read from a file."""

ANY_SIZE = -1
"""Size of a photo that could not be read: whatever takes its place is right."""

# What `write_record` and the objective write, in this order; a folder with run.toml is a run.
BEFORE_THE_START = (
    *("state", "tables", "check.json", "excluded.csv", "vocabulary.json", "environment.json", "resolved.toml"),
)
# Settings that name files or folders; they are relative to where the run was started.
PATHS = ("train", "images", "val", "test", "truth")
NO_FILES = ("hub", "offline", "none")


@final
@dataclass(frozen=True)
class Record:
    """What a run wrote down when it began.

    Attributes:
        config: what was asked for.
        resolved: what that meant.
        tables: the labels.
        environment: versions, fingerprints, weights, method, notes.
    """

    config: Config
    resolved: Resolved
    tables: Tables
    environment: dict[str, Any]

    @property
    def folder(self) -> Path:
        """Where the run was started; its settings' relative paths begin there."""
        return Path(self.environment["working_directory"])


def write_record(plan: Plan, out: Path) -> None:
    """Write everything about a run that is known before it trains; `run.toml`, which makes it a run, comes last."""
    (out / "tables").mkdir(parents=True)
    for name, table in named(plan.tables).items():
        # A run may be resumed from another working directory.
        root = None if table.root is None else table.root.absolute()
        save(table.with_root(root), out / "tables" / f"{name}.parquet", keep_root=True)
    for name, table in plan.tables.splits().items():
        write_array(sizes_path(out, name), photo_sizes(table))
    if plan.report is not None:
        write_text(out / "check.json", plan.report.to_json())
        plan.report.write_excluded_csv(out / "excluded.csv")
    classes = plan.tables.train.classes
    vocabulary = [{"id": i, "name": n} for i, n in zip(classes.ids, classes.names, strict=True)]
    record: dict[str, Any] = {
        **environment(),
        "working_directory": str(Path.cwd()),
        "fingerprints": {name: table.fingerprint for name, table in named(plan.tables).items()},
        "weights": None if plan.net.origin is None else vars(plan.net.origin),
        "method": method_record(plan),
        "method_source": method_source(plan.objective),
        "grid": plan.grid,
        "heatmap_bytes": plan.heatmap_bytes,
        "notes": plan.notes,
        "settings": {"run.toml": settings_tree(plan.config), "resolved.toml": settings_tree(plan.resolved)},
    }
    write_text(out / "vocabulary.json", json.dumps(vocabulary, indent=1, ensure_ascii=False))
    write_text(out / "environment.json", json.dumps(record, indent=1))
    write_text(out / "resolved.toml", dump_toml(plan.resolved))
    write_text(out / "run.toml", dump_toml(plan.config))


def read_record(out: Path) -> Record:
    """Read what `write_record` wrote.

    Raises:
        CheckpointError: no run there, a part is damaged, or settings were edited since.
        ConfigError: run.toml is no configuration any more.
    """
    if not (out / "run.toml").exists():
        raise CheckpointError(
            f"{out} is not a run folder (it has no run.toml); start one with: fewtags train DATA --out FOLDER"
        )
    config = parse(load_toml(out / "run.toml"), settings_models(out), str(out / "run.toml"))
    try:
        record = json.loads((out / "environment.json").read_text("utf-8"))
        resolved = Resolved.model_validate(load_toml(out / "resolved.toml"))
        began = {name: dict(record["settings"][name]) for name in ("run.toml", "resolved.toml")}
        found = {name: load(out / "tables" / f"{name}.parquet") for name in record["fingerprints"]}
        tables = Tables(found["train"], found["val"], found.get("test"), found.get("truth"))
    except (OSError, ValueError, TypeError, KeyError, FewtagsError) as error:
        reason = error.errors()[0]["msg"] if isinstance(error, ValidationError) else error
        raise CheckpointError(f"the record of the run in {out} is damaged ({reason}); start a new run.") from None
    refuse_edited(out / "run.toml", began["run.toml"], settings_tree(config))
    refuse_edited(out / "resolved.toml", began["resolved.toml"], settings_tree(resolved))
    for name, table in named(tables).items():
        if table.fingerprint != record["fingerprints"][name]:
            raise CheckpointError(
                f"{out / 'tables' / name}.parquet is not what the run began with; restore it, or start a new run."
            )
    return Record(config, resolved, tables, record)


def settings_tree(model: BaseModel) -> dict[str, Any]:
    """Settings as plain values."""
    tree: dict[str, Any] = model.model_dump(mode="json", serialize_as_any=True)
    return tree


def _in_a_list(key: str) -> bool:
    """Whether a dotted key names a place in a list, of which there may be more than there were.

    >>> _in_a_list("data.positive_words.0"), _in_a_list("train.baseline")
    (True, False)
    """
    return any(part.isdigit() for part in key.split("."))


def refuse_edited(file: Path, began: Mapping[str, Any], now: Mapping[str, Any]) -> None:
    """Compare settings with those that a run began with.

    Raises:
        CheckpointError: one is another, and which.
    """
    before, after = dict(_flat(began)), dict(_flat(now))
    if new := next((key for key in after if key not in before and not _in_a_list(key)), None):
        raise CheckpointError(f"the run was begun by an older fewtags, which had no setting {new}; start a new run.")
    for key in {**after, **before}:
        if before.get(key) != after.get(key):
            change = f"{key} {_shown(before.get(key))} -> {_shown(after.get(key))}"
            raise CheckpointError(f"{file} was edited since the run began: {change}; restore it, or start a new run.")


def _flat(tree: Any, path: str = "") -> Iterator[tuple[str, Any]]:
    """Dotted keys and plain values."""
    if isinstance(tree, Mapping):
        for key, value in tree.items():
            yield from _flat(value, f"{path}.{key}" if path else key)
    elif isinstance(tree, list):
        for place, value in enumerate(tree):
            yield from _flat(value, f"{path}.{place}")
    else:
        yield path, tree


def _shown(value: Any) -> str:
    return "(not set)" if value is None else str(value).lower() if isinstance(value, bool) else str(value)


# --- photos


def photo_sizes(table: LabelTable) -> NDArray[np.int64]:
    """int64 [N]: bytes of every photo, `ANY_SIZE` where there is none.

    Sizes alone: the copy of a folder has other times, and reading a million photos would take an hour.
    """
    return np.fromiter(each(_size, photo_paths(table)), np.int64)


def _size(path: str) -> int:
    try:
        return Path(path).stat().st_size
    except (OSError, ValueError):  # a name with a null character is a ValueError
        return ANY_SIZE


def sizes_path(out: Path, split: str) -> Path:
    """Where a run keeps the sizes of a split's photos."""
    return out / "tables" / f"{split}-sizes.npy"


def refuse_changed_photos(tables: Tables, out: Path) -> None:
    """Compare the photos with those that the run in `out` began with.

    Raises:
        CheckpointError: one is gone, or of another size.
    """
    refuse_other_sizes(tables.splits(), out)


def refuse_other_sizes(splits: Mapping[str, LabelTable], out: Path) -> None:
    """The same for label tables by name."""
    for name, table in splits.items():
        try:
            before = np.load(sizes_path(out, name), allow_pickle=False)
            now = photo_sizes(table)
            if before.shape != now.shape:
                raise ValueError(f"{len(before):,} sizes of {len(now):,} photos")
            different = np.flatnonzero((now == ANY_SIZE) | ((now != before) & (before != ANY_SIZE)))
        except (OSError, ValueError, EOFError) as error:
            reason = f"{sizes_path(out, name)}: {error}"
            raise CheckpointError(f"the record of the run in {out} is damaged ({reason}); start a new run.") from None
        if len(different):
            first = int(different[0])
            more = f" ({len(different):,} {name} photos are gone or changed)" if len(different) > 1 else ""
            what = f"has {now[first]:,} bytes, and had {before[first]:,} when {out} began"
            if now[first] == ANY_SIZE:
                what = f"is no longer there, and {out} began with it"
            raise CheckpointError(f"{photo_paths(table)[first]} {what}{more}; restore it, or start a new run.")


@contextmanager
def saying_what_to_do(splits: Mapping[str, LabelTable], out: Path, settings: str = "run.toml") -> Iterator[None]:
    """Add to an unreadable photo's error what to do about it.

    Args:
        splits: the photos of the run, by name.
        out: its folder.
        settings: the file whose presence makes the folder a run.
    """
    try:
        yield
    except DataError as error:
        if not (out / settings).exists():
            raise DataError(f"{error} Then start again; nothing was written yet.") from None
        right = "the photo that the run began with"
        if CheckpointFolder(out / "checkpoints").last() is None:  # no epoch was trained on it
            expect_another(splits, out, str(error))
            right = "a readable photo"
        raise DataError(
            f"{error} With {right} in its place, go on with `fewtags resume {out}`; to do without it, remove "
            "the file and start a new run with data.decode = true, which leaves it out."
        ) from None


def expect_another(splits: Mapping[str, LabelTable], out: Path, failure: str) -> None:
    """After `failure`, the text of a reading error that begins with the photo's path: let another file take its place.

    For a run that has trained no epoch yet; later the photo is part of what the net is.
    """
    for name, table in splits.items():
        # Errors show a name that is not UTF-8 with escapes.
        shown = (os.fspath(path).encode("utf-8", "backslashreplace").decode() for path in photo_paths(table))
        broken = [n for n, path in enumerate(shown) if failure.startswith(f"{path}: ")]
        if broken and sizes_path(out, name).exists():
            sizes = np.load(sizes_path(out, name), allow_pickle=False)
            sizes[broken] = ANY_SIZE
            write_array(sizes_path(out, name), sizes)


# --- labels


def looked_at_again(record: Record, out: Path) -> str | None:
    """Read the label files again and compare; a line about why that cannot be done, where they are gone.

    Raises:
        CheckpointError: they say something else than when the run began.
    """
    data, seed = located(record.config, record.folder).data, record.config.train.seed
    if record.config.data.train == IN_MEMORY:
        return None
    files = [getattr(data, key) for key in PATHS if getattr(data, key) is not None]
    if gone := [file for file in files if not Path(file).exists()]:
        return f"labels: {gone[0]} is no longer there, so the run's own copy is used without a look at what has changed"
    try:
        now = read_tables(data, seed)
    except FewtagsError as error:
        raise CheckpointError(
            f"the labels can no longer be read as they were when {out} began: {error} Restore them, or start a new run."
        ) from None
    if changed := changed_split(record.tables, now, out):
        raise CheckpointError(f"the {changed} labels have changed since {out} began; restore them, or start a new run.")
    return None


def located(config: Config, folder: Path) -> Config:
    """The settings with relative paths of files and folders as seen from `folder`."""
    data = {key: str(folder / path) for key in PATHS if (path := getattr(config.data, key)) not in (None, IN_MEMORY)}
    weights = config.model.weights
    model = {} if weights is None or weights in NO_FILES else {"weights": str(folder / weights)}
    return config.model_copy(
        update={"data": config.data.model_copy(update=data), "model": config.model.model_copy(update=model)}
    )


def changed_split(stored: Tables, now: Tables, out: Path) -> str | None:
    """The first split whose labels are not those that the run in `out` began with; None where all are.

    Images that were left out at the start, because their photos could not be read, stay out.
    """
    left_out: set[tuple[str, str]] = set()
    if (out / "excluded.csv").exists():
        with (out / "excluded.csv").open(encoding="utf-8", newline="") as file:
            left_out = {(row["where"], row["item"]) for row in csv.DictReader(file)}
    before, after = named(stored), named(now)
    for name, table in after.items():
        split = "train" if name == "truth" else name
        kept = np.array([(split, key) not in left_out for key in table.images.to_pylist()], np.bool_)
        if name not in before or table.subset(kept).fingerprint != before[name].fingerprint:
            return name
    return next((name for name in before if name not in after), None)


# --- the folder


def refuse_used_folder(out: Path) -> None:
    """A run begins in a new or empty folder that can be written.

    Raises:
        ConfigError: `out` holds something, is a file, or cannot be made or written.
    """
    if out.exists() and not out.is_dir():
        raise ConfigError(f"{out} is a file; --out takes a folder for the run.")
    if out.exists() and (there := {path.name for path in out.iterdir()}):
        if there <= set(BEFORE_THE_START):
            raise ConfigError(
                f"{out} holds {', '.join(sorted(there))} of a run that was stopped before it began; delete the folder, "
                "or choose another --out."
            )
        kinds = (("run.toml", "model.safetensors"), (PRETRAIN_SETTINGS, ENCODER_FILE))
        interrupted = any((out / began).exists() and not (out / ended).exists() for began, ended in kinds)
        go_on = f", or go on with: fewtags resume {out}" if interrupted else ""
        raise ConfigError(f"{out} is not empty; choose another --out{go_on}.")
    refuse_folder(out)


def forget(out: Path, made: bool) -> None:
    """Remove what a run that never began has left in its folder, and the folder itself if the run `made` it."""
    for name in BEFORE_THE_START:
        path = out / name
        if path.is_dir():
            shutil.rmtree(path, ignore_errors=True)
        else:
            path.unlink(missing_ok=True)
    if made and out.exists() and not any(out.iterdir()):
        out.rmdir()


def refuse_lost_checkpoints(out: Path) -> str | None:
    """A line where no checkpoint was ever complete, so that the run begins again; None where there is one.

    Raises:
        CheckpointError: epochs were trained and their checkpoints are gone.
    """
    folder = CheckpointFolder(out / "checkpoints")
    if folder.last() is not None:
        return None
    metrics = out / "metrics.jsonl"
    epochs = len(metrics.read_text("utf-8").splitlines()) if metrics.exists() else 0
    # The first epoch's numbers are written just before its checkpoint.
    if epochs > 1:
        raise CheckpointError(
            f"{out} has trained {epochs} epochs ({metrics.name}), but {folder.root / 'LAST'} is gone, and with it the "
            "way to its checkpoints. Restore the folder, or start a new run."
        )
    return f"{out} has no complete checkpoint: training BEGINS AGAIN with epoch 1"


def method_record(plan: Plan) -> dict[str, Any]:
    """Name and settings of the objective, with derived values filled in."""
    settings = plan.method.model_dump(mode="json")
    return {k: _plain(getattr(plan.objective, k, v)) for k, v in settings.items()} | {"name": settings["name"]}


def _plain(value: Any) -> Any:
    return list(value) if isinstance(value, tuple) else value


def named(tables: Tables) -> dict[str, LabelTable]:
    """All tables of a run by name: train, val, and test and truth where there are any."""
    return tables.splits() | ({} if tables.truth is None else {"truth": tables.truth})
