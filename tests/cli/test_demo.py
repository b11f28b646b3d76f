"""The demo with few scenes and short training."""

import multiprocessing
from collections.abc import Callable
from pathlib import Path

import pytest
from typer.testing import Result

from fewtags.cli import demo
from fewtags.errors import ConfigError


def test_trains_both_methods_and_compares_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(demo, "SCENES", {"train": 16, "val": 12, "test": 12, "size": 64})
    stages = [{**stage, "epochs": 1} for stage in demo.RECIPE["train"]["stages"]]
    monkeypatch.setitem(demo.RECIPE["train"], "stages", stages)
    start = multiprocessing.get_context
    for method in ("spawn", "fork"):  # a second call replaces the runs and keeps the scenes; forked, as it is faster
        monkeypatch.setattr(demo.multiprocessing, "get_context", lambda _, method=method: start(method))
        demo.run_demo(tmp_path / "demo", seed=0)
        out = capfd.readouterr()
        page = (tmp_path / "demo" / "report.html").read_text("utf-8")
        assert "assume_negative" in page
        assert "unannotated positive" in page
        assert out.out.count("test mAP") == 2
        assert "digits per scene" in out.out
        assert f"fewtags predict {tmp_path / 'demo' / 'en_scl'}" in out.out
        assert "en_scl           epoch 2/2 main" in out.err
    for name in demo.METHODS:
        assert (tmp_path / "demo" / name / "model.safetensors").exists()
        assert (tmp_path / "demo" / name / "report.html").exists()


@pytest.mark.parametrize("name", ["assume_negative/model.safetensors", "model.safetensors", "mine.txt"])
def test_files_that_the_demo_did_not_make_are_kept(tmp_path: Path, name: str) -> None:
    """Also where the demo would only add to them: a finished run, and any other folder."""
    model = tmp_path / "runs" / name
    model.parent.mkdir(parents=True)
    model.write_text("mine")
    with pytest.raises(ConfigError, match=r"runs is not empty; choose another out"):
        demo.run_demo(tmp_path / "runs", seed=0)
    assert model.read_text() == "mine"
    assert [entry for entry in (tmp_path / "runs").rglob("*") if entry.is_file()] == [model]


@pytest.mark.parametrize("seed", [-1, 2**32])
def test_a_seed_that_no_generator_takes(run: Callable[..., Result], seed: int) -> None:
    result = run("demo", "--seed", seed)
    assert result.exit_code == 2
    assert "Invalid value for '--seed'" in result.stderr
