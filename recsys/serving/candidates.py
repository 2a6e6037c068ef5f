"""Candidates to score, and the items that may be recommended, in the caller's raw ids."""

import logging
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, cast

import narwhals as nw
import numpy as np
import polars as pl
from narwhals.typing import IntoSeries
from numpy.typing import NDArray

from recsys.config.data import Columns
from recsys.data.entity_tables import plain_ids
from recsys.data.histories import PAD, Bools, Int32s, Int64s
from recsys.data.prepared import Vocabulary
from recsys.data.tables import TableSource, read_table
from recsys.data.where import keep_where
from recsys.errors import InputError
from recsys.inference.diversity import UNGROUPED, Cap, Diversity
from recsys.inference.scorer import user_batches
from recsys.serving.bundle import ModelBundle
from recsys.serving.raw_values import id_series, integer_of, joined_lists, lists_of, report_unknown

logger = logging.getLogger(__name__)

_TABLE = "the item table"
Candidates = TableSource | Sequence[Any] | IntoSeries | NDArray[Any] | Mapping[Any, Iterable[Any]]
"""Items to score: a table of user_id and item_id, or of item_id alone, for all users; or a list of
item ids for all users; or lists of item ids by user id, or for users 0, 1, …."""
RawCandidates = tuple[pl.Series, pl.Series | None]
"""N item ids, and the user that each is a candidate of; None: all are candidates of every user."""


def read_candidates(
    source: Candidates, columns: Columns, *, items_only: bool = False
) -> RawCandidates:
    """Read candidates; a table may have the names of the training log's columns.

    >>> items, users = read_candidates([["hat"], [], ["hat", "boots"]], Columns())
    >>> items.to_list(), users.to_list()
    (['hat', 'hat', 'boots'], [0, 2, 2])
    """
    source, place = lists_of(source), "candidate items"
    series: object = nw.from_native(source, pass_through=True, allow_series=True)
    if isinstance(series, nw.Series | np.ndarray):
        source = series.to_list() if isinstance(series, nw.Series) else series.tolist()
    if isinstance(source, Sequence) and not isinstance(source, str):
        if not any(isinstance(ids, list | tuple | np.ndarray | pl.Series) for ids in source):
            return id_series(source, place), None
        source = dict(enumerate(source))
    if isinstance(source, Mapping):
        items, offsets = joined_lists(source, source.values(), "candidates", place)
        users = id_series(source, "users of the candidates")
        owners = np.repeat(np.arange(len(users)), np.diff(offsets))
        return items, users.gather(owners)
    origin = str(source) if isinstance(source, str | os.PathLike) else "candidates"
    table = read_table(cast("TableSource", source), origin=origin)
    user, item = (
        name if name in table.columns else plain
        for plain, name in (("user_id", columns.user_id), ("item_id", columns.item_id))
    )
    is_for_all = table.columns == [item] or (items_only and user not in table.columns)
    wanted = [item] if is_for_all else [user, item]
    table = read_table(table, wanted, origin)
    ids = {name: plain_ids(table[name]) for name in wanted}
    for name, column in ids.items():  # integers and text are not copied
        typed = column.dtype.is_integer() or column.dtype == pl.String
        if not typed or column.null_count():
            ids[name] = id_series(column, f"{origin}: column {name!r}")
    return ids[item], ids.get(user)


def chosen_items(
    bundle: ModelBundle, allow: Candidates | None, deny: Candidates | None, where: str | None
) -> Bools | None:
    """Return whether each item token may be recommended [I + 1]; None if all may.

    Raises:
        InputError: none of ``allow`` is in the catalogue; the condition holds for no item.
    """
    if allow is None and deny is None and where is None:
        return None
    columns, catalogue = bundle.experiment.data.columns or Columns(), bundle.vocabulary
    allowed = np.full(len(catalogue) + 1, allow is None)
    for source, is_allowed in ((allow, True), (deny, False)):
        if source is None:
            continue
        items, users = read_candidates(source, columns, items_only=True)
        if users is not None and len(users):
            raise InputError("allow, deny, generate: items for all users, not of single ones")
        tokens = catalogue.encode(items)
        if is_allowed:
            report_unknown(tokens, items, catalogue, "allowed item", "catalogue", strict=False)
        elif len(unknown := items.filter(tokens == PAD)):
            logger.warning("%d denied items are unknown, such as %r", len(unknown), unknown[0])
        allowed[tokens] = is_allowed
    if where is not None:
        allowed &= _meets(bundle.item_table, where)
    allowed[PAD] = False
    return allowed


