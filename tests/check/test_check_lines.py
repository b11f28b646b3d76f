"""How `check` says what it found: order, counts, lines for people."""

import json
from pathlib import Path

import numpy as np
import pytest
from checked import N, P, U, found_of, make_table, many_rows, only_finding

from fewtags.check.check import HeatmapNeed, check
from fewtags.check.lines import class_lines, reading_lines
from fewtags.errors import DataError
from fewtags.labels import ClassNames
from fewtags.table.table import Excluded, ExclusionKind, LabelTable, Notes, ValueReading
from fewtags.text import command_line


def _need(limit: int) -> HeatmapNeed:
    """10 bytes a heatmap."""
    return HeatmapNeed(lambda images, classes, k: 10 * images * (classes if k is None else k), limit)


@pytest.mark.parametrize(
    ("limit", "end"),
    [
        (300, None),  # 5 images x 6 classes x 10 bytes fit
        (299, "Keep those of the 5 best classes of each image (objective.heatmap_top_k = 5): 250 bytes."),
        (149, "Keep those of the 2 best classes of each image (objective.heatmap_top_k = 2): 100 bytes."),
        (
            99,  # less than the 2 positives of an image need
            "Even one heatmap for each of the 2 positives that an image may have does not fit: use a smaller "
            'input (augment.size), objective.heatmap_storage = "disk", or objective.scl_weight = 0, which needs none.',
        ),
    ],
)
def test_heatmap_memory_suggests_the_largest_top_k_that_fits(limit: int, end: str | None) -> None:
    table = make_table(many_rows(5, [P, P, N, N, N, N]), "abcdef")
    report = check({"train": table, "val": table.subset([0])}, heatmaps=_need(limit))
    assert report.heatmap_bytes == 300
    start = f"heatmaps of 5 images and 6 classes need 300 bytes; half of the free memory is {limit} bytes. "
    assert [f.message for f in found_of(report, "heatmap-memory")] == ([start + end] if end else [])


def test_the_readers_notes_are_said_once_for_all_splits_of_a_table() -> None:
    notes = Notes(
        readings=(ValueReading("labels.csv", "0", "absent", 12300),),
        excluded=(Excluded("row 3", "no such photo", "labels.csv"),),
        messages=("separator ';'",),
    )
    table = make_table(many_rows(6, [P, N, P]), notes=notes)
    report = check({"train": table.subset([0, 1, 2]), "val": table.subset([3, 4, 5])})
    assert [str(f) for f in found_of(report, "reader")] == ["note: separator ';'"]
    assert str(only_finding(report, "excluded")) == (
        "note: 1 item is left out, as splits or settings say. Nothing to do. (row 3 in labels.csv: no such photo)"
    )
    assert report.readings == notes.readings
    assert "read: labels.csv: 0 -> absent (12,300)" in list(report.lines())


@pytest.mark.parametrize(
    ("kind", "level", "message"),
    [
        ("missing", "error", "2 photos named in the labels do not exist. Check the image fol"),
        (
            "unreadable",
            "error",
            "2 files or folders cannot be read and are left out. Fix, rename or",
        ),
        (
            "unusable",
            "error",
            "2 items of the labels cannot be used and are left out. Fix or remove",
        ),
        ("splits", "error", "2 images are in several splits or in none of them. Choose one split"),
        ("bad-place", "error", "2 boxes or points cannot be used and are left out. Fix them, or"),
        ("unread-place", "warning", "2 regions are of a kind that is not read. The labels are kept;"),
        (
            "partial",
            "warning",
            "2 sets of images have labels but no photos here. Download the photos",
        ),
        ("excluded", "note", "2 items are left out, as splits or settings say. Nothing to do."),
    ],
)
def test_what_is_left_out_counts_by_why(kind: ExclusionKind, level: str, message: str) -> None:
    """Data that is lost is an error; what cannot be read or was never there a warning; what was asked for a note."""
    rows = tuple(Excluded(f"row {n}", "why", "labels.csv", kind) for n in (1, 2))
    report = check({"train": make_table(many_rows(5, [P, N, P]), notes=Notes(excluded=rows))})
    finding = only_finding(report, kind)
    assert (finding.level, finding.message[: len(message)]) == (level, message)
    assert finding.items == ("row 1 in labels.csv: why", "row 2 in labels.csv: why")
    assert bool(report.errors) == (level == "error")
    told = [f for f in json.loads(report.to_json())["findings"] if f["code"] == kind]
    assert told == [{"level": level, "code": kind, "message": finding.message, "items": [*finding.items]}]


