"""Raw ids, numbers and times of the caller, checked and turned into series, tokens and integers."""

import logging
import math
from collections.abc import Iterable, Sequence
from datetime import date, datetime
from itertools import chain
from numbers import Integral
from typing import Any
from uuid import UUID

import narwhals as nw
import numpy as np
import polars as pl
from numpy.typing import NDArray

from recsys.config.data import time_value
from recsys.data.entity_tables import plain_ids
from recsys.data.histories import PAD, Bools, Int32s, Int64s
from recsys.data.prepared import Vocabulary
from recsys.data.times import COMPACT, units_in, units_per_second
from recsys.errors import InputError, one_line

logger = logging.getLogger(__name__)

# --- Ids ------------------------------------------------------------------------------------------


def id_series(values: Iterable[Any], place: str) -> pl.Series:
    """Return ids as a series of integers or text: text if there are both, or UUIDs.

    Raises:
        InputError: an id is missing, or is neither.
    """
    if isinstance(values, str) or not isinstance(values, Iterable):
        raise InputError(f"{place}: a list of ids, not {values!r}")
    plain = [str(value) if isinstance(value, UUID) else value for value in values]
    try:
        mixed = {int, str} == {*map(type, plain)}
        ids = pl.Series([*map(str, plain)] if mixed else plain)
    except (TypeError, ValueError, OverflowError) as error:  # half a surrogate is a ValueError
        raise InputError(f"{place}: ids are integers of 64 bits, or text") from error
    if ids.null_count():
        raise InputError(f"{place}: an id is missing")
    ids = plain_ids(ids) if ids.dtype.is_float() else ids  # as pandas has them beside missing ones
    if len(ids) and not (ids.dtype.is_integer() or ids.dtype == pl.String):
        raise InputError(f"{place}: ids are integers or text, not {ids[0]!r}")
    return ids


def joined_lists(
    users: Iterable[Any], lists: Iterable[Any], noun: str, place: str
) -> tuple[pl.Series, Int64s]:
    """Return the ids of lists [B], end to end, and where each begins [B + 1]."""
    rows: list[list[Any]] = []
    for user, ids in zip(users, lists, strict=True):
        missing = is_missing(ids)
        if not missing and (isinstance(ids, str) or not isinstance(ids, Iterable)):
            raise InputError(f"{noun} of user {user!r}: a list of item ids, not {ids!r}")
        rows.append([] if missing else list(ids))
    offsets = np.cumsum([0, *map(len, rows)], dtype=np.int64)
    return id_series(chain.from_iterable(rows), place), offsets


def is_missing(value: object) -> bool:
    """Return whether a value is None, NaN or NA, as a left join leaves for a missing one."""
    nan = isinstance(value, float) and math.isnan(value)
    return value is None or nan or type(value).__name__ in ("NAType", "NaTType")


def lists_of(source: Any) -> Any:
    """Return a Series of lists as a mapping by its index, or as a list; anything else unchanged."""
    series = nw.from_native(source, pass_through=True, allow_series=True)
    if not isinstance(series, nw.Series):
        return source
    lists = series.to_list()
    if not any(isinstance(items, list | tuple | np.ndarray | pl.Series) for items in lists):
        return source
    index = nw.maybe_get_index(series)
    if index is None:
        return lists
    if index.has_duplicates:
        raise InputError(f"{index[index.duplicated()][0]!r} is twice in the index of the lists")
    return dict(zip(index.to_list(), lists, strict=True))


def known_tokens(
    ids: pl.Series | Sequence[Any], vocabulary: Vocabulary, noun: str, place: str
) -> Int32s:
    """Return the tokens [N] of ids [N]; refuse one that is not in the vocabulary."""
    ids = ids if isinstance(ids, pl.Series) else id_series(ids, f"{noun}s")
    tokens = vocabulary.encode(ids)
    if (tokens == PAD).any():
        unknown = one_line(repr(ids[int(np.argmax(tokens == PAD))]), 60)
        raise InputError(f"{noun} {unknown} is not in the {place}")
    return tokens


