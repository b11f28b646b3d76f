"""`fewtags bench`: run the protocol of a paper, and compare with its published numbers."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from fewtags.cli.options import Cpu
from fewtags.cli.progress import echo, say
from fewtags.errors import ConfigError
from fewtags.files import refuse_folder, write_text
from fewtags.text import counted

if TYPE_CHECKING:
    from collections.abc import Sequence

    from fewtags.bench.grid import Message
    from fewtags.bench.protocol import Job, Protocol

EVERY = 30.0
"""Seconds between lines about epochs."""


def bench(
    protocol: Annotated[str | None, typer.Argument(help="A protocol of --list, or a TOML file of your own.")] = None,
    data: Annotated[
        Path | None, typer.Option(help="Folder with the labels and photos in their published layout.")
    ] = None,
    out: Annotated[
        Path | None, typer.Option(help="Folder for runs, results.jsonl, tables.md, tables.html and figures/.")
    ] = None,
    methods: Annotated[str | None, typer.Option(help="Rows, as an,en* (wildcards * and ?); default: all.")] = None,
    sets: Annotated[str | None, typer.Option(help="Data sets, as voc12,coco14; default: all.")] = None,
    known: Annotated[
        str | None,
        typer.Option(
            help="Conditions (known labels, or values of what a figure varies), as single,40 or 'SP *'; default: all."
        ),
    ] = None,
    seeds: Annotated[str | None, typer.Option(help="Seeds, as 0-2 or 0,3; default: those of the protocol.")] = None,
    jobs: Annotated[int, typer.Option(min=1, help="Processes; each takes the next GPU.")] = 1,
    set_: Annotated[
        list[str] | None,
        typer.Option(
            "--set",
            metavar="KEY=VALUE",
            help="Setting of all runs, e.g. train.epochs=2, or a key of the protocol, e.g. sets.cub.test.images=CUB.",
        ),
    ] = None,
    show_list: Annotated[bool, typer.Option("--list", help="Show the protocols.")] = False,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Print the runs and which are done; train nothing.")
    ] = False,
    cpu: Cpu = False,
) -> None:
    """Run a paper's table or figure: its data, methods, settings and seeds, beside the published numbers.

    The same command continues where it was interrupted, and several of them can share one folder. Validation chooses
    the settings and the epoch that the paper searches. docs/paper_protocols.md and docs/figures.md describe them all.

    \b
    Examples:
      fewtags bench --list
      fewtags bench scl_table1 --data /data --sets voc12 --methods an,en_scl --seeds 0-2 --out results/table1
      fewtags bench scl_table1 --data /data --out trial --set model.backbone=resnet18 --set train.epochs=2 --dry-run
    """  # noqa: D301
    from fewtags.bench.protocol import read_protocol, shipped

    if show_list:
        echo("\n".join(f"{name:<22} {title}" for name, title in shipped().items()))
        return
    if protocol is None:
        raise ConfigError("name a protocol; `fewtags bench --list` shows them all.")
    read = read_protocol(protocol, set_ or [])
    if data is None:
        wanted = "\n  ".join(f"{own.title}: {own.get}" for own in read.data.values())
        raise ConfigError(f"--data is missing: the folder with the files of {read.name}.\n  {wanted}")
    from fewtags.bench.data import refuse_missing_files
    from fewtags.bench.grid import Choice, choose_jobs, read_results, run_grid, write_results
    from fewtags.bench.run import check_settings

    check_settings(read)
    chosen = choose_jobs(read, Choice(_words(methods), _words(sets), _words(known), seeds))
    refuse_missing_files(read, [name for name in read.data if any(job.set_name == name for job in chosen)], data)
    done = {} if out is None else read_results(out, read, chosen)
    if dry_run:
        echo("\n".join(f"{'done' if job in done else 'to do'}  {job}" for job in chosen))
        say(f"{counted(len(chosen), 'run')}, {len(done):,} done")
        return
    if out is None:
        raise ConfigError("--out is missing: a folder for the runs and the tables.")
    refuse_folder(out)
    watched = _Watched(read, chosen, len(done))
    say(f"{read.title}: {counted(len(chosen), 'run')}, {len(done):,} done")
    try:
        run_grid(read, chosen, data, out, watched.tell, processes=jobs, cpu=cpu)
    finally:
        if (out / "runs").exists():
            write_results(out)
    _write_tables(read, out)
    if watched.failed:
        raise ConfigError(watched.summary())


def _words(given: str | None) -> list[str] | None:
    return None if given is None else [word.strip() for word in given.split(",") if word.strip()]


def _write_tables(protocol: Protocol, out: Path) -> None:
    """Write the tables and figures of all finished runs, and print the tables."""
    from fewtags.bench.grid import all_results
    from fewtags.bench.tables import make_tables, markdown, page

    found = all_results(out, protocol)
    tables = make_tables(protocol, found)
    text = markdown(tables)
    write_text(out / "tables.md", text)
    write_text(out / "tables.html", page(tables))
    echo(text.rstrip())
    files = [out / name for name in ("results.jsonl", "tables.md", "tables.html")]
    if protocol.figures:
        from fewtags.bench.figures import make_figures, write_figures

        files += write_figures(out / "figures", protocol, make_figures(protocol, found))
    say(", ".join(map(str, files)))


class _Watched:
    """Reports what happens on stderr, with the time that is left."""

    def __init__(self, protocol: Protocol, jobs: Sequence[Job], done: int) -> None:
        self.protocol, self.total, self.done, self.began = protocol, len(jobs), done, time.perf_counter()
        self.here = 0
        self.failed: dict[str, list[Job]] = {}
        self._shares: dict[Job, float] = {}
        self._said = time.perf_counter()

    def tell(self, message: Message) -> None:
        """Report one message."""
        now = time.perf_counter()
        self._shares[message.job] = message.share
        if message.what == "epoch":
            if now - self._said >= EVERY:
                self._said = now
                say(f"{message.job}: {message.text}{self._left(now)}")
        elif message.what == "done":
            self.done, self.here, self._said = self.done + 1, self.here + 1, now
            say(f"{self.done}/{self.total} {message.job}{self._result(message.text)}{self._left(now)}")
        elif message.what == "busy":
            say(f"{message.job}: another driver does this run")
        else:
            self.failed.setdefault(message.text, []).append(message.job)
            if len(self.failed[message.text]) == 1:
                say(f"failed: {message.job}: {message.text}")

    def _result(self, text: str) -> str:
        found = json.loads(text) or {}
        shown = [f"validation mAP {found['val']:.1f}"] if found.get("val") is not None else []
        shown += [f"test mAP {found['mAP']:.1f}"] if found.get("mAP") is not None else []
        if self.protocol.tasks:
            shown = [f"{name} {found[name]:.1f}" for name in self.protocol.shown or () if found.get(name) is not None]
        return f": {', '.join(shown)}" if shown else ""

    def _left(self, now: float) -> str:
        """Describe the time that is left, from the shares of runs that were done here."""
        worked = sum(self._shares.values())
        left = self.total - self.done - sum(share for share in self._shares.values() if 0 < share < 1)
        if not worked or left <= 0:
            return ""
        return f"; about {duration((now - self.began) * left / worked)} left"

    def summary(self) -> str:
        """Describe all failures."""
        lines = [f"{counted(len(jobs), 'run')} ({jobs[0]}): {text}" for text, jobs in self.failed.items()]
        return "\n  ".join(["these runs failed; the same command tries them again.", *lines])


def duration(seconds: float) -> str:
    """Describe a time.

    >>> duration(50), duration(600), duration(40000), duration(900000)
    ('50 s', '10 min', '11 h', '10 days')
    """
    for unit, size, most in (("s", 1, 90), ("min", 60, 5400), ("h", 3600, 172800)):
        if seconds < most:
            return f"{seconds / size:.0f} {unit}"
    return f"{seconds / 86400:.0f} days"
