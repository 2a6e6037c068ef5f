"""Items that are newer than the model, which scores them by their features alone."""

import os
from dataclasses import replace
from pathlib import Path

import numpy as np
import polars as pl
import torch
from safetensors.torch import save_file

from recsys.baselines.counts import latest_histories
from recsys.data.entity_tables import converted
from recsys.data.features import VECTORS, ItemVectors
from recsys.data.histories import PAD, Histories
from recsys.data.prepared import Part, PreparedDataset, Vocabulary
from recsys.data.tables import TableSource, read_table
from recsys.errors import InputError, first_line
from recsys.folders import new_folder
from recsys.inference.catalogue import empty_model, grown_weights
from recsys.serving.bundle import BundleManifest, ModelBundle, write_files
from recsys.serving.raw_values import id_series


def with_new_items(bundle: ModelBundle, items: TableSource) -> ModelBundle:
    """Return the same model with new items appended to its catalogue, without counts.

    It knows them by their features alone, in the table's columns beside item_id.

    Raises:
        InputError: the model reads no item features; see `_appended`.
    """
    if not bundle.encoders.items.fitted:
        raise InputError(
            f"{bundle.path}: the model knows items only by their interactions and cannot score new "
            "ones: train it with model.item_features"
        )
    origin = str(items) if isinstance(items, str | os.PathLike) else "new items"
    trained = bundle.manifest.num_items
    item_table, vectors = _appended(bundle, items, origin)
    model = empty_model(bundle.experiment, item_table, trained, bundle.encoders, vectors)
    model.load_state_dict(bundle.model.state_dict())
    counts, nothing = bundle.count_ensemble, Histories.from_lists([])
    return replace(
        bundle,
        trained=model.to(bundle.model.items.weight.device),
        item_table=item_table,
        vectors=vectors,
        states=None,
        count_ensemble=counts and counts.with_new_items(len(item_table), nothing, nothing),
    )


def _appended(
    bundle: ModelBundle, source: TableSource, origin: str
) -> tuple[pl.DataFrame, ItemVectors]:
    """Return the item table and the vectors of a bundle with further items after its own.

    Raises:
        InputError: there are none; an id is known already, occurs twice or is of another type; a
            column of the features is missing.
    """
    items, encoder = bundle.item_table, bundle.encoders.items
    new = read_table(source, origin=origin)
    if not len(read_table(new, ["item_id", *encoder.columns], origin)):
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
    new = new.with_columns(item_id=ids, count=pl.lit(0, items.schema["count"]))
    try:
        encoder.encode(new)  # refuses what cannot be read
        vectors = encoder.vectors(new)
        columns = [column for column in items.columns if column in new.columns]
        table = pl.concat([items, new.select(columns)], how="diagonal_relaxed")
    except (InputError, pl.exceptions.PolarsError) as error:
        raise InputError(f"{origin}: {first_line(error)}") from error
    return table, {
        name: torch.cat([bundle.vectors[name], more[1:]]) for name, more in vectors.items()
    }


def extend(
    bundle: ModelBundle, dataset: PreparedDataset, out: str | os.PathLike[str]
) -> ModelBundle:
    """Write a bundle that also recommends the items of a dataset that the given one lacks.

    Known items keep their scores, and come first. For new ones see `grown_weights`, with the
    histories of the parts that the model was trained on, in which a count ensemble counts too.

    Raises:
        InputError: the bundle holds a baseline; see `_appended`; or the folder holds something
            else, cannot be written or is the bundle's own.
    """
    out = Path(out)
    weights = bundle.model.state_dict()
    if out.resolve() == bundle.path.resolve():
        raise InputError(f"{out}: is the bundle that is extended: choose another folder")
    BundleManifest.previous(out)
    tokens = bundle.vocabulary.encode(dataset.vocabulary.ids)
    added = dataset.item_table.filter(pl.Series(tokens == PAD))
    items, vectors = bundle.item_table, bundle.vectors
    if len(added):
        items, vectors = _appended(bundle, added, str(dataset.path))
    ours = Vocabulary(items["item_id"]).tokens_of(dataset.vocabulary)
    mapped = replace(dataset, items=ours[dataset.items])
    trained_on = bundle.manifest.trained_on
    before: Part = "test" if "valid" in trained_on else "valid"
    histories = mapped.histories(before)
    model = empty_model(bundle.experiment, items, len(items), bundle.encoders, vectors)
    known = np.arange(len(items) + 1, dtype=np.int32)
    known[bundle.num_items + 1 :] = PAD
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(bundle.experiment.seed)
        model.load_state_dict(grown_weights(weights, known, model, histories))
    counts = bundle.count_ensemble
    if counts is not None:
        newest = latest_histories(mapped, before, counts.recent_share)
        counts = counts.with_new_items(len(items), histories, newest)
    with new_folder(out) as folder:
        if vectors:
            save_file(vectors, folder / VECTORS)
        write_files(folder, model, bundle.experiment, items, counts, bundle.encoders)
        bundle.manifest.model_copy(update={"num_items": len(items)}).write(folder)
    return ModelBundle.open(out)
