"""A model at work: photos in order, errors where they are, decisions, and tables with other classes."""

import os
import shutil
from dataclasses import replace

import numpy as np
import pytest
import torch
from model_info import plain_info

from fewtags.engine.evaluate import predict_logits, sigmoid
from fewtags.engine.places import find_photos
from fewtags.engine.predict import (
    decide,
    evaluate_table,
    heatmaps,
    predict_maps,
    predict_photos,
    score_table,
)
from fewtags.errors import ConfigError, DataError
from fewtags.formats.folder import read_folder
from fewtags.geometry import View
from fewtags.labels import ClassNames
from fewtags.metrics.ranking import ranking_report
from fewtags.nets.backbones import create_net
from fewtags.nets.spatial import HeadPlan
from fewtags.nets.tscam import coupled_maps
from fewtags.photos.augment import WholeImage
from fewtags.photos.dataset import EvalSet, PhotoFolder
from fewtags.photos.decode import open_photo
from fewtags.photos.loader import Collate, EvalLoader
from fewtags.table.merge import with_classes
from fewtags.table.table import LabelTable

CPU = torch.device("cpu")


@pytest.fixture(scope="module")
def model(scenes):
    """An untrained net that knows the digits."""
    ids = scenes.val.classes.ids
    net = create_net("test_resnet", 10, weights="none", size=64)
    with torch.no_grad():
        net.head.weight.mul_(50)
    info = plain_info(ids, (net.preprocessing.mean, net.preprocessing.std), backbone="test_resnet")
    return net, info


@pytest.fixture(scope="module")
def expected(scenes, model):
    """Probabilities of the validation photos by way of the evaluation loader."""
    net, info = model
    data = EvalSet(PhotoFolder(scenes.val.root, scenes.val.images), scenes.val.matrix, WholeImage(64))
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


def made(root, *names):
    for name in names:
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_bytes(name.encode())


def test_finding_photos(tmp_path):
    made(tmp_path, "b/2.jpg", "b/1.PNG", "b/notes.txt", "a.jpg")
    a, b = tmp_path / "a.jpg", tmp_path / "b"
    assert find_photos([b, a, b / "2.jpg"]) == (
        [b / "1.PNG", b / "2.jpg", a],
        [f"skipped in {b}, because they are not photos: *.txt 1"],
    )
    # A file that was named is taken at its word; reading it will tell.
    assert find_photos([b / "notes.txt"]) == ([b / "notes.txt"], [])
    with pytest.raises(DataError, match=r"missing does not exist; give photos, folders of photos, or shards\."):
        find_photos([a, tmp_path / "missing"])
    (tmp_path / "empty").mkdir()
    with pytest.raises(DataError, match=r"there is no photo in .*empty\."):
        find_photos([tmp_path / "empty"])


def test_photos_are_found_as_the_reader_of_class_folders_finds_them(tmp_path):
    """Hidden files and what macOS leaves behind are skipped, links to folders are followed, though not in circles."""
    root = tmp_path / "root"
    made(root, "cat/a.jpg", "cat/._a.jpg", "__MACOSX/cat/b.jpg", ".cache/c.jpg", "cat/notes.txt")
    made(tmp_path, "store/d.jpg")
    (root / "dog").symlink_to(tmp_path / "store")
    (tmp_path / "store" / "again").symlink_to(root)
    found, notes = find_photos([root])
    assert found == [root / "cat/a.jpg", root / "dog/d.jpg"]
    assert [str(path.relative_to(root)) for path in found] == read_folder(root).images.to_pylist()
    assert notes == [
        f"skipped in {root}, because they are not photos: (hidden) 3, *.txt 1",
        f"skipped {root / 'dog/again'}: a link to a folder that contains it",
    ]
    # By name, all of them are taken.
    named = [root / "cat/._a.jpg", root / ".cache/c.jpg"]
    assert find_photos(named) == (named, [])
    assert find_photos([root / ".cache"]) == ([root / ".cache/c.jpg"], [])
    made(root, "only/.a.jpg")
    with pytest.raises(DataError) as error:
        find_photos([root / "only"])
    assert str(error.value) == (
        f"there is no photo in {root / 'only'}; skipped in {root / 'only'}, because they are not photos: (hidden) 1."
    )


def test_photos_that_cannot_be_read_are_found(tmp_path):
    """So that they are named as errors: an empty file, and a link to nothing."""
    made(tmp_path, "a.jpg")
    (tmp_path / "b.jpg").touch()
    (tmp_path / "c.jpg").symlink_to(tmp_path / "gone.jpg")
    assert find_photos([tmp_path]) == ([tmp_path / name for name in ("a.jpg", "b.jpg", "c.jpg")], [])