def test_what_readers_doubt_is_a_warning() -> None:
    notes = Notes(warnings=("-1 may mean absent",)) + Notes(warnings=("boxes may be off",))
    table = make_table(many_rows(6, [P, N, P]), notes=notes)
    report = check({"train": table.subset([0, 1, 2]), "val": table.subset([3, 4, 5])})
    assert [str(f) for f in found_of(report, "misread")] == ["warning: -1 may mean absent", "warning: boxes may be off"]


def test_errors_come_before_warnings_before_notes(tmp_path: Path) -> None:
    table = make_table({"gone": [P, P, U]}, root=tmp_path, notes=Notes(messages=("hello",)))
    report = check({"train": table})
    levels = [f.level for f in report.findings]
    assert levels == sorted(levels, key=["error", "warning", "note"].index)
    assert set(levels) == {"error", "warning", "note"}
    # The text ends with the worst ones, where a terminal stops.
    assert [line.split(":")[0] for line in [*report.lines()][-1 - len(levels) : -1]] == levels[::-1]


def test_the_lines_for_people() -> None:
    train = make_table({**many_rows(5, [P, N, N]), **many_rows(5, [U, P, P], "j")})
    report = check({"train": train, "val": make_table({"v": [P, P, P]})}, heatmaps=_need(300))
    lines = list(report.lines())
    assert lines[:10] == [
        "train: 10 images, 3 classes, labels: partial; 1.50 positives per image; "
        "0 without a positive, 0 without any label",
        "val: 1 image, 3 classes, labels: full; 3.00 positives per image; 0 without a positive, 0 without any label",
        "photos: none read",
        "heatmaps of all classes: 300 bytes",
        "images of each class: + positive, - negative, ? unknown",
        "class  train +  -  ?  val +  -  ?",
        "a            5  0  5      1  0  0",
        "b            5  5  0      1  0  0",
        "c            5  5  0      1  0  0",
        str(report.findings[0]),
    ]
    assert lines[-1] == f"0 errors, {len(report.warnings)} warnings"


def test_points_and_boxes_are_counted_by_class() -> None:
    """Two points of a, a box of b; val has neither and gets no columns for them."""
    places = np.array([[0.5, 0.5, 0.5, 0.5], [0.1, 0.2, 0.1, 0.2], [0.0, 0.0, 0.5, 1.0]])
    train = LabelTable.build(
        ["i"], ClassNames.of(["a", "b"]), image=np.zeros(3), class_=np.array([0, 0, 1]), state=np.ones(3),
        locations=places,
    )  # fmt: skip
    val = LabelTable.build(
        ["v"], ClassNames.of(["a", "b"]), image=np.zeros(1), class_=np.zeros(1), state=np.ones(1)
    )  # fmt: skip
    report = check({"train": train, "val": val})
    lines = list(report.lines())
    assert lines[1] == "  2 points, 1 box"
    start = next(n for n, line in enumerate(lines) if line.startswith("class"))
    assert lines[start : start + 3] == [
        "class  train +  -  ?  points  boxes  val +  -  ?",
        "a            1  0  0       2      0      1  0  0",
        "b            1  0  0       0      1      0  0  1",
    ]
    classes = json.loads(report.to_json())["splits"]["train"]["classes"]
    assert [(c["points"], c["boxes"]) for c in classes] == [(2, 0), (0, 1)]


def test_of_many_classes_the_first_and_the_last_are_printed() -> None:
    classes = [f"c{n:02d}" for n in range(50)]
    image = np.repeat(
        np.arange(50), np.arange(50)
    )  # image n has the n rarest classes, so c00 is in 49 images, c49 in none
    class_ = np.concatenate([np.arange(n) for n in range(50)])
    table = LabelTable.build(
        [f"i{n}" for n in range(50)], ClassNames.of(classes), image=image, class_=class_, state=np.ones(len(image))
    )
    lines = list(check({"all": table}).lines())
    start = next(n for n, line in enumerate(lines) if line.startswith("class"))
    shown = [line.split()[0] for line in lines[start + 1 : start + 42]]
    assert shown == [*classes[:20], "...", *classes[30:]]
    assert lines[start + 21] == "... 10 more classes; to_json() lists all"


