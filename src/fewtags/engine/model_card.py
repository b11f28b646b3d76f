"""The model card: README.md of a run folder, with metadata that Hugging Face reads.

A card has no paths, because it is made to be published. What only a person can know is left to be filled in.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, final

from fewtags.engine.evaluate import headline
from fewtags.engine.json_records import read_json
from fewtags.engine.model import ModelInfo
from fewtags.errors import FewtagsError
from fewtags.files import write_text
from fewtags.labels import Label
from fewtags.metrics.metric import Metric
from fewtags.nets.weights import OFFLINE_PACKAGE
from fewtags.table.storage import load
from fewtags.table.table import LabelTable
from fewtags.text import counted

CARD_FILE = "README.md"
SPLITS = ("train", "val", "test")
MOST_ROWS = 200
"""Classes with a row of their own in the table."""
UNKNOWN_LICENCE = "unknown"
_OFFLINE_LICENCE = "apache-2.0"
_KNOWN = ("apache-2.0", "mit", "bsd-3-clause", "cc-by-nc-4.0", "cc-by-4.0", "apple-amlr", "gemma")
"""Licences of timm's weights that are identifiers of Hugging Face; others are called "other"."""


@final
@dataclass(frozen=True, kw_only=True)
class CardFacts:
    """What a card states.

    Attributes:
        name: of the model.
        info: the metadata of the model.
        tables: label tables by split.
        evaluations: as `Evaluation.to_dict` wrote them, by split.
        weights: `Origin` of the initial weights as in environment.json; None if it is not known.
        usage: lines of code that load the model.
    """

    name: str
    info: ModelInfo
    tables: Mapping[str, LabelTable]
    evaluations: Mapping[str, Mapping[str, Any]]
    weights: Mapping[str, Any] | None
    usage: Sequence[str]


def read_facts(run: Path, info: ModelInfo, usage: Sequence[str] = ()) -> CardFacts:
    """Read the facts of a run folder; what a folder lacks is left out of the card."""
    tables = {name: load(path) for name in SPLITS if (path := run / "tables" / f"{name}.parquet").exists()}
    evaluations = {name: read_json(path) for name in SPLITS if (path := run / "evaluation" / f"{name}.json").exists()}
    record = run / "environment.json"
    weights = read_json(record)["weights"] if record.exists() else None
    name = run.resolve().name
    default = ("import fewtags as ft", "", f'clf = ft.Classifier.load("{name}")', 'clf.predict(["a.jpg"])')
    return CardFacts(
        name=name, info=info, tables=tables, evaluations=evaluations, weights=weights, usage=usage or default
    )


def write_card(run: Path, info: ModelInfo) -> None:
    """Write the card of a run whose evaluations are written."""
    text = model_card(read_facts(run, info))
    write_text(run / CARD_FILE, text + _mark(text))


def _mark(text: str) -> str:
    """Return the last line of a card, which shows whether a person has changed it since."""
    return f"<!-- written by fewtags; sha256 of the lines above: {hashlib.sha256(text.encode()).hexdigest()} -->\n"


def is_unedited(run: Path, info: ModelInfo) -> bool:
    """Whether the card of a run is as `write_card` wrote it, also if the model or its evaluations have changed since.

    Cards of older versions have no mark; they are compared with that of the model as it is.
    """
    path = run / CARD_FILE
    try:
        text = path.read_text("utf-8")
        above = text[: text.rstrip("\n").rfind("\n") + 1]
        return text == above + _mark(above) or text == model_card(read_facts(run, info))
    except (OSError, ValueError, KeyError, FewtagsError):
        return False


