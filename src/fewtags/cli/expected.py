"""`fewtags estimate-k`: the mean number of classes in a photo, and the share of photos with each class."""

from __future__ import annotations

import csv
import json
import shlex
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from fewtags.cli.options import Complete, Cpu, Images, Json, ReadingSettings, check_choice
from fewtags.cli.progress import counting, echo, say
from fewtags.cli.reading import read_labels, reading_flags, training_images
from fewtags.cli.train import read_settings
from fewtags.errors import ConfigError, DataError
from fewtags.files import refuse_file

if TYPE_CHECKING:
    from fewtags.engine.expected import Estimate
    from fewtags.table.table import LabelTable

FROM_HELP = (
    "complete (photos that are labelled completely), partial (known positives and negatives) or tags (one tag for each "
    "photo, and the photos); default: the first that the labels allow."
)


def estimate_k(
    data: Annotated[str, typer.Argument(help="Labels, as for `train`.")],
    images: Images = None,
    ask: Annotated[
        int | None, typer.Option(min=2, help="Draw so many photos, and write a CSV for a person to fill in.")
    ] = None,
    answers: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE|RUN",
            help="The CSV of --ask, filled in; a photo without a mark does not count. Or a run that was reviewed.",
        ),
    ] = None,
    from_: Annotated[str | None, typer.Option("--from", metavar="WORD", help=FROM_HELP)] = None,
    out: Annotated[
        Path | None,
        typer.Option(help="With --ask: the CSV, default ask.csv. Else: also write JSON for `train --expected`."),
    ] = None,
    seed: Annotated[int, typer.Option(min=0, help="Seed of what is drawn.")] = 0,
    complete: Complete = False,
    set_: ReadingSettings = None,
    weights: Annotated[
        str, typer.Option(help="With tags: weights of the frozen network: offline, hub or a file.")
    ] = "offline",
    workers: Annotated[int, typer.Option(min=0, help="With tags: processes that decode photos; 0: none.")] = 0,
    as_json: Json = False,
    cpu: Cpu = False,
) -> None:
    """Estimate K, the mean number of classes in a photo, and the share of photos with each class.

    Best from about a hundred photos that you label completely: --ask 100 draws them at random and writes a CSV; fill it
    in and give it back with --answers. In the CSV, 1 marks a class that the photo shows, blanks of a photo with a mark
    mean absent, ? means unsure, and 1 in the column none means that the photo shows none of the classes. Without
    complete photos, K comes from known positives and negatives, or from the tags alone, which is a rough guess.

    \b
    Examples:
      fewtags estimate-k tags.csv --images photos/ --ask 100
      fewtags estimate-k tags.csv --images photos/ --answers ask.csv --out expected.json
      fewtags estimate-k tags.csv --images photos/ --answers runs/first
      fewtags estimate-k photos/
      fewtags train tags.csv --images photos/ --expected expected.json
    """  # noqa: D301
    from fewtags.engine.expected import KINDS, default_kind, from_complete, from_partial

    _refuse_mixed(ask, answers, from_)
    if from_ is not None:
        check_choice("--from", from_, KINDS)
    sheet = None if ask is None else out or Path("ask.csv")
    if sheet is not None:
        _refuse_sheet(sheet)
    elif out is not None:
        refuse_file(out, example="expected.json", inputs=[data, answers])
    table = read_labels(data, images, complete, set_)
    table = table.subset(training_images(table))
    if ask is not None and sheet is not None:
        _ask(table, ask, seed, sheet, _typed(data, images, complete, set_))
        return
    found: Estimate
    kind = from_ or default_kind(table)
    if answers is not None:
        found = _answered(table, answers, seed, data, images, set_)
    elif kind == "complete":
        from fewtags.labels import Label

        labels = table.matrix.dense()
        found = from_complete(
            labels[(labels != Label.UNKNOWN).all(1)], table.classes, population=len(table), drawn=False
        )
    elif kind == "partial":
        found = from_partial(table)
    else:
        from fewtags.engine.expected_tags import from_tags
        from fewtags.engine.machine import torch_device

        with counting("looking at photos") as tick:
            found = from_tags(table, torch_device(cpu), weights=weights, seed=seed, workers=workers, tick=tick)
    if out is not None:
        found.write(out)
    if as_json:
        echo(json.dumps(found.to_dict(), ensure_ascii=False))
        return
    echo("\n".join(found.lines()))
    typed = _typed(data, images, complete, set_)
    use = f"--expected {shlex.quote(str(out))}" if out is not None else f"--set {_setting(found)}"
    echo(f"to use it: fewtags train {typed} {use}")


