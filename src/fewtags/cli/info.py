"""methods, config, doctor."""

from __future__ import annotations

from typing import Annotated

import typer


def methods(
    name: Annotated[str | None, typer.Argument(help="A method, for its settings in full.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="As one JSON object.")] = False,
) -> None:
    """List the methods and their settings."""
    import inspect
    import json

    from fewtags.engine.methods import METHODS, method_class, settings_models

    chosen = {name: method_class(name)} if name else dict(METHODS)
    if as_json:
        typer.echo(json.dumps({n: settings_models()[n].model_json_schema() for n in chosen}))
        return
    for key, method in chosen.items():
        doc = inspect.getdoc(method) or ""
        typer.echo(f"{key}: {doc if name else doc.splitlines()[0]}")
        for field, info in settings_models()[key].model_fields.items():
            if field != "name":
                typer.echo(f"  objective.{field} = {info.default!r}")
        typer.echo("")


def config(
    as_json: Annotated[bool, typer.Option("--json", help="The JSON schema of all settings.")] = False,
) -> None:
    """List every setting with its default; `(derived)` follows from data, machine and preset."""
    import json

    from fewtags.config import PRESETS, Config, Settings

    if as_json:
        typer.echo(json.dumps(Config.model_json_schema()))
        return
    for section, field in Config.model_fields.items():
        model = field.annotation
        if section == "objective" or not (isinstance(model, type) and issubclass(model, Settings)):
            continue
        typer.echo(f"[{section}]")
        for key, info in model.model_fields.items():
            default = (
                "(required)" if info.is_required() else "(derived)" if info.default is None else repr(info.default)
            )
            typer.echo(f"{key} = {default}" + (f"  # {info.description}" if info.description else ""))
        typer.echo("")
    typer.echo("[objective]\nname = 'expected_negative'  # settings of each method: fewtags methods NAME\n")
    for name, preset in PRESETS.items():
        stages = ", ".join(f"{s.epochs} epochs {s.trainable} lr {s.lr:g}" for s in preset.stages)
        typer.echo(f"preset {name}: {preset.backbone} at {preset.size} px, batch {preset.batch_size}; {stages}")


def doctor(as_json: Annotated[bool, typer.Option("--json", help="As one JSON object.")] = False) -> None:
    """Say what this machine offers and whether everything is in place. Exit code 1 if something needed is missing."""
    import json

    from fewtags.engine.machine import EXTRAS, environment
    from fewtags.nets.backbones import create_net

    facts = environment()
    problems = []
    try:
        create_net("test_resnet", 2, weights="none", size=64)
    except Exception as error:  # the point of a doctor is to name what is broken, whatever it is
        problems.append(f"a net cannot be made: {error}")
    facts["problems"] = problems
    if as_json:
        typer.echo(json.dumps(facts))
    else:
        for key in ("python", "system", "cores", "memory_bytes", "device", "gpu", "torch_threads"):
            typer.echo(f"{key}: {facts[key]}")
        for package, found in facts["packages"].items():
            note = "" if found else " (optional)" if package in EXTRAS else " MISSING"
            typer.echo(f"{package}: {found or 'not installed'}{note}")
        for problem in problems:
            typer.echo(f"problem: {problem}")
        typer.echo("ready." if not problems else "not ready.")
    if problems:
        raise typer.Exit(1)
