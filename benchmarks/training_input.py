"""Photos on disk to normalised training batches: fewtags beside torchvision's transforms, in one process.

    OMP_NUM_THREADS=1 python benchmarks/training_input.py PHOTOS                 # as they are
    OMP_NUM_THREADS=1 python benchmarks/training_input.py PHOTOS --side 500      # JPEG copies of this longest side
    OMP_NUM_THREADS=1 python benchmarks/training_input.py PHOTOS --side 4000 --photos 16

Two policies: `imagenet` is torchvision's `RandomResizedCrop`; `coco` stretches the photo to a square of 1.5 times the
size of the input and crops a square with a share of .25 to 1 (SCL paper, appendix A). Both flip half of the crops. The
result is float32 [b, 3, h, w], normalised. All competitors work in the main process with one thread, on the same
photos, in turns, in an order drawn anew each round. A ratio compares the CPU seconds of one round; the median over
rounds is printed with the smallest and the largest one.

torchvision: `PIL.Image.open(...).convert("RGB")`, v1 transforms as in its reference scripts (`ToTensor`, `Normalize`),
`default_collate`. fewtags: `TrainSet` and `Collate`, as training does without worker processes; labels are part of it.
fewtags with a cache (`data.photo_cache`): the same from shrunken copies, which are written in the first epoch.
"""

from __future__ import annotations

import argparse
import random
import shutil
import statistics
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pyarrow as pa
import torch
from PIL import Image
from torch.utils.data import default_collate
from torchvision import transforms as tv

from fewtags.engine.places import find_photos
from fewtags.labels import LabelMatrix
from fewtags.photos.augment import Policy, ResizedCrop, SquareCrop
from fewtags.photos.cache import PhotoCache
from fewtags.photos.dataset import Failure, PhotoFolder, TrainSet
from fewtags.photos.loader import Collate

MEAN, STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
POLICIES: dict[str, Callable[[int], Policy]] = {"imagenet": ResizedCrop, "coco": SquareCrop}
Competitor = Callable[[Sequence[int], int], torch.Tensor]
"""Returns a batch of the photos with these numbers in an epoch."""


def of_torchvision(files: Sequence[Path], policy: str, size: int) -> Competitor:
    """Return the pipeline of torchvision's transforms."""
    stretched = [tv.Resize((size * 3 // 2, size * 3 // 2)), tv.RandomResizedCrop(size, scale=(0.25, 1), ratio=(1, 1))]
    cropped = [tv.RandomResizedCrop(size)] if policy == "imagenet" else stretched
    change = tv.Compose([*cropped, tv.RandomHorizontalFlip(), tv.ToTensor(), tv.Normalize(MEAN, STD)])

    def sample(index: int) -> tuple[torch.Tensor, int]:
        with Image.open(files[index]) as photo:
            return change(photo.convert("RGB")), index

    def batch(indices: Sequence[int], epoch: int) -> torch.Tensor:
        torch.manual_seed(epoch)
        images: torch.Tensor = default_collate([sample(index) for index in indices])[0]
        return images

    return batch


def of_fewtags(files: Sequence[Path], policy: str, size: int, cache: Callable[[int], Path] | None = None) -> Competitor:
    """Return what training does without worker processes; `cache` gives the folder of the copies in an epoch."""
    folder = PhotoFolder(Path("/"), pa.array([str(file.absolute()) for file in files]))
    labels = LabelMatrix.from_dense(np.zeros((len(files), 80), np.int8))
    plain, collate = TrainSet(photos=folder, labels=labels, policy=POLICIES[policy](size)), Collate(MEAN, STD)

    def batch(indices: Sequence[int], epoch: int) -> torch.Tensor:
        data = plain if cache is None else replace(plain, cache=PhotoCache.for_crops(cache(epoch), size))
        stacked = collate.stack([data[epoch, index] for index in indices])
        if isinstance(stacked, Failure):
            raise SystemExit(stacked.message)
        if stacked.problem:
            raise SystemExit(stacked.problem)
        return collate.normalise(stacked).images

    return batch


def cpu_seconds(competitor: Competitor, count: int, batch: int, epoch: int) -> float:
    """Return the CPU seconds of one epoch."""
    began = time.process_time()
    for first in range(0, count, batch):
        competitor(range(first, min(first + batch, count)), epoch)
    return time.process_time() - began


def copies(files: Sequence[Path], side: int, folder: Path) -> list[Path]:
    """Write JPEG copies (quality 90) whose longest side is `side`."""
    made: list[Path] = []
    for file in files:
        with Image.open(file) as photo:
            scale = side / max(photo.size)
            size = (max(1, round(photo.width * scale)), max(1, round(photo.height * scale)))
            made.append(folder / f"{len(made)}.jpg")
            photo.convert("RGB").resize(size, Image.Resampling.BICUBIC).save(made[-1], quality=90)
    return made


def main() -> None:
    """Run the script."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("photos", type=Path, help="a folder")
    parser.add_argument("--photos", dest="count", type=int, default=64, help="photos of an epoch (default 64)")
    parser.add_argument("--side", type=int, help="longest side of JPEG copies; default: the photos as they are")
    parser.add_argument("--size", type=int, default=224, help="pixels of the input (default 224)")
    parser.add_argument("--batch", type=int, default=16, help="photos of a batch (default 16)")
    parser.add_argument("--rounds", type=int, default=7, help="epochs of each competitor (default 7)")
    options = parser.parse_args()
    torch.set_num_threads(1)
    found, _ = find_photos([options.photos])
    files = random.Random(0).sample(found, min(options.count, len(found)))
    with tempfile.TemporaryDirectory() as folder:
        if options.side:
            files = copies(files, options.side, Path(folder))
        for policy in POLICIES:
            compare(files, policy, options, Path(folder))
        made = [file.stat().st_size for file in Path(folder, "coco", "warm").rglob("*.rgb")]
        print(
            f"photos: {np.mean([f.stat().st_size for f in files]) / 1e3:.0f} kB; copies: {np.mean(made) / 1e3:.0f} kB"
        )


def compare(files: Sequence[Path], policy: str, options: argparse.Namespace, folder: Path) -> None:
    """Measure and print one policy."""
    place = folder / policy
    competitors = {
        "torchvision": of_torchvision(files, policy, options.size),
        "fewtags": of_fewtags(files, policy, options.size),
        "fewtags, cache": of_fewtags(files, policy, options.size, lambda _: place / "warm"),
        "fewtags, first epoch with a cache": of_fewtags(files, policy, options.size, lambda n: place / str(n)),
    }
    for name, competitor in competitors.items():  # the first epoch with a cache is measured, not this one
        competitor(range(len(files) if name == "fewtags, cache" else min(4, len(files))), options.rounds)
    rows: list[dict[str, float]] = []
    for epoch in range(options.rounds):
        order = random.Random(epoch).sample([*competitors], len(competitors))
        rows.append({n: cpu_seconds(competitors[n], len(files), options.batch, epoch) for n in order})
        shutil.rmtree(place / str(epoch))
    each = {n: 1000 * statistics.median(row[n] for row in rows) / len(files) for n in competitors}
    print(f"{policy}: torchvision, {each['torchvision']:.2f} CPU ms a photo")
    for name in competitors:
        if name != "torchvision":
            ratios = [row["torchvision"] / row[name] for row in rows]
            print(
                f"{policy}: {name} / torchvision {statistics.median(ratios):.2f} times the photos per CPU second "
                f"({min(ratios):.2f} to {max(ratios):.2f}), {each[name]:.2f} CPU ms a photo"
            )


if __name__ == "__main__":
    main()
