"""The user and the item table of a dataset: ids and features, their values, new rows."""

import logging
from typing import cast

import polars as pl

from recsys.data.database import WHOLE_TEXT, dates_in, numbers_in, with_nulls
from recsys.errors import InputError

logger = logging.getLogger(__name__)

_POINT = r"\.[0-9]|e[+-]"
_DECIMAL = r"^-?(?:0|[1-9][0-9]*)(?:\.[0-9]+)?(?:e[+-][0-9]+)?$"
"""A number as Python and pandas write it; 007 is none, and neither is 12E4."""
BOOLEANS = {"true": "1", "True": "1", "TRUE": "1", "false": "0", "False": "0", "FALSE": "0"}
"""The spellings of booleans in text, which are numbers elsewhere."""
_SPELLED = (
    r"^(?:(-?(?:0|[1-9]\d*))\.0+|(-?(?:0|[1-9]\d*)\.\d*[1-9])0+"
    r"|(\d{4}-\d{2}-\d{2})[T ]00:00(?::00(?:\.0+)?)?|(\d{4}-\d{2}-\d{2}[T ][0-9:]{8})\.0+)$"
)
"""A number or a time with zeros behind the point, or a date at midnight."""


def with_features(
    ids: pl.Series, feature_ids: pl.Series, features: pl.DataFrame | None, column: str, origin: str
) -> pl.DataFrame:
    """Join features to the ids of a dataset, or of its users' persons; null if an id has none.

    A table that has none of the ids, or one of them twice, is refused.
    """
    if features is None:
        return ids.to_frame()
    key = ids.name
    origin = f"{key.removesuffix('_id')} table for {origin}"
    features = with_ids_of_log(features, key, column, feature_ids.dtype, origin)
    for feature in features.drop(key):
        if any(word in str(feature.dtype) for word in ("Binary", "Object")):  # also inside lists
            raise InputError(f"{origin}: column {feature.name!r}: cannot be kept: {feature.dtype}")
    features = features.with_columns(
        pl.col(key).cast(pl.String).alias("__id"), *map(with_decimals, features.drop(key))
    ).drop(key)
    table = pl.DataFrame({key: ids, "__id": feature_ids.cast(pl.String)})
    known = features.join(table, on="__id", how="semi")
    if known.is_empty():
        raise InputError(f"{origin}: none of its {key}s is in the log")
    twice = known["__id"].filter(known["__id"].is_duplicated())
    if len(twice):
        raise InputError(f"{origin}: {key} {twice[0]!r} has more than one row")
    filled = known.filter(pl.any_horizontal(pl.exclude("__id").is_not_null()))
    logger.info(
        "%s: %s of %s %ss of the log have features",
        *(origin, f"{len(filled):,}", f"{feature_ids.n_unique():,}", key.removesuffix("_id")),
    )
    return table.join(known, on="__id", how="left", maintain_order="left").drop("__id")


def with_ids_of_log(
    features: pl.DataFrame, key: str, column: str, known: pl.DataType, origin: str
) -> pl.DataFrame:
    """Return features whose ids, called ``key`` or ``column``, are as the log has them.

    Rows without an id are left out. Where the log's ids are text, ``12.0`` may be one of them.
    """
    if key not in features.columns:
        if column not in features.columns:
            names = " or ".join(repr(name) for name in dict.fromkeys((key, column)))
            raise InputError(f"{origin}: no column {names} among {', '.join(features.columns)}")
        features = features.rename({column: key})
    elif column != key and column in features.columns:
        raise InputError(f"{origin}: leave out {key!r} or {column!r}: only one can hold the ids")
    kind = features[key].dtype
    if kind.is_nested() or isinstance(kind, pl.Binary | pl.Duration | pl.Object):
        raise InputError(f"{origin}: column {key!r}: ids must be integers or text, not {kind}")
    features = features.with_columns(with_nulls(features[key])).drop_nulls(key)
    if known == pl.String == features[key].dtype:
        return features
    return features.with_columns(plain_ids(features[key]))


# --- Values ---------------------------------------------------------------------------------------


def with_decimals(values: pl.Series) -> pl.Series:
    """Return text as floats if all of it is decimals, which text files cannot tell from text.

    >>> with_decimals(pl.Series(["9.5", "20", "NULL"])).to_list()
    [9.5, 20.0, None]
    """
    if values.dtype != pl.String:
        return values
    present = with_nulls(values)
    if present.str.contains(_POINT).any() and present.str.contains(_DECIMAL).all():
        return present.cast(pl.Float64)
    return values


def is_vectors(dtype: pl.DataType) -> bool:
    """Return whether the cells of a column are lists of floats, which may be vectors."""
    return isinstance(dtype, pl.List | pl.Array) and dtype.inner.is_float()


def as_lists(column: pl.Series) -> pl.Series:
    """Return a column of arrays as one of lists."""
    return column.cast(pl.List(cast("pl.List", column.dtype).inner))


