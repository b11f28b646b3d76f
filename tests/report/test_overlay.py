"""Heatmaps over photos."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fewtags.geometry import View
from fewtags.report.overlay import SATURATION, STRENGTH, overlay, scale


def test_probability_0_leaves_the_faint_photo_and_1_covers_it_by_strength() -> None:
    """A grey photo of 100 is its own faint version. plasma(1) is (240, 249, 33) of 255."""
    grey = np.full((4, 4, 3), 100, np.uint8)
    assert (overlay(grey, np.zeros((2, 2))) == 100).all()
    full = overlay(grey, np.ones((2, 2)))[0, 0]
    expected = (1 - STRENGTH) * 100 + STRENGTH * np.array([240, 249, 33])
    assert np.abs(full - expected).max() <= 1


def test_colour_of_the_photo_is_kept_faintly() -> None:
    """Pure red has luma 76: red becomes 76 + 0.35 (255 - 76), the others 76 - 0.35 x 76."""
    red = np.zeros((2, 2, 3), np.uint8)
    red[..., 0] = 255
    expected = [76 + SATURATION * (255 - 76), 76 * (1 - SATURATION), 76 * (1 - SATURATION)]
    assert np.abs(overlay(red, np.zeros((1, 1)))[0, 0] - expected).max() <= 1


def test_stronger_is_brighter_and_warmer_everywhere() -> None:
    """The legend runs from no heat to full heat without a step back in lightness."""
    ramp = scale(100, 2)[0].astype(float)
    lightness = ramp @ [0.2126, 0.7152, 0.0722]
    assert lightness[-1] > lightness[0]
    warmth = ramp[:, 0] - ramp[:, 2]
    assert (np.diff(warmth[20:]) >= -1.5).all()


def test_map_is_in_the_frame_of_the_photo() -> None:
    """A hot cell at the top right changes the top right only."""
    grey = np.full((40, 80, 3), 100, np.uint8)
    hot = np.zeros((4, 8))
    hot[0, 7] = 1
    changed = (overlay(grey, hot) != 100).any(-1)
    assert changed[2, 77]
    assert not changed[:, :55].any()
    assert not changed[25:].any()


def test_map_of_a_crop_stays_in_its_crop_and_the_rest_is_darkened() -> None:
    """The centre crop of a wide photo: x from 0.25 to 0.75."""
    grey = np.full((20, 40, 3), 100, np.uint8)
    out = overlay(grey, np.ones((1, 1)), view=View.crop(0.25, 0.0, 0.75, 1.0))
    assert (out[:, :10] == 45).all()
    assert (out[:, 30:] == 45).all()
    assert (out[:, 10:30, 0] > 150).all()


@settings(max_examples=20)
@given(
    st.integers(1, 30),
    st.integers(1, 30),
    st.integers(1, 5),
    st.integers(1, 5),
    st.one_of(st.none(), st.integers(1, 9)),
)
def test_every_size(height: int, width: int, rows: int, columns: int, side: int | None) -> None:
    out = overlay(
        np.zeros((height, width, 3), np.uint8), np.full((rows, columns), 0.5), side, View.crop(0.0, 0.2, 1.0, 0.9)
    )
    assert out.dtype == np.uint8
    if side is None or side >= max(height, width):
        assert out.shape == (height, width, 3)
    else:
        assert max(out.shape[:2]) == side


def test_smaller_side_keeps_the_shape() -> None:
    assert overlay(np.zeros((100, 200, 3), np.uint8), np.zeros((2, 2)), 50).shape == (25, 50, 3)


def test_values_outside_0_to_1_are_clipped() -> None:
    """Smooth resizing overshoots; so may float16."""
    grey = np.full((4, 4, 3), 100, np.uint8)
    assert (overlay(grey, np.full((2, 2), -0.1)) == 100).all()
    assert (overlay(grey, np.full((2, 2), 1.2)) == overlay(grey, np.ones((2, 2)))).all()


@pytest.mark.parametrize("view", [View.flip()])
def test_a_flipped_view_is_our_own_bug(view: View) -> None:
    with pytest.raises(AssertionError):
        overlay(np.zeros((2, 2, 3), np.uint8), np.zeros((1, 1)), view=view)
