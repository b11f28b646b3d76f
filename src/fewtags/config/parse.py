"""Read and write settings: a TOML file, `--set a.b=c`, and one line for each problem."""

from __future__ import annotations

import copy
import datetime
import difflib
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Literal, get_args, get_origin

import tomli_w
from pydantic import BaseModel, ValidationError

from fewtags.config.sections import UNNAMED_METHODS, Config, ObjectiveConfig, Section
from fewtags.errors import ConfigError
from fewtags.text import counted, suggest, value_of


def load_toml(path: Path) -> dict[str, Any]:
    """Read a TOML file.

    Raises:
        ConfigError: the file is missing or is not TOML; the message names line and column.
    """
    try:
        return tomllib.loads(path.read_text("utf-8"))
    except FileNotFoundError:
        raise ConfigError(f"{path} does not exist.") from None
    except OSError as error:
        raise ConfigError(f"{path} cannot be read: {error.strerror}.") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path} is not valid TOML: {error}.") from None


def apply_overrides(tree: Mapping[str, Any], assignments: Mapping[str, Any] | list[str]) -> dict[str, Any]:
    """Return a copy of `tree` with dotted keys set; values of `a.b=c` texts are read as TOML, or else as plain text.

    `null` makes a setting derived again. `none` is a plain word, which some settings accept.

    >>> apply_overrides({"train": {"seed": 0}}, ["train.seed=3", "objective.name=bce"])
    {'train': {'seed': 3}, 'objective': {'name': 'bce'}}

    Raises:
        ConfigError: an assignment has no `=`, or a key is below a plain value.
    """
    out: dict[str, Any] = copy.deepcopy(dict(tree))
    pairs = assignments.items() if isinstance(assignments, Mapping) else [_assignment(text) for text in assignments]
    for key, value in pairs:
        *path, last = key.split(".")
        node = out
        for part in path:
            node = node.setdefault(part, {})
            if not isinstance(node, dict):
                typed = key if isinstance(assignments, Mapping) else f"--set {key}"
                raise ConfigError(f"{typed}: {part!r} is a value, not a section.")
        node[last] = value
    return out


def _assignment(text: str) -> tuple[str, Any]:
    key, equals, value = text.partition("=")
    if not equals or not key.strip():
        raise ConfigError(f"--set {text!r}: expected section.key=value, for example --set train.seed=3.")
    key, value = key.strip(), value.strip()
    if value == "null":
        return key, None
    try:
        read = tomllib.loads(f"v = {value}")
    except tomllib.TOMLDecodeError:
        return key, value
    # A second line would set a second key. No setting is a date, but a folder may be called 2024-05-01.
    dates = (datetime.date, datetime.time)
    return key, value if len(read) > 1 or isinstance(read["v"], dates) else read["v"]


def validated(model: type[Section], values: Mapping[str, Any], where: str) -> Section:
    """Make one section from plain values.

    Raises:
        ConfigError: one line for each problem, as in `parse`.
    """
    section, problems = _validate(model, values)
    if section is None:
        raise _refusal(problems, where)
    return section


def parse(
    tree: Mapping[str, Any], objectives: Mapping[str, type[ObjectiveConfig]], where: str = "configuration"
) -> Config:
    """Make the settings of a training run, see `parse_as`.

    If no method is named, `presets.resolve` chooses it from the labels. If settings of a method are given without its
    name, it is the first of `UNNAMED_METHODS` that has all of them.
    """
    section = tree.get("objective", {})
    given = {k for k, v in section.items() if (k, v) != ("name", None)} if isinstance(section, Mapping) else {"?"}
    default = next((m for m in UNNAMED_METHODS if given <= {*objectives[m].model_fields}), UNNAMED_METHODS[0])
    config = parse_as(Config, tree, objectives, where, default)
    return config if given else config.model_copy(update={"objective": ObjectiveConfig()})


def parse_as(
    model: type[Section],
    tree: Mapping[str, Any],
    objectives: Mapping[str, type[ObjectiveConfig]],
    where: str = "configuration",
    default: str = "expected_negative",
) -> Section:
    """Validate a tree of settings against all models; every problem is reported at once.

    `model` describes a whole run; `objective` is one of its sections, with a model for each method in `objectives`.
    `default` is the method if none is named. `where` is the file, for error messages.

    Raises:
        ConfigError: one line for each problem; unknown keys with the closest known one.
    """
    parsed, problems = _parse_objective(tree.get("objective", {}), objectives, default)
    base, others = _validate_sections(model, tree)
    if base is None or parsed is None:
        raise _refusal(problems + others, where)
    return base.model_copy(update={"objective": parsed})


def check_sections(model: type[Section], tree: Mapping[str, Any], where: str) -> Section | None:
    """Validate the sections other than `objective`, whose models need torch.

    Returns:
        the settings, with an objective that has no meaning; None if there are problems, but the objective has settings:
        `parse_as` then reports the problems of all sections at once.

    Raises:
        ConfigError: one line for each problem.
    """
    base, problems = _validate_sections(model, tree)
    objective = tree.get("objective", {})
    if problems and isinstance(objective, Mapping) and set(objective) <= {"name"}:
        raise _refusal(problems, where)
    return base


def _validate_sections(model: type[Section], tree: Mapping[str, Any]) -> tuple[Section | None, list[str]]:
    """Validate all sections but `objective`; return the settings, or None and the problems."""
    return _validate(model, {**tree, "objective": {"name": "placeholder"}})


def _validate(model: type[Section], values: Any, prefix: str = "") -> tuple[Section | None, list[str]]:
    try:
        return model.model_validate(values), []
    except ValidationError as error:
        return None, _lines(error, model, prefix)


