"""Settings that are tried before training: what is chosen, recorded, kept, and resumed."""

import json
import shutil
from dataclasses import replace

import numpy as np
import pytest
import timm
import torch
from safetensors.torch import save_file
from search_runs import FACTS, SIZES, SOLVED
from train_runs import take, train

from fewtags.config.presets import Candidate, resolve
from fewtags.config.search import candidates, settled, trial
from fewtags.config.sections import ObjectiveConfig
from fewtags.engine import fit, planning, preset_facts, run_photos, runfolder, search
from fewtags.engine.distributed import make_accelerator
from fewtags.engine.events import Noted
from fewtags.engine.model import read_info
from fewtags.engine.planning import make_plan, settings_of_best
from fewtags.engine.runfolder import SEARCH_FILE
from fewtags.engine.search import Search, Trial, best_of, compared, read_search
from fewtags.engine.tables import Tables
from fewtags.engine.tensor_files import load_tensors
from fewtags.engine.train_run import TrainRun, open_run
from fewtags.errors import CheckpointError, ConfigError
from fewtags.formats.scores import scores_of
from fewtags.labels import Label
from fewtags.report.build import render
from fewtags.report.load import load_run


@pytest.fixture(scope="module")
def searched(scenes, tmp_path_factory, request):
    """A finished run that compared two sizes and two methods, and the lines that it said."""
    out = tmp_path_factory.mktemp("runs") / "searched"
    make = request.getfixturevalue("make_config")
    search_config = make(**SOLVED, **SIZES, search__methods=["expected_negative", "assume_negative"])
    search_config = search_config.model_copy(update={"objective": ObjectiveConfig()})
    tables = Tables(scenes.train, scenes.val, scenes.test, scenes.train_truth)
    events = train(search_config, tables, out)
    return out, [event.text for event in events if isinstance(event, Noted)]


def test_every_trial_is_recorded_and_the_best_is_trained(searched):
    out, lines = searched
    found = read_search(out)
    names = [(t.candidate.size, t.candidate.method) for t in found.trials]
    assert names == [(s, m) for s in (32, 64) for m in ("expected_negative", "assume_negative")]
    values = [trial.value for trial in found.trials]
    assert found.chosen == values.index(max(values))
    best = found.trials[found.chosen]
    info = read_info(out / "model.safetensors")
    assert (info.size, info.method["name"]) == (best.candidate.size, best.candidate.method)
    assert json.loads((out / "evaluation" / "val.json").read_text())["mAP"] == pytest.approx(best.value)
    assert len(lines) == 5
    assert lines[0].startswith(f"search: 32 px, expected_negative: val mAP {100 * values[0]:.1f} (")
    assert lines[-1] == f"search: {found.why}"
    assert "is trained (" in found.why
    assert "95 % interval" in found.why


def test_the_record_is_that_of_the_best(searched):
    out, _ = searched
    best = read_search(out).trials[read_search(out).chosen].candidate
    run = load_run(out)
    assert (run.resolved["size"], run.resolved["method"]) == (best.size, best.method)
    assert run.resolved.get("search", []) == []
    assert run.environment["method"]["name"] == best.method
    assert any(note.startswith("search: ") for note in run.environment["notes"])
    assert run.seconds["search"] > 0
    assert run.info.selection.endswith("; the best of 4 tried first")
    values = [tried.value for tried in run.tried]
    assert values == sorted(values, reverse=True)
    assert [tried.trained for tried in run.tried] == [True, False, False, False]
    page = render([run])
    assert f'<td class="l">{run.tried[0].name}</td>' in page


def test_it_is_the_model_of_a_run_with_these_settings(searched, tables, search_config, tmp_path):
    out, _ = searched
    best = read_search(out).trials[read_search(out).chosen].candidate
    train(
        search_config(search__sizes=[], augment__size=best.size, objective={"name": best.method}),
        tables,
        tmp_path / "run",
    )
    one, two = (load_tensors(folder / "model.safetensors") for folder in (out, tmp_path / "run"))
    assert all(torch.equal(value, two[name]) for name, value in one.items())


def test_an_interrupted_search_goes_on(search_config, tables, tmp_path, monkeypatch):
    tried = []
    whole = Search._try
    monkeypatch.setattr(Search, "_try", lambda self, number: tried.append(number) or whole(self, number))
    train(search_config(), tables, tmp_path / "whole")
    run = TrainRun(make_plan(search_config(), tables=tables, cpu=True), tmp_path / "run", cpu=True).start()
    next(run)
    run.close()
    assert tried == [0, 1, 0]
    assert len(read_search(tmp_path / "run").trials) == 1
    take(open_run(tmp_path / "run", cpu=True).resume())
    assert tried == [0, 1, 0, 1]
    values = [[t.value for t in read_search(tmp_path / name).trials] for name in ("whole", "run")]
    assert values[0] == values[1]
    one, two = (load_tensors(tmp_path / name / "model.safetensors") for name in ("whole", "run"))
    assert all(torch.equal(value, two[name]) for name, value in one.items())


