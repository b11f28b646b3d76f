"""Photos on disk to a table: `fewtags predict` beside a timm script and beside onnxruntime alone, in one run.

    python benchmarks/prediction.py PHOTOS                # one core, then two
    python benchmarks/prediction.py PHOTOS --cores 1 --photos 64 --rounds 5
    python benchmarks/prediction.py PHOTOS --compile      # also `predict --compile`; compiling takes minutes

PHOTOS is a folder. The net is EfficientNet-Lite0 (or another of timm) with 80 classes and random weights at 224 px.
Each competitor has a process of its own. They take turns on the same photos, in an order drawn anew each round, so that
whatever else the machine does hits all of them; a ratio compares photos per second of the same round, and the median
over rounds is printed, for wall time and for CPU time. Starting Python, importing, loading and compiling the model are
not counted.

timm eager: `timm.create_model`, its own transform, `torch.inference_mode`, batches in a loop, a CSV file.
onnxruntime: the exported file, the decoding of fewtags, batches in a loop, a CSV file; no checks, no error handling.
"""

from __future__ import annotations

import argparse
import contextlib
import csv
import io
import json
import multiprocessing
import os
import statistics
import tempfile
import time
from collections.abc import Callable, Sequence
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import numpy as np
import timm
import torch
from numpy.typing import NDArray
from PIL import Image

from fewtags.cli.tables import PredictionWriter, PredictOptions, write_predictions
from fewtags.engine.evaluate import sigmoid
from fewtags.engine.inference import compile_net, for_inference
from fewtags.engine.model import ModelInfo, make_policy
from fewtags.engine.onnx_net import Predictor, load_onnx
from fewtags.engine.places import find_photos
from fewtags.export.onnx import export_onnx
from fewtags.nets.backbones import create_net
from fewtags.nets.spatial import HeadPlan, SpatialNet
from fewtags.photos.dataset import read_through

CLASSES, WARM_UP = 80, 4
FEWTAGS, ONNX, TIMM, RUNTIME = "fewtags predict RUN", "fewtags predict ONNX", "timm eager", "onnxruntime"
COMPILED, CPU = "fewtags predict RUN --compile", torch.device("cpu")
Competitor = Callable[[Sequence[Path], Path], None]


def make_net(backbone: str, size: int) -> tuple[SpatialNet, ModelInfo]:
    """Return a net with random weights, and the metadata of a model."""
    net = create_net(backbone, CLASSES, weights="none", size=size).eval()
    names = tuple(f"class {n}" for n in range(CLASSES))
    info = ModelInfo(
        backbone=backbone,
        output_stride=0,
        head=HeadPlan(),
        size=size,
        policy="coco",
        class_ids=names,
        class_names=names,
        thresholds=(0.5,) * CLASSES,
        threshold_rules=("half",) * CLASSES,
        mean=net.preprocessing.mean,
        std=net.preprocessing.std,
        method={},
        selection="",
        version="",
    )
    return net, info


def of_fewtags(net: Predictor, info: ModelInfo, batch: int) -> Competitor:
    def predict(paths: Sequence[Path], out: Path) -> None:
        writer = PredictionWriter(out, info, True, None)
        with contextlib.redirect_stderr(io.StringIO()):
            write_predictions(net, info, paths, writer, PredictOptions(CPU, batch, 0), "")

    return predict


def of_compiled(net: Predictor, info: ModelInfo, batch: int) -> Competitor:
    compiled, problem = compile_net(net, info, CPU, batch)
    if problem:
        raise SystemExit(problem)
    return of_fewtags(compiled, info, batch)


def of_timm(backbone: str, size: int, batch: int) -> Competitor:
    model = timm.create_model(backbone, num_classes=CLASSES).eval()
    data: Any = timm.data
    config = data.resolve_model_data_config(model) | {"input_size": (3, size, size)}
    transform = data.create_transform(**config, is_training=False)

    def predict(paths: Sequence[Path], out: Path) -> None:
        with torch.inference_mode(), out.open("w", newline="") as file:
            table = csv.writer(file)
            for start in range(0, len(paths), batch):
                part = paths[start : start + batch]
                images = torch.stack([transform(Image.open(path).convert("RGB")) for path in part])
                write_rows(table, part, model(images).sigmoid().numpy())

    return predict


