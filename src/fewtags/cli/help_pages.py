"""Help pages in plain words and 80 columns: LABELS, FOLDER or N for values, and examples on several lines."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, get_args

NAMED: Mapping[str, tuple[str, ...]] = {
    "FOLDER": ("images", "val_images", "test_images"),
    "LABELS": ("val", "test"),
    "RUN": ("answers", "init"),
    "FILE": ("config", "teacher", "excluded", "pilot", "plot", "scores", "label_studio", "cvat", "fiftyone", "names"),
    "NAME": ("method", "backbone", "preset", "as_set", "split", "model"),
    "WORD": (
        "format",
        "head",
        "heads",
        "kind",
        "layout",
        "mode",
        "order",
        "points",
        "policy",
        "protocol",
        "schedule",
        "to",
        "type_",
    ),
    "PIXELS": ("size", "min_size", "max_size", "stride", "output_stride"),
    "MINUTES": ("minutes",),
    "SECONDS": ("tag", "point", "extra_point", "box"),
    "SHARE": ("share", "min_area", "measure_on"),
}
"""Words of options that say more than the type."""
TYPES: Mapping[str, str] = {"int": "N", "float": "NUMBER", "Path": "PATH", "str": "TEXT"}
"""Words of the other options by the type of a value."""


WIDTH = 78
"""Columns of a help text, which is indented by two."""


def finish_help(command: Any) -> None:
    """Give every option and argument of a command, and of its subcommands, a word for its value; fold long examples.

    An argument is its name in capitals, which is how messages write it.
    """
    for inner in getattr(command, "commands", {}).values():
        finish_help(inner)
    command.help = "\n".join(folded(line) for line in (command.help or "").split("\n")) or None
    words = {name: word for word, names in NAMED.items() for name in names}
    for parameter in command.params:
        if parameter.param_type_name == "argument":
            parameter.metavar = parameter.name.upper()
            vars(parameter)["display_type"] = _no_type  # typer repeats the type beside the name
        elif parameter.metavar is None and not parameter.is_flag:
            parameter.metavar = words.get(parameter.name) or _word_of(parameter)


def _no_type(*_: object, **__: object) -> str:
    return ""


def _word_of(option: Any) -> str | None:
    """Return the word of an option by the type of its value; None keeps the word of typer (versions before 0.29)."""
    described = getattr(option, "type_descriptor", None)
    if described is None:
        return None
    kinds = [kind for kind in (described.annotation, *get_args(described.annotation)) if isinstance(kind, type)]
    return next((TYPES[kind.__name__] for kind in kinds if kind.__name__ in TYPES), None)


def folded(line: str) -> str:
    r"""Continue a long example of a command on further lines, as a shell does.

    >>> print(folded("  fewtags train tags.csv --images photos/ --init runs/pretrained --preset finetune --out b"))
      fewtags train tags.csv --images photos/ --init runs/pretrained \
          --preset finetune --out b
    """
    if len(line) <= WIDTH or not line.startswith("  fewtags "):
        return line
    first, *rest = line.strip().split(" --")
    lines = [f"  {first}"]
    for option in rest:
        if len(lines[-1]) + len(option) + len(" -- \\") > WIDTH:
            lines[-1] += " \\"
            lines.append(f"      --{option}")
        else:
            lines[-1] += f" --{option}"
    return "\n".join(lines)
