"""Annotations bought within a budget: true, nested, keyed by names, and as many as PatchML says."""

import itertools
import json
import math
from dataclasses import replace
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import fewtags.budget.purchase
from fewtags.budget.costs import PROFILES, CostModel
from fewtags.budget.purchase import CENTRE_SIGMA, simulate_budget
from fewtags.budget.simulate import keep
from fewtags.errors import ConfigError, DataError
from fewtags.labels import ClassNames, Label
from fewtags.table.keyed_random import content_hashes, mixed, seeded
from fewtags.table.storage import load, save
from fewtags.table.table import IMPLIED_SOURCE, LabelTable

GOLDEN = json.loads((Path(__file__).parents[1] / "golden" / "budget.json").read_text())
TYPES = ("I", "SP", "SB", "AP", "AB")
NOWHERE = (np.nan,) * 4
ALL = "1000h"
COST = CostModel(classes=4, positives_per_image=1, instances_per_image=2)


def table_of(facts, images, classes, **more):
    """A table from (image, class, state, box) tuples."""
    return LabelTable.build(
        [f"{i:05d}.jpg" for i in range(images)],
        ClassNames.of([f"c{j:03d}" for j in range(classes)]),
        image=np.array([f[0] for f in facts], int),
        class_=np.array([f[1] for f in facts], int),
        state=np.array([f[2] for f in facts], int),
        locations=np.array([f[3] for f in facts], float).reshape(-1, 4),
        **more,
    )


def random_table(images, classes, seed=0, *, chance=0.3, each=2.0, complete=True):
    """Complete labels; positives have one or more boxes. Negatives by complete annotation, or facts."""
    random = np.random.default_rng(seed)
    present = random.random((images, classes)) < chance
    image, class_ = np.nonzero(present)
    count = 1 + random.poisson(each - 1, len(image))
    image, class_ = np.repeat(image, count), np.repeat(class_, count)
    low = random.random((len(image), 2)) * 0.7
    boxes = np.concatenate([low, low + 0.05 + random.random((len(image), 2)) * 0.25], 1)
    absent = np.argwhere(~present) if not complete else np.zeros((0, 2), int)
    return LabelTable.build(
        [f"{i:05d}.jpg" for i in range(images)],
        ClassNames.of([f"c{j:03d}" for j in range(classes)]),
        image=np.concatenate([image, absent[:, 0]]),
        class_=np.concatenate([class_, absent[:, 1]]),
        state=np.repeat([1, -1], [len(image), len(absent)]),
        locations=np.concatenate([boxes, np.full((len(absent), 4), np.nan)]),
        source="boxes.json",
        complete_set=np.zeros(images, int) if complete else None,
        complete_classes=np.ones((1, classes), bool) if complete else None,
    )


def rows_of(table):
    """Facts as a set of (image, class, state, corners or None)."""
    columns = [table.facts[name].to_pylist() for name in ("image", "class", "state", "x0", "y0", "x1", "y1")]
    rows = [(*row[:3], None if row[3] is None else row[3:]) for row in zip(*columns, strict=True)]
    assert len(set(rows)) == len(rows)
    return set(rows)


def places_of(table):
    """Places of each positive pair, a list of boxes."""
    found = {}
    for image, class_, state, place in sorted(rows_of(table), key=str):
        if state == Label.POSITIVE:
            found.setdefault((image, class_), []).extend([place] if place else [])
    return found


def known(table):
    dense = table.matrix.dense()
    return {(i, c): dense[i, c] for i, c in np.argwhere(dense != Label.UNKNOWN)}


# --- what each type shows


