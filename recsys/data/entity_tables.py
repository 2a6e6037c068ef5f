"""The user and the item table of a dataset: ids, features, and vectors that stand beside them."""

from __future__ import annotations

import logging
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any, cast

import numpy as np
import polars as pl
from numpy.typing import NDArray
from safetensors import SafetensorError, safe_open

from recsys.config import Columns, DataConfig
from recsys.data.histories import PAD
from recsys.data.tables import TableSource, open_table
from recsys.data.values import check_features, has_text, plain_ids, user_of_session, with_nulls
from recsys.data.vocabulary import Vocabulary
from recsys.errors import InputError, checked_path

logger = logging.getLogger(__name__)

VectorSource = str | os.PathLike[str] | NDArray[np.floating[Any]]
"""A file (.npy or .safetensors) or an array of floats [R, K]."""

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
    ids = with_nulls(features[key])
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
    present = with_nulls(values)
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


def is_vectors(dtype: pl.DataType) -> bool:
    """Return whether the cells of a column are lists of floats, which may be vectors."""
    return isinstance(dtype, pl.List | pl.Array) and dtype.inner.is_float()


def as_lists(column: pl.Series) -> pl.Series:
    """Return a column of arrays as one of lists."""
    return column.cast(pl.List(cast("pl.List", column.dtype).inner))


def with_vectors(
    items: TableSource | None,
    vectors: Mapping[str, VectorSource] | None,
    encoding: str | None = None,
) -> TableSource | None:
    """Return the item table with a column for each array of vectors; as it is if there are none.

    Args:
        items: a table with the column item_id [R rows].
        vectors: by the name of the column: floats [R, K], row for row those of the table. A
            safetensors file has one tensor, or one of that name.
        encoding: of the table, if it is text that is neither UTF-8 nor UTF-16.

    Raises:
        InputError: there is no item table; a file cannot be read, has no such array, another number
            of rows than the table, or a number that is not finite; the table has the column.
    """
    if not vectors:
        return items
    if items is None:
        raise InputError(
            f"item vectors {min(vectors)!r}: belong to the rows of an item table: give one (items)"
        )
    opened = open_table(items, "the item table", encoding=encoding)
    opened.present(["item_id"])
    table = opened.read()
    columns: list[pl.Series] = []
    for name, source in vectors.items():
        file = str(source) if isinstance(source, str | os.PathLike) else f"item vectors {name!r}"
        rows = _read_vectors(source, name, file)
        if len(rows) != len(table):
            raise InputError(f"{file}: has {len(rows)} rows, but the item table has {len(table)}")
        if (bad := ~np.isfinite(rows)).any():
            row, place = (int(index[0]) for index in np.nonzero(bad))
            raise InputError(
                f"{file}: row {row} (item {table['item_id'][row]!r}) has {rows[row, place]}, which "
                "is not a finite number"
            )
        if name in table.columns:
            raise InputError(f"item vectors {name!r}: the item table has this column")
        columns.append(pl.Series(name, rows))
    return table.with_columns(columns)


def _read_vectors(source: VectorSource, name: str, file: str) -> NDArray[np.floating[Any]]:
    """Read an array of floats [R, K]."""
    rows: Any = source
    if isinstance(source, str | os.PathLike):
        path = checked_path(source)
        if path.suffix not in {".npy", ".safetensors"}:
            raise InputError(f"{file}: must be .npy or .safetensors, not {path.suffix!r}")
        if not path.is_file():
            raise InputError(f"{file}: no such file")
        try:
            if path.suffix == ".npy":
                rows = np.load(path, mmap_mode="r", allow_pickle=False)
            else:
                rows = _read_tensor(path, name)
        except InputError:
            raise
        except (OSError, ValueError, EOFError, SafetensorError) as error:
            kind = "an array" if path.suffix == ".npy" else "safetensors"
            raise InputError(f"{path}: cannot be read as {kind}: {error}") from error
    known = isinstance(rows, np.ndarray) and rows.dtype.kind == "f" and rows.dtype.itemsize <= 8
    if not (known and rows.ndim == 2):
        actual = getattr(rows, "dtype", type(rows).__name__), getattr(rows, "shape", ())
        raise InputError(f"{file}: must be floats of the shape [rows, numbers], not {actual}")
    native: NDArray[np.floating[Any]] = rows.astype(rows.dtype.newbyteorder("="), copy=False)
    return native


def _read_tensor(path: Path, name: str) -> NDArray[Any]:
    import torch  # it takes seconds to load, and all commands import this file

    with safe_open(path, framework="pt") as file:
        names = list(file.keys())
        if name not in names and len(names) != 1:
            raise InputError(
                f"{path}: must have one tensor, or one named {name!r}, not {', '.join(names)}"
            )
        tensor = file.get_tensor(name if name in names else names[0])
    rows: NDArray[Any] = (
        tensor.float().numpy() if tensor.dtype == torch.bfloat16 else tensor.numpy()
    )
    return rows
