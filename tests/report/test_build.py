"""The page."""

import html
import json
import re
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from fewtags.engine import evaluate as evaluation
from fewtags.engine.evaluate import evaluate_logits
from fewtags.errors import CheckpointError, ConfigError
from fewtags.labels import ClassNames, Label
from fewtags.metrics.decisions import DecisionReport
from fewtags.metrics.intervals import difference_interval
from fewtags.metrics.metric import Metric
from fewtags.metrics.ranking import RankingReport
from fewtags.report import build
from fewtags.report.build import BADGES, alone, build_report, class_rows, difference, match_runs, render
from fewtags.report.gallery import SIDE, cards, over_epochs, read_picture
from fewtags.report.load import RunData, load_evaluations, load_run
from fewtags.table.storage import save
from fewtags.table.table import LabelTable
from fewtags.text import apart

MakeRun = Callable[..., RunData]


def text_of(page: str) -> str:
    """What a reader sees, in one line."""
    page = re.sub(r"<style>.*?</style>", "", page, flags=re.DOTALL)
    return " ".join(html.unescape(re.sub(r"<[^>]+>", " ", page)).split())


def test_page_needs_nothing_else(make_run: MakeRun) -> None:
    page = render([make_run()])
    sources = re.findall(r'(?:src|href)="([^"]*)"', page)
    assert sources
    assert all(s.startswith(("data:image/", "#")) for s in sources)
    assert "<script" not in page


def test_page_holds_the_numbers(make_run: MakeRun) -> None:
    run = make_run()
    e = run.evaluations["val"]
    seen = text_of(render([run]))
    low, high = e["mAP_interval"]
    assert f"{100 * e['mAP']:.1f} mAP (95 % over images: {100 * low:.1f} to {100 * high:.1f})" in seen
    assert f"{100 * e['CF1']:.1f} CF1 {100 * e['OF1']:.1f} OF1 2.00 known labels per image" in seen
    assert "3 of 3 classes counted, 12 images, 36 known cells" in seen
    for row in e["per_class"]:
        low, high = row["interval"]
        counts = f"{row['positives']} {row['negatives']} {row['unknown']} 0.500 fitted"
        assert f"{row['name']} {100 * row['average_precision']:.1f} {100 * low:.1f} – {100 * high:.1f} {counts}" in seen
    assert "expected_negative (positives_per_image 2, scl_weight 0.1)" in seen
    assert "positives per image: 2.00, a guess" in seen


def test_every_panel_is_told_with_probability_and_threshold(make_run: MakeRun) -> None:
    run = make_run()
    seen = text_of(render([run]))
    for shown in run.gallery:
        for panel in shown.panels:
            sign, tick = ("≥", " tagged") if panel.prob >= 0.5 else ("<", "")
            name = run.info.class_names[panel.class_]
            prob, threshold = apart(panel.prob, 0.5)
            assert f"{name} {prob} {sign} {threshold}{tick} {BADGES.get(panel.role, panel.role)}" in seen


def test_a_probability_just_below_its_threshold_does_not_look_equal(make_run: MakeRun) -> None:
    run = make_run()
    first, *rest = run.gallery
    shown = replace(first, panels=(replace(first.panels[0], prob=0.4971), *first.panels[1:]))
    (panel, *_) = cards([replace(run, gallery=(shown, *rest))])[0]["rows"][0]["panels"]
    assert (panel["prob"], panel["threshold"], panel["present"]) == ("0.497", "0.500", False)


@pytest.mark.parametrize("nasty", ['<b>&"', "<script>alert(1)</script>", "猫 و ☃", "$x_1$", "{{ 7 * 7 }}", "'"])
def test_names_cannot_break_the_page(make_run: MakeRun, nasty: str) -> None:
    page = render([make_run(nasty, (nasty, "dog", "owl"))])
    assert "<script" not in page
    assert '<b>&"' not in page
    assert "<b>&0" not in page
    seen = text_of(page)
    assert f"{nasty} " in seen
    assert "train/<b>&0.png" in seen


