"""`fewtags review`: what it serves, and what it refuses before that."""

import shutil
import subprocess
import sys

import pytest
from typer.testing import CliRunner

from fewtags.cli.main import app


def call(*arguments):
    return CliRunner().invoke(app, ["review", *map(str, arguments)])


@pytest.fixture
def served(monkeypatch):
    """What the command would serve: the keys of its photos."""
    seen = []

    def serve(review, bound, *, ready):
        bound.close()
        seen.append(sorted(review.table.images.to_pylist()))

    import fewtags.review.serve as module

    class NoScoring:
        def __init__(self, *_, **__):
            self.progress = None

        def stop(self):
            pass

    monkeypatch.setattr(module, "serve", serve)
    monkeypatch.setattr(sys.modules["fewtags.review.review"], "Scoring", NoScoring)
    return seen


def test_the_training_photos_by_default(run, served):
    result = call(run, "--cpu")
    assert result.exit_code == 0, (result.stderr, result.exception)
    assert "?token=" in result.stdout
    assert len(served[0]) == 24


def test_photos_and_labels(run, trained, served, tmp_path):
    shutil.copytree(trained / "scenes" / "images" / "val", tmp_path / "new")
    assert call(run, "--photos", tmp_path / "new", "--cpu").exit_code == 0
    labels = (trained / "val.csv", "--images", trained / "scenes" / "images")
    assert call(run, *labels, "--cpu").exit_code == 0
    assert [len(keys) for keys in served] == [12, 12]


def test_a_host_is_warned_about(run, served):
    assert "connection is not encrypted" in call(run, "--host", "0.0.0.0", "--cpu").stderr


OWNER = """
import sys
from pathlib import Path
from fewtags.engine.run_lock import locked

with locked(Path(sys.argv[1])):
    print("locked", flush=True)
    sys.stdin.read()
"""


def test_a_second_server_is_refused(run, served):
    with subprocess.Popen(
        [sys.executable, "-c", OWNER, run / "review"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as first:
        assert first.stdout.readline() == "locked\n"
        result = call(run, "--cpu")
        assert result.exit_code == 1
        said = " ".join(result.stderr.split())
        assert f"review is in use: process {first.pid} on " in said
        assert "Several people can answer at once: open the address that it printed." in said
        assert served == []
        first.communicate("")
    assert call(run, "--cpu").exit_code == 0


def test_refused(run, trained, served, tmp_path):
    new = ("--photos", trained / "scenes")
    for arguments, error in (
        ((run, trained / "val.csv", *new), "--photos is for photos without labels, instead of label files"),
        ((run, "--images", trained), "--images, --complete, --covers and --set are for DATA"),
        ((run, "--order", "gess"), "'gess' is not an order"),
        ((tmp_path / "nothing",), "nothing does not exist"),
        ((run, "--host", "203.0.113.1"), "--host 203.0.113.1 cannot be used"),
    ):
        result = call(*arguments, "--cpu")
        assert (result.exit_code, error in result.stderr) == (1, True), (arguments, result.stderr, result.exception)
    assert served == []
    (run / "tables" / "train.parquet").unlink()
    assert "has no record of its training photos" in call(run, "--cpu").stderr
