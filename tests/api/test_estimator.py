"""The Python interface: parameters, scores and texts of the estimator."""

import re
import shutil

import numpy as np
import pytest
from api_calls import classifier, photos

import fewtags as ft
from fewtags.engine.trained_on import trained_on
from fewtags.errors import ConfigError, DataError


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
