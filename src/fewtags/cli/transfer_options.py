"""Shared code of the `fewtags transfer` commands: option groups, reading the task, printing the result."""

from __future__ import annotations

import json
import math
import os
from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, cast, final

import typer

from fewtags.cli.options import Complete, Cpu, Images, Json, ReadingSettings, TestImages, ValImages, check_choice
from fewtags.cli.progress import echo, is_main_process, say
from fewtags.cli.reading import reading_flags, reading_lines
from fewtags.cli.train import read_settings, refuse_missing_inputs
from fewtags.errors import ConfigError
from fewtags.text import some

if TYPE_CHECKING:
    from fewtags.engine.encoder_file import EncoderInfo
    from fewtags.nets.encoder import Encoder
    from fewtags.transfer.task import Task, TaskKind
    from fewtags.transfer.training import TrainSettings
    from fewtags.transfer.trials import ProbeResults, Trials

POLICIES = ("imagenet", "coco", "none")
SCHEDULES = ("steps", "cosine", "constant")
PRECISIONS = ("no", "bf16", "fp16")
VOC_SIZE = 448
"""Default side of the images for fine-tuning on VOC2007."""
KINDS = {"single": "one class per photo", "multi": "any number of classes per photo"}

Backbone = Annotated[str | None, typer.Option(help="timm's name of the architecture, for a plain weight file.")]
Size = Annotated[
    int | None, typer.Option(min=32, help="Side of the images in pixels; default: the side the encoder was trained on.")
]


@final
@dataclass(frozen=True, kw_only=True)
class EncoderOptions:
    """Options of all commands that evaluate an encoder: which encoder, how many runs, on which device."""

    encoder: Annotated[
        str,
        typer.Argument(
            help="Pretraining or training run, its encoder or model file; with --backbone also any weight file, or "
            "none (random weights), offline, hub."
        ),
    ]
    backbone: Backbone = None
    runs: Annotated[
        int, typer.Option(min=1, help="Runs with consecutive seeds; mean and standard deviation are printed.")
    ] = 1
    seed: Annotated[int, typer.Option(min=0, help="Seed of the first run.")] = 0
    workers: Annotated[int, typer.Option(min=0, help="Processes that read photos; 0: none.")] = 0
    cpu: Cpu = False
    as_json: Json = False

    def __post_init__(self) -> None:
        """Refuse a missing encoder before torch is imported."""
        from fewtags.engine.places import refuse_missing_encoder

        refuse_missing_encoder(self.encoder, self.backbone)


@final
@dataclass(frozen=True, kw_only=True)
class TaskOptions:
    """Options of all probes: labels, training photos and views."""

    data: Annotated[
        str, typer.Argument(help="Labels to train on, in any format fewtags reads; with --as, the folder of that set.")
    ]
    as_set: Annotated[
        str | None,
        typer.Option(
            "--as",
            help="Published set in DATA: voc2007, cub200, flowers, cars, aircraft, indoor67, pets or dtd; it is never "
            "downloaded.",
        ),
    ] = None
    test: Annotated[str | None, typer.Option(help="Labels to test on; default: the split test of the labels.")] = None
    val: Annotated[str | None, typer.Option(help="Labels to choose settings on; default: the split val.")] = None
    images: Images = None
    val_images: ValImages = None
    test_images: TestImages = None
    kind: Annotated[
        str | None, typer.Option(help="single or multi (classes per photo); default: single if each photo has one.")
    ] = None
    complete: Complete = False
    any_size: Annotated[
        bool, typer.Option("--any-size", help="With --as: accept a set of another size than published.")
    ] = False
    size: Size = None
    policy: Annotated[
        str | None, typer.Option(help="imagenet (tests on a centre crop), coco or none (whole photo).")
    ] = None
    share: Annotated[float | None, typer.Option(help="Share of the training photos that each run samples.")] = None
    per_class: Annotated[
        int | None, typer.Option(min=1, help="Training photos of each class that each run samples.")
    ] = None
    set_: ReadingSettings = None

    def __post_init__(self) -> None:
        """Refuse missing labels and photos before torch is imported."""
        labels = [path for path in (self.data, self.test, self.val) if path is not None]
        if self.as_set is None:
            refuse_missing_inputs(labels, [] if self.images is None else [str(self.images)])


