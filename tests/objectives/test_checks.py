"""Settings are checked against the annotations of their fields."""

from dataclasses import dataclass, replace
from typing import Annotated, Literal

import pytest

from fewtags.errors import ConfigError
from fewtags.objectives.checks import INFINITY, Range, check_settings

NAN = float("nan")


@dataclass
class Settings:
    share: Annotated[float, Range(0, 0.5)] = 0.5
    size: Annotated[int | None, Range(1)] = None
    mean: Annotated[float | None, Range(0, above=True)] = None
    shares: Annotated[tuple[float, ...] | None, Range(0, 1)] = None
    bias: Annotated[float, Range(-INFINITY)] = 0.0
    kind: Literal["near", "far"] = "near"
    other: Literal["yes", "no"] | None = None
    weight: float | Literal["weak"] | None = None


def test_what_is_allowed_passes():
    check_settings(Settings())
    given = Settings(share=0.0, size=1, mean=1e-9, shares=(0.0, 1.0), bias=-7, kind="far", other="no", weight="weak")
    check_settings(given)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"share": 0.6}, "share must be in 0..0.5, got 0.6."),
        ({"share": NAN}, "share must be in 0..0.5, got nan."),
        ({"share": None}, "share needs a value, got None."),
        ({"size": 0}, "size must be at least 1, got 0."),
        ({"mean": 0.0}, "mean must be above 0, got 0.0."),
        ({"shares": (0.5, 1.5)}, "shares must contain numbers in 0..1, got (0.5, 1.5)."),
        ({"bias": NAN}, "bias must be at least -inf, got nan."),
        ({"kind": "fat"}, "kind must be one of near, far, got 'fat' (did you mean 'far'?)."),
        ({"other": "maybe"}, "other must be one of yes, no, got 'maybe'."),
    ],
)
def test_what_is_not_allowed_is_named(change, message):
    with pytest.raises(ConfigError) as error:
        check_settings(replace(Settings(), **change))
    assert str(error.value) == message
