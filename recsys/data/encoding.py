"""A filtered log as the arrays and tables of a prepared dataset."""

from __future__ import annotations

import hashlib
import json

import numpy as np
import polars as pl
from numpy.typing import NDArray

from recsys.config import Split
from recsys.data.histories import PAD
from recsys.data.log import InteractionLog
from recsys.data.splits import cut_points
from recsys.data.vocabulary import Vocabulary
from recsys.errors import InputError


def encode_log(
    log: InteractionLog, features: pl.DataFrame | None, split: Split
) -> tuple[dict[str, NDArray[np.generic]], dict[str, pl.DataFrame]]:
    """The arrays and tables of a dataset, by the names of their files.

    The catalogue is the items of training and validation interactions.

    Raises:
        InputError: the split is none of this log, or the features are none of its items.
    """
    frame = log.frame.collect("polars").to_polars()
    users = frame["user_id"].rle().struct.unnest()
    lengths = users["len"].to_numpy().astype(np.int64)
    offsets = np.concatenate([[0], np.cumsum(lengths)])
    timestamps = frame["timestamp"].to_numpy()
    cuts = cut_points(split, timestamps, offsets)
    known = np.arange(len(frame)) < np.repeat(offsets[:-1] + cuts[:, 1], lengths)
    vocabulary = Vocabulary(frame["item_id"].filter(pl.Series(known)).unique().sort())
    arrays: dict[str, NDArray[np.generic]] = {
        "items": vocabulary.encode(frame["item_id"]),
        "timestamps": timestamps,
        "offsets": offsets,
        "cuts": cuts,
    }
    if "weight" in frame.columns:
        arrays["weights"] = frame["weight"].to_numpy()
    tables = {
        "users": users.select(user_id="value"),
        "items": _item_table(vocabulary, features, log.origin),
    }
    return arrays, tables


def dataset_fingerprint(
    settings: dict[str, object],
    arrays: dict[str, NDArray[np.generic]],
    tables: dict[str, pl.DataFrame],
) -> str:
    """SHA-256 of what decides a dataset and of what `encode_log` made of it."""
    digest = hashlib.sha256(json.dumps(settings, sort_keys=True).encode())
    for name in sorted(arrays):
        digest.update(f"{name} {arrays[name].dtype} {arrays[name].shape}".encode())
        digest.update(arrays[name].tobytes())
    for name in sorted(tables):
        digest.update(tables[name].write_ndjson().encode())
    return digest.hexdigest()


def _item_table(vocabulary: Vocabulary, features: pl.DataFrame | None, origin: str) -> pl.DataFrame:
    """item_id and features, one row per item token; nulls for items without features."""
    ids = pl.DataFrame({"item_id": vocabulary.ids, "token": np.arange(1, len(vocabulary) + 1)})
    if features is None:
        return ids.drop("token")
    if "item_id" not in features.columns:
        raise InputError(
            f"item table of {origin}: no column 'item_id' among {', '.join(features.columns)}"
        )
    tokens = pl.Series("token", vocabulary.encode(features["item_id"]).astype(np.int64))
    known = features.with_columns(tokens).filter(tokens != PAD)
    if known.is_empty():
        raise InputError(f"item table of {origin}: none of its item_ids is in the log")
    if known["token"].is_duplicated().any():
        twice = known.filter(known["token"].is_duplicated())["item_id"][0]
        raise InputError(f"item table of {origin}: item_id {twice!r} has more than one row")
    return ids.join(known.drop("item_id"), on="token", how="left", maintain_order="left").drop(
        "token"
    )
