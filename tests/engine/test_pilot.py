"""Pilots: what is bought and measured, what a results file says, and going on where one stopped."""

import json
from dataclasses import replace
from functools import partial

import numpy as np
import pyarrow as pa
import pytest

from fewtags.budget.costs import Annotation, CostModel
from fewtags.budget.purchase import simulate_budget
from fewtags.budget.results import read_results
from fewtags.config.parse import apply_overrides, parse
from fewtags.demo_set import make_scenes
from fewtags.engine import pilot as piloting
from fewtags.engine.methods import settings_models
from fewtags.engine.pilot import RESULTS, SETTINGS, Design, measured_split, pilot_parts, run_pilot
from fewtags.errors import ConfigError, DataError
from fewtags.labels import Label
from fewtags.table.merge import merge
from fewtags.table.table import LabelTable, with_column

TAGS, SP = Annotation.TAGS, Annotation.ONE_POINT
DESIGN = Design((TAGS, SP), ("25%", "50%"), 1)


@pytest.fixture(scope="module")
def complete(tmp_path_factory):
    """36 scenes with complete labels and the box of every digit."""
    return make_scenes(
        tmp_path_factory.mktemp("photos") / "scenes", train=36, val=4, test=1, size=64, seed=0
    ).train_truth


@pytest.fixture(scope="module")
def parts(complete):
    return pilot_parts(complete, 0.33)


@pytest.fixture(scope="module")
def cost(complete):
    return CostModel.measured(complete)


def config(**changes):
    tree = {
        "data": {"train": "(tables in memory)"},
        "model": {"backbone": "test_resnet", "weights": "none"},
        "augment": {"size": 64},
        "train": {"workers": 0, "stages": [{"name": "main", "epochs": 1, "lr": 0.01, "trainable": "head"}]},
    }
    settings = {
        **SETTINGS,
        "objective.name": "patchml",
        "train.cached_views": 1,
        **{key.replace("__", "."): v for key, v in changes.items()},
    }
    return parse(apply_overrides(tree, settings), settings_models(), "the test")


def with_points(table):
    """The same labels with the first corner of each box as a point."""
    facts = table.facts
    for corner, first in (("x1", "x0"), ("y1", "y0")):
        facts = with_column(facts, corner, facts[first].combine_chunks())
    return replace(table, facts=facts)


@pytest.fixture(scope="module")
def pilot(parts, cost, tmp_path_factory):
    """A finished pilot: its folder and its runs."""
    out = tmp_path_factory.mktemp("pilots") / "first"
    return out, list(run_pilot(*parts, config(), DESIGN, cost, out, cpu=True))


def rows(out):
    return [json.loads(line) for line in (out / RESULTS).read_text().splitlines()]


def test_every_combination_is_run_and_written(pilot, parts, cost):
    """25 % of n x 10 tags buys n x 10 / 4 tags, to the nearest whole one; points are dearer."""
    out, runs = pilot
    assert [(r.row["type"], r.row["budget"], r.row["seed"]) for r in runs] == [
        ("I", "25%", 0),
        ("SP", "25%", 0),
        ("I", "50%", 0),
        ("SP", "50%", 0),
    ]
    assert [(r.done, r.total, r.fresh) for r in runs] == [(i, 4, True) for i in range(1, 5)]
    assert rows(out) == [dict(r.row) for r in runs]
    cells = len(parts[0]) * 10
    for row in rows(out):
        assert row["labels"] == cost.pairs_for(row["budget"], row["type"], cells)
        assert row["budget_seconds"] == cells * int(row["budget"][:2]) / 100
        assert row["photos"] == len(parts[0])
        assert 0 < row["mAP"] < 1


def test_rows_say_what_was_bought(pilot, parts, cost):
    row = rows(pilot[0])[1]
    bought = simulate_budget(parts[0], "25%", "SP", 0, cost).matrix
    assert row["positives"] == bought.counts(Label.POSITIVE).sum()
    assert row["photos_asked"] == (bought.dense() != Label.UNKNOWN).any(1).sum()


