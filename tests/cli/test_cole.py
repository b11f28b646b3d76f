"""`fewtags simulate --protocol cole` from files of COCO and VOC, against the published scripts written anew.

`format_coco` and `format_pascal` make label matrices from the files, and `observe` draws from them, in plain loops and
from the description in the paper's code: ids sorted as text, one stream of random numbers, a shuffle of the negatives
even where none is kept.
"""

import csv
import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from typer.testing import Result

from fewtags.formats.read import read
from fewtags.labels import Label
from fewtags.table.table import LabelTable

Run = Callable[..., Result]


def format_coco(file: Path):
    """File names and label matrix: images with an annotation, ids sorted as text; classes as in the file."""
    content = json.loads(file.read_text("utf-8"))
    column = {category["id"]: n for n, category in enumerate(content["categories"])}
    ids = sorted({str(annotation["image_id"]) for annotation in content["annotations"]})
    labels = np.zeros((len(ids), len(column)), int)
    for annotation in content["annotations"]:
        labels[ids.index(str(annotation["image_id"])), column[annotation["category_id"]]] = 1
    name = {str(image["id"]): image["file_name"] for image in content["images"]}
    return [name[i] for i in ids], [category["name"] for category in content["categories"]], labels


def format_pascal(folder: Path, split: str, classes: list[str]):
    """File names and label matrix from the class lists: only 1 is positive; images without a positive do not occur."""
    found: dict[str, set[int]] = {}
    for number, class_ in enumerate(classes):
        for line in (folder / "ImageSets" / "Main" / f"{class_}_{split}.txt").read_text("utf-8").splitlines():
            name, state = line.split()
            if int(state) == 1:
                found.setdefault(name + ".jpg", set()).add(number)
    names = sorted(found)
    return names, [[int(c in found[name]) for c in range(len(classes))] for name in names]


def observe(labels, seed=1200):
    """One positive per image: shuffle the positives, keep the first, and shuffle the negatives too."""
    stream, kept = np.random.RandomState(seed), []
    for row in np.asarray(labels):
        positive, negative = np.nonzero(row == 1)[0], np.nonzero(row == 0)[0]
        stream.shuffle(positive)
        stream.shuffle(negative)
        kept.append(int(positive[0]))
    return kept


def split_of(n, seed=1200):
    order = np.random.RandomState(seed).permutation(n)
    return set(order[n - round(0.2 * n) :].tolist())


def expected_tables(names, classes, labels, seed=1200):
    """The positive class names of each file name in train (one) and val (all)."""
    kept, val = observe(labels, seed), split_of(len(names))
    train = {name: {classes[kept[i]]} for i, name in enumerate(names) if i not in val}
    full = {name: {classes[c] for c in np.nonzero(labels[i])[0]} for i, name in enumerate(names) if i in val}
    return train, full


def positives(table: LabelTable):
    """The positive classes of each image, by file name."""
    dense = table.matrix.dense() == Label.POSITIVE
    keys = [key.rsplit("/", 1)[-1] for key in table.images.to_pylist()]
    return {key: {table.classes.ids[c] for c in np.flatnonzero(row)} for key, row in zip(keys, dense, strict=True)}


def write_coco(file: Path, photos: Path, ids, classes, seed, *, prefix="") -> None:
    """A COCO file with shuffled images and categories, one image without annotation, and crowds."""
    rng = np.random.default_rng(seed)
    photos.mkdir(parents=True)
    images = [{"id": i, "file_name": f"{prefix}{i:06}.png", "width": 8, "height": 8} for i in ids]
    for image in images:
        Image.new("RGB", (8, 8), tuple(rng.integers(0, 255, 3).tolist())).save(photos / image["file_name"])
    annotations = [
        {"id": n, "image_id": i, "category_id": int(c), "bbox": [1, 1, 3, 3], "iscrowd": int(rng.random() < 0.2)}
        for i in ids[1:]
        for n, c in enumerate(rng.choice(list(classes), rng.integers(1, 4), replace=False), 100 * i)
    ]
    categories = [{"id": key, "name": name} for key, name in classes.items()]
    file.parent.mkdir(parents=True, exist_ok=True)
    content = {"images": images, "annotations": annotations, "categories": categories}
    file.write_text(json.dumps(content), "utf-8")


