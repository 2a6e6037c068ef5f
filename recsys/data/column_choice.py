"""The best column for a role: a known name, and values without a doubt about them."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain

import polars as pl

from recsys.data.column_names import Role, is_ambiguous, is_sure, standings
from recsys.data.missing import present_values
from recsys.data.plausible import Doubt, Gravity, doubt_about, misfit

MoreRows = Callable[[str, int], pl.Series]
"""Reads a column of so many first rows of a log."""

CLOSER_LOOKS = (100_000, 1_000_000)
"""Rows that are read where those of a sample leave a doubt: in a log that is sorted by item, the
first 1,000 rows may have a single one, and the ratings of one user are all of different items."""


@dataclass(frozen=True, slots=True)
class Choice:
    """The columns that may have a role."""

    columns: list[str] = field(default_factory=list)
    """The best columns: one, several that are equally good, or none."""
    doubts: Mapping[str, Doubt] = field(default_factory=dict)
    """Columns whose names are as good or better, but whose values are not; if no column is left,
    all that the names fit."""


@dataclass(frozen=True, slots=True)
class Sample:
    """The first rows of a log."""

    rows: pl.DataFrame
    """All columns."""
    more: MoreRows | None = None
    """Reads more rows; None if there are none."""
    tested: Collection[str] = ()
    """Columns that a condition reads, which may leave out rows without a value."""

    def choose(self, role: Role, taken: Collection[str] = ()) -> Choice:
        """Return the columns of the best name whose type and values leave no doubt.

        Args:
            role: the role; its default name needs no fitting type.
            taken: columns of other roles.
        """
        fitting = [
            [name for name in alike if name not in taken and self._fits(role, name)]
            for alike in standings(role, self.rows.columns)
        ]
        alone = sum(map(len, fitting)) == 1
        doubts: dict[str, Doubt] = {}
        for alike in fitting:
            found = {name: self._doubt(role, name, alone) for name in alike}
            doubts |= {name: doubt for name, doubt in found.items() if doubt is not None}
            if sure := [name for name in alike if name not in doubts]:
                return Choice(sure, doubts)
        return _least_doubtful(role, fitting, doubts)

    def _fits(self, role: Role, name: str) -> bool:
        return name == role or misfit(role, self.rows[name]) is None

    def _doubt(self, role: Role, name: str, alone: bool) -> Doubt | None:
        """Return the doubt that is left about a column after a closer look.

        A slight one about the only column changes nothing: it needs none. No closer look changes
        that about the form of dates.
        """
        values = self.rows[name]
        if misfit(role, values) is not None:  # the default name: a refusal will name the row
            return None
        doubt = self._doubt_about(role, values)
        for rows in CLOSER_LOOKS:
            if doubt is None or self.more is None or doubt.gravity == Gravity.FORM:
                break
            if alone and doubt.gravity < Gravity.GRAVE:
                break
            values = self.more(name, rows)
            doubt = self._doubt_about(role, values)
            if len(values) < rows:
                break
        return doubt

    def _doubt_about(self, role: Role, values: pl.Series) -> Doubt | None:
        """Return the doubt about values; under the default name the form of dates is none."""
        if values.name in self.tested:
            values = present_values(values)
        doubt = doubt_about(role, values, is_ambiguous(values.name))
        if doubt is not None and doubt.gravity == Gravity.FORM and values.name == role:
            return None
        return doubt


def _least_doubtful(
    role: Role, fitting: Sequence[Sequence[str]], doubts: Mapping[str, Doubt]
) -> Choice:
    """Return the columns to take though there are doubts about all; none if they are grave."""
    weights = {
        name: Gravity.SLIGHT
        if doubt.gravity == Gravity.GRAVE and is_sure(role, name)
        else doubt.gravity
        for name, doubt in doubts.items()
    }
    least = min(weights.values(), default=Gravity.GRAVE)
    if least == Gravity.GRAVE:
        return Choice(doubts=doubts)
    place, columns = next(
        (place, found)
        for place, alike in enumerate(fitting)
        if (found := [name for name in alike if weights[name] == least])
    )
    better = [name for name in chain(*fitting[: place + 1]) if name not in columns]
    return Choice(columns, {name: doubts[name] for name in better})