def test_decisions():
    """At a threshold counts as above it; ties by class; at most so many."""
    prob, thresholds = np.array([0.5, 0.9, 0.2, 0.9, 0.7]), np.array([0.5, 0.95, 0.1, 0.9, 0.6])
    assert decide(prob, thresholds).tolist() == [3, 4, 0, 2]
    assert decide(prob, thresholds, 2).tolist() == [3, 4]
    assert decide(prob, np.ones(5)).tolist() == []


@pytest.mark.parametrize("most", [0, -1])
def test_no_tags_at_all_is_no_wish(most):
    with pytest.raises(ConfigError) as error:
        decide(np.ones(2), np.zeros(2), most)
    assert str(error.value) == f"max_tags is {most}; expected 1 or more, or None for all tags."


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
    assert notes == ["left out: 1 class that the model does not know ('dragon')"]
    assert found.classes == model[1].classes
    np.testing.assert_array_equal(found.ranking.average_precision, plain.ranking.average_precision)


def test_many_foreign_classes_are_one_line(scenes, model):
    order = ClassNames.of([*scenes.val.classes.ids, *"abcdefg"])
    _, notes = evaluate_table(*model, with_classes(scenes.val, order), cpu=True)
    assert notes == ["left out: 7 classes that the model does not know ('a', 'b', 'c', 'd', 'e', ...)"]


def damaged(scenes, folder, keys):
    """The validation labels over a copy of their photos in which some are cut short or gone."""
    table = scenes.val.with_root(folder)
    for key in table.images.to_pylist():
        (folder / key).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(scenes.val.root / key, folder / key)
    for i, key in enumerate(keys):
        if i % 2:
            (folder / key).unlink()
        else:
            (folder / key).write_bytes(b"no photo")
    return table


def test_unreadable_photos_are_named_and_the_others_measured(scenes, model, tmp_path):
    """The result is that of the table without them."""
    keys = scenes.val.images.to_pylist()
    found, notes = evaluate_table(*model, damaged(scenes, tmp_path, [keys[0], keys[7]]), cpu=True)
    assert (found.images, found.unreadable) == (9, 2)
    assert [note.split(": ")[0] for note in notes] == [str(tmp_path / keys[0]), str(tmp_path / keys[7])]
    kept = np.ones(11, bool)
    kept[[0, 7]] = False
    plain, _ = evaluate_table(*model, scenes.val.subset(kept), cpu=True)
    assert found.to_dict() == plain.to_dict() | {"unreadable": 2}
    assert "Left out: 2 photos that cannot be read." in str(found).splitlines()
    assert "cannot be read" not in str(plain)


def test_scores_say_which_rows_they_are_of(scenes, model, expected, tmp_path):
    keys = scenes.val.images.to_pylist()
    scored = score_table(*model, damaged(scenes, tmp_path, [keys[0], keys[7]]), cpu=True)
    assert scored.index.tolist() == [1, 2, 3, 4, 5, 6, 8, 9, 10]
    assert scored.unreadable == len(scored.notes) == 2
    np.testing.assert_array_equal(scored.labels, scenes.val.matrix.rows(scored.index))
    np.testing.assert_allclose(sigmoid(scored.logits), expected[scored.index], rtol=0, atol=1e-5)


def test_many_unreadable_photos_are_counted(scenes, model, tmp_path, monkeypatch):
    """Three of five are named."""
    monkeypatch.setattr("fewtags.engine.predict.MOST_NAMED", 3)
    keys = scenes.val.images.to_pylist()
    _, notes = evaluate_table(*model, damaged(scenes, tmp_path, keys[2:7]), cpu=True)
    assert len(notes) == 4
    assert notes[2].startswith(f"{tmp_path / keys[4]}: ")
    assert notes[3] == "and 2 more photos that cannot be read"


def test_nothing_can_be_measured_without_a_readable_photo(scenes, model, tmp_path):
    table = scenes.val.with_root(tmp_path)
    with pytest.raises(DataError) as error:
        evaluate_table(*model, table, cpu=True)
    first = tmp_path / table.images[0].as_py()
    assert str(error.value).startswith(f"none of the 11 photos can be read, for example {first}: ")


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
    with pytest.raises(DataError, match="the labels do not say where the photos are; give their folder: images="):
        evaluate_table(*model, scenes.val.with_root(None), cpu=True)
    with pytest.raises(DataError, match="there is no image to evaluate on"):
        evaluate_table(*model, scenes.val.subset(np.zeros(11, bool)), cpu=True)


