"""What `check` says about labels; every photo and table is made here."""

from pathlib import Path

import numpy as np
import pytest
from checked import N, P, U, found_of, make_table, many_rows, only_finding
from PIL import Image

from fewtags.check.check import check
from fewtags.check.label_findings import Finding
from fewtags.labels import ClassNames
from fewtags.table.merge import merge
from fewtags.table.table import Excluded, LabelTable, Notes


def test_healthy_splits_give_nothing_but_their_counts(tmp_path: Path) -> None:
    tables = {
        split: make_table({**many_rows(6, [P, N], split), **many_rows(6, [N, P], f"{split}x")}, "ab", root=tmp_path)
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
    report = check({"train": make_table({**many_rows(5, [P, P, P]), "x": [U, U, U], "y": [N, N, N]})})
    assert only_finding(report, "unlabelled") == Finding(
        "warning",
        "unlabelled",
        "train: 1 image has no label. Blank is not absent: if an image shows none of the classes, say so "
        "(a `none` folder or tag, zeros in a table, ReadOptions(complete=True)).",
    )
    assert report.summaries["train"].without_positive == 2


@pytest.mark.parametrize(("split", "level"), [("train", "error"), ("val", "warning")])
def test_a_split_without_labels_is_an_error_where_it_is_trained_on(split: str, level: str) -> None:
    labelled = make_table(many_rows(5, [P, P, P]))
    tables = {"train": labelled, "val": labelled, split: make_table({"x": [U, U, U]})}
    finding = only_finding(check(tables), "unlabelled")
    assert finding.level == level
    assert finding.message == f"{split}: no image has a label. Check that labels and photos belong together."


def test_an_empty_split_is_an_error() -> None:
    report = check({"train": make_table(many_rows(5, [P, P, P])), "val": make_table({})})
    assert str(only_finding(report, "empty")) == "error: val: there are no images."


def test_contradicting_sources_are_named() -> None:
    table = LabelTable.build(
        ["x"], ClassNames.of("ab"), image=np.array([0, 0, 0]), class_=np.array([0, 0, 1]), state=np.array([P, N, P])
    )
    finding = only_finding(check({"train": table}), "contradiction")
    assert finding.level == "error"
    assert finding.message == (
        "train: 1 label is both positive and negative in one source, and counted as unknown. Fix it."
    )
    assert finding.items == ("x: a is both positive and negative ()",)


def test_contradictions_between_sources_are_what_unknown_is_for() -> None:
    tables = {name: make_table({"x": [state, P, P]}) for name, state in (("ours", P), ("theirs", N))}
    finding = only_finding(check({"train": merge(tables)}), "contradiction")
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
    train = make_table({**many_rows(5, [P, P, N]), "last": [U, N, U]})
    report = check({"train": train, "val": make_table({"v": [P, P, N]})})
    assert str(only_finding(report, "only-positives")) == (
        "warning: train: 1 class is never known to be absent, while others are: bce can only learn that they are "
        "always present. Use a method that counts unknown as absent (expected_negative, assume_negative), or state "
        "where they are absent. (a)"
    )
    assert not found_of(check({"train": make_table(many_rows(5, [P, P, U]))}), "only-positives")
    assert not found_of(check({"train": make_table({**many_rows(5, [P, P, P]), "n": [N, N, N]})}), "only-positives")


def test_scarce_classes_are_named_by_what_they_cannot_do() -> None:
    """a: 5 positives (enough), b: 4 (few), c: none in train; only a has one in val."""
    train = make_table({**many_rows(4, [P, P, N]), "last": [P, N, N]})
    report = check({"train": train, "val": make_table(many_rows(2, [P, N, N], "v"))})
    assert [str(f) for f in found_of(report, "absent-class")] == [
        "warning: train: 1 class has no positive; nothing can be learnt about it. (c)",
        "warning: val: 2 classes have no positive; they cannot be scored. (b; c)",
    ]
    assert (
        str(only_finding(report, "few-positives"))
        == "warning: train: 1 class has fewer than 5 positives; expect low scores. (b 4)"
    )


def test_a_split_without_negatives_says_which_metrics_remain() -> None:
    single = make_table(many_rows(5, [P, U, U]))
    report = check({"train": single, "val": single})
    assert only_finding(report, "no-negatives").message.startswith(
        "val: no negative is known, so average precision has no meaning"
    )
    assert only_finding(report, "no-negatives").message.endswith("if what is not named is known to be absent.")


def test_complete_is_not_advised_where_every_class_of_every_photo_is_known() -> None:
    """Nothing is unnamed there, so that reading the labels as complete would change nothing."""
    full = make_table(many_rows(5, [P, P, P]))
    message = only_finding(check({"train": full, "val": full}), "no-negatives").message
    assert message.endswith("Every class is present in every photo: add photos without them.")


def test_what_is_left_out_names_its_file_once() -> None:
    rows = (
        Excluded("dog/a.png", "empty file", "/data/pets", "unreadable"),
        Excluded("points.csv row 2", "no size", "/data/points.csv", "unreadable"),
        Excluded("b.png", "a copy", "train", "unreadable"),
        Excluded("c.png", "gone", kind="unreadable"),
    )
    report = check({"train": make_table(many_rows(5, [P, N, P]), notes=Notes(excluded=rows))})
    assert only_finding(report, "unreadable").items == (
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
        split: make_table({**many_rows(a, [P, N], "a"), **many_rows(b, [N, P], "b")}, "ab")
        for split, (a, b) in {"train": train, "val": val}.items()
    }
    found = found_of(check(tables), "class-share")
    assert [item for finding in found for item in finding.items] == named


def test_shares_are_of_positives_so_that_one_label_a_photo_compares_with_all() -> None:
    """Every class is in half of the val images and in a sixth of train's: the same share of the positives."""
    single = {**many_rows(6, [P, U, U], "a"), **many_rows(6, [U, P, U], "b"), **many_rows(6, [U, U, P], "c")}
    full = {**many_rows(9, [P, P, P]), **many_rows(9, [N, N, N], "n")}
    report = check({"train": make_table(single), "val": make_table(full)})
    assert report.summaries["train"].kind == "single positive"
    assert not found_of(report, "class-share")


def test_all_splits_need_one_vocabulary() -> None:
    train = make_table(many_rows(5, [P, P, P]), "abc")
    other = check({"train": train, "val": make_table(many_rows(5, [P, P, N]), "abd")})
    assert only_finding(other, "vocabulary").items == ("only in train: c", "only in val: d")
    assert other.errors == (only_finding(other, "vocabulary"),)
    swapped = check({"train": train, "val": make_table(many_rows(5, [P, P, N]), "bac")})
    assert str(only_finding(swapped, "vocabulary")) == (
        "error: val has the classes in another order than train; all splits need one vocabulary. Read them together, "
        "or name the classes when reading."
    )


def test_names_that_differ_in_case_or_unicode_form_collide() -> None:
    """'é' is one code point in val and 'e' + accent in train; other folders do not collide."""
    train = {"A/x.jpg": [P], "a/X.jpg": [P], "e\u0301.jpg": [P], "y.jpg": [P]}
    tables = {"train": make_table(train, "a"), "val": make_table({"\u00e9.jpg": [P], "y.jpg": [P]}, "a")}
    finding = only_finding(check(tables), "name-collision")
    assert finding.items == ("A/x.jpg = a/X.jpg", "e\u0301.jpg = \u00e9.jpg")
    assert finding.message == (
        "2 image names are spelt in several ways that differ only in case or in the encoding of accents; on Windows "
        "and macOS they are one file. Rename them."
    )
    apart = {"train": make_table({"X": [P]}, "a", Path("one")), "val": make_table({"x": [P]}, "a", Path("two"))}
    assert not found_of(check(apart), "name-collision")
