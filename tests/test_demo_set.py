"""The demo set: what the scenes promise (premise, truth, no shared handwriting), and how the folder behaves."""

import csv
import json
import re
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

from fewtags import demo_set as demo
from fewtags.demo_set import CLASSES, DemoSet, make_scenes
from fewtags.errors import ConfigError, DataError
from fewtags.geometry import View
from fewtags.labels import Label
from fewtags.table.table import LabelTable

SIZE = 64


@pytest.fixture(scope="module")
def scenes(tmp_path_factory: pytest.TempPathFactory) -> DemoSet:
    return make_scenes(tmp_path_factory.mktemp("demo") / "set", train=120, val=20, test=20, size=SIZE, seed=3)


def _boxes(table: LabelTable) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    facts = table.facts
    corners = np.stack([facts[name].to_numpy() for name in ("x0", "y0", "x1", "y1")], 1)
    return facts["image"].to_numpy(), facts["class"].to_numpy(), corners.astype(np.float64)


def _pixels(table: LabelTable) -> np.ndarray:
    assert table.root is not None
    return np.stack([np.asarray(Image.open(table.root / key)) for key in table.images.to_pylist()])


# ---- the handwriting ------------------------------------------------------------------------------------------------


def test_asset_is_the_copy_of_scikit_learn():
    load_digits = pytest.importorskip("sklearn.datasets").load_digits
    with np.load(Path(demo.__file__).parent / "assets" / "digits.npz") as data:
        np.testing.assert_array_equal(data["images"], load_digits().images)
        np.testing.assert_array_equal(data["labels"], load_digits().target)


def test_splits_share_no_handwriting():
    """The three blocks are a partition of the 1,797 digits, and each of them has every class."""
    with np.load(Path(demo.__file__).parent / "assets" / "digits.npz") as data:
        labels = data["labels"]
    used = np.concatenate([np.arange(1797)[block] for block in demo._GLYPHS.values()])
    assert sorted(used) == list(range(1797))
    assert [len(labels[block]) for block in demo._GLYPHS.values()] == [1080, 360, 357]
    assert all(len(np.unique(labels[block])) == 10 for block in demo._GLYPHS.values())


def test_enlarged_ink_by_hand():
    """A vertical bar of full ink, 6 x 2 pixels, enlarged to 60: 10 output pixels per source pixel.

    The bar is cut with one empty pixel around it: 8 x 4 source, 80 x 40 output. The edge of a bicubic enlarged step
    lies half-way (value 8 of 16) on the border between the pixels, at output rows 10 and 70, columns 10 and 30; ink is
    value / 8 - 1/2 clipped, so 0.5 there. Rounded corners do not touch the middle of the sides.
    """
    glyph = np.zeros((8, 8), np.uint8)
    glyph[1:7, 3:5] = 16
    ink = demo._enlarge(glyph, 60.0)
    assert ink.shape == (80, 40)
    assert ink[40].round(6).tolist() == ink[39].round(6).tolist()
    solid = ink >= 0.5
    assert np.flatnonzero(solid[40]).tolist() == list(range(10, 30))
    assert np.flatnonzero(solid[:, 20]).tolist() == list(range(10, 70))
    assert ink[40, 20] == 1.0
    assert ink[0, 0] == 0.0


def test_box_is_the_ink_inside_its_stamp():
    """Ink of 2 x 1 solid pixels at row 1, column 2 of a stamp placed at x 10, y 20: x 12..13, y 21..23."""
    ink = np.zeros((4, 4), np.float32)
    ink[1:3, 2] = 0.5
    assert demo._box(demo._Digit(0, ink, left=10, top=20)).tolist() == [12, 21, 13, 23]


def test_overlap_by_hand():
    """A 4 x 4 box and a 2 x 2 one share 1 pixel: a quarter of the smaller. Apart, or with nothing taken: 0."""
    places = np.array([[0, 0, 4, 4], [10, 10, 12, 12]])
    assert demo._overlap(places, np.array([[3.0, 3, 5, 5]])).tolist() == [0.25, 0.0]
    assert demo._overlap(places, np.zeros((0, 4))).tolist() == [0.0, 0.0]


# ---- the scenes -----------------------------------------------------------------------------------------------------


def test_train_has_one_positive_that_is_present(scenes):
    single, truth = scenes.train.matrix.dense(), scenes.train_truth.matrix.dense()
    assert ((single == Label.POSITIVE).sum(1) == 1).all()
    assert (single == Label.NEGATIVE).sum() == 0
    assert (truth[single == Label.POSITIVE] == Label.POSITIVE).all()
    assert scenes.train.facts["x0"].null_count == len(scenes.train)


