"""check, simulate."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer


def check(
    data: Annotated[str, typer.Argument(help="Folder of class folders, CSV, COCO JSON, VOC folder or Parquet table.")],
    images: Annotated[Path | None, typer.Option(help="Folder that image names in the labels are relative to.")] = None,
    val: Annotated[str | None, typer.Option(help="Validation labels.")] = None,
    test: Annotated[str | None, typer.Option(help="Test labels.")] = None,
    complete: Annotated[bool, typer.Option("--complete", help="What is not named is known to be absent.")] = False,
    set_: Annotated[
        list[str] | None, typer.Option("--set", metavar="KEY=VALUE", help="Reading options, e.g. data.uncertain=ones.")
    ] = None,
    headers_only: Annotated[bool, typer.Option("--headers-only", help="Do not decode every photo.")] = False,
    size: Annotated[int, typer.Option(help="Input side in pixels, for the heatmap memory.")] = 224,
    stride: Annotated[int, typer.Option(help="Pixels per map cell, for the heatmap memory.")] = 32,
    excluded: Annotated[
        Path | None, typer.Option(help="Write what would be left out, with reasons, to this CSV.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Everything as one JSON object.")] = False,
) -> None:
    """Say what labels and photos are, and what is wrong with them, before anything trains. Exit code 1 on errors."""
    from fewtags.cli.progress import counting
    from fewtags.cli.train import read_settings
    from fewtags.data.check import check as look
    from fewtags.data.vocabulary import common_vocabulary
    from fewtags.engine.plan import heatmap_need, read_named

    flags = {"data.train": data, "data.val": val, "data.test": test, "data.complete": complete or None}
    flags["data.images"] = None if images is None else str(images)
    settings = read_settings(None, {k: v for k, v in flags.items() if v is not None}, set_ or [])
    tables = common_vocabulary(read_named(settings.data))
    with counting("looking at photos") as tick:
        found = look(
            tables,
            decode=not headers_only,
            input_size=size,
            heatmaps=heatmap_need((max(1, size // stride), max(1, size // stride))),
            progress=tick,
        )
    if as_json:
        typer.echo(found.to_json())
    else:
        for line in found.lines():
            typer.echo(line)
    if excluded is not None:
        found.write_excluded_csv(excluded)
    if found.errors:
        raise typer.Exit(1)


def simulate(
    data: Annotated[str, typer.Argument(help="Complete labels.")],
    out: Annotated[Path, typer.Option(help="Where the partial labels go: .parquet, or .csv (image, class, state).")],
    images: Annotated[Path | None, typer.Option(help="Folder that image names in the labels are relative to.")] = None,
    protocol: Annotated[
        str, typer.Option(help="single (one positive per image), cole (the same, bit-exact with Cole et al.), keep.")
    ] = "single",
    seed: Annotated[int | None, typer.Option(help="Default 0; cole: 1200, as published.")] = None,
    positives: Annotated[float, typer.Option(help="keep: share of positives kept.")] = 1.0,
    negatives: Annotated[float, typer.Option(help="keep: share of negatives kept.")] = 0.0,
    set_: Annotated[list[str] | None, typer.Option("--set", metavar="KEY=VALUE", help="Reading options.")] = None,
) -> None:
    """Make partial labels from complete ones, to see what a method would do with fewer."""
    from fewtags.cli.train import read_settings
    from fewtags.data import simulate as make
    from fewtags.data.storage import save, write_csv
    from fewtags.engine.plan import read_one
    from fewtags.errors import ConfigError

    flags = {"data.train": data} | ({} if images is None else {"data.images": str(images)})
    table = read_one(read_settings(None, flags, set_ or []).data)
    if protocol in ("single", "cole"):
        if protocol == "single":
            table = make.single_positive(table, seed=seed or 0, protocol="plain")
        else:
            table = make.single_positive(table, seed=1200 if seed is None else seed, protocol="cole")
    elif protocol == "keep":
        table = make.keep(table, positives=positives, negatives=negatives, seed=seed or 0)
    else:
        raise ConfigError(f"--protocol {protocol!r}: expected single, cole or keep.")
    if out.suffix == ".parquet":
        save(table, out, keep_root=True)
    elif out.suffix == ".csv":
        write_csv(table, out)
    else:
        raise ConfigError(f"--out {out}: give a file that ends in .parquet or .csv.")
    for message in table.notes.messages:
        typer.echo(message, err=True)
    typer.echo(out)
