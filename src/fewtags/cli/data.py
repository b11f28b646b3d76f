"""`fewtags check` and `fewtags simulate`."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, cast

import typer

from fewtags.cli.cole import make_cole
from fewtags.cli.options import (
    POINTS_HELP,
    Complete,
    Covers,
    Json,
    ManyImages,
    ReadingSettings,
    TestImages,
    ValImages,
)
from fewtags.cli.progress import counting, echo, echo_finding, say
from fewtags.cli.reading import (
    point_rule,
    read_labels,
    reading_flags,
    split_sizes,
    training_images,
    with_outlines,
)
from fewtags.cli.train import read_settings
from fewtags.errors import ConfigError
from fewtags.files import refuse_file
from fewtags.formats import list_formats
from fewtags.text import counted, some, suggest

if TYPE_CHECKING:
    from fewtags.budget.purchase import Mode
    from fewtags.table.table import LabelTable

PROTOCOLS = ("single", "cole", "keep")


def check(
    data: Annotated[list[str], typer.Argument(help=f"Labels: {list_formats('title')}; one or several.")],
    images: ManyImages = None,
    val: Annotated[list[str] | None, typer.Option(help="Validation labels to compare with.")] = None,
    test: Annotated[list[str] | None, typer.Option(help="Test labels to compare with.")] = None,
    val_images: ValImages = None,
    test_images: TestImages = None,
    complete: Complete = False,
    covers: Covers = None,
    set_: ReadingSettings = None,
    headers_only: Annotated[bool, typer.Option("--headers-only", help="Read only the headers of the photos.")] = False,
    size: Annotated[int, typer.Option(min=1, help="Input side in pixels, to estimate heatmap memory.")] = 224,
    stride: Annotated[int, typer.Option(min=1, help="Pixels per map cell, to estimate heatmap memory.")] = 32,
    excluded: Annotated[
        Path | None, typer.Option(help="CSV file for the list of what would be left out, with reasons.")
    ] = None,
    as_json: Json = False,
) -> None:
    """Check labels and photos before training.

    Reports how each value was read, what is missing, broken, duplicate or contradictory, and what would be left out.
    Exit code 1 if data would be lost or misread.

    \b
    Examples:
      fewtags check photos/
      fewtags check tags.csv --images photos/ --excluded excluded.csv
      fewtags check cats.csv dogs.json --images photos/
      fewtags check train.csv --val val.csv --images photos/ --json
    """  # noqa: D301
    from fewtags.check.check import check as check_tables
    from fewtags.table.merge import common_vocabulary

    if excluded is not None:
        refuse_file(excluded, "--excluded", "excluded.csv", [*data, *(val or []), *(test or [])])
    flags = reading_flags(
        data, images, complete, val=val, test=test, val_images=val_images, test_images=test_images, covers=covers
    )
    settings = read_settings(None, flags, set_ or [])
    from fewtags.engine.memory import heatmap_need
    from fewtags.engine.tables import read_named, with_groups

    tables, _ = with_groups(settings.data, common_vocabulary(read_named(settings.data)))
    with counting("checking photos") as tick:
        found = check_tables(
            tables,
            decode=not headers_only,
            near_copies=settings.data.near_copies != "off",
            input_size=size,
            heatmaps=heatmap_need((max(1, size // stride), max(1, size // stride))),
            progress=tick,
        )
    if as_json:
        echo(found.to_json())
    else:
        for line in found.lines():
            echo_finding(line)
    if excluded is not None:
        excluded.parent.mkdir(parents=True, exist_ok=True)
        found.write_excluded_csv(excluded)
        say(f"list of what would be left out: {counted(len(found.excluded_rows()), 'row')} in {excluded}")
    elif found.excluded_rows() and not as_json:
        say(f"list of what would be left out: --excluded FILE writes {counted(len(found.excluded_rows()), 'row')}")
    if found.errors:
        raise typer.Exit(1)


def simulate(
    data: Annotated[
        list[str],
        typer.Argument(help="Complete labels, one or several files; with boxes, if points or boxes are simulated."),
    ],
    out: Annotated[
        Path, typer.Option(help="File for the partial labels: .parquet, or .csv (image, class, state, location).")
    ],
    images: ManyImages = None,
    test: Annotated[
        str | None,
        typer.Option(help="With --protocol cole: the official validation labels; default: split val, or else test."),
    ] = None,
    test_images: Annotated[
        Path | None, typer.Option(help="Folder of the photos of --test; default: as for the other labels.")
    ] = None,
    protocol: Annotated[
        str | None,
        typer.Option(
            help="single (one positive per image; the default), cole (the same, as Cole et al. drew them, with their "
            "train, val and test) or keep."
        ),
    ] = None,
    seed: Annotated[int | None, typer.Option(help="Random seed; default: 0, with cole 1200 as published.")] = None,
    positives: Annotated[
        float | None,
        typer.Option(min=0, max=1, help="With --protocol keep: share of the positives to keep; default 1."),
    ] = None,
    negatives: Annotated[
        float | None,
        typer.Option(min=0, max=1, help="With --protocol keep: share of the negatives to keep; default 0."),
    ] = None,
    budget: Annotated[
        str | None,
        typer.Option(
            help="Instead of --protocol: buy labels for an annotation time (12h, 30min, 900s), or for a share of the "
            "time of tagging every class in every image (1%)."
        ),
    ] = None,
    type_: Annotated[
        str | None,
        typer.Option(
            "--type", help="With --budget: tags (I), one-point (SP), one-box (SB), all-points (AP) or all-boxes (AB)."
        ),
    ] = None,
    cost: Annotated[
        str | None,
        typer.Option(
            help="With --budget: coco, objects365, or a TOML file with any of tag, point, extra_point, box (seconds), "
            "classes, positives_per_image, instances_per_image; default: PatchML's seconds and averages of the labels."
        ),
    ] = None,
    mode: Annotated[
        str | None,
        typer.Option(help="With --budget: flat (every label costs the average; the default) or exact (its own cost)."),
    ] = None,
    points: Annotated[
        str | None,
        typer.Option(help=f"With --budget. {POINTS_HELP}"),
    ] = None,
    complete: Complete = False,
    covers: Covers = None,
    set_: ReadingSettings = None,
) -> None:
    """Make partial labels from complete ones.

    Use it to test a method with fewer labels. The command reports what it kept on stderr and prints the file name on
    stdout. If the labels have splits, only the labels of training images are thinned; the others are not changed.
    --protocol cole reads COCO and VOC as published (classes that are not listed are absent; images without annotation
    are left out), and writes train, val (a fifth of the training images, complete) and test (the official val).

    \b
    Examples:
      fewtags simulate full.csv --images photos/ --out single.csv
      fewtags simulate full.csv --images photos/ --protocol keep --positives 0.4 --negatives 0.1 --out part.parquet
      fewtags simulate a.csv b.json --protocol keep --negatives 1 --out merged.parquet
      fewtags simulate instances_train2014.json --test instances_val2014.json --protocol cole --out cole.parquet
      fewtags simulate VOC2012/ --protocol cole --out cole.parquet
      fewtags simulate instances.json --complete --budget 1% --type one-point --out points.parquet
    """  # noqa: D301
    from fewtags.budget.costs import Annotation as LabelType
    from fewtags.budget.costs import find_cost
    from fewtags.budget.purchase import simulate_budget
    from fewtags.table.storage import save, unwritten_classes, write_csv

    purchase = {"type": type_, "cost": cost, "mode": mode, "points": points}
    _refuse_mixed(protocol, positives is not None or negatives is not None, budget, purchase)
    if out.suffix.lower() not in (".parquet", ".csv"):
        raise ConfigError(f"--out {out}: expected a file that ends in .parquet or .csv.")
    refuse_file(out, inputs=[*data, test, cost])
    if protocol != "cole" and (test or test_images):
        raise ConfigError(f"--{'test' if test else 'test-images'} is for --protocol cole, which writes a split test.")

    def thin(labels: LabelTable) -> LabelTable:
        if budget is None:
            return _thinned(labels, protocol or "single", seed, positives, negatives)
        mode_, rule = cast("Mode", mode or "flat"), point_rule(points)  # checked by the call
        return simulate_budget(labels, budget, type_ or "", seed or 0, find_cost(cost, labels), mode_, rule)

    shown = 0
    if protocol == "cole":
        if len(data) > 1 or covers or len(images or []) > 1:
            raise ConfigError(
                "--protocol cole reads one label file or folder, and --test the official validation labels."
            )
        folder = images[0] if images else None
        table = make_cole(data[0], folder, test, test_images or folder, complete=complete, assignments=set_, seed=seed)
    else:
        if budget is not None and LabelType.of(type_ or "").pointed and points in (None, "object"):
            set_ = with_outlines(data, images, complete, set_, seed or 0, covers=covers)
        whole = read_labels(data, images, complete, set_, covers=covers)
        table, shown = _training_thinned(whole, thin), len(whole.notes.messages)
    out.parent.mkdir(parents=True, exist_ok=True)
    if out.suffix.lower() == ".parquet":
        save(table, out, keep_root=True)
    else:
        write_csv(table, out)
    say(*table.notes.messages[shown:])
    if out.suffix.lower() == ".csv" and (silent := unwritten_classes(table)):
        say(
            f"warning: {len(silent):,} of {len(table.classes):,} classes have no label left and are not in {out.name}: "
            f"{some(silent)}; a .parquet file keeps them."
        )
    echo(out)


def _training_thinned(whole: LabelTable, thin: Callable[[LabelTable], LabelTable]) -> LabelTable:
    """Thin the labels of the training images; images of other splits are not changed."""
    import numpy as np

    from fewtags.table.merge import merge

    training = training_images(whole)
    train, rest = whole.subset(training), whole.subset(~training)
    messages = _incomplete(train)
    thinned = thin(train)
    if len(rest):
        order = np.argsort(np.concatenate([np.flatnonzero(training), np.flatnonzero(~training)]))
        sizes = f"thinned: {split_sizes(train.named_splits())}; not changed: {split_sizes(rest.named_splits())}"
        messages = [sizes, *messages]
        # Both parts have the notes of the whole table, which must not be repeated.
        thinned = replace(merge([thinned, rest]).subset(order), notes=thinned.notes)
    return thinned.noting(*messages)


def _incomplete(table: LabelTable) -> list[str]:
    """Return a warning if labels are missing before any are removed."""
    from fewtags.labels import Label

    cells = len(table) * len(table.classes)
    if not (unknown := int(table.matrix.counts(Label.UNKNOWN).sum())):
        return []
    return [
        f"warning: {unknown:,} of {cells:,} cells of the training images ({unknown / cells:.1%}) were already unknown, "
        "so fewer labels are left than the protocol states; pass --complete if classes that are not listed are absent."
    ]


def _refuse_mixed(protocol: str | None, shares: bool, budget: str | None, purchase: Mapping[str, str | None]) -> None:
    """Raise a `ConfigError` for options that are unknown or contradict each other."""
    from fewtags.budget.costs import Annotation

    if protocol is not None and protocol not in PROTOCOLS:
        raise ConfigError(
            f"--protocol {protocol}: expected one of {', '.join(PROTOCOLS)}{suggest(protocol, PROTOCOLS)}."
        )
    if budget is not None and protocol is not None:
        raise ConfigError(f"--budget {budget} and --protocol {protocol} are two ways to thin labels; give only one.")
    if protocol != "keep" and shares:
        instead = protocol or "single" if budget is None else f"--budget {budget}"
        raise ConfigError(f"--positives and --negatives are for --protocol keep, not {instead}.")
    if budget is None and (given := [name for name, value in purchase.items() if value is not None]):
        raise ConfigError(f"--{given[0]} is for --budget; give a budget as well, for example --budget 1%.")
    if budget is None:
        return
    if (type_ := purchase["type"]) is None:
        known = ", ".join(kind.described() for kind in Annotation)
        raise ConfigError(f"--budget {budget} needs --type, the labels to buy: {known}.")
    if purchase["points"] is not None and not (kind := Annotation.of(type_)).pointed:
        raise ConfigError(f"--points is for --type one-point or all-points, not {kind.described()}.")


def _thinned(
    table: LabelTable, protocol: str, seed: int | None, positives: float | None, negatives: float | None
) -> LabelTable:
    from fewtags.budget import simulate as make

    if protocol == "single":
        return make.single_positive(table, seed=seed or 0, protocol="plain")
    kept = 1.0 if positives is None else positives
    return make.keep(table, positives=kept, negatives=negatives or 0.0, seed=seed or 0)
