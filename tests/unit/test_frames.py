"""Frames of other libraries: only the columns that are needed have to be readable."""

from __future__ import annotations

from pathlib import Path
from typing import Any
from uuid import UUID

import pandas as pd
import polars as pl
import pyarrow as pa  # type: ignore[import-untyped]
import pyarrow.parquet  # type: ignore[import-untyped]
import pytest

from recsys.data.prepared import prepare
from recsys.data.tables import read_table
from recsys.errors import InputError

LOG = {"user_id": [1, 1, 2], "item_id": [5, 6, 5], "timestamp": [1, 2, 3]}
UUIDS = [UUID(int=number) for number in (5, 6, 5)]


@pytest.mark.parametrize(
    "values",
    [
        [1.5, "x", None],
        [{"a": 1}, {"a": "b"}, None],
        [[1], ["b"], None],
        [{1}, {2}, None],
        [2**70, 1, 2],
        [object(), 1, 2],
    ],
)
def test_a_column_that_is_not_needed(values: list[Any], tmp_path: Path) -> None:
    frame = pd.DataFrame(LOG).assign(extra=pd.Series(values, dtype=object))
    found = prepare(frame, out=tmp_path / "data")
    assert found.fingerprint == prepare(pl.DataFrame(LOG), out=tmp_path / "plain").fingerprint
    assert list(frame.columns) == [*LOG, "extra"]


@pytest.mark.parametrize("values", [[1.5, "x", None], [2**70, 1, 2], [[1], ["b"], None]])
def test_a_needed_column_is_named(values: list[Any], tmp_path: Path) -> None:
    frame = pd.DataFrame(LOG).assign(extra=pd.Series(values, dtype=object))
    for words in ({"user": "extra"}, {"keep": ["extra"]}, {"where": "extra > 2"}):
        with pytest.raises(InputError) as caught:
            prepare(frame, out=tmp_path / "data", **words)
        message = str(caught.value)
        assert message.startswith("the frame: column 'extra': has values of no common type (")
        assert "with .astype(str)" in message
    with pytest.raises(
        InputError, match="the item;.*; column 'item_id' cannot be read: has values"
    ):
        prepare(frame[["user_id", "timestamp"]].assign(item_id=frame["extra"]))


@pytest.mark.parametrize("library", [pd.DataFrame, pl.DataFrame])
def test_uuids_are_text(library: Any) -> None:
    table = read_table(library({**LOG, "item_id": UUIDS}))
    assert table["item_id"].to_list() == [str(item) for item in UUIDS]
    some = read_table(library({"id": [None, UUIDS[0]]}))
    assert some["id"].to_list() == [None, str(UUIDS[0])]


def test_integers_as_names_are_text(tmp_path: Path) -> None:
    frame = pd.DataFrame(LOG).set_axis(range(3), axis=1)
    found = prepare(frame, out=tmp_path / "data", user="0", item="1", time="2")
    assert found.fingerprint == prepare(pl.DataFrame(LOG), out=tmp_path / "plain").fingerprint


@pytest.mark.parametrize(
    "frame",
    [
        pa.table([[1], [2], [3], [4]], names=[*LOG, "x"]).rename_columns([*LOG, "item_id"]),
        pd.DataFrame([[1, 2, 3, 4]], columns=[*LOG, "item_id"]),
    ],
)
def test_two_columns_of_one_name(frame: Any) -> None:
    with pytest.raises(InputError, match=r"^the frame: two columns are named 'item_id'$"):
        read_table(frame)


def test_two_columns_without_a_name() -> None:
    with pytest.raises(InputError, match=r"^the frame: two columns are named ''$"):
        read_table(pd.DataFrame([[0, 0, 1]], columns=["", "", "user_id"]))


def test_two_columns_of_one_name_in_parquet(tmp_path: Path) -> None:
    path = tmp_path / "log.parquet"
    pa.parquet.write_table(pa.table([[1], [2]], names=["user_id", "user_id"]), path)
    with pytest.raises(InputError) as caught:
        read_table(path)
    assert str(caught.value) == f"{path}: two columns are named 'user_id'"


def test_blanks_around_names(tmp_path: Path) -> None:
    """They do not keep a column from being guessed, and a name without them is suggested."""
    frame = pl.DataFrame(LOG).rename({"user_id": " user_id"})
    found = prepare(frame, out=tmp_path / "data")
    assert found.manifest.columns.user_id == " user_id"
    with pytest.raises(InputError, match="did you mean ' user_id'"):
        prepare(frame, out=tmp_path / "data", user="user_id")
