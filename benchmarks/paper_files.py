"""What a paper's protocol is: its file, its runs, and which of them are done."""

from __future__ import annotations

import tomllib
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import Any, Literal, final

from pydantic import Field, ValidationError

from budget_protocol import fits, parts_of
from fewtags.budget.costs import Annotation
from fewtags.budget.purchase import Mode
from fewtags.config.parse import apply_overrides
from fewtags.config.sections import Settings
from fewtags.errors import ConfigError
from protocol import check_objective, digest, other_settings, read_lines, seed_numbers

FORM = "BUDGET:TYPE:METHOD"


@final
class Part(Settings):
    """Labels and photos of a part, in the folder of the data.

    Attributes:
        labels: a COCO JSON.
        images: the folder that its names are relative to.
    """

    labels: str
    images: str


@final
class PaperMethod(Settings):
    """One column of the paper's tables.

    Attributes:
        label: in tables.
        objective: settings beside those that all methods share.
        tags: what replaces some of them where only tags are bought.
        types: of annotation that it is run on; None for all.
        unlabelled: whether photos without any label are trained on, too.
    """

    label: str
    objective: dict[str, Any] = Field(default_factory=dict)
    tags: dict[str, Any] = Field(default_factory=dict)
    types: tuple[str, ...] | None = None
    unlabelled: bool = False


@final
class PaperProtocol(Settings):
    """A protocol file: budgets, types and methods of a paper on a data set in its published layout.

    Attributes:
        name: of the benchmark and of its set.
        seeds: snapshots of what is bought; also of order and initial head.
        budgets: see `budget_seconds`; a share is one of tagging every class in every training image.
        types: see `Annotation.of`.
        mode: see `simulate_budget`.
        cost: see `find_cost`; None: averages of the training images.
        points: "mask": drawn in each object's mask; "uniform", "centre": in its box, see `simulate_budget`.
        train: what is bought from.
        test: what is measured on.
        val_images: so many images of the test part choose the "best" epoch, and are not measured on.
        located_images: heatmaps are measured on so many test images; 0: not at all.
        masks: whether the test part has masks to measure them with; else boxes are.
        objective: settings that all methods share.
        run: settings of training, as in a run's TOML file, without data and objective.
        methods: by name.
        paper: mAP-cl in the paper, in percent, by method, type and budget.
        paper_located: mAP-loc, likewise.
    """

    name: str
    seeds: int
    budgets: tuple[str, ...]
    types: tuple[str, ...]
    mode: Mode
    cost: str | None = None
    points: Literal["mask", "uniform", "centre"]
    train: Part
    test: Part
    val_images: int
    located_images: int
    masks: bool
    objective: dict[str, Any]
    run: dict[str, Any]
    methods: dict[str, PaperMethod]
    paper: dict[str, dict[str, dict[str, float]]] = Field(default_factory=dict)
    paper_located: dict[str, dict[str, dict[str, float]]] = Field(default_factory=dict)

    def settings(self, method: str, annotation: str) -> dict[str, Any]:
        """The objective's settings of a method on a type of annotation."""
        own = self.methods[method]
        tagged = own.tags if Annotation.of(annotation) is Annotation.TAGS else {}
        return {**self.objective, **own.objective, **tagged}

    def protocol(self, job: PaperJob) -> str:
        """A digest of everything that decides a run beside its seed and the name of its method."""
        lists = {"seeds", "budgets", "types", "objective", "methods", "paper", "paper_located", "train", "test"}
        shared, own = self.model_dump(mode="json", exclude=lists), self.methods[job.method]
        return digest([shared, job.budget, job.annotation, self.settings(job.method, job.annotation), own.unlabelled])

    def published(self, job: PaperJob) -> dict[str, float | None]:
        """What the paper says of a run, in percent."""
        found = {"mAP-cl": self.paper, "mAP-loc": self.paper_located}
        return {
            name: table.get(job.method, {}).get(job.annotation, {}).get(job.budget) for name, table in found.items()
        }

    def jobs(self) -> Iterator[tuple[str, str, str]]:
        """Budget, type and method of every run of one seed."""
        for budget, annotation, method in product(self.budgets, self.types, self.methods):
            own = self.methods[method].types
            if own is None or annotation in own:
                yield budget, annotation, method


@final
@dataclass(frozen=True)
class PaperJob:
    """One run."""

    budget: str
    annotation: str
    method: str
    seed: int

    def __str__(self) -> str:
        return f"{self.budget} {self.annotation} {self.method} seed {self.seed}"

    @property
    def folder(self) -> str:
        """What its run folder is called."""
        return str(self).replace("%", "").replace(" ", "-")


def read_paper(path: Path, assignments: list[str]) -> PaperProtocol:
    """Read a protocol file.

    Args:
        path: TOML.
        assignments: key=value, dotted, which replace what the file says.

    Raises:
        ConfigError: it holds something else than `PaperProtocol`, a type that is none, or settings that a method does
            not know.
    """
    try:
        tree = apply_overrides(tomllib.loads(path.read_text("utf-8")), assignments)
        protocol = PaperProtocol.model_validate(tree)
    except (tomllib.TOMLDecodeError, ValidationError) as error:
        raise ConfigError(f"{path}: {error}") from None
    for section in ("data", "objective"):
        if section in protocol.run:
            raise ConfigError(f"{path}: [run] holds {section!r}, which the protocol itself decides; take it out.")
    for _, annotation, method in protocol.jobs():
        check_objective(path, protocol.settings(method, annotation))
    return protocol


def choose_runs(protocol: PaperProtocol, only: str | None, seeds: str | None) -> list[PaperJob]:
    """The runs, seed by seed.

    Args:
        protocol: what there is.
        only: comma-separated BUDGET:TYPE:METHOD; a part that is empty or missing stands for all. None for all.
        seeds: "0-9" or "0,3,5"; None for the protocol's.

    Raises:
        ConfigError: a budget, type, method or seed that is none.
    """
    axes = (protocol.budgets, protocol.types, tuple(protocol.methods))
    items = [parts_of(item, axes, protocol.name, FORM) for item in (only or "").split(",")]
    runs = [run for run in protocol.jobs() if any(fits(run, item) for item in items)]
    return [PaperJob(*run, seed) for seed in seed_numbers(seeds, protocol.seeds) for run in runs]


def read_finished(path: Path, protocol: PaperProtocol) -> set[PaperJob]:
    """The runs in a result file; an unfinished last line is cut off.

    Raises:
        DataError: a line that is none of ours, or was made with other settings.
    """
    done = set()
    for number, record in enumerate(read_lines(path), 1):
        job = PaperJob(*(record[key] for key in ("budget", "annotation", "method", "seed")))
        listed = (job.budget, job.annotation, job.method) in set(protocol.jobs())
        if record["benchmark"] != protocol.name or (listed and record["protocol"] != protocol.protocol(job)):
            raise other_settings(path, number, job)
        done.add(job)
    return done
