"""Columns and tables of features that grow: new values take the type of those that are there."""

from __future__ import annotations

from typing import NoReturn

import polars as pl

from recsys.errors import InputError


def as_stored(values: pl.Series, dtype: pl.DataType, name: str, place: str) -> pl.Series:
    """Convert new values of a column to the type that it has in a dataset.

    Plain integers may become text or floats, which loses nothing; other types must agree.

    Args:
        values: the new values.
        dtype: the type of the column in the dataset.
        name: the origin and the column's name in messages.
        place: the dataset in messages.

    Raises:
        InputError: the type is another one.
    """
    if values.dtype == dtype or values.null_count() == len(values):
        return values.cast(dtype)
    if values.dtype.is_integer() and (dtype == pl.String or dtype.is_numeric()):
        try:
            return values.cast(dtype)
        except pl.exceptions.PolarsError:
            pass  # too large for a smaller integer
    raise InputError(
        f"{name}: is {_in_words(values.dtype)}, and {_in_words(dtype)} in {place}: give it the "
        "same type, or prepare the whole log anew"
    )


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