def report_unknown(
    tokens: NDArray[Any], ids: pl.Series, known: Vocabulary, noun: str, place: str, *, strict: bool
) -> Bools:
    """Return which tokens [N] of ids [N] are known, and warn of the others; refuse if none is."""
    is_known: Bools = tokens != PAD
    if is_known.all():
        return is_known
    if strict or not is_known.any():
        known_tokens(ids, known, noun, place)  # raises
    unknown = ids.filter(~is_known).unique(maintain_order=True)
    names = ", ".join(map(repr, unknown.head(3))) + (", …" if len(unknown) > 3 else "")
    logger.warning(
        "%d of %d candidates are left out: %s %s is not in the %s",
        *(len(ids) - is_known.sum(), len(ids), noun, names, place),
    )
    return is_known


def integer_of(argument: str, number: Any, least: float = -math.inf) -> int:
    """Return a number that is whole; an `InputError` if it is not, or too small."""
    if isinstance(number, bool) or not isinstance(number, Integral):
        raise InputError(f"{argument}={number!r}: must be a whole number")
    if number < least:
        raise InputError(f"{argument}={number}: must be at least {least}")
    return int(number)


# --- Times ----------------------------------------------------------------------------------------

RequestTime = float | str | date
"""The time a recommendation is requested for: a number on the scale of the training log, also as
text, or a date (text is ISO 8601, and UTC if it names no zone)."""


def time_on_scale(time: RequestTime, newest: int | None, place: str, form: str | None) -> int:
    """Return a date, digits of a form of dates, or a number as a time: see `times_on_scale`.

    >>> time_on_scale("2024-05-01", newest=1_700_000_000_000, place="at", form=None)
    1714521600000
    """
    moment = str(time) if isinstance(time, date | np.datetime64) else time
    try:
        digits = str(moment).removesuffix(".0")
        if digits.isdecimal() and len(digits) == COMPACT.get(form or ""):
            moment = datetime.strptime(f"{digits}Z", f"{form}%z").isoformat()
        elif isinstance(moment, str) and moment.removeprefix("-").isdecimal():
            moment = int(moment)
        # An integer stays as it is: a float has 53 bits.
        number = moment if isinstance(moment, int) else int(time_value(moment))
        numbers = np.array([number], dtype=np.int64)
    except (TypeError, ValueError, OverflowError) as error:
        shown = one_line(repr(time), 60)
        raise InputError(f"{place}={shown}: a number or an ISO 8601 date") from error
    return int(times_on_scale(numbers, newest, place, dates=isinstance(moment, str))[0])


def check_unit(times: Int64s, newest: int | None, place: str) -> None:
    """Refuse a dataset's times if they have one unit, and the newest of the log has another."""
    if newest is not None and units_in(np.array([newest])) and len(units_in(times)) == 1:
        times_on_scale(times, newest, place)


def times_on_scale(times: Int64s, newest: int | None, place: str, *, dates: bool = False) -> Int64s:
    """Return times [N], Unix seconds if they were dates, in the unit of the newest of the log.

    Raises:
        InputError: they are Unix times of another unit.
    """
    if newest is None or not len(times):
        return times
    own = next(iter(units_in(np.array([newest]))), None)
    if dates and own is not None:
        per_second = units_per_second(newest)
        return times if per_second == 1 else times * np.int64(per_second)
    units = units_in(times)
    if other := next(iter(units.keys() - {own}), None):
        raise InputError(
            f"{place}: {units[other]} is a time in {other}, and those of the training log go up to "
            f"{newest}: give times of the same unit"
        )
    if own is not None and not units:
        logger.warning(
            "%s: %d is compared with the times of the training log, which go up to %d",
            *(place, times[0], newest),
        )
    return times
