"""What partial labels mean for a run: methods that are compared, and whether labels are blank at random."""

import shutil
from dataclasses import replace

import numpy as np
import pytest
from train_runs import take, train

from fewtags.budget.simulate import keep
from fewtags.engine import planning, preset_facts, random_blanks
from fewtags.engine.distributed import make_accelerator
from fewtags.engine.events import Noted
from fewtags.engine.planning import make_plan
from fewtags.engine.random_blanks import why_not_random
from fewtags.engine.search import Search, read_search
from fewtags.engine.time_box import Speed
from fewtags.labels import Label
from fewtags.table.table import LabelTable

PLAIN = {"augment__size": 32, "search__sizes": []}


def tags(table, dense):
    """The photos of a table with other labels, and without places."""
    image, class_ = np.nonzero(dense)
    found = LabelTable.build(
        table.images.to_pylist(), table.classes, image=image, class_=class_, state=dense[image, class_]
    )
    return replace(found, root=table.root)


def partly(tables, share=0.5):
    """The tables with a share of all labels, blank at random."""
    kept = {
        name: keep(table, positives=share, negatives=share, seed=0)
        for name, table in (("train", tables.truth), ("val", tables.val))
    }
    return replace(tables, **{name: tags(table, table.matrix.dense()) for name, table in kept.items()})


def test_partial_labels_compare_what_a_blank_means(search_config, tables, tmp_path, monkeypatch):
    """A method that learns from known labels alone is tried beside the default, and taken where it is better."""
    monkeypatch.setattr(random_blanks, "LEAST_KNOWN", 1)
    plain = search_config(**PLAIN)
    events = train(plain, partly(tables), tmp_path / "run")
    trials = read_search(tmp_path / "run").trials
    assert [(t.candidate.method, t.candidate.for_random_blanks) for t in trials] == [
        ("expected_negative", False),
        ("bce", True),
    ]
    values = [t.value for t in trials if not t.left_out]
    assert read_search(tmp_path / "run").chosen == [t.value for t in trials].index(max(values))
    assert any(event.text.startswith("search: bce: val mAP") for event in events if isinstance(event, Noted))


def counted_calls(monkeypatch, *functions):
    """Count the calls of functions of `preset_facts`."""
    calls = dict.fromkeys(functions, 0)
    for name in functions:
        whole = getattr(preset_facts, name)

        def counting(*given, name=name, whole=whole):
            calls[name] += 1
            return whole(*given)

        monkeypatch.setattr(preset_facts, name, counting)
    return calls


@pytest.mark.parametrize("minutes", [None, 5.0])
def test_what_labels_say_is_computed_once(search_config, tables, tmp_path, monkeypatch, minutes):
    """These facts go through all cells: they are handed over to whatever needs them, also for each candidate."""
    monkeypatch.setattr(random_blanks, "LEAST_KNOWN", 1)
    monkeypatch.setattr(planning, "measure_speed", lambda *_, **__: Speed(1e-4, 1e-4, 1e-4))
    calls = counted_calls(monkeypatch, "share_by_known", "why_not_told")
    changes = PLAIN if minutes is None else {**PLAIN, "train__minutes": minutes, "train__preset": None}
    plan = make_plan(search_config(**changes), tables=partly(tables), cpu=True)
    assert [c.method for c in plan.resolved.search] == ["expected_negative", "bce"]
    if minutes is None:
        take(Search(plan, tmp_path, make_accelerator("no", cpu=True), cpu=True).run())
    assert calls == {"share_by_known": 1, "why_not_told": 1}


def test_a_photo_that_is_left_out_may_change_what_labels_say(search_config, tables, tmp_path, monkeypatch):
    """The facts are those of the photos that are left."""
    photos = partly(tables).train
    shutil.copytree(photos.root, tmp_path / "photos")
    (tmp_path / "photos" / photos.images[0].as_py()).write_bytes(b"")
    broken = replace(partly(tables), train=replace(photos, root=tmp_path / "photos"))
    calls = counted_calls(monkeypatch, "share_by_known")
    make_plan(search_config(**PLAIN), tables=broken, cpu=True)
    assert calls == {"share_by_known": 2}


