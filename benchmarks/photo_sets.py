"""The benchmark sets, built from the development photos that stand beside the repository (never part of it).

    python benchmarks/photo_sets.py --data ../shared/data --preview sets.png

builds what is missing in `benchmarks/cache/` and prints the statistics of every set. Six sets:

camvid    quarter frames (240 x 180) of CamVid street scenes, 11 classes; a class is present when it fills more than
          2 % of the tile. Of every 15 frames of a sequence (official train + val pooled), numbers 0, 2, 4, 5, 7, 9 are
          for training and 11, 13 for validation, the rest stay unused; test is every second official test frame.
collages  2 x 2 collages of Pascal VOC photos, 128 x 128 each (squashed, so that no object is cut off), 13 classes,
          every photo at most once, photos of nothing but cats and dogs thinned to 40 %. Semi-synthetic: say so.
voc2      the Pascal VOC photos with two or more labels.
voc       all of them.
ccp       Clothing Co-Parsing: 2,078 street-fashion photos, 24 merged classes of clothes. One half of the photos has
          boxes, the other half has tags only, so localisation is measured on the first half.
coco      414 photos of COCO 2017, 80 classes, in three random parts. No setting was ever chosen on it, so it checks
          what was chosen on the others.

Photos stay in the split of their source; the split keeps near-duplicates together.
"""

from __future__ import annotations

import argparse
import csv
import json
import shutil
import tempfile
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Literal, final

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageDraw

from fewtags.labels import ClassNames, Label
from fewtags.table.table import LabelTable, Notes

Name = Literal["camvid", "collages", "voc2", "voc", "ccp", "coco"]
NAMES: tuple[Name, ...] = ("camvid", "collages", "voc2", "voc", "ccp", "coco")
SPLITS = ("train", "val", "test")
DATA = "../shared/data"  # relative to the repository
CACHE = "benchmarks/cache"
REPOSITORY = Path(__file__).resolve().parents[1]

FRAME, TILE = (480, 360), (240, 180)  # width, height
PRESENT = 0.02  # a class is in a tile when it fills more than this share of its pixels
BLOCK, BLOCK_TRAIN, BLOCK_VAL = 15, (0, 2, 4, 5, 7, 9), (11, 13)
VOID = 11

PHOTO, KEEP, SEED = 128, 0.4, 0
COLLAGE_CLASSES = (
    *("bus", "car", "cat", "chair", "cow", "dog", "horse", "motorbike", "person", "pottedplant", "sheep", "sofa"),
    "train",
)
# The tags of Clothing Co-Parsing that are one merged class, where their names differ (its README.txt lists them).
CCP_MERGED: Mapping[str, tuple[str, ...]] = {
    "bag": ("bag", "purse", "wallet"),
    "blazer_suit": ("blazer", "suit"),
    "coat_cape": ("coat", "cape"),
    "knitwear": ("cardigan", "hoodie", "jumper", "sweater", "sweatshirt"),
    "shirt_blouse": ("shirt", "blouse"),
    "tshirt_top": ("t-shirt", "top", "bodysuit"),
    "dress_romper": ("dress", "romper"),
    "legwear": ("leggings", "stockings", "tights"),
    "eyewear": ("glasses", "sunglasses"),
    "jewellery_watch": ("accessories", "bracelet", "earrings", "necklace", "ring", "watch"),
}
# Classes with fewer positives in the test part are trained but not scored (the collages' 13 are named above).
SCORED_FROM: Mapping[Name, int] = {"camvid": 10, "collages": 1, "voc2": 10, "voc": 25, "ccp": 10, "coco": 5}


