"""What a protocol is: the data sets, the rows and the grid of a paper's table, with the published numbers."""

from __future__ import annotations

import hashlib
import json
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from importlib.resources import files
from itertools import product
from math import isfinite
from pathlib import Path
from typing import Any, Literal, final

from pydantic import Field, ValidationError

from fewtags.bench.sections import Condition, DataSet, Figure, Pretraining, Purchase, Row, Task
from fewtags.budget.costs import Annotation
from fewtags.config.parse import apply_overrides, load_toml
from fewtags.config.sections import Settings
from fewtags.engine.methods import method_class, pretrain_settings_models, settings_models
from fewtags.errors import ConfigError
from fewtags.text import suggest

OWN_SETTINGS = ("train", "model", "augment")
"""Sections of a run's settings that `--set` names without a prefix."""


@final
class Protocol(Settings):
    """A protocol file.

    Attributes:
        name: of the protocol.
        title: above its tables.
        source: of the published numbers.
        seeds: number of seeds; a seed decides order, views and initial head, and what a budget buys.
        sets: data sets by name.
        tasks: in place of `sets`: what encoders are pretrained for, by name.
        pretraining: photos that the encoders are pretrained on.
        conditions: which labels are known, by name; none: those of the data set.
        purchase: conditions made by budgets, in place of `conditions`.
        measure: "mAP"; "real": top-1 and mAP on ImageNet ReaL; "located": mAP of images and of heatmaps; "statistics":
            counts of the labels, without training; "transfer": the measures of `tasks`.
        select: whether the best epoch on validation or the last one is reported; both are recorded, except for "real".
        shown: the measures in the table; None: those of `measure`. "val" is the mAP on validation.
        settings: of training, as in a run's TOML file, without data and objective.
        objective: settings that all rows share.
        details: what is also measured on the validation images: "labels": mAP of the images with each number of labels;
            "sizes": mAP of the objects of each size; "scores": the highest probabilities of each image.
        figures: by name.
        rows: by name.
        published: numbers by measure, row and column (`Protocol.column`); one number if there is one column only.
    """

    name: str
    title: str
    source: str
    seeds: int
    sets: dict[str, DataSet] = Field(default_factory=dict)
    tasks: dict[str, Task] = Field(default_factory=dict)
    pretraining: Pretraining | None = None
    conditions: dict[str, Condition] = Field(default_factory=dict)
    purchase: Purchase | None = None
    measure: Literal["mAP", "real", "located", "statistics", "transfer"] = "mAP"
    select: Literal["best", "last"] = "best"
    shown: tuple[str, ...] | None = None
    settings: dict[str, Any] = Field(default_factory=dict)
    objective: dict[str, Any] = Field(default_factory=dict)
    details: tuple[Literal["labels", "sizes", "scores"], ...] = ()
    figures: dict[str, Figure] = Field(default_factory=dict)
    rows: dict[str, Row] = Field(default_factory=dict)
    published: dict[str, dict[str, float | dict[str, float]]] = Field(default_factory=dict)

    @property
    def knowns(self) -> tuple[str, ...]:
        """The names of the conditions; "" for the only one of a protocol without conditions."""
        if self.purchase is not None:
            return tuple(f"{kind} {budget}" for budget, kind in product(self.purchase.budgets, self.purchase.types))
        return tuple(self.conditions) or ("",)

    @property
    def data(self) -> dict[str, DataSet | Task]:
        """All data sets and tasks by name."""
        return {**self.sets, **self.tasks}

    def column(self, set_name: str, known: str) -> str:
        """The name of a data set and a condition in `published`: without what the protocol has only one of."""
        return " ".join(part for part in (set_name if len(self.data) > 1 else "", known) if part)

    def columns(self) -> Iterator[tuple[str, str]]:
        """Yield every data set with every condition."""
        yield from product(self.data, self.knowns)

    def jobs(self) -> Iterator[Job]:
        """Yield every run of seed 0."""
        if self.measure == "statistics":
            yield from (Job(set_name, known, "", "", 0) for set_name, known in self.columns())
            return
        for (set_name, known), (name, row) in product(self.columns(), self.rows.items()):
            if row.runs and self._has(row, set_name, known):
                yield from (Job(set_name, known, name, trial, 0) for trial in trials(row.grid))

    def _has(self, row: Row, set_name: str, known: str) -> bool:
        names = {known, known.partition(" ")[0]} if self.purchase is not None else {known}
        return (row.sets is None or set_name in row.sets) and (row.known is None or not names.isdisjoint(row.known))

    def method(self, job: Job) -> dict[str, Any]:
        """The settings of a run's method, with `name`."""
        row = self.rows[job.row]
        assert row.objective is not None
        tagged = row.tags if self.purchase is not None and kind_of(job.known) is Annotation.TAGS else {}
        data = self.sets.get(job.set_name)
        own = {} if data is None else data.objective.get(job.row, {})
        varied = self.conditions[job.known].objective if job.known in self.conditions else {}
        made = {**self.objective, **row.objective, **own, **tagged, **varied, **trials(row.grid)[job.trial]}
        k = None if data is None else data.positives_per_image
        if k is not None and "positives_per_image" in settings_models()[made["name"]].model_fields:
            made.setdefault("positives_per_image", k)
        return made

    def training(self, job: Job) -> dict[str, Any]:
        """The settings of a run's training, by dotted key."""
        varied = self.conditions[job.known].settings if job.known in self.conditions else {}
        own = self.rows[job.row].settings if job.row in self.rows else {}
        return {**dict(dotted(self.settings)), **dict(dotted(varied)), **dict(dotted(own))}

    def digest(self, job: Job) -> str:
        """Twelve hexadecimal digits of everything that decides a run beside its seed."""
        if self.measure == "statistics":
            return digest([self.sets[job.set_name].model_dump(mode="json"), job.known])
        if self.tasks:
            task = self.tasks[job.set_name].model_dump(mode="json", exclude={"title", "get", "sizes"})
            return digest([self.encoder_digest(job), task])
        row, own = (
            self.rows[job.row],
            self.sets[job.set_name].model_dump(mode="json", exclude={"title", "get", "sizes", "objective"}),
        )
        condition = self.conditions[job.known].labels if job.known in self.conditions else job.known
        bought = None if self.purchase is None else self.purchase.model_dump(mode="json", exclude={"budgets", "types"})
        method = {} if row.untrained else self.method(job)
        shared = [self.measure, self.settings, bought]
        varied = self.conditions[job.known].settings if job.known in self.conditions else {}
        more = [*([varied] if varied else []), *([self.details] if self.details else [])]
        more += [row.settings] if row.settings else []
        return digest([shared, own, condition, method, row.labels, row.unlabelled, row.untrained, *more])

    def encoder_digest(self, job: Job) -> str:
        """Twelve hexadecimal digits of everything that decides an encoder beside its seed."""
        row = self.rows[job.row]
        photos = None if self.pretraining is None else self.pretraining.photos
        method = self.method(job) if row.weights is None else row.weights
        return digest([photos, self.training(job), method])

    def figure_rows(self, figure: Figure) -> tuple[str, ...]:
        """The rows of a figure, in order."""
        return figure.rows or tuple(name for name, row in self.rows.items() if row.runs)

    def figure_columns(self, figure: Figure) -> Iterator[tuple[str, str]]:
        """Yield every data set with every condition of a figure."""
        for set_name, known in self.columns():
            if figure.known is None or any(fnmatchcase(known, word) for word in figure.known):
                yield set_name, known

    def published_value(self, metric: str, row: str, column: str) -> float | None:
        """What the paper says of a row, in percent."""
        found = self.published.get(metric, {}).get(row)
        return found.get(column) if isinstance(found, dict) else found


