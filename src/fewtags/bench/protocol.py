"""What a protocol is: the data sets, the rows and the grid of a paper's table, with the published numbers."""

from __future__ import annotations

import hashlib
import json
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from importlib.resources import files
from itertools import product
from pathlib import Path
from typing import Any, Literal, final

from pydantic import Field, ValidationError

from fewtags.budget.costs import Annotation
from fewtags.budget.purchase import Mode
from fewtags.config.parse import apply_overrides, load_toml
from fewtags.config.sections import Settings
from fewtags.engine.methods import method_class, settings_models
from fewtags.errors import ConfigError
from fewtags.text import suggest

OWN_SETTINGS = ("train", "model", "augment")
"""Sections of a run's settings that `--set` names without a prefix."""


@final
class Part(Settings):
    """Labels and photos of one part of a data set; paths are relative to the folder of the data.

    Attributes:
        labels: a file or folder.
        images: the folder that image names are relative to; None: found as by `fewtags.read`.
        format: the name of the format; None: detected.
        split: the split of the labels that is meant; None: all of them.
        options: values of `ReadOptions`.
    """

    labels: str
    images: str | None = None
    format: str | None = None
    split: str | None = None
    options: dict[str, Any] = Field(default_factory=dict)


@final
class DataSet(Settings):
    """A data set in its published layout.

    Attributes:
        title: in tables.
        get: where to get the files.
        train: what is learned from; a condition may replace its labels.
        test: what is measured on.
        single: the folder of each test image names its single label, for the top-1 accuracy of ImageNet.
        draw: "cole": one positive of each training image, and a fifth of the images for validation (`cole_benchmark`);
            "none": the labels as they are; "purchase": what a budget buys.
        val_images: number of test images that validate, and are not measured on; 0: the fifth of "cole".
        monitor: the validation images are also measured on, because nothing is chosen with them.
        positives_per_image: K of the methods that have it; None: derived.
        objective: settings of rows that differ between data sets, by row.
        classes: COCO file whose categories give the order and the names of numbered classes; None without numbers.
        sizes: published numbers of images of train, val and test; others are reported.
    """

    title: str
    get: str
    train: Part
    test: Part
    single: bool = False
    draw: Literal["cole", "none", "purchase"] = "none"
    val_images: int = 0
    monitor: bool = False
    positives_per_image: float | None = None
    objective: dict[str, dict[str, Any]] = Field(default_factory=dict)
    classes: str | None = None
    sizes: dict[str, int] = Field(default_factory=dict)


@final
class Condition(Settings):
    """Which labels are known: `labels` replaces those of `train`."""

    title: str
    labels: str | None = None


@final
class Purchase(Settings):
    """What budgets buy: a condition for each type of annotation and each budget.

    Attributes:
        budgets: see `budget_seconds`; a share is one of tagging every class in every training image.
        types: see `Annotation.of`.
        mode: see `simulate_budget`.
        cost: see `find_cost`; None: averages of the training images.
        points: "mask": drawn in each object's mask; "uniform", "centre": in its box, see `simulate_budget`.
        located_images: heatmaps are measured on so many test images; 0: not at all.
        masks: whether the test images have masks to measure them with; else boxes are.
    """

    budgets: tuple[str, ...]
    types: tuple[str, ...]
    mode: Mode
    cost: str | None = None
    points: Literal["mask", "uniform", "centre"]
    located_images: int
    masks: bool


@final
class Row(Settings):
    """A row of the table: a method, trained once for each combination of its `grid`.

    Attributes:
        label: in tables.
        objective: settings of the method beside the protocol's; None: only the published numbers are shown.
        grid: values of settings of the method that are searched; validation chooses, for each seed.
        labels: what is learned from.
        sets: data sets of the row; None: all.
        known: conditions of the row, or types of annotation (`Purchase`); None: all.
        tags: what replaces settings where only tags are bought.
        unlabelled: images without any label are trained on, too.
        untrained: the net as it is published, with its own classifier; nothing is trained.
        source: of the published numbers, if it is not the protocol's.
    """

    label: str
    objective: dict[str, Any] | None = None
    grid: dict[str, tuple[Any, ...]] = Field(default_factory=dict)
    labels: Literal["observed", "complete"] = "observed"
    sets: tuple[str, ...] | None = None
    known: tuple[str, ...] | None = None
    tags: dict[str, Any] = Field(default_factory=dict)
    unlabelled: bool = False
    untrained: bool = False
    source: str | None = None

    @property
    def runs(self) -> bool:
        """Whether the row is more than published numbers."""
        return self.objective is not None or self.untrained


