"""Worker processes: small shared memory, killed workers, scripts without a main guard."""

import multiprocessing
import os
import re
import shutil
import signal
import subprocess
import sys
import types
from pathlib import Path

import pytest
import torch
from forks import forked
from torch.utils.data import Dataset

from fewtags.errors import WorkerError
from fewtags.photos import worker_failures
from fewtags.photos import workers as module
from fewtags.photos.worker_failures import worker_errors, worker_failure
from fewtags.photos.workers import WorkerLoader, Workers, shared_memory_is_short, workers_can_start


class Numbers(Dataset):
    """The sample of a key is a tensor of one million bytes."""

    def __getitem__(self, key):
        return torch.full((1_000_000,), key, dtype=torch.uint8)


class Deadly(Dataset):
    """The worker is killed at key 3."""

    def __getitem__(self, key):
        if key == 3:
            os.kill(os.getpid(), signal.SIGKILL)
        return torch.zeros(1)


KEYS = [[0, 1], [2, 3], [4]]
HERE = Path(__file__).parent
# Of processes that import this file.
PATHS = {
    "PYTHONPATH": os.pathsep.join([str(HERE.with_name("support")), os.environ.get("PYTHONPATH", "")]).rstrip(os.pathsep)
}


@pytest.mark.parametrize(("count", "free", "short"), [(0, 0, False), (1, 2**30, False), (8, 2**26, True)])
def test_the_need_is_compared_with_what_is_free(monkeypatch, count, free, short):
    monkeypatch.setattr(module, "free_shared_memory", lambda: free)
    assert shared_memory_is_short(Workers(count), 10_000_000) is short


def test_systems_without_a_limit(monkeypatch, tmp_path):
    monkeypatch.setattr(worker_failures, "SHARED_MEMORY", tmp_path / "none")
    assert not shared_memory_is_short(Workers(100))


def test_more_workers_than_cores_are_the_choice_of_the_user(monkeypatch):
    """torch would warn twice, and warnings are errors here."""
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {0})
    loader = WorkerLoader(Numbers(), KEYS, torch.stack, Workers(2))
    assert [len(batch) for batch in loader] == [2, 2, 1]


@pytest.mark.parametrize("free", [0, 2**40])
def test_batches_are_the_same_through_pipes(monkeypatch, free):
    monkeypatch.setattr(module, "free_shared_memory", lambda: free)
    loader = WorkerLoader(Numbers(), KEYS, torch.stack, Workers(2), persistent=True)
    for _ in range(2):
        batches = list(loader)
        assert [batch[:, 0].tolist() for batch in batches] == KEYS
        assert all(batch.shape == (len(keys), 1_000_000) for batch, keys in zip(batches, KEYS, strict=True))
        assert all(batch.is_shared() is (free > 0) for batch in batches)


