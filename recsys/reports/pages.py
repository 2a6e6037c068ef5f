"""HTML pages: one file with its style and its charts, which loads nothing and runs nothing."""

from __future__ import annotations

from base64 import b64encode
from collections.abc import Sequence
from dataclasses import dataclass
from hashlib import sha256

from jinja2 import Environment, PackageLoader, StrictUndefined

from recsys.reports import charts


@dataclass(frozen=True, slots=True)
class Cell:
    """A cell of a table that is more than a text."""

    text: str
    lines: Sequence[str] = ()
    """Below the text, in small letters."""
    key: str = ""
    """Before it: an SVG, as `Style.key`."""
    tag: str = ""
    """After it."""
    bold: bool = False


def render(template: str, **context: object) -> str:
    """Fill a template of this package; every text is escaped.

    The page forbids by its own policy what it does not need: scripts, requests, any other style.

    Args:
        template: its name; it extends ``frame.html``.
        context: what the template shows.
    """
    environment = Environment(
        autoescape=True,
        undefined=StrictUndefined,
        loader=PackageLoader("recsys.reports"),
        trim_blocks=True,
        lstrip_blocks=True,
    )
    style = environment.get_template("page.css").render(charts=charts)
    digest = b64encode(sha256(style.encode()).digest()).decode()
    return environment.get_template(template).render(style=style, digest=digest, **context)
