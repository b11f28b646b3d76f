"""One process at a time works in a run folder."""

import json
import os
import re
import socket
import subprocess
import sys
import textwrap

import pytest

from fewtags.engine.run_lock import LOCK_FILE, locked
from fewtags.engine.runfolder import TRAINING, RunFolder, refuse_used_folder
from fewtags.errors import CheckpointError

HOLD = """
    import sys, time
    from pathlib import Path
    from fewtags.engine.run_lock import locked

    with locked(Path(sys.argv[1])):
        print("locked", flush=True)
        time.sleep(100)
"""


@pytest.fixture
def other(tmp_path):
    """Another process that has the folder locked."""
    command = [sys.executable, "-c", textwrap.dedent(HOLD), str(tmp_path)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout.readline() == "locked\n"
        yield process
        process.kill()


def test_the_error_says_who_has_it(tmp_path, other):
    with pytest.raises(CheckpointError) as error, locked(tmp_path):
        pass
    assert re.fullmatch(
        rf"{re.escape(str(tmp_path))} is in use: process {other.pid} on {re.escape(socket.gethostname())} has been "
        r"working in it since \d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\+00:00\. Wait until that process ends, or stop it; its "
        r"work is not lost\.",
        str(error.value),
    )
    assert (tmp_path / LOCK_FILE).exists()


def test_the_lock_of_a_killed_process_is_taken_over(tmp_path, other):
    other.kill()
    other.wait()
    assert (tmp_path / LOCK_FILE).exists()
    with locked(tmp_path):
        assert json.loads((tmp_path / LOCK_FILE).read_text())["pid"] == os.getpid()
    assert not (tmp_path / LOCK_FILE).exists()


def test_forked_children_do_not_keep_the_lock(tmp_path):
    """Loader workers outlive a killed process for a few seconds."""
    code = textwrap.dedent("""
        import os, signal, sys, time
        from pathlib import Path
        from fewtags.engine.run_lock import locked

        with locked(Path(sys.argv[1])):
            if not (child := os.fork()):
                time.sleep(100)
                os._exit(0)
            print(child, flush=True)
            os.kill(os.getpid(), signal.SIGKILL)
    """)
    command = [sys.executable, "-c", code, str(tmp_path)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        child = int(process.stdout.readline())
        process.wait()
        with locked(tmp_path):
            pass
        os.kill(child, 9)


class Alone:
    is_main_process, num_processes = True, 1

    def wait_for_everyone(self):
        pass


@pytest.mark.parametrize("action", ["start", "resume"])
def test_a_run_in_use_is_neither_started_nor_resumed(tmp_path, other, action):
    """A folder that only has the lock of a run that is about to begin counts as empty."""
    refuse_used_folder(tmp_path)
    folder = RunFolder(tmp_path, TRAINING)
    with pytest.raises(CheckpointError, match=f"is in use: process {other.pid}"):
        [*getattr(folder, action)(lambda resume: iter(["event"]), {}, Alone())]
