"""Logs as frames, as typed files and in parts: read to the same rows, or refused by name."""

from __future__ import annotations

import gzip
import os
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from decimal import Decimal
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

from recsys.config import Columns, DataConfig
from recsys.data.appending import append
from recsys.data.prepared import prepare
from recsys.data.tables import read_table
from recsys.errors import InputError
from recsys.serving.raw_values import id_series

START = 1_700_000_000
NAMES = ["customer_id", "sku", "bought_at"]
ROWS = [
    *[("C02", "P-7", START + 30), ("C01", "P-1", START + 20), ("C02", "P-1", START + 10)],
    *[("C01", "P-3", START + 20), ("C01", "P-2", START + 5), ("C10", "P-9", START + 90)],
]
LOG = pl.DataFrame(ROWS, NAMES, orient="row")
DATED = LOG.with_columns(pl.from_epoch("bought_at"))
TOKYO = DATED.with_columns(
    pl.col("bought_at").dt.replace_time_zone("UTC").dt.convert_time_zone("Asia/Tokyo")
)


class OnlyArrowStream:
    """What a library that nobody has heard of hands over."""

    def __arrow_c_stream__(self, requested_schema: object = None) -> object:
        return LOG.__arrow_c_stream__(requested_schema)


def arrow(**types: pa.DataType) -> pa.Table:
    table = LOG.to_arrow().cast(pa.schema([(n, LOG.to_arrow()[n].type) for n in NAMES]))
    for name, kind in types.items():
        values = table[name].cast(pa.string()) if kind == pa.binary() else table[name]
        table = table.set_column(NAMES.index(name), name, values.cast(kind))
    return table


FRAMES: dict[str, Callable[[], Any]] = {
    "pandas": LOG.to_pandas,
    "pandas with nullable types": lambda: LOG.to_pandas().convert_dtypes(),
    "pandas with Arrow types": lambda: LOG.to_pandas(use_pyarrow_extension_array=True),
    "pandas with categories": lambda: LOG.to_pandas().astype(
        {"customer_id": "category", "sku": "category"}
    ),
    "pandas with floats": lambda: LOG.to_pandas().astype({"bought_at": float}),
    "pandas with times of a zone": TOKYO.to_pandas,
    "pandas with objects": lambda: pd.DataFrame(
        [(u, i, datetime.fromtimestamp(t, UTC)) for u, i, t in ROWS], columns=NAMES
    ),
    "pandas with a column of no type": lambda: LOG.to_pandas().assign(
        extra=pd.Series([1.5, "x", None, {1}, 2**70, object()], dtype=object)
    ),
    "polars": lambda: LOG,
    "polars, lazy": LOG.lazy,
    "polars with categories": lambda: LOG.with_columns(pl.col("sku").cast(pl.Categorical)),
    "polars with times": lambda: DATED,
    "polars with decimals": lambda: LOG.with_columns(
        pl.Series("bought_at", [Decimal(row[2]) for row in ROWS])
    ),
    "polars with integers of 128 bits": lambda: LOG.cast({"bought_at": pl.Int128}),
    "Arrow": LOG.to_arrow,
    "Arrow with bytes for text": lambda: arrow(sku=pa.binary()),
    "Arrow with large strings": lambda: arrow(sku=pa.large_string(), customer_id=pa.large_string()),
    "Arrow with dictionaries": lambda: arrow(sku=pa.dictionary(pa.int32(), pa.string())),
    "Arrow dataset": lambda: pa.dataset.dataset(LOG.to_arrow()),
    "Arrow record batches": lambda: pa.RecordBatchReader.from_batches(
        LOG.to_arrow().schema, LOG.to_arrow().to_batches()
    ),
    "DuckDB relation": lambda: duckdb.from_arrow(LOG.to_arrow()),
    "a stream of Arrow data": OnlyArrowStream,
}


@pytest.fixture(scope="module")
def fingerprint(tmp_path_factory: pytest.TempPathFactory) -> str:
    path = tmp_path_factory.mktemp("plain")
    LOG.write_csv(path / "log.csv")
    return prepare(path / "log.csv", out=path / "data").manifest.log_fingerprint


@pytest.mark.parametrize("made", FRAMES.values(), ids=FRAMES)
def test_frames(made: Callable[[], Any], fingerprint: str, tmp_path: Path) -> None:
    """A stream may be read only once."""
    assert prepare(made(), out=tmp_path / "data").manifest.log_fingerprint == fingerprint