def test_three_splits_with_boxes_fit_a_terminal() -> None:
    """Ten thousand boxes in each: beside each other they need 100 columns, so each split has a table of its own."""
    count = 10_000
    places = np.tile([0.0, 0.0, 0.5, 1.0], (count, 1))
    table = LabelTable.build(
        [f"i{n}" for n in range(count)], ClassNames.of(["a" * 60, "b"]), image=np.arange(count),
        class_=np.zeros(count), state=np.ones(count), locations=places,
    )  # fmt: skip
    summaries = {split: table.summary() for split in ("train", "val", "test")}
    lines = [*class_lines(summaries)]
    assert max(map(len, lines)) <= 80
    assert [line.split()[1] for line in lines if line.startswith("class")] == ["train", "val", "test"]
    assert lines[2] == f"{'a' * 23}…   10,000  0       0       0  10,000"
    beside = [*class_lines({"train": summaries["train"]})]
    assert beside == lines[:4]


def test_readings_of_one_meaning_share_a_line_and_long_runs_are_cut() -> None:
    readings = [ValueReading("a.xml", f"'c{n}'", f"class 'c{n}'", 1) for n in range(50)]
    readings += [ValueReading("b.csv", word, "absent", 2) for word in ("0", "no", "nein", "non")]
    lines = [*reading_lines(readings)]
    assert lines[7:] == [
        "read: a.xml: 'c7' -> class 'c7' (1)",
        "read: a.xml: 42 more lines; to_json() lists all",
        "read: b.csv: 0, no, nein and 1 more -> absent (8)",
    ]
    with command_line():
        assert [*reading_lines(readings)][8].endswith("; --json lists all")


def test_long_lists_are_cut_for_people_and_complete_for_programs(tmp_path: Path) -> None:
    table = make_table(many_rows(5, [P, P, P], "gone"), root=tmp_path)
    report = check({"train": table})
    assert str(only_finding(report, "missing")).endswith("(gone0; gone1; gone2; and 2 more)")
    content = json.loads(report.to_json())
    (missing,) = [f for f in content["findings"] if f["code"] == "missing"]
    assert missing["items"] == [f"gone{n}" for n in range(5)]
    assert (content["errors"], content["warnings"]) == (1, 1)
    assert content["splits"]["train"]["kind"] == "full"
    assert content["splits"]["train"]["classes"][1] == {
        "id": "b",
        "name": "b",
        "positive": 5,
        "negative": 0,
        "unknown": 0,
        "points": 0,
        "boxes": 0,
    }
    assert [row["item"] for row in content["excluded"]] == [f"gone{n}" for n in range(5)]


def test_progress_is_told(tmp_path: Path) -> None:
    calls: list[tuple[int, int]] = []
    table = make_table(many_rows(3, [P, P, P]), root=tmp_path)
    check({"train": table}, progress=lambda done, total: calls.append((done, total)))
    assert calls == [(3, 3)]


def test_nothing_to_check_is_an_error() -> None:
    with pytest.raises(DataError) as error:
        check({})
    assert str(error.value) == "there is nothing to check: give at least one split."


def test_a_class_that_is_in_every_training_photo_is_a_warning() -> None:
    found = only_finding(check({"train": make_table(many_rows(12, [P]), "a")}), "always-positive")
    assert (found.level, found.items) == ("warning", ("a",))
    assert found.message == (
        "train: 1 class is positive in every one of the 12 photos: there is nothing to tell apart, and every photo "
        "will be tagged so. Add photos without: in a folder `none/`, with the tag none, or with 0 in a table."
    )
    both = check({"train": make_table({**many_rows(6, [P, U], "x"), **many_rows(6, [P, P], "y")}, "ab")})
    assert only_finding(both, "always-positive").items == ("a",)
    assert not found_of(check({"train": make_table({**many_rows(11, [P]), "none": [N]}, "a")}), "always-positive")
