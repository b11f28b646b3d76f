"""MoCo-v2's changes of pixels."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

from fewtags.errors import ConfigError
from fewtags.photos.augment import adjust_brightness, adjust_contrast, adjust_hue, adjust_saturation
from fewtags.photos.augment_moco import AugPlus, blur

OFF = AugPlus(jitter_share=0, grey_share=0, blur_share=0)
seeds = st.integers(0, 2**32)


def generator(seed=0):
    return np.random.Generator(np.random.Philox(key=seed))


def picture(height=24, width=20, seed=5):
    """Smooth, as photos are."""
    small = np.random.default_rng(seed).integers(0, 256, (height // 4, width // 4, 3), np.uint8)
    return np.array(Image.fromarray(small).resize((width, height), Image.Resampling.BICUBIC))


class Draws:
    """Gives numbers that were written down, and writes down what it was asked for."""

    def __init__(self, chances=(0.5, 0.5, 0.5), order=(0, 1, 2, 3), amounts=(0.0, 0.0, 0.0, 0.0), sigma=1.0):
        self.chances, self.order, self.amounts, self.sigma = chances, order, amounts, sigma
        self.asked = []

    def random(self, count):
        assert count == 3
        return np.array(self.chances)

    def permutation(self, count):
        assert count == 4
        return np.array(self.order)

    def uniform(self, low, high, count=None):
        self.asked.append((low, high, count))
        return self.sigma if count is None else np.array(self.amounts)


# By hand


def test_amounts_and_order_by_hand():
    """Draws of .5, -1, 1 and -.5 at strengths .4, .4, .4 and .1: factors 1.2, .6 and 1.4, and a shift of -.05."""
    image = picture()
    draws = Draws((0.79, 0.2, 0.5), (3, 1, 0, 2), (0.5, -1.0, 1.0, -0.5))
    expected = adjust_saturation(adjust_brightness(adjust_contrast(adjust_hue(image, -0.05), 0.6), 1.2), 1.4)
    np.testing.assert_array_equal(AugPlus()(image, draws), expected)
    assert draws.asked == [(-1.0, 1.0, 4), (0.1, 2.0, None)]


@pytest.mark.parametrize(
    ("chances", "changed"),
    [((0.8, 0.2, 0.5), None), ((0.9, 0.19, 0.9), "grey"), ((0.9, 0.9, 0.49), "blur"), ((0.9, 0.1, 0.1), "both")],
)
def test_each_change_has_its_own_chance(chances, changed):
    """Colours below .8, grey below .2, blur below .5; grey comes before blur."""
    image = picture()
    grey = adjust_saturation(image, 0.0)
    expected = {None: image, "grey": grey, "blur": blur(image, 1.5), "both": blur(grey, 1.5)}[changed]
    given_back = AugPlus()(image, Draws(chances, amounts=(1.0, 1.0, 1.0, 1.0), sigma=1.5))
    np.testing.assert_array_equal(given_back, expected)


def test_grey_is_the_luma_of_bt_601():
    """.299 x 100 + .587 x 50 + .114 x 200 = 82.05."""
    image = np.full((2, 2, 3), (100, 50, 200), np.uint8)
    changed = replace(OFF, grey_share=1.0)(image, generator())
    np.testing.assert_array_equal(changed, np.full((2, 2, 3), 82))


def test_the_shares_are_those_of_the_draws():
    """2,000 draws each; .033 is three standard deviations of a share of a half. A uniform sigma of 0.1..2 lies below
    1.05 in half of the draws.
    """
    image, rng, count = picture(8, 8), generator(1), 2000
    for name, share in (("jitter_share", 0.8), ("grey_share", 0.2), ("blur_share", 0.5)):
        policy = replace(OFF, **{name: share})
        changed = sum((policy(image, rng) != image).any() for _ in range(count))
        assert changed / count == pytest.approx(share, abs=0.033), name
    sharp, soft = blur(image, 1.05), replace(OFF, blur_share=1.0)
    stronger = sum(soft(image, rng).std() < sharp.std() for _ in range(count))
    assert stronger / count == pytest.approx(0.5, abs=0.033)


# References


@pytest.mark.parametrize("sigma", [0.5, 1.0, 2.0, 4.0])
def test_blur_is_nearly_a_gaussian(sigma):
    """Across a step of 255, within 4 grey levels, and with the standard deviation that was asked for."""
    from scipy.ndimage import gaussian_filter

    image = np.zeros((64, 64, 3), np.uint8)
    image[:, 32:, 0], image[32:, :, 1] = 255, 255
    expected = gaussian_filter(image.astype(float), (sigma, sigma, 0), mode="nearest", truncate=6)
    blurred = blur(image, sigma)
    np.testing.assert_allclose(blurred, expected, atol=4)
    assert np.abs(expected - image).max() > 20
    np.testing.assert_array_equal(blurred[:, :, 0], blurred[:, :, 1].T)
    kernel, place = np.diff(blurred[0, :, 0].astype(float)) / 255, np.arange(63) - 31
    assert np.sqrt((kernel * place**2).sum()) == pytest.approx(sigma, rel=0.02)


def test_colours_are_distributed_as_torchvision_draws_them():
    """Means and deviations of the channels of two colours over 1,000 draws each, within four standard errors of the
    difference. torchvision works on tensors: on Pillow's images it rounds hues to 256.
    """
    torch = pytest.importorskip("torch")
    from torchvision.transforms import ColorJitter

    count, image = 1000, np.full((1, 2, 3), (180, 120, 60), np.uint8)
    image[:, 1] = (40, 90, 160)
    ours, rng = replace(OFF, jitter_share=1.0), generator(2)
    mine = np.array([ours(image, rng) for _ in range(count)], np.float64)
    jitter = ColorJitter(0.4, 0.4, 0.4, 0.1)
    tensor = torch.from_numpy(image).permute(2, 0, 1)
    with torch.random.fork_rng():
        torch.manual_seed(0)
        theirs = [jitter(tensor).permute(1, 2, 0).numpy() for _ in range(count)]
    reference = np.array(theirs, np.float64)
    error = reference.std(0) * np.sqrt(2 / count)
    assert (np.abs(mine.mean(0) - reference.mean(0)) < 4 * error).all()
    assert (np.abs(mine.std(0) - reference.std(0)) < 4 * error).all()


# Properties


@given(seeds)
def test_a_function_of_its_generator_that_leaves_the_picture_alone(seed):
    image = picture()
    before = image.copy()
    one, two = (AugPlus()(image, generator(seed)) for _ in range(2))
    np.testing.assert_array_equal(one, two)
    np.testing.assert_array_equal(image, before)
    assert (one.dtype, one.shape, one.flags.writeable, one.flags.c_contiguous) == (np.uint8, image.shape, True, True)
    assert not np.shares_memory(one, image)


def test_generators_differ():
    views = {AugPlus()(picture(), generator(seed)).tobytes() for seed in range(20)}
    assert len(views) >= 18  # one in ten is changed in no way


@pytest.mark.parametrize(
    "policy",
    [
        OFF,
        AugPlus(brightness=0, contrast=0, saturation=0, hue=0),
        AugPlus(blur_sigma=(0, 0)),
        AugPlus(hue=0.5, blur_sigma=(3.0, 4.0)),
    ],
    ids=str,
)
def test_no_switch_changes_another_draw(policy):
    ours, plain = generator(3), generator(3)
    policy(picture(), ours)
    AugPlus()(picture(), plain)
    assert ours.random() == plain.random()


def test_switched_off_nothing_changes():
    still = AugPlus(brightness=0, contrast=0, saturation=0, hue=0, grey_share=0, blur_share=0)
    for seed in range(5):
        np.testing.assert_array_equal(still(picture(), generator(seed)), picture())
        np.testing.assert_array_equal(OFF(picture(), generator(seed)), picture())


# Errors


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"brightness": 1.5}, "brightness jitter 1.5 must be within 0 (off) to 1."),
        ({"contrast": -0.1}, "contrast jitter -0.1 must be within 0 (off) to 1."),
        ({"saturation": float("nan")}, "saturation jitter nan must be within 0 (off) to 1."),
        ({"hue": 0.6}, "hue jitter 0.6 must be within 0 (off) to 0.5, half the colour circle."),
        ({"jitter_share": 2}, "jitter_share 2 must be within 0 (never) to 1 (always)."),
        ({"grey_share": -1}, "grey_share -1 must be within 0 (never) to 1 (always)."),
        ({"blur_share": 1.01}, "blur_share 1.01 must be within 0 (never) to 1 (always)."),
        ({"blur_sigma": (2.0, 0.1)}, "blur sigma 2 to 0.1 pixels must be 0 or more, smaller number first."),
        ({"blur_sigma": (-1.0, 1.0)}, "blur sigma -1 to 1 pixels must be 0 or more, smaller number first."),
        ({"blur_sigma": (1.0, float("inf"))}, "blur sigma 1 to inf pixels must be 0 or more, smaller number first."),
    ],
)
def test_settings_that_make_no_sense(settings, message):
    with pytest.raises(ConfigError) as error:
        AugPlus(**settings)
    assert str(error.value) == message
