"""evaluate, predict, heatmap: what a trained model is for."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from fewtags.errors import ConfigError, DataError

if TYPE_CHECKING:
    from fewtags.table.table import LabelTable

Model = Annotated[Path, typer.Argument(help="Run folder, or its model.safetensors.")]
Cpu = Annotated[bool, typer.Option("--cpu", help="Ignore GPUs.")]

LOC_CUTS = 20
"""Thresholds of MaxBoxAccV2 unless --loc-cuts says otherwise."""


def evaluate(
    model: Model,
    data: Annotated[str, typer.Argument(help="Labels to measure on; unknown cells are left out.")],
    images: Annotated[Path | None, typer.Option(help="Folder that image names in the labels are relative to.")] = None,
    split: Annotated[
        str | None,
        typer.Option(help="Which images, where the labels name splits; default: test, or else val, or else all."),
    ] = None,
    complete: Annotated[bool, typer.Option("--complete", help="What is not named is known to be absent.")] = False,
    localise: Annotated[bool, typer.Option("--localise", help="Also hold the heatmaps against boxes.")] = False,
    loc_cuts: Annotated[
        int | None,
        typer.Option(min=1, help="With --localise: thresholds at which boxes are read off the maps; default: 20."),
    ] = None,
    set_: Annotated[
        list[str] | None, typer.Option("--set", metavar="KEY=VALUE", help="Reading options, e.g. data.uncertain=ones.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="As one JSON object.")] = False,
    cpu: Cpu = False,
) -> None:
    """Measure a model on labels.

    AP per class with intervals and counts, mAP, and CF1 and OF1 at the stored thresholds. Unknown cells are left out.
    Where no negative is known AP has no meaning: hit@1, recall@k and mean rank are told instead. Photos that cannot be
    read are named, the others are measured, and the exit code is 1.

    With --localise, heatmaps are measured where labels have boxes: pointing game, IoA-P, mAP-loc, MaxBoxAccV2 and PxAP,
    each beside what flat maps reach. MaxBoxAccV2 takes nearly all of that time; it looks at 20 thresholds instead of
    the paper's 100 (--loc-cuts 100).

    \b
    Examples:
      fewtags evaluate runs/first test.csv --images photos/
      fewtags evaluate runs/first instances.json --images photos/ --complete --json
      fewtags evaluate runs/first instances.json --images photos/ --complete --localise
      fewtags evaluate runs/first tags.csv --images photos/ --split val
    """  # noqa: D301
    import json

    from fewtags.cli.progress import counting, say
    from fewtags.cli.reading import read_labels
    from fewtags.engine.localise import even_cuts, localise_table, refuse_without_boxes
    from fewtags.engine.model import load_model
    from fewtags.engine.predict import score_table

    if loc_cuts is not None and not localise:
        raise ConfigError("--loc-cuts is for --localise; give that, or leave it out.")
    net, info = load_model(model)
    table, which = choose_split(read_labels(data, images, complete, set_), split)
    say(which)
    if localise:
        refuse_without_boxes(info, table)
    scored = score_table(net, info, table, cpu=cpu)
    for note in scored.notes:
        say(note)
    result = scored.evaluate(info)
    told, text = result.to_dict(), str(result)
    if localise:
        with counting("holding heatmaps against boxes") as tick:
            options = even_cuts(loc_cuts or LOC_CUTS)
            found = localise_table(net, info, table, scored, cpu=cpu, options=options, tick=tick)
        told, text = {**told, "localisation": found.to_dict()}, f"{text}\n\n{found}"
    typer.echo(json.dumps(told) if as_json else text)
    if result.unreadable:
        say(f"{result.unreadable:,} of {len(table):,} photos could not be read; the others are measured.")
        raise typer.Exit(1)


def choose_split(whole: LabelTable, asked: str | None) -> tuple[LabelTable, str]:
    """The images to measure on, and which they are, in words.

    Args:
        whole: the labels.
        asked: name of a split, in any of its common spellings; None: test, or else val, or else all images.

    Raises:
        ConfigError: no split of that name.
    """
    from fewtags.cli.reading import split_sizes
    from fewtags.formats.common import split_name
    from fewtags.text import counted, suggest

    named = {} if whole.split_names is None else whole.named_splits()
    if not any(named):
        if asked is not None:
            raise ConfigError(f"--split {asked}: these labels name no splits; leave it out to measure on all of them.")
        return whole, f"measuring on {counted(len(whole), 'image')}"
    usual = next((name for name in ("test", "val") if name in named), None)
    name = usual if asked is None else asked if asked in named else split_name(asked)
    if name is None:
        return whole, f"measuring on all {len(whole):,} images, since none is for test or val: {split_sizes(named)}"
    if name not in named:
        hint = suggest(name, list(named))
        raise ConfigError(f"--split {asked} is no split of these labels{hint}; there are {split_sizes(named)}.")
    rest = {other: table for other, table in named.items() if other != name}
    which = f"measuring on {split_sizes({name: named[name]})}"
    return named[name], f"{which}; not measured: {split_sizes(rest)}" if rest else f"{which}, which is all"


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
    from fewtags.cli.tables import PredictionWriter, escaped_names
    from fewtags.engine.machine import torch_device
    from fewtags.engine.model import load_model
    from fewtags.engine.predict import find_photos, predict_photos
    from fewtags.files import refuse_file

    net, info = load_model(model)
    writer = PredictionWriter(out, info, wide, threshold, max_tags)
    if out is not None:
        refuse_file(out)
    paths, notes = find_photos(photos)
    for note in notes:
        say(note)
    with counting("tagging photos", quiet=out is None) as tick, writer:
        for done, found in enumerate(
            predict_photos(net, info, paths, torch_device(cpu), batch_size=batch_size, workers=workers), 1
        ):
            writer.add(found)
            tick(done, len(paths))
    if writer.untagged:
        say(f"{writer.untagged:,} of {len(paths):,} photos got no tag and have no row; --wide lists all photos.")
    if writer.escaped:
        say(escaped_names(writer.escaped))
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
    coupled: Annotated[
        bool, typer.Option("--coupled", help="Maps times attention (TS-CAM), of a ViT with a class token.")
    ] = False,
    cpu: Cpu = False,
) -> None:
    """Draw where a model sees each class.

    One PNG per photo and class, `PHOTO.CLASS.png`; photos of a folder keep their place below it. Where a name cannot be
    used as it is, names.csv says which photo and class a file shows. Photos that cannot be read are named, the others
    are done, and the exit code is 1.

    Heat is the probability of the class at a place, on one scale for all pictures. With --coupled it is the class
    token's attention times the class logit, drawn from the lowest to the highest value of each picture: where in the
    photo, not how sure. The arrays then hold these products as they are.

    \b
    Examples:
      fewtags heatmap runs/first a.jpg
      fewtags heatmap runs/first photos/ --class cat --class dog --out heatmaps/ --arrays
      fewtags heatmap runs/vit a.jpg --coupled
    """  # noqa: D301
    from fewtags.cli.heatmaps import NameKey, Wanted, class_position, output_names, write_heatmaps
    from fewtags.cli.progress import counting, say
    from fewtags.engine.machine import torch_device
    from fewtags.engine.model import load_model
    from fewtags.engine.predict import find_photos
    from fewtags.files import refuse_folder
    from fewtags.nets.tscam import attention_layers

    refuse_folder(out)
    key = NameKey(out)
    found, skipped = find_photos(photos)
    names, notes = output_names(photos, found)
    net, info = load_model(model)
    wanted = Wanted([class_position(info.classes, name) for name in classes or []], arrays, coupled)
    if coupled:
        attention_layers(net)  # says at once where there are none
    for note in [*skipped, *notes]:
        say(note)
    device, written = torch_device(cpu), 0
    errors: list[str] = []
    with counting("drawing heatmaps") as tick:
        for done, (path, name) in enumerate(names.items(), 1):
            try:
                files = write_heatmaps(net, info, path, out / name, wanted, device)
            except DataError as error:
                errors.append(str(error))
            else:
                key.add(path, name, files)
                written += sum(class_id is not None for class_id in files.values())
            tick(done, len(names))
    say(f"{written:,} overlays of {len(names) - len(errors):,} photos")
    if changed := key.write():
        say(changed)
    for message in errors:
        say(f"error: {message}")
    typer.echo(out)
    if errors:
        say(f"{len(errors):,} of {len(names):,} photos could not be read; the others are done.")
        raise typer.Exit(1)
