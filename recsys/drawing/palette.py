"""The colours of pages and pictures, on light and on dark ground."""

from __future__ import annotations

from typing import NamedTuple


class Theme(NamedTuple):
    """The colours on one ground."""

    paper: str
    """The ground."""
    ink: str
    """Text, and the marks that need no colour of their own."""
    muted: str
    """Text of second rank: units, captions."""
    rule: str
    """Lines of tables and grids."""
    panel: str
    """The ground of boxes."""
    grey: str
    """Everything that has no colour."""
    colours: tuple[str, ...]
    """One per run, the best run first; see `recsys.drawing.marks` for more runs than colours."""


# Found by a search in OKLab for seven colours that stay apart for every kind of colour blindness
# (Machado et al. 2009) and have a contrast of 3:1 with their ground, as WCAG 1.4.11 asks of marks.
LIGHT = Theme(
    paper="#ffffff",
    ink="#17212b",
    muted="#5b6874",
    rule="#dfe4e9",
    panel="#f5f7f9",
    grey="#87929d",
    colours=("#8d59f8", "#924400", "#429ea5", "#2f0f82", "#11668e", "#4d1e1a", "#d17611"),
)
DARK = Theme(
    paper="#14191f",
    ink="#e8edf2",
    muted="#9aa7b4",
    rule="#2d3742",
    panel="#1c232b",
    grey="#74808c",
    colours=("#678bff", "#e98c4b", "#8cf5d1", "#7e63a0", "#56bdcc", "#c94235", "#fcd40a"),
)

_FONT = "system-ui,'Segoe UI','Helvetica Neue',Arial,sans-serif"


def picture_style(theme: Theme) -> str:
    """Return the style sheet of pictures; it uses no variables, which few programs read."""
    rules = [
        f"text{{fill:{theme.ink};font:12px {_FONT};font-variant-numeric:tabular-nums}}",
        f".muted{{fill:{theme.muted}}}",
        ".tick{font-size:11px}",
        ".strong{font-weight:600}",
        f".halo{{paint-order:stroke;stroke:{theme.paper};stroke-width:3px;stroke-linejoin:round}}",
        f".grid{{stroke:{theme.rule};stroke-width:1px}}",
        f".base{{stroke:{theme.muted};stroke-width:1px}}",
        ".line,.leader{fill:none;stroke-linejoin:round;stroke-linecap:round}",
        f".ground{{fill:{theme.paper}}}",
        ".hit{fill:transparent;stroke:none}",
        f".ring{{stroke:{theme.paper};stroke-width:1.5px}}",
    ]
    for name, colour in _named_colours(theme).items():
        rules.append(f".{name} .line,.{name} .leader{{stroke:{colour}}}")
        rules.append(f".{name} .dot,.{name} .bar,.{name} .band{{fill:{colour}}}")
        rules.append(f".{name} .hollow{{fill:{theme.paper};stroke:{colour};stroke-width:2.5px}}")
    return "".join(rules)


def page_variables(theme: Theme) -> str:
    """Return the custom properties of a page: the names of the theme, and --c0, --c1, …, --grey."""
    names = ("paper", "ink", "muted", "rule", "panel")
    named = {name: getattr(theme, name) for name in names} | _named_colours(theme)
    return "".join(f"--{name}:{colour};" for name, colour in named.items())


def _named_colours(theme: Theme) -> dict[str, str]:
    return {f"c{number}": each for number, each in enumerate(theme.colours)} | {"grey": theme.grey}
