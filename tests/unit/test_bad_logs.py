"""Invalid logs: each has a clear one-line message, and nothing is written."""

from __future__ import annotations

import contextlib
import os
import tempfile
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import pandas as pd
import polars as pl
import pytest

from recsys.config import Columns, DataConfig
from recsys.data.prepared import prepare
from recsys.errors import InputError
from tests.read_logs import read_plain

GOOD = "user_id,item_id,timestamp\n1,1,1\n1,2,2\n1,3,3\n"


def refused(source: Any, out: Path, config: DataConfig | None = None) -> str:
    """Return the message with which `prepare` refuses a source."""
    before = sorted(out.parent.rglob("*"))
    with pytest.raises(InputError) as caught:
        prepare(source, config, out)
    assert sorted(out.parent.rglob("*")) == before, "something was written"
    message = str(caught.value)
    assert "\n" not in message
    return message


@pytest.mark.parametrize(
    ("name", "text", "words"),
    [
        ("a.csv", "who,item_id,timestamp\n1,1,1\n", ["which column is the user", "--user"]),
        ("a.csv", "id;item\n1;2\n", ["the user; which column is the time", "id, item: name"]),
        ("a.jsonl", '{"user_id":1,"item_id":1}\n', ["is the time", "order of time", "--time"]),
        ("a.csv", GOOD + "2,,4\n", ["'item_id'", "data row 4", "missing"]),
        ("a.csv", GOOD + "2,5\n", ["line 5: expected number of columns: 3 found: 2"]),
        ("a.csv", GOOD + "\n,5,1\n", ["'user_id'", "data row 4", "missing"]),
        ("a.jsonl", '{"user_id":"","item_id":1,"timestamp":1}\n', ["'user_id'", "data row 1"]),
        ("a.csv", GOOD + "2,1,soon\n", ["'timestamp'", "data row 4", "'soon'", "ISO 8601"]),
        ("a.csv", GOOD + "2,1,2024-01-05\n", ["'timestamp'", "data row 4", "'2024-01-05'"]),
        ("a.tsv", "user_id\titem_id\ttimestamp\n1\t1\t2024-02-30\n", ["row 1", "'2024-02-30'"]),
        ("a.csv", "user_id,item_id,timestamp\n1,1,01/02/2024\n", ["row 1", "'01/02/2024'"]),
        ("a.csv", GOOD + "2,1,nan\n", ["'timestamp'", "data row 4", "missing"]),
        ("a.csv", GOOD + "2,1,-inf\n", ["'timestamp'", "data row 4", "finite", "-inf"]),
        ("a.csv", GOOD + "2,1,1e300\n", ["'timestamp'", "data row 4", "64 bits"]),
        ("a.csv", "", ["the file is empty"]),
        ("a.csv", "user_id,item_id,timestamp\n", ["no rows"]),
        ("a.csv", "user_id,item_id,timestamp\n\n\n", ["no rows"]),
        ("a.csv", "user_id,item_id,timestamp,item_id\n1,2,3,4\n", ["two columns", "'item_id'"]),
        ("a.csv", GOOD + "1,2,3,4,5\n", ["as CSV: line 5: expected number of columns: 3 found: 4"]),
        ("a.jsonl", '{"user_id": 1, "item_id"\n', ["cannot be read as JSON lines"]),
        ("a.parquet", "not Parquet at all", ["cannot be read as Parquet"]),
        ("a.xls5", "x", ["unknown extension '.xls5'", ".csv", ".parquet"]),
    ],
)
def test_bad_files(name: str, text: str, words: list[str], tmp_path: Path) -> None:
    path = tmp_path / name
    path.write_text(text)
    message = refused(path, tmp_path / "out")
    for word in [str(path), *words]:
        assert word in message


def test_bad_bytes(tmp_path: Path) -> None:
    path = tmp_path / "a.csv"
    path.write_bytes(GOOD.encode() + b"\xff\xfe,2,3\n")
    message = refused(path, tmp_path / "out")
    assert "a.csv: is neither UTF-8 nor UTF-16 text, in line 5" in message


