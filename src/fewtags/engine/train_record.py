"""The record of a training run, and whether its labels have changed since."""

from __future__ import annotations

import csv
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from fewtags.config.changes import changed_setting, settings_tree
from fewtags.config.presets import Resolved
from fewtags.config.sections import NO_FILES, Config, paths_of
from fewtags.engine.checkpoint import reading_record
from fewtags.engine.machine import environment
from fewtags.engine.methods import method_source
from fewtags.engine.plan import RunPlan
from fewtags.engine.runfolder import IN_MEMORY, SEARCH_FILE, TRAINING, TRUTH, Record, RunFolder
from fewtags.engine.search import read_search
from fewtags.engine.tables import Tables, read_tables
from fewtags.engine.teacher import save_teacher, teacher_record
from fewtags.errors import CheckpointError, FewtagsError
from fewtags.files import write_text
from fewtags.table.table import LabelTable
from fewtags.text import safe_cell

PATHS = ("train", "images", "val", "val_images", "test", "test_images", "truth", "names", "answers")
"""Settings of [data] that name files or folders; relative ones begin where the run was started."""


def write_record(plan: RunPlan, out: Path) -> None:
    """Write what is known about a run before it trains."""
    folder, tables = RunFolder(out, TRAINING), plan.tables
    out.mkdir(parents=True, exist_ok=True)
    if plan.report is not None:
        write_text(out / "check.json", plan.report.to_json())
        plan.report.write_excluded_csv(out / "excluded.csv")
    classes = tables.train.classes
    vocabulary = [{"id": i, "name": n} for i, n in zip(classes.ids, classes.names, strict=True)]
    write_text(out / "vocabulary.json", json.dumps(vocabulary, indent=1, ensure_ascii=False))
    save_teacher(plan.teacher, out)
    folder.write_record(plan.config, plan.resolved, all_tables(tables), _facts(plan))


def _facts(plan: RunPlan) -> dict[str, Any]:
    """Return what `environment.json` has beside the settings."""
    return {
        **environment(),
        "working_directory": str(Path.cwd()),
        "fingerprints": {name: table.fingerprint for name, table in all_tables(plan.tables).items()},
        "teacher": teacher_record(plan.teacher),
        **_chosen_facts(plan),
    }


def _chosen_facts(plan: RunPlan) -> dict[str, Any]:
    """Return the part of the record that a search may change."""
    return {
        "weights": None if plan.net.origin is None else vars(plan.net.origin),
        "method": method_record(plan),
        "method_source": method_source(plan.objective),
        "grid": plan.grid,
        "heatmap_bytes": plan.heatmap_bytes,
        "notes": plan.notes,
    }


def settled_record(plan: RunPlan, begun: Mapping[str, Any]) -> dict[str, Any]:
    """Return what `environment.json` has after a search, whose best candidate `plan` trains.

    `begun` is what it had before. Its folder and versions are those of the start, wherever the search goes on.
    """
    settings = {TRAINING.settings: settings_tree(plan.config), "resolved.toml": settings_tree(plan.resolved)}
    found: dict[str, Any] = json.loads(json.dumps({**begun, **_chosen_facts(plan), "settings": settings}))
    return found


def settle(out: Path) -> None:
    """Finish the record of a search that has chosen, if the run was interrupted while it was written.

    Raises:
        CheckpointError: a file is damaged.
    """
    found = read_search(out)
    if found is None or not found.record:
        return
    begun = read_environment(out)
    if begun != found.record:
        with reading_record(out / SEARCH_FILE):
            resolved = Resolved.model_validate(found.record["settings"]["resolved.toml"])
        RunFolder(out, TRAINING).settle_record(resolved, found.record)


def read_environment(out: Path) -> dict[str, Any]:
    """Read `environment.json`.

    Raises:
        CheckpointError: it is missing or damaged.
    """
    path = out / "environment.json"
    with reading_record(path):
        found: dict[str, Any] = json.loads(path.read_text("utf-8"))
    return found