@pytest.mark.slow
@pytest.mark.skipif(
    sys.platform != "linux" or os.geteuid() != 0 or shutil.which("unshare") is None, reason="needs root on Linux"
)
def test_a_small_shared_memory_as_in_containers():
    """1 MiB of shared memory and batches of 2 MB: torch would lose them and wait forever."""
    script = (
        "import sys; sys.path.insert(0, sys.argv[1]); import test_workers as t, torch\n"
        "loader = t.WorkerLoader(t.Numbers(), [[n, n] for n in range(20)], torch.stack, t.Workers(2))\n"
        "print(sum(int(batch[0, 0]) for batch in loader))"
    )
    command = [sys.executable, "-c", script, str(Path(__file__).parent)]
    shell = 'mount -t tmpfs -o size=1m tmpfs /dev/shm && exec "$@"'
    result = subprocess.run(
        ["unshare", "-m", "sh", "-c", shell, "sh", *command],
        env=os.environ | PATHS,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    if "unshare" in result.stderr or "mount" in result.stderr:
        pytest.skip("mounting is not allowed here")
    assert (result.returncode, result.stdout) == (0, "190\n"), result.stderr


def test_a_killed_worker_is_one_sentence():
    """In a process of its own: torch raises the error in a signal handler, in whatever the process does, pytest too."""

    def read():
        try:
            list(WorkerLoader(Deadly(), KEYS, torch.stack, Workers(1)))
        except WorkerError as error:
            print(error)

    done = forked(read)
    assert re.match(r"a process that reads photos \(pid \d+\) was killed, most likely because m", done.out), done.err


@pytest.mark.parametrize(
    ("message", "reason"),
    [
        ("DataLoader worker (pid 12) is killed by signal: Killed. ", "a process that reads photos (pid 12) was"),
        (
            "DataLoader worker (pid(s) 12, 13) exited unexpectedly",
            "a process that reads photos (pid 12, 13) was killed",
        ),
        ("DataLoader timed out after 600 seconds", "no batch of photos arrived for 10 minutes. Is the disk of the"),
        ("unable to allocate shared memory(shm) for file </torch_1>: No space left on device (28)", "shared memory ("),
        ("CUDA error: out of memory", None),
    ],
)
def test_what_torch_says_about_workers(message, reason):
    found = worker_failure(message)
    assert found is None if reason is None else found.startswith(reason)
    expected = RuntimeError if reason is None else WorkerError
    with pytest.raises(expected), worker_errors():
        raise RuntimeError(message)


GUARDED = 'import fewtags\nif __name__ == "__main__":\n    fewtags.train()\n'


@pytest.mark.parametrize(
    ("text", "method", "expected"),
    [
        ("import fewtags\nfewtags.train()\n", "fork", True),
        ("import fewtags\nfewtags.train()\n", "spawn", False),
        ("import fewtags\nif True:\n    fewtags.train()\n", "forkserver", False),
        (GUARDED, "spawn", True),
        (GUARDED.replace('__name__ == "__main__"', '"__main__" == __name__'), "forkserver", True),
        (None, "spawn", False),  # a script from standard input: "<stdin>" cannot be imported
    ],
)
def test_scripts_that_workers_would_run_again(monkeypatch, tmp_path, text, method, expected):
    main = types.ModuleType("__main__")
    main.__file__ = "<stdin>"
    if text is not None:
        main.__file__ = str(tmp_path / "script.py")
        Path(main.__file__).write_text(text)
    monkeypatch.setitem(sys.modules, "__main__", main)
    monkeypatch.setattr(multiprocessing, "get_start_method", lambda: method)
    assert workers_can_start() is expected
    if not expected:
        with pytest.warns(UserWarning, match=r'^photos are read without worker processes.* below `if __name__ == "__m'):
            assert len(list(WorkerLoader(Numbers(), KEYS, torch.stack, Workers(2)))) == 3


@pytest.mark.parametrize("file", [None, "spec"])
def test_interactive_sessions_and_modules_can_start_workers(monkeypatch, file):
    main = types.ModuleType("__main__")
    if file:
        main.__file__, main.__spec__ = "nowhere.py", sys.modules["os"].__spec__
    monkeypatch.setitem(sys.modules, "__main__", main)
    monkeypatch.setattr(multiprocessing, "get_start_method", lambda: "spawn")
    assert workers_can_start()


@pytest.mark.slow
@pytest.mark.parametrize(("method", "guarded"), [("spawn", True), ("forkserver", False)])
def test_a_script_pasted_from_the_readme(tmp_path, method, guarded):
    """Batches come, whether or not the script has a main guard; without one, a sentence says why they are slower."""
    lines = [
        f"loader = test_workers.WorkerLoader(test_workers.Numbers(), {KEYS}, torch.stack, test_workers.Workers(1))",
        "print([batch[:, 0].tolist() for batch in loader])",
    ]
    body = "\n".join(("    " if guarded else "") + line for line in lines)
    script = tmp_path / "script.py"
    script.write_text(
        f"import multiprocessing, sys\nsys.path.insert(0, {str(Path(__file__).parent)!r})\n"
        f"import torch, test_workers\nmultiprocessing.set_start_method({method!r}, force=True)\n"
        + ('if __name__ == "__main__":\n' if guarded else "")
        + body
    )
    result = subprocess.run(
        [sys.executable, str(script)],
        env=os.environ | PATHS,
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )
    assert (result.returncode, result.stdout) == (0, f"{KEYS}\n"), result.stderr
    assert ("without worker processes" in result.stderr) is not guarded
