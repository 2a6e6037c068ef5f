"""A log as `prepare` reads it, before and after its filters, for tests that look at its rows."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from recsys.config.data import Columns, DataConfig
from recsys.data.log import Log, filter_log, read_log
from recsys.data.preparation import open_log
from recsys.data.tables import TableSource


def read(source: TableSource | Path, config: DataConfig | None = None) -> Log:
    table, _, config = open_log(source, config or DataConfig(), None)
    return read_log(table, config)


def read_plain(source: TableSource | Path, columns: Columns | None = None, **more: Any) -> Log:
    """Read a log whose columns are called user_id, item_id and timestamp, if not said otherwise."""
    named = (columns or Columns()).model_dump()
    table, _, config = open_log(source, DataConfig(columns=Columns(**named), **more), None)
    return read_log(table, config, Columns(**named))


def filtered(log: Log, config: DataConfig) -> Log:
    filter_log(log, config)
    return log
