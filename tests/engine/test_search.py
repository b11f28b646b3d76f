"""Settings that are tried before training: what is chosen, recorded, kept, and resumed."""

import json
import shutil
from dataclasses import replace

import numpy as np
import pytest
import timm
import torch
from safetensors.torch import save_file
from train_runs import take, train

from fewtags.budget.simulate import keep
from fewtags.config.presets import Candidate, Facts, resolve
from fewtags.config.search import candidates, settled, trial
from fewtags.config.sections import ObjectiveConfig
from fewtags.engine import fit, planning, preset_facts, random_blanks, run_photos, runfolder, search
from fewtags.engine.distributed import make_accelerator
from fewtags.engine.encoder_file import EncoderInfo, save_encoder
from fewtags.engine.events import Noted
from fewtags.engine.model import read_info
from fewtags.engine.planning import make_plan, settings_of_best
from fewtags.engine.random_blanks import why_not_random
from fewtags.engine.runfolder import SEARCH_FILE
from fewtags.engine.search import Search, Trial, best_of, compared, read_search
from fewtags.engine.tables import Tables
from fewtags.engine.tensor_files import load_tensors
from fewtags.engine.time_box import Speed
from fewtags.engine.train_run import TrainRun, open_run
from fewtags.errors import CheckpointError, ConfigError
from fewtags.formats.scores import scores_of
from fewtags.labels import Label
from fewtags.nets.encoder import create_encoder
from fewtags.report.build import render
from fewtags.report.load import load_run
from fewtags.table.table import LabelTable

SOLVED = {"train__preset": "cpu", "train__stages": None, "train__cached_views": None, "train__batch_size": None}
SIZES = {"augment__size": None, "search__sizes": [32, 64]}
PLAIN = {"augment__size": 32, "search__sizes": []}


@pytest.fixture
def config(make_config):
    """A configuration that searches, without a method of its own."""

    def make(**changes):
        found = make_config(**{**SOLVED, **SIZES, **changes})
        if "objective" not in changes:
            found = found.model_copy(update={"objective": ObjectiveConfig()})
        return found

    return make


@pytest.fixture(scope="module")
def searched(scenes, tmp_path_factory, request):
    """A finished run that compared two sizes and two methods, and the lines that it said."""
    out = tmp_path_factory.mktemp("runs") / "searched"
    make = request.getfixturevalue("make_config")
    config = make(**SOLVED, **SIZES, search__methods=["expected_negative", "assume_negative"])
    config = config.model_copy(update={"objective": ObjectiveConfig()})
    tables = Tables(scenes.train, scenes.val, scenes.test, scenes.train_truth)
    events = train(config, tables, out)
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


def test_it_is_the_model_of_a_run_with_these_settings(searched, tables, config, tmp_path):
    out, _ = searched
    best = read_search(out).trials[read_search(out).chosen].candidate
    train(config(search__sizes=[], augment__size=best.size, objective={"name": best.method}), tables, tmp_path / "run")
    one, two = (load_tensors(folder / "model.safetensors") for folder in (out, tmp_path / "run"))
    assert all(torch.equal(value, two[name]) for name, value in one.items())


def test_an_interrupted_search_goes_on(config, tables, tmp_path, monkeypatch):
    tried = []
    whole = Search._try
    monkeypatch.setattr(Search, "_try", lambda self, number: tried.append(number) or whole(self, number))
    train(config(), tables, tmp_path / "whole")
    run = TrainRun(make_plan(config(), tables=tables, cpu=True), tmp_path / "run", cpu=True).start()
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