@final
@dataclass(frozen=True)
class BenchmarkSet:
    """One benchmark's data, completely labelled; methods are shown a simulated part of `train_truth`.

    Attributes:
        name: one of `NAMES`.
        train_truth: training images; every class is known in every image, but for VOC's "difficult" cells (unknown).
        val: validation images, labelled likewise.
        test: test images, labelled likewise.
        groups: by split, str [N]: images of one group are not independent of each other (camvid: the sequence, where
            "Seq05VD" occurs in the test part only and is reported apart; else: near-duplicate photos).
        scored: ids of the classes with enough test positives to be scored.
        masks: folder with a mask per tile (camvid), None where boxes say where things are (ccp: in one half of the
            photos).
    """

    name: Name
    train_truth: LabelTable
    val: LabelTable
    test: LabelTable
    groups: Mapping[str, NDArray[np.str_]]
    scored: tuple[str, ...]
    masks: Path | None = None

    @property
    def splits(self) -> Mapping[str, LabelTable]:
        """The three tables by name."""
        return {"train": self.train_truth, "val": self.val, "test": self.test}

    @property
    def scored_index(self) -> NDArray[np.int64]:
        """int64 [S]: positions of the scored classes in the vocabulary."""
        return np.array([self.test.classes.index(c) for c in self.scored], np.int64)

    def boxes(self, split: str, image: int) -> tuple[NDArray[np.int64], NDArray[np.float32]]:
        """Class numbers [k] and boxes [k, 4] (x0, y0, x1, y1 in 0..1) of an image; none where there are only masks."""
        table = self.splits[split]
        facts = table.facts.filter(np.asarray(table.facts["image"]) == image).drop_null()
        corners = np.stack([facts[c].to_numpy() for c in ("x0", "y0", "x1", "y1")], 1).astype(np.float32)
        return facts["class"].to_numpy().astype(np.int64), corners

    def regions(self, split: str, image: int, size: tuple[int, int]) -> NDArray[np.bool_]:
        """Where each class is in an image, bool [C, h, w]: what mask or boxes say at every cell's centre."""
        table, (h, w) = self.splits[split], size
        y, x = (np.arange(h) + 0.5) / h, (np.arange(w) + 0.5) / w
        if self.masks is not None:
            with Image.open(self.masks / mask_key(table.images[image].as_py())) as file:
                mask = np.asarray(file)
            rows, columns = (y * mask.shape[0]).astype(np.int64), (x * mask.shape[1]).astype(np.int64)
            numbers = np.arange(len(table.classes))[:, None, None]
            return np.asarray(numbers == mask[np.ix_(rows, columns)], np.bool_)
        out = np.zeros((len(table.classes), h, w), np.bool_)
        for class_, (x0, y0, x1, y1) in zip(*self.boxes(split, image), strict=True):
            out[class_] |= ((y >= y0) & (y < y1))[:, None] & ((x >= x0) & (x < x1))
        return out


@dataclass
class _Part:
    """One split while it is put together; plain lists, so that it goes to JSON and back.

    `positives` are (image, class, x0, y0, x1, y1) with the corners left out where there is no box; `unknown` are
    (image, class) cells nobody can vouch for.
    """

    images: list[str] = field(default_factory=list)
    groups: list[str] = field(default_factory=list)
    positives: list[list[float]] = field(default_factory=list)
    unknown: list[list[int]] = field(default_factory=list)

    def table(self, classes: ClassNames, root: Path, source: str, messages: Sequence[str]) -> LabelTable:
        """Everything that is neither positive nor unknown is known to be absent."""
        hidden: dict[int, set[int]] = defaultdict(set)
        for image, class_ in self.unknown:
            hidden[image].add(class_)
        kinds = sorted({tuple(sorted(h)) for h in (*hidden.values(), ())})
        covers = np.array([[c not in kind for c in range(len(classes))] for kind in kinds])
        position = {kind: n for n, kind in enumerate(kinds)}
        closed = [position[tuple(sorted(hidden.get(i, ())))] for i in range(len(self.images))]
        boxes = [p[2:] or [np.nan] * 4 for p in self.positives]
        return LabelTable.build(
            self.images,
            classes,
            image=np.array([p[0] for p in self.positives], np.int64),
            class_=np.array([p[1] for p in self.positives], np.int64),
            state=np.full(len(self.positives), int(Label.POSITIVE)),
            locations=np.array(boxes, np.float64).reshape(-1, 4),
            source=source,
            complete_set=np.array(closed, np.int64),
            complete_classes=covers,
            root=root,
            notes=Notes(messages=tuple(messages)),
        )


