"""Logs as frames, as typed files and in several files: read to the same rows, or refused."""

from __future__ import annotations

import contextlib
import gzip
import json
import os
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any
from uuid import UUID

import duckdb
import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa  # type: ignore[import-untyped]
import pyarrow.dataset  # type: ignore[import-untyped]
import pyarrow.parquet as pq  # type: ignore[import-untyped]
import pytest

from recsys.config.data import Columns, DataConfig
from recsys.data.appending import append
from recsys.data.log import KEPT, read_log, settle
from recsys.data.prepared import prepare
from recsys.data.tables import open_table, read_table
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


def arrow(kind: pa.DataType) -> pa.Table:
    values = LOG.to_arrow()["sku"].cast(pa.string()).cast(kind)
    return LOG.to_arrow().set_column(1, "sku", values)


FRAMES: dict[str, Callable[[], Any]] = {
    "pandas": LOG.to_pandas,
    "pandas with Arrow types": lambda: LOG.to_pandas(use_pyarrow_extension_array=True),
    "pandas with categories": lambda: LOG.to_pandas().astype({"sku": "category"}),
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
    "polars with spans of time": lambda: LOG.with_columns(extra=pl.lit(timedelta(1))),
    "Arrow": LOG.to_arrow,
    "Arrow with bytes for text": lambda: arrow(pa.binary()),
    "Arrow with dictionaries": lambda: arrow(pa.dictionary(pa.int32(), pa.string())),
    "Arrow dataset": lambda: pa.dataset.dataset(LOG.to_arrow()),
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
    "source",
    [
        *["logs", "logs/*/part-*.parquet", "logs/region=*", "times", "day-*.csv", "dated.parquet"],
        *["bytes.parquet", "widths", "a [1]*", "dictionaries", "lines"],
    ],
)
def test_files(source: str, fingerprint: str, tmp_path: Path) -> None:
    """Two rows a file beside what Spark leaves; times as folders; columns in another order."""
    (tmp_path / "logs").mkdir()
    (tmp_path / "logs" / "_SUCCESS").touch()
    (tmp_path / "logs" / "._SUCCESS.crc").touch()
    more = [LOG[2:4].with_columns(bought_at=pl.col("bought_at").cast(pl.Int32))]
    folders = {
        "widths": [LOG[:2], *more, LOG[4:]],
        "a [1]*": [LOG[:4].with_columns(price=1), LOG[4:].with_columns(price=1.5)],
        "dictionaries": [LOG[:3].cast({"sku": pl.Categorical}), LOG[3:].with_columns(x=None)],
    }
    for folder, parts in folders.items():
        (tmp_path / folder).mkdir()
        for number, part in enumerate(parts):
            part.write_parquet(tmp_path / folder / f"{number}.parquet")
    (tmp_path / "lines").mkdir()
    for number, part in enumerate((LOG[:2], LOG[:0], LOG[2:].with_columns(coupon=pl.lit("A")))):
        file = tmp_path / "lines" / f"{number}.jsonl{'' if number else '.gz'}"
        part.write_ndjson(file, compression="uncompressed" if number else "gzip")
    for number in range(3):
        file = tmp_path / "logs" / f"region={number}" / f"part-{number}.parquet"
        file.parent.mkdir()
        LOG[2 * number : 2 * number + 2].write_parquet(file)
    for number, (user, item, time) in enumerate(ROWS):
        file = tmp_path / "times" / f"bought_at={time}" / f"{number}.parquet"
        file.parent.mkdir(parents=True, exist_ok=True)
        pl.DataFrame({"customer_id": [user], "sku": [item]}).write_parquet(file)
    LOG[:4].write_csv(tmp_path / "day-1.csv")
    LOG[4:].select(NAMES[::-1]).with_columns(x=1).write_csv(tmp_path / "day-2.csv")
    DATED.write_parquet(tmp_path / "dated.parquet")
    pq.write_table(arrow(pa.binary()), tmp_path / "bytes.parquet")
    found = prepare(f"{tmp_path}/{source}", out=tmp_path / "data")
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
        ["'user_id', data row 2", "float of 2**53"],
    ),
    "short floats": (
        small(item_id=pl.Series([1, 2], dtype=pl.Float32)),
        ["'item_id': ids must be integers or text, not FLOAT"],
    ),
    "64 bits without a sign": (
        small(item_id=pl.Series([1, 2**64 - 1], dtype=pl.UInt64)),
        ["'item_id', data row 2: an integer of more than 64 bits"],
    ),
    "no number": (small(timestamp=[1.0, float("nan")]), ["'timestamp'", "row 2", "missing", "nan"]),
    "no time": (small(timestamp=[None, 3]), ["'timestamp'", "data row 1", "missing"]),
    "no rows": (small().head(0), ["no rows"]),
    "no item": (small().drop("item_id"), ["which column is the item", "--item", "Python item="]),
    "bytes": (small(user_id=[b"\xff", b"a"]), ["cannot be read"]),
    "an integer beside text and nothing": (objects(1, "x", None), ["'user_id', data row 3"]),
    "a name twice": (
        pd.DataFrame([[1, 2, 3, 4]], columns=["user_id", "item_id", "timestamp", "item_id"]),
        ["two columns are named 'item_id'"],
    ),
    "the time as index": (
        small().to_pandas().set_index("timestamp"),
        ["which column is the time;"],
    ),
    "a number": (17, ["cannot be read"]),
    "no column": (pl.DataFrame(), ["has no columns"]),
    "no column of pandas": (pd.DataFrame(), ["has no columns"]),
    "floats of 16 bits": (
        pa.table({"user_id": [1], "x": pa.array([np.float16(1)], pa.float16())}),
        ["cannot be read"],
    ),
    "decimals of 256 bits": (
        pa.table({"user_id": [1], "x": pa.array([Decimal(1)], pa.decimal256(50, 0))}),
        ["cannot be read"],
    ),
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
    "objects of pandas": (pd.Series([LARGE, 7], dtype=object), [7, LARGE]),
    "an integer beside a float": (pd.Series([LARGE, 1.5], dtype=object), ["1.5", str(LARGE)]),
    "text beside whole floats": (pd.Series([71053, 71053.0, "7a"], dtype=object), ["71053", "7a"]),
    "t and f": (pl.Series(["t", "f"]), ["f", "t"]),
    "leading zeros": (pl.Series(["007", "12"]), ["007", "12"]),
    "floats of pandas as text": (pl.Series(["7.0", "07.0", "12"]), [7, 12]),
    "floats beside codes": (pl.Series(["007", "7.0"]), ["007", "7.0"]),
    "text of digits": (pl.Series(["7", "12"]), ["12", "7"]),
    "blanks of Unicode": (pl.Series(["\u2003a\t", "\u00a0b\u3000"]), ["a", "b"]),
    "decimals": (pa.array([7, 8]).cast(pa.decimal128(20, 0)), [7, 8]),
    "UUIDs": (pl.Series([UUID(int=5), UUID(int=6)]), [str(UUID(int=5)), str(UUID(int=6))]),
    "UUIDs of pandas": (pd.Series([UUID(int=5)]), [str(UUID(int=5))]),
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


