"""What `check` says about labels and photos, and what it leaves out; every photo and table is made here."""

import csv
import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from fewtags.check.check import CheckReport, HeatmapNeed, check
from fewtags.check.label_findings import Finding
from fewtags.check.lines import class_lines, reading_lines
from fewtags.errors import DataError
from fewtags.labels import ClassNames
from fewtags.table.merge import merge
from fewtags.table.table import Excluded, ExclusionKind, LabelTable, Notes, ValueReading
from fewtags.text import command_line

P, N, U = 1, -1, 0  # as written in the tables below


def _table(
    cells: dict[str, list[int]], classes: str = "abc", root: Path | None = None, notes: Notes | None = None
) -> LabelTable:
    """A table from rows of P, N and U, one number a class."""
    dense = np.array(list(cells.values()), np.int8).reshape(len(cells), len(classes))
    image, class_ = np.nonzero(dense)
    state = dense[image, class_]
    names = ClassNames.of(classes)
    return LabelTable.build(list(cells), names, image=image, class_=class_, state=state, root=root, notes=notes)


def _photo(path: Path, grey: int, side: int = 40) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.new("RGB", (side, side), (grey, grey, grey)).save(path)


def _found(report: CheckReport, code: str) -> list[Finding]:
    return [finding for finding in report.findings if finding.code == code]


def _only(report: CheckReport, code: str) -> Finding:
    (finding,) = _found(report, code)
    return finding


def _codes(report: CheckReport) -> list[str]:
    return [finding.code for finding in report.findings]


def _many(count: int, row: list[int], start: str = "i") -> dict[str, list[int]]:
    return {f"{start}{n}": row for n in range(count)}


# Labels ---------------------------------------------------------------------------------------------------------------


def test_healthy_splits_give_nothing_but_their_counts(tmp_path: Path) -> None:
    tables = {
        split: _table({**_many(6, [P, N], split), **_many(6, [N, P], f"{split}x")}, "ab", root=tmp_path)
        for split in ("train", "val")
    }
    for number, key in enumerate(k for t in tables.values() for k in t.images.to_pylist()):
        Image.new("RGB", (40, 40), (number, 0, 0)).save(tmp_path / key, "PNG")
    report = check(tables)
    assert report.findings == ()
    assert report.summaries["train"].kind == "full"
    assert report.summaries["val"].positives == (6, 6)
    assert report.photos == 24
    assert report.excluded_rows() == ()


def test_images_without_any_label_are_counted_and_a_known_none_is_not_one_of_them() -> None:
    """x has no label; y is known to show nothing."""
    report = check({"train": _table({**_many(5, [P, P, P]), "x": [U, U, U], "y": [N, N, N]})})
    assert _only(report, "unlabelled") == Finding(
        "warning",
        "unlabelled",
        "train: 1 image has no label. Blank is not absent: if an image shows none of the classes, say so "
        "(a `none` folder or tag, zeros in a table, ReadOptions(complete=True)).",
    )
    assert report.summaries["train"].without_positive == 2


@pytest.mark.parametrize(("split", "level"), [("train", "error"), ("val", "warning")])
def test_a_split_without_labels_is_an_error_where_it_is_trained_on(split: str, level: str) -> None:
    labelled = _table(_many(5, [P, P, P]))
    tables = {"train": labelled, "val": labelled, split: _table({"x": [U, U, U]})}
    finding = _only(check(tables), "unlabelled")
    assert finding.level == level
    assert finding.message == f"{split}: no image has a label. Check that labels and photos belong together."


def test_an_empty_split_is_an_error() -> None:
    report = check({"train": _table(_many(5, [P, P, P])), "val": _table({})})
    assert str(_only(report, "empty")) == "error: val: there are no images."


def test_contradicting_sources_are_named() -> None:
    table = LabelTable.build(
        ["x"], ClassNames.of("ab"), image=np.array([0, 0, 0]), class_=np.array([0, 0, 1]), state=np.array([P, N, P])
    )
    finding = _only(check({"train": table}), "contradiction")
    assert finding.level == "error"
    assert finding.message == (
        "train: 1 label is both positive and negative in one source, and counted as unknown. Fix it."
    )
    assert finding.items == ("x: a is both positive and negative ()",)


def test_contradictions_between_sources_are_what_unknown_is_for() -> None:
    tables = {name: _table({"x": [state, P, P]}) for name, state in (("ours", P), ("theirs", N))}
    finding = _only(check({"train": merge(tables)}), "contradiction")
    assert str(finding) == (
        "warning: train: 1 label is both positive and negative and counted as unknown. Decide which source is right. "
        "(x: a is positive in ours, negative in theirs)"
    )


