"""K and class priors: errors of estimates without complete labels, coverage of intervals, and what EN does with them.

    OMP_NUM_THREADS=1 python benchmarks/expected_number.py coverage
    OMP_NUM_THREADS=1 python benchmarks/expected_number.py tags --out benchmarks/results/expected_tags.jsonl
    OMP_NUM_THREADS=1 python benchmarks/expected_number.py cuts --out benchmarks/results/expected_cuts.jsonl

`coverage` draws complete photos, or hides cells, of the training photos of four sets, and of a simulated set with rare
classes. `tags` estimates K from one random tag of each photo, for all classes and for a random half of them (photos
without any are left out). `cuts` solves EN's head with K from 100 drawn photos, with half weight between the cuts of
its interval, and with wrong K; the strength of regularisation is chosen on validation. A line that is there is not done
again. Features: EfficientNet-Lite0 at 224 pixels, frozen, as in review.py. Every part ends with its table.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fewtags.budget.simulate import single_positive
from fewtags.engine.solve import ChannelStatistics, HeadSolver
from fewtags.engine.tag_counts import held_out_probabilities
from fewtags.labels import Label, LabelMatrix
from fewtags.losses.partial import expected_negative
from fewtags.metrics.counts import counts_from_tags, estimate_counts, share_by_known
from fewtags.metrics.ranking import ranking_report
from fewtags.nets.spatial import SpatialHead
from fewtags.objectives.expected_negative import UNSURE_WEIGHT
from fewtags.seeds import rng
from fewtags.stores.topk import ExpectedPositives, expected_counts
from photo_sets import load
from protocol import append_line, read_lines, script_arguments
from review import ITERATIONS, MOMENTUM, SETS, VARIANCES, Photos, open_photos, pooled_features

TAG_SEEDS, CUT_SEEDS = (0, 1, 2), (0, 1, 2)
DRAWN = 100
Counts = NDArray[np.int64]


# --- coverage


def covered(truth: NDArray[np.bool_], shown: NDArray[np.int8]) -> tuple[bool, float, list[bool]]:
    """Whether the interval of K contains it, its width over K, and whether that of each class does."""
    found = estimate_counts(shown, len(truth))
    mean, prior, (low, high) = truth.sum(1).mean(), truth.mean(0), found.interval
    inside = (found.prior_interval[:, 0] <= prior + 1e-12) & (prior <= found.prior_interval[:, 1] + 1e-12)
    return low <= mean + 1e-12 and mean <= high + 1e-12, (high - low) / mean, inside.tolist()


def hidden(truth: NDArray[np.bool_], share: float, favour: float, draw: np.random.Generator) -> NDArray[np.int8]:
    """Labels of which a share is known; positives are known `favour` times as often."""
    known = draw.random(truth.shape) < np.where(truth, share * favour, share)
    return np.where(known, np.where(truth, Label.POSITIVE, Label.NEGATIVE), Label.UNKNOWN).astype(np.int8)


def coverage(sets: Mapping[str, NDArray[np.bool_]], repeats: int) -> Iterator[str]:
    """Markdown: a row for each set and way of labelling."""
    yield "| photos | labels | K | K covered | width / K | priors covered, mean | worst class | not at random: found |"
    yield "|" + "---|" * 8
    ways = [("complete", m, 1.0) for m in (20, 50, 100, 200)] + [("partial", 0.3, 1.0), ("partial", 0.3, 2.0)]
    for name, truth in sets.items():
        for number, (way, amount, favour) in enumerate(ways):
            draw = rng(0, number, len(truth))
            rows, doubts = [], []
            for _ in range(repeats):
                if way == "complete":
                    part = truth[draw.permutation(len(truth))[: int(amount)]]
                    shown = np.where(part, Label.POSITIVE, Label.NEGATIVE).astype(np.int8)
                else:
                    shown = hidden(truth, amount, favour, draw)
                    doubts.append(abs(compared.z) > 3 if (compared := share_by_known(shown)) else False)
                rows.append(covered(truth, shown))
            classes = np.array([row[2] for row in rows], float).mean(0)
            what = f"{amount:g} complete photos" if way == "complete" else f"{amount:.0%} of the cells"
            what += ", positives twice as often" if favour > 1 else ""
            found = f"{100 * np.mean(doubts):.0f} %" if doubts else "–"
            yield (
                f"| {name} | {what} | {truth.sum(1).mean():.2f} | {100 * np.mean([row[0] for row in rows]):.0f} % | "
                f"{np.mean([row[1] for row in rows]):.2f} | {100 * classes.mean():.0f} % | {100 * classes.min():.0f} % "
                f"| {found} |"
            )


# --- tags


def tag_run(truth: NDArray[np.bool_], features: NDArray[np.float32], seed: int, half: bool) -> dict[str, Any]:
    """Draw a tag for each photo, estimate K by several rules, and compare it with the truth."""
    draw = rng(seed, 0, 0, 5)
    if half:
        truth = truth[:, np.sort(draw.permutation(truth.shape[1])[: truth.shape[1] // 2])]
    rows = np.flatnonzero(truth.any(1))
    truth, features = truth[rows], features[rows]
    tag = np.where(truth, draw.random(truth.shape), -1.0).argmax(1)
    prob, loss = held_out_probabilities(features, tag, truth.shape[1], seed)
    share = np.bincount(tag, minlength=truth.shape[1]) / len(tag)
    entropy = -(share[share > 0] * np.log(share[share > 0])).sum()
    own = prob[np.arange(len(tag)), tag]
    mean, prior = counts_from_tags(prob)
    right = truth.sum(1).mean()
    by_class = [(share[c], prob[tag == c, c]) for c in np.flatnonzero(share)]
    return {
        "photos": len(tag),
        "classes": truth.shape[1],
        "K": float(right),
        "explained": float(1 - loss / entropy),
        "most probable class": mean,
        "tag is the most probable": float(1 / (prob.argmax(1) == tag).mean()),
        "Elkan-Noto": float(1 / own.mean()),
        "Elkan-Noto by class": float(sum(q / p.mean() for q, p in by_class)),
        "largest by class": float(sum(q / np.quantile(p, 0.9) for q, p in by_class)),
        "entropy": float(np.exp(-(prob * np.log(np.maximum(prob, 1e-12))).sum(1)).mean()),
        "prior error": float(np.abs(prior / mean * right - truth.mean(0)).mean()),
        "prior error of tag shares": float(np.abs(share * right - truth.mean(0)).mean()),
    }


RULES = (
    *("most probable class", "tag is the most probable", "Elkan-Noto", "Elkan-Noto by class", "largest by class"),
    "entropy",
)


def tag_table(records: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    """Markdown: estimates of every set, and the true K over the estimate."""
    yield f"| set | classes | K | explained | {' | '.join(RULES)} | K / estimate |"
    yield "|" + "---|" * (5 + len(RULES))
    groups: dict[tuple[str, bool], list[Mapping[str, Any]]] = defaultdict(list)
    for record in records:
        groups[record["set"], record["half"]].append(record)
    for (name, half), rows in groups.items():
        mean = {key: np.mean([row[key] for row in rows]) for key in ("K", "explained", *RULES)}
        ratios = [row["K"] / row[RULES[0]] for row in rows]
        yield (
            f"| {name} | {'half' if half else 'all'} | {mean['K']:.2f} | {100 * mean['explained']:.0f} % | "
            + " | ".join(f"{mean[rule]:.2f}" for rule in RULES)
            + f" | {min(ratios):.2f} to {max(ratios):.2f} |"
        )
    for rule in RULES if records else ():
        logs = np.log([row["K"] / row[rule] for row in records])
        low, high, typical = np.exp(logs.min()), np.exp(logs.max()), np.exp(np.sqrt(np.square(logs).mean()))
        yield f"{rule}: K / estimate {low:.2f} to {high:.2f}, root mean square factor {typical:.2f}"


# --- cuts


def cut_jobs(labels: LabelMatrix, truth: NDArray[np.int8], mean: float, seed: int) -> dict[str, tuple[Counts, Counts]]:
    """Numbers of expected positives of the lower and the upper cut, by name; equal ones are a single cut."""
    found = estimate_counts(truth[rng(seed, 0, 0, 7).permutation(len(truth))[:DRAWN]], len(truth))

    def of(low: float, high: float | None = None) -> tuple[Counts, Counts]:
        limits = (low, low if high is None else high)
        first, last = (expected_counts(labels, min(limit, truth.shape[1])) for limit in limits)
        return first, last

    def of_prior(low: NDArray[np.float64], high: NDArray[np.float64]) -> tuple[Counts, Counts]:
        return expected_counts(labels, None, low), expected_counts(labels, None, high)  # type: ignore[arg-type]

    return {
        "K of validation": of(mean),
        "guess of 1.5": of(1.5),
        "K of 100 photos": of(found.mean),
        "interval of 100 photos, half weight": of(*found.interval),
        "class priors of 100 photos": of_prior(found.prior, found.prior),
        "K / 1.5 to 1.5 K, half weight": of(mean / 1.5, mean * 1.5),
        "1.5 K": of(mean * 1.5),
        "1.5 K, with / 1.5 to x 1.5, half weight": of(mean, mean * 1.5**2),
    }


def solve(photos: Photos, known: Tensor, cuts: tuple[Counts, Counts]) -> dict[str, float]:
    """Solve EN for all strengths, one from the other; mAP in percent of the best on validation, by split."""
    x, (n, c) = photos.x["train"], known.shape
    head = SpatialHead(x.shape[1], c)
    torch.nn.init.zeros_(head.weight)
    torch.nn.init.zeros_(head.bias)
    statistics = ChannelStatistics(torch.zeros(x.shape[1]), torch.ones(x.shape[1]))
    solver = HeadSolver(head, statistics, max_iterations=ITERATIONS)
    masks = [ExpectedPositives(c, "all_then_or", torch.device("cpu")) for _ in cuts]
    scores, results, index = (known == Label.POSITIVE).float(), [], torch.arange(n)
    expected, weight = known == Label.POSITIVE, torch.ones(n, c)

    def loss() -> Tensor:
        value = c * expected_negative(x @ head.weight.T + head.bias, known, expected, weight=weight)
        value.backward()
        return value.detach()

    for number, variance in enumerate(VARIANCES):
        if number:
            for mask, counts in zip(masks, cuts, strict=True):
                mask.refresh(0, scores, known, torch.from_numpy(counts))
            expected, possible = (mask.mask(scores, known, index) for mask in masks)
            weight = torch.where(possible & (known == Label.UNKNOWN), UNSURE_WEIGHT, 1.0)
        solver.minimise(loss, variance * photos.scale, n)
        with torch.no_grad():
            prob = (x @ head.weight.T + head.bias).sigmoid()
            scores = MOMENTUM * scores + (1 - MOMENTUM) * prob if number else prob
            results.append({split: mean_ap(photos, head, split) for split in ("val", "test")})
    return max(results, key=lambda r: r["val"])


def mean_ap(photos: Photos, head: SpatialHead, split: str) -> float:
    """Mean AP over the scored classes, in percent."""
    index = photos.data.scored_index
    scores = (photos.x[split] @ head.weight.T + head.bias).double().numpy()[:, index]
    return round(100 * ranking_report(scores, photos.labels(split)[:, index]).mean_average_precision, 3)


def cut_table(records: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    """Markdown: mean test mAP less that of "K of validation" with the same labels, and its standard error."""
    found: dict[str, dict[tuple[str, int], float]] = defaultdict(dict)
    for record in records:
        found[record["job"]][record["set"], record["seed"]] = record["test"]
    names = [*dict.fromkeys(record["set"] for record in records)]
    yield f"| EN with | {' | '.join(names)} |"
    yield "|---|" + "---:|" * len(names)
    base = found["K of validation"]
    for job, values in found.items():
        cells = []
        for name in names:
            keys = [key for key in values if key[0] == name and key in base]
            change = np.array([values[key] - base[key] for key in keys])
            error = change.std(ddof=1) / len(change) ** 0.5 if len(change) > 1 else np.nan
            text = f"{np.mean([values[key] for key in keys]):.1f}" if values is base else f"{change.mean():+.1f}"
            cells.append(text if values is base else f"{text} ± {error:.1f}")
        yield f"| {job} | {' | '.join(cells)} |"


# --- all


def run(part: str, out: Path, names: Sequence[str], data: Path, cache: Path) -> None:
    """Do what is not done, a line for each run."""
    records = read_lines(out)
    done = {(r["set"], r["seed"], r["half"] if part == "tags" else r["job"]) for r in records}

    def write(record: Mapping[str, Any]) -> None:
        append_line(out, record)

    for name in names:
        benchmark = load(name, data, cache)  # type: ignore[arg-type]
        if part == "tags":
            features = pooled_features(benchmark, cache)["train"].numpy()
            truth = benchmark.train_truth.matrix.dense() == Label.POSITIVE
            for seed, half in ((seed, half) for seed in TAG_SEEDS for half in (False, True)):
                if (name, seed, half) not in done:
                    write({"set": name, "seed": seed, "half": half, **tag_run(truth, features, seed, half)})
            continue
        photos = open_photos(benchmark, cache)
        mean = float((photos.labels("val") == Label.POSITIVE).sum(1).mean())
        for seed in CUT_SEEDS:
            labels = single_positive(benchmark.train_truth, seed).matrix
            known = torch.from_numpy(labels.dense())
            for job, cuts in cut_jobs(labels, photos.labels("train"), mean, seed).items():
                if (name, seed, job) not in done:
                    write({"set": name, "seed": seed, "job": job, **solve(photos, known, cuts)})


def main() -> None:
    parser = script_arguments(__doc__, SETS, SETS, out=False)
    parser.add_argument("part", choices=("coverage", "tags", "cuts"))
    parser.add_argument("--repeats", type=int, default=500, help="of coverage")
    options = parser.parse_args()
    torch.set_num_threads(1)
    if options.part == "coverage":
        sets = {
            name: load(name, options.data, options.cache).train_truth.matrix.dense() == Label.POSITIVE
            for name in options.sets
        }
        sets["simulated, 40 classes of 1 %"] = rng(0, 0, 0).random((2_000, 40)) < 0.01
        for line in coverage(sets, options.repeats):
            print(line, flush=True)
        return
    if options.out is None:
        parser.error("--out is missing")
    if not options.table:
        run(options.part, options.out, options.sets, options.data, options.cache)
    records = read_lines(options.out)
    print("\n".join((tag_table if options.part == "tags" else cut_table)(records)))


if __name__ == "__main__":
    main()
