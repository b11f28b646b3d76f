"""The built-in demo set: scenes of several handwritten digits, one of which is annotated per training image.

The digits are real handwriting (UCI Optical Recognition of Handwritten Digits, Alpaydin and Kaynak 1998, CC BY 4.0, see
NOTICE); the scenes are synthetic, with 2 to 4 classes and objects small enough that random crops may exclude them.
"""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from importlib import resources
from pathlib import Path
from typing import final

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from fewtags.errors import ConfigError, DataError
from fewtags.files import replacing
from fewtags.labels import ClassNames, Label
from fewtags.table.table import LabelTable

CLASSES = ClassNames.of(["zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine"])

# Consecutive blocks of the data set, so that no handwritten digit is shared; 1080, 360 and 357 digits.
_GLYPHS = {"train": slice(0, 1080), "val": slice(1080, 1440), "test": slice(1440, 1797)}
_SIZES = (0.36, 0.45)  # longer side of a digit, as a share of the scene's side
_CLASSES_PER_SCENE = (2, 4)
_REPEAT = 0.25  # probability that a scene has one of its classes twice
_OVERLAP = 0.05  # allowed share of a digit's box under another one
# Brightness of background and ink. The contrast is always high: with less, learning takes twice as long.
_GROUND = (0.85, 0.95)
_INK = (0.0, 0.1)
_FORMAT = 2  # increase it if the same settings give other scenes

Pixels = NDArray[np.float32]


@final
@dataclass(frozen=True)
class DemoSet:
    """The tables of a demo set; the keys of all four are relative to `folder / "images"`.

    Attributes:
        folder: folder of the photos and CSV files.
        train: one positive per image, everything else unknown, no locations.
        train_truth: complete labels of the same images, and the box of every digit.
        val: complete labels and boxes.
        test: complete labels and boxes.
    """

    folder: Path
    train: LabelTable
    train_truth: LabelTable
    val: LabelTable
    test: LabelTable


@final
@dataclass(frozen=True)
class _Digit:
    """One digit in a scene: its class, its ink [h, w] in 0..1 and the top-left pixel of that ink."""

    class_: int
    ink: Pixels
    left: int
    top: int


@final
@dataclass(frozen=True)
class _Scene:
    """Content of a scene: its digits, the annotated class, and the digits' boxes [d, 4] as fractions of the scene."""

    digits: tuple[_Digit, ...]
    annotated: int
    boxes: NDArray[np.float64]


def make_scenes(folder: Path, *, train: int, val: int, test: int, size: int, seed: int) -> DemoSet:
    """Write a demo set into a folder and return its tables; existing files of the same set are kept.

    The folder then contains `images/{train,val,test}/*.jpg`, `train_single.csv` (image, tag), the complete
    `train_truth.csv`, `val.csv` and `test.csv` (one column per class, 1 or 0), and `boxes.csv` (one row per digit).
    Image i of a split depends only on (seed, split, i) and the size: a larger set begins with the same images.

    Args:
        folder: new, empty, or with the set of an earlier call with the same settings.
        train: number of training scenes.
        val: number of validation scenes.
        test: number of test scenes.
        size: width and height of a scene in pixels, at least 32.
        seed: from 0.

    Raises:
        ConfigError: a number is too small.
        DataError: the folder has other content.
    """
    counts = {"train": train, "val": val, "test": test}
    least = {"train": 1, "val": 1, "test": 1, "size": 32, "seed": 0}
    for name, value in {**counts, "size": size, "seed": seed}.items():
        if value < least[name]:
            raise ConfigError(f"demo set: {name} must be at least {least[name]}, not {value}.")
    _claim(folder, {"format": _FORMAT, **counts, "size": size, "seed": seed})
    scenes = {split: _write_photos(folder, split, counts[split], size, seed) for split in counts}
    keys = {split: [_key(split, i) for i in range(counts[split])] for split in counts}
    root = folder / "images"
    truth = {split: _complete(keys[split], scenes[split], root) for split in counts}
    single = LabelTable.build(
        keys["train"],
        CLASSES,
        image=np.arange(train),
        class_=np.array([s.annotated for s in scenes["train"]]),
        state=np.full(train, Label.POSITIVE),
        source="train_single.csv",
        root=root,
    )
    tags = [CLASSES.ids[s.annotated] for s in scenes["train"]]
    _write_csv(folder / "train_single.csv", ("image", "tag"), zip(keys["train"], tags, strict=True))
    for split, name in (("train", "train_truth.csv"), ("val", "val.csv"), ("test", "test.csv")):
        present = (truth[split].matrix.dense() == Label.POSITIVE).astype(int).tolist()
        rows = ([k, *row] for k, row in zip(keys[split], present, strict=True))
        _write_csv(folder / name, ("image", *CLASSES.ids), rows)
    boxes = (
        [key, CLASSES.ids[digit.class_], *(f"{v:.5f}" for v in box)]
        for split in counts
        for key, scene in zip(keys[split], scenes[split], strict=True)
        for digit, box in zip(scene.digits, scene.boxes.tolist(), strict=True)
    )
    _write_csv(folder / "boxes.csv", ("image", "class", "x0", "y0", "x1", "y1"), boxes)
    return DemoSet(folder, single, truth["train"], truth["val"], truth["test"])


