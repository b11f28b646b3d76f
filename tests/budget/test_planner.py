"""What a budget buys and what is said about it, by hand."""

import math
import re
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fewtags.budget.costs import PROFILES, Annotation, CostModel
from fewtags.budget.curves import Result, difference
from fewtags.budget.paper_curves import paper_curves
from fewtags.budget.planner import paper_guide, pilot_guide, plan_budget
from fewtags.errors import ConfigError, DataError

COST = CostModel(classes=4, positives_per_image=1, instances_per_image=2)
"""Seconds per pair: I 1, SP 1.35, SB 2.5, AP 1.575, AB 4.25 (see test_costs)."""
TAGS, SP, SB = Annotation.TAGS, Annotation.ONE_POINT, Annotation.ONE_BOX


def runs(kind, level, jitter=0.001, seeds=3, **more):
    """0.8 - level (x / 100)^-0.5 at 100, 200, 400, 800 labels; seeds differ a little."""
    return [
        Result(kind=kind, labels=x, seed=s, mean_ap=0.8 - level * (x / 100) ** -0.5 + jitter * (s - 1), **more)
        for x in (100, 200, 400, 800)
        for s in range(seeds)
    ]


def purchases(plan):
    return {purchase.kind.short: purchase for purchase in plan.purchases}


def test_what_a_budget_buys_by_hand():
    """100 photos of 4 classes are 400 pairs. 270 s: 270 tags; 200 points (1.35 s); 108 boxes (2.5 s); 171 (1.575 s)
    with all points; 63 (4.25 s) with all boxes. A quarter of the answers is yes; two objects for each yes.

    Photos asked about: 100 (1 - (1 - 200 / 400)^4) = 93.75.
    """
    found = purchases(plan_budget(270, 100, COST, paper_guide(4)))
    assert {k: o.labels for k, o in found.items()} == {"I": 270, "SP": 200, "SB": 108, "AP": 171, "AB": 63}
    sp, ab = found["SP"], found["AB"]
    assert (sp.photos, sp.complete_photos, sp.positives, sp.places) == (94, 50, 50, 50)
    assert (ab.positives, ab.places) == (16, 32)
    assert found["I"].places == 0
    assert sp.seconds == pytest.approx(270)
    assert all(o.left == 0 and o.seconds <= 270 for o in found.values())


def test_no_more_than_all_photos_is_bought_and_what_is_left_is_said():
    """All 400 tags take 400 s; of an hour 3,200 s are left, which is 0.9 h."""
    plan = plan_budget(3600, 100, COST, paper_guide(4))
    tags = purchases(plan)["I"]
    assert (tags.labels, tags.photos, tags.seconds, tags.left) == (400, 100, 400, 3200)
    assert (
        "tags (I): all 400 labels (100 photos x 4 classes) take 0.1 h, and 0.9 h are left, for more photos or a more "
        "expensive type"
    ) in plan.notes


@pytest.mark.parametrize(
    ("budget", "photos", "mean_ap"),
    [("0.25%", 14.2, 43.19), ("0.5%", 26.0, 52.30), ("1%", 44.0, 58.86), ("2%", 64.9, 63.29), ("4%", 78.9, 66.43)],
)
def test_the_papers_row_for_one_point(budget, photos, mean_ap):
    """Tables 1 and 2: thousands of images within the tolerance of one permutation (2 % is 0.2 off), and mAP."""
    share = float(budget.rstrip("%")) / 100
    plan = plan_budget(share * 82_783 * 80, 82_783, PROFILES["coco"], paper_guide(80))
    found = purchases(plan)["SP"]
    assert found.photos / 1000 == pytest.approx(photos, abs=0.25)
    assert found.mean_ap.value == pytest.approx(mean_ap / 100, abs=1e-4)


def test_the_papers_advice_names_its_limits():
    """1 %: all points 59.09 (table 2), one point 58.86 (table 1): less apart than the tables are themselves, 1.64."""
    plan = plan_budget(66_226.4, 82_783, PROFILES["coco"], paper_guide(80), [TAGS, SP, Annotation.ALL_POINTS])
    assert plan.advice() == (
        "Buy all points (AP), 59,744 labels in 42,688 photos for 18.4 h, expected mAP 59.1, or else one point (SP): "
        "the difference of +0.2 mAP over one point (SP) is not resolved, so take what is easier to make."
    )
    resolved = plan_budget(66_226.4, 82_783, PROFILES["coco"], paper_guide(80), [TAGS, SP]).advice()
    assert resolved == (
        "Buy one point (SP), 62,404 labels in 43,967 photos for 18.4 h, expected mAP 58.9: +3.3 mAP over tags (I), the "
        "second best."
    )
    assert any("The paper has no intervals" in note for note in plan.guide.notes)


