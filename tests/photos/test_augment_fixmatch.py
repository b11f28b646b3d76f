"""The strong view's pixels."""

import numpy as np
import pytest

from fewtags.errors import ConfigError
from fewtags.photos.augment import Jitter
from fewtags.photos.augment_fixmatch import GREY, Strong


def generator(seed=0):
    return np.random.Generator(np.random.Philox(key=seed))


class Draws:
    """Gives numbers that were written down; the colours draw first."""

    def __init__(self, *numbers):
        self.numbers = list(numbers)

    def uniform(self, low, high, count):
        return np.zeros(count)

    def random(self):
        return self.numbers.pop(0)


def picture(height=10, width=10):
    return np.random.default_rng(5).integers(128, 256, (height, width, 3), np.uint8)


@pytest.mark.parametrize(
    ("draws", "rows", "columns"),
    [
        ((0.8, 0.5, 0.5), (3, 7), (6, 14)),
        ((1.0, 0.0, 0.9), (0, 2), (13, 20)),
        ((0.0, 0.5, 0.5), (5, 5), (10, 10)),
    ],
)
def test_the_square_by_hand(draws, rows, columns):
    """Side, row and column as shares; of 10 rows and 20 columns. Side .5 x .8 = .4 around the middle: rows 3 to 7,
    columns 6 to 14. Side .5 at the upper edge and at .9: rows -2.5 to 2.5 (rounded to even: 2), columns 13 to 23.
    """
    image = picture(10, 20)
    changed = Strong(Jitter(), cutout=0.5)(image, Draws(*draws))
    expected = image.copy()
    expected[slice(*rows), slice(*columns)] = GREY
    np.testing.assert_array_equal(changed, expected)


def test_colours_come_before_the_square():
    image, strong = picture(), Strong(Jitter(0.3, 0.3, 0.3), cutout=1.0)
    changed, colours = strong(image, generator(3)), Jitter(0.3, 0.3, 0.3)(image, generator(3))
    erased = (changed == GREY).all(2)
    assert 0 < erased.sum() < erased.size
    np.testing.assert_array_equal(changed[~erased], colours[~erased])


def test_a_function_of_its_generator_that_leaves_the_picture_alone():
    image = picture()
    before = image.copy()
    one, two, other = (Strong()(image, generator(seed)) for seed in (1, 1, 2))
    np.testing.assert_array_equal(one, two)
    assert (one != other).any()
    Strong(Jitter(), cutout=1.0)(image, generator(1))
    np.testing.assert_array_equal(image, before)


def test_the_switch_changes_no_other_draw():
    """Without the square the same numbers are drawn."""
    with_square, without = generator(4), generator(4)
    Strong()(picture(), with_square)
    Strong(cutout=0.0)(picture(), without)
    assert with_square.random() == without.random()
    np.testing.assert_array_equal(Strong(Jitter(), cutout=0.0)(picture(), generator(4)), picture())


def test_settings_that_make_no_sense():
    with pytest.raises(ConfigError) as error:
        Strong(cutout=1.5)
    assert str(error.value) == "cutout 1.5 is a share of the crop's side, 0 (off) to 1."
