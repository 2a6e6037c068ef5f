"""Sessions: a user's interactions, split at long pauses."""

from __future__ import annotations

from dataclasses import replace

import narwhals as nw
import polars as pl

from recsys.data.log import InteractionLog


def user_of_session(sessions: pl.Series) -> pl.Series:
    """Return USER for USER#1, USER#2 and so on.

    >>> user_of_session(pl.Series(["a#1", "b#7#12"])).to_list()
    ['a', 'b#7']
    """
    return sessions.str.replace(r"#\d+$", "")


def split_sessions(log: InteractionLog, gap: int) -> InteractionLog:
    """Make each session a separate user: USER#1 for the first of USER, USER#2 for the next.

    A session ends if the user's next interaction is more than ``gap`` later, in the unit of the
    log's times (dates: seconds). All interactions remain; user ids become text.
    """
    pause = nw.col("timestamp") - nw.col("timestamp").shift(1).over("user_id", order_by="order")
    begun = nw.col("begins").cum_sum().over("user_id", order_by="order") + 1
    user, number = nw.col("user_id").cast(nw.String), begun.cast(nw.String)
    frame = (
        log.frame.with_columns(begins=(pause > gap).fill_null(value=False).cast(nw.Int64))
        .with_columns(user_id=nw.concat_str(user, number, separator="#"))
        .drop("begins")
        .with_row_index("position", order_by=["user_id", "order"])  # "U#10" comes before "U#2"
        .with_columns(order=nw.col("position").cast(nw.Int64))
        .drop("position")
        .sort("order")
    )
    return replace(log, frame=frame.collect().lazy())
