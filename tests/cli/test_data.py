"""check, simulate."""

import csv
import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from typer.testing import Result

from fewtags.data.storage import load
from fewtags.labels import Label

Run = Callable[..., Result]


def test_check_tells_what_there_is(run: Run, dataset: Path) -> None:
    result = run("check", dataset / "train.parquet", "--val", dataset / "val.parquet")
    assert result.exit_code == 0
    lines = result.stdout.splitlines()
    assert lines[0].startswith("train: 24 images, 3 classes, labels: single positive; 1.00 positives per image")
    assert lines[1].startswith("val: 12 images, 3 classes, labels: full")
    assert "photos: 36 files looked at (decoded)" in lines
    assert lines[-1].startswith("0 errors")


def test_check_json_is_one_object(run: Run, dataset: Path) -> None:
    result = run("check", dataset / "train.parquet", "--json", "--headers-only")
    told = json.loads(result.stdout)
    assert told["photos"] == {"files": 24, "decoded": False}
    assert told["splits"]["train"]["kind"] == "single positive"
    assert told["heatmap_bytes"] > 0


@pytest.fixture
def broken(dataset: Path, tmp_path: Path) -> Path:
    """The data set with one photo cut short and one gone."""
    shutil.copytree(dataset / "images", tmp_path / "images")
    cut = tmp_path / "images" / "train" / "3.png"
    cut.write_bytes(cut.read_bytes()[:200])
    (tmp_path / "images" / "train" / "5.png").unlink()
    return tmp_path


def test_check_ends_with_1_on_errors_and_says_what_would_be_left_out(run: Run, dataset: Path, broken: Path) -> None:
    out = broken / "new" / "excluded.csv"
    result = run("check", dataset / "train.parquet", "--images", broken / "images", "--excluded", out)
    assert result.exit_code == 1
    assert "Traceback" not in result.stdout + result.stderr
    assert result.stderr == f"what would be left out: 2 rows in {out}\n"
    with out.open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert [row["item"] for row in rows] == ["train/3.png", "train/5.png"]
    assert all(row["reason"] for row in rows)
    assert "train/3.png" in result.stdout


def test_check_json_stays_json_on_errors(run: Run, dataset: Path, broken: Path) -> None:
    result = run("check", dataset / "train.parquet", "--images", broken / "images", "--json")
    assert result.exit_code == 1
    told = json.loads(result.stdout)
    assert told["errors"] >= 1
    assert {row["item"] for row in told["excluded"]} == {"train/3.png", "train/5.png"}


@pytest.mark.parametrize("protocol", ["single", "cole"])
def test_simulate_keeps_one_positive_per_image(run: Run, dataset: Path, tmp_path: Path, protocol: str) -> None:
    out = tmp_path / "new" / "part.parquet"
    result = run("simulate", dataset / "val.parquet", "--protocol", protocol, "--out", out)
    assert (result.exit_code, result.stdout) == (0, f"{out}\n"), result.stderr
    assert result.stderr.startswith(f"simulated one positive per image ({'plain' if protocol == 'single' else 'cole'}")
    full, part = load(dataset / "val.parquet").matrix, load(out).matrix
    assert part.image_counts(Label.POSITIVE).tolist() == [1] * 12
    assert not part.counts(Label.NEGATIVE).any()
    kept = part.dense() == Label.POSITIVE
    assert (full.dense()[kept] == Label.POSITIVE).all()


def test_cole_draws_with_the_published_seed(run: Run, dataset: Path, tmp_path: Path) -> None:
    for name, words in (("default", ()), ("1200", ("--seed", 1200)), ("0", ("--seed", 0))):
        out = tmp_path / f"{name}.parquet"
        run("simulate", dataset / "val.parquet", "--protocol", "cole", "--out", out, *words)
    tables = {name: load(tmp_path / f"{name}.parquet") for name in ("default", "1200", "0")}
    assert tables["default"].fingerprint == tables["1200"].fingerprint != tables["0"].fingerprint


def test_simulate_keep_to_csv(run: Run, dataset: Path, tmp_path: Path) -> None:
    """Shares of 1 and 0: all positives, no negatives. 12 images with 6 x 2 + 6 x 1 positives."""
    out = tmp_path / "part.csv"
    words = ("--protocol", "keep", "--positives", 1, "--negatives", 0)
    result = run("simulate", dataset / "val.parquet", "--out", out, *words)
    assert (result.exit_code, result.stdout) == (0, f"{out}\n"), result.stderr
    with out.open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert [row["state"] for row in rows] == ["positive"] * 18


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (
            ("--out", "x.parquet", "--protocol", "singel"),
            "error: --protocol 'singel' is not known (did you mean 'single'",
        ),
        (("--out", "x.txt"), "error: --out x.txt: expected a file that ends in .parquet or .csv.\n"),
        (("--out", "x.csv", "--positives", "0.5"), "error: --positives and --negatives are for --protocol keep, not"),
    ],
)
def test_simulate_refuses(run: Run, dataset: Path, words: tuple[str, ...], message: str) -> None:
    result = run("simulate", dataset / "val.parquet", *words)
    assert (result.exit_code, result.stdout) == (1, "")
    assert result.stderr.startswith(message)


def test_share_outside_0_to_1_is_a_usage_error(run: Run, dataset: Path) -> None:
    words = ("--out", "x.csv", "--protocol", "keep", "--positives", "2")
    assert run("simulate", dataset / "val.parquet", *words).exit_code == 2
