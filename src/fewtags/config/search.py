"""What `train` tries before it trains: combinations of settings, compared by heads that are solved."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import product

from fewtags.config.presets import ON_CPU, PRESETS, SOLVED, Candidate, Facts, Resolved, rescaled
from fewtags.config.sections import NO_FILES, Config
from fewtags.errors import ConfigError
from fewtags.text import named

SIZES = (288, 352, 416)
"""Input sides that `train.minutes` compares, the first ones that fit (docs/LOG.md)."""


def candidates(config: Config, resolved: Resolved, facts: Facts) -> tuple[Candidate, ...]:
    """Return the combinations that the section `search` asks for; none if it asks for nothing.

    The first value of each list comes first, and a list that is empty has the value of the run.

    Raises:
        ConfigError: a setting is given here and in its own section; a value is there twice; the run has several
            processes.
    """
    search = config.search
    given = {"sizes": search.sizes, "methods": search.methods, "pools": search.pools, "backbones": search.backbones}
    if not any(given.values()):
        return ()
    if config.train.minutes is not None:
        raise ConfigError(
            f"{named('train.minutes')} chooses what is tried first, and search gives it; leave one of them out."
        )
    fixed = {
        "sizes": ("augment.size", config.augment.size),
        "methods": ("objective.name", config.objective.name),
        "pools": ("model.pool", config.model.pool if "pool" in config.model.model_fields_set else None),
        "backbones": ("model.backbone", config.model.backbone),
    }
    own = config.model
    several = len(search.backbones) > 1 or (search.backbones and own.backbone is not None)
    if several and own.weights not in (None, *NO_FILES):
        of = "" if own.backbone is None else f", {own.backbone}"
        raise ConfigError(
            f"search.backbones tries several values, and the weights {own.weights} are those of one{of}; leave one of "
            "them out."
        )
    for name, values in given.items():
        key, fixing = fixed[name]
        if values and fixing is not None:
            raise ConfigError(
                f"search.{name} tries several values, and {named(key, fixing)} fixes one; leave one of them out."
            )
        if len(set(values)) < len(values):
            twice = next(value for value in values if values.count(value) > 1)
            raise ConfigError(f"search.{name} has {twice} twice; leave it out once.")
    if facts.processes > 1:
        raise ConfigError(
            f"search tries settings in one process, and there are {facts.processes}; start one process, or leave "
            "search out."
        )
    return tuple(
        Candidate(
            backbone=backbone,
            weights=_weights(config, resolved, facts, backbone),
            size=size,
            pool=pool,
            method=method,
        )
        for backbone, size, pool, method in product(
            search.backbones or (resolved.backbone,),
            search.sizes or (resolved.size,),
            search.pools or (resolved.pool,),
            search.methods or (resolved.method,),
        )
    )


def _weights(config: Config, resolved: Resolved, facts: Facts, backbone: str) -> str:
    if backbone == resolved.backbone or config.model.weights is not None:
        return resolved.weights
    return "offline" if backbone == facts.offline_backbone else "hub"


def starting(resolved: Resolved, tried: tuple[Candidate, ...]) -> Resolved:
    """Return the settings of a run before it searches: those of the first candidate, so that nothing else is needed."""
    return _with(resolved, tried[0]).model_copy(update={"search": tried}) if tried else resolved


def trial(resolved: Resolved, candidate: Candidate) -> Resolved:
    """Return the settings that try a candidate: they solve its head, and nothing else."""
    stages = PRESETS[SOLVED].stages
    # Patience is for steps; it would end the comparison of strengths.
    own = {"stages": stages, "cached_views": 0, "preset": SOLVED, "patience": 0}
    return _with(resolved, candidate).model_copy(update=own)


def settled(resolved: Resolved, candidate: Candidate) -> Resolved:
    """Return the settings of the run if a candidate is the best."""
    stages = resolved.stages
    if candidate.epochs == 0 and not all(stage.solved for stage in stages):
        return trial(resolved, candidate)
    if candidate.epochs:
        stages = rescaled(stages, candidate.epochs, None)
    return _with(resolved, candidate).model_copy(update={"stages": stages})


def _with(resolved: Resolved, candidate: Candidate) -> Resolved:
    preset = ON_CPU.get(resolved.preset, PRESETS[resolved.preset])
    own = {name: getattr(candidate, name) for name in ("backbone", "weights", "size", "pool", "method")}
    objective = dict(preset.objective.get(candidate.method, {}))
    return resolved.model_copy(update={**own, "preset_objective": objective, "search": ()})


def described(candidate: Candidate, others: tuple[Candidate, ...]) -> str:
    """Describe what distinguishes a candidate from others, in one phrase.

    >>> one = Candidate(backbone="resnet50", weights="hub", size=288, pool="mean", method="bce")
    >>> described(one, (one, one.model_copy(update={"size": 352})))
    '288 px'
    """
    return ", ".join(_parts(candidate, others)) or f"{candidate.size} px"


def _parts(candidate: Candidate, others: tuple[Candidate, ...]) -> Iterator[str]:
    for name, text in (
        ("backbone", candidate.backbone),
        ("size", f"{candidate.size} px"),
        ("pool", f"pool {candidate.pool}"),
        ("method", candidate.method),
    ):
        if len({getattr(other, name) for other in others}) > 1:
            yield text
