"""`fewtags suggest`: which unknown labels to ask about, and which labels may be wrong."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from fewtags.cli.options import Complete, Covers, Cpu, Json, ManyImages, ReadingSettings
from fewtags.cli.progress import echo, say
from fewtags.cli.reading import read_labels
from fewtags.cli.use import Model
from fewtags.errors import ConfigError
from fewtags.files import refuse_file, write_text

if TYPE_CHECKING:
    from fewtags.labels import ClassNames
    from fewtags.review.questions import Question
    from fewtags.table.table import LabelTable

SHOWN = 30
"""Questions that the text table shows; files have all."""


def suggest(
    model: Model,
    data: Annotated[
        list[str] | None, typer.Argument(help="Labels with unknown cells; default: the run's own training photos.")
    ] = None,
    images: ManyImages = None,
    photos: Annotated[
        list[Path] | None, typer.Option("--photos", help="Photos without labels, or folders of them, instead of DATA.")
    ] = None,
    wrong: Annotated[
        bool, typer.Option("--wrong", help="List labels that may be wrong instead of unknown cells to ask about.")
    ] = False,
    order: Annotated[
        str | None, typer.Option(help="Order of questions; default: the one that simulations chose.")
    ] = None,
    limit: Annotated[int, typer.Option(min=1, help="Number of questions.")] = 100,
    per_class: Annotated[int | None, typer.Option(min=1, help="Most questions about one class.")] = None,
    seed: Annotated[int, typer.Option(help="Seed of the random orders.")] = 0,
    out: Annotated[Path | None, typer.Option(help="Also write a table ending in .csv or .parquet.")] = None,
    label_studio: Annotated[
        Path | None,
        typer.Option(help="Also write tasks for Label Studio (.json), and its interface beside them (.xml)."),
    ] = None,
    cvat: Annotated[Path | None, typer.Option(help="Also write annotations for CVAT (.xml).")] = None,
    fiftyone: Annotated[Path | None, typer.Option(help="Also write the labels of a FiftyOne data set (.json).")] = None,
    complete: Complete = False,
    covers: Covers = None,
    set_: ReadingSettings = None,
    workers: Annotated[int, typer.Option(min=0, help="Processes that decode photos; 0: none.")] = 0,
    as_json: Json = False,
    cpu: Cpu = False,
) -> None:
    """Suggest labels to ask about, the most useful first, or labels that may be wrong.

    Each question is about one unknown cell: does this photo show this class? It has a calibrated probability, its rank
    among the photos without an answer, how many positives are expected among these, and a box where the model sees the
    class. With --wrong, each line is a label that contradicts the model. Photos that cannot be read are left out.

    \b
    Examples:
      fewtags suggest runs/first
      fewtags suggest runs/first --limit 500 --out questions.csv --label-studio tasks.json
      fewtags suggest runs/first --photos new/ --per-class 20
      fewtags suggest runs/first --wrong --out wrong.csv
    """  # noqa: D301
    from fewtags.engine.places import refuse_missing_model

    refuse_missing_model(model)
    from fewtags.engine.inference import load_predictor
    from fewtags.engine.machine import torch_device
    from fewtags.engine.predict import matched, score_table
    from fewtags.review.orders import DEFAULT_ORDER
    from fewtags.review.questions import add_evidence, check_order, run_share, suggest_from
    from fewtags.review.suspicious import find_suspicious
    from fewtags.review.tables import question_rows, suspicion_rows, text_table, write_table

    check_order(order or DEFAULT_ORDER, limit, per_class)
    tools = {"--label-studio": label_studio, "--cvat": cvat, "--fiftyone": fiftyone}
    _refuse_outputs(out, tools)
    if wrong and (used := [name for name, path in {**tools, "--order": order}.items() if path is not None]):
        raise ConfigError(f"{used[0]} is for questions, so it has no effect with --wrong; remove one option.")
    net, info = load_predictor(model, torch_device(cpu))
    run = model if model.is_dir() else model.parent
    table = _read(run, info.classes, data, photos, lambda: read_labels(data, images, complete, set_, covers=covers))
    table, _ = matched(info, table)
    scored = score_table(net, info, table, cpu=cpu, workers=workers)
    say(*scored.notes)
    share = run_share(run, info)
    if wrong:
        rows = suspicion_rows(find_suspicious(scored, info, table, share, limit=limit, per_class=per_class))
    else:
        asked = suggest_from(
            scored, info, table, share, order=order or DEFAULT_ORDER, limit=limit, per_class=per_class, seed=seed
        )
        asked = add_evidence(asked, net, info, table, cpu=cpu, workers=workers)
        rows = question_rows(asked)
        _write_tasks(table, asked, label_studio, cvat, fiftyone)
    if out is not None:
        write_table(rows, out)
    if as_json:
        echo(json.dumps(rows, ensure_ascii=False))
    else:
        echo(text_table(rows, SHOWN, wrong))
    for path in (out, label_studio, cvat, fiftyone):
        if path is not None:
            say(f"wrote {path}")


def _refuse_outputs(out: Path | None, tools: dict[str, Path | None]) -> None:
    """Check before any work that every file can be written, and that no two are the same."""
    from fewtags.review.tables import refuse_ending

    if out is not None:
        refuse_ending(out)
        refuse_file(out, example="questions.csv")
    for option, path in tools.items():
        if path is not None:
            ending = ".xml" if option == "--cvat" else ".json"
            if path.suffix.lower() != ending:
                raise ConfigError(f"{option} {path}: expected a file ending in {ending}.")
            refuse_file(path, option, f"tasks{ending}")
    interface = tools["--label-studio"]
    files = [*tools.values(), None if interface is None else interface.with_suffix(".xml")]
    given = [path.absolute() for path in files if path is not None]
    if len(given) != len(set(given)):
        raise ConfigError(f"two options would write {max(given, key=given.count)}; give different files.")


def _read(
    run: Path, classes: ClassNames, data: list[str] | None, photos: list[Path] | None, reading: Callable[[], LabelTable]
) -> LabelTable:
    """Return the labels that the options name, or those of the run."""
    from fewtags.review.questions import run_table, unlabelled

    if data and photos:
        raise ConfigError("--photos is for photos without labels, instead of label files; give one of them.")
    if photos:
        table, notes = unlabelled(photos, classes)
        say(*notes)
        return table
    return reading() if data else run_table(run)


def _write_tasks(
    table: LabelTable, asked: list[Question], label_studio: Path | None, cvat: Path | None, fiftyone: Path | None
) -> None:
    """Write the questions for other tools."""
    from fewtags.photos.decode import probe
    from fewtags.review.exchange import cvat_annotations, fiftyone_labels, label_studio_config, label_studio_tasks

    sizes = {}
    if label_studio is not None or cvat is not None:
        root = table.require_root()
        for key in dict.fromkeys(q.image for q in asked):
            header = probe(root / key)
            sizes[key] = header.width, header.height
    texts: list[tuple[Path, str]] = []
    if label_studio is not None:
        texts.append((label_studio, json.dumps(label_studio_tasks(asked, sizes), ensure_ascii=False, indent=1)))
        texts.append((label_studio.with_suffix(".xml"), label_studio_config(asked)))
    if cvat is not None:
        texts.append((cvat, cvat_annotations(asked, sizes)))
    if fiftyone is not None:
        texts.append((fiftyone, json.dumps(fiftyone_labels(asked), ensure_ascii=False, indent=1)))
    for path, text in texts:
        path.parent.mkdir(parents=True, exist_ok=True)
        write_text(path, text)
