"""Cost of annotations (tags, points, boxes), and how many of them a budget buys (PatchML)."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from enum import StrEnum
from pathlib import Path
from typing import Any, final

import numpy as np
from numpy.typing import NDArray

from fewtags.config.parse import load_toml
from fewtags.errors import ConfigError, DataError
from fewtags.labels import Label
from fewtags.table.table import LabelTable
from fewtags.text import flag, suggest

_UNITS = {"h": 3600.0, "min": 60.0, "s": 1.0, "": 1.0}


@final
class Annotation(StrEnum):
    """Type of annotation of a present class. For an absent class, the answer is "no" in every type."""

    TAGS = "tags"
    ONE_POINT = "one point"
    ONE_BOX = "one box"
    ALL_POINTS = "all points"
    ALL_BOXES = "all boxes"

    @classmethod
    def of(cls, text: str) -> Annotation:
        """Return the type named `text`: its name or PatchML's abbreviation (I, SP, SB, AP, AB), ignoring case.

        >>> Annotation.of("sp") is Annotation.of("one-point") is Annotation.ONE_POINT
        True
        """
        spellings = {spelling.lower(): kind for kind in cls for spelling in (kind.value, kind.short)}
        word = re.sub(r"[\s_-]+", " ", text.strip().lower())
        if word not in spellings:
            known = ", ".join(kind.described() for kind in cls)
            raise ConfigError(f"annotation type {text!r} is not known{suggest(word, spellings)}; known: {known}.")
        return spellings[word]

    @property
    def short(self) -> str:
        """PatchML's abbreviation."""
        return {"tags": "I", "one point": "SP", "one box": "SB", "all points": "AP", "all boxes": "AB"}[self.value]

    def described(self) -> str:
        """Return name and abbreviation, for example "one point (SP)"."""
        return f"{self.value} ({self.short})"

    @property
    def pointed(self) -> bool:
        """Whether the type asks for points."""
        return self in (Annotation.ONE_POINT, Annotation.ALL_POINTS)

    @property
    def boxed(self) -> bool:
        """Whether the type asks for boxes."""
        return self in (Annotation.ONE_BOX, Annotation.ALL_BOXES)

    @property
    def every(self) -> bool:
        """Whether the type asks for all instances of a class."""
        return self in (Annotation.ALL_POINTS, Annotation.ALL_BOXES)


