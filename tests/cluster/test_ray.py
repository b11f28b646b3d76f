"""`predict --engine ray` on two workers of a local cluster; `make cluster` installs Ray and runs this."""

import os
import signal
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import psutil
import pytest
from PIL import Image
from tiny_model import make_model
from typer.testing import CliRunner, Result

from fewtags.cli import tables
from fewtags.cli.main import app
from fewtags.cli.tables import PredictionWriter
from fewtags.engine.machine import versions
from fewtags.engine.model import save_model
from fewtags.engine.ray_predict import choose_actors

ray = pytest.importorskip("ray")
pytestmark = pytest.mark.filterwarnings("default")  # of Ray's
PHOTOS, BROKEN = 240, (7, 100)


@pytest.fixture(scope="module", autouse=True)
def cluster() -> Iterator[None]:
    """Two CPUs, each with a worker; on a busy machine, Ray's own limits of time are too short."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("RAY_agent_register_timeout_ms", "120000")
        patch.setenv("RAY_worker_niceness", "0")
        patch.setenv("RAY_USAGE_STATS_ENABLED", "0")
        ray.init(num_cpus=2, include_dashboard=False, log_to_driver=False)
        yield
        ray.shutdown()


@pytest.fixture(scope="module")
def command(tmp_path_factory: pytest.TempPathFactory) -> tuple[str, ...]:
    """`predict` of photos, two of which cannot be read; without --out."""
    folder = tmp_path_factory.mktemp("ray")
    save_model(folder / "model.safetensors", *make_model())
    (folder / "photos").mkdir()
    rng = np.random.default_rng(0)
    for n in range(PHOTOS):
        path = folder / "photos" / f"{n:03d}.png"
        if n in BROKEN:
            path.write_text("no photo")
        else:
            Image.fromarray(rng.integers(0, 255, (48, 64, 3), dtype=np.uint8)).save(path)
    return (
        "predict",
        str(folder / "model.safetensors"),
        str(folder / "photos"),
        "--wide",
        "--cpu",
        "--batch-size",
        "3",
    )


def run(*words: object) -> Result:
    return CliRunner().invoke(app, [str(word) for word in words])


@pytest.fixture
def after(monkeypatch: pytest.MonkeyPatch) -> Callable[[int, Callable[[], None]], None]:
    """Do something after a number of predictions."""
    real = PredictionWriter.add

    def set_up(photos: int, action: Callable[[], None]) -> None:
        def add(writer: PredictionWriter, found: object) -> None:
            real(writer, found)
            if writer.photos == photos:
                action()

        monkeypatch.setattr(PredictionWriter, "add", add)

    return set_up


def at_work() -> list[psutil.Process]:
    """The processes of the actors that have begun to predict."""
    found = [(process, " ".join(process.cmdline())) for process in psutil.Process().children(recursive=True)]
    return [process for process, words in found if "MapWorker" in words and "__init__" not in words]


def own_lines(text: str) -> list[str]:
    """What neither Ray says nor the progress of a slow machine."""
    return [line for line in text.splitlines() if "(raylet)" not in line and not line.startswith("tagging photos: ")]


def same_files(one: Path, two: Path) -> bool:
    return all(
        path.read_bytes() == path.with_name(path.name.replace(one.stem, two.stem)).read_bytes()
        for path in (one, one.with_name(f"{one.stem}.unreadable{one.suffix}"))
    )


def test_a_killed_worker_changes_nothing(
    command: tuple[str, ...], tmp_path: Path, after: Callable[[int, Callable[[], None]], None]
) -> None:
    """Each photo has its row once, with the bits of the local engine; the two errors are those of the local engine."""
    local, far, killed = tmp_path / "local.parquet", tmp_path / "far.parquet", []
    wanted = run(*command, "--out", local)
    assert wanted.exit_code == 1, wanted.stderr

    def kill() -> None:
        killed.append(at_work()[0].pid)
        os.kill(killed[0], signal.SIGKILL)

    after(1, kill)
    found = run(*command, "--engine", "ray", "--out", far)
    assert found.exit_code == 1, (found.stderr, found.exception)
    assert len(killed) == 1
    assert own_lines(found.stderr) == ["2 Ray actors with 1 CPU each", *wanted.stderr.splitlines()]
    assert same_files(local, far)


def test_another_engine_continues(
    command: tuple[str, ...],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    after: Callable[[int, Callable[[], None]], None],
) -> None:
    """Interrupted on the cluster after 100 photos, finished by this process."""
    monkeypatch.setattr(tables, "CHUNK_SECONDS", 0.0)
    local, out = tmp_path / "local.csv", tmp_path / "out.csv"
    assert run(*command, "--out", local).exit_code == 1

    stopped = []

    def stop() -> None:
        if not stopped:
            stopped.append(True)
            raise KeyboardInterrupt

    after(100, stop)
    first = run(*command, "--engine", "ray", "--out", out)
    assert first.exit_code == 130, (first.stderr, first.exception)
    assert own_lines(first.stderr)[1] == "99 photos are kept; the same command continues after them."
    last = run(*command, "--out", out)
    assert last.stderr.splitlines()[0] == f"continuing after 99 of {PHOTOS} photos"
    assert same_files(local, out)


def test_an_error_of_an_actor_is_one_sentence(command: tuple[str, ...], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fewtags.engine.ray_predict.versions", lambda: versions() | {"torch": "1.0"})
    result = run(*command, "--engine", "ray", "--actors", 1)
    assert result.exit_code == 1
    assert "but the machine of the command has 1.0; install the same versions on all machines." in result.stderr


def test_actors_that_fit(command: tuple[str, ...]) -> None:
    actors = choose_actors(ray, cpus=2)
    assert (actors.count, actors.cpus, actors.device.type) == (1, 2, "cpu")
    result = run(*command, "--engine", "ray", "--actor-cpus", 3)
    assert (result.exit_code, result.stderr) == (
        1,
        "error: an actor needs 3 CPUs, but no machine of the Ray cluster has more than 2; give fewer --actor-cpus.\n",
    )
