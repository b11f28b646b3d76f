"""Methods by name: their classes, the models of their settings, and objectives made from settings.

Built-in methods are listed in `objectives.table`, and their settings are read without importing them, so that wrong
settings are reported before torch is imported. A method of your own is named "module:Class" and imported when it is
needed: to train and to resume, not to predict.
"""

from __future__ import annotations

import dataclasses
import hashlib
import importlib
import importlib.util
import inspect
import json
import os
import sys
import traceback
from collections.abc import Iterator, Mapping, Sequence
from functools import cache, partial
from pathlib import Path
from types import ModuleType, UnionType
from typing import TYPE_CHECKING, Annotated, Any, Final, Literal, Union, get_args, get_origin, get_type_hints

from pydantic import AfterValidator, create_model
from pydantic.errors import PydanticSchemaGenerationError
from pydantic.fields import Field
from pydantic_core import PydanticCustomError

from fewtags.config.parse import parse_as, validated
from fewtags.config.pretrain import PretrainConfig
from fewtags.config.sections import ObjectiveConfig
from fewtags.errors import ConfigError
from fewtags.objectives.checks import Range, ranges_of
from fewtags.objectives.declared import declared
from fewtags.objectives.table import DEFAULT_PRETRAIN_METHOD, METHODS, OWN_METHOD, PRETRAIN_METHODS, Method
from fewtags.text import suggest

if TYPE_CHECKING:
    from fewtags.objectives.base import Objective, RunFacts

EVERY_METHOD: Mapping[str, Method] = {**METHODS, **PRETRAIN_METHODS}
"""All built-in methods."""


# --- classes


def method_class(name: str, folder: Path | None = None) -> type[Objective]:
    """Return the class of a built-in method, or of a method of your own ("module:Class").

    The module is looked for on the Python path, in the current folder, and in `folder`.

    Raises:
        ConfigError: the name is unknown, or the class cannot be imported or used.
    """
    if name in EVERY_METHOD:
        return _class_at(EVERY_METHOD[name].path, None)
    if ":" not in name:
        raise ConfigError(
            f"{name!r} is not a method{suggest(name, EVERY_METHOD)}. Known: {', '.join(EVERY_METHOD)}, or a class of "
            f"your own as {OWN_METHOD}."
        )
    found = _class_at(name, folder)
    _refuse_unusable(found, name)
    return found


def _class_at(path: str, folder: Path | None) -> type[Objective]:
    module_name, _, class_name = path.partition(":")
    if not class_name.isidentifier() or not all(part.isidentifier() for part in module_name.split(".")):
        raise ConfigError(f"{path!r} does not name a class; write it as {OWN_METHOD}.")
    module = _import(module_name, path, folder)
    if class_name not in vars(module):
        classes = [key for key, value in vars(module).items() if isinstance(value, type)]
        where = getattr(module, "__file__", None) or f"the module {module_name}"
        raise ConfigError(f"{where} has no class {class_name!r}{suggest(class_name, classes)}.")
    found: type[Objective] = vars(module)[class_name]
    return found


def _import(name: str, path: str, folder: Path | None) -> ModuleType:
    """Import a module from the Python path, the current folder, or `folder`."""
    if name in sys.modules:
        return sys.modules[name]
    folders = [str(Path.cwd()), *([] if folder is None else [str(folder)])]
    sys.path.extend(place for place in dict.fromkeys(folders) if place not in sys.path)
    importlib.invalidate_caches()
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        if error.name is None or not f"{name}.".startswith(f"{error.name}."):
            raise ConfigError(_failure(error, name)) from error
        if name.endswith(".py"):
            raise ConfigError(
                f"{path!r} names a file; write the module without .py: {path.replace('.py:', ':')}."
            ) from None
        file = Path(*error.name.split("."))
        raise ConfigError(
            f"cannot find the module {error.name!r} of the method {path}: there is no {file}.py or {file}{os.sep} in "
            f"{' or '.join(dict.fromkeys(folders))}, and no installed package has this name. Run the command in the "
            "folder that contains it, install the package, or add its folder to PYTHONPATH."
        ) from None
    except Exception as error:  # whatever a user's module raises is shown with its place
        raise ConfigError(_failure(error, name)) from error


