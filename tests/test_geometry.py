"""Views: points, boxes and maps between the image frame and the crop frame."""

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from fewtags import batched_views
from fewtags.batched_views import invert_views, maps_to_crop, maps_to_image, stack_views
from fewtags.geometry import View

SPATIAL = json.loads((Path(__file__).parent / "golden/scl.json").read_text())["spatial"]

fractions = st.floats(0.0, 0.7)
sides = st.floats(0.05, 0.3)
boxes = st.builds(lambda x, y, w, h: (x, y, x + w, y + h), fractions, fractions, sides, sides)
crops = st.builds(
    lambda box, flip: View.crop(*box).then(View.flip()) if flip else View.crop(*box), boxes, st.booleans()
)
entries = st.floats(-2.0, 2.0)
affine = st.builds(lambda *m: View(m), *[entries] * 6).filter(
    lambda v: abs(v.matrix[0] * v.matrix[4] - v.matrix[1] * v.matrix[3]) > 0.05
)


def golden_view(case):
    top, left, height, width = map(float, case["crop_top_left_height_width_fraction"])
    crop = View.crop(left, top, left + width, top + height)
    return crop.then(View.flip()) if case["hflip_after_crop"] else crop


# Values derived by hand


def test_crop_maps_corners_of_the_crop_to_corners_of_the_box():
    """The crop of x .25..1, y .5..1: its corner (0, 0) is the image's (.25, .5), its centre the box's (.625, .75)."""
    view = View.crop(0.25, 0.5, 1.0, 1.0)
    np.testing.assert_allclose(
        view.to_image(np.array([[0.0, 0.0], [1.0, 1.0], [0.5, 0.5]])), [[0.25, 0.5], [1, 1], [0.625, 0.75]]
    )


def test_flip_after_crop_exchanges_left_and_right_within_the_box():
    """x = .25 + .75 (1 - u): the crop's left edge shows the image at x = 1, its right edge at x = .25."""
    view = View.crop(0.25, 0.5, 1.0, 1.0).then(View.flip())
    np.testing.assert_allclose(view.to_image(np.array([[0.0, 0.0], [1.0, 1.0]])), [[1.0, 0.5], [0.25, 1.0]])


def test_crop_of_a_crop():
    """The right half of the right half is the last quarter."""
    half = View.crop(0.5, 0.0, 1.0, 1.0)
    np.testing.assert_allclose(half.then(half).matrix, View.crop(0.75, 0.0, 1.0, 1.0).matrix)


def test_points_outside_the_crop_leave_the_unit_square():
    """In the crop of x .5..1, the image's (.25, .5) lies half a crop width to the left."""
    np.testing.assert_allclose(View.crop(0.5, 0.0, 1.0, 1.0).to_crop(np.array([[0.25, 0.5]])), [[-0.5, 0.5]])


def test_boxes_are_clipped_and_their_visible_share_is_told():
    """Crop x .5..1, y 0..1, doubled in x. Boxes: half inside; cropped away; whole; a point inside; a point outside."""
    image = np.array(
        [[0.25, 0.2, 0.75, 0.4], [0.0, 0.0, 0.4, 1], [0.6, 0.5, 0.8, 1], [0.75, 0.5, 0.75, 0.5], [0.1, 0.5, 0.1, 0.5]]
    )
    moved, share = View.crop(0.5, 0.0, 1.0, 1.0).boxes_to_crop(image)
    np.testing.assert_allclose(
        moved[[0, 2, 3]], [[0, 0.2, 0.5, 0.4], [0.2, 0.5, 0.6, 1], [0.5, 0.5, 0.5, 0.5]], atol=1e-12
    )
    np.testing.assert_allclose(share, [0.5, 0.0, 1.0, 1.0, 0.0], atol=1e-12)


@pytest.mark.parametrize("point", [(0.0, 0.5), (0.5, 0.0), (1.0, 0.5), (0.5, 1.0), (0.0, 0.0), (1.0, 1.0)])
def test_a_point_on_the_edge_of_the_photo_is_inside(point):
    moved, share = View.identity().boxes_to_crop(np.array([[*point, *point]]))
    np.testing.assert_array_equal(moved, [[*point, *point]])
    assert share.tolist() == [1.0]


