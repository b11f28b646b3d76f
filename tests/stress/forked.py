"""Run the command line in forked children, so that torch is imported once; and a small data set for them."""

import json
import os
import random
import re
import shutil
import signal
import sys
import tempfile
import time
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("HF_HUB_OFFLINE", "1")

import torch

import fewtags.engine.train_run
import fewtags.report.build  # noqa: F401  (imported here, so that children need not)
from fewtags.cli.main import app
from fewtags.demo_set import make_scenes
from fewtags.table.storage import write_csv

torch.set_num_threads(1)
Action = Callable[[], None]
Bits = tuple[bytes, str, bytes]
PAUSE = 20.0
"""Seconds between lines about what is done so far."""
LIMIT = float(os.environ.get("FEWTAGS_STRESS_LIMIT", "180"))
"""Seconds after which a command counts as hanging; more on a machine that other work keeps busy."""


@dataclass(frozen=True)
class Result:
    """How a command ended: its exit code (negative: a signal; None: it was stopped because it hung) and its output."""

    code: int | None
    output: str

    @property
    def is_clean(self) -> bool:
        """Whether it succeeded, or ended with one error for the user."""
        errors = [line for line in self.output.splitlines() if line.startswith("error: ")]
        return self.code in (0, 1) and "Traceback" not in self.output and (self.code == 0 or len(errors) == 1)


def run(arguments: list[str], prepare: Callable[[], None] | None = None) -> Result:
    """Run a command of fewtags in a forked child, which first calls `prepare`."""
    with tempfile.TemporaryFile("w+") as output:
        sys.stdout.flush()
        if not (child := os.fork()):
            _run_child(arguments, prepare, output.fileno())
        until = time.monotonic() + LIMIT
        while (ended := os.waitpid(child, os.WNOHANG))[0] == 0 and time.monotonic() < until:
            time.sleep(0.01)
        if ended[0] == 0:
            os.kill(child, signal.SIGKILL)
            os.waitpid(child, 0)
        output.seek(0)
        text = output.read()
    if not ended[0]:
        text += f"\nstopped after {LIMIT:g} s: it hangs, or FEWTAGS_STRESS_LIMIT is too small for this machine"
    return Result(os.waitstatus_to_exitcode(ended[1]) if ended[0] else None, text)


def _run_child(arguments: list[str], prepare: Callable[[], None] | None, output: int) -> None:
    code = 70
    for number in (signal.SIGTERM, signal.SIGHUP, signal.SIGINT):
        signal.signal(number, signal.SIG_DFL)
    try:
        os.dup2(output, 1)
        os.dup2(output, 2)
        if prepare is not None:
            prepare()
        app(arguments, prog_name="fewtags")
    except SystemExit as end:
        code = end.code if isinstance(end.code, int) else 0 if end.code is None else 1
    except BaseException:
        traceback.print_exc()
    finally:
        try:
            sys.stdout.flush()
            sys.stderr.flush()
        finally:
            os._exit(code)


CHANGES = {"open", "os.rename", "os.remove", "os.mkdir", "os.rmdir", "os.truncate"}


def at_operation(
    number: int, folder: Path, action: Callable[[], None], count: Path | None = None
) -> Callable[[], None]:
    """Return a `prepare` that calls `action` once, just before file operation `number` in a folder.

    Args:
        number: from 1; 0 never.
        folder: only operations in it count.
        action: what to do.
        count: a file that gets a line for each operation (kind and path), for a run without an action.
    """

    def prepare() -> None:
        done, busy, inside = [0], [False], os.fspath(folder)

        def watch(event: str, arguments: tuple) -> None:
            if event not in CHANGES or busy[0] or not str(arguments[0]).startswith(inside):
                return
            if event == "open" and not (isinstance(arguments[2], int) and arguments[2] & (os.O_WRONLY | os.O_RDWR)):
                return
            done[0] += 1
            busy[0] = True
            if count is not None:
                with count.open("a") as file:
                    file.write(f"{event} {os.fspath(arguments[0])!s}\n")
            if done[0] == number:
                action()
            busy[0] = False

        sys.addaudithook(watch)

    return prepare


def counted(run_once: Callable[[Callable[[], None]], Result], folder: Path) -> list[str]:
    """Run a command undisturbed; return its file operations in a folder (kind and path), in their order."""
    with tempfile.TemporaryDirectory() as name:
        lines = Path(name) / "operations"
        whole = run_once(at_operation(0, folder, lambda: None, lines))
        assert whole.code == 0, f"without a fault, the command ends with {whole.code}:\n{whole.output[-3000:]}"
        return lines.read_text("utf-8").splitlines()


def distinct(operations: list[str]) -> list[int]:
    """Return the number of the first operation of each kind and path; numbers in paths do not count."""
    first: dict[str, int] = {}
    for number, operation in enumerate(operations, 1):
        first.setdefault(re.sub(r"[0-9]+", "#", operation), number)
    return [*first.values()]


def make_data(folder: Path) -> list[str]:
    """Make 30 photos of digits with labels; return the arguments of `train` that name them."""
    scenes = make_scenes(folder / "scenes", train=18, val=8, test=4, size=48, seed=0)
    for name, table in (("train", scenes.train), ("val", scenes.val)):
        write_csv(table, folder / f"{name}.csv")
    return [str(folder / "train.csv"), "--images", str(scenes.train.root), "--val", str(folder / "val.csv"), "--cpu"]