def user_of_session(sessions: pl.Series) -> pl.Series:
    """Return USER for USER#1, USER#2 and so on."""
    return sessions.str.replace(r"#\d+$", "")


def plain_ids(ids: pl.Series) -> pl.Series:
    """Return ids as integers if all are whole, and some are written as floats; others unchanged.

    A float that is so large that it may have been rounded is refused.

    >>> plain_ids(pl.Series(["7.0", "12"])).to_list(), plain_ids(pl.Series([7.5])).to_list()
    ([7, 12], [7.5])
    """
    if ids.dtype == pl.String:
        # Almost no column of text has such an ending, and it is found fast.
        whole = ids.str.ends_with(".0").any() and ids.str.contains(f"^(?:{WHOLE_TEXT})$").all()
        return ids.str.strip_suffix(".0").cast(pl.Int64) if whole else ids
    if ids.dtype.is_float():
        bits = {"Float64": 53, "Float32": 24}.get(str(ids.dtype), 11)
        rule = f"a float of 2**{bits} or more is not exact: make ids integers or text"
        for rounded in ids.filter((ids.abs() >= 2.0**bits) & ids.is_not_nan())[:1]:
            raise InputError(f"{ids.name or 'ids'}: {rule}: {rounded!r}")
    elif not ids.dtype.is_decimal():
        return ids
    integers = ids.cast(pl.Int64, strict=False)
    return integers if (integers == ids).fill_null(ids.is_null()).all() else ids


def plain_text(values: pl.Expr, dtype: pl.DataType) -> pl.Expr:
    """Write values in one way, whatever type they come in, without blanks around them.

    >>> t = pl.Series(["7.0", "2.50", "True", "007", "2024-05-01 00:00", "2024-05-01 09:30:00.0"])
    >>> pl.select(plain_text(pl.lit(t), t.dtype)).to_series().to_list()
    ['7', '2.5', '1', '007', '2024-05-01', '2024-05-01 09:30:00']
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
    return text.str.strip_chars().replace(BOOLEANS).str.replace(_SPELLED, "${1}${2}${3}${4}")


# --- Tables that grow -----------------------------------------------------------------------------


def as_stored(values: pl.Series, dtype: pl.DataType, name: str, place: str) -> pl.Series:
    """Return `converted` values of a column, by its name, of the dataset at a place."""
    stored = converted(values, dtype)
    if stored is None:
        raise InputError(f"{name}: is {values.dtype}, and {dtype} in {place}: give it that type")
    return stored


def converted(values: pl.Series, dtype: pl.DataType) -> pl.Series | None:
    """Return values in another type, as another file has them; None if one of them would change.

    >>> converted(pl.Series([12.0, None]), pl.String()).to_list()
    ['12', None]
    >>> converted(pl.Series(["007"]), pl.Int64()) is None
    True
    """
    if values.dtype == dtype or values.null_count() == len(values):
        return values.cast(dtype)
    text = with_nulls(values)
    read = text
    if dtype == pl.String:
        read = plain_ids(values)
    elif text.dtype == pl.String and dtype.is_temporal():
        read = dates_in(text)
    elif text.dtype == pl.String and not dtype.is_nested():
        read = text if text.str.contains(r"^-?0[0-9]").any() else numbers_in(text.replace(BOOLEANS))
    kinds = {(kind.is_nested(), kind.is_temporal()) for kind in (read.dtype, dtype)}
    if read.null_count() > text.null_count() or (dtype != pl.String and len(kinds) > 1):
        return None
    try:
        stored = read.cast(dtype)
        exact = dtype.is_integer() or dtype.is_temporal() or dtype == pl.Boolean
        return None if exact and (stored.cast(read.dtype) != read).any() else stored
    except pl.exceptions.PolarsError:
        return None


def grown_features(
    known: pl.DataFrame, added: pl.DataFrame | None, column: str, place: str
) -> pl.DataFrame | None:
    """Return the features of a dataset with those that an append adds; added rows win.

    The added table must have the same columns; its ids may be called ``column``, as in the log.
    """
    key, *features = known.columns
    origin = f"the {key.removesuffix('_id')} table"
    if added is not None:
        added = with_ids_of_log(added, key, column, known[key].dtype, origin)
    if not features:
        return added
    old = known.unique(key, keep="first", maintain_order=True)
    if added is None:
        return old
    if {key, *features} != set(added.columns):
        raise InputError(
            f"{origin}: has the columns {', '.join(added.columns)}, and {place} has "
            f"{', '.join(known.columns)}: give all of these and no others"
        )
    rows = pl.DataFrame({key: added[key].cast(pl.String)}).with_columns(
        as_stored(added[name], known[name].dtype, f"{origin}: column {name!r}", place)
        if known[name].null_count() < len(known)
        else added[name]
        for name in features
    )
    old = old.with_columns(pl.col(key).cast(pl.String)).join(rows, on=key, how="anti")
    return pl.concat([old.cast(rows.schema), rows])
