"""`fewtags plan`: which labels to buy with an annotation budget."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from fewtags.cli.options import POINTS_HELP, Complete, Cpu, Images, Json, without_none
from fewtags.cli.progress import echo, say
from fewtags.cli.reading import point_rule, read_labels, reading_flags, with_outlines
from fewtags.cli.train import read_settings
from fewtags.errors import ConfigError
from fewtags.files import refuse_file, refuse_folder

if TYPE_CHECKING:
    from fewtags.budget.costs import Annotation, CostModel
    from fewtags.budget.planner import Guide
    from fewtags.budget.purchase import PointRule
    from fewtags.config.sections import Config
    from fewtags.engine.pilot import Design
    from fewtags.table.table import LabelTable

MEASURE_ON = 0.3
"""Default share of the labels that a pilot is evaluated on."""


def plan(
    data: Annotated[
        str | None,
        typer.Argument(
            help="Complete labels of a few hundred photos. Averages come from them, and --run-pilot trains on them."
        ),
    ] = None,
    hours: Annotated[float | None, typer.Option(help="Annotation time in hours.")] = None,
    budget: Annotated[
        str | None,
        typer.Option(
            help="Annotation time in place of --hours: 12h, 30min, 900s, or a share of the time that it takes to tag "
            "every class in every photo (1%)."
        ),
    ] = None,
    photos: Annotated[
        int | None, typer.Option(min=1, help="Number of photos that could be labelled (required).", show_default=False)
    ] = None,
    classes: Annotated[int | None, typer.Option(min=1, help="Number of classes; default: as in DATA.")] = None,
    positives: Annotated[
        float | None, typer.Option(min=0, help="Classes that a photo contains, on average; default: as in DATA.")
    ] = None,
    instances: Annotated[
        float | None, typer.Option(min=0, help="Objects in a photo, on average, of all classes; default: as in DATA.")
    ] = None,
    cost: Annotated[
        str | None,
        typer.Option(
            help="Seconds and averages that were published: coco or objects365; or a TOML file, as in `simulate`. "
            "Default: PatchML's seconds."
        ),
    ] = None,
    tag: Annotated[float | None, typer.Option(help="Time to say whether a class is in a photo; default: 1.")] = None,
    point: Annotated[float | None, typer.Option(help="Time to say yes and click on one object; default: 2.4.")] = None,
    extra_point: Annotated[
        float | None, typer.Option(help="Time to click on each further object of the class; default: 0.9.")
    ] = None,
    box: Annotated[float | None, typer.Option(help="Time to draw a box; default: 7.")] = None,
    pilot: Annotated[
        Path | None,
        typer.Option(
            help="Results of your own runs, .jsonl or .csv, with the columns type, seed, mAP, and labels or "
            "budget_seconds."
        ),
    ] = None,
    run_pilot: Annotated[
        bool, typer.Option("--run-pilot", help="Train on simulated budgets of DATA now, and use the results.")
    ] = False,
    out: Annotated[
        Path | None,
        typer.Option(help="With --run-pilot: folder of its runs; the same command continues an interrupted pilot."),
    ] = None,
    images: Images = None,
    types: Annotated[
        str | None,
        typer.Option(
            help="Types of labels to compare: tags (i), one-point (sp), one-box (sb), all-points (ap), all-boxes (ab), "
            "separated by commas; default: all, with --run-pilot i,sp,sb."
        ),
    ] = None,
    pilot_budgets: Annotated[
        str | None,
        typer.Option(
            help="With --run-pilot: budgets to simulate, shares of the time that tagging all photos takes; default: "
            "12.5%,25%,50%,100%."
        ),
    ] = None,
    pilot_seeds: Annotated[
        int | None, typer.Option(min=1, help="With --run-pilot: runs for each type and budget; default: 3.")
    ] = None,
    measure_on: Annotated[
        float | None,
        typer.Option(
            min=0.05,
            max=0.9,
            help="With --run-pilot: share of DATA to evaluate on; default: 0.3, or the split test or val of DATA.",
        ),
    ] = None,
    points: Annotated[str | None, typer.Option(help=f"With --run-pilot. {POINTS_HELP}")] = None,
    arm: Annotated[
        list[str] | None,
        typer.Option(
            metavar="TYPE:KEY=VALUE",
            help="With --run-pilot: a setting of the runs of one type, for example "
            "tags:objective.name=assume_negative. May be repeated. Default method: that of `train` for such labels.",
        ),
    ] = None,
    init: Annotated[
        Path | None,
        typer.Option(help="With --run-pilot: pretraining run (or its encoder file) whose backbone the pilot uses."),
    ] = None,
    weights: Annotated[
        str | None, typer.Option(help="With --run-pilot: weights of the backbone, as in `train`: a file, hub, ...")
    ] = None,
    complete: Complete = False,
    set_: Annotated[
        list[str] | None,
        typer.Option(
            "--set",
            metavar="KEY=VALUE",
            help="Settings of reading DATA (data.*), and with --run-pilot of training. May be repeated.",
        ),
    ] = None,
    plot: Annotated[Path | None, typer.Option(help="Picture of the expected mAP by budget, .png.")] = None,
    as_json: Json = False,
    cpu: Cpu = False,
) -> None:
    """Plan an annotation budget: tags, points or boxes, how many, and the expected mAP.

    The expected mAP comes from PatchML's tables (MS-COCO; rough guidance), or from a pilot on a few hundred of your own
    photos with complete labels and boxes. Differences that the data do not resolve are marked, and nothing is predicted
    far beyond the pilot.

    \b
    Examples:
      fewtags plan --hours 40 --photos 20000 --classes 80 --positives 2.9 --instances 7.3
      fewtags plan --hours 40 --photos 5000 --classes 12 --positives 2 --point 3.1 --pilot results.jsonl --plot plan.png
      fewtags plan boxes.json --images photos/ --complete --hours 40 --photos 5000 --run-pilot --out pilot/
    """  # noqa: D301
    from fewtags.budget.costs import Annotation, budget_seconds, find_cost
    from fewtags.budget.planner import paper_guide, pilot_guide, plan_budget
    from fewtags.budget.results import read_results

    if photos is None:
        raise ConfigError("--photos is missing: give the number of photos to label.")
    if (hours is None) == (budget is None):
        raise ConfigError("give the budget once: --hours 40, or --budget 40h (30min, 900s, or 1%).")
    _refuse_mixed(data, pilot, run_pilot, out)
    if data is None:
        of_reading = {"--images": images, "--complete": complete or None, "--set": set_ or None}
        _refuse_given(of_reading, "says how to read DATA; give DATA as well, or leave it out")
    if not run_pilot:
        of_pilots: dict[str, object] = {
            "--pilot-budgets": pilot_budgets,
            "--pilot-seeds": pilot_seeds,
            "--measure-on": measure_on,
        }
        of_pilots |= {"--points": points, "--arm": arm or None, "--init": init, "--weights": weights}
        trained = {f"--set {word}": word for word in set_ or () if not word.strip().startswith("data.")}
        _refuse_given(
            {**of_pilots, "--cpu": cpu or None}, "is for --run-pilot; give --run-pilot as well, or leave it out"
        )
        _refuse_given(trained, "is not a reading option (data.KEY=VALUE); other settings are only for --run-pilot")
    if out is not None:
        refuse_folder(out)
    if plot is not None:
        if plot.suffix.lower() != ".png":
            raise ConfigError(f"--plot {plot}: expected a file that ends in .png.")
        refuse_file(plot, "--plot", "plan.png")
    kinds = tuple(dict.fromkeys(Annotation.of(word) for word in (types or "").split(",") if word.strip()))
    averages = {"classes": classes, "positives_per_image": positives, "instances_per_image": instances}
    seconds = {"tag": tag, "point": point, "extra_point": extra_point, "box": box}
    table = None if data is None else read_labels(data, images, complete, set_, trains=True)
    found = find_cost(cost, table, without_none(averages | seconds))
    budget_s = budget_seconds(f"{hours}h" if budget is None else budget, photos * found.classes * found.tag)
    guide: Guide
    if run_pilot:
        assert table is not None
        assert data is not None
        assert out is not None
        if found.classes != len(table.classes):
            raise ConfigError(
                f"the costs are for {found.classes:,} classes, but the labels have {len(table.classes):,}; leave "
                "--classes out, or give labels of the classes you plan for."
            )
        from fewtags.engine.pilot import SETTINGS, with_method

        design = _design(kinds, pilot_budgets, pilot_seeds)
        own = _own_settings(arm or [], design)
        flags = {**reading_flags(data, images, complete), "model.weights": weights, **SETTINGS}
        arms = {
            kind: with_method(read_settings(None, flags, [*(set_ or []), *own[kind]], init=init))
            for kind in design.kinds
        }
        say("methods: " + ", ".join(f"{kind.described()} {config.objective.name}" for kind, config in arms.items()))
        rule, pointed = point_rule(points), None
        if points in (None, "object") and any(kind.pointed for kind in design.kinds):
            outlined = with_outlines(data, images, complete, set_, 0)
            if outlined != list(set_ or []):
                say("points are drawn in outlines where the labels have them:")
                pointed = read_labels(data, images, complete, outlined, trains=True)
        results = _piloted(table, pointed, rule, arms, design, measure_on, found, out, cpu)
        guide = pilot_guide(read_results(results, found), f"the pilot in {out}")
    elif pilot is not None:
        guide = pilot_guide(read_results(pilot, found), f"the pilot {pilot}")
    else:
        guide = paper_guide(found.classes)
    made = plan_budget(budget_s, photos, found, guide, kinds or guide.kinds)
    echo(json.dumps(made.to_dict()) if as_json else "\n".join([*made.lines(), "", made.advice()]))
    if not as_json:
        say(f"expectations are from {guide.source}", *guide.notes, *made.notes)
    if plot is not None:
        from fewtags.report.planning import save_plan_figure

        save_plan_figure(made, plot)
        say(f"plot: {plot}")


def _refuse_mixed(data: str | None, pilot: Path | None, run_pilot: bool, out: Path | None) -> None:
    """Raise a `ConfigError` for options that contradict each other."""
    if run_pilot and pilot is not None:
        raise ConfigError("--pilot reads the results of runs, and --run-pilot runs them; give only one.")
    if run_pilot and data is None:
        raise ConfigError("--run-pilot needs DATA: complete labels of a few hundred photos, with boxes.")
    if run_pilot and out is None:
        raise ConfigError("--run-pilot needs --out, a folder for its results.")
    if not run_pilot and out is not None:
        raise ConfigError("--out is for --run-pilot; the plan is printed on stdout (see --json and --plot).")


def _refuse_given(options: Mapping[str, object], why: str) -> None:
    """Raise a `ConfigError` for options that would have no effect."""
    for name in without_none(options):
        raise ConfigError(f"{name} {why}.")


def _own_settings(assignments: list[str], design: Design) -> dict[Annotation, list[str]]:
    """Return the KEY=VALUE of each type of the pilot, from the words of --arm."""
    from fewtags.budget.costs import Annotation

    own: dict[Annotation, list[str]] = {kind: [] for kind in design.kinds}
    for text in assignments:
        word, colon, assignment = text.partition(":")
        if not colon or "=" not in assignment or "=" in word:
            raise ConfigError(f"--arm {text}: expected TYPE:KEY=VALUE, such as tags:objective.name=assume_negative.")
        if (kind := Annotation.of(word)) not in own:
            raise ConfigError(f"--arm {text}: the pilot has no {kind.described()}; add it to --types.")
        if assignment.strip().startswith("data."):
            raise ConfigError(f"--arm {text}: labels are read once for all types; use --set {assignment}.")
        own[kind].append(assignment)
    return own


def _design(kinds: tuple[Annotation, ...], budgets: str | None, seeds: int | None) -> Design:
    from fewtags.budget.curves import LEAST_BUDGETS, LEAST_SEEDS
    from fewtags.engine.pilot import Design

    words = tuple(word.strip() for word in (budgets or "").split(",") if word.strip())
    usual = Design()
    made = Design(kinds or usual.kinds, words if budgets is not None else usual.budgets, seeds or usual.seeds)
    if len(made.budgets) < LEAST_BUDGETS or made.seeds < LEAST_SEEDS:
        raise ConfigError(
            f"a learning curve needs at least {LEAST_BUDGETS} --pilot-budgets and {LEAST_SEEDS} --pilot-seeds, got "
            f"{len(made.budgets)} and {made.seeds}; leave them out for {len(usual.budgets)} and {usual.seeds}."
        )
    return made


def _piloted(
    table: LabelTable,
    pointed: LabelTable | None,
    points: PointRule,
    arms: Mapping[Annotation, Config],
    design: Design,
    share: float | None,
    cost: CostModel,
    out: Path,
    cpu: bool,
) -> Path:
    """Run a pilot, or resume it, and report each run; return its results.jsonl."""
    from fewtags.engine.pilot import RESULTS, measured_split, pilot_parts, run_pilot

    if share is not None and (split := measured_split(table)) is not None:
        raise ConfigError(
            f"--measure-on {share:g} has no effect: the pilot is evaluated on the split {split!r} of the labels; leave "
            "--measure-on out."
        )
    config = arms[design.kinds[0]]  # settings of data are the same for all types
    pool, measured = pilot_parts(table, share or MEASURE_ON, config.data.group_by)
    say(f"pilot: buys labels of {len(pool):,} photos and is evaluated on {len(measured):,} others")
    pilot = run_pilot(pool, measured, config, design, cost, out, arms=arms, points=points, pointed=pointed, cpu=cpu)
    for run in pilot:
        row = run.row
        say(
            f"{run.done}/{run.total} {row['type']} {row['budget']}, {row['labels']:,} labels, seed {row['seed']}: "
            f"mAP {100 * row['mAP']:.1f}" + ("" if run.fresh else " (already done)")
        )
    return out / RESULTS
