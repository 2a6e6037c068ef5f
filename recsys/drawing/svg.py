"""Elements of SVG pictures, and the text in them."""

from __future__ import annotations

import unicodedata
from xml.etree.ElementTree import Element, tostring

# Widths of letters in their height, of DejaVu Sans: among the fonts of systems it is wide.
_NARROW, _PLAIN, _CAPITAL, _WIDE, _FULL = 0.36, 0.61, 0.68, 0.95, 1.05
_NARROW_LETTERS = frozenset("fijlrtI.,:;'`|!()[] /-")
_WIDE_LETTERS = frozenset("mwMW@%<>=+~#&QO—…")


def node(tag: str, *children: Element | str, **attributes: str | float | None) -> Element:
    """Return an element with its children, of which a text is the content.

    ``class_`` is the attribute ``class``, other underscores are hyphens, and None leaves an
    attribute out.

    >>> tostring(node("text", "a < b", x=1.25, class_="muted"), encoding="unicode")
    '<text x="1.2" class="muted">a &lt; b</text>'
    """
    element = Element(tag)
    for name, value in attributes.items():
        if value is not None:
            element.set(name.rstrip("_").replace("_", "-"), _number(value))
    for child in children:
        if isinstance(child, Element):
            element.append(child)
        else:
            element.text = printable(child)
    return element


def picture(width: float, height: float, title: str, *children: Element) -> Element:
    """Return a picture of a size in pixels; it shrinks with the page and never grows."""
    return node(
        "svg",
        *children,
        xmlns="http://www.w3.org/2000/svg",
        viewBox=f"0 0 {_number(width)} {_number(height)}",
        width=width,
        height=height,
        role="img",
        aria_label=printable(title),
    )


def markup(element: Element) -> str:
    """Return an element as it stands in an HTML page or in an SVG file."""
    return tostring(element, encoding="unicode")


def printable(text: str) -> str:
    """Return a text without the control characters that XML forbids."""
    return "".join(
        letter if unicodedata.category(letter) not in {"Cc", "Cs"} else " " for letter in text
    )


def text_width(text: str, size: float = 12) -> float:
    """Return about the width of a text in pixels."""
    return size * sum(map(_advance, text))


def fitted(text: str, width: float, size: float = 12) -> str:
    """Return a text that is cut, with …, where it would be wider than so many pixels.

    >>> fitted("a long name", 50), fitted("short", 50)
    ('a long…', 'short')
    """
    if text_width(text, size) <= width:
        return text
    while text and text_width(text + "…", size) > width:
        text = text[:-1]
    return text.rstrip() + "…"


def _advance(letter: str) -> float:
    """Return the width of a letter in its height."""
    if letter in _NARROW_LETTERS:
        return _NARROW
    if letter in _WIDE_LETTERS:
        return _WIDE
    if unicodedata.east_asian_width(letter) in {"W", "F"}:
        return _FULL
    return _CAPITAL if letter.isupper() else _PLAIN


def _number(value: str | float) -> str:
    return value if isinstance(value, str) else f"{value:.1f}".removesuffix(".0")