def test_contradictions_are_told_where_nothing_else_is_known() -> None:
    table = LabelTable.build(
        ["x"], ClassNames.of("a"), image=np.array([0, 0]), class_=np.array([0, 0]), state=np.array([P, N])
    )
    assert [f.code for f in check({"train": table}).errors] == ["contradiction", "unlabelled"]


def test_classes_that_are_never_known_to_be_absent_are_named_where_others_are() -> None:
    """a: positive only; b: both; c: negative only. Where no class has a negative, nothing is said."""
    train = _table({**_many(5, [P, P, N]), "last": [U, N, U]})
    report = check({"train": train, "val": _table({"v": [P, P, N]})})
    assert str(_only(report, "only-positives")) == (
        "warning: train: 1 class is never known to be absent, while others are: bce can only learn that they are "
        "always present. Use a method that counts unknown as absent (expected_negative, assume_negative), or state "
        "where they are absent. (a)"
    )
    assert not _found(check({"train": _table(_many(5, [P, P, U]))}), "only-positives")
    assert not _found(check({"train": _table({**_many(5, [P, P, P]), "n": [N, N, N]})}), "only-positives")


def test_scarce_classes_are_named_by_what_they_cannot_do() -> None:
    """a: 5 positives (enough), b: 4 (few), c: none in train; only a has one in val."""
    train = _table({**_many(4, [P, P, N]), "last": [P, N, N]})
    report = check({"train": train, "val": _table(_many(2, [P, N, N], "v"))})
    assert [str(f) for f in _found(report, "absent-class")] == [
        "warning: train: 1 class has no positive; nothing can be learnt about it. (c)",
        "warning: val: 2 classes have no positive; they cannot be scored. (b; c)",
    ]
    assert (
        str(_only(report, "few-positives"))
        == "warning: train: 1 class has fewer than 5 positives; expect low scores. (b 4)"
    )


def test_a_split_without_negatives_says_which_metrics_remain() -> None:
    single = _table(_many(5, [P, U, U]))
    report = check({"train": single, "val": single})
    assert _only(report, "no-negatives").message.startswith(
        "val: no negative is known, so average precision has no meaning"
    )
    assert _only(report, "no-negatives").message.endswith("if what is not named is known to be absent.")


def test_complete_is_not_advised_where_every_class_of_every_photo_is_known() -> None:
    """Nothing is unnamed there, so that reading the labels as complete would change nothing."""
    full = _table(_many(5, [P, P, P]))
    message = _only(check({"train": full, "val": full}), "no-negatives").message
    assert message.endswith("Every class is present in every photo: add photos without them.")


def test_what_is_left_out_names_its_file_once() -> None:
    rows = (
        Excluded("dog/a.png", "empty file", "/data/pets", "unreadable"),
        Excluded("points.csv row 2", "no size", "/data/points.csv", "unreadable"),
        Excluded("b.png", "a copy", "train", "unreadable"),
        Excluded("c.png", "gone", kind="unreadable"),
    )
    report = check({"train": _table(_many(5, [P, N, P]), notes=Notes(excluded=rows))})
    assert _only(report, "unreadable").items == (
        "dog/a.png in /data/pets: empty file",
        "points.csv row 2: no size",
        "b.png in train: a copy",
        "c.png: gone",
    )
    assert "photos: none read" in report.lines()


@pytest.mark.parametrize(
    ("train", "val", "named"),
    [
        # 12 of 36 positives are a's in train, 5 of 50 in val: a third and a tenth, more than 3 times less.
        ((12, 24), (5, 45), ["a 33.3% in train, 10.0% in val"]),
        # 10 of 40 and 5 of 60: a quarter and a twelfth, exactly 3 times: not more.
        ((10, 30), (5, 55), []),
        # 1 of 10 and 4 of 8 is five times more, but neither expected nor seen are 5 of them.
        ((1, 9), (4, 4), []),
        # With 5 seen it counts.
        ((1, 9), (5, 5), ["a 10.0% in train, 50.0% in val"]),
        # Absent classes are another finding.
        ((0, 9), (5, 5), []),
    ],
)
def test_class_shares_differ_by_more_than_three_times(
    train: tuple[int, int], val: tuple[int, int], named: list[str]
) -> None:
    tables = {
        split: _table({**_many(a, [P, N], "a"), **_many(b, [N, P], "b")}, "ab")
        for split, (a, b) in {"train": train, "val": val}.items()
    }
    found = _found(check(tables), "class-share")
    assert [item for finding in found for item in finding.items] == named