@final
@dataclass(frozen=True, kw_only=True)
class SearchOptions:
    """Options of trained probes: crops, and the values that are tried."""

    lrs: Annotated[
        list[float] | None,
        typer.Option("--lr", help="Learning rate; repeat it to choose the best on validation photos."),
    ] = None
    decays: Annotated[
        list[float] | None,
        typer.Option("--weight-decay", help="L2 penalty; repeat it to choose the best on validation photos."),
    ] = None
    min_area: Annotated[
        float | None, typer.Option(help="Smallest share of a photo in a crop; default: 0.08, multi-label 0.25.")
    ] = None


def prepare(
    options: EncoderOptions,
    task_options: TaskOptions,
    *,
    finetune: bool = False,
    min_area: float | None = None,
    precision: str = "no",
) -> tuple[EncoderInfo, Trials]:
    """Find the encoder and read the task; return the encoder's description and the runs.

    `finetune` selects the views and sizes of fine-tuning. `min_area` is the smallest share of a photo in a crop.
    """
    from fewtags.engine.distributed import make_accelerator
    from fewtags.engine.encoder_file import find_encoder
    from fewtags.engine.model import make_policy
    from fewtags.transfer.training import ProbeContext
    from fewtags.transfer.trials import Trials

    random = options.encoder == "none"

    def find(seed: int) -> tuple[Encoder, EncoderInfo]:
        return find_encoder(options.encoder, backbone=options.backbone, size=task_options.size, seed=seed)

    encoder, info = find(options.seed)
    task = read_task(task_options)
    whole = finetune and task.kind == "multi"
    size = task_options.size or (VOC_SIZE if whole and task.name == "voc2007" else info.size)
    area = min_area if min_area is not None else None if task.kind == "single" else 0.25
    name = check_choice("--policy", task_options.policy or ("coco" if whole else "imagenet"), POLICIES)
    encoder.grid((size, size))  # raises now if the encoder does not accept this size
    say(
        f"{info.backbone} ({encoder.features_dim} features), images of {size} px; {len(task.train):,} training photos, "
        f"{len(task.test):,} test photos, {task.classes} classes, {KINDS[task.kind]}"
    )
    return info, Trials(
        make_encoder=lambda seed: find(seed)[0] if random and seed != options.seed else encoder,
        random_weights=random,
        task=task,
        context=ProbeContext(make_accelerator(precision, options.cpu), make_policy(name, size, area)),
        seeds=tuple(range(options.seed, options.seed + options.runs)),
        share=task_options.share,
        per_class=task_options.per_class,
        workers=options.workers,
    )


def read_task(options: TaskOptions) -> Task:
    """Read the photos and labels: a published set, or any labels."""
    from fewtags.engine.tables import read_named
    from fewtags.table.merge import common_vocabulary
    from fewtags.table.overlap import leave_out_measured
    from fewtags.transfer.sets import read_set
    from fewtags.transfer.task import make_task

    kind = None if options.kind is None else cast("TaskKind", check_choice("--kind", options.kind, tuple(KINDS)))
    if options.as_set is not None:
        given = {
            "--test": options.test,
            "--val": options.val,
            "--images": options.images,
            "--val-images": options.val_images,
            "--test-images": options.test_images,
            "--kind": kind,
            "--complete": options.complete,
            "--set": options.set_,
        }
        if unused := [name for name, value in given.items() if value]:
            raise ConfigError(f"{', '.join(unused)}: --as {options.as_set} defines this; leave it out.")
        return read_set(options.as_set, Path(options.data), any_size=options.any_size)
    if options.any_size:
        raise ConfigError("--any-size is for published sets; give --as NAME as well, or leave it out.")
    flags = reading_flags(
        options.data,
        options.images,
        options.complete,
        val=options.val,
        test=options.test,
        val_images=options.val_images,
        test_images=options.test_images,
    )
    named = read_named(read_settings(None, flags, options.set_ or []).data)
    tables = common_vocabulary(leave_out_measured(named))
    say(*dict.fromkeys(line for table in tables.values() for line in reading_lines(table, options.data)))
    if "test" not in tables:
        raise ConfigError(
            f"{options.data} has no split test; give --test LABELS, or --as NAME if it is a published set."
        )
    return make_task(tables["train"], tables["test"], tables.get("val"), kind=kind)


def consume(events: Iterable[object]) -> None:
    """Run a short training to its end without showing it."""
    deque(events, 0)