def _refusal(problems: list[str], where: str) -> ConfigError:
    return ConfigError(f"{counted(len(problems), 'problem')} in {where}:\n" + "\n".join(f"  {p}" for p in problems))


def _parse_objective(
    given: Any, objectives: Mapping[str, type[ObjectiveConfig]], default: str
) -> tuple[ObjectiveConfig | None, list[str]]:
    """Make the settings of the method; return them, or None and the problems."""
    if not isinstance(given, Mapping):
        return None, [f'objective = {given!r} is a value, not a section; write objective.name = "{default}"']
    name = default if given.get("name") is None else given["name"]
    if not isinstance(name, str) or name not in objectives:
        hint = suggest(str(name), objectives)
        return None, [
            f"{value_of('objective.name', name)} is not a method{hint}; known: {', '.join(sorted(objectives))}"
        ]
    return _validate(objectives[name], {**given, "name": name}, "objective.")


def _lines(error: ValidationError, model: type[BaseModel], prefix: str) -> list[str]:
    """Describe each problem in one line; the problems that the members of a union have with a value share a line."""
    lines: dict[str, str] = {}
    for problem in error.errors(include_url=False):
        path = _path_of_field(model, [str(p) for p in problem["loc"]])
        key = prefix + ".".join(path)
        if problem["type"] == "missing":
            lines[key] = f"missing key {key!r}"
        elif problem["type"] == "extra_forbidden":
            section = _model_at(model, path[:-1])
            known = [] if section is None else list(section.model_fields)
            close = difflib.get_close_matches(path[-1], known, n=1)
            near = [prefix + ".".join([*path[:-1], *close])] if close else _elsewhere(model, path)
            hint = f"did you mean {' or '.join(map(repr, near))}?" if near else f"known here: {', '.join(known)}"
            lines[key] = f"unknown key {key!r}; {hint}"
        elif problem["type"] == "value_error":
            lines[key] = f"{key}: {problem['ctx']['error']}"
        else:
            text = f"{problem['msg'][0].lower()}{problem['msg'][1:]}"
            if problem["type"] == "tuple_type":
                field = list(path)
                while field[-1].isdigit():  # a place in the list
                    field.pop()
                text += f"; a list in TOML looks like {prefix}{'.'.join(field)} = {_example(model, field)}"
            lines[key] = f"{lines[key]}, or {text}" if key in lines else f"{value_of(key, problem['input'])}: {text}"
    return list(lines.values())


def _elsewhere(model: type[BaseModel], path: list[str]) -> list[str]:
    """Return the settings of other sections that have the name at the end of a path."""
    sections = {name: _section(field.annotation) for name, field in model.model_fields.items()}
    return [f"{name}.{path[-1]}" for name, inner in sections.items() if inner and path[-1] in inner.model_fields]


def _path_of_field(model: type[BaseModel], path: list[str]) -> list[str]:
    """Return the part of pydantic's location that is a key of the user, without members of a union at its end."""
    for length in range(1, len(path)):
        within = _model_at(model, path[:length])
        if within is None and not path[length].isdigit():
            return path[:length]
    return path


def _model_at(model: type[BaseModel], path: list[str]) -> type[BaseModel] | None:
    """Return the section at a path, also an optional or repeated one; None if a value is there."""
    found: type[BaseModel] | None = model
    for part in path:
        if part.isdigit():  # an index into a list of sections
            continue
        field = None if found is None else found.model_fields.get(part)
        found = None if field is None else _section(field.annotation)
    return found


_EXAMPLES = {str: ('"first"', '"second"'), float: ("0.5", "1.0", "2.0"), int: ("1", "2", "3"), bool: ("true", "false")}


def _example(model: type[BaseModel], path: list[str]) -> str:
    """Return an example of a list for the field at a path."""
    parent = _model_at(model, path[:-1])
    assert parent is not None
    return _example_of(_members(parent.model_fields[path[-1]].annotation))


def _example_of(members: tuple[Any, ...]) -> str:
    if get_origin(members[0]) is Annotated:
        return _example_of((get_args(members[0])[0], *members[1:]))
    if _section(members[0]) is not None:
        return '[{ name = "main", epochs = 10, lr = 0.001 }]'
    if get_origin(members[0]) is Literal:
        words = tuple(f'"{choice}"' if isinstance(choice, str) else str(choice) for choice in get_args(members[0]))
    elif get_origin(members[0]) is tuple:
        return f"[{_example_of(get_args(members[0]))}]"
    else:
        words = _EXAMPLES.get(members[0], ("...",))
    return f"[{', '.join(words[: 2 if members[1] is ... else len(members)])}]"


def _members(annotation: Any) -> tuple[Any, ...]:
    """Return the member types of a tuple's annotation, also of an optional or validated one."""
    if get_origin(annotation) is tuple:
        return get_args(annotation)
    return next((found for inner in get_args(annotation) if (found := _members(inner))), ())


def _section(annotation: Any) -> type[BaseModel] | None:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return annotation
    return next((found for inner in get_args(annotation) if (found := _section(inner))), None)


def dump_toml(model: BaseModel) -> str:
    """Return a model as TOML; settings that are None (derived) are left out."""
    return tomli_w.dumps(_without_none(model.model_dump(mode="json", serialize_as_any=True)))


def _without_none(tree: Any) -> Any:
    if isinstance(tree, dict):
        return {k: _without_none(v) for k, v in tree.items() if v is not None}
    if isinstance(tree, list):
        return [_without_none(v) for v in tree]
    return tree