def test_class_without_negatives_is_listed_with_the_reason(make_run: MakeRun) -> None:
    run = make_run()
    rows = [dict(row) for row in run.evaluations["val"]["per_class"]]
    rows[1] |= {"average_precision": None, "interval": [None, None], "excluded": "no known negative"}
    changed = replace(run, evaluations={"val": {**run.evaluations["val"], "per_class": rows, "classes_counted": 2}})
    seen = text_of(render([changed]))
    assert "2 of 3 classes counted" in seen
    assert "dog no known negative – –" in seen
    assert [row["name"] for row in class_rows([changed], "val")][-1] == "dog"


def test_run_without_known_negatives_says_what_can_be_measured(make_run: MakeRun) -> None:
    run = make_run(complete=False)
    assert run.evaluations["val"]["mAP"] is None
    seen = text_of(render([run]))
    only = run.evaluations["val"]["positive_only"]
    assert f"{100 * only['hit@1']:.1f} hit@1" in seen
    assert "mAP, unknown counted as absent (pessimistic)" in seen
    assert "average precision has no meaning" in seen
    assert difference([run, run], "val") == {"why": ""}


@pytest.mark.parametrize("state", [Label.NEGATIVE, Label.UNKNOWN])
def test_a_split_without_a_known_positive_is_reported_as_such(make_run: MakeRun, state: int) -> None:
    run = make_run()
    labels = np.full(run.logits["val"].shape, state, np.int8)
    found = evaluate_logits(run.logits["val"], labels, run.info.classes, np.full(3, 0.5)).to_dict()
    rules = run.evaluations["val"]["threshold_rules"]
    evaluations = {**run.evaluations, "test": {**found, "threshold_rules": rules}}
    test = replace(run, evaluations=evaluations, logits={**run.logits, "test": run.logits["val"]})
    seen = text_of(render([test]))
    assert "no known positive in test; nothing to rank" in seen
    assert "no known positive in val" not in seen
    assert not re.search(r"\bnan\b", seen)


def test_a_metric_that_is_added_in_one_place_reaches_the_page(
    make_run: MakeRun, monkeypatch: pytest.MonkeyPatch
) -> None:
    yield_metrics = evaluation.decision_metrics

    def extended(ranking: RankingReport, decisions: DecisionReport) -> Iterator[Metric]:
        yield from yield_metrics(ranking, decisions)
        yield Metric(key="CP", label="class precision", value=0.123, count=3, items="classes")

    monkeypatch.setattr(evaluation, "decision_metrics", extended)
    assert "12.3 class precision" in text_of(render([make_run()]))


def test_evaluations_of_older_runs_get_their_metrics_from_the_logits(make_run: MakeRun) -> None:
    run = make_run()
    found = evaluate_logits(run.logits["val"], run.tables["val"].matrix.dense(), run.info.classes, np.full(3, 0.5))
    older = {key: value for key, value in found.to_dict().items() if key != "metrics"}
    for folder in ("evaluation", "tables"):
        (run.path / folder).mkdir(parents=True)
    (run.path / "evaluation" / "val.json").write_text(json.dumps(older), "utf-8")
    np.save(run.path / "evaluation" / "val.npy", run.logits["val"])
    save(run.tables["val"], run.path / "tables" / "val.parquet")
    assert load_evaluations(run.path) == {"val": found.to_dict()}


def test_two_hundred_classes_stay_below_5_mb(make_run: MakeRun) -> None:
    names = tuple(f"class {i}" for i in range(200))
    page = render([make_run("a", names, images=40), make_run("b", names, images=40)])
    assert len(page.encode()) < 5_000_000
    assert "all 200 classes" in page
    assert all(name in page for name in names)


def test_missing_photo_is_grey_and_named(make_run: MakeRun) -> None:
    run = make_run()
    assert run.tables["val"].root is not None
    (run.tables["val"].root / "val" / "1.png").unlink()
    seen = text_of(render([run]))
    assert re.search(r"val/1\.png \S*val/1\.png.*?(does not exist|not found|no such|missing)", seen, re.IGNORECASE)
    gone = read_picture(run.tables["val"], "val/1.png")
    assert (gone.pixels == 128).all()
    assert (
        read_picture(run.tables["val"].with_root(None), "val/2.png").missing
        == "the labels do not say where the photos are"
    )


def test_photos_are_made_small_but_never_larger(make_run: MakeRun) -> None:
    run = make_run()
    assert read_picture(run.tables["val"], "val/2.png").pixels.shape == (30, 40, 3)
    assert read_picture(run.tables["val"], "val/2.png", 20).pixels.shape == (15, 20, 3)
    assert SIDE <= 400


