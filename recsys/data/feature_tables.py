"""The user and the item table of a dataset: ids, and features where a table has them."""

from __future__ import annotations

import logging

import polars as pl

from recsys.config import Columns, DataConfig
from recsys.data.histories import PAD
from recsys.data.log_columns import check_features, has_text, plain_ids
from recsys.data.missing import without_missing_words
from recsys.data.sessions import user_of_session
from recsys.data.vocabulary import Vocabulary
from recsys.errors import InputError

logger = logging.getLogger(__name__)

_POINT = r"\.[0-9]|e[+-]"
_DECIMAL = r"^-?(?:0|[1-9][0-9]*)(?:\.[0-9]+)?(?:e[+-][0-9]+)?$"
"""A number as Python and pandas write it; 007 is none, and neither is 12E4."""


def feature_tables(
    user_ids: pl.Series,
    item_ids: pl.Series,
    users: pl.DataFrame | None,
    items: pl.DataFrame | None,
    config: DataConfig,
    columns: Columns,
    origin: str,
) -> dict[str, pl.DataFrame]:
    """Return the user and the item table: the ids of a dataset and their features.

    A table may name its ids as the log does, by the columns that were given or guessed.

    Raises:
        InputError: a table of features has none of the users or items, or one of them twice.
    """
    user_ids, item_ids = user_ids.rename("user_id"), item_ids.rename("item_id")
    person_ids = user_ids if config.session_gap is None else user_of_session(user_ids)
    return {
        "users": _with_features(
            user_ids, person_ids, users, columns.user_id, f"user table for {origin}"
        ),
        "items": _with_features(
            item_ids, item_ids, items, columns.item_id, f"item table for {origin}"
        ),
    }


def with_ids_of_log(
    features: pl.DataFrame, key: str, known: pl.DataType, origin: str
) -> pl.DataFrame:
    """Return features whose ids are as the log has them, without rows that have none.

    Args:
        features: the id column and the features.
        key: the name of the id column.
        known: the type of the log's ids; where they are text, ``12.0`` may be one of them.
        origin: the name of the features in messages.

    Raises:
        InputError: the ids are lists, bytes or Python objects.

    >>> features = pl.DataFrame({"item_id": [1.0, None, 12.0], "colour": ["red", "blue", "red"]})
    >>> with_ids_of_log(features, "item_id", pl.Int64(), "items")["item_id"].to_list()
    [1, 12]
    """
    if not has_text(kind := features[key].dtype):
        raise InputError(f"{origin}: column {key!r}: ids must be integers or text, not {kind}")
    ids = without_missing_words(features[key])
    features = features.with_columns(ids.fill_nan(None) if ids.dtype.is_float() else ids)
    features = features.filter(pl.col(key).is_not_null())
    if known == pl.String == ids.dtype:
        return features
    return features.with_columns(plain_ids(features[key]))


def with_decimals(values: pl.Series) -> pl.Series:
    """Return text as floats if all of it is decimals, which text files cannot tell from text.

    >>> with_decimals(pl.Series(["9.5", "20", "NULL"])).to_list()
    [9.5, 20.0, None]
    >>> with_decimals(pl.Series(["9.5", "007"])).to_list()
    ['9.5', '007']
    """
    if values.dtype != pl.String:
        return values
    present = without_missing_words(values)
    if present.str.contains(_POINT).any() and present.str.contains(_DECIMAL).all():
        return present.cast(pl.Float64)
    return values


def named_plainly(features: pl.DataFrame, key: str, column: str) -> pl.DataFrame:
    """Return features whose ids are called ``key``, where a table names them as its log does."""
    columns = features.columns
    return features if key in columns or column not in columns else features.rename({column: key})


def _with_features(
    ids: pl.Series,
    feature_ids: pl.Series,
    features: pl.DataFrame | None,
    column: str,
    origin: str,
) -> pl.DataFrame:
    """Join features to ids; null if an id has none.

    Args:
        ids: unique ids of items or users, named as the id column of the features.
        feature_ids: the id whose features each of them has; sessions of a user share one.
        features: the id column and the features.
        column: the name that the id column has in the log; the features may name it so, too.
        origin: the name of the features in messages.
    """
    if features is None:
        return ids.to_frame()
    key = ids.name
    features = named_plainly(features, key, column)
    if key not in features.columns:
        names = " or ".join(repr(name) for name in dict.fromkeys((key, column)))
        raise InputError(f"{origin}: no column {names} among {', '.join(features.columns)}")
    check_features(features.drop(key), origin)
    features = with_ids_of_log(features, key, feature_ids.dtype, origin)
    features = features.with_columns(map(with_decimals, features.drop(key)))
    known = Vocabulary(feature_ids.unique().sort())
    rows = pl.Series("__row", known.encode(features[key]))
    found = features.drop(key).with_columns(rows).filter(rows != PAD)
    if found.is_empty():
        raise InputError(f"{origin}: none of its {key}s is in the log")
    if found["__row"].is_duplicated().any():
        twice = features[key].filter((rows != PAD) & rows.is_duplicated())[0]
        raise InputError(f"{origin}: {key} {twice!r} has more than one row")
    filled = found.filter(pl.any_horizontal(pl.exclude("__row").is_not_null()))
    kind = key.removesuffix("_id") + "s"
    logger.info(
        "%s: %s of %s %s of the log have features",
        *(origin, f"{len(filled):,}", f"{len(known):,}", kind),
    )
    table = pl.DataFrame({key: ids, "__row": known.encode(feature_ids)})
    return table.join(found, on="__row", how="left", maintain_order="left").drop("__row")
