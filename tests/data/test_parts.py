"""Files of one log whose columns differ are one table; what is needed decides what is refused."""

from __future__ import annotations

import json
from datetime import date, datetime
from pathlib import Path
from typing import Any

import polars as pl
import pytest

from recsys.config import Columns
from recsys.data.prepared import PreparedDataset, prepare
from recsys.data.tables import open_table, read_table
from recsys.errors import InputError

NAMES = Columns(user_id="user_id", item_id="item_id", timestamp="timestamp")
LARGE = 2**60 + 1
"""An integer that no float of 64 bits is."""


def rows(start: int = 0, **columns: Any) -> pl.DataFrame:
    """Return three interactions, with other or further columns."""
    log = {"user_id": [1, 1, 2], "item_id": [5, 6, 5], "timestamp": range(start, start + 3)}
    return pl.DataFrame(log).with_columns(**{name: pl.Series(v) for name, v in columns.items()})


def write(folder: Path, *parts: pl.DataFrame) -> Path:
    folder.mkdir()
    for number, part in enumerate(parts):
        part.write_parquet(folder / f"{number}.parquet")
    return folder


def write_lines(folder: Path, *parts: list[dict[str, Any]]) -> Path:
    folder.mkdir()
    for number, part in enumerate(parts):
        text = "".join(json.dumps(row) + "\n" for row in part)
        (folder / f"{number}.jsonl").write_text(text, encoding="utf-8")
    return folder


def prepared(source: Path, out: Path, **words: Any) -> PreparedDataset:
    return prepare(source, out=out, **words)


PARTS: dict[str, list[pl.DataFrame]] = {
    "a new column": [rows(), rows(3, coupon=["A", "B", "C"])],
    "a column that ends": [rows(price=[1, 2, 3]), rows(3)],
    "another type of an unneeded column": [rows(price=[1, 2, 3]), rows(3, price=[1.5, 2, 3])],
    "types of an unneeded column without a common one": [
        rows(tags=[["a"], [], []]),
        rows(3, tags=[1, 2, 3]),
    ],
    "floats of ids": [rows(), rows(3, user_id=[1.0, 1.0, 2.0])],
    "smaller integers": [rows(), rows(3).cast(pl.Int16)],
    "another order of columns": [rows(), rows(3).select("timestamp", "user_id", "item_id")],
    "an empty part without types": [rows(), rows(3), rows().head(0).cast(pl.Null)],
}


@pytest.mark.parametrize("columns", [None, NAMES], ids=["guessed", "named"])
@pytest.mark.parametrize("parts", PARTS.values(), ids=PARTS)
def test_only_needed_columns_matter(
    parts: list[pl.DataFrame], columns: Columns | None, tmp_path: Path
) -> None:
    named = {} if columns is None else {"user": "user_id", "item": "item_id", "time": "timestamp"}
    plain = prepare(pl.concat([rows(), rows(3)]), out=tmp_path / "plain")
    found = prepared(write(tmp_path / "log", *parts), tmp_path / "data", **named)
    assert found.fingerprint == plain.fingerprint
    assert found.manifest.log_fingerprint == plain.manifest.log_fingerprint


def test_a_needed_column_that_a_part_lacks(tmp_path: Path) -> None:
    log = write(tmp_path / "log", rows(price=[1, 2, 3]), rows(3), rows(6).drop("item_id"))
    with pytest.raises(InputError) as caught:
        prepared(log, tmp_path / "data")
    assert str(caught.value) == (
        f"{log}/2.parquet: no column 'item_id', which other files of {log} have: add it to the "
        "file, or leave the file out"
    )
    log = write(tmp_path / "prices", rows(price=[1, 2, 3]), rows(3))
    for words in ({"keep": ["price"]}, {"where": "price > 1"}):
        with pytest.raises(InputError, match=r"1\.parquet: no column 'price', which other files"):
            prepared(log, tmp_path / "data", **words)


def test_types_of_which_only_some_fit(tmp_path: Path) -> None:
    lists: list[list[Any]] = [[[]], [[1]], [[{"a": 1}]]]
    kinds = [pl.List(pl.Null), None, None]
    parts = [
        rows().head(1).with_columns(x=pl.Series(values, dtype=kind))
        for values, kind in zip(lists, kinds, strict=True)
    ]
    log = write(tmp_path / "log", *parts)
    with pytest.raises(InputError, match=r"is BIGINT\[\] in .*1\.parquet and is STRUCT"):
        read_table(log, ["x"])
    assert read_table(log).columns == ["user_id", "item_id", "timestamp"]


def test_a_needed_column_of_types_without_a_common_one(tmp_path: Path) -> None:
    log = write(tmp_path / "log", *PARTS["types of an unneeded column without a common one"])
    with pytest.raises(InputError) as caught:
        prepare(log, out=tmp_path / "data", keep=["tags"])
    assert str(caught.value) == (
        f"{log}: column 'tags': is VARCHAR[] in {log}/0.parquet and is BIGINT in "
        f"{log}/1.parquet: give it the same type in all files"
    )