def test_maps_of_a_centre_crop_are_put_where_the_net_looked(make_run: MakeRun) -> None:
    """Policy `imagenet` sees the centre of a photo only; the overlay of the same maps must differ."""
    whole, centre = cards([make_run()]), cards([make_run(policy="imagenet")])
    pairs = zip(whole, centre, strict=True)
    assert all(a["rows"][0]["panels"][0]["picture"] != b["rows"][0]["panels"][0]["picture"] for a, b in pairs)


def test_progress_follows_the_class_even_when_others_are_shown(make_run: MakeRun) -> None:
    """In epoch 1 the photo's panels come in another order, and one class is missing."""
    run = make_run()
    first = run.gallery[0]
    other = tuple(replace(s, panels=tuple(reversed(s.panels[1:]))) for s in run.gallery)
    rows = over_epochs(replace(run, progress={0: other, 4: run.gallery}))
    mine = [row for row in rows if row["key"] == first.key]
    assert [[s["epoch"] for s in row["steps"]] for row in mine] == [[1, 5]] * 3  # the columns are the same epochs
    assert [[s["picture"] != "" for s in row["steps"]] for row in mine] == [[False, True], [True, True], [True, True]]
    for row, panel in zip(mine, first.panels, strict=False):
        assert {s["prob"] for s in row["steps"] if s["picture"]} == {panel.prob}


def test_marks_do_not_say_more_than_is_known(make_run: MakeRun) -> None:
    """No tick that reads as "correct"; long strips are folded; the words of the results are explained."""
    run = make_run()
    page = render([replace(run, progress={0: run.gallery})])
    assert "✓" not in page
    assert 'predicted">predicted<' not in page
    assert "<details><summary>Heatmaps over epochs" in page
    terms = text_of(page[page.index('id="terms"') :])
    for word in ("cell ", "mAP", "CF1", "OF1", "hit@1", "expected_count", "class_f1", "K "):
        assert word in terms


def test_difference_is_that_of_the_means_with_a_paired_interval(make_run: MakeRun) -> None:
    runs = [make_run("a", images=40), make_run("b", images=40, quality=3.0)]
    found = difference(runs, "val")
    labels = runs[0].tables["val"].matrix.dense()
    first, second = (run.logits["val"].astype(np.float64) for run in runs)
    assert found["value"] == pytest.approx(runs[1].evaluations["val"]["mAP"] - runs[0].evaluations["val"]["mAP"])
    assert (found["low"], found["high"]) == difference_interval(first, second, labels)
    assert found["low"] < found["value"] < found["high"]
    assert f"b − a: {100 * found['value']:+.1f} mAP on val" in text_of(render(runs))


def test_different_validation_labels_have_no_difference(make_run: MakeRun) -> None:
    seen = text_of(render([make_run("a"), make_run("b", seed=1)]))
    assert "The runs were measured on different val labels, so their difference has no meaning." in seen
    assert "paired" not in seen


