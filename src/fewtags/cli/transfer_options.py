"""What the commands of `fewtags transfer` share: their options, reading the task, telling the result."""

from __future__ import annotations

import json
import math
import os
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, cast, final

import typer

from fewtags.errors import ConfigError

if TYPE_CHECKING:
    from fewtags.engine.encoder_file import EncoderInfo
    from fewtags.engine.events import Event
    from fewtags.table.table import LabelTable
    from fewtags.transfer.task import Kind, Task
    from fewtags.transfer.training import TrainSettings
    from fewtags.transfer.trials import Found, Trials

POLICIES = ("imagenet", "coco", "none")
SCHEDULES = ("steps", "cosine", "constant")
PRECISIONS = ("no", "bf16", "fp16")
VOC_SIZE = 448
"""Side of the images for fine-tuning on VOC2007, unless --size says otherwise."""

EncoderArg = Annotated[
    str,
    typer.Argument(
        help="Pretraining or training run, its encoder or model file; with --backbone any weight file, or none "
        "(random), offline, hub."
    ),
]
DataArg = Annotated[
    str, typer.Argument(help="Labels to learn from, in any form fewtags reads; with --as, the folder of that set.")
]
AsSet = Annotated[
    str | None,
    typer.Option(
        "--as", help="DATA is one of: voc2007, cub200, flowers, cars, aircraft, indoor67, pets, dtd; never downloaded."
    ),
]
TestLabels = Annotated[
    str | None, typer.Option("--test", help="Labels to test on; default: the split test of the labels.")
]
ValLabels = Annotated[str | None, typer.Option("--val", help="Labels to choose settings on; default: the split val.")]
Images = Annotated[Path | None, typer.Option(help="Folder that image names in the labels are relative to.")]
KindOption = Annotated[
    str | None,
    typer.Option("--kind", help="single or multi: classes per photo; default: single if each photo has one."),
]
Complete = Annotated[bool, typer.Option("--complete", help="What is not named is known to be absent.")]
AnySize = Annotated[bool, typer.Option("--any-size", help="With --as: take a set of another size than published.")]
Backbone = Annotated[str | None, typer.Option(help="timm's name, where the encoder does not know its own.")]
Size = Annotated[int | None, typer.Option(min=32, help="Side of the images in pixels; default: the encoder's.")]
PolicyOption = Annotated[
    str | None, typer.Option("--policy", help="imagenet (centre crop at test) or coco and none (whole photo).")
]
Share = Annotated[float | None, typer.Option(help="Each run draws this share of the training photos.")]
PerClass = Annotated[
    int | None, typer.Option("--per-class", min=1, help="Each run draws this many training photos of each class.")
]
Runs = Annotated[int, typer.Option(min=1, help="Runs with other seeds; mean and standard deviation are told.")]
Seed = Annotated[int, typer.Option(min=0, help="Of the first run.")]
WorkersOption = Annotated[int, typer.Option("--workers", min=0, help="Processes that read photos; 0: none.")]
Cpu = Annotated[bool, typer.Option("--cpu", help="Ignore GPUs.")]
Json = Annotated[bool, typer.Option("--json", help="As one JSON object.")]
MinArea = Annotated[
    float | None,
    typer.Option("--min-area", help="Smallest cropped share of a photo; default: 0.08, multi-label 0.25."),
]
SetReading = Annotated[
    list[str] | None, typer.Option("--set", metavar="KEY=VALUE", help="Reading options, e.g. data.uncertain=ones.")
]
Lrs = Annotated[
    list[float] | None, typer.Option("--lr", help="Learning rate; may be repeated: the best on validation is taken.")
]
Decays = Annotated[
    list[float] | None,
    typer.Option("--weight-decay", help="Added to the gradient; may be repeated: the best on validation is taken."),
]


@final
@dataclass(frozen=True)
class Asked:
    """What all commands are told."""

    command: str
    encoder: str
    data: str
    as_set: str | None
    test: str | None
    val: str | None
    images: Path | None
    kind: str | None
    complete: bool
    any_size: bool
    backbone: str | None
    size: int | None
    policy: str | None
    share: float | None
    per_class: int | None
    runs: int
    seed: int
    workers: int
    cpu: bool
    as_json: bool
    assignments: list[str] | None
    min_area: float | None = None
    precision: str = "no"


