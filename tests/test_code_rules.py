"""Rules of style that no linter checks, by reading the source of the package."""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

import fewtags
from fewtags.objectives.table import METHODS, PRETRAIN_METHODS

ROOT = Path(fewtags.__file__).parent
SOURCES = sorted(ROOT.rglob("*.py"))
MANY = 5
"""The most fields of a class that may be built with positional arguments."""

LARGE_TUPLES = {
    "PseudoCount": "a summed tensor is unpacked into it",
}
"""NamedTuples with more fields, each with the reason."""

BAD_WORDS = re.compile(r"\b(?:is no|are no)\s|\bmend|\btold\b", re.IGNORECASE)
GOOD_WORDS = re.compile(r"\bthere (?:is|are) no\s", re.IGNORECASE)


def name(path: Path) -> str:
    return path.relative_to(ROOT).as_posix()


def tree(path: Path) -> ast.Module:
    return ast.parse(path.read_text("utf-8"))


def init_fields(node: ast.ClassDef) -> list[str]:
    fields = [f for f in node.body if isinstance(f, ast.AnnAssign) and "ClassVar" not in ast.unparse(f.annotation)]
    return [ast.unparse(f.target) for f in fields if f.value is None or "init=False" not in ast.unparse(f.value)]


def large_classes(path: Path) -> Iterator[ast.ClassDef]:
    for node in ast.walk(tree(path)):
        if isinstance(node, ast.ClassDef) and len(init_fields(node)) > MANY:
            yield node


@pytest.mark.parametrize("path", SOURCES, ids=name)
def test_large_dataclasses_are_built_with_keywords(path):
    for node in large_classes(path):
        for decorator in map(ast.unparse, node.decorator_list):
            if decorator.startswith("dataclass"):
                assert "kw_only=True" in decorator, f"{node.name}, line {node.lineno}"
        if "NamedTuple" in map(ast.unparse, node.bases):
            assert node.name in LARGE_TUPLES, f"{node.name}, line {node.lineno}"


@pytest.mark.parametrize("path", SOURCES, ids=name)
def test_no_call_is_packed(path):
    """`# fmt: skip` is for data only: literal tuples, lists, sets and dicts, given to a name."""
    lines = path.read_text("utf-8").splitlines()
    skipped = {n for n, line in enumerate(lines, 1) if re.search(r"# fmt: (?:skip|off)", line)}
    for node in ast.walk(tree(path)):
        if isinstance(node, ast.stmt) and node.end_lineno in skipped:
            assert isinstance(node, ast.Assign | ast.AnnAssign), f"line {node.lineno}"
            assert isinstance(node.value, ast.Tuple | ast.List | ast.Set | ast.Dict), f"line {node.lineno}"


@pytest.mark.parametrize("room", ["engine", "report", "cli"])
def test_only_objectives_know_objectives(room):
    """The type of an objective decides nothing outside `fewtags.objectives`."""
    concrete = {method.path.partition(":")[2] for method in (METHODS | PRETRAIN_METHODS).values()}
    for path in sorted((ROOT / room).rglob("*.py")):
        for node in ast.walk(tree(path)):
            if isinstance(node, ast.Call) and ast.unparse(node.func) in ("isinstance", "issubclass"):
                tested = {n.id for n in ast.walk(node.args[1]) if isinstance(n, ast.Name)}
                tested |= {n.attr for n in ast.walk(node.args[1]) if isinstance(n, ast.Attribute)}
                assert not tested & concrete, f"{name(path)}, line {node.lineno}"


def test_pictures_are_opened_in_one_place():
    """Pillow warns about damaged metadata, and its decoders raise many kinds of errors."""
    opening = {
        name(path)
        for path in SOURCES
        for node in ast.walk(tree(path))
        if isinstance(node, ast.Call) and ast.unparse(node.func) in ("Image.open", "PIL.Image.open")
    }
    assert opening == {"photos/pillow.py"}


@pytest.mark.parametrize("path", SOURCES, ids=name)
def test_plain_words(path):
    """Texts say "is not a" and "fix"; "there is no" is allowed, and so are words such as "recommend"."""
    for node in ast.walk(tree(path)):
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            found = BAD_WORDS.search(GOOD_WORDS.sub("", node.value))
            assert found is None, f"line {node.lineno}: {found}"
