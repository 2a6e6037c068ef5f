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
    """One per run, the best run first."""


# Found by a search in OKLab for seven hues that stay apart for every kind of red-green blindness
# (Machado et al. 2009) and stand out from their ground. The hues are the same on both grounds.
LIGHT = Theme(
    paper="#ffffff",
    ink="#17212b",
    muted="#5b6874",
    rule="#dfe4e9",
    panel="#f5f7f9",
    grey="#9aa5af",
    colours=("#4580fd", "#9f4807", "#55ac8e", "#650b82", "#027a89", "#6e1418", "#ac8400"),
)
DARK = Theme(
    paper="#14191f",
    ink="#e8edf2",
    muted="#9aa7b4",
    rule="#2d3742",
    panel="#1c232b",
    grey="#66727e",
    colours=("#678bff", "#e98c4b", "#8cf5d1", "#7e63a0", "#56bdcc", "#c94235", "#fcd40a"),
)

_FONT = "system-ui,'Segoe UI','Helvetica Neue',Arial,sans-serif"

Colour = int | None
"""An index of `Theme.colours`; None is grey."""


def colours_by_merit(count: int, always: int | None = None) -> list[Colour]:
    """Give the best of ``count`` runs a colour of their own, and the others grey.

    So the best never shares its colour with another run.

    Args:
        count: how many runs there are; 0 is the best.
        always: a run that has a colour at any place, the reference say.

    >>> colours_by_merit(3)
    [0, 1, 2]
    >>> colours_by_merit(9, always=8)
    [0, 1, 2, 3, 4, 5, None, None, 6]
    """
    last = len(LIGHT.colours) - 1
    colours: list[Colour] = [place if place <= last else None for place in range(count)]
    if always is not None and always > last:
        colours[last], colours[always] = None, last
    return colours


def colour_class(colour: Colour) -> str:
    """Return the class of everything that is drawn in a colour.

    >>> colour_class(0), colour_class(None)
    ('c0', 'grey')
    """
    return "grey" if colour is None else f"c{colour}"


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
