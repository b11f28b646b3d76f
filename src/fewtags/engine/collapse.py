"""Detect that pretraining has collapsed: all images get the same vector, while the loss looks fine."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import final

from fewtags.objectives.base import Objective

COLLAPSED = 0.05
"""Spread (`losses.contrastive.collapse`) below which all vectors count as equal; it is 0.3 to 1 while a net learns."""
EPOCHS = 2
"""Collapsed epochs in a row before a warning; the first epoch never counts, as vectors of a random net are close."""
RELATIVE_TOLERANCE = 0.02
"""Relative difference up to which a loss equals that of a collapsed net."""
ONE_KEY = 0.98
"""Length of the mean key above which the keys of a queue count as one."""

Record = Mapping[str, float | int | str]


@final
@dataclass(frozen=True)
class Watch:
    """Looks for a collapse of `objective`, whose settings are all derived, in the means of every epoch.

    `action` is "stop", "warn" or "ignore": what the caller does after a warning; with "ignore" there is none.
    """

    action: str
    objective: Objective

    def look(self, history: Sequence[Record]) -> str | None:
        """Return a warning with a remedy if the net collapsed in the newest epoch; None if not, or if already warned.

        `history` has one record per epoch from the first epoch on. The result depends on it alone, so a resumed run
        warns at the same epoch.
        """
        if self.action == "ignore" or not self._collapsed(history) or self._collapsed(history[:-1]):
            return None
        now = history[-1]
        facts = [f"spread of the vectors {float(now['train/spread']):.3f} (1: all around, 0: one vector)"]
        if (mean := _number(now, "mean_key")) is not None:
            facts.append(f"length of the mean key {mean:.2f} (0: all around, 1: one vector)")
        met, kept = _number(now, "neighbours_met"), _number(now, "neighbours_kept")
        if met and kept is not None:
            facts.append(f"{100 * (1 - kept / met):.0f} % of the neighbours changed")
        facts += [
            f"{name.replace('_', ' ')} {now[f'train/{name}']:.3f}, that of a collapsed net"
            for name in self._losses_of_collapse(now)
        ]
        epoch = int(now["epoch"]) + 1
        return f"the net has collapsed by epoch {epoch}: {'; '.join(facts)}. {self.objective.collapse_remedy}"

    def _collapsed(self, history: Sequence[Record]) -> bool:
        last = history[1:][-EPOCHS:]
        return len(last) == EPOCHS and all(self._is_one_vector(record) for record in last)

    def _is_one_vector(self, record: Record) -> bool:
        """Judge by the spread; or by the keys and the loss together, which need no batch of different images."""
        spread, mean = _number(record, "spread"), _number(record, "mean_key")
        if spread is not None and spread < COLLAPSED:
            return True
        return mean is not None and mean > ONE_KEY and bool(self._losses_of_collapse(record))

    def _losses_of_collapse(self, record: Record) -> list[str]:
        """Return the names of the logged losses that equal those of a collapsed net."""
        return [
            name
            for name, level in self.objective.collapsed_losses().items()
            if (loss := _number(record, name)) is not None and math.isclose(loss, level, rel_tol=RELATIVE_TOLERANCE)
        ]


def _number(record: Record, name: str) -> float | None:
    value = record.get(f"train/{name}")
    return None if value is None else float(value)
