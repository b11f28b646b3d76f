"""Options that several commands share, and groups of options declared once as a dataclass."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import MISSING, fields, is_dataclass
from pathlib import Path
from typing import Annotated, Any, cast, get_type_hints

import typer

from fewtags.config import precision as arithmetic
from fewtags.errors import ConfigError
from fewtags.text import suggest

Images = Annotated[Path | None, typer.Option(help="Folder that image names in the labels are relative to.")]
ManyImages = Annotated[
    list[Path] | None,
    typer.Option(
        "--images",
        help="Folder that image names in the labels are relative to. With several label files: one for all, or one for "
        "each, in their order.",
    ),
]
ValImages = Annotated[
    list[Path] | None, typer.Option(help="Folder of the photos of --val; default: as for the other labels.")
]
TestImages = Annotated[
    list[Path] | None, typer.Option(help="Folder of the photos of --test; default: as for the other labels.")
]
Covers = Annotated[
    list[str] | None,
    typer.Option(
        "--covers",
        metavar="FILE=CLASSES",
        help="Classes that a label file covers, for example a.csv=cat,dog; default: those that it names. May be "
        "repeated.",
    ),
]
POINTS_HELP = (
    "Where points are: object (in the outline of a COCO object; else near the centre of its box, as in PatchML; the "
    "default), centre or uniform (anywhere in the box)."
)
Complete = Annotated[bool, typer.Option("--complete", help="Classes not listed for a photo are absent, not unknown.")]
ReadingSettings = Annotated[
    list[str] | None, typer.Option("--set", metavar="KEY=VALUE", help="Reading options, e.g. data.uncertain=ones.")
]
Threshold = Annotated[
    list[str] | None,
    typer.Option(
        "--threshold",
        metavar="NUMBER|CLASS=NUMBER|FILE",
        help="Thresholds instead of the stored ones: for all classes, for one class, or a .csv, .json or .toml file. "
        "May be repeated; classes that are not named keep theirs.",
    ),
]
Precision = Annotated[
    float | None,
    typer.Option(
        help="Use the lowest threshold of each class that has this precision on the validation photos of the run."
    ),
]
Minutes = Annotated[
    float | None,
    typer.Option(
        help="Time for the whole run (train.minutes): without a GPU first compares input sizes with solved heads; then "
        "the preset finetune with as many of its epochs as fit, or the head alone if fewer than two do.",
    ),
]
MixedPrecision = Annotated[
    str | None,
    typer.Option(
        "--mixed-precision",
        help="Arithmetic of the net: no (float32), bf16 or fp16, as train.precision; default: bf16 on a GPU that "
        "supports it, else no.",
    ),
]
Epochs = Annotated[
    int | None, typer.Option(min=1, help="Epochs of the whole run (train.epochs); default: those of the preset.")
]
Rate = Annotated[
    float | None, typer.Option("--lr", help="Learning rate of the last stage (train.lr); default: that of the preset.")
]
BatchSize = Annotated[
    int | None,
    typer.Option(min=1, help="Photos per step of each process (train.batch_size); default: that of the preset."),
]
Seed = Annotated[int | None, typer.Option(help="Seed of everything random; default 0.")]
DryRun = Annotated[bool, typer.Option("--dry-run", help="Read and check the data and print the plan; write nothing.")]
Cpu = Annotated[bool, typer.Option("--cpu", help="Do not use a GPU.")]
Restart = Annotated[
    bool, typer.Option("--restart", help="Begin again; do not continue a command that was interrupted.")
]
Continue = Annotated[
    bool,
    typer.Option(
        "--continue",
        help="If the run in --out was interrupted, resume it; the settings must be the same. Else start it.",
    ),
]
Track = Annotated[
    str | None,
    typer.Option(help="Log settings and epochs to tensorboard (in the run folder), wandb, mlflow or trackio."),
]
Json = Annotated[bool, typer.Option("--json", help="Print one JSON object.")]


Given = str | Path | Sequence[str] | Sequence[Path] | None
"""One path or several, as options give them."""


def plain_paths(given: Given) -> str | list[str] | None:
    """Return the paths of an option as a setting: a text for one, a list for several, None for none."""
    if given is None or isinstance(given, str | Path):
        return None if given is None else str(given)
    return [str(path) for path in given] or None


def expand_groups(command: Callable[..., None]) -> Callable[..., None]:
    """Return a command for typer in which every dataclass parameter is replaced by its fields.

    A field is declared like a parameter of a command: `Annotated[type, typer.Option(...)]` with a default, or
    `Annotated[type, typer.Argument(...)]`. Required arguments come first (those of groups before the command's own),
    then the command's own options, then the options of its groups.
    """
    hints = get_type_hints(command, include_extras=True)
    signature = inspect.signature(command)
    groups = {name: hints[name] for name in signature.parameters if is_dataclass(hints[name])}
    shared = [
        inspect.Parameter(
            field.name,
            inspect.Parameter.KEYWORD_ONLY,
            default=inspect.Parameter.empty if field.default is MISSING else field.default,
            annotation=get_type_hints(group, include_extras=True)[field.name],
        )
        for group in groups.values()
        for field in fields(group)
    ]
    own = [
        parameter.replace(annotation=hints[name], kind=inspect.Parameter.KEYWORD_ONLY)
        for name, parameter in signature.parameters.items()
        if name not in groups
    ]
    required = [parameter for parameter in (*shared, *own) if parameter.default is inspect.Parameter.empty]
    optional = [parameter for parameter in (*own, *shared) if parameter.default is not inspect.Parameter.empty]

    def expanded(**values: Any) -> None:
        made = {
            name: group(**{field.name: values.pop(field.name) for field in fields(group)})
            for name, group in groups.items()
        }
        command(**made, **values)

    expanded.__name__, expanded.__doc__ = command.__name__, command.__doc__
    expanded.__annotations__ = {parameter.name: parameter.annotation for parameter in (*required, *optional)}
    vars(expanded)["__signature__"] = signature.replace(parameters=[*required, *optional])
    return expanded


def without_none(values: Mapping[str, Any]) -> dict[str, Any]:
    """Return the options whose value is not None."""
    return {name: value for name, value in values.items() if value is not None}


def check_precision(word: str | None) -> arithmetic.Precision | None:
    """Return the value of --mixed-precision if it is known; otherwise raise a `ConfigError`."""
    if word is None:
        return None
    return cast("arithmetic.Precision", check_choice("--mixed-precision", word, arithmetic.PRECISIONS))


def check_choice(option: str, word: str, known: Sequence[str]) -> str:
    """Return the value of an option if it is known; otherwise raise a `ConfigError` that suggests the closest."""
    if word not in known:
        raise ConfigError(f"{option} {word}: expected one of {', '.join(known)}{suggest(word, known)}.")
    return word
