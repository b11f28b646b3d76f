"""The Python interface: what it takes, and what it refuses."""

import re

import numpy as np
import pytest
import torch
from api_calls import SETTINGS, LeftError, classifier, photos, stop_after
from PIL import Image

import fewtags as ft
from fewtags.engine.events import StepEnded
from fewtags.engine.given_photos import GivenPhotos
from fewtags.engine.tables import hold_out
from fewtags.errors import ConfigError, DataError
from fewtags.table.storage import save


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
