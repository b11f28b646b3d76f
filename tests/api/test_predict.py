"""The Python interface: fit, evaluate, predict, heatmaps, save and load."""

import json
import warnings

import numpy as np
import pytest
from api_calls import SETTINGS, classifier, photos
from model_info import plain_info

import fewtags as ft
from fewtags.engine.events import Ended, Started
from fewtags.engine.planning import make_plan
from fewtags.engine.predict import evaluate_table
from fewtags.errors import CheckpointError, ConfigError, DataError
from fewtags.nets.backbones import create_net
from fewtags.nets.spatial import HeadPlan


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
    """Products of attention and logits, which are not probabilities; the plain ones of the same net are."""
    net = create_net("test_vit", 10, weights="none", size=64, head=HeadPlan(3))
    clf, path = classifier(backbone="test_vit"), photos(scenes.val)[0]
    wanted = (net.preprocessing.mean, net.preprocessing.std)
    info = plain_info(scenes.val.classes.ids, wanted, backbone="test_vit", head=net.head.plan)
    clf._net, clf._info = net, info
    plain, coupled = clf.heatmaps(path), clf.heatmaps(path, coupled=True)
    assert (coupled.shape, coupled.dtype) == (plain.shape, np.float32)
    assert ((coupled > 0) == (plain > 0.5)).all()
    assert coupled.min() < 0 < coupled.max()


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
