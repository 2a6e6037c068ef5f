"""Commands that show the embeddings of a trained bundle."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import polars as pl
import typer

from recsys.cli.answers import At, Histories, open_recommender, request_time, write_answer
from recsys.cli.options import Bundle, Json, app
from recsys.console import ids_like, show_frame, show_rows
from recsys.progress import stage

if TYPE_CHECKING:
    from recsys.serving.inputs import UserHistories


@app.command("similar")
def show_similar_items(
    bundle: Bundle,
    item: Annotated[str, typer.Argument(help="The id of an item.")],
    k: Annotated[int, typer.Option("-k", help="Items to show.")] = 10,
    out: Annotated[Path | None, typer.Option(help="File to write: .parquet or .csv.")] = None,
    as_json: Json = False,
) -> None:
    """Show the items whose embeddings are the most similar to an item's, by cosine."""
    recommender, _ = open_recommender(bundle, None, None)
    (item_id,) = ids_like([item], recommender.bundle.vocabulary.ids)
    show_frame(recommender.similar_items(item_id, k), out, as_json)


@app.command("embeddings")
def write_embeddings(
    bundle: Bundle,
    out: Annotated[
        Path,
        typer.Option(
            help="File to write: .parquet, .csv (a column for each dimension) or .npy (the matrix "
            "alone; NAME.ids.csv beside it has the ids of its rows)."
        ),
    ],
    histories: Histories = None,
    at: At = None,
    as_json: Json = False,
) -> None:
    """Write the embeddings of all items, or of histories if a log of histories is given.

    Histories may be larger than the memory, except for .npy.
    """
    from recsys.serving.embeddings import check_format, flat, save_embeddings

    check_format(out)
    recommender, _ = open_recommender(bundle, None, None)
    recommender.bundle.use_gpu()
    time = request_time(at)
    if histories is None or out.suffix == ".npy":
        with stage("embedding"):
            table = recommender.embeddings("items" if histories is None else histories, at=time)
        save_embeddings(table, out)
        show_rows([{"file": str(out), "rows": table.height}], as_json)
        return

    dim = recommender.bundle.model.items.embedding_dim

    def answer(queries: UserHistories) -> pl.DataFrame:
        table = recommender.embeddings(queries, at=time)
        return flat(table) if out.suffix == ".csv" else table

    write_answer(
        recommender,
        out,
        as_json,
        lambda large: large.by_user("embedding", answer, dim),
        request={"at": at},
        histories=histories,
        users=None,
    )
