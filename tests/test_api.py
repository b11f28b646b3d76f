"""The Python interface: fit, evaluate, predict, heatmaps, save and load, and an interrupted fit that goes on."""

import json
import re
import shutil
import warnings

import numpy as np
import pytest
import torch
from PIL import Image

import fewtags as ft
from fewtags.demo_set import make_scenes
from fewtags.engine.events import Ended, Started, StepEnded
from fewtags.engine.given_photos import GivenPhotos
from fewtags.engine.model import ModelInfo
from fewtags.engine.plan import make_plan
from fewtags.engine.predict import evaluate_table
from fewtags.engine.tables import hold_out
from fewtags.engine.trained_on import trained_on
from fewtags.errors import CheckpointError, ConfigError, DataError
from fewtags.nets.backbones import create_net
from fewtags.nets.spatial import HeadPlan
from fewtags.table.storage import save

SETTINGS = {
    "train.batch_size": 8,
    "train.workers": 0,
    "train.cached_views": 2,
    "train.checkpoint_every_steps": 1,
    "train.stages": [{"name": "main", "epochs": 3, "lr": 1e-2, "trainable": "head"}],
}


def classifier(**options):
    return ft.Classifier(
        **{"backbone": "test_resnet", "weights": "none", "size": 64, "preset": "cpu", "device": "cpu"} | options
    )


@pytest.fixture(scope="module")
def scenes(tmp_path_factory):
    """24 scenes with one annotated digit, and 11 complete ones."""
    return make_scenes(tmp_path_factory.mktemp("photos") / "scenes", train=24, val=11, test=1, size=64, seed=0)


@pytest.fixture(scope="module")
def fitted(scenes, tmp_path_factory):
    """A trained classifier, its run folder, and the events."""
    out, events = tmp_path_factory.mktemp("runs") / "first", []
    method = ft.ExpectedNegative(positives_per_image=2.9, scl_weight=0.5)
    clf = classifier(objective=method).fit(
        scenes.train, scenes.val, out=out, truth=scenes.train_truth, on_event=events.append, settings=SETTINGS
    )
    return clf, out, events


def photos(table, count=3):
    return [table.root / key for key in table.images.to_pylist()[:count]]


def test_fit_returns_itself_and_tells_what_happens(fitted, scenes):
    clf, out, events = fitted
    assert clf.fitted
    assert clf.classes_ == scenes.train.classes
    assert isinstance(events[0], Started)
    assert isinstance(events[-1], Ended)
    assert (out / "model.safetensors").exists()
    assert clf.info_.method["positives_per_image"] == 2.9
    assert clf.thresholds_.tolist() == list(clf.info_.thresholds)


def test_fit_shows_what_the_command_shows(scenes, tmp_path, capsys):
    """The plan with its findings, a line for each epoch, and the result, on stderr only; or nothing at all."""
    classifier().fit(scenes.train, scenes.val, out=tmp_path / "loud", settings=SETTINGS)
    out, err = capsys.readouterr()
    lines = err.splitlines()
    assert out == ""
    plan = make_plan(
        classifier()._config(None, SETTINGS),
        tables=ft.Classifier()._tables(classifier()._config(None, SETTINGS), scenes.train, scenes.val, None),
        cpu=True,
    )
    assert lines[: len([*plan.lines()])] == [*plan.lines()]
    assert any(line.startswith("warning: ") for line in plan.lines())
    assert [line[:14] for line in lines if line.startswith("epoch ")] == [f"epoch {n}/3 main" for n in (1, 2, 3)]
    assert any(line.startswith("val: mAP ") for line in lines)
    assert any(line.startswith("model: ") for line in lines)
    classifier().fit(scenes.train, scenes.val, out=tmp_path / "quiet", settings=SETTINGS, progress=False)
    assert capsys.readouterr() == ("", "")


def test_evaluate(fitted, scenes):
    clf = fitted[0]
    found = clf.evaluate(scenes.val)
    assert found.to_dict() == evaluate_table(clf._predictor(), clf.info_, scenes.val, cpu=True)[0].to_dict()
    assert str(found).startswith("mAP ")