def test_runs_without_a_common_class_are_refused(
    make_run: MakeRun, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    runs = {Path("a"): make_run("a"), Path("b"): make_run("b", ("x", "y"), ids=("x", "y"))}
    monkeypatch.setattr(build, "load_run", runs.__getitem__)
    with pytest.raises(ConfigError) as error:
        build_report(list(runs), tmp_path / "page.html")
    assert str(error.value) == (
        "a (cat, dog, owl, ...) and b (x, y, ...) have no class in common; report each on its own."
    )
    assert not (tmp_path / "page.html").exists()


def permuted(run: RunData, order: list[int]) -> RunData:
    """The same run with its classes in another order, or without some of them."""
    classes = ClassNames([run.info.class_ids[c] for c in order], [run.info.class_names[c] for c in order])
    found = run.evaluations["val"]
    table = run.tables["val"]
    dense = table.matrix.dense()[:, order]
    image, class_ = np.nonzero(dense)
    moved = LabelTable.build(
        table.images.to_pylist(), classes, image=image, class_=class_, state=dense[image, class_], root=table.root
    )
    per_class = {k: [found[k][c] for c in order] for k in ("per_class", "threshold_rules")}
    info = replace(
        run.info,
        class_ids=classes.ids,
        class_names=classes.names,
        thresholds=tuple(run.info.thresholds[c] for c in order),
        threshold_rules=tuple(run.info.threshold_rules[c] for c in order),
    )
    place = {c: n for n, c in enumerate(order)}
    gallery = tuple(
        replace(s, panels=tuple(replace(p, class_=place[p.class_]) for p in s.panels if p.class_ in place))
        for s in run.gallery
    )
    return replace(
        run,
        info=info,
        evaluations={"val": {**found, **per_class}},
        logits={"val": run.logits["val"][:, order]},
        tables={**run.tables, "val": moved},
        gallery=gallery,
        progress={0: gallery},
    )


def test_classes_are_matched_by_id_whatever_their_order(make_run: MakeRun) -> None:
    """A permutation of the second run changes no number of the comparison."""
    runs = [make_run("a", images=40), make_run("b", images=40, quality=3.0)]
    other = [runs[0], permuted(runs[1], [2, 0, 1])]
    assert class_rows(other, "val") == class_rows(runs, "val")
    # The mean over classes in another order rounds otherwise.
    assert difference(other, "val") == pytest.approx(difference(runs, "val"), abs=1e-12)
    assert alone(other) == []
    assert "Only" not in text_of(render(other))


def test_classes_that_only_one_run_knows_are_listed_and_left_out(make_run: MakeRun) -> None:
    """The second run never heard of `dog`: the difference is that of the mean APs of the others."""
    runs = [make_run("a", images=40), make_run("b", images=40, quality=3.0)]
    fewer = [runs[0], permuted(runs[1], [2, 0])]
    assert sorted(row["name"] for row in class_rows(fewer, "val")) == ["cat", "owl"]
    assert alone(fewer) == [("a", ["dog"])]
    aps = [
        [row["average_precision"] for row in run.evaluations["val"]["per_class"] if row["name"] != "dog"]
        for run in fewer
    ]
    assert difference(fewer, "val")["value"] == pytest.approx(np.mean(aps[1]) - np.mean(aps[0]))
    seen = text_of(render(fewer))
    assert (
        "Only a knows 1 of its classes: dog. They are part of its own results above, but not of the comparison" in seen
    )
    assert "val: all 2 classes" in seen


def test_no_common_class_can_be_measured(make_run: MakeRun) -> None:
    run = make_run("a")
    table = run.tables["val"]
    keep = np.flatnonzero(table.matrix.dense()[:, 0] == Label.POSITIVE)
    short = replace(run, tables={"val": table.subset(keep)}, logits={"val": run.logits["val"][keep]})
    found = difference([short, permuted(short, [0])], "val")
    assert found == {"why": "No class that both runs know has known positives and known negatives in val."}


def test_runs_of_the_same_name_are_told_apart(
    make_run: MakeRun, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    runs = {Path(p): replace(make_run("first"), path=tmp_path / p) for p in ("a/first", "b/first")}
    for place in runs:
        (tmp_path / place).mkdir(parents=True)
    monkeypatch.setattr(build, "load_run", runs.__getitem__)
    page = build_report(list(runs), tmp_path / "page.html").read_text("utf-8")
    assert f"{tmp_path / 'a/first'} / {tmp_path / 'b/first'}" in text_of(page)


@pytest.mark.parametrize(
    ("file", "message"), [("", "is not a run folder."), ("run.toml", "`fewtags resume` it first.")]
)
def test_unfinished_run(tmp_path: Path, file: str, message: str) -> None:
    if file:
        (tmp_path / file).touch()
    with pytest.raises(CheckpointError, match=message):
        load_run(tmp_path)


def test_the_page_compares_with_the_baseline_and_accounts_for_the_time(make_run):
    told = ("baseline, logistic regression: mAP val 60.0 (this run 59.0)", "The baseline is better on val by 1.0.")
    run = replace(make_run(), baseline=told, seconds={"features": 51.6, "training": 9.0})
    page = render([run])
    assert (
        "<p>Baseline, logistic regression: mAP val 60.0 (this run 59.0). The baseline is better on val by 1.0.</p>"
        in page
    )
    assert "photos to model in 61 s: 52 s features, 9 s training." in page
    assert "aseline" not in render([make_run()])


def test_runs_that_spell_a_class_differently_are_compared(make_run: MakeRun) -> None:
    """The same classes under other names: all three are common, and a sentence names the pairs."""
    first = make_run("first", ids=("cat", "hot dog", "owl"))
    second = make_run("second", ids=("Cat", "hot_dog", "owl"))
    runs, said = match_runs([first, second])
    assert not alone(runs)
    assert len(class_rows(runs, "val")) == 3
    assert "value" in difference(runs, "val")
    assert said == [
        "second: 2 class names are matched to first, because only the spelling differs: 'Cat' = 'cat', "
        "'hot_dog' = 'hot dog'"
    ]
    assert html.unescape(said[0]) in text_of(render(runs, said))


def test_classes_that_are_hardly_tagged_are_named(make_run: MakeRun) -> None:
    run = make_run()
    rules = ("none_expected", *run.info.threshold_rules[1:])
    seen = text_of(render([replace(run, info=replace(run.info, threshold_rules=rules))]))
    assert "1 class has no usable threshold and will hardly ever be tagged" in seen
    assert "no usable threshold" not in text_of(render([run]))


def test_weak_maps_of_all_runs_share_one_scale_that_the_page_states(make_run: MakeRun) -> None:
    """Maps of .1 and .2 in one run and .1 and .4 in the other: .1 to .4 in both, so that they can be compared."""
    runs = [make_run("a"), make_run("b")]
    for number, high in enumerate((0.2, 0.4)):
        weak = np.array([[0.1, high]], np.float16)
        gallery = tuple(replace(s, panels=tuple(replace(p, map=weak) for p in s.panels)) for s in runs[number].gallery)
        runs[number] = replace(runs[number], gallery=gallery, progress={0: gallery})
    shared = [p for photo in cards(runs) for row in photo["rows"] for p in row["panels"]]
    assert "relative scale: 0.10 to 0.40" in {p["scale"] for p in shared}
    assert "relative scale: 0.10 to 0.40" in render(runs)
    assert {row["scale"] for row in over_epochs(runs[0])} == {"relative scale: 0.10 to 0.20"}


def test_differences_by_class_are_paired_and_need_enough_positives(make_run: MakeRun) -> None:
    """Each class of 40 images has at least 26 positives; of 6 images, 4, which is too few for an interval."""
    runs = [make_run("a", images=40), make_run("b", images=40, quality=3.0)]
    labels = runs[0].tables["val"].matrix.dense()
    first, second = (run.logits["val"].astype(np.float64) for run in runs)
    for row in class_rows(runs, "val"):
        found, (before, after) = row["difference"], row["runs"]
        c = [r["name"] for r in runs[0].evaluations["val"]["per_class"]].index(row["name"])
        assert found["value"] == pytest.approx(after["average_precision"] - before["average_precision"])
        assert (found["low"], found["high"]) == difference_interval(first[:, [c]], second[:, [c]], labels[:, [c]])
    few = class_rows([make_run("a", images=6), make_run("b", images=6)], "val")
    assert {row["difference"]["low"] for row in few} == {None}
    assert "b − a" in text_of(render(runs))
    assert {row["difference"] for row in class_rows([make_run("a"), make_run("b", seed=1)], "val")} == {None}


def test_photos_and_maps_share_the_width_of_the_page(make_run: MakeRun) -> None:
    """As many columns as the photo with its maps needs, so that a photo with two maps does not leave half empty."""
    run = make_run()
    for photo in cards([run]):
        assert photo["columns"] == 1 + len(photo["rows"][0]["panels"])
        assert f'style="--columns:{photo["columns"]}"' in render([run])


def test_classes_that_exclude_each_other_are_not_called_tagged(make_run: MakeRun) -> None:
    """Only the best of a group is tagged, which the probability of one class does not show."""
    run = make_run()
    low = replace(run, info=replace(run.info, thresholds=(0.0, 0.0, 0.0)))
    grouped = replace(low, info=replace(low.info, exactly_one=(("c0", "c1", "c2"),)))
    assert {p["tagged"] for photo in cards([low]) for row in photo["rows"] for p in row["panels"]} == {True}
    assert {p["tagged"] for photo in cards([grouped]) for row in photo["rows"] for p in row["panels"]} == {False}
