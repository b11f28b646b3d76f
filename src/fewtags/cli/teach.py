"""`fewtags teach`: scores of an image-text model, for `fewtags train --teacher`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from fewtags.cli.options import Cpu, Restart
from fewtags.cli.progress import echo, say
from fewtags.errors import ConfigError, DataError
from fewtags.files import refuse_file
from fewtags.text import counted

if TYPE_CHECKING:
    from fewtags.labels import ClassNames

SCORES = ("auto", "softmax", "sigmoid")


def teach(
    photos: Annotated[list[Path], typer.Argument(help="Photos, folders, shards (.tar, .parquet), patterns, URLs.")],
    classes: Annotated[
        str,
        typer.Option(help="Your labels (their classes), a text file of a class a line, or a list: cat,dog."),
    ],
    out: Annotated[Path, typer.Option(help="File ending in .parquet or .csv.")] = Path("scores.parquet"),
    model: Annotated[
        str | None,
        typer.Option(
            help="A model of open_clip, a folder with its open_clip_config.json, or hf-hub:OWNER/NAME; default: "
            "ViT-B-16-quickgelu, the CLIP of AEVLP."
        ),
    ] = None,
    weights: Annotated[
        str | None, typer.Option(help="A file, or pretrained weights of open_clip (download); default: openai.")
    ] = None,
    prompt: Annotated[
        list[str] | None,
        typer.Option(
            help="Text with {} for the class name; default: 'a photo of a {}.'. May be repeated; they are averaged."
        ),
    ] = None,
    names: Annotated[
        Path | None, typer.Option(help="File with ids and display names (as data.names); prompts use the names.")
    ] = None,
    scores: Annotated[
        str,
        typer.Option(
            help="softmax over the classes (CLIP), sigmoid for each class (SigLIP), or auto: what the model was "
            "trained with."
        ),
    ] = "auto",
    temperature: Annotated[
        float | None, typer.Option(help="Of the scores; default: what the model learned, 0.01 for CLIP.")
    ] = None,
    batch_size: Annotated[int, typer.Option(min=1, help="Photos per batch.")] = 32,
    workers: Annotated[int, typer.Option(min=0, help="Processes that decode photos; 0: none.")] = 0,
    restart: Restart = False,
    cpu: Cpu = False,
) -> None:
    """Score photos with an image-text model, without training.

    Writes a row for each photo and a column for each class: the table that `fewtags train --teacher` reads. A model of
    your own needs no `teach`: `fewtags predict RUN PHOTOS --wide --out scores.parquet` writes the same table. Photos
    that cannot be read are reported, listed in NAME.unreadable.ENDING beside the table, and skipped; then the exit code
    is 1. A command that was interrupted can be repeated: it continues after the photos that are done. Needs open_clip:
    pip install 'fewtags[teach]'.

    \b
    Examples:
      fewtags teach photos/ --classes tags.csv --out scores.parquet
      fewtags teach photos/ --classes cat,dog --prompt "a photo of a {}." --prompt "a drawing of a {}."
      fewtags teach photos/ --classes classes.txt --model ViT-L-14-336-quickgelu --weights openai
      fewtags teach photos/ --classes tags.csv --model ViT-B-16-SigLIP --weights webli
      fewtags train tags.csv --images photos/ --teacher scores.parquet --method em
    """  # noqa: D301
    from fewtags.cli.tables import PredictionWriter, PredictOptions, write_predictions
    from fewtags.engine.machine import torch_device
    from fewtags.engine.places import find_photos
    from fewtags.engine.zero_shot import DEFAULT_MODEL, DEFAULT_PROMPT, ZeroShotOptions, make_zero_shot

    if scores not in SCORES:
        raise ConfigError(f"--scores {scores!r} is not one of {', '.join(SCORES)}.")
    if out.suffix.lower() not in (".parquet", ".csv"):
        raise ConfigError(f"--out {out}: expected a file ending in .parquet or .csv, which --teacher reads.")
    refuse_file(out, example="scores.parquet")
    vocabulary = with_names(read_classes(classes), names)
    paths, notes = find_photos(photos)
    options = ZeroShotOptions(
        model=model or DEFAULT_MODEL,
        weights=weights,
        prompts=tuple(prompt or (DEFAULT_PROMPT,)),
        scores=scores,  # type: ignore[arg-type]  # checked above
        temperature=temperature,
    )
    net, info = make_zero_shot(options, vocabulary)
    writer = PredictionWriter(out, info, True, None)
    say(*notes, f"scores: {info.method['scores']} of {len(vocabulary):,} classes, temperature {1 / net.scale:.4g}")
    how = PredictOptions(torch_device(cpu), batch_size, workers, restart)
    failed = write_predictions(net, info, paths, writer, how, "scoring photos")
    echo(out)
    if failed:
        say(f"skipped: {failed:,} of {counted(len(paths), 'photo')}, because they cannot be read.")
        raise typer.Exit(1)


def read_classes(given: str) -> ClassNames:
    """Return the classes of labels, those in the lines of a text file, or those of a list with commas.

    Raises:
        DataError: no class is named.
    """
    from fewtags.formats.common import clean_name, text_of
    from fewtags.formats.read import read
    from fewtags.labels import ClassNames

    path = Path(given)
    if path.exists() and path.suffix.lower() != ".txt":
        return read(path).classes
    words = text_of(path).splitlines() if path.exists() else given.split(",")
    found = ClassNames.of(dict.fromkeys(name for word in words if (name := clean_name(word))))
    if not len(found):
        raise DataError(f"--classes {given!r} names no class; write them as cat,dog, or give a file.")
    if not path.exists() and len(found) == 1 and (path.suffix or "/" in given):
        raise DataError(f"--classes {given} does not exist; give your labels, a text file, or classes as cat,dog.")
    return found


def with_names(classes: ClassNames, file: Path | None) -> ClassNames:
    """Return the classes with the display names of a file."""
    from fewtags.formats.class_names import read_names
    from fewtags.labels import ClassNames
    from fewtags.text import some

    if file is None:
        return classes
    names = read_names(file)
    if not any(i in names for i in classes.ids):
        raise DataError(f"--names {file}: none of its ids is a class ({some(classes.ids)}).")
    if unnamed := [i for i in classes.ids if i not in names]:
        say(f"{file.name}: {some(unnamed)} not in it; the prompt has the name as it is")
    return ClassNames.of(classes.ids, [names.get(i, n) for i, n in zip(classes.ids, classes.names, strict=True)])