@final
@dataclass(frozen=True)
class Job:
    """One run: a data set, which labels are known, a row, a combination of its grid, and a seed."""

    set_name: str
    known: str
    row: str
    trial: str
    seed: int

    def __str__(self) -> str:
        parts = (self.set_name, self.known, self.row, self.trial)
        return f"{' '.join(part for part in parts if part)} seed {self.seed}"

    @property
    def folder(self) -> str:
        """The name of its run folder."""
        return "".join(c if c.isalnum() or c in "-_.=" else "-" for c in str(self).replace("%", "").replace(" ", "-"))


def trials(grid: Mapping[str, Sequence[Any]]) -> dict[str, dict[str, Any]]:
    """The combinations of a grid by name; one without a name if the grid is empty.

    >>> trials({"smoothing": (0.1, 0.2)})
    {'smoothing=0.1': {'smoothing': 0.1}, 'smoothing=0.2': {'smoothing': 0.2}}
    """
    combinations = [dict(zip(grid, values, strict=True)) for values in product(*grid.values())]
    return {" ".join(f"{key}={value}" for key, value in one.items()): one for one in combinations}


def dotted(tree: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """The values of nested sections by dotted key.

    >>> dict(dotted({"train": {"epochs": 2}}))
    {'train.epochs': 2}
    """
    for key, value in tree.items():
        if isinstance(value, Mapping):
            yield from dotted(value, f"{prefix}{key}.")
        else:
            yield prefix + key, value


def kind_of(known: str) -> Annotation:
    """The type of annotation of a condition that a budget makes."""
    return Annotation.of(known.partition(" ")[0])


def budget_of(known: str) -> str:
    """The budget of such a condition."""
    return known.partition(" ")[2]


def digest(content: Any) -> str:
    """Twelve hexadecimal digits that tell one JSON value from another."""
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()[:12]


def shipped() -> dict[str, str]:
    """The protocols that are part of fewtags: the title of each, by name."""
    found = (file for file in files("fewtags.bench").joinpath("protocols").iterdir() if file.name.endswith(".toml"))
    trees = (tomllib.loads(file.read_text("utf-8")) for file in found)
    return dict(sorted((tree["name"], tree["title"]) for tree in trees))


def read_protocol(given: str, assignments: list[str]) -> Protocol:
    """Read a protocol.

    Args:
        given: the name of a shipped protocol, or the path of a TOML file.
        assignments: key=value, dotted, which replace what the file says; `train.`, `model.` and `augment.` are settings
            of all runs, and replace those of rows, too.

    Raises:
        ConfigError: the protocol is not known, has unknown keys, or settings that a method does not know.
    """
    if not given.endswith(".toml"):
        if given not in shipped():
            raise ConfigError(
                f"{given!r} is not a protocol{suggest(given, shipped())}; `fewtags bench --list` shows them all. "
                "The file of your own protocol ends in .toml."
            )
        where, tree = (
            given,
            tomllib.loads(files("fewtags.bench").joinpath("protocols", f"{given}.toml").read_text("utf-8")),
        )
    else:
        where, tree = given, load_toml(Path(given))
    own = [f"settings.{text}" if text.partition(".")[0].strip() in OWN_SETTINGS else text for text in assignments]
    try:
        protocol = Protocol.model_validate(_for_all_rows(apply_overrides(tree, own), own))
    except ValidationError as error:
        first = error.errors()[0]
        key = ".".join(map(str, first["loc"]))
        raise ConfigError(f"{where}: {key or 'the file'}: {first['msg']} (got {first['input']!r}).") from None
    _check(protocol, where)
    return protocol


def _for_all_rows(tree: dict[str, Any], assignments: Sequence[str]) -> dict[str, Any]:
    """Return the tree of a protocol; settings of all runs that the user gives are left out of the settings of rows."""
    given = {text.partition("=")[0].strip().removeprefix("settings.") for text in assignments}
    rows = {name: dict(row) for name, row in tree.get("rows", {}).items()}
    for row in rows.values():
        for section, values in row.get("settings", {}).items():
            kept = {key: value for key, value in values.items() if f"{section}.{key}" not in given}
            row["settings"] = {**row["settings"], section: kept}
    return {**tree, "rows": rows}


def _check(protocol: Protocol, where: str) -> None:
    sections = {"[settings]": protocol.settings}
    sections |= {f"conditions.{name}.settings": own.settings for name, own in protocol.conditions.items()}
    sections |= {f"rows.{name}.settings": own.settings for name, own in protocol.rows.items()}
    for place, settings in sections.items():
        if section := next((key for key in settings if key not in OWN_SETTINGS), None):
            raise ConfigError(
                f"{where}: {place} has {section!r}, but only {', '.join(OWN_SETTINGS)} are settings of all runs; the "
                "data sets and the rows decide the others."
            )
    for name, figure in protocol.figures.items():
        asked = [*(figure.rows or ()), *([figure.relative_to] if figure.relative_to else [])]
        if unknown := [word for word in asked if word not in protocol.rows]:
            raise ConfigError(
                f"{where}: figures.{name} has the row {unknown[0]!r}{suggest(unknown[0], protocol.rows)}."
            )
        if figure.scale != "even" and (other := [word for word in places_of(protocol, figure) if not _is_number(word)]):
            raise ConfigError(
                f'{where}: figures.{name}.scale = "{figure.scale}" needs conditions whose names end in a number, but '
                f"one ends in {other[0]!r}."
            )
    for set_name, data in protocol.sets.items():
        if (data.draw == "purchase") != (protocol.purchase is not None):
            raise ConfigError(f'{where}: sets.{set_name}.draw = "purchase" and the section [purchase] need each other.')
        if data.draw != "cole" and not data.val_images and protocol.measure != "statistics":
            raise ConfigError(f"{where}: sets.{set_name} needs val_images, the number of test images that validate.")
    for name, row in protocol.rows.items():
        kinds = () if protocol.purchase is None else protocol.purchase.types
        for key, given, there in (
            ("sets", row.sets, [*protocol.data]),
            ("known", row.known, [*protocol.knowns, *kinds]),
        ):
            if unknown := [word for word in given or () if word not in there]:
                raise ConfigError(f"{where}: rows.{name}.{key} has {unknown[0]!r}{suggest(unknown[0], there)}.")
    if protocol.purchase is not None:
        for word in protocol.purchase.types:
            Annotation.of(word)
    _check_transfer(protocol, where)
    for job in protocol.jobs():
        if protocol.measure != "statistics" and protocol.rows[job.row].objective is not None:
            check_method(f"{where}: rows.{job.row}", protocol.method(job), pretraining=bool(protocol.tasks))


def _check_transfer(protocol: Protocol, where: str) -> None:
    if (protocol.measure == "transfer") != bool(protocol.tasks):
        raise ConfigError(f'{where}: measure = "transfer" and [tasks] need each other.')
    if bool(protocol.tasks) == bool(protocol.sets):
        raise ConfigError(f"{where}: give either [sets] or [tasks].")
    for name, row in protocol.rows.items():
        if row.weights is not None and not protocol.tasks:
            raise ConfigError(f"{where}: rows.{name}.weights is for protocols with [tasks].")
        if row.weights is not None and row.objective is not None:
            raise ConfigError(f"{where}: rows.{name} has either objective or weights, not both.")
        if row.objective is not None and protocol.tasks and protocol.pretraining is None:
            raise ConfigError(f"{where}: rows.{name} pretrains, so the section [pretraining] is needed.")


def places_of(protocol: Protocol, figure: Figure) -> list[str]:
    """The last word of each condition of a figure: its place on the axis."""
    return list(dict.fromkeys(known.rpartition(" ")[2] for _, known in protocol.figure_columns(figure)))


def _is_number(word: str) -> bool:
    try:
        return isfinite(float(word.removesuffix("%")))
    except ValueError:
        return False


def check_method(where: str, settings: Mapping[str, Any], *, pretraining: bool = False) -> None:
    """Raise ConfigError if a method (of training, or of pretraining), or a setting of it, does not exist."""
    if "name" not in settings:
        raise ConfigError(f"{where}: the objective needs a name; `fewtags methods` lists them.")
    models = pretrain_settings_models() if pretraining else settings_models()
    if settings["name"] not in models:
        method_class(settings["name"])  # raises an error for an unknown name
        raise ConfigError(f"{where}: {settings['name']} does not pretrain; there are: {', '.join(models)}.")
    try:
        models[settings["name"]].model_validate(settings)
    except ValidationError as error:
        first = error.errors()[0]
        raise ConfigError(f"{where}: {'.'.join(map(str, first['loc']))}: {first['msg']}.") from None