def test_predictions(fitted, scenes):
    clf = fitted[0]
    prob = clf.predict_proba(photos(scenes.val))
    assert (prob.shape, prob.dtype) == ((3, 10), np.float32)
    assert ((prob > 0) & (prob < 1)).all()
    # Each row on its own, in the order of the photos.
    for row, path in zip(prob, photos(scenes.val), strict=True):
        np.testing.assert_allclose(clf.predict_proba([str(path)])[0], row, atol=1e-6)
    tags = clf.predict(photos(scenes.val))
    for row, found in zip(prob, tags, strict=True):
        present = [c for c in np.argsort(-row, kind="stable") if row[c] >= clf.thresholds_[c]]
        assert found == [clf.classes_.ids[c] for c in present]
    assert clf.predict(photos(scenes.val), max_tags=1) == [found[:1] for found in tags]
    assert clf.predict_proba([]).shape == (0, 10)
    assert clf.predict([]) == []


def test_thresholds_decide_on_the_probabilities_they_were_made_of(fitted, scenes):
    """Validation photos are decided as the run's evaluation decided them: rounding to float32 comes after."""
    clf, out, _ = fitted
    logits = np.load(out / "evaluation" / "val.npy").astype(float)
    decided = 1 / (1 + np.exp(-logits)) >= clf.thresholds_
    tags = clf.predict(photos(scenes.val, 11))
    assert [sorted(found) for found in tags] == [sorted(np.array(clf.classes_.ids)[row].tolist()) for row in decided]


def test_own_thresholds(fitted, scenes, tmp_path):
    """For one call, or kept and saved. Unknown classes are refused before any photo is read."""
    _, out, _ = fitted
    clf, paths = ft.Classifier.load(out, device="cpu"), photos(scenes.val)
    stored = clf.thresholds_.tolist()
    name = clf.classes_.ids[0]
    assert all(tags == [] for tags in clf.predict(paths, threshold=1))
    assert all(tags == [name] for tags in clf.predict(paths, threshold=[1, {name: 0}]))
    assert clf.evaluate(scenes.val, threshold=[1, {name: 0}]).decisions.recall[0] == 1
    assert clf.thresholds_.tolist() == stored
    with pytest.raises(DataError, match=r"^threshold digit 99=0.5: 'digit 99' is not a class of this model"):
        clf.predict(["missing.jpg"], threshold={"digit 99": 0.5})
    assert clf.set_thresholds({name: 0.25}) is clf
    clf.save(tmp_path / "own.safetensors")
    again = ft.Classifier.load(tmp_path / "own.safetensors", device="cpu")
    assert again.thresholds_.tolist() == [0.25, *stored[1:]]
    with warnings.catch_warnings(record=True, action="always") as caught:
        clf.set_thresholds(precision=0.9)
    assert any("in validation that a precision needs" in str(warning.message) for warning in caught)
    with pytest.raises(ConfigError, match=r"^precision needs the validation scores of the run"):
        again.set_thresholds(precision=0.9)


def test_groups_of_classes(scenes, tmp_path):
    """At most one digit: one annotated digit excludes the others, and one tag at most is predicted."""
    ids = scenes.train.classes.ids
    settings = {**SETTINGS, "data.at_most_one": [list(ids)]}
    val = scenes.train.subset([0, 1, 2, 3])
    clf = classifier(objective=ft.BCE()).fit(scenes.train, val, out=tmp_path / "run", settings=settings)
    assert clf.info_.at_most_one == (ids,)
    recorded = json.loads((tmp_path / "run" / "evaluation" / "val.json").read_text("utf-8"))
    assert recorded["known_cells"] == 4 * len(ids)
    assert all(len(tags) == 1 for tags in clf.predict(photos(scenes.val), threshold=0))


def test_heatmaps(fitted, scenes):
    maps = fitted[0].heatmaps(photos(scenes.val)[0])
    assert (maps.shape, maps.dtype) == ((10, 2, 2), np.float32)
    assert ((maps > 0) & (maps < 1)).all()


