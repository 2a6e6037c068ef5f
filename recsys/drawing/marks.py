"""How each run is drawn: a colour and a form, so that many runs can be told apart."""

from __future__ import annotations

from typing import NamedTuple
from xml.etree.ElementTree import Element

from recsys.drawing.palette import LIGHT
from recsys.drawing.svg import node

_CORNERS = (
    (),
    ((-0.89, -0.89), (0.89, -0.89), (0.89, 0.89), (-0.89, 0.89)),
    ((0.0, -1.3), (1.2, 0.85), (-1.2, 0.85)),
    ((0.0, -1.3), (1.3, 0.0), (0.0, 1.3), (-1.3, 0.0)),
)
"""Circle, square, triangle and diamond of about the same area, in radii of the circle."""
_DASHES = (None, "6 5", "0.1 5", "8 5 0.1 5")
"""The strokes of the forms. Round ends make a stroke longer by its width, and .1 a dot."""


class Style(NamedTuple):
    """How a run is drawn everywhere on a page."""

    colour: int | None = None
    """An index of `Theme.colours`; None is grey."""
    form: int = 0
    """The shape of its marks and the dashes of its lines, 0 to 3."""

    @property
    def css(self) -> str:
        """The class of everything that is drawn in the colour."""
        return "grey" if self.colour is None else f"c{self.colour}"

    @property
    def dashes(self) -> str | None:
        """The ``stroke-dasharray`` of its lines; None for a whole line."""
        return _DASHES[self.form]


GREY = Style()
BEST = Style(0)
"""The style of the best run, which it shares with no other."""


def styles_by_merit(count: int) -> list[Style]:
    """Give each of ``count`` runs a style of its own, the best first.

    Seven have a colour each; the next seven have the same colours in another form, and so on.
    After 28 runs the others are grey.

    >>> styles_by_merit(2)
    [Style(colour=0, form=0), Style(colour=1, form=0)]
    >>> styles_by_merit(8)[7], styles_by_merit(29)[28] == GREY
    (Style(colour=0, form=1), True)
    """
    colours = len(LIGHT.colours)
    return [
        Style(place % colours, place // colours) if place < colours * len(_CORNERS) else GREY
        for place in range(count)
    ]


def shape(style: Style, x: float, y: float, radius: float, class_: str = "dot") -> Element:
    """Return the mark of a style around a point; its group must have the class of the colour."""
    if not (corners := _CORNERS[style.form]):
        return node("circle", cx=x, cy=y, r=radius, class_=class_)
    places = (f"{x + radius * right:.1f},{y + radius * down:.1f}" for right, down in corners)
    return node("polygon", points=" ".join(places), class_=class_)


def key(style: Style) -> Element:
    """Return a small picture of a style, its line and its mark, to stand before a name."""
    return node(
        "svg",
        node("path", d="M1 6h24", class_="line", stroke_width=2, stroke_dasharray=style.dashes),
        shape(style, 13, 6, 4, "dot ring"),
        class_=f"key {style.css}",
        viewBox="0 0 26 12",
        width=26,
        height=12,
        aria_hidden="true",
    )
