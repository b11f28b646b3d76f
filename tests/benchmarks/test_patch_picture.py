"""The picture of heatmaps under tags, points and boxes: which scenes it shows, and what is drawn where."""

import dataclasses
import importlib
import sys
from pathlib import Path

import numpy as np
import pytest
from matplotlib.figure import Figure
from PIL import Image

from fewtags.demo_set import make_scenes

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"

# Benchmarks are scripts that import each other from their folder.
sys.path.insert(0, str(BENCHMARKS))
picture = importlib.import_module("patch_picture")
sys.path.remove(str(BENCHMARKS))


@pytest.fixture(scope="module")
def scenes(tmp_path_factory):
    return make_scenes(tmp_path_factory.mktemp("scenes") / "demo", train=40, val=1, test=6, size=64, seed=0)


@pytest.fixture(scope="module")
def runs(scenes):
    """What is bought, and maps that were never trained."""
    rng = np.random.default_rng(0)
    maps = {"training": (40, 10, 3, 3), "test": (6, 10, 3, 3)}
    return {
        kind: picture.Trained(
            picture.buy(scenes.train_truth, kind),
            {part: rng.random(shape, np.float32) for part, shape in maps.items()},
            "mAP 50, pointing 40 %",
        )
        for kind in picture.TYPES
    }


def test_boxes_are_those_of_one_class_in_one_scene(scenes):
    """The scenes' boxes.csv, written by another road, to five digits."""
    lines = [line.split(",") for line in (scenes.folder / "boxes.csv").read_text("utf-8").splitlines()[1:]]
    for scene, class_ in ((0, 0), (1, 3), (5, 7), (4, 4)):
        name = picture.CLASSES.ids[class_]
        expected = [[*map(float, x[2:])] for x in lines if x[0] == f"test/{scene:05d}.jpg" and x[1] == name]
        found = picture.boxes(scenes.test, scene, class_)
        assert found.shape == (len(expected), 4)
        np.testing.assert_allclose(found, np.array(expected).reshape(-1, 4), atol=1e-5)


def test_rows_have_a_class_each_and_what_was_bought_of_it(scenes, runs):
    rows = picture.choose(runs["SB"].bought, scenes.test)
    assert [row.part for row in rows] == ["training"] * 2 + ["test"] * 2
    assert len({row.class_ for row in rows}) == 4
    for row in rows[:2]:
        # The same pair was bought with a point by the cheaper run, and without a place by tags.
        ((x0, y0, x1, y1),) = picture.boxes(runs["SB"].bought, row.scene, row.class_)
        assert x0 < x1
        assert y0 < y1
        ((x, y, right, below),) = picture.boxes(runs["SP"].bought, row.scene, row.class_)
        assert (x, y) == (right, below)
        assert len(picture.boxes(runs["I"].bought, row.scene, row.class_)) == 0
        assert runs["I"].bought.matrix.dense()[row.scene, row.class_] == 1
    for row in rows[2:]:
        assert len(picture.boxes(scenes.test, row.scene, row.class_)) > 0


def test_heat_of_a_run_is_drawn_in_its_own_column(scenes, runs, tmp_path):
    """Other maps for points: the third of four columns changes, and nothing else does."""
    picture.draw(scenes, runs).savefig(tmp_path / "one.png", dpi=60)
    others = {part: 1 - maps for part, maps in runs["SP"].maps.items()}
    changed = {**runs, "SP": dataclasses.replace(runs["SP"], maps=others)}
    picture.draw(scenes, changed).savefig(tmp_path / "two.png", dpi=60)
    one, two = (np.asarray(Image.open(tmp_path / name).convert("RGB"), int) for name in ("one.png", "two.png"))
    columns = np.flatnonzero((one != two).any((0, 2))) / one.shape[1]
    assert columns.min() > 0.45
    assert columns.max() < 0.8
    assert len(columns) > 0.15 * one.shape[1]


def test_the_saved_picture_is_the_figure_in_few_colours(tmp_path):
    """A half-red figure: the same pixels and size, in a palette."""
    figure = Figure(figsize=(1, 0.5), facecolor="white")
    figure.add_axes((0, 0, 0.5, 1), facecolor="red", xticks=[], yticks=[]).spines[:].set_visible(False)
    picture.save(figure, tmp_path / "new" / "a.png")
    with Image.open(tmp_path / "new" / "a.png") as saved:
        assert (saved.mode, saved.size) == ("P", (80, 40))
        pixels = np.asarray(saved.convert("RGB"))
    assert pixels[20, 20].tolist() == [255, 0, 0]
    assert pixels[20, 60].tolist() == [255, 255, 255]
