"""Rank tables from bare ranks: one target per user."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import polars as pl
from numpy.typing import NDArray

from recsys.evaluation.tables import RankTable, TableProtocol

SCHEMA = {"user": pl.Int64, "target": pl.Int32, "rank": pl.Int64, "history_length": pl.Int32}


def ranked(ranks: Sequence[int] | NDArray[np.int64], **protocol: Any) -> RankTable:
    users = len(ranks)
    columns = {"user": range(users), "target": [1] * users, "rank": ranks}
    frame = pl.DataFrame({**columns, "history_length": [1] * users}, schema=SCHEMA)
    fields = {"part": "test", "num_items": 2_000, "seen": "filter"}
    return RankTable(frame, TableProtocol(**{**fields, "dropped": 3, **protocol}))
