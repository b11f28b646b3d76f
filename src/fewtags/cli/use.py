"""`fewtags evaluate`, `predict` and `heatmap`: use a trained model."""

from __future__ import annotations

import json
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal, cast

import typer

from fewtags.cli.options import (
    Complete,
    Covers,
    Cpu,
    Json,
    ManyImages,
    MixedPrecision,
    Precision,
    ReadingSettings,
    Restart,
    Threshold,
    check_choice,
    check_precision,
)
from fewtags.cli.progress import counting, echo, say
from fewtags.cli.reading import read_labels, split_sizes
from fewtags.errors import ConfigError, DataError
from fewtags.files import refuse_file, refuse_folder
from fewtags.text import counted, suggest

if TYPE_CHECKING:
    from fewtags.engine.model import ModelInfo
    from fewtags.table.table import LabelTable

Model = Annotated[Path, typer.Argument(help="Run folder, its model.safetensors, or an ONNX file of `fewtags export`.")]

ENGINES = ("local", "ray")
"""What computes predictions: this process, or a Ray cluster."""
ALL_IMAGES = "all"
"""What --split takes for the images of every split."""
MANY_PHOTOS = 2_000
"""From this number of photos on, `predict` names the faster way."""
LOC_CUTS = 20
"""Default number of map thresholds of MaxBoxAccV2."""


def evaluate(
    model: Model,
    data: Annotated[
        list[str], typer.Argument(help="Labels to evaluate on, one or several files; unknown cells are ignored.")
    ],
    images: ManyImages = None,
    split: Annotated[
        str | None,
        typer.Option(
            help="Split to evaluate, if the labels have splits; or all; default: test, or else val, or else all."
        ),
    ] = None,
    complete: Complete = False,
    covers: Covers = None,
    localise: Annotated[bool, typer.Option("--localise", help="Also evaluate the heatmaps against boxes.")] = False,
    loc_cuts: Annotated[
        int | None,
        typer.Option(min=1, help="With --localise: number of thresholds for boxes from heatmaps; default: 20."),
    ] = None,
    set_: ReadingSettings = None,
    threshold: Threshold = None,
    precision: Precision = None,
    mixed_precision: MixedPrecision = None,
    as_json: Json = False,
    cpu: Cpu = False,
) -> None:
    """Evaluate a model on labels.

    Reports AP per class with intervals and counts, mAP, and CF1 and OF1 at the stored thresholds. Unknown cells are
    ignored. If no negative is known, AP is undefined, and hit@1, recall@k and mean rank are reported instead. Photos
    that cannot be read are reported and skipped, and the exit code is 1.

    With --localise, heatmaps are evaluated on photos with boxes: pointing game, IoA-P, mAP-loc, MaxBoxAccV2 and PxAP,
    each with the value of flat maps. MaxBoxAccV2 takes nearly all of that time; it uses 20 thresholds instead of the
    paper's 100 (--loc-cuts 100).

    \b
    Examples:
      fewtags evaluate runs/first test.csv --images photos/
      fewtags evaluate runs/first instances.json --images photos/ --complete --json
      fewtags evaluate runs/first instances.json --images photos/ --complete --localise
      fewtags evaluate runs/first tags.csv --images photos/ --split val
    """  # noqa: D301
    from fewtags.engine.places import refuse_missing_model

    if loc_cuts is not None and not localise:
        raise ConfigError("--loc-cuts is for --localise; give --localise as well, or leave it out.")
    arithmetic = check_precision(mixed_precision)
    refuse_missing_model(model)
    table, which = choose_split(read_labels(data, images, complete, set_, covers=covers), split)
    say(which)
    from fewtags.engine.inference import load_predictor
    from fewtags.engine.localise import even_cuts, localise_table, refuse_without_boxes
    from fewtags.engine.machine import torch_device
    from fewtags.engine.predict import score_table
    from fewtags.engine.trained_on import trained_on

    net, info = load_predictor(model, torch_device(cpu), arithmetic)
    info = with_own_thresholds(info, model, threshold, precision)
    if localise:
        refuse_without_boxes(info, table)
    scored = score_table(net, info, table, cpu=cpu)
    say(*scored.notes, *trained_on(model if model.is_dir() else model.parent, table))
    if info.untagged:
        say(f"warning: {info.untagged}")
    result = scored.evaluate(info)
    content, text = result.to_dict(), str(result)
    if localise:
        with counting("evaluating heatmaps") as tick:
            options = even_cuts(loc_cuts or LOC_CUTS)
            found = localise_table(net, info, table, scored, cpu=cpu, options=options, tick=tick)
        content, text = {**content, "localisation": found.to_dict()}, f"{text}\n\n{found}"
    echo(json.dumps(content) if as_json else text)
    _exit_if_unreadable(result.unreadable, len(table))


