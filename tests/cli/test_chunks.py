"""`fewtags predict` and `teach` continue after the photos of a command that was interrupted."""

import os
from collections.abc import Callable, Iterator
from pathlib import Path

import forks
import pyarrow.parquet as pq
import pytest
from tiny_model import make_model
from typer.testing import Result

from fewtags.cli import tables
from fewtags.engine.model import save_model
from fewtags.engine.run_lock import locked

Run = Callable[..., Result]
PHOTOS = 14


@pytest.fixture(scope="module")
def place(dataset: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """`model.safetensors`, and a folder of 14 photos: the first and the eighth cannot be read."""
    folder = tmp_path_factory.mktemp("chunks")
    save_model(folder / "model.safetensors", *make_model())
    (folder / "photos").mkdir()
    for n, path in enumerate(sorted((dataset / "images" / "val").iterdir())):
        (folder / "photos" / f"{n + n // 6 + 1:02d}.png").write_bytes(path.read_bytes())
    for name in ("00.png", "07.png"):
        (folder / "photos" / name).write_text("no photo")
    return folder


@pytest.fixture
def command(place: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[object, ...]:
    """Chunks of one batch each, and row groups of five rows."""
    monkeypatch.setattr(tables, "CHUNK_SECONDS", 0.0)
    monkeypatch.setattr(tables, "ROWS_PER_GROUP", 5)
    return ("predict", place / "model.safetensors", place / "photos", "--batch-size", 3, "--cpu")


@pytest.fixture
def stop(monkeypatch: pytest.MonkeyPatch) -> Callable[[int | None], list[int]]:
    """Interrupt a command after some photos (None: never); the list has the number of photos that each was to do."""
    given: list[int] = []
    real = tables.predict_photos

    def after(photos: int | None) -> list[int]:
        def predict(net: object, info: object, paths: list[Path], *rest: object, **options: object) -> Iterator[object]:
            given.append(len(paths))
            for n, found in enumerate(real(net, info, paths, *rest, **options)):
                if n == photos:
                    raise KeyboardInterrupt
                yield found

        monkeypatch.setattr(tables, "predict_photos", predict)
        return given

    return after


@pytest.mark.parametrize("ending", [".csv", ".parquet", ".jsonl"])
@pytest.mark.parametrize("words", [("--wide",), ("--threshold", 0.5)])
def test_an_interrupted_command_continues(
    run: Run,
    command: tuple[object, ...],
    tmp_path: Path,
    stop: Callable[..., list[int]],
    ending: str,
    words: tuple[str],
) -> None:
    """After 8 photos, two batches of 3 are kept; after 4 more, another one. The files are those of one command."""
    whole, out = tmp_path / f"whole{ending}", tmp_path / f"tags{ending}"
    wanted = run(*command, *words, "--out", whole)
    assert wanted.exit_code == 1, wanted.stderr
    stop(8)
    first = run(*command, *words, "--out", out)
    assert (first.exit_code, first.stdout) == (130, "")
    assert first.stderr == "6 photos are kept; the same command continues after them.\ninterrupted.\n"
    # What a kill may leave: a chunk that is not complete, and temporary files.
    partial = tmp_path / f".tags{ending}.partial"
    assert sorted(p.name for p in tmp_path.iterdir()) == sorted([partial.name, whole.name, f"whole.unreadable{ending}"])
    (partial / f"00000002{ending}").write_bytes(b"half a chunk")
    (partial / f".00000002{ending}.1.part").write_bytes(b"half a chunk")
    stop(4)
    second = run(*command, *words, "--out", out)
    assert second.stderr.splitlines()[0] == "continuing after 6 of 14 photos"
    given = stop(None)
    last = run(*command, *words, "--out", out)
    assert given == [14, 8, 5]
    assert (last.exit_code, last.stdout) == (1, f"{out}\n")
    assert last.stderr == "continuing after 9 of 14 photos\n" + wanted.stderr
    assert out.read_bytes() == whole.read_bytes()
    unreadable = [tmp_path / f"{name}.unreadable{ending}" for name in ("whole", "tags")]
    assert unreadable[0].read_bytes() == unreadable[1].read_bytes()
    assert {*tmp_path.iterdir()} == {whole, out, *unreadable}


def test_row_groups_do_not_depend_on_chunks(run: Run, command: tuple[object, ...], tmp_path: Path) -> None:
    out = tmp_path / "scores.parquet"
    run(*command, "--wide", "--out", out)
    file = pq.ParquetFile(out)
    assert [file.metadata.row_group(n).num_rows for n in range(file.num_row_groups)] == [5, 5, 2]


def test_unreadable_photos_have_their_own_table(
    run: Run, command: tuple[object, ...], place: Path, tmp_path: Path
) -> None:
    out = tmp_path / "tags.parquet"
    run(*command, "--out", out)
    table = pq.read_table(tmp_path / "tags.unreadable.parquet")
    assert table.column_names == ["image", "reason"]
    assert table["image"].to_pylist() == [str(place / "photos" / name) for name in ("00.png", "07.png")]
    why = "is not a photo (its first bytes are b'no photo'); remove it, or export it as JPEG or PNG."
    assert table["reason"].to_pylist() == [why, why]
    # The table of an earlier command goes if there is nothing to put into it.
    result = run(*command[:2], place / "photos" / "01.png", "--cpu", "--out", out)
    assert result.exit_code == 0, result.stderr
    assert [p.name for p in tmp_path.iterdir()] == ["tags.parquet"]


def test_another_job_is_refused(
    run: Run, command: tuple[object, ...], place: Path, tmp_path: Path, stop: Callable[..., list[int]]
) -> None:
    """Other settings, other photos, another model; nothing is lost until --restart."""
    out = tmp_path / "tags.csv"
    stop(7)
    run(*command, "--out", out)
    kept = {p.name: p.read_bytes() for p in (tmp_path / ".tags.csv.partial").iterdir()}
    save_model(tmp_path / "other.safetensors", *make_model(pool="max"))
    given = stop(None)
    for words, other in (
        ((*command, "--max-tags", 1), "other settings"),
        ((*command[:2], place / "photos" / "00.png", *command[3:]), "other photos"),
        (("predict", tmp_path / "other.safetensors", *command[2:]), "other settings"),
    ):
        result = run(*words, "--out", out)
        assert (result.exit_code, result.stdout) == (1, "")
        assert result.stderr == (
            f"error: {out}: a command that was interrupted after 6 photos had {other}. Repeat that command to continue "
            "it, or pass --restart to drop its photos.\n"
        )
        assert {p.name: p.read_bytes() for p in (tmp_path / ".tags.csv.partial").iterdir()} == kept
    del given[:]
    assert run(*command, "--out", out, "--restart").exit_code == 1
    assert given == [14]
    assert not (tmp_path / ".tags.csv.partial").exists()


@pytest.mark.parametrize("lost", ["job.json", "00000000.csv", "00000001.json"])
def test_a_kill_while_chunks_are_removed(
    run: Run, command: tuple[object, ...], tmp_path: Path, stop: Callable[..., list[int]], lost: str
) -> None:
    """What is left counts only with its job and up to the first gap."""
    out = tmp_path / "tags.csv"
    wanted = run(*command, "--out", out)
    before = out.read_bytes()
    stop(7)
    run(*command, "--out", out)
    (tmp_path / ".tags.csv.partial" / lost).unlink()
    given = stop(None)
    result = run(*command, "--out", out)
    assert given == [14, 11 if lost == "00000001.json" else 14]
    assert result.stderr.endswith(wanted.stderr)
    assert out.read_bytes() == before
    assert {p.name for p in tmp_path.iterdir()} == {"tags.csv", "tags.unreadable.csv"}


def test_one_process_at_a_time_writes_a_table(command: tuple[object, ...], tmp_path: Path) -> None:
    partial = tmp_path / ".tags.csv.partial"
    partial.mkdir()
    with locked(partial):
        result = forks.command(*command, "--out", tmp_path / "tags.csv")  # a process does not lock itself out
    assert (result.code, result.out) == (1, "")
    assert result.err.startswith(f"error: {partial} is in use: process {os.getpid()} on ")


def test_an_interrupted_command_without_a_chunk_leaves_nothing(
    run: Run, command: tuple[object, ...], tmp_path: Path, stop: Callable[..., list[int]]
) -> None:
    stop(2)
    result = run(*command, "--out", tmp_path / "tags.csv")
    assert (result.exit_code, result.stderr) == (130, "interrupted.\n")
    assert [*tmp_path.iterdir()] == []


def test_restart_is_for_files(run: Run, command: tuple[object, ...]) -> None:
    result = run(*command, "--restart")
    assert (result.exit_code, result.stdout) == (1, "")
    assert result.stderr == (
        "error: --restart is for --out: tables on stdout cannot be continued; remove it, or give --out.\n"
    )