def method_record(plan: RunPlan) -> dict[str, Any]:
    """Return the name and settings of the objective, with derived values."""
    settings = plan.method.model_dump(mode="json")
    values = {key: getattr(plan.objective, key, value) for key, value in settings.items()}
    return {key: list(v) if isinstance(v, tuple) else v for key, v in values.items()} | {"name": settings["name"]}


def refuse_other_method(record: Record[Config, Resolved], plan: RunPlan, out: Path) -> None:
    """Compare the settings that `plan` derives for a built-in method with those that the run derived when it began.

    A setting that is new since then may be off: 0, false or none. A method of your own has a record of its file.

    Raises:
        CheckpointError: they differ, because another version of fewtags began the run.
    """
    began, now = record.environment.get("method", {}), json.loads(json.dumps(method_record(plan)))
    new_and_off = tuple(key for key, value in now.items() if key not in began and not value)
    change = changed_setting(began, now, new_and_off)
    if change and method_source(plan.objective) is None:
        raise CheckpointError(
            f"another version of fewtags began {out}, and derived other settings of the method (objective.{change}). "
            "Resume with that version, or start a new run."
        )


def all_tables(tables: Tables) -> dict[str, LabelTable]:
    """Return all tables of a run by name: train, val, and test and truth if they exist."""
    return tables.splits() | ({} if tables.truth is None else {TRUTH: tables.truth})


def check_labels_unchanged(record: Record[Config, Resolved], tables: Tables, out: Path) -> str | None:
    """Read the label files again and compare; return a note if they no longer exist.

    Raises:
        CheckpointError: they differ from those that the run began with, or can no longer be read.
    """
    data = with_located_paths(record.settings, record.working_directory).data
    if record.settings.data.train == IN_MEMORY:
        return None
    files = [file for key in PATHS for file in paths_of(getattr(data, key))]
    if missing := [file for file in files if not Path(file).exists()]:
        return (
            f"labels: {missing[0]} no longer exists, so changes of the labels cannot be detected; the run continues "
            "with its own copy"
        )
    try:
        now = read_tables(data, record.settings.train.seed)
    except FewtagsError as error:
        raise CheckpointError(
            f"the labels can no longer be read as they were when {out} began: {error} Restore them, or start a new run."
        ) from None
    if changed := changed_split(tables, now, out):
        raise CheckpointError(f"the {changed} labels have changed since {out} began; restore them, or start a new run.")
    return None


def with_located_paths(config: Config, folder: Path) -> Config:
    """Return the settings with relative paths of files and folders joined to `folder`."""
    data: dict[str, str | tuple[str, ...]] = {}
    for key in PATHS:
        given = getattr(config.data, key)
        if given not in (None, IN_MEMORY):
            data[key] = str(folder / given) if isinstance(given, str) else tuple(str(folder / path) for path in given)
    weights = config.model.weights
    model = {} if weights is None or weights in NO_FILES else {"weights": str(folder / weights)}
    return config.model_copy(
        update={"data": config.data.model_copy(update=data), "model": config.model.model_copy(update=model)}
    )


def changed_split(stored: Tables, now: Tables, out: Path) -> str | None:
    """Return the first table that differs from the one that the run in `out` began with; None if all are equal.

    Images that were left out at the start because their photos could not be read are left out of the comparison.
    """
    left_out: set[tuple[str, str]] = set()
    if (out / "excluded.csv").exists():
        with (
            reading_record(out / "excluded.csv"),
            (out / "excluded.csv").open(encoding="utf-8", newline="") as file,
        ):
            left_out = {(row["where"], row["item"]) for row in csv.DictReader(file)}
    before, after = all_tables(stored), all_tables(now)
    for name, table in after.items():
        split = "train" if name == TRUTH else name
        kept = np.array([(split, safe_cell(key)) not in left_out for key in table.images.to_pylist()], np.bool_)
        if name not in before or table.subset(kept).fingerprint != before[name].fingerprint:
            return name
    return next((name for name in before if name not in after), None)
