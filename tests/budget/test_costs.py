"""What annotations cost, by hand, against PatchML's figure and against the counts of its tables."""

import json
import math
import re
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fewtags.budget.costs import PROFILES, Annotation, CostModel, budget_seconds, find_cost
from fewtags.errors import ConfigError, DataError
from fewtags.labels import ClassNames
from fewtags.table.table import LabelTable

GOLDEN = json.loads((Path(__file__).parents[1] / "golden" / "budget.json").read_text())
CELLS = GOLDEN["images"] * GOLDEN["classes"]
TYPES = ("I", "SP", "SB", "AP", "AB")
NOWHERE = (np.nan,) * 4
BOX = (0.1, 0.2, 0.5, 0.4)


def table_of(facts, images, classes, **more):
    """A table from (image, class, state, box) tuples."""
    return LabelTable.build(
        [f"{i}.jpg" for i in range(images)],
        ClassNames.of([f"c{j}" for j in range(classes)]),
        image=np.array([f[0] for f in facts], int),
        class_=np.array([f[1] for f in facts], int),
        state=np.array([f[2] for f in facts], int),
        locations=np.array([f[3] for f in facts], float).reshape(-1, 4),
        **more,
    )


# --- what a pair costs


def test_flat_costs_by_hand():
    """Of 4 classes 1 is there, with 2 objects; three times "no" is 3 s.

    I: 4 / 4. SP: (3 + 2.4) / 4. SB: (3 + 7) / 4. AP: (3 + 2.4 + 0.9) / 4. AB: (3 + 2 x 7) / 4.
    """
    cost = CostModel(classes=4, positives_per_image=1, instances_per_image=2)
    assert [cost.seconds_per_pair(kind) for kind in TYPES] == pytest.approx([1, 1.35, 2.5, 1.575, 4.25])


def test_exact_costs_by_hand():
    """No object, 1, 3: "no" or a tag is 1 s; 2.4 s for a first point and 0.9 s for each further; 7 s a box."""
    cost, instances = CostModel(classes=4, positives_per_image=1), np.array([0, 1, 3])
    found = {kind: cost.exact_seconds(kind, instances).tolist() for kind in TYPES}
    assert found == {
        "I": [1, 1, 1],
        "SP": [1, 2.4, 2.4],
        "SB": [1, 7, 7],
        "AP": [1, 2.4, pytest.approx(4.2)],
        "AB": [1, 7, 21],
    }


def test_costs_of_patchml():
    for kind, seconds in GOLDEN["seconds_per_pair"].items():
        assert PROFILES["coco"].seconds_per_pair(kind) == pytest.approx(seconds, abs=1e-12)
    for name, figure in GOLDEN["seconds_per_image"].items():
        cost = PROFILES[name]
        for kind, seconds in (("I", figure["I"]), ("SP", figure["P"]), ("SB", figure["B"])):
            assert cost.seconds_per_pair(kind) * cost.classes == pytest.approx(seconds, abs=1e-9)


@given(
    st.lists(st.lists(st.integers(0, 3), min_size=3, max_size=3), min_size=1, max_size=6),
    st.tuples(*[st.floats(0.1, 50)] * 4),
)
def test_flat_is_the_mean_of_exact(objects, seconds):
    """Over all pairs of a complete table with every object located, for the averages of that table."""
    objects = np.array(objects)
    facts = [(i, c, 1, BOX) for i, c in np.argwhere(objects) for _ in range(objects[i, c])]
    facts += [(i, c, -1, NOWHERE) for i, c in np.argwhere(objects == 0)]
    means = CostModel.measured(table_of(facts, *objects.shape))
    cost = CostModel(
        classes=means.classes,
        positives_per_image=means.positives_per_image,
        instances_per_image=means.instances_per_image or 0,
        **dict(zip(("tag", "point", "extra_point", "box"), seconds, strict=True)),
    )  # Without any object nothing tells how many there are in a positive.
    for kind in TYPES:
        assert cost.seconds_per_pair(kind) == pytest.approx(cost.exact_seconds(kind, objects.ravel()).mean())


@pytest.mark.parametrize("kind", TYPES)
def test_the_cheapest_answer(kind):
    for cost in (
        CostModel(classes=4, positives_per_image=1, instances_per_image=2),
        CostModel(classes=4, positives_per_image=1, instances_per_image=2, tag=9, point=5, box=3),
    ):
        assert cost.least(kind) == cost.exact_seconds(kind, np.arange(4)).min()