def test_a_resolved_difference():
    """800 s buy 800 tags (0.8 - 0.1 = .7 expected) or 320 boxes (0.8 - 0.6 / sqrt(3.2) = .465)."""
    plan = plan_budget(800, 1000, COST, pilot_guide([*runs(TAGS, 0.283), *runs(SB, 0.6)], "the test"))
    tags, boxes = plan.ranked()
    assert (tags.kind, boxes.kind) == (TAGS, SB)
    assert tags.mean_ap.value == pytest.approx(0.7, abs=0.003)
    assert boxes.mean_ap.value == pytest.approx(0.465, abs=0.005)
    assert re.fullmatch(
        r"Buy tags \(I\), 800 labels in 590 photos for 0\.2 h, expected mAP 70\.\d \[69\.\d, 70\.\d\]: \+23\.\d "
        r"\[\+2\d\.\d, \+2\d\.\d\] mAP over one box \(SB\), the second best\.",
        plan.advice(),
    )


def test_a_difference_that_is_not_resolved():
    """Seeds differ by 4 points, and what is good for tags is bad for points."""
    plan = plan_budget(800, 1000, COST, pilot_guide([*runs(TAGS, 0.3, 0.04), *runs(SP, 0.28, -0.04)], "the test"))
    assert "is not resolved, so take what is easier to make." in plan.advice()


def test_a_lead_and_its_interval_are_of_one_estimate():
    """Far beyond the pilot the curves of all seeds differ by another number than the seeds do; only theirs is told."""
    rng = np.random.default_rng(1)
    both = [
        Result(kind=r.kind, labels=r.labels, seed=r.seed, mean_ap=r.mean_ap + rng.normal(0, 0.02))
        for r in [*runs(TAGS, 0.3), *runs(SP, 0.27)]
    ]
    plan = plan_budget(2400, 1000, COST, pilot_guide(both, "the test"))
    best, second = plan.ranked()
    curves = plan.guide.curves
    middle, low, high = (
        f"{100 * value:+.1f}"
        for value in difference(curves[best.kind], best.labels, curves[second.kind], second.labels)
    )
    assert middle != f"{100 * (best.mean_ap.value - second.mean_ap.value):+.1f}"
    assert f"the difference of {middle} [{low}, {high}] mAP over {second.kind.described()} is" in plan.advice()


def test_a_comparison_by_seed_that_contradicts_the_curves_is_told():
    """Seeds 0 to 2 have both types, and points are a tenth ahead; tags alone have two seeds more, far better ones."""
    tags = [
        *runs(TAGS, 0.3),
        *[Result(kind=TAGS, labels=r.labels, seed=r.seed + 3, mean_ap=r.mean_ap + 0.19) for r in runs(TAGS, 0.3)],
    ]
    tags = [r for r in tags if r.seed < 5]
    points = [Result(kind=SP, labels=r.labels, seed=r.seed, mean_ap=r.mean_ap + 0.05) for r in runs(TAGS, 0.3)]
    plan = plan_budget(800, 1000, COST, pilot_guide([*tags, *points], "the test"))
    assert re.search(
        r", or else one point \(SP\): compared seed by seed, -\d\.\d \[-\d\.\d, -\d\.\d\] mAP over one point \(SP\) "
        r"contradicts the curves of all seeds together, so run more seeds, or take what is easier to make\.$",
        plan.advice(),
    )


def test_types_measured_with_other_seeds_cannot_be_compared():
    points = [Result(kind=r.kind, labels=r.labels, seed=r.seed + 5, mean_ap=r.mean_ap) for r in runs(SP, 0.25)]
    plan = plan_budget(800, 1000, COST, pilot_guide([*runs(TAGS, 0.3), *points], "the test"))
    assert "(no seeds in common to compare) mAP over tags (I) is not resolved" in plan.advice()