@final
@dataclass(frozen=True)
class _Recipe:
    """A set whose images have to be made: they lie in a cache folder, rebuilt when `settings` change."""

    folder: str
    settings: Mapping[str, Any]
    make: Callable[[Path, Path], tuple[dict[str, _Part], list[str]]]

    def parts(self, data: Path, cache: Path) -> tuple[Path, dict[str, _Part], list[str]]:
        """The image folder, the splits and what was left out. Made once; a half-made folder is never taken for one."""
        target = cache / self.folder
        index = target / "index.json"
        wanted = json.loads(json.dumps(self.settings))
        if not index.is_file() or json.loads(index.read_text(encoding="utf-8"))["settings"] != wanted:
            cache.mkdir(parents=True, exist_ok=True)
            made = Path(tempfile.mkdtemp(prefix=f".{self.folder}-", dir=cache))
            try:
                parts, messages = self.make(data, made)
                content = {"settings": wanted, "messages": messages, "parts": {k: asdict(p) for k, p in parts.items()}}
                (made / "index.json").write_text(json.dumps(content), encoding="utf-8")
                shutil.rmtree(target, ignore_errors=True)
                made.replace(target)
            finally:
                shutil.rmtree(made, ignore_errors=True)
        content = json.loads(index.read_text(encoding="utf-8"))
        return target, {k: _Part(**p) for k, p in content["parts"].items()}, content["messages"]


# ---------------------------------------------------------------------------------------------- CamVid


def mask_key(image: str) -> str:
    """The mask of a tile, relative to the folder of masks."""
    return str(Path(image).with_suffix(".png"))


def camvid_frames(data: Path) -> dict[str, list[Path]]:
    """Photos of every split, in the order of time. Neighbouring frames are a second apart."""
    sequences: dict[str, list[Path]] = defaultdict(list)
    for folder in ("train", "val"):
        for path in (data / folder / "images").glob("*.jpg"):
            sequences[path.name.split("_")[0]].append(path)
    frames: dict[str, list[Path]] = {s: [] for s in SPLITS}
    for name in sorted(sequences):
        for number, path in enumerate(sorted(sequences[name], key=lambda p: p.name)):
            if number % BLOCK in BLOCK_TRAIN:
                frames["train"].append(path)
            elif number % BLOCK in BLOCK_VAL:
                frames["val"].append(path)
    frames["test"] = sorted((data / "test/images").glob("*.jpg"))[::2]
    return frames


def tile_labels(mask: NDArray[np.uint8]) -> NDArray[np.int64]:
    """Class numbers that fill more than `PRESENT` of a mask; void pixels count in the tile's area, not as a class."""
    pixels = np.bincount(mask.reshape(-1), minlength=VOID + 1)[:VOID]
    return np.flatnonzero(pixels > PRESENT * mask.size)