RAW: dict[str, tuple[str, str, str | None, list[Any]]] = {
    "decimals of dates": ("timestamp", "(20240105 + n)::decimal(8, 0)", None, [0, 1, 2]),
    "decimals of nanoseconds": (
        "timestamp",
        "(1700000000000000010 - n)::decimal(19, 0)",
        None,
        [2, 1, 0],
    ),
    "decimals as ids": (
        "item_id",
        "(9007199254740993 + n)::decimal(18, 0)",
        None,
        [9007199254740993, 9007199254740994, 9007199254740995],
    ),
    "a decimal beside text": ("x", "(8.90 + n)::decimal(5, 2)", "x = '9.90'", [1]),
    "a decimal is exact": ("x", "(0.1 * n)::decimal(5, 2)", "x * 3 = 0.3", [1]),
    "above 64 bits": ("x", "(18446744073709551613 + n)::ubigint", "x > 5", [0, 1, 2]),
    "zoned nanoseconds": ("timestamp", "to_timestamp(n)::timestamptz_ns", None, [0, 1, 2]),
    "not a number": ("x", "if(n = 0, 'nan'::double, n)", "x > 1", [2]),
    "a moment of a zone": (
        "timestamp",
        "timestamptz '2024-01-01 09:00:00+00' + interval 1 hour * n",
        "timestamp >= '2024-01-01 10:00:00+00'",
        [1, 2],
    ),
}


@pytest.mark.parametrize(("column", "sql", "where", "items"), RAW.values(), ids=RAW)
def test_types_of_frames_are_exact(
    column: str, sql: str, where: str | None, items: list[Any]
) -> None:
    values = {"user_id": "1", "item_id": "n", "timestamp": "n", column: sql}
    chosen = ", ".join(f"{value} as {name}" for name, value in values.items())
    frame: Any = duckdb.sql(f"select {chosen} from range(3) r(n)")  # noqa: S608
    table = open_table(frame)
    columns, config = settle(table, DataConfig(where=where))
    assert read_log(table, config, columns).table()["item_id"].to_list() == items
    assert config.time_format == ("%Y%m%d" if "20240105" in sql else None)


