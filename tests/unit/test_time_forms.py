"""Dates of other forms: read where there is no doubt, else refused with a form that reads them."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path

import polars as pl
import pytest

from recsys.data.engines import Engine
from recsys.data.prepared import prepare
from recsys.errors import InputError

ENGINES: list[Engine] = ["memory", "disk"]


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


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize(("written", "moment"), READ.items(), ids=READ)
def test_forms_of_iso_8601(
    written: str, moment: tuple[int, ...], engine: Engine, tmp_path: Path
) -> None:
    found = prepare(log_of(written, "2024-02-01"), out=tmp_path / "data", engine=engine)
    assert found.timestamps.tolist() == [seconds(*moment), seconds(2024, 2, 1)]


ADVISED = {
    "01/13/2024 03:04 PM": ("%m/%d/%Y %I:%M %p", (2024, 1, 13, 15, 4)),
    "13/01/2024 03:04 PM": ("%d/%m/%Y %I:%M %p", (2024, 1, 13, 15, 4)),
    "13/01/2024 3 PM": ("%d/%m/%Y %I %p", (2024, 1, 13, 15)),
    "13.01.2024 15": ("%d.%m.%Y %H", (2024, 1, 13, 15)),
    "2024-01-02 3:04:05 PM": ("%Y-%m-%d %I:%M:%S %p", (2024, 1, 2, 15, 4, 5)),
    "20240102 03:04:05": ("%Y%m%d %H:%M:%S", (2024, 1, 2, 3, 4, 5)),
    "2024/01/02 03:04:05 +0100": ("%Y/%m/%d %H:%M:%S %z", (2024, 1, 2, 2, 4, 5)),
    "02 Jan 2024 10:11": ("%d %b %Y %H:%M", (2024, 1, 2, 10, 11)),
    "02 May 2024": ("%d %b %Y", (2024, 5, 2)),
    "Jan 02 2024": ("%b %d %Y", (2024, 1, 2)),
    "January 2, 2024": ("%B %d, %Y", (2024, 1, 2)),
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


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize(("written", "advice"), ADVISED.items(), ids=ADVISED)
def test_the_advised_form_reads_them(
    written: str, advice: tuple[str, tuple[int, ...]], engine: Engine, tmp_path: Path
) -> None:
    form, moment = advice
    with pytest.raises(InputError) as caught:
        prepare(log_of(written), out=tmp_path / "data", engine=engine)
    assert f"--time-format {form!r}, in Python" in str(caught.value), "one form, and no other"
    found = prepare(log_of(written), out=tmp_path / "data", engine=engine, time_format=form)
    assert found.timestamps.tolist() == [seconds(*moment)]


def test_a_weekday_that_is_not_that_of_the_date_has_no_form(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="'Mon Jan 02 2024'") as caught:
        prepare(log_of("Mon Jan 02 2024"), out=tmp_path / "data")
    assert "--time-format" not in str(caught.value)