CLASSES = {18: "dog", 1: "person", 90: "toothbrush", 3: "car", 17: "cat"}  # not in the order of their ids


@pytest.fixture
def coco(tmp_path: Path) -> Path:
    """Ids from 5 to 1304 in the order of the file, so that text order, number order and file order differ."""
    rng = np.random.default_rng(3)
    ids = rng.permutation(np.r_[5:20, 95:110, 900:1500:40]).tolist()
    write_coco(tmp_path / "annotations" / "instances_train2014.json", tmp_path / "train2014", ids, CLASSES, 0)
    write_coco(tmp_path / "annotations" / "instances_val2014.json", tmp_path / "val2014", ids[:9], CLASSES, 1)
    return tmp_path


@pytest.mark.parametrize("seed", [None, 7])
def test_coco_in_file_order(run: Run, coco: Path, tmp_path: Path, seed) -> None:
    file, out = coco / "annotations" / "instances_train2014.json", tmp_path / "cole.parquet"
    words = [] if seed is None else ["--seed", seed]
    given = coco / "annotations" / "instances_val2014.json"
    folders = ("--images", coco / "train2014", "--test-images", coco / "val2014")
    result = run("simulate", file, "--test", given, "--protocol", "cole", "--out", out, *folders, *words)
    assert result.exit_code == 0, result.stderr
    assert "1 of 45 images without annotation are left out" in result.stderr
    assert "test: 1 of 9 images without annotation are left out" in result.stderr
    assert "splits as in Cole et al. (seed 1200): train 35, val 9, test 8" in result.stderr
    parts = read(out).named_splits()
    train, val = expected_tables(*format_coco(file), seed=1200 if seed is None else seed)
    assert positives(parts["train"]) == train
    assert positives(parts["val"]) == val
    names, classes, labels = format_coco(given)
    full = {name: {classes[c] for c in np.flatnonzero(row)} for name, row in zip(names, labels, strict=True)}
    assert positives(parts["test"]) == full
    assert not parts["train"].matrix.counts(Label.NEGATIVE).any()
    for name in ("val", "test"):  # complete
        assert not parts[name].matrix.counts(Label.UNKNOWN).any()
    assert {key.split("/")[0] for key in parts["test"].images.to_pylist()} == {"val2014"}


def test_the_order_of_the_file_does_not_matter(run: Run, coco: Path, tmp_path: Path) -> None:
    """Images, annotations and keys of the JSON in another order give the same labels; so does `--complete`."""
    file, tables = coco / "annotations" / "instances_train2014.json", []
    for n, words in enumerate(([], ["--complete"])):
        result = run("simulate", file, "--protocol", "cole", "--out", tmp_path / f"{n}.csv", *words)
        assert result.exit_code == 0, result.stderr
        tables.append((tmp_path / f"{n}.csv").read_text("utf-8"))
        content = json.loads(file.read_text("utf-8"))
        content["images"].reverse()
        content["annotations"].reverse()
        file.write_text(json.dumps(content), "utf-8")
    assert sorted(tables[0].splitlines()) == sorted(tables[1].splitlines())
    rows = [row for row in csv.DictReader(tables[0].splitlines()) if row["split"] == "train"]
    assert {row["image"].rsplit("/", 1)[-1]: {row["class"]} for row in rows} == expected_tables(*format_coco(file))[0]


def test_a_missing_photo_would_change_all_labels_after_it(run: Run, coco: Path, tmp_path: Path) -> None:
    file = coco / "annotations" / "instances_train2014.json"
    annotated = json.loads(file.read_text("utf-8"))["images"][3]
    (coco / "train2014" / annotated["file_name"]).unlink()
    result = run("simulate", file, "--protocol", "cole", "--out", tmp_path / "cole.parquet")
    assert result.exit_code == 1
    assert (
        "the photos of 1 of 44 annotated images are missing or have no name (the first: id "
        f"{annotated['id']}), but each image changes the random labels of those after it. Give the folder with all "
        "photos (--images FOLDER), or use --protocol single."
    ) in result.stderr
    assert not (tmp_path / "cole.parquet").exists()


