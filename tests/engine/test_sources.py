"""Cached views of a frozen trunk: the same run as without a cache, kept and shared without a change."""

from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pytest
import torch
from PIL import Image
from torch import nn

from fewtags.config.sections import StageConfig
from fewtags.engine.distributed import make_accelerator
from fewtags.engine.events import EpochEnded
from fewtags.engine.fit import Fit, FitConfig
from fewtags.engine.sources import (
    CachePlan,
    StoredViews,
    ViewFeatures,
    fill_views,
    head_inputs,
    plan_cache,
)
from fewtags.errors import CheckpointError, ConfigError
from fewtags.labels import Label, LabelMatrix, Locations
from fewtags.nets.freezing import freeze
from fewtags.nets.pool import Pool
from fewtags.nets.spatial import HeadPlan, SpatialHead, SpatialNet
from fewtags.objectives.base import Problem
from fewtags.objectives.expected_negative import ExpectedNegative
from fewtags.objectives.fixmatch import FixMatch
from fewtags.photos.augment import SquareCrop
from fewtags.photos.augment_fixmatch import Strong
from fewtags.photos.dataset import EvalSet, PhotoFolder, TrainSet
from fewtags.photos.loader import Collate, EpochSampler, EvalLoader, TrainLoader
from fewtags.stores.shard import Shard

SAMPLES, CLASSES, SIZE, VIEWS, DIM = 11, 3, 16, 2, 6
COLLATE = Collate((0.5, 0.5, 0.5), (0.25, 0.25, 0.25))


def make_net():
    """BatchNorm with statistics of its own, and dropout: both must hold still for a cache to be exact."""
    with torch.random.fork_rng():
        torch.manual_seed(0)
        norm = nn.BatchNorm2d(DIM)
        nn.init.normal_(norm.running_mean)
        nn.init.uniform_(norm.running_var, 0.5, 2.0)
        body = nn.Sequential(nn.Conv2d(3, DIM, 4, 4), norm, nn.ReLU(), nn.Dropout(0.5))
    return SpatialNet(body, SpatialHead(DIM, CLASSES))


@dataclass
class Scene:
    photos: PhotoFolder
    labels: LabelMatrix

    def loader(self, views_cycle=VIEWS, *, view_seed=0, order_seed=0, shard=None, second_view=None):
        shard = shard or Shard()
        data = TrainSet(
            photos=self.photos,
            labels=self.labels,
            policy=SquareCrop(SIZE),
            seed=view_seed,
            views_cycle=views_cycle,
            second_view=second_view,
        )
        return TrainLoader(data, EpochSampler(SAMPLES, 4, order_seed, shard.rank, shard.world), COLLATE)


@pytest.fixture(scope="module")
def scene(tmp_path_factory):
    """Noise photos of different sizes, one positive each."""
    root, rng = tmp_path_factory.mktemp("photos"), np.random.default_rng(0)
    for n in range(SAMPLES):
        Image.fromarray(rng.integers(0, 256, (20 + n, 30 - n, 3), np.uint8)).save(root / f"{n}.png")
    dense = np.full((SAMPLES, CLASSES), Label.UNKNOWN, np.int8)
    dense[np.arange(SAMPLES), rng.integers(CLASSES, size=SAMPLES)] = Label.POSITIVE
    return Scene(PhotoFolder(root, pa.array([f"{n}.png" for n in range(SAMPLES)])), LabelMatrix.from_dense(dense))


def filled(scene, dtype=torch.float32, shard=None):
    net = make_net()
    freeze(net, "head")
    loader = scene.loader(shard=shard)
    return fill_views(net, loader, CachePlan(VIEWS, dtype, 0), shard=shard)