def test_two_backbones_are_compared_and_trained_with_a_teacher(config, tables, tmp_path):
    """Features of one are not those of the other, and a search that was interrupted goes on with both and the teacher.

    Each trial, and the model, are those of a run with its backbone alone.
    """
    names = ("test_resnet", "test_efficientnet")
    scores = scores_of(0.2 + 0.6 * (tables.truth.matrix.dense() == Label.POSITIVE), tables.train)

    def plan(names):
        changes = {"search__sizes": [], "augment__size": 32, "model__backbone": None, "search__backbones": names}
        return make_plan(config(**changes), tables=tables, scores=scores, cpu=True)

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
def test_a_choice_that_was_half_written_is_completed(config, tables, tmp_path, monkeypatch, file):
    whole = runfolder.write_text

    def cut(path, text):
        if path.name == file and (tmp_path / "run" / "run.toml").exists():
            raise KeyboardInterrupt
        whole(path, text)

    with monkeypatch.context() as patch:
        patch.setattr(runfolder, "write_text", cut)
        with pytest.raises(KeyboardInterrupt):
            train(config(), tables, tmp_path / "run")
    opened = open_run(tmp_path / "run", cpu=True)
    assert opened.plan.resolved.search == ()
    assert opened.plan.resolved.size == read_search(tmp_path / "run").trials[opened_choice(tmp_path)].candidate.size
    take(opened.resume())
    assert (tmp_path / "run" / "model.safetensors").exists()


def opened_choice(tmp_path):
    return read_search(tmp_path / "run").chosen


def test_a_damaged_search_is_named(config, tables, tmp_path):
    run = TrainRun(make_plan(config(), tables=tables, cpu=True), tmp_path / "run", cpu=True).start()
    next(run)
    run.close()
    (tmp_path / "run" / SEARCH_FILE).write_text("{")
    with pytest.raises(CheckpointError, match=r"search.json is damaged \(.*\); delete search.json, and everything is"):
        open_run(tmp_path / "run", cpu=True)


def test_damaged_scores_of_a_trial_are_named(config, tables, tmp_path, monkeypatch):
    with monkeypatch.context() as patch:
        patch.setattr(Search, "_why", lambda self, chosen: (_ for _ in ()).throw(KeyboardInterrupt))
        with pytest.raises(KeyboardInterrupt):
            train(config(), tables, tmp_path / "run")
    assert json.loads((tmp_path / "run" / "seconds.json").read_text())["search"] > 0
    path = tmp_path / "run" / "search" / "trial-000.npy"
    shape = np.load(path).shape
    for bad in (np.zeros((3, 3), np.float32), np.full(shape, np.nan, np.float32), np.zeros(shape)):
        np.save(path, bad)
        with pytest.raises(CheckpointError, match=r"trial-000.npy is damaged \(it has .*; delete search.json"):
            take(open_run(tmp_path / "run", cpu=True).resume())
    path.unlink()
    with pytest.raises(CheckpointError, match=r"trial-000.npy is missing; delete search.json"):
        take(open_run(tmp_path / "run", cpu=True).resume())


def test_labels_that_rank_nothing_train_the_first(config, tables, tmp_path):
    """One positive label a photo: the measure is mAP with unknown counted as absent."""
    train(config(), Tables(tables.train, tables.train.subset(np.arange(8))), tmp_path / "run")
    assert {trial.metric for trial in read_search(tmp_path / "run").trials} == {"pessimistic_mAP"}
    assert "interval" not in read_search(tmp_path / "run").why


def test_a_single_candidate_is_trained(config, tables, tmp_path):
    train(config(search__sizes=[32]), tables, tmp_path / "run")
    assert read_search(tmp_path / "run").why == "32 px is trained, the only one"
    assert read_info(tmp_path / "run" / "model.safetensors").size == 32


def test_candidates_that_share_features_compute_them_once(config, tables, tmp_path, monkeypatch):
    passes = []
    whole = run_photos.fill_fixed
    monkeypatch.setattr(run_photos, "fill_fixed", lambda *a, **k: passes.append(1) or whole(*a, **k))
    train(config(search__methods=["expected_negative", "assume_negative"], search__sizes=[], augment__size=64),
          tables, tmp_path / "run")  # fmt: skip
    assert len(passes) == 1