def with_own_thresholds(
    info: ModelInfo, model: Path, threshold: list[str] | None, precision: float | None
) -> ModelInfo:
    """Return the metadata with the thresholds of the options; print what is to be known about them."""
    from fewtags.engine.own_thresholds import with_thresholds

    changed, notes = with_thresholds(info, threshold, precision, model if model.is_dir() else model.parent)
    say(*notes)
    return changed


def _exit_if_unreadable(unreadable: int, photos: int) -> None:
    if unreadable:
        say(f"skipped: {unreadable:,} of {counted(photos, 'photo')}, because they cannot be read.")
        raise typer.Exit(1)


def choose_split(whole: LabelTable, asked: str | None, doing: str = "evaluating") -> tuple[LabelTable, str]:
    """Return the images to evaluate on, and a line that describes them.

    `asked` is a split in any common spelling, or "all"; None: test, or else val, or else all images. `doing` is the
    first word of the line.
    """
    from fewtags.formats.common import split_name

    named = {} if whole.split_names is None else whole.named_splits()
    if not any(named):
        if asked not in (None, ALL_IMAGES):
            raise ConfigError(f"--split {asked}: these labels have no splits; leave it out to use all images.")
        return whole, f"{doing} on {counted(len(whole), 'image')}"
    if asked == ALL_IMAGES and asked not in named:
        return whole, f"{doing} on all {len(whole):,} images: {split_sizes(named)}"
    usual = next((name for name in ("test", "val") if name in named), None)
    name = usual if asked is None else asked if asked in named else split_name(asked)
    if name is None:
        return whole, f"{doing} on all {len(whole):,} images, no split is test or val: {split_sizes(named)}"
    if name not in named:
        hint = suggest(name, list(named))
        raise ConfigError(
            f"--split {asked} is not a split of these labels{hint}; there are {split_sizes(named)}; or give all."
        )
    rest = {other: table for other, table in named.items() if other != name}
    which = f"{doing} on {split_sizes({name: named[name]})}"
    return named[name], f"{which}; not on {split_sizes(rest)}" if rest else f"{which} (all images)"