def _make_camvid(data: Path, folder: Path) -> tuple[dict[str, _Part], list[str]]:
    frames = camvid_frames(data / "camvid_small")
    parts = {split: _Part() for split in SPLITS}
    for split, part in parts.items():
        (folder / "images" / split).mkdir(parents=True)
        (folder / "masks" / split).mkdir(parents=True)
        for path in frames[split]:
            with Image.open(path) as photo, Image.open(path.parents[1] / "masks" / f"{path.stem}.png") as mask:
                assert photo.size == mask.size == FRAME, (path, photo.size, mask.size)
                for quarter in range(4):
                    left, top = (quarter % 2) * TILE[0], (quarter // 2) * TILE[1]
                    box = (left, top, left + TILE[0], top + TILE[1])
                    key = f"{split}/{path.stem}_{quarter}.jpg"
                    # Subsampling 0 and quality 95: a second JPEG pass nobody can see.
                    photo.crop(box).save(folder / "images" / key, quality=95, subsampling=0)
                    tile = mask.crop(box)
                    tile.save(folder / "masks" / mask_key(key))
                    part.positives += [[len(part.images), int(c)] for c in tile_labels(np.asarray(tile))]
                    part.images.append(key)
                    part.groups.append(path.name.split("_")[0])
    used = sum(len(f) for f in frames.values())
    total = sum(len(list((data / "camvid_small" / s / "images").glob("*.jpg"))) for s in SPLITS)
    return parts, [f"{total - used} of {total} CamVid frames are unused, as the split wants."]


def _camvid_classes(data: Path) -> ClassNames:
    lines = (data / "camvid_small/classes.txt").read_text(encoding="utf-8").splitlines()
    return ClassNames.of(line.strip() for line in lines if line.strip() and not line.startswith("#"))


# ------------------------------------------------------------------------------------------ Pascal VOC

_Box = tuple[str, float, float, float, float]
"""Class, x0, y0, x1, y1 in 0..1."""


@final
@dataclass(frozen=True)
class _Photo:
    """One Pascal VOC photo: boxes are (class, x0, y0, x1, y1) in 0..1, `difficult` classes are unknown."""

    name: str
    split: str
    group: str
    boxes: tuple[_Box, ...]
    difficult: frozenset[str]

    @property
    def labels(self) -> frozenset[str]:
        return frozenset(b[0] for b in self.boxes)


def _rows(path: Path) -> Iterator[dict[str, str]]:
    with path.open(encoding="utf-8", newline="") as file:
        yield from csv.DictReader(file)


def _read_boxes(path: Path) -> dict[str, list[_Box]]:
    """The boxes of a COCO file by photo; a photo without boxes has an empty list."""
    coco = json.loads(path.read_text(encoding="utf-8"))
    category = {c["id"]: c["name"] for c in coco["categories"]}
    image = {i["id"]: i for i in coco["images"]}
    boxes: dict[str, list[_Box]] = defaultdict(list)
    for a in coco["annotations"]:
        (x, y, w, h), of = a["bbox"], image[a["image_id"]]
        # Stored to a tenth of a pixel: the last corner may stand that much outside.
        corners = np.clip([x / of["width"], y / of["height"], (x + w) / of["width"], (y + h) / of["height"]], 0, 1)
        x0, y0, x1, y1 = corners.tolist()
        boxes[of["file_name"]].append((category[a["category_id"]], x0, y0, x1, y1))
    return boxes


def read_voc(folder: Path) -> tuple[ClassNames, list[_Photo]]:
    """All photos of `voc_mix`, in the order of its label list."""
    labels = list(_rows(folder / "labels.csv"))
    classes = ClassNames.of(c for c in labels[0] if c not in ("image", "split"))
    group = {r["image"]: r["group"] for r in _rows(folder / "groups.csv")}
    difficult: dict[str, set[str]] = defaultdict(set)
    for row in _rows(folder / "difficult.csv"):
        difficult[row["image"]].add(row["class"])
    boxes = _read_boxes(folder / "instances.json")
    photos = []
    for row in labels:
        name = row["image"]
        photo = _Photo(name, row["split"], group[name], tuple(boxes[name]), frozenset(difficult[name]))
        assert photo.labels == {c for c in classes.ids if row[c] == "1"}, (
            f"{name}: labels.csv and instances.json differ"
        )
        photos.append(photo)
    return classes, photos


def _voc_parts(classes: ClassNames, photos: Iterable[_Photo]) -> dict[str, _Part]:
    parts = {split: _Part() for split in SPLITS}
    for photo in photos:
        part = parts[photo.split]
        part.positives += [[len(part.images), classes.index(c), *corners] for c, *corners in photo.boxes]
        part.unknown += [[len(part.images), classes.index(c)] for c in sorted(photo.difficult - photo.labels)]
        part.images.append(photo.name)
        part.groups.append(photo.group)
    return parts


def _thin(photos: Sequence[_Photo], rng: np.random.Generator) -> list[_Photo]:
    """Keep `KEEP` of the photos that show nothing but cats and dogs, and all others."""
    pure = [n for n, p in enumerate(photos) if p.labels <= {"cat", "dog"}]
    kept = set(rng.choice(pure, round(KEEP * len(pure)), replace=False).tolist())
    return [p for n, p in enumerate(photos) if n in kept or not p.labels <= {"cat", "dog"}]


def _shuffle(photos: Sequence[_Photo], rng: np.random.Generator) -> list[_Photo]:
    """Random order with the photos of a near-duplicate group side by side, so that they share collages."""
    groups: dict[str, list[_Photo]] = defaultdict(list)
    for photo in photos:
        groups[photo.group].append(photo)
    keys = list(groups)
    return [photo for k in rng.permutation(len(keys)) for photo in groups[keys[k]]]


def _paste(photos: Sequence[_Photo], folder: Path) -> Image.Image:
    collage = Image.new("RGB", (2 * PHOTO, 2 * PHOTO))
    for cell, photo in enumerate(photos):
        with Image.open(folder / photo.name) as file:
            small = file.convert("RGB").resize((PHOTO, PHOTO), Image.Resampling.BICUBIC)
        collage.paste(small, ((cell % 2) * PHOTO, (cell // 2) * PHOTO))
    return collage


def _make_collages(data: Path, folder: Path) -> tuple[dict[str, _Part], list[str]]:
    classes = ClassNames.of(COLLAGE_CLASSES)
    _, photos = read_voc(data / "voc_mix")
    parts, messages = {split: _Part() for split in SPLITS}, []
    for split, part in parts.items():
        (folder / "images" / split).mkdir(parents=True)
        rng = np.random.default_rng([SEED, SPLITS.index(split)])
        mine = [p for p in photos if p.split == split]
        order = _shuffle(_thin(mine, rng), rng)
        count, previous = len(order) // 4, ""
        messages.append(
            f"{split}: {len(mine) - len(order)} of {len(mine)} photos thinned out (cats and dogs only), "
            f"{len(order) - 4 * count} left over, {count} collages of the rest."
        )
        for number in range(count):
            four = order[4 * number : 4 * number + 4]
            key = f"{split}/{number:04d}.jpg"
            _paste(four, data / "voc_mix/images").save(folder / "images" / key, quality=95, subsampling=0)
            _add_collage(part, four, classes)
            part.images.append(key)
            # Neighbours that share a near-duplicate group are one group of collages.
            part.groups.append(part.groups[-1] if four[0].group == previous else key)
            previous = four[-1].group
    return parts, messages


def _add_collage(part: _Part, four: Sequence[_Photo], classes: ClassNames) -> None:
    """Labels of a collage: each photo's boxes moved to its cell; unknown what is difficult in one and shown in none."""
    image = len(part.images)
    for cell, photo in enumerate(four):
        left, top = (cell % 2) / 2, (cell // 2) / 2
        part.positives += [
            [image, classes.index(c), left + x0 / 2, top + y0 / 2, left + x1 / 2, top + y1 / 2]
            for c, x0, y0, x1, y1 in photo.boxes
            if c in classes
        ]
    difficult = frozenset[str]().union(*(p.difficult for p in four)) - frozenset[str]().union(*(p.labels for p in four))
    part.unknown += [[image, classes.index(c)] for c in sorted(difficult) if c in classes]


# ----------------------------------------------------------------------------------- Clothing Co-Parsing


def read_ccp(folder: Path) -> tuple[ClassNames, dict[str, _Part]]:
    """The merged classes and the splits; every cell is known.

    A box of a class that the photo's tags do not name is left out.
    """
    labels = list(_rows(folder / "labels_merged.csv"))
    classes = ClassNames.of(c for c in labels[0] if c not in ("image", "split"))
    merged = {tag: class_id for class_id in classes.ids for tag in CCP_MERGED.get(class_id, (class_id,))}
    group = {r["image"]: r["group"] for r in _rows(folder / "split.csv")}
    boxes = _read_boxes(folder / "instances.json")
    parts = {split: _Part() for split in SPLITS}
    for row in labels:
        part, name = parts[row["split"]], row["image"]
        located: dict[str, list[tuple[float, ...]]] = defaultdict(list)
        for tag, *corners in boxes[name]:
            if tag in merged:
                located[merged[tag]].append(tuple(corners))
        for class_id in classes.ids:
            if row[class_id] == "1":
                cell = [len(part.images), classes.index(class_id)]
                part.positives += [[*cell, *corners] for corners in located[class_id] or [()]]
        part.images.append(name)
        part.groups.append(group[name])
    return classes, parts


# ----------------------------------------------------------------------------------------------- COCO

COCO_PARTS: Mapping[str, int] = {"train": 214, "val": 60, "test": 140}
"""Photos of each part; no photo has a near-duplicate that is known."""


def read_coco(folder: Path) -> tuple[ClassNames, dict[str, _Part]]:
    """The classes and three random parts; every cell is known."""
    coco = json.loads((folder / "instances.json").read_text(encoding="utf-8"))
    classes = ClassNames.of(category["name"] for category in coco["categories"])
    boxes = _read_boxes(folder / "instances.json")
    names = sorted(image["file_name"] for image in coco["images"])
    assert len(names) == sum(COCO_PARTS.values()), f"{folder}: {len(names)} photos"
    order = iter(np.random.default_rng([SEED, len(names)]).permutation(len(names)).tolist())
    parts = {split: _Part() for split in SPLITS}
    for split, part in parts.items():
        for name in sorted(names[next(order)] for _ in range(COCO_PARTS[split])):
            part.positives += [[len(part.images), classes.index(c), *corners] for c, *corners in boxes[name]]
            part.images.append(name)
            part.groups.append(name)
    return classes, parts


# -------------------------------------------------------------------------------------------- the sets

_CAMVID = _Recipe(
    "camvid",
    {"version": 1, "tile": TILE, "present": PRESENT, "block": [BLOCK, BLOCK_TRAIN, BLOCK_VAL]},
    _make_camvid,
)
_COLLAGES = _Recipe(
    "collages",
    {"version": 1, "photo": PHOTO, "keep": KEEP, "seed": SEED, "classes": COLLAGE_CLASSES},
    _make_collages,
)


def load(name: Name, data: Path, cache: Path = REPOSITORY / CACHE) -> BenchmarkSet:
    """Build what is missing in `cache` and return a set.

    Args:
        name: one of `NAMES`.
        data: folder with `camvid_small`, `voc_mix`, `ccp` and `coco_small`, or with those that the set needs.
        cache: where tiles and collages are put (about 60 MB); an existing build is used as it is.

    Raises:
        FileNotFoundError: `data` lacks a file of the set.
    """
    masks, messages = None, list[str]()
    if name == "camvid":
        folder, parts, messages = _CAMVID.parts(data, cache)
        classes, root, masks = _camvid_classes(data), folder / "images", folder / "masks"
    elif name == "collages":
        folder, parts, messages = _COLLAGES.parts(data, cache)
        classes, root = ClassNames.of(COLLAGE_CLASSES), folder / "images"
    elif name == "ccp":
        classes, parts = read_ccp(data / "ccp")
        root = data / "ccp/images"
    elif name == "coco":
        classes, parts = read_coco(data / "coco_small")
        root = data / "coco_small/images"
    else:
        classes, photos = read_voc(data / "voc_mix")
        least = 2 if name == "voc2" else 1
        parts, root = _voc_parts(classes, [p for p in photos if len(p.labels) >= least]), data / "voc_mix/images"
    tables = {split: part.table(classes, root, name, messages) for split, part in parts.items()}
    positives = tables["test"].matrix.counts(Label.POSITIVE)
    scored = tuple(c for c, n in zip(classes.ids, positives, strict=True) if n >= SCORED_FROM[name])
    groups = {split: np.array(part.groups, np.str_) for split, part in parts.items()}
    return BenchmarkSet(name, tables["train"], tables["val"], tables["test"], groups, scored, masks)


def chance(table: LabelTable, classes: NDArray[np.int64]) -> float:
    """The mAP of random scores: the mean share of positives among the known cells of `classes`."""
    positive, negative = (table.matrix.counts(s)[classes] for s in (Label.POSITIVE, Label.NEGATIVE))
    return float(np.mean(positive / (positive + negative)))


def describe(benchmark: BenchmarkSet) -> Iterator[str]:
    """Lines with the sizes, label cardinality, chance level and class counts of a set."""
    index = benchmark.scored_index
    yield f"{benchmark.name}: {len(benchmark.test.classes)} classes, {len(index)} scored"
    for split, table in benchmark.splits.items():
        positive = table.matrix.counts(Label.POSITIVE)
        yield (
            f"  {split:5} {len(table):5} images  {len(np.unique(benchmark.groups[split])):5} groups  "
            f"{positive.sum() / len(table):.2f} labels per image  chance mAP {chance(table, index):.3f}  "
            f"unknown cells {table.matrix.counts(Label.UNKNOWN).sum()}"
        )
    yield from (f"  {message}" for message in benchmark.test.notes.messages)
    counts = [t.matrix.counts(Label.POSITIVE) for t in benchmark.splits.values()]
    for n, class_id in enumerate(benchmark.test.classes.ids):
        numbers = "".join(f"{c[n]:6}" for c in counts)
        yield f"    {class_id:14}{numbers}{'' if class_id in benchmark.scored else '   not scored'}"


def preview(benchmarks: Iterable[BenchmarkSet], path: Path, columns: int = 6) -> None:
    """Write a contact sheet: the first images of a fixed random order of each test part, with boxes or masks drawn."""
    cells: list[Image.Image] = []
    for benchmark in benchmarks:
        table = benchmark.test
        for image in np.random.default_rng(0).permutation(len(table))[:columns].tolist():
            with Image.open(Path(table.root or "") / table.images[image].as_py()) as file:
                cell = file.convert("RGB").resize((240, 240))
            draw = ImageDraw.Draw(cell)
            labels = np.flatnonzero(table.matrix.rows([image])[0] == Label.POSITIVE)
            for class_, box in zip(*benchmark.boxes("test", image), strict=True):
                draw.rectangle((box * 239).tolist(), outline=f"hsl({37 * class_ % 360}, 100%, 50%)")
            if benchmark.masks is not None:
                number = benchmark.regions("test", image, (240, 240))
                tint = (
                    np.asarray(cell) // 2 + (number.argmax(0) * 37 % 128 * number.any(0)).astype(np.uint8)[:, :, None]
                )
                cells.append(Image.fromarray(tint))
            draw.text(
                (2, 2),
                ", ".join(table.classes.ids[c] for c in labels),
                fill="yellow",
                stroke_width=1,
                stroke_fill="black",
            )
            cells.append(cell)
    sheet = Image.new("RGB", (columns * 240, -(-len(cells) // columns) * 240))
    for n, cell in enumerate(cells):
        sheet.paste(cell, ((n % columns) * 240, (n // columns) * 240))
    sheet.save(path)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, default=REPOSITORY / DATA, help=f"folder of the photos (default {DATA})")
    parser.add_argument(
        "--cache", type=Path, default=REPOSITORY / CACHE, help=f"where images are built (default {CACHE})"
    )
    parser.add_argument("--sets", nargs="+", choices=NAMES, default=NAMES)
    parser.add_argument("--preview", type=Path, help="write a contact sheet here")
    options = parser.parse_args()
    benchmarks = [load(name, options.data, options.cache) for name in options.sets]
    for benchmark in benchmarks:
        print("\n".join(describe(benchmark)))
    if options.preview:
        preview(benchmarks, options.preview)


if __name__ == "__main__":
    main()