def _failure(error: Exception, module: str) -> str:
    """Describe the error of a module that is imported, with file and line."""
    if isinstance(error, SyntaxError):
        file, line = error.filename, error.lineno
    else:
        frames = [f for f in traceback.extract_tb(error.__traceback__) if not f.filename.startswith("<frozen")]
        file, line = frames[-1].filename, frames[-1].lineno
    message = error.msg if isinstance(error, SyntaxError) else error
    return f"importing {module} failed in {file}, line {line}: {type(error).__name__}: {message}"


def _refuse_unusable(found: object, name: str) -> None:
    """Raise ConfigError unless an object is a class that can be trained by name."""
    from fewtags.objectives.base import Objective

    if not isinstance(found, type) or not issubclass(found, Objective):
        raise ConfigError(f"{name} is not a subclass of fewtags.Objective.")
    if missing := sorted(found.__abstractmethods__):
        raise ConfigError(f"{name} does not define {' and '.join(missing)}.")
    own = [key for key, hint in vars(found).get("__annotations__", {}).items() if "ClassVar" not in str(hint)]
    if not dataclasses.is_dataclass(found) or (own and "__dataclass_fields__" not in vars(found)):
        raise ConfigError(
            f"{name} is not a dataclass; its settings are its fields: write @dataclass(eq=False) above it."
        )
    if any(field.name == "name" for field in dataclasses.fields(found)):
        raise ConfigError(f"{name} has a setting called name, which names the method in the settings; rename it.")
    for key in (field.name for field in dataclasses.fields(found) if field.init):
        if key.startswith("_") or (key.startswith("model_") and hasattr(ObjectiveConfig, key)):
            raise ConfigError(
                f"{name} has a setting called {key}, which cannot be a key of a configuration; rename it."
            )


def method_doc(name: str) -> str:
    """Return the docstring of a method, then those of the classes that declare its other settings."""
    if name in EVERY_METHOD:
        return declared(EVERY_METHOD[name].path).doc
    method = method_class(name)
    bases = [base for base in method.__mro__[1:] if "__dataclass_fields__" in vars(base)]
    docs = [inspect.getdoc(method) or "", *(f"{base.__name__}: {inspect.getdoc(base) or ''}" for base in bases)]
    return "\n\n".join(docs)


def method_source(objective: Objective) -> dict[str, str] | None:
    """Return the file of a method of your own and its SHA-256, for the record of a run; None for a built-in method."""
    module = type(objective).__module__
    if _path_of(type(objective)) in {method.path for method in EVERY_METHOD.values()}:
        return None
    file = getattr(sys.modules[module], "__file__", None)
    if file is None:
        return {"module": module}
    path = Path(file).absolute()
    digest = hashlib.sha256(path.read_bytes()).hexdigest() if path.exists() else ""
    return {"module": module, "file": str(path), "sha256": digest}


def changed_source(objective: Objective, environment: Mapping[str, Any]) -> str | None:
    """Return a line if the file of a method differs from the one in the run's environment.json."""
    began, now = environment.get("method_source"), method_source(objective)
    if not began or not now or began.get("sha256") == now.get("sha256"):
        return None
    return f"method: {now.get('file', now['module'])} has changed since the run began, so the result may differ"


def _path_of(method: type[Objective]) -> str:
    return f"{method.__module__}:{method.__qualname__}"


# --- settings


class SettingsModels(Mapping[str, type[ObjectiveConfig]]):
    """The model of each method's settings, by name; iteration yields the built-in `methods`.

    "module:Class" is imported when it is looked up, also from `folder`.
    """

    def __init__(self, methods: Mapping[str, Method], folder: Path | None = None) -> None:
        self.methods, self.folder = methods, folder

    def __getitem__(self, name: str) -> type[ObjectiveConfig]:
        if name not in self:
            raise KeyError(name)
        return settings_model(name, self.folder)

    def __contains__(self, name: object) -> bool:
        return name in self.methods or (isinstance(name, str) and ":" in name)

    def __iter__(self) -> Iterator[str]:
        return iter(self.methods)

    def __len__(self) -> int:
        return len(self.methods)


