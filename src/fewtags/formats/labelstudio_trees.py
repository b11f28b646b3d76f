"""Taxonomies of Label Studio: choices in a tree. A choice states its class, and those above it."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, final

from fewtags.formats.common import plain_text
from fewtags.formats.options import ReadOptions

TreePath = tuple[str, ...]


@final
@dataclass(frozen=True)
class Trees:
    """The classes of the nodes of all taxonomies that are read, by control and path from the top."""

    names: Mapping[tuple[str, TreePath], str]

    def classes(self, control: str, path: TreePath) -> list[str]:
        """Return the classes that a path states: the one at its end, and those above it, from the top."""
        return [self.names[control, path[:depth]] for depth in range(1, len(path) + 1)]


def paths_of(value: Mapping[str, Any]) -> tuple[list[TreePath], list[object]]:
    """Return the paths that a result states, each once, and what is not a path."""
    given = value.get("taxonomy")
    found: dict[TreePath, None] = {}
    wrong = []
    for item in given if isinstance(given, list) else []:
        path = tuple(map(plain_text, item if isinstance(item, list) else [item]))
        if path and all(path):
            found[path] = None
        else:
            wrong.append(item)
    return [*found], wrong


def trees_of(tasks: Sequence[Mapping[str, Any]], options: ReadOptions) -> Trees:
    """Return the classes of the taxonomies of tasks.

    A node is called by its own name. Names that occur at several places of a tree, and names such as "none" below
    another node, have the names above them before theirs: "Animal: other". Names that several taxonomies have get the
    name of the control: "front: dirty".
    """
    nodes: dict[str, dict[TreePath, None]] = defaultdict(dict)
    for task in tasks:
        for annotation in task.get("annotations") or []:
            results = annotation.get("result")
            for item in results if isinstance(results, list) else []:
                value = item.get("value") if isinstance(item, dict) and item.get("type") == "taxonomy" else None
                control = plain_text(item.get("from_name")) if isinstance(item, dict) else ""
                if isinstance(value, dict) and (options.columns is None or control in options.columns):
                    for path in paths_of(value)[0]:
                        nodes[control].update(dict.fromkeys(path[:depth] for depth in range(1, len(path) + 1)))
    own = {}
    for control, paths in nodes.items():
        uses = Counter(path[-1] for path in paths)
        for path in paths:
            alone = uses[path[-1]] == 1 and not (len(path) > 1 and options.is_none(path[-1]))
            own[control, path] = path[-1] if alone else ": ".join(path)
    controls: dict[str, set[str]] = defaultdict(set)
    for (control, _), name in own.items():
        controls[name].add(control)
    return Trees({(c, path): f"{c}: {name}" if len(controls[name]) > 1 else name for (c, path), name in own.items()})
