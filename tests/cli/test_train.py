"""train, resume, report."""

import re
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from typer.testing import Result

from fewtags.config.parse import load_toml
from fewtags.engine.events import Event, Saved
from fewtags.engine.methods import METHODS
from fewtags.engine.train_run import TrainRun as EngineRun
from fewtags.labels import Label
from fewtags.table.storage import load, write_csv

Run = Callable[..., Result]
ONE_EPOCH = ("--set", "train.epochs=1")  # where the model does not matter


def test_training_writes_a_run_and_says_where(trained: tuple[Path, Result]) -> None:
    out, result = trained
    for name in ("model.safetensors", "report.html", "curves.png", "metrics.jsonl", "run.toml", "excluded.csv"):
        assert (out / name).stat().st_size > 0, name
    lines = result.stdout.splitlines()
    assert re.fullmatch(
        r"val: mAP \d+\.\d \(95 % interval .*\), CF1 .*; 3 of 3 classes counted, 12 images, 36 known cells\.", lines[0]
    )
    assert lines[1:] == [f"report: {out / 'report.html'}"]


def test_progress_is_plain_lines_on_stderr_when_piped(trained: tuple[Path, Result]) -> None:
    _, result = trained
    assert "\x1b" not in result.stderr
    assert "\r" not in result.stderr
    epochs = [line for line in result.stderr.splitlines() if line.startswith("epoch ")]
    assert [line.split()[1] for line in epochs] == [f"{n}/6" for n in range(1, 7)]
    assert f"  fewtags predict {trained[0]} PHOTOS --out tags.csv" in result.stderr
    unknown = load(trained[0] / "tables" / "train.parquet").matrix.counts(Label.UNKNOWN).sum()
    assert f"  fewtags review {trained[0]}    (asks you about {unknown:,} labels that nobody gave)" in result.stderr


def test_flags_reach_the_settings(trained: tuple[Path, Result]) -> None:
    told = load_toml(trained[0] / "run.toml")
    assert told["train"]["seed"] == 1
    assert {key: told["model"][key] for key in ("backbone", "weights")} == {
        "backbone": "test_resnet",
        "weights": "none",
    }


def test_flags_win_over_the_file_and_set_over_both(run: Run, dataset: Path, tmp_path: Path) -> None:
    (tmp_path / "run.toml").write_text('[train]\nseed = 5\nlr = 0.5\n[objective]\nname = "assume_negative"\n')
    result = run(
        *("train", dataset / "train.parquet", "--val", dataset / "val.parquet", "--config", tmp_path / "run.toml"),
        *("--cpu", "--weights", "none", "--seed", "6", "--set", "train.lr=0.25", "--set", "model.backbone=test_resnet"),
        *("--set", "augment.size=64", "--dry-run"),
    )
    assert result.exit_code == 0, result.stderr
    assert "method: assume_negative" in result.stderr
    assert "seed 6" in result.stderr
    assert "lr 0.25" in result.stderr


def test_common_settings_have_flags_and_set_overrides_them(run: Run, train_command: tuple[str, ...]) -> None:
    """--epochs is all epochs of the run; TINY sets train.epochs=6, which has priority."""
    words = [w for w in train_command if w != "train.epochs=6"]
    at = next(n for n in range(len(words)) if words[n : n + 2] == ["--set", "--set"])
    del words[at]
    few = run(*words, "--epochs", 9, "--lr", 0.25, "--batch-size", 5, "--dry-run")
    assert few.exit_code == 0, few.stderr
    assert ("lr 0.25" in few.stderr, "batch 5" in few.stderr) == (True, True)
    more = run(*train_command, "--epochs", 9, "--dry-run")
    for result, epochs in ((few, 9), (more, 6)):
        assert sum(map(int, re.findall(r"stage .*: (\d+) epochs?", result.stderr))) == epochs
    assert "Invalid value for '--epochs'" in run(*words, "--epochs", 0).stderr