def test_shares_are_of_positives_so_that_one_label_a_photo_compares_with_all() -> None:
    """Every class is in half of the val images and in a sixth of train's: the same share of the positives."""
    single = {**_many(6, [P, U, U], "a"), **_many(6, [U, P, U], "b"), **_many(6, [U, U, P], "c")}
    full = {**_many(9, [P, P, P]), **_many(9, [N, N, N], "n")}
    report = check({"train": _table(single), "val": _table(full)})
    assert report.summaries["train"].kind == "single positive"
    assert not _found(report, "class-share")


def test_all_splits_need_one_vocabulary() -> None:
    train = _table(_many(5, [P, P, P]), "abc")
    other = check({"train": train, "val": _table(_many(5, [P, P, N]), "abd")})
    assert _only(other, "vocabulary").items == ("only in train: c", "only in val: d")
    assert other.errors == (_only(other, "vocabulary"),)
    swapped = check({"train": train, "val": _table(_many(5, [P, P, N]), "bac")})
    assert str(_only(swapped, "vocabulary")) == (
        "error: val has the classes in another order than train; all splits need one vocabulary. Read them together, "
        "or name the classes when reading."
    )


def test_names_that_differ_in_case_or_unicode_form_collide() -> None:
    """'é' is one code point in val and 'e' + accent in train; other folders do not collide."""
    train = {"A/x.jpg": [P], "a/X.jpg": [P], "e\u0301.jpg": [P], "y.jpg": [P]}
    tables = {"train": _table(train, "a"), "val": _table({"\u00e9.jpg": [P], "y.jpg": [P]}, "a")}
    finding = _only(check(tables), "name-collision")
    assert finding.items == ("A/x.jpg = a/X.jpg", "e\u0301.jpg = \u00e9.jpg")
    assert finding.message == (
        "2 image names are spelt in several ways that differ only in case or in the encoding of accents; on Windows "
        "and macOS they are one file. Rename them."
    )
    apart = {"train": _table({"X": [P]}, "a", Path("one")), "val": _table({"x": [P]}, "a", Path("two"))}
    assert not _found(check(apart), "name-collision")


# Photos ---------------------------------------------------------------------------------------------------------------


