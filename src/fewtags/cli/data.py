"""check, simulate."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

PROTOCOLS = ("single", "cole", "keep")


def check(
    data: Annotated[str, typer.Argument(help="Folder of class folders, CSV, COCO JSON, VOC folder or Parquet table.")],
    images: Annotated[Path | None, typer.Option(help="Folder that image names in the labels are relative to.")] = None,
    val: Annotated[str | None, typer.Option(help="Validation labels, to compare with.")] = None,
    test: Annotated[str | None, typer.Option(help="Test labels, to compare with.")] = None,
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
    """Look at labels and photos before anything trains.

    Says how every value was read, what is missing, broken, doubled or contradictory, and what would be left out. Exit
    code 1 if data would be lost or misread.

    \b
    Examples:
      fewtags check photos/
      fewtags check tags.csv --images photos/ --excluded excluded.csv
      fewtags check train.csv --val val.csv --images photos/ --json
    """  # noqa: D301
    from fewtags.cli.progress import counting, say
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
        excluded.parent.mkdir(parents=True, exist_ok=True)
        found.write_excluded_csv(excluded)
        say(f"what would be left out: {len(found.excluded_rows()):,} rows in {excluded}")
    if found.errors:
        raise typer.Exit(1)


def simulate(
    data: Annotated[str, typer.Argument(help="Complete labels.")],
    out: Annotated[Path, typer.Option(help="Where the partial labels go: .parquet, or .csv (image, class, state).")],
    images: Annotated[Path | None, typer.Option(help="Folder that image names in the labels are relative to.")] = None,
    protocol: Annotated[
        str, typer.Option(help="single (one positive per image), cole (the same, bit-exact with Cole et al.) or keep.")
    ] = "single",
    seed: Annotated[int | None, typer.Option(help="Default 0; cole: 1200, as published.")] = None,
    positives: Annotated[
        float | None, typer.Option(min=0, max=1, help="With --protocol keep: share of the positives kept; default 1.")
    ] = None,
    negatives: Annotated[
        float | None, typer.Option(min=0, max=1, help="With --protocol keep: share of the negatives kept; default 0.")
    ] = None,
    complete: Annotated[bool, typer.Option("--complete", help="What is not named is known to be absent.")] = False,
    set_: Annotated[
        list[str] | None, typer.Option("--set", metavar="KEY=VALUE", help="Reading options, e.g. data.uncertain=ones.")
    ] = None,
) -> None:
    """Make partial labels out of complete ones.

    Shows what a method would do with fewer labels. What was kept is told on stderr, the file on stdout.

    \b
    Examples:
      fewtags simulate full.csv --images photos/ --out single.csv
      fewtags simulate full.csv --images photos/ --protocol keep --positives 0.4 --negatives 0.1 --out part.parquet
    """  # noqa: D301
    from fewtags.cli.progress import say
    from fewtags.cli.train import read_settings
    from fewtags.data import simulate as make
    from fewtags.data.storage import save, write_csv
    from fewtags.engine.plan import read_one
    from fewtags.errors import ConfigError
    from fewtags.labels import suggest

    if protocol not in PROTOCOLS:
        raise ConfigError(
            f"--protocol {protocol!r} is not known{suggest(protocol, PROTOCOLS)}: {', '.join(PROTOCOLS)}."
        )
    if protocol != "keep" and (positives, negatives) != (None, None):
        raise ConfigError(f"--positives and --negatives are for --protocol keep, not {protocol}.")
    if out.suffix.lower() not in (".parquet", ".csv"):
        raise ConfigError(f"--out {out}: expected a file that ends in .parquet or .csv.")
    flags = {
        "data.train": data,
        "data.complete": complete or None,
        "data.images": None if images is None else str(images),
    }
    table = read_one(read_settings(None, {k: v for k, v in flags.items() if v is not None}, set_ or []).data)
    before = len(table.notes.messages)
    if protocol == "single":
        table = make.single_positive(table, seed=seed or 0, protocol="plain")
    elif protocol == "cole":
        table = make.single_positive(table, seed=make.COLE_SEED if seed is None else seed, protocol="cole")
    else:
        kept = (1.0 if positives is None else positives, 0.0 if negatives is None else negatives)
        table = make.keep(table, positives=kept[0], negatives=kept[1], seed=seed or 0)
    out.parent.mkdir(parents=True, exist_ok=True)
    if out.suffix.lower() == ".parquet":
        save(table, out, keep_root=True)
    else:
        write_csv(table, out)
    for message in table.notes.messages[before:]:
        say(message)
    typer.echo(out)
