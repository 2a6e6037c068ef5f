"""What DuckDB does silently with logs of strangers, and this library does not."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa  # type: ignore[import-untyped]
import pytest

import recsys
from recsys.data.tables import open_table
from recsys.data.where import keep_where
from recsys.errors import InputError
from tests.read_logs import read

LOG = pl.DataFrame({"user_id": [1, 1, 1, 2], "item_id": [5, 6, 7, 5], "timestamp": [1, 2, 3, 4]})

ATTACKS = [
    "price in (select content from read_text('/etc/hostname'))",
    "price = (select 1)",
    "exists(select 1 from read_csv('/etc/passwd'))",
    "price > any(select 1)",
    "1 = 1) from read_text('/etc/hostname') --",
    "price > 1) where (1 = 1",
    "price > 1 union select true",
    "true; drop table staged",
    "price > 1; copy (select 1) to '/tmp/stolen'",
    "price > 1, true",
    "price > 1 from given",
    "price > 1 limit 1",
    "columns('.*') > 1",
    "* > 1",
    "price > ?",
    "price > $secret",
    "read_text('/etc/hostname') is null",
    "query('select 1')",
    "system.main.lower(kind) = 'x'",
    "getenv('HOME') = 'x'",
    "current_setting('threads') > 0",
    "getvariable('x') = 1",
    "version() = 'x'",
    "now() > date '2020-01-01'",
    "random() > .5",
    "uuid()::varchar = 'x'",
    "sleep_ms(100000) = 1",
    "error('x')",
    "repeat('x', 4000000000) = 'x'",
    "len(range(100000000000)) = 1",
    "printf('%1000000000d', 1) = 'x'",
    "format('{:1000000000d}', 1) = 'x'",
    "list_transform([1], x -> x) = [1]",
    "given.price > 1",
    "rowid > 1",
]


@pytest.mark.parametrize("where", ATTACKS)
def test_a_condition_is_an_expression_over_columns(where: str) -> None:
    table = pl.DataFrame({"price": [1, 2], "kind": ["a", "b"]})
    with pytest.raises(InputError, match=r"^data\.where ") as refusal:
        keep_where(table, where, "the log")
    assert "\n" not in str(refusal.value)


@pytest.mark.parametrize("where", ATTACKS[:4])
def test_the_database_itself_reads_no_other_path(where: str, tmp_path: Path) -> None:
    """Also without the gate: what a condition may not say, its database would not do."""
    LOG.write_csv(tmp_path / "log.csv")
    table = open_table(tmp_path / "log.csv")
    for source in ("read_text('/etc/hostname')", "read_csv('/etc/passwd')", "glob('/etc/*')"):
        with pytest.raises(InputError, match="disabled by configuration"):
            table.rows(f"select * from {source}")  # noqa: S608
    for setting in ("enable_external_access = true", "allowed_paths = ['/etc/hostname']"):
        with pytest.raises(InputError, match="locked"):
            table.rows(f"set {setting}")
    with pytest.raises(InputError):
        table.rows("install httpfs")
    assert where


@pytest.mark.parametrize("codes", [["1", "10", "9"], [1, 10, 9], ["1.5", None, " 2"]])
@pytest.mark.parametrize(
    "where", ["code > '1'", "'2' <= code", "code between '1' and '9'", "not code < '2'"]
)
def test_numbers_are_not_put_in_order_as_text(codes: list[Any], where: str) -> None:
    """'9' is after '10' as text: the rows would be others, without a word."""
    with pytest.raises(InputError, match="column 'code' has numbers: write the one beside it"):
        keep_where(pl.DataFrame({"code": codes}), where, "the log")


def test_text_is_put_in_order_as_text() -> None:
    days = pl.DataFrame({"day": ["2024-01-05", "2024-02-05"], "code": ["7a", "10"]})
    assert keep_where(days, "day > '2024-01-31'", "the log")[1] == 1
    assert keep_where(days, "code > '1'", "the log")[1] == 0


def test_memory_that_is_exhausted_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("recsys.data.database._LEAST_MEMORY", 1 << 23)
    numbers = np.arange(100_000)
    log = pl.DataFrame({"user_id": numbers // 4, "item_id": numbers % 9, "timestamp": numbers})
    with pytest.raises(InputError, match=r"the frame: .* the memory that it may take: allow more"):
        recsys.prepare(log, out=tmp_path / "out", memory=1)
    assert not (tmp_path / "out").exists()


WRITTEN: dict[str, list[int]] = {
    "2024-01-01": [1_704_067_200],
    "2024-03-31 02:30:00": [1_711_852_200],  # is no time in Berlin
    "2024-03-10T02:30": [1_710_037_800],  # nor in New York
    "2024-11-03T01:30:00-04:00": [1_730_611_800],
    "10.12.24 08:00": [],
    "31.10.2024 08:00": [1_730_361_600],
}


def times_read(folder: Path) -> dict[str, list[int]]:
    """The time that each text is read as; none if it is refused."""
    found = {}
    for number, written in enumerate(WRITTEN):
        path = folder / f"{number}.csv"
        path.write_text(f"user_id,item_id,timestamp\n1,2,{written}\n")
        try:
            found[written] = read(path).table()["timestamp"].to_list()
        except InputError:
            found[written] = []
    moments = pl.DataFrame(LOG.head(1)).with_columns(timestamp=pl.datetime(2024, 3, 10, 2, 30))
    for name, frame in (("polars", moments), ("pandas", moments.to_pandas())):
        found[name] = read(frame).table()["timestamp"].to_list()
    moments.write_parquet(folder / "log.parquet")
    found["parquet"] = read(folder / "log.parquet").table()["timestamp"].to_list()
    return found


@pytest.mark.parametrize("zone", ["America/New_York", "Europe/Berlin", "UTC"])
def test_times_are_the_same_in_every_zone(
    zone: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TZ", zone)
    time.tzset()
    try:
        frames = {name: [1_710_037_800] for name in ("polars", "pandas", "parquet")}
        assert times_read(tmp_path) == WRITTEN | frames
    finally:
        monkeypatch.undo()
        time.tzset()


def test_times_are_the_same_in_a_process_of_another_zone(tmp_path: Path) -> None:
    (tmp_path / "log.csv").write_text("user_id,item_id,timestamp\n1,2,2024-01-01\n")
    code = "from tests.read_logs import read; import sys\n"
    code += "print(read(sys.argv[1]).table()['timestamp'].to_list())"
    ended = subprocess.run(
        [sys.executable, "-c", code, str(tmp_path / "log.csv")],
        env={**os.environ, "TZ": "America/New_York"},
        capture_output=True, text=True, check=True,
    )  # fmt: skip
    assert ended.stdout == "[1704067200]\n"


LARGE = 2**60 + 1
"""An integer that no float of 64 bits is."""
IDS: dict[str, tuple[Any, list[Any]]] = {
    "large integers": (pl.Series([LARGE, LARGE + 1]), [LARGE, LARGE + 1]),
    "large integers of pandas": (pd.Series([LARGE, LARGE + 1]), [LARGE, LARGE + 1]),
    "objects of pandas": (pd.Series([LARGE, 7], dtype=object), [7, LARGE]),
    "text beside integers": (pd.Series([LARGE, "7a"], dtype=object), [str(LARGE), "7a"]),
    "t and f": (pl.Series(["t", "f"]), ["f", "t"]),
    "blanks of Unicode": (pl.Series(["\u2003a\t", "\u00a0b\u3000"]), ["a", "b"]),
    "dictionaries": (pl.Series(["x", "y"], dtype=pl.Categorical), ["x", "y"]),
    "decimals": (pa.array([7, 8]).cast(pa.decimal128(20, 0)), [7, 8]),
}


@pytest.mark.parametrize(("ids", "found"), IDS.values(), ids=IDS)
def test_ids_of_frames_are_exact(ids: Any, found: list[Any]) -> None:
    others = {"item_id": [1, 2], "timestamp": [1, 2]}
    if isinstance(ids, pd.Series):
        table: Any = pd.DataFrame({"user_id": ids, **others})
    else:
        table = pa.table(
            {"user_id": ids.to_arrow() if isinstance(ids, pl.Series) else ids, **others}
        )
    assert read(table).table()["user_id"].to_list() == found


REFUSED: dict[str, tuple[Any, str]] = {
    "an integer beside a float": (
        pd.DataFrame(
            {"user_id": pd.Series([LARGE, 1.5], dtype=object), "item_id": 1, "timestamp": 1}
        ),
        "user_id",
    ),
    "names that differ in case": (
        LOG.with_columns(USER_ID=pl.lit(1)),
        "'user_id' and 'USER_ID', which differ in case",
    ),
    "a name in another case": (LOG.rename({"item_id": "Item_Id"}), "no column 'item_id'"),
    "floats of ids that are not exact": (
        LOG.with_columns(user_id=pl.lit(2.0**53)),
        r"data row 1: a 64-bit float of 2\*\*53 or more is not exact",
    ),
    "truth values": (LOG.with_columns(user_id=pl.lit(True)), "ids must be integers or text"),
    "dates as ids": (LOG.with_columns(item_id=pl.date(2024, 1, 1)), "ids must be integers"),
}


@pytest.mark.parametrize(("table", "words"), REFUSED.values(), ids=REFUSED)
def test_frames_are_refused_by_name(table: Any, words: str, tmp_path: Path) -> None:
    with pytest.raises(InputError, match=words):
        recsys.prepare(
            table, out=tmp_path / "out", user="user_id", item="item_id", time="timestamp"
        )


@pytest.mark.parametrize("encoding", ["cp1252", "latin-1", "cp1250", "shift_jis"])
def test_encodings_are_decoded_here(encoding: str, tmp_path: Path) -> None:
    """DuckDB would download an extension for most of them."""
    (tmp_path / "log.csv").write_bytes("user_id,item_id,timestamp\n1,§5,2\n".encode(encoding))
    found = recsys.prepare(tmp_path / "log.csv", out=tmp_path / "out", encoding=encoding)
    assert found.manifest.counts["interactions"] == 1
    (tmp_path / "bad.csv").write_bytes(b"user_id,item_id,timestamp\n1,\xa75,2\n")
    with pytest.raises(InputError, match="neither UTF-8 nor UTF-16"):
        recsys.prepare(tmp_path / "bad.csv", out=tmp_path / "bad")


@pytest.mark.parametrize("parts", [1, 7])
def test_ties_follow_the_order_of_the_file(parts: int, tmp_path: Path) -> None:
    """Enough rows for several threads, in a file or in many, within little memory or much."""
    rows = 300_000
    numbers = np.arange(rows)
    log = pl.DataFrame({"user_id": numbers * 7919 % 97, "item_id": numbers, "timestamp": 0})
    (tmp_path / "log").mkdir()
    for number in range(parts):
        share = log[number * rows // parts : (number + 1) * rows // parts]
        share.write_csv(tmp_path / "log" / f"{number}.csv")
    for memory in (None, "128MiB"):
        found = recsys.prepare(
            tmp_path / "log", out=tmp_path / "out", memory=memory, split="user_holdout"
        )
        ids = found.item_table["item_id"].to_numpy()
        items = found.items[: found.offsets[5]]
        inside = items > 0
        expected = np.concatenate([numbers[numbers * 7919 % 97 == user] for user in range(5)])
        np.testing.assert_array_equal(ids[items[inside] - 1], expected[inside])


def test_no_rule_depends_on_how_a_log_is_divided(tmp_path: Path) -> None:
    """Each part alone would be of other types, and its dates of another form."""
    texts = [
        "user_id,item_id,timestamp,price\n7,1,01/02/2024,1\n7,2,02/02/2024,\n",
        "user_id,item_id,timestamp,price\n7.0,3,03/13/2024,2.5\n8,4,03/14/2024,\n",
        "user_id,item_id,timestamp,price\n8.0,x,2024-03-15,3\n",
    ]
    (tmp_path / "log").mkdir()
    for number, text in enumerate(texts):
        (tmp_path / "log" / f"{number}.csv").write_text(text)
    lines = texts[0] + "".join(text.partition("\n")[2] for text in texts[1:])
    (tmp_path / "log.csv").write_text(lines)
    whole, divided = (
        recsys.prepare(tmp_path / name, out=tmp_path / f"{name}-out", where="price is not null")
        for name in ("log.csv", "log")
    )
    assert whole.fingerprint == divided.fingerprint
    assert whole.manifest.log_fingerprint == divided.manifest.log_fingerprint
    assert whole.user_ids.to_list() == [7, 8]