FACTS = Facts(samples=24, classes=10, device="cpu", cores=2)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"augment__size": 64}, "search.sizes tries several values, and size=64 fixes one"),
        ({"search__sizes": [32, 32]}, "search.sizes has 32 twice"),
        (
            {"search__pools": ["mean"], "model__pool": "max"},
            'search.pools tries several values, and model.pool = "max" fixes',
        ),
        ({"search__methods": ["bce"], "objective": {"name": "bce"}}, "objective='bce' fixes one"),
        (
            {"search__backbones": ["resnet18"]},
            "search.backbones tries several values, and backbone='test_resnet'",
        ),
        (
            {"search__backbones": ["resnet18", "resnet34"], "model__backbone": None, "model__weights": "net.pth"},
            "search.backbones tries several values, and the weights net.pth are those of one; leave",
        ),
        (
            {"search__backbones": "test_resnet", "model__weights": "pretrained/encoder.safetensors"},
            "the weights pretrained/encoder.safetensors are those of one, test_resnet; leave",
        ),
    ],
)
def test_settings_that_contradict_a_search_are_refused(config, changes, words):
    found = config(**changes)
    with pytest.raises(ConfigError, match=words):
        candidates(found, resolve(found, FACTS), FACTS)


def test_a_search_is_for_one_process(config):
    facts = FACTS.model_copy(update={"processes": 2})
    with pytest.raises(ConfigError, match="in one process, and there are 2"):
        candidates(config(), resolve(config(), facts), facts)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        (
            {"search__methods": ["splc", "bce"], "search__sizes": []},
            "search cannot try splc: the method compares views",
        ),
        ({"search__methods": ["nothing"], "search__sizes": []}, "'nothing' is not a method"),
        ({"search__sizes": [32, 64], "search__pools": ["lse"], "train__cache_gib": 1e-6}, "Raise train.cache_gib"),
    ],
)
def test_a_candidate_that_cannot_be_tried_is_refused_before_training(config, tables, changes, words):
    with pytest.raises(ConfigError, match=words):
        make_plan(config(**changes), tables=tables, cpu=True)


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


def test_photos_are_fine_tuned_at_the_best_size(config, tables, tmp_path, monkeypatch):
    monkeypatch.setattr(search, "best_of", lambda trials: len(trials) - 1)
    sizes, channels_last = set(), fit._channels_last

    def spy(batch):
        sizes.add(tuple(batch.images.shape[2:]))
        return channels_last(batch)

    monkeypatch.setattr(fit, "_channels_last", spy)
    plan = make_plan(config(train__preset="finetune", train__epochs=1), tables=tables, cpu=True)
    assert [candidate.size for candidate in plan.resolved.search] == [32, 64]
    take(TrainRun(plan, tmp_path / "run", cpu=True).start())
    assert (sizes, read_info(tmp_path / "run" / "model.safetensors").size) == ({(64, 64)}, 64)


def test_it_goes_on_from_another_folder(config, tables, tmp_path, monkeypatch):
    """The record keeps the folder that relative paths begin in, and candidates find their file of weights."""
    (tmp_path / "there").mkdir()
    (tmp_path / "else").mkdir()
    monkeypatch.chdir(tmp_path / "there")
    save_file(timm.create_model("test_resnet", num_classes=0).state_dict(), "trunk.safetensors")
    begun = config(model__weights="trunk.safetensors", train__baseline=False)
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


def test_before_the_search_the_settings_are_those_of_the_first_candidate(config, tables):
    changes = {"search__backbones": ["test_resnet"], "model__backbone": None}
    resolved = make_plan(config(**changes), tables=tables, cpu=True).resolved
    assert (resolved.backbone, resolved.size, len(resolved.search)) == ("test_resnet", 32, 2)


def test_the_notes_are_those_of_the_best(config, tables, tmp_path, monkeypatch):
    monkeypatch.setattr(search, "best_of", lambda trials: len(trials) - 1)
    changes = {"search__sizes": [], "augment__size": 32, "search__methods": ["expected_negative", "assume_negative"]}
    plan = make_plan(config(**changes), tables=tables, cpu=True)
    assert any(note.startswith("positives per image") for note in plan.notes)
    plan = replace(plan, notes=("1 minute: 2 epochs", *plan.notes))
    take(TrainRun(plan, tmp_path / "run", cpu=True).start())
    notes = json.loads((tmp_path / "run" / "environment.json").read_text())["notes"]
    assert not any(note.startswith("positives per image") for note in notes)
    assert notes[0] == "1 minute: 2 epochs"
    assert notes[-1].startswith("search: assume_negative is trained")


