"""What a benchmark on cached views is: its file, its runs, and which of them are done."""

from __future__ import annotations

import argparse
import hashlib
import json
import sys
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, TypeVar, final

from pydantic import ValidationError

from fewtags.config.sections import Settings, StageConfig
from fewtags.engine.methods import method_class, settings_models
from fewtags.errors import ConfigError, DataError
from fewtags.text import suggest
from photo_sets import CACHE, DATA, REPOSITORY, Name


@final
class Method(Settings):
    """One line of the result table."""

    label: str
    objective: dict[str, Any]
    labels: Literal["single", "complete"] = "single"


class Setup(Settings):
    """What every benchmark file says: `stages[].trainable` is "head" or how many of the last blocks are trained."""

    name: str
    sets: tuple[Name, ...]
    seeds: int
    backbone: str
    weights: str
    size: int
    min_area: float
    batch_size: int
    views: int
    view_seed: int
    stages: tuple[StageConfig, ...]

    @property
    def trained_blocks(self) -> int:
        """How many of the last blocks some stage trains."""
        return max(stage.trainable if isinstance(stage.trainable, int) else 0 for stage in self.stages)

    @property
    def needs_second_view(self) -> bool:
        """Whether some method needs a second view."""
        return False


AnySetup = TypeVar("AnySetup", bound=Setup)


@final
class Benchmark(Setup):
    """A file of single-positive runs."""

    methods: dict[str, Method]

    def protocol(self, method: str) -> str:
        """A digest of everything that decides a run beside set, method name and seed."""
        shared = self.model_dump(mode="json", exclude={"sets", "seeds", "methods"})
        return digest([shared, self.methods[method].model_dump(mode="json", exclude={"label"})])


@final
@dataclass(frozen=True)
class Job:
    """One run."""

    set_name: Name
    method: str
    seed: int

    def __str__(self) -> str:
        return f"{self.set_name} {self.method} seed {self.seed}"


def read_benchmark(path: Path) -> Benchmark:
    """Read a benchmark file.

    Raises:
        ConfigError: it holds something else than `Benchmark`, or settings that a method does not know.
    """
    benchmark = read_setup(path, Benchmark)
    for method in benchmark.methods.values():
        check_objective(path, method.objective)
    return benchmark


def read_setup(path: Path, kind: type[AnySetup]) -> AnySetup:
    """Read a benchmark file of some kind; the settings of its methods are not looked at.

    Raises:
        ConfigError: it holds something else, or its stages train other blocks than the views are cached for.
    """
    try:
        benchmark = kind.model_validate(tomllib.loads(path.read_text("utf-8")))
    except (tomllib.TOMLDecodeError, ValidationError) as error:
        raise ConfigError(f"{path}: {error}") from None
    if any(stage.trainable not in ("head", benchmark.trained_blocks) for stage in benchmark.stages):
        raise ConfigError(f"{path}: stages train the head, or the same number of last blocks.")
    return benchmark


def check_objective(path: Path, objective: Mapping[str, Any]) -> None:
    """Raise ConfigError where a benchmark file holds a method, or a setting of one, that does not exist."""
    method_class(objective["name"])
    try:
        settings_models()[objective["name"]].model_validate(objective)
    except ValidationError as error:
        raise ConfigError(f"{path}: {error}") from None


def choose_jobs(benchmark: Benchmark, only: str | None, seeds: str | None) -> list[Job]:
    """The runs, seed by seed and methods side by side, so that CPU times are comparable.

    Args:
        benchmark: what there is.
        only: comma-separated SET, SET:METHOD or :METHOD; None for all.
        seeds: "0-9" or "0,3,5"; None for the benchmark's.

    Raises:
        ConfigError: a set, method or seed that is none.
    """
    wanted: set[tuple[str, str]] = set()
    for item in (only or "").split(",") if only else [":"]:
        set_name, _, method = item.partition(":")
        for name, known in ((set_name, benchmark.sets), (method, tuple(benchmark.methods))):
            if name and name not in known:
                raise ConfigError(f"--only {item}: {name!r} is not in {benchmark.name}{suggest(name, known)}.")
        sets = [set_name] if set_name else benchmark.sets
        wanted |= {(s, m) for s in sets for m in ([method] if method else benchmark.methods)}
    numbers = seed_numbers(seeds, benchmark.seeds)
    return [Job(s, m, seed) for seed in numbers for s in benchmark.sets for m in benchmark.methods if (s, m) in wanted]


def seed_numbers(seeds: str | None, default: int) -> list[int]:
    """The seeds that "0-9" or "0,3,5" stands for; None for the first `default` ones.

    Raises:
        ConfigError: other text.
    """
    try:
        return _numbers(seeds) if seeds else list(range(default))
    except ValueError:
        raise ConfigError(f"--seeds {seeds}: give numbers like 0-9 or 0,3,5.") from None


def read_done(path: Path, benchmark: Benchmark) -> set[Job]:
    """The runs in a result file; an unfinished last line is cut off.

    Raises:
        DataError: a line that is none of ours, or was made with other settings.
    """
    done = set()
    for number, record in enumerate(read_lines(path), 1):
        job = Job(record["set"], record["method"], record["seed"])
        if record["benchmark"] != benchmark.name or (
            job.method in benchmark.methods and record["protocol"] != benchmark.protocol(job.method)
        ):
            raise other_settings(path, number, job)
        done.add(job)
    return done


def script_arguments(
    description: str | None, choices: Sequence[str], sets: Sequence[str], *, out: bool = True
) -> argparse.ArgumentParser:
    """What a script without a benchmark file asks for on the command line; `out`: --out is required."""
    parser = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=out, help="JSON lines; what is in it is not done again")
    parser.add_argument("--sets", nargs="+", choices=choices, default=sets)
    parser.add_argument("--table", action="store_true", help="print what is there, and do nothing")
    parser.add_argument("--data", type=Path, default=REPOSITORY / DATA, help=f"folder of the photos (default {DATA})")
    parser.add_argument("--cache", type=Path, default=REPOSITORY / CACHE, help=f"for what is made (default {CACHE})")
    return parser


def append_line(path: Path, record: Mapping[str, Any]) -> None:
    """Add a line to a result file."""
    with path.open("a", encoding="utf-8") as file:
        file.write(json.dumps(record) + "\n")


def read_lines(path: Path) -> list[dict[str, Any]]:
    """The lines of a result file, none if there is no file; an unfinished last line is cut off."""
    if not path.exists():
        return []
    text = path.read_text("utf-8")
    if not text.endswith("\n") and text:
        print(f"{path}: the last line is unfinished and is done again", file=sys.stderr)
        text = text[: text.rfind("\n") + 1]
        temporary = path.with_name(f".{path.name}.tmp")
        temporary.write_text(text, encoding="utf-8")
        temporary.replace(path)
    return [json.loads(line) for line in text.splitlines()]


def other_settings(path: Path, number: int, job: object) -> DataError:
    """The refusal to add to a file that holds runs of another kind."""
    return DataError(f"{path} line {number} ({job}) was made with other settings; use another --out.")


def digest(content: Any) -> str:
    """Twelve hexadecimal digits that tell one JSON value from another."""
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()[:12]


def _numbers(text: str) -> list[int]:
    parts = [part.split("-") for part in text.split(",")]
    return [n for part in parts for n in range(int(part[0]), int(part[-1]) + 1)]