def test_everything_bought_by_hand():
    """One image: a cat twice, a dog of which only the presence is known, a cow as a point, no pig."""
    cats, cow = [(0.0, 0.0, 0.25, 0.5), (0.5, 0.5, 1.0, 1.0)], (0.75, 0.25, 0.75, 0.25)
    facts = [(0, 0, 1, cats[0]), (0, 0, 1, cats[1]), (0, 1, 1, NOWHERE), (0, 2, 1, cow), (0, 3, -1, cats[0])]
    table = table_of(facts, 1, 4)
    bought = {kind: simulate_budget(table, ALL, kind, 0, COST) for kind in TYPES}
    for kind in TYPES:
        assert bought[kind].matrix.dense().tolist() == [[1, 1, 1, -1]]
        assert (0, 3, -1, None) in rows_of(bought[kind])
    places = {kind: places_of(bought[kind]) for kind in TYPES}
    assert places["I"] == {(0, 0): [], (0, 1): [], (0, 2): []}
    assert places["AB"] == {(0, 0): cats, (0, 1): [], (0, 2): []}
    assert places["SB"][0, 0] in ([cats[0]], [cats[1]])
    assert (places["SB"][0, 1], places["SB"][0, 2]) == ([], [])
    for kind in ("SP", "AP"):
        assert (places[kind][0, 1], places[kind][0, 2]) == ([], [cow])
    assert len(places["SP"][0, 0]) == 1
    assert len(places["AP"][0, 0]) == 2
    notes = {kind: bought[kind].notes.messages[2:-1] for kind in TYPES}
    assert notes["I"] == ()
    assert notes["SP"] == notes["AP"] == ("1 positive pairs have no point or box in the source and became tags",)
    assert notes["SB"] == notes["AB"] == ("2 positive pairs have no box in the source and became tags",)


def inside(point, box):
    return point[:2] == point[2:] and box[0] <= point[0] <= box[2] and box[1] <= point[1] <= box[3]


def test_points_lie_in_their_boxes_and_types_agree():
    """SP's point is one of AP's and lies in SB's box; AP has one point in each of AB's boxes; AB has them all."""
    table = random_table(30, 5)
    source = places_of(table)
    sp, sb, ap, ab = (
        places_of(simulate_budget(table, ALL, kind, 3, COST, points="uniform")) for kind in ("SP", "SB", "AP", "AB")
    )
    assert ab == source
    for pair, boxes in source.items():
        assert inside(*sp[pair], *sb[pair])
        assert sb[pair][0] in boxes
        assert sp[pair][0] in ap[pair]
        assert any(
            all(map(inside, order, boxes)) for order in itertools.permutations(ap[pair]) if len(order) == len(boxes)
        )
    assert max(map(len, source.values())) >= 4


def test_every_object_is_shown_equally_often():
    """Three boxes in each of 3,000 images: 1,000 each, standard deviation 25.8."""
    boxes = [(0.1 * k, 0.1, 0.1 * k + 0.1, 0.3) for k in range(3)]
    table = table_of([(i, 0, 1, box) for i in range(3000) for box in boxes], 3000, 1)
    shown = np.array([places[0][0] for places in places_of(simulate_budget(table, ALL, "SB", 0, COST)).values()])
    counts = [(np.abs(shown - box[0]) < 1e-6).sum() for box in boxes]
    assert sum(counts) == 3000
    assert np.abs(np.array(counts) - 1000).max() < 110


def test_uniform_points():
    """4,000 points in a box of 0.5 x 0.25: uniform by the Kolmogorov-Smirnov distance, across and down, unrelated."""
    table = table_of([(i, 0, 1, (0.25, 0.5, 0.75, 0.75)) for i in range(4000)], 4000, 1)
    points = simulate_budget(table, ALL, "SP", 0, COST, points="uniform").locations.boxes
    unit = (points[:, :2] - [0.25, 0.5]) / [0.5, 0.25]
    for values in unit.T:
        assert np.abs(np.sort(values) - np.arange(4000) / 4000).max() < 1.95 / math.sqrt(4000)
    assert abs(np.corrcoef(unit.T)[0, 1]) < 4 / math.sqrt(4000)