def predict(
    model: Model,
    photos: Annotated[list[Path], typer.Argument(help="Photos, folders, shards (.tar, .parquet), patterns, URLs.")],
    out: Annotated[
        Path | None, typer.Option(help="File ending in .csv, .parquet or .jsonl; default: CSV on stdout.")
    ] = None,
    wide: Annotated[
        bool, typer.Option("--wide", help="One row per photo and one column per class, with all probabilities.")
    ] = False,
    threshold: Threshold = None,
    precision: Precision = None,
    mixed_precision: MixedPrecision = None,
    max_tags: Annotated[int | None, typer.Option(min=1, help="Maximum number of tags per photo.")] = None,
    batch_size: Annotated[int, typer.Option(min=1, help="Photos per batch.")] = 32,
    workers: Annotated[int, typer.Option(min=0, help="Processes that decode photos; 0: none.")] = 0,
    raw: Annotated[
        bool,
        typer.Option(
            "--raw",
            help="Write names into CSV cells unchanged. By default, names that a spreadsheet would run as a formula "
            "get an apostrophe, and control characters become escapes.",
        ),
    ] = False,
    engine: Annotated[
        str,
        typer.Option(
            help="local (this process) or ray: a Ray cluster, that of RAY_ADDRESS or of this machine; without one, Ray "
            "starts on this machine.",
            autocompletion=lambda: [*ENGINES],
        ),
    ] = ENGINES[0],
    actors: Annotated[
        int | None,
        typer.Option(
            min=1,
            help="With --engine ray: number of copies of the model; default: one for each GPU, or else for each CPU.",
        ),
    ] = None,
    actor_cpus: Annotated[
        int | None,
        typer.Option(min=1, help="With --engine ray: CPUs of each copy; default: an equal share with GPUs, else 1."),
    ] = None,
    restart: Restart = False,
    compile_: Annotated[
        bool,
        typer.Option(
            "--compile",
            help="Compile the net with torch.compile first, which can take minutes. Needs a C++ compiler, on a GPU "
            "Triton; without one the net runs as it is.",
        ),
    ] = False,
    cpu: Cpu = False,
) -> None:
    """Tag photos.

    Writes one row per photo and tag: image, class, name, probability, threshold. `class` is the id of the class in the
    labels, `name` what people read; they differ only if the labels have both. Photos that cannot be read are reported
    and skipped, and the exit code is 1; with --out they are listed in NAME.unreadable.ENDING beside the table.

    With --out, a command that was interrupted or killed can be repeated: it continues after the photos that are done.

    With --engine ray, the machines of a cluster share the photos, which they need under the same paths. The numbers are
    those of one process with OMP_NUM_THREADS=1 (or as many threads as --actor-cpus).

    \b
    Examples:
      fewtags predict runs/first photos/ --out tags.csv
      fewtags predict runs/first photos/ --wide --out scores.parquet
      fewtags predict runs/first 'shards/photos-{000..009}.tar' --out tags.csv
      fewtags predict runs/first a.jpg b.jpg --threshold 0.5 --threshold cat=0.3 --max-tags 5
      fewtags predict runs/first photos/ --precision 0.9
      fewtags predict runs/first photos/ --engine ray --out tags.parquet
    """  # noqa: D301
    from fewtags.engine.places import find_photos, refuse_missing_model

    if restart and out is None:
        raise ConfigError("--restart is for --out: tables on stdout cannot be continued; remove it, or give --out.")
    on_ray = check_choice("--engine", engine, ENGINES) == "ray"
    if not on_ray and (actors or actor_cpus):
        raise ConfigError(f"{'--actors' if actors else '--actor-cpus'} is for --engine ray; give --engine ray as well.")
    if on_ray and workers:
        raise ConfigError("--workers is for --engine local; with --engine ray, give --actors or --actor-cpus.")
    if on_ray and compile_:
        raise ConfigError("--compile is for --engine local: the actors of Ray do not compile; remove one option.")
    arithmetic = check_precision(mixed_precision)
    refuse_missing_model(model)
    if out is not None and out.suffix:  # the writer refuses other endings and none
        refuse_file(out)
    paths, notes = find_photos(photos)
    from fewtags.cli.tables import PredictionWriter, PredictOptions, no_effect_on_wide, write_predictions
    from fewtags.engine.inference import compile_net, load_predictor
    from fewtags.engine.machine import torch_device
    from fewtags.nets.spatial import SpatialNet

    if wide and (threshold or precision is not None):
        raise ConfigError(no_effect_on_wide("--threshold" if threshold else "--precision"))
    # The actors of Ray choose a precision for their own device.
    net, info = load_predictor(model, torch_device(cpu), None if on_ray else arithmetic)
    info = with_own_thresholds(info, model, threshold, precision)
    writer = PredictionWriter(out, info, wide, max_tags, raw=raw)
    writer.settings["mixed_precision"] = arithmetic
    say(*notes)
    if info.untagged and not wide:
        say(f"warning: {info.untagged}")
    if isinstance(net, SpatialNet) and not on_ray and len(paths) >= MANY_PHOTOS and torch_device(cpu).type == "cpu":
        say("note: on a CPU, an ONNX file is faster: fewtags export RUN --to onnx, then predict with the file")
    with ExitStack() as stack:
        if on_ray:
            from fewtags.engine.ray_predict import RayEngine, choose_actors, ray_cluster

            ray = stack.enter_context(ray_cluster())
            pool = choose_actors(ray, actors, actor_cpus, cpu=cpu)
            say(str(pool))
            far = RayEngine(ray=ray, model=model, info=info, actors=pool, batch_size=batch_size, precision=arithmetic)
            options = PredictOptions(pool.device, batch_size, workers, restart, far)
        else:
            if compile_:
                say("compiling the net")
                net, problem = compile_net(net, info, torch_device(cpu), batch_size)
                say(*([f"note: {problem}"] if problem else []))
            options = PredictOptions(torch_device(cpu), batch_size, workers, restart)
        failed = write_predictions(net, info, paths, writer, options, "tagging photos")
    if out is not None:
        echo(out)
    _exit_if_unreadable(failed, len(paths))


