"""Times in two units in one log are warned of, and other large numbers are not."""

from __future__ import annotations

from pathlib import Path

import polars as pl
import pytest

from recsys.data.appending import append
from recsys.data.prepared import prepare

START = 1_700_000_000
WARNS = "they are compared as numbers"


def log_of(*times: int) -> pl.DataFrame:
    return pl.DataFrame({"user_id": 1, "item_id": range(len(times)), "timestamp": times})


@pytest.mark.parametrize(
    ("later", "unit"),
    [(START * 10**3, "milliseconds"), (START * 10**6, "microseconds")],
)
def test_two_units(later: int, unit: str, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    prepare(log_of(later, START), out=tmp_path / "data")
    times = f"in seconds, such as {START} and in {unit}, such as {later}"
    assert f"column 'timestamp' has times {times}: {WARNS}" in caplog.text


@pytest.mark.parametrize(
    "times",
    [
        [START, START + 10**8],
        [START * 1000, START * 1000 + 1],
        [0, START * 1000, 253_402_300_799_000],  # a missing time, and one without end
        [0, START, 253_402_300_799, 2**31 - 1],
        [1, 50_000, 10**6],
    ],
    ids=str,
)
def test_one_unit(times: list[int], tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    prepare(log_of(*times), out=tmp_path / "data")
    assert WARNS not in caplog.text


FAR = "has times outside of 1985 to 2128"


@pytest.mark.parametrize(
    "times", [[0, 1, START], [-5, 0, 7], [START, 2**32], [10**8, 0, START]], ids=str
)
def test_other_times_are_not_far(
    times: list[int], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    prepare(log_of(*times), out=tmp_path / "data")
    assert FAR not in caplog.text


def test_a_log_of_another_unit_is_appended(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    prepare(log_of(START, START + 1), out=tmp_path / "data")
    assert WARNS not in caplog.text
    append(log_of(START * 1000 + 2000, START * 1000 + 3000), tmp_path / "data")
    assert WARNS in caplog.text
