"""Items that came after the training: their features stand in for what was done with others."""

from __future__ import annotations

import os
from dataclasses import replace

import polars as pl

from recsys.data.features.encoder import FeatureEncoder
from recsys.data.tables import TableSource, read_table
from recsys.errors import InputError
from recsys.inference.catalogue import empty_model
from recsys.serving.bundle import ModelBundle
from recsys.serving.inputs import id_series


def with_new_items(bundle: ModelBundle, items: TableSource) -> ModelBundle:
    """The same model over a catalogue that goes on behind the items it was trained on.

    It knows the new ones by their features alone; counts say nothing of them.

    Args:
        bundle: a model with ``model.item_features``.
        items: item_id and the columns of those, one row for each new item.

    Raises:
        InputError: the model reads no features; an id is missing, in the catalogue already, there
            twice or of another type than there; a column is missing, or has values that are not of
            its kind.
    """
    if bundle.encoders.items is None:
        raise InputError(
            f"{bundle.path}: its model knows items by what was done with them alone, nothing of "
            "new ones: train it with model.item_features"
        )
    origin = str(items) if isinstance(items, str | os.PathLike) else "new items"
    item_table = _with_rows(bundle.item_table, items, bundle.encoders.items, origin)
    trained = bundle.manifest.num_items
    model = empty_model(bundle.experiment, item_table, trained, bundle.encoders)
    model.load_state_dict(bundle.model.state_dict())
    return replace(
        bundle,
        model=model.to(bundle.model.items.weight.device),
        item_table=item_table,
        count_ensemble=bundle.count_ensemble and bundle.count_ensemble.extended_to(len(item_table)),
    )


def _with_rows(
    items: pl.DataFrame, source: TableSource, encoder: FeatureEncoder, origin: str
) -> pl.DataFrame:
    """The item table, and behind it the rows of the new items."""
    new = read_table(source, origin=origin)
    needed = ["item_id", *encoder.columns]
    if not len(read_table(new, needed, origin)):
        raise InputError(f"{origin}: the table has no rows")
    ids, known = id_series(new["item_id"], origin), items["item_id"]
    if ids.dtype.is_integer() != known.dtype.is_integer():
        noun = "integers" if known.dtype.is_integer() else "text"
        raise InputError(f"{origin}: the ids of the catalogue are {noun}, not {ids[0]!r}")
    ids = ids.cast(known.dtype)
    for twice, place in (
        (ids.is_in(known.implode()), "in the catalogue already"),
        (ids.is_duplicated(), "there twice"),
    ):
        if twice.any():
            raise InputError(f"{origin}: item_id {ids.filter(twice)[0]!r} is {place}")
    rows = new.with_columns(item_id=ids, count=pl.lit(0, items.schema["count"]))
    try:
        both = [items, rows.select(column for column in items.columns if column in rows.columns)]
        return pl.concat(both, how="diagonal_relaxed")
    except pl.exceptions.PolarsError as error:
        reason = str(error).partition("\n")[0]
        raise InputError(f"{origin}: not of the types of the catalogue: {reason}") from error