def prepare(asked: Asked) -> tuple[EncoderInfo, Trials]:
    """The encoder's description, and what is to be run.

    Raises:
        ConfigError: options that do not fit each other.
        CheckpointError: no such encoder.
        DataError: labels that are not what they should be.
    """
    from fewtags.cli.progress import say
    from fewtags.engine.distributed import make_accelerator
    from fewtags.engine.encoder_file import find_encoder
    from fewtags.engine.model import make_policy
    from fewtags.transfer.training import Place
    from fewtags.transfer.trials import Trials

    random = asked.encoder == "none"
    encoder, info = find_encoder(asked.encoder, backbone=asked.backbone, size=asked.size, seed=asked.seed)
    task = read_task(asked)
    whole = asked.command == "finetune" and task.kind == "multi"
    size = asked.size or (VOC_SIZE if whole and task.name == "voc2007" else info.size)
    area = asked.min_area if asked.min_area is not None else None if task.kind == "single" else 0.25
    name = one_of("--policy", asked.policy or ("coco" if whole else "imagenet"), POLICIES)
    policy = make_policy(name, size, area)
    encoder.grid((size, size))  # refuses at once a size that it cannot take

    def of_seed(seed: int) -> Any:
        if not random or seed == asked.seed:
            return encoder
        return find_encoder(asked.encoder, backbone=asked.backbone, size=asked.size, seed=seed)[0]

    say(
        f"{info.backbone} ({encoder.features_dim} features), images of {size} px; {len(task.train):,} training photos, "
        f"{len(task.test):,} test photos, {task.classes} classes, {_KINDS[task.kind]}"
    )
    seeds = tuple(range(asked.seed, asked.seed + asked.runs))
    place = Place(make_accelerator(asked.precision, asked.cpu), policy)
    return info, Trials(of_seed, random, task, place, seeds, asked.share, asked.per_class, asked.workers)


_KINDS = {"single": "one class per photo", "multi": "any number of classes per photo"}


def read_task(asked: Asked) -> Task:
    """The photos and labels: one of the known sets, or any labels.

    Raises:
        ConfigError: nothing to test on, or options of the one way with the other.
        DataError: see `read_set`, `read_named` and `make_task`.
    """
    from fewtags.transfer.sets import read_set
    from fewtags.transfer.task import make_task

    kind = None if asked.kind is None else cast("Kind", one_of("--kind", asked.kind, ("single", "multi")))
    if asked.as_set is not None:
        given = {
            "--test": asked.test,
            "--val": asked.val,
            "--images": asked.images,
            "--kind": kind,
            "--complete": asked.complete,
            "--set": asked.assignments,
        }
        if unused := [name for name, value in given.items() if value]:
            raise ConfigError(f"{', '.join(unused)}: --as {asked.as_set} knows all about its set; leave it out.")
        return read_set(asked.as_set, Path(asked.data), any_size=asked.any_size)
    if asked.any_size:
        raise ConfigError("--any-size is about the known sets; give --as NAME with it, or leave it out.")
    tables = _read_tables(asked)
    if "test" not in tables:
        raise ConfigError(
            f"{asked.data} has no split for testing; give --test LABELS, or --as NAME if it is one of the known sets."
        )
    return make_task(tables["train"], tables["test"], tables.get("val"), kind=kind)


def _read_tables(asked: Asked) -> dict[str, LabelTable]:
    """What there is of train, val and test, read as training reads it, and told how."""
    from fewtags.cli.progress import say
    from fewtags.cli.reading import reading_lines
    from fewtags.cli.train import read_settings
    from fewtags.engine.plan import read_named

    flags = {
        "data.train": asked.data,
        "data.test": asked.test,
        "data.val": asked.val,
        "data.images": None if asked.images is None else str(asked.images),
        "data.complete": asked.complete or None,
    }
    given = {key: value for key, value in flags.items() if value is not None}
    tables = read_named(read_settings(None, given, asked.assignments or []).data)
    told = (line for table in tables.values() for line in reading_lines(table, asked.data))
    for line in dict.fromkeys(told):
        say(line)
    return tables


@contextmanager
def ticking(trials: Trials) -> Iterator[Trials]:
    """The trials with a progress bar."""
    from fewtags.cli.progress import counting

    with counting("photos through the encoder") as tick:
        yield replace(trials, tick=tick)


