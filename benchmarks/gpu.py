"""Speed on the device there is: training steps of each method, pretraining steps and prediction, in photos a second.

    python benchmarks/gpu.py                      # the GPU, or the CPU if there is none; minutes
    python benchmarks/gpu.py --out gpu.jsonl      # one line of JSON a row, for docs/performance.md
    python benchmarks/gpu.py --quick --cpu        # tiny nets, to see that it runs
    OMP_NUM_THREADS=1 python benchmarks/gpu.py --cpu --precision no --group training --net mobilenetv2_100 224 1000 16

The photos are random and already in memory, so loading them is not measured. The loop is that of `train` and
`pretrain`. Rounds are interleaved: in each, every row takes the same number of steps, in an order drawn anew, and the
device is waited for before and after. The ratio to the first row is the geometric mean over the rounds, with its 95 %
interval. Memory is the peak of the device during the round. On a CPU, seconds are CPU seconds of the process, which
other work on the machine changes less.
"""

from __future__ import annotations

import argparse
import json
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, final

import numpy as np
import torch
from torch import Tensor

from fewtags.config.sections import StageConfig
from fewtags.engine.autocast import Autocast
from fewtags.engine.distributed import make_accelerator
from fewtags.engine.events import StepEnded
from fewtags.engine.fit import Fit, FitConfig
from fewtags.engine.machine import cores
from fewtags.engine.methods import make_objective, pretrain_settings_models, settings_models
from fewtags.labels import Batch, LabelMatrix, SecondView
from fewtags.nets.backbones import create_net
from fewtags.nets.encoder import Encoder, create_encoder
from fewtags.nets.spatial import SpatialNet
from fewtags.objectives.base import Problem
from fewtags.stores.shard import SINGLE_PROCESS, Shard
from pretraining_speed import ratio

FOLDER = tempfile.TemporaryDirectory(prefix="fewtags-gpu-")
"""Of heatmaps on the disk; removed at the end."""

Take = Callable[[], int]
"""Do a few steps; return the number of photos."""

TRAINED: Mapping[str, Mapping[str, Any]] = {
    "assume-negative": {"name": "assume_negative"},
    "EN": {"name": "expected_negative", "scl_weight": 0.0},
    "EN + CL": {"name": "expected_negative", "scl_weight": 0.0, "cl_weight": 0.1},
    "EN + SCL": {"name": "expected_negative", "scl_weight": 0.1},
    "EN + SCL, top 10": {"name": "expected_negative", "scl_weight": 0.1, "heatmap_top_k": 10},
    "EN + SCL, top 10, on disk": {
        "name": "expected_negative",
        "scl_weight": 0.1,
        "heatmap_top_k": 10,
        "heatmap_storage": "disk",
    },
}
PRETRAINED: Mapping[str, Mapping[str, Any]] = {
    "MoCo-v2": {"name": "moco"},
    "MLS": {"name": "mls"},
    "DenseCL": {"name": "densecl"},
}


@final
@dataclass(frozen=True)
class Setting:
    """A net, an input and a batch."""

    backbone: str
    size: int
    classes: int
    batch: int
    samples: int


FULL = (Setting("resnet50", 320, 80, 64, 4096), Setting("resnet50", 224, 1000, 64, 4096))
GROUPS = ("training", "pretraining", "prediction")
QUICK = (Setting("test_resnet", 64, 20, 8, 64),)


@final
class RandomBatches:
    """Batches of random photos on the host, pinned if there is a GPU; a `BatchSource` that never ends."""

    def __init__(
        self, setting: Setting, labels: LabelMatrix, pinned: bool, second: bool, shard: Shard = SINGLE_PROCESS
    ) -> None:
        self.setting, self.labels, self.second, self.shard = setting, labels, second, shard
        generator = torch.Generator().manual_seed(0)
        shape = (setting.batch, 3, setting.size, setting.size)
        photos = [torch.randn(shape, generator=generator) for _ in range(4)]
        photos = [photo.contiguous(memory_format=torch.channels_last) for photo in photos]
        self.photos: list[Tensor] = [photo.pin_memory() for photo in photos] if pinned else photos
        x0, y0 = torch.rand(2, setting.batch, generator=generator) * 0.5
        half, zero = torch.full((setting.batch,), 0.5), torch.zeros(setting.batch)
        self.views = torch.stack([torch.stack([half, zero, x0], 1), torch.stack([zero, half, y0], 1)], 1)

    @property
    def steps_per_epoch(self) -> int:
        """Batches in an epoch."""
        return self.setting.samples // self.setting.batch // self.shard.world

    def batches(self, epoch: int, start: int) -> Iterator[Batch]:
        """Yield the batches of an epoch."""
        size = self.setting.batch
        for step in range(start, self.steps_per_epoch):
            index = self.shard.rank + self.shard.world * torch.arange(step * size, (step + 1) * size)
            first, second = self.photos[step % 4], self.photos[(step + 1 + epoch) % 4]
            yield Batch(
                images=first,
                labels=torch.from_numpy(self.labels.rows(index.numpy())),
                index=index,
                views=self.views,
                second_view=SecondView(second, self.views) if self.second else None,
            )


