"""Values of small tables, in polars: missing ones, ids, numbers and dates in text, features."""

from __future__ import annotations

from typing import NoReturn

import polars as pl

from recsys.data.database import MISSING_WORDS, computed
from recsys.errors import InputError

_WHOLE = r"^(?:-?[0-9]{1,15}\.0|0|-?[1-9][0-9]{0,17})$"
_EXACT_BITS = {16: 11, 32: 24, 64: 53}
"""The bits of floats, and those of the integers that they tell apart."""
_NEVER_KEPT = (pl.Binary, pl.Duration, pl.Object, pl.Struct)


def dates_in(values: pl.Series) -> pl.Series:
    """Parse ISO 8601 text as UTC date-times, null if invalid; times without a zone are UTC.

    >>> dates_in(pl.Series(["2024-01-02 03", "15-03-24"])).dt.hour().to_list()
    [3, None]
    """
    return computed(values, "date_in(v)").cast(pl.Datetime("us"))


def numbers_in(values: pl.Series) -> pl.Series:
    """Parse text as int64 if all of it is, else as float64; null if invalid."""
    integers = computed(values, "integer_in(v)").cast(pl.Int64)
    return computed(values, "number_in(v)").cast(pl.Float64) if integers.has_nulls() else integers


def present(values: pl.Series) -> pl.Series:
    """Return values that are not missing; words such as NULL are, and blanks are stripped.

    >>> present(pl.Series(["u1 ", "NULL", None])).to_list()
    ['u1']
    """
    return with_nulls(values).drop_nulls()


def with_nulls(values: pl.Series) -> pl.Series:
    """Strip blanks around text, and make words for missing values null; other types are unchanged.

    >>> with_nulls(pl.Series(["  u1 ", "NULL", " ", "nano", None])).to_list()
    ['u1', None, None, 'nano', None]
    """
    if values.dtype in (pl.Categorical, pl.Enum):
        values = values.cast(pl.String)
    if values.dtype != pl.String:
        return values
    stripped = values.str.strip_chars()
    words = pl.Series(MISSING_WORDS).implode()
    named = pl.when(~stripped.is_in(words)).then(stripped).alias(values.name)
    return pl.select(named).to_series()


def user_of_session(sessions: pl.Series) -> pl.Series:
    """Return USER for USER#1, USER#2 and so on.

    >>> user_of_session(pl.Series(["a#1", "b#7#12"])).to_list()
    ['a', 'b#7']
    """
    return sessions.str.replace(r"#\d+$", "")


def plain_ids(ids: pl.Series) -> pl.Series:
    """Return ids as integers if all are whole, and some are written as floats; others unchanged.

    Raises:
        InputError: a float is so large that it may have been rounded.

    >>> plain_ids(pl.Series(["7.0", "12"])).to_list(), plain_ids(pl.Series([7.5])).to_list()
    ([7, 12], [7.5])
    """
    if ids.dtype == pl.String:
        # Almost no column of text has such an ending, and it is found fast.
        whole = ids.str.ends_with(".0").any() and ids.str.contains(_WHOLE).all()
        return ids.str.strip_suffix(".0").cast(pl.Int64) if whole else ids
    if not (ids.dtype.is_float() or ids.dtype.is_decimal()):
        return ids
    if ids.dtype.is_float():
        bits, rule = inexact(int(str(ids.dtype).removeprefix("Float")), "ids integers or text")
        rounded = (ids.abs() >= 2.0**bits) & ids.is_not_nan()
        if rounded.any():
            raise InputError(f"{ids.name or 'ids'}: {rule}: {ids.filter(rounded)[0]!r}")
    integers = ids.cast(pl.Int64, strict=False)
    return integers if (integers == ids).fill_null(ids.is_null()).all() else ids


def inexact(size: int, remedy: str) -> tuple[int, str]:
    """Return the power of 2 from which on floats of a size are not exact, and the rule they break.

    >>> inexact(32, "ids text")
    (24, 'a 32-bit float of 2**24 or more is not exact: make ids text at their source')
    """
    bits = _EXACT_BITS[size]
    rule = f"a {size}-bit float of 2**{bits} or more is not exact: make {remedy} at their source"
    return bits, rule


BOOLEANS = {"true": "1", "True": "1", "TRUE": "1", "false": "0", "False": "0", "FALSE": "0"}
"""The spellings of booleans in text, which are numbers elsewhere."""
_SPELLED = (
    r"^(?:(-?(?:0|[1-9]\d*))\.0+|(-?(?:0|[1-9]\d*)\.\d*[1-9])0+"
    r"|(\d{4}-\d{2}-\d{2})[T ]00:00(?::00(?:\.0+)?)?)$"
)
"""A number with zeros behind the point, or a date at midnight."""


