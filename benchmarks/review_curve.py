"""The curve behind the forecast of `fewtags review`, fitted to simulated reviews: `review_curve.py [FILE]`.

Fits gain = A (1 - exp(-share / tau)) to the mean gains of test mAP in the file of `review.py` (default order, right
answers), every set alike. Then each set is left out in turn: the curve of the others predicts all gains between two of
its rounds. Printed are the root mean square error and how many of the 95 % intervals contain the gain.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fewtags.review.forecast import ABSOLUTE, RELATIVE
from fewtags.review.orders import DEFAULT_ORDER
from protocol import read_lines
from review import ROUNDS, SETS

Values = NDArray[np.float64]
SHARES = np.array([0.0, *ROUNDS])
SCALES = np.linspace(0.005, 0.1, 96)


def gains(records: Sequence[Mapping[str, Any]]) -> dict[str, Values]:
    """Return the gains of mAP since the start in points, [runs, rounds], by set."""
    runs = [r for r in records if r["order"] == DEFAULT_ORDER and not r["wrong"]]
    values = {
        s: [[x["test"] - r["rounds"][0]["test"] for x in r["rounds"]] for r in runs if r["set"] == s] for s in SETS
    }
    return {s: np.array(rows) for s, rows in values.items() if rows}


def fit(means: Sequence[Values]) -> tuple[float, float]:
    """Return A and tau that fit the mean of some curves best."""
    y = np.mean(means, axis=0)

    def solve(tau: float) -> tuple[float, float, float]:
        h = 1 - np.exp(-SHARES / tau)
        a = float(h @ y / (h @ h))
        return float(((a * h - y) ** 2).sum()), a, tau

    _, a, tau = min(map(solve, SCALES))
    return a, tau


def main() -> None:
    place = Path(sys.argv[1]) if len(sys.argv) > 1 else Path(__file__).parent / "results" / "review.jsonl"
    found = gains(read_lines(place))
    a, tau = fit([runs.mean(0) for runs in found.values()])
    print(f"all sets: {a:.1f} points, scale {tau:.3f}")
    errors, inside = [], []
    for name, runs in found.items():
        a, tau = fit([other.mean(0) for key, other in found.items() if key != name])
        curve = a * (1 - np.exp(-SHARES / tau))
        first, second = np.triu_indices(len(SHARES), 1)
        expected, actual = curve[second] - curve[first], runs[:, second] - runs[:, first]
        half = 1.96 * np.hypot(RELATIVE * expected, 100 * ABSOLUTE)
        errors.append((expected - actual).ravel())
        inside.append((np.abs(expected - actual) <= half).ravel())
        rms = np.sqrt(np.mean(errors[-1] ** 2))
        print(
            f"without {name}: {a:.1f} points, scale {tau:.3f}; on it: error {rms:.1f}, inside {inside[-1].mean():.2f}"
        )
    every = np.concatenate(errors)
    rms = np.sqrt(np.mean(every**2))
    print(f"all left out: bias {every.mean():+.2f}, error {rms:.2f} points, inside {np.concatenate(inside).mean():.2f}")


if __name__ == "__main__":
    main()