@pytest.mark.parametrize(
    "changes",
    [
        {"objective": {"name": "expected_negative"}},
        {"objective": {"positives_per_image": 2.0}},
        {"train__preset": "views"},
    ],
)
def test_what_the_user_chose_is_not_compared(search_config, tables, changes):
    plain = search_config(**{**PLAIN, **changes})
    assert make_plan(plain, tables=partly(tables), cpu=True).resolved.search == ()


def test_single_positives_and_complete_labels_compare_nothing(search_config, tables):
    plain = search_config(**PLAIN)
    assert make_plan(plain, tables=tables, cpu=True).resolved.search == ()
    assert make_plan(plain, tables=replace(tables, train=tables.truth), cpu=True).resolved.search == ()


def test_photos_with_many_labels_that_differ_from_others_are_not_random(tables):
    """Every tenth photo is complete, and the others have one positive: no blank is random."""
    dense = tables.train.matrix.dense()
    dense[::10] = tables.truth.matrix.dense()[::10]
    mixed = tags(tables.train, dense)
    assert preset_facts._is_partial(partly(tables).train)
    assert not preset_facts._is_partial(mixed)


def test_known_labels_with_high_scores_are_not_random():
    """Somebody looked at what a model suggested: labels of low scores are blank, whatever they are."""
    rng = np.random.default_rng(0)
    logits = rng.standard_normal((200, 4)).astype(np.float32)
    labels = np.where(rng.random((200, 4)) < 0.4, Label.POSITIVE, Label.NEGATIVE).astype(np.int8)
    blank = np.where(rng.random((200, 4)) < 0.5, np.int8(0), labels)
    assert why_not_random(logits, blank) == ""
    assert "known ones have higher scores" in why_not_random(logits, np.where(logits > 0.5, labels, np.int8(0)))
    assert "known ones have lower scores" in why_not_random(logits, np.where(logits < 0.5, labels, np.int8(0)))
    assert why_not_random(logits[:20], blank[:20]).startswith("fewer than 100 known labels")


def test_complete_validation_needs_no_test_of_blanks():
    """Its average precision is the true one. A class without any label is not in it."""
    rng = np.random.default_rng(0)
    logits = rng.standard_normal((200, 4)).astype(np.float32)
    labels = np.where(logits > 0.5, Label.POSITIVE, Label.NEGATIVE).astype(np.int8)
    labels[:, 3] = Label.UNKNOWN
    assert why_not_random(logits, labels) == ""
    assert why_not_random(logits[:33], labels[:33]) == "validation has fewer than 100 known labels"
    labels[:110, 3] = Label.POSITIVE  # one class has blanks, and decides
    labels[logits[:, 3] < 0, 3] = Label.UNKNOWN
    assert "fewer than 100 known labels" in why_not_random(logits, labels)


def test_a_validation_that_cannot_tell_compares_nothing_and_says_so(search_config, tables):
    """Otherwise two heads would be solved, of which one could never be taken."""
    few = partly(tables)
    assert int((few.val.matrix.dense() != Label.UNKNOWN).sum()) < random_blanks.LEAST_KNOWN
    plan = make_plan(search_config(**PLAIN), tables=few, cpu=True)
    assert plan.resolved.search == ()
    note = (
        "note: bce, which learns from known labels alone, is not compared with expected_negative: fewer than 100 known "
        "labels on validation show whether labels are blank at random"
    )
    assert note in plan.notes
    for other in (search_config(**PLAIN, objective={"name": "splc"}), search_config(**PLAIN, train__preset="views")):
        assert note not in make_plan(other, tables=few, cpu=True).notes
