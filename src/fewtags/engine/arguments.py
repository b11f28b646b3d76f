"""Checks of arguments in Python: unknown names with the closest known one, and wrong values of the constructor."""

from __future__ import annotations

import difflib
import inspect
from collections.abc import Callable, Mapping
from functools import wraps
from pathlib import Path
from typing import Any, ParamSpec, TypeVar, get_args

import numpy as np

from fewtags.config.precision import PRECISIONS
from fewtags.config.sections import MOST_SEED, NO_FILES, TrainConfig
from fewtags.engine.methods import method_class
from fewtags.errors import ArgumentError, ConfigError
from fewtags.nets.backbones import check_backbone
from fewtags.objectives.base import Objective
from fewtags.objectives.table import METHODS, OWN_METHOD
from fewtags.text import quoted, suggest

P = ParamSpec("P")
T = TypeVar("T")
PRESETS = tuple(word for part in get_args(TrainConfig.model_fields["preset"].annotation) for word in get_args(part))
FIT_ARGUMENTS = ("epochs", "settings", "images", "truth", "teacher", "progress", "on_event")
SMALLEST = 32
"""Smallest side of the input in pixels, as in the setting augment.size."""


def named_arguments(function: Callable[P, T]) -> Callable[P, T]:
    """Return a function whose error for an unknown argument names the closest known one."""
    known = [name for name in inspect.signature(function).parameters if name not in ("self", "cls")]
    called = function.__qualname__.removesuffix(".__init__")

    @wraps(function)
    def checked(*args: P.args, **kwargs: P.kwargs) -> T:
        refuse_unknown(called, kwargs, known)
        return function(*args, **kwargs)

    return checked


def refuse_unknown(called: str, given: Mapping[str, object], known: list[str]) -> None:
    """Raise ArgumentError if a name is not known."""
    for name in given:
        if name not in known:
            where = suggest(name, known)
            if not where and (close := difflib.get_close_matches(name, FIT_ARGUMENTS, n=1)):
                where = f" (did you mean {close[0]!r} of fit?)"
            elif not where and name in TrainConfig.model_fields:
                where = f" (settings={{'train.{name}': ...}} of fit sets it)"
            raise ArgumentError(f"{called} has no argument {name!r}{where}; its arguments are {', '.join(known)}.")


def refuse_wrong_values(given: Mapping[str, Any]) -> None:
    """Check the arguments of `Classifier` without a look at data.

    Raises:
        ConfigError: a value is unknown or out of range; `ArgumentError`: it has another type than expected.
    """
    objective = given["objective"]
    if isinstance(objective, type):
        raise ArgumentError(f"objective is the class {objective.__name__}; give an instance: {objective.__name__}().")
    if isinstance(objective, str):
        if objective not in METHODS and ":" not in objective:
            raise ConfigError(
                f"objective is {objective!r}, which is not a method{suggest(objective, METHODS)}; known: "
                f"{', '.join(METHODS)}, or a class of your own as {OWN_METHOD}."
            )
        method_class(objective)
    elif objective is not None and not isinstance(objective, Objective):
        raise _wrong_type("objective", objective, "a method's name, an instance such as ExpectedNegative(), or None")
    for name in ("backbone", "weights", "preset", "device"):
        if not isinstance(given[name], str | None) and not (name == "weights" and isinstance(given[name], Path)):
            raise _wrong_type(name, given[name], "a text or None")
    for name, least, most in (("size", SMALLEST, None), ("seed", 0, MOST_SEED)):
        value = given[name]
        if value is None and name == "size":
            continue
        limits = f"{least} or more" if most is None else f"{least} to {most}"
        if isinstance(value, bool) or not isinstance(value, int | np.integer):
            raise _wrong_type(name, value, f"a whole number, {limits}")
        if value < least or (most is not None and value > most):
            raise ConfigError(f"{name} is {value}; expected {limits}.")
    if not isinstance(given["init"], str | Path | None):
        raise _wrong_type("init", given["init"], "the folder of a pretraining run, its encoder file, or None")
    if given["preset"] is not None and given["preset"] not in PRESETS:
        preset = given["preset"]
        raise ConfigError(
            f"preset is {preset!r}, which is not a preset{suggest(preset, PRESETS)}; known: {', '.join(PRESETS)}."
        )
    if given["device"] not in (None, "cpu"):
        raise ConfigError(f"device is {given['device']!r}; give 'cpu', or None for the best device.")
    if given["mixed_precision"] not in (None, *PRECISIONS):
        known = ", ".join(map(repr, PRECISIONS))
        raise ConfigError(f"mixed_precision is {given['mixed_precision']!r}; give {known}, or None for the default.")
    if given["weights"] not in (None, *NO_FILES) and not Path(given["weights"]).exists():
        weights = str(given["weights"])
        raise ConfigError(
            f"weights is {quoted(weights)}, which is not a file{suggest(weights, NO_FILES)}; give "
            f"{', '.join(NO_FILES)}, or the path of a file."
        )
    if given["backbone"] is not None:
        check_backbone(given["backbone"])


def _wrong_type(name: str, value: object, expected: str) -> ArgumentError:
    return ArgumentError(f"{name} is {value!r} of the type {type(value).__name__}; expected {expected}.")