@pytest.mark.parametrize(
    ("values", "kept"),
    [
        (["4.0", "5.0"], ["4.0", "5.0"]),
        (["4", "NULL"], [4, None]),
        (pl.Series([datetime(2024, 1, 1, tzinfo=UTC)] * 2), ["2024-01-01 00:00:00+00"] * 2),
        (pl.Series([Decimal(4), Decimal(5)]), [4.0, 5.0]),
    ],
    ids=str,
)
def test_kept_columns(values: Any, kept: list[Any], tmp_path: Path) -> None:
    """Text of a file is integers if all of it is plain ones or missing."""
    source: Any = small(x=values)
    if isinstance(values, list):
        source.write_csv(source := tmp_path / "log.csv")
    table = open_table(source)
    config = DataConfig(keep=("x",))
    assert read_log(table, config, Columns()).table()[f"{KEPT}x"].to_list() == kept


def test_uuids_of_a_parquet_file_are_text(tmp_path: Path) -> None:
    users = [UUID(int=3 * 10**37), UUID(int=4)]
    uuids = pa.array([user.bytes for user in users], pa.uuid())
    pq.write_table(
        pa.table({"user_id": uuids, "item_id": [5, 6], "timestamp": [1, 2]}), tmp_path / "a.parquet"
    )
    data = prepare(tmp_path / "a.parquet", out=tmp_path / "data")
    assert data.user_ids.to_list() == sorted(map(str, users))
    assert id_series(users, "users").to_list() == list(map(str, users))


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


# --- Paths ----------------------------------------------------------------------------------------