@pytest.mark.parametrize(
    ("source", "rule"),
    [
        ("gone.csv", "no such file or folder"),
        ("empty", "the folder has no files to read (.csv, .tsv, .txt, .dat, .inter"),
        ("gone-*.csv", "no file matches the pattern"),
    ],
)
def test_no_such_file(source: str, rule: str, tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    (tmp_path / "empty" / "_SUCCESS").touch()
    message = refused(str(tmp_path / source), tmp_path / "out")
    assert message.startswith(f"{tmp_path / source}: {rule}")


def test_damaged_parquet(tmp_path: Path) -> None:
    """A file cut anywhere, or with any byte flipped, is read completely or refused in one line."""
    path = tmp_path / "log.parquet"
    table = pl.DataFrame({"user_id": range(50), "item_id": range(50), "timestamp": range(50)})
    table.write_parquet(path)
    content = path.read_bytes()
    for length in range(1, len(content), 97):
        path.write_bytes(content[:length])
        assert f"{path}: cannot be read as Parquet" in refused(path, tmp_path / "out")
    for index in range(0, len(content), 61):
        damaged = bytearray(content)
        damaged[index] ^= 0xFF
        path.write_bytes(damaged)
        with contextlib.suppress(InputError):  # no other exception
            read_plain(path)


def frame(**columns: Any) -> pl.DataFrame:
    good = {"user_id": [1, 1], "item_id": [1, 2], "timestamp": [1, 2]}
    return pl.DataFrame({**good, **columns})


TWO_WAYS = pl.DataFrame(
    {"user_id": [1, 1, 1], "item_id": ["7", "7.0", "C"], "timestamp": [1, 2, 3]}
)


@pytest.mark.parametrize(
    ("table", "words"),
    [
        (frame(user_id=[1.0, 2.5]), ["'user_id'", "integers or text, not DOUBLE"]),
        (frame(user_id=[1.0, 2.0**53]), ["'user_id', data row 2", "float of 2**53", "at their"]),
        (TWO_WAYS, ["'item_id'", "has both '7' and '7.0'", "write it in one way"]),
        (frame(item_id=[True, False]), ["'item_id'", "integers or text, not BOOLEAN"]),
        (frame(item_id=pl.Series([1, 2**64 - 1], dtype=pl.UInt64)), ["'item_id'", "row 2"]),
        (frame(timestamp=[1.0, float("nan")]), ["'timestamp'", "data row 2", "finite", "nan"]),
        (frame(timestamp=[None, 3]), ["'timestamp'", "data row 1", "missing"]),
        (frame(timestamp=[timedelta(1), timedelta(2)]), ["'timestamp'", "spans of time"]),
        (frame().head(0), ["no rows"]),
        (frame().drop("item_id"), ["which column is the item", "--item", "in Python item="]),
        (pd.DataFrame([[1, 2, 3, 4]], columns=["user_id", "item_id", "timestamp", "item_id"]), []),
        (pd.DataFrame({"user_id": [1, "x", None], "item_id": 1, "timestamp": 1}), []),
        ({"user_id": [1]}, ["cannot be read"]),
        (17, ["cannot be read"]),
    ],
)
def test_bad_frames(table: Any, words: list[str], tmp_path: Path) -> None:
    message = refused(table, tmp_path / "out")
    for word in ["the frame", *words]:
        assert word in message


def test_bad_position_columns(tmp_path: Path) -> None:
    table = frame(line=["1", "one"], order=[1.0, float("inf")])
    for columns, words in [
        (Columns(position="line"), ["'line'", "data row 2", "'one'"]),
        (Columns(position="order"), ["'order'", "data row 2", "inf"]),
        (Columns(position="lime"), ["no column 'lime'", "did you mean 'line'"]),
        (Columns(position="timestamp"), ["'timestamp'", "both timestamp and position"]),
    ]:
        message = refused(table, tmp_path / "out", DataConfig(columns=columns))
        for word in words:
            assert word in message


def test_no_user_survives(tmp_path: Path) -> None:
    path = tmp_path / "log.csv"
    path.write_text(GOOD)
    message = refused(path, tmp_path / "out", DataConfig(min_user_interactions=4))
    for word in [str(path), "min_user_interactions=4", "3 rows of 1 users and 3 items"]:
        assert word in message


@pytest.fixture
def readonly_folder() -> Iterator[Path]:
    """Return a folder that the process may not write in, even if tests run as root."""
    with tempfile.TemporaryDirectory(dir="/tmp") as name:
        folder = Path(name)
        folder.chmod(0o555)
        user = os.geteuid()
        if user == 0:
            os.seteuid(65_534)
        yield folder
        if user == 0:
            os.seteuid(0)
        folder.chmod(0o755)


def test_readonly_output(readonly_folder: Path) -> None:
    message = refused(frame(), readonly_folder / "deep" / "out")
    assert message == f"{readonly_folder / 'deep' / 'out'}: cannot be written: Permission denied"


def test_output_below_a_file(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    assert "out: cannot be written: " in refused(frame(), tmp_path / "file" / "out")


@pytest.mark.parametrize("content", [None, "other.txt", "manifest.json"])
def test_output_is_something_else(content: str | None, tmp_path: Path) -> None:
    out = tmp_path / "mine"
    if content is None:
        out.write_text("work")
    else:
        out.mkdir()
        (out / content).write_text("{}")
    assert f"{out}: exists and is left alone" in refused(frame(), out)