@final
class Protocol(Settings):
    """A protocol file.

    Attributes:
        name: of the protocol.
        title: above its tables.
        source: of the published numbers.
        seeds: number of seeds; a seed decides order, views and initial head, and what a budget buys.
        sets: data sets by name.
        conditions: which labels are known, by name; none: those of the data set.
        purchase: conditions made by budgets, in place of `conditions`.
        measure: "mAP"; "real": top-1 and mAP on ImageNet ReaL; "located": mAP of images and of heatmaps; "statistics":
            counts of the labels, without training.
        select: whether the best epoch on validation or the last one is reported; both are recorded, except for "real".
        shown: the measures in the table; None: those of `measure`. "val" is the mAP on validation.
        settings: of training, as in a run's TOML file, without data and objective.
        objective: settings that all rows share.
        rows: by name.
        published: numbers by measure, row and column (`Protocol.column`); one number if there is one column only.
    """

    name: str
    title: str
    source: str
    seeds: int
    sets: dict[str, DataSet]
    conditions: dict[str, Condition] = Field(default_factory=dict)
    purchase: Purchase | None = None
    measure: Literal["mAP", "real", "located", "statistics"] = "mAP"
    select: Literal["best", "last"] = "best"
    shown: tuple[str, ...] | None = None
    settings: dict[str, Any] = Field(default_factory=dict)
    objective: dict[str, Any] = Field(default_factory=dict)
    rows: dict[str, Row] = Field(default_factory=dict)
    published: dict[str, dict[str, float | dict[str, float]]] = Field(default_factory=dict)

    @property
    def knowns(self) -> tuple[str, ...]:
        """The names of the conditions; "" for the only one of a protocol without conditions."""
        if self.purchase is not None:
            return tuple(f"{kind} {budget}" for budget, kind in product(self.purchase.budgets, self.purchase.types))
        return tuple(self.conditions) or ("",)

    def column(self, set_name: str, known: str) -> str:
        """The name of a data set and a condition in `published`: without what the protocol has only one of."""
        return " ".join(part for part in (set_name if len(self.sets) > 1 else "", known) if part)

    def columns(self) -> Iterator[tuple[str, str]]:
        """Yield every data set with every condition."""
        yield from product(self.sets, self.knowns)

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
        own = self.sets[job.set_name].objective.get(job.row, {})
        made = {**self.objective, **row.objective, **own, **tagged, **trials(row.grid)[job.trial]}
        k = self.sets[job.set_name].positives_per_image
        if k is not None and "positives_per_image" in settings_models()[made["name"]].model_fields:
            made.setdefault("positives_per_image", k)
        return made

    def digest(self, job: Job) -> str:
        """Twelve hexadecimal digits of everything that decides a run beside its seed."""
        if self.measure == "statistics":
            return digest([self.sets[job.set_name].model_dump(mode="json"), job.known])
        row, own = (
            self.rows[job.row],
            self.sets[job.set_name].model_dump(mode="json", exclude={"title", "get", "sizes", "objective"}),
        )
        condition = self.conditions[job.known].labels if job.known in self.conditions else job.known
        bought = None if self.purchase is None else self.purchase.model_dump(mode="json", exclude={"budgets", "types"})
        method = {} if row.untrained else self.method(job)
        shared = [self.measure, self.settings, bought]
        return digest([shared, own, condition, method, row.labels, row.unlabelled, row.untrained])

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
            of all runs.

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
        protocol = Protocol.model_validate(apply_overrides(tree, own))
    except ValidationError as error:
        first = error.errors()[0]
        key = ".".join(map(str, first["loc"]))
        raise ConfigError(f"{where}: {key or 'the file'}: {first['msg']} (got {first['input']!r}).") from None
    _check(protocol, where)
    return protocol


def _check(protocol: Protocol, where: str) -> None:
    if section := next((key for key in protocol.settings if key not in OWN_SETTINGS), None):
        raise ConfigError(
            f"{where}: [settings] has {section!r}, but only {', '.join(OWN_SETTINGS)} are settings of all runs; the "
            "data sets and the rows decide the others."
        )
    for set_name, data in protocol.sets.items():
        if (data.draw == "purchase") != (protocol.purchase is not None):
            raise ConfigError(f'{where}: sets.{set_name}.draw = "purchase" and the section [purchase] need each other.')
        if data.draw != "cole" and not data.val_images and protocol.measure != "statistics":
            raise ConfigError(f"{where}: sets.{set_name} needs val_images, the number of test images that validate.")
    for name, row in protocol.rows.items():
        kinds = () if protocol.purchase is None else protocol.purchase.types
        for key, given, there in (
            ("sets", row.sets, [*protocol.sets]),
            ("known", row.known, [*protocol.knowns, *kinds]),
        ):
            if unknown := [word for word in given or () if word not in there]:
                raise ConfigError(f"{where}: rows.{name}.{key} has {unknown[0]!r}{suggest(unknown[0], there)}.")
    if protocol.purchase is not None:
        for word in protocol.purchase.types:
            Annotation.of(word)
    for job in protocol.jobs():
        if protocol.measure != "statistics" and not protocol.rows[job.row].untrained:
            check_method(f"{where}: rows.{job.row}", protocol.method(job))


def check_method(where: str, settings: Mapping[str, Any]) -> None:
    """Raise ConfigError if a method, or a setting of it, does not exist."""
    if "name" not in settings:
        raise ConfigError(f"{where}: the objective needs a name; `fewtags methods` lists them.")
    method_class(settings["name"])
    try:
        settings_models()[settings["name"]].model_validate(settings)
    except ValidationError as error:
        first = error.errors()[0]
        raise ConfigError(f"{where}: {'.'.join(map(str, first['loc']))}: {first['msg']}.") from None