@final
@dataclass(frozen=True, kw_only=True)
class CostModel:
    """Seconds per answer, and averages over images.

    The default seconds are those of PatchML: 1, 2.4 and 0.9 from Bearman et al. (What's the Point, ECCV 2016), 7 for a
    box from Papadopoulos et al. (Extreme clicking, ICCV 2017). Only the flat cost uses the averages.

    Attributes:
        classes: C, number of classes that are asked about in each image.
        positives_per_image: m, average number of present classes.
        instances_per_image: n, average number of objects of these classes; None: unknown, so "all points" and "all
            boxes" have no flat cost.
        tag: seconds for a yes or no: an absent class, or a present one without its place.
        point: seconds for a present class with a point on one object.
        extra_point: seconds for a point on each further object.
        box: seconds for a box, which includes the tag.

    Raises:
        ConfigError: a value out of range.
    """

    classes: int
    positives_per_image: float
    instances_per_image: float | None = None
    tag: float = 1.0
    point: float = 2.4
    extra_point: float = 0.9
    box: float = 7.0

    def __post_init__(self) -> None:
        c, m, n = self.classes, self.positives_per_image, self.instances_per_image
        for name in ("tag", "point", "extra_point", "box"):
            value = getattr(self, name)
            if not 0 <= value < math.inf or (value == 0 and name != "extra_point"):
                raise ConfigError(f"{name} costs {value} s; expected seconds above 0.")
        if not (1 <= c < math.inf and c == math.floor(c)):
            raise ConfigError(f"classes is {c}; expected a whole number from 1.")
        object.__setattr__(self, "classes", int(c))  # TOML may say 12.0
        if not 0 <= m <= c:
            raise ConfigError(f"positives_per_image is {m}; expected 0 to {c}, the number of classes.")
        if n is not None and not m <= n < math.inf:
            raise ConfigError(f"instances_per_image is {n}; expected at least {m}, one for each positive class.")

    def __str__(self) -> str:
        instances = "" if self.instances_per_image is None else f", with {self.instances_per_image:.4g} instances"
        return (
            f"tag {self.tag:.6g} s, point {self.point:.6g} s, further point {self.extra_point:.6g} s, box "
            f"{self.box:.6g} s; {self.classes:,} classes, {self.positives_per_image:.4g} of them positive in an "
            f"average image{instances}"
        )

    @classmethod
    def measured(cls, table: LabelTable) -> CostModel:
        """Return the averages of a table over its known cells, with the seconds of PatchML.

        Instances are counted in located positives; other positives are assumed to have as many. A table without a known
        cell is a `DataError`.
        """
        positives, negatives = (int(table.matrix.counts(s).sum()) for s in (Label.POSITIVE, Label.NEGATIVE))
        if not positives + negatives:
            raise DataError(f"none of the {len(table):,} images has a label, so there is nothing to buy.")
        c, places = len(table.classes), table.locations
        m = c * positives / (positives + negatives)
        owner = np.repeat(np.arange(len(table)), np.diff(places.indptr))
        located = len(np.unique(owner * c + places.classes))
        return cls(classes=c, positives_per_image=m, instances_per_image=m * len(places) / located if located else None)

    def seconds_per_pair(self, annotation: str) -> float:
        """Return the flat cost: the average over all classes of an average image (PatchML, Fig. 3).

        With C classes of which m are positive with n instances: I: tag; SP: ((C - m) tag + m point) / C; SB the same
        with box; AP: SP + (n - m) extra_point / C; AB: ((C - m) tag + n box) / C.

        The paper gives seconds per image only for I, SP and SB; AP and AB are derived from its counts.

        Raises:
            ConfigError: no such type, or the type needs an unknown number of instances.
        """
        kind, c, m = Annotation.of(annotation), self.classes, self.positives_per_image
        n = m if not kind.every else self.instances_per_image
        if n is None:
            raise ConfigError(
                f"{kind.described()} has no flat cost, because instances_per_image is not known; give it in a cost "
                "file, or charge exactly (mode 'exact')."
            )
        if kind is Annotation.TAGS:
            return self.tag
        present = n * self.box if kind.boxed else m * self.point + (n - m) * self.extra_point
        return ((c - m) * self.tag + present) / c

    def exact_seconds(self, annotation: str, instances: NDArray[np.integer]) -> NDArray[np.float64]:
        """Return the exact cost of each pair in seconds, float64 [T].

        `instances`, int [T], counts the objects with a location that the type can use; 0 for an absent class.
        """
        kind = Annotation.of(annotation)
        asked = instances if kind.every else np.minimum(instances, 1)
        placed = asked * self.box if kind.boxed else self.point + (asked - 1) * self.extra_point
        return np.where((instances == 0) | (kind is Annotation.TAGS), self.tag, placed)

    def least(self, annotation: str) -> float:
        """Return the cost of the cheapest answer of a type in seconds."""
        kind = Annotation.of(annotation)
        return self.tag if kind is Annotation.TAGS else min(self.tag, self.box if kind.boxed else self.point)

    def pairs_for(self, budget: str | float, annotation: str, pairs: int) -> int:
        """Return how many pairs a budget buys at flat cost, rounded to the nearest (at most half a pair too many).

        A `budget` in percent refers to `pairs`, the number of all (image, class) pairs; the result may exceed it.

        >>> PROFILES["coco"].pairs_for("1%", "SP", 82_783 * 80)
        62404
        """
        seconds = budget_seconds(budget, pairs * self.tag)
        return math.floor(seconds / self.seconds_per_pair(annotation) + 0.5)


PROFILES: Mapping[str, CostModel] = {
    "coco": CostModel(classes=80, positives_per_image=3.5, instances_per_image=7.7),
    "objects365": CostModel(classes=365, positives_per_image=5.0),
}
"""Averages of PatchML's Fig. 3. Its instances per image for Objects365 are unknown."""


