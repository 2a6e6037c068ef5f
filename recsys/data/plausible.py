"""Whether values are plausible for a role: those of users, items, times or ratings."""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum

import polars as pl

from recsys.data.column_names import Role
from recsys.data.missing import present_values
from recsys.data.text_values import dates_in, numbers_in
from recsys.data.time_format import compact_form, fitting_forms

_FIRST_UNIX_TIME = 100_000_000
"""Numbers from here on, early 1973 in seconds, look like a time in a file without a header."""
_LONG = 100
"""Rows from which on it is no chance that all have another value, or the same one."""
_FEW = 10
"""Values that are kinds of users rather than users, if each has `_LONG` rows on average."""
_RATINGS = 21
"""Different ratings: 0 to 10 in halves."""
_SHOWN = 40
"""Characters of a value in a message."""


class Gravity(IntEnum):
    """How much a doubt about a column weighs."""

    SLIGHT = 1
    """A column without a doubt is preferred."""
    FORM = 2
    """So is one with Unix times or dates of ISO 8601. Other rows do not tell more."""
    EMPTY = 3
    """So is a column that has any values."""
    GRAVE = 4
    """The column is not taken, unless its name is sure."""


@dataclass(frozen=True, slots=True)
class Doubt:
    """Why a column with a name of a role may not have it."""

    reason: str
    """What follows the column's name: ``is empty in 998 of 1,000 rows``."""
    gravity: Gravity


def doubt_about(role: Role, values: pl.Series, ambiguous: bool = False) -> Doubt | None:
    """Return why a column may not have a role that its name and type fit; None without a doubt.

    Most of its values are missing; or all rows of many have one id; or each row has an id of its
    own, as lines of orders have; or few ids are in many rows, if the name may be that of kinds; or
    times are neither dates nor epochs, if the name may be that of spans of time; or dates are of
    another form than ISO 8601.

    Args:
        role: the role.
        values: rows of the log.
        ambiguous: whether the column's name may be that of kinds or spans.

    >>> doubt_about("user_id", pl.Series([None, None, 7])).reason
    'is empty in 2 of 3 rows'
    >>> doubt_about("item_id", pl.Series([730] * 500)).reason
    'is 730 in each of 500 rows'
    >>> doubt_about("user_id", pl.Series(["web", "ios"] * 250), ambiguous=True).reason
    "has 2 values in 500 rows, such as 'web'"
    >>> doubt_about("timestamp", pl.Series([0.5, 2]), ambiguous=True).reason
    'has 0.5 and the like'
    >>> doubt_about("timestamp", pl.Series(["09 13, 2009"])).reason
    "has '09 13, 2009' and the like, not ISO 8601"
    """
    known, rows = _known(values), len(values)
    if rows and known.is_empty():
        return Doubt("is empty", Gravity.EMPTY)
    if len(known) < rows / 2:
        return Doubt(f"is empty in {rows - len(known):,} of {rows:,} rows", Gravity.SLIGHT)
    if role == "timestamp":
        return _doubt_about_times(known, ambiguous)
    return None if rows < _LONG else _doubt_about_ids(known, ambiguous)


def _doubt_about_times(times: pl.Series, ambiguous: bool) -> Doubt | None:
    if times.is_empty():
        return None
    alike = f"has {shown(times[0])} and the like"
    if ambiguous and not looks_like_time(times):
        return Doubt(alike, Gravity.GRAVE)
    return Doubt(f"{alike}, not ISO 8601", Gravity.FORM) if fitting_forms(times) else None


def _doubt_about_ids(ids: pl.Series, ambiguous: bool) -> Doubt | None:
    rows, distinct = f"{len(ids):,} rows", ids.n_unique()
    if distinct == 1:
        return Doubt(f"is {shown(ids[0])} in each of {rows}", Gravity.GRAVE)
    if ambiguous and distinct <= _FEW and distinct * _LONG <= len(ids):
        reason = f"has {distinct} values in {rows}, such as {shown(ids[0])}"
        return Doubt(reason, Gravity.GRAVE)
    if distinct == len(ids):
        return Doubt(f"differs in each of {rows}", Gravity.SLIGHT)
    return None


def misfit(role: Role, values: pl.Series) -> str | None:
    """Return what a column of the role must not hold, or None if its values fit."""
    values = _known(values)
    if values.is_empty():
        return None
    if role == "timestamp":
        return None if _is_time(values) else "neither numbers nor ISO 8601 dates"
    if values.dtype == pl.String or values.dtype.is_integer():
        return None
    if values.dtype.is_numeric() and (values.cast(pl.Float64) % 1 == 0).all():
        return None
    return "neither integers nor text"


def looks_like_time(values: pl.Series) -> bool:
    """Return whether values without a telling name are dates or epochs.

    >>> looks_like_time(pl.Series([20241231])), looks_like_time(pl.Series([20241232]))
    (True, False)
    """
    values = _known(values)
    if values.is_empty() or not _is_time(values):
        return False
    if compact_form(values) is not None:
        return True
    if values.dtype == pl.String:
        values = numbers_in(values)
        if values.null_count():
            return True  # dates
    if values.dtype.is_numeric():
        return bool((values >= _FIRST_UNIX_TIME).all())
    return True


def looks_like_rating(values: pl.Series) -> bool:
    """Return whether values without a telling name are ratings: few different, small numbers.

    >>> looks_like_rating(pl.Series([4.5, 5, 3])), looks_like_rating(pl.Series([1042, 5]))
    (True, False)
    """
    values = _known(values)
    numbers = numbers_in(values) if values.dtype == pl.String else values
    if not numbers.dtype.is_numeric() or numbers.null_count():
        return False
    return bool(numbers.is_between(-10, 100).all()) and numbers.n_unique() <= _RATINGS


def shown(value: object) -> str:
    """Return a value for a message, cut if it is long.

    >>> shown("N55689-1 N17059-0 N35729-0 N38779-1 N42597-0")
    "'N55689-1 N17059-0 N35729-0 N38779-1 N4…"
    """
    text = repr(value)
    return text if len(text) <= _SHOWN else f"{text[: _SHOWN - 1]}…"


def _known(values: pl.Series) -> pl.Series:
    """Return the values that are not missing."""
    values = present_values(values)
    return values.drop_nans() if values.dtype.is_float() else values


def _is_time(values: pl.Series) -> bool:
    if values.dtype == pl.String:
        missing = min(numbers_in(values).null_count(), dates_in(values).null_count())
        return not missing or bool(fitting_forms(values))
    return values.dtype.is_numeric() or values.dtype in (pl.Date, pl.Datetime)
