"""The log as people see it: in Python only where the program has set up none."""

from __future__ import annotations

import logging
from collections.abc import Iterator

import polars as pl
import pytest

from recsys.api import _as_call
from recsys.progress import shown_log

logger = logging.getLogger("recsys.somewhere")


@pytest.fixture(autouse=True)
def _no_level_is_set() -> Iterator[None]:
    """Commands that other tests ran in this process have set one."""
    library = logging.getLogger("recsys")
    before = library.level
    library.setLevel(logging.NOTSET)
    yield
    library.setLevel(before)


def test_the_log_is_shown_where_no_logging_is_set_up(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(logging.getLogger(), "handlers", [])
    with shown_log():
        logger.info("chosen: %s", "a\x1b[31m")
    logger.info("after")
    said = capsys.readouterr().err
    assert "chosen: a" in said
    assert "\x1b[31m" not in said
    assert "after" not in said


def test_logging_that_a_program_has_set_up_is_left_alone(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(logging.getLogger(), "handlers", [logging.NullHandler()])
    with shown_log():
        logger.info("chosen")
    assert not capsys.readouterr().err


def test_a_call_is_written_as_code() -> None:
    given = {"items": None, "time_limit": "30m", "where": "kind == 'sale'", "seed": None}
    call = "recsys.fit('a.csv', time_limit='30m', where=\"kind == 'sale'\")"
    assert _as_call("a.csv", given) == call
    assert _as_call(pl.DataFrame(), {"items": {"a": 1}}) == "recsys.fit(log, items=items)"
