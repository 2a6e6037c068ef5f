"""A bundle as a function from a frame of histories to one of answers; MLflow loads it by name."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from itertools import chain
from typing import Any

import narwhals as nw
import numpy as np
import polars as pl

from recsys.data.frames import frame_like
from recsys.errors import InputError
from recsys.serving.histories import UserHistories
from recsys.serving.raw_values import id_series, is_missing
from recsys.serving.recommender import Recommender

USER, ITEMS, TIMES, CANDIDATES = "user_id", "items", "times", "candidates"
"""The columns of the histories."""


@dataclass(frozen=True, eq=False)
class HistoryModel:
    """Answers histories row by row: rows may be split and joined at will."""

    recommender: Recommender

    def predict(self, histories: Any, params: Mapping[str, Any] | None = None) -> Any:
        """Recommend items to each history, or score the candidates of its row.

        Args:
            histories: a frame with the column ``items``, lists of item ids, the oldest first; and
                optionally ``times``, lists of their times; ``candidates``, lists of the items to
                score; ``user_id``, which the answer repeats. Any of them may be null in a row.
            params: as of `Recommender.recommend`; candidates are scored by ``at`` alone.

        Returns:
            A row for each history, in the library and with the index of the histories: ``item_id``
            and ``score``, lists of the k best items, the best first, or of the candidates in their
            order without those outside the catalogue; and ``source``, "model" or "popularity".
        """
        frame: nw.DataFrame[Any] = nw.from_native(histories, eager_only=True)
        if ITEMS not in frame.columns:
            raise InputError(f"histories: no column {ITEMS!r}")
        chosen = ((name, value) for name, value in (params or {}).items() if value is not None)
        given = {n: v for n, v in chosen if not isinstance(v, list | np.ndarray) or len(v)}
        at = given.pop("at", None)
        items, times, candidates = (_lists(frame, name) for name in (ITEMS, TIMES, CANDIDATES))

        def read(rows: list[int]) -> UserHistories:
            """Read the histories of some rows, whose numbers are the ids of the users."""
            lists = {row: items[row] or [] for row in rows}
            own = [times[row] for row in rows] if TIMES in frame.columns else None
            return self.recommender.read_histories(lists, times=own)

        scored = {row: ids for row, ids in enumerate(candidates) if ids is not None}
        others = [row for row, ids in enumerate(candidates) if ids is None]
        answers = []
        if scored:
            ids = id_series(chain.from_iterable(scored.values()), CANDIDATES)
            is_known = self.recommender.bundle.vocabulary.encode(ids).any()
            queries = read([*scored])
            pairs = self.recommender.score(queries, scored if is_known else (), at=at)
            answers.append(_by_row(queries, pairs))
        if others or not scored:
            queries = read(others)
            best = self.recommender.recommend(queries, at=at, **given)
            answers.append(_by_row(queries, best))
        rows = pl.concat(answers, how="vertical_relaxed").sort(USER).drop(USER)
        answer = nw.from_native(frame_like(rows, histories, rows=(histories, slice(None))))
        if USER in frame.columns:
            answer = answer.with_columns(frame[USER]).select(USER, *rows.columns)
        return answer.to_native()


def _by_row(queries: UserHistories, pairs: pl.DataFrame) -> pl.DataFrame:
    """Gather the items and scores of each user in lists."""
    lists = pairs.group_by(USER, maintain_order=True).agg(
        "item_id", pl.col("score").cast(pl.Float64)
    )
    empty = pl.Series(queries.histories.lengths == 0)
    users = pl.DataFrame({USER: queries.user_ids, "empty": empty})
    return users.join(lists, on=USER, how="left", maintain_order="left").select(
        USER,
        pl.col("item_id", "score").fill_null([]),
        source=pl.when("empty").then(pl.lit("popularity")).otherwise(pl.lit("model")),
    )


def _lists(frame: nw.DataFrame[Any], name: str) -> list[list[Any] | None]:
    """Return the lists of a column; None where there is no list, and if there is no column."""
    if name not in frame.columns:
        return [None] * len(frame)
    rows: list[list[Any] | None] = []
    for row, value in enumerate(frame[name].to_list()):
        missing = is_missing(value)
        if not missing and (isinstance(value, str) or not isinstance(value, Iterable)):
            raise InputError(f"histories: row {row}: {name} is a list, not {value!r}")
        values = np.asarray([] if missing else value)
        values = values.astype("M8[us]") if values.dtype.kind == "M" else values
        rows.append(None if missing else values.tolist())
    return rows


def _load_pyfunc(path: str) -> HistoryModel:
    """Open the bundle of a logged model for MLflow."""
    return HistoryModel(Recommender.load(path))
