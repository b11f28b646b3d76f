"""check, simulate."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, cast

import typer

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from fewtags.budget.purchase import Mode, PointRule
    from fewtags.table.table import LabelTable

PROTOCOLS = ("single", "cole", "keep")


def check(
    data: Annotated[
        str,
        typer.Argument(help="Class folders, CSV, COCO, VOC, YOLO, OpenImages, Label Studio, CVAT, or a Parquet table."),
    ],
    images: Annotated[Path | None, typer.Option(help="Folder that image names in the labels are relative to.")] = None,
    val: Annotated[str | None, typer.Option(help="Validation labels, to compare with.")] = None,
    test: Annotated[str | None, typer.Option(help="Test labels, to compare with.")] = None,
    complete: Annotated[bool, typer.Option("--complete", help="What is not named is known to be absent.")] = False,
    set_: Annotated[
        list[str] | None, typer.Option("--set", metavar="KEY=VALUE", help="Reading options, e.g. data.uncertain=ones.")
    ] = None,
    headers_only: Annotated[bool, typer.Option("--headers-only", help="Do not decode every photo.")] = False,
    size: Annotated[int, typer.Option(min=1, help="Input side in pixels, for the heatmap memory.")] = 224,
    stride: Annotated[int, typer.Option(min=1, help="Pixels per map cell, for the heatmap memory.")] = 32,
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
    from fewtags.check.check import check as look
    from fewtags.cli.progress import counting, say
    from fewtags.cli.train import read_settings
    from fewtags.files import refuse_file
    from fewtags.table.vocabulary import common_vocabulary

    if excluded is not None:
        refuse_file(excluded, "--excluded", "excluded.csv", [data, val, test])
    flags = {"data.train": data, "data.val": val, "data.test": test, "data.complete": complete or None}
    flags["data.images"] = None if images is None else str(images)
    settings = read_settings(None, {k: v for k, v in flags.items() if v is not None}, set_ or [])
    from fewtags.engine.memory import heatmap_need
    from fewtags.engine.plan import read_named

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
    data: Annotated[str, typer.Argument(help="Complete labels; with boxes, where points or boxes are to be bought.")],
    out: Annotated[
        Path, typer.Option(help="Where the partial labels go: .parquet, or .csv (image, class, state, location).")
    ],
    images: Annotated[Path | None, typer.Option(help="Folder that image names in the labels are relative to.")] = None,
    protocol: Annotated[
        str | None,
        typer.Option(
            help="single (one positive per image; the default), cole (the same, bit-exact with Cole et al.) or keep."
        ),
    ] = None,
    seed: Annotated[int | None, typer.Option(help="Default 0; cole: 1200, as published.")] = None,
    positives: Annotated[
        float | None, typer.Option(min=0, max=1, help="With --protocol keep: share of the positives kept; default 1.")
    ] = None,
    negatives: Annotated[
        float | None, typer.Option(min=0, max=1, help="With --protocol keep: share of the negatives kept; default 0.")
    ] = None,
    budget: Annotated[
        str | None,
        typer.Option(
            help="Instead of --protocol: buy labels for a time (12h, 30min, 900s), or for a share of the time that "
            "tagging every class in every image takes (1%)."
        ),
    ] = None,
    type_: Annotated[
        str | None,
        typer.Option(
            "--type",
            help="With --budget: tags (I), one-point (SP), one-box (SB), all-points (AP) or all-boxes (AB).",
        ),
    ] = None,
    cost: Annotated[
        str | None,
        typer.Option(
            help="With --budget: coco, objects365, or a TOML file with any of tag, point, extra_point, box (seconds), "
            "classes, positives_per_image, instances_per_image; default: PatchML's seconds, averages of the labels."
        ),
    ] = None,
    mode: Annotated[
        str | None,
        typer.Option(help="With --budget: flat (each pair costs the average; the default) or exact (what it takes)."),
    ] = None,
    points: Annotated[
        str | None,
        typer.Option(help="With --budget: uniform (anywhere in the box; the default) or centre (close to its centre)."),
    ] = None,
    complete: Annotated[bool, typer.Option("--complete", help="What is not named is known to be absent.")] = False,
    set_: Annotated[
        list[str] | None, typer.Option("--set", metavar="KEY=VALUE", help="Reading options, e.g. data.uncertain=ones.")
    ] = None,
) -> None:
    """Make partial labels out of complete ones.

    Shows what a method would do with fewer labels. What was kept is told on stderr, the file on stdout. Where the
    labels name splits, those of the training images are thinned, and all others are written as they are.

    \b
    Examples:
      fewtags simulate full.csv --images photos/ --out single.csv
      fewtags simulate full.csv --images photos/ --protocol keep --positives 0.4 --negatives 0.1 --out part.parquet
      fewtags simulate instances.json --complete --budget 1% --type one-point --out points.parquet
    """  # noqa: D301
    from fewtags.cli.progress import say
    from fewtags.cli.reading import read_labels
    from fewtags.errors import ConfigError
    from fewtags.files import refuse_file
    from fewtags.table.storage import save, unwritten_classes, write_csv

    shares = {"positives": positives, "negatives": negatives}
    purchase = {"type": type_, "cost": cost, "mode": mode, "points": points}
    _refuse_mixed(protocol, shares, budget, purchase)
    if out.suffix.lower() not in (".parquet", ".csv"):
        raise ConfigError(f"--out {out}: expected a file that ends in .parquet or .csv.")
    refuse_file(out, inputs=[data, cost])

    def thin(table: LabelTable) -> LabelTable:
        if budget is None:
            return _thinned(table, protocol or "single", seed, shares)
        return _bought(table, budget, seed or 0, purchase)

    whole = read_labels(data, images, complete, set_)
    table = _training_thinned(whole, thin)
    out.parent.mkdir(parents=True, exist_ok=True)
    if out.suffix.lower() == ".parquet":
        save(table, out, keep_root=True)
    else:
        write_csv(table, out)
    for message in table.notes.messages[len(whole.notes.messages) :]:
        say(message)
    if out.suffix.lower() == ".csv" and (silent := unwritten_classes(table)):
        named = ", ".join(map(repr, silent[:5])) + (", ..." if len(silent) > 5 else "")
        say(
            f"warning: {len(silent):,} of {len(table.classes):,} classes are not in {out.name}, since no label of them "
            f"is left ({named}); a .parquet file keeps them."
        )
    typer.echo(out)


def _training_thinned(whole: LabelTable, thin: Callable[[LabelTable], LabelTable]) -> LabelTable:
    """The labels of the training images thinned; where splits are named, all other images as they are.

    Raises:
        DataError: the labels name splits, but none to train on.
    """
    from dataclasses import replace

    import numpy as np

    from fewtags.cli.reading import split_sizes
    from fewtags.table.merge import merge

    training = _training_images(whole)
    train, rest = whole.subset(training), whole.subset(~training)
    said = _incomplete(train)
    thinned = thin(train)
    if len(rest):
        order = np.argsort(np.concatenate([np.flatnonzero(training), np.flatnonzero(~training)]))
        said = [
            f"thinned: {split_sizes(train.named_splits())}; as they were: {split_sizes(rest.named_splits())}",
            *said,
        ]
        # Notes of the parts are those of the whole, which would come twice.
        thinned = replace(merge([thinned, rest]).subset(order), notes=thinned.notes)
    return thinned.noting(*said)


def _training_images(table: LabelTable) -> NDArray[np.bool_]:
    """Bool [N]: split "train"; or, without one, all that are not for val or test, as `train` takes them."""
    import numpy as np

    from fewtags.cli.reading import split_sizes
    from fewtags.errors import DataError

    if table.split_names is None:
        return np.ones(len(table), np.bool_)
    names = np.array([name or "" for name in table.split_names.to_pylist()], str)
    training = names == "train" if "train" in names else ~np.isin(names, ("val", "test"))
    if not training.any():
        raise DataError(
            f"there are no training images to thin, only {split_sizes(table.named_splits())}; call the split of those "
            "images 'train', or leave it empty."
        )
    return training


def _incomplete(table: LabelTable) -> list[str]:
    """A warning if labels are missing before any are taken away."""
    from fewtags.labels import Label

    cells = len(table) * len(table.classes)
    if not (unknown := int(table.matrix.counts(Label.UNKNOWN).sum())):
        return []
    return [
        f"warning: {unknown:,} of {cells:,} cells of the training images ({unknown / cells:.1%}) were unknown before, "
        "so fewer labels are left than the protocol says; pass --complete if what is not named is known to be absent."
    ]


def _refuse_mixed(
    protocol: str | None, shares: Mapping[str, object], budget: str | None, purchase: Mapping[str, str | None]
) -> None:
    """Options that are unknown or do not go together."""
    from fewtags.budget.costs import Annotation
    from fewtags.errors import ConfigError
    from fewtags.text import suggest

    if protocol is not None and protocol not in PROTOCOLS:
        raise ConfigError(
            f"--protocol {protocol!r} is not known{suggest(protocol, PROTOCOLS)}: {', '.join(PROTOCOLS)}."
        )
    if budget is not None and protocol is not None:
        raise ConfigError(f"--budget {budget} and --protocol {protocol} are two ways to thin labels; give one of them.")
    if protocol != "keep" and any(share is not None for share in shares.values()):
        instead = protocol or "single" if budget is None else f"--budget {budget}"
        raise ConfigError(f"--positives and --negatives are for --protocol keep, not {instead}.")
    if budget is None and (given := [name for name, value in purchase.items() if value is not None]):
        raise ConfigError(f"--{given[0]} is for --budget; say how much to spend, for example --budget 1%.")
    if budget is None:
        return
    if (type_ := purchase["type"]) is None:
        known = ", ".join(kind.described() for kind in Annotation)
        raise ConfigError(f"--budget {budget} needs --type, what to buy with it: {known}.")
    if purchase["points"] is not None and not (kind := Annotation.of(type_)).pointed:
        raise ConfigError(f"--points is for --type one-point or all-points, not {kind.described()}.")


def _thinned(table: LabelTable, protocol: str, seed: int | None, shares: Mapping[str, float | None]) -> LabelTable:
    from fewtags.budget import simulate as make

    if protocol == "single":
        return make.single_positive(table, seed=seed or 0, protocol="plain")
    if protocol == "cole":
        return make.single_positive(table, seed=make.COLE_SEED if seed is None else seed, protocol="cole")
    positives, negatives = shares["positives"], shares["negatives"]
    return make.keep(
        table,
        positives=1.0 if positives is None else positives,
        negatives=0.0 if negatives is None else negatives,
        seed=seed or 0,
    )


def _bought(table: LabelTable, budget: str, seed: int, purchase: Mapping[str, str | None]) -> LabelTable:
    from fewtags.budget.costs import find_cost
    from fewtags.budget.purchase import simulate_budget

    return simulate_budget(
        table,
        budget,
        purchase["type"] or "",
        seed,
        find_cost(purchase["cost"], table),
        cast("Mode", purchase["mode"] or "flat"),  # Other words are refused there.
        cast("PointRule", purchase["points"] or "uniform"),
    )