def weights_licence(weights: Mapping[str, Any] | None) -> tuple[str, str]:
    """Return the licence of initial weights as Hugging Face calls it, and a sentence about them."""
    if weights is None:
        return UNKNOWN_LICENCE, "The initial weights are not recorded."
    backbone, source = weights["backbone"], weights["weights"]
    if source == "none":
        return UNKNOWN_LICENCE, "The backbone was trained from random weights."
    if source == "offline":
        return _OFFLINE_LICENCE, f"Training began with the weights of the package {OFFLINE_PACKAGE} (Apache-2.0)."
    if source == "hub":
        import timm

        licence = getattr(timm.get_pretrained_cfg(backbone), "license", None) or UNKNOWN_LICENCE
        known = licence if licence in (*_KNOWN, UNKNOWN_LICENCE) else "other"
        return known, f"Training began with timm's weights {backbone} (licence: {licence})."
    return (
        UNKNOWN_LICENCE,
        f"Training began with a weight file, {Path(source).name}; its licence is not recorded and applies to this "
        "model too.",
    )


def model_card(facts: CardFacts) -> str:
    """Return the card: a YAML header, and Markdown."""
    return "\n".join([_header(facts), *_body(facts), ""])


def _header(facts: CardFacts) -> str:
    """Return the YAML header between its lines of dashes."""
    from huggingface_hub import EvalResult, ModelCardData

    licence, _ = weights_licence(facts.weights)
    results = [
        EvalResult(
            task_type="image-classification",
            task_name="Multi-label image classification",
            dataset_type="images",
            dataset_name=f"the {split} photos of this run",
            dataset_split=split,
            metric_type=metric.key,
            metric_name=metric.label,
            metric_value=round(float(metric.value), 4),
        )
        for split, evaluation in facts.evaluations.items()
        for metric in map(Metric.from_dict, evaluation["metrics"])
        if metric.is_defined and not metric.is_detail and metric.unit == "percent"
    ]
    weights = facts.weights
    from_hub = weights is not None and weights["weights"] == "hub"
    data = ModelCardData(
        license=licence,
        library_name="fewtags",
        pipeline_tag="image-classification",
        tags=[
            "multi-label",
            *(["heatmaps"] if facts.info.head.has_maps else []),
            "partial-labels",
            facts.info.backbone,
        ],
        base_model=f"timm/{weights['backbone']}" if from_hub and weights is not None else None,
        model_name=facts.name if results else None,
        eval_results=results or None,
    )
    return f"---\n{data.to_yaml().strip()}\n---"


def _body(facts: CardFacts) -> Iterator[str]:
    info = facts.info
    groups = [("exactly one", info.exactly_one), ("at most one", info.at_most_one)]
    yield from ("", f"# {facts.name}", "")
    classes = counted(len(info.class_ids), "class", "classes")
    kind = "A multi-label image classifier" + (" with heatmaps" if info.head.has_maps else "")
    yield f"{kind}: {classes}, {info.backbone} at {info.size} px,"
    yield f"trained with fewtags {info.version}. {info.selection[:1].upper()}{info.selection[1:]}."
    yield from ("", "## Use", "", "```python", *facts.usage, "```", "")
    yield "A class is present if its probability is at least its threshold (table below)."
    for word, found in groups:
        yield from (f"Of {', '.join(group)}, {word} is present." for group in found)
    yield from ("", "## Data", "", "| split | photos | positive | negative | unknown |", "|---|---|---|---|---|")
    for split, table in facts.tables.items():
        positive, negative = (int(table.matrix.counts(state).sum()) for state in (Label.POSITIVE, Label.NEGATIVE))
        unknown = len(table) * len(table.classes) - positive - negative
        yield f"| {split} | {len(table):,} | {positive:,} | {negative:,} | {unknown:,} |"
    yield from ("", "The numbers count cells: one photo and one class. Unknown cells are never counted as absent.")
    yield from ("", "<!-- Where do the photos come from, who took them, and who labelled them? -->")
    settings = ", ".join(f"{key} {_short(value)}" for key, value in info.method.items() if key != "name")
    yield from ("", "## Method", "", f"`{info.method.get('name', 'unknown')}`{f': {settings}' if settings else ''}.")
    yield f"Pool: {info.head.pool.name}; head: {info.head.kernel} x {info.head.kernel}."
    yield weights_licence(facts.weights)[1]
    yield from ("", "## Metrics", "")
    for split, evaluation in facts.evaluations.items():
        yield from (f"* {split}: {line}" for line in headline(evaluation))
    yield from ("", "Values are percentages, with 95 % intervals over the choice of photos.")
    if "val" in facts.evaluations:
        yield "The val photos helped to choose the thresholds and the model, so the numbers of val are optimistic."
    yield from _classes(facts)
    yield from ("", "## Limits", "", *(f"* {line}" for line in _limits(facts)))