def test_points_around_the_centre():
    """4,000 points: mean at the centre (0.4, 0.7), standard deviations 0.02 whatever the box, unrelated, normal."""
    table = table_of([(i, 0, 1, (0.1, 0.65, 0.7, 0.75)) for i in range(4000)], 4000, 1)
    points = simulate_budget(table, ALL, "SP", 0, COST).locations.boxes  # the default
    z = (points[:, :2] - [0.4, 0.7]) / CENTRE_SIGMA
    assert np.abs(z.mean(0)).max() < 4 / math.sqrt(4000)
    assert np.abs(z.std(0) - 1).max() < 4 / math.sqrt(8000)
    assert abs(np.corrcoef(z.T)[0, 1]) < 4 / math.sqrt(4000)
    np.testing.assert_allclose((np.abs(z) < 1).mean(0), 0.6827, atol=4 * math.sqrt(0.6827 * 0.3173 / 4000))


def test_points_around_the_centre_stay_in_the_image_and_given_points_where_they_are():
    corner, point = (0.0, 0.98, 0.02, 1.0), (0.3, 0.4, 0.3, 0.4)
    facts = [(i, c, 1, (corner, point)[c]) for i in range(200) for c in (0, 1)]
    points = simulate_budget(table_of(facts, 200, 2), ALL, "AP", 0, COST, points="centre").locations
    near, given_ = (points.boxes[points.classes == c] for c in (0, 1))
    assert (near.min(), near.max()) == (0, 1)
    np.testing.assert_array_equal(given_, np.tile(np.array(point, np.float32), (200, 1)))


def test_points_beside_boxes_are_no_boxes():
    """SB and AB take the box alone; AB says so. The image without a box is a tag, and not counted again."""
    box, point = (0.1, 0.1, 0.2, 0.2), (0.05,) * 4
    facts = [(0, 0, 1, box), (0, 0, 1, point), (0, 0, 1, (0.6,) * 4), (0, 0, 1, NOWHERE), (1, 0, 1, point)]
    table = table_of(facts, 2, 1)
    for kind in ("SB", "AB"):
        bought = simulate_budget(table, "15s", kind, 0, COST, mode="exact")
        assert places_of(bought) == {(0, 0): [tuple(np.array(box, np.float32).tolist())], (1, 0): []}
        tags = "1 positive pairs have no box in the source and became tags"
        left = "2 points in the source were left out because they are not boxes"
        rest = "all known pairs are bought, and 7 s (0.00 h) are left"  # 15 s less a box and a tag
        assert bought.notes.messages[2:] == ((tags, left, rest) if kind == "AB" else (tags, rest))
    assert [len(found) for found in places_of(simulate_budget(table, ALL, "AP", 0, COST)).values()] == [3, 1]


def test_sources_stay():
    table = random_table(6, 3)
    bought = simulate_budget(table, ALL, "SP", 0, COST)
    assert bought.summary().sources == {
        "boxes.json": table.matrix.counts(Label.POSITIVE).sum(),
        IMPLIED_SOURCE: table.matrix.counts(Label.NEGATIVE).sum(),
    }
    written = simulate_budget(random_table(6, 3, complete=False), ALL, "SP", 0, COST)
    assert written.summary().sources == {"boxes.json": 18}
    assert written.fingerprint == bought.fingerprint


# --- which pairs


def reference(table, budget, kind, seed, cost, mode):
    """Pairs in order, one by one: (image, class) and the running costs, as far as the budget goes."""
    images, classes = content_hashes(table.images.to_pylist()), content_hashes(table.classes.ids)
    pairs = known(table)
    drawn = {(i, c): int(seeded(seeded(mixed(images[i : i + 1], classes[c : c + 1]), 1), seed)[0]) for i, c in pairs}
    boxes, bought, spent = places_of(table), [], 0.0
    for pair in sorted(pairs, key=drawn.get):
        objects = len(boxes.get(pair, []))
        if mode == "flat":
            price = cost.seconds_per_pair(kind)
            if spent + price / 2 > budget:
                break
        else:
            price = float(cost.exact_seconds(kind, np.array([objects]))[0])
            if spent + price > budget + 1e-9:
                break
        bought.append(pair)
        spent += price
    return bought, spent