def test_beyond_the_pilot_values_are_marked_and_then_refused():
    """2,000 tags are 2.5 times the pilot's 800; 10,000 are 12.5 times."""
    guide = pilot_guide(runs(TAGS, 0.3, photos=200), "the test")
    near = plan_budget(2_000, 5_000, COST, guide, [TAGS])
    assert purchases(near)["I"].mean_ap.extrapolated
    assert [*near.lines()][-1].endswith("extrapolated x2.5")
    assert any(note.startswith("extrapolated values assume that") for note in near.notes)
    assert any("the pilot chose its labels from 200 photos; with 5,000" in note for note in near.notes)
    far = plan_budget(10_000, 5_000, COST, guide, [TAGS])
    found, end = purchases(far)["I"].mean_ap, plan_budget(3_200, 5_000, COST, guide, [TAGS])
    assert (found.value, found.bound) == (purchases(end)["I"].mean_ap.value, "at least")
    shown = f"at least {100 * found.value:.1f} [{100 * found.low:.1f}, {100 * found.high:.1f}]"
    assert far.advice().endswith(f"expected mAP {shown}; no other type can be judged.")
    why = "12.5 times the largest pilot; values are given up to 4 times"
    remark = "is the value at 3,200 labels, because more labels do not make it worse"
    assert f"tags (I): {why}; mAP {shown} {remark}" in far.notes
    assert [*far.lines()][-1].endswith("end of the curve")
    assert far.to_dict()["offers"][0]["mAP"]["bound"] == "at least"
    little = plan_budget(10, 5_000, COST, guide, [TAGS])
    assert (purchases(little)["I"].mean_ap.bound, purchases(little)["I"].mean_ap.refused[:13]) == (
        "at most",
        "less than 1/4",
    )


def test_types_without_a_pilot_are_not_judged():
    plan = plan_budget(800, 1000, COST, pilot_guide(runs(TAGS, 0.3), "the test"), [TAGS, SP])
    assert purchases(plan)["SP"].mean_ap.refused == "not in the pilot"
    assert plan.advice().endswith("; no other type can be judged (one point (SP): not in the pilot).")


def test_a_pilot_that_is_too_small_says_what_to_run():
    few = runs(SP, 0.3, seeds=1)
    guide = pilot_guide([*runs(TAGS, 0.3), *few], "r.jsonl")
    assert list(guide.guesses) == [TAGS]
    plan = plan_budget(800, 1000, COST, guide, guide.kinds)
    assert purchases(plan)["SP"].mean_ap.refused == "too few runs"
    assert plan.advice().endswith("; no other type can be judged (one point (SP): too few runs).")
    assert [*plan.lines()][-1].startswith("one point (SP)")
    assert guide.notes[0].startswith("one point (SP): 4 budgets and 1 seed are too few for a learning curve; run at")
    with pytest.raises(DataError) as error:
        pilot_guide(few, "r.jsonl")
    assert str(error.value).startswith("r.jsonl: nothing to fit a curve to.\none point (SP): 4 budgets and 1 seed are")


def test_mean_ap_loc_is_shown_where_it_was_measured():
    located = [
        Result(kind=r.kind, labels=r.labels, seed=r.seed, mean_ap=r.mean_ap, mean_ap_loc=r.mean_ap / 2)
        for r in runs(SP, 0.3)
    ]
    plan = plan_budget(1080, 1000, COST, pilot_guide([*runs(TAGS, 0.3), *located], "the test"))
    found = purchases(plan)
    assert found["SP"].mean_ap_loc.value == pytest.approx(found["SP"].mean_ap.value / 2, abs=0.002)
    assert found["I"].mean_ap_loc.refused == "not measured"
    header, tags, points = [*plan.lines()][1:4]
    assert header.split()[-1] == "mAP-loc"
    assert (tags.split()[-3], points.split()[-1][-1]) == ("-", "]")


def test_types_with_all_objects_need_their_number():
    plan = plan_budget(270, 100, CostModel(classes=4, positives_per_image=1), paper_guide(4))
    assert list(purchases(plan)) == ["I", "SP", "SB"]
    assert plan.notes[0].startswith("all points and all boxes are left out because the number of objects")


def test_what_cannot_be_planned():
    with pytest.raises(ConfigError, match=r"^photos is 0; expected 1 or more\.$"):
        plan_budget(10, 0, COST, paper_guide(4))
    with pytest.raises(ConfigError) as error:
        plan_budget(0.5, 10, COST, paper_guide(4), [TAGS, SP])
    need = math.ceil(100 * COST.seconds_per_pair(SP)) / 100
    assert str(error.value) == (
        "0.5 s do not buy a label of any type: one label of tags (I) takes 1 s; one label of one point (SP) takes "
        f"{need:g} s."
    )


