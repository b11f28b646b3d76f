"""`fewtags transfer neighbours`: what an encoder puts near what, as a page and a number."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer


def neighbours(
    encoder: Annotated[
        str,
        typer.Argument(help="Pretraining or training run; or with --backbone a weight file, none, offline or hub."),
    ],
    data: Annotated[
        str, typer.Argument(help="Labels; or with --unlabelled any folder of photos, or a text file with paths.")
    ],
    images: Annotated[Path | None, typer.Option(help="Folder that image names in the labels are relative to.")] = None,
    complete: Annotated[bool, typer.Option("--complete", help="What is not named is known to be absent.")] = False,
    unlabelled: Annotated[bool, typer.Option("--unlabelled", help="Do not read labels, just look.")] = False,
    backbone: Annotated[str | None, typer.Option(help="timm's name of the architecture of a weight file.")] = None,
    size: Annotated[int | None, typer.Option(min=32, help="Input side in pixels; default: the encoder's.")] = None,
    out: Annotated[Path, typer.Option(help="HTML file.")] = Path("neighbours.html"),
    rows: Annotated[int, typer.Option(min=1, help="Photos to show with their neighbours.")] = 12,
    k: Annotated[int, typer.Option("--neighbours", "-k", min=1, help="Neighbours of each.")] = 10,
    most: Annotated[int, typer.Option(min=2, help="Look at so many photos at most, drawn at random.")] = 2000,
    seed: Annotated[int, typer.Option(help="Draws the photos.")] = 0,
    cpu: Annotated[bool, typer.Option("--cpu", help="Ignore GPUs.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="The number as one JSON object.")] = False,
) -> None:
    """Show the photos that an encoder puts nearest to others, and how many share a class.

    \b
    Examples:
      fewtags transfer neighbours runs/pretrained tags.csv --images photos/
      fewtags transfer neighbours runs/pretrained photos/ --unlabelled
      fewtags transfer neighbours offline tags.csv --images photos/ --backbone tf_efficientnet_lite0
    """  # noqa: D301
    import json
    from dataclasses import asdict

    from fewtags.cli.progress import counting, say
    from fewtags.cli.reading import read_labels
    from fewtags.engine.encoder_file import find_encoder
    from fewtags.engine.machine import torch_device
    from fewtags.engine.pretrain_plan import excluded_lines
    from fewtags.files import refuse_file
    from fewtags.formats.unlabelled import check_photos
    from fewtags.formats.unlabelled import unlabelled as photos_alone
    from fewtags.photos.augment import WholeImage
    from fewtags.report.neighbours import neighbour_rows
    from fewtags.report.pretraining import build_neighbours_page

    refuse_file(out, example="neighbours.html", inputs=[data])
    net, info = find_encoder(encoder, backbone=backbone, size=size)
    table = photos_alone(data, images) if unlabelled else read_labels(data, images, complete, None)
    table = check_photos(table, decode=False)
    for line in (*table.notes.messages, *excluded_lines(table)):
        say(line)
    with counting("looking at photos") as tick:
        found = neighbour_rows(
            net, table, WholeImage(size or info.size), torch_device(cpu), queries=rows, k=k, most=most, seed=seed,
            tick=tick,
        )  # fmt: skip
    build_neighbours_page(net, info, table, found, out, encoder)
    report = found.report
    if as_json:
        values = {} if report is None else asdict(report)
        known = {key: None if value != value else value for key, value in values.items()}
        typer.echo(json.dumps({**known, "photos": found.photos, "page": str(out)}))
        return
    if report is not None:
        if report.images:
            typer.echo(
                f"{100 * report.precision:.1f} % of the {report.k} nearest photos share a class "
                f"(chance {100 * report.chance:.1f} %), {report.images:,} photos"
            )
        else:
            say("no photo has a known class and neighbours that can be judged.")
    typer.echo(out)
