"""The results of a protocol as tables beside the published numbers, in Markdown and HTML."""

from __future__ import annotations

import html
import statistics
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, final

from fewtags.bench.protocol import Job, Protocol

Record = Mapping[str, Any]
WIDE = 8
"""Tables with more numbers in a row have a line for each condition instead."""
MEASURES = {
    "mAP": ("mAP",),
    "located": ("mAP", "mAP-loc"),
    "real": (
        *("top-1 IN-val", "top-1 ReaL", "mAP ReaL, k = all", "mAP ReaL, k = 1", "mAP ReaL, k = 2", "mAP ReaL, k = 3"),
        "mAP ReaL, k >= 4",
    ),
}
"""The columns of each kind of measure."""
TITLES = {"val": "validation mAP", "mAP": "test mAP"}
"""Names of measures for people."""


@final
@dataclass(frozen=True)
class Table:
    """A table of text; the first column is aligned left, the others right."""

    title: str
    head: Sequence[str]
    rows: Sequence[Sequence[str]]
    notes: Sequence[str] = ()


def make_tables(protocol: Protocol, records: Mapping[Job, Record]) -> list[Table]:
    """Return the tables of the runs that are done."""
    if protocol.measure == "statistics":
        return [*statistics_tables(protocol, records)]
    chosen = best_trials(protocol, records)
    metrics = protocol.shown or MEASURES[protocol.measure]
    wide = len([*protocol.columns()]) * len(metrics) <= WIDE
    made = [wide_table(protocol, chosen, metrics) if wide else long_table(protocol, chosen, metrics)]
    searched = search_table(protocol, records, chosen)
    bought = bought_table(chosen)
    return [*made, *([searched] if searched.rows else []), *([bought] if bought.rows else [])]


def best_trials(protocol: Protocol, records: Mapping[Job, Record]) -> dict[Job, Record]:
    """Of each row and seed, the combination of its grid with the best validation mAP; only if all are done."""
    found: dict[tuple[str, str, str, int], dict[Job, Record]] = defaultdict(dict)
    for job, record in records.items():
        found[job.set_name, job.known, job.row, job.seed][job] = record
    wanted: dict[tuple[str, str, str], int] = defaultdict(int)
    for job in protocol.jobs():
        wanted[job.set_name, job.known, job.row] += 1
    chosen = {}
    for key, runs in found.items():
        if len(runs) == wanted[key[:3]]:
            best = max(runs, key=lambda job: _validated(protocol, runs[job]))
            chosen[best] = runs[best]
    return chosen


def reported(protocol: Protocol, record: Record) -> Record:
    """What a run measured at the epoch that the protocol reports."""
    found: Record = record.get(protocol.select) or record["last"]
    return found


def _validated(protocol: Protocol, record: Record) -> float:
    value = reported(protocol, record)["val"]
    return -1.0 if value is None else float(value)


def cells(
    protocol: Protocol, chosen: Mapping[Job, Record], metric: str, column: tuple[str, str], row: str
) -> list[str]:
    """Our mean ± sd over seeds, and the published number if the paper has this measure."""
    values = [
        float(value)
        for job, record in chosen.items()
        if (job.set_name, job.known, job.row) == (*column, row)
        and (value := reported(protocol, record).get(metric)) is not None
    ]
    paper = protocol.published_value(metric, row, protocol.column(*column))
    published = ["" if paper is None else f"{paper:.1f}"] if metric in protocol.published else []
    return [mean_and_sd(values), *published]


def wide_table(protocol: Protocol, chosen: Mapping[Job, Record], metrics: Sequence[str]) -> Table:
    """Rows are methods, columns are data sets, conditions and measures."""
    columns = [(column, metric) for column in protocol.columns() for metric in metrics]
    head = ["method"]
    for (set_name, known), metric in columns:
        parts = [protocol.data[set_name].title if len(protocol.data) > 1 else "", _title(protocol, known)]
        parts += [TITLES.get(metric, metric)] if len(metrics) > 1 or not any(parts) else []
        head += [", ".join(part for part in parts if part), *(["published"] if metric in protocol.published else [])]
    rows = []
    for name, row in protocol.rows.items():
        found = [cells(protocol, chosen, metric, column, name) for column, metric in columns]
        rows.append([_marked(protocol, name, row.label), *(cell for own in found for cell in own)])
    return Table(protocol.title, head, rows, _notes(protocol, chosen))


