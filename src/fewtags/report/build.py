"""Build the report: one HTML file without external files."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from importlib.resources import files
from pathlib import Path
from typing import Any

import numpy as np
from jinja2 import Environment, StrictUndefined
from numpy.typing import NDArray

from fewtags.engine.clock import clock_line
from fewtags.engine.evaluate import details, headline
from fewtags.errors import ConfigError
from fewtags.files import refuse_file, write_text
from fewtags.labels import Label
from fewtags.metrics.intervals import FEWEST_POSITIVES, difference_interval
from fewtags.metrics.metric import Metric
from fewtags.metrics.ranking import ranking_report
from fewtags.report.figures import COLOURS, curves, png, png_pixels, save_png, score_distributions
from fewtags.report.gallery import cards, over_epochs
from fewtags.report.load import RunData, load_run
from fewtags.report.on_labels import OnLabels, measured
from fewtags.report.overlay import scale
from fewtags.table.vocabulary import Matching

BADGES = {"predicted": "not annotated"}
"""What a photo's panel is called on the page, where that is not its role."""
TERMS = (
    ("cell", "one class in one photo: known to be present (positive), known to be absent (negative), or unknown."),
    ("AP, mAP", "average precision: photos are ordered by the probability of a class, and AP is the mean precision at "
     "its positives; 100 if all of them come first. mAP is the mean over the classes."),
    ("95 % interval", "how far the number could move with other photos of the same kind; other seeds are not in it."),
    ("threshold", "a class is tagged if its probability is at or above this number."),
    ("rule", "how the threshold was chosen. class_f1: the best F1 of the class; pooled_f1: the best F1 of all classes "
     "together; expected_count: as many tags as the expected number of positives; none_expected: that number is 0; "
     "half: .5, without labels to choose from; precision: the lowest with a wanted precision; own: given by you."),
    ("precision, recall, F1", "share of the tags that are right; share of the positives that are tagged; their "
     "harmonic mean."),
    ("CF1, OF1", "F1 at the thresholds: CF1 from the mean precision and recall of the classes, OF1 over all cells "
     "together."),
    ("hit@1", "share of the photos whose most probable class is one of their known labels."),
    ("recall@k, mean rank", "share of the known labels among the k most probable classes of their photo; their mean "
     "place there (1 is the best)."),
    ("K", "expected number of positives per photo, which expected-negative training uses."),
)  # fmt: skip
"""The glossary of the page."""


def build_report(
    runs: Sequence[Path], out: Path | None, on: OnLabels | None = None, tell: Callable[[str], None] = lambda _: None
) -> Path:
    """Write the report of one run or of several runs side by side, and `curves.png` of each; return the file.

    Args:
        runs: finished run folders. Classes are matched by id, or by names that differ only in spelling; classes that
            some runs lack are listed.
        out: the HTML file; None: `report.html` in the first folder, `compare.html` there for several.
        on: labels on which all runs are evaluated; None: only the evaluations that the runs recorded are shown.
        tell: gets lines for the user about that evaluation, the difference of two runs among them.

    Raises:
        CheckpointError: a run is not finished.
        ConfigError: the runs have no common class, or the file cannot be written.
        DataError: a run cannot be evaluated on the labels.
    """
    page = out or runs[0] / ("report.html" if len(runs) == 1 else "compare.html")
    if page.is_dir():
        raise ConfigError(f"{page} is a folder; --out takes a file, for example {page / 'report.html'}.")
    refuse_file(page, example="report.html")
    loaded = [load_run(path) for path in runs]
    if len({run.name for run in loaded}) < len(loaded):
        loaded = [replace(run, name=str(run.path)) for run in loaded]
    loaded, matched = match_runs(loaded)
    if not common_classes(loaded):
        some = " and ".join(f"{run.name} ({', '.join(run.info.classes.display[:3])}, ...)" for run in loaded)
        raise ConfigError(f"{some} have no class in common; report each on its own.")
    for run in loaded:
        save_png(curves([run]), run.path / "curves.png")
    notes: list[str] = []
    if on is not None:
        loaded, notes = measured(loaded, on)
        for line in [*notes, *_results_on(loaded, on.name)]:
            tell(line)
    page.parent.mkdir(parents=True, exist_ok=True)
    write_text(page, render(loaded, [*matched, *notes]))
    return page


