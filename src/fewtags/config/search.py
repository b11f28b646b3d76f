"""What `train` tries before it trains: combinations of settings, compared by heads that are solved."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import product
from pathlib import PurePath
from types import MappingProxyType

from fewtags.config.presets import ON_CPU, PRESETS, SOLVED, Candidate, Facts, Resolved, rescaled
from fewtags.config.sections import NO_FILES, Config
from fewtags.errors import ConfigError
from fewtags.objectives.table import DEFAULT_METHOD
from fewtags.text import named

PRESET_START = "preset"
"""Word of `search.starts` for the weights of a run that starts from no encoder."""
KNOWN_METHOD = "bce"
"""The method that learns from known labels alone, which is tried for partial labels."""
SIZES = (288, 352, 416)
"""Input sides that `train.minutes` compares, the first ones that fit (docs/LOG.md)."""


def candidates(
    config: Config,
    resolved: Resolved,
    facts: Facts,
    encoders: Mapping[str, tuple[str, str]] = MappingProxyType({}),
) -> tuple[Candidate, ...]:
    """Return the combinations that the section `search` asks for; none if it asks for nothing.

    The first value of each list comes first, and a list that is empty has the value of the run. `encoders` has the
    backbone and the weights of each encoder of `search.starts`.

    Raises:
        ConfigError: a setting is given here and in its own section; a value is there twice; the run has several
            processes.
    """
    search = config.search
    given = {
        "sizes": search.sizes,
        "methods": search.methods,
        "pools": search.pools,
        "backbones": search.backbones,
        "starts": search.starts,
    }
    if not any(given.values()):
        return ()
    if config.train.minutes is not None and any(values for name, values in given.items() if name != "starts"):
        raise ConfigError(
            f"{named('train.minutes')} chooses what is tried first, and search gives it; leave one of them out."
        )
    fixed = {
        "sizes": ("augment.size", config.augment.size),
        "methods": ("objective.name", config.objective.name),
        "pools": ("model.pool", config.model.pool if "pool" in config.model.model_fields_set else None),
        "backbones": ("model.backbone", config.model.backbone),
        "starts": ("model.weights", None if PRESET_START in search.starts else config.model.weights),
    }
    if search.starts and search.backbones:
        raise ConfigError(
            f"search.backbones and {named('search.starts')} both choose the backbone; leave one of them out."
        )
    model = config.model
    several = len(search.backbones) > 1 or (search.backbones and model.backbone is not None)
    if several and model.weights not in (None, *NO_FILES):
        of = "" if model.backbone is None else f", {model.backbone}"
        raise ConfigError(
            f"search.backbones tries several values, and the weights {model.weights} are those of one{of}; leave one "
            "of them out."
        )
    for name, values in given.items():
        key, fixing = fixed[name]
        if values and fixing is not None:
            raise ConfigError(
                f"{named(f'search.{name}')} tries several values, and {named(key, fixing)} fixes one; leave one of "
                "them out."
            )
        same = [encoders.get(str(value), value) for value in values]
        if len(set(same)) < len(same):
            twice = next(value for value, one in zip(values, same, strict=True) if same.count(one) > 1)
            raise ConfigError(f"{named(f'search.{name}')} has {twice} twice; leave it out once.")
    if facts.processes > 1:
        raise ConfigError(
            f"search tries settings in one process, and there are {facts.processes}; start one process, or leave "
            "search out."
        )
    own = (resolved.backbone, resolved.weights)
    starts = [own if start == PRESET_START else encoders[start] for start in search.starts]
    starts = starts or [(b, _weights(config, resolved, facts, b)) for b in search.backbones or (resolved.backbone,)]
    return tuple(
        Candidate(backbone=backbone, weights=weights, size=size, pool=pool, method=method)
        for (backbone, weights), size, pool, method in product(
            starts,
            search.sizes or (resolved.size,),
            search.pools or (resolved.pool,),
            search.methods or (resolved.method,),
        )
    )


def own_candidates(config: Config, resolved: Resolved, facts: Facts) -> tuple[Candidate, ...]:
    """Return the methods that a run without a section `search` compares if its head is solved; none for one method."""
    methods = own_methods(config, facts)
    if len(methods) < 2 or not all(stage.solved for stage in resolved.stages):
        return ()
    return methods_at(resolved, methods, resolved.size)


def methods_at(
    resolved: Resolved, methods: Sequence[str], size: int, epochs: int | None = None
) -> tuple[Candidate, ...]:
    """Return a candidate for each method, else with the settings of a run, at an input size."""
    own = {name: getattr(resolved, name) for name in ("backbone", "weights", "pool")}
    several = len(methods) > 1
    return tuple(
        Candidate(**own, size=size, method=m, epochs=epochs, for_random_blanks=several and m == KNOWN_METHOD)
        for m in methods
    )


def own_methods(config: Config, facts: Facts) -> tuple[str, ...]:
    """Return the methods that suit the labels, the default first.

    For partial labels with negatives these are two: the default, for which a blank is absent unless the class is
    expected in the photo, and the cross-entropy of the known labels alone. That one is better where labels are blank at
    random, and much worse where they are not (docs/partial_labels.md).
    """
    chosen = config.objective.model_fields_set or config.train.stages is not None or config.train.select == "last"
    other = facts.answers or facts.needs_maps or facts.processes > 1 or config.data.teacher is not None
    suits = facts.partial and not facts.untold
    return (DEFAULT_METHOD, KNOWN_METHOD) if suits and not chosen and not other else (DEFAULT_METHOD,)


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
    files = any(other.weights not in NO_FILES for other in others)
    for name, text in (
        ("backbone", candidate.backbone),
        *([("weights", f"weights {_short(candidate.weights, others)}")] if files else []),
        ("size", f"{candidate.size} px"),
        ("pool", f"pool {candidate.pool}"),
        ("method", candidate.method),
    ):
        if len({getattr(other, name) for other in others}) > 1:
            yield text


def _short(weights: str, others: tuple[Candidate, ...]) -> str:
    """Return the last parts of the path of weights, which do not depend on the working directory, if they suffice."""

    def end(path: str) -> str:
        return "/".join(PurePath(path).parts[-2:])

    every = {other.weights for other in others}
    return end(weights) if len({end(path) for path in every}) == len(every) else weights
