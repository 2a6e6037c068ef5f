"""The vectors of items and of histories, as frames and as files."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import polars as pl
import torch
from numpy.typing import NDArray

from recsys.data.csv_cells import write_csv
from recsys.errors import InputError
from recsys.folders.atomic import new_file
from recsys.inference.model_scorer import evaluating, model_inputs
from recsys.inference.scorer import FEWEST_USERS, batches_of_similar_length
from recsys.serving.bundle import ModelBundle
from recsys.serving.frame_writer import write_frames
from recsys.serving.histories import UserHistories

FORMATS = (".parquet", ".csv", ".npy")
_TOKENS = 1 << 13


@torch.inference_mode()
def item_embeddings(bundle: ModelBundle) -> pl.DataFrame:
    """Return item_id and embedding, an array of D float32, of the I items of a model.

    Features of the items are part of the embeddings.

    Raises:
        InputError: the bundle holds a baseline, which has no embeddings.
    """
    table = bundle.model.items.table()[1:].float().cpu().numpy()
    return bundle.item_table.select("item_id").with_columns(_vectors(table))


@torch.inference_mode()
def history_embeddings(bundle: ModelBundle, queries: UserHistories) -> pl.DataFrame:
    """Return user_id and embedding, an array of float32, of B histories.

    The embedding of a history is what the head compares with a candidate: the last hidden state.
    With the head ``dot_product`` the score of an item is the dot product of the two
    embeddings; with target attention that is the score without the part of attention.

    The embedding is null where no item of the history is in the catalogue.

    Raises:
        InputError: the bundle holds a baseline, which has no embeddings.
    """
    model = bundle.model
    recent = queries.histories.latest(bundle.experiment.model.max_sequence_length)
    known = np.flatnonzero(recent.lengths)
    found: NDArray[np.float32] | None = None
    with evaluating(model):
        for batch in batches_of_similar_length(recent.lengths[known], _TOKENS, 8 * FEWEST_USERS):
            rows = known[batch]
            last = model.encode_last(model_inputs(model, recent.take(rows)))[0]
            if found is None:
                found = np.zeros((len(recent), last.shape[1]), dtype=np.float32)
            found[rows] = last.float().cpu().numpy()
    if found is None:
        found = np.zeros((len(recent), model.items.embedding_dim), dtype=np.float32)
    vectors = pl.when(pl.Series(recent.lengths > 0)).then(_vectors(found)).alias("embedding")
    return pl.DataFrame({"user_id": queries.user_ids}).with_columns(vectors)


def save_embeddings(table: pl.DataFrame, out: Path) -> None:
    """Write embeddings to a file, by its extension.

    Parquet has the id and the array; CSV the id and a column for each dimension, e0, e1, …. A file
    ``.npy`` has the matrix [rows, D] alone, with NaN for a missing embedding; ``NAME.ids.csv``
    beside it has the ids of the rows.

    Args:
        table: an id and embedding.
        out: the file.

    Raises:
        InputError: the extension is unknown, or the file cannot be written.
    """
    check_format(out)
    ids, vectors = table.to_series(0), table["embedding"]
    if out.suffix != ".npy":
        write_frames([flat(table) if out.suffix == ".csv" else table], out)
    else:
        missing = [float("nan")] * _width(vectors)
        matrix = vectors.fill_null(pl.Series([missing], dtype=vectors.dtype)).to_numpy()
        with new_file(out.with_suffix(".ids.csv")) as file:
            write_csv(ids.to_frame(), file)
        with new_file(out) as file, file.open("wb") as stream:
            np.save(stream, matrix, allow_pickle=False)


def flat(table: pl.DataFrame) -> pl.DataFrame:
    """Return embeddings with a column for each dimension, e0, e1, …, in place of the arrays."""
    vectors = table["embedding"]
    columns = vectors.arr.to_struct([f"e{d}" for d in range(_width(vectors))])
    return pl.DataFrame([table.to_series(0), columns]).unnest("embedding")


def check_format(out: Path) -> None:
    """Refuse a file for embeddings of an unknown format.

    Raises:
        InputError: its extension is unknown.
    """
    if out.suffix not in FORMATS:
        given = out.suffix or "no extension"
        raise InputError(f"{out}: can write {', '.join(FORMATS)}, not {given}")


def _width(vectors: pl.Series) -> int:
    assert isinstance(vectors.dtype, pl.Array)  # noqa: S101 - `item_embeddings` made it
    return int(vectors.dtype.shape[0])


def _vectors(rows: NDArray[np.float32]) -> pl.Series:
    return pl.Series("embedding", rows, dtype=pl.Array(pl.Float32, rows.shape[1]))
