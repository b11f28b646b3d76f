"""Augmentation policies: which boxes and flips they draw, and what the views show."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image, ImageEnhance

from fewtags.errors import ConfigError
from fewtags.geometry import View
from fewtags.photos.augment import (
    Jitter,
    ResizedCrop,
    SquareCrop,
    WholeImage,
    adjust_brightness,
    adjust_contrast,
    adjust_hue,
    adjust_saturation,
)
from fewtags.photos.decode import open_photo

POLICIES = [SquareCrop(), ResizedCrop(), WholeImage()]
seeds, aspects = st.integers(0, 2**32), st.floats(0.05, 20.0)


def generator(seed=0):
    return np.random.default_rng(seed)


def box_of(view):
    """x0, y0, x1, y1 and whether left and right are exchanged."""
    a, b, c, d, e, f = view.matrix
    assert b == d == 0
    assert e > 0
    return (min(c, c + a), f, max(c, c + a), f + e), a < 0


def noise(path, height=30, width=50):
    pixels = generator().integers(0, 256, (height // 5, width // 5, 3), dtype=np.uint8)
    Image.fromarray(pixels).resize((width, height), Image.Resampling.BICUBIC).save(path)
    return path


# Values derived by hand


def test_a_quarter_of_the_area_is_half_a_side():
    for seed in range(20):
        (x0, y0, x1, y1), _ = box_of(SquareCrop(area=(0.25, 0.25)).sample(generator(seed), 1.7))
        assert x1 - x0 == pytest.approx(0.5)
        assert y1 - y0 == pytest.approx(0.5)


def test_whole_area_is_the_whole_photo():
    assert SquareCrop(area=(1.0, 1.0), flip=False).sample(generator(), 1.7).matrix == View.identity().matrix


def test_centre_square_of_a_wide_photo():
    """Twice as wide as high: the square is .875 high (from .0625), .4375 wide (from .28125)."""
    box, flipped = box_of(ResizedCrop().test_view(2.0))
    np.testing.assert_allclose(box, [0.28125, 0.0625, 0.71875, 0.9375])
    assert not flipped
    np.testing.assert_allclose(box_of(ResizedCrop().test_view(0.5))[0], [0.0625, 0.28125, 0.9375, 0.71875])


def test_panoramas_fall_back_to_the_widest_allowed_centre():
    """Ten times as wide as high: no box of 90 % fits. 4 / 3 of the height is .13333 of the width."""
    policy = ResizedCrop(area=(0.9, 1.0), flip=False)
    np.testing.assert_allclose(box_of(policy.sample(generator(), 10.0))[0], [0.5 - 1 / 15, 0, 0.5 + 1 / 15, 1])
    np.testing.assert_allclose(box_of(policy.sample(generator(), 0.1))[0], [0, 0.5 - 1 / 15, 1, 0.5 + 1 / 15])


def test_test_views_that_show_everything():
    assert SquareCrop().test_view(2.0) == WholeImage().test_view(0.5) == WholeImage().sample(generator(), 3.0)
    assert WholeImage().test_view(1.0) == View.identity()


def test_adjustments_by_hand():
    """Two pixels, red 100 and white. Grey of (100, 0, 0): 29.9. Mean grey: (29.9 + 255) / 2 = 142.45."""
    image = np.uint8([[[100, 0, 0], [255, 255, 255]]])
    assert adjust_brightness(image, 0.5).tolist() == [[[50, 0, 0], [128, 128, 128]]]
    assert adjust_brightness(image, 2.0).tolist() == [[[200, 0, 0], [255, 255, 255]]]
    assert adjust_contrast(image, 0.0).tolist() == [[[142] * 3, [142] * 3]]
    assert adjust_contrast(image, 2.0).tolist() == [[[58, 0, 0], [255, 255, 255]]]  # 200 - 142.45
    assert adjust_saturation(image, 0.0).tolist() == [[[30] * 3, [255] * 3]]
    assert adjust_saturation(image, 2.0).tolist() == [[[170, 0, 0], [255, 255, 255]]]  # 200 - 29.9


def test_hues_by_hand():
    """A third of the circle takes red to green, green to blue, blue to red; a half takes each to its complement. Orange
    (200, 150, 100) is at 30 degrees, chroma 100: a sixth on, at 90, the green is full and the red is half way. Greys
    have no hue.
    """
    image = np.uint8([[[255, 0, 0], [0, 255, 0], [0, 0, 255], [200, 150, 100], [77, 77, 77], [0, 0, 0]]])
    greys = [[77, 77, 77], [0, 0, 0]]
    third = [[0, 255, 0], [0, 0, 255], [255, 0, 0], [100, 200, 150], *greys]
    assert adjust_hue(image, 1 / 3).tolist() == [third]
    assert adjust_hue(image, -2 / 3).tolist() == [third]
    half = [[0, 255, 255], [255, 0, 255], [255, 255, 0], [100, 150, 200], *greys]
    assert adjust_hue(image, 0.5).tolist() == adjust_hue(image, -0.5).tolist() == [half]
    assert adjust_hue(image, 1 / 6)[0, 3].tolist() == [150, 200, 100]


# References


@pytest.mark.parametrize("aspect", [0.4, 1.0, 1.5])
def test_boxes_are_distributed_as_torchvision_draws_them(aspect):
    """Deciles of area, shape and position over 2,000 draws each; 1.5 / sqrt(2000) = .034 of a rank is chance."""
    torch = pytest.importorskip("torch")
    from torchvision.transforms import RandomResizedCrop

    height, width = 4000, round(4000 * aspect)
    photo = torch.zeros(1).expand(1, height, width)
    theirs = []
    with torch.random.fork_rng():
        torch.manual_seed(0)
        for _ in range(2000):
            top, left, h, w = RandomResizedCrop.get_params(photo, [0.08, 1.0], [3 / 4, 4 / 3])
            theirs.append((left / width, top / height, (left + w) / width, (top + h) / height))
    rng = generator()
    ours = [box_of(ResizedCrop().sample(rng, aspect))[0] for _ in range(2000)]
    for mine, reference in zip(_shape(np.array(ours), aspect), _shape(np.array(theirs), aspect), strict=True):
        ranks = np.searchsorted(np.sort(reference), np.quantile(mine, np.arange(0.1, 1, 0.1))) / len(reference)
        np.testing.assert_allclose(ranks, np.arange(0.1, 1, 0.1), atol=0.05)


def _shape(boxes, aspect):
    width, height = boxes[:, 2] - boxes[:, 0], boxes[:, 3] - boxes[:, 1]
    return width * height, width * aspect / height, boxes[:, 0], boxes[:, 1]


@pytest.mark.parametrize("factor", [0.0, 0.3, 1.0, 1.7])
@pytest.mark.parametrize(
    ("adjust", "enhance"),
    [
        (adjust_brightness, ImageEnhance.Brightness),
        (adjust_contrast, ImageEnhance.Contrast),
        (adjust_saturation, ImageEnhance.Color),
    ],
)
def test_adjustments_agree_with_pillow(adjust, enhance, factor):
    """Pillow rounds greys to whole numbers first, which the factor then multiplies."""
    image = generator().integers(0, 256, (9, 11, 3), dtype=np.uint8)
    expected = np.asarray(enhance(Image.fromarray(image)).enhance(factor)).astype(int)
    np.testing.assert_allclose(adjust(image, factor).astype(int), expected, atol=2)


@pytest.mark.parametrize("shift", [-0.5, -0.1, 0.0, 0.03, 0.1, 0.37])
def test_hues_agree_with_torchvision(shift):
    """On tensors; on Pillow's images it rounds hues to 256 first."""
    torch = pytest.importorskip("torch")
    from torchvision.transforms.functional import adjust_hue as reference

    image = generator().integers(0, 256, (40, 50, 3), dtype=np.uint8)
    image[:8] //= 32  # dark: hues of few levels
    image[8:16, :, 1] = image[8:16, :, 0]  # two channels tie
    expected = reference(torch.from_numpy(image).permute(2, 0, 1), shift).permute(1, 2, 0).numpy().astype(int)
    np.testing.assert_allclose(adjust_hue(image, shift).astype(int), expected, atol=1)