def plain_text(values: pl.Expr, dtype: pl.DataType) -> pl.Expr:
    """Write values in one way, whatever type they come in, without blanks around them.

    17850.0, "17850.0" and 17850 are 17850, as ids are; True, "True" and 1 are 1; a date at
    midnight is the date.

    >>> text = pl.Series(["7.0", "2.50", "True", "007", "2024-05-01 00:00:00.000"])
    >>> pl.select(plain_text(pl.lit(text), text.dtype)).to_series().to_list()
    ['7', '2.5', '1', '007', '2024-05-01']
    """
    if dtype == pl.Boolean:
        values = values.cast(pl.Int8)
    text = values.cast(pl.String)
    if dtype.is_integer() or dtype == pl.Boolean:
        return text
    if dtype.is_float():  # large ones would be written as 1e16, those that are missing as NaN
        whole = values.cast(pl.Int64, strict=False)
        whole = pl.when(whole == values).then(whole).cast(pl.String)
        text = pl.coalesce(whole, values.fill_nan(None).cast(pl.String))
    return text.str.strip_chars().replace(BOOLEANS).str.replace(_SPELLED, "${1}${2}${3}")


def has_text(dtype: pl.DataType) -> bool:
    """Return whether values of a type can be written as text: not lists, bytes or Python objects.

    >>> has_text(pl.Date()), has_text(pl.List(pl.Int64))
    (True, False)
    """
    return not (dtype.is_nested() or isinstance(dtype, _NEVER_KEPT))


def check_features(table: pl.DataFrame, origin: str) -> None:
    """Check that the features of a table can be written.

    Raises:
        InputError: a column holds bytes or Python objects.
    """
    for column in table:
        if any(word in str(column.dtype) for word in ("Binary", "Object")):  # also inside lists
            raise InputError(f"{origin}: column {column.name!r}: cannot be kept: {column.dtype}")


# --- Tables that grow -----------------------------------------------------------------------------

_CODE = r"^-?0[0-9]"
"""Digits that are text."""


def as_stored(values: pl.Series, dtype: pl.DataType, name: str, place: str) -> pl.Series:
    """Convert new values of a column to the type that it has in a dataset: see `converted`.

    Args:
        values: the new values.
        dtype: the type of the column in the dataset.
        name: the origin and the column's name in messages.
        place: the dataset in messages.

    Raises:
        InputError: they cannot be converted.
    """
    stored = converted(values, dtype)
    if stored is None:
        raise InputError(
            f"{name}: is {_in_words(values.dtype)}, and {_in_words(dtype)} in {place}: give it the "
            "same type, or prepare the whole log anew"
        )
    return stored


def converted(values: pl.Series, dtype: pl.DataType) -> pl.Series | None:
    """Return values in another type; None if that would change one of them.

    A file finds the types of its columns alone, so that the same values come as numbers, as text,
    or as decimals: 12, "12" and 12.0 are equal, "007" is text.

    >>> converted(pl.Series([12.0, None]), pl.String()).to_list()
    ['12', None]
    >>> converted(pl.Series(["12.0", "NULL"]), pl.Int64()).to_list()
    [12, None]
    >>> converted(pl.Series(["007"]), pl.Int64()) is None
    True
    """
    if values.dtype == dtype or values.null_count() == len(values):
        return values.cast(dtype)
    text = with_nulls(values)
    given = text
    if dtype == pl.String:
        given = plain_ids(values)
    elif text.dtype == pl.String and dtype.is_temporal():
        given = dates_in(text)
    elif text.dtype == pl.String and not dtype.is_nested():
        codes = text.str.contains(_CODE).any()
        given = text if codes else numbers_in(text.replace(BOOLEANS))
    kinds = {(kind.is_nested(), kind.is_temporal()) for kind in (given.dtype, dtype)}
    if given.null_count() > text.null_count() or (dtype != pl.String and len(kinds) > 1):
        return None
    try:
        stored = given.cast(dtype)
        exact = dtype.is_integer() or dtype.is_temporal() or dtype == pl.Boolean
        return None if exact and (stored.cast(given.dtype) != given).any() else stored
    except pl.exceptions.PolarsError:
        return None


def grow_features(
    known: pl.DataFrame, given: pl.DataFrame | None, origin: str, place: str
) -> pl.DataFrame | None:
    """Return the features of a dataset with those that an append brings; given rows win.

    Args:
        known: the ids, in the first column, and features of the dataset; several rows may have the
            same id and features.
        given: the ids and features that are new or have changed; None if there are none.
        origin: the name of the given table in messages.
        place: the dataset in messages.

    Raises:
        InputError: the given table has other columns, or values of another type.
    """
    key, *features = known.columns
    old = known.unique(key, keep="first", maintain_order=True) if features else None
    if given is None or old is None:
        return old if given is None else given
    if key not in given.columns or {key, *features} != set(given.columns):
        _refuse_columns(list(given.columns), known.columns, origin, place)
    stored = {
        name: as_stored(given[name], known[name].dtype, f"{origin}: column {name!r}", place)
        if known[name].null_count() < len(known)
        else given[name]
        for name in features
    }
    ids = given[key].cast(pl.String)
    old = old.filter(~pl.col(key).cast(pl.String).is_in(ids.implode()))
    new = pl.DataFrame({key: ids, **stored})
    return pl.concat([old.cast(new.schema), new])


def _refuse_columns(given: list[str], known: list[str], origin: str, place: str) -> NoReturn:
    raise InputError(
        f"{origin}: has the columns {', '.join(given)}, and {place} has {', '.join(known)}: give "
        "all of these and no others, or prepare the whole log anew"
    )


def _in_words(dtype: pl.DataType) -> str:
    if dtype.is_integer():
        return "integers"
    return "text" if dtype == pl.String else str(dtype)