def _claim(folder: Path, settings: dict[str, int]) -> None:
    """Write the settings into a new or empty folder, or check those of an existing set."""
    manifest = folder / "demo.json"
    if manifest.is_file():
        try:
            found = json.loads(manifest.read_text(encoding="utf-8"))
        except ValueError as error:
            raise DataError(
                f"{manifest} is not valid JSON ({error}). Delete the folder or choose another one."
            ) from error
        if found != settings:
            raise DataError(
                f"{folder} has a demo set made with {found}, not with {settings}. "
                "Delete the folder or choose another one."
            )
    elif folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise DataError(f"{folder} is not empty and has no demo set (no demo.json). Choose another folder.")
    for split in _GLYPHS:
        (folder / "images" / split).mkdir(parents=True, exist_ok=True)
    _write_new(manifest, json.dumps(settings).encode())


def _key(split: str, i: int) -> str:
    return f"{split}/{i:05d}.jpg"


def _write_photos(folder: Path, split: str, count: int, size: int, seed: int) -> list[_Scene]:
    """Lay out all scenes of a split and write the missing photos."""
    with resources.as_file(resources.files("fewtags") / "assets" / "digits.npz") as asset, np.load(asset) as data:
        images, labels = data["images"][_GLYPHS[split]], data["labels"][_GLYPHS[split]]
    glyphs = [images[labels == c] for c in range(len(CLASSES))]
    scenes = []
    for i in range(count):
        layout, paint = (np.random.default_rng((seed, list(_GLYPHS).index(split), i, use)) for use in (0, 1))
        scenes.append(scene := _lay_out(layout, glyphs, size))
        path = folder / "images" / _key(split, i)
        if not path.exists():
            photo = io.BytesIO()
            Image.fromarray(_paint(paint, scene, size)).save(photo, "JPEG", quality=92, subsampling=0)
            _write_new(path, photo.getvalue())
    return scenes


def _lay_out(rng: np.random.Generator, glyphs: Sequence[NDArray[np.uint8]], size: int) -> _Scene:
    """Choose classes, digits, sizes and positions; large digits are placed first, each with little overlap."""
    distinct = int(rng.integers(_CLASSES_PER_SCENE[0], _CLASSES_PER_SCENE[1] + 1))
    classes = rng.choice(len(glyphs), distinct, replace=False)
    annotated = int(rng.choice(classes))
    if rng.random() < _REPEAT:
        classes = np.append(classes, rng.choice(classes))
    sides = -np.sort(-rng.uniform(*_SIZES, len(classes))) * size
    digits: list[_Digit] = []
    taken = np.zeros((0, 4))
    for class_, side in zip(rng.permutation(classes), sides, strict=True):
        ink = _enlarge(glyphs[class_][rng.integers(len(glyphs[class_]))], float(side))
        corners = rng.integers(0, size - np.array(ink.shape[::-1]), (256, 2), endpoint=True)
        places = np.concatenate([corners, corners + ink.shape[::-1]], 1)
        covered = _overlap(places, taken)
        best = int(np.argmin(np.maximum(covered, _OVERLAP)))  # the first with little overlap, else the one with least
        digits.append(_Digit(int(class_), ink, int(corners[best, 0]), int(corners[best, 1])))
        taken = np.concatenate([taken, places[best : best + 1]])
    return _Scene(tuple(digits), annotated, np.stack([_box(d) for d in digits]) / size)


def _overlap(places: NDArray[np.integer], taken: NDArray[np.float64]) -> NDArray[np.float64]:
    """Largest overlap [n] with a taken box, as a share of the smaller of the two; 0 without taken boxes."""
    a, b = places[:, None].astype(np.float64), taken[None]
    sides = (np.minimum(a[..., 2:], b[..., 2:]) - np.maximum(a[..., :2], b[..., :2])).clip(0)
    areas = [(box[..., 2:] - box[..., :2]).prod(-1) for box in (a, b)]
    shares: NDArray[np.float64] = (sides.prod(-1) / np.minimum(*areas)).max(1, initial=0.0)
    return shares


