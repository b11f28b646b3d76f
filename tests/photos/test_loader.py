"""From photos and labels to batches: random numbers, workers, and points and boxes."""

import multiprocessing
import pickle
from dataclasses import replace

import numpy as np
import pytest
import torch
from batches import collated
from loaded import COUNT, PLAIN, equal, indices

from fewtags.batched_views import stack_views
from fewtags.geometry import View
from fewtags.labels import Label, Locations
from fewtags.photos.augment import Jitter, ResizedCrop, SquareCrop, WholeImage
from fewtags.photos.augment_fixmatch import Strong
from fewtags.photos.augment_moco import AugPlus
from fewtags.photos.dataset import (
    AUGMENTATION,
    SECOND_VIEW,
    EvalSet,
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


def pixels_of(path, view, size):
    with open_photo(path) as photo:
        return photo.read(view, (size, size))


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
