"""`import fewtags`: quick, and every public name is where type checkers look for it."""

import ast
import subprocess
import sys
from pathlib import Path

import pytest

import fewtags


def test_lazy_names_are_the_ones_type_checkers_see():
    """Names and homes in `_HOMES` against the imports under TYPE_CHECKING and `__all__`; each can be had."""
    tree = ast.parse(Path(fewtags.__file__).read_text("utf-8"))
    (guarded,) = (node for node in tree.body if isinstance(node, ast.If))
    seen = {alias.name: node.module for node in guarded.body for alias in node.names}
    assert seen == fewtags._HOMES
    assert sorted(seen) == sorted(fewtags.__all__)
    for name, home in seen.items():
        assert getattr(fewtags, name) is getattr(sys.modules[home], name)


def test_import_loads_nothing_heavy():
    code = "import sys, fewtags; print([m for m in ('torch', 'timm', 'pyarrow', 'PIL', 'typer') if m in sys.modules])"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout == "[]\n"


def test_an_unknown_name():
    with pytest.raises(AttributeError, match="module 'fewtags' has no attribute 'Clasifier'"):
        fewtags.Clasifier  # noqa: B018