def test_patience_does_not_end_a_trial(config):
    resolved = resolve(config(train__preset="finetune", train__patience=1), FACTS)
    one = candidates(config(), resolved, FACTS)[0]
    assert (trial(resolved, one).patience, settled(resolved, one).patience) == (0, 1)


def test_a_method_that_does_not_weigh_answers_tries_no_weights(config, tables, monkeypatch):
    monkeypatch.setattr(preset_facts, "answered", lambda table: table.matrix)
    methods = ["expected_negative", "assume_negative"]
    plan = make_plan(config(search__methods=methods, search__sizes=[], augment__size=32), tables=tables, cpu=True)
    first, second = (settings_of_best(plan, one).stages[0] for one in plan.resolved.search)
    assert (first.answer_weights, first.epochs) == ((4.0, 1.0, 16.0), 10)
    assert (second.answer_weights, second.epochs) == ((), 6)


def test_a_size_without_time_for_epochs_tries_weights_of_answers(config, tables, monkeypatch):
    """Its head is solved alone, which other sizes do only before their epochs."""
    monkeypatch.setattr(preset_facts, "answered", lambda table: table.matrix)
    plan = make_plan(config(train__preset="finetune"), tables=tables, cpu=True)
    one = plan.resolved.search[0]
    (alone,) = settings_of_best(plan, one.model_copy(update={"epochs": 0})).stages
    assert (alone.answer_weights, alone.epochs) == ((4.0, 1.0, 16.0), 10)
    both = settings_of_best(plan, one.model_copy(update={"epochs": 2})).stages
    assert [(stage.answer_weights, stage.epochs) for stage in both] == [((), 6), ((), 2)]


def test_weights_that_the_user_gave_are_not_dropped(config, tables, monkeypatch):
    monkeypatch.setattr(preset_facts, "answered", lambda table: table.matrix)
    solve = {"name": "own", "logit_variances": [1.0], "answer_weights": [1.0, 4.0], "trainable": "head"}
    changes = {"search__methods": ["expected_negative", "bce"], "search__sizes": [], "augment__size": 32}
    with pytest.raises(ConfigError) as error:
        make_plan(config(**changes, train__stages=[solve]), tables=tables, cpu=True)
    assert str(error.value) == (
        "stage 'own' has answer_weights, but bce, which search tries, does not weigh answers; leave them out, or "
        "leave the method out of search.methods."
    )


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
def test_trials_of_another_search_are_refused(config, tables, tmp_path, searched, sizes, words):
    found = read_search(searched[0])
    one = found.trials[0]
    trials = [one.model_copy(update={"candidate": one.candidate.model_copy(update={"size": s})}) for s in sizes]
    (tmp_path / SEARCH_FILE).write_text(found.model_copy(update={"trials": tuple(trials)}).model_dump_json())
    plan = make_plan(config(), tables=tables, cpu=True)
    with pytest.raises(CheckpointError, match=words):
        Search(plan, tmp_path, make_accelerator("no", cpu=True), cpu=True)


def test_a_method_that_is_alone_is_named(config, tables):
    with pytest.raises(ConfigError, match="search cannot try splc at 64 px: the method compares views"):
        make_plan(config(search__methods=["splc"], search__sizes=[], augment__size=64), tables=tables, cpu=True)


def encoder_run(folder, *, seed=None):
    """The folder of a pretraining run whose encoder has random weights, or sees nothing without a seed."""
    encoder = create_encoder("test_resnet", weights="none", size=32, seed=seed or 0)
    if seed is None:
        with torch.no_grad():
            for tensor in encoder.state_dict().values():
                tensor.zero_()
    pre = encoder.preprocessing
    folder.mkdir(parents=True)
    info = EncoderInfo(backbone="test_resnet", size=32, mean=pre.mean, std=pre.std, method={"name": "moco"})
    save_encoder(folder / "encoder.safetensors", encoder, info)
    return str(folder)


@pytest.fixture
def starting_from(config):
    """Make a configuration that compares starts; `own` are the weights of a run without an encoder."""

    def make(*starts, own="none", **changes):
        made = {"search__sizes": [], "augment__size": 32, "train__baseline": False, "model__weights": own}
        return config(**{"search__starts": [*starts], **made, **changes})

    return make


