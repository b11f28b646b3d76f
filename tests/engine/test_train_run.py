"""A run in its folder: what is written, what is chosen, what is refused."""

import json
import shutil
from dataclasses import replace
from importlib.metadata import version
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from train_runs import FINETUNE, read_json, take, train

from fewtags.config.parse import load_toml, parse
from fewtags.config.presets import Resolved
from fewtags.config.sections import DataConfig, StageConfig
from fewtags.engine import planned_fit, planning
from fewtags.engine import train_run as running
from fewtags.engine.events import Ended, EpochEnded, Started
from fewtags.engine.fit import FitConfig
from fewtags.engine.localise import refuse_without_boxes
from fewtags.engine.methods import settings_models
from fewtags.engine.model import load_model, read_info
from fewtags.engine.planning import make_plan
from fewtags.engine.predict import heatmaps, predict_maps, score_table
from fewtags.engine.tables import Tables
from fewtags.engine.tensor_files import load_tensors
from fewtags.engine.thresholds import choose_thresholds
from fewtags.engine.train_record import write_record
from fewtags.engine.train_run import TrainRun, open_run
from fewtags.errors import CheckpointError, ConfigError, DataError
from fewtags.labels import ClassNames, Label
from fewtags.report.build import build_report
from fewtags.table.answered import with_answers
from fewtags.table.storage import load
from fewtags.table.table import LabelTable


@pytest.fixture(scope="module")
def finished(scenes, tmp_path_factory, request):
    """A finished run, and its events."""
    out = tmp_path_factory.mktemp("runs") / "finished"
    make = request.getfixturevalue("make_config")
    tables = Tables(scenes.train, scenes.val, scenes.test, scenes.train_truth)
    return out, train(make(), tables, out)


# --- what is written


def test_the_folder_of_a_finished_run(finished):
    out, _ = finished
    files = {
        str(path.relative_to(out)) for path in out.rglob("*") if path.is_file() and "checkpoints" not in path.parts
    }
    assert files == {
        "run.toml", "resolved.toml", "environment.json", "vocabulary.json", "check.json", "excluded.csv", "README.md",
        "metrics.jsonl", "seconds.json", "best.safetensors", "model.safetensors",
        "tables/train.parquet", "tables/val.parquet", "tables/test.parquet", "tables/truth.parquet",
        "tables/train-sizes.npy", "tables/val-sizes.npy", "tables/test-sizes.npy",
        "tables/train-contents.npy", "tables/val-contents.npy", "tables/test-contents.npy",
        "evaluation/val.json", "evaluation/val.npy", "evaluation/test.json", "evaluation/test.npy",
        "gallery/epoch-0000.npz", "gallery/epoch-0000.json", "gallery/epoch-0001.npz", "gallery/epoch-0001.json",
        "gallery/epoch-0002.npz", "gallery/epoch-0002.json", "gallery/final.npz", "gallery/final.json",
    }  # fmt: skip
    assert [path.name for path in (out / "checkpoints").iterdir() if path.is_dir()] == ["step-000000009"]


def test_the_record_says_what_ran(finished, scenes, make_config):
    out, _ = finished
    assert parse(load_toml(out / "run.toml"), settings_models()) == make_config()
    resolved = Resolved.model_validate(load_toml(out / "resolved.toml"))
    assert (resolved.backbone, resolved.size, resolved.batch_size, resolved.seed) == ("test_resnet", 64, 8, 0)
    record = read_json(out / "environment.json")
    assert record["fingerprints"] == {
        "train": scenes.train.fingerprint, "val": scenes.val.fingerprint, "test": scenes.test.fingerprint,
        "truth": scenes.train_truth.fingerprint,
    }  # fmt: skip
    assert record["method"]["name"] == "expected_negative"
    assert record["method"]["positives_per_image"] == 1.5
    assert (record["grid"], record["heatmap_bytes"]) == ([2, 2], 24 * (10 * 16 + 4))
    assert any("a guess" in note for note in record["notes"])
    assert record["packages"]["torch"] == version("torch")
    assert read_json(out / "vocabulary.json")[0] == {"id": "zero", "name": "zero"}
    assert load(out / "tables" / "train.parquet").fingerprint == scenes.train.fingerprint
    assert load(out / "tables" / "train.parquet").root.is_absolute()


