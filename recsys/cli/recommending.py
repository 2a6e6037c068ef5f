"""The command that recommends, to one user or to any number of them."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import typer

from recsys.cli.answers import (
    At,
    Histories,
    NewItems,
    Probabilities,
    Users,
    open_recommender,
    request_time,
    show_answer,
    write_answer,
)
from recsys.cli.options import Bundle, Data, Index, Json, Out, app
from recsys.errors import InputError
from recsys.progress import stage


@app.command("recommend")
def recommend_items(
    bundle: Bundle,
    histories: Histories = None,
    user: Users = None,
    data: Data = None,
    k: Annotated[
        int | None,
        typer.Option("-k", help="Items per user; default: 10, or all if there are fewer."),
    ] = None,
    where: Annotated[
        str | None,
        typer.Option(
            help="Recommend only items that meet a condition in SQL over the columns of the item "
            "table: \"category == 'boots' and price < 80\"."
        ),
    ] = None,
    allow: Annotated[
        Path | None, typer.Option(help="Table of item_id: the only items to recommend.")
    ] = None,
    deny: Annotated[
        Path | None, typer.Option(help="Table of item_id: items that are not recommended.")
    ] = None,
    diversity: Annotated[
        float | None,
        typer.Option(
            min=0.0,
            max=1.0,
            help="Weight of dissimilarity to the items chosen before (maximal marginal relevance). "
            "Default: by score alone.",
        ),
    ] = None,
    at_most: Annotated[
        list[str] | None,
        typer.Option(
            help="At most so many items of a list with the same value in a column of the item "
            "table: category=2; repeatable."
        ),
    ] = None,
    new_items: NewItems = None,
    at: At = None,
    retrieve: Annotated[
        int | None,
        typer.Option(
            help="Rank only so many items by target attention, the best by the dot product: for "
            "large catalogues. `recsys retrieval` shows what is missed. Default: all."
        ),
    ] = None,
    index: Index = None,
    probabilities: Probabilities = False,
    out: Out = None,
    as_json: Json = False,
) -> None:
    """Recommend the k best items for each history, or for users of a prepared dataset.

    With --data and neither --user nor histories, all users of the dataset are answered. With --out
    histories may be larger than the memory, and an interrupted run resumes when it is repeated.
    """
    recommender, users = open_recommender(bundle, data, user)
    recommender.bundle.use_gpu()
    if new_items is not None:
        recommender = recommender.with_new_items(new_items)
    if index is not None:
        recommender = recommender.with_index(index)
    k = recommender.bundle.usual_k if k is None else k
    rules = {
        "k": k,
        "where": where,
        "allow": allow,
        "deny": deny,
        "diversity": diversity,
        "at_most": _caps(at_most or ()),
        "at": request_time(at),
        "retrieve": retrieve,
        "probabilities": probabilities,
    }
    if out is None:
        with stage("recommending"):
            answer = recommender.recommend(histories, users=users, **rules)  # type: ignore[arg-type]
        show_answer(answer, recommender, as_json)
        return
    found_by = None if recommender.index is None else recommender.index.manifest.digest
    recommend: Any = partial(recommender.recommend, **rules)  # type: ignore[arg-type]
    write_answer(
        recommender,
        out,
        as_json,
        lambda large: large.by_user("recommending", recommend, k),
        request={**rules, "new_items": new_items, "index": found_by},
        histories=histories,
        users=users,
    )


def _caps(texts: Sequence[str]) -> dict[str, int]:
    """Read caps such as category=2.

    >>> _caps(["category=2", "brand=1"])
    {'category': 2, 'brand': 1}
    """
    caps = {}
    for text in texts:
        column, _, most = text.rpartition("=")
        if not column or not most.isdecimal():
            raise InputError(f"--at-most {text}: give a column and a whole number: category=2")
        caps[column] = int(most)
    return caps
