"""Advice where types cannot be judged at the budget: nothing gets worse because it gets cheaper."""

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fewtags.budget.costs import Annotation, CostModel
from fewtags.budget.curves import Result
from fewtags.budget.planner import paper_guide, pilot_guide, plan_budget

TAGS, SP, SB = Annotation.TAGS, Annotation.ONE_POINT, Annotation.ONE_BOX
SINGLE = (TAGS, SP, SB)
COST = CostModel(classes=4, positives_per_image=1, instances_per_image=2)
"""Seconds per pair: I 1, SP 1.35, SB 2.5."""
OF = {"point": SP, "box": SB}


def measured(kind, levels, rng=None):
    """Runs at 100, 200, 400, ... labels with two seeds; `levels` rise."""
    rng = rng or np.random.default_rng(0)
    return [
        Result(kind=kind, labels=100 * 2**i, seed=s, mean_ap=float(np.clip(y + rng.normal(0, 0.01), 0, 1)))
        for i, y in enumerate(levels)
        for s in (0, 1)
    ]


rising = st.lists(st.floats(0.05, 0.95), min_size=3, max_size=5).map(sorted)
guides = st.builds(
    lambda *levels: pilot_guide([run for k, y in zip(SINGLE, levels, strict=True) for run in measured(k, y)], "p"),
    rising,
    rising,
    rising,
)
"""Pilots in which types may have different numbers of budgets."""
any_guide = st.one_of(st.just(paper_guide(4)), guides)
budgets = st.floats(1.5, 6).map(lambda power: 10**power)
photos = st.integers(1, 20_000)


def order(seconds, n, cost, guide):
    return [purchase.kind for purchase in plan_budget(seconds, n, cost, guide, SINGLE).ranked()]


@settings(max_examples=80, deadline=None)
@given(any_guide, budgets, photos, st.sampled_from(["point", "box"]), st.floats(0.1, 1))
def test_a_lower_price_never_lowers_the_rank(guide, seconds, n, name, factor):
    cheaper = replace(COST, **{name: getattr(COST, name) * factor})
    before, after = order(seconds, n, COST, guide), order(seconds, n, cheaper, guide)
    assert after.index(OF[name]) <= before.index(OF[name])


@settings(max_examples=80, deadline=None)
@given(any_guide, budgets, photos, st.floats(0.3, 1))
def test_cheaper_tags_never_lower_the_value_of_tags(guide, seconds, n, factor):
    """A tag is a part of every type (an absent class), so all types get more labels; none gets a smaller value."""
    cheaper = replace(COST, tag=COST.tag * factor)
    before, after = ({p.kind: p for p in plan_budget(seconds, n, c, guide, SINGLE).purchases} for c in (COST, cheaper))
    for kind, purchase in before.items():
        assert after[kind].labels >= purchase.labels
        assert after[kind].mean_ap.value >= purchase.mean_ap.value - 1e-12


@pytest.mark.parametrize("classes", [4, 20, 80])
def test_on_the_papers_curves_cheaper_tags_never_lower_the_rank_of_tags(classes):
    """With enough photos. Where all photos have tags already, cheaper tags can only help the other types."""
    cost = CostModel(classes=classes, positives_per_image=1.5)
    for seconds in np.geomspace(300, 3e7, 25):
        ranks = [
            order(float(seconds), 10**7, replace(cost, tag=tag), paper_guide(classes)).index(TAGS)
            for tag in (1.0, 0.9, 0.7, 0.5)
        ]
        assert ranks == sorted(ranks, reverse=True), (seconds, ranks)


@settings(max_examples=80, deadline=None)
@given(any_guide, budgets, photos, st.floats(1, 100))
def test_a_larger_budget_changes_no_order_once_a_type_has_passed_its_curve(guide, seconds, n, factor):
    small = plan_budget(seconds, n, COST, guide, SINGLE)
    if small.compared_seconds < seconds:
        large = plan_budget(seconds * factor, n, COST, guide, SINGLE)
        assert [p.kind for p in large.ranked()] == [p.kind for p in small.ranked()]


def test_types_are_ordered_by_value_where_all_are_judged():
    guide = pilot_guide([*measured(TAGS, [0.3, 0.4, 0.5]), *measured(SP, [0.4, 0.5, 0.6])], "p")
    plan = plan_budget(300, 1_000, COST, guide, (TAGS, SP))
    assert [p.kind for p in plan.ranked()] == [SP, TAGS]
    assert plan.ranked()[0].mean_ap.value > plan.ranked()[1].mean_ap.value
    assert plan.compared_seconds == 300


@pytest.mark.parametrize("count", [3_000, 3_200])
def test_more_photos_do_not_turn_the_papers_advice_round(count):
    """60 h buy everything in both; the paper's curve of points ends at 3,120 labels per class, that of tags later."""
    cost = CostModel(classes=20, positives_per_image=1.5, instances_per_image=3)
    plan = plan_budget(216_000, count, cost, paper_guide(20))
    assert plan.ranked()[0].kind is SP
    assert plan.advice().startswith("Buy one point (SP), ")


@pytest.mark.parametrize(("point", "bound"), [(2.4, ""), (2.0, "at least")])
def test_cheaper_points_do_not_turn_the_advice_of_a_pilot_round(point, bound):
    """Measured runs (tags and points, 4 budgets, 3 seeds); at 2.0 s per point, points pass 4 times their pilot."""
    file = Path(__file__).parents[2] / "benchmarks" / "results" / "budgets.jsonl"
    rows = [json.loads(line) for line in file.read_text().splitlines()]
    runs = [
        Result(
            kind=Annotation.of(r["annotation"]),
            labels=r["bought"]["positives"] + r["bought"]["negatives"],
            seed=r["seed"],
            mean_ap=r["last"]["mAP"] / 100,
        )
        for r in rows
        if (r["set"], r["method"]) == ("collages", "ignore") and r["annotation"] in ("I", "SP")
    ]
    cost = CostModel(classes=13, positives_per_image=4.3217, point=point)
    plan = plan_budget(6_813, 672, cost, pilot_guide(runs, "p"), (TAGS, SP))
    bounds = {purchase.kind: purchase.mean_ap.bound for purchase in plan.purchases}
    assert (plan.ranked()[0].kind, bounds) == (SP, {TAGS: "", SP: bound})
