"""Columns of bytes: UUIDs and UTF-8 are read as text, other bytes are refused where needed."""

from __future__ import annotations

from pathlib import Path
from typing import Any
from uuid import UUID

import polars as pl
import pyarrow as pa  # type: ignore[import-untyped]
import pyarrow.parquet as pq  # type: ignore[import-untyped]
import pytest

from recsys.data.engines import Engine
from recsys.data.prepared import prepare
from recsys.errors import InputError

ENGINES: list[Engine] = ["memory", "disk"]
USERS = [UUID(int=3 * 10**37), UUID(int=4), UUID(int=3 * 10**37)]


def log_of(users: Any, **more: Any) -> pa.Table:
    return pa.table({"user_id": users, "item_id": [5, 6, 7], "timestamp": [1, 2, 3], **more})


def uuids() -> pa.Table:
    return log_of(pa.array([user.bytes for user in USERS], pa.uuid()))


def text(table: pa.Table) -> pa.Table:
    return table.set_column(0, "user_id", [list(map(str, USERS))])


@pytest.mark.parametrize("engine", ENGINES)
def test_uuids_of_parquet_and_arrow(engine: Engine, tmp_path: Path) -> None:
    (tmp_path / "log").mkdir()
    pq.write_table(uuids(), tmp_path / "log" / "0.parquet")
    pq.write_table(text(uuids()), tmp_path / "log" / "1.parquet")
    both = pa.concat_tables([text(uuids())] * 2)
    for source, plain in (
        (tmp_path / "log" / "0.parquet", text(uuids())),
        (tmp_path / "log", both),
        (uuids(), text(uuids())),
    ):
        found = prepare(source, out=tmp_path / "data", engine=engine)
        assert found.user_ids.to_list() == sorted(map(str, set(USERS)))
        expected = prepare(plain, out=tmp_path / "plain", engine=engine)
        assert found.manifest.log_fingerprint == expected.manifest.log_fingerprint


@pytest.mark.parametrize("engine", ENGINES)
def test_utf8(engine: Engine, tmp_path: Path) -> None:
    names, times = ["Zoë", "7", "Zoë"], ["2024-01-02", "2024-01-03", "2024-01-04"]
    table = log_of([name.encode() for name in names], photo=[b"\xff"] * 3)
    table = table.set_column(2, "timestamp", [[time.encode() for time in times]])
    pq.write_table(table, tmp_path / "log.parquet")
    plain = pl.DataFrame({"user_id": names, "item_id": [5, 6, 7], "timestamp": times})
    expected = prepare(plain, out=tmp_path / "plain")
    for source in (tmp_path / "log.parquet", table):
        found = prepare(source, out=tmp_path / "data", engine=engine)
        assert found.fingerprint == expected.fingerprint


@pytest.mark.parametrize("engine", ENGINES)
def test_other_bytes_are_refused(engine: Engine, tmp_path: Path) -> None:
    """The bad ones are in a part of their own."""
    bad = pa.concat_tables([log_of([b"a", b"b", b"c"])] * 400 + [log_of([b"a", b"\xff\xfe", b"c"])])
    pq.write_table(bad, tmp_path / "log.parquet")
    with pytest.raises(InputError, match="'user_id': ids must be integers or text, not Binary"):
        prepare(tmp_path / "log.parquet", out=tmp_path / "data", engine=engine, memory=200_000)


def test_uuids_in_lists_are_left_alone(tmp_path: Path) -> None:
    lists = pa.ListArray.from_arrays([0, 1, 2, 3], uuids()["user_id"].combine_chunks())
    pq.write_table(log_of(["a", "b", "a"], seen=lists), tmp_path / "log.parquet")
    assert prepare(tmp_path / "log.parquet", out=tmp_path / "data").num_users == 2
