"""Coverage of the intervals of mAP, by simulation: how often the limits enclose the mAP on very many images.

    python benchmarks/interval_coverage.py

Scores are normal; those of positives are shifted. The old rule, percentiles of a bootstrap over images, is simulated
beside the jackknife. A test set lacks a class without positives: both estimand and interval leave this class out.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from fewtags.labels import Label
from fewtags.metrics.intervals import FEWEST_POSITIVES, difference_interval, jackknife_intervals
from fewtags.metrics.ranking import average_precision, mean_of_known

SIZES = (60, 200, 1000)
LARGE = 100_000
RESAMPLES = 200


class Kind(NamedTuple):
    """A simulated kind of test set: for each class, the share of positives and the shift of their scores."""

    name: str
    rates: tuple[float, ...]
    shifts: tuple[float, ...]


KINDS = (
    Kind("4 frequent easy, 12 rare hard classes", (0.3,) * 4 + (0.02,) * 12, (1.5,) * 4 + (0.8,) * 12),
    Kind("16 classes of 5 %", (0.05,) * 16, (2.0,) * 16),
    Kind("10 classes of 20 %, hard to easy", (0.2,) * 10, tuple(np.linspace(0.5, 3, 10).tolist())),
    Kind("3 nearly perfect classes of 10 %", (0.1,) * 3, (4.0,) * 3),
)


def draw(
    kind: Kind, n: int, rng: np.random.Generator, extra: float = 0.0
) -> tuple[NDArray[np.float64], NDArray[np.float64], NDArray[np.int8]]:
    """Scores of two models that share two thirds of their noise, the second with larger shifts, and labels."""
    positive = rng.random((n, len(kind.rates))) < kind.rates
    shared, *own = (rng.normal(size=positive.shape) for _ in range(3))
    first, second = (shared * (2 / 3) ** 0.5 + noise * (1 / 3) ** 0.5 for noise in own)
    shifts = np.array(kind.shifts)
    labels = np.where(positive, np.int8(Label.POSITIVE), np.int8(Label.NEGATIVE))
    return first + shifts * positive, second + (shifts + extra) * positive, labels


def bootstrap(scores: NDArray[np.float64], labels: NDArray[np.int8], rng: np.random.Generator) -> tuple[float, float]:
    """Percentiles of the mAP over resampled images; a class without a positive is left out of the resample."""
    means = []
    for _ in range(RESAMPLES):
        chosen = rng.integers(len(scores), size=len(scores))
        means.append(mean_of_known(average_precision(scores[chosen], labels[chosen])))
    low, high = np.nanquantile(means, [0.025, 0.975])
    return float(low), float(high)


def lines(repeats: int, bootstraps: int) -> Iterator[str]:
    """A Markdown table, a row for each kind and size."""
    columns = (
        *("test set", "images", "mAP, many images", "covered", "width", "bootstrap: covered", "width", "value outside"),
        *(f"classes with {FEWEST_POSITIVES} positives or more: covered", "difference of two models: covered"),
    )
    yield f"| {' | '.join(columns)} |"
    yield "|" + "---|" * len(columns)
    for number, kind in enumerate(KINDS):
        rng = np.random.default_rng(number)
        first, second, labels = draw(kind, LARGE, rng, 0.2)
        large, other = average_precision(first, labels), average_precision(second, labels)
        for n in SIZES:
            shown: list[list[float]] = [[] for _ in range(7)]
            covered, width, old, old_width, outside, by_class, paired = shown
            for repeat in range(repeats):
                first, second, labels = draw(kind, n, rng, 0.2)
                values = average_precision(first, labels)
                known = ~np.isnan(values)
                truth, found = large[known].mean(), jackknife_intervals(first, labels)
                low, high = found.mean_average_precision
                covered.append(low <= truth <= high)
                width.append(high - low)
                each = found.average_precision
                inside = (each[:, 0] <= large) & (large <= each[:, 1])
                by_class += inside[~np.isnan(each[:, 0])].tolist()
                low, high = difference_interval(first, second, labels)
                paired.append(low <= (other - large)[known].mean() <= high)
                if repeat < bootstraps:
                    low, high = bootstrap(first, labels, rng)
                    old.append(low <= truth <= high)
                    old_width.append(high - low)
                    outside.append(not low <= values[known].mean() <= high)
            cells = [f"{100 * np.mean(part):.0f} %" if len(part) else "–" for part in shown]
            yield f"| {kind.name} | {n:,} | {100 * large.mean():.1f} | {' | '.join(cells)} |"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeats", type=int, default=500, help="simulated test sets of each kind and size")
    parser.add_argument("--bootstraps", type=int, default=100, help="how many of them are bootstrapped, too")
    options = parser.parse_args()
    for line in lines(options.repeats, options.bootstraps):
        print(line, flush=True)


if __name__ == "__main__":
    main()
