"""From photos and labels to batches: random numbers, order, workers, errors."""

import multiprocessing
import pickle
from dataclasses import replace

import numpy as np
import pyarrow as pa
import pytest
import torch
from batches import collated
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

from fewtags.batched_views import stack_views
from fewtags.errors import ConfigError, DataError
from fewtags.geometry import View
from fewtags.labels import Label, LabelMatrix, Locations
from fewtags.photos.augment import Jitter, ResizedCrop, SquareCrop, WholeImage
from fewtags.photos.augment_fixmatch import Strong
from fewtags.photos.augment_moco import AugPlus
from fewtags.photos.dataset import (
    AUGMENTATION,
    SECOND_VIEW,
    EvalSet,
    Failure,
    PhotoFolder,
    Sample,
    TrainSet,
    read_through,
)
from fewtags.photos.decode import open_photo, read_image
from fewtags.photos.loader import Collate, EpochSampler, EvalLoader, PixelBatch, TrainLoader, make_loader
from fewtags.photos.workers import Workers
from fewtags.seeds import rng

# Python 3.12 and later warn of every fork of a process with threads.
pytestmark = pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning")

PLAIN = Collate((0.0, 0.0, 0.0), (1.0, 1.0, 1.0))
COUNT = 11


def pixels_of(path, view, size):
    with open_photo(path) as photo:
        return photo.read(view, (size, size))


@pytest.fixture(scope="module")
def photos(tmp_path_factory):
    """Eleven small photos of several shapes, one of them turned by EXIF."""
    root = tmp_path_factory.mktemp("photos")
    draw = np.random.default_rng(0)
    turned = Image.Exif()
    turned[274] = 6
    keys = [f"{'ab'[i % 2]}/{i}.{('jpg', 'png')[i % 2]}" for i in range(COUNT)]
    for i, key in enumerate(keys):
        (root / key).parent.mkdir(exist_ok=True)
        pixels = draw.integers(0, 256, (20 + i, 40 - i, 3), dtype=np.uint8)
        Image.fromarray(pixels).save(root / key, exif=turned if i == 4 else Image.Exif())
    return PhotoFolder(root, pa.array(keys))


@pytest.fixture(scope="module")
def labels():
    dense = np.random.default_rng(1).integers(-1, 2, (COUNT, 4)).astype(np.int8)
    return LabelMatrix.from_dense(dense)


@pytest.fixture(scope="module")
def data(photos, labels):
    return TrainSet(photos=photos, labels=labels, policy=SquareCrop(size=12), seed=7)


def equal(first, second):
    """Bitwise."""
    fields = ("images", "labels", "index", "views")
    pairs = [(getattr(first, name), getattr(second, name)) for name in fields]
    pairs += list(zip(first.places or (), second.places or (), strict=True))
    return all(torch.equal(*pair) for pair in pairs)


def indices(loader_or_batches):
    return [batch.index.tolist() for batch in loader_or_batches]


# Order


def test_batches_of_ten_by_four():
    """Ten samples need three batches of at most four: 4, 3, 3."""
    sampler = EpochSampler(10, 4)
    assert sampler.steps == 3
    assert [len(batch) for batch in sampler.batches(0)] == [4, 3, 3]


def test_two_ranks_of_five_by_four():
    """Even indices belong to rank 0, odd ones to rank 1: five each, 3 + 2."""
    for rank in range(2):
        batches = list(EpochSampler(10, 4, rank=rank, world=2).batches(0))
        assert [len(batch) for batch in batches] == [3, 2]
        assert sorted(index for batch in batches for _, index in batch) == list(range(rank, 10, 2))


def test_no_rank_is_left_without_a_batch():
    """Three samples on two ranks, one by one: rank 0 has two, rank 1 has one, so there can be only one step."""
    ranks = [EpochSampler(3, 1, rank=rank, world=2) for rank in range(2)]
    assert [sampler.steps for sampler in ranks] == [1, 1]
    assert [[len(batch) for batch in sampler.batches(0)] for sampler in ranks] == [[2], [1]]


samplers = st.builds(
    lambda world, more, size, seed: (world, world + more, size, seed),
    st.integers(1, 5),
    st.integers(0, 60),
    st.integers(1, 20),
    st.integers(0, 2**64 - 1),
)