def steps_of(
    setting: Setting, method: Mapping[str, Any], net: SpatialNet | Encoder, precision: str, cpu: bool, steps: int
) -> Take:
    """Training or pretraining as a function that goes on for some steps each time."""
    classifies = isinstance(net, SpatialNet)
    rng = np.random.default_rng(0)
    dense = np.full((setting.samples, setting.classes if classifies else 0), -1, np.int8)
    if classifies:
        dense[np.arange(setting.samples), rng.integers(0, setting.classes, setting.samples)] = 1
    labels = LabelMatrix.from_dense(dense)
    models = settings_models() if classifies else pretrain_settings_models()
    known = {"positives_per_image": 3.0} if method["name"] == "expected_negative" else {}
    objective = make_objective(models[method["name"]].model_validate({**method, **known}))
    accelerator = make_accelerator(precision, cpu)
    shard = Shard(accelerator.process_index, accelerator.num_processes)
    source = RandomBatches(setting, labels, accelerator.device.type == "cuda", not classifies, shard)
    # The first epoch belongs to the warm-up, and is taken before anything is measured.
    warmup = StageConfig(name="warmup", epochs=1, lr=1e-4, trainable="head" if classifies else "all", warmup=True)
    stages = (warmup, StageConfig(name="main", epochs=1_000_000, lr=1e-4, schedule="constant"))
    config = FitConfig(stages=stages, precision=precision)
    problem = Problem(
        labels=labels,
        grid=net.grid((setting.size, setting.size)),
        warmup_epochs=config.warmup_epochs,
        epochs=config.epochs,
        shard=shard,
        state_dir=Path(tempfile.mkdtemp(dir=FOLDER.name)),
        device=accelerator.device,
        features_dim=net.head.weight.shape[1] if isinstance(net, SpatialNet) else net.features_dim,
        precision=precision,
    )
    fit = Fit(net, objective, source, config, problem, accelerator=accelerator)
    ends = (event for event in fit.run() if isinstance(event, StepEnded))
    for _ in range(source.steps_per_epoch + 2):
        next(ends)

    def take() -> int:
        for _ in range(steps):
            next(ends)
        return steps * setting.batch

    return take


def prediction_of(setting: Setting, net: SpatialNet, precision: str, device: torch.device, compiled: bool) -> Take:
    """Logits of a batch that is on the device already, four times the batch of training."""
    model: torch.nn.Module = Autocast(net.eval(), device.type, precision)
    model = torch.compile(model) if compiled else model  # type: ignore[assignment, unused-ignore]
    shape = (4 * setting.batch, 3, setting.size, setting.size)
    photos = torch.randn(shape, device=device).contiguous(memory_format=torch.channels_last)

    @torch.inference_mode()
    def take() -> int:
        for _ in range(4):
            model(photos)
        return 4 * len(photos)

    take()
    return take


def measure(rows: Mapping[str, Take], device: torch.device, rounds: int) -> dict[str, tuple[list[float], int]]:
    """Seconds a photo of each row, round by round, and the peak memory of the device in bytes (0 on the CPU)."""
    rng = np.random.default_rng(0)
    seconds: dict[str, list[float]] = {name: [] for name in rows}
    memory = dict.fromkeys(rows, 0)
    cuda = device.type == "cuda"
    clock = time.perf_counter if cuda else time.process_time
    for _ in range(rounds):
        for name in rng.permutation(list(rows)).tolist():
            if cuda:
                torch.cuda.reset_peak_memory_stats(device)
                torch.cuda.synchronize(device)
            begun = clock()
            photos = rows[name]()
            if cuda:
                torch.cuda.synchronize(device)
                memory[name] = max(memory[name], torch.cuda.max_memory_allocated(device))
            seconds[name].append((clock() - begun) / photos)
    return {name: (seconds[name], memory[name]) for name in rows}