def test_coupled_heatmaps(scenes):
    """Products of attention and logits, which are no probabilities; the plain ones of the same net are."""
    net = create_net("test_vit", 10, weights="none", size=64, head=HeadPlan(3))
    clf, path = classifier(backbone="test_vit"), photos(scenes.val)[0]
    clf._net, clf._info = net, vit_info(net, scenes)
    plain, coupled = clf.heatmaps(path), clf.heatmaps(path, coupled=True)
    assert (coupled.shape, coupled.dtype) == (plain.shape, np.float32)
    assert ((coupled > 0) == (plain > 0.5)).all()
    assert coupled.min() < 0 < coupled.max()


def vit_info(net, scenes):
    ids, wanted = scenes.val.classes.ids, net.preprocessing
    return ModelInfo(
        backbone="test_vit",
        output_stride=0,
        head=net.head.plan,
        size=64,
        policy="coco",
        class_ids=ids,
        class_names=ids,
        thresholds=(0.5,) * 10,
        threshold_rules=("half",) * 10,
        mean=wanted.mean,
        std=wanted.std,
        method={},
        selection="",
        version="",
    )


def test_save_and_load(fitted, scenes, tmp_path):
    clf, out, _ = fitted
    clf.save(tmp_path / "new" / "folder" / "model.safetensors")
    for place in (out, out / "model.safetensors", tmp_path / "new" / "folder"):
        again = ft.Classifier.load(place, device="cpu")
        assert again.fitted
        assert again.info_ == clf.info_
        assert (again.backbone, again.size) == ("test_resnet", 64)
        assert (again.predict_proba(photos(scenes.val)) == clf.predict_proba(photos(scenes.val))).all()
    with pytest.raises(CheckpointError, match=r"model\.safetensors does not exist; give a run folder"):
        ft.Classifier.load(tmp_path)


# --- going on


class LeftError(Exception):
    """Somebody stopped the fit."""


def stop_after(steps):
    def look(event):
        if isinstance(event, StepEnded) and event.global_step == steps:
            raise LeftError

    return look


def interrupted(scenes, out, steps, **options):
    with pytest.raises(LeftError):
        classifier().fit(scenes.train, out=out, on_event=stop_after(steps), settings=SETTINGS, **options)


@pytest.mark.parametrize("steps", [1, 5], ids=["before the first checkpoint", "in the second epoch"])
def test_fitting_again_in_the_folder_of_an_interrupted_fit_goes_on(scenes, tmp_path, steps):
    whole = classifier().fit(scenes.train, out=tmp_path / "whole", settings=SETTINGS)
    interrupted(scenes, tmp_path / "left", steps)
    events = []
    again = classifier().fit(scenes.train, out=tmp_path / "left", on_event=events.append, settings=SETTINGS)
    assert (events[0].resumed_from is not None) == (steps > 1)
    assert (tmp_path / "left" / "model.safetensors").read_bytes() == (
        tmp_path / "whole" / "model.safetensors"
    ).read_bytes()
    assert again.info_ == whole.info_


def test_a_fit_whose_photos_were_partly_unreadable_goes_on(scenes, tmp_path):
    root = shutil.copytree(scenes.train.root, tmp_path / "images")
    (root / scenes.train.images[4].as_py()).write_bytes(b"no photo")
    train = scenes.train.with_root(root)
    with pytest.raises(LeftError):
        classifier().fit(train, scenes.val, out=tmp_path / "run", on_event=stop_after(5), settings=SETTINGS)
    assert classifier().fit(train, scenes.val, out=tmp_path / "run", settings=SETTINGS).fitted


def test_another_fit_may_not_go_on(scenes, tmp_path):
    out = tmp_path / "run"
    interrupted(scenes, out, 5)
    message = f"{out} has an interrupted run with other settings; use those in {out / 'run.toml'}, or another "
    for other, options in (
        (classifier(seed=1), {}),
        (classifier(objective=ft.AssumeNegative()), {}),
        (classifier(), {"settings": SETTINGS | {"train.batch_size": 4}}),
    ):
        with pytest.raises(ConfigError) as error:
            other.fit(scenes.train, out=out, **{"settings": SETTINGS} | options)
        assert str(error.value) == message + "folder."
    for tables, split in (((scenes.train.subset(np.arange(23)),), "train"), ((scenes.train, scenes.val), "train")):
        with pytest.raises(ConfigError) as error:
            classifier().fit(*tables, out=out, settings=SETTINGS)
        assert str(error.value) == f"{out} has an interrupted run on other {split} labels; use another folder."


