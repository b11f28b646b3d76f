"""Plan a run: read and check the data, decide what is open, also within a time, and refuse what cannot be done."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from fewtags.check.check import check
from fewtags.config.preset_checks import check_selection
from fewtags.config.presets import (
    ANSWER_WEIGHTS,
    IN_STEPS,
    SOLVED,
    Candidate,
    Facts,
    Resolved,
    resolve,
    why_in_steps,
    why_unsolvable,
)
from fewtags.config.search import KNOWN_METHOD, SIZES, described, own_candidates, own_methods, trial
from fewtags.config.search import settled as settled_on
from fewtags.config.sections import Config
from fewtags.engine.methods import make_objective, method_class
from fewtags.engine.photo_cache import cache_note, make_cache, refuse_cache
from fewtags.engine.plan import RunPlan, derive
from fewtags.engine.preset_facts import method_facts, resolve_settings, run_facts
from fewtags.engine.tables import Tables, read_tables
from fewtags.engine.teacher import match_scores, refuse_teacher
from fewtags.engine.time_box import Speed, measure_speed, refuse_too_short, time_box, within
from fewtags.errors import ConfigError
from fewtags.formats.scores import ScoreTable, read_scores
from fewtags.nets.backbones import create_net
from fewtags.nets.spatial import SpatialNet
from fewtags.objectives.table import DEFAULT_METHOD
from fewtags.photos.scan import Tick
from fewtags.table.answered import has_answers
from fewtags.table.merge import match_images
from fewtags.table.table import LabelTable
from fewtags.text import flag


def make_plan(
    config: Config,
    *,
    tables: Tables | None = None,
    scores: ScoreTable | None = None,
    out: Path | None = None,
    cpu: bool = False,
    progress: Tick | None = None,
) -> RunPlan:
    """Read, check and resolve.

    `tables` are label tables in memory (Python interface), and `scores` those of a teacher; None reads them. The disk
    of the run folder `out`, by default the working directory, needs room for stores. `progress` is called with the
    number of checked photos.

    Raises:
        DataError: labels or photos that cannot be used.
        ConfigError: settings that do not fit the data or the machine.
    """
    if config.objective.name is not None:
        make_objective(config.objective)  # so that a value out of range is refused before anything is read
        if config.data.teacher is not None:
            refuse_teacher(config.objective.name)
    refuse_cache(config.data.photo_cache or "")
    if scores is None and config.data.teacher is not None:
        scores = read_scores(Path(config.data.teacher))
    began = time.perf_counter()
    tables = tables or read_tables(config.data, config.train.seed)
    # So that settings that do not fit are refused early.
    before = run_facts(config, tables, cpu)
    _refuse_unsolvable(config, resolve_settings(config, before), before, tables.train)
    for split, table in tables.splits().items():
        option = "images" if split == "train" else f"{split}-images"
        table.require_root(f"the {split} labels", flag(option, "FOLDER"))
    near = config.data.near_copies != "off"
    found = check(tables.splits(), decode=config.data.decode, near_copies=near, progress=progress).going_on()
    kept: Mapping[str, LabelTable] = found.clean(tables.splits())
    truth = None if tables.truth is None else match_images(tables.truth, kept["train"])
    cleaned = Tables(kept["train"], kept["val"], kept.get("test"), truth)
    teacher = None if scores is None else match_scores(scores, cleaned.splits())
    same = cleaned.train is tables.train and cleaned.val is tables.val
    about = before if same else run_facts(config, cleaned, cpu)
    resolved = resolve_settings(config, about)
    plan = derive(config, cleaned, found, out=out, cpu=cpu, resolved=resolved, teacher=teacher)
    tried, untold = resolved.search, _untold_note(config, about, resolved)
    if config.train.minutes is None:
        _refuse_candidates(plan, out, cpu)
        notes = (*_steps_note(config, about, resolved), *plan.notes, *untold, *_cache_notes(plan))
        return replace(plan, notes=notes)
    speed = measure_speed(plan.net, plan.resolved, cleaned.train, cpu=cpu)
    sizes, starts = _sizes_to_compare(config, about, resolved), _speeds_of_starts(plan, speed, cpu)
    spent = time.perf_counter() - began
    methods = _methods_to_compare(config, about, tried)
    box = time_box(
        config.train.minutes,
        resolved,
        cleaned,
        speed,
        spent,
        sizes,
        maps=about.needs_maps,
        starts=starts,
        methods=methods,
    )
    if config.train.preset is not None:  # a preset that was named is not replaced
        refuse_too_short(config.train.minutes, config.train.preset, box)
    if not box.epochs:
        head_alone = config.train.model_copy(update={"minutes": None, "preset": SOLVED})
        resolved = resolve(config.model_copy(update={"train": head_alone}), about)
    resolved = within(resolved, box, tried)
    plan = derive(config, cleaned, found, out=out, cpu=cpu, resolved=resolved, teacher=teacher)
    _refuse_candidates(plan, out, cpu)
    notes = (box.line(config.train.minutes), *_steps_note(config, about, resolved), *plan.notes)
    return replace(plan, notes=(*notes, *untold, *_cache_notes(plan)))


def _steps_note(config: Config, facts: Facts, resolved: Resolved) -> list[str]:
    """Return a sentence about why the head is trained in steps, if the user did not ask for it."""
    asked = config.train.preset not in (None, SOLVED) or config.train.stages is not None
    if resolved.preset != IN_STEPS or asked:
        return []
    return [f"preset {IN_STEPS} was taken, since {why_in_steps(config, facts)}"]


def _cache_notes(plan: RunPlan) -> list[str]:
    """Return a sentence about the cache of photos, if the run has one."""
    r = plan.resolved
    if (cache := make_cache(r.photo_cache, r.size)) is None:
        return []
    if all(stage.solved for stage in r.stages):
        return [
            f"note: the photo cache {r.photo_cache} is not used: a solved head sees each photo once, and not in random "
            "views"
        ]
    return [cache_note(cache, plan.tables.train, chosen=not r.search)]


def _sizes_to_compare(config: Config, facts: Facts, resolved: Resolved) -> tuple[int, ...]:
    """Return the input sides that `train.minutes` may compare: none if the user chose what decides the size."""
    model, train = config.model, config.train
    chosen = (config.augment.size, model.backbone, model.output_stride, train.preset)
    if facts.device != "cpu" or any(value is not None for value in chosen) or resolved.search:
        return ()
    return tuple(size for size in SIZES if not why_unsolvable(facts, size))


def _methods_to_compare(config: Config, facts: Facts, tried: Sequence[Candidate]) -> tuple[str, ...]:
    """Return the methods that `train.minutes` compares; none if one is fixed, or something else is compared."""
    one = tried or facts.device != "cpu" or config.train.preset is not None or why_unsolvable(facts, SIZES[0])
    methods = own_methods(config, facts)
    return () if one or len(methods) < 2 else methods


def _untold_note(config: Config, facts: Facts, resolved: Resolved) -> list[str]:
    """Return a sentence about the method that validation cannot compare with the default, if labels are partial."""
    told = facts.model_copy(update={"untold": ""})
    if not facts.untold or resolved.search:
        return []
    if not (
        own_candidates(config, resolved, told)
        if config.train.minutes is None
        else _methods_to_compare(config, told, ())
    ):
        return []
    method = f"{KNOWN_METHOD}, which learns from known labels alone,"
    return [f"note: {method} is not compared with {DEFAULT_METHOD}: {facts.untold}"]


def _speeds_of_starts(plan: RunPlan, speed: Speed, cpu: bool) -> dict[str, Speed]:
    """Return the speeds of the starts that the run compares, by their descriptions; `speed` is that of the first."""
    tried, train = plan.resolved.search, plan.tables.train
    if not tried:
        return {}
    others = [settled_on(plan.resolved, candidate) for candidate in tried[1:]]
    speeds = [measure_speed(_net(plan, resolved), resolved, train, cpu=cpu) for resolved in others]
    return {described(candidate, tried): found for candidate, found in zip(tried, [speed, *speeds], strict=True)}


def _net(plan: RunPlan, resolved: Resolved) -> SpatialNet:
    return create_net(resolved.backbone, len(plan.tables.train.classes), weights=resolved.weights, size=resolved.size)


def _refuse_unsolvable(config: Config, resolved: Resolved, facts: Facts, train: LabelTable) -> None:
    """Raise ConfigError if the head of a candidate of the search cannot be solved."""
    for candidate in resolved.search:
        method_class(candidate.method)  # refuses an unknown name
        about = facts.model_copy(update=method_facts(config, train, facts.answers, candidate.method))
        if why := why_unsolvable(about, candidate.size):
            several = len(resolved.search) > 1
            name = described(candidate, resolved.search) if several else f"{candidate.method} at {candidate.size} px"
            raise ConfigError(f"search cannot try {name}: {why}. Leave it out of the section search.")


def _refuse_candidates(plan: RunPlan, out: Path | None, cpu: bool) -> None:
    """Raise ConfigError now if a candidate of the search cannot be tried, or not be trained if it is the best."""
    derived = [plan.resolved.model_copy(update={"search": ()})]  # what has been derived, with a net each
    for candidate in plan.resolved.search:
        best = settings_of_best(plan, candidate)
        check_selection(best.select, best.stages[-1])
        for settings in (trial(plan.resolved, candidate), best):
            if settings not in derived:
                derive(plan.config, plan.tables, None, out=out, cpu=cpu, resolved=settings, teacher=plan.teacher)
                derived.append(settings)


def settings_of_best(plan: RunPlan, candidate: Candidate) -> Resolved:
    """Return the settings that a plan trains with if a candidate of its search is the best.

    A head that is solved alone tries weights of answers, if the method weighs them.

    Raises:
        ConfigError: the user gave such weights, and the method of the candidate does not weigh answers.
    """
    best = settled_on(plan.resolved, candidate)
    last, answers = best.stages[-1], has_answers(plan.tables.train)
    if not (last.answer_weights or (answers and last.solved and not last.warmup)):
        return best
    weighs = method_facts(plan.config, plan.tables.train, answers, candidate.method)["open_answer_weight"]
    if plan.config.train.stages is not None:
        if weighs or not last.answer_weights:
            return best
        raise ConfigError(
            f"stage {last.name!r} has answer_weights, but {candidate.method}, which search tries, does not weigh "
            "answers; leave them out, or leave the method out of search.methods."
        )
    weights = ANSWER_WEIGHTS if weighs and best.select != "last" else ()
    return best.model_copy(update={"stages": (*best.stages[:-1], last.with_answer_weights(weights))})
