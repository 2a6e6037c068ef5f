"""Dates of other forms: read where there is no doubt, else refused with a form that reads them."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path

import polars as pl
import pytest

from recsys.data.appending import append
from recsys.data.columns import guess_columns
from recsys.data.prepared import prepare
from recsys.errors import InputError
from recsys.serving.histories import UserHistories


def log_of(*times: str) -> pl.DataFrame:
    return pl.DataFrame({"user_id": 1, "item_id": range(len(times)), "timestamp": times})


def seconds(*moment: int) -> int:
    return int(datetime(*moment, tzinfo=UTC).timestamp())  # type: ignore[arg-type,misc]


READ = {
    "2024-01-02 10": (2024, 1, 2, 10),
    "2024-01-02T10Z": (2024, 1, 2, 10),
    "2024-01-02T10+01": (2024, 1, 2, 9),
    "2024-01-02T10-0130": (2024, 1, 2, 11, 30),
    "20240102T030405": (2024, 1, 2, 3, 4, 5),
    "20240102T030405Z": (2024, 1, 2, 3, 4, 5),
    "20240102T030405.25+0100": (2024, 1, 2, 2, 4, 5),
    "20240102T0304": (2024, 1, 2, 3, 4),
}


@pytest.mark.parametrize(("written", "moment"), READ.items(), ids=READ)
def test_forms_of_iso_8601(written: str, moment: tuple[int, ...], tmp_path: Path) -> None:
    found = prepare(log_of(written, "2024-02-01"), out=tmp_path / "data")
    assert found.timestamps.tolist() == [seconds(*moment), seconds(2024, 2, 1)]


FOUND = {
    "01/13/2024 03:04 PM": ("%m/%d/%Y %I:%M %p", (2024, 1, 13, 15, 4)),
    "13/01/2024 03:04 PM": ("%d/%m/%Y %I:%M %p", (2024, 1, 13, 15, 4)),
    "13/01/2024 3 PM": ("%d/%m/%Y %I %p", (2024, 1, 13, 15)),
    "13.01.2024 15": ("%d.%m.%Y %H", (2024, 1, 13, 15)),
    "2024-01-02 3:04:05 PM": ("%Y-%m-%d %I:%M:%S %p", (2024, 1, 2, 15, 4, 5)),
    "20240102 03:04:05": ("%Y%m%d %H:%M:%S", (2024, 1, 2, 3, 4, 5)),
    "2024/01/02 03:04:05 +0100": ("%Y/%m/%d %H:%M:%S %z", (2024, 1, 2, 2, 4, 5)),
    "01/15/24 9:05": ("%m/%d/%y %H:%M", (2024, 1, 15, 9, 5)),
    "45.12.31": ("%y.%m.%d", (2045, 12, 31)),
    "31-DEC-24": ("%d-%b-%y", (2024, 12, 31)),
    "02 Jan 2024 10:11": ("%d %b %Y %H:%M", (2024, 1, 2, 10, 11)),
    "02 May 2024": ("%d %b %Y", (2024, 5, 2)),
    "Jan 02 2024": ("%b %d %Y", (2024, 1, 2)),
    "January 2, 2024": ("%b %d, %Y", (2024, 1, 2)),
    "Tue Jan 02 2024": ("%a %b %d %Y", (2024, 1, 2)),
    "Tue Jan 02 2024 10:11:12 GMT+0100": ("%a %b %d %Y %H:%M:%S GMT%z", (2024, 1, 2, 9, 11, 12)),
    "Tue Jan 2 10:11:12 2024": ("%a %b %d %H:%M:%S %Y", (2024, 1, 2, 10, 11, 12)),
    "Tue Jan 02 10:11:12 UTC 2024": ("%a %b %d %H:%M:%S UTC %Y", (2024, 1, 2, 10, 11, 12)),
    "Tue, 02 Jan 2024 10:11:12 +0100": ("%a, %d %b %Y %H:%M:%S %z", (2024, 1, 2, 9, 11, 12)),
    "Tue, 02 Jan 2024 10:11:12 GMT": ("%a, %d %b %Y %H:%M:%S GMT", (2024, 1, 2, 10, 11, 12)),
    "02 Jan 2024 10:11:12 -0100": ("%d %b %Y %H:%M:%S %z", (2024, 1, 2, 11, 11, 12)),
    "10/Oct/2000:13:55:36 -0700": ("%d/%b/%Y:%H:%M:%S %z", (2000, 10, 10, 20, 55, 36)),
    "[10/Oct/2000:13:55:36 -0700]": ("[%d/%b/%Y:%H:%M:%S %z]", (2000, 10, 10, 20, 55, 36)),
}


@pytest.mark.parametrize(("written", "found"), FOUND.items(), ids=FOUND)
def test_a_form_without_doubt_is_found(
    written: str, found: tuple[str, tuple[int, ...]], tmp_path: Path
) -> None:
    form, moment = found
    data = prepare(log_of(written), out=tmp_path / "data")
    assert data.config.time_format == form
    assert data.timestamps.tolist() == [seconds(*moment)]


ADVISED = {
    "31.12.24": {"%d.%m.%y": (2024, 12, 31), "%y.%m.%d": (2031, 12, 24)},
    "01/02/2024": {"%m/%d/%Y": (2024, 1, 2), "%d/%m/%Y": (2024, 2, 1)},
    "1-2-2024, 03:04": {
        "%m-%d-%Y, %H:%M": (2024, 1, 2, 3, 4),
        "%d-%m-%Y, %H:%M": (2024, 2, 1, 3, 4),
    },
    "15-03-24 14:05": {
        "%y-%m-%d %H:%M": (2015, 3, 24, 14, 5),
        "%d-%m-%y %H:%M": (2024, 3, 15, 14, 5),
    },
    "15-03-24": {"%y-%m-%d": (2015, 3, 24), "%d-%m-%y": (2024, 3, 15)},
}
"""Of day and month either may come first, and years of two digits may be days."""


@pytest.mark.parametrize(("written", "advice"), ADVISED.items(), ids=ADVISED)
def test_the_advised_forms_read_what_is_in_doubt(
    written: str, advice: dict[str, tuple[int, ...]], tmp_path: Path
) -> None:
    with pytest.raises(InputError) as caught:
        prepare(log_of(written), out=tmp_path / "data")
    for form in advice:
        assert repr(form) in str(caught.value)
    assert str(caught.value).count("%") == "".join(advice).count("%"), "no other form"
    for form, moment in advice.items():
        found = prepare(log_of(written), out=tmp_path / "data", time_format=form)
        assert found.timestamps.tolist() == [seconds(*moment)]


def test_later_rows_tell_whether_the_day_or_the_month_comes_first(tmp_path: Path) -> None:
    """A log that is sorted by time may begin with many orders of one day."""
    told = prepare(log_of(*["12/1/2010"] * 1500, "12/13/2010"), out=tmp_path / "a")
    assert told.config.time_format == "%m/%d/%Y"
    assert sorted(set(told.timestamps.tolist())) == [seconds(2010, 12, 1), seconds(2010, 12, 13)]
    with pytest.raises(InputError, match="'%m/%d/%Y' or '%d/%m/%Y'"):
        prepare(log_of(*["12/1/2010"] * 1500), out=tmp_path / "b")


def test_whole_seconds_may_lack_a_fraction(tmp_path: Path) -> None:
    """As Python writes times."""
    times = "31.12.2024 10:00:00", "31.12.2024 10:00:00.25", "31.12.2024 10:00:01"
    for order in (times, times[::-1], times[1:]):
        data = prepare(log_of(*order), out=tmp_path / "data")
        assert data.config.time_format == "%d.%m.%Y %H:%M:%S.%f"
        assert set(data.timestamps.tolist()) == {seconds(2024, 12, 31, 10, 0, s) for s in (0, 1)}


def test_a_date_of_another_form_is_refused_with_its_row(tmp_path: Path) -> None:
    """Nothing but the first rows decides the form, so that later ones are never read by another."""
    log = log_of(*["31.12.2024"] * 1000, "2024-12-30", "12/31/2024")
    with pytest.raises(InputError, match=r"data row 1,?002: .*: '12/31/2024'"):
        prepare(log, out=tmp_path / "data")
    for later in ("31.12.24", "31.12.204"):  # no year 24
        with pytest.raises(InputError, match=f"data row 1,?001: .*: '{later}'"):
            prepare(log_of(*["31.12.2024"] * 1000, later), out=tmp_path / "data")


def test_dates_of_a_known_name_are_guessed_whatever_their_form(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")
    path = tmp_path / "bestellungen.csv"
    path.write_text("Kunde;Artikel;Datum\n7;A;31.12.2024 14:05\n7;B;01.01.2025 09:00\n")
    data = prepare(path, out=tmp_path / "data")
    assert data.timestamps.tolist() == [seconds(2024, 12, 31, 14, 5), seconds(2025, 1, 1, 9)]
    assert (
        "column 'Datum' has 31.12.2024 14:05 and the like, read as dates, as with "
        "--time-format '%d.%m.%Y %H:%M'"
    ) in caplog.text
    assert "if they are numbers" not in caplog.text


def test_epochs_and_iso_8601_are_preferred_to_dates_of_another_form() -> None:
    """Reviews of Amazon have both, with names that are equally good."""
    log = pl.DataFrame(
        {
            "reviewerID": ["A", "B"],
            "asin": ["P", "Q"],
            "reviewTime": ["09 13, 2009", "03 4, 2010"],
            "unixReviewTime": [1_252_800_000, 1_267_660_800],
        }
    )

    def no_more(name: str, rows: int) -> pl.Series:
        raise AssertionError

    assert guess_columns(log, more=no_more).columns.timestamp == "unixReviewTime"
    alone = guess_columns(log.drop("unixReviewTime"), more=no_more)
    assert alone.columns.timestamp == "reviewTime"
    both = log.with_columns(createdAt=pl.lit("9/13/2009")).drop("unixReviewTime")
    with pytest.raises(InputError, match="which column is the time, reviewTime or createdAt"):
        guess_columns(both)


@pytest.mark.parametrize("other", ["startdate", "time", "ts", "date", "created_date"])
def test_the_default_name_wins_whatever_its_form(other: str) -> None:
    times = {"timestamp": ["31.12.2024 14:05"], other: [1_700_000_000]}
    found = guess_columns(pl.DataFrame({"user_id": [1], "item_id": [2], **times}))
    assert found.columns.timestamp == "timestamp"


def test_a_better_name_with_gaps_is_not_left_for_another_form() -> None:
    """It is refused with the rows, as it was before other forms were found."""
    gaps = [None] * 120 + [1_700_000_000] * 80
    log = pl.DataFrame({"user_id": 1, "item_id": 2, "ts": gaps, "orderdate": "31.12.2024"})
    assert guess_columns(log).columns.timestamp == "ts"


@pytest.mark.parametrize("item", ["1.2.3", "1-2-2024", "45.12.31"])
def test_ids_that_look_like_dates_are_no_times_without_a_header(item: str) -> None:
    log = pl.DataFrame({"1": [1, 2], "2": [item, item], "3": [1_700_000_000, 1_700_000_001]})
    columns = guess_columns(log).columns
    assert (columns.user_id, columns.item_id, columns.timestamp) == ("1", "2", "3")
    versions = pl.DataFrame({"user": [1], "item": [2], "dt": ["1.10.0"]})
    with pytest.raises(InputError, match="which column is the time"):
        guess_columns(versions)


def test_unknown_dates_do_not_hide_the_form(tmp_path: Path) -> None:
    log = log_of("12/13/2024", "00/00/0000", "12/31/9999", "12/14/2024")
    with pytest.raises(InputError, match="data row 2: neither a number .*: '00/00/0000'"):
        prepare(log, out=tmp_path / "data")
    where = "timestamp not in ('00/00/0000', '12/31/9999')"
    data = prepare(log, out=tmp_path / "data", where=where)
    assert data.timestamps.tolist() == [seconds(2024, 12, 13), seconds(2024, 12, 14)]


def test_days_beside_times_of_day_are_refused_whatever_their_form(tmp_path: Path) -> None:
    for day in ("31.12.2024", "1/2/2024"):
        log = pl.DataFrame({"user": [1], "item": [2], "date": [day], "zeit": ["14:05"]})
        with pytest.raises(InputError, match="date has days, and zeit has times of day"):
            prepare(log, out=tmp_path / "data")


def test_a_weekday_that_is_not_that_of_the_date_has_no_form(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="'Mon Jan 02 2024'") as caught:
        prepare(log_of("Mon Jan 02 2024"), out=tmp_path / "data")
    assert "--time-format" not in str(caught.value)


def test_an_append_and_a_raw_log_are_read_as_the_dataset_was(tmp_path: Path) -> None:
    """By the form that was found, though a few new dates alone would not tell it."""
    prepare(log_of("12/1/2010", "12/13/2010"), out=tmp_path / "found")
    grown = append(log_of("1/2/2011"), tmp_path / "found")
    assert grown.timestamps.tolist()[-1] == seconds(2011, 1, 2)
    read = UserHistories.from_raw(log_of("1/2/2011"), grown.config, grown.vocabulary)
    assert read.histories.times is not None
    assert read.histories.times.tolist() == [seconds(2011, 1, 2)]
    iso = prepare(log_of("2010-12-31"), out=tmp_path / "iso")
    many = log_of(*["1/2/2011"] * 1100, "1/13/2011").with_columns(item_id=0)
    read = UserHistories.from_raw(many, iso.config, iso.vocabulary)
    assert read.histories.times is not None
    assert set(read.histories.times.tolist()) == {seconds(2011, 1, 2), seconds(2011, 1, 13)}


def test_dates_of_another_form_follow_those_of_iso_8601(tmp_path: Path) -> None:
    prepare(log_of("2024-12-30"), out=tmp_path / "iso")
    grown = append(log_of("31.12.2024"), tmp_path / "iso")
    assert grown.timestamps.tolist() == [seconds(2024, 12, 30), seconds(2024, 12, 31)]
    read = UserHistories.from_raw(log_of("31.12.2024"), grown.config, grown.vocabulary)
    assert read.histories.times is not None
    assert read.histories.times.tolist() == [seconds(2024, 12, 31)]
    with pytest.raises(InputError, match="'%m/%d/%Y' or '%d/%m/%Y'"):
        append(log_of("1/2/2025"), tmp_path / "iso")
