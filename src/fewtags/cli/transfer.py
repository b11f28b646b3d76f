"""`fewtags transfer`: evaluate an encoder on other tasks."""

from __future__ import annotations

import json
from dataclasses import asdict, replace
from pathlib import Path
from typing import Annotated

import typer

from fewtags.cli.options import Complete, Cpu, Images, Json, check_choice, expand_groups
from fewtags.cli.progress import counting, echo, say, show
from fewtags.cli.reading import read_labels
from fewtags.cli.train import refuse_missing_inputs
from fewtags.cli.transfer_options import (
    PRECISIONS,
    Backbone,
    EncoderOptions,
    SearchOptions,
    Size,
    TaskOptions,
    check_schedule,
    consume,
    prepare,
    print_probe_result,
    refuse_processes,
    settings_of,
)
from fewtags.errors import ConfigError
from fewtags.files import refuse_file

transfer_app = typer.Typer(
    help="Evaluate a (pretrained) encoder on other tasks: probes on frozen features, fine-tuning, detection, "
    "segmentation, nearest photos.",
    no_args_is_help=True,
    add_completion=False,
)


@transfer_app.command()
@expand_groups
def knn(
    options: EncoderOptions,
    task: TaskOptions,
    k: Annotated[int, typer.Option("--neighbours", "-k", min=1, help="Nearest training photos that vote.")] = 20,
    temperature: Annotated[
        float, typer.Option(help="A neighbour of cosine similarity s votes with weight exp(s / temperature).")
    ] = 0.07,
) -> None:
    """Classify by nearest neighbours on frozen features.

    \b
    Examples:
      fewtags transfer knn runs/pretrained data/flowers-102 --as flowers
      fewtags transfer knn offline tags.csv --backbone tf_efficientnet_lite0 --images photos/
      fewtags transfer knn runs/pretrained train/ --test test/ --per-class 10 --runs 5
    """  # noqa: D301
    from fewtags.transfer.protocols import knn_protocol
    from fewtags.transfer.trials import run_knn

    refuse_processes("knn")
    info, trials = prepare(options, task)
    with counting("encoding photos") as tick:
        results = run_knn(replace(trials, tick=tick), k=k, temperature=temperature)
    settings = {"k": k, "temperature": temperature}
    protocol = knn_protocol(trials.task, k, temperature)
    print_probe_result("knn", options, task.data, info, trials, results, settings, protocol)


@transfer_app.command()
@expand_groups
def svm(
    options: EncoderOptions,
    task: TaskOptions,
    costs: Annotated[
        list[float] | None,
        typer.Option(
            "--cost", help="C of the SVM, default 0.5; repeat it, and each class chooses the best over three folds."
        ),
    ] = None,
) -> None:
    """Train a linear SVM per class on frozen features.

    This is the VOC07 SVM protocol. It needs scikit-learn: fewtags[transfer].

    \b
    Examples:
      fewtags transfer svm runs/pretrained VOCdevkit --as voc2007
      fewtags transfer svm runs/pretrained VOCdevkit --as voc2007 --per-class 16 --runs 5
      fewtags transfer svm runs/pretrained tags.csv --images photos/ --cost 0.05 --cost 0.5 --cost 5
    """  # noqa: D301
    from fewtags.transfer.probes import SVM_COST
    from fewtags.transfer.protocols import svm_protocol
    from fewtags.transfer.trials import run_svm

    refuse_processes("svm")
    tried = costs or [SVM_COST]
    info, trials = prepare(options, task)
    with counting("encoding photos") as tick:
        results = run_svm(replace(trials, tick=tick), costs=tried)
    protocol = svm_protocol(trials.task, tried, info, trials.context.policy, trials.subsampled)
    print_probe_result("svm", options, task.data, info, trials, results, {"costs": tried}, protocol)


