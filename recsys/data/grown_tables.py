"""Columns and tables of features that grow: new values take the type of those that are there."""

from __future__ import annotations

from typing import NoReturn

import polars as pl

from recsys.data.log_columns import BOOLEANS, plain_ids
from recsys.data.missing import without_missing_words
from recsys.data.text_values import dates_in, numbers_in
from recsys.errors import InputError

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
    text = without_missing_words(values)
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
