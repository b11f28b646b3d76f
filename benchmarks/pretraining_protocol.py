"""What the benchmark of pretraining is: its file, its runs, and which of them are done."""

from __future__ import annotations

import tomllib
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, final

from pydantic import Field, ValidationError

from budget_protocol import fits, parts_of
from fewtags.config.pretrain import PretrainConfig
from fewtags.config.sections import Settings, StageConfig
from fewtags.engine.methods import read_pretrain_settings
from fewtags.errors import ConfigError
from photo_sets import Name
from protocol import check_objective, digest, other_settings, read_lines, seed_numbers

SET: Name = "voc"
ENCODER = "encoder"  # the part of a run that pretrains and probes; all other parts are tasks


@final
class Pretraining(Settings):
    """What all pretraining runs share: sections of a `fewtags pretrain` file."""

    augment: dict[str, Any]
    train: dict[str, Any]
    objective: dict[str, Any]


@final
class Finetuning(Settings):
    """How the whole net is trained on labels: Adam, cosine, crops of at least `min_area` from a cache of `views`."""

    epochs: int
    lr: float
    batch_size: int
    precision: Literal["no", "bf16"]
    min_area: float
    views: int

    @property
    def stages(self) -> tuple[StageConfig, ...]:
        """The one stage."""
        return (StageConfig(name="main", epochs=self.epochs, lr=self.lr, schedule="cosine"),)


@final
class UseTask(Settings):
    """What an encoder is used for.

    Attributes:
        label: in tables.
        photos: how many training photos have labels.
        labels: all of them; one positive each; or a point in one object of each class, all classes known.
        objective: that trains the whole net.
        output_stride: pixels per cell of the maps; None for the backbone's own.
    """

    label: str
    photos: int
    labels: Literal["complete", "single", "point"]
    objective: dict[str, Any]
    output_stride: Literal[8, 16, 32] | None = None


@final
class Variant(Settings):
    """A row of the tables: a pretraining method, or weights that are there.

    Attributes:
        label: in tables.
        objective: settings beside those that all share; None where nothing is pretrained.
        weights: where `objective` is None: "none" (random) or "offline" (ImageNet).
        backbone: None for the benchmark's.
        sweep: one seed, probes alone.
        tasks: whether it is used for the tasks.
    """

    label: str
    objective: dict[str, Any] | None = None
    weights: Literal["none", "offline"] = "none"
    backbone: str | None = None
    sweep: bool = False
    tasks: bool = True


@final
class PretrainBenchmark(Settings):
    """A benchmark file; its comments say what the numbers are."""

    name: str
    seeds: int = Field(ge=1)
    photo: int
    size: int
    views: int
    view_seed: int
    backbone: str
    labels: tuple[int, ...]
    costs: tuple[float, ...]
    lrs: tuple[float, ...]
    trial_epochs: int
    pretrain: Pretraining
    finetune: Finetuning
    tasks: dict[str, UseTask]
    methods: dict[str, Variant]

    def settings(self, method: str, seed: int) -> PretrainConfig:
        """What `fewtags pretrain` would be told."""
        own = self.methods[method].objective
        assert own is not None, method
        shared = self.pretrain
        tree = {
            "data": {"train": "-"},
            "model": {"backbone": self.backbone},
            "augment": {**shared.augment, "size": self.size},
            "objective": {**shared.objective, **own},
            "train": {**shared.train, "seed": seed},
        }
        return read_pretrain_settings(tree, self.name)

    def encoder_digest(self, method: str, seed: int) -> str:
        """Tells encoders apart that were made differently."""
        shared = self.model_dump(mode="json", include={"photo", "size", "views", "view_seed", "backbone"})
        return digest([shared, self.settings(method, seed).model_dump(mode="json", serialize_as_any=True)])

    def protocol(self, job: Job) -> str:
        """A digest of everything that decides a run beside its seed and names."""
        variant = self.methods[job.method]
        shared = self.model_dump(mode="json", include={"photo", "size", "views", "view_seed", "backbone"})
        own = variant.model_dump(mode="json", exclude={"label", "sweep", "tasks"})
        chosen = {"labels", "costs"} if job.part == ENCODER else {"finetune"}
        use = self.model_dump(mode="json", include=chosen)
        task = None if job.part == ENCODER else self.tasks[job.part].model_dump(mode="json", exclude={"label"})
        pretrain = self.pretrain.model_dump(mode="json") if variant.objective is not None else None
        return digest([shared, own, use, task, pretrain])


@final
@dataclass(frozen=True)
class Job:
    """One run: an encoder and its probes, or one task with it."""

    part: str
    method: str
    seed: int

    def __str__(self) -> str:
        return f"{self.part} {self.method} seed {self.seed}"


def read_benchmark(path: Path) -> PretrainBenchmark:
    """Read a benchmark file.

    Raises:
        ConfigError: it holds something else than `PretrainBenchmark`, or settings that a method does not know.
    """
    try:
        benchmark = PretrainBenchmark.model_validate(tomllib.loads(path.read_text("utf-8")))
    except (tomllib.TOMLDecodeError, ValidationError) as error:
        raise ConfigError(f"{path}: {error}") from None
    for name, variant in benchmark.methods.items():
        if variant.objective is not None:
            benchmark.settings(name, 0)
    for task in benchmark.tasks.values():
        check_objective(path, task.objective)
    return benchmark


def choose_jobs(benchmark: PretrainBenchmark, only: str | None, seeds: str | None) -> list[list[Job]]:
    """The runs in three groups, each of which needs the ones before: encoders, tasks, sweeps.

    Args:
        benchmark: what there is.
        only: comma-separated PART:METHOD; a part that is empty or missing stands for all. None for all.
        seeds: "0-9" or "0,3,5"; None for the benchmark's.

    Raises:
        ConfigError: a part, method or seed that is none.
    """
    axes = ((ENCODER, *benchmark.tasks), tuple(benchmark.methods))
    items = [parts_of(item, axes, benchmark.name, "PART:METHOD") for item in (only or "").split(",")]
    numbers, variants = seed_numbers(seeds, benchmark.seeds), benchmark.methods
    main = [name for name, variant in variants.items() if not variant.sweep]
    groups = [
        [Job(ENCODER, name, seed) for seed in numbers for name in main],
        [Job(t, name, s) for s in numbers for t in benchmark.tasks for name in main if variants[name].tasks],
        [Job(ENCODER, name, numbers[0]) for name, variant in variants.items() if variant.sweep],
    ]
    return [[job for job in group if any(fits((job.part, job.method), i) for i in items)] for group in groups]


def read_done(path: Path, benchmark: PretrainBenchmark) -> set[Job]:
    """The runs in a result file; an unfinished last line is cut off.

    Raises:
        DataError: a line that is none of ours, or was made with other settings.
    """
    done = set()
    for number, record in enumerate(read_lines(path), 1):
        job = Job(record["part"], record["method"], record["seed"])
        listed = job.method in benchmark.methods and job.part in (ENCODER, *benchmark.tasks)
        if record["benchmark"] != benchmark.name or (listed and record["protocol"] != benchmark.protocol(job)):
            raise other_settings(path, number, job)
        done.add(job)
    return done
