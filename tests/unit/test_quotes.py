"""Quotes around fields, and quotes that are characters of a title."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Literal

import polars as pl
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from recsys.config import Columns, DataConfig
from recsys.data.reading import read_source
from recsys.data.text_tables import TextTable

NAMES = ("user", "item", "time", "title")


def users(folder: Path, rows: str) -> list[str]:
    """The users of rows, read as those of a log."""
    path = folder / "log.csv"
    path.write_text(",".join(NAMES) + "\n" + rows, newline="")
    log = read_source(
        path, DataConfig(columns=Columns(user_id="user", item_id="item", timestamp="time"))
    )
    return log.frame.select("user_id").collect("polars").to_polars()["user_id"].to_list()


@settings(max_examples=50)
@given(
    titles=st.lists(st.text('a" ,;\n\r', min_size=1), min_size=1),
    style=st.sampled_from(["necessary", "always", "non_numeric"]),
)
def test_what_a_library_writes_is_read_as_written(
    titles: list[str], style: Literal["necessary", "always", "non_numeric"]
) -> None:
    frame = pl.DataFrame({"user": "u", "item": "i", "time": 1, "title": titles})
    written = frame.write_csv(quote_style=style)
    # Else a title of several lines may well be several rows.
    assume(any(line.count(",") != 3 for line in written.split("\n")[:-1]))
    table = TextTable(written.encode(), ",", NAMES, True, "it")
    found = table.with_quotes_read().scan().collect()["title"]
    assert found.to_list() == titles


def test_rows_that_a_title_seems_to_have_swallowed_are_warned_of(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """One title is enclosed, so quotes belong to the form, and two stray ones enclose two rows."""
    rows = 'a,1,1,"vinyl\nb,2,2,x\nc,3,3,single"\nd,4,4,"y, z"\n'
    assert users(tmp_path, rows) == ["a", "d"]
    warning = (
        f"{tmp_path / 'log.csv'}: lines 2 to 4 are one row, because a quote opens in the first of "
        "them and closes in the last, but each looks like a row (1 such places): double the quotes "
        "if they are characters of a title"
    )
    assert [record.getMessage() for record in caplog.records] == [warning]
    assert caplog.records[0].levelno == logging.WARNING


@pytest.mark.parametrize(
    "title",
    ['"two\nlines, of words"', '"a ""b""\n\n\n, , ,\nc"', '"so,\nand\nso, on"', '"ends\r\n"'],
)
def test_titles_of_several_lines_raise_no_warning(
    title: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    assert users(tmp_path, f'a,1,1,{title}\nb,2,2,x\nc,3,3,"y, z"\n') == ["a", "b", "c"]
    assert not caplog.records