def test_missing_and_unreadable_photos_are_errors_and_clean_leaves_them_out(tmp_path: Path) -> None:
    _photo(tmp_path / "good.png", 1)
    _photo(tmp_path / "cut.png", 2)
    cut = (tmp_path / "cut.png").read_bytes()
    (tmp_path / "cut.png").write_bytes(cut[: len(cut) // 2])
    cells = {"cut.png": [P, N, N], "gone.png": [N, P, N], "good.png": [N, N, P]}
    tables = {"train": _table(cells, root=tmp_path), "val": _table({"good.png": [N, N, P]}, root=tmp_path)}
    report = check(tables)
    assert [f.code for f in report.errors] == ["missing", "unreadable"]
    assert _only(report, "missing").message == (
        "1 photo is missing; such images are left out of training. Check the folder of the images."
    )
    assert _only(report, "missing").items == ("train gone.png",)
    assert _only(report, "unreadable").items[0].startswith("train cut.png: ")
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
    _photo(tmp_path / "cut.png", 2)
    content = (tmp_path / "cut.png").read_bytes()
    (tmp_path / "cut.png").write_bytes(content[:-30])
    tables = {"train": _table({"cut.png": [P, P, P]}, root=tmp_path)}
    assert check(tables, decode=False).unusable == {"train": {}}
    assert list(check(tables).unusable["train"]) == ["cut.png"]


def test_nothing_left_after_cleaning_is_an_error(tmp_path: Path) -> None:
    tables = {"train": _table({"gone.png": [P, P, P]}, root=tmp_path)}
    with pytest.raises(DataError) as error:
        check(tables).clean(tables)
    assert str(error.value) == (
        f"train: no photo can be read, for example gone.png: no such file: {tmp_path / 'gone.png'}"
    )


def test_excluded_csv_has_the_readers_and_our_rows(tmp_path: Path) -> None:
    _photo(tmp_path / "a.png", 1)
    notes = Notes(excluded=(Excluded("row 7", 'no class "brid", mend it', "labels.csv"),))
    table = _table({"a.png": [P, P, P], "gone.png": [P, P, P]}, root=tmp_path, notes=notes)
    check({"train": table, "val": table.subset([0])}).write_excluded_csv(tmp_path / "excluded.csv")
    with (tmp_path / "excluded.csv").open(encoding="utf-8", newline="") as file:
        rows = list(csv.reader(file))
    assert rows == [
        ["item", "where", "reason"],
        ["row 7", "labels.csv", 'no class "brid", mend it'],
        ["gone.png", "train", f"no such file: {tmp_path / 'gone.png'}"],
    ]
    assert sorted(p.name for p in tmp_path.iterdir()) == ["a.png", "excluded.csv"]


def test_copies_inside_a_split_across_splits_and_contradicting(tmp_path: Path) -> None:
    """1 = 1b in train; 2 in train = 3 in val, where they disagree about a; 4 is used by both splits under one name."""
    for name, grey in (("1", 1), ("1b", 1), ("2", 2), ("3", 2), ("4", 4), ("5", 5)):
        _photo(tmp_path / f"{name}.png", grey)
    train = {"1.png": [P, U, N], "1b.png": [P, P, N], "2.png": [P, N, U], "4.png": [P, P, P]}
    val = {"3.png": [N, N, P], "4.png": [P, P, P], "5.png": [P, P, N]}
    report = check({"train": _table(train, root=tmp_path), "val": _table(val, root=tmp_path)})
    assert report.photos == 6
    assert _only(report, "copies").items == ("train 1.png = train 1b.png",)
    leak = _only(report, "leak")
    assert leak.items == ("train 2.png = val 3.png", "train 4.png = val 4.png")
    assert leak.message == (
        "2 photos are in train and in another split (2 of 3 in val). Training leaves them out of train, so that "
        "scores are fair."
    )
    assert _only(report, "contradicting-copies").items == ("a: train 2.png positive, val 3.png negative",)
    assert not report.errors
    assert not _found(report, "measured-twice")


def test_photos_in_two_splits_to_measure_on_are_a_warning(tmp_path: Path) -> None:
    for name, grey in (("1", 1), ("2", 2), ("3", 2)):
        _photo(tmp_path / f"{name}.png", grey)
    cells = {"train": "1", "val": "2", "test": "3"}
    report = check({split: _table({f"{n}.png": [P, N, P]}, root=tmp_path) for split, n in cells.items()})
    twice = _only(report, "measured-twice")
    assert (twice.level, twice.items) == ("warning", ("val 2.png = test 3.png",))
    assert not _found(report, "leak")


def test_a_run_that_goes_on_reports_no_error(tmp_path: Path) -> None:
    """The word error is for what stops."""
    _photo(tmp_path / "a.png", 1)
    report = check({"train": _table({"a.png": [P, P, P], "gone.png": [P, P, P]}, root=tmp_path)})
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
    found = _only(check({"train": table, "val": table}), "look-alike")
    assert (found.level, found.items) == ("warning", ("'Traffic light' = 'traffic_light'",))
    assert found.message == (
        "1 group of class names differs only in case, spaces, underscores, hyphens or Unicode form; they count as "
        "different classes. If they are the same, join them: ReadOptions(rename=('Traffic light=traffic_light',))."
    )


def test_what_is_unusual_about_photos_is_counted_and_is_no_warning(tmp_path: Path) -> None:
    _photo(tmp_path / "plain.png", 1)
    Image.fromarray(np.full((40, 40), 999, np.uint16)).save(tmp_path / "deep.png")
    Image.new("CMYK", (40, 40)).save(tmp_path / "print.jpg")
    Image.new("RGBA", (40, 40)).save(tmp_path / "glass.png")
    exif = Image.Exif()
    exif[0x0112] = 3
    Image.new("RGB", (40, 40)).save(tmp_path / "turned.jpg", exif=exif)
    rows = ([P, P, P], [N, N, N])
    table = _table({p.name: rows[n == 0] for n, p in enumerate(sorted(tmp_path.iterdir()))}, root=tmp_path)
    report = check({"train": table})
    report = replace(report, findings=tuple(f for f in report.findings if f.code != "few-positives"))
    assert _codes(report) == ["rotated", "16-bit", "cmyk", "alpha"]
    assert {f.level for f in report.findings} == {"note"}
    assert str(_only(report, "16-bit")) == (
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
        _photo(tmp_path / f"{name}.png", 1, side)
    names = ("small.png", "tiny.png", "large.png")
    report = check({"train": _table({name: [P, P, P] for name in names}, root=tmp_path)}, input_size=input_size)
    found = [(f.level, f.items) for f in _found(report, "small")]
    assert found == ([(level, items)] if level else [])
    if level:
        assert _only(report, "small").message.endswith(f"a side shorter than {than} pixels.")


def test_a_table_without_a_photo_folder_says_so() -> None:
    report = check({"train": _table(_many(5, [P, P, P]))})
    assert str(_only(report, "no-photos")) == (
        "warning: train: the labels do not say where the photos are, so no photo was read, and training cannot "
        "begin; give images='FOLDER'."
    )
    assert report.photos == 0


# Memory, readers, output ----------------------------------------------------------------------------------------------


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
    table = _table(_many(5, [P, P, N, N, N, N]), "abcdef")
    report = check({"train": table, "val": table.subset([0])}, heatmaps=_need(limit))
    assert report.heatmap_bytes == 300
    start = f"heatmaps of 5 images and 6 classes need 300 bytes; half of the free memory is {limit} bytes. "
    assert [f.message for f in _found(report, "heatmap-memory")] == ([start + end] if end else [])


def test_the_readers_notes_are_said_once_for_all_splits_of_a_table() -> None:
    notes = Notes(
        readings=(ValueReading("labels.csv", "0", "absent", 12300),),
        excluded=(Excluded("row 3", "no such photo", "labels.csv"),),
        messages=("separator ';'",),
    )
    table = _table(_many(6, [P, N, P]), notes=notes)
    report = check({"train": table.subset([0, 1, 2]), "val": table.subset([3, 4, 5])})
    assert [str(f) for f in _found(report, "reader")] == ["note: separator ';'"]
    assert str(_only(report, "excluded")) == (
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
    report = check({"train": _table(_many(5, [P, N, P]), notes=Notes(excluded=rows))})
    finding = _only(report, kind)
    assert (finding.level, finding.message[: len(message)]) == (level, message)
    assert finding.items == ("row 1 in labels.csv: why", "row 2 in labels.csv: why")
    assert bool(report.errors) == (level == "error")
    told = [f for f in json.loads(report.to_json())["findings"] if f["code"] == kind]
    assert told == [{"level": level, "code": kind, "message": finding.message, "items": [*finding.items]}]


def test_what_readers_doubt_is_a_warning() -> None:
    notes = Notes(warnings=("-1 may mean absent",)) + Notes(warnings=("boxes may be off",))
    table = _table(_many(6, [P, N, P]), notes=notes)
    report = check({"train": table.subset([0, 1, 2]), "val": table.subset([3, 4, 5])})
    assert [str(f) for f in _found(report, "misread")] == ["warning: -1 may mean absent", "warning: boxes may be off"]


def test_errors_come_before_warnings_before_notes(tmp_path: Path) -> None:
    table = _table({"gone": [P, P, U]}, root=tmp_path, notes=Notes(messages=("hello",)))
    report = check({"train": table})
    levels = [f.level for f in report.findings]
    assert levels == sorted(levels, key=["error", "warning", "note"].index)
    assert set(levels) == {"error", "warning", "note"}
    # The text ends with the worst ones, where a terminal stops.
    assert [line.split(":")[0] for line in [*report.lines()][-1 - len(levels) : -1]] == levels[::-1]


def test_the_lines_for_people() -> None:
    train = _table({**_many(5, [P, N, N]), **_many(5, [U, P, P], "j")})
    report = check({"train": train, "val": _table({"v": [P, P, P]})}, heatmaps=_need(300))
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
    table = _table(_many(5, [P, P, P], "gone"), root=tmp_path)
    report = check({"train": table})
    assert str(_only(report, "missing")).endswith("(gone0; gone1; gone2; and 2 more)")
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
    table = _table(_many(3, [P, P, P]), root=tmp_path)
    check({"train": table}, progress=lambda done, total: calls.append((done, total)))
    assert calls == [(3, 3)]


def test_nothing_to_check_is_an_error() -> None:
    with pytest.raises(DataError) as error:
        check({})
    assert str(error.value) == "there is nothing to check: give at least one split."


def test_a_class_that_is_in_every_training_photo_is_a_warning() -> None:
    found = _only(check({"train": _table(_many(12, [P]), "a")}), "always-positive")
    assert (found.level, found.items) == ("warning", ("a",))
    assert found.message == (
        "train: 1 class is positive in every one of the 12 photos: there is nothing to tell apart, and every photo "
        "will be tagged so. Add photos without: in a folder `none/`, with the tag none, or with 0 in a table."
    )
    both = check({"train": _table({**_many(6, [P, U], "x"), **_many(6, [P, P], "y")}, "ab")})
    assert _only(both, "always-positive").items == ("a",)
    assert not _found(check({"train": _table({**_many(11, [P]), "none": [N]}, "a")}), "always-positive")
