"""Tables and photos that `check` looks at, and its findings by code."""

from pathlib import Path

import numpy as np
from PIL import Image

from fewtags.check.check import CheckReport
from fewtags.check.label_findings import Finding
from fewtags.labels import ClassNames
from fewtags.table.table import LabelTable, Notes

P, N, U = 1, -1, 0  # as written in the tables below


def make_table(
    cells: dict[str, list[int]], classes: str = "abc", root: Path | None = None, notes: Notes | None = None
) -> LabelTable:
    """A table from rows of P, N and U, one number a class."""
    dense = np.array(list(cells.values()), np.int8).reshape(len(cells), len(classes))
    image, class_ = np.nonzero(dense)
    state = dense[image, class_]
    names = ClassNames.of(classes)
    return LabelTable.build(list(cells), names, image=image, class_=class_, state=state, root=root, notes=notes)


def make_photo(path: Path, grey: int, side: int = 40) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.new("RGB", (side, side), (grey, grey, grey)).save(path)


def found_of(report: CheckReport, code: str) -> list[Finding]:
    return [finding for finding in report.findings if finding.code == code]


def only_finding(report: CheckReport, code: str) -> Finding:
    (finding,) = found_of(report, code)
    return finding


def codes_of(report: CheckReport) -> list[str]:
    return [finding.code for finding in report.findings]


def many_rows(count: int, row: list[int], start: str = "i") -> dict[str, list[int]]:
    return {f"{start}{n}": row for n in range(count)}