@pytest.mark.parametrize("encoder_sees", [True, False])
def test_training_starts_from_what_is_better_on_validation(starting_from, tables, tmp_path, monkeypatch, encoder_sees):
    """A net that sees nothing loses, as the encoder and as the weights that the run would have without one."""
    monkeypatch.chdir(tmp_path)
    seeing, blind = encoder_run(tmp_path / "runs/seeing", seed=1), encoder_run(tmp_path / "runs/blind")
    given, own = (seeing, f"{blind}/encoder.safetensors") if encoder_sees else (blind, "none")
    events = train(starting_from("preset", given, own=own), tables, tmp_path / "run")
    found = read_search(tmp_path / "run")
    assert [tried.candidate.weights for tried in found.trials] == [own, f"{given}/encoder.safetensors"]
    assert found.chosen == int(encoder_sees)
    name = "weights seeing/encoder.safetensors" if encoder_sees else "weights none"
    assert [e.text for e in events if isinstance(e, Noted) and e.text.startswith(f"search: {name} is trained (+")]
    run = load_run(tmp_path / "run")
    assert run.resolved["weights"] == (f"{seeing}/encoder.safetensors" if encoder_sees else "none")
    assert run.tried[0].name == name
    assert name in render([run])
    # The model is that of a run that starts there alone.
    alone = run.resolved["weights"]
    train(starting_from(own=alone, search__starts=[]), tables, tmp_path / "alone")
    one, two = (load_tensors(tmp_path / folder / "model.safetensors") for folder in ("run", "alone"))
    assert all(torch.equal(value, two[name]) for name, value in one.items())


def test_a_search_of_starts_goes_on_from_another_folder(starting_from, tables, tmp_path, monkeypatch):
    """The model is the same to the bit, and so is what is said of the choice."""
    for name in ("there", "else"):
        (tmp_path / name).mkdir()
    monkeypatch.chdir(tmp_path / "there")
    encoder_run(tmp_path / "there" / "pre" / "a", seed=1)
    config = starting_from("preset", "pre/a")
    train(config, tables, tmp_path / "whole")
    run = TrainRun(make_plan(config, tables=tables, cpu=True), tmp_path / "run", cpu=True).start()
    next(run)
    run.close()
    monkeypatch.chdir(tmp_path / "else")
    take(open_run(tmp_path / "run", cpu=True).resume())
    one, two = (load_tensors(tmp_path / folder / "model.safetensors") for folder in ("whole", "run"))
    assert all(torch.equal(value, two[name]) for name, value in one.items())
    assert read_search(tmp_path / "whole").why == read_search(tmp_path / "run").why


def test_an_encoder_that_changed_after_its_trial_is_refused(starting_from, tables, tmp_path, monkeypatch):
    pre = encoder_run(tmp_path / "pre", seed=1)
    monkeypatch.setattr(search, "best_of", lambda trials: 1)
    run = TrainRun(make_plan(starting_from("preset", pre), tables=tables, cpu=True), tmp_path / "run", cpu=True).start()
    next(run)
    next(run)
    run.close()
    shutil.rmtree(pre)
    encoder_run(tmp_path / "pre", seed=2)
    with pytest.raises(CheckpointError, match=r"encoder.safetensors are not those that .*run tried; restore them"):
        take(open_run(tmp_path / "run", cpu=True).resume())


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        (
            {"search__backbones": ["resnet18"], "model__backbone": None},
            "search.backbones and search.starts both choose",
        ),
        ({"search__starts": ["PRE"]}, "search.starts tries several values, and weights='none' fixes one"),
        ({"search__starts": ["preset", "preset"]}, "search.starts has preset twice"),
        ({"search__starts": ["preset", "PRE", "PRE/encoder.safetensors"]}, "search.starts has .*pre twice"),
        ({"search__starts": ["preset", "nowhere"]}, "nowhere does not exist; give the folder of a pretraining run"),
        ({"model__backbone": "resnet18"}, "pre is a test_resnet, not a resnet18; leave the backbone out"),
    ],
)
def test_starts_that_contradict_each_other_are_refused(starting_from, tables, tmp_path, changes, words):
    pre = encoder_run(tmp_path / "pre", seed=1)
    changes = {"search__starts": ["preset", "PRE"], **changes}
    starts = [start.replace("PRE", pre) for start in changes.pop("search__starts")]
    with pytest.raises((ConfigError, CheckpointError), match=words):
        make_plan(starting_from(*starts, **changes), tables=tables, cpu=True)