def settings_models(run: Path | None = None) -> SettingsModels:
    """Return the settings models of the methods of training; modules are also looked for where `run` was started."""
    return SettingsModels(METHODS, _started_in(run))


def pretrain_settings_models(run: Path | None = None) -> SettingsModels:
    """Return the settings models of the methods of pretraining; `run` as in `settings_models`."""
    return SettingsModels(PRETRAIN_METHODS, _started_in(run))


def read_pretrain_settings(tree: Mapping[str, Any], where: str, run: Path | None = None) -> PretrainConfig:
    """Make the settings of a pretraining run from plain values; `where` is the file, `run` as in `settings_models`.

    Raises:
        ConfigError: one line for each problem.
    """
    return parse_as(PretrainConfig, tree, pretrain_settings_models(run), where, DEFAULT_PRETRAIN_METHOD)


def _started_in(run: Path | None) -> Path | None:
    try:
        record = json.loads((run / "environment.json").read_text("utf-8")) if run is not None else {}
        return Path(record["working_directory"])
    except (OSError, ValueError, KeyError, TypeError):  # the caller reads the run and reports damage
        return None


def settings_model(name: str, folder: Path | None = None) -> type[ObjectiveConfig]:
    """Return a model of a method's settings; only a method of your own is imported, also from `folder`.

    Raises:
        ConfigError: the name is unknown, or a setting has a type that cannot be written into a configuration.
    """
    return _declared_model(EVERY_METHOD[name].path) if name in EVERY_METHOD else model_of(method_class(name, folder))


@cache
def _declared_model(path: str) -> type[ObjectiveConfig]:
    """Return the model of a built-in method. Its ranges are checked, too: its class would refuse the same values."""
    found = declared(path)
    fields: dict[str, Any] = {}
    for key, (hint, default) in found.fields.items():
        ranges = ranges_of(hint)
        fields[key] = (Annotated[hint, AfterValidator(partial(_within, ranges))] if ranges else hint, default)
    return create_model(f"{found.name}Config", __base__=ObjectiveConfig, **fields)


def _within(ranges: Sequence[Range], value: Any) -> Any:
    """Return a number, or numbers, that lie in all ranges."""
    numbers = value if isinstance(value, tuple) else (value,)
    for allowed in ranges:
        if not all(number is None or allowed.contains(number) for number in numbers):
            what = "numbers must be" if isinstance(value, tuple) else "must be"
            raise PydanticCustomError("range", f"{what} {allowed}")
    return value


@cache
def model_of(method: type[Objective]) -> type[ObjectiveConfig]:
    """Return a model of a method's settings, made from the fields of its class.

    Raises:
        ConfigError: a field has a type that cannot be written into a configuration.
    """
    assert dataclasses.is_dataclass(method)
    try:
        hints = get_type_hints(method)
        fields: dict[str, Any] = {}
        for field in dataclasses.fields(method):
            if not field.init:
                continue
            _refuse_types(method, field.name, hints[field.name])
            default = ... if field.default is dataclasses.MISSING else field.default
            if field.default_factory is not dataclasses.MISSING:
                default = Field(default_factory=field.default_factory)
            fields[field.name] = (hints[field.name], default)
        return create_model(f"{method.__name__}Config", __base__=ObjectiveConfig, **fields)
    except (NameError, PydanticSchemaGenerationError) as error:
        raise ConfigError(
            f"the settings of {_path_of(method)} cannot be written into a configuration: {str(error).splitlines()[0]} "
            "Settings are numbers, words, booleans, and tuples of them."
        ) from error


def _refuse_types(method: type[Objective], key: str, hint: Any) -> None:
    """Raise ConfigError if TOML cannot write the values of a setting, although pydantic could check them."""
    for member in _plain_types(hint):
        if not isinstance(member, type) or not issubclass(member, bool | int | float | str | None):
            raise ConfigError(
                f"the setting {key} of {_path_of(method)} has the type {getattr(member, '__name__', member)}, which "
                "cannot be written into a configuration. Settings are numbers, words, booleans, and tuples of them."
            )