def test_a_type_that_the_budget_does_not_buy_is_named_with_the_least_budget_that_does():
    plan = plan_budget(1, 10, COST, paper_guide(4), [TAGS, SP])
    assert list(purchases(plan)) == ["I"]
    (note,) = [note for note in plan.notes if note.startswith("one point (SP)")]
    said = "one point (SP): 1 s do not buy a label; the least budget that does is "
    assert note.startswith(said)
    least = float(note.removeprefix(said).removesuffix(" s"))
    assert list(purchases(plan_budget(least, 10, COST, paper_guide(4), [TAGS, SP]))) == ["I", "SP"]


# --- a type that gets cheaper never loses

REVIEW = CostModel(classes=20, positives_per_image=1.5, instances_per_image=3)


@pytest.mark.parametrize("photos", [3000, 3200, 10_000])
def test_more_photos_do_not_turn_the_advice(photos):
    """60 h buy everything. With 3,200 photos, points pass the end of their curve, 3,120 labels a class; tags do not."""
    plan = plan_budget(60 * 3600, photos, REVIEW, paper_guide(20))
    assert plan.ranked()[0].kind is SP
    assert plan.advice().startswith("Buy one point (SP), ")
    if photos == 3200:
        assert ": at 19.2 h, the largest budget at which all types can be judged, the difference of" in plan.advice()
        assert purchases(plan)["SP"].mean_ap.bound == "at least"


def test_cheaper_points_do_not_turn_the_advice():
    """6,813 s: points at 2.4 s are within 4 times the pilot, at 2.0 s beyond."""
    cost = CostModel(classes=13, positives_per_image=4.3217)
    pilot = [
        Result(kind=kind, labels=round(x / price), seed=s, mean_ap=top - 0.3 * (x / 200) ** -0.4 + 0.004 * s)
        for kind, price, top in ((TAGS, 1, 0.6), (SP, 1.46, 0.65))
        for x in (160, 320, 640, 1170 * 1.46)
        for s in range(3)
    ]
    guide = pilot_guide(pilot, "the test")
    plans = [plan_budget(6813, 672, replace(cost, point=point), guide, [TAGS, SP]) for point in (2.4, 2.0, 1.2)]
    assert [purchases(plan)["SP"].mean_ap.bound for plan in plans] == ["", "at least", "at least"]
    assert all(plan.advice().startswith("Buy one point (SP)") for plan in plans)


@st.composite
def plans_of_two_prices(draw):
    """A pilot or the paper, a budget, and two prices of one type: (plan, cheaper plan, type)."""
    kinds = (TAGS, SP, SB)
    if draw(st.booleans()):
        guide, classes = paper_guide(20), 20
    else:
        classes, pilot = 4, []
        for kind in kinds:
            budgets = sorted(draw(st.sets(st.integers(20, 3000), min_size=3, max_size=5)))
            top, drop = draw(st.floats(0.3, 0.9)), draw(st.floats(0.0, 0.3))
            pilot += [
                Result(kind=kind, labels=x, seed=s, mean_ap=top - drop * (x / budgets[0]) ** -0.5 + 0.002 * s)
                for x in budgets
                for s in range(2)
            ]
        guide = pilot_guide(pilot, "the test")
    name, kind = draw(st.sampled_from([("point", SP), ("box", SB)]))
    dear, cheap = sorted(draw(st.tuples(st.floats(1.0, 30.0), st.floats(1.0, 30.0))), reverse=True)
    cost = CostModel(classes=classes, positives_per_image=classes / 4, **{name: dear})
    seconds, photos = draw(st.floats(100, 400_000)), draw(st.integers(50, 5000))
    make = lambda cost: plan_budget(seconds, photos, cost, guide, kinds)  # noqa: E731
    return make(cost), make(replace(cost, **{name: cheap})), kind


@given(plans_of_two_prices())
@settings(deadline=None, max_examples=60)
def test_a_lower_price_never_lowers_the_rank(plans):
    places = []
    for plan in plans[:2]:
        ranked = [purchase.kind for purchase in plan.ranked()]
        assert plan.advice().startswith(f"Buy {ranked[0].described()}")
        places.append(ranked.index(plans[2]))
    assert places[1] <= places[0]


def test_all_curves_rise():
    """The rule rests on it."""
    for curve in paper_curves().values():
        assert (np.diff(curve.values["mAP"]) > 0).all()
