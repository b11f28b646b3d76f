"""A picture of one heatmap: the photo, the map over it, a caption, and the scale of the colours."""

from __future__ import annotations

from functools import cache
from pathlib import Path

import matplotlib
import numpy as np
from matplotlib.ft2font import FT2Font
from numpy.typing import NDArray
from PIL import Image, ImageDraw, ImageFont

from fewtags.geometry import View
from fewtags.report.overlay import HeatScale, overlay, scale
from fewtags.text import printable

# Longest side of the photo in the picture. Small photos are enlarged, so that the caption has room.
SMALLEST, LARGEST = 360, 1000
NARROWEST = 300
GAP, LETTERS, LINE, BAR = 12, 15, 22, 14
INK, SOFT, PAPER = (29, 39, 48), (86, 100, 114), (255, 255, 255)


def heatmap_picture(
    photo: NDArray[np.uint8], heat: NDArray[np.floating], view: View, heat_scale: HeatScale, caption: tuple[str, str]
) -> Image.Image:
    """Draw the photo and its heatmap side by side, with a caption below the photo and the scale below the map.

    Args:
        photo: uint8 [H, W, 3]; drawn with a longest side of 360 to 1,000 pixels.
        heat: [h, w], in the frame of `view`.
        view: which part of the photo the map shows, see `overlay`.
        heat_scale: values of the weakest and the strongest colour.
        caption: two lines. A line that is too long loses its beginning, because file names differ at their end.
    """
    picture = Image.fromarray(photo)
    factor = np.clip(max(picture.size), SMALLEST, LARGEST) / max(picture.size)
    width, height = (max(1, round(length * factor)) for length in picture.size)
    picture = picture.resize((width, height), Image.Resampling.LANCZOS)
    drawn = Image.fromarray(overlay(np.asarray(picture), heat_scale.apply(heat), view=view))
    column = max(width, NARROWEST)
    page = Image.new("RGB", (2 * column + 3 * GAP, height + 2 * LINE + 3 * GAP), PAPER)
    right, below = column + 2 * GAP, height + 2 * GAP
    page.paste(picture, (GAP, GAP))
    page.paste(drawn, (right, GAP))
    draw = ImageDraw.Draw(page)
    for line, (text, ink, bold) in enumerate(zip(caption, (INK, SOFT), (True, False), strict=True)):
        font = _font(bold=bold)
        draw.text((GAP, below + line * LINE), fitted(text, font, column), ink, font)
    low, high = heat_scale.ends
    font = _font(bold=False)
    before, after = (round(font.getlength(text)) + GAP // 2 for text in (low, high))
    length = max(1, column - before - after)
    draw.text((right, below), low, INK, font)
    page.paste(Image.fromarray(scale(length, BAR)), (right + before, below + 3))
    draw.text((right + column, below), high, INK, font, anchor="ra")
    draw.text((right, below + LINE), fitted(heat_scale.text, font, column), SOFT, font)
    return page


def drawable(text: str) -> str:
    r"""Return a text that the font can draw: control characters and letters it lacks become escapes.

    >>> drawable("Käfer \n 狗"), drawable("\u202egnp.exe")
    ('Käfer \\x0a \\u72d7', '\\u202egnp.exe')
    """
    return "".join(ch if ord(ch) in _letters() else _escape(ch) for ch in printable(text).replace("\n", "\\x0a"))


def fitted(text: str, font: ImageFont.FreeTypeFont, width: int) -> str:
    """Return the text as `drawable` writes it; if it is wider than `width` pixels, only its end, after dots."""
    text = drawable(text)
    if font.getlength(text) <= width:
        return text
    # Half of a long text at a time, so that a name of any length costs little.
    shortest, longest = 0, len(text)
    while shortest < longest:
        middle = (shortest + longest + 1) // 2
        fits = font.getlength("…" + text[-middle:]) <= width
        shortest, longest = (middle, longest) if fits else (shortest, middle - 1)
    return "…" + text[len(text) - shortest :]


def _escape(letter: str) -> str:
    return f"\\u{ord(letter):04x}" if ord(letter) < 0x10000 else f"\\U{ord(letter):08x}"


def _file(*, bold: bool) -> Path:
    name = "DejaVuSans-Bold.ttf" if bold else "DejaVuSans.ttf"
    return Path(matplotlib.get_data_path()) / "fonts" / "ttf" / name


@cache
def _font(*, bold: bool) -> ImageFont.FreeTypeFont:
    return ImageFont.truetype(str(_file(bold=bold)), LETTERS)


@cache
def _letters() -> frozenset[int]:
    """Return the letters that both fonts have."""
    both = [FT2Font(str(_file(bold=bold))).get_charmap() for bold in (False, True)]
    return frozenset(both[0]) & frozenset(both[1])
