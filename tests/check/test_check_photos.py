"""What `check` says about photos and memory, and what it leaves out; every photo is made here."""

import csv
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from checked import N, P, U, codes_of, found_of, make_photo, make_table, many_rows, only_finding
from PIL import Image

from fewtags.check.check import check
from fewtags.errors import DataError
from fewtags.labels import ClassNames
from fewtags.table.table import Excluded, LabelTable, Notes


def test_missing_and_unreadable_photos_are_errors_and_clean_leaves_them_out(tmp_path: Path) -> None:
    make_photo(tmp_path / "good.png", 1)
    make_photo(tmp_path / "cut.png", 2)
    cut = (tmp_path / "cut.png").read_bytes()
    (tmp_path / "cut.png").write_bytes(cut[: len(cut) // 2])
    cells = {"cut.png": [P, N, N], "gone.png": [N, P, N], "good.png": [N, N, P]}
    tables = {"train": make_table(cells, root=tmp_path), "val": make_table({"good.png": [N, N, P]}, root=tmp_path)}
    report = check(tables)
    assert [f.code for f in report.errors] == ["missing", "unreadable"]
    assert only_finding(report, "missing").message == (
        "1 photo is missing; such images are left out of training. Check the folder of the images."
    )
    assert only_finding(report, "missing").items == ("train gone.png",)
    assert only_finding(report, "unreadable").items[0].startswith("train cut.png: ")
    reason = report.unusable["train"]["cut.png"]
    assert report.excluded_rows() == (
        Excluded("cut.png", reason, "train", "unreadable"),
        Excluded("gone.png", f"no such file: {tmp_path / 'gone.png'}", "train", "unreadable"),
    )

    clean = report.clean(tables)
    assert clean["train"].images.to_pylist() == ["good.png"]
    assert clean["train"].matrix.dense().tolist() == [[N, N, P]]
    # Whoever cleans wants it so; looking again finds nothing new.
    assert clean["train"].notes.excluded == tuple(replace(row, kind="excluded") for row in report.excluded_rows())
    assert clean["train"].notes.messages == ("train: 2 images left out, without a readable photo",)
    assert clean["val"] is tables["val"]
    assert not check(clean, threads=1).errors


def test_headers_alone_do_not_find_a_truncated_photo(tmp_path: Path) -> None:
    make_photo(tmp_path / "cut.png", 2)
    content = (tmp_path / "cut.png").read_bytes()
    (tmp_path / "cut.png").write_bytes(content[:-30])
    tables = {"train": make_table({"cut.png": [P, P, P]}, root=tmp_path)}
    assert check(tables, decode=False).unusable == {"train": {}}
    assert list(check(tables).unusable["train"]) == ["cut.png"]


def test_nothing_left_after_cleaning_is_an_error(tmp_path: Path) -> None:
    tables = {"train": make_table({"gone.png": [P, P, P]}, root=tmp_path)}
    with pytest.raises(DataError) as error:
        check(tables).clean(tables)
    assert str(error.value) == (
        f"train: no photo can be read, for example gone.png: no such file: {tmp_path / 'gone.png'}"
    )


def test_excluded_csv_has_the_readers_and_our_rows(tmp_path: Path) -> None:
    make_photo(tmp_path / "a.png", 1)
    notes = Notes(excluded=(Excluded("row 7", 'no class "brid", correct it', "labels.csv"),))
    table = make_table({"a.png": [P, P, P], "gone.png": [P, P, P]}, root=tmp_path, notes=notes)
    check({"train": table, "val": table.subset([0])}).write_excluded_csv(tmp_path / "excluded.csv")
    with (tmp_path / "excluded.csv").open(encoding="utf-8", newline="") as file:
        rows = list(csv.reader(file))
    assert rows == [
        ["item", "where", "reason"],
        ["row 7", "labels.csv", 'no class "brid", correct it'],
        ["gone.png", "train", f"no such file: {tmp_path / 'gone.png'}"],
    ]
    assert sorted(p.name for p in tmp_path.iterdir()) == ["a.png", "excluded.csv"]


def test_copies_inside_a_split_across_splits_and_contradicting(tmp_path: Path) -> None:
    """1 = 1b in train; 2 in train = 3 in val, where they disagree about a; 4 is used by both splits under one name."""
    for name, grey in (("1", 1), ("1b", 1), ("2", 2), ("3", 2), ("4", 4), ("5", 5)):
        make_photo(tmp_path / f"{name}.png", grey)
    train = {"1.png": [P, U, N], "1b.png": [P, P, N], "2.png": [P, N, U], "4.png": [P, P, P]}
    val = {"3.png": [N, N, P], "4.png": [P, P, P], "5.png": [P, P, N]}
    report = check({"train": make_table(train, root=tmp_path), "val": make_table(val, root=tmp_path)})
    assert report.photos == 6
    assert only_finding(report, "copies").items == ("train 1.png = train 1b.png",)
    leak = only_finding(report, "leak")
    assert leak.items == ("train 2.png = val 3.png", "train 4.png = val 4.png")
    assert leak.message == (
        "2 photos are in train and in another split (2 of 3 in val). Training leaves them out of train, so that "
        "scores are fair."
    )
    assert only_finding(report, "contradicting-copies").items == ("a: train 2.png positive, val 3.png negative",)
    assert not report.errors
    assert not found_of(report, "measured-twice")


def test_photos_in_two_splits_to_measure_on_are_a_warning(tmp_path: Path) -> None:
    for name, grey in (("1", 1), ("2", 2), ("3", 2)):
        make_photo(tmp_path / f"{name}.png", grey)
    cells = {"train": "1", "val": "2", "test": "3"}
    report = check({split: make_table({f"{n}.png": [P, N, P]}, root=tmp_path) for split, n in cells.items()})
    twice = only_finding(report, "measured-twice")
    assert (twice.level, twice.items) == ("warning", ("val 2.png = test 3.png",))
    assert not found_of(report, "leak")


def test_a_run_that_goes_on_reports_no_error(tmp_path: Path) -> None:
    """The word error is for what stops."""
    make_photo(tmp_path / "a.png", 1)
    report = check({"train": make_table({"a.png": [P, P, P], "gone.png": [P, P, P]}, root=tmp_path)})
    assert report.errors
    shown = list(report.going_on().lines())
    assert not [line for line in shown if line.startswith("error")]
    assert "warning: 1 photo is missing" in "\n".join(shown)
    assert shown[-1].startswith("0 errors, ")


def test_class_names_that_look_alike_are_a_warning() -> None:
    table = LabelTable.build(
        [f"i{n}" for n in range(5)],
        ClassNames.of(["Traffic light", "dog", "traffic_light"]),
        image=np.arange(5),
        class_=np.zeros(5, int),
        state=np.ones(5, int),
    )
    found = only_finding(check({"train": table, "val": table}), "look-alike")
    assert (found.level, found.items) == ("warning", ("'Traffic light' = 'traffic_light'",))
    assert found.message == (
        "1 group of class names differs only in case, spaces, underscores, hyphens or Unicode form; they count as "
        "different classes. If they are the same, join them: ReadOptions(rename=('Traffic light=traffic_light',))."
    )


def test_what_is_unusual_about_photos_is_counted_and_is_no_warning(tmp_path: Path) -> None:
    make_photo(tmp_path / "plain.png", 1)
    Image.fromarray(np.full((40, 40), 999, np.uint16)).save(tmp_path / "deep.png")
    Image.new("CMYK", (40, 40)).save(tmp_path / "print.jpg")
    Image.new("RGBA", (40, 40)).save(tmp_path / "glass.png")
    exif = Image.Exif()
    exif[0x0112] = 3
    Image.new("RGB", (40, 40)).save(tmp_path / "turned.jpg", exif=exif)
    rows = ([P, P, P], [N, N, N])
    table = make_table({p.name: rows[n == 0] for n, p in enumerate(sorted(tmp_path.iterdir()))}, root=tmp_path)
    report = check({"train": table})
    report = replace(report, findings=tuple(f for f in report.findings if f.code != "few-positives"))
    assert codes_of(report) == ["rotated", "16-bit", "cmyk", "alpha"]
    assert {f.level for f in report.findings} == {"note"}
    assert str(only_finding(report, "16-bit")) == (
        "note: 1 photo is more than 8 bits deep and scaled to 8, never clipped. (deep.png)"
    )


@pytest.mark.parametrize(
    ("input_size", "level", "items", "than"),
    [
        (None, "warning", ("tiny.png",), "32"),
        (32, "warning", ("tiny.png",), "the net's input of 32"),
        (224, "note", ("small.png", "tiny.png"), "the net's input of 224"),
        (8, None, (), ""),
    ],
)
def test_small_photos_are_measured_against_the_input(
    tmp_path: Path, input_size: int | None, level: str | None, items: tuple[str, ...], than: str
) -> None:
    for name, side in (("tiny", 31), ("small", 100), ("large", 224)):
        make_photo(tmp_path / f"{name}.png", 1, side)
    names = ("small.png", "tiny.png", "large.png")
    report = check({"train": make_table({name: [P, P, P] for name in names}, root=tmp_path)}, input_size=input_size)
    found = [(f.level, f.items) for f in found_of(report, "small")]
    assert found == ([(level, items)] if level else [])
    if level:
        assert only_finding(report, "small").message.endswith(f"a side shorter than {than} pixels.")


def test_a_table_without_a_photo_folder_says_so() -> None:
    report = check({"train": make_table(many_rows(5, [P, P, P]))})
    assert str(only_finding(report, "no-photos")) == (
        "warning: train: the labels do not say where the photos are, so no photo was read, and training cannot "
        "begin; give images='FOLDER'."
    )
    assert report.photos == 0