def test_no_flat_cost_without_the_number_of_instances():
    cost = PROFILES["objects365"]
    for kind in ("AP", "all boxes"):
        with pytest.raises(ConfigError) as error:
            cost.seconds_per_pair(kind)
        assert str(error.value) == (
            f"{Annotation.of(kind).described()} has no flat cost, because instances_per_image is not known; give it in "
            "a cost file, or charge exactly (mode 'exact')."
        )
    assert cost.exact_seconds("AB", np.array([2])).tolist() == [14]


# --- averages


def test_measured_averages_by_hand():
    """Two images, four classes; 5 cells are known, 2 of them positive: 4 x 2 / 5 of 4 classes are.

    One of the two is located, with 3 objects; the other is taken to have as many: 1.6 x 3 objects in an image.
    The contradicted cell is unknown, and its object does not count.
    """
    facts = [(0, 0, 1, BOX), (0, 0, 1, BOX), (0, 0, 1, (0.5,) * 4), (1, 1, 1, NOWHERE)]
    facts += [(0, 1, -1, NOWHERE), (0, 2, -1, NOWHERE), (1, 0, -1, NOWHERE), (1, 3, 1, BOX), (1, 3, -1, NOWHERE)]
    cost = CostModel.measured(table_of(facts, 2, 4))
    assert (cost.classes, cost.positives_per_image, cost.instances_per_image) == (4, 1.6, pytest.approx(4.8))
    assert (cost.tag, cost.point, cost.extra_point, cost.box) == (1, 2.4, 0.9, 7)
    assert CostModel.measured(table_of([(0, 0, 1, NOWHERE)], 1, 4)) == CostModel(
        classes=4, positives_per_image=4.0, instances_per_image=None
    )


def test_nothing_to_measure():
    with pytest.raises(DataError) as error:
        CostModel.measured(table_of([], 2, 4))
    assert str(error.value) == "none of the 2 images has a label, so there is nothing to buy."


def test_costs_in_words():
    assert str(PROFILES["coco"]) == (
        "tag 1 s, point 2.4 s, further point 0.9 s, box 7 s; 80 classes, 3.5 of them positive in an average "
        "image, with 7.7 instances"
    )
    assert str(PROFILES["objects365"]).endswith("365 classes, 5 of them positive in an average image")


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"tag": 0}, "tag costs 0 s; expected seconds above 0."),
        ({"box": math.inf}, "box costs inf s; expected seconds above 0."),
        ({"extra_point": -1}, "extra_point costs -1 s; expected seconds above 0."),
        ({"point": math.nan}, "point costs nan s; expected seconds above 0."),
        ({"classes": 2.5}, "classes is 2.5; expected a whole number from 1."),
        ({"classes": 0}, "classes is 0; expected a whole number from 1."),
        ({"classes": math.inf}, "classes is inf; expected a whole number from 1."),
        ({"positives_per_image": 5}, "positives_per_image is 5; expected 0 to 4, the number of classes."),
        ({"instances_per_image": 0.5}, "instances_per_image is 0.5; expected at least 1, one for each positive class."),
    ],
)
def test_costs_out_of_range(values, message):
    with pytest.raises(ConfigError) as error:
        CostModel(**{"classes": 4, "positives_per_image": 1} | values)
    assert str(error.value) == message
    assert CostModel(classes=4, positives_per_image=1, extra_point=0).extra_point == 0


# --- what a budget buys


def test_pairs_of_patchml():
    for budget, pairs in GOLDEN["pairs"].items():
        found = {kind: PROFILES["coco"].pairs_for(f"{budget}%", kind, CELLS) for kind in pairs}
        assert found == pairs