def train(scene, make_source, *, cached, objective=None):
    """Losses of every epoch, weights and stores of a frozen-trunk run, of EN + SCL unless another one is given."""
    net = make_net()
    freeze(net, "head")
    stages = (
        StageConfig(name="warmup", epochs=2, lr=0.05, trainable="head", warmup=True),
        StageConfig(name="main", epochs=3, lr=0.02, trainable="head"),
    )
    config = FitConfig(stages=stages, batchnorm_eval=True)
    objective = objective or ExpectedNegative(positives_per_image=1.5, cl_weight=0.5, scl_weight=1.0)
    problem = Problem(
        labels=scene.labels, grid=(SIZE // 4, SIZE // 4), warmup_epochs=config.warmup_epochs, epochs=config.epochs
    )
    accelerator = make_accelerator(cpu=True)
    model = net.head if cached else net
    fit = Fit(net, objective, make_source(net), config, problem, accelerator=accelerator, model=model)
    losses = [event.record["train/loss"] for event in fit.run() if isinstance(event, EpochEnded)]
    return losses, net.state_dict(), {name: dict(part.state_dict()) for name, part in fit.parts.items()}


def cached_source(scene, second_view=None):
    def source(net):
        loader = scene.loader(second_view=second_view)
        return StoredViews(fill_views(net, loader, CachePlan(VIEWS, torch.float32, 0)), loader.sampler, scene.labels)

    return source


def test_cached_run_equals_uncached_run(scene):
    """5 epochs over 2 views: every view is used at least twice, in batches of another make-up than when it was cached.

    Only the order of float32 sums may differ: 16 cells and 18 weights, so 1e-6 of values near 1.
    """
    losses, weights, parts = train(scene, cached_source(scene), cached=True)
    expected_losses, expected_weights, expected_parts = train(scene, lambda _: scene.loader(), cached=False)
    np.testing.assert_allclose(losses, expected_losses, rtol=1e-5)
    for name, value in weights.items():
        torch.testing.assert_close(value, expected_weights[name], rtol=1e-5, atol=1e-6)
    scores = parts["scores"]["values"], expected_parts["scores"]["values"]
    torch.testing.assert_close(*scores, rtol=1e-5, atol=1e-6)
    levels = [p["heatmaps"]["values"].int() for p in (parts, expected_parts)]
    assert (levels[0] - levels[1]).abs().max() <= 1  # a rounding error may lie on the border of two of the 256 levels
    assert len(set(losses)) == 5


def fixmatch():
    return FixMatch(pseudo_from=1, pseudo_fill="unknown", positive_from=0.5, negative_to=0.49, uncertainty_views=2,
                    uncertain_positive=1.0, uncertain_negative=1.0)  # fmt: skip


def test_cached_run_with_second_views_equals_an_uncached_one(scene):
    """View v goes with second view v in both; to rounding, as above.

    A cell whose mean probability is within 1e-6 of a limit could be chosen in one run and not in the other. None is.
    """
    second_view = Strong()
    losses, weights, parts = train(scene, cached_source(scene, second_view), cached=True, objective=fixmatch())
    source = scene.loader(second_view=second_view)
    expected_losses, expected_weights, expected_parts = train(
        scene, lambda _: source, cached=False, objective=fixmatch()
    )
    np.testing.assert_allclose(losses, expected_losses, rtol=1e-5)
    for name, value in weights.items():
        torch.testing.assert_close(value, expected_weights[name], rtol=1e-5, atol=1e-6)
    assert torch.equal(parts["pseudo_labels"]["values"], expected_parts["pseudo_labels"]["values"])
    assert (parts["pseudo_labels"]["values"] != Label.UNKNOWN).any()
    assert len(set(losses)) == 5


def test_second_views_are_cached_beside_the_others(scene, tmp_path):
    """Row i of second view v is what the trunk makes of the second view of sample i in epoch v; from disk, too."""
    net, loader = make_net().eval(), scene.loader(second_view=Strong())
    cache = fill_views(net, loader, CachePlan(VIEWS, torch.float32, 0))
    torch.testing.assert_close(cache.features, filled(scene).features, rtol=1e-6, atol=1e-6)
    cache.save(tmp_path)
    for kept in (cache, ViewFeatures.load(tmp_path)):
        source = StoredViews(kept, EpochSampler(SAMPLES, 4), scene.labels)
        for epoch in range(3):
            for stored, batch in zip(source.batches(epoch), loader.batches(epoch), strict=True):
                with torch.no_grad():
                    expected = net.features(batch.second_view.images)
                torch.testing.assert_close(stored.second_view.images, expected, rtol=1e-6, atol=1e-6)
                assert torch.equal(stored.second_view.views, batch.second_view.views)
                assert not torch.equal(stored.second_view.views, stored.views)
    assert filled(scene).second_view is None


def test_uncached_run_without_cycle_differs(scene):
    """The equality above is not for want of randomness: with fresh crops in epochs 2 to 4 the run is another one."""
    losses, *_ = train(scene, lambda _: scene.loader(), cached=False)
    fresh, *_ = train(scene, lambda _: scene.loader(views_cycle=None), cached=False)
    np.testing.assert_allclose(losses[:2], fresh[:2], rtol=1e-6)
    assert abs(losses[2] - fresh[2]) > 1e-4


def test_filled_features_are_those_of_each_view(scene):
    """Row i of view v is what the trunk, in eval mode, makes of sample i in epoch v."""
    cache, net = filled(scene), make_net().eval()
    assert cache.count == VIEWS
    for view in range(VIEWS):
        for batch in scene.loader().batches(view):
            with torch.no_grad():
                expected = net.features(batch.images)
            torch.testing.assert_close(cache.features[view][batch.index], expected, rtol=1e-6, atol=1e-6)
            assert torch.equal(cache.views[view][batch.index], batch.views)


def test_stored_views_with_other_labels_and_order(scene):
    """Features do not depend on labels and order: a run may bring its own, and finds each image's own features."""
    cache = filled(scene)
    dense = np.full((SAMPLES, CLASSES), Label.NEGATIVE, np.int8)
    sampler = EpochSampler(SAMPLES, 3, seed=5)
    source = StoredViews(cache, sampler, LabelMatrix.from_dense(dense))
    assert source.steps_per_epoch == 4
    for epoch in (0, 3):
        batches = list(source.batches(epoch))
        assert [b.index.tolist() for b in batches] == [[i for _, i in pairs] for pairs in sampler.batches(epoch)]
        for batch in batches:
            assert torch.equal(batch.images, cache.features[epoch % VIEWS][batch.index])
            assert torch.equal(batch.views, cache.views[epoch % VIEWS][batch.index])
            assert (batch.labels == Label.NEGATIVE).all()


def test_batches_from_the_middle(scene):
    source = cached_source(scene)(make_net())
    every, rest = list(source.batches(1)), list(source.batches(1, 2))
    assert source.steps_per_epoch == len(every) == len(rest) + 2
    for a, b in zip(every[2:], rest, strict=True):
        assert torch.equal(a.images, b.images)
        assert torch.equal(a.index, b.index)


def test_two_processes_hold_what_one_holds(scene):
    """Rank r of 2 owns the samples r, r + 2, ...: its rows are those of a single process, in that order."""
    whole = filled(scene)
    for rank in range(2):
        part = filled(scene, shard=Shard(rank, 2))
        torch.testing.assert_close(part.features, whole.features[:, rank::2], rtol=1e-6, atol=1e-6)
        assert torch.equal(part.views, whole.views[:, rank::2])
        shard = Shard(rank, 2)
        source = StoredViews(part, EpochSampler(SAMPLES, 4, 0, rank, 2), scene.labels, shard=shard)
        for batch in source.batches(1):
            torch.testing.assert_close(batch.images, whole.features[1][batch.index], rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
def test_save_and_load(scene, tmp_path, dtype):
    cache = filled(scene, dtype)
    cache.save(tmp_path / "new" / "folder")
    again = ViewFeatures.load(tmp_path / "new" / "folder")
    assert again.features.dtype == dtype
    assert torch.equal(again.features, cache.features)
    assert torch.equal(again.views, cache.views)
    assert sorted(p.name for p in (tmp_path / "new" / "folder").iterdir()) == ["features.npy", "views.npy"]
    again.features[0, 0] = -1  # copy on write
    assert torch.equal(ViewFeatures.load(tmp_path / "new" / "folder").features, cache.features)


def test_batches_are_float32_and_channels_last(scene):
    source = StoredViews(filled(scene, torch.float16), EpochSampler(SAMPLES, 4), scene.labels)
    images = next(source.batches(0)).images
    assert images.dtype == torch.float32
    assert images.is_contiguous(memory_format=torch.channels_last)


def test_load_damaged(scene, tmp_path):
    with pytest.raises(CheckpointError, match=r"cached views in .* cannot be read \(.*\); delete the folder\."):
        ViewFeatures.load(tmp_path)
    filled(scene).save(tmp_path)
    (tmp_path / "features.npy").write_bytes((tmp_path / "features.npy").read_bytes()[:-1])
    with pytest.raises(CheckpointError, match="cannot be read"):
        ViewFeatures.load(tmp_path)


def test_tick_counts_every_view_of_every_image(scene):
    told = []
    net = make_net()
    fill_views(net, scene.loader(), CachePlan(VIEWS, torch.float32, 0), tick=lambda done, of: told.append((done, of)))
    assert told[-1] == (VIEWS * SAMPLES, VIEWS * SAMPLES)
    assert [done for done, _ in told] == sorted(done for done, _ in told)


@pytest.mark.parametrize(
    ("plan", "shape"),
    [
        pytest.param(HeadPlan(), (SAMPLES, DIM, 1, 1), id="pooled first"),
        pytest.param(HeadPlan(kernel=3), (SAMPLES, DIM, SIZE // 4, SIZE // 4), id="a 3x3 kernel needs all cells"),
        pytest.param(HeadPlan(pool=Pool("max")), (SAMPLES, DIM, SIZE // 4, SIZE // 4), id="so does the maximum"),
    ],
)
def test_head_inputs_give_the_logits(scene, plan, shape):
    net = SpatialNet(make_net().backbone, SpatialHead(DIM, CLASSES, plan=plan))
    loader = EvalLoader(EvalSet(scene.photos, scene.labels, SquareCrop(SIZE)), 4, COLLATE)
    inputs = head_inputs(net, loader, torch.device("cpu"))
    assert inputs.shape == shape
    with torch.no_grad():
        expected = torch.cat([net(batch.images).logits for batch in loader])
        torch.testing.assert_close(net.head.predict_logits(inputs), expected, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("kernel", [1, 3])
def test_a_process_without_a_photo_has_no_logits(scene, kernel):
    net = SpatialNet(make_net().backbone, SpatialHead(DIM, CLASSES, plan=HeadPlan(kernel)))
    one = EvalSet(
        PhotoFolder(scene.photos.root, scene.photos.keys[:1]), scene.labels.subset(np.array([0])), SquareCrop(SIZE)
    )
    inputs = head_inputs(net, EvalLoader(one, 4, COLLATE, rank=1, world=2), torch.device("cpu"))
    assert net.head.predict_logits(inputs).shape == (0, CLASSES)


def test_plan_cache():
    """10 images x 3 views x 2 x 2 x 5 = 600 numbers: 2400 bytes in float32, 1200 in float16, 400 per view.

    Twice as much with second views.
    """
    features = (5, 2, 2)
    assert plan_cache(10, features, 3, 2400) == CachePlan(3, torch.float32, 2400)
    assert plan_cache(10, features, 3, 2399) == CachePlan(3, torch.float16, 1200)
    assert plan_cache(10, features, 3, 1199) == CachePlan(2, torch.float16, 800)
    assert plan_cache(10, features, 3, 4800, second_view=True) == CachePlan(3, torch.float32, 4800)
    assert plan_cache(10, features, 3, 4799, second_view=True) == CachePlan(3, torch.float16, 2400)
    assert plan_cache(10, features, 3, 2399, second_view=True) == CachePlan(2, torch.float16, 1600)
    with pytest.raises(ConfigError, match=r"^cached features of a first and a second view of 10 images take"):
        plan_cache(10, features, 3, 799, second_view=True)
    with pytest.raises(ConfigError) as error:
        plan_cache(10, features, 3, 399)
    assert str(error.value) == (
        "cached features of one view of 10 images take 0.0 GiB, more than the limit of 0.0 GiB. Raise "
        "train.cache_gib, or set train.cached_views = 0 to train without a cache."
    )


def test_cached_batches_hold_the_places_of_the_loader(scene):
    counts = np.arange(SAMPLES) % 2
    boxes = np.random.default_rng(0).random((counts.sum(), 4)).astype(np.float32)
    locations = Locations(
        np.concatenate([[0], np.cumsum(counts)]), np.arange(counts.sum(), dtype=np.int32) % CLASSES, boxes
    )
    data = TrainSet(photos=scene.photos, labels=scene.labels, policy=SquareCrop(SIZE), locations=locations)
    fresh = TrainLoader(data, EpochSampler(SAMPLES, 4), COLLATE)
    cached = StoredViews(filled(scene), fresh.sampler, scene.labels, locations=locations)
    for one, other in zip(fresh.batches(1), cached.batches(1), strict=True):
        assert all(torch.equal(a, b) for a, b in zip(one.places, other.places, strict=True))
    assert next(cached_source(scene)(make_net()).batches(0)).places is None
