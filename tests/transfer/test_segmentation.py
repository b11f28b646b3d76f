from dataclasses import replace

import numpy as np
import pytest
import torch
from PIL import Image
from torch import nn

from fewtags.engine.encoder_file import EncoderInfo
from fewtags.errors import ConfigError, DataError, TrainingError
from fewtags.nets.encoder import create_encoder
from fewtags.nets.spatial import Preprocessing
from fewtags.transfer.segmentation import (
    GREY,
    IGNORE,
    SegmentNet,
    SegmentSettings,
    at_stride,
    cityscapes_pairs,
    evaluate_segmentation,
    folder_pairs,
    train_segmentation,
)
from fewtags.transfer.segmentation import _crop as crop
from fewtags.transfer.segmentation import _cross_entropy as cross_entropy

COLOURS = np.array([(220, 30, 30), (30, 60, 220)], np.uint8)
TINY = SegmentSettings(iterations=30, batch_size=2, crop=(64, 64), scale=(1.0, 1.0), lr=0.05, head="fcn")


def save(path, array):
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(array).save(path)


def halves(across, height=64, width=64):
    """Class 1 in the right, or the lower, half."""
    mask = np.zeros((height, width), np.uint8)
    if across:
        mask[:, width // 2 :] = 1
    else:
        mask[height // 2 :] = 1
    return mask


@pytest.fixture
def pairs(tmp_path):
    for n, across in enumerate((True, False)):
        mask = halves(across)
        save(tmp_path / "images" / f"{n}.png", COLOURS[mask])
        save(tmp_path / "masks" / f"{n}.png", mask)
    return folder_pairs(tmp_path / "images", tmp_path / "masks", 2)


@pytest.fixture
def info():
    return EncoderInfo(
        backbone="test_resnet",
        size=64,
        mean=(0.5,) * 3,
        std=(0.5,) * 3,
        method={"name": "none"},
    )


# --- settings


def test_the_rate_falls_as_mmsegmentation_says():
    """0.0099 * (1 - t) ** 0.9 + 0.0001 at t = 0, 1/2 and 1."""
    settings = SegmentSettings(iterations=100)
    assert settings.rate(0) == pytest.approx(0.01)
    assert settings.rate(50) == pytest.approx(0.0099 * 0.5358867 + 0.0001, rel=1e-6)
    assert settings.rate(100) == pytest.approx(0.0001)


def test_settings_that_cannot_be():
    with pytest.raises(ConfigError, match=r"^the deeplab head normalises over a batch and needs a batch size of 2 or"):
        SegmentSettings(batch_size=1)
    with pytest.raises(
        ConfigError, match=r"^the scale goes from a smaller to a larger factor above 0, got \(2, 1\)\.$"
    ):
        SegmentSettings(scale=(2, 1))
    with pytest.raises(ConfigError, match=r"^the learning rate must be above 0, got 0\.$"):
        SegmentSettings(lr=0.0)


# --- data


def test_folders_pair_names_and_leave_ignored_values_out(tmp_path):
    mask = np.array([[0, 1, 11], [2, 255, 1]], np.uint8)
    save(tmp_path / "images" / "a.jpg", np.zeros((2, 3, 3), np.uint8))
    save(tmp_path / "masks" / "a.png", mask)
    pairs = folder_pairs(tmp_path / "images", tmp_path / "masks", 3, [11, 255])
    pixels, truth = pairs.read(0)
    assert pixels.shape == (2, 3, 3)
    assert truth.tolist() == [[0, 1, IGNORE], [2, IGNORE, 1]]


def test_a_size_reduces_photos_and_not_masks(tmp_path):
    save(tmp_path / "images" / "a.png", np.full((8, 12, 3), 50, np.uint8))
    save(tmp_path / "masks" / "a.png", np.zeros((8, 12), np.uint8))
    pixels, truth = folder_pairs(tmp_path / "images", tmp_path / "masks", 2, size=(4, 6)).read(0)
    assert (pixels.shape, truth.shape) == ((4, 6, 3), (8, 12))


def test_cityscapes_as_it_is_unpacked(tmp_path):
    """labelIds 7 (road), 33 (bicycle) and 26 (car) are trainIds 0, 18 and 13; 0, 4 and 18 are not evaluated."""
    save(tmp_path / "leftImg8bit/train/ulm/ulm_0_leftImg8bit.png", np.zeros((2, 3, 3), np.uint8))
    save(tmp_path / "gtFine/train/ulm/ulm_0_gtFine_labelIds.png", np.array([[7, 33, 0], [26, 4, 18]], np.uint8))
    pairs = cityscapes_pairs(tmp_path, "train")
    assert (len(pairs), pairs.classes) == (1, 19)
    assert pairs.read(0)[1].tolist() == [[0, 18, IGNORE], [13, IGNORE, IGNORE]]
    with pytest.raises(
        DataError, match=r"/leftImg8bit/val holds no CITY/\*_leftImg8bit\.png; unpack leftImg8bit there"
    ):
        cityscapes_pairs(tmp_path, "val")
    (tmp_path / "gtFine/train/ulm/ulm_0_gtFine_labelIds.png").unlink()
    with pytest.raises(DataError, match=r"ulm_0_gtFine_labelIds\.png is not there, the mask of ulm_0_leftImg8bit\.png"):
        cityscapes_pairs(tmp_path, "train")


def test_pairs_that_do_not_fit(tmp_path):
    images, masks = tmp_path / "images", tmp_path / "masks"
    with pytest.raises(DataError, match=r"images holds no photo; give a folder of photos, and one of masks with the"):
        folder_pairs(images, masks, 2)
    save(images / "a.png", np.zeros((4, 6, 3), np.uint8))
    with pytest.raises(DataError, match=r"a\.png has no mask of that name in .*masks\.$"):
        folder_pairs(images, masks, 2)
    save(masks / "a.png", np.zeros((6, 4), np.uint8))
    pairs = folder_pairs(images, masks, 2)
    with pytest.raises(
        DataError, match=r"a\.png is 4 x 6 and its photo 6 x 4 pixels; give masks of the photos' size\.$"
    ):
        pairs.read(0)
    save(masks / "a.png", np.full((4, 6), 2, np.uint8))
    with pytest.raises(DataError, match=r"a\.png holds the value 2, of 2 classes 0 to 1; say how many classes there"):
        pairs.read(0)
    save(masks / "a.png", np.zeros((4, 6, 3), np.uint8))
    with pytest.raises(DataError, match=r"a\.png: expected one channel of 8 bits, class numbers, got RGB\.$"):
        pairs.read(0)
    (masks / "a.png").write_text("no image")
    with pytest.raises(DataError, match=r"a\.png: the mask cannot be read as PNG \("):
        pairs.read(0)


def test_a_crop_keeps_pixels_and_classes_together():
    """The photo holds its class as its colour, so that any crop, scale and mirror must keep them equal."""
    truth = np.arange(8 * 10, dtype=np.uint8).reshape(8, 10) // 3
    pixels = np.repeat(truth[:, :, None], 3, 2)
    settings = SegmentSettings(crop=(5, 4), scale=(1.0, 1.0))
    mirrored = 0
    for seed in range(20):
        out, labels = crop(pixels, truth, settings, np.random.default_rng(seed))
        assert labels.shape == (5, 4)
        assert np.array_equal(out[:, :, 0], labels)
        mirrored += labels[0, 0] > labels[0, -1]
    assert 0 < mirrored < 20


def test_beyond_the_photo_nothing_counts():
    out, labels = crop(
        np.zeros((2, 3, 3), np.uint8), np.ones((2, 3), np.uint8), SegmentSettings(crop=(4, 4), scale=(1.0, 1.0)),
        np.random.default_rng(0),
    )  # fmt: skip
    assert (labels == 1).sum() == 6
    assert (labels[2:] == IGNORE).all()
    assert np.array_equal(out[labels == IGNORE], np.full((10, 3), GREY))


# --- net and loss


def test_the_loss_is_the_mean_over_pixels_that_count():
    """Logits 0 and log 3: cross-entropy log 4 for class 0 and log 4/3 for class 1; the ignored pixel adds nothing."""
    logits = torch.tensor([0.0, np.log(3)]).view(1, 2, 1, 1).expand(1, 2, 1, 3)
    loss = cross_entropy(logits, torch.tensor([[[0, 1, IGNORE]]]))
    assert loss.item() == pytest.approx((np.log(4) + np.log(4 / 3)) / 2, abs=1e-6)
    assert cross_entropy(logits, torch.full((1, 1, 3), IGNORE)).item() == 0


def test_an_encoder_at_another_stride_has_the_same_weights(encoder, info):
    finer = at_stride(encoder, info, 8)
    assert encoder.grid((64, 64)) == (2, 2)
    assert finer.grid((64, 64)) == (8, 8)
    assert all(torch.equal(a, b) for a, b in zip(encoder.parameters(), finer.parameters(), strict=True))
    assert not any(a is b for a, b in zip(encoder.parameters(), finer.parameters(), strict=True))


def test_an_encoder_without_dilation_is_refused():
    vit = create_encoder("test_vit", weights="none", size=160)
    described = EncoderInfo(backbone="test_vit", size=160, mean=(0.5,) * 3, std=(0.5,) * 3, method={})
    with pytest.raises(
        ConfigError,
        match=r"^'test_vit' has a fixed output stride; leave output_stride unset\. \(transfer segment: --outp",
    ):
        at_stride(vit, described, 8)


@pytest.mark.parametrize("head", ["deeplab", "fcn"])
def test_logits_have_the_size_of_the_images_and_the_second_head_is_for_training(encoder, head):
    net = SegmentNet(encoder, 5, head, auxiliary=True, seed=0)
    images = torch.zeros(2, 3, 64, 96)
    main, extra = net.train()(images)
    assert main.shape == extra.shape == (2, 5, 64, 96)
    # FCNHead: a quarter of its input's channels; layer3 of this encoder has 192.
    assert net.auxiliary[0].in_channels == 192
    assert net.eval()(images)[1] is None
    assert SegmentNet(encoder, 5, head, auxiliary=False, seed=0).train()(images)[1] is None


def test_a_net_without_a_grid_of_its_own_has_a_second_head_too():
    vit = create_encoder("test_vit", weights="none", size=64)
    main, extra = SegmentNet(vit, 3, "fcn", auxiliary=True, seed=0).train()(torch.zeros(2, 3, 64, 64))
    assert main.shape == extra.shape == (2, 3, 64, 64)


# --- training and measuring


def trained(pairs, info, cpu, settings):
    encoder = create_encoder("test_resnet", weights="none", size=64, seed=1)
    net = SegmentNet(at_stride(encoder, info, 8), 2, settings.head, auxiliary=True, seed=settings.seed)
    return net, list(train_segmentation(net, pairs, settings, cpu))


def test_two_photos_are_learnt(pairs, info, cpu):
    encoder = create_encoder("test_resnet", weights="none", size=64, seed=1)
    before = evaluate_segmentation(SegmentNet(encoder, 2, "fcn", auxiliary=False, seed=0), pairs, cpu)
    net, losses = trained(pairs, info, cpu, TINY)
    after = evaluate_segmentation(net, pairs, cpu)
    assert losses[-1] < losses[0] / 2
    assert before.mean_iou < 0.6
    assert after.mean_iou > 0.85


def test_the_same_seed_gives_the_same_losses(pairs, info, cpu):
    short = replace(TINY, iterations=3, head="deeplab", scale=(0.5, 2.0))
    first = trained(pairs, info, cpu, short)[1]
    torch.rand(7)  # the global generator has nothing to say, nor has the number of workers
    assert trained(pairs, info, cpu, replace(short, workers=1))[1] == first
    assert trained(pairs, info, cpu, replace(short, seed=1))[1] != first


def test_a_loss_that_is_no_number_ends_the_training(pairs, info, cpu):
    with pytest.raises(TrainingError, match=r"^the loss of step \d+ is (nan|inf); lower the learning rate\.$"):
        trained(pairs, info, cpu, replace(TINY, lr=1e20, final_lr=1e20))


class ByColour(nn.Module):
    """Says class 1 where blue is above red; counts the sizes it was asked about."""

    def __init__(self):
        super().__init__()
        self.encoder = nn.Module()
        self.encoder.preprocessing = Preprocessing()
        self.sizes = []

    def forward(self, images):
        self.sizes.append(tuple(images.shape[2:]))
        blue = images[:, 2] - images[:, 0]
        return torch.stack([-blue, blue], 1), None


def test_photos_are_measured_whole_and_what_is_padded_does_not_count(tmp_path, cpu):
    """40 x 50 pixels are padded to 64 x 64; the net is right everywhere in the photo and wrong nowhere else."""
    mask = halves(True, 40, 50)
    save(tmp_path / "images" / "a.png", COLOURS[mask])
    mask[0] = 9
    save(tmp_path / "masks" / "a.png", mask)
    net = ByColour()
    report = evaluate_segmentation(net, folder_pairs(tmp_path / "images", tmp_path / "masks", 2, [9]), cpu)
    assert (report.mean_iou, report.mean_accuracy, report.pixel_accuracy) == (1, 1, 1)
    assert net.sizes == [(64, 64)]


def test_reduced_photos_are_measured_at_the_size_of_the_masks(tmp_path, cpu):
    """Of class 1 the upper of two rows is marked as class 0: a quarter of the pixels are wrong at full size."""
    mask = halves(True, 64, 64)
    save(tmp_path / "images" / "a.png", COLOURS[mask])
    mask[::2] = 0
    save(tmp_path / "masks" / "a.png", mask)
    net = ByColour()
    report = evaluate_segmentation(net, folder_pairs(tmp_path / "images", tmp_path / "masks", 2, size=(32, 32)), cpu)
    assert net.sizes == [(32, 32)]
    assert report.pixel_accuracy == pytest.approx(0.75)
    np.testing.assert_allclose(report.iou, [2 / 3, 1 / 2])
