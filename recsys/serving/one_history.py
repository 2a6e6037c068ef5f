"""The history of one user, to be looked into: mere item ids, or a log with all that is read."""

from __future__ import annotations

import os
from collections.abc import Iterable
from typing import Any, TypeGuard, cast

import narwhals as nw

from recsys.data.tables import TableSource
from recsys.errors import InputError
from recsys.serving.bundle import ModelBundle
from recsys.serving.inputs import Moment, UserHistories, id_series

OneHistory = Iterable[Any] | TableSource | UserHistories
"""Item ids of one user, oldest first; a log of one user; or what was read of one."""


def one_history(bundle: ModelBundle, history: OneHistory, at: Moment | None) -> UserHistories:
    """The history of one user as a model reads it, with the times that it reads.

    Raises:
        InputError: it is of several users or none, or will not do for `UserHistories.from_raw` or
            `UserHistories.told`.
    """
    if isinstance(history, UserHistories):
        asked = history
    else:
        source = history if _is_log(history) else [id_series(cast("Any", history), "history")]
        asked = bundle.read_histories(source)
    if len(asked.user_ids) != 1:
        raise InputError(f"history: of one user, not of {len(asked.user_ids)}")
    return asked.told(bundle.times, at)


def _is_log(history: object) -> TypeGuard[TableSource]:
    """A frame or a path; ids as text are a mistake of another kind."""
    frame = nw.from_native(history, pass_through=True)
    return isinstance(frame, nw.DataFrame | nw.LazyFrame) or isinstance(history, os.PathLike)