def test_labels_with_points_are_bought_where_the_outlines_are(parts, cost, tmp_path, monkeypatch):
    """Tags come from the boxes' table, points from the one that has outlines, cut to the same photos."""
    asked = []
    original = piloting.simulate_budget

    def noted(table, budget, kind, *rest, **options):
        asked.append((kind.short, table.fingerprint, options["points"]))
        return original(table, budget, kind, *rest, **options)

    monkeypatch.setattr(piloting, "simulate_budget", noted)
    monkeypatch.setattr(piloting, "_train", lambda *_: {"mAP": 0.5})
    pool, measured = parts
    outlined = merge([with_points(pool), with_points(measured)])
    run = partial(run_pilot, *parts, config(), Design((TAGS, SP), ("50%",), 1), cost)
    list(run(tmp_path / "a", points="uniform", pointed=outlined, cpu=True))
    assert asked == [("I", pool.fingerprint, "uniform"), ("SP", with_points(pool).fingerprint, "uniform")]
    record = json.loads((tmp_path / "a" / "pilot.json").read_text())
    assert record["points"] == "outline, or uniform of a box"
    with pytest.raises(ConfigError, match="has a pilot with other points"):
        list(run(tmp_path / "a", cpu=True))


def test_results_are_what_the_planner_reads(pilot, cost):
    found = read_results(pilot[0] / RESULTS, cost)
    assert [(r.kind, r.labels, r.mean_ap) for r in found] == [
        (Annotation.of(row["type"]), row["labels"], row["mAP"]) for row in rows(pilot[0])
    ]


def test_where_photos_have_boxes_maps_are_measured(pilot, cost):
    """Every positive label has a box, so mAP-loc is measured on the cells of mAP and is never above it."""
    assert all(0 <= row["mAP_loc"] <= row["mAP"] for row in rows(pilot[0]))
    found = read_results(pilot[0] / RESULTS, cost)
    assert [r.mean_ap_loc for r in found] == [row["mAP_loc"] for row in rows(pilot[0])]


def test_without_boxes_no_maps_are_measured(pilot, parts, cost, tmp_path):
    """Also where boxes are those of a class that is in every photo, so that it cannot be ranked."""
    pool, measured = parts
    dense = measured.matrix.dense()
    dense[:, 0] = Label.POSITIVE
    image, class_ = np.nonzero(dense != Label.UNKNOWN)
    boxes = np.where((class_ == 0)[:, None], np.float32([0, 0, 0.5, 0.5]), np.float32(np.nan))
    for name, where in (("none", None), ("one", boxes)):
        table = LabelTable.build(
            measured.images.to_pylist(), measured.classes, image=image, class_=class_, state=dense[image, class_],
            locations=where, root=measured.root,
        )  # fmt: skip
        design = Design((TAGS,), ("50%",), 1)
        [run] = run_pilot(pool, table, config(), design, cost, tmp_path / name, cpu=True)
        assert "mAP_loc" not in run.row
        assert run.row.keys() | {"mAP_loc"} == rows(pilot[0])[0].keys()


def test_run_folders_are_cleared_away(pilot):
    assert sorted(path.name for path in pilot[0].iterdir()) == ["pilot.json", "results.jsonl"]


def test_a_pilot_goes_on_where_it_stopped(pilot, parts, cost, tmp_path):
    """Stopped after two runs; then the rest is run, and the rows are those of a pilot that was not stopped."""
    out = tmp_path / "again"
    stopped = run_pilot(*parts, config(), DESIGN, cost, out, cpu=True)
    next(stopped), next(stopped)
    stopped.close()
    assert len(rows(out)) == 2
    runs = list(run_pilot(*parts, config(), DESIGN, cost, out, cpu=True))
    assert [r.fresh for r in runs] == [False, False, True, True]
    assert rows(out) == rows(pilot[0])


@pytest.fixture
def decoded(monkeypatch):
    """`data.decode` and what was left out of every training, in the order in which they were planned."""
    seen, make_plan = [], piloting.make_plan

    def noting(config, *, tables, cpu):
        plan = make_plan(config, tables=tables, cpu=cpu)
        lost = [len(tables.splits()[name]) - len(table) for name, table in plan.tables.splits().items()]
        seen.append((config.data.decode, lost))
        return plan

    monkeypatch.setattr(piloting, "make_plan", noting)
    return seen


