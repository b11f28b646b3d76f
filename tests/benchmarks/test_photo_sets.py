"""The benchmark sets, built from small made-up source folders, and counted on the real ones where they are."""

import importlib.util
import json
import sys
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest
from PIL import Image

from fewtags.labels import Label

REPOSITORY = Path(__file__).parents[2]
REAL = REPOSITORY / "../shared/data"


def _import() -> ModuleType:
    """Benchmarks are scripts beside the package, not a part of it."""
    spec = importlib.util.spec_from_file_location("benchmark_datasets", REPOSITORY / "benchmarks/photo_sets.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


datasets = _import()


def _write_camvid(data: Path) -> None:
    """17 train frames of one sequence, 3 test frames. Every mask: class 1, but quarter 3 holds 2 % + 1 px of class 4
    and exactly 2 % (864 px) of class 5, and quarter 0 is void."""
    mask = np.ones((360, 480), np.uint8)
    mask[:180, :240] = 11
    corner = np.ones(180 * 240, np.uint8)
    corner[:865], corner[-864:] = 4, 5
    mask[180:, 240:] = corner.reshape(180, 240)
    for split, names in (("train", [f"A_{n:02d}" for n in range(17)]), ("val", []), ("test", ["A_90", "B_91", "B_92"])):
        (data / "camvid_small" / split / "images").mkdir(parents=True)
        (data / "camvid_small" / split / "masks").mkdir()
        for name in names:
            Image.new("RGB", (480, 360), (90, 90, 90)).save(data / "camvid_small" / split / "images" / f"{name}.jpg")
            Image.fromarray(mask).save(data / "camvid_small" / split / "masks" / f"{name}.png")
    names = [*(f"c{n}" for n in range(11)), "# mask value 11 = unlabelled"]
    (data / "camvid_small/classes.txt").write_text("\n".join(names))


def _write_voc(data: Path, one_burst: bool = False) -> None:
    """Per split: 10 pure cats, 6 photos of a horse (left half) and a bottle, where 'person' is difficult.

    Near-duplicate groups are pairs; with `one_burst` all horses of a split are one.
    """
    folder = data / "voc_mix"
    (folder / "images").mkdir(parents=True)
    labels, groups, difficult = ["image,split,bottle,cat,horse,person"], ["image,group"], ["image,class"]
    coco: dict = {
        "images": [],
        "annotations": [],
        "categories": [{"id": 3, "name": "cat"}, {"id": 7, "name": "horse"}, {"id": 9, "name": "bottle"}],
    }
    for split in datasets.SPLITS:
        for n in range(16):
            name, cat = f"{split}{n}.jpg", n < 10
            Image.new("RGB", (200, 100), (200, 0, 0) if cat else (0, 0, 200)).save(folder / "images" / name)
            labels.append(f"{name},{split}," + ("0,1,0,0" if cat else "1,0,1,0"))
            groups.append(f"{name},{split}{'horses' if one_burst and not cat else n // 2}")
            if not cat:
                difficult.append(f"{name},person")
            coco["images"].append({"id": len(labels), "file_name": name, "width": 200, "height": 100})
            boxes = [(3, [0, 0, 200, 100])] if cat else [(7, [0, 0, 100, 100]), (9, [0, 0, 10, 10])]
            coco["annotations"] += [{"image_id": len(labels), "category_id": c, "bbox": b} for c, b in boxes]
    for name, lines in (("labels", labels), ("groups", groups), ("difficult", difficult)):
        (folder / f"{name}.csv").write_text("\n".join(lines) + "\n")
    (folder / "instances.json").write_text(json.dumps(coco))


def test_a_class_is_in_a_tile_above_two_percent_of_all_its_pixels() -> None:
    """100 pixels: 3 of class 2 are present, 2 of class 3 are not (2 % is not more than 2 %); void is no class."""
    mask = np.full((10, 10), 11, np.uint8)
    mask[0, :3], mask[1, :2] = 2, 3
    assert datasets.tile_labels(mask).tolist() == [2]


def test_camvid_takes_the_frames_of_the_split_and_labels_quarters(tmp_path: Path) -> None:
    _write_camvid(tmp_path)
    made = datasets.load("camvid", tmp_path, tmp_path / "cache")
    # Of 17 frames: 0 2 4 5 7 9 and, in the second block, 15 (its number 0); validation 11 and 13; test every second.
    frames = [k.split("/")[1].rsplit("_", 1)[0] for k in made.train_truth.images.to_pylist()[::4]]
    assert frames == ["A_00", "A_02", "A_04", "A_05", "A_07", "A_09", "A_15"]
    assert made.val.images.to_pylist()[::4] == ["val/A_11_0.jpg", "val/A_13_0.jpg"]
    assert made.groups["test"].tolist() == ["A"] * 4 + ["B"] * 4
    assert [np.flatnonzero(r == Label.POSITIVE).tolist() for r in made.val.matrix.rows([0, 1, 2, 3])] == [
        [],
        [1],
        [1],
        [1, 4],
    ]
    assert not (made.val.matrix.dense() == Label.UNKNOWN).any()
    # Class 4 fills 865 pixels from the tile's top: 3.6 of 180 rows, so the first of 60 rows of 3 pixels each is its.
    regions = made.regions("val", 3, (60, 80))
    assert regions[4, 0].all()
    assert not regions[4, 2:].any()
    assert not made.regions("val", 0, (6, 8)).any()


def test_collages_move_boxes_to_their_cells_and_keep_difficult_cells_unknown(tmp_path: Path) -> None:
    _write_voc(tmp_path)
    made = datasets.load("collages", tmp_path, tmp_path / "cache")
    # 10 pure cats thinned to 4, with 6 horses: 10 photos, 2 collages, 2 photos left over.
    assert [len(t) for t in made.splits.values()] == [2, 2, 2]
    assert made.test.notes.messages[2] == (
        "test: 6 of 16 photos thinned out (cats and dogs only), 2 left over, 2 collages of the rest."
    )
    horse, person = made.test.classes.index("horse"), made.test.classes.index("person")
    for image in range(2):
        with Image.open(tmp_path / "cache/collages/images" / made.test.images[image].as_py()) as file:
            pixels = np.asarray(file)
        blue = [tuple(pixels[64 + 128 * (n // 2), 64 + 128 * (n % 2)])[2] > 150 for n in range(4)]
        classes, boxes = made.boxes("test", image)
        expected = [[(n % 2) / 2, n // 2 / 2, (n % 2) / 2 + 0.25, n // 2 / 2 + 0.5] for n in range(4) if blue[n]]
        assert boxes[classes == horse].tolist() == expected
        row = made.test.matrix.rows([image])[0]
        assert row[person] == (Label.UNKNOWN if any(blue) else Label.NEGATIVE)
        assert made.regions("test", image, (2, 4))[horse].sum() == sum(blue)


def test_near_duplicates_stand_side_by_side_in_the_shuffled_order(tmp_path: Path) -> None:
    _write_voc(tmp_path)
    _, photos = datasets.read_voc(tmp_path / "voc_mix")
    order = datasets._shuffle([p for p in photos if p.split == "val"], np.random.default_rng(0))
    assert [a.group == b.group for a, b in zip(order[::2], order[1::2], strict=True)] == [True] * 8
    assert [p.name for p in order] != [p.name for p in photos if p.split == "val"]


def test_collages_that_share_near_duplicates_are_one_group(tmp_path: Path) -> None:
    """Six horses of one burst stand in a row among ten photos; the two collages share them unless they come last."""
    _write_voc(tmp_path, one_burst=True)
    made = datasets.load("collages", tmp_path, tmp_path / "cache")
    horse = made.test.classes.index("horse")
    shared = [(t.matrix.dense()[:, horse] == Label.POSITIVE).all() for t in made.splits.values()]
    assert [len(set(made.groups[split])) for split in datasets.SPLITS] == [1 if s else 2 for s in shared]
    assert any(shared)


def test_an_existing_build_is_used_and_an_outdated_one_is_replaced(tmp_path: Path) -> None:
    _write_voc(tmp_path)
    cache = tmp_path / "cache"
    first = datasets.load("collages", tmp_path, cache)
    index = cache / "collages/index.json"
    (cache / "collages/mine.txt").write_text("left alone")
    again = datasets.load("collages", tmp_path, cache)
    assert (cache / "collages/mine.txt").exists()
    assert again.test.facts.equals(first.test.facts)
    index.write_text(index.read_text().replace('"version": 1', '"version": 0'))
    datasets.load("collages", tmp_path, cache)
    assert not (cache / "collages/mine.txt").exists()
    assert [p.name for p in cache.iterdir()] == ["collages"]


def test_voc_keeps_difficult_cells_unknown_and_everything_else_known(tmp_path: Path) -> None:
    _write_voc(tmp_path)
    every, two = (datasets.load(n, tmp_path, tmp_path) for n in ("voc", "voc2"))
    assert (len(every.test), len(two.test)) == (16, 6)
    # bottle, cat, horse, person of a horse photo
    assert two.test.matrix.rows([0])[0].tolist() == [Label.POSITIVE, Label.NEGATIVE, Label.POSITIVE, Label.UNKNOWN]
    assert every.test.matrix.counts(Label.UNKNOWN).tolist() == [0, 0, 0, 6]
    assert datasets.chance(every.test, np.array([1, 3])) == pytest.approx((10 / 16 + 0 / 10) / 2)


def _write_ccp(data: Path) -> None:
    """One photo per split with pixel boxes, one in train with tags only; 'glasses' and 'sunglasses' are eyewear."""
    folder = data / "ccp"
    folder.mkdir(parents=True)
    names = ["1.jpg", "2.jpg", "3.jpg", "4.jpg"]
    rows = ["1.jpg,train,1,0", "2.jpg,train,1,1", "3.jpg,val,0,1", "4.jpg,test,0,0"]
    (folder / "labels_merged.csv").write_text("\n".join(["image,split,eyewear,hat", *rows]) + "\n")
    groups = [f"{name},x,pixel,{n // 2}" for n, name in enumerate(names)]
    (folder / "split.csv").write_text("\n".join(["image,split,annotation,group", *groups]) + "\n")
    tags = ["glasses", "sunglasses", "hat", "skin"]
    boxes = [(1, 1, [0, 0, 20, 10]), (1, 2, [20, 10, 20, 10]), (1, 4, [0, 0, 40, 20]), (3, 3, [10, 0, 20, 20])]
    coco = {
        "categories": [{"id": n, "name": tag} for n, tag in enumerate(tags, 1)],
        "images": [{"id": n, "file_name": name, "width": 40, "height": 20} for n, name in enumerate(names, 1)],
        # The last one: a hat that the tags of 4.jpg do not name.
        "annotations": [{"image_id": i, "category_id": c, "bbox": b} for i, c, b in [*boxes, (4, 3, [0, 0, 5, 5])]],
    }
    (folder / "instances.json").write_text(json.dumps(coco))


def test_ccp_merges_boxes_as_its_labels_and_keeps_tags_without_boxes(tmp_path: Path) -> None:
    """1.jpg has glasses in its upper left and sunglasses in its lower right quarter: both are eyewear."""
    _write_ccp(tmp_path)
    made = datasets.load("ccp", tmp_path)
    assert [t.images.to_pylist() for t in made.splits.values()] == [["1.jpg", "2.jpg"], ["3.jpg"], ["4.jpg"]]
    assert [g.tolist() for g in made.groups.values()] == [["0", "0"], ["1"], ["1"]]
    yes, no = int(Label.POSITIVE), int(Label.NEGATIVE)
    assert made.train_truth.matrix.dense().tolist() == [[yes, no], [yes, yes]]
    assert made.test.matrix.dense().tolist() == [[no, no]]
    quarters = made.regions("train", 0, (2, 2))
    assert quarters.tolist() == [[[True, False], [False, True]], [[False, False], [False, False]]]
    assert not made.regions("train", 1, (2, 2)).any()
    assert made.boxes("val", 0)[1].tolist() == [[0.25, 0, 0.75, 1]]
    assert made.boxes("test", 0)[0].tolist() == []
    assert made.scored == ()


@pytest.mark.skipif(not REAL.is_dir(), reason="the development photos are not here")
def test_real_voc_has_the_counts_of_its_readme() -> None:
    every, two = (datasets.load(n, REAL, REAL) for n in ("voc", "voc2"))
    assert [len(t) for t in every.splits.values()] == [3520, 541, 1353]
    assert sum(len(t) for t in two.splits.values()) == 1543
    assert " ".join(every.scored) == "bus car cat chair cow dog horse person sheep sofa train"
    assert (len(two.scored), round(datasets.chance(every.test, every.scored_index), 3)) == (14, 0.117)


@pytest.mark.skipif(not (REAL / "ccp").is_dir(), reason="the development photos are not here")
def test_real_ccp_has_the_counts_of_its_readme() -> None:
    """Every merged class that a box shows is a label of its photo, but for a jacket in 0003.jpg."""
    made = datasets.load("ccp", REAL, REAL)
    assert [len(t) for t in made.splits.values()] == [1351, 208, 519]
    assert len(made.scored) == len(made.test.classes) == 24
    bag = made.test.classes.index("bag")
    assert [int(t.matrix.counts(Label.POSITIVE)[bag]) for t in made.splits.values()] == [980, 147, 362]
    assert sum(t.matrix.counts(Label.UNKNOWN).sum() for t in made.splits.values()) == 0
    # 241 test photos of the pixel half have boxes; the others have none.
    assert sum(len(made.boxes("test", n)[0]) > 0 for n in range(len(made.test))) == 241
