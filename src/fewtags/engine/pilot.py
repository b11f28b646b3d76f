"""A pilot: budgets are simulated on a few hundred completely labelled photos, and a model is trained on each."""

from __future__ import annotations

import json
import math
import os
import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from itertools import product
from pathlib import Path
from typing import Any, final

import numpy as np
from numpy.typing import NDArray

from fewtags.budget.costs import Annotation, CostModel, budget_seconds
from fewtags.budget.purchase import PointRule, simulate_budget
from fewtags.config.sections import Config
from fewtags.engine.inference import load_predictor
from fewtags.engine.json_records import read_json
from fewtags.engine.label_counts import can_rank
from fewtags.engine.localise import WITHOUT_BOXES, has_boxes, localise_table
from fewtags.engine.machine import torch_device
from fewtags.engine.methods import settled
from fewtags.engine.planning import make_plan
from fewtags.engine.predict import ScoredTable
from fewtags.engine.tables import Tables, hold_out
from fewtags.engine.train_run import TrainRun
from fewtags.errors import ConfigError, DataError
from fewtags.files import write_text
from fewtags.labels import Label
from fewtags.objectives.table import DEFAULT_METHOD
from fewtags.table.table import LabelTable
from fewtags.text import counted

RESULTS, RECORD = "results.jsonl", "pilot.json"

SETTINGS: Mapping[str, Any] = {
    "train.preset": "views",
    "train.cached_views": 2,
    "train.select": "last",
}
"""Default settings of a pilot: it trains the head on a frozen trunk, with two cached views per photo."""


def with_method(config: Config) -> Config:
    """Return settings that name the method, as records of a pilot need it; `train` would choose the same one."""
    return config.model_copy(update={"objective": settled(config.objective, config.objective.name or DEFAULT_METHOD)})


@final
@dataclass(frozen=True)
class Design:
    """The runs of a pilot: every combination of type, budget and seed.

    Attributes:
        kinds: types of labels.
        budgets: shares of the cost of tagging all photos of the pilot, or times; see `budget_seconds`.
        seeds: number of seeds.

    Raises:
        ConfigError: a list is empty, or has a value twice.
    """

    kinds: tuple[Annotation, ...] = (Annotation.TAGS, Annotation.ONE_POINT, Annotation.ONE_BOX)
    budgets: tuple[str, ...] = ("12.5%", "25%", "50%", "100%")
    seeds: int = 3

    def __post_init__(self) -> None:
        if not self.kinds or not self.budgets or self.seeds < 1:
            raise ConfigError("a pilot needs at least one type, one budget and one seed.")
        for what, values in (("type", self.kinds), ("budget", self.budgets)):
            if double := next((str(v) for v in values if list(values).count(v) > 1), None):
                raise ConfigError(f"the pilot's {what} {double!r} is given twice.")


@final
@dataclass(frozen=True)
class PilotRun:
    """A finished run of a pilot, the `done`-th of `total`, and its line of results.jsonl.

    `fresh` is false for a run of an earlier call.
    """

    row: Mapping[str, Any]
    done: int
    total: int
    fresh: bool


@final
@dataclass(frozen=True, eq=False)
class _Purchase:
    kind: Annotation
    budget: str
    seed: int
    table: LabelTable
    labels: int

    @property
    def key(self) -> tuple[str, int, int]:
        return self.kind.short, self.labels, self.seed

    @cached_property
    def asked(self) -> NDArray[np.bool_]:
        """Bool [N]: the photos with a bought label."""
        matrix = self.table.matrix
        return matrix.image_counts(Label.POSITIVE) + matrix.image_counts(Label.NEGATIVE) > 0


@final
@dataclass(eq=False)
class _CheckedPhotos:
    """Keys of images whose photos an earlier run of this pilot has decoded, and of those that could not be decoded."""

    good: set[str] = field(default_factory=set)
    broken: set[str] = field(default_factory=set)

    def without_broken(self, table: LabelTable) -> LabelTable:
        """Return a table without the images whose photos are broken."""
        kept = [key not in self.broken for key in table.images.to_pylist()]
        return table if all(kept) else table.subset(np.array(kept, np.bool_))

    def all_good(self, tables: Tables) -> bool:
        """Whether every photo has been decoded."""
        return all(self.good.issuperset(table.images.to_pylist()) for table in tables.splits().values())

    def learn(self, before: Tables, after: Tables) -> None:
        """Record which photos of the tables were decoded, and which were left out."""
        for name, table in after.splits().items():
            kept = set(table.images.to_pylist())
            self.good |= kept
            self.broken |= set(before.splits()[name].images.to_pylist()) - kept


def measured_split(whole: LabelTable) -> str | None:
    """Return the split that a pilot is measured on: test, or else val; None if the labels name neither."""
    named = {} if whole.split_names is None else whole.named_splits()
    return next((name for name in ("test", "val") if name in named), None)


