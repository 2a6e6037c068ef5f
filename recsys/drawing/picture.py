"""A picture of a page: as SVG for two widths, with its numbers as a table."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from xml.etree.ElementTree import Element

from recsys.drawing.palette import LIGHT, picture_style
from recsys.drawing.svg import markup
from recsys.drawing.values import Values

FULL, HALF, NARROW = 960, 520, 358
"""The widths of pictures in pixels: of the page, of half of it, and of a telephone."""


@dataclass(frozen=True, slots=True)
class Picture:
    """A picture of a page, drawn for wide screens and for narrow ones."""

    name: str
    """The name of its file, without extension."""
    title: str
    caption: str
    wide: Element
    narrow: Element
    values: Values
    """Its numbers as a table."""

    @property
    def has_marks(self) -> bool:
        """Can its marks be chosen, one by one, to read their values?"""
        return any("mark" in each.get("class", "").split() for each in self.wide.iter())

    @property
    def wide_svg(self) -> str:
        """The picture for wide screens as markup."""
        return markup(self.wide)

    @property
    def narrow_svg(self) -> str:
        """The picture for narrow screens as markup."""
        return markup(self.narrow)

    @property
    def file(self) -> str:
        """The content of an SVG file: the wide picture with its colours on white."""
        style = f"<style>{picture_style(LIGHT)}svg{{background:{LIGHT.paper}}}</style>"
        head, _, rest = self.wide_svg.partition(">")
        return f"{head}>{style}{rest}\n"


def draw(
    name: str, title: str, caption: str, width: int, at: Callable[[int], Element], values: Values
) -> Picture:
    """Draw a picture for wide screens and for narrow ones."""
    return Picture(name, title, caption, at(width), at(NARROW), values)
