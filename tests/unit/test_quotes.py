"""Quotes around fields, and quotes that are characters of a title."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Literal

import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from recsys.config import Columns, DataConfig
from recsys.data.reading import read_source
from recsys.data.tables import read_table
from recsys.data.text_tables import TextTable
from recsys.errors import InputError

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
    table = TextTable(written.encode(), ",", NAMES, True, "it", header_lines=1)
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


def test_a_short_row_among_many_that_were_swallowed_hides_nothing(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    between = "".join(f"u{n},{n},{n},x\n" for n in range(100))
    assert users(tmp_path, f'a,1,1,"vinyl\n{between}b,2\n\nc,3,3,single"\nd,4,4,y\n') == ["a", "d"]
    (record,) = caplog.records
    assert "lines 2 to 105 are one row" in record.getMessage()


def test_few_reviews_whose_last_line_looks_like_a_row_raise_no_warning(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    reviews = "".join(f'u{n},{n},{n},"good\nand cheap"\n' for n in range(9))
    rows = f'{reviews}v,1,1,"well\nso, and so, and so, on"\n'
    assert len(users(tmp_path, rows)) == 10
    assert not caplog.records


def test_quotes_enclose_a_field_of_several_lines_too(tmp_path: Path) -> None:
    """Else the inches would make characters of all quotes, and two rows of the title."""
    plain = "".join(f"u{n},{n},{n},x\n" for n in range(30))
    found = users(tmp_path, f'{plain}v,1,1,"two\nlines"\nw,2,2,12" and 14" mix\n')
    assert found == [*sorted({f"u{n}" for n in range(30)}), "v", "w"]


def test_swallowed_rows_are_warned_of_beside_inches(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    between = "".join(f"u{n},{n},{n},x\n" for n in range(50))
    stray = f'b,2,2,"vinyl\n{between}c,3,3,single"\n'
    assert users(tmp_path, f'a,1,1,5" x 6" card\n{stray}d,4,4,"y, z"\n') == ["a", "b", "d"]
    (record,) = caplog.records
    assert "lines 3 to 54 are one row" in record.getMessage()


def test_a_header_of_several_lines(tmp_path: Path) -> None:
    path = tmp_path / "log.csv"
    path.write_text('"user\nid",item,time,title\na,1,1,x\nb,2,2,y\n')
    assert read_table(path)["user\nid"].to_list() == ["a", "b"]


@pytest.mark.parametrize(
    ("header", "row"),
    [
        ('user,item,title,"time', "a,1,x,1"),  # never closed
        ('"user,item,title,time', "a,1,x,1"),
        ('user,item,"title,time', 'a,1,x",1'),  # closed in a row
        ('user,item,ti"tle,time', 'a,1,"x, y",1'),  # a character, where others enclose fields
    ],
)
def test_a_stray_quote_in_the_header_is_refused(header: str, row: str, tmp_path: Path) -> None:
    path = tmp_path / "log.csv"
    path.write_text(f"{header}\n{row}\nb,2,y,2\n")
    with pytest.raises(InputError, match=r"log\.csv: line 1 has a quote that is neither around"):
        read_table(path)


@pytest.mark.parametrize("header", ['user,12" vinyl,time', 'user,"item\nid",time'])
def test_a_quote_that_belongs_to_the_header(header: str, tmp_path: Path) -> None:
    path = tmp_path / "log.csv"
    path.write_text(f"{header}\na,1,3\nb,2,4\n")
    table = read_table(path)
    assert table.columns == header.replace('"item\nid"', "item\nid").split(",")
    assert table.rows() == [("a", 1, 3), ("b", 2, 4)]


def test_delimiters_in_both_lines_of_a_name_may_be_chance(tmp_path: Path) -> None:
    path = tmp_path / "items.csv"
    path.write_text('"a, b\nc",item\nx,1\ny,2\n')
    assert read_table(path)["item"].to_list() == [1, 2]


def test_addresses_of_two_lines_raise_no_warning(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / "items.csv"
    path.write_text('id,address\n1,"12 Main St\nSpringfield, IL"\n2,"1 Elm St\nShelby, IL"\n')
    assert read_table(path)["id"].to_list() == [1, 2]
    assert not caplog.records


@pytest.mark.parametrize(
    ("rows", "line"),
    [
        ('1,2,3,"12"" vinyl"\n4,5,6,12" vinyl\n', 3),
        ('1,2,3,"a\nb"\n4,5,6,12" vinyl\n', 4),
        ('1,2,3,"a, b"\n4,5,6,"open\n7,8,9,x\n', 3),
    ],
)
def test_a_stray_quote_is_refused_with_its_line(rows: str, line: int, tmp_path: Path) -> None:
    with pytest.raises(InputError, match=rf"line {line} has a quote that is neither around"):
        users(tmp_path, rows)


def test_a_file_that_changes_is_read_again(tmp_path: Path) -> None:
    assert users(tmp_path, 'a,1,1,12" vinyl\n') == ["a"]
    with pytest.raises(InputError, match="line 2 has a quote"):
        users(tmp_path, 'a,1,1,12" vinyl\nb,2,2,"y, z"\n')


@pytest.mark.parametrize(
    "title",
    ['"two\nlines, of words"', '"a ""b""\n\n\n, , ,\nc"', '"so,\nand\nso, on"', '"ends\r\n"'],
)
def test_titles_of_several_lines_raise_no_warning(
    title: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    assert users(tmp_path, f'a,1,1,{title}\nb,2,2,x\nc,3,3,"y, z"\n') == ["a", "b", "c"]
    assert not caplog.records
