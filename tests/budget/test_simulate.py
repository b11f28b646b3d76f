"""Simulated missing labels: Cole et al. bit for bit, and shares that hide nothing and invent nothing."""

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

import fewtags.budget.simulate
from fewtags.budget.simulate import COLE_SEED, cole_observe, cole_split, keep, single_positive
from fewtags.errors import ConfigError, DataError
from fewtags.labels import ClassNames, Label, LabelMatrix
from fewtags.table.table import IMPLIED_SOURCE, LabelTable

GOLDEN = json.loads((Path(__file__).parents[1] / "golden" / "splits.json").read_text())
FULL = 2 * np.array(GOLDEN["full_labels_0_1"], np.int8) - 1


def table_of(dense, *, complete=False):
    """A table of a dense array of labels; complete: negatives are implied, not facts."""
    dense = np.asarray(dense)
    image, class_ = np.nonzero(dense == Label.POSITIVE if complete else dense != Label.UNKNOWN)
    return LabelTable.build(
        [f"{i:05d}.jpg" for i in range(len(dense))],
        ClassNames.of([f"c{j}" for j in range(dense.shape[1])]),
        image=image,
        class_=class_,
        state=dense[image, class_],
        complete_set=np.zeros(len(dense), int) if complete else None,
        complete_classes=np.ones((1, dense.shape[1]), bool) if complete else None,
    )


def random_full(images, classes, seed=0, chance=0.3):
    return 2 * (np.random.default_rng(seed).random((images, classes)) < chance).astype(np.int8) - 1


# --- Cole et al.


@pytest.mark.parametrize("case", GOLDEN["observed"], ids=lambda c: f"{c['num_pos']}-{c['num_neg']}-{c['seed']}")
def test_observed_labels_are_those_of_cole_et_al(case):
    """Their encoding is 1 positive, -1 negative, 0 unknown, which is ours; their -1 for a number means all."""
    positives, negatives = (None if case[n] == -1 else case[n] for n in ("num_pos", "num_neg"))
    found = cole_observe(LabelMatrix.from_dense(FULL), positives, negatives, case["seed"])
    np.testing.assert_array_equal(found.dense(), np.array(case["observed"]))


@pytest.mark.parametrize("case", GOLDEN["splits"], ids=lambda c: str(c["n"]))
def test_splits_are_those_of_cole_et_al(case):
    train, val = cole_split(case["n"], case["val_frac"], case["seed"])
    assert (len(train), len(val)) == (case["n_train"], case["n_val"])
    assert val[:10].tolist() == case["val_first_10"]
    assert val[-5:].tolist() == case["val_last_5"]
    assert (val.sum(), train.sum()) == (case["val_index_sum"], case["train_index_sum"])
    for name, found in (("train", train), ("val", val)):
        assert case.get(name, found.tolist()) == found.tolist()


def test_a_table_by_the_protocol_of_cole_et_al():
    expected = next(c for c in GOLDEN["observed"] if (c["num_pos"], c["num_neg"], c["seed"]) == (1, 0, COLE_SEED))
    for complete in (False, True):
        table = single_positive(table_of(FULL, complete=complete), COLE_SEED, "cole")
        np.testing.assert_array_equal(table.matrix.dense(), np.array(expected["observed"]))
        assert table.summary().kind == "single positive"
    assert table.notes.messages == (
        "simulated one positive per image (cole, seed 1200): 11 of 30 positive labels kept, 0 of 42 negative "
        "labels kept, "
        "1 of 12 images without a label",
    )


def test_the_protocol_of_cole_et_al_needs_full_labels():
    labels = FULL.copy()
    labels[3, 1] = Label.UNKNOWN
    with pytest.raises(DataError) as error:
        single_positive(table_of(labels), 1200, "cole")
    assert str(error.value) == (
        "the protocol of Cole et al. needs full labels, but 1 of 12 images have unknown classes (the first: "
        "'00003.jpg'). "
        "Read the annotations as complete, or use the protocol 'plain'."
    )


def test_settings_that_the_protocol_does_not_take():
    for run in (lambda: single_positive(table_of(FULL), -1, "cole"), lambda: cole_split(10, seed=-1)):
        with pytest.raises(ConfigError) as error:
            run()
        assert str(error.value) == "the seed is -1, but the protocol of Cole et al. accepts 0 to 4294967295."
    with pytest.raises(ConfigError, match="the share of 'val' is 20; expected a share"):
        cole_split(10, 20)


# --- plain single positive


@given(st.integers(0, 2**32), st.integers(0, 8), st.integers(1, 5))
def test_one_of_the_positives_of_each_image_is_kept(seed, images, classes):
    full = random_full(images, classes, seed)
    found = single_positive(table_of(full), seed).matrix.dense()
    np.testing.assert_array_equal((found == Label.POSITIVE).sum(1), (full == Label.POSITIVE).any(1))
    assert np.all(full[found == Label.POSITIVE] == Label.POSITIVE)
    assert not np.any(found == Label.NEGATIVE)


