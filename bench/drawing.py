"""A small kit for figures as SVG: shapes and words in a few colours, each legible by day and by night.

A figure has its own background, so it is legible on any page. A style sheet within the file follows the reader's
preference for light or dark. All coordinates are pixels from the upper left. It draws the plots of the benchmarks, the
figures of the documentation, and the picture of a run of the demo.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Final, Literal, NamedTuple
from xml.sax.saxutils import escape, quoteattr

__all__ = ["Bar", "Colour", "Figure"]

Colour = Literal["ink", "muted", "accent", "good", "bad", "warn", "cool", "paper", "ground"]

_LIGHT: Final = {
    "ground": "#fbfaff",
    "ink": "#22202b",
    "muted": "#6a657b",
    "accent": "#5e35b1",
    "good": "#187547",
    "bad": "#c62828",
    "warn": "#985a00",
    "cool": "#026ca8",
    "paper": "#eceaf4",
}
_DARK: Final = {
    "ground": "#1d1b26",
    "ink": "#ece9f6",
    "muted": "#a49fb8",
    "accent": "#b39ddb",
    "good": "#66c796",
    "bad": "#ff8a80",
    "warn": "#ffc266",
    "cool": "#81d4fa",
    "paper": "#2c2937",
}
_SIZE: Final = 14
_Anchor = Literal["start", "middle", "end"]


class Bar(NamedTuple):
    """A bar of a strip.

    Attributes:
        begin: Where it begins, in the strip's own unit.
        length: The length, in the same unit.
        row: In which row it lies, from 0.
    """

    begin: float
    length: float
    row: int = 0


def _rules(colours: dict[str, str], used: str) -> str:
    """Return the style sheet's rules for those of the colours that occur in the body of a file."""
    rules = [f".{name}{{fill:{value}}}" for name, value in colours.items() if re.search(rf'"{name}[" ]', used)]
    rules += [f".l-{name}{{stroke:{value}}}" for name, value in colours.items() if f'l-{name}"' in used]
    return "".join(rules)


class Figure:
    """One picture.

    Args:
        width: In pixels.
        height: In pixels.
        title: The content in words, for readers who can't see it.
    """

    def __init__(self, width: int, height: int, title: str) -> None:
        self.width: Final = width
        self.height: Final = height
        self._title: Final = title
        self._parts: Final[list[str]] = []

    def words(
        self,
        x: float,
        y: float,
        *lines: str,
        colour: Colour = "ink",
        anchor: _Anchor = "start",
        size: int = _SIZE,
        bold: bool = False,
    ) -> None:
        """Write lines of text, the first with its foot at y."""
        weight = ' font-weight="600"' if bold else ""
        for number, line in enumerate(lines):
            self._parts.append(
                f'<text class="{colour}" x="{x:g}" y="{y + number * (size + 4):g}" font-size="{size}" '
                f'text-anchor="{anchor}"{weight}>{escape(line)}</text>'
            )

    def box(
        self,
        x: float,
        y: float,
        width: float,
        height: float,
        *lines: str,
        colour: Colour = "paper",
        edge: Colour | None = None,
        dashed: bool = False,
        word_colour: Colour = "ink",
        size: int = _SIZE,
        radius: float = 6,
    ) -> None:
        """Draw a box with text in its middle."""
        border = "" if edge is None else f" l-{edge}"
        stroke = "" if edge is None else ' stroke-width="1.5"'
        dash = ' stroke-dasharray="5 4"' if dashed else ""
        self._parts.append(
            f'<rect class="{colour}{border}" x="{x:g}" y="{y:g}" width="{width:g}" height="{height:g}" rx="{radius:g}"'
            f"{stroke}{dash}/>"
        )
        top = y + height / 2 + size / 2 - 2 - (len(lines) - 1) * (size + 4) / 2
        self.words(x + width / 2, top, *lines, colour=word_colour, anchor="middle", size=size)

    def line(
        self,
        *points: tuple[float, float],
        colour: Colour = "muted",
        width: float = 1.5,
        dashed: bool = False,
        arrow: bool = False,
    ) -> None:
        """Draw a line through the points, with a head at its end if it is an arrow."""
        dash = ' stroke-dasharray="5 4"' if dashed else ""
        path = "M" + "L".join(f"{x:g} {y:g}" for x, y in points)
        self._parts.append(f'<path class="n l-{colour}" d="{path}" stroke-width="{width:g}"{dash}/>')
        if arrow:
            self._head(points[-2], points[-1], colour)

    def area(self, *corners: tuple[float, float], colour: Colour = "paper") -> None:
        """Fill what lies between the corners."""
        path = "M" + "L".join(f"{x:g} {y:g}" for x, y in corners) + "Z"
        self._parts.append(f'<path class="{colour}" d="{path}"/>')

    def _head(self, before: tuple[float, float], tip: tuple[float, float], colour: Colour) -> None:
        (x0, y0), (x, y) = before, tip
        length = ((x - x0) ** 2 + (y - y0) ** 2) ** 0.5
        dx, dy = (x - x0) / length, (y - y0) / length
        sides = ((x - 9 * dx - side * 4 * dy, y - 9 * dy + side * 4 * dx) for side in (1, -1))
        self.area(tip, *((round(a, 1), round(b, 1)) for a, b in sides), colour=colour)

    def strip(
        self,
        x: float,
        y: float,
        width: float,
        height: float,
        bars: Iterable[Bar],
        *,
        span: tuple[float, float],
        rows: int = 1,
        colour: Colour = "accent",
    ) -> None:
        """Draw bars in rows, clipped at the edges.

        The file has them in their own unit, to three decimals; `span` has the values at the left and the right edge.
        """
        path = "".join(f"M{round(bar.begin, 3)} {bar.row + 0.5:g}h{round(bar.length, 3)}" for bar in bars)
        if path:
            self._parts.append(
                f'<svg x="{x:g}" y="{y:g}" width="{width:g}" height="{height:g}" preserveAspectRatio="none" '
                f'viewBox="{span[0]} 0 {span[1] - span[0]} {rows}"><path class="n l-{colour}" d="{path}"/></svg>'
            )

    def dot(self, x: float, y: float, *, colour: Colour = "accent", radius: float = 5) -> None:
        """Draw a point."""
        self._parts.append(f'<circle class="{colour}" cx="{x:g}" cy="{y:g}" r="{radius:g}"/>')

    def cross(self, x: float, y: float, *, colour: Colour = "bad", arm: float = 6) -> None:
        """Draw a cross."""
        self.line((x - arm, y - arm), (x + arm, y + arm), colour=colour, width=2.5)
        self.line((x - arm, y + arm), (x + arm, y - arm), colour=colour, width=2.5)

    def svg(self) -> str:
        """Return the file's text."""
        ground = f'<rect class="ground" width="{self.width}" height="{self.height}" rx="10"/>'
        body = "\n".join([ground, *self._parts])
        style = (
            "text{font-family:system-ui,-apple-system,'Segoe UI',Roboto,'DejaVu Sans',sans-serif}.n{fill:none}"
            f"{_rules(_LIGHT, body)}@media(prefers-color-scheme:dark){{{_rules(_DARK, body)}}}"
        )
        head = (
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {self.width} {self.height}" width="{self.width}" '
            f'height="{self.height}" role="img" aria-label={quoteattr(self._title)}>'
        )
        return "\n".join([head, f"<title>{escape(self._title)}</title>", f"<style>{style}</style>", body, "</svg>", ""])
