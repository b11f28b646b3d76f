from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from fewtags.errors import ConfigError, TrainingError
from fewtags.nets.encoder import create_encoder
from fewtags.transfer.dense.detection import VOC, DetectSettings, make_detector, train_detection, training_sample
from fewtags.transfer.dense.measure import detect_objects, measure_detections
from fewtags.transfer.dense.scenes import Scene, Scenes

TINY = DetectSettings(
    iterations=30, batch_size=2, lr=0.005, warm_up=4, drops=(0.8,), min_sizes=(64,), max_size=64, masks=False,
    heads="v1", anchor=16, rois=16, proposals=20,
)  # fmt: skip
COLOURS = ((220, 30, 30), (30, 60, 220))


def scene(path, box, class_, size=(64, 64), stated=None):
    """A grey photo with one rectangle in the colour of its class, outlined by its corners."""
    width, height = size
    across, down = (stated or size)[0] / width, (stated or size)[1] / height
    x0, y0, x1, y1 = box
    pixels = np.full((height, width, 3), 110, np.uint8)
    pixels[y0:y1, x0:x1] = COLOURS[class_]
    Image.fromarray(pixels).save(path)
    x0, y0, x1, y1 = x0 * across, y0 * down, x1 * across, y1 * down
    width, height = stated or size
    return Scene(
        image=path, width=width, height=height, boxes=np.array([[x0, y0, x1, y1]], np.float64),
        classes=np.array([class_]), ignored=np.array([False]), outlines=([[x0, y0, x1, y0, x1, y1, x0, y1]],),
        areas=np.array([(x1 - x0) * (y1 - y0)]),
    )  # fmt: skip


@pytest.fixture
def data(tmp_path):
    made = (
        scene(tmp_path / "a.png", (6, 10, 34, 42), 0),
        scene(tmp_path / "b.png", (24, 20, 60, 50), 1, stated=(128, 128)),
    )
    return Scenes("coco", made, ("red", "blue"))


@pytest.fixture
def encoder():
    return create_encoder("test_resnet", weights="none", size=64, seed=3)


# --- settings


def test_the_rate_of_the_1x_schedule():
    """Warm-up from a thousandth of .02 over 1,000 steps; a tenth from step 60,000 on, a hundredth from 80,000."""
    settings = DetectSettings()
    steps = (0, 500, 1000, 59_999, 60_000, 79_999, 80_000)
    expected = (2e-5, 0.02 * 0.5005, 0.02, 0.02, 0.002, 0.002, 0.0002)
    assert [settings.rate(step) for step in steps] == pytest.approx(expected)
    assert [VOC.rate(step) for step in (17_999, 18_000, 22_000)] == pytest.approx([0.02, 0.002, 0.0002])


def test_settings_out_of_range():
    with pytest.raises(ConfigError, match=r"^the learning rate must be above 0, got -1\.$"):
        DetectSettings(lr=-1.0)
    with pytest.raises(ConfigError, match=r"^the shorter side 800 exceeds the longest side, 640\.$"):
        DetectSettings(max_size=640)


# --- net


@pytest.mark.parametrize("heads", ["v1", "v2"])
def test_the_body_has_the_weights_of_the_encoder_and_is_a_copy(encoder, heads):
    encoder.requires_grad_(False)
    net = make_detector(encoder, 3, replace(TINY, heads=heads, masks=True))
    body, own = net.backbone.body.state_dict(), encoder.backbone.state_dict()
    assert body.keys() == own.keys()
    assert all(torch.equal(body[name], own[name]) for name in own)
    assert body["layer4.0.conv1.weight"].data_ptr() != own["layer4.0.conv1.weight"].data_ptr()
    assert all(parameter.requires_grad for parameter in net.parameters())
    assert net.roi_heads.box_predictor.cls_score.out_features == 4
    batchnorm = [name for name, m in net.named_modules() if isinstance(m, torch.nn.BatchNorm2d) and "body" not in name]
    assert bool(batchnorm) is (heads == "v2")
    assert net.rpn.anchor_generator.sizes == ((16,), (32,), (64,), (128,), (256,))
    assert net.transform.image_mean == list(encoder.preprocessing.mean)


def test_the_body_computes_what_the_encoder_does(encoder):
    net = make_detector(encoder, 3, TINY).eval()
    images = torch.rand(1, 3, 64, 64, generator=torch.Generator().manual_seed(0))
    features = net.backbone.body(images)
    assert [tuple(value.shape[1:]) for value in features.values()] == [
        (32, 16, 16), (48, 8, 8), (192, 4, 4), (96, 2, 2),
    ]  # fmt: skip
    torch.testing.assert_close(features["3"], encoder.eval().features(images))