def test_photos_need_not_be_decoded_beforehand(scenes, tmp_path):
    """The one setting of [data] beside the split's that is not about label files."""
    with pytest.raises(LeftError):
        classifier().fit(
            scenes.train, out=tmp_path / "run", on_event=stop_after(1), settings=SETTINGS | {"data.decode": False}
        )
    assert json.loads((tmp_path / "run" / "check.json").read_text("utf-8"))["photos"]["decoded"] is False


def test_a_finished_run_is_not_overwritten(fitted, scenes):
    _, out, _ = fitted
    before = (out / "model.safetensors").read_bytes()
    with pytest.raises(ConfigError, match=r"first is not empty; choose another out\.$"):
        classifier().fit(scenes.train, scenes.val, out=out, settings=SETTINGS)
    assert (out / "model.safetensors").read_bytes() == before


# --- refused


def test_nothing_works_before_fit(scenes, tmp_path):
    clf = classifier()
    assert not clf.fitted
    for use in (
        lambda: clf.classes_,
        lambda: clf.thresholds_,
        lambda: clf.info_,
        lambda: clf.evaluate(scenes.val),
        lambda: clf.predict(photos(scenes.val)),
        lambda: clf.predict_proba(photos(scenes.val)),
        lambda: clf.heatmaps(photos(scenes.val)[0]),
        lambda: clf.save(tmp_path / "m.safetensors"),
    ):
        with pytest.raises(ConfigError) as error:
            use()
        assert str(error.value) == "this classifier is not trained yet; call fit, or Classifier.load(run)."
    assert [*tmp_path.iterdir()] == []


def test_photos_of_every_kind_have_one_probability(fitted, scenes, tmp_path):
    """A PNG as path, text, folder, PIL image, array and table; grey arrays; names of images in memory."""
    clf = fitted[0]
    with Image.open(photos(scenes.val)[0]) as opened:
        image = opened.convert("RGB")
    (tmp_path / "folder").mkdir()
    path = tmp_path / "folder" / "a.png"
    image.save(path)
    expected = clf.predict_proba([path])
    for given in (path, str(path), path.parent, image, np.asarray(image), [np.asarray(image)], np.asarray(image)[None]):
        assert (clf.predict_proba(given) == expected).all()
    mixed = clf.predict([path.parent, image, str(path), np.asarray(image.convert("L"))])
    assert mixed.photos == (str(path), "image-0002", str(path), "image-0004")
    assert (mixed.prob[:3] == mixed.prob[0]).all()
    assert (clf.heatmaps(image) == clf.heatmaps(path)).all()
    assert clf.predict(scenes.val).photos == tuple(map(str, photos(scenes.val, 11)))
    turned = Image.fromarray(np.rot90(np.asarray(image)).copy())
    turned.getexif()[0x0112] = 6
    assert (clf.predict_proba(turned) == expected).all()


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (
            np.zeros((4, 4, 3)),
            "image-0001: the array has the dtype float64; expected uint8 with values 0..255: (array * ",
        ),
        (
            np.zeros((3, 4, 4), np.uint8),
            "image-0001: the array has the shape 3 x 4 x 4, channels first; expected h x w ",
        ),
        (
            ["a.jpg", np.zeros((4, 4, 4), np.uint8)],
            "image-0002: the array has the shape 4 x 4 x 4 with an alpha channel",
        ),
        (
            np.zeros((4, 0), np.uint8),
            "image-0001: the array has the shape 4 x 0; expected h x w x 3, or h x w for grey.",
        ),
        (
            np.zeros((4, 4), np.int64),
            "image-0001: the array has the dtype int64; expected uint8 with values 0..255: uin",
        ),
        (None, "None cannot be read as photos; expected paths of photos or folders, PIL images, or arrays uint8"),
        (b"a.jpg", "an object of the type bytes cannot be read as photos; expected"),
        ([3], "image-0001: an object of the type int cannot be read as a photo; expected"),
        (
            torch.zeros(3, 4, 4),
            "image-0001: an object of the type Tensor cannot be read as a photo; make an array with",
        ),
    ],
)
def test_what_is_not_a_photo_is_refused_with_the_cure(given, message):
    with pytest.raises(DataError) as error:
        GivenPhotos.of(given)
    assert str(error.value).startswith(message)