@transfer_app.command()
@expand_groups
def linear(
    options: EncoderOptions,
    task: TaskOptions,
    search: SearchOptions,
    epochs: Annotated[int, typer.Option(min=1, help="Passes over the training photos.")] = 100,
    batch_size: Annotated[int, typer.Option(min=1, help="Photos per step.")] = 256,
    schedule: Annotated[
        str, typer.Option(help="steps (a tenth after 60 % and 80 % of the epochs), cosine or constant.")
    ] = "steps",
    views: Annotated[int, typer.Option(min=1, help="Random crops per photo; each goes through the encoder once.")] = 8,
) -> None:
    """Train a linear layer on frozen features of random crops.

    The defaults are MoCo's: SGD, learning rate 30, 100 epochs. MoCo draws new crops in every epoch; this command reuses
    --views crops (--views 100 is the same). Features are not scaled, so the best learning rate depends on the encoder:
    repeat --lr to choose it on validation photos.

    \b
    Examples:
      fewtags transfer linear runs/pretrained data/dtd --as dtd --lr 0.3 --lr 3 --lr 30
      fewtags transfer linear runs/pretrained tags.csv --images photos/ --epochs 30 --lr 3 --runs 3
    """  # noqa: D301
    from fewtags.transfer.protocols import linear_protocol
    from fewtags.transfer.training import TrainSettings, grid
    from fewtags.transfer.trials import run_linear

    refuse_processes("linear")
    rates, decays = search.lrs or [30.0], search.decays or [0.0]
    base = TrainSettings(
        epochs=epochs,
        lr=rates[0],
        weight_decay=decays[0],
        batch_size=batch_size,
        schedule=check_schedule(schedule),
        workers=options.workers,
    )
    candidates = grid(base, rates, decays)
    info, trials = prepare(options, task, min_area=search.min_area)
    with counting("encoding photos") as tick:
        results = run_linear(replace(trials, tick=tick), candidates, views=views, consume=consume)
    settings = {**settings_of(candidates), "views": views}
    protocol = linear_protocol(trials.task, candidates, views, trials.subsampled)
    print_probe_result("linear", options, task.data, info, trials, results, settings, protocol)


@transfer_app.command()
@expand_groups
def finetune(
    options: EncoderOptions,
    task: TaskOptions,
    search: SearchOptions,
    epochs: Annotated[
        int | None, typer.Option(min=1, help="Passes over the training photos; default: 120; multi-label 30.")
    ] = None,
    batch_size: Annotated[
        int | None, typer.Option(min=1, help="Photos per step and process; default: 64; multi-label 16.")
    ] = None,
    schedule: Annotated[
        str, typer.Option(help="cosine (to 0), steps (a tenth after 60 % and 80 % of the epochs) or constant.")
    ] = "cosine",
    batchnorm_eval: Annotated[bool, typer.Option("--batchnorm-eval", help="Keep BatchNorm statistics fixed.")] = False,
    precision: Annotated[str, typer.Option(help="no (float32), bf16 or fp16.")] = "no",
) -> None:
    """Fine-tune the whole network with a new linear head.

    SGD, learning rate 0.01, weight decay 1e-4. Single-label: 120 epochs, as in MLS, and batch 64. Multi-label: 30
    epochs, batch 16, whole photos; VOC2007 at 448 pixels. The weights of the last epoch are evaluated; no file is
    written.

    \b
    Examples:
      fewtags transfer finetune runs/pretrained data/CUB_200_2011 --as cub200 --runs 3
      fewtags transfer finetune runs/pretrained VOCdevkit --as voc2007
      fewtags transfer finetune none data/dtd --as dtd --backbone resnet50 --lr 0.1 --lr 0.01
    """  # noqa: D301
    from fewtags.transfer.protocols import finetune_protocol
    from fewtags.transfer.training import TrainSettings, grid
    from fewtags.transfer.trials import run_finetune

    check_choice("--precision", precision, PRECISIONS)
    info, trials = prepare(options, task, finetune=True, min_area=search.min_area, precision=precision)
    single = trials.task.kind == "single"
    rates, decays = search.lrs or [0.01], search.decays or [1e-4]
    base = TrainSettings(
        epochs=epochs or (120 if single else 30),
        lr=rates[0],
        weight_decay=decays[0],
        batch_size=batch_size or (64 if single else 16),
        schedule=check_schedule(schedule),
        batchnorm_eval=batchnorm_eval,
        precision=precision,
        workers=options.workers,
    )
    candidates = grid(base, rates, decays)
    results = run_finetune(trials, candidates, consume=show)
    protocol = finetune_protocol(trials.task, base, info, trials.subsampled)
    print_probe_result("finetune", options, task.data, info, trials, results, settings_of(candidates), protocol)


