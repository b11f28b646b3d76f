"""Pretraining can collapse: all images get the same vector, and the loss looks fine. Notice it, and say what helps."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, final

from fewtags.losses.contrastive import fingerprint

COLLAPSED = 0.05
"""Spread (`losses.contrastive.collapse`) below which vectors count as one; training nets have 0.3 to 1."""
EPOCHS = 2
"""So many epochs in a row, the first one left out: a random net's vectors are close to each other, too."""
NEAR = 0.02
"""How close, relatively, a loss must be to the one that a collapsed net has."""
ONE_KEY = 0.98
"""Length of the mean key from which on the keys of a queue count as one."""

Record = Mapping[str, float | int | str]


@final
@dataclass(frozen=True)
class Watch:
    """Looks at the means of every epoch.

    Attributes:
        action: "stop", "warn" or "ignore": what the caller does about it; "ignore" never says anything.
        objective: name and settings of the method.
    """

    action: str
    objective: Mapping[str, Any]

    def look(self, history: Sequence[Record]) -> str | None:
        """What is wrong since the newest epoch, and what to change; None where nothing is, or it was said before.

        A function of the records alone, so that a resumed run says the same.

        Args:
            history: a record an epoch, from the first on.
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
        if self._has_fingerprint(now):
            facts.append(f"neighbour loss {now['train/neighbour_loss']:.3f}, that of a collapsed net")
        return f"the net has collapsed by epoch {int(now['epoch']) + 1}: {'; '.join(facts)}. {self._cure()}"

    def _collapsed(self, history: Sequence[Record]) -> bool:
        last = history[1:][-EPOCHS:]
        return len(last) == EPOCHS and all(self._is_one_vector(record) for record in last)

    def _is_one_vector(self, record: Record) -> bool:
        """By the spread of an epoch; or by its keys and its loss together, which need no batch of different images."""
        spread, mean = _number(record, "spread"), _number(record, "mean_key")
        if spread is not None and spread < COLLAPSED:
            return True
        return mean is not None and mean > ONE_KEY and self._has_fingerprint(record)

    def _has_fingerprint(self, record: Record) -> bool:
        """Whether L_ml is that of a collapsed net."""
        loss, expected = _number(record, "neighbour_loss"), collapsed_loss(self.objective)
        return loss is not None and expected is not None and math.isclose(loss, expected, rel_tol=NEAR)

    def _cure(self) -> str:
        if self.objective.get("name") == "mls" and self.objective.get("neighbour_loss") == "bce":
            return (
                'Start again with objective.neighbour_loss = "knn_eq10" or objective.reduction = "balanced", a later '
                "objective.neighbour_from, a smaller objective.weight, or objective.momentum = 0.999."
            )
        return "Start again with a lower train.lr, a larger train.batch_size, or objective.momentum nearer to 1."


def collapsed_loss(objective: Mapping[str, Any]) -> float | None:
    """The neighbour loss of MLS (eq. 9) when all vectors are equal: softplus(1 / tau) - (k / D) / tau.

    Args:
        objective: name and settings of the method.

    Returns:
        the loss; None for methods and settings without this level.
    """
    plain = objective.get("neighbour_loss") == "bce" and objective.get("reduction") == "mean"
    if not plain or objective.get("logit_bias") or not objective.get("queue_size"):
        return None
    return fingerprint(int(objective["k"]), int(objective["queue_size"]), float(objective["temperature"]))


def _number(record: Record, name: str) -> float | None:
    value = record.get(f"train/{name}")
    return None if value is None else float(value)
