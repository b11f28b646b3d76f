"""`check`: describe labels and photos and find their problems, before training.

`check` changes and drops nothing. `CheckReport.clean` leaves out unreadable images, with a reason for each.
"""

from __future__ import annotations

import csv
import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, final

from fewtags.check.class_findings import class_findings
from fewtags.check.label_findings import Finding, label_findings, reader_findings, training_split
from fewtags.check.lines import class_lines, reading_lines
from fewtags.check.photo_findings import PhotoScan
from fewtags.errors import DataError
from fewtags.files import replacing
from fewtags.labels import Label
from fewtags.photos.scan import Tick
from fewtags.table.summary import Summary
from fewtags.table.table import Excluded, LabelTable, Notes, ValueReading
from fewtags.text import counted, safe_cell


@final
@dataclass(frozen=True)
class HeatmapNeed:
    """Memory need and limit, in bytes, of the stored heatmaps of the training images."""

    needed: Callable[[int, int, int | None], int]  # (images, classes, top_k or None for all classes) -> bytes
    limit: int


@final
@dataclass(frozen=True, kw_only=True)
class CheckReport:
    """Result of `check`.

    Attributes:
        summaries: counts of each split.
        findings: errors first, then warnings, then notes.
        readings: how the readers understood each distinct value.
        photos: number of photo files read.
        decoded: whether their pixels were read too, which finds truncated files.
        unusable: split -> image key -> why the image has no readable photo.
        excluded: items that the readers left out.
        heatmap_bytes: size of the heatmaps of the training images with all classes; None: not computed.
    """

    summaries: Mapping[str, Summary]
    findings: tuple[Finding, ...]
    readings: tuple[ValueReading, ...]
    photos: int
    decoded: bool
    unusable: Mapping[str, Mapping[str, str]]
    excluded: tuple[Excluded, ...]
    heatmap_bytes: int | None = None

    @property
    def errors(self) -> tuple[Finding, ...]:
        """Findings of lost or misread data; a command then exits with code 1."""
        return tuple(f for f in self.findings if f.level == "error")

    @property
    def warnings(self) -> tuple[Finding, ...]:
        """Findings that may harm the results."""
        return tuple(f for f in self.findings if f.level == "warning")

    def excluded_rows(self) -> tuple[Excluded, ...]:
        """Everything left out: items of the readers, and images without a readable photo."""
        images = ((split, key, why) for split, images in self.unusable.items() for key, why in images.items())
        return (*self.excluded, *(Excluded(key, why, split, "unreadable") for split, key, why in images))

    def write_excluded_csv(self, path: Path) -> None:
        """Write `excluded_rows` with the columns item, where, reason; only a header if nothing was left out."""
        write_excluded(self.excluded_rows(), path)

    def clean(self, tables: Mapping[str, LabelTable]) -> dict[str, LabelTable]:
        """Return the checked tables without the images that have no readable photo; the notes give each reason.

        A split without any readable photo is a `DataError`.
        """
        return {split: _without(split, table, self.unusable.get(split, {})) for split, table in tables.items()}

    def going_on(self) -> CheckReport:
        """Return the report for a run that goes on: what would be an error of `check` is a warning there."""
        findings = (replace(f, level="warning") if f.level == "error" else f for f in self.findings)
        return replace(self, findings=tuple(findings))

    def lines(self) -> Iterator[str]:
        """Yield the report as lines of text: notes, then warnings, then errors."""
        for split, summary in self.summaries.items():
            yield (
                f"{split}: {counted(summary.images, 'image')}, {counted(len(summary.classes), 'class', 'classes')}, "
                f"labels: {summary.kind}; {summary.positives_per_image:.2f} positives per image; "
                f"{summary.without_positive:,} without a positive, {summary.without_label:,} without any label"
            )
            if summary.points or summary.boxes:
                yield f"  {counted(summary.points, 'point')}, {counted(summary.boxes, 'box', 'boxes')}"
        how = "decoded" if self.decoded else "headers only"
        yield f"photos: {counted(self.photos, 'file')} read ({how})" if self.photos else "photos: none read"
        if self.heatmap_bytes is not None:
            yield f"heatmaps of all classes: {_size(self.heatmap_bytes)}"
        yield from class_lines(self.summaries)
        yield from reading_lines(self.readings)
        yield from map(str, sorted(self.findings, key=_level, reverse=True))  # a terminal shows the end
        yield f"{counted(len(self.errors), 'error')}, {counted(len(self.warnings), 'warning')}"

    def to_json(self) -> str:
        """Return the report as one JSON object with complete lists."""
        content: dict[str, Any] = {
            "splits": {split: _summary_facts(summary) for split, summary in self.summaries.items()},
            "errors": len(self.errors),
            "warnings": len(self.warnings),
            "findings": [asdict(finding) for finding in self.findings],
            "readings": [asdict(reading) for reading in self.readings],
            "photos": {"files": self.photos, "decoded": self.decoded},
            "heatmap_bytes": self.heatmap_bytes,
            "excluded": [asdict(row) for row in self.excluded_rows()],
        }
        return json.dumps(content)


def _level(finding: Finding) -> int:
    return ("error", "warning", "note").index(finding.level)


