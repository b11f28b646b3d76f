"""The part of a net that no stage trains, pushed over each view of an image once for all runs on a set."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Callable
from dataclasses import asdict, dataclass
from functools import cache
from pathlib import Path
from typing import Any, final

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from fewtags.engine.machine import keep_freed_memory
from fewtags.engine.sources import CachePlan, StoredViews, ViewFeatures, fill_views
from fewtags.labels import Label, LabelMatrix
from fewtags.nets.backbones import create_net
from fewtags.nets.spatial import HeadPlan, Output, SpatialHead, SpatialNet
from fewtags.photos.augment import SquareCrop
from fewtags.photos.augment_fixmatch import Strong
from fewtags.photos.dataset import EvalSet, PhotoFolder, TrainSet
from fewtags.photos.loader import Collate, EpochSampler, EvalLoader, TrainLoader
from fewtags.table.table import LabelTable
from photo_sets import REPOSITORY, BenchmarkSet
from protocol import Setup, digest

FEATURES = "features"  # in the cache folder
LOCATED_IMAGES = 200  # localisation is measured on so many test images
REGION = (96, 96)  # masks and boxes are drawn at this resolution
EVAL_BATCH = 16  # small batches stay in the processor's cache


@final
class Above(nn.Module):
    """The last blocks of a net and its head (the net's own modules), on features of what is below.

    Args:
        net: a `SpatialNet` around timm's MobileNetV2.
        blocks: how many, counted as `freezing.freeze` does (the last 1x1 convolution belongs to the last block), or 0.
    """

    def __init__(self, net: SpatialNet, blocks: int) -> None:
        super().__init__()
        backbone: Any = net.backbone
        every = [block for stage in backbone.blocks for block in stage]
        self.blocks = nn.Sequential(*every[-blocks:], backbone.conv_head, backbone.bn2) if blocks else nn.Identity()
        self.head = net.head

    def forward(self, features: Tensor) -> Output:
        """What the net says about the images that `features` [b, d, h, w] come from."""
        output: Output = self.head(self.blocks(features))
        return output

    def predict_logits(self, features: Tensor) -> Tensor:
        """The logits of `forward`, without maps."""
        return self.head.predict_logits(self.blocks(features))


def below(net: SpatialNet, blocks: int) -> SpatialNet:
    """The rest: images to the features that `Above(net, blocks)` wants. Its head is of no use."""
    backbone: Any = net.backbone
    lower: nn.Module = backbone
    if blocks:
        every = [block for stage in backbone.blocks for block in stage]
        lower = nn.Sequential(backbone.conv_stem, backbone.bn1, *every[:-blocks])
    return SpatialNet(lower, SpatialHead(1, 1), preprocessing=net.preprocessing)


@final
@dataclass(frozen=True, eq=False)
class Material:
    """What all runs on one set share.

    Attributes:
        data: images and complete labels.
        views: of the training images, through the frozen part.
        val: [n, d, h, w], the validation images through the frozen part, channels last in memory.
        test: likewise.
        regions: (test image, class, where it is) to measure localisation with.
        without_region: how many (image, class) pairs have no region, because no box or too small a one is known.
    """

    data: BenchmarkSet
    views: ViewFeatures
    val: Tensor
    test: Tensor
    regions: tuple[tuple[int, int, NDArray[np.bool_]], ...]
    without_region: int


def make_net(benchmark: Setup, classes: int, seed: int, head: HeadPlan | None = None) -> SpatialNet:
    """The pretrained net; its head starts from the seed."""
    given = benchmark.weights
    weights = given if given == "offline" else (REPOSITORY / given).resolve()
    return create_net(benchmark.backbone, classes, weights=weights, size=benchmark.size, seed=seed, head=head)


def features_folder(benchmark: Setup, data: BenchmarkSet, cache: Path) -> Path:
    """Where the features of a set lie; another folder for every other way of making them."""
    chosen = {"backbone", "size", "min_area", "views", "view_seed"}
    origin = make_net(benchmark, 1, 0).origin
    assert origin is not None
    content = [
        benchmark.model_dump(mode="json", include=chosen), benchmark.trained_blocks, origin.fingerprint,
        [table.fingerprint for table in data.splits.values()],
    ]  # fmt: skip
    if benchmark.needs_second_view:
        content.append(asdict(Strong()))
    return cache / FEATURES / f"{data.name}-{digest(content)}"


def fill(benchmark: Setup, data: BenchmarkSet, folder: Path) -> None:
    """Push all views of a set, and the whole training, validation and test images, through the frozen part."""
    keep_freed_memory()
    trunk = below(make_net(benchmark, 1, 0), benchmark.trained_blocks)
    trunk.requires_grad_(False).to(memory_format=torch.channels_last).eval()
    policy = SquareCrop(benchmark.size, (benchmark.min_area, 1.0))
    collate = Collate(trunk.preprocessing.mean, trunk.preprocessing.std)
    train = data.train_truth
    second_view = Strong() if benchmark.needs_second_view else None
    views = TrainSet(
        photos=_photos(train),
        labels=train.matrix,
        policy=policy,
        seed=benchmark.view_seed,
        views_cycle=benchmark.views,
        second_view=second_view,
    )
    loader = TrainLoader(views, EpochSampler(len(train), benchmark.batch_size, benchmark.view_seed), collate)
    folder.parent.mkdir(parents=True, exist_ok=True)
    made = Path(tempfile.mkdtemp(prefix=f".{folder.name}-", dir=folder.parent))
    try:
        fill_views(trunk, loader, CachePlan(benchmark.views, torch.float32, 0)).save(made)
        for name, table in (("plain", data.train_truth), ("val", data.val), ("test", data.test)):
            with torch.no_grad():
                batches = EvalLoader(EvalSet(_photos(table), table.matrix, policy), EVAL_BATCH, collate)
                features = torch.cat([trunk.features(b.images) for b in batches])
                np.save(made / f"{name}.npy", features.permute(0, 2, 3, 1).numpy())
        made.replace(folder)
    finally:
        shutil.rmtree(made, ignore_errors=True)


def open_material(data: BenchmarkSet, folder: Path) -> Material:
    """Everything of a set. It is read into memory before the runs fork, and shared by them."""
    images = np.sort(np.random.default_rng(0).permutation(len(data.test))[:LOCATED_IMAGES])
    labels = data.test.matrix.dense()
    regions, empty = [], 0
    for image in images.tolist():
        where = data.regions("test", image, REGION)
        for class_ in data.scored_index[labels[image, data.scored_index] == Label.POSITIVE].tolist():
            if where[class_].any():
                regions.append((image, class_, where[class_]))
            else:
                empty += 1
    val, test = (torch.from_numpy(np.load(folder / f"{name}.npy")).permute(0, 3, 1, 2) for name in ("val", "test"))
    return Material(data, _in_memory(ViewFeatures.load(folder)), val, test, tuple(regions), empty)


def plain_reader(benchmark: Setup, cache_folder: Path) -> Callable[[Material], Tensor]:
    """A function that returns the whole training photos of a set through the frozen part, [n, d, h, w].

    It reads the features of each set once.
    """

    @cache
    def plain(material: Material) -> Tensor:
        folder = features_folder(benchmark, material.data, cache_folder)
        return torch.from_numpy(np.load(folder / "plain.npy")).permute(0, 3, 1, 2)

    return plain


@torch.no_grad()
def fixed_views(above: Above, plain: Tensor, sampler: EpochSampler, labels: LabelMatrix) -> StoredViews:
    """The whole photos through the blocks of `above`, pooled, for stages that solve the head."""
    above.eval()
    pooled = torch.cat([above.blocks(part).mean((2, 3), keepdim=True) for part in plain.split(64)])
    return StoredViews(ViewFeatures(pooled[None], torch.eye(2, 3).expand(1, len(pooled), 2, 3)), sampler, labels)


def _in_memory(mapped: ViewFeatures) -> ViewFeatures:
    second_view = None if mapped.second_view is None else _in_memory(mapped.second_view)
    return ViewFeatures(mapped.features.clone(), mapped.views.clone(), second_view)


def _photos(table: LabelTable) -> PhotoFolder:
    assert table.root is not None
    return PhotoFolder(table.root, table.images)
