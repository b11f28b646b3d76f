"""Prediction on a cluster with Ray Data: the photos go to actors, each of which has the model.

The result is that of one process, bit for bit, if each actor has as many CPUs as that process has threads of torch, on
the same kind of processor:

* Blocks of photos end where a batch ends, so that every batch has the photos that it has in one process. The last
  digits of a net depend on the size of its batch.
* An actor computes with as many threads as it has CPUs. The last digits also depend on the number of threads.
* Actors with other versions of torch, Pillow or fewtags are refused.
* Blocks come back in order. The block of an actor that dies is computed again, as a whole.
"""

from __future__ import annotations

import logging
import os
import socket
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, final

import numpy as np
import pyarrow as pa
import torch

from fewtags.config.precision import Precision
from fewtags.engine.inference import load_predictor
from fewtags.engine.machine import versions
from fewtags.engine.model import ModelInfo
from fewtags.engine.onnx_net import ENDING
from fewtags.engine.places import model_path
from fewtags.engine.predict import Prediction, predict_photos
from fewtags.errors import ConfigError, DataError, FewtagsError
from fewtags.photos.decode import PIXEL_LIMIT_VARIABLE
from fewtags.shards.photos import photo_exists
from fewtags.shards.places import place
from fewtags.text import counted

BATCHES_PER_BLOCK = 16
"""Most batches that an actor computes at a time, and that its death loses."""
BLOCKS_PER_ACTOR = 4
"""Blocks are smaller than that if there would be fewer of them for each actor."""


@final
@dataclass(frozen=True)
class Actors:
    """The actors of a cluster.

    Attributes:
        count: their number.
        cpus: CPUs of each, which are its threads.
        device: of each; CUDA: a GPU for each.
    """

    count: int
    cpus: int
    device: torch.device

    def __str__(self) -> str:
        gpu = "a GPU and " if self.device.type == "cuda" else ""
        return f"{counted(self.count, 'Ray actor')} with {gpu}{counted(self.cpus, 'CPU')} each"


@contextmanager
def ray_cluster() -> Iterator[Any]:
    """Connect to the Ray cluster of RAY_ADDRESS or of this machine, or start one on this machine; yield Ray.

    Ray sends no statistics about its use (RAY_USAGE_STATS_ENABLED).

    Raises:
        ConfigError: Ray is not installed, or the cluster cannot be reached.
    """
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    try:
        import ray
        import ray.data
    except ModuleNotFoundError as error:
        raise ConfigError(
            f"the engine ray needs {error.name}, which is not installed: pip install 'fewtags[cluster]'."
        ) from error
    if ray.is_initialized():  # by the caller
        yield ray
        return
    try:
        ray.init(logging_level=logging.ERROR, log_to_driver=False)
    except (ConnectionError, RuntimeError, ValueError) as error:
        raise ConfigError(
            f"no Ray cluster can be used: {str(error).strip().splitlines()[0]} Start one with `ray start --head`, or "
            "remove RAY_ADDRESS to use this machine alone."
        ) from error
    try:
        yield ray
    finally:
        ray.shutdown()