def test_flipped_boxes_keep_their_corners_in_order():
    moved, share = View.flip().boxes_to_crop(np.array([[0.1, 0.2, 0.4, 0.6]]))
    np.testing.assert_allclose(moved, [[0.6, 0.2, 0.9, 0.6]])
    np.testing.assert_allclose(share, [1.0])


def test_boxes_through_a_quarter_turn():
    """x = v, y = 1 - u: the crop's right edge is the image's top. The box at the top left comes to the top right."""
    view = View((0.0, 1.0, 0.0, -1.0, 0.0, 1.0))
    moved, share = view.boxes_to_crop(np.array([[0.0, 0.0, 0.2, 0.5]]))
    np.testing.assert_allclose(moved, [[0.5, 0.0, 1.0, 0.2]], atol=1e-12)
    np.testing.assert_allclose(share, [1.0])


def test_identity_keeps_maps():
    maps = torch.rand(2, 3, 5, 7)
    views = stack_views([View.identity()] * 2)
    torch.testing.assert_close(maps_to_crop(maps, views, (5, 7)), maps)
    back, visible = maps_to_image(maps, views, (5, 7))
    torch.testing.assert_close(back, maps)
    assert visible.all()


def test_whole_image_at_half_size_is_the_mean_of_two_by_two():
    """With W = 2 G a score cell's centre is the corner of four heatmap cells; bilinear weights are a quarter each."""
    maps = torch.rand(1, 2, 8, 8)
    read = maps_to_crop(maps, stack_views([View.identity()]), (4, 4))
    torch.testing.assert_close(read, torch.nn.functional.avg_pool2d(maps, 2))


def test_aligned_half_crop_copies_cells():
    maps = torch.rand(1, 2, 8, 8)
    read = maps_to_crop(maps, stack_views([View.crop(0.5, 0.0, 1.0, 0.5)]), (4, 4))
    torch.testing.assert_close(read, maps[:, :, :4, 4:])


def test_flip_reverses_columns():
    maps = torch.rand(1, 2, 3, 6)
    torch.testing.assert_close(maps_to_crop(maps, stack_views([View.flip()]), (3, 6)), maps.flip(3))


def test_visible_cells_are_those_with_their_centre_inside():
    """Four cells have their centres at .125 .375 .625 .875; x .5..1 holds the last two, y .2..1 all but the first."""
    _, visible = maps_to_image(torch.zeros(1, 1, 4, 4), stack_views([View.crop(0.5, 0.2, 1.0, 1.0)]), (4, 4))
    assert visible[0, 0].tolist() == [[False] * 4, *[[False, False, True, True]] * 3]


# Golden values (shared with the losses' tests)


@pytest.mark.parametrize(
    "case", SPATIAL["cases"], ids=lambda c: f"{c['crop_top_left_height_width_fraction']}-{c['hflip_after_crop']}"
)
class TestGolden:
    def test_read(self, case):
        heatmap = torch.tensor(SPATIAL["heatmap"], dtype=torch.float64)[None]
        views = stack_views([golden_view(case)]).double()
        read = maps_to_crop(heatmap, views, (SPATIAL["G"], SPATIAL["G"]))[0]
        expected = torch.tensor(case["target_T_of_H_at_score_resolution"], dtype=torch.float64)
        # Views travel in float32, so the box is only as exact as that.
        torch.testing.assert_close(read, expected, rtol=0, atol=2e-6)

    def test_write(self, case):
        heatmap = torch.tensor(SPATIAL["heatmap"], dtype=torch.float64)
        scores = torch.tensor(SPATIAL["score_logits"], dtype=torch.float64).sigmoid()
        views = stack_views([golden_view(case)]).double()
        values, visible = maps_to_image(scores[None], views, (SPATIAL["W"], SPATIAL["W"]))
        assert visible[0, 0].int().tolist() == case["updated_mask"]
        written = torch.where(visible[0], 0.8 * heatmap + 0.2 * values[0], heatmap)
        expected = torch.tensor(case["heatmap_after_update_float"], dtype=torch.float64)
        torch.testing.assert_close(written, expected, rtol=0, atol=2e-6)

    def test_all_at_once_equals_one_by_one(self, case):
        heatmap = torch.tensor(SPATIAL["heatmap"])[None]
        every = stack_views([golden_view(c) for c in SPATIAL["cases"]])
        together = maps_to_crop(heatmap.expand(len(every), -1, -1, -1), every, (4, 4))
        number = SPATIAL["cases"].index(case)
        torch.testing.assert_close(together[number], maps_to_crop(heatmap, every[number : number + 1], (4, 4))[0])