@pytest.mark.parametrize(
    ("source", "words"),
    [
        ("logs", {}),
        ("logs/*/part-*.parquet", {}),
        ("logs/region=*", {}),
        ("times", {}),
        ("day-*.csv", {}),
        ("dated.parquet", {}),
        ("bytes.parquet", {}),
    ],
)
def test_files(source: str, words: Any, fingerprint: str, tmp_path: Path) -> None:
    """Parts of two rows beside what Spark leaves; times as folders; columns in another order."""
    (tmp_path / "logs").mkdir()
    (tmp_path / "logs" / "_SUCCESS").touch()
    (tmp_path / "logs" / "._SUCCESS.crc").touch()
    for number in range(3):
        part = tmp_path / "logs" / f"region={number}" / f"part-{number}.parquet"
        part.parent.mkdir()
        LOG[2 * number : 2 * number + 2].write_parquet(part)
    for number, (user, item, time) in enumerate(ROWS):
        part = tmp_path / "times" / f"bought_at={time}" / f"{number}.parquet"
        part.parent.mkdir(parents=True, exist_ok=True)
        pl.DataFrame({"customer_id": [user], "sku": [item]}).write_parquet(part)
    LOG[:4].write_csv(tmp_path / "day-1.csv")
    LOG[4:].select(NAMES[::-1]).write_csv(tmp_path / "day-2.csv")
    DATED.write_parquet(tmp_path / "dated.parquet")
    pq.write_table(arrow(sku=pa.binary(), customer_id=pa.binary()), tmp_path / "bytes.parquet")
    found = prepare(f"{tmp_path}/{source}", out=tmp_path / "data", **words)
    assert found.manifest.log_fingerprint == fingerprint


def small(**columns: Any) -> pl.DataFrame:
    good = {"user_id": [1, 1], "item_id": [1, 2], "timestamp": [1, 2]}
    return pl.DataFrame({**good, **columns})


def objects(*values: Any) -> pd.DataFrame:
    return pd.DataFrame({"user_id": pd.Series(values, dtype=object), "item_id": 1, "timestamp": 1})


BAD: dict[str, tuple[Any, list[str]]] = {
    "fractions": (small(user_id=[1.0, 2.5]), ["'user_id'", "integers or text, not DOUBLE"]),
    "floats that are not exact": (
        small(user_id=[1.0, 2.0**53]),
        ["'user_id', data row 2", "float of 2**53", "at their"],
    ),
    "short floats": (
        small(item_id=pl.Series([1, 2**24], dtype=pl.Float32)),
        ["'item_id', data row 2", "float of 2**24 or more is not exact"],
    ),
    "short floats of times": (
        small(timestamp=pl.Series([1, 2**24], dtype=pl.Float32)),
        ["'timestamp', data row 2", "float of 2**24 or more is not exact"],
    ),
    "truth values": (small(item_id=[True, False]), ["integers or text, not BOOLEAN"]),
    "dates as ids": (
        small(item_id=[datetime(2024, 1, 1), datetime(2024, 1, 2)]),
        ["ids must be integers or text, not TIMESTAMP"],
    ),
    "64 bits without a sign": (
        small(item_id=pl.Series([1, 2**64 - 1], dtype=pl.UInt64)),
        ["'item_id', data row 2: an id of more than 64 bits"],
    ),
    "no number": (small(timestamp=[1.0, float("nan")]), ["'timestamp'", "row 2", "finite", "nan"]),
    "no time": (small(timestamp=[None, 3]), ["'timestamp'", "data row 1", "missing"]),
    "spans": (small(timestamp=[timedelta(1), timedelta(2)]), ["'timestamp'", "spans of time"]),
    "no rows": (small().head(0), ["no rows"]),
    "no item": (small().drop("item_id"), ["which column is the item", "--item", "Python item="]),
    "an integer beside a float": (objects(2**60 + 1, 1.5), ["'user_id'"]),
    "an integer beside text and nothing": (objects(1, "x", None), ["'user_id', data row 3"]),
    "a name twice": (
        pd.DataFrame([[1, 2, 3, 4]], columns=["user_id", "item_id", "timestamp", "item_id"]),
        ["two columns are named 'item_id'"],
    ),
    "names that differ in case": (
        small(USER_ID=[1, 2]),
        ["'user_id' and 'USER_ID', which differ in case"],
    ),
    "the time as index": (
        small().to_pandas().set_index("timestamp"),
        ["which column is the time;", "'timestamp' is the index: reset_index() makes it a column"],
    ),
    "names of two levels": (
        pd.DataFrame(list(ROWS), columns=pd.MultiIndex.from_product([["log"], NAMES])),
        ["names of columns must be text, not of 2 levels"],
    ),
    "a name that is no text": (
        LOG.to_pandas().rename(columns={"sku": 1.5}),
        ["names of columns must be text or integers, not 1.5"],
    ),
    "integers as names": (
        pd.DataFrame(list(ROWS)),
        ["which column is the user", "0 (such as 'C02'), 1 (such as 'P-7'), 2 ("],
    ),
    "a mapping": ({"user_id": [1]}, ["cannot be read"]),
    "a number": (17, ["cannot be read"]),
}


