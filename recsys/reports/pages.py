"""HTML pages: one file with its style and its charts, which loads nothing and runs nothing."""

from base64 import b64encode
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from hashlib import sha256
from typing import NamedTuple

from jinja2 import Environment, PackageLoader, StrictUndefined

from recsys.reports import charts
from recsys.reports.charts import Chart


class Cell(NamedTuple):
    """A cell of a table: a text, small lines below it, and a tag after it."""

    text: str
    lines: Sequence[str] = ()
    tag: str = ""
    bold: bool = False


class Table(NamedTuple):
    """A table of a page, with a caption below it; one without rows is left out."""

    title: str
    head: Sequence[str]
    rows: Sequence[Sequence[str | Cell]]
    caption: str = ""


@dataclass(frozen=True, slots=True)
class Section:
    """A section of a page, shown in the order of these fields; what is empty is left out."""

    title: str
    charts: Sequence[Chart] = ()
    facts: Mapping[str, str] = field(default_factory=dict)
    tables: Sequence[Table] = ()


def render(title: str, lead: str, sections: Sequence[Section], name: str = "") -> str:
    """Return a page; every text is escaped, and sections without contents are left out.

    The page forbids by its own policy what it does not need: scripts, requests, any other style.
    The name of what it is about stands in small letters above the title.
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
    words = {"title": title, "lead": lead, "name": name, "sections": sections}
    return environment.get_template("page.html").render(words, style=style, digest=digest)