def test_photos_are_decoded_once(pilot, parts, cost, tmp_path, decoded):
    """A budget that asks about every photo comes first, so that all others ask about photos that were decoded."""
    design = Design((TAGS,), ("100%", "50%", "25%"), 1)
    runs = list(run_pilot(*parts, config(), design, cost, tmp_path / "out", cpu=True))
    assert runs[0].row["photos_asked"] == len(parts[0])
    assert decoded == [(True, [0, 0]), (False, [0, 0]), (False, [0, 0])]
    assert runs[1].row == pilot[1][2].row
    settings = config(data__decode=False)
    list(run_pilot(*parts, settings, Design((TAGS,), ("100%",), 1), cost, tmp_path / "headers", cpu=True))
    assert decoded[3:] == [(False, [0, 0])]


def test_photos_that_were_not_seen_before_are_decoded(parts, cost, tmp_path, decoded, monkeypatch):
    """Twelve tags are in fewer photos than a hundred, and no later budget is without a photo that these had."""
    monkeypatch.setattr(piloting.TrainRun, "start", lambda run: iter(()))
    monkeypatch.setattr(piloting, "_measure", lambda *_: {"mAP": 0.5})
    list(run_pilot(*parts, config(), Design((TAGS,), ("12s", "100s", "90s"), 1), cost, tmp_path / "out", cpu=True))
    assert [decode for decode, _ in decoded] == [True, True, False]


def test_photos_that_are_broken_are_left_out_of_every_training(tmp_path, decoded):
    """One cut off in each part: its header is fine, so that a training that did not decode it would stop at it."""
    scenes = make_scenes(tmp_path / "scenes", train=36, val=4, test=1, size=64, seed=0).train_truth
    pool, measured = pilot_parts(scenes, 0.33)
    for part in (pool, measured):
        path = part.root / part.images[0].as_py()
        path.write_bytes(path.read_bytes()[:-300])
    runs = list(
        run_pilot(
            pool, measured, config(), Design((TAGS,), ("100%", "50%"), 1), CostModel.measured(scenes), tmp_path / "out",
            cpu=True,
        )
    )  # fmt: skip
    assert len(runs) == 2
    assert decoded == [(True, [1, 1]), (False, [0, 0])]


def test_several_processes_are_refused(parts, cost, tmp_path, monkeypatch):
    monkeypatch.setenv("WORLD_SIZE", "2")
    with pytest.raises(ConfigError) as error:
        next(run_pilot(*parts, config(), DESIGN, cost, tmp_path / "out", cpu=True))
    assert str(error.value) == (
        "a pilot runs in one process, but WORLD_SIZE is 2; start it without torchrun or accelerate launch."
    )
    assert not (tmp_path / "out").exists()


def test_a_pilot_may_be_extended(pilot, parts, cost):
    out, runs = pilot
    before = rows(out)
    more = list(run_pilot(*parts, config(), Design((TAGS,), ("50%",), 1), cost, out, cpu=True))
    assert [(r.fresh, dict(r.row)) for r in more] == [(False, dict(runs[2].row))]
    assert rows(out) == before


def test_other_settings_or_labels_may_not_go_on(pilot, parts, cost, complete):
    out, pool = pilot[0], parts[0]
    for part, arguments in (
        ("settings", (pool, parts[1], config(train__batch_size=4), DESIGN, cost)),
        ("labels", (pool.subset(np.arange(9)), parts[1], config(), DESIGN, cost)),
        ("cost", (pool, parts[1], config(), DESIGN, CostModel(classes=10, positives_per_image=2.0))),
    ):
        with pytest.raises(ConfigError) as error:
            next(run_pilot(*arguments, out, cpu=True))
        assert str(error.value) == (
            f"{out} has a pilot with other {part}; use the same (see {out / 'pilot.json'}), or choose another --out."
        )


def test_a_folder_of_something_else_is_refused(parts, cost, tmp_path):
    (tmp_path / "mine.txt").write_text("x")
    with pytest.raises(ConfigError) as error:
        next(run_pilot(*parts, config(), DESIGN, cost, tmp_path, cpu=True))
    assert str(error.value) == f"{tmp_path} is not empty and not the folder of a pilot; choose another --out."
    assert [path.name for path in tmp_path.iterdir()] == ["mine.txt"]