@given(samplers, st.integers(0, 1000))
def test_every_sample_once_per_epoch_on_its_own_rank(case, epoch):
    world, samples, size, seed = case
    ranks = [EpochSampler(samples, size, seed, rank=rank, world=world) for rank in range(world)]
    assert len({sampler.steps for sampler in ranks}) == 1
    seen = []
    for rank, sampler in enumerate(ranks):
        batches = list(sampler.batches(epoch))
        assert len(batches) == sampler.steps
        sizes = [len(batch) for batch in batches]
        assert 1 <= min(sizes) <= max(sizes) <= min(sizes) + 1
        assert max(sizes) <= size + (size == 1)
        assert all(pair[0] == epoch for batch in batches for pair in batch)
        mine = [index for batch in batches for _, index in batch]
        assert all(index % world == rank for index in mine)
        seen += mine
    assert sorted(seen) == list(range(samples))


@given(samplers, st.integers(0, 1000), st.integers(0, 30))
def test_starting_later_gives_the_rest(case, epoch, start):
    world, samples, size, seed = case
    sampler = EpochSampler(samples, size, seed, rank=world - 1, world=world)
    assert list(sampler.batches(epoch, start)) == list(sampler.batches(epoch))[start:]


def test_epochs_and_seeds_have_their_own_order():
    orders = {
        tuple(index for batch in EpochSampler(20, 3, seed).batches(epoch) for _, index in batch)
        for seed in range(3)
        for epoch in range(3)
    }
    assert len(orders) == 9


# Samples


def test_a_sample_is_the_photo_through_its_view(data, photos, labels):
    for index in range(COUNT):
        sample = data[3, index]
        turned = read_image(photos.path(index))
        aspect = turned.shape[1] / turned.shape[0]
        assert sample.view == SquareCrop(size=12).sample(rng(7, 3, index), aspect)
        np.testing.assert_array_equal(sample.pixels, pixels_of(photos.path(index), sample.view, 12))
        np.testing.assert_array_equal(sample.labels, labels.dense()[index])
        assert sample.index == index


def test_reading_through_a_view(photos):
    """The view is asked for with the displayed aspect: photo 4 is stored 36 x 24 and displayed 24 x 36."""
    asked = []
    pixels, view = read_through(
        photos.path(4), lambda aspect: asked.append(aspect) or View.crop(0.25, 0.0, 1.0, 0.5), 8
    )
    assert asked == [24 / 36]
    assert view == View.crop(0.25, 0.0, 1.0, 0.5)
    np.testing.assert_array_equal(pixels, pixels_of(photos.path(4), view, 8))


def test_the_policy_is_told_the_displayed_aspect(photos, labels):
    """Photo 4 is stored 36 x 24 and displayed 24 x 36."""
    view = EvalSet(photos, labels, ResizedCrop(size=8))[4].view
    assert view == ResizedCrop().test_view(24 / 36)


def test_views_repeat_after_the_cycle(photos, labels):
    data = TrainSet(photos=photos, labels=labels, policy=SquareCrop(size=8), seed=1, views_cycle=3)
    views = [data[epoch, 5].view for epoch in range(7)]
    assert views[:3] == views[3:6]
    assert views[0] == views[6]
    assert len(set(views)) == 3


def test_jitter_changes_colours_not_views(data):
    jittered = replace(data, jitter=Jitter(0.5, 0.5, 0.5))
    assert jittered[0, 2].view == data[0, 2].view
    assert (jittered[0, 2].pixels != data[0, 2].pixels).any()
    np.testing.assert_array_equal(jittered[0, 2].pixels, jittered[0, 2].pixels)


def test_the_second_view_is_a_crop_of_its_own_with_other_pixels(data, photos):
    """Beside the view that is drawn without it, and drawn from the same arguments: seed, epoch, index, stream."""
    plain, both = data[2, 5], replace(data, second_view=Strong())[2, 5]
    assert both.view == plain.view
    np.testing.assert_array_equal(both.pixels, plain.pixels)
    random = rng(data.seed, 2, 5, SECOND_VIEW)
    assert both.second_view.view == data.policy.sample(random, 1.0) != both.view
    crop = pixels_of(photos.path(5), both.second_view.view, data.policy.size)
    np.testing.assert_array_equal(both.second_view.pixels, Strong()(crop, random))
    assert (both.second_view.pixels != crop).any()