def expected(row):
    """What `pairs_for` and the share of positives in COCO say about a row: (value, printed, tolerance) of each cell.

    Counts in K are printed to half of their last digit. Positives may be off by 2.15 standard deviations of a Poisson
    count, which the largest of 35 correlated ones is; for AP and AB they are objects, whose number in a positive is
    taken to have a standard deviation of 2.6 (a guess: the lists are not at hand). An image is touched unless its 80
    pairs are all left. For AP and AB the printed number of annotations is that of objects and negatives.
    """
    share, each = GOLDEN["positive_share"], GOLDEN["instances_per_positive"]
    pairs = PROFILES["coco"].pairs_for(f"{row['budget']}%", row["type"], CELLS)
    if row["type"] in ("AP", "AB"):
        positives, sd = pairs * share * each, math.sqrt(pairs * share * (2.6**2 + each**2))
        negatives, total = pairs * (1 - share), pairs * (1 - share) + row["pos"]
    else:
        positives, sd = pairs * share, math.sqrt(pairs * share)
        negatives, total = pairs - row["pos"], pairs
    found = {"pos": (positives, row["pos"], 2.15 * sd)}
    for cell, value in (("neg", negatives), ("total", total)):
        found[cell] = (value, 1000 * float(row[cell].lower().strip("k")), 500)
    if "images" in row:
        images = GOLDEN["images"] * (1 - (1 - pairs / CELLS) ** GOLDEN["classes"])
        found["images"] = (images, 1000 * float(row["images"].strip("k")), 50 + 2 * row["images_sd"])
    excepted = [
        cell
        for exception in GOLDEN["exceptions"]
        if exception["type"] == row["type"] and exception["budget"] in (row["budget"], None) and row["table"] == 2
        for cell in exception["cells"]
    ]
    return {cell: what for cell, what in found.items() if cell not in excepted}


def test_tables_1_and_2_of_patchml():
    """All cells but those that are wrong in the paper, or that no cost explains (see `exceptions`)."""
    checked = 0
    for row in GOLDEN["rows"]:
        for cell, (value, printed, tolerance) in expected(row).items():
            assert abs(value - printed) <= tolerance, (row, cell, value)
            checked += 1
    assert checked == 15 * 3 + 20 * 4 - 3 - 2 - 5 - 1


def test_a_budget_is_spent_to_the_nearest_pair():
    """A point pair costs 1.35 s: 2 s are 1.48 pairs, 2.1 s are 1.56, 0.6 s are 0.44."""
    cost = CostModel(classes=4, positives_per_image=1, instances_per_image=2)
    assert [cost.pairs_for(seconds, "SP", 100) for seconds in (2, 2.1, 0.6)] == [1, 2, 0]


@pytest.mark.parametrize(
    ("budget", "seconds"),
    [
        ("1%", 80),
        ("0.25 %", 20),
        ("150%", 12_000),
        ("12h", 43_200),
        ("1.5 H", 5400),
        ("30min", 1800),
        ("900s", 900),
        ("900", 900),
        (900, 900),
        (0.5, 0.5),
        (1e-5, 1e-5),
    ],
)
def test_budgets(budget, seconds):
    assert budget_seconds(budget, 8000) == pytest.approx(seconds)


@pytest.mark.parametrize("budget", ["", "1 percent", "0%", "-3", "0", 0, math.nan, math.inf, "1.2.3h", "12d", "1,5h"])
def test_not_budgets(budget):
    with pytest.raises(ConfigError) as error:
        budget_seconds(budget, 8000)
    assert str(error.value) == (
        f"{budget!r} is not a budget; write a share of tagging every class in every image ('1%'), a time ('12h', "
        "'30min', '900s'), or a number of seconds above 0."
    )


# --- words


@pytest.mark.parametrize(
    ("kind", "spellings"),
    [
        (Annotation.TAGS, ("I", "i", "tags", "Tags")),
        (Annotation.ONE_POINT, ("SP", "sp", "one point", "one-point", "ONE_POINT", " one  point ")),
        (Annotation.ONE_BOX, ("SB", "one box")),
        (Annotation.ALL_POINTS, ("AP", "all points")),
        (Annotation.ALL_BOXES, ("AB", "all boxes", Annotation.ALL_BOXES)),
    ],
)
def test_spellings_of_types(kind, spellings):
    assert {Annotation.of(spelling) for spelling in spellings} == {kind}


@pytest.mark.parametrize(("word", "hint"), [("one pint", " (did you mean 'one point'?)"), ("xyz", "")])
def test_unknown_type(word, hint):
    with pytest.raises(ConfigError) as error:
        Annotation.of(word)
    assert str(error.value) == (
        f"annotation type {word!r} is not known{hint}; known: tags (I), one point (SP), one box (SB), all points (AP), "
        "all boxes (AB)."
    )


