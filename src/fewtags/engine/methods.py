"""The tables of methods: name -> class. Their settings, defaults and help come from the class itself."""

from __future__ import annotations

import dataclasses
import inspect
from collections.abc import Mapping
from functools import cache
from typing import Any, get_type_hints

from pydantic import create_model

from fewtags.config.parse import validated
from fewtags.config.sections import ObjectiveConfig
from fewtags.errors import ConfigError
from fewtags.objectives.assume_negative import BCE, AssumeNegative
from fewtags.objectives.base import Objective
from fewtags.objectives.byol import BYOL
from fewtags.objectives.densecl import DenseCL
from fewtags.objectives.expected_negative import ExpectedNegative
from fewtags.objectives.fixmatch import FixMatch
from fewtags.objectives.mls import MLS
from fewtags.objectives.moco import MoCo
from fewtags.objectives.nnclr import NNCLR
from fewtags.objectives.patchml import PatchML
from fewtags.objectives.simsiam import SimSiam
from fewtags.text import suggest

METHODS: Mapping[str, type[Objective]] = {
    "bce": BCE,
    "assume_negative": AssumeNegative,
    "expected_negative": ExpectedNegative,
    "patchml": PatchML,
    "fixmatch": FixMatch,
}
"""Methods of training with labels."""

PRETRAIN_METHODS: Mapping[str, type[Objective]] = {
    "mls": MLS,
    "moco": MoCo,
    "simsiam": SimSiam,
    "byol": BYOL,
    "nnclr": NNCLR,
    "densecl": DenseCL,
}
"""Methods of pretraining, which know no labels."""

EVERY_METHOD: Mapping[str, type[Objective]] = {**METHODS, **PRETRAIN_METHODS}


@cache
def settings_models() -> Mapping[str, type[ObjectiveConfig]]:
    """A settings model for every method of training, made from the signature of its class."""
    return {name: _settings_model(method) for name, method in METHODS.items()}


@cache
def pretrain_settings_models() -> Mapping[str, type[ObjectiveConfig]]:
    """The same for every method of pretraining."""
    return {name: _settings_model(method) for name, method in PRETRAIN_METHODS.items()}


def _settings_model(method: type[Objective]) -> type[ObjectiveConfig]:
    hints = get_type_hints(method)
    fields: dict[str, Any] = {
        parameter: (hints[parameter], value.default)
        for parameter, value in inspect.signature(method).parameters.items()
    }
    return create_model(f"{method.__name__}Config", __base__=ObjectiveConfig, **fields)


def settled(settings: ObjectiveConfig, method: str) -> ObjectiveConfig:
    """The settings as they are; where they name no method, the defaults of `method`."""
    return settings if settings.name is not None else settings_models()[method](name=method)


def make_objective(settings: ObjectiveConfig, **derived: Any) -> Objective:
    """The objective that the settings describe; `derived` replaces settings that were left to derive (None)."""
    values = settings.model_dump(exclude={"name"})
    values |= {k: v for k, v in derived.items() if k in values and values[k] is None}
    assert settings.name is not None
    return EVERY_METHOD[settings.name](**values)


def settings_of(objective: Objective) -> ObjectiveConfig:
    """The settings that describe an objective of the tables.

    Raises:
        ConfigError: an objective that is not in a table cannot be written into a run folder; or a setting that
            cannot be written down, such as one that is not finite.
    """
    for name, method in EVERY_METHOD.items():
        if type(objective) is method:
            assert dataclasses.is_dataclass(objective)
            values = {field.name: getattr(objective, field.name) for field in dataclasses.fields(objective)}
            models = {**settings_models(), **pretrain_settings_models()}
            return validated(models[name], {"name": name, **values}, type(objective).__name__)
    known = ", ".join(method.__name__ for method in EVERY_METHOD.values())
    raise ConfigError(f"{type(objective).__name__} is not one of {known}; train it with fewtags.Fit, which takes any.")


def method_class(name: str) -> type[Objective]:
    """The class of a method, of either table.

    Raises:
        ConfigError: unknown; the closest name is suggested.
    """
    if name not in EVERY_METHOD:
        raise ConfigError(f"{name!r} is not a method{suggest(name, EVERY_METHOD)}. Known: {', '.join(EVERY_METHOD)}.")
    return EVERY_METHOD[name]
