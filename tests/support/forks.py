"""Run something in a forked process: it has its own folder, environment and modules, and needs no import of torch."""

import os
import sys
import tempfile
import traceback
import warnings
from dataclasses import dataclass
from pathlib import Path

from fewtags.cli.main import app


@dataclass(frozen=True)
class Ended:
    """How a process ended: its exit code, or minus the signal that killed it; what it printed."""

    code: int
    out: str
    err: str


def forked(function, folder="."):
    """Call a function in a forked process, in a folder, which is first on `sys.path` as for `python -c`."""
    with tempfile.TemporaryFile("w+") as out, tempfile.TemporaryFile("w+") as err:
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", message=".*multi-threaded.*fork", category=DeprecationWarning)
            child = os.fork()
        if not child:
            _call(function, Path(folder), out.fileno(), err.fileno())
        code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        out.seek(0)
        err.seek(0)
        return Ended(code, out.read(), err.read())


def command(*arguments, folder=".", before=lambda: None):
    """Run the command line in a forked process, after a call of `before`."""

    def run():
        before()
        app([str(argument) for argument in arguments], prog_name="fewtags")

    return forked(run, folder)


def _call(function, folder, out, err):
    code = 1
    try:
        os.dup2(out, 1)
        os.dup2(err, 2)
        sys.stdout, sys.stderr = (os.fdopen(os.dup(n), "w", buffering=1) for n in (1, 2))
        os.chdir(folder)
        sys.path.insert(0, "")
        function()
        code = 0
    except SystemExit as end:
        code = end.code if isinstance(end.code, int) else int(end.code is not None)
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)  # without the parent's exit handlers