def test_costs_by_name_and_file(tmp_path):
    """A file overrides what it names; the rest is measured."""
    table = table_of([(0, 0, 1, BOX), (0, 1, -1, NOWHERE)], 1, 2)
    assert find_cost("coco", table) is PROFILES["coco"]
    assert find_cost(None, table) == CostModel(classes=2, positives_per_image=1.0, instances_per_image=1.0)
    path = tmp_path / "ours.toml"
    path.write_text("box = 25.5\npoint = 3\ninstances_per_image = 4")
    assert find_cost(str(path), table) == CostModel(
        classes=2, positives_per_image=1.0, instances_per_image=4, point=3, box=25.5
    )


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (
            "boxx = 3",
            "'boxx' is not a cost (did you mean 'box'?); known: classes, positives_per_image, instances_per_image, "
            "tag, point, extra_point, box.",
        ),
        ("box = '3 s'", "box is '3 s'; expected a number."),
        ("box = true", "box is True; expected a number."),
        ("classes = 12.5", "classes is 12.5; expected a whole number from 1."),
        ("box = -1", "box costs -1 s; expected seconds above 0."),
    ],
)
def test_wrong_cost_files(tmp_path, text, message):
    path = tmp_path / "ours.toml"
    path.write_text(text)
    with pytest.raises(ConfigError, match="^" + re.escape(f"{path}: {message}") + "$"):
        find_cost(str(path), table_of([(0, 0, 1, BOX), (0, 1, -1, NOWHERE)], 1, 2))


def test_positives_alone_do_not_tell_how_many_an_image_shows():
    """One positive per image and nothing else: 2 of 2 classes by the known cells, which nobody said."""
    table = table_of([(0, 0, 1, BOX), (1, 1, 1, NOWHERE)], 2, 2)
    with pytest.raises(DataError, match=r"^no class is known to be absent from any image, .* or a --cost file\.$"):
        find_cost(None, table)
    assert find_cost(None, table, {"positives_per_image": 1.5}).positives_per_image == 1.5
    assert find_cost("coco", table) is PROFILES["coco"]


def test_a_number_of_classes_is_whole_however_it_is_written(tmp_path):
    path = tmp_path / "ours.toml"
    path.write_text("classes = 12.0\npositives_per_image = 2")
    found = find_cost(str(path), None)
    assert repr(found.classes) == "12"
    assert "; 12 classes, 2 of them positive" in str(found)


def test_unknown_costs(tmp_path):
    table = table_of([(0, 0, 1, BOX)], 1, 2)
    with pytest.raises(ConfigError) as error:
        find_cost("cooco", table)
    assert str(error.value) == (
        "costs 'cooco' are not known (did you mean 'coco'?); known: coco, objects365, or a file that ends in .toml."
    )
    with pytest.raises(ConfigError, match=r"nowhere\.toml does not exist"):
        find_cost(str(tmp_path / "nowhere.toml"), table)


# --- given numbers


def test_given_numbers_come_before_all_others(tmp_path):
    path = tmp_path / "ours.toml"
    path.write_text("point = 3\nbox = 9")
    table = table_of([(0, 0, 1, BOX), (0, 1, -1, NOWHERE)], 1, 2)
    found = find_cost(str(path), table, {"box": 5.0, "positives_per_image": 0.5})
    assert (found.classes, found.positives_per_image, found.point, found.box) == (2, 0.5, 3, 5)
    assert find_cost("coco", table, {"tag": 2.0}) == CostModel(
        classes=80, positives_per_image=3.5, instances_per_image=7.7, tag=2.0
    )


def test_costs_without_labels(tmp_path):
    assert find_cost(None, None, {"classes": 4, "positives_per_image": 1.5}) == CostModel(
        classes=4, positives_per_image=1.5
    )
    path = tmp_path / "ours.toml"
    path.write_text("classes = 4\npositives_per_image = 1.5")
    assert find_cost(str(path), None) == CostModel(classes=4, positives_per_image=1.5)
    with pytest.raises(ConfigError) as error:
        find_cost(None, None, {"positives_per_image": 1.5})
    assert str(error.value) == ("the costs are not known; give classes, the number of classes.")


def test_a_profile_with_other_classes_needs_their_average():
    """Objects per photo of COCO say nothing about other classes, so they are dropped."""
    with pytest.raises(ConfigError) as error:
        find_cost("coco", None, {"classes": 20})
    assert str(error.value) == (
        "the averages of 'coco' are those of 80 classes; with 20 classes give how many of them an average photo shows "
        "(count in twenty photos)."
    )
    assert find_cost("coco", None, {"classes": 20, "positives_per_image": 1.5}) == CostModel(
        classes=20, positives_per_image=1.5
    )
