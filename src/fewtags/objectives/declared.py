"""The settings of the built-in methods, read from their source code.

Importing a method imports torch, which takes seconds. Its settings are the fields of a dataclass, so that the source
says what they are. Wrong settings and lists of settings are answered from here.
"""

from __future__ import annotations

import ast
import importlib
import importlib.util
import inspect
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, final

LIGHT = ("fewtags.objectives.checks", "fewtags.errors", "fewtags.text")
"""Our modules that are imported, because they import nothing heavy; the others are read."""


@final
@dataclass(frozen=True)
class Declared:
    """What the source code of a method declares.

    Attributes:
        name: name of the class.
        doc: docstrings of the class and of the classes that declare its other settings, in one text.
        fields: (type, default) by setting, in order. The types are those that `get_type_hints` returns with extras.
    """

    name: str
    doc: str
    fields: Mapping[str, tuple[Any, Any]]


@cache
def declared(path: str) -> Declared:
    """Read the settings of a built-in method, `path` as in `objectives.table`, without importing its module."""
    module, _, name = path.partition(":")
    source = _source(module)
    family = [*dict.fromkeys(_family(source, name))]
    docs = [
        text if place == 0 else f"{found.name}: {text}"
        for place, (_, found) in enumerate(family)
        if place == 0 or _is_dataclass(found)
        for text in [inspect.cleandoc(ast.get_docstring(found, clean=False) or "")]
    ]
    fields: dict[str, tuple[Any, Any]] = {}
    for owner, found in reversed(family):
        fields |= _own_fields(owner, found)
    return Declared(name, "\n\n".join(docs), fields)


@final
class _Source:
    """The names of a module that is read, not imported: each is evaluated when it is looked up."""

    def __init__(self, name: str) -> None:
        spec = importlib.util.find_spec(name)
        assert spec is not None
        assert spec.origin is not None
        body = ast.parse(Path(spec.origin).read_text("utf-8")).body
        self.classes = {node.name: node for node in body if isinstance(node, ast.ClassDef)}
        self.imported = {
            alias.asname or alias.name: (str(node.module), alias.name)
            for node in body
            if isinstance(node, ast.ImportFrom)
            for alias in node.names
        }
        self.assigned = {
            target.id: node.value
            for node in body
            if isinstance(node, ast.Assign)
            for target in node.targets
            if isinstance(target, ast.Name)
        }

    def __getitem__(self, name: str) -> Any:
        if name in self.assigned:
            return self.value(self.assigned[name])
        if name not in self.imported:
            raise KeyError(name)  # a name of Python itself
        module, original = self.imported[name]
        if module.startswith("fewtags.") and module not in LIGHT:
            return _source(module)[original]
        assert module in LIGHT or module.partition(".")[0] in sys.stdlib_module_names, module
        return getattr(importlib.import_module(module), original)

    def value(self, node: ast.expr) -> Any:
        """Evaluate a type or a default of our own source code."""
        return eval(compile(ast.Expression(node), "<declared>", "eval"), {}, self)  # type: ignore[arg-type]


@cache
def _source(module: str) -> _Source:
    return _Source(module)


def _family(source: _Source, name: str) -> Iterator[tuple[_Source, ast.ClassDef]]:
    """Yield a class of ours and the classes that it inherits from, nearest first; other bases have no settings."""
    if name not in source.classes:
        module, original = source.imported.get(name, ("", ""))
        if module.startswith("fewtags."):
            yield from _family(_source(module), original)
        return
    yield source, source.classes[name]
    for base in source.classes[name].bases:
        if isinstance(base, ast.Name):
            yield from _family(source, base.id)


def _is_dataclass(found: ast.ClassDef) -> bool:
    return any("dataclass" in ast.unparse(decorator) for decorator in found.decorator_list)


def _own_fields(source: _Source, found: ast.ClassDef) -> dict[str, tuple[Any, Any]]:
    if not _is_dataclass(found):
        return {}
    return {
        node.target.id: (source.value(node.annotation), ... if node.value is None else source.value(node.value))
        for node in found.body
        if isinstance(node, ast.AnnAssign)
        and isinstance(node.target, ast.Name)
        and "ClassVar" not in ast.unparse(node.annotation)
    }
