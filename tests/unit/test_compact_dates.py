"""Dates that are written as numbers, such as 20241231, are dates: to the end of the whole way."""

from __future__ import annotations

import logging
import shlex
from datetime import UTC, date, datetime, timedelta
from pathlib import Path
from typing import Any

import polars as pl
import pytest

from recsys.data.appending import append
from recsys.data.columns import guess_columns
from recsys.data.prepared import PreparedDataset, prepare
from recsys.errors import InputError
from recsys.serving.histories import UserHistories

TIMES = [datetime(2024, 12, 31, 22, 58, 59, tzinfo=UTC) + timedelta(hours=7 * n) for n in range(6)]
FORMS = {"%Y%m%d": 86_400, "%Y%m%d%H": 3_600, "%Y%m%d%H%M": 60, "%Y%m%d%H%M%S": 1}
"""Each form and the seconds of its smallest unit."""


def log_of(times: Any) -> pl.DataFrame:
    return pl.DataFrame({"user_id": [1, 1, 1, 2, 2, 2], "item_id": [5, 6, 7] * 2, "ts": times})


def compact(form: str, dtype: type[pl.DataType] = pl.Int64) -> pl.DataFrame:
    return log_of(pl.Series([f"{time:{form}}" for time in TIMES]).cast(dtype))


