"""`fewtags export-backbone`: a trained backbone for other libraries."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from fewtags.cli.progress import echo, say
from fewtags.files import refuse_file


def export_backbone(
    encoder: Annotated[Path, typer.Argument(help="Folder of a pretraining or training run, or its weight file.")],
    out: Annotated[Path, typer.Argument(help="File: .safetensors for timm and torchvision, .pkl for detectron2.")],
    format: Annotated[str, typer.Option(help="timm, torchvision or detectron2.")] = "timm",
) -> None:
    """Write a backbone for another library.

    \b
    Examples:
      fewtags export-backbone runs/pretrained backbone.safetensors
      fewtags export-backbone runs/pretrained backbone.pkl --format detectron2
    """  # noqa: D301
    from fewtags.engine.encoder_file import find_encoder
    from fewtags.export import as_format
    from fewtags.export import export_backbone as export

    chosen = as_format(format)
    sources = [encoder / name for name in ("encoder.safetensors", "model.safetensors")]
    refuse_file(out, option="OUT", example="backbone.safetensors", inputs=sources if encoder.is_dir() else [encoder])
    net, info = find_encoder(encoder)
    say(export(net, info, out, chosen))
    echo(out)