def write_excluded(rows: Iterable[Excluded], path: Path) -> None:
    """Write excluded items as a CSV, atomically: item, where, reason."""
    with replacing(path) as part, part.open("w", encoding="utf-8", newline="", errors="backslashreplace") as file:
        writer = csv.writer(file)
        writer.writerow(["item", "where", "reason"])
        writer.writerows([safe_cell(text) for text in (row.item, row.where, row.reason)] for row in rows)


def check(
    splits: Mapping[str, LabelTable],
    *,
    decode: bool = True,
    input_size: int | None = None,
    heatmaps: HeatmapNeed | None = None,
    threads: int | None = None,
    progress: Tick | None = None,
    near_copies: bool = False,
) -> CheckReport:
    """Read labels and photos, describe them and find their problems.

    Args:
        splits: tables by name; "train", or the first one, is the training split.
        decode: decode every photo, which finds truncated ones; False reads headers only.
        input_size: side of the net's input in pixels; smaller photos are reported.
        heatmaps: memory need and limit of the heatmaps; None: not reported.
        threads: number of photos read in parallel; None: one per core, at most 8.
        progress: called with the numbers of photos done and in total.
        near_copies: compare what decoded photos look like, if the library for it is installed.
    """
    if not splits:
        raise DataError("there is nothing to check: give at least one split.")
    summaries = {split: table.summary() for split, table in splits.items()}
    photos = PhotoScan.of(splits, decode=decode, threads=threads, progress=progress)
    train = splits[training_split(splits)]
    findings = [
        *label_findings(splits, summaries),
        *class_findings(training_split(splits), train),
        *photos.findings(input_size),
        *(photos.near_copies(threads) if near_copies and decode else ()),
        *([] if heatmaps is None else _heatmap_findings(train, heatmaps)),
        *reader_findings(splits),
    ]
    return CheckReport(
        summaries=summaries,
        findings=tuple(sorted(findings, key=_level)),
        readings=tuple(dict.fromkeys(r for t in splits.values() for r in t.notes.readings)),
        photos=len(photos.paths),
        decoded=decode,
        unusable=photos.unusable(),
        excluded=tuple(dict.fromkeys(e for t in splits.values() for e in t.notes.excluded)),
        heatmap_bytes=None if heatmaps is None else heatmaps.needed(len(train), len(train.classes), None),
    )


def _heatmap_findings(train: LabelTable, need: HeatmapNeed) -> Iterator[Finding]:
    images, classes = len(train), len(train.classes)
    if (dense := need.needed(images, classes, None)) <= need.limit:
        return
    start = (
        f"heatmaps of {counted(images, 'image')} and {counted(classes, 'class', 'classes')} need {_size(dense)}; "
        f"half of the free memory is {_size(need.limit)}."
    )
    # Annotated classes are always kept, so k cannot be smaller than the positives of any image.
    least = int(train.matrix.image_counts(Label.POSITIVE).max(initial=1))
    below, above = least - 1, classes  # the largest k that fits is in below..above - 1
    while above - below > 1:
        middle = (below + above) // 2
        fits = need.needed(images, classes, middle) <= need.limit
        below, above = (middle, above) if fits else (below, middle)
    if below >= least:
        size = _size(need.needed(images, classes, below))
        cure = f"Keep those of the {below:,} best classes of each image (objective.heatmap_top_k = {below}): {size}."
    else:
        cure = (
            f"Even one heatmap for each of the {least:,} positives that an image may have does not fit: use a smaller "
            'input (augment.size), objective.heatmap_storage = "disk", or objective.scl_weight = 0, which needs none.'
        )
    yield Finding("warning", "heatmap-memory", f"{start} {cure}")


def _without(split: str, table: LabelTable, unusable: Mapping[str, str]) -> LabelTable:
    if not unusable:
        return table
    kept = [n for n, key in enumerate(table.images.to_pylist()) if key not in unusable]
    if not kept:
        key, reason = next(iter(unusable.items()))
        raise DataError(f"{split}: no photo can be read, for example {key}: {reason}")
    message = f"{split}: {counted(len(unusable), 'image')} left out, without a readable photo"
    notes = Notes(excluded=tuple(Excluded(key, why, split) for key, why in unusable.items()), messages=(message,))
    return replace(table.subset(kept), notes=table.notes + notes)


def _summary_facts(summary: Summary) -> dict[str, Any]:
    facts = {name: value for name, value in vars(summary).items() if name not in ("classes", "contradicting")}
    columns: dict[str, Sequence[str | int]] = {"id": summary.classes.ids, "name": summary.classes.display}
    for name in ("positive", "negative", "unknown"):
        columns[name] = facts[f"{name}s"]
        facts[f"{name}s"] = sum(columns[name])
    for name in ("points", "boxes"):
        columns[name] = facts.pop(f"{name}_of")
        facts[name] = sum(columns[name])
    classes = [dict(zip(columns, row, strict=True)) for row in zip(*columns.values(), strict=True)]
    return {**facts, "positives_per_image": summary.positives_per_image, "classes": classes}


def _size(count: int) -> str:
    """Format bytes in powers of 1000.

    >>> _size(999), _size(4_118_760_000)
    ('999 bytes', '4.1 GB')
    """
    for exponent, unit in ((4, "TB"), (3, "GB"), (2, "MB"), (1, "kB")):
        if count >= 1000**exponent:
            return f"{count / 1000**exponent:.1f} {unit}"
    return f"{count} bytes"