def refuse_processes(command: str) -> None:
    """Raise a `ConfigError` if `torchrun` or `accelerate launch` started several processes."""
    if int(os.environ.get("WORLD_SIZE", "1")) > 1:
        raise ConfigError(f"transfer {command} runs in one process; start it without torchrun or accelerate launch.")


def check_schedule(word: str) -> Literal["cosine", "steps", "constant"]:
    """Return the value of --schedule if it is known."""
    return cast('Literal["cosine", "steps", "constant"]', check_choice("--schedule", word, SCHEDULES))


def settings_of(candidates: Sequence[TrainSettings]) -> dict[str, Any]:
    """Return the settings for the JSON result; settings with several candidates are lists."""
    one = {key: value for key, value in asdict(candidates[0]).items() if key not in ("seed", "workers")}
    for key in ("lr", "weight_decay"):
        tried = list(dict.fromkeys(getattr(candidate, key) for candidate in candidates))
        one[key] = tried if len(tried) > 1 else tried[0]
    return one


def _counted_classes(task: Task) -> str:
    """Describe how many classes AP averages over and which it leaves out; "" for single-label tasks."""
    from fewtags.labels import Label

    if task.kind == "single":
        return ""
    labels = task.test.matrix.dense()
    known = (labels == Label.POSITIVE).any(0) & (labels == Label.NEGATIVE).any(0)
    left = [name for name, counted in zip(task.test.classes.display, known, strict=True) if not counted]
    names = f"; not {', '.join(left[:5])}{', ...' if len(left) > 5 else ''}: no positive or no negative test photo"
    return f"{int(known.sum())} of {len(known)} classes counted{names if left else ''}"


def print_probe_result(
    command: str,
    options: EncoderOptions,
    data: str,
    info: EncoderInfo,
    trials: Trials,
    results: ProbeResults,
    settings: dict[str, Any],
    protocol: str,
) -> None:
    """Print the result of a probe on stdout and its notes on stderr."""
    say(*results.notes)
    if not is_main_process():
        return
    from fewtags.transfer.measure import chance_map

    task, counted = trials.task, _counted_classes(trials.task)
    if unlearned := task.unlearned:
        say(
            f"warning: {len(unlearned)} of the classes that count have no known positive or no known negative in "
            f"training, so their scores mean nothing: {some(unlearned)}"
        )
    if counted and not options.as_json:
        say(counted)
    if trials.subsampled and not options.as_json:
        numbers = " or ".join(f"{n:,}" for n in sorted(set(results.photos)))
        echo(f"{numbers} of {len(task.train):,} training photos per run")
    facts = {
        "data": {"place": data, "set": task.name or None, "kind": task.kind, "classes": task.classes},
        "size": trials.context.policy.size,
        "train_photos": results.photos,
        "test_photos": len(task.test),
        "settings": settings,
        "classes_counted": counted or None,
        "chance_mAP": chance_map(task),
        "notes": results.notes,
    }
    print_result(command, options, info, facts, results.runs, protocol)


def print_result(
    command: str,
    options: EncoderOptions,
    info: EncoderInfo,
    facts: Mapping[str, Any],
    runs: Sequence[Mapping[str, float]],
    protocol: str,
) -> None:
    """Print the mean and standard deviation of every metric, and the comparison with the published protocol.

    With --json, print one object that contains also the metrics of each run and the `facts`.
    """
    from fewtags.transfer.measure import METRICS, over_runs

    spreads = over_runs(runs)
    if options.as_json:
        content = {
            "command": command,
            "encoder": {"place": options.encoder, **asdict(info)},
            "seeds": list(range(options.seed, options.seed + options.runs)),
            "metrics": {
                name: {"mean": s.mean, "sd": None if math.isnan(s.sd) else s.sd, "runs": list(s.runs)}
                for name, s in spreads.items()
            },
            "protocol": protocol,
            **facts,
        }
        echo(json.dumps(content))
        return
    for name, spread in spreads.items():
        chance = facts.get("chance_mAP") if name == "mAP" else None
        by_chance = "" if chance is None else f" (chance {100 * chance:.2f})"
        several = f" (sd {100 * spread.sd:.2f} over {len(spread.runs)} runs)" if len(spread.runs) > 1 else ""
        echo(f"{METRICS[name]}: {100 * spread.mean:.2f}{several}{by_chance}")
    echo(protocol)