def test_heatmaps_are_of_one_photo(fitted, scenes):
    with pytest.raises(DataError, match=r"^heatmaps takes one photo, but got 3; call it for each of them\.$"):
        fitted[0].heatmaps(photos(scenes.val))


def test_an_unreadable_photo_is_named(fitted, scenes, tmp_path):
    clf = fitted[0]
    for use in (lambda p: clf.predict([photos(scenes.val)[0], p]), lambda p: clf.predict_proba([p]), clf.heatmaps):
        with pytest.raises(DataError, match=r"missing\.jpg"):
            use(tmp_path / "missing.jpg")


def test_wrong_arguments_are_refused_before_anything_is_written(scenes, tmp_path):
    out = tmp_path / "run"
    with pytest.raises(ConfigError) as error:
        classifier().fit(scenes.train, out=out, settings={"train.batchsize": 8, "train.epochs": 0})
    assert str(error.value).splitlines() == [
        "2 problems in the arguments:",
        "  train.epochs = 0: input should be greater than or equal to 1",
        "  unknown key 'train.batchsize'; did you mean 'train.batch_size'?",
    ]
    with pytest.raises(ConfigError, match="device is 'gpu'; give 'cpu', or None for the best device"):
        classifier(device="gpu").fit(scenes.train, out=out)
    with pytest.raises(ConfigError, match=r"'resnot' is not a backbone that timm knows"):
        classifier(backbone="resnot").fit(scenes.train, scenes.val, out=out)
    with pytest.raises(DataError, match="the complete labels lack 24 of 24 images"):
        classifier().fit(scenes.train, scenes.val, truth=scenes.val, out=out)
    assert not out.exists()


def test_an_objective_is_not_changed_by_fitting(fitted, scenes, tmp_path):
    method = ft.ExpectedNegative()
    with pytest.raises(LeftError):
        classifier(objective=method).fit(scenes.train, out=tmp_path / "run", on_event=stop_after(1), settings=SETTINGS)
    assert vars(method) == vars(ft.ExpectedNegative())


def test_epochs_are_those_of_the_whole_run(scenes, tmp_path):
    clf, seen = classifier(), []

    def look(event):
        seen.append(event)
        raise LeftError

    fewer = {key: value for key, value in SETTINGS.items() if key != "train.stages"}
    with pytest.raises(LeftError):
        clf.fit(scenes.train, out=tmp_path / "run", epochs=7, on_event=look, settings=fewer)
    assert seen[0].epochs == 7


def test_settings_come_before_the_objective_and_the_constructor():
    method = ft.ExpectedNegative(positives_per_image=2.9, cl_weight=0.5)
    config = classifier(objective=method, seed=3)._config(1, {"objective.scl_weight": 0.7, "train.seed": 4})
    found = config.objective.model_dump()
    assert (found["positives_per_image"], found["cl_weight"], found["scl_weight"]) == (2.9, 0.5, 0.7)
    assert config.train.seed == 4
    with pytest.raises(ConfigError, match=r"unknown key 'objective.scl_wieght'; did you mean 'objective.scl_weight'"):
        classifier(objective=method)._config(1, {"objective.scl_wieght": 2})


def test_the_held_out_share_is_the_one_that_is_set(scenes):
    clf = classifier()
    config = clf._config(1, {"data.val_share": 0.5, "data.group_by": r"(\d)\.jpg", "train.seed": 7})
    tables = clf._tables(config, scenes.train, None, None)
    train, val = hold_out(scenes.train, 0.5, 7, r"(\d)\.jpg")
    assert tables.val.images.to_pylist() == val.images.to_pylist()
    assert tables.train.images.to_pylist() == train.images.to_pylist()
    assert len(tables.val) > 6