def test_two_backbones_are_compared_and_trained_with_a_teacher(search_config, tables, tmp_path):
    """Features of one are not those of the other, and a search that was interrupted goes on with both and the teacher.

    Each trial, and the model, are those of a run with its backbone alone.
    """
    names = ("test_resnet", "test_efficientnet")
    scores = scores_of(0.2 + 0.6 * (tables.truth.matrix.dense() == Label.POSITIVE), tables.train)

    def plan(names):
        changes = {"search__sizes": [], "augment__size": 32, "model__backbone": None, "search__backbones": names}
        return make_plan(search_config(**changes), tables=tables, scores=scores, cpu=True)

    run = TrainRun(plan(names), tmp_path / "both", cpu=True).start()
    next(run)
    run.close()
    take(open_run(tmp_path / "both", cpu=True).resume())
    for name in names:
        take(TrainRun(plan([name]), tmp_path / name, cpu=True).start())
    found = read_search(tmp_path / "both")
    assert [tried.value for tried in found.trials] == [read_search(tmp_path / n).trials[0].value for n in names]
    best = found.trials[found.chosen].candidate.backbone
    assert load_run(tmp_path / "both").resolved["backbone"] == best
    one, two = (load_tensors(tmp_path / name / "model.safetensors") for name in ("both", best))
    assert one.keys() == two.keys()
    assert all(torch.equal(value, two[name]) for name, value in one.items())


@pytest.mark.parametrize("file", ["resolved.toml", "environment.json"])
def test_a_choice_that_was_half_written_is_completed(search_config, tables, tmp_path, monkeypatch, file):
    whole = runfolder.write_text

    def cut(path, text):
        if path.name == file and (tmp_path / "run" / "run.toml").exists():
            raise KeyboardInterrupt
        whole(path, text)

    with monkeypatch.context() as patch:
        patch.setattr(runfolder, "write_text", cut)
        with pytest.raises(KeyboardInterrupt):
            train(search_config(), tables, tmp_path / "run")
    opened = open_run(tmp_path / "run", cpu=True)
    assert opened.plan.resolved.search == ()
    assert opened.plan.resolved.size == read_search(tmp_path / "run").trials[opened_choice(tmp_path)].candidate.size
    take(opened.resume())
    assert (tmp_path / "run" / "model.safetensors").exists()


def opened_choice(tmp_path):
    return read_search(tmp_path / "run").chosen


def test_labels_that_rank_nothing_train_the_first(search_config, tables, tmp_path):
    """One positive label a photo: the measure is mAP with unknown counted as absent."""
    train(search_config(), Tables(tables.train, tables.train.subset(np.arange(8))), tmp_path / "run")
    assert {trial.metric for trial in read_search(tmp_path / "run").trials} == {"pessimistic_mAP"}
    assert "interval" not in read_search(tmp_path / "run").why


def test_a_single_candidate_is_trained(search_config, tables, tmp_path):
    train(search_config(search__sizes=[32]), tables, tmp_path / "run")
    assert read_search(tmp_path / "run").why == "32 px is trained, the only one"
    assert read_info(tmp_path / "run" / "model.safetensors").size == 32


def test_candidates_that_share_features_compute_them_once(search_config, tables, tmp_path, monkeypatch):
    passes = []
    whole = run_photos.fill_fixed
    monkeypatch.setattr(run_photos, "fill_fixed", lambda *a, **k: passes.append(1) or whole(*a, **k))
    train(search_config(search__methods=["expected_negative", "assume_negative"], search__sizes=[], augment__size=64),
          tables, tmp_path / "run")  # fmt: skip
    assert len(passes) == 1


def test_the_best_is_fine_tuned_with_the_epochs_that_fit(make_config):
    found = make_config(**SOLVED | {"train__preset": "finetune"}, **SIZES)
    resolved = resolve(found, FACTS)
    one = candidates(found, resolved, FACTS)[0]
    assert settled(resolved, one).stages == resolved.stages
    assert settled(resolved, one.model_copy(update={"epochs": 2})).stages[-1].epochs == 2
    assert settled(resolved, one.model_copy(update={"epochs": 0})).stages == trial(resolved, one).stages
    assert (settled(resolved, one).size, settled(resolved, one).search) == (32, ())
    solved = resolve(make_config(**SOLVED, **SIZES), FACTS)
    weighted = solved.stages[0].model_copy(update={"answer_weights": (4.0, 1.0), "epochs": 8})
    kept = settled(solved.model_copy(update={"stages": (weighted,)}), one.model_copy(update={"epochs": 0}))
    assert kept.stages == (weighted,)