def _enlarge(glyph: NDArray[np.uint8], side: float) -> Pixels:
    """Ink [h, w] in 0..1 of an 8 x 8 digit whose strokes span `side` pixels: cut tight, enlarged, sharpened."""
    rows, columns = (np.flatnonzero((glyph >= 4).any(axis)) for axis in (1, 0))
    # One pixel around the strokes keeps their outer edge soft; `side` counts the strokes alone.
    cut = np.pad(glyph, 1)[rows[0] : rows[-1] + 3, columns[0] : columns[-1] + 3].astype(np.float32)
    scale = side / (max(cut.shape) - 2)
    shape = (max(1, round(cut.shape[1] * scale)), max(1, round(cut.shape[0] * scale)))
    smooth = np.asarray(Image.fromarray(cut).resize(shape, Image.Resampling.BICUBIC), np.float32)
    return np.clip(smooth / 8 - 0.5, 0, 1)


def _box(digit: _Digit) -> NDArray[np.float64]:
    """Tight box x0, y0, x1, y1 of a digit's ink, in pixels of the scene."""
    solid = digit.ink >= 0.5
    rows, columns = np.flatnonzero(solid.any(1)), np.flatnonzero(solid.any(0))
    left, top = digit.left, digit.top
    return np.array([left + columns[0], top + rows[0], left + columns[-1] + 1, top + rows[-1] + 1], np.float64)


def _paint(rng: np.random.Generator, scene: _Scene, size: int) -> NDArray[np.uint8]:
    """Render a scene as uint8 [size, size, 3]: digits in dark inks of any colour on a lighter background."""
    low, high = rng.uniform(*_GROUND, (2, 3)).astype(np.float32)
    mix = _texture(rng, size)[:, :, None]
    image = low * (1 - mix) + high * mix
    image += rng.normal(0, 0.02, (size, size, 1)).astype(np.float32)
    for digit in scene.digits:
        ink = digit.ink[:, :, None]
        colour = rng.uniform(*_INK, 3).astype(np.float32)
        h, w = digit.ink.shape
        window = image[digit.top : digit.top + h, digit.left : digit.left + w]
        window += ink * (colour - window)
    photo: NDArray[np.uint8] = (image.clip(0, 1) * 255).round().astype(np.uint8)
    return photo


def _texture(rng: np.random.Generator, size: int) -> Pixels:
    """A field [size, size] in 0..1: a gradient, stripes, blobs or grain, each in a random direction or scale."""
    y, x = np.mgrid[0:size, 0:size].astype(np.float32) / size - 0.5
    angle = rng.uniform(0, 2 * np.pi)
    along = (x * np.cos(angle) + y * np.sin(angle)).astype(np.float32)
    kind = rng.integers(4)
    if kind == 0:
        field = along / np.float32(np.sqrt(2)) + 0.5
    elif kind == 1:
        field = 0.5 + 0.5 * np.sin(2 * np.pi * np.float32(rng.uniform(2, 8)) * along)
    else:
        cells = int(rng.integers(3, 8) if kind == 2 else rng.integers(size // 4, size // 2))
        noise = Image.fromarray(rng.random((cells, cells), np.float32))
        field = np.asarray(noise.resize((size, size), Image.Resampling.BICUBIC), np.float32).clip(0, 1)
    return np.asarray(field, np.float32)


def _complete(keys: Sequence[str], scenes: Sequence[_Scene], root: Path) -> LabelTable:
    """Complete labels of scenes: every digit with its box, every other class absent."""
    return LabelTable.build(
        keys,
        CLASSES,
        image=np.repeat(np.arange(len(scenes)), [len(s.digits) for s in scenes]),
        class_=np.array([d.class_ for s in scenes for d in s.digits]),
        state=np.full(sum(len(s.digits) for s in scenes), Label.POSITIVE),
        locations=np.concatenate([s.boxes for s in scenes]),
        source="boxes.csv",
        complete_set=np.zeros(len(scenes), np.int16),
        complete_classes=np.ones((1, len(CLASSES)), np.bool_),
        root=root,
    )


def _write_csv(path: Path, header: Sequence[str], rows: Iterable[Sequence[object]]) -> None:
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(header)
    writer.writerows(rows)
    _write_new(path, text.getvalue().encode())


def _write_new(path: Path, content: bytes) -> None:
    """Write a file atomically, unless it exists."""
    if not path.exists():
        with replacing(path) as temporary:
            temporary.write_bytes(content)