# --- VOC


VOC = ["boat", "car", "dog", "person"]
OBJECT = "<object><name>{}</name><difficult>{}</difficult><bndbox><xmin>1</xmin><ymin>1</ymin><xmax>5</xmax><ymax>5</ymax></bndbox></object>"  # noqa: E501


@pytest.fixture
def voc(tmp_path: Path) -> Path:
    """Thirty photos of train, ten of val and two outside both lists; difficult objects; one photo has no other."""
    folder, rng = tmp_path / "VOC2012", np.random.default_rng(5)
    for name in ("Annotations", "ImageSets/Main", "JPEGImages"):
        (folder / name).mkdir(parents=True)
    names = [f"{year}_{n:06}" for n, year in zip(rng.permutation(42), rng.choice([2008, 2010], 42), strict=True)]
    lists = {"train": names[:30], "val": names[30:40]}
    for n, name in enumerate(names):
        Image.new("RGB", (8, 8), tuple(rng.integers(0, 255, 3).tolist())).save(folder / "JPEGImages" / f"{name}.jpg")
        objects = [(VOC[c], int(rng.random() < 0.3)) for c in rng.integers(0, 4, rng.integers(1, 5))]
        objects = [("dog", 1)] if n == 4 else objects
        if n != 4 and all(difficult for _, difficult in objects):
            objects.append(("car", 0))
        size = "<size><width>8</width><height>8</height><depth>3</depth></size>"
        page = f"<annotation><filename>{name}.jpg</filename>{size}{''.join(OBJECT.format(*o) for o in objects)}"
        (folder / "Annotations" / f"{name}.xml").write_text(page + "</annotation>", "utf-8")
        for split in (s for s, those in lists.items() if name in those):
            with (folder / "ImageSets" / "Main" / f"{split}.txt").open("a", encoding="utf-8") as file:
                file.write(name + "\n")
            for class_ in VOC:
                own = [difficult for found, difficult in objects if found == class_]
                state = -1 if not own else 0 if all(own) else 1
                with (folder / "ImageSets" / "Main" / f"{class_}_{split}.txt").open("a", encoding="utf-8") as file:
                    file.write(f"{name} {state:2}\n")
    return folder


def test_voc(run: Run, voc: Path, tmp_path: Path) -> None:
    """The official val is the test set; a difficult object is absent; photos in neither list are left out."""
    out = tmp_path / "cole.parquet"
    result = run("simulate", voc, "--protocol", "cole", "--out", out)
    assert result.exit_code == 0, result.stderr
    assert "1 of 42 images without annotation are left out" in result.stderr
    assert "left out: 2 images of no split" in result.stderr
    parts = read(out).named_splits()
    names, labels = format_pascal(voc, "train", VOC)
    train, val = expected_tables(names, VOC, np.array(labels))
    assert (positives(parts["train"]), positives(parts["val"])) == (train, val)
    names, labels = format_pascal(voc, "val", VOC)
    assert positives(parts["test"]) == {
        name: {VOC[c] for c in np.flatnonzero(row)} for name, row in zip(names, labels, strict=True)
    }


def test_settings_that_contradict_the_protocol(run: Run, voc: Path, coco: Path, tmp_path: Path) -> None:
    out = tmp_path / "cole.parquet"
    result = run("simulate", voc, "--protocol", "cole", "--set", "data.difficult=positive", "--out", out)
    assert "--set data.difficult=positive: the published labels take difficult objects as absent" in result.stderr
    next((voc / "JPEGImages").iterdir()).unlink()
    result = run("simulate", voc, "--protocol", "cole", "--out", out)
    assert "1 photo is missing (first: " in result.stderr
    file = coco / "annotations" / "instances_train2014.json"
    result = run("simulate", file, file, "--protocol", "cole", "--out", out)
    assert "--protocol cole reads one label file or folder" in result.stderr
    result = run("simulate", file, "--test", file, "--out", out)
    assert result.stderr == "error: --test is for --protocol cole, which writes a split test.\n"
    assert not out.exists()
