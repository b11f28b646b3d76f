"""The commands of docs/several_sources.md run and print what the page says."""

import re
import shlex
from pathlib import Path

import pytest
from PIL import Image
from typer.testing import CliRunner

PAGE = (Path(__file__).parents[2] / "docs" / "several_sources.md").read_text("utf-8")


def _blocks(kind: str) -> list[str]:
    return re.findall(rf"^```{kind}\n(.*?)^```", PAGE, re.MULTILINE | re.DOTALL)


def test_the_commands_print_what_the_page_says(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from fewtags.cli.main import app

    monkeypatch.chdir(tmp_path)
    (tmp_path / "photos").mkdir()
    for i in range(4):
        Image.new("RGB", (64, 64), (60 * i, 40, 90)).save(tmp_path / "photos" / f"{i}.jpg")
    (tmp_path / "cats.csv").write_text(_blocks("csv")[0])
    (tmp_path / "dogs.json").write_text(_blocks("json")[0])
    lines = [line for block in _blocks("bash") for line in block.splitlines()]
    assert len(lines) == 5
    printed = ""
    for line in lines:
        result = CliRunner().invoke(app, shlex.split(line)[1:])
        assert result.exit_code == 0, result.output
        printed += result.output
    shown = [line for block in _blocks("text") for line in block.splitlines() if line.startswith(("note:", "warning:"))]
    assert len(shown) == 4
    for text in shown:
        assert text in printed.splitlines()


def test_the_python_of_the_page(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import fewtags as ft

    test_the_commands_print_what_the_page_says(tmp_path, monkeypatch)
    code = next(block for block in _blocks("text") if block.startswith("table ="))
    lines = code[: code.index("clf.fit")]
    names: dict[str, object] = {"ft": ft}
    exec(compile(lines, "<documentation>", "exec"), names)
    assert ft.read("merged.parquet").fingerprint == names["table"].fingerprint  # type: ignore[attr-defined]