def test_every_positive_is_drawn_equally_often():
    """Three positives in each of 3,000 images: 1,000 each, standard deviation 25.8."""
    dense = np.tile(np.array([[1, -1, 1, 1]], np.int8), (3000, 1))
    counts = single_positive(table_of(dense), 0).matrix.counts(Label.POSITIVE)
    assert counts[1] == 0
    assert np.abs(counts[[0, 2, 3]] - 1000).max() < 110


def test_the_draw_of_an_image_is_its_own():
    """Neither the order nor the number of the other images changes it; another seed does."""
    table = table_of(random_full(50, 8))
    whole = single_positive(table, 3)
    index = np.random.default_rng(0).permutation(50)[:20]
    assert single_positive(table.subset(index), 3).fingerprint == whole.subset(index).fingerprint
    assert single_positive(table, 4).fingerprint != whole.fingerprint


def test_the_draw_of_a_seed_never_changes():
    """Published experiments are named by their seed."""
    dense = single_positive(table_of(np.ones((8, 6), np.int8)), 0).matrix.dense()
    assert dense.argmax(1).tolist() == [0, 3, 1, 4, 3, 3, 3, 0]


def test_the_kept_class_keeps_its_locations_and_sources():
    """Two boxes of one class are one label. A contradicted class is no candidate."""
    boxes = np.array([[0, 0, 0.5, 0.5], [0.5, 0.5, 1, 1], [0, 0, 1, 1], [0, 0, 1, 1]])
    table = LabelTable.build(
        ["a.jpg"],
        ClassNames.of(["cat", "dog"]),
        image=np.zeros(4, int),
        class_=np.array([0, 0, 1, 1]),
        state=np.array([1, 1, 1, -1]),
        locations=boxes,
        source="boxes.json",
    )
    kept = single_positive(table, 0)
    assert kept.facts["x0"].to_pylist() == [0, 0.5]
    assert kept.facts["source"].to_pylist() == ["boxes.json"] * 2
    assert kept.matrix.dense().tolist() == [[1, 0]]


def test_an_unknown_protocol():
    with pytest.raises(ConfigError, match="protocol 'coal' is not known; known: plain, cole"):
        single_positive(table_of(FULL), 0, "coal")


# --- a share of the labels


share = st.sampled_from([0.0, 0.3, 0.8, 1.0])


@given(st.integers(0, 1000), share, share, st.booleans(), st.booleans())
def test_kept_labels_are_true_and_lost_ones_unknown(seed, positives, negatives, complete, some_open):
    full = random_full(30, 6, seed)
    table = table_of(full, complete=complete)
    if complete and some_open:
        table = replace(table, complete_set=np.where(np.arange(30) % 3, 0, -1).astype(np.int16))
    before = table.matrix.dense()
    after = keep(table, positives=positives, negatives=negatives, seed=seed)
    found = after.matrix.dense()
    assert np.all((found == before) | (found == Label.UNKNOWN))
    for state, part in ((Label.POSITIVE, positives), (Label.NEGATIVE, negatives)):
        kept, had = (found == state).sum(), (before == state).sum()
        assert abs(kept - part * had) <= (0 if part in (0, 1) else 5 * np.sqrt(had / 4))
    assert len(after) == len(table)


@given(st.integers(0, 1000), st.booleans())
def test_a_larger_share_contains_the_smaller(seed, complete):
    table = table_of(random_full(20, 6, seed), complete=complete)
    less = keep(table, positives=0.4, negatives=0.1, seed=seed).matrix.dense()
    more = keep(table, positives=0.6, negatives=0.5, seed=seed).matrix.dense()
    assert np.all(more[less != Label.UNKNOWN] == less[less != Label.UNKNOWN])


def test_implied_and_written_negatives_are_drawn_alike():
    """The draw hangs on the cell, not on how its label was stored."""
    full = random_full(40, 5)
    for positives, negatives in ((0.5, 0.3), (0.5, 1.0), (1.0, 0.0)):
        one = keep(table_of(full), positives=positives, negatives=negatives, seed=1)
        other = keep(table_of(full, complete=True), positives=positives, negatives=negatives, seed=1)
        np.testing.assert_array_equal(one.matrix.dense(), other.matrix.dense())


def test_part_of_the_images_is_treated_as_in_the_whole():
    table = table_of(random_full(50, 8), complete=True)
    whole = keep(table, positives=0.5, negatives=1.0, seed=3)
    index = np.random.default_rng(0).permutation(50)[:20]
    part = keep(table.subset(index), positives=0.5, negatives=1.0, seed=3)
    np.testing.assert_array_equal(part.matrix.dense(), whole.matrix.dense()[index])


def test_complete_images_stay_complete_and_compact():
    """With all negatives kept none is written out; the images that lost a positive share rows of `complete_classes`."""
    table = table_of(random_full(2000, 5), complete=True)
    kept = keep(table, positives=0.5, negatives=1.0, seed=0)
    assert np.all(kept.complete_set >= 0)
    assert len(kept.complete_classes) <= 2**5 + 1
    assert not np.any(kept.facts["state"].to_numpy() == Label.NEGATIVE)
    assert keep(table, positives=1.0, negatives=1.0, seed=0).fingerprint == table.fingerprint


