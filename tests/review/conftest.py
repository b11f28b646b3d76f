"""One tiny trained run and its questions, made once; every test reviews a copy."""

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
from fastapi.testclient import TestClient
from review_runs import make_run, train_command

from fewtags.review.app import make_app
from fewtags.review.review import WORK_FOLDER, Review, opened
from fewtags.review.scoring import questions_file
from fewtags.table.storage import load


@pytest.fixture(scope="session")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the data and the run of `make_run`."""
    return make_run(tmp_path_factory.mktemp("review")).parent


@pytest.fixture
def train_arguments(trained: Path) -> tuple[str, ...]:
    """`train` with the settings of that run, without --out."""
    return train_command(trained)


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