def test_photos_are_fine_tuned_at_the_best_size(search_config, tables, tmp_path, monkeypatch):
    monkeypatch.setattr(search, "best_of", lambda trials: len(trials) - 1)
    sizes, channels_last = set(), fit._channels_last

    def spy(batch):
        sizes.add(tuple(batch.images.shape[2:]))
        return channels_last(batch)

    monkeypatch.setattr(fit, "_channels_last", spy)
    plan = make_plan(search_config(train__preset="finetune", train__epochs=1), tables=tables, cpu=True)
    assert [candidate.size for candidate in plan.resolved.search] == [32, 64]
    take(TrainRun(plan, tmp_path / "run", cpu=True).start())
    assert (sizes, read_info(tmp_path / "run" / "model.safetensors").size) == ({(64, 64)}, 64)


def test_it_goes_on_from_another_folder(search_config, tables, tmp_path, monkeypatch):
    """The record keeps the folder that relative paths begin in, and candidates find their file of weights."""
    (tmp_path / "there").mkdir()
    (tmp_path / "else").mkdir()
    monkeypatch.chdir(tmp_path / "there")
    save_file(timm.create_model("test_resnet", num_classes=0).state_dict(), "trunk.safetensors")
    begun = search_config(model__weights="trunk.safetensors", train__baseline=False)
    run = TrainRun(make_plan(begun, tables=tables, cpu=True), tmp_path / "run", cpu=True).start()
    next(run)
    run.close()
    monkeypatch.chdir(tmp_path / "else")
    opened = open_run(tmp_path / "run", cpu=True)
    assert opened.notes[-1].endswith("what was tried is kept, and training starts with epoch 1")
    assert opened.folder.what_next().endswith("continues after what was tried (search.json)")
    take(opened.resume())
    environment = json.loads((tmp_path / "run" / "environment.json").read_text())
    assert environment["working_directory"] == str(tmp_path / "there")


def test_before_the_search_the_settings_are_those_of_the_first_candidate(search_config, tables):
    changes = {"search__backbones": ["test_resnet"], "model__backbone": None}
    resolved = make_plan(search_config(**changes), tables=tables, cpu=True).resolved
    assert (resolved.backbone, resolved.size, len(resolved.search)) == ("test_resnet", 32, 2)


def test_the_notes_are_those_of_the_best(search_config, tables, tmp_path, monkeypatch):
    monkeypatch.setattr(search, "best_of", lambda trials: len(trials) - 1)
    changes = {"search__sizes": [], "augment__size": 32, "search__methods": ["expected_negative", "assume_negative"]}
    plan = make_plan(search_config(**changes), tables=tables, cpu=True)
    assert any(note.startswith("positives per image") for note in plan.notes)
    plan = replace(plan, notes=("1 minute: 2 epochs", *plan.notes))
    take(TrainRun(plan, tmp_path / "run", cpu=True).start())
    notes = json.loads((tmp_path / "run" / "environment.json").read_text())["notes"]
    assert not any(note.startswith("positives per image") for note in notes)
    assert notes[0] == "1 minute: 2 epochs"
    assert notes[-1].startswith("search: assume_negative is trained")


def test_patience_does_not_end_a_trial(search_config):
    resolved = resolve(search_config(train__preset="finetune", train__patience=1), FACTS)
    one = candidates(search_config(), resolved, FACTS)[0]
    assert (trial(resolved, one).patience, settled(resolved, one).patience) == (0, 1)


def test_a_method_that_does_not_weigh_answers_tries_no_weights(search_config, tables, monkeypatch):
    for module in (preset_facts, planning):
        monkeypatch.setattr(module, "has_answers", lambda _: True)
    methods = ["expected_negative", "assume_negative"]
    plan = make_plan(
        search_config(search__methods=methods, search__sizes=[], augment__size=32), tables=tables, cpu=True
    )
    first, second = (settings_of_best(plan, one).stages[0] for one in plan.resolved.search)
    assert (first.answer_weights, first.epochs) == ((4.0, 1.0, 16.0), 10)
    assert (second.answer_weights, second.epochs) == ((), 6)