@transfer_app.command()
def neighbours(
    encoder: Annotated[
        str,
        typer.Argument(help="Pretraining or training run; with --backbone also a weight file, none, offline or hub."),
    ],
    data: Annotated[
        str, typer.Argument(help="Labels; with --unlabelled any folder of photos, or a text file with paths.")
    ],
    images: Images = None,
    complete: Complete = False,
    unlabelled: Annotated[bool, typer.Option("--unlabelled", help="Do not read labels; only make the page.")] = False,
    backbone: Backbone = None,
    size: Size = None,
    out: Annotated[
        Path | None, typer.Option(help="HTML file; default: neighbours.html in the run folder, else none.")
    ] = None,
    rows: Annotated[int, typer.Option(min=1, help="Photos to show with their neighbours.")] = 12,
    k: Annotated[int, typer.Option("--neighbours", "-k", min=1, help="Neighbours of each photo.")] = 10,
    most: Annotated[int, typer.Option(min=2, help="Use at most this many photos, sampled at random.")] = 2000,
    seed: Annotated[int, typer.Option(help="Seed of the sampled photos.")] = 0,
    cpu: Cpu = False,
    as_json: Json = False,
) -> None:
    """Show photos with their nearest neighbours.

    Writes a page, and reports how many neighbours share a class with their photo. Only pairs of photos for which the
    labels decide that are counted.

    \b
    Examples:
      fewtags transfer neighbours runs/pretrained tags.csv --images photos/
      fewtags transfer neighbours runs/pretrained photos/ --unlabelled
      fewtags transfer neighbours offline tags.csv --images photos/ --backbone tf_efficientnet_lite0
    """  # noqa: D301
    from fewtags.engine.places import refuse_missing_encoder

    refuse_missing_encoder(encoder, backbone)
    refuse_missing_inputs([data], [] if images is None else [str(images)])
    from fewtags.engine.encoder_file import find_encoder
    from fewtags.engine.machine import torch_device
    from fewtags.engine.pretrain_plan import excluded_lines
    from fewtags.formats.unlabelled import check_photos
    from fewtags.formats.unlabelled import unlabelled as read_unlabelled
    from fewtags.photos.augment import WholeImage
    from fewtags.report.neighbours import neighbour_rows
    from fewtags.report.pretraining import build_neighbours_page

    if out is None and Path(encoder).is_dir():
        out = Path(encoder) / "neighbours.html"
    if out is not None:
        refuse_file(out, example="neighbours.html", inputs=[data])
    elif unlabelled:
        raise ConfigError(f"{encoder} is not a run folder, and --unlabelled only makes the page; give --out FILE.")
    net, info = find_encoder(encoder, backbone=backbone, size=size)
    table = read_unlabelled(data, images) if unlabelled else read_labels(data, images, complete, None)
    said = () if unlabelled else table.notes.messages
    table = check_photos(table, decode=False)
    say(*(line for line in table.notes.messages if line not in said), *excluded_lines(table))
    view = WholeImage(size or info.size)
    with counting("encoding photos") as tick:
        found = neighbour_rows(net, table, view, torch_device(cpu), queries=rows, k=k, most=most, seed=seed, tick=tick)
    if out is not None:
        build_neighbours_page(net, info, table, found, out, encoder)
    report = found.report
    if as_json:
        values = {} if report is None else asdict(report)
        known = {key: None if value != value else value for key, value in values.items()}
        echo(json.dumps({**known, "photos": found.photos, "page": None if out is None else str(out)}))
        return
    if report is not None and report.images:
        echo(
            f"{100 * report.precision:.1f} % of the {report.k} nearest photos share a class "
            f"(chance {100 * report.chance:.1f} %), {report.images:,} photos"
        )
    elif report is not None:
        say(
            "warning: no share of neighbours: no photo is known to differ from another one. The labels only name "
            "classes that are present; give labels with absent classes, "
            "or --complete if every photo is labelled completely"
        )
    if out is None:
        say("no page was written; give --out FILE.")
    else:
        echo(out)
