"""Photos that are followed through training: which ones, which classes of them, and their files."""

import numpy as np
import pytest
import torch

from fewtags.engine.gallery import Gallery, GalleryPhoto, Panel, choose_roles, load_gallery, save_gallery
from fewtags.nets.backbones import create_net
from fewtags.photos.augment import WholeImage
from fewtags.photos.loader import Collate

COLLATE = Collate((0.5, 0.5, 0.5), (0.2, 0.2, 0.2))


def gallery(scenes, truth=True, **options):
    tables = {"train": scenes.train, "val": scenes.val, "test": scenes.test}
    return Gallery.choose(tables, scenes.train_truth if truth else None, WholeImage(64), COLLATE, **options)


def roles(labels, complete, prob, **options):
    found = choose_roles(np.array(labels, np.int8), np.array(complete, np.int8), np.array(prob, np.float32), **options)
    return [(c, role) for c, role in found]


def test_roles_with_complete_labels():
    """Class 0 is annotated, 1 and 2 are hidden positives, 3 and 4 absent: 4 is where the net would go wrong first."""
    assert roles([1, 0, 0, 0, 0], [1, 1, 1, -1, -1], [0.5, 0.2, 0.9, 0.1, 0.7]) == [
        (0, "annotated"),
        (2, "unannotated positive"),
        (1, "unannotated positive"),
        (4, "negative"),
    ]


def test_roles_without_complete_labels():
    assert roles([1, 0, 0, -1, 0], [1, 0, 0, -1, 0], [0.5, 0.2, 0.9, 0.1, 0.7]) == [
        (0, "annotated"),
        (2, "predicted"),
        (4, "predicted"),
        (3, "negative"),
    ]


def test_two_annotated_classes_where_none_is_hidden():
    complete = [1, 1, 1, -1]
    assert roles(complete, complete, [0.1, 0.9, 0.5, 0.2]) == [(1, "annotated"), (2, "annotated"), (3, "negative")]


def test_no_more_panels_than_fit_and_none_of_nothing():
    assert roles([1, 0, 0, 0], [1, 1, 1, -1], [0.1] * 4, limit=2) == [(0, "annotated"), (1, "unannotated positive")]
    assert roles([0], [0], [0.5]) == [(0, "predicted")]
    assert roles([], [], []) == []


def test_a_known_negative_is_never_called_hidden_or_predicted():
    assert roles([-1, -1], [-1, -1], [0.9, 0.8]) == [(0, "negative")]


def test_photos_of_the_training_set_and_of_the_last_other_split(scenes):
    chosen = gallery(scenes, each=3)
    assert chosen.split == ("train",) * 3 + ("test",) * 3
    assert len({*zip(chosen.split, chosen.index, strict=True)}) == 6
    again = gallery(scenes, each=3)
    assert (again.split, again.index) == (chosen.split, chosen.index)
    assert gallery(scenes, each=3, seed=1).index != chosen.index


def test_photos_with_several_positives_come_first(scenes):
    """Without complete labels every training photo has one known positive; of the test set, all of five are taken."""
    chosen = gallery(scenes, truth=False, each=9)
    assert chosen.split == ("train",) * 9 + ("test",) * 5
    counts = scenes.test.matrix.image_counts(1)[list(chosen.index[9:])]
    assert (np.diff(np.minimum(counts, 2)) <= 0).all()


@pytest.mark.parametrize("mode", [True, False])
def test_looking_leaves_the_net_as_it_was(scenes, mode):
    net = create_net("test_resnet", 10, weights="none", size=64).train(mode)
    before = {key: value.clone() for key, value in net.state_dict().items()}
    shown = gallery(scenes, each=2).compute_maps(net, torch.device("cpu"))
    assert net.training is mode
    assert all(torch.equal(value, before[key]) for key, value in net.state_dict().items())
    assert [one.split for one in shown] == ["train", "train", "test", "test"]
    for one in shown:
        for panel in one.panels:
            assert (panel.map.shape, panel.map.dtype) == ((2, 2), np.float16)
            assert 0 <= panel.prob <= 1
    hidden = [panel.role for one in shown[:2] for panel in one.panels]
    assert "unannotated positive" in hidden


def test_a_gallery_comes_back_from_its_files(tmp_path):
    maps = [np.linspace(0, 1, 4, dtype=np.float16).reshape(2, 2) * k for k in (1, 0.5)]
    shown = (
        GalleryPhoto(
            "train", "größe/a.jpg", (Panel(3, "annotated", 0.25, maps[0]), Panel(1, "negative", 0.5, maps[1]))
        ),
        GalleryPhoto("val", "b.jpg", ()),
    )
    save_gallery(tmp_path, "final", shown)
    back = load_gallery(tmp_path, "final")
    assert [(s.split, s.key, len(s.panels)) for s in back] == [("train", "größe/a.jpg", 2), ("val", "b.jpg", 0)]
    for panel, original in zip(back[0].panels, shown[0].panels, strict=True):
        assert (panel.class_, panel.role, panel.prob) == (original.class_, original.role, original.prob)
        assert (panel.map == original.map).all()
    assert sorted(p.name for p in (tmp_path / "gallery").iterdir()) == ["final.json", "final.npz"]


def test_photos_without_any_panel(tmp_path):
    save_gallery(tmp_path, "final", [GalleryPhoto("val", "b.jpg", ())])
    assert load_gallery(tmp_path, "final") == (GalleryPhoto("val", "b.jpg", ()),)