@pytest.mark.parametrize(("table", "words"), BAD.values(), ids=BAD)
def test_bad_frames(table: Any, words: list[str], tmp_path: Path) -> None:
    with pytest.raises(InputError) as caught:
        prepare(table, out=tmp_path / "out")
    for word in ["the frame", *words]:
        assert word in str(caught.value)
    assert "\n" not in str(caught.value)
    assert not [*tmp_path.iterdir()], "something was written"


LARGE = 2**60 + 1
"""An integer that no float of 64 bits is."""
IDS: dict[str, tuple[Any, list[Any]]] = {
    "large integers": (pl.Series([LARGE, LARGE + 1]), [LARGE, LARGE + 1]),
    "large integers of pandas": (pd.Series([LARGE, LARGE + 1]), [LARGE, LARGE + 1]),
    "objects of pandas": (pd.Series([LARGE, 7], dtype=object), [7, LARGE]),
    "text beside integers": (pd.Series([LARGE, "7a"], dtype=object), [str(LARGE), "7a"]),
    "text beside whole floats": (pd.Series([71053, 71053.0, "7a"], dtype=object), ["71053", "7a"]),
    "t and f": (pl.Series(["t", "f"]), ["f", "t"]),
    "leading zeros": (pl.Series(["007", "12"]), ["007", "12"]),
    "floats of pandas as text": (pl.Series(["7.0", "07.0", "12"]), [7, 12]),
    "18 digits beside them": (pl.Series(["123456789012345678", "7.0"]), [7, 123456789012345678]),
    "floats beside codes": (pl.Series(["007", "7.0"]), ["007", "7.0"]),
    "text of digits": (pl.Series(["7", "12"]), ["12", "7"]),
    "short floats": (pl.Series([7, 12], dtype=pl.Float32), [7, 12]),
    "blanks of Unicode": (pl.Series(["\u2003a\t", "\u00a0b\u3000"]), ["a", "b"]),
    "dictionaries": (pl.Series(["x", "y"], dtype=pl.Categorical), ["x", "y"]),
    "decimals": (pa.array([7, 8]).cast(pa.decimal128(20, 0)), [7, 8]),
    "UUIDs": (pl.Series([UUID(int=5), UUID(int=6)]), [str(UUID(int=5)), str(UUID(int=6))]),
}


@pytest.mark.parametrize(("ids", "found"), IDS.values(), ids=IDS)
def test_ids_of_frames_are_exact(ids: Any, found: list[Any], tmp_path: Path) -> None:
    others = {"item_id": 1, "timestamp": 1}
    frame: Any
    if isinstance(ids, pd.Series):
        frame = pd.DataFrame({"user_id": ids, **others})
    elif isinstance(ids, pl.Series):
        frame = pl.DataFrame({"user_id": ids}).with_columns(**{n: pl.lit(1) for n in others})
    else:
        frame = pa.table({"user_id": ids, **{name: [1] * len(ids) for name in others}})
    users = prepare(frame, out=tmp_path / "out")
    assert sorted(users.user_ids.to_list()) == sorted(found)


@pytest.mark.parametrize("values", [[1.5, "x", None], [2**70, 1, 2], [[1], ["b"], None]])
def test_a_needed_column_without_a_type_is_named(values: list[Any], tmp_path: Path) -> None:
    frame = pd.DataFrame({"user_id": [1, 1, 2], "item_id": [5, 6, 5], "timestamp": [1, 2, 3]})
    frame = frame.assign(extra=pd.Series(values, dtype=object))
    for words in ({"user": "extra"}, {"keep": ["extra"]}, {"where": "extra > 2"}):
        with pytest.raises(InputError) as caught:
            prepare(frame, out=tmp_path / "data", **words)
        message = str(caught.value)
        assert message.startswith("the frame: column 'extra': has values of no common type (")
        assert "with .astype(str)" in message
    unnamed = frame[["user_id", "timestamp"]].assign(item_id=frame["extra"])
    with pytest.raises(InputError, match="the item;.*; column 'item_id' cannot be read: has"):
        prepare(unnamed)
    assert list(frame.columns) == ["user_id", "item_id", "timestamp", "extra"]