def test_a_damaged_pilot_is_refused(parts, cost, tmp_path):
    (tmp_path / "pilot.json").write_text("{}")
    (tmp_path / RESULTS).write_text('{"type": "I"}\n')
    with pytest.raises(ConfigError, match=r"^the pilot in .* is damaged \('labels'\); remove the line .* --out\.$"):
        next(run_pilot(*parts, config(), DESIGN, cost, tmp_path, cpu=True))


def test_a_line_that_was_being_written_is_cut_off(tmp_path):
    (tmp_path / RESULTS).write_text('{"type": "I"}\n\n{"type": "S')
    assert piloting._whole_lines(tmp_path / RESULTS) == ['{"type": "I"}']
    assert (tmp_path / RESULTS).read_text() == '{"type": "I"}\n\n'
    assert piloting._whole_lines(tmp_path / "none") == []


def test_nothing_is_chosen_on_what_is_measured(parts, cost, tmp_path):
    with pytest.raises(
        ConfigError, match=r'^train\.select = "best" would choose the epoch on the images that the pilot'
    ):
        next(run_pilot(*parts, config(train__select="best"), DESIGN, cost, tmp_path / "out", cpu=True))
    assert not (tmp_path / "out").exists()


def test_a_purchase_without_a_positive_is_refused_before_anything_is_trained(parts, cost, tmp_path):
    """A second buys one tag, and with the first seed that is looked for here the answer is no."""
    seed = next(
        s for s in range(20) if not simulate_budget(parts[0], "1s", "I", s, cost).matrix.counts(Label.POSITIVE).any()
    )
    with pytest.raises(ConfigError) as error:
        next(run_pilot(*parts, config(), Design((TAGS,), ("50%", "1s"), seed + 1), cost, tmp_path / "out", cpu=True))
    assert str(error.value) == (
        f"a budget of 1s for tags (I) buys 1 label with seed {seed}, but none of them is positive, so nothing can "
        "be learned; use larger budgets, or more photos."
    )
    assert not (tmp_path / "out").exists()


def test_budgets_that_buy_the_same_are_run_once(parts, cost, tmp_path):
    """100 % and 200 % of tagging everything are all tags there are."""
    runs = list(run_pilot(*parts, config(), Design((TAGS,), ("100%", "200%"), 1), cost, tmp_path / "out", cpu=True))
    assert [(r.row["budget"], r.row["labels"]) for r in runs] == [("100%", len(parts[0]) * 10)]


def test_a_design_has_no_repeats():
    with pytest.raises(ConfigError, match=r"^the pilot's budget '25%' is given twice\.$"):
        Design(budgets=("25%", "50%", "25%"))
    with pytest.raises(ConfigError, match=r"^a pilot needs at least one type, one budget and one seed\.$"):
        Design(budgets=())


# --- what it buys from, and what it is measured on


def test_parts_share_no_image(complete, parts):
    pool, measured = (set(part.images.to_pylist()) for part in parts)
    assert not pool & measured
    assert pool | measured == set(complete.images.to_pylist())
    assert len(measured) == pytest.approx(0.33 * 36, abs=2)


def test_named_splits_are_taken(complete):
    keys = complete.images.to_pylist()

    def found(*names):
        """Which of the names, given to the images in turn, are bought from and measured on."""
        whole = replace(complete, split_names=pa.array([names[i % len(names)] for i in range(36)]))
        parts = pilot_parts(whole, 0.3)
        return [{names[keys.index(key) % len(names)] for key in part.images.to_pylist()} for part in parts]

    assert measured_split(complete) is None
    assert measured_split(replace(complete, split_names=pa.array(["train"] * 36))) is None
    assert measured_split(replace(complete, split_names=pa.array(["train", "val"] * 18))) == "val"
    assert found("train", "val", "test") == [{"train"}, {"test"}]
    assert found("train", "val", "extra") == [{"train"}, {"val"}]
    assert found(None, "val", "extra") == [{None, "extra"}, {"val"}]
    with pytest.raises(DataError) as error:
        found("test")
    assert str(error.value) == "all images are in split 'test', so there are none to buy labels for."


def test_incomplete_labels_cannot_be_measured_on(complete, tmp_path_factory):
    single = make_scenes(tmp_path_factory.mktemp("photos") / "s", train=12, val=2, test=1, size=64, seed=0).train
    with pytest.raises(DataError, match=r"^none of the classes has both known positives and known negatives in the 4 "):
        pilot_parts(single, 0.33)