# A slow reference


def sample_bilinear(values, x, y):
    """Value at (x, y) in 0..1 of an array [H, W] whose cells have their centres at (i + .5) / W, border repeated."""
    rows, columns = values.shape
    px, py = np.clip(x * columns - 0.5, 0, columns - 1), np.clip(y * rows - 0.5, 0, rows - 1)
    left, top = min(int(px), columns - 2) if columns > 1 else 0, min(int(py), rows - 2) if rows > 1 else 0
    right, bottom = min(left + 1, columns - 1), min(top + 1, rows - 1)
    fx, fy = px - left, py - top
    above = values[top, left] * (1 - fx) + values[top, right] * fx
    below = values[bottom, left] * (1 - fx) + values[bottom, right] * fx
    return above * (1 - fy) + below * fy


@pytest.mark.parametrize(("source", "target"), [((1, 1), (1, 1)), ((1, 5), (3, 2)), ((4, 3), (6, 7)), ((8, 8), (1, 1))])
def test_maps_follow_the_plain_loop(source, target):
    rng = np.random.default_rng(0)
    views = [
        View.crop(0.1, 0.2, 0.9, 0.6),
        View.crop(0.0, 0.3, 0.5, 1.0).then(View.flip()),
        View((0.6, 0.2, 0.1, -0.3, 0.5, 0.4)),  # rotated and sheared
    ]
    maps = rng.random((len(views), 2, *source))
    read = maps_to_crop(torch.from_numpy(maps), stack_views(views).double(), target).numpy()
    back, visible = maps_to_image(torch.from_numpy(maps), stack_views(views).double(), target)
    for n, view in enumerate(views):
        for row, column in np.ndindex(*target):
            here = np.array([[(column + 0.5) / target[1], (row + 0.5) / target[0]]])
            (x, y), (u, v) = view.to_image(here)[0], view.to_crop(here)[0]
            for channel in range(2):
                assert read[n, channel, row, column] == pytest.approx(sample_bilinear(maps[n, channel], x, y), abs=1e-6)
                expected = sample_bilinear(maps[n, channel], u, v)
                assert back[n, channel, row, column].item() == pytest.approx(expected, abs=1e-5)
            assert visible[n, 0, row, column].item() == (0 <= u <= 1 and 0 <= v <= 1)


# Properties


@given(affine)
def test_inverse_undoes(view):
    points = np.array([[0.0, 0.0], [1.0, 0.3], [0.5, 0.9]])
    np.testing.assert_allclose(view.to_crop(view.to_image(points)), points, atol=1e-9)
    np.testing.assert_allclose(view.then(view.inverse()).matrix, View.identity().matrix, atol=1e-9)


@given(affine, affine)
def test_then_is_one_view_after_the_other(outer, inner):
    points = np.array([[0.0, 0.0], [1.0, 0.3], [0.5, 0.9]])
    np.testing.assert_allclose(outer.then(inner).to_image(points), outer.to_image(inner.to_image(points)), atol=1e-9)


@given(st.lists(affine, min_size=1, max_size=4))
def test_batched_inverse_equals_the_single_one(views):
    expected = torch.tensor([v.inverse().matrix for v in views]).view(-1, 2, 3)
    torch.testing.assert_close(invert_views(stack_views(views)), expected, rtol=1e-4, atol=1e-4)