def long_table(protocol: Protocol, chosen: Mapping[Job, Record], metrics: Sequence[str]) -> Table:
    """Rows are conditions and methods; those without a run and without a published number are left out."""
    rows = []
    for column in protocol.columns():
        for name, row in protocol.rows.items():
            found = [cells(protocol, chosen, metric, column, name) for metric in metrics]
            if any(any(own) for own in found):
                where = [protocol.data[column[0]].title] if len(protocol.data) > 1 else []
                first = " ".join([*where, _title(protocol, column[1])])
                rows.append([first, _marked(protocol, name, row.label), *(cell for own in found for cell in own)])
    head = ["labels", "method"]
    for metric in metrics:
        head += [TITLES.get(metric, metric), *(["published"] if metric in protocol.published else [])]
    return Table(protocol.title, head, rows, _notes(protocol, chosen))


def _title(protocol: Protocol, known: str) -> str:
    condition = protocol.conditions.get(known)
    return known if condition is None else condition.title


def _sources(protocol: Protocol) -> list[str]:
    """The sources of single rows, in order."""
    return list(dict.fromkeys(row.source for row in protocol.rows.values() if row.source is not None))


def _marked(protocol: Protocol, name: str, label: str) -> str:
    source = protocol.rows[name].source
    return label if source is None else f"{label} [{_sources(protocol).index(source) + 1}]"


def _notes(protocol: Protocol, chosen: Mapping[Job, Record]) -> list[str]:
    """Sources, which epoch, seeds and machines."""
    seeds = {job.seed for job in chosen}
    moment = {"best": ", at the best epoch on validation", "last": ", after the last epoch"}[protocol.select]
    moment = "" if protocol.tasks else moment
    made = [
        f"Per cent on the test images{moment}: mean ± standard deviation over seeds ({len(seeds)}).",
        f"Published: {protocol.source}.",
    ]
    made += [f"[{n}] published by: {source.removesuffix('.')}." for n, source in enumerate(_sources(protocol), 1)]
    made += _sizes(protocol, chosen)
    if machines := sorted({record["machine"] for record in chosen.values()}):
        made.append(f"Ours: {'; '.join(machines)}.")
    return made


def _sizes(protocol: Protocol, chosen: Mapping[Job, Record]) -> list[str]:
    """A sentence for each data set whose numbers of images are not the published ones."""
    found: dict[str, str] = {}
    for job, record in chosen.items():
        published = protocol.data[job.set_name].sizes
        ours = {name: record["sizes"][name] for name in published if name in record.get("sizes", {})}
        if other := {name: count for name, count in ours.items() if count != published[name]}:
            words = ", ".join(f"{name} {count:,} (published {published[name]:,})" for name, count in other.items())
            found[job.set_name] = f"OTHER DATA than published: {protocol.data[job.set_name].title}, images of {words}."
    return [*found.values()]


def search_table(protocol: Protocol, records: Mapping[Job, Record], chosen: Mapping[Job, Record]) -> Table:
    """Every combination of a grid, with its validation mAP and how many seeds chose it."""
    rows = []
    keys = dict.fromkeys((job.set_name, job.known, job.row, job.trial) for job in records if job.trial)
    for key in keys:
        jobs = [job for job in records if (job.set_name, job.known, job.row, job.trial) == key]
        validated = [value for job in jobs if (value := reported(protocol, records[job])["val"]) is not None]
        tested = [value for job in jobs if (value := reported(protocol, records[job]).get("mAP")) is not None]
        times = sum(job in chosen for job in jobs)
        where = " ".join(part for part in (protocol.column(*key[:2]), protocol.rows[key[2]].label) if part)
        rows.append([where, key[3], mean_and_sd(validated), mean_and_sd(tested), f"{times} of {len(jobs)}"])
    head = ["method", "setting", "validation mAP", "test mAP", "chosen by seeds"]
    return Table("Settings that validation chose", head, rows)


def bought_table(chosen: Mapping[Job, Record]) -> Table:
    """What budgets bought, in the mean over seeds, of the first method of each condition."""
    found: dict[str, list[Record]] = defaultdict(list)
    first: dict[str, str] = {}
    for job, record in chosen.items():
        if "bought" in record and first.setdefault(job.known, job.row) == job.row:
            found[job.known].append({**record["labels"], **record["bought"]})
    names = [*next(iter(found.values()))[0]] if found else []
    rows = []
    for known, records in found.items():
        means = [[r[name] for r in records if r[name] is not None] for name in names]
        rows.append([known, *(f"{statistics.fmean(values):,.5g}" if values else "" for values in means)])
    return Table("What the budgets buy", ["labels", *names], rows)


