"""One number of an evaluation, in the form that JSON, text and the report page share.

Everything that shows results iterates over `Metric`s, so a new metric is one more `yield` in `engine/evaluate.py`.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from typing import Any, Literal, final

from fewtags.text import counted

Unit = Literal["percent", "number", "count"]
"""How a value is printed: a fraction in 0..1 as a percentage; with two decimals; as a whole number."""


@final
@dataclass(frozen=True, kw_only=True)
class Metric:
    """A named number and the number of items behind it.

    Attributes:
        key: name in JSON; a dot separates the levels of nested objects.
        label: name for people.
        value: nan if the metric is not defined.
        unit: see `Unit`.
        count: number of items from which the metric was computed.
        items: kind of these items, in the plural.
        interval: (low, high) of the 95 % interval, nan if it is not defined; None for a metric without one.
        chance: value of a model without any information; None for a metric without one.
        why: why the metric is not defined; used only if `value` is nan.
        is_detail: whether it is left out of the sentence of all metrics.
    """

    key: str
    label: str
    value: float | int
    unit: Unit = "percent"
    count: int
    items: str
    interval: tuple[float, float] | None = None
    chance: float | int | None = None
    why: str = ""
    is_detail: bool = False

    @property
    def is_defined(self) -> bool:
        """Whether there is a value."""
        return not math.isnan(self.value)

    def show(self, value: float | int) -> str:
        """Write a value in the unit of this metric.

        >>> Metric(key="mAP", label="mAP", value=0.5, count=2, items="classes").show(0.123)
        '12.3'
        """
        if math.isnan(value):
            return "-"
        return {"percent": f"{100 * value:.1f}", "number": f"{value:.2f}", "count": f"{value:,.0f}"}[self.unit]

    def __str__(self) -> str:
        """Label, value and interval."""
        spread = "" if self.interval is None else f" (95 % interval {' .. '.join(map(self.show, self.interval))})"
        return f"{self.label} {self.show(self.value)}{spread}"

    def to_dict(self) -> dict[str, Any]:
        """All fields, for JSON; nan becomes None."""
        interval = None if self.interval is None else [number_or_none(v) for v in self.interval]
        return {**asdict(self), "value": self._plain(), "interval": interval, "chance": number_or_none(self.chance)}

    @classmethod
    def from_dict(cls, fields: Mapping[str, Any]) -> Metric:
        """Read what `to_dict` made; a missing chance level stays None."""
        low_high = fields["interval"] and tuple(map(_float, fields["interval"]))
        return cls(**{**fields, "value": _float(fields["value"]), "interval": low_high})

    def _plain(self) -> float | int | None:
        return int(self.value) if self.unit == "count" and self.is_defined else number_or_none(self.value)


def nested(metrics: Iterable[Metric]) -> dict[str, Any]:
    """The values by key, for JSON. Intervals and chance levels have the suffixes `_interval` and `_chance`.

    >>> nested([Metric(key="labels.known", label="known", value=2.0, unit="count", count=1, items="images")])
    {'labels': {'known': 2}}
    """
    result: dict[str, Any] = {}
    for metric in metrics:
        *path, name = metric.key.split(".")
        level = result
        for step in path:
            level = level.setdefault(step, {})
        level[name] = metric._plain()
        if metric.interval is not None:
            bounds = [number_or_none(v) for v in metric.interval]
            level[f"{name}_interval"] = None if bounds == [None, None] else bounds
        if metric.chance is not None:
            level[f"{name}_chance"] = number_or_none(metric.chance)
    return result


def sentence(metrics: Iterable[Metric]) -> str:
    """The metrics that are defined and not details, separated by commas."""
    return ", ".join(str(metric) for metric in metrics if metric.is_defined and not metric.is_detail)


def reasons(metrics: Iterable[Metric]) -> list[str]:
    """One sentence for each reason why metrics are not defined."""
    by_reason: dict[str, list[str]] = {}
    for metric in metrics:
        if not metric.is_defined and metric.why:
            by_reason.setdefault(metric.why, []).append(metric.label)
    return [f"Not measured: {', '.join(labels)}: {why}." for why, labels in by_reason.items()]


def table_with_chance(metrics: Iterable[Metric]) -> list[str]:
    """A line per metric: label, value, chance level and count."""
    metrics = list(metrics)
    width = max(len(metric.label) for metric in metrics)
    lines = [f"{'metric':<{width}}   value  chance"]
    for metric in metrics:
        chance = "-" if metric.chance is None else metric.show(metric.chance)
        number = counted(metric.count, metric.items, metric.items)
        lines.append(f"{metric.label:<{width}}  {metric.show(metric.value):>6}  {chance:>6}  {number}")
    return lines


def number_or_none(value: float | int | None) -> float | None:
    """A float, or None for nan, which JSON does not have."""
    return None if value is None or math.isnan(value) else float(value)


def _float(value: float | int | None) -> float:
    return math.nan if value is None else float(value)
