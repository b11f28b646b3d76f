"""`fewtags report --on`."""

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from typer.testing import Result

Run = Callable[..., Result]


@pytest.fixture
def other(trained: tuple[Path, Result], tmp_path: Path) -> Path:
    """The same model with other validation labels on record."""
    shutil.copytree(trained[0], tmp_path / "other")
    table = tmp_path / "other" / "tables" / "val.parquet"
    shutil.copy(trained[0] / "tables" / "train.parquet", table)
    return tmp_path / "other"


def test_runs_are_compared_on_the_labels_that_are_given(
    run: Run, trained: tuple[Path, Result], other: Path, dataset: Path, tmp_path: Path
) -> None:
    """The models are equal, so the difference is 0."""
    page = tmp_path / "page.html"
    result = run("report", trained[0], other, "--on", dataset / "val.parquet", "--cpu", "--out", page)
    assert (result.exit_code, result.stdout) == (0, f"{page}\n"), result.stderr
    lines = result.stderr.splitlines()
    assert "evaluating on 12 images" in lines
    assert [line for line in lines if line.startswith("first, val.parquet: mAP ")]
    assert lines[-1] == (
        f"other - {trained[0].name}: +0.0 mAP (95 % interval over the same images +0.0 .. +0.0; it does not cover "
        "other seeds)"
    )
    seen = page.read_text("utf-8")
    assert f"other − {trained[0].name}: +0.0 mAP</b> on val.parquet" in seen


def test_photos_that_a_run_trained_on_are_named_in_the_page(
    run: Run, trained: tuple[Path, Result], dataset: Path, tmp_path: Path
) -> None:
    page = tmp_path / "page.html"
    result = run("report", trained[0], "--on", dataset / "train.parquet", "--cpu", "--out", page)
    assert result.exit_code == 0, result.stderr
    assert "too good" in result.stderr
    assert "too good" in page.read_text("utf-8")


@pytest.mark.parametrize(("option", "value"), [("--images", "photos"), ("--split", "val"), ("--set", "data.blank=x")])
def test_options_of_on_are_refused_without_it(run: Run, tmp_path: Path, option: str, value: str) -> None:
    result = run("report", tmp_path, option, value)
    assert (result.exit_code, result.stderr) == (
        1,
        f"error: {option} is for --on; give --on LABELS as well, or leave it out.\n",
    )