def heatmap(
    model: Model,
    photos: Annotated[list[Path], typer.Argument(help="Photos, folders, shards (.tar, .parquet), patterns, URLs.")],
    out: Annotated[Path, typer.Option(help="Folder for PNG overlays (and arrays).")] = Path("heatmaps"),
    classes: Annotated[
        list[str] | None,
        typer.Option("--class", help="Class to draw; may be repeated. Default: the predicted classes."),
    ] = None,
    arrays: Annotated[
        bool, typer.Option("--arrays", help="Also write the maps of all classes, float32 [C, h, w], as .npy.")
    ] = False,
    coupled: Annotated[
        bool, typer.Option("--coupled", help="Maps times attention (TS-CAM), for a ViT with a class token.")
    ] = False,
    scale: Annotated[
        str,
        typer.Option(
            help="Colours: fixed (probability 0 to 1), relative (lowest to highest value of the map), or auto "
            "(relative if no place of the map reaches 0.5)."
        ),
    ] = "auto",
    threshold: Threshold = None,
    precision: Precision = None,
    mixed_precision: MixedPrecision = None,
    cpu: Cpu = False,
) -> None:
    """Draw heatmaps that show where a model sees each class.

    Writes one PNG per photo and class, `PHOTO.CLASS.png`; subfolders are kept. If a name cannot be used, names.csv
    says which photo and class a file shows. Photos that cannot be read are reported and skipped, and the exit code
    is 1.

    A picture has the photo, the heatmap over it, the class with its probability and threshold, and the scale of the
    colours. A heatmap shows the probability of the class at each position. If no place reaches 0.5, the colours go
    from the lowest to the highest value of this map, and the picture says so; --scale fixed makes all pictures
    comparable. With --coupled it shows the class token's attention times the class logit, scaled from the lowest to
    the highest value of each picture: where in the photo, not how sure. The arrays then contain the unscaled products.

    \b
    Examples:
      fewtags heatmap runs/first a.jpg
      fewtags heatmap runs/first photos/ --class cat --class dog --out heatmaps/ --arrays
      fewtags heatmap runs/vit a.jpg --coupled
    """  # noqa: D301
    from fewtags.engine.places import find_photos, refuse_missing_model

    kind = cast('Literal["auto", "fixed", "relative"]', check_choice("--scale", scale, ("auto", "fixed", "relative")))
    if coupled and kind == "fixed":
        raise ConfigError("--coupled maps have no common scale, so --scale fixed has no meaning; remove one option.")
    arithmetic = check_precision(mixed_precision)
    refuse_folder(out)
    refuse_missing_model(model)
    found, skipped = find_photos(photos)
    from fewtags.cli.heatmaps import HeatmapOptions, NameKey, output_names, write_heatmaps
    from fewtags.engine.inference import load_predictor
    from fewtags.engine.machine import torch_device
    from fewtags.engine.onnx_net import torch_net
    from fewtags.engine.own_thresholds import class_position
    from fewtags.nets.spatial import refuse_without_maps
    from fewtags.nets.tscam import attention_layers

    key = NameKey(out)
    names, notes = output_names(photos, found)
    net, info = load_predictor(model, torch_device(cpu), arithmetic)
    refuse_without_maps(info.head, "a heatmap")
    if classes and (threshold or precision is not None):
        given = "--threshold" if threshold else "--precision"
        raise ConfigError(f"--class says which classes to draw, so {given} has no effect; remove one option.")
    info = with_own_thresholds(info, model, threshold, precision)
    options = HeatmapOptions([class_position(info.classes, name) for name in classes or []], arrays, coupled, kind)
    if coupled:
        attention_layers(torch_net(net, "give attention"))  # raises now if the model has none
    say(*skipped, *notes)
    device, written = torch_device(cpu), 0
    errors: list[str] = []
    with counting("drawing heatmaps") as tick:
        for done, (path, name) in enumerate(names.items(), 1):
            try:
                files = write_heatmaps(net, info, path, out / name, options, device)
            except DataError as error:
                errors.append(str(error))
            else:
                key.add(path, name, files)
                written += sum(class_id is not None for class_id in files.values())
            tick(done, len(names))
    say(f"{counted(written, 'overlay')} of {counted(len(names) - len(errors), 'photo')}")
    if changed := key.write():
        say(changed)
    say(*(f"skipped: {message}" for message in errors))
    echo(out)
    _exit_if_unreadable(len(errors), len(names))
