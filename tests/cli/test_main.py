"""Exit codes, messages and streams of the command line as a whole."""

import errno
import io
import json
import os
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import typer
from typer.testing import CliRunner, Result

from fewtags.cli.main import app
from fewtags.errors import DataError

Run = Callable[..., Result]
COMMANDS = (
    *("check", "simulate", "train", "resume", "report", "evaluate", "predict", "heatmap"),
    *("demo", "methods", "config", "doctor"),
)


def started(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-m", "fewtags", *arguments], capture_output=True, text=True, check=False)


def test_help_imports_nothing_heavy() -> None:
    code = (
        "import sys\n"
        "sys.argv = ['fewtags', '--help']\n"
        "from fewtags.cli.main import run\n"
        "try:\n    run()\n"
        "except SystemExit as end:\n    assert not end.code\n"
        "print(*sorted({m.split('.')[0] for m in sys.modules}), file=sys.stderr)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    heavy = {"torch", "pydantic", "pyarrow", "numpy", "timm", "matplotlib", "PIL", "accelerate"}
    assert not heavy & set(done.stderr.split())
    for command in COMMANDS:
        assert f"\n  {command} " in done.stdout


def test_help_is_plain_when_piped() -> None:
    done = started("train", "--help")
    assert done.returncode == 0
    assert done.stdout.isascii()
    # The lines of the examples are not run together.
    assert "\n    fewtags train photos/\n    fewtags train tags.csv --images photos/" in done.stdout


def test_the_home_folder_in_an_option_with_an_equals_sign(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A shell replaces ~ in `--images ~/a`, but not in `--images=~/a`; what it was told to keep stays."""
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.chdir(tmp_path)
    for words, named in [
        (["--config=~/a"], f"{tmp_path}/home/a"),
        (["--config", "~/a"], "~/a"),
        (["--config=~a"], "~a"),
        (["--config=b/~/a"], "b/~/a"),
    ]:
        done = CliRunner().invoke(app, ["train", *words])
        assert named in done.output
    assert not [*tmp_path.iterdir()]


def test_usage_error_is_exit_code_2_with_a_suggestion() -> None:
    done = started("trian")
    assert done.returncode == 2
    assert done.stdout == ""
    assert "Did you mean 'train'" in done.stderr
    assert "Traceback" not in done.stderr


def test_version() -> None:
    done = started("--version")
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.strip().count(".") == 2


def test_users_error_is_one_message_on_stderr_and_exit_code_1(tmp_path: Path) -> None:
    done = started("check", str(tmp_path / "nowhere"))
    assert done.returncode == 1
    assert done.stdout == ""
    assert done.stderr.startswith("error: ")
    assert "nowhere" in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize("place", ["before", "after"])
def test_debug_shows_the_traceback(run: Run, place: str) -> None:
    words = ["check", "nowhere-at-all"]
    result = run(*(["--debug", *words] if place == "before" else [*words, "--debug"]))
    assert result.exit_code == 1
    assert isinstance(result.exception, DataError)


def test_system_error_is_one_message(run: Run, trained: tuple[Path, Result], tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    result = run("predict", trained[0], trained[0].parent, "--out", tmp_path / "file" / "tags.csv")
    assert result.exit_code == 1
    assert result.stderr.startswith("error: ")
    assert result.stderr.count("\n") == 1


def test_our_own_bug_keeps_its_exception(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken() -> None:
        raise ZeroDivisionError("ours")

    monkeypatch.setattr("fewtags.engine.machine.environment", broken)
    result = run("doctor")
    assert isinstance(result.exception, ZeroDivisionError)


def test_interruption_of_any_command(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted() -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("fewtags.engine.machine.environment", interrupted)
    result = run("doctor")
    assert (result.exit_code, result.stdout, result.stderr) == (130, "", "interrupted.\n")


def test_closed_pipe_is_no_traceback() -> None:
    command = [sys.executable, "-m", "fewtags", "plan", "--budget", "1%", "--photos", "82783", "--cost", "coco"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        process.stdout.close()
        assert process.stderr is not None
        output = process.stderr.read()
    assert output == ""
    assert process.returncode == 1


@pytest.mark.parametrize("command", COMMANDS)
def test_every_help_begins_with_a_short_sentence(run: Run, command: str) -> None:
    result = run(command, "--help")
    assert result.exit_code == 0
    listed = next(line for line in run("--help").stdout.splitlines() if line.strip(" │").startswith(command + " "))
    assert "..." not in listed


def commands_of(group: Any, words: tuple[str, ...] = ()) -> Iterator[tuple[str, ...]]:
    """Yield the words of every command and group that has a help page."""
    yield words
    for name, inner in getattr(group, "commands", {}).items():
        yield from commands_of(inner, (*words, name))


@pytest.mark.parametrize("words", [*commands_of(typer.main.get_command(app))], ids=" ".join)
def test_help_pages_have_80_columns_and_plain_words(run: Run, words: tuple[str, ...]) -> None:
    """Values are called LABELS, FOLDER or N, not `<list[str]>` or `<int range>`; examples can be pasted."""
    shown = run(*words, "--help").stdout
    assert [line for line in shown.splitlines() if len(line) > 80 or re.search("<[a-z]", line)] == []


WRONG = {
    ("train", "NOWHERE"): "does not exist",
    ("train", "FOLDER", "--val", "NOWHERE"): "does not exist",
    ("train", "FOLDER", "--images", "NOWHERE"): "is not a folder",
    ("train", "FOLDER", "--config", "NOWHERE"): "does not exist",
    ("train", "FOLDER", "--set", "train.epoch=3"): "did you mean 'train.epochs'?",
    ("train", "FOLDER", "--set", "train.epochs=0"): "train.epochs = 0",
    ("train", "FOLDER", "--out", "FOLDER"): "is not empty",
    ("pretrain", "NOWHERE"): "does not exist",
    ("pretrain", "FOLDER", "--set", "train.epoch=3"): "did you mean 'train.epochs'?",
    ("check", "NOWHERE"): "does not exist",
    ("check", "FOLDER", "--set", "data.uncertain=one"): "data.uncertain = 'one'",
    ("train", "FOLDER", "--set", "objective.scl_wieght=1"): "did you mean 'objective.scl_weight'?",
    (
        "train",
        "FOLDER",
        "--set",
        "objective.scl_weight=a",
    ): "objective.scl_weight = 'a': input should be a valid number",
    ("train", "FOLDER", "--set", "objective.momentum=2"): "objective.momentum = 2: must be in 0..1",
    ("train", "FOLDER", "--config", "WRONG.toml"): "did you mean 'objective.pseudo_weight'?",
    ("train", "FOLDER", "--method", "bec"): "did you mean 'bce'?",
    ("train", "FOLDER", "--init", "NOWHERE", "--set", "objective.foo=1"): "unknown key 'objective.foo'",
    ("pretrain", "FOLDER", "--set", "objective.queue=1"): "did you mean 'objective.queue_size'?",
    ("methods", "bec"): "did you mean 'bce'?",
    ("check", "EMPTY.csv"): "it is not clear which of",
    ("evaluate", "NOWHERE", "LABELS.csv"): "does not exist; give a run folder",
    ("predict", "NOWHERE", "FOLDER"): "does not exist; give a run folder",
    ("heatmap", "NOWHERE", "FOLDER"): "does not exist; give a run folder",
    ("suggest", "NOWHERE"): "does not exist; give a run folder",
    ("review", "NOWHERE"): "does not exist; give a run folder",
    ("serve", "NOWHERE"): "does not exist; give a run folder",
    ("thresholds", "NOWHERE"): "does not exist; give a run folder",
    ("export", "NOWHERE", "--to", "onnx"): "does not exist; give a run folder",
    ("export", "NOWHERE", "--to", "timm"): "does not exist; give a run folder",
    ("export", "NOWHERE", "--to", "backbone"): "NOWHERE does not exist",
    ("resume", "NOWHERE"): "is not a run folder",
    ("report", "NOWHERE"): "is not a run folder",
    ("transfer", "knn", "NOWHERE", "LABELS.csv"): "NOWHERE does not exist",
    ("transfer", "linear", "none", "NOWHERE", "--backbone", "resnet18"): "'NOWHERE' does not exist",
    ("transfer", "neighbours", "NOWHERE", "LABELS.csv"): "NOWHERE does not exist",
    ("transfer", "segment", "NOWHERE", "FOLDER"): "NOWHERE does not exist",
}
ANSWERED = [
    ("methods",),
    ("methods", "expected_negative"),
    ("config",),
    ("config", "--pretrain"),
    ("check", "LABELS.csv"),
]
"""Commands that need no network and no photo."""
RUN_ALL = """
import contextlib, io, json, sys
from fewtags.cli.main import run
found = []
for words in json.loads(sys.argv[1]):
    sys.argv = ["fewtags", *words]
    with contextlib.redirect_stderr(io.StringIO()) as err:
        try:
            run()
        except SystemExit as end:
            code = end.code
    found.append((code, "torch" in sys.modules, err.getvalue()))
print(json.dumps(found))
"""


@pytest.fixture(scope="module")
def reported(tmp_path_factory: pytest.TempPathFactory) -> dict[tuple[str, ...], list[object]]:
    """Exit code, whether torch is imported, and the message of each command; one process for all of them."""
    folder = tmp_path_factory.mktemp("wrong")
    (folder / "FOLDER" / "cat").mkdir(parents=True)
    (folder / "FOLDER" / "cat" / "1.jpg").touch()
    (folder / "LABELS.csv").write_text("file,cat,dog\na.jpg,1,0\nb.jpg,,1\n")
    (folder / "EMPTY.csv").write_text("file,cat\n")
    (folder / "WRONG.toml").write_text('[objective]\nname = "patchml"\npseudo_weigth = 1.0\n')
    commands = [*WRONG, *ANSWERED]
    command = [sys.executable, "-c", RUN_ALL, json.dumps(commands)]
    done = subprocess.run(command, capture_output=True, text=True, check=True, cwd=folder)
    return dict(zip(commands, json.loads(done.stdout.splitlines()[-1]), strict=True))


@pytest.mark.parametrize("words", WRONG)
def test_wrong_paths_and_settings_are_reported_without_torch(
    reported: dict[tuple[str, ...], list[object]], words: tuple[str, ...]
) -> None:
    code, has_torch, message = reported[words]
    assert (code, has_torch) == (1, False)
    assert WRONG[words] in str(message)


@pytest.mark.parametrize("words", ANSWERED)
def test_what_needs_no_network_is_answered_without_torch(
    reported: dict[tuple[str, ...], list[object]], words: tuple[str, ...]
) -> None:
    assert reported[words][:2] == [0, False]


@pytest.mark.parametrize(
    ("words", "offered"),
    [
        ("fewtags tra", {"train", "transfer"}),
        ("fewtags train --batch", {"--batch-size"}),
        ("fewtags train --method expected", {"expected_negative"}),
        ("fewtags train --preset paper", {"paper", "paper_scratch", "paper_imagenet"}),
        ("fewtags pretrain --method ml", {"mls"}),
    ],
)
def test_completion_of_a_shell(words: str, offered: set[str]) -> None:
    """What the script of `--show-completion bash` asks the program."""
    asked = {"_FEWTAGS_COMPLETE": "complete_bash", "COMP_WORDS": words, "COMP_CWORD": str(len(words.split()) - 1)}
    result = CliRunner().invoke(app, [], env=asked, prog_name="fewtags")
    assert set(result.stdout.split()) == offered


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_completion_script(shell: str) -> None:
    asked = {**os.environ, "_FEWTAGS_COMPLETE": f"source_{shell}"}
    done = subprocess.run([sys.executable, "-m", "fewtags"], env=asked, capture_output=True, text=True, check=True)
    assert f"_FEWTAGS_COMPLETE=complete_{shell}" in done.stdout


@pytest.mark.parametrize("words", [("--version",), ("--help",), ("methods",), ("train", "--help")])
def test_what_is_printed_to_a_full_disk_is_an_error(
    words: tuple[str, ...], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    class Full(io.StringIO):
        def write(self, _: str) -> int:
            raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(sys, "stdout", Full())
    with pytest.raises(SystemExit) as ended:
        app([*words], prog_name="fewtags")
    assert ended.value.code == 1
    assert capsys.readouterr().err == "error: No space left on device: what the command prints cannot be written.\n"