@pytest.mark.parametrize("dtype", [pl.Int64, pl.Float64, pl.String])
@pytest.mark.parametrize("form", FORMS)
def test_they_are_read_and_said(
    form: str,
    dtype: type[pl.DataType],
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
) -> None:
    with caplog.at_level(logging.INFO, "recsys"):
        found = prepare(compact(form, dtype), out=tmp_path / "data")
    unit = FORMS[form]
    assert found.timestamps.tolist() == [int(time.timestamp()) // unit * unit for time in TIMES]
    assert found.config.time_format == form
    assert f"20241231{form[8:] and '22'}" in caplog.text
    assert f"and the like, read as dates, as with --time-format {form!r}" in caplog.text
    given = prepare(compact(form, dtype), out=tmp_path / "given", time_format=form)
    assert given.fingerprint == found.fingerprint


@pytest.mark.parametrize(
    "times",
    [
        [1_700_000_000 + n for n in range(6)],
        [1_700_000_000_000 + n for n in range(6)],
        [20241228 + n for n in range(6)],  # 32 December
        [2024123122 + n for n in range(6)],  # 24 o'clock
        [1969123100 + n for n in range(6)],
        [202412315957 + n for n in range(6)],  # a minute of 60
        [20241231, 20241231, 20241231, 20241231, 20241231, 2024123101],
        [1.5, 2, 3, 4, 5, 6],
    ],
    ids=str,
)
def test_other_numbers_are_numbers(times: list[float], tmp_path: Path) -> None:
    found = prepare(log_of(pl.Series(times)), out=tmp_path / "data")
    assert found.timestamps.tolist() == [int(time) for time in times]
    assert found.config.time_format is None


MANY = [20240101 + n % 28 for n in range(60)]


def many(*more: Any) -> pl.DataFrame:
    times = pl.Series([*MANY, *more])
    return pl.DataFrame({"user_id": 1, "item_id": range(len(times)), "ts": times})


@pytest.mark.parametrize("dtype", [pl.Int64, pl.String])
@pytest.mark.parametrize("bad", [0, -1, 20240000, 20241200, 99999999, 20241232, 202412312359])
def test_numbers_among_dates_are_refused_with_their_rows(
    bad: int, dtype: type[pl.DataType], tmp_path: Path
) -> None:
    log = many(bad).cast({"ts": dtype})
    value = f"'{bad}'" if dtype == pl.String else str(bad)
    with pytest.raises(InputError) as caught:
        prepare(log, out=tmp_path / "data")
    message = str(caught.value)
    assert "'ts', data row 61: is neither in the form '%Y%m%d' of data.time_format" in message
    assert "; if none is a date, say --time-format number): " in message
    advice = shlex.split(message[message.index("--where") : message.index(", in Python")])[1]
    assert advice == f'"ts" <> {value}'
    kept = prepare(log, out=tmp_path / "data", where=advice)
    assert kept.timestamps.tolist() == prepare(many(), out=tmp_path / "data").timestamps.tolist()
    numbers = prepare(log, out=tmp_path / "data", time_format="number")
    assert numbers.timestamps.tolist() == sorted([*MANY, bad])


def test_the_value_that_is_shown_is_a_date(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    log = pl.concat([log_of([99991231] * 6), compact("%Y%m%d")])
    with caplog.at_level(logging.INFO, "recsys"):
        prepare(log, out=tmp_path / "data")
    assert "has 20241231 and the like" in caplog.text


@pytest.mark.parametrize("unknown", [0, 99991231, None])
def test_dates_are_seen_after_many_rows_without_one(
    unknown: int | None, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    log = pl.concat([log_of(pl.Series([unknown] * 6, dtype=pl.Int64))] * 200 + [compact("%Y%m%d")])
    with caplog.at_level(logging.INFO, "recsys"):
        found = prepare(log, out=tmp_path / "data", where="ts > 0 and ts < 99991231")
    assert found.timestamps.max() == datetime(2025, 1, 2, tzinfo=UTC).timestamp()
    assert found.config.time_format == "%Y%m%d"
    assert "has 20241231 and the like" in caplog.text


def test_they_are_numbers_if_the_settings_say_so(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    log = compact("%Y%m%d", pl.String)
    with caplog.at_level(logging.INFO, "recsys"):
        found = prepare(log, out=tmp_path / "data", time_format="number")
    assert found.timestamps.tolist() == log["ts"].cast(pl.Int64).to_list()
    assert found.config.time_format == "number"
    assert "dates" not in caplog.text
    read = UserHistories.from_raw(log.head(1), found.config, found.vocabulary)
    assert read.histories.times is not None
    assert read.histories.times.tolist() == [20241231]
    grown = append(log_of(range(20250101, 20250107)), tmp_path / "data")
    assert grown.timestamps.max() == 20250106
    assert grown.config.time_format == "number"


@pytest.mark.parametrize("day", ["2024-12-31", date(2024, 12, 31), TIMES[0]])
def test_a_date_is_no_number(day: Any, tmp_path: Path) -> None:
    log = log_of(pl.Series([day] * 6))
    with pytest.raises(InputError, match="'ts', data row 1: is no number, as data"):
        prepare(log, out=tmp_path / "data", time_format="number")
    clock = log.with_columns(clock=pl.lit("10:20"), ts=pl.lit(20241231))
    assert prepare(clock, out=tmp_path / "data", time_format="number").num_users == 2


@pytest.mark.parametrize("form", FORMS)
def test_they_are_times_in_a_file_without_a_header(form: str, tmp_path: Path) -> None:
    compact(form).write_csv(tmp_path / "log.csv", include_header=False)
    found = prepare(tmp_path / "log.csv", out=tmp_path / "data", header=False)
    assert found.fingerprint == prepare(compact(form), out=tmp_path / "plain").fingerprint


def test_a_refusal_names_a_column_that_has_them() -> None:
    table = compact("%Y%m%d").rename({"ts": "bought"})
    with pytest.raises(InputError, match="which column is the time; .*; bought may be times"):
        guess_columns(table)


def test_a_later_number_that_is_no_date_is_refused(tmp_path: Path) -> None:
    many = pl.concat([compact("%Y%m%d")] * 200)
    bad = pl.concat([many, log_of([20240230] * 6)])
    with pytest.raises(InputError, match="'ts', data row 1201: is neither in the form '%Y%m%d'"):
        prepare(bad, out=tmp_path / "data")


def test_dates_in_settings_are_compared_with_them(tmp_path: Path) -> None:
    found = prepare(compact("%Y%m%d%H"), out=tmp_path / "data", since="2025-01-01T06:00")
    assert found.manifest.dropped == {"since": 2}


def test_a_log_to_score_is_read_as_the_dataset_was(tmp_path: Path) -> None:
    dataset = prepare(compact("%Y%m%d%H%M"), out=tmp_path / "data")
    one = compact("%Y%m%d%H%M").filter(user_id=2, item_id=6)
    read = UserHistories.from_raw(one, dataset.config, dataset.vocabulary)
    assert read.histories.times is not None
    assert read.histories.times.tolist() == dataset.timestamps[4:5].tolist()


def test_an_append_is_read_as_the_dataset_was(tmp_path: Path) -> None:
    later = pl.Series([f"{time + timedelta(days=9):%Y%m%d}" for time in TIMES]).cast(pl.Int64)
    prepare(compact("%Y%m%d"), out=tmp_path / "dates")
    grown = append(log_of(later), tmp_path / "dates")
    assert grown.timestamps.max() == datetime(2025, 1, 11, tzinfo=UTC).timestamp()
    prepare(log_of(range(6)), out=tmp_path / "numbers")
    with pytest.raises(InputError, match="read as dates, .*'%Y%m%d', and .*--time-format number"):
        append(log_of(later), tmp_path / "numbers")
    assert PreparedDataset.open(tmp_path / "numbers").timestamps.tolist() == list(range(6))
