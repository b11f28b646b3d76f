"""Validation of an objective's settings, from the annotations of its fields."""

from __future__ import annotations

from dataclasses import dataclass, fields
from types import UnionType
from typing import TYPE_CHECKING, Annotated, Any, Literal, Union, final, get_args, get_origin, get_type_hints

from fewtags.errors import ConfigError
from fewtags.text import suggest

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

INFINITY = float("inf")


@final
@dataclass(frozen=True)
class Range:
    """Allowed values of a number, or of each number in a tuple: `momentum: Annotated[float, Range(0, 1)] = 0.9`.

    Attributes:
        low: the smallest value.
        high: the largest value.
        above: exclude `low` itself.
    """

    low: float | int = 0.0
    high: float | int = INFINITY
    above: bool = False

    def contains(self, value: float | int) -> bool:
        """Whether a number is allowed; NaN never is."""
        return (self.low < value if self.above else self.low <= value) and value <= self.high

    def __str__(self) -> str:
        if self.high < INFINITY:
            return f"in {self.low:g}..{self.high:g}"
        return f"{'above' if self.above else 'at least'} {self.low:g}"


def check_settings(objective: DataclassInstance) -> None:
    """Check every field that is annotated with a `Range` or a `Literal`. None is allowed where the type allows it.

    Call it from `__post_init__`.

    Raises:
        ConfigError: the first value that is not allowed.
    """
    hints = get_type_hints(type(objective), include_extras=True)
    for field in fields(objective):
        value, hint = getattr(objective, field.name), hints[field.name]
        if value is not None:
            _check(field.name, value, hint)
        elif type(None) not in _members(hint):
            raise ConfigError(f"{field.name} needs a value, got None.")


def _check(name: str, value: Any, hint: Any) -> None:
    choices = literal_choices(hint)
    if choices and value not in choices:
        words = ", ".join(str(choice) for choice in choices)
        raise ConfigError(f"{name} must be one of {words}, got {value!r}{suggest(str(value), choices)}.")
    for allowed in ranges_of(hint):
        numbers = value if isinstance(value, tuple) else (value,)
        if not all(allowed.contains(number) for number in numbers):
            what = "must contain numbers" if isinstance(value, tuple) else "must be"
            raise ConfigError(f"{name} {what} {allowed}, got {value}.")


def _members(hint: Any) -> tuple[Any, ...]:
    """Return the types of a union, without annotations."""
    if get_origin(hint) is Annotated:
        return _members(get_args(hint)[0])
    return get_args(hint) if get_origin(hint) in (Union, UnionType) else (hint,)


def literal_choices(hint: Any) -> tuple[Any, ...]:
    """Return the values of a `Literal`, with or without None; empty if other types are allowed as well."""
    others = [member for member in _members(hint) if member is not type(None)]
    return get_args(others[0]) if len(others) == 1 and get_origin(others[0]) is Literal else ()


def ranges_of(hint: Any) -> list[Range]:
    """Return the ranges that annotate a type or a member of a union."""
    if get_origin(hint) is Annotated:
        return [extra for extra in get_args(hint)[1:] if isinstance(extra, Range)] + ranges_of(get_args(hint)[0])
    members = get_args(hint) if get_origin(hint) in (Union, UnionType) else ()
    return [found for member in members for found in ranges_of(member)]