@pytest.mark.parametrize("mode", ["flat", "exact"])
@pytest.mark.parametrize("kind", TYPES)
@pytest.mark.parametrize(("images", "classes"), [(1, 1), (1, 7), (9, 1), (12, 5)])
def test_pairs_against_a_slow_reference(images, classes, kind, mode):
    table = random_table(images, classes, seed=images)
    cost = CostModel(classes=classes, positives_per_image=0.4 * classes, instances_per_image=0.9 * classes)
    # Whole seconds with a remainder, so that no cost ends on a budget by rounding.
    for budget in (7.03, 11.21, 30.77, 64.9, 1000.3):
        expected, spent = reference(table, budget, kind, 5, cost, mode)
        found = simulate_budget(table, budget, kind, 5, cost, mode=mode)
        labels = known(table)
        assert known(found) == {pair: labels[pair] for pair in expected}
        assert f"images for {spent:,.0f} s" in found.notes.messages[0]


@given(st.integers(0, 1000), st.sampled_from(TYPES), st.sampled_from(["flat", "exact"]), st.booleans())
@settings(max_examples=30)
def test_larger_budgets_contain_smaller_ones_with_their_places(seed, kind, mode, complete):
    table = random_table(12, 6, seed, complete=complete)

    def rows(budget):
        try:
            return rows_of(simulate_budget(table, budget, kind, seed, COST, mode=mode))
        except ConfigError:  # it buys nothing: the first pair may have many boxes and cost more than the budget
            return set()

    bought = [rows(budget) for budget in ("10%", "40%", "41%", "5000%")]
    assert all(less <= more for less, more in itertools.pairwise(bought))
    assert {row[:2] for row in bought[-1]} == set(known(table))


@given(st.integers(0, 1000), st.sampled_from(["flat", "exact"]))
@settings(max_examples=30)
def test_dearer_types_buy_some_of_the_pairs_of_cheaper_ones(seed, mode):
    """With these averages I < SP < AP < SB < AB in flat costs, and so does each answer."""
    table, before = random_table(12, 6, seed), None
    for kind in ("I", "SP", "AP", "SB", "AB") if mode == "flat" else ("I", "SP", "SB", "AB"):
        pairs = known(simulate_budget(table, "60%", kind, seed, COST, mode=mode))
        assert before is None or pairs.items() <= before.items()
        before = pairs


@given(st.integers(0, 1000), st.sampled_from(TYPES), st.integers(1, 40))
@settings(max_examples=40)
def test_what_is_bought_is_true(seed, kind, share):
    table = random_table(10, 6, seed, chance=0.4)
    labels = known(table)
    found = simulate_budget(table, f"{10 * share}%", kind, seed, COST)
    assert known(found).items() <= labels.items()
    assert len(found) == 10
    assert not np.any(found.complete_set >= 0)


@pytest.mark.parametrize("kind", TYPES)
def test_order_of_images_classes_and_facts_does_not_matter(kind):
    """Shuffle all three: image by image and class by class the same is bought, and the same places are shown."""
    table, random = random_table(20, 6), np.random.default_rng(1)
    images, classes, facts = random.permutation(20), random.permutation(6), random.permutation(len(table.facts))
    moved = np.argsort(classes).astype(np.int32)[table.facts["class"].to_numpy()]
    shuffled = replace(
        table,
        classes=ClassNames.of([table.classes.ids[c] for c in classes]),
        facts=table.facts.set_column(1, table.facts.schema.field(1), pa.array(moved)).take(pa.array(facts)),
        complete_classes=table.complete_classes[:, classes],
    ).subset(images)
    expected = rows_of(simulate_budget(table, "60%", kind, 2, COST))
    found = rows_of(simulate_budget(shuffled, "60%", kind, 2, COST))
    assert {(images[row[0]], classes[row[1]], *row[2:]) for row in found} == expected


