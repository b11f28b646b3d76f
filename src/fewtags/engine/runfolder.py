"""Run folders of `train` and `pretrain`: the record of a run, what must not change before a resume, and recovery hints.

A folder is a run from the moment its settings file exists, which is written last. The run is finished when its result
file (the model or the encoder) exists.
"""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Generic, TypeVar, final

import numpy as np
from numpy.typing import NDArray
from pydantic import BaseModel, ValidationError

from fewtags.config.changes import refuse_edited, settings_tree
from fewtags.config.parse import dump_toml, load_toml
from fewtags.config.sections import NO_FILES
from fewtags.engine.checkpoint import BAD_ARRAY, CheckpointFolder, write_array
from fewtags.engine.photo_record import ANY_SIZE, changed_contents, photo_contents, photo_sizes
from fewtags.engine.run_lock import LOCK_FILE, locked
from fewtags.errors import (
    CheckpointError,
    ConfigError,
    DataError,
    DiskError,
    FewtagsError,
    TrainingError,
    WorkerError,
)
from fewtags.files import disk_error, refuse_folder, remove_temporary_files, write_text
from fewtags.photos.worker_failures import worker_errors
from fewtags.table.content import photo_paths
from fewtags.table.storage import load, save
from fewtags.table.table import LabelTable
from fewtags.text import flag

if TYPE_CHECKING:
    from accelerate import Accelerator

    from fewtags.engine.events import Event
    from fewtags.nets.weights import Origin

SettingsT = TypeVar("SettingsT", bound=BaseModel)
ResolvedT = TypeVar("ResolvedT", bound=BaseModel)
Tables = Mapping[str, LabelTable]

IN_MEMORY = "(tables in memory)"
"""The setting `data.train` of a run on tables that were not read from a file."""
MODEL_FILE, ENCODER_FILE = "model.safetensors", "encoder.safetensors"
REPORT_FILE, METRICS_FILE = "report.html", "metrics.jsonl"
RECORD_FILES = (
    *("state", "tables", "check.json", "excluded.csv", "vocabulary.json", "teacher.npy"),
    *("environment.json", "resolved.toml"),
)
"""What a run and its objective may write before the settings file."""
LOST_PROCESS = ("gloo/transport", "Connection closed by peer", "Connection reset by peer", "ncclRemoteError")
"""Words of the errors of torch when another process of a run has ended."""
SEARCH_FILE = "search.json"
"""What a run tried before training."""
TRUTH = "truth"
"""Name of the table of complete labels; its photos are those of another table."""


@final
@dataclass(frozen=True)
class RunKind:
    """What distinguishes the folders of training and pretraining runs.

    Attributes:
        settings: name of the settings file.
        result: name of the file that a finished run has; messages call it `noun`.
        start: the command that starts such a run.
        tables: names of the label tables that every run has.
    """

    settings: str
    result: str
    noun: str
    start: str
    tables: tuple[str, ...]


TRAINING = RunKind("run.toml", MODEL_FILE, "model", "fewtags train DATA --out FOLDER", ("train", "val"))
PRETRAINING = RunKind("pretrain.toml", ENCODER_FILE, "encoder", "fewtags pretrain PHOTOS --out FOLDER", ("train",))


@final
@dataclass(frozen=True)
class Record(Generic[SettingsT, ResolvedT]):
    """What a run recorded when it began; `environment` has versions, fingerprints, weights, method and notes."""

    settings: SettingsT
    resolved: ResolvedT
    tables: Tables
    environment: dict[str, Any]

    @property
    def working_directory(self) -> Path:
        """The folder that the run was started in; relative paths in its settings begin there."""
        return Path(self.environment["working_directory"])

    def locate_weights(self, weights: str) -> str:
        """Return the setting `weights`; a file gets its absolute path."""
        return weights if weights in NO_FILES else str(self.working_directory / weights)

    def locate_cache(self, folder: str) -> str:
        """Return the absolute path of the setting `photo_cache`; "" for no cache."""
        return folder and str(self.working_directory / folder)


