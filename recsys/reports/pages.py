"""HTML pages: one file with its style and its charts, which loads nothing and runs nothing."""

from __future__ import annotations

from base64 import b64encode
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from hashlib import sha256
from typing import NamedTuple

from jinja2 import Environment, PackageLoader, StrictUndefined

from recsys.reports import charts
from recsys.reports.charts import Chart


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


class Table(NamedTuple):
    """A table of a page."""

    title: str
    head: Sequence[str]
    rows: Sequence[Sequence[str | Cell]]
    caption: str = ""
    """How to read it, below it."""


class Item(NamedTuple):
    """An item of a user's list."""

    name: str
    """What people read: its name, or its id without one."""
    item_id: str
    tag: str = ""
    """Beside it."""
    reasons: str = ""
    """Below it."""
    held_out: bool = False
    """Is it what the user took next?"""


@dataclass(frozen=True, slots=True)
class UserCard:
    """A user, with the items of a list; see `recsys.reports.run_page.examples_of`."""

    user_id: str
    history_length: int
    newest: Sequence[Item]
    """The newest items of the history, the newest first."""
    items: Sequence[Item]
    """The list, the best first."""
    held_out: Item
    """What the user took next, which the model did not see."""


@dataclass(frozen=True, slots=True)
class Section:
    """A part of a page, shown in the order of these fields; what is empty is left out."""

    title: str
    text: str = ""
    code: str = ""
    numbers: Mapping[str, str] = field(default_factory=dict)
    """Large numbers, by what they count."""
    charts: Sequence[Chart] = ()
    tables: Sequence[Table] = ()
    facts: Mapping[str, str] = field(default_factory=dict)
    users: Sequence[UserCard] = ()
    points: Sequence[str] = ()
    """Sentences of a list."""

    def __bool__(self) -> bool:
        """Is there anything in it?"""
        contents = (self.code, self.numbers, self.charts, self.tables, self.facts, self.users)
        return any(map(bool, (*contents, self.points)))


def render(
    title: str, headline: str, lead: str, sections: Sequence[Section], name: str = ""
) -> str:
    """Return a page; every text is escaped, and sections without contents are left out.

    The page forbids by its own policy what it does not need: scripts, requests, any other style.

    Args:
        title: of the window.
        headline: the first words of the page.
        lead: what the page shows, in a sentence or two.
        sections: the parts of the page.
        name: what it is about, in small letters above the headline.
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
    return environment.get_template("page.html").render(
        title=title,
        headline=headline,
        lead=lead,
        name=name,
        sections=[section for section in sections if section],
        style=style,
        digest=digest,
    )