def groups(
    setting: Setting, options: argparse.Namespace, device: torch.device
) -> Iterator[tuple[str, dict[str, Take]]]:
    """What is compared with each other: training, pretraining, prediction."""

    def net() -> SpatialNet:
        return create_net(setting.backbone, setting.classes, weights="none", size=setting.size)

    def encoder() -> Encoder:
        return create_encoder(setting.backbone, weights="none", size=setting.size)

    def steps(made: SpatialNet | Encoder, method: Mapping[str, Any]) -> Take:
        return steps_of(setting, method, made, options.precision, options.cpu, options.steps)

    # Dense heatmaps of a thousand classes do not fit on a GPU.
    fitting = {name: method for name, method in TRAINED.items() if setting.classes < 200 or name != "EN + SCL"}
    wanted = options.group or GROUPS
    if "training" in wanted:
        yield "training", {name: steps(net(), method) for name, method in fitting.items()}
    if "pretraining" in wanted:
        yield "pretraining", {name: steps(encoder(), method) for name, method in PRETRAINED.items()}
    if "prediction" not in wanted:
        return
    rows = {}
    for precision in dict.fromkeys(("no", options.precision)):
        name = "float32" if precision == "no" else precision
        rows[name] = prediction_of(setting, net().to(device), precision, device, False)
        if options.compile:
            rows[f"{name}, compiled"] = prediction_of(setting, net().to(device), precision, device, True)
    yield "prediction", rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, help="append one line of JSON a row")
    parser.add_argument("--rounds", type=int, default=10, help="rounds of every row (default 10)")
    parser.add_argument("--steps", type=int, default=10, help="steps a round (default 10)")
    parser.add_argument("--precision", default="bf16", choices=("no", "bf16", "fp16"), help="default bf16")
    parser.add_argument("--compile", action="store_true", help="prediction with torch.compile, too")
    parser.add_argument("--group", choices=GROUPS, action="append", help="only this; may be repeated")
    parser.add_argument("--net", nargs=4, metavar=("NAME", "SIZE", "CLASSES", "BATCH"), help="instead of ResNet-50")
    parser.add_argument("--quick", action="store_true", help="a tiny net")
    parser.add_argument("--cpu", action="store_true", help="the CPU although there is a GPU")
    options = parser.parse_args()
    device = make_accelerator(cpu=options.cpu).device
    options.cpu = device.type != "cuda"
    name = torch.cuda.get_device_name(device) if device.type == "cuda" else f"CPU, {cores()} cores"
    print(f"{name}, torch {torch.__version__}, {options.precision}")
    settings = QUICK if options.quick else FULL
    if options.net:
        size, classes, batch = map(int, options.net[1:])
        settings = (Setting(options.net[0], size, classes, batch, 4 * batch),)
    for setting in settings:
        for group, rows in groups(setting, options, device):
            print(
                f"\n{group}: {setting.backbone}, {setting.size} px, {setting.classes} classes, batch {setting.batch}\n"
            )
            print(
                "| | photos a second | time, ratio to the first | 95 % interval | memory (MiB) |\n|---|---|---|---|---|"
            )
            found = measure(rows, device, options.rounds)
            first = next(iter(found.values()))[0]
            for number, (row, (seconds, memory)) in enumerate(found.items()):
                mean, low, high = ratio(seconds, first) if number else (1.0, 1.0, 1.0)
                speed, mib = 1 / statistics.median(seconds), memory / 2**20
                print(f"| {row} | {speed:,.0f} | {mean:.3f} | {low:.3f} to {high:.3f} | {mib:,.0f} |")
                if options.out:
                    line = {"group": group, **asdict(setting), "row": row, "seconds": seconds, "memory": memory}
                    with options.out.open("a") as file:
                        file.write(json.dumps({**line, "device": name, "precision": options.precision}) + "\n")


if __name__ == "__main__":
    main()
