"""Rank tables of several datasets of one log, taken together."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import polars as pl

from recsys.evaluation.tables.rank import RankTable


def pool(tables: Sequence[RankTable], user_ids: Sequence[pl.Series]) -> RankTable:
    """All targets in one table, so that a user of several tables counts once in its figures.

    Args:
        tables: of one model under one protocol.
        user_ids: of each table's dataset: the id of the user that a row of the table has by number.

    Returns:
        A table whose users are numbered anew, in the order of their ids. Target tokens are still
        those of their own datasets. Its protocol has the largest catalogue and all dropped targets.
    """
    ids = pl.concat(
        [ids.gather(table.frame["user"]) for table, ids in zip(tables, user_ids, strict=True)]
    )
    frame = pl.concat(
        [table.frame.with_columns(fold=pl.lit(fold)) for fold, table in enumerate(tables, 1)]
    )
    numbered = frame.with_columns(user=ids.rank("dense").cast(pl.Int64) - 1)
    protocols = [table.protocol for table in tables]
    protocol = replace(
        protocols[0],
        num_items=max(protocol.num_items for protocol in protocols),
        dropped=sum(protocol.dropped for protocol in protocols),
        without_history=sum(protocol.without_history for protocol in protocols),
    )
    return RankTable(numbered, protocol)