def budget_seconds(budget: str | float, everything: float) -> float:
    """Convert a budget to seconds; anything else is a `ConfigError`.

    A budget is a share of `everything`, the seconds to tag every class in every image ("1%"), a time ("12h", "30min",
    "900s"), or a number of seconds above 0. More than 100 % is possible: boxes take longer than tags.
    """
    match = re.fullmatch(r"(\d+\.?\d*|\.\d+)(e[+-]?\d+)?\s*(%|h|min|s|)", str(budget).strip().lower())
    amount = float(match[1] + (match[2] or "")) if match else math.nan
    if match is None or not 0 < amount < math.inf:
        raise ConfigError(
            f"{budget!r} is not a budget; write a share of tagging every class in every image ('1%'), a time ('12h', "
            "'30min', '900s'), or a number of seconds above 0."
        )
    return amount / 100 * everything if match[3] == "%" else amount * _UNITS[match[3]]


def find_cost(cost: str | None, table: LabelTable | None, given: Mapping[str, float] | None = None) -> CostModel:
    """Return the cost model of a profile name, file or table.

    Args:
        cost: a name in `PROFILES`, or a TOML file with attributes of `CostModel`. Missing attributes default to the
            averages of `table` and the seconds of PatchML.
        table: the labels to buy from; None: the averages must be given.
        given: attributes of `CostModel` that override all others.

    Raises:
        ConfigError: neither a profile nor a TOML file, an invalid file, or missing averages.
        DataError: the table has no known cell; or no negative, and positives per image are not given.
    """
    if cost is not None and cost in PROFILES and not given:
        return PROFILES[cost]
    found: dict[str, Any] = {}
    if cost is not None:
        found = _profile(cost, given or {}) if cost in PROFILES else _cost_file(cost)
    found |= given or {}
    try:
        if table is not None and cost not in PROFILES:
            if "positives_per_image" not in found and not table.matrix.counts(Label.NEGATIVE).any():
                raise DataError(
                    "no class is known to be absent from any image, so the labels do not say how many classes "
                    "an average image shows. Give complete labels (--complete, if what is not named is absent), or "
                    "positives_per_image: --positives of `fewtags plan`, or a --cost file."
                )
            return replace(CostModel.measured(table), **found)
        asked = {
            "classes": f"{flag('classes')}, the number of classes",
            "positives_per_image": f"{flag('positives')}, the number of classes that an average photo shows (count in "
            "twenty photos)",
        }
        if missing := [what for name, what in asked.items() if name not in found]:
            raise ConfigError(f"the costs are not known; give {'; and '.join(missing)}.")
        return CostModel(**found)
    except ConfigError as error:
        where = "" if cost is None or cost in PROFILES else f"{cost}: "
        raise ConfigError(f"{where}{error}") from None


def _profile(name: str, given: Mapping[str, float]) -> dict[str, float]:
    """Attributes of a profile; an error if a different number of classes is given without its average."""
    profile = PROFILES[name]
    if given.get("classes", profile.classes) == profile.classes:
        return dict(vars(profile))
    if "positives_per_image" not in given:
        raise ConfigError(
            f"the averages of {name!r} are those of {profile.classes} classes; with {given['classes']:g} classes give "
            "how many of them an average photo shows (count in twenty photos)."
        )
    return {k: v for k, v in vars(profile).items() if k != "instances_per_image"}


def _cost_file(cost: str) -> dict[str, float]:
    """Read attributes of a `CostModel` from a TOML file."""
    if not cost.lower().endswith(".toml"):
        known = f"{', '.join(PROFILES)}, or a file that ends in .toml"
        raise ConfigError(f"costs {cost!r} are not known{suggest(cost, PROFILES)}; known: {known}.")
    found, names = load_toml(Path(cost)), [field.name for field in fields(CostModel)]
    for name, value in found.items():
        if name not in names:
            raise ConfigError(f"{cost}: {name!r} is not a cost{suggest(name, names)}; known: {', '.join(names)}.")
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise ConfigError(f"{cost}: {name} is {value!r}; expected a number.")
    return found
