"""Items that are newer than the model, which scores them by their features alone."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import replace

import polars as pl
import torch

from recsys.data.features.vectors import ItemVectors
from recsys.data.grown_tables import converted
from recsys.data.tables import TableSource, read_table
from recsys.errors import InputError, first_line
from recsys.inference.catalogue import empty_model
from recsys.serving.bundle import ModelBundle
from recsys.serving.ids import id_series


def with_new_items(bundle: ModelBundle, items: TableSource) -> ModelBundle:
    """Return the same model with new items appended to its catalogue.

    It knows the new items by their features alone; the count ensemble gives them no counts.

    Args:
        bundle: a model with ``model.item_features``.
        items: item_id and the columns of the item features, one row for each new item.

    Raises:
        InputError: the model reads no item features; an id is missing, is in the catalogue already,
            occurs twice or has another type than the catalogue's; a column is missing, or has
            values of another kind.
    """
    if bundle.encoders.items is None:
        raise InputError(
            f"{bundle.path}: the model knows items only by their interactions and cannot score new "
            "ones: train it with model.item_features"
        )
    origin = str(items) if isinstance(items, str | os.PathLike) else "new items"
    trained = bundle.manifest.num_items
    new = new_rows(bundle.item_table, items, bundle.encoders.items.columns, origin)
    item_table = appended(bundle.item_table, new, origin)
    vectors = appended_vectors(bundle, new, origin)
    model = empty_model(bundle.experiment, item_table, trained, bundle.encoders, vectors)
    model.load_state_dict(bundle.model.state_dict())
    return replace(
        bundle,
        trained=model.to(bundle.model.items.weight.device),
        item_table=item_table,
        vectors=vectors,
        count_ensemble=bundle.count_ensemble and bundle.count_ensemble.extended_to(len(item_table)),
    )


def appended_vectors(bundle: ModelBundle, rows: pl.DataFrame, origin: str) -> ItemVectors:
    """Return the vectors of the items of a bundle and, after them, those of further items.

    Args:
        bundle: a model that may read vectors.
        rows: the further items, with the columns of the vectors.
        origin: their name in messages.

    Raises:
        InputError: the rows have no such column, or other vectors than the model reads.
    """
    if bundle.encoders.items is None:
        return {}
    try:
        bundle.encoders.items.encode(rows)  # warns if most of their categories are unknown
        found = bundle.encoders.items.vectors(rows)
    except InputError as error:
        raise InputError(f"{origin}: {error}") from error
    return {name: torch.cat([bundle.vectors[name], more[1:]]) for name, more in found.items()}


def new_rows(
    items: pl.DataFrame, source: TableSource, columns: Sequence[str], origin: str
) -> pl.DataFrame:
    """Read and check the rows of new items.

    Args:
        items: the item table of a bundle.
        source: item_id and at least the columns, one row for each new item.
        columns: the columns of the features that the model reads.
        origin: the name of the source in messages.

    Raises:
        InputError: see `with_new_items`.
    """
    new = read_table(source, origin=origin)
    needed = ["item_id", *columns]
    if not len(read_table(new, needed, origin)):
        raise InputError(f"{origin}: the table has no rows")
    given, known = id_series(new["item_id"], origin), items["item_id"]
    ids = converted(given, known.dtype)
    if ids is None:
        raise InputError(f"{origin}: the ids of the catalogue are integers, not {given[0]!r}")
    for wrong, reason in (
        (ids.is_in(known.implode()), "is in the catalogue already"),
        (ids.is_duplicated(), "occurs twice"),
    ):
        if wrong.any():
            raise InputError(f"{origin}: item_id {ids.filter(wrong)[0]!r} {reason}")
    same = (converted(new[name], dtype) for name, dtype in items.schema.items() if name in new)
    new = new.with_columns(column for column in same if column is not None)
    return new.with_columns(item_id=ids, count=pl.lit(0, items.schema["count"]))


def appended(items: pl.DataFrame, rows: pl.DataFrame, origin: str) -> pl.DataFrame:
    """Append the rows of the new items to the item table, which has no vectors.

    Raises:
        InputError: columns have other types than those of the item table.
    """
    try:
        both = [items, rows.select(column for column in items.columns if column in rows.columns)]
        return pl.concat(both, how="diagonal_relaxed")
    except pl.exceptions.PolarsError as error:
        raise InputError(
            f"{origin}: columns have other types than the catalogue: {first_line(error)}"
        ) from error