def test_one_line_of_metrics_an_epoch(finished):
    out, events = finished
    lines = [json.loads(line) for line in (out / "metrics.jsonl").read_text().splitlines()]
    assert lines == [event.record for event in events if isinstance(event, EpochEnded)]
    assert [(line["epoch"], line["stage"]) for line in lines] == [(0, "warmup"), (1, "main"), (2, "main")]
    assert {"val/mAP", "train/loss", "train/scl", "state/expected_positives_precision"} <= lines[2].keys()


def test_thresholds_and_evaluation_belong_to_the_model(finished, scenes):
    out, _ = finished
    info = read_info(out / "model.safetensors")
    found = read_json(out / "evaluation" / "val.json")
    assert [entry["threshold"] for entry in found["per_class"]] == list(info.thresholds)
    assert found["threshold_rules"] == list(info.threshold_rules)
    assert set(info.threshold_rules) <= {"class_f1", "pooled_f1"}
    assert (found["images"], found["known_cells"]) == (11, 110)
    assert np.load(out / "evaluation" / "val.npy").shape == (11, 10)
    tables = Tables(scenes.train, scenes.val)
    assert choose_thresholds(np.load(out / "evaluation" / "val.npy"), tables).values.tolist() == list(info.thresholds)


def test_the_metric_of_the_best_epoch_is_the_one_of_the_model(finished):
    """Measured on cached features while training, and with the whole net in the end."""
    out, events = finished
    ended = events[-1]
    assert isinstance(ended, Ended)
    assert read_json(out / "evaluation" / "val.json")["mAP"] == pytest.approx(ended.best_value, abs=1e-6)


# --- what reaches the loop


class ReachedError(Exception):
    """The loop would begin now."""


def test_every_training_setting_reaches_the_loop(tables, make_config, tmp_path, monkeypatch):
    seen = {}

    def caught(net, objective, source, config, problem, **rest):
        seen.update(config=config, problem=problem)
        raise ReachedError

    monkeypatch.setattr(planned_fit, "Fit", caught)
    stages = [
        {"name": "first", "epochs": 2, "lr": 3e-3, "trainable": "head", "schedule": "constant", "warmup": True},
        {"name": "second", "epochs": 3, "lr": 2e-4, "trainable": 1},
    ]
    asked = {
        "seed": 5, "weight_decay": 0.011, "accumulate": 3, "clip_norm": 1.25, "precision": "bf16", "weight_ema": 0.875,
        "batchnorm_eval": True, "checkpoint_every_steps": 7,
    }  # fmt: skip
    changes = asked | {"stages": stages, "cached_views": 0}
    config = make_config(**{f"train__{key}": value for key, value in changes.items()})
    with pytest.raises(ReachedError):
        train(config, tables, tmp_path / "run")
    assert seen["config"] == FitConfig(stages=tuple(StageConfig(**stage) for stage in stages), **asked)
    problem = seen["problem"]
    assert (problem.warmup_epochs, problem.epochs, problem.seed, problem.grid) == (2, 5, 5, (2, 2))
    assert (problem.precision, problem.features_dim) == ("bf16", 96)
    assert np.array_equal(problem.truth.dense(), tables.truth.matrix.dense())


@pytest.mark.parametrize("cached", [None, 2])
def test_jitter_changes_the_colours_that_are_trained_on(tables, make_config, tmp_path, cached):
    """Not where the crops are; measuring sees the photos as they are."""
    plain, jittered = (
        TrainRun(make_plan(make_config(augment__jitter=strength), tables=tables, cpu=True), tmp_path, cpu=True)
        for strength in (0.0, 0.5)
    )
    (one, other) = (run.photos.train_set(cached)[3, 1] for run in (plain, jittered))
    assert one.view == other.view
    assert (one.pixels != other.pixels).mean() > 0.5
    (one, other) = (next(iter(run.photos.eval_loader(tables.val))).images for run in (plain, jittered))
    assert torch.equal(one, other)


# --- which epoch


