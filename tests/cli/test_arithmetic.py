"""How the net computes in `predict`, `evaluate` and `heatmap`: --mixed-precision and --compile."""

from collections.abc import Callable
from pathlib import Path

import pyarrow.parquet as pq
import pytest
import torch
from tiny_model import make_model
from typer.testing import Result

from fewtags.engine.model import save_model

Run = Callable[..., Result]


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("arithmetic") / "model.safetensors"
    save_model(path, *make_model())
    return path


def test_mixed_precision_changes_numbers_a_little(run: Run, model: Path, dataset: Path, tmp_path: Path) -> None:
    """On a CPU the default is float32, and bf16 is possible."""
    found = {}
    for word in ("default", "no", "bf16"):
        out = tmp_path / f"{word}.parquet"
        option = () if word == "default" else ("--mixed-precision", word)
        assert (
            run("predict", model, dataset / "images" / "val", "--wide", "--out", out, "--cpu", *option).exit_code == 0
        )
        found[word] = pq.read_table(out)
    assert found["default"].equals(found["no"])
    gaps = [abs(a - b) for a, b in zip(found["no"]["n01"].to_pylist(), found["bf16"]["n01"].to_pylist(), strict=True)]
    assert 0 < max(gaps) < 0.05


@pytest.mark.parametrize("command", ["predict", "evaluate", "heatmap", "serve"])
def test_unknown_precision(run: Run, model: Path, dataset: Path, command: str) -> None:
    arguments = {"predict": ["a.jpg"], "heatmap": ["a.jpg"], "evaluate": [dataset / "val.parquet"], "serve": []}[
        command
    ]
    result = run(command, model, *arguments, "--mixed-precision", "fp15")
    assert result.exit_code == 1
    assert "error: --mixed-precision fp15: expected one of no, bf16, fp16 (did you mean 'fp16'?)." in result.stderr


def test_fp16_on_a_cpu(run: Run, model: Path, dataset: Path) -> None:
    result = run("predict", model, dataset / "images" / "val", "--mixed-precision", "fp16", "--cpu")
    assert result.exit_code == 1
    assert "error: --mixed-precision fp16 needs a GPU; use bf16 or no." in result.stderr


def test_compile(run: Run, model: Path, dataset: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The compiler is replaced (tests/engine/test_inference.py has the real one): it works, or it is missing."""
    command = ("predict", model, dataset / "images" / "val", "--batch-size", 5, "--wide", "--cpu")
    plain = run(*command)
    monkeypatch.setattr(torch, "compile", lambda function, **_: function)
    compiled = run(*command, "--compile")
    assert compiled.exit_code == 0, compiled.stderr
    assert compiled.stdout == plain.stdout
    assert compiled.stderr == "compiling the net\n"

    def broken(function: object, **_: object) -> Callable[[torch.Tensor], torch.Tensor]:
        def compiled(images: torch.Tensor) -> torch.Tensor:
            raise RuntimeError("no C++ compiler")

        return compiled

    monkeypatch.setattr(torch, "compile", broken)
    without = run(*command, "--compile")
    assert without.exit_code == 0
    assert without.stdout == plain.stdout
    note = "note: torch.compile does not work here, so the net runs as it is: no C++ compiler\n"
    assert without.stderr == f"compiling the net\n{note}"
