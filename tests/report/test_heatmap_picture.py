"""Pictures of heatmaps: their parts, their scale, and the text in them."""

import numpy as np
import pytest
from PIL import Image

from fewtags.geometry import View
from fewtags.report import heatmap_picture as module
from fewtags.report.heatmap_picture import GAP, LARGEST, NARROWEST, drawable, fitted, heatmap_picture
from fewtags.report.overlay import HeatScale, overlay

WHOLE = View.identity()


def test_scale_is_fixed_unless_every_probability_is_low() -> None:
    low, high = np.array([[0.05, 0.2]]), np.array([[0.05, 0.5]])
    assert HeatScale.of([high]) == HeatScale(0, 1)
    assert HeatScale.of([low]) == HeatScale(0.05, 0.2, relative=True)
    assert HeatScale.of([low, high]) == HeatScale(0, 1)
    assert HeatScale.of([low], "fixed") == HeatScale(0, 1)
    assert HeatScale.of([high], "relative") == HeatScale(0.05, 0.5, relative=True)


def test_relative_scale_uses_all_colours() -> None:
    """Three values between .05 and .2: the middle one is a third of the way up."""
    found = HeatScale.of([np.array([[0.05, 0.1, 0.2]])]).apply(np.array([[0.05, 0.1, 0.2]]))
    np.testing.assert_allclose(found, [[0, 1 / 3, 1]])


def test_noise_of_a_flat_map_is_not_enlarged() -> None:
    flat = np.array([[0.1, 0.1005]])
    found = HeatScale.of([flat])
    assert (found.apply(flat) == 0).all()
    assert found.text == "about 0.1 everywhere"


@pytest.mark.parametrize(
    ("low", "high", "text"),
    [
        (0.05, 0.2, "relative scale: 0.05 to 0.20"),
        (0.001, 0.004, "relative scale: 0.001 to 0.004"),
        (-3.0, 5.0, "relative scale: -3.00 to 5.00"),
    ],
)
def test_the_ends_of_a_scale_differ(low: float, high: float, text: str) -> None:
    assert HeatScale(low, high, relative=True).text == text


def test_photo_and_map_are_beside_each_other() -> None:
    photo = np.random.default_rng(0).integers(0, 255, (360, 400, 3)).astype(np.uint8)
    heat = np.array([[0.1, 0.9]])
    page = np.asarray(heatmap_picture(photo, heat, WHOLE, HeatScale(), ("cat", "a.jpg")))
    assert (page[GAP : GAP + 360, GAP : GAP + 400] == photo).all()
    right = 400 + 2 * GAP
    assert (page[GAP : GAP + 360, right : right + 400] == overlay(photo, heat)).all()


def test_caption_and_scale_are_drawn(monkeypatch: pytest.MonkeyPatch) -> None:
    said: list[str] = []
    fitted_ = module.fitted
    monkeypatch.setattr(module, "fitted", lambda text, *rest: said.append(text) or fitted_(text, *rest))
    photo = np.full((360, 400, 3), 255, np.uint8)
    page = np.asarray(
        heatmap_picture(
            photo, np.array([[0.05, 0.2]]), WHOLE, HeatScale.of([np.array([[0.05, 0.2]])]), ("cat 0.12", "a.jpg")
        )
    )
    assert said == ["cat 0.12", "a.jpg", "relative scale: 0.05 to 0.20"]
    below = page[360 + GAP :]
    assert (below[:, : 400 + GAP] != 255).any()
    bar = page[360 + 2 * GAP + 8, 400 + 2 * GAP :].astype(int)
    assert (bar.max(-1) - bar.min(-1)).max() > 100  # colours


def test_words_change_only_the_caption() -> None:
    photo = np.full((300, 400, 3), 9, np.uint8)
    pages = [
        np.asarray(heatmap_picture(photo, np.ones((1, 1)), WHOLE, HeatScale(), (t, "a.jpg"))) for t in ("cat", "dog")
    ]
    changed = (pages[0] != pages[1]).any(-1)
    assert changed.any()
    assert not changed[: 300 + GAP].any()
    assert not changed[:, 400 + GAP :].any()


@pytest.mark.parametrize(("height", "width"), [(1, 1), (3, 5000), (5000, 3), (1500, 2000)])
def test_photos_of_every_shape(height: int, width: int) -> None:
    page = heatmap_picture(np.zeros((height, width, 3), np.uint8), np.ones((2, 2)), WHOLE, HeatScale(), ("c", "f"))
    assert isinstance(page, Image.Image)
    assert 2 * NARROWEST < page.width <= 2 * LARGEST + 3 * GAP
    assert page.height <= LARGEST + 100


def test_names_cannot_turn_or_break_the_caption() -> None:
    assert drawable("a\x1b[31m\nb\u202egpj") == "a\\x1b[31m\\x0ab\\u202egpj"
    assert drawable("狗𓂀") == "\\u72d7\\U00013080"
    assert drawable("Käfer, Жук") == "Käfer, Жук"


def test_long_text_keeps_its_end() -> None:
    font = module._font(bold=False)
    text = "photos/" * 3000 + "a.jpg"
    found = fitted(text, font, 200)
    assert found.startswith("…")
    assert text.endswith(found[1:])
    assert 150 < font.getlength(found) <= 200
    assert fitted("a.jpg", font, 200) == "a.jpg"