# Properties


@given(seeds, st.floats(-0.5, 0.5))
def test_hues_keep_value_and_chroma(seed, shift):
    image = generator(seed).integers(0, 256, (5, 4, 3), dtype=np.uint8)
    turned = adjust_hue(image, shift)
    np.testing.assert_array_equal(turned.max(2), image.max(2))
    np.testing.assert_array_equal(turned.min(2), image.min(2))
    np.testing.assert_array_equal(adjust_hue(image, 0.0), image)


@given(seeds, aspects)
@pytest.mark.parametrize("policy", POLICIES, ids=lambda p: type(p).__name__)
def test_views_stay_inside_the_photo(policy, seed, aspect):
    for view in (policy.sample(generator(seed), aspect), policy.test_view(aspect)):
        (x0, y0, x1, y1), _ = box_of(view)
        assert min(x0, y0) >= 0
        assert max(x1, y1) <= 1 + 1e-12
        assert min(x1 - x0, y1 - y0) > 0


@given(seeds, aspects)
def test_square_crops_are_square_in_the_stretched_photo(seed, aspect):
    (x0, y0, x1, y1), _ = box_of(SquareCrop(area=(0.3, 0.8)).sample(generator(seed), aspect))
    assert x1 - x0 == pytest.approx(y1 - y0)
    assert 0.3 - 1e-9 <= (x1 - x0) * (y1 - y0) <= 0.8 + 1e-9


@given(seeds, aspects)
def test_resized_crops_keep_their_shape_within_bounds(seed, aspect):
    (x0, y0, x1, y1), _ = box_of(ResizedCrop().sample(generator(seed), aspect))
    assert 3 / 4 - 1e-9 <= aspect * (x1 - x0) / (y1 - y0) <= 4 / 3 + 1e-9


@given(seeds, st.floats(0.5, 2.0))
def test_resized_crops_keep_their_area_within_bounds(seed, aspect):
    (x0, y0, x1, y1), _ = box_of(ResizedCrop(area=(0.2, 0.3)).sample(generator(seed), aspect))
    assert 0.2 - 1e-9 <= (x1 - x0) * (y1 - y0) <= 0.3 + 1e-9