def quietly(events: Iterable[Event]) -> None:
    """Consume the events of a short training."""
    deque(events, 0)


def showing(events: Iterable[Event]) -> None:
    """Show the events of a long training."""
    from fewtags.cli.progress import show

    show(events)


def refuse_processes(command: str) -> None:
    """Refuse to do the same work several times over.

    Raises:
        ConfigError: started by `torchrun` or `accelerate launch` with several processes.
    """
    if int(os.environ.get("WORLD_SIZE", "1")) > 1:
        raise ConfigError(f"transfer {command} works in one process; start it without torchrun or accelerate launch.")


def schedule_of(word: str) -> Literal["cosine", "steps", "constant"]:
    """A schedule's name."""
    return cast('Literal["cosine", "steps", "constant"]', one_of("--schedule", word, SCHEDULES))


def precision_of(word: str) -> str:
    """A precision's name."""
    return one_of("--precision", word, PRECISIONS)


def one_of(option: str, word: str, known: Sequence[str]) -> str:
    """The word, if it is a known one.

    Raises:
        ConfigError: it is none of them; the closest is suggested.
    """
    from fewtags.text import suggest

    if word not in known:
        raise ConfigError(f"{option} {word}: expected one of {', '.join(known)}{suggest(word, known)}.")
    return word


def settings_of(candidates: Sequence[TrainSettings]) -> dict[str, Any]:
    """Settings for the record; what was tried several times is a list."""
    one = {key: value for key, value in asdict(candidates[0]).items() if key not in ("seed", "workers")}
    for key in ("lr", "weight_decay"):
        tried = list(dict.fromkeys(getattr(candidate, key) for candidate in candidates))
        one[key] = tried if len(tried) > 1 else tried[0]
    return one


def _counted_classes(trials: Trials) -> str:
    """How many classes AP is the mean of, and which it leaves out; "" where that is no question."""
    from fewtags.labels import Label

    task = trials.task
    if task.kind == "single":
        return ""
    labels = task.test.matrix.dense()
    known = (labels == Label.POSITIVE).any(0) & (labels == Label.NEGATIVE).any(0)
    left = [name for name, counted in zip(task.test.classes.display, known, strict=True) if not counted]
    some = f"; not {', '.join(left[:5])}{', ...' if len(left) > 5 else ''}: no positive or no negative test photo"
    return f"{int(known.sum())} of {len(known)} classes counted{some if left else ''}"


def tell(
    asked: Asked, info: EncoderInfo, trials: Trials, found: Found, settings: dict[str, Any], protocol: str
) -> None:
    """The result on stdout, notes on stderr."""
    from fewtags.cli.progress import is_main_process, say
    from fewtags.transfer.measure import METRICS, over_runs

    for note in found.notes:
        say(note)
    if not is_main_process():
        return
    spreads = over_runs(found.runs)
    if asked.as_json:
        task = trials.task
        content = {
            "command": asked.command,
            "encoder": {"place": asked.encoder, **asdict(info)},
            "data": {"place": asked.data, "set": task.name or None, "kind": task.kind, "classes": task.classes},
            "size": trials.place.policy.size,
            "train_photos": found.photos,
            "test_photos": len(task.test),
            "seeds": list(trials.seeds),
            "settings": settings,
            "metrics": {
                name: {"mean": s.mean, "sd": None if math.isnan(s.sd) else s.sd, "runs": list(s.runs)}
                for name, s in spreads.items()
            },
            "protocol": protocol,
            "classes_counted": _counted_classes(trials) or None,
            "notes": found.notes,
        }
        typer.echo(json.dumps(content))
        return
    if counted := _counted_classes(trials):
        say(counted)
    drawn = sorted(set(found.photos))
    if trials.few:
        typer.echo(f"{' or '.join(f'{n:,}' for n in drawn)} of {len(trials.task.train):,} training photos a run")
    for name, spread in spreads.items():
        several = f" (sd {100 * spread.sd:.2f} over {len(spread.runs)} runs)" if len(spread.runs) > 1 else ""
        typer.echo(f"{METRICS[name]}: {100 * spread.mean:.2f}{several}")
    typer.echo(protocol)
