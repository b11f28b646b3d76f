"""A model at work: photos in order, errors where they are, decisions, and tables with other classes."""

import os
import shutil

import numpy as np
import pytest
import torch

from fewtags.data.augment import WholeImage
from fewtags.data.images import open_photo
from fewtags.data.loader import Collate, EvalLoader, EvalSet, Photos
from fewtags.data.table import LabelTable
from fewtags.data.vocabulary import with_classes
from fewtags.engine.evaluate import predict_logits, sigmoid
from fewtags.engine.model import ModelInfo
from fewtags.engine.predict import decide, evaluate_table, find_photos, heatmaps, predict_photos
from fewtags.errors import DataError
from fewtags.labels import ClassNames
from fewtags.metrics.ranking import ranking_report
from fewtags.nets.backbones import create_net
from fewtags.nets.spatial import HeadPlan

CPU = torch.device("cpu")


@pytest.fixture(scope="module")
def model(scenes):
    """An untrained net that knows the digits."""
    ids = scenes.val.classes.ids
    net = create_net("test_resnet", 10, weights="none", size=64)
    with torch.no_grad():
        net.head.weight.mul_(50)
    info = ModelInfo(
        "test_resnet", 0, HeadPlan(), 64, "coco", ids, ids, (0.5,) * 10, ("half",) * 10, net.preprocessing.mean,
        net.preprocessing.std, "bicubic", {}, "", "",
    )  # fmt: skip
    return net, info


@pytest.fixture(scope="module")
def expected(scenes, model):
    """Probabilities of the validation photos by way of the evaluation loader."""
    net, info = model
    data = EvalSet(Photos(scenes.val.root, scenes.val.images), scenes.val.matrix, WholeImage(64))
    return sigmoid(predict_logits(net, EvalLoader(data, 64, Collate(info.mean, info.std)), 11, CPU))


def paths_of(table):
    return [table.root / key for key in table.images.to_pylist()]


@pytest.mark.parametrize(("batch_size", "workers"), [(1, 0), (4, 0), (64, 0), (4, 2)])
def test_photos_come_in_order(scenes, model, expected, batch_size, workers):
    paths = paths_of(scenes.val)
    found = [*predict_photos(*model, paths, CPU, batch_size=batch_size, workers=workers)]
    assert [one.path for one in found] == paths
    assert not any(one.error for one in found)
    np.testing.assert_allclose(np.stack([one.prob for one in found]), expected, rtol=0, atol=1e-5)


@pytest.mark.parametrize("batch_size", [1, 3, 64])
def test_an_unreadable_photo_yields_its_error_and_the_rest_goes_on(scenes, model, expected, tmp_path, batch_size):
    """The first, one in the middle and the last, of three kinds."""
    paths = paths_of(scenes.val)
    broken, text, missing = (tmp_path / name for name in ("broken.jpg", "text.jpg", "missing.jpg"))
    broken.write_bytes(paths[0].read_bytes()[:300])
    text.write_text("no photo")
    mixed = [missing, *paths[:5], broken, *paths[5:], text]
    found = [*predict_photos(*model, mixed, CPU, batch_size=batch_size)]
    assert [one.path for one in found] == mixed
    for path in (missing, broken, text):
        one = found[mixed.index(path)]
        assert one.prob is None
        assert one.error.startswith(f"{path}: ")
    good = [one.prob for one in found if one.prob is not None]
    np.testing.assert_allclose(np.stack(good), expected, rtol=0, atol=1e-5)


def test_nothing_but_unreadable_photos(model, tmp_path):
    found = [*predict_photos(*model, [tmp_path / "a.jpg", tmp_path / "b.jpg"], CPU)]
    assert [one.prob for one in found] == [None, None]
    assert [*predict_photos(*model, [], CPU)] == []


def test_names_that_are_no_text(scenes, model, tmp_path):
    """Linux allows any bytes in a name."""
    odd = [tmp_path / "größe 鳥.jpg", tmp_path / os.fsdecode(b"caf\xe9.jpg")]
    for path in odd:
        try:
            shutil.copy(paths_of(scenes.val)[0], path)
        except OSError:
            pytest.skip("this file system allows no such names")
    found = [*predict_photos(*model, odd, CPU)]
    assert [one.path for one in found] == odd
    assert (found[0].prob == found[1].prob).all()