def test_blanks_around_names(tmp_path: Path) -> None:
    """They do not keep a column from being guessed, and a name without them is suggested."""
    frame = small().rename({"user_id": " user_id"})
    assert prepare(frame, out=tmp_path / "data").manifest.columns.user_id == " user_id"
    with pytest.raises(InputError, match="did you mean ' user_id'"):
        prepare(frame, out=tmp_path / "data", user="user_id")


def test_bad_position_columns(tmp_path: Path) -> None:
    table = small(line=["1", "one"], order=[1.0, float("inf")])
    for columns, words in [
        (Columns(position="line"), ["'line'", "data row 2", "'one'"]),
        (Columns(position="order"), ["'order'", "data row 2", "inf"]),
        (Columns(position="lime"), ["no column 'lime'", "did you mean 'line'"]),
        (Columns(position="timestamp"), ["'timestamp'", "both timestamp and position"]),
    ]:
        with pytest.raises(InputError) as caught:
            prepare(table, DataConfig(columns=columns), tmp_path / "out")
        for word in words:
            assert word in str(caught.value)


# --- Bytes ----------------------------------------------------------------------------------------

USERS = [UUID(int=3 * 10**37), UUID(int=4), UUID(int=3 * 10**37)]


def log_of(users: Any, **more: Any) -> pa.Table:
    return pa.table({"user_id": users, "item_id": [5, 6, 7], "timestamp": [1, 2, 3], **more})


def test_uuids_are_text(tmp_path: Path) -> None:
    uuids = log_of(pa.array([user.bytes for user in USERS], pa.uuid()))
    text = log_of(list(map(str, USERS)))
    (tmp_path / "log").mkdir()
    pq.write_table(uuids, tmp_path / "log" / "0.parquet")
    pq.write_table(text, tmp_path / "log" / "1.parquet")
    expected = prepare(text, out=tmp_path / "plain").manifest.log_fingerprint
    sources: list[Any] = [
        tmp_path / "log" / "0.parquet",
        uuids,
        uuids.to_batches()[0],
        uuids.to_pandas(types_mapper=pd.ArrowDtype),
        duckdb.sql(f"from '{tmp_path}/log/0.parquet'"),
    ]
    for source in sources:
        found = prepare(source, out=tmp_path / "data")
        assert found.manifest.log_fingerprint == expected
    assert prepare(tmp_path / "log", out=tmp_path / "data").num_users == 2
    assert id_series(USERS, "users").to_list() == list(map(str, USERS))


def test_bytes_of_utf8_are_text(tmp_path: Path) -> None:
    names, times = ["Zoë", "7", "Zoë"], ["2024-01-02", "2024-01-03", "2024-01-04"]
    table = log_of([name.encode() for name in names], photo=[b"\xff"] * 3)
    table = table.set_column(2, "timestamp", [[time.encode() for time in times]])
    pq.write_table(table, tmp_path / "log.parquet")
    plain = pl.DataFrame({"user_id": names, "item_id": [5, 6, 7], "timestamp": times})
    expected = prepare(plain, out=tmp_path / "plain")
    for source in (tmp_path / "log.parquet", table):
        assert prepare(source, out=tmp_path / "data").fingerprint == expected.fingerprint


def test_other_bytes_are_refused(tmp_path: Path) -> None:
    table = pa.concat_tables(
        [log_of([b"a", b"b", b"c"])] * 400 + [log_of([b"a", b"\xff\xfe", b"c"])]
    )
    table = table.append_column("row", [list(range(1, 1204))])
    pq.write_table(table, tmp_path / "log.parquet")
    message = r"'user_id', data row 1202: bytes that are no text: write them as text: b'.xff.xfe'$"
    with pytest.raises(InputError, match=message):
        prepare(tmp_path / "log.parquet", out=tmp_path / "data")
    found = prepare(tmp_path / "log.parquet", out=tmp_path / "data", where="row <> 1202")
    assert found.user_ids.to_list() == ["a", "b", "c"]
    for user in (USERS[0], UUID(int=4)):  # they may be another's, and zeros are valid UTF-8
        log = log_of([b"a", user.bytes, b"c"])
        for source in (log, log.to_pandas(), pl.DataFrame(log)):
            with pytest.raises(InputError, match=f"row 2: bytes that .*, such as '{user}' for a"):
                prepare(source, out=tmp_path / "data")
    times = log_of([1, 2, 3]).set_column(2, "timestamp", [[b"1", b"2", b"\xff"]])
    with pytest.raises(InputError, match="'timestamp', data row 3: bytes that are no text: write"):
        prepare(times, out=tmp_path / "data")


