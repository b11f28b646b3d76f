"""`fewtags pretrain`: train a backbone on photos without labels."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from fewtags.cli.follow import follow
from fewtags.cli.options import BatchSize, Continue, Cpu, DryRun, Epochs, Rate, Seed, Track, expand_groups
from fewtags.cli.progress import counting, is_main_process, say
from fewtags.cli.slurm import SlurmOptions
from fewtags.cli.train import (
    FASTER_CHECK,
    Set,
    flags_that_count,
    merged_tree,
    refuse_missing_inputs,
    starts_elsewhere,
)
from fewtags.objectives.table import DEFAULT_PRETRAIN_METHOD, PRETRAIN_METHODS, method_help
from fewtags.text import given_as_flags


@expand_groups
def pretrain(
    context: typer.Context,
    data: Annotated[
        str | None,
        typer.Argument(help="Folder of photos; or a label file, whose images are used; or a text file with paths."),
    ] = None,
    images: Annotated[Path | None, typer.Option(help="Folder that image names in a file are relative to.")] = None,
    out: Annotated[Path, typer.Option(help="Run folder; must be new or empty.")] = Path("runs/pretrained"),
    method: Annotated[
        str | None,
        typer.Option(
            help=method_help(PRETRAIN_METHODS, DEFAULT_PRETRAIN_METHOD), autocompletion=lambda: [*PRETRAIN_METHODS]
        ),
    ] = None,
    preset: Annotated[
        str | None, typer.Option(help="paper or small; default: paper with a GPU and 50,000 photos, else small.")
    ] = None,
    backbone: Annotated[str | None, typer.Option(help="Any timm model with a spatial feature map.")] = None,
    weights: Annotated[
        str | None, typer.Option(help="Initial weights: none (the default), offline, hub, or a file.")
    ] = None,
    config: Annotated[
        Path | None,
        typer.Option(help="TOML file with settings (see `fewtags config --pretrain`); flags and --set override it."),
    ] = None,
    set_: Set = None,
    epochs: Epochs = None,
    lr: Rate = None,
    batch_size: BatchSize = None,
    seed: Seed = None,
    track: Track = None,
    continue_: Continue = False,
    dry_run: DryRun = False,
    cpu: Cpu = False,
    *,
    slurm: SlurmOptions,
) -> None:
    """Pretrain a backbone on photos without labels.

    The backbone learns from two views of every photo, and some methods from its nearest photos. The run folder gets
    encoder.safetensors, from which `fewtags train --init FOLDER` starts, and report.html.

    \b
    Examples:
      fewtags pretrain photos/
      fewtags pretrain photos/ --method mls --backbone resnet50 --out runs/mls --epochs 400
      fewtags pretrain instances.json --images photos/ --method densecl
      fewtags train tags.csv --images photos/ --init runs/pretrained
    """  # noqa: D301
    from fewtags.config.parse import check_sections
    from fewtags.config.pretrain import PretrainConfig
    from fewtags.engine.runfolder import PRETRAINING, RunFolder, refuse_used_folder
    from fewtags.engine.tracking import check_tracker

    slurm.check()
    if track is not None:
        check_tracker(track)

    flags = {
        "data.train": data,
        "data.images": None if images is None else str(images),
        "objective.name": method,
        "train.preset": preset,
        "train.epochs": epochs,
        "train.lr": lr,
        "train.batch_size": batch_size,
        "train.seed": seed,
        "model.backbone": backbone,
        "model.weights": weights,
    }
    where = "the configuration" if config is None else str(config)
    tree = merged_tree(config, flags, set_ or [], "a folder of photos, for example `fewtags pretrain photos/`")
    with given_as_flags(flags_that_count(flags, set_ or [])):
        sections = check_sections(PretrainConfig, tree, where)
    if sections is not None:
        given = sections.data
        refuse_missing_inputs([given.train], [] if given.images is None else [given.images])
    folder = RunFolder(out, PRETRAINING)
    if is_main_process() and not (dry_run or continue_ or slurm.slurm):
        refuse_used_folder(out)
    from fewtags.engine.methods import read_pretrain_settings

    with given_as_flags(flags_that_count(flags, set_ or [])):
        settings = read_pretrain_settings(tree, where)
    if starts_elsewhere(folder, settings, slurm, context):
        return
    from fewtags.engine.machine import processes
    from fewtags.engine.pretrain_plan import make_pretrain_plan
    from fewtags.engine.pretrain_run import PretrainRun

    with counting("checking photos", faster=FASTER_CHECK if settings.data.decode else "") as tick:
        plan = make_pretrain_plan(settings, cpu=cpu, processes=processes(), progress=tick)
    say(*plan.lines())
    if dry_run:
        say("dry run: nothing was written.")
        return
    follow(folder, lambda _: PretrainRun(plan, out, cpu=cpu).start(), cpu, track)