@pytest.mark.parametrize("batch_size", [1, 4, 64])
def test_maps_of_many_photos_are_those_of_each(scenes, model, batch_size):
    paths = paths_of(scenes.val)
    found = [*predict_maps(*model, paths, CPU, batch_size=batch_size)]
    assert len(found) == len(paths)
    for path, (view, maps) in zip(paths, found, strict=True):
        assert view == View.identity()
        np.testing.assert_allclose(maps, heatmaps(*model, path, CPU)[1], rtol=0, atol=1e-5)


def test_views_of_cropping_models_come_with_their_maps(scenes, model):
    """The middle 7/8 of a square photo."""
    net, info = model
    [(view, _)] = predict_maps(net, replace(info, policy="imagenet"), paths_of(scenes.val)[:1], CPU)
    assert view == View.crop(1 / 16, 1 / 16, 15 / 16, 15 / 16)


def test_maps_stop_at_a_photo_that_cannot_be_read(scenes, model, tmp_path):
    (tmp_path / "text.jpg").write_text("no photo")
    with pytest.raises(DataError, match=r"text\.jpg: "):
        next(predict_maps(*model, [tmp_path / "text.jpg"], CPU))


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


def test_coupled_heatmaps_are_attention_times_logits(scenes, model):
    """Not rectified and no probabilities. The attention is that of `coupled_maps`, above zero in every cell."""
    info = replace(model[1], backbone="test_vit", head=HeadPlan(3))
    net = create_net("test_vit", 10, weights="none", size=64, head=info.head)
    path = paths_of(scenes.val)[2]
    prob, maps = heatmaps(net, info, path, CPU, coupled=True)
    plain_prob, plain = heatmaps(net, info, path, CPU)
    np.testing.assert_array_equal(prob, plain_prob)
    assert (maps.shape, maps.dtype) == (plain.shape, np.float32)
    assert ((maps < 0) == (plain < 0.5)).all()
    assert {True, False} == set((maps < 0).ravel().tolist())
    attention = maps / np.log(plain / (1 - plain))
    np.testing.assert_allclose(attention, attention[:1].repeat(10, 0), rtol=1e-2)
    with open_photo(path) as photo:
        pixels = photo.read(size=(64, 64)).astype(np.float32) / 255
    images = torch.from_numpy((pixels - np.array(info.mean)) / np.array(info.std)).permute(2, 0, 1)[None].float()
    with torch.no_grad():
        np.testing.assert_allclose(maps, coupled_maps(net, images).maps[0], atol=1e-5)


def test_coupled_heatmaps_of_a_cnn(scenes, model):
    with pytest.raises(ConfigError) as error:
        heatmaps(*model, paths_of(scenes.val)[0], CPU, coupled=True)
    assert str(error.value) == (
        "coupled attention maps need a ViT with a class token, and this backbone is a ResNet. Use its class maps "
        "alone, or train deit_small_patch16_224 or another ViT."
    )


def test_classes_that_the_model_spells_otherwise_are_evaluated(scenes, model):
    net, info = model
    spelt = tuple(f"Digit_{name}" for name in info.class_ids)
    named = replace(info, class_ids=spelt, class_names=spelt)
    classes = ClassNames.of([f"digit {name}" for name in info.class_ids])
    table = replace(scenes.val, classes=classes)
    expected, _ = evaluate_table(net, info, scenes.val, cpu=True)
    found, notes = evaluate_table(net, named, table, cpu=True)
    assert found.ranking.mean_average_precision == expected.ranking.mean_average_precision
    assert notes[0].startswith("10 class names are matched to the model, because only the spelling differs: 'digit ")


def test_classes_that_look_like_two_of_the_model_are_named_with_the_cure(scenes, model):
    net, info = model
    named = replace(
        info, class_ids=("cat", "Cat", *info.class_ids[2:]), class_names=("cat", "Cat", *info.class_ids[2:])
    )
    table = replace(scenes.val, classes=ClassNames.of(["CAT", *scenes.val.classes.ids[1:]]))
    notes = score_table(net, named, table, cpu=True).notes
    assert notes[0] == (
        "warning: class 'CAT' looks like 'cat', 'Cat' of the model and is not matched. If it is the same class, pass "
        "ReadOptions(rename=('CAT=cat',))."
    )
    assert "'CAT'" in notes[1]
