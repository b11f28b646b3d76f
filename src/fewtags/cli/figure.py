"""`fewtags figure`: figures of photos from finished runs, with their numbers."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, cast

import typer

from fewtags.cli.options import Complete, Cpu, Images, ManyImages, check_choice
from fewtags.cli.progress import counting, echo
from fewtags.cli.reading import read_labels
from fewtags.errors import ConfigError
from fewtags.files import refuse_file, replacing, write_text

if TYPE_CHECKING:
    from fewtags.report.photo_figures import Drawn, Which
    from fewtags.table.table import LabelTable

figure_app = typer.Typer(
    help="Draw figures of photos from finished runs, with their numbers beside them (docs/figures.md).",
    no_args_is_help=True,
    add_completion=False,
)
Out = Annotated[Path, typer.Option(help="PNG file; the numbers are written beside it as JSON.")]
WHICH = ("both", "averages", "net")


@figure_app.command()
def maps(
    runs: Annotated[list[Path], typer.Argument(help="Training runs of the same classes.")],
    out: Out = Path("maps.png"),
    photos: Annotated[
        str | None, typer.Option(help="Names of photos in the labels, separated by commas; default: the first by name.")
    ] = None,
    count: Annotated[int, typer.Option(min=1, help="Without --photos: how many.")] = 4,
    classes: Annotated[
        str | None, typer.Option(help="Classes, separated by commas; default: the most probable of each photo.")
    ] = None,
    top: Annotated[int, typer.Option(min=1, help="Without --classes: how many.")] = 5,
    which: Annotated[
        str, typer.Option("--maps", help="averages (of training photos, by SCL), net (the net's maps), or both.")
    ] = "both",
    on: Annotated[
        list[str] | None, typer.Option(metavar="LABELS", help="Labels of the photos; default: the first run's.")
    ] = None,
    images: ManyImages = None,
    complete: Complete = False,
    split: Annotated[str, typer.Option(help="Without --on: the split of the first run's labels.")] = "train",
    cpu: Cpu = False,
) -> None:
    """Draw photos with the heatmaps of one or several runs.

    Shows the boxes of the labels, and for each run the running averages of the maps, which SCL keeps of training
    photos, and the maps of the net.

    \b
    Examples:
      fewtags figure maps runs/en_scl runs/en --count 6 --out k1.png
      fewtags figure maps runs/tags runs/points --on instances.json --images val2014 --photos a.jpg --classes cat
    """  # noqa: D301
    from fewtags.engine.machine import torch_device
    from fewtags.report.photo_figures import draw_maps

    refuse_file(out, example="maps.png")
    check_choice("--maps", which, WHICH)
    if on is None and (images or complete):
        raise ConfigError("--images and --complete are for --on; give --on LABELS as well, or leave them out.")
    table = _own_labels(runs[0], split) if on is None else read_labels(on, images, complete, None)
    keys = _words(photos) or sorted(table.images.to_pylist())[:count]
    drawn = draw_maps(
        runs,
        table,
        keys,
        classes=_words(classes),
        top=top,
        which=cast("Which", which),
        device=torch_device(cpu),
    )
    _write(drawn, out)


@figure_app.command()
def progress(
    run: Annotated[Path, typer.Argument(help="Training run.")],
    out: Out = Path("progress.png"),
    photos: Annotated[int, typer.Option(min=1, help="How many training photos of the run's gallery.")] = 1,
) -> None:
    """Draw the heatmaps of training photos over the epochs of a run.

    Shows an annotated positive, a positive that was not annotated, and a negative, if the run knows complete labels
    (`fewtags train --truth`): the running averages that SCL keeps, and the maps of the net.

    \b
    Example:
      fewtags figure progress runs/en_scl --out fig3.png
    """  # noqa: D301
    from fewtags.report.load import load_run
    from fewtags.report.photo_figures import draw_progress

    refuse_file(out, example="progress.png")
    _write(draw_progress(load_run(run), photos), out)


@figure_app.command()
def crops(
    encoder: Annotated[str, typer.Argument(help="Pretraining or training run; or with --backbone any weight file.")],
    data: Annotated[str, typer.Argument(help="Folder of photos, labels, or a text file with paths.")],
    out: Out = Path("crops.png"),
    images: Images = None,
    backbone: Annotated[str | None, typer.Option(help="timm's name of the architecture of a weight file.")] = None,
    size: Annotated[int | None, typer.Option(min=32, help="Side of the crops in pixels.")] = None,
    rows: Annotated[int, typer.Option(min=1, help="Crops to show with their neighbours.")] = 6,
    k: Annotated[int, typer.Option("--neighbours", "-k", min=1, help="Neighbours of each crop.")] = 5,
    most: Annotated[int, typer.Option(min=2, help="Use one crop of each of at most this many photos.")] = 4096,
    seed: Annotated[int, typer.Option(help="Seed of the crops.")] = 0,
    cpu: Cpu = False,
) -> None:
    """Draw random crops with their nearest crops, as boxes in their photos.

    \b
    Example:
      fewtags figure crops runs/mls photos/ --rows 6 -k 10 --out fig5.png
    """  # noqa: D301
    from fewtags.engine.encoder_file import find_encoder
    from fewtags.engine.machine import torch_device
    from fewtags.formats.unlabelled import check_photos, unlabelled
    from fewtags.report.nearest_crops import nearest_crops
    from fewtags.report.photo_figures import draw_crops

    refuse_file(out, example="crops.png", inputs=[data])
    net, info = find_encoder(encoder, backbone=backbone, size=size)
    table = check_photos(unlabelled(data, images), decode=False)
    with counting("encoding crops") as tick:
        found = nearest_crops(
            net, table, size or info.size, torch_device(cpu), queries=rows, k=k, most=most, seed=seed, tick=tick
        )
    _write(draw_crops(found, table), out)


def _own_labels(run: Path, split: str) -> LabelTable:
    """The labels of a split that a run was trained or evaluated with."""
    from fewtags.engine.checkpoint import reading_record
    from fewtags.table.storage import load

    folder = (run if run.is_dir() else run.parent) / "tables"
    there = sorted(path.stem for path in folder.glob("*.parquet"))
    if split not in there:
        known = f"it has {', '.join(there)}" if there else "it is not a training run"
        raise ConfigError(f"--split {split}: {run} has no such labels; {known}.")
    with reading_record(folder / f"{split}.parquet"):
        return load(folder / f"{split}.parquet")


def _words(given: str | None) -> list[str]:
    return [] if given is None else [word.strip() for word in given.split(",") if word.strip()]


def _write(drawn: Drawn, out: Path) -> None:
    from fewtags.report.figures import save_png

    out.parent.mkdir(parents=True, exist_ok=True)
    write_text(out.with_suffix(".json"), json.dumps(drawn.numbers, indent=1))
    with replacing(out) as temporary:
        save_png(drawn.drawing, temporary)
    echo(out)