def pilot_parts(whole: LabelTable, share: float, group_by: str | None = None) -> tuple[LabelTable, LabelTable]:
    """Return the images that a pilot buys labels for, and those that it is measured on.

    If the labels name splits, it is measured on test, or else val, and buys from train, or else from all others.
    Otherwise a share of the images is held out, the same for all runs, with equal photos together.

    Raises:
        DataError: there are no images to buy labels for, or no class can be measured.
    """
    apart = measured_split(whole)
    if apart is None:
        pool, measured = hold_out(whole, share, 0, group_by)
    else:
        assert whole.split_names is not None
        named = whole.named_splits()
        names = np.array([name or "" for name in whole.split_names.to_pylist()], str)
        chosen = names == "train" if "train" in named else ~np.isin(names, ("val", "test"))
        pool, measured = whole.subset(chosen), named[apart]
    if not len(pool):
        raise DataError(f"all images are in split {apart!r}, so there are none to buy labels for.")
    if not can_rank(measured):
        raise DataError(
            f"none of the classes has both known positives and known negatives in the {len(measured):,} images that "
            "the pilot would be measured on. A pilot needs complete labels: pass --complete if what is not named is "
            "absent."
        )
    return pool, measured


def run_pilot(
    pool: LabelTable,
    measured: LabelTable,
    config: Config,
    design: Design,
    cost: CostModel,
    out: Path,
    *,
    arms: Mapping[Annotation, Config] | None = None,
    points: PointRule = "centre",
    pointed: LabelTable | None = None,
    cpu: bool = False,
) -> Iterator[PilotRun]:
    """Buy labels, train and measure, seed by seed; each run adds a line to `out / "results.jsonl"`.

    For one seed, budgets are nested, and the images of expensive types are among those of cheap ones; see
    `simulate_budget` (flat costs). Each net is measured after its last epoch, so nothing is chosen on the measured
    images. It is measured by mAP, and also by mAP-loc if these images have boxes. Finished runs are not repeated.

    `pool` and `measured` have the complete labels of the images to buy labels for and to measure on. `config` has the
    settings of each training, except for its seed; `arms` has those of single types instead. `cost` has the seconds
    that answers take. `points` is the rule of `simulate_budget` for points in boxes. `pointed` has the same images with
    points drawn in outlines; labels with points are bought from it. None draws all points in the boxes of `pool`.

    Raises:
        ConfigError: before any training: `out` has a pilot with other labels or settings, an epoch would be chosen
            on the measured images, a purchase has no positive label, or there are several processes.
        DataError: photos cannot be used.
    """
    if (processes := int(os.environ.get("WORLD_SIZE", "1"))) > 1:
        raise ConfigError(
            f"a pilot runs in one process, but WORLD_SIZE is {processes}; start it without torchrun or accelerate "
            "launch."
        )
    arms = {kind: (arms or {}).get(kind, config) for kind in design.kinds}
    if any(arm.train.select == "best" for arm in arms.values()):
        raise ConfigError(
            'train.select = "best" would choose the epoch on the images that the pilot is measured on; leave it out.'
        )
    if pointed is not None:
        mine = set(pool.images.to_pylist())
        pointed = pointed.subset(np.array([key in mine for key in pointed.images.to_pylist()], np.bool_))
    purchases = _purchases(pool, pool if pointed is None else pointed, points, design, cost)
    where = points if pointed is None else f"outline, or {points} of a box"
    rows = _open(out, _record(pool, measured, arms, cost) | {"points": where})
    there, photos = {_key(row): row for row in rows}, _CheckedPhotos()
    for done, purchase in enumerate(purchases, 1):
        fresh = purchase.key not in there
        if fresh:
            row = _row(purchase, pool, cost, _train(purchase, measured, photos, arms[purchase.kind], out, cpu))
            rows.append(row)
            write_text(out / RESULTS, "".join(json.dumps(row) + "\n" for row in rows))
        else:
            row = there[purchase.key]
        yield PilotRun(row, done, len(purchases), fresh)


def _purchases(
    pool: LabelTable, pointed: LabelTable, points: PointRule, design: Design, cost: CostModel
) -> list[_Purchase]:
    """Make each different purchase once; two budgets may both buy all labels."""
    found: dict[tuple[str, int, int], _Purchase] = {}
    for seed, budget, kind in product(range(design.seeds), design.budgets, design.kinds):
        table = simulate_budget(pointed if kind.pointed else pool, budget, kind, seed, cost, points=points)
        known = [int(table.matrix.counts(state).sum()) for state in (Label.POSITIVE, Label.NEGATIVE)]
        if not known[0]:
            raise ConfigError(
                f"a budget of {budget} for {kind.described()} buys {counted(known[1], 'label')} with seed {seed}, but "
                "none of them is positive, so nothing can be learned; use larger budgets, or more photos."
            )
        purchase = _Purchase(kind, budget, seed, table, sum(known))
        found.setdefault(purchase.key, purchase)
    return list(found.values())