# --- Paths ----------------------------------------------------------------------------------------


def test_paths_that_are_refused(tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    (tmp_path / "empty" / "_SUCCESS").touch()
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "manifest.json").write_text("{}")
    (tmp_path / "two").mkdir()
    LOG.write_csv(tmp_path / "two" / "a.csv")
    LOG.write_parquet(tmp_path / "two" / "b.parquet")
    (tmp_path / "other").mkdir()
    LOG.write_csv(tmp_path / "other" / "a.csv")
    (tmp_path / "other" / "b.csv").write_text("who,sku,bought_at\n1,2,3\n")
    os.mkfifo(tmp_path / "pipe.csv")
    (tmp_path / "device.csv").symlink_to("/dev/zero")
    cut = gzip.compress(LOG.write_csv().encode())[:-9]
    (tmp_path / "cut.csv.gz").write_bytes(cut)
    with gzip.open(tmp_path / "long.csv.gz", "wb", compresslevel=1) as file:
        file.write(b"user,item,time\n1,2,3\n" + b"a" * (40 << 20))
    for name, says in (
        ("gone.csv", "no such file or folder"),
        ("gone-*.csv", "no file matches the pattern"),
        ("empty", "the folder has no files to read (.csv, .tsv, .txt, .dat, .inter"),
        ("data", "has a manifest.json: a prepared dataset is not a log"),
        ("two", "has CSV and Parquet (a.csv, b.parquet): name the files of one kind, as in"),
        ("other/b.csv", "cannot tell which column is the user"),
        ("other", "b.csv: no column 'customer_id', which other files of"),
        ("pipe.csv", "is a pipe or device"),
        ("device.csv", "is a pipe or device"),
        ("cut.csv.gz", "cannot be read as CSV: "),
        ("long.csv.gz", "has a line of more than"),
    ):
        with pytest.raises(InputError) as caught:
            prepare(f"{tmp_path}/{name}", out=tmp_path / "out")
        assert str(caught.value).startswith(f"{tmp_path / name}")
        assert says in str(caught.value)
        assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("encoding", ["latin-1", "cp1252", "cp1250", "shift_jis"])
def test_another_encoding(encoding: str, tmp_path: Path) -> None:
    """Of the log, its item table and what is appended; UTF-8 is read as it is all the same."""
    log = pl.concat([LOG.with_columns(sku=pl.lit("§5")), LOG])
    items = pl.DataFrame({"item_id": log["sku"].unique(), "name": "§"})
    (tmp_path / "items.csv").write_bytes(items.write_csv().encode(encoding))
    for name, written in (
        ("log.csv", log.write_csv().encode(encoding)),
        ("log.csv.gz", gzip.compress(log.write_csv().encode(encoding))),
        ("utf-8.csv", log.write_csv().encode()),
    ):
        (tmp_path / name).write_bytes(written)
        found = prepare(
            tmp_path / name, out=tmp_path / "a", items=tmp_path / "items.csv", encoding=encoding
        )
        assert "§5" in found.item_table["item_id"]
        assert set(found.item_table["name"]) == {"§"}
    day = LOG.with_columns(pl.col("bought_at") + 99, sku=pl.lit("§6"))
    (tmp_path / "day.csv").write_bytes(day.write_csv().encode(encoding))
    assert "§6" in append(tmp_path / "day.csv", tmp_path / "a").item_table["item_id"]
    plain = prepare(LOG, out=tmp_path / "plain")
    with pytest.raises(InputError, match="in line 2"):
        append(tmp_path / "day.csv", tmp_path / "plain")
    grown = append(tmp_path / "day.csv", tmp_path / "plain", encoding=encoding)
    assert grown.config == plain.config


def test_two_columns_of_one_name_in_parquet(tmp_path: Path) -> None:
    path = tmp_path / "log.parquet"
    pq.write_table(pa.table([[1], [2]], names=["user_id", "user_id"]), path)
    with pytest.raises(InputError) as caught:
        read_table(path)
    assert str(caught.value) == f"{path}: two columns are named 'user_id'"
    with pytest.raises(InputError, match=r"^the frame: two columns are named ''$"):
        read_table(pd.DataFrame([[0, 0, 1]], columns=["", "", "user_id"]))