@final
@dataclass(frozen=True)
class RunFolder:
    """The folder of one run, of the kind `TRAINING` or `PRETRAINING`."""

    path: Path
    kind: RunKind

    @property
    def has_begun(self) -> bool:
        """Whether the record of the run is complete."""
        return (self.path / self.kind.settings).exists()

    @property
    def is_finished(self) -> bool:
        """Whether the run has its result."""
        return (self.path / self.kind.result).exists()

    @property
    def checkpoints(self) -> CheckpointFolder:
        """The checkpoints of the run."""
        return CheckpointFolder(self.path / "checkpoints")

    def what_next(self) -> str:
        """Describe how an interrupted run can be continued."""
        resume = f"`fewtags resume {self.path}`"
        if self.is_finished:
            if (self.path / REPORT_FILE).exists():
                return "the run is complete"
            return f"the {self.kind.noun} is complete; {resume} writes the missing report"
        if not self.has_begun:
            return "nothing was written yet; run the same command again"
        if (self.checkpoints.root / "LAST").exists():
            return f"{resume} continues from the last checkpoint"
        if (self.path / SEARCH_FILE).exists():
            return f"{resume} continues after what was tried ({SEARCH_FILE})"
        return f"{resume} starts again from the first epoch, because no checkpoint was complete"

    # --- start and resume

    def start(
        self, train: Callable[[bool], Iterator[Event]], tables: Tables, accelerator: Accelerator
    ) -> Iterator[Event]:
        """Train in a new folder; if the record does not get complete, leave the folder as it was.

        `train` yields the events of training; its argument is whether to resume. `tables` are those with photos, by
        split.

        Raises:
            ConfigError: the folder is not empty, or cannot be made.
            DataError: a photo cannot be read.
        """
        refuse_used_folder(self.path)  # by every process: if one stopped alone, the others would wait for it
        accelerator.wait_for_everyone()
        existed = self.path.exists()
        try:
            with self._recovery_hint(tables), self._locked(accelerator):
                try:
                    yield from train(False)
                finally:
                    if accelerator.is_main_process and not self.has_begun:
                        self.remove_record()
        finally:
            if accelerator.is_main_process and not existed and self.path.exists() and not any(self.path.iterdir()):
                self.path.rmdir()

    def resume(
        self, train: Callable[[bool], Iterator[Event]], tables: Tables, accelerator: Accelerator
    ) -> Iterator[Event]:
        """Continue from the last checkpoint, or from the first epoch without one; arguments as for `start`.

        The result has the same bits as that of an uninterrupted run.

        Raises:
            DataError: a photo cannot be read.
        """
        with self._recovery_hint(tables), self._locked(accelerator):
            if self.is_finished:
                raise self._finished()  # by the process that had the lock
            if accelerator.is_main_process:
                remove_temporary_files(self.path)
            accelerator.wait_for_everyone()
            yield from train(True)

    @contextmanager
    def _locked(self, accelerator: Accelerator) -> Iterator[None]:
        """Lock the folder, which is made if it does not exist, for all processes of this run together."""
        problem: list[FewtagsError | None] = [None]
        with ExitStack() as lock:
            if accelerator.is_main_process:
                try:
                    self.path.mkdir(parents=True, exist_ok=True)
                    lock.enter_context(locked(self.path))
                except FewtagsError as error:
                    problem = [error]
            if accelerator.num_processes > 1:
                from accelerate.utils import broadcast_object_list

                broadcast_object_list(problem)
            if problem[0] is not None:
                raise problem[0]
            yield

    def remove_record(self) -> None:
        """Remove the files of a run that never began."""
        for name in RECORD_FILES:
            path = self.path / name
            if path.is_dir():
                shutil.rmtree(path, ignore_errors=True)
            else:
                with suppress(OSError):  # the disk may be read-only
                    path.unlink()

    def _finished(self) -> CheckpointError:
        from fewtags.engine.tensor_files import read_metadata  # imports torch

        result = self.path / self.kind.result
        try:
            read_metadata(result)
        except CheckpointError as error:
            return CheckpointError(
                f"{self.path} is finished, but its {self.kind.noun} is damaged: {error} Delete {result} and run "
                f"`fewtags resume {self.path}`, which makes it again from the last checkpoint."
            )
        return CheckpointError(f"{self.path} is finished; its {self.kind.noun} is {result}.")

    @contextmanager
    def _recovery_hint(self, tables: Tables) -> Iterator[None]:
        """Add what the user can do to the error of an unreadable photo, of a killed worker or of the disk."""
        try:
            with worker_errors():
                yield
        except WorkerError as error:
            then = f"continue with `fewtags resume {self.path}`" if self.has_begun else "run the same command again"
            raise WorkerError(f"{error} Then {then}.") from None
        except DiskError as error:
            raise DiskError(f"{error} {self._continue_hint()}") from error.__cause__
        except OSError as error:
            file = Path(os.fsdecode(error.filename or ""))
            if self.path.absolute() not in file.absolute().parents:
                raise
            raise DiskError(f"{disk_error(file, error)} {self._continue_hint()}") from error
        except RuntimeError as error:
            if not any(words in str(error) for words in LOST_PROCESS):
                raise
            reason = str(error).strip().splitlines()[0][:200]
            raise TrainingError(
                f"another process of this run has ended ({reason}); its message says why. {self._continue_hint()}"
            ) from error
        except DataError as error:
            if not self.has_begun:
                raise DataError(f"{error} Then run the same command again; nothing was written yet.") from None
            needed = "the photo that the run began with"
            if self.checkpoints.last() is None:  # no epoch was trained on it
                self.accept_replacement(tables, str(error))
                needed = "a readable photo"
            raise DataError(
                f"{error} To continue, put {needed} in its place and run `fewtags resume {self.path}`. To train "
                "without it, remove the file and start a new run with data.decode = true, which skips broken photos."
            ) from None

    def _continue_hint(self) -> str:
        if not self.path.exists():
            return f"{self.path} was removed while the run used it; restore it, or start the run again."
        if not self.has_begun:
            return "Then run the same command again; nothing was written yet."
        return f"Then run `fewtags resume {self.path}`, which continues the run."

    # --- the record

    def write_record(
        self, settings: BaseModel, resolved: BaseModel, tables: Tables, environment: Mapping[str, Any]
    ) -> None:
        """Write what is known before training; the settings file, which makes the folder a run, comes last.

        `environment` has further facts for `environment.json`.
        """
        (self.path / "tables").mkdir(parents=True)
        for name, table in tables.items():
            # The run may be resumed from another working directory.
            root = None if table.root is None else table.root.absolute()
            save(table.with_root(root), self._table(name), keep_root=True)
            if name != TRUTH:
                write_array(self.sizes_path(name), photo_sizes(table))
                write_array(self.contents_path(name), photo_contents(table))
        record = {
            **environment,
            "settings": {self.kind.settings: settings_tree(settings), "resolved.toml": settings_tree(resolved)},
        }
        write_text(self.path / "environment.json", json.dumps(record, indent=1))
        write_text(self.path / "resolved.toml", dump_toml(resolved))
        write_text(self.path / self.kind.settings, dump_toml(settings))

    def settle_record(self, resolved: BaseModel, environment: Mapping[str, Any]) -> None:
        """Replace what was resolved when the run began: by a search, which chose the settings since."""
        write_text(self.path / "resolved.toml", dump_toml(resolved))
        # Written last: a resumed run whose record differs writes both again.
        write_text(self.path / "environment.json", json.dumps(environment, indent=1))

    def refuse_missing(self) -> Path:
        """Return the settings file; raise CheckpointError if the folder has none."""
        file = self.path / self.kind.settings
        if not file.exists():
            raise CheckpointError(
                f"{self.path} is not a run folder (it has no {file.name}); start a run with: {self.kind.start}"
            )
        return file

    def read_record(
        self,
        read_settings: Callable[[dict[str, Any], str], SettingsT],
        resolved_model: type[ResolvedT],
        *,
        editable: tuple[str, ...] = (),
    ) -> Record[SettingsT, ResolvedT]:
        """Read what `write_record` wrote, and check that it has not changed since.

        `read_settings` makes the settings from the content of a TOML file and its name. `editable` are dotted keys of
        settings that may be changed between start and resume.

        Raises:
            CheckpointError: the run is finished; the folder is not a run; a file is damaged; settings or tables
                have changed.
            ConfigError: the settings file is not valid.
        """
        if self.is_finished:
            raise self._finished()
        file = self.refuse_missing()
        settings = read_settings(load_toml(file), str(file))
        try:
            environment = json.loads((self.path / "environment.json").read_text("utf-8"))
            resolved = resolved_model.model_validate(load_toml(self.path / "resolved.toml"))
            began = {name: dict(environment["settings"][name]) for name in (file.name, "resolved.toml")}
            tables = {name: load(self._table(name)) for name in environment["fingerprints"]}
            if missing := [name for name in self.kind.tables if name not in tables]:
                raise ValueError(f"no fingerprint of {missing[0]}")
            record = Record(settings, resolved, tables, environment)
            _ = (record.working_directory, environment["weights"])
        except (OSError, ValueError, TypeError, KeyError, FewtagsError) as error:
            raise self._damaged(error.errors()[0]["msg"] if isinstance(error, ValidationError) else error) from None
        refuse_edited(file, began[file.name], settings_tree(settings), editable)
        refuse_edited(self.path / "resolved.toml", began["resolved.toml"], settings_tree(resolved))
        for name, table in tables.items():
            if table.fingerprint != environment["fingerprints"][name]:
                raise CheckpointError(
                    f"{self._table(name)} has changed since the run began; restore it, or start a new run."
                )
        return record

    def refuse_other_weights(self, weights: str, origin: Origin | None, began: Mapping[str, Any] | None) -> None:
        """Compare the origin of the initial weights with that of the start of the run, `began`; None if there was none.

        Raises:
            CheckpointError: they differ.
        """
        if began is not None and began["fingerprint"] != (None if origin is None else origin.fingerprint):
            raise CheckpointError(
                f"the initial weights {weights} are not those that {self.path} began with; restore them, or start a "
                "new run."
            )

    def refuse_lost_checkpoints(self) -> str | None:
        """Return a note if no checkpoint was ever complete, so that training starts again; else None.

        Raises:
            CheckpointError: epochs were trained, but their checkpoints are missing.
        """
        if self.checkpoints.last() is not None:
            return None
        metrics = self.path / METRICS_FILE
        epochs = len(metrics.read_text("utf-8").splitlines()) if metrics.exists() else 0
        # The metrics of the first epoch are written just before its checkpoint.
        if epochs > 1:
            raise CheckpointError(
                f"{self.path} has trained {epochs} epochs ({metrics.name}), but {self.checkpoints.root / 'LAST'}, "
                "which names its checkpoint, is missing. Restore the folder, or start a new run."
            )
        if (self.path / SEARCH_FILE).exists():
            return f"{self.path} has no complete checkpoint: what was tried is kept, and training starts with epoch 1"
        return f"{self.path} has no complete checkpoint: training STARTS AGAIN with epoch 1"

    def _table(self, name: str) -> Path:
        return self.path / "tables" / f"{name}.parquet"

    def _damaged(self, reason: object) -> CheckpointError:
        return CheckpointError(f"the record of the run in {self.path} is damaged ({reason}); start a new run.")

    # --- photos

    def sizes_path(self, split: str) -> Path:
        """The file with the sizes of a split's photos."""
        return self.path / "tables" / f"{split}-sizes.npy"

    def contents_path(self, split: str) -> Path:
        """The file with the times and digests of a split's photos."""
        return self.path / "tables" / f"{split}-contents.npy"

    def refuse_changed_photos(self, tables: Tables) -> None:
        """Compare the sizes and contents of photos with those that the run began with.

        Raises:
            CheckpointError: a photo is missing, or has another size or content.
        """
        for name, table in tables.items():
            try:
                before = np.load(self.sizes_path(name), allow_pickle=False)
                now = photo_sizes(table)
                if before.shape != now.shape:
                    raise ValueError(f"{len(before):,} sizes of {len(now):,} photos")
                different = np.flatnonzero((now == ANY_SIZE) | ((now != before) & (before != ANY_SIZE)))
            except BAD_ARRAY as error:
                raise self._damaged(f"{self.sizes_path(name)}: {error}") from None
            if len(different):
                first = int(different[0])
                more = f" ({len(different):,} {name} photos are missing or changed)" if len(different) > 1 else ""
                change = f"has {now[first]:,} bytes, but had {before[first]:,} when {self.path} began"
                if now[first] == ANY_SIZE:
                    change = f"no longer exists, but {self.path} began with it"
                raise CheckpointError(f"{photo_paths(table)[first]} {change}{more}; restore it, or start a new run.")
            self._refuse_other_contents(name, table, before)

    def _refuse_other_contents(self, name: str, table: LabelTable, sizes: NDArray[np.int64]) -> None:
        path = self.contents_path(name)
        if not path.exists():  # of a run that an older version began
            return
        try:
            before = np.load(path, allow_pickle=False)
            if before.shape != (len(table), 4) or before.dtype != np.int64:
                raise ValueError(f"contents of {len(before):,} photos, the table has {len(table):,}")
        except BAD_ARRAY as error:
            raise self._damaged(f"{path}: {error}") from None
        different = np.flatnonzero(changed_contents(table, before) & (sizes != ANY_SIZE))
        if len(different):
            more = f" ({len(different):,} {name} photos have changed)" if len(different) > 1 else ""
            raise CheckpointError(
                f"{photo_paths(table)[int(different[0])]} has the same size but another content than when {self.path} "
                f"began{more}; restore it, or start a new run."
            )

    def accept_replacement(self, tables: Tables, failure: str) -> None:
        """Allow a file of any size in place of a photo that could not be read, whose path begins the text `failure`.

        Only for runs that have trained no epoch: later, the result depends on the photo.
        """
        for name, table in tables.items():
            # Errors show file names that are not UTF-8 with escapes.
            shown = (os.fspath(path).encode("utf-8", "backslashreplace").decode() for path in photo_paths(table))
            broken = [n for n, path in enumerate(shown) if failure.startswith(f"{path}: ")]
            if broken and self.sizes_path(name).exists():
                sizes = np.load(self.sizes_path(name), allow_pickle=False)
                sizes[broken] = ANY_SIZE
                write_array(self.sizes_path(name), sizes)


def run_folder(path: Path) -> RunFolder:
    """Return the folder of an existing run, of the kind that its settings file says; training if there is none."""
    kind = PRETRAINING if (path / PRETRAINING.settings).exists() else TRAINING
    return RunFolder(path, kind)


def refuse_used_folder(path: Path) -> None:
    """Raise ConfigError if a run cannot begin in a folder: it is not empty, is a file, or cannot be made or written."""
    if path.exists() and not path.is_dir():
        raise ConfigError(f"{path} is a file; {flag('out')} takes a folder for the run.")
    if path.exists() and (content := {item.name for item in path.iterdir()} - {LOCK_FILE}):
        if content <= set(RECORD_FILES):
            raise ConfigError(
                f"{path} contains {', '.join(sorted(content))} of a run that was stopped before it began; delete the "
                f"folder, or choose another {flag('out')}."
            )
        folder = run_folder(path)
        going_on = folder.has_begun and not folder.is_finished
        resume = f", or continue the run with: fewtags resume {path}" if going_on else ""
        raise ConfigError(f"{path} is not empty; choose another {flag('out')}{resume}.")
    refuse_folder(path, flag("out"))