@pytest.mark.parametrize(
    ("first", "second", "found"),
    [
        ([LARGE], [2.0, None], [LARGE, 2, None]),
        ([LARGE], [2.0, float("nan")], [LARGE, 2, None]),
        ([1], [2.5, 3.0], [1.0, 2.5, 3.0]),
        ([1], ["85123A"], ["1", "85123A"]),
        ([1.0], ["85123A"], ["1", "85123A"]),
        ([1.5], ["85123A"], ["1.5", "85123A"]),
        (pl.Series([2**63], dtype=pl.UInt64), [1], [2**63, 1]),
        (
            [date(2024, 1, 5)],
            [datetime(2024, 1, 6, 7)],
            [datetime(2024, 1, 5), datetime(2024, 1, 6, 7)],
        ),
        (pl.Series(["a"], dtype=pl.Categorical), ["b"], ["a", "b"]),
        ([[1]], [["a"]], [["1"], ["a"]]),
        (pl.Series([None], dtype=pl.Null), ["b"], [None, "b"]),
        (
            pl.Series([datetime(2024, 7, 1, 12)]).dt.replace_time_zone("Europe/Berlin"),
            [datetime(2024, 7, 1, 12)],
            [datetime(2024, 7, 1, 10), datetime(2024, 7, 1, 12)],
        ),
    ],
)
def test_types_of_parts(first: Any, second: Any, found: list[Any], tmp_path: Path) -> None:
    log = write(tmp_path / "log", pl.DataFrame({"x": first}), pl.DataFrame({"x": second}))
    table = read_table(log)
    assert table["x"].to_list() == found


def test_a_folder_that_holds_a_column_has_one_type(tmp_path: Path) -> None:
    for shop, part in (("1", rows()), ("x", rows(3, coupon=["A", "B", "C"]))):
        (tmp_path / "log" / f"shop={shop}").mkdir(parents=True)
        part.write_parquet(tmp_path / "log" / f"shop={shop}" / "part.parquet")
    assert read_table(tmp_path / "log", ["shop"])["shop"].to_list() == ["1"] * 3 + ["x"] * 3


def test_json_is_read_as_the_same_csv(tmp_path: Path) -> None:
    first = [{"user_id": 1, "item_id": 71053, "timestamp": t} for t in range(3)]
    second = [{"user_id": 1, "item_id": "85123A", "timestamp": t} for t in range(3, 6)]
    log = write_lines(tmp_path / "log", first, [], second)
    text = tmp_path / "log.csv"
    pl.concat([pl.DataFrame(first).cast({"item_id": pl.String}), pl.DataFrame(second)]).write_csv(
        text
    )
    found = prepared(log, tmp_path / "data")
    assert found.fingerprint == prepare(text, out=tmp_path / "csv").fingerprint


def test_a_field_of_json_that_is_left_out_is_null(tmp_path: Path) -> None:
    row = {"user_id": 1, "item_id": 2, "timestamp": 3}
    log = write_lines(tmp_path / "log", [row, row], [{**row, "coupon": "A"}])
    assert read_table(log, ["coupon"])["coupon"].to_list() == [None, None, "A"]
    bad = write_lines(tmp_path / "bad", [row], [{"user_id": 1, "timestamp": 3}])
    with pytest.raises(InputError, match="'item_id', data row 2: an id is missing"):
        prepare(bad, out=tmp_path / "data")


def test_text_with_a_new_column(tmp_path: Path) -> None:
    (tmp_path / "log").mkdir()
    rows().write_csv(tmp_path / "log" / "0.csv")
    rows(3, coupon=["A", "B", "C"]).write_csv(tmp_path / "log" / "1.csv")
    plain = prepare(pl.concat([rows(), rows(3)]), out=tmp_path / "plain")
    assert prepared(tmp_path / "log", tmp_path / "data").fingerprint == plain.fingerprint


def test_a_path_is_no_pattern(tmp_path: Path) -> None:
    row = {"user_id": 1, "item_id": 2, "timestamp": 3}
    assert len(read_table(write_lines(tmp_path / "a [1]*", [row], [row, row]))) == 3
    assert len(read_table(write(tmp_path / "b [1]*", rows(), rows(x=[1, 2, 3])))) == 6


def test_a_damaged_part_is_named(tmp_path: Path) -> None:
    log = write(tmp_path / "log", rows(), rows(3))
    (log / "1.parquet").write_bytes(b"PAR1")
    with pytest.raises(InputError, match=r"1\.parquet: cannot be read as Parquet"):
        prepare(log, out=tmp_path / "data")


@pytest.mark.parametrize(
    ("mark", "words"),
    [
        ("_delta_log/0.json", ["is a Delta table", "DeltaTable(path).to_pyarrow_table()"]),
        (".hoodie/hoodie.properties", ["is a Hudi table", "spark.read.format('hudi')"]),
        ("metadata/v1.metadata.json", ["is an Iceberg table", "scan().to_arrow()"]),
    ],
)
def test_a_table_with_a_log_of_its_own(mark: str, words: list[str], tmp_path: Path) -> None:
    """Its removed and rewritten files are no rows of it."""
    table = write(tmp_path / "table", rows())
    (table / "day=1").mkdir()
    rows().write_parquet(table / "day=1" / "0.parquet")
    (table / mark).parent.mkdir()
    (table / mark).write_text("{}", encoding="utf-8")
    for source in (table, table / "day=1", f"{table}/*.parquet", f"{table}/day=*", tmp_path):
        with pytest.raises(InputError) as caught:
            open_table(source)
        for word in [f"{table}: ", *words, "pass the frame"]:
            assert word in str(caught.value)
    assert len(open_table(table / "0.parquet").read()) == 3