@pytest.mark.parametrize("select", ["auto", "best", "last"])
def test_the_model_says_which_epoch_it_is(tables, make_config, tmp_path, select):
    events = train(make_config(train__select=select), tables, tmp_path / "run")
    best = events[-1].best_epoch
    info = read_info(tmp_path / "run" / "model.safetensors")
    net, _ = load_model(tmp_path / "run")
    (path,) = (tmp_path / "run" / "checkpoints").glob("step-*")
    last = torch.equal(net.head.weight, load_tensors(path / "net.safetensors")["head.weight"])
    if select == "last":
        assert info.selection == 'the last epoch (3): train.select = "last"'
        assert last
    else:
        assert info.selection.startswith(f"epoch {best + 1} of 3, the best by validation mAP (")
        weights = load_tensors(tmp_path / "run" / "best.safetensors")
        assert torch.equal(net.head.weight, weights["head.weight"])
        assert last == (best == 2)


def test_validation_without_known_negatives(scenes, make_config, tmp_path):
    """As a class folder tree gives it: one positive per image and nothing else."""
    whole = scenes.train
    tables = Tables(whole.subset(np.arange(16)), whole.subset(np.arange(16, 24)))
    events = train(make_config(), tables, tmp_path / "run")
    assert events[-1] == Ended(3, None, None)
    records = [event.record for event in events if isinstance(event, EpochEnded)]
    assert {"val/hit@1", "val/mean_rank", "val/pessimistic_mAP", "val/predicted_positives"} <= records[0].keys()
    assert "val/mAP" not in records[0]
    assert not any(event.best for event in events if isinstance(event, EpochEnded))
    info = read_info(tmp_path / "run" / "model.safetensors")
    assert info.selection == ("the last epoch (3): no validation class has both known positives and known negatives")
    assert set(info.threshold_rules) <= {"expected_count", "none_expected"}
    found = read_json(tmp_path / "run" / "evaluation" / "val.json")
    assert found["mAP"] is None
    assert found["positive_only"].keys() == {
        "images", "hit@1", "recall@1", "recall@3", "recall@5", "mean_rank",
        "mAP, unknown counted as absent (pessimistic)",
    }  # fmt: skip
    assert found["positive_only"]["images"] == 8


# --- refused


def test_a_used_folder_is_refused(tables, make_config, finished, tmp_path):
    out, _ = finished
    before = {path: path.stat().st_mtime_ns for path in out.rglob("*")}
    plan = make_plan(make_config(), tables=tables, cpu=True)
    with pytest.raises(ConfigError) as error:
        next(TrainRun(plan, out, cpu=True).start())
    assert str(error.value) == f"{out} is not empty; choose another out."
    assert {path: path.stat().st_mtime_ns for path in out.rglob("*")} == before
    (tmp_path / "notes.txt").touch()
    with pytest.raises(ConfigError, match=r"is not empty; choose another out\.$"):
        next(TrainRun(plan, tmp_path, cpu=True).start())
    with pytest.raises(ConfigError, match=r"notes\.txt is a file; out takes a folder for the run\."):
        next(TrainRun(plan, tmp_path / "notes.txt", cpu=True).start())


def test_an_empty_folder_is_fine(tables, make_config, tmp_path):
    assert isinstance(train(make_config(), tables, tmp_path, stop=1)[0], Started)


def test_a_method_that_is_refused_leaves_the_folder_free(tables, make_config, tmp_path):
    single = Tables(tables.train, tables.val)
    with pytest.raises(ConfigError, match="objective 'bce' needs known negatives"):
        train(make_config(objective={"name": "bce"}), single, tmp_path / "run")
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("made", [True, False])
@pytest.mark.parametrize("written", [True, False])
def test_an_interrupted_start_leaves_the_folder_free(tables, make_config, tmp_path, monkeypatch, written, made):
    """With heatmaps on disk, whose file is there before the record is complete."""
    out = tmp_path / "run"
    if not made:
        out.mkdir()
    config = make_config(**FINETUNE)

    def stopped(plan, folder):
        assert [path.name for path in folder.rglob("*.bin")] == ["heatmaps-0.bin"]
        if written:
            write_record(plan, folder)
            (folder / "run.toml").unlink()
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(running, "write_record", stopped)
        with pytest.raises(KeyboardInterrupt):
            train(config, tables, out)
    assert out.exists() is not made
    assert isinstance(train(config, tables, out, stop=1)[0], Started)