def _train(
    purchase: _Purchase, measured: LabelTable, photos: _CheckedPhotos, config: Config, out: Path, cpu: bool
) -> dict[str, float]:
    """Train on a purchase in a temporary folder, and return the measures; photos are checked by decoding only once."""
    table, settings = purchase.table, config.objective.model_dump()
    if not settings.get("pseudo_weight"):  # without pseudo-labels, photos without a label are useless
        table = table.subset(purchase.asked)
    tables = Tables(photos.without_broken(table), photos.without_broken(measured))
    train = config.train.model_copy(update={"seed": purchase.seed, "select": "last"})
    data = config.data.model_copy(update={"decode": config.data.decode and not photos.all_good(tables)})
    with tempfile.TemporaryDirectory(prefix="run-", dir=out) as folder:
        run = Path(folder) / "run"
        plan = make_plan(config.model_copy(update={"train": train, "data": data}), tables=tables, cpu=cpu)
        photos.learn(tables, plan.tables)
        for _ in TrainRun(plan, run, cpu=cpu).start():
            pass
        return _measure(run, plan.tables.val, cpu)


def _measure(run: Path, measured: LabelTable, cpu: bool) -> dict[str, float]:
    """Return the mAP of a finished run, and mAP-loc if the model has maps and a class that can be ranked has boxes."""
    found = {"mAP": float(read_json(run / "evaluation" / "val.json")["mAP"])}
    net, info = load_predictor(run, torch_device(cpu))
    if info.head.has_maps and has_boxes(info, measured):
        logits = np.load(run / "evaluation" / "val.npy", allow_pickle=False)
        scored = ScoredTable(index=np.arange(len(measured)), logits=logits, labels=measured.matrix.dense())
        report = localise_table(net, info, measured, scored, cpu=cpu, options=WITHOUT_BOXES).report
        if not math.isnan(report.ranked.map_loc):
            found["mAP_loc"] = report.ranked.map_loc
    return found


def _row(purchase: _Purchase, pool: LabelTable, cost: CostModel, measures: Mapping[str, float]) -> dict[str, Any]:
    """Make a line of results.jsonl, see `fewtags.budget.results`."""
    matrix = purchase.table.matrix
    return {
        "type": purchase.kind.short,
        "budget": purchase.budget,
        "budget_seconds": budget_seconds(purchase.budget, len(pool) * len(pool.classes) * cost.tag),
        "labels": purchase.labels,
        "positives": int(matrix.counts(Label.POSITIVE).sum()),
        "photos_asked": int(purchase.asked.sum()),
        "photos": len(pool),
        "seed": purchase.seed,
        **measures,
    }


def _record(
    pool: LabelTable, measured: LabelTable, arms: Mapping[Annotation, Config], cost: CostModel
) -> dict[str, Any]:
    """Make the record of a pilot, which is the same for all its runs; settings are recorded by type."""
    dumped = {kind.short: arm.model_dump(mode="json", serialize_as_any=True) for kind, arm in arms.items()}
    sections = ("model", "augment", "objective", "train")
    return {
        "labels": {"bought from": pool.fingerprint, "measured on": measured.fingerprint},
        "settings": {name: {section: arm[section] for section in sections} for name, arm in dumped.items()},
        "cost": dict(vars(cost)),
    }


def _whole_lines(path: Path) -> list[str]:
    """Return the lines of a file; an incomplete last one, from a power cut, is removed, and its run is repeated."""
    if not path.exists():
        return []
    text = path.read_text("utf-8")
    if (whole := text[: text.rfind("\n") + 1]) != text:
        write_text(path, whole)
    return [line for line in whole.splitlines() if line.strip()]


def _open(out: Path, record: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return the rows of finished runs; a new folder gets its record."""
    path = out / RECORD
    if not path.exists():
        if out.exists() and (not out.is_dir() or any(out.iterdir())):
            raise ConfigError(f"{out} is not empty and not the folder of a pilot; choose another --out.")
        out.mkdir(parents=True, exist_ok=True)
        write_text(path, json.dumps(record, indent=1))
        return []
    try:
        before = json.loads(path.read_text("utf-8"))
        rows = [json.loads(line) for line in _whole_lines(out / RESULTS)]
        for row in rows:
            _key(row)
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise ConfigError(
            f"the pilot in {out} is damaged ({error}); remove the line from {RESULTS}, or choose another --out."
        ) from None
    if isinstance(before, dict):
        before.setdefault("points", "uniform")  # pilots of older versions
    plain = json.loads(json.dumps(record))
    added = _with_other_types(before, plain)
    if changed := next((n for n in plain if not isinstance(before, dict) or before.get(n) != plain[n]), None):
        raise ConfigError(
            f"{out} has a pilot with other {changed}; use the same (see {path}), or choose another --out."
        )
    if added:
        write_text(path, json.dumps(plain, indent=1))
    return rows


def _with_other_types(before: Any, record: dict[str, Any]) -> bool:
    """Give the settings of each type to both records if only one has the type; return whether types are added.

    Records of older versions have the same settings for all types.
    """
    settings = before.get("settings") if isinstance(before, dict) else None
    if not isinstance(settings, dict):
        return False
    if "objective" in settings:
        settings = dict.fromkeys((kind.short for kind in Annotation), settings)
    added = not record["settings"].keys() <= settings.keys()
    before["settings"] = {**record["settings"], **settings}
    record["settings"] = {**settings, **record["settings"]}
    return added


def _key(row: Mapping[str, Any]) -> tuple[str, int, int]:
    return row["type"], row["labels"], row["seed"]