def test_truth_is_complete_with_two_to_four_classes(scenes):
    for table in (scenes.train_truth, scenes.val, scenes.test):
        dense = table.matrix.dense()
        assert (dense != Label.UNKNOWN).all()
        assert set((dense == Label.POSITIVE).sum(1)) == {2, 3, 4}
        assert (dense == Label.POSITIVE).sum(0).all()
        assert table.facts["x0"].null_count == 0


def test_every_present_class_is_annotated_equally_often(tmp_path):
    """In a scene with k classes each is annotated with probability 1/k, so that classes and scenes are not favoured.

    Position of the annotated class among the k present ones, in class order, is uniform: mean (k - 1) / 2. The mean
    of its standardised value over n images has standard deviation 1 / sqrt(n); 4 of them are allowed.
    """
    made = make_scenes(tmp_path / "set", train=400, val=1, test=1, size=32, seed=0)
    present, single = made.train_truth.matrix.dense() == Label.POSITIVE, made.train.matrix.dense() == Label.POSITIVE
    count = present.sum(1)
    position = (np.cumsum(present, 1) - 1)[single]
    standard = (position - (count - 1) / 2) / np.sqrt((count**2 - 1) / 12)
    assert abs(standard.mean()) < 4 / np.sqrt(len(standard))


def test_boxes_hold_the_ink(scenes):
    """Ink is dark and ground is light: the middle of a photo's darkest pixels is inside boxes, and no box is empty.

    Ink is at most 0.3 and ground at least 0.5 of full brightness in every channel, before noise and JPEG.
    """
    pixels = _pixels(scenes.val).min(3) / 255
    image, _, corners = _boxes(scenes.val)
    inside = np.zeros(pixels.shape, bool)
    for i, (x0, y0, x1, y1) in zip(image, (corners * SIZE).round().astype(int), strict=True):
        inside[i, y0:y1, x0:x1] = True
        assert (pixels[i, y0:y1, x0:x1] < 0.4).mean() > 0.1
    dark = pixels < 0.35
    assert dark.sum() > 1000
    assert inside[dark].mean() > 0.98


def test_digits_have_the_promised_sizes_and_overlap_little(scenes):
    image, _, corners = _boxes(scenes.train_truth)
    longer = (corners[:, 2:] - corners[:, :2]).max(1)
    assert corners.min() >= 0
    assert corners.max() <= 1
    assert longer.min() > demo._SIZES[0] - 3 / SIZE  # soft edges and rounding cost up to 1.5 pixels a side
    assert longer.max() < demo._SIZES[1] + 3 / SIZE
    overlap = [
        demo._overlap(corners[image == i][d : d + 1], np.delete(corners[image == i], d, 0)).item()
        for i in range(len(scenes.train))
        for d in range((image == i).sum())
    ]
    assert np.mean(np.array(overlap) > 0.1) < 0.1
    assert max(overlap) < 0.5


def test_crops_cut_the_annotated_digit_away(scenes):
    """The premise of consistency over crops: with area U(.25, 1), the annotated class is often mostly out of sight."""
    image, class_, corners = _boxes(scenes.train_truth)
    annotated = scenes.train.facts["class"].to_numpy()
    rng, visible = np.random.default_rng(0), []
    for i in np.tile(np.arange(len(annotated)), 20):
        side = np.sqrt(rng.uniform(0.25, 1))
        x, y = rng.uniform(0, 1 - side, 2)
        found = corners[(image == i) & (class_ == annotated[i])]
        visible.append(View.crop(x, y, x + side, y + side).boxes_to_crop(found)[1].max())
    assert 0.12 < np.mean(np.array(visible) < 0.5) < 0.3
    assert np.mean(np.array(visible) == 1.0) > 0.4


# ---- the folder -----------------------------------------------------------------------------------------------------


def test_same_seed_same_pixels_another_seed_others(scenes, tmp_path):
    again = make_scenes(tmp_path / "again", train=5, val=20, test=1, size=SIZE, seed=3)
    other = make_scenes(tmp_path / "other", train=5, val=20, test=1, size=SIZE, seed=4)
    np.testing.assert_array_equal(_pixels(again.val), _pixels(scenes.val))
    assert again.val.facts.equals(scenes.val.facts)
    assert (_pixels(other.val) != _pixels(scenes.val)).mean() > 0.5


def test_more_images_keep_the_first_ones(scenes, tmp_path):
    fewer = make_scenes(tmp_path / "set", train=7, val=1, test=1, size=SIZE, seed=3)
    np.testing.assert_array_equal(_pixels(fewer.train), _pixels(scenes.train)[:7])
    np.testing.assert_array_equal(fewer.train.matrix.dense(), scenes.train.matrix.dense()[:7])


