"""Words in figures are legible by day and by night."""

import re
from typing import get_args

import pytest

from bench.drawing import Colour, Figure

GROUNDS = {"ground", "paper"}


def luminance(colour):
    """Return the relative luminance of `#rrggbb`, as WCAG defines it."""
    parts = [int(colour[place : place + 2], 16) / 255 for place in (1, 3, 5)]
    red, green, blue = (part / 12.92 if part <= 0.03928 else ((part + 0.055) / 1.055) ** 2.4 for part in parts)
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue


def contrast(one, other):
    darker, lighter = sorted((luminance(one), luminance(other)))
    return (lighter + 0.05) / (darker + 0.05)


@pytest.fixture
def palettes():
    """The colours of a figure that uses all of them, for light and for dark."""
    figure = Figure(100, 100, "all colours")
    for colour in get_args(Colour):
        figure.words(10, 10, "word", colour=colour)
    style = re.search("<style>(.*)</style>", figure.svg())[1]
    parts = style.split("@media(prefers-color-scheme:dark)")
    assert len(parts) == 2
    return [dict(re.findall(r"\.(\w+)\{fill:(#\w{6})\}", part)) for part in parts]


@pytest.mark.parametrize("colour", sorted(set(get_args(Colour)) - GROUNDS))
def test_text_contrasts_with_both_backgrounds_in_light_and_dark_mode(colour, palettes):
    for palette in palettes:
        for ground in GROUNDS:
            assert contrast(palette[colour], palette[ground]) >= 4.5
