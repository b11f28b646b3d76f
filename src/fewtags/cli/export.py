"""`fewtags export`: a trained model, or its backbone, for other programs."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from fewtags.cli.progress import echo, say
from fewtags.errors import ConfigError
from fewtags.files import refuse_file, refuse_folder
from fewtags.text import suggest

if TYPE_CHECKING:
    from fewtags.export.backbone import Format

MODEL_KINDS = ("onnx", "timm", "hub")
BACKBONE_KINDS = {"backbone": "timm", "torchvision": "torchvision", "detectron2": "detectron2"}
"""Kinds of files with a backbone without classifier, and the format of each."""
KINDS = (*MODEL_KINDS, *BACKBONE_KINDS)
Place = Annotated[Path, typer.Argument(help="Run folder or its weight file; also of pretraining, for its backbone.")]


def export(
    run: Place,
    to: Annotated[
        str, typer.Option("--to", help="onnx, timm or hub; the backbone alone: backbone, torchvision or detectron2.")
    ],
    out: Annotated[
        Path | None, typer.Option(help="File or folder to write; default: beside the model, as RUN/model.onnx.")
    ] = None,
    int8: Annotated[
        bool,
        typer.Option("--int8", help="With --to onnx: also write a quantised file, and compare its validation mAP."),
    ] = False,
    push: Annotated[
        str | None,
        typer.Option(metavar="NAME/REPO", help="With --to hub: upload the folder to this repository of Hugging Face."),
    ] = None,
    public: Annotated[bool, typer.Option("--public", help="With --push: a new repository is public.")] = False,
) -> None:
    """Write a trained model, or its backbone, for other programs.

    \b
    onnx         one file with scores and maps; normalisation is inside, and
                 preprocessing, classes and thresholds are in its metadata.
                 Results are compared with torch, and nothing is written if
                 they differ. predict, evaluate, heatmap and serve take the
                 file as MODEL.
    timm         a folder with the same logits, for
                 timm.create_model("local-dir:FOLDER", pretrained=True)
    hub          the same with a model card; --push uploads it
    backbone     the backbone without classifier, with timm's names
                 (.safetensors)
    torchvision  the same with torchvision's names (.safetensors)
    detectron2   the same for detectron2 (.pkl, ResNets only)

    fewtags does not export to TorchScript, which torch has deprecated, or to torch.export, whose files need the same
    version of torch as the run folder does: load the run folder with fewtags.Classifier.load.

    \b
    Examples:
      fewtags export runs/first --to onnx
      fewtags export runs/first --to onnx --int8
      fewtags export runs/first --to hub --push me/my-tags
      fewtags export runs/pretrained --to torchvision --out backbone.safetensors
    """  # noqa: D301
    if to not in KINDS:
        raise ConfigError(f"--to {to}: expected one of {', '.join(KINDS)}{_hint(to)}.")
    for given, option, needed in ((int8, "--int8", "--to onnx"), (push, "--push", "--to hub")):
        if given and needed != f"--to {to}":
            raise ConfigError(f"{option} needs {needed}; remove {option}, or give {needed}.")
    if public and push is None:
        raise ConfigError("--public is for --push; give --push NAME/REPO as well, or leave it out.")
    if to in BACKBONE_KINDS:
        _backbone(run, out, to)
    elif to == "onnx":
        _onnx(run, out, int8)
    else:
        _folder(run, out, to, push, public)


def _hint(word: str) -> str:
    if word in ("torchscript", "jit", "exported", "pt2"):
        return " (see `fewtags export --help` for the reason)"
    return suggest(word, KINDS)


def _beside(run: Path) -> Path:
    return run if run.is_dir() else run.parent


def _onnx(run: Path, out: Path | None, int8: bool) -> None:
    from fewtags.engine.places import model_path, refuse_missing_model

    out = _beside(run) / "model.onnx" if out is None else out
    refuse_file(out, example="model.onnx", inputs=[model_path(run)])
    refuse_missing_model(run)
    from fewtags.engine.model import load_model
    from fewtags.export.onnx import export_onnx

    net, info = load_model(run)
    say(*export_onnx(net, info, out).lines(info.size))
    echo(out)
    if int8:
        from fewtags.export.quantize import export_int8

        small = out.with_suffix(".int8.onnx")
        refuse_file(small)
        say(*export_int8(net, _beside(run), out, small).lines())
        echo(small)


def _folder(run: Path, out: Path | None, to: str, push: str | None, public: bool) -> None:
    from fewtags.engine.places import refuse_missing_model

    out = _beside(run) / to if out is None else out
    refuse_folder(out)
    if out.exists() and out.samefile(_beside(run)):
        raise ConfigError(f"--out {out} is the run folder, whose model would be lost; give another folder.")
    refuse_missing_model(run)
    from fewtags.engine.model import load_model
    from fewtags.export.hub import export_hub, push_folder
    from fewtags.export.timm import export_timm

    net, info = load_model(run)
    made = export_timm(net, info, out)
    say(f"timm's logits differ from those of fewtags by at most {made.gap:.1e} of the largest")
    if to == "hub":
        export_hub(_beside(run), info, out)
    say(f'load it with timm.create_model("local-dir:{out}", pretrained=True)')
    echo(out)
    if push is not None:
        echo(push_folder(out, push, private=not public))


def _backbone(run: Path, out: Path | None, to: str) -> None:
    ending = ".pkl" if to == "detectron2" else ".safetensors"
    write_backbone(run, _beside(run) / f"{to}{ending}" if out is None else out, BACKBONE_KINDS[to], "--out")


def write_backbone(encoder: Path, out: Path, format: str, option: str) -> None:
    """Write a backbone without classifier; `option` names `out` in messages."""
    from fewtags.engine.places import refuse_missing_encoder

    refuse_missing_encoder(encoder)
    from fewtags.engine.encoder_file import find_encoder
    from fewtags.export.backbone import as_format, export_backbone

    chosen: Format = as_format(format)
    sources = [encoder / name for name in ("encoder.safetensors", "model.safetensors")]
    refuse_file(out, option, "backbone.safetensors", sources if encoder.is_dir() else [encoder])
    net, info = find_encoder(encoder)
    say(export_backbone(net, info, out, chosen))
    echo(out)


def export_backbone(
    encoder: Place,
    out: Annotated[Path, typer.Argument(help="File: .safetensors for timm and torchvision, .pkl for detectron2.")],
    format: Annotated[str, typer.Option(help="timm, torchvision or detectron2.")] = "timm",
) -> None:
    """Write a backbone for another library: the earlier name of `fewtags export --to backbone`."""
    to = next((kind for kind, known in BACKBONE_KINDS.items() if known == format), format)
    write_backbone(encoder, out, format, "OUT")
    say(f"note: `fewtags export {encoder} --to {to} --out {out}` is the new name of this command")