@given(boxes, crops)
def test_boxes_move_like_their_corners(box, view):
    moved, share = view.boxes_to_crop(np.array([box]))
    corners = view.to_crop(np.array([box[:2], box[2:]]))
    low, high = corners.min(0), corners.max(0)
    np.testing.assert_allclose(moved[0], np.concatenate([low, high]).clip(0, 1), atol=1e-9)
    inside = np.prod(np.maximum(0, np.minimum(high, 1) - np.maximum(low, 0)))
    assert share[0] == pytest.approx(inside / np.prod(high - low), abs=1e-6)
    assert (moved[0, :2] <= moved[0, 2:]).all()


@given(crops)
def test_a_ramp_is_read_as_a_ramp(view):
    """H(x, y) = x - 2 y is linear, so bilinear reading is exact where the crop's cells are inside the outer centres."""
    size, out = 32, 5
    centres = (torch.arange(size) + 0.5) / size
    ramp = (centres[None, :] - 2 * centres[:, None])[None, None]
    read = maps_to_crop(ramp, stack_views([view]), (out, out))[0, 0].numpy()
    grid = (np.stack(np.meshgrid(np.arange(out), np.arange(out)), -1).reshape(-1, 2) + 0.5) / out
    x, y = view.to_image(grid).T
    inner = (np.minimum(x, y) > 0.5 / size) & (np.maximum(x, y) < 1 - 0.5 / size)
    np.testing.assert_allclose(read.reshape(-1)[inner], (x - 2 * y)[inner], atol=1e-4)


@given(crops)
def test_reading_back_a_constant_gives_the_constant(view):
    values, visible = maps_to_image(torch.full((1, 1, 3, 3), 0.25), stack_views([view]), (6, 6))
    torch.testing.assert_close(values, torch.full((1, 1, 6, 6), 0.25))
    x = (np.arange(6) + 0.5) / 6
    inside = view.to_crop(np.stack(np.meshgrid(x, x), -1).reshape(-1, 2))
    clear = (np.abs(inside - 0.5) - 0.5).max(1)  # how far outside (+) or inside (-) of the crop; float32 decides at 0
    expected = clear <= 0
    sure = np.abs(clear) > 1e-5
    np.testing.assert_array_equal(visible[0, 0].numpy().reshape(-1)[sure], expected[sure])


@pytest.mark.parametrize("size", [(3, 5), (14, 14)])
def test_a_device_without_border_padding_gets_the_same_bits_and_gradients(monkeypatch, size):
    """Views that reach beyond the maps on every side, so that the border counts."""
    generator = torch.Generator().manual_seed(0)
    maps = torch.rand(4, 2, *size, generator=generator).requires_grad_()
    views = stack_views([View((1.5, 0.2, -0.3, -0.1, 1.4, -0.2)), View.flip(), View.crop(-0.5, -0.5, 0.4, 0.2)] * 2)[:4]

    def resampled():
        back, visible = maps_to_image(maps, views, (6, 7))
        through = maps_to_crop(maps, views, (9, 4))
        (gradient,) = torch.autograd.grad(back.square().sum() + through.square().sum(), maps)
        return back.detach(), visible, through.detach(), gradient

    expected = resampled()
    monkeypatch.setattr(batched_views, "WITHOUT_BORDER", ("cpu",))
    assert all(torch.equal(*pair) for pair in zip(resampled(), expected, strict=True))


def test_stacked_views():
    views = stack_views([View.crop(0.25, 0.5, 1.0, 1.0), View.flip()])
    assert views.dtype == torch.float32
    assert views.tolist() == [[[0.75, 0.0, 0.25], [0.0, 0.5, 0.5]], [[-1.0, 0.0, 1.0], [0.0, 1.0, 0.0]]]
    assert stack_views([]).shape == (0, 2, 3)


# Errors


def test_a_view_without_area_cannot_be_inverted():
    with pytest.raises(ValueError, match=r"view \(0\.0, .*\) has no area and cannot be inverted"):
        View.crop(0.5, 0.0, 0.5, 1.0).inverse()