def test_each_candidate_is_derived_once_before_training(config, tables, monkeypatch):
    """A derived plan has a net of its own. The first candidate is the plan itself."""
    sizes, whole = [], planning.derive
    monkeypatch.setattr(
        planning,
        "derive",
        lambda *a, **k: sizes.append(k["resolved"].size) or whole(*a, **k),
    )
    make_plan(config(), tables=tables, cpu=True)
    assert sizes == [32, 64]


# --- partial labels


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


def test_partial_labels_compare_what_a_blank_means(config, tables, tmp_path, monkeypatch):
    """A method that learns from known labels alone is tried beside the default, and taken where it is better."""
    monkeypatch.setattr(random_blanks, "LEAST_KNOWN", 1)
    plain = config(**PLAIN)
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
def test_what_labels_say_is_computed_once(config, tables, tmp_path, monkeypatch, minutes):
    """These facts go through all cells: they are handed over to whatever needs them, also for each candidate."""
    monkeypatch.setattr(random_blanks, "LEAST_KNOWN", 1)
    monkeypatch.setattr(planning, "measure_speed", lambda *_, **__: Speed(1e-4, 1e-4, 1e-4))
    calls = counted_calls(monkeypatch, "answered", "share_by_known", "why_not_told")
    changes = PLAIN if minutes is None else {**PLAIN, "train__minutes": minutes, "train__preset": None}
    plan = make_plan(config(**changes), tables=partly(tables), cpu=True)
    assert [c.method for c in plan.resolved.search] == ["expected_negative", "bce"]
    if minutes is None:
        take(Search(plan, tmp_path, make_accelerator("no", cpu=True), cpu=True).run())
    assert calls == {"answered": 1, "share_by_known": 1, "why_not_told": 1}


def test_a_photo_that_is_left_out_may_change_what_labels_say(config, tables, tmp_path, monkeypatch):
    """The facts are those of the photos that are left."""
    photos = partly(tables).train
    shutil.copytree(photos.root, tmp_path / "photos")
    (tmp_path / "photos" / photos.images[0].as_py()).write_bytes(b"")
    broken = replace(partly(tables), train=replace(photos, root=tmp_path / "photos"))
    calls = counted_calls(monkeypatch, "answered", "share_by_known")
    make_plan(config(**PLAIN), tables=broken, cpu=True)
    assert calls == {"answered": 2, "share_by_known": 2}


@pytest.mark.parametrize(
    "changes",
    [
        {"objective": {"name": "expected_negative"}},
        {"objective": {"positives_per_image": 2.0}},
        {"train__preset": "views"},
    ],
)
def test_what_the_user_chose_is_not_compared(config, tables, changes):
    plain = config(**{**PLAIN, **changes})
    assert make_plan(plain, tables=partly(tables), cpu=True).resolved.search == ()


def test_single_positives_and_complete_labels_compare_nothing(config, tables):
    plain = config(**PLAIN)
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


def test_a_validation_that_cannot_tell_compares_nothing_and_says_so(config, tables):
    """Otherwise two heads would be solved, of which one could never be taken."""
    few = partly(tables)
    assert int((few.val.matrix.dense() != Label.UNKNOWN).sum()) < random_blanks.LEAST_KNOWN
    plan = make_plan(config(**PLAIN), tables=few, cpu=True)
    assert plan.resolved.search == ()
    note = (
        "note: bce, which learns from known labels alone, is not compared with expected_negative: fewer than 100 known "
        "labels on validation show whether labels are blank at random"
    )
    assert note in plan.notes
    for other in (config(**PLAIN, objective={"name": "splc"}), config(**PLAIN, train__preset="views")):
        assert note not in make_plan(other, tables=few, cpu=True).notes


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