@pytest.mark.parametrize("solved", [True, False])
def test_more_processes_than_photos_are_refused_before_any_work(tables, make_config, tmp_path, monkeypatch, solved):
    """A process without photos would fail, and the others would wait for it."""
    crowd = SimpleNamespace(process_index=3, num_processes=25, device=torch.device("cpu"))
    monkeypatch.setattr(running, "make_accelerator", lambda precision, cpu: crowd)
    solve = {"name": "solve", "logit_variances": [1.0], "trainable": "head"}
    changes = {"train__stages": [solve], "objective": {"name": "assume_negative"}} if solved else {}
    plan = make_plan(make_config(**changes), tables=tables, cpu=True)
    with pytest.raises(ConfigError, match="24 training images cannot be shared by 25 processes; add images or use"):
        TrainRun(plan, tmp_path / "run", cpu=True)
    assert not (tmp_path / "run").exists()


def test_what_is_not_an_interrupted_run(finished, tmp_path):
    out, _ = finished
    with pytest.raises(CheckpointError) as error:
        open_run(out)
    assert str(error.value) == f"{out} is finished; its model is {out / 'model.safetensors'}."
    with pytest.raises(CheckpointError, match=r"is not a run folder \(it has no run\.toml\); start a run with"):
        open_run(tmp_path)


# --- sets of odd sizes and labels


def with_labels(table, dense, names):
    image, class_ = np.nonzero(dense)
    return LabelTable.build(
        table.images.to_pylist(), ClassNames.of(names), image=image, class_=class_, state=dense[image, class_],
        root=table.root,
    )  # fmt: skip


@pytest.mark.parametrize(
    ("train_rows", "val_rows", "names"),
    [
        pytest.param([[1]] * 5, [[1], [-1], [1]], "a", id="one class"),
        pytest.param([[1, 0], [0, 1], [1, 0]], [[-1, -1], [-1, 0]], "ab", id="validation without positives"),
        pytest.param([[1, 0], [0, 1], [1, 0]], [[0, 0], [0, 0]], "ab", id="validation without labels"),
        pytest.param([[1, 0], [0, 0], [-1, 0]], [[1, 0]], "ab", id="a class and images without labels"),
        pytest.param([[1, 1]], [[1, -1]], "ab", id="one image"),
    ],
)
def test_small_and_one_sided_sets(scenes, make_config, tmp_path, train_rows, val_rows, names):
    """With batches of 8: larger than the set. The run ends with a model whose numbers are numbers, or null."""
    dense = [np.array(rows, np.int8) for rows in (train_rows, val_rows)]
    tables = Tables(*(
        with_labels(table.subset(np.arange(len(rows))), rows, names)
        for table, rows in zip((scenes.train, scenes.val), dense, strict=True)
    ))  # fmt: skip
    train(make_config(), tables, tmp_path / "run")
    info = read_info(tmp_path / "run" / "model.safetensors")
    assert len(info.thresholds) == len(names)
    assert np.isfinite(info.thresholds).all()
    found = read_json(tmp_path / "run" / "evaluation" / "val.json")
    assert found["images"] == len(val_rows)
    assert np.isfinite(np.load(tmp_path / "run" / "evaluation" / "val.npy")).all()
    for line in (tmp_path / "run" / "metrics.jsonl").read_text().splitlines():
        json.loads(line, parse_constant=lambda name: pytest.fail(name))


def test_class_folders_from_end_to_end(scenes, make_config, tmp_path):
    """A folder a class, the same photo in two of them: one image with two positives, on one side of the split."""
    truth = scenes.train_truth.matrix.dense()
    for n, key in enumerate(scenes.train.images.to_pylist()):
        for c in np.flatnonzero(truth[n] == Label.POSITIVE)[:2]:
            folder = tmp_path / "photos" / scenes.train.classes.ids[c]
            folder.mkdir(parents=True, exist_ok=True)
            shutil.copy(scenes.train.root / key, folder / f"{n}-{c}.jpg")
    config = make_config(data={"train": str(tmp_path / "photos"), "val_share": 0.25})
    plan = make_plan(config, cpu=True)
    assert len(plan.tables.train) + len(plan.tables.val) == 24
    assert int(plan.tables.train.matrix.image_counts(Label.POSITIVE).min()) == 2
    assert plan.objective.positives_per_image == 3.0
    take(TrainRun(plan, tmp_path / "run", cpu=True).start(), stop=4)
    take(open_run(tmp_path / "run", cpu=True).resume())
    assert read_info(tmp_path / "run" / "model.safetensors").class_ids == plan.tables.train.classes.ids