def choose_actors(ray: Any, count: int | None = None, cpus: int | None = None, *, cpu: bool = False) -> Actors:
    """Return the actors for a cluster: one for each GPU, or without GPUs one for each CPU.

    Args:
        ray: what `ray_cluster` yields.
        count: number of actors instead of that; more than fit start when machines join.
        cpus: CPUs of each; default: an equal share of the cluster's with GPUs, else 1.
        cpu: use no GPU.

    Raises:
        ConfigError: not even one actor fits into the cluster.
    """
    there = ray.cluster_resources()
    all_cpus, gpus = int(there.get("CPU", 0)), 0 if cpu else int(there.get("GPU", 0))
    most = max((int(node["Resources"].get("CPU", 0)) for node in ray.nodes() if node["Alive"]), default=0)
    chosen = cpus or (max(1, all_cpus // gpus) if gpus else 1)
    if chosen > most:
        raise ConfigError(
            f"an actor needs {counted(chosen, 'CPU')}, but no machine of the Ray cluster has more than {most}; give "
            "fewer --actor-cpus."
        )
    return Actors(count or gpus or max(1, all_cpus // chosen), chosen, torch.device("cuda" if gpus else "cpu"))


@final
@dataclass(frozen=True, kw_only=True)
class RayEngine:
    """Predicts with the actors of a Ray cluster; see `fewtags.engine.predict.Engine`.

    Every machine needs the photos under the same paths; the model is sent to the actors.

    Attributes:
        ray: what `ray_cluster` yields.
        model: run folder, its model file, or an ONNX file.
        info: metadata of the model.
        actors: see `choose_actors`.
        batch_size: photos per batch.
        precision: see `fewtags.engine.inference.for_inference`; it is chosen for the device of the actors.
    """

    ray: Any
    model: Path
    info: ModelInfo
    actors: Actors
    batch_size: int
    precision: Precision | None = None

    def __call__(self, paths: Sequence[Path]) -> Iterator[Prediction]:
        """Yield the prediction for every photo, in order; an unreadable photo yields its error.

        Raises:
            ConfigError: an actor has other versions of packages.
            DataError: a machine does not have the photos.
        """
        try:
            yield from self._predict(paths)
        except self.ray.exceptions.RayError as error:
            raise _own_error(error) or error from None

    def _predict(self, paths: Sequence[Path]) -> Iterator[Prediction]:
        done = 0
        for block in self._results(paths) if paths else ():
            assert block["index"].to_pylist() == [*range(done, done + len(block))]
            prob = block["prob"].combine_chunks().flatten().to_numpy().reshape(len(block), -1)
            for row, error, host in zip(prob, block["error"].to_pylist(), block["host"].to_pylist(), strict=True):
                path, reason = paths[done], os.fsdecode(error)
                if reason and host and photo_exists(path):
                    raise DataError(
                        f"{path} exists here, but not on the machine {host}; the engine ray needs the photos under the "
                        "same paths on all machines."
                    )
                yield Prediction(path, None if reason else row, reason)
                done += 1
        assert done == len(paths)

    def _results(self, paths: Sequence[Path]) -> Iterator[pa.Table]:
        """Yield the rows of `_Actor`, in order."""
        data, actors = self.ray.data, self.actors
        logging.getLogger("ray.data").setLevel(logging.ERROR)
        context = data.DataContext.get_current().copy()
        context.enable_progress_bars = False
        context.execution_options.preserve_order = True
        file = model_path(self.model)
        task = _Task(
            ending=ENDING if file.suffix.lower() == ENDING else file.suffix,
            actors=actors,
            batch_size=self.batch_size,
            precision=self.precision,
            photos=len(paths),
            folder=str(Path.cwd()),
            pixel_limit=os.environ.get(PIXEL_LIMIT_VARIABLE),
            versions=versions(),
        )
        with data.DataContext.current(context):
            found = data.from_arrow(self._blocks(paths)).map_batches(
                _Actor,
                fn_constructor_args=(task, self.ray.put(file.read_bytes())),
                compute=data.ActorPoolStrategy(min_size=1, max_size=actors.count, initial_size=actors.count),
                batch_size=None,
                batch_format="pyarrow",
                num_cpus=actors.cpus,
                num_gpus=1 if actors.device.type == "cuda" else 0,
            )
        yield from found.iter_batches(batch_size=None, batch_format="pyarrow")

    def _blocks(self, paths: Sequence[Path]) -> list[pa.Table]:
        """Return the photos in blocks of whole batches."""
        size = self.batch_size * max(
            1, min(BATCHES_PER_BLOCK, len(paths) // (self.batch_size * self.actors.count * BLOCKS_PER_ACTOR))
        )
        names = pa.array([os.fsencode(path) for path in paths], pa.binary())
        rows = pa.table({"index": pa.array(range(len(paths)), pa.int64()), "path": names})
        return [rows.slice(start, size) for start in range(0, len(paths), size)]


@final
@dataclass(frozen=True, kw_only=True)
class _Task:
    """What an actor is started with, beside the content of the model file.

    Attributes:
        ending: of the model file.
        precision: of the net.
        photos: number of photos of all actors.
        folder: working folder, where relative paths begin.
        pixel_limit: value of `PIXEL_LIMIT_VARIABLE`.
        versions: of the packages.
    """

    ending: str
    actors: Actors
    batch_size: int
    precision: Precision | None
    photos: int
    folder: str
    pixel_limit: str | None
    versions: dict[str, str | None]


@final
class _Actor:
    """Predicts blocks of photos: rows of index and path become rows of index, prob, error and host.

    Paths and errors are bytes, because names of files need not be text. `host` is the machine if it has no such file.
    """

    def __init__(self, task: _Task, model: Any) -> None:
        import ray

        for package, version in versions().items():
            if version != task.versions[package]:
                there, here = version or "(not installed)", task.versions[package] or "(not installed)"
                raise ConfigError(
                    f"the machine {socket.gethostname()} has {package} {there}, but the machine of the command has "
                    f"{here}; install the same versions on all machines."
                )
        if Path(task.folder).is_dir():
            os.chdir(task.folder)
        if task.pixel_limit is not None:
            os.environ[PIXEL_LIMIT_VARIABLE] = task.pixel_limit
        torch.set_num_threads(task.actors.cpus)
        self._task = task
        self._folder = tempfile.TemporaryDirectory()  # onnxruntime may open the file again
        file = Path(self._folder.name) / f"model{task.ending}"
        file.write_bytes(ray.get(model))
        self._net, self._info = load_predictor(file, task.actors.device, task.precision)

    def __call__(self, photos: pa.Table) -> pa.Table:
        index, names = photos["index"].to_pylist(), photos["path"].to_pylist()
        size, end = self._task.batch_size, index[-1] + 1
        assert index[0] % size == 0
        assert end % size == 0 or end == self._task.photos
        paths, prob = [place(os.fsdecode(name)) for name in names], np.zeros((len(names), len(self._info.class_ids)))
        errors, hosts = [b""] * len(names), [""] * len(names)
        actors = self._task.actors
        found = predict_photos(self._net, self._info, paths, actors.device, batch_size=size, threads=actors.cpus)
        for n, one in enumerate(found):
            if one.prob is not None:
                prob[n] = one.prob
            else:
                errors[n] = os.fsencode(one.error)
                hosts[n] = "" if photo_exists(paths[n]) else socket.gethostname()
        values = pa.FixedSizeListArray.from_arrays(pa.array(prob.ravel()), prob.shape[1])
        return pa.table([index, values, pa.array(errors, pa.binary()), hosts], ["index", "prob", "error", "host"])


def _own_error(error: BaseException | None) -> FewtagsError | None:
    """Return the error of fewtags on an actor that caused an error of Ray; None if it has another cause."""
    while error is not None and not isinstance(error, FewtagsError):
        error = getattr(error, "cause", None) or error.__cause__
    return error
