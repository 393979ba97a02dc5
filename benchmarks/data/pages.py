"""Pages of documents: real prose in columns around a photograph, drawn at 200 dots per inch."""

from __future__ import annotations

import functools

import numpy as np
from PIL import Image, ImageDraw, ImageFont

from benchmarks.data.photographs import Crop, cut

FONT_PX = 26
_LINE_PX = 36
_MARGIN_PX = 120


@functools.cache
def _words() -> tuple[str, ...]:
    """Returns the words of Python's own language reference, which every interpreter includes."""
    from pydoc_data.topics import topics

    return tuple(" ".join(topics[name] for name in sorted(topics)).split())


def draw_page(rng: np.random.Generator, *, width: int, height: int) -> Crop:
    """Returns a white page with black text in two columns and a photograph, all drawn from `rng`.

    Args:
        rng: Source of every choice.
        width: Of the page in pixels, more than 400.
        height: Of the page in pixels.
    """
    page = Image.new("RGB", (width, height), "white")
    pen, font = ImageDraw.Draw(page), ImageFont.load_default(FONT_PX)
    column = (width - 3 * _MARGIN_PX) // 2
    figure = cut(rng, width=column, height=column * 3 // 4)
    figure_top = int(rng.integers(_MARGIN_PX, max(_MARGIN_PX + 1, height - 2 * column)))
    words, place = _words(), int(rng.integers(len(_words())))
    for side in (0, 1):
        left, top = _MARGIN_PX + side * (column + _MARGIN_PX), _MARGIN_PX
        while top < height - _MARGIN_PX:
            if side == 1 and figure_top <= top < figure_top + figure.image.height:
                page.paste(figure.image, (left, top))
                top += figure.image.height + _LINE_PX
                figure_top = -height
                continue
            line = words[place % len(words)]
            place += 1
            while pen.textlength(f"{line} {words[place % len(words)]}", font) <= column:
                line = f"{line} {words[place % len(words)]}"
                place += 1
            pen.text((left, top), line, "black", font)
            top += _LINE_PX
    caption = f"a page of text with a picture: {figure.caption}"
    return Crop(page, caption, figure.photograph, figure.box, figure.mirrored)