def _plain_types(hint: Any) -> Iterator[Any]:
    """Yield the types of single values in a hint: the members of unions, tuples, lists and dictionaries."""
    origin = get_origin(hint)
    named = getattr(hint, "__supertype__", getattr(hint, "__value__", None))  # NewType and `type X = ...`
    if named is not None:
        yield from _plain_types(named)
    elif origin in (Annotated, Final):
        yield from _plain_types(get_args(hint)[0])
    elif origin is Literal:
        yield from (type(choice) for choice in get_args(hint))
    elif origin in (Union, UnionType, tuple, list, dict, Sequence, Mapping):
        yield from (found for inner in get_args(hint) if inner is not ... for found in _plain_types(inner))
    elif hint not in (Any, tuple, list, dict):
        yield hint


def settled(settings: ObjectiveConfig, method: str, preset: Mapping[str, Any] | None = None) -> ObjectiveConfig:
    """Return the settings, or the defaults of `method` if they name no method; `preset` replaces None (derive)."""
    found = settings if settings.name is not None else settings_models()[method](name=method)
    return found.model_copy(update={k: v for k, v in (preset or {}).items() if getattr(found, k) is None})


def make_objective(settings: ObjectiveConfig, **derived: Any) -> Objective:
    """Return the objective that the settings describe; `derived` replaces settings that are None (derive)."""
    values = {key: getattr(settings, key) for key in type(settings).model_fields if key != "name"}
    values |= {k: v for k, v in derived.items() if k in values and values[k] is None}
    assert settings.name is not None
    return method_class(settings.name)(**values)


def derive_objective(settings: ObjectiveConfig, facts: RunFacts) -> tuple[Objective, list[str]]:
    """Return the objective with all open settings derived, and the sentences that explain them."""
    derived = make_objective(settings).derived(facts)
    used = [value for key, value in derived.items() if getattr(settings, key) is None]
    objective = make_objective(settings, **{key: value.value for key, value in derived.items()})
    return objective, [value.note for value in used if value.note]


def settings_of(objective: Objective) -> ObjectiveConfig:
    """Return the settings that describe an objective.

    Raises:
        ConfigError: the class cannot be imported by name, or a value cannot be written into a configuration.
    """
    method = type(objective)
    names = {entry.path: name for name, entry in EVERY_METHOD.items()}
    name = names.get(_path_of(method), _path_of(method))
    if name not in EVERY_METHOD:
        if vars(sys.modules[method.__module__]).get(method.__qualname__) is not method:
            raise ConfigError(
                f"{method.__qualname__} cannot be imported from {method.__module__}, so a run with it could not be "
                "resumed; define the class at the top level of a module."
            )
        _refuse_unusable(method, name)
    assert dataclasses.is_dataclass(objective)
    values = {field.name: getattr(objective, field.name) for field in dataclasses.fields(objective) if field.init}
    model = settings_model(name) if name in EVERY_METHOD else model_of(method)
    return validated(model, {"name": name, **values}, method.__name__)


def changed_objective(objective: Objective | str | None, settings: Mapping[str, Any]) -> Objective:
    """Return a new objective of the same class with other settings.

    Raises:
        ConfigError: there is no objective, or a setting is not known or out of range.
    """
    if objective is None:
        raise ConfigError(f"objective__{next(iter(settings))} needs an objective; set objective as well.")
    if isinstance(objective, str):
        method, values = method_class(objective), {}
    else:
        method, values = type(objective), settings_of(objective).model_dump(exclude={"name"})
    known = [field.name for field in dataclasses.fields(method) if field.init]  # type: ignore[arg-type]
    if unknown := [name for name in settings if name not in known]:
        raise ConfigError(
            f"{method.__name__} has no setting {unknown[0]!r}{suggest(unknown[0], known)}; known: {', '.join(known)}."
        )
    changed = method(**{**values, **settings})
    settings_of(changed)
    return changed


def collapsed_losses(settings: Mapping[str, Any]) -> Mapping[str, float]:
    """Return `Objective.collapsed_losses` of recorded settings; nothing for a method of your own, to not import it."""
    name = str(settings.get("name"))
    if name not in PRETRAIN_METHODS:
        return {}
    return make_objective(pretrain_settings_models()[name].model_validate(dict(settings))).collapsed_losses()