def statistics_tables(protocol: Protocol, records: Mapping[Job, Record]) -> Iterator[Table]:
    """Counts of each data set beside the published ones, and of each class."""
    names = list(
        dict.fromkeys(
            key for r in records.values() for key in r if key.startswith(("classes", "images", "labels", "K"))
        )
    )
    rows = []
    for job, record in records.items():
        for name in names:
            if name in record:
                paper = protocol.published_value(name, job.set_name, "")
                same = "" if paper is None else "equal" if _close(record[name], paper) else "DIFFERENT"
                rows.append([protocol.sets[job.set_name].title, name, _number(record[name]), _number(paper), same])
    yield Table(
        protocol.title, ["data set", "count", "ours", "published", ""], rows, [f"Published: {protocol.source}."]
    )
    for job, record in records.items():
        head, body = _classes(protocol, job, record)
        if body:
            yield Table(f"{protocol.sets[job.set_name].title}: labels of each class", head, body)


def _classes(protocol: Protocol, job: Job, record: Record) -> tuple[list[str], list[list[str]]]:
    """Labels of each class, most frequent first; of drawn labels, the share of the class's labels in per cent."""
    by_class: Mapping[str, Mapping[str, int]] = record["by class"]
    names = [*next(iter(by_class.values()))] if by_class else []
    if not any(name.startswith("drawn") for name in names):
        return [], []
    parts = [name.partition(", ")[2] for name in names if name.startswith("labels")]
    head = ["class"]
    for part in parts:
        head += [part, "published", *(["drawn", "published"] if f"drawn, {part}" in names else [])]
    rows = []
    for class_id, count in sorted(by_class.items(), key=lambda item: -item[1][f"labels, {parts[0]}"]):
        row = [class_id]
        for part in parts:
            total, drawn = count[f"labels, {part}"], count.get(f"drawn, {part}")
            paper = protocol.published_value(f"class labels, {part}", job.set_name, class_id)
            row += [_number(total), _number(paper)]
            if drawn is not None:
                paper = protocol.published_value(f"class drawn, {part}", job.set_name, class_id)
                row += [f"{100 * drawn / total:.0f} %" if total else "", "" if paper is None else f"{paper:.0f} %"]
        rows.append(row)
    return head, rows


def _number(value: float | None) -> str:
    return "" if value is None else f"{int(value):,}" if value == int(value) else f"{value:,g}"


def _close(ours: float, paper: float) -> bool:
    """Whether a number is the published one, as far as that is printed."""
    text = f"{paper:g}"
    return round(ours, len(text.partition(".")[2])) == paper


def mean_and_sd(values: Sequence[float]) -> str:
    """Mean and standard deviation; the mean alone of a single value."""
    if not values:
        return ""
    spread = f" ± {statistics.stdev(values):.1f}" if len(values) > 1 else ""
    return f"{statistics.fmean(values):.1f}{spread}"


# --- output


def markdown(tables: Sequence[Table]) -> str:
    """The tables as a Markdown page."""
    lines: list[str] = []
    for n, table in enumerate(tables):
        lines += [f"{'#' if not n else '##'} {table.title}", ""]
        lines += [_line(table.head), _line(["---", *["---:"] * (len(table.head) - 1)])]
        lines += [_line([cell.replace("|", "\\|") for cell in row]) for row in table.rows]
        lines += ["", *(f"{note}  " for note in table.notes), ""]
    return "\n".join(lines).rstrip() + "\n"


def _line(row: Sequence[str]) -> str:
    return f"| {' | '.join(row)} |"


def page(tables: Sequence[Table]) -> str:
    """The tables as an HTML page without external files."""
    parts = [HEAD.format(title=html.escape(tables[0].title))]
    for n, table in enumerate(tables):
        level = "h2" if n else "h1"
        parts += [f"<{level}>{html.escape(table.title)}</{level}>", "<table><thead>", _tr(table.head, "th")]
        parts += ["</thead><tbody>", *(_tr(row, "td") for row in table.rows), "</tbody></table>"]
        parts += [f"<p>{html.escape(note)}</p>" for note in table.notes]
    return "\n".join([*parts, "</html>", ""])


def _tr(row: Sequence[str], kind: str) -> str:
    return "<tr>" + "".join(f"<{kind}>{html.escape(cell)}</{kind}>" for cell in row) + "</tr>"


HEAD = """<!doctype html>
<html lang="en"><meta charset="utf-8"><title>{title}</title>
<style>body {{ font: 15px/1.4 system-ui, sans-serif; margin: 2em; color: #222 }} table {{ border-collapse: collapse }}
th, td {{ padding: .25em .7em; text-align: right; border-bottom: 1px solid #ddd; white-space: nowrap }}
th:first-child, td:first-child {{ text-align: left }} p {{ margin: .3em 0; color: #555 }}</style>"""
