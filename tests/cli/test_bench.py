"""`fewtags bench`: what it lists, does, writes and refuses. Nothing is trained here; tests/bench trains."""

import csv
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import bench_sets
import pytest
from typer.testing import Result

from fewtags.bench import grid
from fewtags.bench.protocol import Job, Protocol, shipped
from fewtags.errors import TrainingError

Run = Callable[..., Result]


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("bench")
    bench_sets.coco(folder)
    bench_sets.voc(folder)
    return folder


@pytest.fixture
def trained(monkeypatch: pytest.MonkeyPatch) -> list[Job]:
    """The runs that are done, instead of training; a run with momentum 0.2 fails."""
    done: list[Job] = []

    def run(protocol: Protocol, job: Job, *_: Any, **__: Any) -> dict[str, Any]:
        if job.known == "0.2":
            raise TrainingError("the loss is not finite")
        done.append(job)
        value = 50.0 if job.known == "" else 40 + 10 * float(job.known) + (job.trial == "scl_weight=1.0")
        measured = {"epoch": 1, "val": value, "mAP": value - 2}
        names = {"protocol": protocol.name, "set": job.set_name, "known": job.known, "row": job.row}
        names |= {"trial": job.trial, "seed": job.seed, "digest": protocol.digest(job)}
        return {**names, "best": measured, "last": measured, "sizes": {}, "machine": "this"}

    monkeypatch.setattr(grid, "run", run)
    return done


def test_the_list_names_every_protocol(run: Run) -> None:
    lines = run("bench", "--list").stdout.splitlines()
    assert [line.split()[0] for line in lines] == list(shipped())


def test_a_protocol_without_training(run: Run, root: Path, tmp_path: Path) -> None:
    """Counts are printed as a table beside the published ones; the same command counts nothing again."""
    asked = ("bench", "scl_statistics", "--data", root, "--sets", "voc12", "--out", tmp_path / "out", "--cpu")
    result = run(*asked)
    assert result.exit_code == 0, (result.stderr, result.exception)
    assert "| VOC12 | images, train | 16 | 4,574 | DIFFERENT |" in result.stdout.splitlines()
    assert result.stdout == (tmp_path / "out/tables.md").read_text()
    assert "<td>4,574</td>" in (tmp_path / "out/tables.html").read_text()
    (record,) = (json.loads(line) for line in (tmp_path / "out/results.jsonl").read_text().splitlines())
    assert record["images, train"] == 16
    again = run(*asked)
    assert "1 run, 1 done" in again.stderr
    assert again.stdout == result.stdout


def test_a_figure_with_its_numbers(run: Run, root: Path, tmp_path: Path, trained: list[Job]) -> None:
    """Validation chooses the weight 1.0; the momentum that failed is reported, and the others are drawn."""
    out = tmp_path / "out"
    result = run("bench", "scl_figure5b", "--data", root, "--known", "0.2,0.8,1", "--out", out)
    assert result.exit_code == 1
    assert "2 runs (coco14 0.2 en_scl scl_weight=0.1 seed 0): the loss is not finite" in result.stderr
    assert {job.known for job in trained} == {"0.8", "1"}
    with (out / "figures/5b.csv").open() as file:
        rows = [*csv.DictReader(file)]
    assert [(row["place"], float(row["mean"])) for row in rows] == [("0.8", 49.0), ("1", 51.0)]
    assert (out / "figures/5b.png").stat().st_size > 1000
    assert (out / "figures/5b.svg").exists()
    assert str(out / "figures/5b.png") in result.stderr


def test_dry_run(run: Run, root: Path, tmp_path: Path) -> None:
    asked = ("bench", "scl_table1", "--data", root, "--sets", "voc12", "--methods", "an,an_ls", "--seeds", "3")
    result = run(*asked, "--out", tmp_path / "out", "--dry-run")
    assert result.stdout.splitlines() == [
        "to do  voc12 an seed 3",
        *(f"to do  voc12 an_ls smoothing={s} seed 3" for s in (0.1, 0.2)),
    ]
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((), "name a protocol; `fewtags bench --list` shows them all."),
        (("scl_tabel1",), "'scl_tabel1' is not a protocol (did you mean 'scl_table1'?)"),
        (("scl_table1",), "--data is missing: the folder with the files of scl_table1.\n  VOC12: "),
        (("scl_table2", "--data", "{root}"), "--out is missing: a folder for the runs and the tables."),
        (
            ("scl_table2", "--data", "{root}", "--methods", "en_sl"),
            "--methods 'en_sl' fits nothing (did you mean 'en_scl'?)",
        ),
        (("scl_table1", "--data", "{root}", "--sets", "cub"), "lacks files of scl_table1:\n  CUB: CUB_200_2011"),
        (("scl_table2", "--data", "{root}", "--set", "train.epocs=1"), "train.epocs"),
    ],
)
def test_refusals(run: Run, root: Path, arguments: tuple[str, ...], message: str) -> None:
    result = run("bench", *(a.format(root=root) for a in arguments))
    assert result.exit_code == 1
    assert message in result.stderr
