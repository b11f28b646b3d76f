"""plan: what to buy with hours of annotation."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from fewtags.budget.costs import Annotation, CostModel
    from fewtags.budget.planner import BudgetPlan, Guide
    from fewtags.config.sections import Config
    from fewtags.engine.pilot import Design
    from fewtags.table.table import LabelTable

MEASURE_ON = 0.3


def plan(
    data: Annotated[
        str | None,
        typer.Argument(help="Complete labels of a few hundred photos: for averages, and for --run-pilot."),
    ] = None,
    hours: Annotated[float | None, typer.Option(help="The budget in hours.")] = None,
    budget: Annotated[
        str | None,
        typer.Option(help="Or in the words of `simulate`: 12h, 30min, 900s, or 1% of tagging every class everywhere."),
    ] = None,
    photos: Annotated[
        int | None, typer.Option(min=1, help="How many photos there are to label.", show_default=False)
    ] = None,
    classes: Annotated[int | None, typer.Option(min=1, help="How many classes; default: those of LABELS.")] = None,
    positives: Annotated[
        float | None, typer.Option(min=0, help="How many of them an average photo shows; default: as in LABELS.")
    ] = None,
    instances: Annotated[
        float | None, typer.Option(min=0, help="How many objects these are; default: as in LABELS.")
    ] = None,
    cost: Annotated[
        str | None, typer.Option(help="coco, objects365, or a TOML file, as in `simulate`; default: PatchML's seconds.")
    ] = None,
    tag: Annotated[float | None, typer.Option(help="Seconds that a yes or no takes you (1).")] = None,
    point: Annotated[float | None, typer.Option(help="Seconds of a yes with a point (2.4).")] = None,
    extra_point: Annotated[float | None, typer.Option(help="Seconds of each further point (0.9).")] = None,
    box: Annotated[float | None, typer.Option(help="Seconds of a box (7).")] = None,
    pilot: Annotated[
        Path | None,
        typer.Option(help="Measured runs, .jsonl or .csv: type, seed, mAP, and labels or budget_seconds."),
    ] = None,
    run_pilot: Annotated[
        bool, typer.Option("--run-pilot", help="Measure them now: train on simulated budgets of LABELS.")
    ] = False,
    out: Annotated[
        Path | None, typer.Option(help="With --run-pilot: its folder; of an interrupted pilot, it goes on.")
    ] = None,
    images: Annotated[Path | None, typer.Option(help="Folder that image names in the labels are relative to.")] = None,
    types: Annotated[
        str | None,
        typer.Option(help="Types to compare, as tags,one-point or i,sp,sb,ap,ab; default: all (--run-pilot: i,sp,sb)."),
    ] = None,
    pilot_budgets: Annotated[
        str | None,
        typer.Option(help="With --run-pilot: shares of tagging all of its photos; default: 12.5%,25%,50%,100%."),
    ] = None,
    pilot_seeds: Annotated[
        int | None, typer.Option(min=1, help="With --run-pilot: runs of each type and budget; default: 3.")
    ] = None,
    measure_on: Annotated[
        float | None,
        typer.Option(
            min=0.05, max=0.9, help="With --run-pilot: share of LABELS to measure on; default: 0.3, or a split."
        ),
    ] = None,
    complete: Annotated[bool, typer.Option("--complete", help="What is not named is known to be absent.")] = False,
    set_: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="KEY=VALUE", help="Reading options, and settings of the pilot's trainings."),
    ] = None,
    plot: Annotated[Path | None, typer.Option(help="Draw the curves to this .png.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Everything as one JSON object.")] = False,
    cpu: Annotated[bool, typer.Option("--cpu", help="Ignore GPUs.")] = False,
) -> None:
    """Say what to buy with hours of annotation: tags, points or boxes, how many, and what mAP to expect.

    What to expect is from PatchML's tables (MS-COCO; rough guidance), or from a pilot on your own photos: a few hundred
    with complete labels and boxes. It says where a difference is not resolved, and nothing far beyond the pilot.

    \b
    Examples:
      fewtags plan --hours 40 --photos 20000 --classes 80 --positives 2.9 --instances 7.3
      fewtags plan --hours 40 --photos 5000 --classes 12 --positives 2 --point 3.1 --pilot results.jsonl --plot plan.png
      fewtags plan boxes.json --images photos/ --complete --hours 40 --photos 5000 --run-pilot --out pilot/
    """  # noqa: D301
    import json

    from fewtags.budget.costs import budget_seconds, find_cost
    from fewtags.budget.planner import paper_guide, pilot_guide, plan_budget
    from fewtags.budget.results import read_results
    from fewtags.cli.progress import say
    from fewtags.cli.reading import read_labels
    from fewtags.errors import ConfigError
    from fewtags.files import refuse_file, refuse_folder

    if photos is None:
        raise ConfigError("--photos is missing: how many photos are there to label?")
    amount = _amount(hours, budget)
    _refuse_mixed(data, pilot, run_pilot, out)
    if data is None:
        of_reading = {"--images": images, "--complete": complete or None, "--set": set_ or None}
        _refuse_given(of_reading, "needs LABELS, since it says how they are read; give them, or leave it out")
    if not run_pilot:
        of_pilots = {"--pilot-budgets": pilot_budgets, "--pilot-seeds": pilot_seeds, "--measure-on": measure_on}
        trained = {f"--set {word}": word for word in set_ or () if not word.strip().startswith("data.")}
        _refuse_given({**of_pilots, "--cpu": cpu or None}, "is for --run-pilot; give that, or leave it out")
        _refuse_given(trained, "is no reading option (data.KEY=VALUE), and all others are for --run-pilot")
    if out is not None:
        refuse_folder(out)
    if plot is not None:
        if plot.suffix.lower() != ".png":
            raise ConfigError(f"--plot {plot}: expected a file that ends in .png.")
        refuse_file(plot, "--plot", "plan.png")
    kinds = _kinds(types)
    averages = {"classes": classes, "positives_per_image": positives, "instances_per_image": instances}
    seconds = {"tag": tag, "point": point, "extra_point": extra_point, "box": box}
    given = {name: value for name, value in (averages | seconds).items() if value is not None}
    table = None if data is None else read_labels(data, images, complete, set_, trains=True)
    found = find_cost(cost, table, given)
    budget_s = budget_seconds(amount, photos * found.classes * found.tag)
    guide: Guide
    if run_pilot:
        assert table is not None
        assert data is not None
        assert out is not None
        _refuse_other_classes(table, found)
        config, design = _pilot_config(data, images, complete, set_), _design(kinds, pilot_budgets, pilot_seeds)
        results = _piloted(table, config, design, measure_on, found, out, cpu)
        guide = pilot_guide(read_results(results, found), f"the pilot in {out}")
    elif pilot is not None:
        guide = pilot_guide(read_results(pilot, found), f"the pilot {pilot}")
    else:
        guide = paper_guide(found.classes)
    made = plan_budget(budget_s, photos, found, guide, kinds or _default_kinds(guide))
    typer.echo(json.dumps(made.to_dict()) if as_json else _told(made))
    for note in () if as_json else (f"expectations are from {guide.source}", *guide.notes, *made.notes):
        say(note)
    if plot is not None:
        from fewtags.report.planning import save_plan_figure

        save_plan_figure(made, plot)
        say(f"plot: {plot}")


def _told(made: BudgetPlan) -> str:
    return "\n".join([*made.lines(), "", made.advice()])


def _amount(hours: float | None, budget: str | None) -> str:
    from fewtags.errors import ConfigError

    if (hours is None) == (budget is None):
        raise ConfigError("give the budget once: --hours 40, or --budget 40h (30min, 900s, or 1%).")
    return f"{hours}h" if budget is None else budget


def _refuse_mixed(data: str | None, pilot: Path | None, run_pilot: bool, out: Path | None) -> None:
    """Options that do not go together."""
    from fewtags.errors import ConfigError

    if run_pilot and pilot is not None:
        raise ConfigError("--pilot reads measured runs and --run-pilot makes them; give one of them.")
    if run_pilot and data is None:
        raise ConfigError("--run-pilot needs LABELS: complete labels of a few hundred photos, with boxes.")
    if run_pilot and out is None:
        raise ConfigError("--run-pilot needs --out, a folder for its results.")
    if not run_pilot and out is not None:
        raise ConfigError("--out is for --run-pilot; the plan itself goes to stdout (--json, --plot).")


def _refuse_given(options: Mapping[str, object], why: str) -> None:
    """Options that would do nothing."""
    from fewtags.errors import ConfigError

    for name, value in options.items():
        if value is not None:
            raise ConfigError(f"{name} {why}.")


def _kinds(types: str | None) -> tuple[Annotation, ...]:
    from fewtags.budget.costs import Annotation

    return tuple(dict.fromkeys(Annotation.of(word) for word in (types or "").split(",") if word.strip()))


def _default_kinds(guide: Guide) -> tuple[Annotation, ...]:
    """All types that something is known of."""
    return tuple(guide.guesses)


def _refuse_other_classes(table: LabelTable, cost: CostModel) -> None:
    from fewtags.errors import ConfigError

    if cost.classes != len(table.classes):
        raise ConfigError(
            f"the costs are those of {cost.classes:,} classes, but the labels have {len(table.classes):,}; leave "
            "--classes out, or use the labels of the classes you plan for."
        )


def _design(kinds: tuple[Annotation, ...], budgets: str | None, seeds: int | None) -> Design:
    from fewtags.budget.curves import LEAST_BUDGETS, LEAST_SEEDS
    from fewtags.engine.pilot import Design
    from fewtags.errors import ConfigError

    words = tuple(word.strip() for word in (budgets or "").split(",") if word.strip())
    usual = Design()
    made = Design(kinds or usual.kinds, words if budgets is not None else usual.budgets, seeds or usual.seeds)
    if len(made.budgets) < LEAST_BUDGETS or made.seeds < LEAST_SEEDS:  # said before anything is trained
        raise ConfigError(
            f"a learning curve needs {LEAST_BUDGETS} --pilot-budgets and {LEAST_SEEDS} --pilot-seeds at least, got "
            f"{len(made.budgets)} and {made.seeds}; leave them out for {len(usual.budgets)} and {usual.seeds}."
        )
    return made


def _pilot_config(data: str, images: Path | None, complete: bool, assignments: list[str] | None) -> Config:
    """The settings of each training of a pilot."""
    from fewtags.cli.train import read_settings
    from fewtags.engine.pilot import SETTINGS

    read = {
        "data.train": data,
        "data.complete": complete or None,
        "data.images": None if images is None else str(images),
    }
    return read_settings(None, {**{k: v for k, v in read.items() if v is not None}, **SETTINGS}, assignments or [])


def _piloted(
    table: LabelTable, config: Config, design: Design, share: float | None, cost: CostModel, out: Path, cpu: bool
) -> Path:
    """Run a pilot, or the rest of one, and tell each run; its results.jsonl."""
    from fewtags.cli.progress import say
    from fewtags.engine.pilot import RESULTS, measured_split, pilot_parts, run_pilot
    from fewtags.errors import ConfigError

    if share is not None and (split := measured_split(table)) is not None:
        raise ConfigError(
            f"--measure-on {share:g} would do nothing: the labels name a split {split!r}, and a pilot is measured on "
            "that; leave --measure-on out."
        )
    pool, measured = pilot_parts(table, share or MEASURE_ON, config.data.group_by)
    say(f"pilot: buys from {len(pool):,} photos, is measured on {len(measured):,} others")
    for run in run_pilot(pool, measured, config, design, cost, out, cpu=cpu):
        row = run.row
        say(
            f"{run.done}/{run.total} {row['type']} {row['budget']}, {row['labels']:,} labels, seed {row['seed']}: "
            f"mAP {100 * row['mAP']:.1f}" + ("" if run.fresh else " (was there)")
        )
    return out / RESULTS