def test_finding_photos(tmp_path):
    for name in ("b/2.jpg", "b/1.PNG", "b/notes.txt", "a.jpg"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).touch()
    a, b = tmp_path / "a.jpg", tmp_path / "b"
    assert find_photos([b, a, b / "2.jpg"]) == [b / "1.PNG", b / "2.jpg", a]
    # A file that was named is taken at its word; reading it will tell.
    assert find_photos([b / "notes.txt"]) == [b / "notes.txt"]
    with pytest.raises(DataError, match=r"missing does not exist; give photos or folders of photos\."):
        find_photos([a, tmp_path / "missing"])
    (tmp_path / "empty").mkdir()
    with pytest.raises(DataError, match=r"there is no photo in .*empty\."):
        find_photos([tmp_path / "empty"])


def test_decisions():
    """At a threshold counts as above it; ties by class; at most so many."""
    prob, thresholds = np.array([0.5, 0.9, 0.2, 0.9, 0.7]), np.array([0.5, 0.95, 0.1, 0.9, 0.6])
    assert decide(prob, thresholds).tolist() == [3, 4, 0, 2]
    assert decide(prob, thresholds, 2).tolist() == [3, 4]
    assert decide(prob, np.ones(5)).tolist() == []


# --- tables


def test_a_table_is_measured_as_the_run_measures_it(scenes, model, expected):
    found, notes = evaluate_table(*model, scenes.val, cpu=True)
    assert notes == []
    assert found.images == 11
    assert found.ranking.known_cells == 110
    labels = scenes.val.matrix.dense()
    np.testing.assert_allclose(
        found.ranking.average_precision, ranking_report(expected, labels).average_precision, atol=1e-12
    )


def test_classes_are_matched_by_id(scenes, model):
    """The same labels with the classes in another order, and one that the model does not know."""
    order = ClassNames.of(["dragon", *reversed(scenes.val.classes.ids)])
    found, notes = evaluate_table(*model, with_classes(scenes.val, order), cpu=True)
    plain, _ = evaluate_table(*model, scenes.val, cpu=True)
    assert notes == ["left out: 'dragon', which the model does not know"]
    assert found.classes == model[1].classes
    np.testing.assert_array_equal(found.ranking.average_precision, plain.ranking.average_precision)


def test_classes_that_the_table_does_not_have_are_unknown(scenes, model):
    keys = scenes.val.images.to_pylist()
    few = LabelTable.build(
        keys, ClassNames.of(["two"]), image=np.arange(11), class_=np.zeros(11, int), state=[1] * 5 + [-1] * 6,
        root=scenes.val.root,
    )  # fmt: skip
    found, _ = evaluate_table(*model, few, cpu=True)
    assert found.ranking.known_cells == 11
    assert set(found.ranking.excluded.values()) == {"nothing known"}
    assert len(found.ranking.excluded) == 9


def test_tables_that_cannot_be_measured(scenes, model):
    other = LabelTable.build(["a.jpg"], ClassNames.of(["cat"]), image=[0], class_=[0], state=[1])
    with pytest.raises(DataError) as error:
        evaluate_table(*model, other, cpu=True)
    assert str(error.value) == ("none of the classes cat is known to the model, which has zero, one, two, three, four.")
    with pytest.raises(DataError, match="the labels do not say where the photos are; give --images FOLDER"):
        evaluate_table(*model, scenes.val.with_root(None), cpu=True)
    with pytest.raises(DataError, match="there is no image to evaluate on"):
        evaluate_table(*model, scenes.val.subset(np.zeros(11, bool)), cpu=True)


def test_heatmaps_are_the_net_on_the_test_view(scenes, model):
    net, info = model
    path = paths_of(scenes.val)[2]
    prob, maps = heatmaps(net, info, path, CPU)
    with open_photo(path) as photo:
        pixels = photo.read(size=(64, 64)).astype(np.float32) / 255
    images = torch.from_numpy((pixels - np.array(info.mean)) / np.array(info.std)).permute(2, 0, 1)[None].float()
    with torch.no_grad():
        out = net.eval()(images)
    np.testing.assert_allclose(maps, out.maps[0].sigmoid().numpy(), atol=1e-5)
    np.testing.assert_allclose(prob, out.logits[0].sigmoid().numpy(), atol=1e-5)
    assert (prob.shape, maps.shape, maps.dtype) == ((10,), (10, 2, 2), np.float32)