def _results_on(runs: Sequence[RunData], split: str) -> Iterator[str]:
    """Yield the mAP of each run on given labels, and the difference of two runs."""
    for run in runs:
        yield from (f"{run.name}, {split}: {line}" for line in headline(run.evaluations[split]))
    if len(runs) == 2 and "value" in (found := difference(runs, split)):
        low, high = 100 * found["low"], 100 * found["high"]
        yield (
            f"{runs[1].name} - {runs[0].name}: {100 * found['value']:+.1f} mAP (95 % interval over the same images "
            f"{low:+.1f} .. {high:+.1f}; it does not cover other seeds)"
        )


def render_template(name: str, values: Mapping[str, Any]) -> str:
    """Fill in a page of the template folder."""
    folder = files("fewtags.report") / "templates"
    environment = Environment(autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True)
    # Adding zero turns -0.0 into 0.0.
    environment.filters["signed"] = lambda v: f"{round(100 * v, 1) + 0.0:+.1f}"
    environment.filters["percent"] = lambda v: "–" if v is None else f"{100 * v:.1f}"
    environment.filters["metric"] = Metric.from_dict
    environment.filters["capitalize_first"] = lambda text: text[:1].upper() + text[1:]
    template = environment.from_string((folder / name).read_text("utf-8"))
    return template.render(style=(folder / "style.css").read_text("utf-8"), **values)


def render(runs: Sequence[RunData], matched: Sequence[str] = ()) -> str:
    """Render the page as text; `matched` are sentences about class names that differ between the runs."""
    shared = [s for s in runs[0].evaluations if all(s in run.evaluations for run in runs)]
    values = {
        "runs": runs,
        "title": " / ".join(run.name for run in runs),
        "splits": shared,
        "curves": png(curves(runs)),
        "classes": {split: class_rows(runs, split) for split in shared},
        "alone": alone(runs),
        "matched": matched,
        "colours": COLOURS,
        "fewest_positives": FEWEST_POSITIVES,
        "scores": png(score_distributions(runs, shared[0])),
        "difference": difference(runs, shared[-1]) if len(runs) == 2 else None,
        "gallery": cards(runs),
        "progress": [(run.name, over_epochs(run)) for run in runs],
        "scale": png_pixels(scale()),
        "clock_line": clock_line,
        "details": details,
        "badges": BADGES,
        "terms": TERMS,
    }
    return render_template("report.html.j2", values)


def match_runs(runs: Sequence[RunData]) -> tuple[list[RunData], list[str]]:
    """Return the runs with classes named as in the first where only the spelling differs, and sentences about that."""
    first, out, said = runs[0].info.classes, [*runs[:1]], []
    for run in runs[1:]:
        found = Matching.of(run.info.classes, first)
        notes = found.notes(runs[0].name, run.name)
        ids = tuple(found.pairs.get(class_id, class_id) for class_id in run.info.class_ids)
        out.append(replace(run, info=replace(run.info, class_ids=ids)))
        said += [*notes.messages, *(f"{text} Then train {run.name} again." for text in notes.warnings)]
    return out, said


def common_classes(runs: Sequence[RunData]) -> list[str]:
    """Return the ids of the classes that all runs know, in the order of the first."""
    return [i for i in runs[0].info.class_ids if all(i in run.info.classes for run in runs)]


def alone(runs: Sequence[RunData]) -> list[tuple[str, list[str]]]:
    """Return the runs with classes that another run lacks: name, and display names of these classes."""
    common = set(common_classes(runs))
    found = []
    for run in runs:
        classes = run.info.classes
        own = [name for i, name in zip(classes.ids, classes.display, strict=True) if i not in common]
        found += [(run.name, own)] if own else []
    return found


