"""evaluate, predict, heatmap: what a trained model is for."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from fewtags.errors import DataError

Model = Annotated[Path, typer.Argument(help="Run folder, or its model.safetensors.")]
Cpu = Annotated[bool, typer.Option("--cpu", help="Ignore GPUs.")]


def evaluate(
    model: Model,
    data: Annotated[str, typer.Argument(help="Labels to measure on; unknown cells are left out.")],
    images: Annotated[Path | None, typer.Option(help="Folder that image names in the labels are relative to.")] = None,
    complete: Annotated[bool, typer.Option("--complete", help="What is not named is known to be absent.")] = False,
    set_: Annotated[
        list[str] | None, typer.Option("--set", metavar="KEY=VALUE", help="Reading options, e.g. data.uncertain=ones.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="As one JSON object.")] = False,
    cpu: Cpu = False,
) -> None:
    """Measure a model on labels.

    AP per class with intervals and counts, mAP, and CF1 and OF1 at the stored thresholds. Unknown cells are left out.
    Where no negative is known AP has no meaning: hit@1, recall@k and mean rank are told instead.

    \b
    Examples:
      fewtags evaluate runs/first test.csv --images photos/
      fewtags evaluate runs/first instances.json --images photos/ --complete --json
    """  # noqa: D301
    import json

    from fewtags.cli.progress import say
    from fewtags.cli.train import read_settings
    from fewtags.engine.model import load_model
    from fewtags.engine.plan import read_one
    from fewtags.engine.predict import evaluate_table

    flags = {
        "data.train": data,
        "data.complete": complete or None,
        "data.images": None if images is None else str(images),
    }
    table = read_one(read_settings(None, {k: v for k, v in flags.items() if v is not None}, set_ or []).data)
    net, info = load_model(model)
    say(f"measuring on {len(table):,} images")
    result, notes = evaluate_table(net, info, table, cpu=cpu)
    for note in notes:
        say(note)
    typer.echo(json.dumps(result.to_dict()) if as_json else str(result))


def predict(
    model: Model,
    photos: Annotated[list[Path], typer.Argument(help="Photos, or folders of photos.")],
    out: Annotated[
        Path | None, typer.Option(help="File ending in .csv, .parquet or .jsonl; default: CSV on stdout.")
    ] = None,
    wide: Annotated[
        bool, typer.Option("--wide", help="One row per photo, one column per class, all probabilities.")
    ] = False,
    threshold: Annotated[
        float | None, typer.Option(min=0, max=1, help="One threshold instead of the stored ones.")
    ] = None,
    max_tags: Annotated[int | None, typer.Option(min=1, help="At most so many tags per photo.")] = None,
    batch_size: Annotated[int, typer.Option(min=1, help="Photos at a time.")] = 32,
    workers: Annotated[int, typer.Option(min=0, help="Processes that decode photos; 0: none of their own.")] = 0,
    cpu: Cpu = False,
) -> None:
    """Tag photos.

    A row per photo and tag: image, class, name, probability, threshold. Photos that cannot be read are named, the
    others are done, and the exit code is 1.

    \b
    Examples:
      fewtags predict runs/first photos/ --out tags.csv
      fewtags predict runs/first photos/ --wide --out scores.parquet
      fewtags predict runs/first a.jpg b.jpg --threshold 0.5 --max-tags 5
    """  # noqa: D301
    from fewtags.cli.progress import counting, say
    from fewtags.cli.tables import PredictionWriter
    from fewtags.engine.machine import torch_device
    from fewtags.engine.model import load_model
    from fewtags.engine.predict import find_photos, predict_photos

    paths = find_photos(photos)
    net, info = load_model(model)
    writer = PredictionWriter(out, info, wide, threshold, max_tags)
    with counting("tagging photos", quiet=out is None) as tick, writer:
        for done, found in enumerate(
            predict_photos(net, info, paths, torch_device(cpu), batch_size=batch_size, workers=workers), 1
        ):
            writer.add(found)
            tick(done, len(paths))
    if writer.untagged:
        say(f"{writer.untagged:,} of {len(paths):,} photos got no tag and have no row; --wide lists all photos.")
    for failed in writer.failed:
        say(f"error: {failed.error}")
    if out is not None:
        typer.echo(out)
    if writer.failed:
        say(f"{len(writer.failed):,} of {len(paths):,} photos could not be read; the others are done.")
        raise typer.Exit(1)


def heatmap(
    model: Model,
    photos: Annotated[list[Path], typer.Argument(help="Photos, or folders of photos.")],
    out: Annotated[Path, typer.Option(help="Folder for PNG overlays (and arrays).")] = Path("heatmaps"),
    classes: Annotated[
        list[str] | None,
        typer.Option("--class", help="A class to draw; may be repeated. Default: those that are predicted."),
    ] = None,
    arrays: Annotated[
        bool, typer.Option("--arrays", help="Also write the maps of all classes, float32 [C, h, w], as .npy.")
    ] = False,
    cpu: Cpu = False,
) -> None:
    """Draw where a model sees each class.

    One PNG per photo and class, `PHOTO.CLASS.png`; photos of a folder keep their place below it. Photos that cannot be
    read are named, the others are done, and the exit code is 1.

    \b
    Examples:
      fewtags heatmap runs/first a.jpg
      fewtags heatmap runs/first photos/ --class cat --class dog --out heatmaps/ --arrays
    """  # noqa: D301
    from fewtags.cli.heatmaps import class_position, output_names, write_heatmaps
    from fewtags.cli.progress import counting, say
    from fewtags.engine.machine import torch_device
    from fewtags.engine.model import load_model
    from fewtags.engine.predict import find_photos

    names, notes = output_names(photos, find_photos(photos))
    net, info = load_model(model)
    chosen = [class_position(info.classes, name) for name in classes or []]
    device, written = torch_device(cpu), 0
    errors: list[str] = []
    with counting("drawing heatmaps") as tick:
        for done, (path, name) in enumerate(names.items(), 1):
            try:
                written += write_heatmaps(net, info, path, out / name, chosen, arrays, device)
            except DataError as error:
                errors.append(str(error))
            tick(done, len(names))
    for note in [*notes, f"{written:,} overlays of {len(names) - len(errors):,} photos"]:
        say(note)
    for message in errors:
        say(f"error: {message}")
    typer.echo(out)
    if errors:
        say(f"{len(errors):,} of {len(names):,} photos could not be read; the others are done.")
        raise typer.Exit(1)
