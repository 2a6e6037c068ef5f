"""HTML pages: one file with its style, script and pictures, which loads nothing."""

from __future__ import annotations

from importlib.resources import files

from jinja2 import Environment, FunctionLoader, StrictUndefined

from recsys.drawing.palette import DARK, LIGHT, page_variables, picture_style


def render(template: str, **context: object) -> str:
    """Fill a template of the package; every text is escaped.

    Args:
        template: its path in the package. It begins with the frame ``drawing/frame.html``.
        context: what the template shows.
    """
    environment = Environment(
        autoescape=True,
        undefined=StrictUndefined,
        loader=FunctionLoader(_source),
        trim_blocks=True,
        lstrip_blocks=True,
    )
    return environment.get_template(template).render(
        style=_style(), script=_source("drawing/page.js"), **context
    )


def _source(name: str) -> str:
    return files("recsys").joinpath(name).read_text(encoding="utf-8")


def _style() -> str:
    # Paper is light whatever the screen is.
    dark = f":root{{color-scheme:dark;{page_variables(DARK)}}}{picture_style(DARK)}"
    return (
        f":root{{color-scheme:light;{page_variables(LIGHT)}}}\n{picture_style(LIGHT)}\n"
        f"@media screen and (prefers-color-scheme:dark){{{dark}}}\n{_source('drawing/page.css')}"
    )
