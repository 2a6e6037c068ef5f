"""Long numbers that a spreadsheet has rounded, such as 8.9012E+12 for 8901234567890."""

from __future__ import annotations

import polars as pl

from recsys.errors import InputError

_ROUNDED = r"^-?\d[.,]\d+E\+(?:0[5-9]|[1-9]\d)$"


def refuse_rounded_ids(ids: pl.Series, name: str) -> None:
    """Refuse ids of which a spreadsheet has made one out of several.

    They are several, or one among numbers alone: a single ``1.5E+07`` beside text may be a code.

    Args:
        ids: all ids of a column, or the distinct ones, as text.
        name: the origin and the column's name in messages.

    Raises:
        InputError: there is one.
    """
    if not ids.str.contains("E+", literal=True).any():
        return
    rounded = ids.filter(ids.str.contains(_ROUNDED)).unique().sort()
    numbers = ids.str.replace(",", ".", literal=True).cast(pl.Float64, strict=False)
    if len(rounded) > 1 or (len(rounded) and not numbers.null_count()):
        raise InputError(
            f"{name}: {rounded[0]!r} is a long number that a spreadsheet has rounded, so that "
            "several ids may have become one: export the log without it, or with ids as text"
        )