def _classes(facts: CardFacts) -> Iterator[str]:
    """Yield the table of classes: threshold, training positives, and AP with its interval on test, or else val."""
    info = facts.info
    split = next((name for name in ("test", "val") if name in facts.evaluations), None)
    rows = [] if split is None else facts.evaluations[split]["per_class"]
    found = {row["id"]: row for row in rows}
    train, positives = facts.tables.get("train"), dict[str, int]()
    if train is not None:
        positives = dict(zip(train.classes.ids, train.matrix.counts(Label.POSITIVE).tolist(), strict=True))
    yield from (
        "",
        "## Classes",
        "",
        f"| class | threshold | positives in train | AP{f' on {split}' if split else ''} |",
    )
    yield "|---|---|---|---|"
    shown = list(zip(info.class_ids, info.classes.display, info.thresholds, strict=True))
    for class_id, name, threshold in shown[:MOST_ROWS]:
        row = found.get(class_id, {})
        ap, interval = row.get("average_precision"), row.get("interval") or (None, None)
        score = "-" if ap is None else f"{100 * ap:.1f}"
        if interval[0] is not None and interval[1] is not None:
            score += f" ({100 * interval[0]:.1f} to {100 * interval[1]:.1f})"
        many = f"{positives[class_id]:,}" if class_id in positives else "-"
        yield f"| {_cell(name)} | {threshold:.3f} | {many} | {score} |"
    if len(shown) > MOST_ROWS:
        yield from ("", f"{len(shown) - MOST_ROWS:,} more classes are in the metadata of the model.")


def _limits(facts: CardFacts) -> Iterator[str]:
    info = facts.info
    yield "The scores are for photos like those in the tables above. Other cameras, places and years lower them."
    if "test" not in facts.evaluations:
        yield "The run had no test photos, so no metric comes from photos that took no part in the training."
    for split, evaluation in facts.evaluations.items():
        if left := len(evaluation["per_class"]) - evaluation["classes_counted"]:
            few = counted(left, "class has", "classes have")
            yield f"{split}: {few} no AP, for lack of known positives or negatives."
    if info.untagged:
        yield info.untagged
    if info.policy == "imagenet":
        yield "The model sees the centre square of a photo only."
    if info.head.has_maps:
        yield "A heatmap shows where the model finds evidence. It is not an outline of the object."
    else:
        yield "The model has no heatmaps: it does not say where in a photo a class is."
    licence, sentence = weights_licence(facts.weights)
    if licence in (UNKNOWN_LICENCE, "other"):
        yield f"The licence of this model is to be decided by its owner. {sentence}"


def _short(value: object) -> str:
    text = f"{value:.3g}" if isinstance(value, float) else str(value)
    return text if len(text) <= 40 else f"{text[:37]}..."


def _cell(text: str) -> str:
    """Return text that Markdown shows as it is in a cell of a table.

    >>> _cell("a|b <i>")
    'a&#124;b &lt;i&gt;'
    """
    escapes = {"&": "&amp;", "<": "&lt;", ">": "&gt;", "|": "&#124;", "\n": " ", "\r": " "}
    return "".join(escapes.get(letter, letter) for letter in text)
