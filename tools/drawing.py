"""A small kit for figures as SVG: shapes and words in a few colours, each legible by day and by night.

A figure has a ground of its own, so it is legible whatever page it stands on; a reader's preference for dark colours is
respected by a style sheet within the file. All coordinates are pixels from the upper left.
"""

from __future__ import annotations

from typing import Final, Literal
from xml.sax.saxutils import escape, quoteattr

__all__ = ["Colour", "Figure"]

Colour = Literal["ink", "muted", "accent", "good", "bad", "warn", "paper"]

_LIGHT: Final = {
    "ground": "#fbfaff",
    "ink": "#22202b",
    "muted": "#6f6a80",
    "accent": "#5e35b1",
    "good": "#1b7f4b",
    "bad": "#c62828",
    "warn": "#b26a00",
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
    "paper": "#2c2937",
}
_SIZE: Final = 14
_Anchor = Literal["start", "middle", "end"]


def _rules(colours: dict[str, str]) -> str:
    rules = [f".g{{fill:{colours['ground']}}}"]
    for name, value in colours.items():
        if name != "ground":
            rules.append(f".{name}{{fill:{value}}}.l-{name}{{stroke:{value}}}")
    return "".join(rules)


class Figure:
    """One picture.

    Args:
        width: In pixels.
        height: In pixels.
        title: What it shows, for those who can't see it.
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
    ) -> None:
        """Draw a box with text in its middle."""
        border = "" if edge is None else f" l-{edge}"
        stroke = "" if edge is None else ' stroke-width="1.5"'
        dash = ' stroke-dasharray="5 4"' if dashed else ""
        self._parts.append(
            f'<rect class="{colour}{border}" x="{x:g}" y="{y:g}" width="{width:g}" height="{height:g}" rx="6"'
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

    def _head(self, before: tuple[float, float], tip: tuple[float, float], colour: Colour) -> None:
        (x0, y0), (x, y) = before, tip
        length = ((x - x0) ** 2 + (y - y0) ** 2) ** 0.5
        dx, dy = (x - x0) / length, (y - y0) / length
        corners = [(x, y), *((x - 9 * dx - side * 4 * dy, y - 9 * dy + side * 4 * dx) for side in (1, -1))]
        path = "M" + "L".join(f"{a:.1f} {b:.1f}" for a, b in corners) + "Z"
        self._parts.append(f'<path class="{colour}" d="{path}"/>')

    def dot(self, x: float, y: float, *, colour: Colour = "accent", radius: float = 5) -> None:
        """Draw a point."""
        self._parts.append(f'<circle class="{colour}" cx="{x:g}" cy="{y:g}" r="{radius:g}"/>')

    def cross(self, x: float, y: float, *, colour: Colour = "bad", arm: float = 6) -> None:
        """Draw a cross."""
        self.line((x - arm, y - arm), (x + arm, y + arm), colour=colour, width=2.5)
        self.line((x - arm, y + arm), (x + arm, y - arm), colour=colour, width=2.5)

    def svg(self) -> str:
        """Return the file's text."""
        style = (
            "text{font-family:system-ui,-apple-system,'Segoe UI',Roboto,'DejaVu Sans',sans-serif}.n{fill:none}"
            f"{_rules(_LIGHT)}@media(prefers-color-scheme:dark){{{_rules(_DARK)}}}"
        )
        head = (
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {self.width} {self.height}" width="{self.width}" '
            f'height="{self.height}" role="img" aria-label={quoteattr(self._title)}>'
        )
        ground = f'<rect class="g" width="{self.width}" height="{self.height}" rx="10"/>'
        body = [
            head,
            f"<title>{escape(self._title)}</title>",
            f"<style>{style}</style>",
            ground,
            *self._parts,
            "</svg>",
        ]
        return "\n".join(body) + "\n"
