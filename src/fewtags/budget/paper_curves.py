"""PatchML's measured curves: rough guidance without a pilot."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from importlib import resources
from itertools import chain
from typing import Any, final

import numpy as np
from numpy.typing import NDArray

from fewtags.budget.costs import PROFILES, Annotation
from fewtags.budget.curves import Estimate, Measure

SINGLE, ALL = "Table 1, mean of 3 snapshots", "Table 2, apparently 1 snapshot"


@final
@dataclass(frozen=True, eq=False)
class PaperCurve:
    """One type of label in PatchML's tables 1 and 2 (MS-COCO, 80 classes).

    Values between the five printed budgets are interpolated, linear in the logarithm of labels. There are no values
    beyond them and no intervals: the paper has none.

    Attributes:
        table: where it is printed.
        per_class: float64 [5], labels per class that the printed budgets buy, see `CostModel.pairs_for`.
        values: mAP (and mAP_loc, if printed), each float64 [5] in 0..1.
    """

    table: str
    per_class: NDArray[np.float64]
    values: Mapping[str, NDArray[np.float64]]

    def judged(self, classes: int) -> tuple[float, float]:
        """Return the smallest and the largest number of labels at which `estimate` gives a value."""
        return float(self.per_class[0]) * classes, float(self.per_class[-1]) * classes

    def estimate(self, labels: float, classes: int, measure: Measure = "mAP") -> Estimate:
        """Return what the paper measured with the same number of labels per class.

        Deviation: the paper has no rule for other data sets. Ours gives the printed numbers for COCO and ignores class
        frequencies.
        """
        if measure not in self.values:
            return Estimate(value=None, refused="the paper has no value")
        first, last, each = float(self.per_class[0]), float(self.per_class[-1]), labels / classes
        if not first * (1 - 1e-3) <= each <= last * (1 + 1e-3):
            where = "fewer" if each < first else "more"
            why = f"{each:,.0f} labels per class are {where} than the {first:,.0f} to {last:,.0f} of the paper"
            return Estimate(value=None, factor=each / last, refused=why)
        value = np.interp(np.log(each), np.log(self.per_class), self.values[measure])
        return Estimate(value=float(value), factor=min(1.0, each / last))


def paper_curves() -> dict[Annotation, PaperCurve]:
    """Return the paper's curves: tags, one point and one box from table 1, all points and all boxes from table 2."""
    asset, curves = _asset(), {}
    for kind in Annotation:
        table, classes = ALL if kind.every else SINGLE, asset["classes"]
        row, pairs = asset["tables"][table][kind.short], asset["photos"] * classes
        bought = [PROFILES["coco"].pairs_for(f"{budget}%", kind, pairs) for budget in row["budget_percent"]]
        values = {name: np.array(row[name]) / 100 for name in ("mAP", "mAP_loc") if name in row}
        curves[kind] = PaperCurve(table, np.array(bought) / classes, values)
    return curves


def paper_resolution() -> float:
    """Return the largest difference between two printed numbers of the same run (tables 1 and 2), 0..1.

    Smaller differences between types are not reliable.
    """
    single, every = (_asset()["tables"][table] for table in (SINGLE, ALL))
    pairs = (zip(single[kind]["mAP"], every[kind]["mAP"], strict=True) for kind in single if kind in every)
    return max(abs(float(a) - float(b)) / 100 for a, b in chain.from_iterable(pairs))


def paper_source() -> str:
    """Return the source of the numbers and their data set."""
    return f"{_asset()['source']}; {_asset()['set']}"


@cache
def _asset() -> dict[str, Any]:
    file = resources.files("fewtags").joinpath("assets", "patchml_curves.json")
    return dict(json.loads(file.read_text("utf-8")))
