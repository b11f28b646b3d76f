"""evaluate, predict, heatmap: what a trained model is for."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

Model = Annotated[Path, typer.Argument(help="Run folder, or its model.safetensors.")]
Cpu = Annotated[bool, typer.Option("--cpu", help="Ignore GPUs.")]


def evaluate(
    model: Model,
    data: Annotated[str, typer.Argument(help="Labels to measure on; unknown cells are left out.")],
    images: Annotated[Path | None, typer.Option(help="Folder that image names in the labels are relative to.")] = None,
    complete: Annotated[bool, typer.Option("--complete", help="What is not named is known to be absent.")] = False,
    set_: Annotated[list[str] | None, typer.Option("--set", metavar="KEY=VALUE", help="Reading options.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="As one JSON object.")] = False,
    cpu: Cpu = False,
) -> None:
    """Measure a model: AP per class with intervals and counts, mAP, CF1 and OF1 at the stored thresholds."""
    import json

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
    result, notes = evaluate_table(net, info, table, cpu=cpu)
    for note in notes:
        typer.echo(note, err=True)
    typer.echo(json.dumps(result.to_dict()) if as_json else str(result))


def predict(
    model: Model,
    photos: Annotated[list[Path], typer.Argument(help="Photos, or folders of photos.")],
    out: Annotated[
        Path | None, typer.Option(help="File ending in .csv, .parquet or .jsonl; none: CSV on stdout.")
    ] = None,
    wide: Annotated[
        bool, typer.Option("--wide", help="One row per photo, one column per class, all probabilities.")
    ] = False,
    threshold: Annotated[
        float | None, typer.Option(min=0, max=1, help="One threshold instead of the stored ones.")
    ] = None,
    max_tags: Annotated[int | None, typer.Option(min=1, help="At most so many tags per photo.")] = None,
    batch_size: Annotated[int, typer.Option(min=1)] = 32,
    workers: Annotated[int, typer.Option(min=0)] = 0,
    cpu: Cpu = False,
) -> None:
    """Tag photos: a row per photo and tag, with probability and threshold. Unreadable ones are named, exit code 1."""
    from fewtags.cli.progress import counting
    from fewtags.cli.tables import PredictionWriter
    from fewtags.engine.machine import torch_device
    from fewtags.engine.model import load_model
    from fewtags.engine.predict import find_photos, predict_photos

    net, info = load_model(model)
    paths = find_photos(photos)
    with counting("photos") as tick, PredictionWriter(out, info, wide, threshold, max_tags) as writer:
        for done, found in enumerate(
            predict_photos(net, info, paths, torch_device(cpu), batch_size=batch_size, workers=workers), 1
        ):
            writer.add(found)
            tick(done, len(paths))
    for failed in writer.failed:
        typer.echo(f"error: {failed.error}", err=True)
    if writer.failed:
        typer.echo(f"{len(writer.failed)} of {len(paths)} photos could not be read; the others are done.", err=True)
        raise typer.Exit(1)


def heatmap(
    model: Model,
    photos: Annotated[list[Path], typer.Argument(help="Photos, or folders of photos.")],
    out: Annotated[Path, typer.Option(help="Folder for PNG overlays (and arrays).")] = Path("heatmaps"),
    classes: Annotated[
        list[str] | None, typer.Option("--class", help="Class ids to draw; none: the predicted ones.")
    ] = None,
    arrays: Annotated[
        bool, typer.Option("--arrays", help="Also write the maps of all classes, float32 [C, h, w], as .npy.")
    ] = False,
    cpu: Cpu = False,
) -> None:
    """Draw where a model sees each class: one PNG per photo and class."""
    from fewtags.cli.tables import write_heatmaps
    from fewtags.engine.machine import torch_device
    from fewtags.engine.model import load_model
    from fewtags.engine.predict import find_photos

    net, info = load_model(model)
    chosen = [info.classes.index(name) for name in classes or []]
    failed = 0
    for path in find_photos(photos):
        error = write_heatmaps(net, info, path, out, chosen, arrays, torch_device(cpu))
        if error:
            typer.echo(f"error: {error}", err=True)
            failed += 1
    typer.echo(out)
    if failed:
        raise typer.Exit(1)
