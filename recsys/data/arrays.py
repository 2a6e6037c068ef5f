"""The arrays and tables of a prepared dataset, built from a filtered log."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path

import numpy as np
import polars as pl
from numpy.typing import NDArray

from recsys.config import DataConfig
from recsys.data.files import file_sha256
from recsys.data.histories import PAD
from recsys.data.log import KEPT, InteractionLog
from recsys.data.log_columns import check_features
from recsys.data.sessions import user_of_session
from recsys.data.splits import cut_points
from recsys.data.vocabulary import Vocabulary
from recsys.errors import InputError

INTERACTIONS = "interactions"
"""The name of the table of kept columns."""


def build_arrays(
    log: InteractionLog,
    items: pl.DataFrame | None,
    users: pl.DataFrame | None,
    config: DataConfig,
) -> tuple[dict[str, NDArray[np.generic]], dict[str, pl.DataFrame]]:
    """Build the arrays and tables of a dataset, by the names of their files.

    The catalogue consists of the items of training and validation interactions.

    Args:
        log: the filtered log.
        items: item_id and features, if there are any.
        users: user_id and features, if there are any; a user's row applies to all sessions.
        config: how the log is split, and whether users were split into sessions.

    Raises:
        InputError: the split does not fit the log, or a table has none of its items or users.
    """
    frame = log.frame.collect("polars").to_polars()
    spans = frame["user_id"].rle().struct.unnest()
    lengths = spans["len"].to_numpy().astype(np.int64)
    offsets = np.concatenate([[0], np.cumsum(lengths)])
    timestamps = frame["timestamp"].to_numpy()
    cuts = cut_points(config.split, timestamps, offsets)
    known = np.arange(len(frame)) < np.repeat(offsets[:-1] + cuts[:, 1], lengths)
    vocabulary = Vocabulary(frame["item_id"].filter(pl.Series(known)).unique().sort())
    arrays: dict[str, NDArray[np.generic]] = {
        "items": vocabulary.encode(frame["item_id"]),
        "timestamps": timestamps,
        "offsets": offsets,
        "cuts": cuts,
    }
    user_ids = spans["value"].rename("user_id")
    person_ids = user_ids if config.session_gap is None else user_of_session(user_ids)
    catalogue = vocabulary.ids.rename("item_id")
    tables = {
        "users": _with_features(user_ids, person_ids, users, f"user table of {log.origin}"),
        "items": _with_features(catalogue, catalogue, items, f"item table of {log.origin}"),
    }
    if log.keep:
        tables[INTERACTIONS] = frame.select(pl.col(KEPT + name).alias(name) for name in log.keep)
    return arrays, tables


def dataset_fingerprint(
    settings: dict[str, object],
    arrays: dict[str, NDArray[np.generic]],
    tables: dict[str, pl.DataFrame],
) -> str:
    """Return the SHA-256 of the settings of a dataset and of the output of `build_arrays`."""
    digest = hashlib.sha256(json.dumps(settings, sort_keys=True).encode())
    for name in sorted(arrays):
        digest.update(f"{name} {arrays[name].dtype} {arrays[name].shape}".encode())
        digest.update(arrays[name].tobytes())
    for name in sorted(tables):
        digest.update(tables[name].write_ndjson().encode())
    return digest.hexdigest()


def write_arrays(
    folder: Path, arrays: dict[str, NDArray[np.generic]], tables: dict[str, pl.DataFrame]
) -> dict[str, str]:
    """Write the output of `build_arrays`, and return the SHA-256 of each file."""
    for name, array in arrays.items():
        np.save(folder / f"{name}.npy", array, allow_pickle=False)
    for name, table in tables.items():
        table.write_parquet(folder / f"{name}.parquet")
    return {file.name: file_sha256(file) for file in sorted(folder.iterdir())}


def count_rows(
    log: InteractionLog, arrays: dict[str, NDArray[np.generic]], tables: dict[str, pl.DataFrame]
) -> dict[str, int]:
    """Count the rows of the source (rows_read), and the parts of the dataset of a filtered log."""
    ends = arrays["cuts"].sum(axis=0).tolist()
    return {
        "rows_read": log.rows + sum(log.dropped.values()),
        "interactions": len(arrays["items"]),
        "users": len(tables["users"]),
        "items": len(tables["items"]),
        "train": ends[0],
        "valid": ends[1] - ends[0],
        "test": ends[2] - ends[1],
        "outside_catalogue": int(np.count_nonzero(arrays["items"] == PAD)),
    }


def _with_features(
    ids: pl.Series, feature_ids: pl.Series, features: pl.DataFrame | None, origin: str
) -> pl.DataFrame:
    """Join features to ids; null if an id has none.

    Args:
        ids: unique ids of items or users, named as the id column of the features.
        feature_ids: the id whose features each of them has; sessions of a user share one.
        features: the id column and the features.
        origin: the name of the features in messages.
    """
    if features is None:
        return ids.to_frame()
    key = ids.name
    if key not in features.columns:
        raise InputError(f"{origin}: no column {key!r} among {', '.join(features.columns)}")
    check_features(features.drop(key), origin)
    known = Vocabulary(feature_ids.unique().sort())
    rows = pl.Series("__row", known.encode(features[key]))
    found = features.drop(key).with_columns(rows).filter(rows != PAD)
    if found.is_empty():
        raise InputError(f"{origin}: none of its {key}s is in the log")
    if found["__row"].is_duplicated().any():
        twice = features[key].filter((rows != PAD) & rows.is_duplicated())[0]
        raise InputError(f"{origin}: {key} {twice!r} has more than one row")
    table = pl.DataFrame({key: ids, "__row": known.encode(feature_ids)})
    return table.join(found, on="__row", how="left", maintain_order="left").drop("__row")