def test_second_call_writes_nothing_and_returns_the_same(scenes):
    before = {path: path.stat().st_mtime_ns for path in scenes.folder.rglob("*")}
    again = make_scenes(scenes.folder, train=120, val=20, test=20, size=SIZE, seed=3)
    assert {path: path.stat().st_mtime_ns for path in scenes.folder.rglob("*")} == before
    for name in ("train", "train_truth", "val", "test"):
        first, second = getattr(scenes, name), getattr(again, name)
        assert first.images.equals(second.images)
        assert first.facts.equals(second.facts)


def test_an_interrupted_call_is_completed(scenes, tmp_path):
    settings = {"train": 4, "val": 2, "test": 2, "size": SIZE, "seed": 3}
    made = make_scenes(tmp_path / "set", **settings)
    lost = made.folder / "images/train/00002.jpg"
    content = lost.read_bytes()
    lost.unlink()
    (made.folder / "val.csv").unlink()
    make_scenes(tmp_path / "set", **settings)
    assert lost.read_bytes() == content
    assert (made.folder / "val.csv").is_file()
    assert not list(made.folder.rglob("*.part"))


def test_csv_files_say_what_the_tables_say(scenes):
    def rows(name: str) -> list[dict[str, str]]:
        with (scenes.folder / name).open(newline="", encoding="utf-8") as file:
            return list(csv.DictReader(file))

    single = scenes.train.matrix.dense()
    for row, key, labels in zip(rows("train_single.csv"), scenes.train.images.to_pylist(), single, strict=True):
        assert row["image"] == key
        assert labels[CLASSES.index(row["tag"])] == Label.POSITIVE
    for name, table in (("train_truth.csv", scenes.train_truth), ("val.csv", scenes.val), ("test.csv", scenes.test)):
        written = [[int(row[c]) for c in CLASSES.ids] for row in rows(name)]
        np.testing.assert_array_equal(np.array(written) == 1, table.matrix.dense() == Label.POSITIVE)
    boxes = [row for row in rows("boxes.csv") if row["image"].startswith("val/")]
    image, class_, corners = _boxes(scenes.val)
    assert [row["image"] for row in boxes] == [scenes.val.images[i].as_py() for i in image.tolist()]
    assert [row["class"] for row in boxes] == [CLASSES.ids[c] for c in class_.tolist()]
    written = np.array([[float(row[c]) for c in ("x0", "y0", "x1", "y1")] for row in boxes])
    np.testing.assert_allclose(written, corners, atol=6e-6)  # five decimals and float32


# ---- errors ---------------------------------------------------------------------------------------------------------


@given(name=st.sampled_from(["train", "val", "test", "size", "seed"]), below=st.integers(1, 50))
def test_small_numbers_are_refused(name, below):
    least = {"train": 1, "val": 1, "test": 1, "size": 32, "seed": 0}
    settings = {**least, name: least[name] - below}
    message = f"demo set: {name} must be at least {least[name]}, not {settings[name]}."
    with pytest.raises(ConfigError, match=re.escape(message)):
        make_scenes(Path("never made"), **settings)
    assert not Path("never made").exists()


def test_a_folder_with_other_settings_is_left_alone(tmp_path):
    settings = {"train": 2, "val": 1, "test": 1, "size": 32, "seed": 0}
    make_scenes(tmp_path, **settings)
    with pytest.raises(DataError) as caught:
        make_scenes(tmp_path, **{**settings, "seed": 1})
    found = {"format": 2, **settings}
    assert str(caught.value) == (
        f"{tmp_path} has a demo set made with {found}, not with { ({**found, 'seed': 1}) }. "
        "Delete the folder or choose another one."
    )
    assert json.loads((tmp_path / "demo.json").read_text()) == found


def test_a_folder_with_other_things_is_left_alone(tmp_path):
    (tmp_path / "thesis.tex").write_text("years of work")
    with pytest.raises(DataError) as caught:
        make_scenes(tmp_path, train=1, val=1, test=1, size=32, seed=0)
    assert str(caught.value) == f"{tmp_path} is not empty and has no demo set (no demo.json). Choose another folder."
    assert [path.name for path in tmp_path.iterdir()] == ["thesis.tex"]


def test_a_broken_manifest_is_named(tmp_path):
    (tmp_path / "demo.json").write_text("{")
    with pytest.raises(DataError, match=r"demo\.json is not valid JSON .*Delete the folder or choose another one\."):
        make_scenes(tmp_path, train=1, val=1, test=1, size=32, seed=0)