def test_no_readable_photo_at_all(scenes, make_config, tmp_path):
    data = DataConfig(train=str(scenes.folder / "train_single.csv"), images=str(scenes.folder / "images"))
    config = make_config(data=data.model_dump(exclude_none=True) | {"val": str(scenes.folder / "val.csv")})
    tables = planning.read_tables(config.data, 0)
    moved = Tables(tables.train.with_root(tmp_path), tables.val)
    with pytest.raises(DataError, match=r"train: no photo can be read, for example train/00000\.jpg: "):
        train(config, moved, tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_an_account_of_the_time_covers_interruptions(tables, make_config, tmp_path):
    train(make_config(), tables, tmp_path / "run", stop=7)
    before = read_json(tmp_path / "run" / "seconds.json")
    take(open_run(tmp_path / "run", cpu=True).resume())
    after = read_json(tmp_path / "run" / "seconds.json")
    assert list(after) == ["features", "training", "evaluation"]
    assert all(after[phase] > before[phase] for phase in before)


SOLVE_FIRST = [
    {"name": "solve", "logit_variances": [0.3, 3.0], "trainable": "head", "warmup": True},
    {"name": "main", "epochs": 2, "lr": 1e-3, "trainable": "all"},
]


def test_a_run_that_solves_the_head_and_then_trains_all_resumes_to_the_same_bits(tables, make_config, tmp_path):
    """EN + SCL: heatmaps start after the solved warm-up, in which expected positives are ranked already."""
    config = make_config(
        train__stages=SOLVE_FIRST, train__cached_views=None, train__optimizer="adamw", train__weight_ema=0.5,
        objective__cl_weight=0.0,
    )  # fmt: skip
    train(config, tables, tmp_path / "whole")
    lines = [json.loads(line) for line in (tmp_path / "whole" / "metrics.jsonl").read_text().splitlines()]
    assert [line.get("logit_variance") for line in lines] == [0.3, 3.0, None, None]
    assert ["train/scl" in line for line in lines] == [False, False, True, True]
    assert [line.get("state/expected_positives_per_image", 0) > 0 for line in lines] == [False, True, True, True]
    out = tmp_path / "cut"
    train(config, tables, out, stop=1)
    for stop in (2, 3, None):
        take(open_run(out, cpu=True).resume(), stop)
    for name in ("model.safetensors", "evaluation/val.npy", "evaluation/test.npy"):
        assert (out / name).read_bytes() == (tmp_path / "whole" / name).read_bytes(), name


def test_the_weight_of_answers_is_chosen_on_validation(scenes, tables, make_config, tmp_path):
    """It is resolved, recorded of every epoch, shown with the model, and the same after an interruption."""
    truth = scenes.train_truth.matrix.dense()[:4]
    image, class_ = np.indices(truth.shape).reshape(2, -1)
    answers = LabelTable.build(
        scenes.train.images[:4], scenes.train.classes, image=image, class_=class_, state=truth.ravel(),
        root=tables.train.root, source="answers of first",
    )  # fmt: skip
    splits = with_answers(tables.splits(), [answers])
    own = replace(tables, train=splits["train"])
    solve = {"name": "solve", "logit_variances": [0.3, 3.0], "trainable": "head"}
    config = make_config(objective={"name": "expected_negative"}, train__stages=[solve], train__cached_views=None)
    plan = make_plan(config, tables=own, cpu=True)
    assert "stage solve: then answers with the weights 4, 1, 16; the best on validation counts" in [*plan.lines()]
    train(config, own, tmp_path / "whole")
    lines = [json.loads(line) for line in (tmp_path / "whole" / "metrics.jsonl").read_text().splitlines()]
    assert [line["answer_weight"] for line in lines] == [4, 4, 1, 1, 16, 16]
    best = max(lines, key=lambda line: line["val/mAP"])
    model = "model.safetensors"
    expected = f"logit variance {best['logit_variance']:g} and answer weight {best['answer_weight']:g}, the best by"
    assert read_info(tmp_path / "whole" / model).selection.startswith(expected)
    train(config, own, tmp_path / "cut", stop=4)
    take(open_run(tmp_path / "cut", cpu=True).resume())
    assert (tmp_path / "cut" / model).read_bytes() == (tmp_path / "whole" / model).read_bytes()
    fixed = make_config(
        objective={"name": "expected_negative", "answer_weight": 2.0},
        train__stages=[solve],
        train__cached_views=None,
    )
    assert make_plan(fixed, tables=own, cpu=True).resolved.stages[0].answer_weights == ()


def test_a_head_of_three_by_three_is_solved(tables, make_config, tmp_path):
    """Its gradient comes channels last, which L-BFGS cannot take as it is."""
    solve = {"name": "solve", "logit_variances": [1.0], "trainable": "head"}
    config = make_config(
        train__stages=[solve], train__cached_views=None, model__head_kernel=3, objective={"name": "assume_negative"}
    )
    train(config, tables, tmp_path / "run")
    assert load_model(tmp_path / "run")[0].head.weight.shape[2:] == (3, 3)


def test_consistency_is_left_out_of_a_solved_stage_that_is_no_warmup(tables, make_config, tmp_path):
    stages = [SOLVE_FIRST[0] | {"warmup": False}, SOLVE_FIRST[1]]
    own = {"name": "expected_negative", "positives_per_image": 2.0}
    plan = make_plan(
        make_config(train__stages=stages, train__cached_views=None, objective=own), tables=tables, cpu=True
    )
    assert plan.objective.scl_weight == 0
    assert plan.fixed.pooled
    plan = make_plan(
        make_config(train__stages=SOLVE_FIRST, train__cached_views=None, objective=own), tables=tables, cpu=True
    )
    assert (plan.objective.scl_weight, plan.objective.warmup_loss) == (0.1, "expected_negative")


# --- a head on the class token


@pytest.fixture
def plain_vit(make_config):
    """Make a configuration with a head on the class token; `changes` are those of `make_config`."""
    return lambda objective, **changes: make_config(
        objective, model__backbone="test_vit", model__pool="class_token", augment__size=32, **changes
    )


def test_a_run_without_maps(scenes, plain_vit, tmp_path):
    """It trains, predicts and reports; what needs maps is refused."""
    train(plain_vit({"name": "assume_negative"}), Tables(scenes.train, scenes.val), tmp_path / "run")
    net, info = load_model(tmp_path / "run")
    assert not info.head.has_maps
    scored = score_table(net, info, scenes.val, cpu=True)
    np.testing.assert_allclose(scored.logits, np.load(tmp_path / "run" / "evaluation" / "val.npy"), atol=1e-5)
    photo = scenes.val.require_root() / scenes.val.images[0].as_py()
    for use in (
        lambda: heatmaps(net, info, photo, torch.device("cpu")),
        lambda: heatmaps(net, info, photo, torch.device("cpu"), coupled=True),
        lambda: next(predict_maps(net, info, [photo], torch.device("cpu"))),
        lambda: refuse_without_boxes(info, scenes.val),
    ):
        with pytest.raises(ConfigError, match=r"needs class maps, and a model with .* Train with model.pool = mean\.$"):
            use()
    page = build_report([tmp_path / "run"], tmp_path / "page.html").read_text("utf-8")
    assert "run has no heatmaps" in page
    assert "fewtags heatmap" not in page
    assert "The model has no heatmaps" in (tmp_path / "run" / "README.md").read_text("utf-8")


@pytest.mark.parametrize(
    ("objective", "cure"),
    [
        ({"name": "expected_negative"}, r"mean, or set objective\.scl_weight to 0\."),
        ({"name": "patchml"}, r"mean, or set objective\.patch_weight to 0\."),
        ({"name": "patchml", "patch_weight": 0.0, "pseudo_weight": 1.0}, r"mean\."),
    ],
)
def test_a_loss_of_maps_is_refused_without_maps(tables, plain_vit, objective, cure):
    with pytest.raises(
        ConfigError, match=f"the loss of {objective['name']} with these settings needs class maps.*{cure}"
    ):
        make_plan(plain_vit(objective), tables=tables, cpu=True)