def test_two_views_of_every_photo_are_drawn_from_two_streams(data, photos):
    """Any change of pixels can be either; both views have a crop and colours of their own."""
    two = replace(data, policy=ResizedCrop(16, (0.2, 1.0)), jitter=AugPlus(), second_view=AugPlus())
    for epoch, index in ((0, 4), (3, 7)):
        sample = two[epoch, index]
        assert sample.view != sample.second_view.view
        for view, stream in ((sample, AUGMENTATION), (sample.second_view, SECOND_VIEW)):
            random = rng(data.seed, epoch, index, stream)
            width, height = read_image(photos.path(index)).shape[1::-1]
            assert view.view == two.policy.sample(random, width / height)
            expected = AugPlus()(pixels_of(photos.path(index), view.view, 16), random)
            np.testing.assert_array_equal(view.pixels, expected)
    batch = collated(PLAIN, [two[1, 3], two[1, 8]])
    assert batch.images.shape == batch.second_view.images.shape == (2, 3, 16, 16)
    assert not torch.equal(batch.images, batch.second_view.images)


def test_second_views_repeat_after_the_cycle(data):
    samples = [replace(data, second_view=Strong(), views_cycle=2)[epoch, 5].second_view for epoch in range(4)]
    np.testing.assert_array_equal(samples[1].pixels, samples[3].pixels)
    assert samples[0].view == samples[2].view != samples[1].view


def test_batches_with_second_views_are_the_same_for_any_number_of_workers(data):
    sampler = EpochSampler(COUNT, 4, seed=3)
    both = replace(data, second_view=Strong())
    alone, helped = (list(TrainLoader(both, sampler, PLAIN, Workers(count)).batches(1)) for count in (0, 2))
    plain = list(TrainLoader(data, sampler, PLAIN).batches(1))
    assert len(alone) == len(helped) == len(plain) > 1
    for one, other, weak in zip(alone, helped, plain, strict=True):
        assert weak.second_view is None
        for mine in (one, other):
            assert torch.equal(mine.images, weak.images)
            assert torch.equal(mine.views, weak.views)
        for name in ("images", "views"):
            assert torch.equal(getattr(one.second_view, name), getattr(other.second_view, name)), name
        samples = [both[1, int(i)].second_view for i in one.index]
        expected = collated(PLAIN, samples)
        assert torch.equal(one.second_view.images, expected.images)
        assert torch.equal(one.second_view.views, expected.views)


def test_evaluation_sees_the_whole_photo(photos, labels):
    data = EvalSet(photos, labels, SquareCrop(size=10))
    assert len(data) == COUNT
    sample = data[2]
    assert sample.view == View.identity()
    np.testing.assert_array_equal(sample.pixels, read_image(photos.path(2), size=(10, 10)))


def test_data_sets_can_be_sent_to_other_processes(data):
    copy = pickle.loads(pickle.dumps(data))
    np.testing.assert_array_equal(copy[1, 3].pixels, data[1, 3].pixels)


# Batches


def test_pixels_are_normalised_per_channel():
    """(255 / 255 - .5) / .25 = 2; (51 / 255 - .1) / .5 = .2; (0 - .2) / .1 = -2."""
    pixels = np.uint8([[[255, 51, 0], [0, 0, 255]]])
    view = View.crop(0.0, 0.25, 0.5, 1.0)
    samples = [Sample(pixels=pixels, labels=np.int8([1, 0, -1]), index=42, view=view)]
    batch = collated(Collate((0.5, 0.1, 0.2), (0.25, 0.5, 0.1)), samples)
    expected = torch.tensor([[[[2.0, -2.0]], [[0.2, -0.2]], [[-2.0, 8.0]]]])
    torch.testing.assert_close(batch.images, expected)
    assert batch.images.is_contiguous(memory_format=torch.channels_last)
    assert batch.labels.dtype == torch.int8
    assert batch.labels.tolist() == [[Label.POSITIVE, Label.UNKNOWN, Label.NEGATIVE]]
    assert batch.index.dtype == torch.int64
    assert batch.index.tolist() == [42]
    torch.testing.assert_close(batch.views, stack_views([view]))