def test_dry_run_writes_nothing(run: Run, train_command: tuple[str, ...], tmp_path: Path) -> None:
    result = run(*train_command, "--out", tmp_path / "run", "--dry-run")
    assert (result.exit_code, result.stdout) == (0, "")
    assert result.stderr.endswith("dry run: nothing was written.\n")
    assert list(tmp_path.iterdir()) == []


def test_used_folder_is_refused_before_photos_are_looked_at(
    run: Run, train_command: tuple[str, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "notes.txt").write_text("mine")
    monkeypatch.setattr("fewtags.engine.planning.make_plan", lambda *_, **__: pytest.fail("looked at the data"))
    result = run(*train_command, "--out", tmp_path)
    assert result.exit_code == 1
    assert result.stderr == f"error: {tmp_path} is not empty; choose another --out.\n"
    assert [p.name for p in tmp_path.iterdir()] == ["notes.txt"]


def test_finished_run_is_neither_overwritten_nor_resumed(
    run: Run, train_command: tuple[str, ...], trained: tuple[Path, Result]
) -> None:
    out = trained[0]
    again = run(*train_command, "--out", out)
    assert again.exit_code == 1
    assert again.stderr == f"error: {out} is not empty; choose another --out.\n"
    resumed = run("resume", out)
    assert resumed.exit_code == 1
    assert "is finished" in resumed.stderr


def test_resume_of_a_finished_run_writes_its_missing_report(
    run: Run, trained: tuple[Path, Result], tmp_path: Path
) -> None:
    """As after a kill between the model and the report."""
    out = shutil.copytree(trained[0], tmp_path / "killed")
    (out / "report.html").unlink()
    (out / "curves.png").unlink()
    result = run("resume", out)
    assert result.exit_code == 0, result.stderr
    assert result.stderr.startswith(f"{out} is finished, but its report is missing; it is written now.\n")
    assert result.stdout.splitlines() == [trained[1].stdout.splitlines()[0], f"report: {out / 'report.html'}"]
    assert (out / "report.html").stat().st_size > 0
    assert (out / "curves.png").stat().st_size > 0
    assert "is finished; its model is" in run("resume", out).stderr


def test_interrupted_before_anything_was_written(
    run: Run, train_command: tuple[str, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """While views are cached; the same command then really starts."""

    def stopped(*_: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr("fewtags.engine.train_run.write_record", stopped)
        first = run(*train_command, *ONE_EPOCH, "--out", tmp_path / "run")
    assert first.exit_code == 130
    assert first.stderr.endswith("interrupted; nothing was written yet; run the same command again.\n")
    assert run(*train_command, *ONE_EPOCH, "--out", tmp_path / "run").exit_code == 0


def test_interrupted_while_the_report_is_written(
    run: Run, train_command: tuple[str, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def stopped(*_: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr("fewtags.report.build.build_report", stopped)
        first = run(*train_command, *ONE_EPOCH, "--out", tmp_path / "run")
    assert first.exit_code == 130
    resume = f"`fewtags resume {tmp_path / 'run'}`"
    assert first.stderr.endswith(f"interrupted; the model is complete; {resume} writes the missing report.\n")
    assert run("resume", tmp_path / "run").exit_code == 0
    assert (tmp_path / "run" / "report.html").exists()


def test_resume_says_what_it_could_not_look_at(
    run: Run, train_command: tuple[str, ...], dataset: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shutil.copy(dataset / "train.parquet", tmp_path / "train.parquet")
    whole = EngineRun.start

    def stopped(self: EngineRun) -> Iterator[Event]:
        yield next(whole(self))
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(EngineRun, "start", stopped)
        run("train", tmp_path / "train.parquet", *train_command[2:], *ONE_EPOCH, "--out", tmp_path / "run")
    (tmp_path / "train.parquet").unlink()
    result = run("resume", tmp_path / "run", "--cpu")
    assert result.exit_code == 0, result.stderr
    assert result.stderr.startswith(
        f"labels: {tmp_path / 'train.parquet'} no longer exists, so changes of the labels cannot be detected; the "
        f"run continues with its own copy\n{tmp_path / 'run'} has no complete checkpoint: training STARTS AGAIN with "
        "epoch 1\n"
    )


@pytest.mark.parametrize("command", ["train", "report"])
def test_a_place_that_cannot_be_written_is_noticed_first(
    run: Run,
    train_command: tuple[str, ...],
    trained: tuple[Path, Result],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    command: str,
) -> None:
    (tmp_path / "notes.txt").touch()
    monkeypatch.setattr("fewtags.engine.planning.make_plan", lambda *_, **__: pytest.fail("looked at the data"))
    monkeypatch.setattr("fewtags.report.build.load_run", lambda *_: pytest.fail("read the run"))
    words = train_command if command == "train" else ("report", str(trained[0]))
    place = tmp_path / "notes.txt" / "deep" / "out"
    result = run(*words, "--out", place)
    assert result.exit_code == 1
    assert result.stderr == (
        f"error: --out {place} cannot be written: {tmp_path / 'notes.txt'} is not a folder; give another path.\n"
    )


def test_a_report_is_no_folder(run: Run, trained: tuple[Path, Result], tmp_path: Path) -> None:
    result = run("report", trained[0], "--out", tmp_path)
    assert result.exit_code == 1
    assert result.stderr == (
        f"error: {tmp_path} is a folder; --out takes a file, for example {tmp_path / 'report.html'}.\n"
    )


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("--set", "objective.positives_per_image=4"), "positives_per_image is 4.0, but there are 3 classes."),
        (("--set", "objective.class_prior=[0.1, 0.2]"), "class_prior has 2 shares, but there are 3 classes."),
        (("--set", "train.lr=inf"), "train.lr = inf: input should be a finite number"),
        (("--seed", "4294967296"), "--seed 4294967296: input should be less than or equal to 4294967295"),
        (("--set", "augment.policy=none", "--set", "augment.min_area=0.5"), "augment.min_area = 0.5 would do nothing"),
        (("--method", "bce"), "or, where what is not named is absent, read the labels with --complete."),
    ],
)
def test_a_dry_run_refuses_what_the_run_would(
    run: Run, train_command: tuple[str, ...], words: tuple[str, ...], message: str
) -> None:
    result = run(*train_command, *words, "--dry-run")
    assert result.exit_code == 1
    assert message in result.stderr


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("--method", "expected_negativ"), "did you mean 'expected_negative'?"),
        (("--set", "train.epoch=3"), "did you mean 'train.epochs'?"),
        (("--set", "train.epochs"), "expected section.key=value"),
        (("--preset", "gpu"), "--preset gpu: input should be 'cpu', "),
        (("--lr", "0", "--set", "train.lr=-1"), "train.lr = -1: input should be greater than 0"),
        (("--method", "nothing"), "--method nothing is not a method; known: "),
    ],
)
def test_wrong_settings_say_what_was_meant(
    run: Run, train_command: tuple[str, ...], tmp_path: Path, words: tuple[str, ...], message: str
) -> None:
    result = run(*train_command, "--out", tmp_path / "run", *words)
    assert result.exit_code == 1
    assert message in result.stderr
    assert not (tmp_path / "run").exists()


def test_nothing_to_train_on(run: Run) -> None:
    result = run("train")
    assert result.exit_code == 1
    assert "`fewtags train photos/`" in result.stderr


def test_interrupted_and_resumed_run_has_the_same_weights(
    run: Run,
    train_command: tuple[str, ...],
    trained: tuple[Path, Result],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    whole = EngineRun.start
    seen: list[Event] = []

    def stopped(self: EngineRun) -> Iterator[Event]:
        for event in whole(self):
            yield event
            seen.append(event)
            if sum(isinstance(e, Saved) for e in seen) == 3:
                raise KeyboardInterrupt

    monkeypatch.setattr(EngineRun, "start", stopped)
    first = run(*train_command, "--out", tmp_path / "run")
    assert first.exit_code == 130
    assert first.stdout == ""
    assert first.stderr.endswith(
        f"interrupted; `fewtags resume {tmp_path / 'run'}` continues from the last checkpoint.\n"
    )
    again = run(*train_command, "--out", tmp_path / "run")
    assert again.stderr.endswith(f"continue the run with: fewtags resume {tmp_path / 'run'}.\n")
    second = run("resume", tmp_path / "run", "--cpu")
    assert second.exit_code == 0, second.stderr
    assert "resuming at epoch 4/6" in second.stderr
    assert second.stdout.splitlines()[0] == trained[1].stdout.splitlines()[0]
    ours, theirs = (load_file(folder / "model.safetensors") for folder in (tmp_path / "run", trained[0]))
    assert ours.keys() == theirs.keys()
    assert all(torch.equal(ours[k], theirs[k]) for k in ours)


def test_a_run_of_several_files_is_resumed_from_any_folder(
    run: Run, dataset: Path, train_command: tuple[str, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Relative paths begin where the run was started; a change of the second file is refused, and undone it is not."""
    table = load(dataset / "train.parquet")
    for name, rows in (("a.csv", range(12)), ("b.csv", range(12, 24))):
        write_csv(table.subset(rows), tmp_path / name)
    whole, saved = EngineRun.start, []

    def stopped(self: EngineRun) -> Iterator[Event]:
        for event in whole(self):
            yield event
            saved.append(isinstance(event, Saved))
            if any(saved):
                raise KeyboardInterrupt

    monkeypatch.setattr(EngineRun, "start", stopped)
    monkeypatch.chdir(tmp_path)
    command = ("train", "a.csv", "b.csv", "--images", dataset / "images", *train_command[2:])
    assert run(*command, "--set", "train.epochs=2", "--out", "run").exit_code == 130
    monkeypatch.chdir(dataset)
    labels = (tmp_path / "b.csv").read_text()
    (tmp_path / "b.csv").write_text(labels.replace("positive", "negative", 1))
    refused = run("resume", tmp_path / "run", "--cpu")
    assert refused.exit_code == 1
    assert "labels have changed" in refused.stderr
    (tmp_path / "b.csv").write_text(labels)
    resumed = run("resume", tmp_path / "run", "--cpu")
    assert resumed.exit_code == 0, resumed.stderr
    assert {*load(tmp_path / "run" / "tables" / "train.parquet").facts["source"].to_pylist()} == {"a.csv", "b.csv"}


def test_interrupted_before_the_first_checkpoint(
    run: Run, train_command: tuple[str, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = EngineRun.start

    def stopped(self: EngineRun) -> Iterator[Event]:
        yield next(whole(self))
        raise KeyboardInterrupt

    monkeypatch.setattr(EngineRun, "start", stopped)
    first = run(*train_command, *ONE_EPOCH, "--out", tmp_path / "run")
    assert first.exit_code == 130
    assert first.stderr.endswith("starts again from the first epoch, because no checkpoint was complete.\n")
    assert run("resume", tmp_path / "run", "--cpu").exit_code == 0


def test_resume_of_something_else(run: Run, tmp_path: Path) -> None:
    result = run("resume", tmp_path)
    assert result.exit_code == 1
    assert "not a run folder" in result.stderr


def test_report_of_one_run_and_of_two(run: Run, trained: tuple[Path, Result], tmp_path: Path) -> None:
    out = trained[0]
    one = run("report", out, "--out", tmp_path / "deep" / "one.html")
    assert (one.exit_code, one.stdout) == (0, f"{tmp_path / 'deep' / 'one.html'}\n"), one.stderr
    two = run("report", out, out, "--out", tmp_path / "two.html")
    assert two.exit_code == 0
    text = (tmp_path / "two.html").read_text("utf-8")
    # The same run twice differs by nothing, whatever the images.
    assert "+0.0 mAP" in text
    assert "+0.0 to +0.0" in text


def test_report_of_an_unfinished_run(run: Run, tmp_path: Path) -> None:
    result = run("report", tmp_path)
    assert result.exit_code == 1
    assert "is not a run folder" in result.stderr


def test_help_names_every_method(run: Run) -> None:
    """Those of `fewtags methods`."""
    said = run("train", "--help").stdout
    assert [method for method in METHODS if method not in said] == []
