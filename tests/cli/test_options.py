"""Groups of options declared once as a dataclass."""

from dataclasses import dataclass
from typing import Annotated

import pytest
import typer
from typer.testing import CliRunner

from fewtags.cli.options import expand_groups, without_none


@dataclass(frozen=True, kw_only=True)
class Common:
    """Options of both commands."""

    source: Annotated[str, typer.Argument(help="Where to read.")]
    seed: Annotated[int, typer.Option(min=0, help="A number.")] = 3
    as_json: Annotated[bool, typer.Option("--json")] = False


def app_of(command):
    app = typer.Typer()
    app.command()(command)
    return app


@pytest.fixture
def calls():
    return []


@pytest.fixture
def app(calls):
    @expand_groups
    def command(
        common: Common,
        target: Annotated[str, typer.Argument(help="Where to write.")],
        sizes: Annotated[list[int] | None, typer.Option("--size")] = None,
    ) -> None:
        """Copy things."""
        calls.append((common, target, sizes))

    return app_of(command)


def test_a_command_gets_its_group_and_its_own_options(app, calls):
    """Arguments of the group come before those of the command."""
    assert CliRunner().invoke(app, ["a", "b"]).exit_code == 0
    assert CliRunner().invoke(app, ["a", "b", "--size", "1", "--size", "2", "--seed", "7", "--json"]).exit_code == 0
    assert calls == [
        (Common(source="a"), "b", None),
        (Common(source="a", seed=7, as_json=True), "b", [1, 2]),
    ]


def test_the_help_lists_all_options_and_the_docstring(app):
    text = CliRunner().invoke(app, ["--help"]).stdout
    for word in ("Copy things.", "Where to read.", "Where to write.", "--size", "--seed", "default: 3", "--json"):
        assert word in text


def test_limits_of_a_group_are_checked(app, calls):
    assert CliRunner().invoke(app, ["a", "b", "--seed", "-1"]).exit_code == 2
    assert CliRunner().invoke(app, ["a"]).exit_code == 2
    assert calls == []


def test_only_given_options_are_kept():
    assert without_none({"a": None, "b": 0, "c": False}) == {"b": 0, "c": False}