def test_normalisation_is_torchvisions():
    pixels = np.random.default_rng(0).integers(0, 256, (7, 5, 3), dtype=np.uint8)
    mean, std = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
    batch = collated(Collate(mean, std), [Sample(pixels=pixels, labels=np.int8([0]), index=0, view=View.identity())])
    scaled = torch.from_numpy(pixels).permute(2, 0, 1) / 255
    expected = (scaled - torch.tensor(mean).view(3, 1, 1)) / torch.tensor(std).view(3, 1, 1)
    torch.testing.assert_close(batch.images[0], expected, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("shape", [(1, 1), (16, 16), (3, 257), (65, 4)])
@pytest.mark.parametrize(
    ("mean", "std"),
    [
        ((0.0, 0.0, 0.0), (1.0, 1.0, 1.0)),
        ((0.485, 0.456, 0.406), (0.229, 0.224, 0.225)),
        ((0.48145466, 0.4578275, 0.40821073), (0.26862954, 0.26130258, 0.27577711)),
    ],
)
def test_normalisation_has_the_bits_of_float64_rounded_once(shape, mean, std):
    """Against plain numpy, channel by channel; in 16 x 16 pixels each channel has all 256 values."""
    draw = np.random.default_rng(sum(shape))
    values = np.arange(np.prod(shape)).astype(np.uint8)
    crops = [np.stack([draw.permutation(values).reshape(shape) for _ in range(3)], 2) for _ in range(3)]
    expected = np.empty((3, 3, *shape), np.float32)
    for i, crop in enumerate(crops):
        for c in range(3):
            expected[i, c] = (crop[:, :, c] / 255 - mean[c]) / std[c]
    found = Collate(mean, std).pixels(crops)
    assert found.dtype == torch.float32
    np.testing.assert_array_equal(found.numpy(), expected)


@pytest.mark.parametrize("count", [0, 2])
def test_workers_send_bytes(data, count):
    """What crosses the border between processes is uint8, of both views; normalised, it is the loader's batch."""
    both, sampler = replace(data, second_view=Strong()), EpochSampler(COUNT, 4, seed=7)
    sent = list(make_loader(both, list(sampler.batches(0)), PLAIN, Workers(count)))
    assert len(sent) == sampler.steps
    size = data.policy.size
    for one, batch in zip(sent, TrainLoader(both, sampler, PLAIN).batches(0), strict=True):
        assert isinstance(one, PixelBatch)
        for raw, final in ((one.batch, batch), (one.batch.second_view, batch.second_view)):
            assert raw.images.dtype == torch.uint8
            assert raw.images.shape == (len(batch.index), size, size, 3)
            torch.testing.assert_close(raw.images.permute(0, 3, 1, 2) / 255, final.images)
        normalised = PLAIN.normalise(one)
        assert equal(normalised, batch)
        assert torch.equal(normalised.second_view.images, batch.second_view.images)


def test_images_are_normalised_where_they_are_used(data, photos, labels):
    """The meta device has shapes alone, and is everywhere; what is not an image stays in main memory."""
    meta = torch.device("meta")
    both, sampler = replace(data, second_view=Strong()), EpochSampler(COUNT, 4, seed=7)
    whole = EvalLoader(EvalSet(photos, labels, WholeImage(size=8)), 4, PLAIN, device=meta)
    for batch in (*TrainLoader(both, sampler, PLAIN, device=meta).batches(0), *whole):
        views = (batch,) if batch.second_view is None else (batch, batch.second_view)
        for images in (view.images for view in views):
            assert images.device == meta
            assert images.dtype == torch.float32
            assert images.is_contiguous(memory_format=torch.channels_last)
        assert {batch.labels.device.type, batch.index.device.type, batch.views.device.type} == {"cpu"}


def test_a_batch_is_its_samples(data):
    batch = collated(PLAIN, [data[0, 3], data[0, 9]])
    for row, index in enumerate((3, 9)):
        sample = data[0, index]
        torch.testing.assert_close(batch.images[row], torch.from_numpy(sample.pixels).permute(2, 0, 1) / 255)
        assert batch.labels[row].tolist() == sample.labels.tolist()
        torch.testing.assert_close(batch.views[row], torch.tensor(sample.view.matrix).view(2, 3))
    assert batch.index.tolist() == [3, 9]


# Loaders


def test_training_batches_follow_the_sampler(data):
    sampler = EpochSampler(COUNT, 4, seed=7)
    loader = TrainLoader(data, sampler, PLAIN)
    assert loader.steps_per_epoch == 3
    for epoch in (0, 5):
        assert indices(loader.batches(epoch)) == [[index for _, index in batch] for batch in sampler.batches(epoch)]
    for batch, pairs in zip(loader.batches(5), sampler.batches(5), strict=True):
        assert equal(batch, collated(PLAIN, [data[pair] for pair in pairs]))


def test_workers_change_nothing(data):
    """Bitwise: two epochs, a resume, an epoch left in the middle, and the first epoch again, with the same workers."""
    sampler = EpochSampler(COUNT, 3, seed=7)
    alone, helped = TrainLoader(data, sampler, PLAIN), TrainLoader(data, sampler, PLAIN, Workers(2))
    for epoch, start in ((0, 0), (1, 0), (1, 2), (0, 0)):
        batches = list(zip(alone.batches(epoch, start), helped.batches(epoch, start), strict=True))
        assert len(batches) == sampler.steps - start
        assert all(equal(*pair) for pair in batches)
        next(helped.batches(9))


def test_resume_equals_the_uninterrupted_epoch(data):
    loader = TrainLoader(data, EpochSampler(COUNT, 3, seed=7), PLAIN)
    whole, rest = list(loader.batches(2)), list(loader.batches(2, 1))
    assert len(whole) == len(rest) + 1
    assert all(equal(*pair) for pair in zip(whole[1:], rest, strict=True))


@pytest.fixture
def spawning():
    """New processes begin with nothing, as they do on macOS and Windows."""
    before = multiprocessing.get_start_method(allow_none=True)
    multiprocessing.set_start_method("spawn", force=True)
    yield
    multiprocessing.set_start_method(before, force=True)


@pytest.mark.slow
@pytest.mark.usefixtures("spawning")
def test_spawned_workers_change_nothing(data, photos, labels):
    sampler = EpochSampler(COUNT, 6, seed=7)
    spawned = TrainLoader(data, sampler, PLAIN, Workers(1))
    for pair in zip(spawned.batches(0), TrainLoader(data, sampler, PLAIN).batches(0), strict=True):
        assert equal(*pair)


def test_global_generators_are_left_alone(data):
    before, numpy_before = torch.get_rng_state(), np.random.get_state()[1].copy()  # noqa: NPY002
    for workers in (None, Workers(1)):
        list(TrainLoader(data, EpochSampler(COUNT, 4), PLAIN, workers).batches(0))
    assert torch.equal(torch.get_rng_state(), before)
    np.testing.assert_array_equal(np.random.get_state()[1], numpy_before)  # noqa: NPY002


@pytest.mark.parametrize("workers", [None, Workers(2)])
@pytest.mark.parametrize(("world", "size"), [(1, 4), (2, 4), (3, 1), (3, 100)])
def test_evaluation_takes_every_photo_once_in_order(photos, labels, world, size, workers):
    data = EvalSet(photos, labels, WholeImage(size=8))
    seen = []
    for rank in range(world):
        loader = EvalLoader(data, size, PLAIN, workers if size == 4 else None, rank=rank, world=world)
        batches = indices(loader)
        mine = list(range(rank, COUNT, world))
        assert batches == [mine[i : i + size] for i in range(0, len(mine), size)]
        assert len(loader) == len(batches)
        seen += [index for batch in batches for index in batch]
    assert sorted(seen) == list(range(COUNT))


def test_evaluation_of_a_rank_without_photos(photos, labels):
    data = EvalSet(photos, labels, WholeImage(size=8))
    assert list(EvalLoader(data, 4, PLAIN, rank=COUNT, world=COUNT + 1)) == []


def test_evaluation_can_be_repeated(photos, labels):
    loader = EvalLoader(EvalSet(photos, labels, WholeImage(size=8)), 4, PLAIN)
    assert all(equal(*pair) for pair in zip(loader, loader, strict=True))


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_batches_come_to_a_gpu_from_pinned_memory_with_the_same_bits(data):
    data, sampler, gpu = replace(data, second_view=Strong()), EpochSampler(COUNT, 4), torch.device("cuda")
    pinned = Workers(1, pin_memory=True)
    assert all(one.batch.images.is_pinned() for one in make_loader(data, list(sampler.batches(0)), PLAIN, pinned))
    here = TrainLoader(data, sampler, PLAIN).batches(0)
    for batch, expected in zip(TrainLoader(data, sampler, PLAIN, pinned, gpu).batches(0), here, strict=True):
        assert batch.images.device.type == batch.second_view.images.device.type == "cuda"
        assert batch.views.is_pinned()
        assert torch.equal(batch.images.cpu(), expected.images)
        assert torch.equal(batch.second_view.images.cpu(), expected.second_view.images)


# Errors


@pytest.fixture
def broken(photos, tmp_path):
    """The same photos, number 6 of which is cut off."""
    for index in range(COUNT):
        path = tmp_path / photos.keys[index].as_py()
        path.parent.mkdir(exist_ok=True)
        content = photos.path(index).read_bytes()
        path.write_bytes(content[: len(content) // 2] if index == 6 else content)
    return PhotoFolder(tmp_path, photos.keys)


@pytest.mark.parametrize("workers", [None, Workers(2)], ids=["alone", "two workers"])
def test_an_unreadable_photo_is_named(broken, labels, workers):
    """torch would put a traceback into the message of an error that comes from a worker."""
    with pytest.raises(DataError) as expected:
        read_image(broken.path(6))
    loader = TrainLoader(
        TrainSet(photos=broken, labels=labels, policy=SquareCrop(size=8)), EpochSampler(COUNT, 4), PLAIN, workers
    )
    with pytest.raises(DataError) as caught:
        list(loader.batches(0))
    assert str(caught.value) == str(expected.value)
    assert str(caught.value).startswith(f"{broken.path(6)}: ")
    with pytest.raises(DataError) as caught:
        list(EvalLoader(EvalSet(broken, labels, WholeImage(size=8)), 4, PLAIN, workers))
    assert str(caught.value) == str(expected.value)


def test_batches_before_the_unreadable_photo_are_good(broken, labels):
    loader = EvalLoader(EvalSet(broken, labels, WholeImage(size=8)), 4, PLAIN)
    assert next(iter(loader)).index.tolist() == [0, 1, 2, 3]


def test_a_data_set_gives_a_failure_in_place_of_a_sample(broken, labels):
    failure = TrainSet(photos=broken, labels=labels, policy=SquareCrop(size=8))[0, 6]
    assert isinstance(failure, Failure)
    assert collated(PLAIN, [EvalSet(broken, labels, WholeImage(size=8))[1], failure]) is failure


def test_the_pixel_limit_holds(photos, labels, monkeypatch):
    monkeypatch.setenv("FEWTAGS_PIXEL_LIMIT", "100")
    failure = EvalSet(photos, labels, WholeImage(size=8))[0]
    assert isinstance(failure, Failure)
    assert "more than the limit of 0.0 million" in failure.message


class Bug:
    """A policy with a mistake in it, which is not the user's to mend."""

    size = 8

    def sample(self, rng, aspect):
        raise KeyError("a bug")


@pytest.mark.parametrize("workers", [None, Workers(1)])
def test_our_own_bugs_keep_their_type(photos, labels, workers):
    loader = TrainLoader(TrainSet(photos=photos, labels=labels, policy=Bug()), EpochSampler(COUNT, 4), PLAIN, workers)
    with pytest.raises(KeyError, match="a bug"):
        list(loader.batches(0))


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: EpochSampler(10, 0), "batch size 0 must be 1 or more."),
        (lambda: EpochSampler(0, 4), "0 training images cannot be shared by 1 processes; add images or use fewer."),
        (
            lambda: EpochSampler(3, 4, rank=1, world=4),
            "3 training images cannot be shared by 4 processes; add images or use fewer.",
        ),
    ],
)
def test_impossible_settings(make, message):
    with pytest.raises(ConfigError) as caught:
        make()
    assert str(caught.value) == message


