"""The order of a log's rows, which decides among those of a user that have the same time."""

from __future__ import annotations

import logging
from dataclasses import dataclass

import polars as pl

from recsys.config import Columns
from recsys.data.missing import without_missing_words
from recsys.data.times_of_day import are_days

logger = logging.getLogger(__name__)

_NOTABLE = 0.01


@dataclass(frozen=True, slots=True)
class RowOrder:
    """How each row follows the user's row before it; the parts of a log add up."""

    later: int = 0
    """The number of rows with a later time than the row before; likewise: """
    earlier: int = 0
    same: int = 0
    are_days: bool = True
    """Whether all times are days, and no column orders those of a day."""

    @classmethod
    def of(cls, rows: pl.DataFrame, columns: Columns) -> RowOrder:
        """Return the order of rows in their order in the source.

        >>> rows = pl.DataFrame({"user_id": [1, 1, 1], "timestamp": ["2024-01-06"] * 3})
        >>> RowOrder.of(rows, Columns())
        RowOrder(later=0, earlier=0, same=2, are_days=True)
        """
        if columns.position is not None:  # which decides
            return cls(are_days=False)
        times = rows[columns.timestamp]
        if not (are_days(times.head(1)) and are_days(times)):
            return cls(are_days=times.is_empty())
        times = without_missing_words(times)
        table = rows.select(pl.col(columns.user_id).alias("user"), times.alias("time"))
        time, before = pl.col("time"), pl.col("time").shift().over("user")
        counts = table.select(
            (time > before).sum().alias("later"),
            (time < before).sum().alias("earlier"),
            (time == before).sum().alias("same"),
        )
        return cls(*counts.row(0))

    def __add__(self, other: RowOrder) -> RowOrder:
        return RowOrder(
            self.later + other.later,
            self.earlier + other.earlier,
            self.same + other.same,
            self.are_days and other.are_days,
        )

    def warn(self, origin: str) -> None:
        """Warn of rows that are newest first and may be so within a day, where times are days."""
        if not self.are_days:
            return
        rows = self.later + self.earlier + self.same
        if self.later < _NOTABLE * self.earlier and self.same > _NOTABLE * rows:
            logger.warning(
                "%s: its rows are newest first, and %s of them have the day of the user's row "
                "before: the order of such rows is taken for that of the purchases: if they are "
                "newest first too, turn the rows round (frame[::-1] in Python), or name a column "
                "that orders them (data.columns.position)",
                *(origin, f"{self.same:,}"),
            )