def test_paths_that_are_refused(tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    (tmp_path / "empty" / "_SUCCESS").touch()
    (tmp_path / "two").mkdir()
    LOG.write_csv(tmp_path / "two" / "a.csv")
    LOG.write_parquet(tmp_path / "two" / "b.parquet")
    (tmp_path / "other").mkdir()
    LOG.write_csv(tmp_path / "other" / "a.csv")
    (tmp_path / "other" / "b.csv").write_text("who,sku,bought_at\n1,2,3\n")
    twice = pa.table([[1], [2]], names=["user_id", "user_id"])
    pq.write_table(twice, tmp_path / "twice.parquet")
    os.mkfifo(tmp_path / "pipe.csv")
    (tmp_path / "device.csv").symlink_to("/dev/zero")
    cut = gzip.compress(LOG.write_csv().encode())[:-9]
    (tmp_path / "cut.csv.gz").write_bytes(cut)
    (tmp_path / "damaged").mkdir()
    LOG.write_parquet(tmp_path / "damaged" / "0.parquet")
    (tmp_path / "damaged" / "1.parquet").write_bytes(b"PAR1")
    prepare(LOG, out=tmp_path / "prepared")
    for name, says in (
        ("gone.csv", "no such file or folder"),
        ("gone-*.csv", "no file to read is there (.csv, .tsv, .inter"),
        ("empty", "no file to read is there"),
        ("two", "has CSV and Parquet (a.csv, b.parquet): name the files of one kind, as in"),
        ("other/b.csv", "cannot tell which column is the user"),
        ("other", "b.csv: no column 'customer_id', which other files of"),
        ("pipe.csv", "no such file or folder"),
        ("device.csv", "no such file or folder"),
        ("cut.csv.gz", "cannot be read as CSV: "),
        ("damaged", "1.parquet: cannot be read as Parquet"),
        ("twice.parquet", "two columns are named 'user_id'"),
        ("prepared", "has a manifest.json: a prepared dataset is not a log"),
    ):
        with pytest.raises(InputError) as caught:
            prepare(f"{tmp_path}/{name}", out=tmp_path / "out")
        assert str(caught.value).startswith(f"{tmp_path / name}")
        assert says in str(caught.value)
        assert not (tmp_path / "out").exists()


def test_damaged_parquet(tmp_path: Path) -> None:
    """A file cut anywhere, or with any byte flipped, is read completely or refused in one line."""
    path = tmp_path / "log.parquet"
    LOG.write_parquet(path)
    content = path.read_bytes()
    for length in range(1, len(content), 97):
        path.write_bytes(content[:length])
        with pytest.raises(InputError, match=f"{path}: cannot be read as Parquet"):
            prepare(path, out=tmp_path / "out")
    for index in range(0, len(content), 61):
        path.write_bytes(content[:index] + bytes([content[index] ^ 0xFF]) + content[index + 1 :])
        with contextlib.suppress(InputError):  # no other exception
            open_table(path).read()


@pytest.mark.parametrize("encoding", ["latin-1", "cp1250", "shift_jis"])
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
    (tmp_path / "lines.csv").write_bytes('a,b\r\n"é\r\nx",1\r\n'.encode())
    assert read_table(tmp_path / "lines.csv", encoding=encoding)["a"].to_list() == ["é\r\nx"]
    plain = prepare(LOG, out=tmp_path / "plain")
    with pytest.raises(InputError, match="in line 2"):
        append(tmp_path / "day.csv", tmp_path / "plain")
    grown = append(tmp_path / "day.csv", tmp_path / "plain", encoding=encoding)
    assert grown.config == plain.config


# --- Several files --------------------------------------------------------------------------------


def write(folder: Path, *parts: pl.DataFrame) -> Path:
    folder.mkdir()
    for number, part in enumerate(parts):
        part.write_parquet(folder / f"{number}.parquet")
    return folder


def test_a_needed_column_that_a_file_lacks(tmp_path: Path) -> None:
    log = write(tmp_path / "log", small(price=[1, 2]), small(), small().drop("item_id"))
    with pytest.raises(InputError) as caught:
        prepare(log, out=tmp_path / "data")
    assert str(caught.value) == (
        f"{log}/2.parquet: no column 'item_id', which other files of {log} have"
    )
    log = write(tmp_path / "prices", small(price=[1, 2]), small())
    for words in ({"keep": ["price"]}, {"where": "price > 1"}):
        with pytest.raises(InputError, match=r"1\.parquet: no column 'price', which other files"):
            prepare(log, out=tmp_path / "data", **words)


@pytest.mark.parametrize("values", [[1.5, 2.0], ["a", "b"], [[1], []], [datetime(2024, 1, 1)] * 2])
def test_a_needed_column_of_several_types(values: list[Any], tmp_path: Path) -> None:
    log = write(tmp_path / "log", small(x=[1, 2]), small(x=values))
    assert prepare(log, out=tmp_path / "data").manifest.counts["interactions"] == 4
    for words in ({"keep": ["x"]}, {"where": "x is not null"}):
        with pytest.raises(InputError) as caught:
            prepare(log, out=tmp_path / "data", **words)
        assert f"column 'x': is integers in {log}/0.parquet and " in str(caught.value)
        assert "give it the same type in all files" in str(caught.value)


def test_json_lines(tmp_path: Path) -> None:
    row = {"user_id": "007", "item_id": LARGE, "timestamp": 3}
    more = {"user_id": 7, "item_id": 1, "timestamp": 2.5, "coupon": "A", "tags": ["x", "y"]}
    log = tmp_path / "log.jsonl"
    log.write_text(f"{json.dumps(row)}\n{json.dumps(more)}\n")
    table = read_table(log)
    assert table["user_id"].to_list() == ["007", "7"]
    assert table["item_id"].to_list() == [LARGE, 1]
    assert table["timestamp"].to_list() == [3.0, 2.5]
    assert table["coupon"].to_list() == [None, "A"]
    assert table["tags"].to_list() == [None, ["x", "y"]]


def test_a_folder_is_no_column_that_the_files_have(tmp_path: Path) -> None:
    for number in range(2):
        folder = tmp_path / "user_id=7" / f"day={number}"
        folder.mkdir(parents=True)
        small().write_parquet(folder / "0.parquet")
    table = open_table(tmp_path / "user_id=7").read()
    assert table["user_id"].to_list() == [*small()["user_id"]] * 2


@pytest.mark.parametrize(
    ("mark", "kind"),
    [
        ("_delta_log/0.json", "Delta"),
        (".hoodie/hoodie.properties", "Hudi"),
        ("metadata/v1.metadata.json", "Iceberg"),
    ],
)
def test_a_table_with_a_log_of_its_own(mark: str, kind: str, tmp_path: Path) -> None:
    """Its removed and rewritten files are no rows of it."""
    table = write(tmp_path / "table", small())
    (table / "day=1").mkdir()
    small().write_parquet(table / "day=1" / "0.parquet")
    (table / mark).parent.mkdir()
    (table / mark).write_text("{}", encoding="utf-8")
    for source in (table, table / "day=1", f"{table}/*.parquet", f"{table}/day=*", tmp_path):
        with pytest.raises(InputError, match=f"{table}: is a table of {kind}"):
            open_table(source)
    assert len(open_table(table / "0.parquet").read()) == 2
