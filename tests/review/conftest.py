"""One tiny trained run and its questions, made once; every test reviews a copy."""

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
from fastapi.testclient import TestClient
from typer.testing import CliRunner

from fewtags.cli.main import app
from fewtags.demo_set import make_scenes
from fewtags.review.app import make_app
from fewtags.review.review import WORK_FOLDER, Review, opened
from fewtags.review.scoring import make_questions, questions_file, write_questions
from fewtags.table.storage import load, write_csv

TINY = (
    *("--weights", "none", "--preset", "views", "--cpu", "--seed", "1", "--epochs", "2"),
    *("--set", "model.backbone=test_resnet", "--set", "augment.size=64", "--set", "train.cached_views=1"),
    *("--set", "train.workers=0", "--set", "train.baseline=false"),
)


@pytest.fixture(scope="session")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with `train.csv`, `scenes/` and the run `first`, whose questions are made already."""
    folder = tmp_path_factory.mktemp("review")
    scenes = make_scenes(folder / "scenes", train=24, val=12, test=1, size=64, seed=0)
    write_csv(scenes.train, folder / "train.csv")
    write_csv(scenes.val, folder / "val.csv")
    out, photos = folder / "first", folder / "scenes" / "images"
    arguments = ("train", folder / "train.csv", "--images", photos, "--val", folder / "val.csv", "--out", out, *TINY)
    result = CliRunner().invoke(app, [str(word) for word in arguments])
    assert result.exit_code == 0, (result.stderr, result.exception)
    table = load(out / "tables" / "train.parquet")
    first, *evidence = make_questions(out, table, order=None, cpu=True, tell=lambda _: None)
    better = {(q.image, q.class_): q for part in evidence for q in part}
    (out / WORK_FOLDER).mkdir()
    place = questions_file(out / WORK_FOLDER, out, table, None)
    write_questions(place, [better[q.image, q.class_] for q in first])
    return folder


@pytest.fixture
def train_arguments(trained: Path) -> tuple[object, ...]:
    """`train` with the settings of that run, without --out."""
    photos = trained / "scenes" / "images"
    return ("train", trained / "train.csv", "--images", photos, "--val", trained / "val.csv", *TINY)


@pytest.fixture
def run(trained: Path, tmp_path: Path) -> Path:
    """A copy of the run, whose questions are made already."""
    out = Path(shutil.copytree(trained / "first", tmp_path / "first", copy_function=shutil.copy2))
    (known,) = (trained / "first" / WORK_FOLDER).glob("questions-*.json")
    table = load(out / "tables" / "train.parquet")
    shutil.copy2(known, questions_file(out / WORK_FOLDER, out, table, None))
    return out


@pytest.fixture
def review(run: Path) -> Iterator[Review]:
    """The review of that run."""
    with opened(run, cpu=True) as made:
        yield made


@pytest.fixture
def visit(review: Review):
    """Return a new browser that has opened the address with the token."""
    site = make_app(review)

    def browser(token: bool = True) -> TestClient:
        client = TestClient(site, base_url="http://127.0.0.1:8765")
        if token:
            assert client.get("/", params={"token": review.token}).status_code == 200
        return client

    return browser
