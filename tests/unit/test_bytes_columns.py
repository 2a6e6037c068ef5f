"""Columns of bytes: UUIDs and UTF-8 are read as text, other bytes are refused where needed."""

from __future__ import annotations

from pathlib import Path
from typing import Any
from uuid import UUID

import duckdb
import pandas as pd
import polars as pl
import pyarrow as pa  # type: ignore[import-untyped]
import pyarrow.dataset  # type: ignore[import-untyped]
import pyarrow.parquet as pq  # type: ignore[import-untyped]
import pytest

from recsys.config import DataConfig
from recsys.data.prepared import prepare
from recsys.errors import InputError
from recsys.serving.raw_values import id_series

USERS = [UUID(int=3 * 10**37), UUID(int=4), UUID(int=3 * 10**37)]


def log_of(users: Any, **more: Any) -> pa.Table:
    return pa.table({"user_id": users, "item_id": [5, 6, 7], "timestamp": [1, 2, 3], **more})


def uuids() -> pa.Table:
    return log_of(pa.array([user.bytes for user in USERS], pa.uuid()))


def text(table: pa.Table) -> pa.Table:
    return table.set_column(0, "user_id", [list(map(str, USERS))])


def test_uuids_of_parquet_and_arrow(tmp_path: Path) -> None:
    (tmp_path / "log").mkdir()
    pq.write_table(uuids(), tmp_path / "log" / "0.parquet")
    pq.write_table(text(uuids()), tmp_path / "log" / "1.parquet")
    both = pa.concat_tables([text(uuids())] * 2)
    sources: tuple[tuple[Any, pa.Table], ...] = (
        (tmp_path / "log" / "0.parquet", text(uuids())),
        (tmp_path / "log", both),
        (uuids(), text(uuids())),
        (pyarrow.dataset.dataset(uuids()), text(uuids())),
        (uuids().to_batches()[0], text(uuids())),
        (pa.RecordBatchReader.from_batches(uuids().schema, uuids().to_batches()), text(uuids())),
        (uuids().to_pandas(types_mapper=pd.ArrowDtype), text(uuids())),
        (duckdb.sql(f"from '{tmp_path}/log/0.parquet'"), text(uuids())),
    )
    for source, plain in sources:
        found = prepare(source, out=tmp_path / "data")
        assert found.user_ids.to_list() == sorted(map(str, set(USERS)))
        expected = prepare(plain, out=tmp_path / "plain")
        assert found.manifest.log_fingerprint == expected.manifest.log_fingerprint


def test_utf8(tmp_path: Path) -> None:
    names, times = ["Zoë", "7", "Zoë"], ["2024-01-02", "2024-01-03", "2024-01-04"]
    table = log_of([name.encode() for name in names], photo=[b"\xff"] * 3)
    table = table.set_column(2, "timestamp", [[time.encode() for time in times]])
    pq.write_table(table, tmp_path / "log.parquet")
    plain = pl.DataFrame({"user_id": names, "item_id": [5, 6, 7], "timestamp": times})
    expected = prepare(plain, out=tmp_path / "plain")
    for source in (tmp_path / "log.parquet", table):
        found = prepare(source, out=tmp_path / "data")
        assert found.fingerprint == expected.fingerprint


def bad_in_a_part_of_its_own(column: str = "user_id") -> pa.Table:
    good = log_of([b"a", b"b", b"c"])
    parts = [good] * 400 + [log_of([b"a", b"\xff\xfe", b"c"])]
    table = pa.concat_tables(parts).append_column("row", [list(range(1, 1204))])
    return table.rename_columns(
        [column if name == "user_id" else name for name in table.column_names]
    )


def test_other_bytes_are_refused(tmp_path: Path) -> None:
    pq.write_table(bad_in_a_part_of_its_own(), tmp_path / "log.parquet")
    bounds: dict[str, Any] = {"out": tmp_path / "data", "memory": 200_000}
    message = r"'user_id', data row 1202: bytes that are no text: write them as text: b'.xff.xfe'$"
    with pytest.raises(InputError, match=message):
        prepare(tmp_path / "log.parquet", **bounds)
    found = prepare(tmp_path / "log.parquet", **bounds, where="row <> 1202")
    assert found.user_ids.to_list() == ["a", "b", "c"]


def test_a_column_is_text_or_bytes_in_all_parts(tmp_path: Path) -> None:
    """A rule for missing values takes a word for one in text alone."""
    table = bad_in_a_part_of_its_own("code")
    table = table.set_column(0, "code", [[b"NULL", *table["code"].to_pylist()[1:]]])
    table = table.append_column("user_id", [[7] * len(table)])
    rule = {"no code": "code is not null"}
    pq.write_table(table, tmp_path / "log.parquet")
    found = prepare(
        *(tmp_path / "log.parquet", DataConfig(where=rule), tmp_path / "data"),
        memory=200_000,
    )
    assert found.manifest.dropped == {"no code": 0}


@pytest.mark.parametrize("user", [USERS[0], UUID(int=4)])
def test_bytes_of_uuids_are_refused_with_their_text(user: UUID, tmp_path: Path) -> None:
    """They may be those of something else; and zeros are valid UTF-8."""
    log = log_of([b"a", user.bytes, b"c"])
    for source in (log, log.to_pandas(), pl.DataFrame(log)):
        with pytest.raises(InputError, match=f"data row 2: bytes that .*, such as '{user}' for a"):
            prepare(source, out=tmp_path / "data")


def test_times_that_are_no_text_are_refused(tmp_path: Path) -> None:
    log = log_of([1, 2, 3]).set_column(2, "timestamp", [[b"1", b"2", b"\xff"]])
    with pytest.raises(InputError, match="'timestamp', data row 3: bytes that are no text: write"):
        prepare(log, out=tmp_path / "data")


def test_uuids_in_lists_are_left_alone(tmp_path: Path) -> None:
    lists = pa.ListArray.from_arrays([0, 1, 2, 3], uuids()["user_id"].combine_chunks())
    pq.write_table(log_of(["a", "b", "a"], seen=lists), tmp_path / "log.parquet")
    assert prepare(tmp_path / "log.parquet", out=tmp_path / "data").num_users == 2


def test_lists_of_uuids(tmp_path: Path) -> None:
    """Those that are given where a log has others: histories, candidates, users."""
    assert id_series(USERS, "users").to_list() == list(map(str, USERS))
