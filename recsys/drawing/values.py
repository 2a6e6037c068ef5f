"""The numbers of a picture as a table, for those who cannot see it or cannot point at it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from recsys.drawing.bars import Bar
from recsys.drawing.lines import Line


class Values(NamedTuple):
    """A table: the numbers of a picture."""

    head: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    """The first cell of a row is its heading."""


def line_values(lines: Sequence[Line], x: str, y: str, kind: str = "run") -> Values:
    """Return the values of lines, in the direction with fewer columns.

    A cell is empty where a line has no point at a place.

    Args:
        lines: the lines; those without places are left out.
        x: what a place is, such as epoch.
        y: what a value is; the heading of a line without a name.
        kind: what a line is.

    >>> one = Line("a", [1, 2], [3, 4], places=["1", "2"], values=["3", "4"])
    >>> line_values([one], "epoch", "NDCG@10")
    Values(head=('epoch', 'a'), rows=(('1', '3'), ('2', '4')))
    """
    lines = [line for line in lines if line.places]
    at = {x: place for line in lines for x, place in zip(line.xs, line.places, strict=True)}
    places = [at[x] for x in sorted(at)]
    names = [line.label or y for line in lines]
    found = [dict(zip(line.places, line.values, strict=True)) for line in lines]
    cells = [[line.get(place, "") for place in places] for line in found]
    if len(lines) > len(places):
        rows = tuple((name, *row) for name, row in zip(names, cells, strict=True))
        return Values((kind, *places), rows)
    columns = zip(*cells, strict=True)
    return Values((x, *names), tuple((p, *c) for p, c in zip(places, columns, strict=True)))


def bar_values(bars: Sequence[Bar], x: str, y: str) -> Values:
    """Return the values of bars; ``x`` and ``y`` are the headings."""
    return Values((x, y), tuple((bar.name, bar.text) for bar in bars))