def test_impossible_evaluation_batches(photos, labels):
    with pytest.raises(ConfigError, match=r"batch size 0 must be 1 or more\."):
        EvalLoader(EvalSet(photos, labels, WholeImage(size=8)), 0, PLAIN)


@pytest.mark.parametrize("count", [0, 2])
def test_points_and_boxes_travel_with_their_images(photos, labels, count):
    """In every batch: the places of its images, in the image frame, at their row; photo i has i mod 3 of them."""
    many = np.arange(COUNT) % 3
    boxes = np.random.default_rng(2).random((many.sum(), 4)).astype(np.float32)
    classes = np.arange(many.sum(), dtype=np.int32)
    locations = Locations(np.concatenate([[0], np.cumsum(many)]), classes, boxes)
    data = TrainSet(photos=photos, labels=labels, policy=SquareCrop(size=8), locations=locations)
    loader = TrainLoader(data, EpochSampler(COUNT, 4), PLAIN, Workers(count))
    seen = 0
    for batch in loader.batches(0):
        np.testing.assert_array_equal(np.bincount(batch.places.row, minlength=len(batch.index)), many[batch.index])
        owner = np.searchsorted(locations.indptr, batch.places.classes.numpy(), side="right") - 1
        np.testing.assert_array_equal(owner, batch.index[batch.places.row])
        np.testing.assert_array_equal(batch.places.boxes, boxes[batch.places.classes])
        seen += len(batch.places.row)
    assert seen == len(locations)
