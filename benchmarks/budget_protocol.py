"""What a benchmark of annotation budgets is: its file, its runs, and which of them are done."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, final

from pydantic import Field

from fewtags.budget.costs import Annotation
from fewtags.budget.purchase import Mode, PointRule
from fewtags.config.sections import Settings
from fewtags.engine.methods import method_class
from fewtags.errors import ConfigError
from fewtags.nets.pool import Pool, PoolName
from fewtags.nets.spatial import HeadPlan
from fewtags.text import suggest
from photo_sets import Name
from protocol import Setup, check_objective, digest, other_settings, read_lines, read_setup, seed_numbers

POINTS = (Annotation.ONE_POINT, Annotation.ALL_POINTS)
"""Types whose runs depend on where points are drawn."""


@final
class BudgetMethod(Settings):
    """How unknown cells and images without labels are used.

    Attributes:
        label: in tables.
        objective: settings beside those that all methods share.
        tags: what replaces some of them where only tags are bought, which have no patches.
        pool: from maps to image logits; None for the benchmark's.
    """

    label: str
    objective: dict[str, Any]
    tags: dict[str, Any] = Field(default_factory=dict)
    pool: PoolName | None = None


@final
class Budgets(Setup):
    """A benchmark file: every method on every type of annotation that every budget buys.

    Attributes:
        budgets: see `budget_seconds`; a share is one of tagging every class in every training image.
        types: see `Annotation.of`.
        mode: see `simulate_budget`.
        points: likewise.
        pool: from maps to image logits.
        objective: settings that all methods share.
        methods: by name.
    """

    budgets: tuple[str, ...]
    types: tuple[str, ...]
    mode: Mode
    points: PointRule
    pool: PoolName
    objective: dict[str, Any]
    methods: dict[str, BudgetMethod]

    def settings(self, method: str, annotation: str) -> dict[str, Any]:
        """The objective's settings of a method on a type of annotation."""
        own = self.methods[method]
        tagged = own.tags if Annotation.of(annotation) is Annotation.TAGS else {}
        return {**self.objective, **own.objective, **tagged}

    @property
    def needs_second_view(self) -> bool:
        """Whether some method needs a second view."""
        names = {self.settings(method, kind)["name"] for method in self.methods for kind in self.types}
        return any(method_class(name).needs_second_view for name in names)

    def head(self, method: str) -> HeadPlan:
        """The head that a method trains."""
        return HeadPlan(pool=Pool(self.methods[method].pool or self.pool))

    def protocol(self, job: BudgetJob) -> str:
        """A digest of everything that decides a run beside set and seed, and beside the names of its method."""
        lists = {"sets", "seeds", "budgets", "types", "pool", "objective", "methods"}
        if Annotation.of(job.annotation) not in POINTS:
            lists.add("points")
        shared, head = self.model_dump(mode="json", exclude=lists), asdict(self.head(job.method))
        return digest([shared, head, job.budget, job.annotation, self.settings(job.method, job.annotation)])

    def lists(self, job: BudgetJob) -> bool:
        """Whether the file has such a run, whatever its set and seed."""
        return job.budget in self.budgets and job.annotation in self.types and job.method in self.methods


@final
@dataclass(frozen=True)
class BudgetJob:
    """One run."""

    set_name: Name
    budget: str
    annotation: str
    method: str
    seed: int

    def __str__(self) -> str:
        return f"{self.set_name} {self.budget} {self.annotation} {self.method} seed {self.seed}"


def read_budgets(path: Path) -> Budgets:
    """Read a benchmark file.

    Raises:
        ConfigError: it holds something else than `Budgets`, a type that is none, or settings that a method does not
            know.
    """
    benchmark = read_setup(path, Budgets)
    for annotation in benchmark.types:
        for method in benchmark.methods:
            check_objective(path, benchmark.settings(method, annotation))
    return benchmark


def choose_jobs(benchmark: Budgets, only: str | None, seeds: str | None) -> list[BudgetJob]:
    """The runs, seed by seed and methods side by side, so that CPU times are comparable.

    Args:
        benchmark: what there is.
        only: comma-separated SET:BUDGET:TYPE:METHOD; a part that is empty or missing stands for all. None for all.
        seeds: "0-9" or "0,3,5"; None for the benchmark's.

    Raises:
        ConfigError: a set, budget, type, method or seed that is none.
    """
    axes = (benchmark.sets, benchmark.budgets, benchmark.types, tuple(benchmark.methods))
    items = [parts_of(item, axes, benchmark.name, "SET:BUDGET:TYPE:METHOD") for item in (only or "").split(",")]
    return [
        BudgetJob(set_name, budget, annotation, method, seed)
        for seed in seed_numbers(seeds, benchmark.seeds)
        for set_name in benchmark.sets
        for budget in benchmark.budgets
        for annotation in benchmark.types
        for method in benchmark.methods
        if any(fits((set_name, budget, annotation, method), item) for item in items)
    ]


def parts_of(item: str, axes: tuple[tuple[str, ...], ...], name: str, form: str) -> list[str]:
    """The parts of one item of `--only`.

    Args:
        item: values with colons between them.
        axes: what each part may be.
        name: of the benchmark.
        form: what an item looks like.

    Raises:
        ConfigError: too many parts, or one that is none of its axis.
    """
    parts = item.split(":")
    if len(parts) > len(axes):
        raise ConfigError(f"--only {item}: write {form}; parts may be empty, or left out at the end.")
    for part, known in zip(parts, axes, strict=False):
        if part and part not in known:
            raise ConfigError(f"--only {item}: {part!r} is not in {name}{suggest(part, known)}.")
    return parts


def fits(run: tuple[str, ...], item: list[str]) -> bool:
    """Whether a run is one of those that an item stands for."""
    return all(not part or part == value for part, value in zip(item, run, strict=False))


def read_done(path: Path, benchmark: Budgets) -> set[BudgetJob]:
    """The runs in a result file; an unfinished last line is cut off.

    Raises:
        DataError: a line that is none of ours, or was made with other settings.
    """
    done = set()
    for number, record in enumerate(read_lines(path), 1):
        job = BudgetJob(*(record[key] for key in ("set", "budget", "annotation", "method", "seed")))
        same = not benchmark.lists(job) or record["protocol"] == benchmark.protocol(job)
        if record["benchmark"] != benchmark.name or not same:
            raise other_settings(path, number, job)
        done.add(job)
    return done