def of_runtime(path: Path, info: ModelInfo, batch: int) -> Competitor:
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = torch.get_num_threads()
    session = onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"])
    policy = make_policy(info.policy, info.size)

    def predict(paths: Sequence[Path], out: Path) -> None:
        with out.open("w", newline="") as file:
            table = csv.writer(file)
            for start in range(0, len(paths), batch):
                part = paths[start : start + batch]
                crops = np.stack([read_through(path, policy.test_view, info.size)[0] for path in part])
                (logits,) = session.run(["logits"], {"pixels": np.ascontiguousarray(crops.transpose(0, 3, 1, 2))})
                write_rows(table, part, sigmoid(logits))

    return predict


def write_rows(table: Any, paths: Sequence[Path], prob: NDArray[np.floating]) -> None:
    table.writerows([path, *row] for path, row in zip(paths, prob.round(6).tolist(), strict=True))


def serve(connection: Connection, usable: Sequence[int], make: Callable[[], Competitor], out: Path) -> None:
    """Run a competitor in this process, on some cores: photos come in, [wall, CPU] seconds per photo go out."""
    os.sched_setaffinity(0, usable)
    torch.set_num_threads(len(usable))
    compete = make()
    while paths := connection.recv():
        wall, cpu = time.perf_counter(), time.process_time()
        compete(paths, out)
        connection.send([(time.perf_counter() - wall) / len(paths), (time.process_time() - cpu) / len(paths)])


def measure(
    competitors: dict[str, Callable[[], Competitor]], paths: Sequence[Path], rounds: int, usable: Sequence[int]
) -> dict[str, list[list[float]]]:
    """Return [wall, CPU] seconds per photo of each competitor in each round."""
    found: dict[str, list[list[float]]] = {name: [] for name in competitors}
    rng, context = np.random.default_rng(0), multiprocessing.get_context("fork")
    with tempfile.TemporaryDirectory() as folder:
        ends = {}
        for name, make in competitors.items():
            ends[name], end = context.Pipe()
            context.Process(target=serve, args=(end, usable, make, Path(folder, f"{name}.csv")), daemon=True).start()
        for n in range(rounds + 1):  # the first round warms up
            for name in map(str, rng.permutation([*competitors])):
                ends[name].send(paths if n else paths[:WARM_UP])
                took = ends[name].recv()
                if n:
                    found[name].append(took)
                    print(json.dumps({"round": n, "what": name, "ms": [round(1e3 * t, 2) for t in took]}), flush=True)
        for end in ends.values():
            end.send([])
    return found


def ratio(found: dict[str, list[list[float]]], of: str, to: str) -> str:
    """How many times as fast `of` is as `to`: the median over rounds, by wall time and by CPU time."""
    rows = [[b / a for a, b in zip(*pair, strict=True)] for pair in zip(found[of], found[to], strict=True)]
    wall, cpu = (statistics.median(values) for values in zip(*rows, strict=True))
    return f"{wall:.2f} ({cpu:.2f})"


def main() -> None:
    """Run the script."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("photos_in", type=Path, metavar="PHOTOS")
    parser.add_argument("--backbone", default="tf_efficientnet_lite0")
    parser.add_argument("--size", type=int, default=224)
    parser.add_argument("--photos", type=int, default=64, help="number of photos of a turn")
    parser.add_argument("--batch", type=int, default=16)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--cores", type=int, nargs="+", default=[1, 2])
    parser.add_argument("--compile", action="store_true", help="also measure the compiled net")
    options = parser.parse_args()
    paths = find_photos([options.photos_in])[0][: options.photos]
    usable = sorted(os.sched_getaffinity(0))
    torch.set_num_threads(1)  # processes are forked, which threads do not survive
    net, info = make_net(options.backbone, options.size)
    ready = for_inference(net, info, CPU)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "model.onnx")
        export_onnx(net, info, path)
        competitors: dict[str, Callable[[], Competitor]] = {
            FEWTAGS: lambda: of_fewtags(ready, info, options.batch),
            ONNX: lambda: of_fewtags(*load_onnx(path), options.batch),
            TIMM: lambda: of_timm(options.backbone, options.size, options.batch),
            RUNTIME: lambda: of_runtime(path, info, options.batch),
        }
        pairs = [(FEWTAGS, TIMM), (ONNX, TIMM), (ONNX, RUNTIME)]
        if options.compile:
            competitors[COMPILED] = lambda: of_compiled(ready, info, options.batch)
            pairs += [(COMPILED, TIMM), (COMPILED, FEWTAGS)]
        for cores in options.cores:
            found = measure(competitors, paths, options.rounds, usable[:cores])
            print(f"{cores} cores, {len(paths)} photos, {options.rounds} rounds; wall time (CPU time)")
            for of, to in pairs:
                print(f"  {of} / {to}: {ratio(found, of, to)}", flush=True)


if __name__ == "__main__":
    main()