@given(seeds)
@pytest.mark.parametrize(
    ("on", "off"), [(SquareCrop(), SquareCrop(flip=False)), (ResizedCrop(), ResizedCrop(flip=False))]
)
def test_switching_flips_off_moves_no_box(on, off, seed):
    with_flips, without = generator(seed), generator(seed)
    for _ in range(3):
        box, _ = box_of(on.sample(with_flips, 1.3))
        other, flipped = box_of(off.sample(without, 1.3))
        np.testing.assert_allclose(box, other, atol=1e-12)
        assert not flipped


@pytest.mark.parametrize("policy", [SquareCrop(), ResizedCrop()])
def test_half_of_the_views_are_flipped(policy):
    rng = generator()
    flipped = sum(box_of(policy.sample(rng, 1.3))[1] for _ in range(2000))
    assert abs(flipped - 1000) < 4 * math.sqrt(500)


def test_area_of_square_crops_is_uniform():
    rng = generator()
    views = [box_of(SquareCrop().sample(rng, 1.0))[0] for _ in range(2000)]
    shares = np.sort([(b[2] - b[0]) ** 2 for b in views])
    np.testing.assert_allclose(shares, np.linspace(0.25, 1, 2000), atol=0.75 * 0.04)


@pytest.mark.parametrize("policy", POLICIES, ids=lambda p: type(p).__name__)
def test_policies_are_values(policy):
    assert policy == type(policy)()
    assert hash(policy) == hash(type(policy)())
    assert policy.sample(generator(5), 1.3) == policy.sample(generator(5), 1.3)


# Pictures


def shown(path, view, size):
    with open_photo(path) as photo:
        return photo.read(view, (size, size))


def test_crop_of_a_crop_is_a_crop(tmp_path):
    path = noise(tmp_path / "a.png")
    half = View.crop(0.0, 0.0, 0.5, 1.0)
    np.testing.assert_allclose(
        shown(path, half.then(half), 8).astype(int),
        shown(path, View.crop(0.0, 0.0, 0.25, 1.0), 8).astype(int),
        atol=1,
    )


def test_jitter_that_is_off_changes_nothing():
    image = generator().integers(0, 256, (4, 5, 3), dtype=np.uint8)
    np.testing.assert_array_equal(Jitter()(image, generator()), image)


def test_jitter_leaves_its_input_alone_and_repeats_itself():
    image = generator().integers(0, 256, (4, 5, 3), dtype=np.uint8)
    before = image.copy()
    jitter = Jitter(0.4, 0.4, 0.4)
    first = jitter(image, generator(3))
    np.testing.assert_array_equal(image, before)
    np.testing.assert_array_equal(jitter(image, generator(3)), first)
    assert (jitter(image, generator(4)) != first).any()
    assert (first.dtype, first.shape) == (np.uint8, (4, 5, 3))


def test_jitter_is_its_steps_with_the_drawn_factors():
    """The saturation factor is the third draw whether or not the others are used."""
    image = generator().integers(0, 256, (4, 5, 3), dtype=np.uint8)
    draws = generator(3).uniform(-1, 1, 3)
    expected = adjust_saturation(image, 1 + 0.4 * draws[2])
    np.testing.assert_array_equal(Jitter(saturation=0.4)(image, generator(3)), expected)
    everything = adjust_saturation(
        adjust_contrast(adjust_brightness(image, 1 + draws[0]), 1 + draws[1]), 1 + 0.4 * draws[2]
    )
    np.testing.assert_array_equal(Jitter(1.0, 1.0, 0.4)(image, generator(3)), everything)


# Errors


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: SquareCrop(size=0), "crop size 0 is not a number of pixels; give 1 or more."),
        (lambda: WholeImage(size=-1), "crop size -1 is not a number of pixels; give 1 or more."),
        (
            lambda: SquareCrop(area=(0.0, 1.0)),
            "crop area 0 to 1 must be above 0 and at most 1, smaller number first.",
        ),
        (
            lambda: ResizedCrop(area=(0.5, 0.2)),
            "crop area 0.5 to 0.2 must be above 0 and at most 1, smaller number first.",
        ),
        (
            lambda: ResizedCrop(ratio=(0.0, 1.0)),
            "crop ratio 0 to 1 must be above 0, smaller number first.",
        ),
        (
            lambda: ResizedCrop(centre=1.5),
            "centre 1.5 must be above 0 and at most 1, the shorter side of the photo.",
        ),
        (lambda: Jitter(contrast=1.2), "contrast jitter 1.2 must be within 0 (off) to 1."),
    ],
)
def test_settings_out_of_range(make, message):
    with pytest.raises(ConfigError) as caught:
        make()
    assert str(caught.value) == message


def test_rotated_views_cannot_be_rendered(tmp_path):
    with pytest.raises(NotImplementedError, match="only axis-aligned views can be read"):
        shown(noise(tmp_path / "a.png"), View((0.5, 0.1, 0.2, -0.1, 0.5, 0.3)), 8)
