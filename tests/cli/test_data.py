"""check, simulate."""

import csv
import json
import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from typer.testing import Result

from fewtags.data.budget import simulate_budget
from fewtags.data.costs import CostModel
from fewtags.data.read import read
from fewtags.data.storage import load, save
from fewtags.data.table import LabelTable
from fewtags.labels import ClassNames, Label

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


@pytest.fixture
def boxes(dataset: Path, tmp_path: Path) -> Path:
    """The photos of `val.parquet` with one or two boxes for every second pair of each, all other classes absent."""
    whole, random = load(dataset / "val.parquet"), np.random.default_rng(0)
    cell = np.concatenate([np.arange(0, 36, 2), np.arange(0, 36, 6)])
    low = random.random((len(cell), 2)) / 2
    table = LabelTable.build(
        whole.images.to_pylist(),
        ClassNames.of(["blue", "green", "red"]),
        image=cell // 3,
        class_=cell % 3,
        state=np.ones(len(cell), int),
        locations=np.concatenate([low, low + 0.25], 1),
        closed=np.zeros(12, int),
        covers=np.ones((1, 3), bool),
        root=whole.root,
    )
    save(table, tmp_path / "boxes.parquet", keep_root=True)
    return tmp_path / "boxes.parquet"


@pytest.mark.parametrize("ending", ["parquet", "csv"])
@pytest.mark.parametrize("kind", ["tags", "SP", "one-box", "all-points", "AB"])
def test_simulate_a_budget(run: Run, dataset: Path, boxes: Path, kind: str, ending: str) -> None:
    """What is written is read as what was bought, places included. 36 pairs, half of them positive, 24 objects."""
    out = boxes.parent / "new" / f"part.{ending}"
    result = run("simulate", boxes, "--budget", "30s", "--type", kind, "--seed", 3, "--mode", "exact", "--out", out)
    assert (result.exit_code, result.stdout) == (0, f"{out}\n"), result.stderr
    source = load(boxes)
    expected = simulate_budget(source, "30s", kind, 3, CostModel(3, 1.5, 2.0), mode="exact")
    assert read(out, images=dataset / "images").fingerprint == expected.fingerprint
    assert result.stderr.splitlines() == list(expected.notes.messages)
    assert len(expected.locations) > 0 or kind == "tags"


def test_simulate_a_budget_tells_what_was_bought(run: Run, boxes: Path, tmp_path: Path) -> None:
    """25 % of 36 tags are 9 s; of 3 classes 1.5 are positive: a pair costs (1.5 + 1.5 x 2.4) / 3 = 1.7 s; 5 pairs."""
    result = run("simulate", boxes, "--budget", "25%", "--type", "sp", "--out", tmp_path / "a.parquet")
    receipt, costs = result.stderr.splitlines()
    assert receipt.startswith("simulated a budget of 25% (one point (SP), flat costs, seed 0): 5 pairs (")
    assert receipt.endswith("of 12 images for 8 s (0.00 h), 1.7 s a pair")
    assert costs == (
        "costs: tag 1 s, point 2.4 s, further point 0.9 s, box 7 s; 3 classes, of which 1.5 are positive in an average "
        "image, with 2 instances"
    )


def test_simulate_with_other_costs_and_points(run: Run, boxes: Path, tmp_path: Path) -> None:
    """9 s: of COCO's averages 1.06125 s a pair; of a file with 3 s a point 2 s a pair, 4.5 of them, and up is even."""
    (tmp_path / "ours.toml").write_text("point = 3")
    for cost, pairs in (("coco", 8), (tmp_path / "ours.toml", 5)):
        out = tmp_path / "a.parquet"
        result = run("simulate", boxes, "--budget", "25%", "--type", "SP", "--cost", cost, "--out", out)
        assert f"seed 0): {pairs} pairs" in result.stderr, result.stderr
    for points in ("uniform", "centre"):
        words = ("--budget", "100%", "--type", "AP", "--points", points)
        run("simulate", boxes, *words, "--out", tmp_path / f"{points}.parquet")
    drawn = [load(tmp_path / f"{points}.parquet") for points in ("uniform", "centre")]
    assert drawn[0].fingerprint != drawn[1].fingerprint
    np.testing.assert_array_equal(drawn[0].matrix.dense(), drawn[1].matrix.dense())


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (
            ("--budget", "1%"),
            "--budget 1% needs --type, what to buy with it: tags (I), one point (SP), one box (SB), all points (AP), "
            "all boxes (AB).",
        ),
        (
            ("--budget", "1%", "--type", "one-pint"),
            "annotation type 'one-pint' is not known (did you mean 'one point'?); known: tags (I), one point (SP), one "
            "box (SB), all points (AP), all boxes (AB).",
        ),
        (
            ("--budget", "1%", "--type", "SP", "--protocol", "keep"),
            "--budget 1% and --protocol keep are two ways to thin labels; give one of them.",
        ),
        (
            ("--budget", "1%", "--type", "SP", "--positives", "1"),
            "--positives and --negatives are for --protocol keep, not --budget 1%.",
        ),
        (("--positives", "0"), "--positives and --negatives are for --protocol keep, not single."),
        (("--type", "SP"), "--type is for --budget; say how much to spend, for example --budget 1%."),
        (("--mode", "flat"), "--mode is for --budget; say how much to spend, for example --budget 1%."),
        (
            ("--budget", "1%", "--type", "SB", "--points", "centre"),
            "--points is for --type one-point or all-points, not one box (SB).",
        ),
        (
            ("--budget", "50%", "--type", "SP", "--mode", "exakt"),
            "mode 'exakt' is not known (did you mean 'exact'?); known: flat, exact.",
        ),
        (
            ("--budget", "50%", "--type", "SP", "--cost", "cooco"),
            "costs 'cooco' are not known (did you mean 'coco'?); known: coco, objects365, or a file that ends in "
            ".toml.",
        ),
    ],
)
def test_simulate_refuses_budgets(run: Run, boxes: Path, words: tuple[str, ...], message: str) -> None:
    out = boxes.parent / "part.csv"
    result = run("simulate", boxes, *words, "--out", out)
    assert (result.exit_code, result.stdout, result.stderr) == (1, "", f"error: {message}\n")
    assert not out.exists()