SMALL = (
    ("model.backbone", "test_resnet"),
    ("model.weights", "none"),
    ("augment.size", "48"),
    ("train.workers", "0"),
    ("train.batch_size", "6"),
)
STAGES = (
    'train.stages=[{name="warmup",epochs=1,lr=1e-2,trainable="%s",warmup=true},'
    '{name="main",epochs=2,lr=1e-2,trainable="%s"}]'
)
KINDS = {
    "finetune": ["--preset", "finetune", "--set", STAGES % ("all", "all"), "--set", "train.checkpoint_every_steps=1"],
    "views": ["--preset", "views", "--set", STAGES % ("head", "head"), "--set", "train.cached_views=2"],
    "heatmaps": [
        *("--preset", "finetune", "--set", STAGES % ("all", "all"), "--set", "objective.name=expected_negative"),
        *(
            "--set",
            "objective.cl_weight=0.1",
            "--set",
            "objective.scl_weight=0.3",
            "--set",
            "objective.heatmap_storage=disk",
        ),
    ],
    "search": [
        *("--preset", "views", "--set", STAGES % ("head", "head"), "--set", "train.cached_views=2"),
        *("--set", 'search.methods=["expected_negative","assume_negative"]'),
    ],
}
"""Kinds of training runs: what they add to `fewtags train`."""
PRETRAINING = ("mls", "moco")
"""Kinds of pretraining runs, by method."""
ALL_KINDS = (*KINDS, *PRETRAINING)


def train(data: list[str], kind: str, out: Path) -> list[str]:
    """Return the arguments of a small run of `train` or `pretrain`."""
    small = SMALL
    if kind in PRETRAINING:
        small = (*SMALL, ("train.epochs", "2"), ("objective.queue_size", "12"), ("train.checkpoint_every_steps", "1"))
    settings = [word for key, value in small for word in ("--set", f"{key}={value}")]
    if kind in PRETRAINING:
        return ["pretrain", *data[:3], "--cpu", "--method", kind, "--out", str(out), *settings]
    return ["train", *data, "--out", str(out), *settings, *KINDS[kind]]


TIMES = ("seconds", "cpu_seconds")


def result_of(out: Path) -> Bits:
    """Return what must have the same bits: the model or encoder, the metrics without times, and the logits."""
    lines = [json.loads(line) for line in (out / "metrics.jsonl").read_text("utf-8").splitlines()]
    metrics = json.dumps([{k: v for k, v in line.items() if k not in TIMES} for line in lines])
    logits = out / "evaluation" / "val.npy"
    return model_of(out).read_bytes(), metrics, logits.read_bytes() if logits.exists() else b""


def model_of(out: Path) -> Path:
    """Return where the result of a run is, or will be."""
    return out / ("encoder.safetensors" if (out / "pretrain.toml").exists() else "model.safetensors")


def has_begun(out: Path) -> bool:
    """Whether `resume` applies to a folder."""
    return (out / "run.toml").exists() or (out / "pretrain.toml").exists()


def leftovers(out: Path) -> list[str]:
    """Return temporary files in a run folder."""
    return sorted(path.name for path in out.rglob(".*") if path.name != ".lock")


@dataclass
class Tally:
    """Counts of outcomes; a failure is printed as it comes."""

    name: str
    done: int = 0
    failed: int = 0
    shown: float = 0.0

    def check(self, is_right: bool, what: str, output: str = "") -> None:
        """Count one case; show what went wrong."""
        self.done += 1
        if not is_right:
            self.failed += 1
            print(f"FAILED {self.name}: {what}\n{output[-3000:]}", flush=True)
        if time.monotonic() > self.shown + PAUSE:
            self.shown = time.monotonic()
            print(f"{self.name}: {self.done:,} so far, {self.failed:,} failed", flush=True)

    def end(self) -> None:
        """Print the figure and end the script."""
        print(f"{self.name}: {self.done:,} tried, {self.failed:,} failed", flush=True)
        sys.exit(bool(self.failed))


def watched(main: Callable[[], None]) -> None:
    """Call the `main` of a script; print whatever ends it early, a signal too, as a failure."""

    def stop(number: int, _: object) -> None:
        print(f"FAILED: stopped from outside by {signal.Signals(number).name}", flush=True)
        sys.exit(1)

    for number in (signal.SIGTERM, signal.SIGHUP, signal.SIGINT):
        signal.signal(number, stop)
    print(f"{Path(sys.argv[0]).name} {' '.join(sys.argv[1:])}".rstrip() + " begins", flush=True)
    try:
        main()
    except Exception:
        print(f"FAILED: the script itself ended\n{traceback.format_exc()}", flush=True)
        sys.exit(1)


def count_argument(default: int) -> tuple[int, random.Random]:
    """Return the count and the random generator of a script: `script.py [COUNT [SEED]]`."""
    count = int(sys.argv[1]) if len(sys.argv) > 1 else default
    return count, random.Random(int(sys.argv[2]) if len(sys.argv) > 2 else 0)


def damage(path: Path, rng: random.Random) -> str:
    """Damage a file in one of the ways of disks and editors; return which."""
    content = bytearray(path.read_bytes())
    kind = rng.choice(["empty", "half", "noise", "bit", "zeros", "gone"])
    if kind == "gone":
        path.unlink()
        return kind
    at = rng.randrange(len(content)) if content else 0
    if kind == "bit" and content:
        content[at] ^= 1 << rng.randrange(8)
    elif kind == "zeros":
        content[at : at + 64] = bytes(len(content[at : at + 64]))
    changed = {"empty": b"", "half": content[: len(content) // 2], "noise": rng.randbytes(200)}.get(kind, content)
    path.write_bytes(bytes(changed))
    return f"{kind} at {at}"


def fresh(path: Path) -> Path:
    """Return a path at which nothing exists."""
    shutil.rmtree(path, ignore_errors=True)
    return path