def test_a_size_without_time_for_epochs_tries_weights_of_answers(search_config, tables, monkeypatch):
    """Its head is solved alone, which other sizes do only before their epochs."""
    for module in (preset_facts, planning):
        monkeypatch.setattr(module, "has_answers", lambda _: True)
    plan = make_plan(search_config(train__preset="finetune"), tables=tables, cpu=True)
    one = plan.resolved.search[0]
    (alone,) = settings_of_best(plan, one.model_copy(update={"epochs": 0})).stages
    assert (alone.answer_weights, alone.epochs) == ((4.0, 1.0, 16.0), 10)
    both = settings_of_best(plan, one.model_copy(update={"epochs": 2})).stages
    assert [(stage.answer_weights, stage.epochs) for stage in both] == [((), 6), ((), 2)]


def test_the_model_says_what_its_search_compared(searched):
    found = read_search(searched[0])
    assert compared(None) == compared(found.model_copy(update={"trials": found.trials[:1]})) == ""
    assert compared(found) == "; the best of 4 tried first"
    unknown = tuple(tried.model_copy(update={"value": None}) for tried in found.trials)
    assert compared(found.model_copy(update={"trials": unknown})) == (
        "; the first of 4, which validation could not compare"
    )


def test_a_search_that_is_damaged_after_the_choice_can_be_left_out(searched, tmp_path):
    shutil.copy(searched[0] / "resolved.toml", tmp_path)
    (tmp_path / SEARCH_FILE).write_text("{")
    with pytest.raises(CheckpointError, match="restore it, or delete it: the run keeps its choice"):
        read_search(tmp_path)


@pytest.mark.parametrize(
    ("sizes", "words"),
    [((64,), "trial 1 is not what the run tries there"), ((32, 64, 96), "it has 3 trials, and the run tries 2")],
)
def test_trials_of_another_search_are_refused(search_config, tables, tmp_path, searched, sizes, words):
    found = read_search(searched[0])
    one = found.trials[0]
    trials = [one.model_copy(update={"candidate": one.candidate.model_copy(update={"size": s})}) for s in sizes]
    (tmp_path / SEARCH_FILE).write_text(found.model_copy(update={"trials": tuple(trials)}).model_dump_json())
    plan = make_plan(search_config(), tables=tables, cpu=True)
    with pytest.raises(CheckpointError, match=words):
        Search(plan, tmp_path, make_accelerator("no", cpu=True), cpu=True)


def test_a_method_that_is_alone_is_named(search_config, tables):
    with pytest.raises(ConfigError, match="search cannot try splc at 64 px: the method compares views"):
        make_plan(search_config(search__methods=["splc"], search__sizes=[], augment__size=64), tables=tables, cpu=True)


def test_each_candidate_is_derived_once_before_training(search_config, tables, monkeypatch):
    """A derived plan has a net of its own. The first candidate is the plan itself."""
    sizes, whole = [], planning.derive
    monkeypatch.setattr(
        planning,
        "derive",
        lambda *a, **k: sizes.append(k["resolved"].size) or whole(*a, **k),
    )
    make_plan(search_config(), tables=tables, cpu=True)
    assert sizes == [32, 64]


def test_a_candidate_that_was_left_out_is_no_rival_in_the_report(searched, tmp_path):
    """It may have the highest mAP: the report says why it is not trained, and the model does not claim to be best."""
    found = read_search(searched[0])
    best = found.trials[found.chosen]
    better = best.model_copy(update={"value": 1.0, "left_out": "labels are not blank at random", "seconds": 77.0})
    record = found.model_copy(update={"trials": (*found.trials, better)})
    assert compared(record) == "; the best of 5 tried first that was not left out"
    alone = found.model_copy(update={"trials": (best, better), "chosen": 0})
    assert compared(alone) == "; the only one of 2 tried first that was not left out"
    shutil.copytree(searched[0], tmp_path / "run")
    (tmp_path / "run" / SEARCH_FILE).write_text(record.model_dump_json())
    run = load_run(tmp_path / "run")
    assert [tried.seconds for tried in run.tried].index(77.0) == 4
    assert run.tried[0].trained or found.trials[0].value == best.value
    assert "left out: labels are not blank at random" in render([run])


def test_a_candidate_that_is_left_out_is_never_the_best():
    one = Candidate(backbone="a", weights="none", size=32, pool="mean", method="bce")
    trials = tuple(
        Trial(candidate=one, metric="mAP", value=value, logit_variance=1, seconds=0, left_out=why)
        for value, why in ((None, ""), (0.9, "not random"), (0.8, ""))
    )
    assert best_of(trials) == 2
    assert best_of(trials[:2]) == 0