def _setting(found: Estimate) -> str:
    return f"data.positives_per_image={found.mean:.4g}"


def _typed(data: str, images: Path | None, complete: bool, assignments: list[str] | None) -> str:
    """Return the labels and how they are read, as they were typed."""
    words = [data, *(["--images", str(images)] if images is not None else []), *(["--complete"] if complete else [])]
    words += [word for assignment in assignments or [] for word in ("--set", assignment)]
    return shlex.join(words)


def _refuse_mixed(ask: int | None, answers: Path | None, from_: str | None) -> None:
    """Raise a `ConfigError` for options that contradict each other."""
    if ask is not None and answers is not None:
        raise ConfigError("--ask draws photos to fill in, and --answers reads them back; give only one.")
    if from_ is not None and (ask is not None or answers is not None):
        option = "--ask" if ask is not None else "--answers"
        raise ConfigError(f"--from says what the labels of DATA are used for; it has no effect with {option}.")


def _refuse_sheet(path: Path) -> None:
    """Check that the list can be written and replaces nothing, since answers in it would be lost."""
    if path.suffix.lower() != ".csv":
        raise ConfigError(f"--out {path}: with --ask, expected a file ending in .csv.")
    if path.is_file():
        raise ConfigError(f"{path} exists, and its answers would be lost; give another file with --out.")
    refuse_file(path, example="ask.csv")


def _ask(table: LabelTable, count: int, seed: int, path: Path, typed: str) -> None:
    """Draw photos, and write a row for each with a blank column for each class."""
    from fewtags.engine.expected import draw_photos
    from fewtags.files import replacing
    from fewtags.text import counted

    drawn = draw_photos(table, count, seed)
    path.parent.mkdir(parents=True, exist_ok=True)
    with replacing(path) as temporary, temporary.open("w", encoding="utf-8", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(["image", *table.classes.ids, "none"])
        writer.writerows([key, *[""] * (len(table.classes) + 1)] for key in drawn.images.to_pylist())
    echo(path)
    where = "" if table.root is None else f", whose names are relative to {table.root}"
    again = "" if seed == 0 else f" --seed {seed}"
    say(
        f"{counted(count, 'photo')} of {len(table):,}, drawn at random (seed {seed}){where}",
        "fill in from the top: 1 for each class that the photo shows; blanks then mean absent, ? unsure; 1 in the "
        "column none: the photo shows none of the classes",
        f"then: fewtags estimate-k {typed} --answers {shlex.quote(str(path))}{again}",
        "to answer in a browser, with a trained run: fewtags review RUN --order complete-images, then --answers RUN",
    )


def _answered(
    table: LabelTable, place: Path, seed: int, data: str, images: Path | None, assignments: list[str] | None
) -> Estimate:
    """Estimate from a filled CSV, or from the answers of a run."""
    from dataclasses import replace

    from fewtags.engine.expected import answered_photos, from_complete, reviewed_photos, was_drawn
    from fewtags.engine.tables import read_one

    if place.is_dir() or place.suffix == ".sqlite":
        labels, notes = reviewed_photos(table, place)
        found = from_complete(labels, table.classes, population=len(table), drawn=False)
    else:
        settings = read_settings(None, reading_flags(data, images, False), assignments or []).data
        folder = None if table.root is None else str(table.root)
        sheet, filled = (read_one(settings, str(place), complete, folder) for complete in (False, True))
        if excluded := sheet.notes.excluded:
            row = excluded[0]
            more = f"; and {len(excluded) - 1:,} more" if len(excluded) > 1 else ""
            raise DataError(f"--answers {place}: {row.item}: {row.reason}{more}. Fix these rows, or remove them.")
        labels, notes = answered_photos(table, sheet, filled)
        drawn = was_drawn(table, sheet, seed)
        found = from_complete(labels, table.classes, population=len(table), drawn=drawn)
    return replace(found, notes=(*found.notes, *notes))