def test_settings_about_label_files_are_refused():
    message = "data.complete is a setting for reading label files, but fit gets a table; pass it to fewtags.read."
    with pytest.raises(ConfigError, match=f"^{re.escape(message)}$"):
        classifier()._config(1, {"data.complete": True})


def test_paths_are_read_as_tables(fitted, scenes, tmp_path):
    """The same labels as a Parquet file: the same evaluation; and a path that is not there says so."""
    clf, _, _ = fitted
    save(scenes.val, tmp_path / "val.parquet", keep_root=True)
    assert clf.evaluate(tmp_path / "val.parquet").to_dict() == clf.evaluate(scenes.val).to_dict()
    with pytest.raises(DataError, match=r"nowhere"):
        classifier().fit(str(tmp_path / "nowhere"), out=tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_reading_options_are_public(tmp_path):
    """A blank cell read as absent, from Python."""
    (tmp_path / "tags.csv").write_text("image,cat\na.jpg,1\nb.jpg,\n")
    table = ft.read(tmp_path / "tags.csv", options=ft.ReadOptions(blank="negative"))
    assert table.matrix.dense().tolist() == [[ft.Label.POSITIVE], [ft.Label.NEGATIVE]]


def test_pretraining_goes_on_only_as_it_began(tmp_path, capsys):
    """Interrupted after two steps; other settings are refused, the same end with the encoder."""
    rng = np.random.default_rng(0)
    (tmp_path / "photos").mkdir()
    for n in range(8):
        Image.fromarray(rng.integers(0, 255, (40, 40, 3), np.uint8)).save(tmp_path / "photos" / f"{n}.png")
    settings = {"train.batch_size": 4, "train.workers": 0, "train.checkpoint_every_steps": 1, "objective.k": 1}
    asked = {
        "out": tmp_path / "run",
        "backbone": "test_resnet",
        "size": 32,
        "epochs": 2,
        "device": "cpu",
        "method": "mls",
    }

    def stop(event):
        if isinstance(event, StepEnded) and event.global_step == 3:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        ft.pretrain(tmp_path / "photos", on_event=stop, settings=settings | {"objective.queue_size": 9}, **asked)
    said = capsys.readouterr().err
    assert "warning: a queue of 9 for 8 photos" in said
    assert said.splitlines()[-1] == "interrupted; the same call continues the run."
    with pytest.raises(ConfigError, match=r"is an interrupted run with other settings \(objective\.queue_size 9 -> "):
        ft.pretrain(tmp_path / "photos", settings=settings | {"objective.queue_size": 4}, **asked)
    encoder = ft.pretrain(tmp_path / "photos", settings=settings | {"objective.queue_size": 9}, **asked)
    assert encoder == tmp_path / "run" / "encoder.safetensors"
    assert ft.Classifier(init=encoder)._config(None, {}).model.backbone == "test_resnet"
    with pytest.raises(ConfigError, match="are both initial weights; give one of them"):
        ft.Classifier(init=encoder, weights="none")._config(None, {})


# --- the estimator


@pytest.mark.parametrize(
    ("options", "kind", "message"),
    [
        (
            {"epoch": 3},
            TypeError,
            "Classifier has no argument 'epoch' (did you mean 'epochs' of fit?); its arguments are",
        ),
        ({"wieghts": "none"}, TypeError, "Classifier has no argument 'wieghts' (did you mean 'weights'?)"),
        (
            {"batch_size": 8},
            TypeError,
            "Classifier has no argument 'batch_size' (settings={'train.batch_size': ...} of ",
        ),
        ({"preset": "finetun"}, ConfigError, "preset is 'finetun', which is not a preset (did you mean 'finetune'?)"),
        (
            {"objective": "expected_negativ"},
            ConfigError,
            "objective is 'expected_negativ', which is not a method (did you",
        ),
        ({"objective": ft.BCE}, TypeError, "objective is the class BCE; give an instance: BCE()."),
        ({"objective": 3}, TypeError, "objective is 3 of the type int; expected a method's name, an instance such as"),
        ({"size": "64"}, TypeError, "size is '64' of the type str; expected a whole number, 32 or more."),
        ({"size": 8}, ConfigError, "size is 8; expected 32 or more."),
        ({"seed": -1}, ConfigError, "seed is -1; expected 0 to 4294967295."),
        ({"seed": True}, TypeError, "seed is True of the type bool"),
        ({"weights": "offlin"}, ConfigError, "weights is 'offlin', which is not a file (did you mean 'offline'?)"),
        (
            {"backbone": "resnet5"},
            ConfigError,
            "'resnet5' is not a backbone that timm knows (did you mean 'resnet50'?)",
        ),
        ({"device": "gpu"}, ConfigError, "device is 'gpu'; give 'cpu', or None for the best device."),
        ({"init": 3}, TypeError, "init is 3 of the type int; expected the folder of a pretraining run"),
    ],
)
def test_the_constructor_refuses_typos(options, kind, message):
    with pytest.raises(ConfigError) as error:
        ft.Classifier(**options)
    assert isinstance(error.value, kind)
    assert str(error.value).startswith(message)


def test_typos_of_the_other_calls(tmp_path):
    with pytest.raises(TypeError, match=r"^Classifier\.fit has no argument 'epoch' \(did you mean 'epochs'\?\)"):
        ft.Classifier().fit("photos", out=tmp_path / "run", epoch=3)
    with pytest.raises(TypeError, match=r"^pretrain has no argument 'ephocs' \(did you mean 'epochs'\?\)"):
        ft.pretrain("photos", out=tmp_path / "run", ephocs=3)
    with pytest.raises(DataError, match=r"^an object of the type int cannot be read as labels; give a path"):
        ft.Classifier().fit(3, out=tmp_path / "run")


def test_a_method_by_name():
    config = classifier(objective="bce")._config(None, {})
    assert config.objective.name == "bce"


def test_parameters_work_as_in_scikit_learn():
    sklearn_base = pytest.importorskip("sklearn.base")
    clf = classifier(objective=ft.ExpectedNegative(scl_weight=0.5), seed=3)
    again = sklearn_base.clone(clf)
    mine, theirs = clf.get_params(), again.get_params()
    assert again is not clf
    assert {k: v for k, v in mine.items() if k != "objective"} == {k: v for k, v in theirs.items() if k != "objective"}
    assert mine["objective__scl_weight"] == 0.5
    before = clf.objective
    assert clf.set_params(seed=4, objective__scl_weight=0.25, objective__cl_weight=0.1) is clf
    assert (clf.seed, clf.objective.scl_weight, clf.objective.cl_weight, before.scl_weight) == (4, 0.25, 0.1, 0.5)
    assert clf.set_params(objective="bce").get_params()["objective"] == "bce"
    for wrong, message in (
        ({"sed": 1}, r"Classifier has no argument 'sed' \(did you mean 'seed'\?\)"),
        ({"objective__scl_wieght": 1}, r"BCE has no setting 'scl_wieght'"),
        ({"seed": 1, "preset": "fast"}, r"preset is 'fast'"),
    ):
        with pytest.raises(ConfigError, match=message):
            clf.set_params(**wrong)
    assert (clf.seed, clf.preset) == (4, "cpu")


def test_score_is_the_mean_average_precision(fitted, scenes):
    assert fitted[0].score(scenes.val) == fitted[0].evaluate(scenes.val).mean_average_precision


def test_version_and_short_texts(fitted, scenes):
    clf = fitted[0]
    assert re.match(r"\d+\.\d+", ft.__version__)
    assert repr(classifier(seed=3)) == (
        "Classifier(backbone='test_resnet', weights='none', size=64, preset='cpu', device='cpu', seed=3)"
    )
    assert repr(clf).endswith("trained: 10 classes)")
    evaluation = clf.evaluate(scenes.val)
    assert re.fullmatch(r"Evaluation\(mAP \d+\.\d, 11 images, 10 classes, 110 known cells\)", repr(evaluation))
    tags = clf.predict(photos(scenes.val))
    assert repr(tags) == f"Predictions(3 photos, 10 classes, {sum(map(len, tags))} tags)"
    for shown in (clf, evaluation, tags, scenes.val):
        html = shown._repr_html_()
        assert html.count("<table>") == html.count("</table>") == 1
        assert len(html) < 10_000


def test_html_is_escaped():
    table = ft.from_array(["a.jpg"], ["<script>"], [[1]])
    assert "<script>" not in table._repr_html_()
    assert "&lt;script&gt;" in table._repr_html_()


def test_photos_that_were_trained_on_are_reported(fitted, scenes, tmp_path):
    """By path and by content; not with a model that has no record beside it."""
    clf = fitted[0]
    message = r"^the model was trained on 24 photos of these 24, for example .*; scores on them are too good"
    copies = scenes.train_truth.with_root(shutil.copytree(scenes.train.root, tmp_path / "copies"))
    for table in (scenes.train_truth, copies):
        with pytest.warns(UserWarning, match=message):
            clf.evaluate(table)
    assert trained_on(fitted[1], scenes.val) == []
    clf.save(tmp_path / "alone" / "model.safetensors")
    assert ft.Classifier.load(tmp_path / "alone", device="cpu").evaluate(scenes.train_truth).images == 24


def test_data_frames(fitted, scenes, tmp_path):
    pd = pytest.importorskip("pandas")
    for name in ("a.jpg", "b.jpg"):
        shutil.copy(photos(scenes.val)[0], tmp_path / name)
    frame = pd.DataFrame({"photo": ["a.jpg", "b.jpg"], "cat": [1, 0], "dog": [None, 1.0]})
    table = ft.from_pandas(frame, images=tmp_path)
    assert table.images.to_pylist() == ["a.jpg", "b.jpg"]
    assert table.matrix.dense().tolist() == [[1, 0], [-1, 1]]
    clf, frame = fitted[0], scenes.val.to_pandas()
    frame["image"] = [str(scenes.val.root / key) for key in frame["image"]]
    found, whole = (clf.evaluate(labels).to_dict() for labels in (frame, scenes.val))
    assert found["per_class"] == whole["per_class"]
    assert {m["key"]: m["value"] for m in found["metrics"]}.items() <= {
        m["key"]: m["value"] for m in whole["metrics"]
    }.items()  # without boxes, mAP by the size of objects is missing
    tags = clf.predict(photos(scenes.val))
    assert list(tags.to_pandas().columns) == ["image", "class", "name", "probability", "threshold"]
    assert tags.to_pandas(wide=True).shape == (3, 11)
    assert len(clf.evaluate(scenes.val).to_pandas()) == 10


def test_a_teacher_reaches_the_run(scenes, tmp_path, monkeypatch):
    """As a path, a frame or an array of the rows and classes of `train`; other methods refuse it before training."""
    given = []
    monkeypatch.setattr("fewtags.api.fit_tables", lambda config, *_, scores, **__: given.append((config, scores)))
    monkeypatch.setattr("fewtags.api.load_model", lambda _: (None, None))
    values = np.linspace(0, 1, 240).reshape(24, 10)
    names = scenes.train.images.to_pylist()
    path = tmp_path / "scores.csv"
    rows = (f"{name},{','.join(map(str, row))}" for name, row in zip(names, values.tolist(), strict=True))
    path.write_text("\n".join([f"image,{','.join(scenes.train.classes.ids)}", *rows]))
    for teacher in (values, str(path)):
        classifier(objective="em").fit(scenes.train, scenes.val, out=tmp_path / "run", teacher=teacher, progress=False)
    (first, one), (second, two) = given
    assert (first.data.teacher, second.data.teacher) == ("(tables in memory)", str(path))
    for scores in (one, two):
        np.testing.assert_allclose(scores.score, values.reshape(-1))
        assert scores.images == tuple(names)
    monkeypatch.undo()
    with pytest.raises(ConfigError, match="teacher: the method splc cannot use the scores of a teacher"):
        classifier(objective="splc").fit(scenes.train, scenes.val, out=tmp_path / "run", teacher=values, progress=False)