def test_the_heads_depend_on_the_seed_alone(encoder):
    one, same, other = (make_detector(encoder, 3, replace(TINY, seed=seed)) for seed in (0, 0, 1))
    name = "roi_heads.box_head.fc6.weight"
    assert torch.equal(one.state_dict()[name], same.state_dict()[name])
    assert not torch.equal(one.state_dict()[name], other.state_dict()[name])


def test_other_encoders_are_refused():
    vit = create_encoder("test_vit", weights="none", size=64)
    with pytest.raises(
        ConfigError,
        match=r"^the feature pyramid needs the four stages of a ResNet, which VisionTransformer does not have; g",
    ):
        make_detector(vit, 3, TINY)


# --- samples


def test_targets_are_in_pixels_of_the_photo_and_follow_the_mirror(data):
    """The second photo is annotated at twice its size. Mirrored, x from 24 to 60 of 64 is 4 to 40."""
    seen = set()
    for epoch in range(8):
        image, target = training_sample(data, True, 0, epoch, 1)
        assert image.shape == (3, 64, 64)
        box = target["boxes"].tolist()
        seen.add(tuple(box[0]))
        x0, y0, x1, y1 = (int(value) for value in box[0])
        mask = torch.zeros(64, 64, dtype=torch.uint8)
        mask[y0:y1, x0:x1] = 1
        assert torch.equal(target["masks"], mask[None])
        assert torch.equal((image[2] > image[0]).to(torch.uint8), mask)
        assert target["labels"].tolist() == [2]
    assert seen == {(24, 20, 60, 50), (4, 20, 40, 50)}


def test_objects_beyond_the_photo_are_left_out(tmp_path):
    one = scene(tmp_path / "a.png", (6, 10, 34, 42), 0)
    boxes = np.array([[6.0, 10, 34, 42], [64, 0, 80, 20], [50, 50, 90, 90]])
    more = Scene(
        image=one.image, width=64, height=64, boxes=boxes, classes=np.array([0, 1, 1]),
        ignored=np.zeros(3, np.bool_), outlines=(None,) * 3, areas=np.ones(3),
    )  # fmt: skip
    data = Scenes("coco", (more,), ("red", "blue"))
    target = training_sample(data, False, 0, 0, 0)[1]
    assert target["labels"].tolist() == [1, 2]
    assert (target["boxes"][1, 2:] - target["boxes"][1, :2]).tolist() == [14, 14]
    assert "masks" not in target


# --- training


def test_training_fits_two_photos(data, encoder, cpu):
    untrained = make_detector(encoder, 2, TINY)
    before = measure_detections(data, detect_objects(untrained, data, cpu))
    net = make_detector(encoder, 2, TINY)
    losses = list(train_detection(net, data, TINY, cpu))
    after = measure_detections(data, detect_objects(net, data, cpu))
    assert len(losses) == TINY.iterations
    assert np.mean(losses[-5:]) < np.mean(losses[:5]) / 2
    assert before["box_AP50"] < 0.25
    assert after["box_AP50"] > 0.45


def test_the_same_seed_gives_the_same_losses(data, encoder, cpu):
    def losses(seed):
        short = replace(TINY, iterations=2, seed=seed, masks=True, rois=4, min_sizes=(48, 64))
        return list(train_detection(make_detector(encoder, 2, short), data, short, cpu))

    first = losses(0)
    torch.rand(7)  # the global generator has no influence
    assert losses(0) == first
    assert losses(1) != first


def test_a_detector_with_masks_predicts_masks(data, encoder, cpu):
    short = replace(TINY, iterations=1, masks=True, rois=4, proposals=4)
    net = make_detector(encoder, 2, short)
    list(train_detection(net, data, short, cpu))
    net.roi_heads.score_thresh = 0.0
    found = detect_objects(net, data, cpu)
    assert all(one.masks is not None and len(one.masks) == len(one.boxes) for one in found)
    assert set(measure_detections(data, found)) > {"box_AP", "mask_AP"}


def test_a_loss_that_is_not_finite_stops_training(data, encoder, cpu):
    wild = replace(TINY, lr=1e30, warm_up=0)
    with pytest.raises(TrainingError, match=r"^the loss of step \d+ is (nan|inf); lower the learning rate\.$"):
        list(train_detection(make_detector(encoder, 2, wild), data, wild, cpu))


def test_photos_without_objects_are_not_trained_on(data, encoder, cpu):
    """The missing photo would be an error if it were read."""
    none = Scene(
        image=Path("missing.png"), width=64, height=64, boxes=np.zeros((0, 4)), classes=np.zeros(0, np.int64),
        ignored=np.zeros(0, np.bool_), outlines=(), areas=np.zeros(0),
    )  # fmt: skip
    short = replace(TINY, iterations=3, batch_size=1, rois=4)
    more = replace(data, scenes=(none, *data.scenes))
    assert len(list(train_detection(make_detector(encoder, 2, short), more, short, cpu))) == 3