def test_a_lost_positive_of_another_class_leaves_the_set_alone():
    """The images are complete for class 0 only; those that lose class 1 stay complete as they were."""
    table = replace(table_of(np.ones((20, 2), np.int8), complete=True), complete_classes=np.array([[True, False]]))
    facts = table.facts.filter(pa.array(table.facts["class"].to_numpy() == 1))
    kept = keep(replace(table, facts=facts), positives=0, negatives=1, seed=0)
    assert kept.complete_set.tolist() == [0] * 20
    assert kept.complete_classes.tolist() == [[True, False]]
    assert kept.matrix.dense().tolist() == [[-1, 0]] * 20


def test_too_many_different_sets_are_written_out(monkeypatch):
    table = table_of(random_full(60, 6), complete=True)
    expected = keep(table, positives=0.5, negatives=1.0, seed=0)
    monkeypatch.setattr(fewtags.budget.simulate, "MAX_COMPLETE_SETS", 3)
    found = keep(table, positives=0.5, negatives=1.0, seed=0)
    np.testing.assert_array_equal(found.matrix.dense(), expected.matrix.dense())
    assert set(np.unique(found.complete_set)) == {-1, 0}  # Those that lost nothing are still complete.
    assert IMPLIED_SOURCE in found.summary().sources


def test_blocks_make_no_difference(monkeypatch):
    table = table_of(random_full(30, 6), complete=True)
    expected = [keep(table, positives=0.5, negatives=n, seed=0).fingerprint for n in (0.5, 1.0)]
    monkeypatch.setattr(fewtags.budget.simulate, "_BLOCK", 13)
    assert [keep(table, positives=0.5, negatives=n, seed=0).fingerprint for n in (0.5, 1.0)] == expected


def test_contradictions_stay_unknown():
    """A contradicted cell that lost only its negative would be a positive; one that lost both, an implied negative."""
    table = LabelTable.build(
        [f"{i}.jpg" for i in range(40)],
        ClassNames.of(["cat"]),
        image=np.repeat(np.arange(40), 2),
        class_=np.zeros(80, int),
        state=np.tile([1, -1], 40),
        complete_set=np.zeros(40, int),
        complete_classes=np.ones((1, 1), bool),
    )
    for negatives in (0.0, 0.5, 1.0):
        assert not keep(table, positives=0.5, negatives=negatives, seed=0).matrix.dense().any()


def test_lost_facts_take_their_locations_with_them_and_kept_ones_keep_all():
    """Every image has one cat in two boxes: either both are there, or none."""
    table = LabelTable.build(
        [f"{i}.jpg" for i in range(100)],
        ClassNames.of(["cat"]),
        image=np.repeat(np.arange(100), 2),
        class_=np.zeros(200, int),
        state=np.ones(200, int),
        locations=np.tile(np.array([[0, 0, 0.5, 0.5], [0.5, 0.5, 1, 1]]), (100, 1)),
    )
    kept = keep(table, positives=0.5, negatives=1, seed=0)
    counts = np.bincount(kept.facts["image"].to_numpy(), minlength=100)
    assert set(counts) == {0, 2}
    assert kept.facts["x1"].null_count == 0


def test_the_note_counts_what_is_left():
    """Two images with one positive each, six negatives over four images."""
    table = keep(table_of(2 * np.eye(4, dtype=np.int8)[:, :2] - 1), positives=1, negatives=0, seed=0)
    assert table.notes.messages == (
        "simulated missing labels (1 of the positives, 0 of the negatives, seed 0): 2 of 2 positive labels "
        "kept, 0 of 6 "
        "negative labels kept, 2 of 4 images without a label",
    )


@pytest.mark.parametrize(("positives", "negatives", "word"), [(1.5, 0, "positives"), (1, -0.1, "negatives")])
def test_shares_outside_0_to_1(positives, negatives, word):
    with pytest.raises(ConfigError, match=f"the share of {word} to keep is .*; expected a share"):
        keep(table_of(FULL), positives=positives, negatives=negatives, seed=0)


def test_more_negatives_than_fit():
    """40,000 images complete for 1,000 classes are 40 million negatives; 90 % of them are 36 million rows."""
    table = LabelTable.build(
        [str(i) for i in range(40_000)],
        ClassNames.of(map(str, range(1000))),
        image=np.zeros(0, int),
        class_=np.zeros(0, int),
        state=np.zeros(0, int),
        complete_set=np.zeros(40_000, int),
        complete_classes=np.ones((1, 1000), bool),
    )
    with pytest.raises(DataError) as error:
        keep(table, positives=1, negatives=0.9, seed=0)
    assert str(error.value) == (
        "about 36,000,000 negatives of completely annotated images would become facts; at most "
        "30,000,000 are allowed. Keep a smaller share of them, or all (1) or none (0), or use fewer images."
    )