def test_another_seed_buys_other_pairs_and_shows_other_places():
    table = random_table(20, 6)
    for kind in ("I", "SP"):
        assert len({simulate_budget(table, "50%", kind, seed, COST).fingerprint for seed in range(5)}) == 5
    assert len({simulate_budget(table, ALL, "SP", seed, COST).fingerprint for seed in range(5)}) == 5
    assert len({simulate_budget(table, ALL, "AB", seed, COST).fingerprint for seed in range(5)}) == 1


def test_the_draw_of_a_seed_never_changes():
    """Published experiments are named by their seed."""
    table = table_of([(i, 0, 1, (0.0, 0.0, 1.0, 0.5)) for i in range(8)], 8, 1)
    cost = CostModel(classes=1, positives_per_image=0)
    bought = places_of(simulate_budget(table, "4s", "SP", 0, cost, points="uniform"))
    assert {image: place[0][:2] for (image, _), place in bought.items()} == {
        1: pytest.approx((0.00111, 0.2297), abs=1e-5),
        2: pytest.approx((0.78547, 0.30209), abs=1e-5),
        4: pytest.approx((0.42184, 0.0618), abs=1e-5),
        6: pytest.approx((0.24095, 0.35526), abs=1e-5),
    }


def test_the_draw_is_not_that_of_kept_shares():
    """Pairs that survived a `keep` of the same seed come in no order of their own.

    Of 10,000 pairs half are positive; a fifth of these and all 5,000 negatives are kept, so a sixth is positive. Buying
    1,000 gives 167, standard deviation 10.8; in the order of `keep`'s own numbers it would give 500.
    """
    half = np.random.default_rng(0).permutation(10_000) < 5000
    facts = [(i // 10, i % 10, 1 if up else -1, NOWHERE) for i, up in enumerate(half)]
    kept = keep(table_of(facts, 1000, 10), positives=0.2, negatives=1, seed=7)
    bought = simulate_budget(kept, "1000s", "I", 7, COST)
    share = kept.matrix.counts(Label.POSITIVE).sum() / len(known(kept))
    assert len(known(bought)) == 1000
    assert abs(bought.matrix.counts(Label.POSITIVE).sum() - 1000 * share) < 44


def test_unknown_pairs_are_passed_over_at_no_cost():
    """Six pairs of 3 x 3 are known, one is contradicted: five at 1 s each, and 40 % of all nine are 3.6 s."""
    facts = [(0, 0, 1, NOWHERE), (0, 1, -1, NOWHERE), (1, 1, -1, NOWHERE), (2, 0, 1, NOWHERE), (2, 2, -1, NOWHERE)]
    table = table_of([*facts, (1, 0, 1, NOWHERE), (1, 0, -1, NOWHERE)], 3, 3)
    for mode in ("flat", "exact"):
        some = simulate_budget(table, "40%", "I", 0, COST, mode=mode)
        assert len(known(some)) == (4 if mode == "flat" else 3)
        assert some.notes.messages[2:] == ("4 pairs are unknown in the source, so they were skipped at no cost",)
        every = simulate_budget(table, "10s", "I", 0, COST, mode=mode)
        assert known(every) == known(table)
        assert every.notes.messages[3:] == ("all known pairs are bought, and 5 s (0.00 h) are left",)


def test_images_without_an_answer_stay():
    bought = simulate_budget(random_table(50, 4), "3s", "I", 0, COST)
    assert (len(bought), len(known(bought))) == (50, 3)


def test_the_whole_budget_is_spent_when_it_fits_to_the_second():
    """Tags of 0.1 s: three of them are more than 0.3 in floating point, ten less than 1; none gets lost."""
    cost, table = replace(COST, tag=0.1), random_table(20, 6)
    for tags, mode in itertools.product(range(1, 31), ("flat", "exact")):
        assert len(known(simulate_budget(table, tags / 10, "I", 0, cost, mode=mode))) == tags


def test_blocks_and_the_first_guess_make_no_difference(monkeypatch):
    table = random_table(40, 6)
    expected = [simulate_budget(table, budget, "AP", 0, COST).fingerprint for budget in ("1%", "30%", "95%")]
    monkeypatch.setattr(fewtags.budget.purchase, "_BLOCK", 13)
    assert [simulate_budget(table, budget, "AP", 0, COST).fingerprint for budget in ("1%", "30%", "95%")] == expected
    # A first guess that is far too low is doubled until enough pairs are below it.
    monkeypatch.setattr(fewtags.budget.purchase.math, "sqrt", lambda x: -x / 6 - 10)
    assert [simulate_budget(table, budget, "AP", 0, COST).fingerprint for budget in ("1%", "30%", "95%")] == expected


# --- PatchML's counts


@pytest.fixture(scope="module")
def coco():
    """The labels of COCO's train2014 in number: images, classes, positives, objects; where they are is random."""
    random, n, c = np.random.default_rng(0), GOLDEN["images"], GOLDEN["classes"]
    cell = random.choice(n * c, GOLDEN["positives"], replace=False)
    cell = np.repeat(cell, 1 + random.poisson(GOLDEN["instances_per_positive"] - 1, len(cell)))
    low = random.random((len(cell), 2)) * 0.7
    return LabelTable.build(
        [f"COCO_train2014_{i:012d}.jpg" for i in range(n)],
        ClassNames.of([f"c{j}" for j in range(c)]),
        image=cell // c,
        class_=cell % c,
        state=np.ones(len(cell), int),
        locations=np.concatenate([low, low + 0.2], 1),
        complete_set=np.zeros(n, int),
        complete_classes=np.ones((1, c), bool),
    )


def test_a_draw_from_labels_like_those_of_coco(coco):
    """Pairs as computed; positives, objects and images within 4 standard deviations of what they are on average.

    An image is touched unless its 80 pairs are all left; the variance is at most that of N independent images.
    PatchML's own draw is held against the same averages in `test_costs`.
    """
    share, each = GOLDEN["positive_share"], GOLDEN["instances_per_positive"]
    for kind in TYPES:
        bought = simulate_budget(coco, "1%", kind, 0, PROFILES["coco"])
        pairs, found = GOLDEN["pairs"]["1"][kind], bought.matrix
        positives = found.counts(Label.POSITIVE).sum()
        assert positives + found.counts(Label.NEGATIVE).sum() == pairs
        assert abs(positives - pairs * share) < 4 * math.sqrt(pairs * share * (1 - share))
        shown = {"I": 0, "SP": positives, "SB": positives}.get(kind)
        if shown is None:
            variance = pairs * share * (each - 1 + each**2)
            assert abs(len(bought.locations) - pairs * share * each) < 4 * math.sqrt(variance)
        else:
            assert len(bought.locations) == shown
        empty = (1 - pairs / (GOLDEN["images"] * 80)) ** 80
        images = (found.image_counts(Label.UNKNOWN) < 80).sum()
        assert abs(images - GOLDEN["images"] * (1 - empty)) < 4 * math.sqrt(GOLDEN["images"] * empty * (1 - empty))


def test_exact_costs_buy_more_than_the_averages_of_patchml(coco):
    """4 % of COCO in exact costs: T pairs cost T (1 + share x d), where a positive is dearer by d = 1.4 or 6 s.

    That is 252,100 pairs of points and 217,400 of boxes, against 249,617 and 209,826 in flat costs, whose averages have
    more positives than there are. The costs of T pairs vary as their positives, of which there are about as many as the
    square of their standard deviation, times d.
    """
    for kind, dearer, pairs in (("SP", 1.4, 252_100), ("SB", 6.0, 217_400)):
        found = simulate_budget(coco, "4%", kind, 0, PROFILES["coco"], mode="exact").matrix
        bought = found.counts(Label.POSITIVE).sum() + found.counts(Label.NEGATIVE).sum()
        expected = 0.04 * GOLDEN["images"] * 80 / (1 + GOLDEN["positive_share"] * dearer)
        assert expected == pytest.approx(pairs, abs=50)
        assert abs(bought - expected) < 4 * math.sqrt(expected * GOLDEN["positive_share"]) * dearer


# --- notes, files, refusals


def test_the_receipt():
    """Six pairs cost 6 s as tags. Points: four times 1 s, twice 2.4 s."""
    facts = [(i, c, -1, NOWHERE) for i in (0, 1) for c in (0, 1)] + [(i, 2, 1, (0, 0, 1, 1)) for i in (0, 1)]
    table = table_of(facts, 3, 3)
    tags = simulate_budget(table, "6s", "tags", 0, PROFILES["coco"])
    assert tags.notes.messages == (
        "simulated a budget of 6s (tags (I), flat costs, seed 0): 6 pairs (2 positive, 4 negative) in 2 of 3 images "
        "for 6 s (0.00 h), 1 s a pair",
        f"costs: {PROFILES['coco']}",
        "3 pairs are unknown in the source, so they were skipped at no cost",
    )
    points = simulate_budget(table, "8.8s", "SP", 0, PROFILES["coco"], mode="exact")
    assert points.notes.messages[0] == (
        "simulated a budget of 8.8s (one point (SP), exact costs, seed 0): 6 pairs (2 positive with 2 points, 4 "
        "negative) in 2 of 3 images for 9 s (0.00 h), 1.467 s a pair"
    )


@pytest.mark.parametrize("kind", TYPES)
def test_saved_and_loaded(tmp_path, kind):
    bought = simulate_budget(random_table(20, 6), "60%", kind, 0, COST)
    save(bought, tmp_path / "bought.parquet")
    found = load(tmp_path / "bought.parquet")
    assert found.fingerprint == bought.fingerprint
    assert found.summary() == bought.summary()
    assert found.notes.messages == bought.notes.messages


@pytest.mark.parametrize(
    ("more", "message"),
    [
        ({"annotation": "SQ"}, "annotation type 'SQ' is not known"),
        ({"mode": "exakt"}, "mode 'exakt' is not known (did you mean 'exact'?); known: flat, exact."),
        ({"points": "center"}, "point rule 'center' is not known (did you mean 'centre'?); known: centre, uniform."),
        ({"budget": "one hour"}, "'one hour' is not a budget; "),
        ({"budget": 0.5}, "the budget 0.5 is 0.5 s and buys nothing: a pair costs 1.35 s."),
        ({"budget": "0.9s", "mode": "exact"}, "the budget 0.9s is 0.9 s and buys nothing: a pair costs 1 s."),
        ({"annotation": "AP", "cost": PROFILES["objects365"]}, "all points (AP) has no flat cost, "),
    ],
)
def test_refusals(more, message):
    """The first pair in the order of this table and seed is a negative."""
    arguments = {"budget": "50%", "annotation": "SP", "seed": 0, "cost": COST} | more
    with pytest.raises(ConfigError) as error:
        simulate_budget(random_table(3, 4), **arguments)
    assert str(error.value).startswith(message)


def test_nothing_to_buy():
    with pytest.raises(DataError) as error:
        simulate_budget(table_of([], 2, 4), "1%", "I", 0, COST)
    assert str(error.value) == "none of the 2 images has a label, so there is nothing to buy."


def test_more_pairs_than_fit():
    """40,000 images complete for 1,000 classes are 40 million pairs in no space; 90 % of them are 36 million facts."""
    table = table_of([], 40_000, 1000, complete_set=np.zeros(40_000, int), complete_classes=np.ones((1, 1000), bool))
    with pytest.raises(DataError) as error:
        simulate_budget(table, "90%", "I", 0, COST)
    assert str(error.value) == (
        "the budget 90% buys 36,000,000 pairs, which would be written out one by one; at most 30,000,000 are "
        "allowed. Spend less, or use fewer images."
    )
