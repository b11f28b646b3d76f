"""A tiny data set and one tiny trained run, made once for all tests of the command line."""

import os
import shutil
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from typer.testing import CliRunner, Result

from fewtags.cli.main import app
from fewtags.labels import ClassNames, Label
from fewtags.table.storage import save
from fewtags.table.table import LabelTable

COLOURS = {"red": (220, 30, 30), "green": (30, 200, 40), "blue": (40, 60, 230)}
TINY = (
    *("--weights", "none", "--preset", "views", "--cpu", "--seed", "1"),
    *("--set", "model.backbone=test_resnet", "--set", "augment.size=64", "--set", "train.cached_views=1"),
    *("--set", "train.epochs=6", "--set", "train.workers=0"),
)


@pytest.fixture(scope="session")
def run() -> Callable[..., Result]:
    """Call the command line in this process."""

    def call(*arguments: object) -> Result:
        return CliRunner().invoke(app, [str(a) for a in arguments])

    return call


def paint(path: Path, colours: Sequence[str], seed: int) -> None:
    """A grey photo, 64 pixels wide and 48 high, with one square in each colour."""
    rng = np.random.default_rng(seed)
    pixels = rng.integers(90, 140, (48, 64, 3)).astype(np.uint8)
    for place, colour in zip(rng.permutation(3), colours, strict=False):
        pixels[14:34, 2 + 21 * place : 20 + 21 * place] = COLOURS[colour]
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(pixels).save(path)


def make_table(folder: Path, prefix: str, images: int, single: bool) -> LabelTable:
    """Photos with one or two colours; all labels, or the first positive alone."""
    keys, cells = [], []
    for i in range(images):
        present = [i % 3] if i % 2 else [i % 3, (i + 1) % 3]
        keys.append(f"{prefix}/{i}.png")
        paint(folder / keys[-1], [list(COLOURS)[c] for c in present], 1000 * len(prefix) + i)
        states = {c: Label.POSITIVE if c in present else Label.NEGATIVE for c in range(3)}
        cells += [(i, c, s) for c, s in states.items() if not single or c == present[0]]
    image, class_, state = np.array(cells).T
    return LabelTable.build(
        keys, ClassNames.of(COLOURS), image=image, class_=class_, state=state, source="made", root=folder
    )


@pytest.fixture(scope="session")
def dataset(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """`images/`, `train.parquet` (one positive per image), `val.parquet` (complete)."""
    folder = tmp_path_factory.mktemp("data")
    save(make_table(folder / "images", "train", 24, single=True), folder / "train.parquet", keep_root=True)
    save(make_table(folder / "images", "val", 12, single=False), folder / "val.parquet", keep_root=True)
    return folder


@pytest.fixture(scope="session")
def train_command(dataset: Path) -> tuple[str, ...]:
    """`train` on that data set, without --out."""
    return ("train", str(dataset / "train.parquet"), "--val", str(dataset / "val.parquet"), *TINY)


@pytest.fixture(scope="session")
def trained(
    run: Callable[..., Result], train_command: tuple[str, ...], tmp_path_factory: pytest.TempPathFactory
) -> tuple[Path, Result]:
    """A finished run and the result of its command."""
    out = tmp_path_factory.mktemp("runs") / "first"
    result = run(*train_command, "--out", out)
    assert result.exit_code == 0, (result.stderr, result.exception)
    return out, result


@pytest.fixture
def model(trained: tuple[Path, Result]) -> Path:
    return trained[0]


@pytest.fixture
def photos(dataset: Path) -> Path:
    return dataset / "images" / "val"


@pytest.fixture
def odd(photos: Path, tmp_path: Path) -> Path:
    """A folder with two photos; the name of one is Latin-1, and the other spells it."""
    folder = tmp_path / "odd"
    folder.mkdir()
    try:
        shutil.copy(photos / "0.png", folder / os.fsdecode(b"caf\xe9.png"))
    except OSError:
        pytest.skip("this file system takes UTF-8 only")
    shutil.copy(photos / "1.png", folder / "caf\\xe9.png")
    return folder