def _meets(items: pl.DataFrame, where: str) -> Bools:
    """Return whether a condition holds for each item token [I + 1]."""
    try:
        kept = keep_where(items.with_row_index("__token", 1), where, _TABLE, items.columns)
    except InputError as error:  # the language is that of data.where, the setting is not
        raise InputError(str(error).removeprefix("data.")) from error
    if not len(kept):
        raise InputError(f"where {where!r}: holds for none of the {len(items):,} items")
    meets = np.zeros(len(items) + 1, dtype=bool)
    meets[kept["__token"].to_numpy()] = True
    return meets


def chosen_diversity(
    bundle: ModelBundle, weight: float | None, at_most: Mapping[str, int] | None
) -> Diversity | None:
    """Return how lists are made diverse (see `Recommender.recommend`); None if by scores alone."""
    if weight is not None and not 0 <= weight <= 1:
        raise InputError(f"diversity={weight}: must be from 0 to 1")
    caps = tuple(_cap(bundle.item_table, *cap) for cap in (at_most or {}).items())
    if not weight:
        return Diversity(caps=caps) if caps else None
    return Diversity(weight, bundle.directions.cpu().numpy(), caps)


def _cap(items: pl.DataFrame, column: str, most: int) -> Cap:
    if column not in items.columns:
        raise InputError(f"at_most: no column {column!r} among {', '.join(items.columns)}")
    values, most = items[column], integer_of(f"at_most: {column}", most, 1)
    if values.dtype.is_nested():
        raise InputError(f"at_most: {column}={most}: needs a column of single values")
    groups = values.rank("dense").cast(pl.Int64).fill_null(UNGROUPED).to_numpy()
    return np.concatenate([[UNGROUPED], groups]), most


def pairs_of(
    candidates: RawCandidates, user_ids: pl.Series, catalogue: Vocabulary, *, strict: bool
) -> tuple[Int64s, Int32s, Int64s | None]:
    """Return candidates as N pairs of a row in the histories and an item token.

    The third is the row of each pair in the table of candidates; None if a row is of several pairs.
    """
    items, owners = candidates
    tokens = catalogue.encode(items)
    known = report_unknown(tokens, items, catalogue, "candidate item", "catalogue", strict=strict)
    if owners is None:
        tokens, users = tokens[known], np.arange(len(user_ids))
        rows = np.flatnonzero(known) if len(users) == 1 else None
        return np.repeat(users, len(tokens)), np.tile(tokens, len(users)), rows
    vocabulary = Vocabulary(user_ids)
    numbers = vocabulary.encode(owners).astype(np.int64)
    known &= report_unknown(numbers, owners, vocabulary, "user", "histories", strict=strict)
    return numbers[known] - 1, tokens[known], np.flatnonzero(known)


def pair_batches(users: Int64s, items: Int32s) -> Iterator[tuple[Int64s, Int32s, Int64s]]:
    """Group N pairs by user, and users with similar numbers of candidates into batches.

    Similar numbers have as many binary digits, so less than half of a batch is padding.

    Yields:
        Users [B], their candidates [B, C], right-padded with PAD, and the numbers of the pairs, row
        by row, without PAD.

    >>> for batch in pair_batches(np.array([4, 0, 4, 2]), np.array([9, 8, 7, 9], dtype=np.int32)):
    ...     print(*(array.tolist() for array in batch))
    [0, 2] [[8], [9]] [1, 3]
    [4] [[9, 7]] [0, 2]
    """
    order = np.argsort(users, kind="stable")
    distinct, starts, counts = np.unique(users[order], return_index=True, return_counts=True)
    digits = np.frexp(counts)[1]
    for size in np.unique(digits):
        similar = np.flatnonzero(digits == size)
        width = int(counts[similar].max())
        for rows in user_batches(len(similar), width):
            batch = similar[rows]
            row, column = np.nonzero(np.arange(width) < counts[batch, None])
            pairs = order[starts[batch][row] + column]
            candidates = np.full((len(batch), width), PAD, dtype=np.int32)
            candidates[row, column] = items[pairs]
            yield distinct[batch], candidates, pairs