def _columns(run: RunData, classes: Sequence[str]) -> list[int]:
    """Return the column numbers of these classes in a run."""
    return [run.info.classes.index(i) for i in classes]


def class_rows(runs: Sequence[RunData], split: str) -> list[dict[str, Any]]:
    """Return metrics and thresholds of each class that all runs know, sorted by the AP of the first run.

    Classes without an AP come last, in the order of the first run's vocabulary.
    """
    common = common_classes(runs)
    rows = []
    for places in zip(*(_columns(run, common) for run in runs), strict=True):
        each = [
            {**run.evaluations[split]["per_class"][c], "rule": run.evaluations[split]["threshold_rules"][c]}
            for run, c in zip(runs, places, strict=True)
        ]
        rows.append({"name": each[0]["name"], "runs": each, "difference": None})
    if len(runs) == 2 and (pair := _paired(runs, split)) is not None:
        for position, row in enumerate(rows):
            row["difference"] = _class_difference(*_one_class(pair, position))
    return sorted(rows, key=lambda row: -(row["runs"][0]["average_precision"] or -1.0))


def _paired(
    runs: Sequence[RunData], split: str
) -> tuple[NDArray[np.float64], NDArray[np.float64], NDArray[np.int8]] | None:
    """Return the logits [n, c] of two runs for the classes that both know, and the labels; None if these differ."""
    common = common_classes(runs)
    tables, columns = [run.tables[split] for run in runs], [_columns(run, common) for run in runs]
    labels, others = (table.matrix.dense()[:, own] for table, own in zip(tables, columns, strict=True))
    if not tables[0].images.equals(tables[1].images) or not np.array_equal(labels, others):
        return None
    first, second = (run.logits[split][:, own].astype(np.float64) for run, own in zip(runs, columns, strict=True))
    return first, second, labels


def _one_class(
    pair: tuple[NDArray[np.float64], NDArray[np.float64], NDArray[np.int8]], position: int
) -> tuple[NDArray[np.float64], NDArray[np.float64], NDArray[np.int8]]:
    """Return one column of logits and labels."""
    first, second, labels = pair
    column = [position]
    return first[:, column], second[:, column], labels[:, column]


def _class_difference(
    first: NDArray[np.float64], second: NDArray[np.float64], labels: NDArray[np.int8]
) -> dict[str, float | None] | None:
    """Return AP of the second run minus that of the first, and its interval if there are enough positives.

    Arrays are [n, 1]; None if the class has no AP.
    """
    before, after = (ranking_report(scores, labels).mean_average_precision for scores in (first, second))
    if np.isnan(before):
        return None
    low = high = None
    if (labels == Label.POSITIVE).sum() >= FEWEST_POSITIVES:
        low, high = difference_interval(first, second, labels)
    return {"value": after - before, "low": low, "high": high}


def difference(runs: Sequence[RunData], split: str) -> dict[str, Any]:
    """Compute the mean AP of the second run minus that of the first, over the classes that both know.

    The interval is that of `difference_interval`, over the choice of images.

    Returns:
        `value`, `low`, `high` and `split`; or `why`, the reason why there is no difference.
    """
    if (pair := _paired(runs, split)) is None:
        return {
            "why": f"The runs were measured on different {split} labels, so their difference has no meaning. Compare "
            f"them on the same labels: fewtags report {runs[0].path} {runs[1].path} --on LABELS --images FOLDER"
        }
    if runs[0].evaluations[split]["mAP"] is None:
        return {"why": ""}
    first, second, labels = pair
    means = [ranking_report(scores, labels).mean_average_precision for scores in (first, second)]
    if np.isnan(means[0]):
        return {"why": f"No class that both runs know has known positives and known negatives in {split}."}
    low, high = difference_interval(first, second, labels)
    return {"split": split, "value": means[1] - means[0], "low": low, "high": high, "why": ""}
