"""`fewtags methods`, `config` and `doctor`."""

import json
import tomllib
from collections.abc import Callable
from pathlib import Path

import pytest
from typer.testing import Result

from fewtags.config.parse import parse, parse_as
from fewtags.config.presets import PRESETS
from fewtags.config.pretrain import PretrainConfig
from fewtags.engine import machine
from fewtags.engine.methods import METHODS, PRETRAIN_METHODS, pretrain_settings_models, settings_models

Run = Callable[..., Result]


def test_config_is_toml_that_means_the_defaults(run: Run) -> None:
    result = run("config")
    assert (result.exit_code, result.stderr) == (0, "")
    printed = parse(tomllib.loads(result.stdout), settings_models())
    assert printed == parse({"data": {"train": "photos/"}}, settings_models())
    for name in PRESETS:
        assert f"\n#   {name}: " in result.stdout


def test_config_names_every_setting_and_its_choices(run: Run) -> None:
    text = run("config").stdout
    schema = json.loads(run("config", "--json").stdout)
    for section in ("DataConfig", "ModelConfig", "AugmentConfig", "TrainConfig"):
        for key in schema["$defs"][section]["properties"]:
            assert any(line.removeprefix("# ").startswith(f"{key} =") for line in text.splitlines()), key
    assert '"hub"' not in text  # weights take any path, too
    assert '# "cpu" | "views" | "finetune" | "paper"' in text


def test_methods_lists_all(run: Run) -> None:
    """In two groups, under the command that takes them."""
    result = run("methods")
    train, pretrain = result.stdout.split("To pretrain without labels, fewtags pretrain --method NAME:\n\n")
    assert train.startswith("To train with labels, fewtags train --method NAME:\n\nbce: ")
    for text, methods in ((train, METHODS), (pretrain, PRETRAIN_METHODS)):
        listed = [line.split(":")[0] for line in text.splitlines() if line[:1].islower() and ": " in line]
        assert listed == list(methods)
    assert "  # scl_weight =" in train
    assert "  momentum = 0.8" in train
    assert '  neighbour_loss = "bce"' in pretrain
    assert list(json.loads(run("methods", "--json").stdout)) == [*METHODS, *PRETRAIN_METHODS]


@pytest.mark.parametrize("name", METHODS)
def test_method_in_full_ends_with_its_defaults_as_toml(run: Run, name: str) -> None:
    text = run("methods", name).stdout
    toml = text[text.index("[objective]") :]
    tree = {"data": {"train": "photos/"}, **tomllib.loads(toml)}
    assert parse(tree, settings_models()).objective == settings_models()[name](name=name)


@pytest.mark.parametrize("name", PRETRAIN_METHODS)
def test_a_method_of_pretraining_does_too(run: Run, name: str) -> None:
    text = run("methods", name).stdout
    tree = {"data": {"train": "photos/"}, **tomllib.loads(text[text.index("[objective]") :])}
    models = pretrain_settings_models()
    assert parse_as(PretrainConfig, tree, models).objective == models[name](name=name)


def test_defaults_that_are_made_and_settings_without_one(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "own_defaults.py").write_text(
        "from dataclasses import dataclass, field\nimport fewtags as ft\n"
        "@dataclass(eq=False)\nclass Mine(ft.Objective):\n    rate: float\n"
        "    gammas: tuple[float, ...] = field(default_factory=lambda: (1.5,))\n"
        "    def step(self, net, batch, at): ...\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    result = run("methods", "own_defaults:Mine")
    assert (result.exit_code, result.stderr) == (0, "")
    assert tomllib.loads(result.stdout[result.stdout.index("[objective]") :]) == {
        "objective": {"name": "own_defaults:Mine", "gammas": [1.5]}
    }
    assert "# rate =                            # required\n" in result.stdout


def test_unknown_method_is_suggested(run: Run) -> None:
    result = run("methods", "asume_negative")
    assert result.exit_code == 1
    assert "did you mean 'assume_negative'?" in result.stderr


def test_doctor_on_a_sound_machine(run: Run) -> None:
    result = run("doctor")
    assert (result.exit_code, result.stderr) == (0, "")
    assert result.stdout.endswith("ready.\n")
    heif = next(line for line in result.stdout.splitlines() if line.startswith("pillow-heif: "))
    assert heif.endswith("(photos of iPhones, .heic)")
    assert json.loads(run("doctor", "--json").stdout)["problems"] == []


@pytest.mark.parametrize(
    ("torch", "device", "said"), [("2.9.0+cu130", "cpu", 1), ("2.9.0+cpu", "cpu", 0), ("2.9.0+cu130", "cuda", 0)]
)
def test_doctor_names_the_smaller_torch_where_there_is_no_gpu(
    run: Run, monkeypatch: pytest.MonkeyPatch, torch: str, device: str, said: int
) -> None:
    facts = machine.environment()
    facts = {**facts, "device": device, "gpu": None, "packages": {**facts["packages"], "torch": torch}}
    monkeypatch.setattr("fewtags.engine.machine.environment", lambda: facts)
    assert run("doctor").stdout.count("--index-url https://download.pytorch.org/whl/cpu") == said


def test_doctor_finds_what_is_broken(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: object, **__: object) -> None:
        raise RuntimeError("no operator 'conv2d'")

    monkeypatch.setattr("fewtags.nets.backbones.create_net", broken)
    result = run("doctor")
    assert result.exit_code == 1
    assert "problem: a network cannot be created: no operator 'conv2d'\nnot ready.\n" in result.stdout
    assert json.loads(run("doctor", "--json").stdout)["problems"]
