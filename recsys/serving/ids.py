"""Raw ids and times of the caller, checked and turned into tokens and integers."""

from __future__ import annotations

import logging
import math
from collections.abc import Iterable, Sequence
from numbers import Integral
from typing import Any
from uuid import UUID

import narwhals as nw
import numpy as np
import polars as pl
from numpy.typing import NDArray

from recsys.data.histories import PAD
from recsys.data.log_columns import plain_ids
from recsys.data.vocabulary import Vocabulary
from recsys.errors import InputError, did_you_mean

logger = logging.getLogger(__name__)

_HINTED = 5_000
"""The largest vocabulary in which the nearest id is looked for: in a million it takes a minute."""
_SHOWN = 3
"""How many unknown ids a warning names."""


def id_series(values: Iterable[Any], place: str) -> pl.Series:
    """Return ids as a series of integers or text; UUIDs are text, as in a log.

    Args:
        values: the ids.
        place: where they come from; messages start with it.

    Raises:
        InputError: an id is missing, or is neither an integer nor text.
    """
    if isinstance(values, str):
        raise InputError(f"{place}: a list of ids, not {values!r}")
    try:
        ids = pl.Series([str(value) if isinstance(value, UUID) else value for value in values])
    except (TypeError, ValueError, OverflowError) as error:  # half a surrogate is a ValueError
        raise InputError(f"{place}: ids are all integers or all text") from error
    if ids.null_count():
        raise InputError(f"{place}: an id is missing")
    if ids.dtype.is_float():  # as pandas has integers if some are missing
        ids = plain_ids(ids)
    if len(ids) and not (ids.dtype.is_integer() or ids.dtype == pl.String):
        raise InputError(f"{place}: ids are integers or text, not {ids[0]!r}")
    return ids


def is_missing(value: object) -> bool:
    """Return whether a value is None, NaN or NA, as a left join leaves for a missing one."""
    nan = isinstance(value, float) and math.isnan(value)
    return value is None or nan or type(value).__name__ in ("NAType", "NaTType")


def lists_of(source: Any) -> Any:
    """Return a Series of lists as a mapping by its index, which pandas has, or else as a list.

    ``log.groupby("user_id")["item_id"].apply(list)`` is such a Series. Anything else, also a Series
    of single values, is returned as it is.

    Raises:
        InputError: the index has a value twice.
    """
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
        twice = index[index.duplicated()].to_list()[0]
        raise InputError(f"{twice!r} is twice in the index of the lists")
    return dict(zip(index.to_list(), lists, strict=True))


def whole_number(name: str, value: Any) -> int:
    """Return an argument that must be a whole number.

    Raises:
        InputError: it is none.
    """
    if isinstance(value, bool) or not isinstance(value, Integral):
        raise InputError(f"{name}={value!r}: must be a whole number")
    return int(value)


def known_tokens(
    ids: pl.Series | Sequence[Any], vocabulary: Vocabulary, noun: str, place: str
) -> NDArray[np.int32]:
    """Return the tokens [N] of ids [N] that must all be in the vocabulary.

    Raises:
        InputError: an id is unknown; the message names the id and the place, and the most similar
            known id if ids are text.
    """
    ids = ids if isinstance(ids, pl.Series) else id_series(ids, f"{noun}s")
    tokens = vocabulary.encode(ids)
    if (tokens == PAD).any():
        unknown = ids[int(np.argmax(tokens == PAD))]
        text = vocabulary.ids.dtype == pl.String and len(vocabulary) <= _HINTED
        hint = did_you_mean(str(unknown), vocabulary.ids) if text else ""
        raise InputError(f"{noun} {unknown!r} is not in the {place}{hint}")
    return tokens


def report_unknown(
    tokens: NDArray[Any], ids: pl.Series, known: Vocabulary, noun: str, place: str, *, strict: bool
) -> NDArray[np.bool_]:
    """Return which tokens [N] are known, and warn of the others.

    Args:
        tokens: the tokens of the ids, PAD if unknown.
        ids: the ids [N].
        known: the vocabulary that they are looked up in.
        noun: what an id is, in messages.
        place: what the vocabulary is, in messages.
        strict: refuse an unknown id.

    Raises:
        InputError: none is known, or with ``strict`` one is not.
    """
    found: NDArray[np.bool_] = tokens != PAD
    if found.all():
        return found
    if strict or not found.any():
        known_tokens(ids, known, noun, place)  # raises
    unknown = ids.filter(~found).unique(maintain_order=True)
    names = ", ".join(map(repr, unknown.head(_SHOWN))) + (", …" if len(unknown) > _SHOWN else "")
    logger.warning(
        "%d of %d candidates are left out: %s %s is not in the %s",
        *(len(ids) - found.sum(), len(ids), noun, names, place),
    )
    return found
