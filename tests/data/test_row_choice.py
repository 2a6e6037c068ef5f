"""Conditions, earliest times and minimums: which rows remain, and every row is accounted for."""

from __future__ import annotations

import json
import re
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import polars as pl
import pytest

import recsys
from recsys.config.data import Columns, DataConfig, GlobalTime
from recsys.data.prepared import PreparedDataset, prepare
from recsys.data.where import keep_where
from recsys.errors import InputError
from tests.helpers.terminal import Terminal

DROPS = """user_id,item_id,timestamp,event
1,1,2024-01-01,view
1,2,2024-01-01,purchase

1,2,2024-01-03,purchase
1,2,2024-01-04,purchase
2,NULL,2024-01-03,purchase
2,2,2024-01-03,purchase
2,3,2024-01-04,purchase
1,3,2024-01-05,purchase
3,9,2024-01-04,purchase
4,2,2024-01-06,purchase
1,2,2024-01-09,purchase
"""
"""A row for each reason to drop one, in the order of the lines."""


def test_every_row_of_the_file_is_counted(tmp_path: Path) -> None:
    (tmp_path / "log.csv").write_text(DROPS)
    dataset = recsys.prepare(
        tmp_path / "log.csv",
        DataConfig(where={"no item": "item_id is not null", "where": "event == 'purchase'"}),
        tmp_path / "out",
        since="2024-01-02",
        user_minimum=2,
        item_minimum=2,
        duplicates="first",
        split=GlobalTime(valid_from="2024-01-04", test_from="2024-01-05", test_until="2024-01-09"),
    )
    manifest = dataset.manifest
    reasons = ("no item", "where", "since", "test_until", "duplicates")
    minimums = ("min_item_interactions", "min_user_interactions")
    assert manifest.dropped == dict.fromkeys(reasons + minimums, 1)
    assert (manifest.counts["rows_read"], manifest.counts["interactions"]) == (11, 4)


def test_missing_ids_among_texts_are_dropped_by_name(tmp_path: Path) -> None:
    """As the refusal of such ids says."""
    (tmp_path / "log.csv").write_text("user_id,sku,ts\n1,hat,1\n1, NULL ,2\n1,socks,3\n")
    with pytest.raises(InputError, match="an id is missing") as refused:
        recsys.prepare(tmp_path / "log.csv", out=tmp_path / "out")
    where = re.findall(r"--where '(.*?)'", str(refused.value))[0]
    dataset = recsys.prepare(tmp_path / "log.csv", out=tmp_path / "out", where=where)
    assert dataset.manifest.dropped == {"where": 1}


@pytest.mark.parametrize("zone", [None, "UTC"])
@pytest.mark.parametrize(
    "where", ["t < '2024-02-01 00:00:00'", "day < '2024-01-31 12:00'", "ok != 'True'"]
)
def test_text_beside_times_is_a_time(where: str, zone: str | None) -> None:
    days = pl.Series([datetime(2024, 1, 31), datetime(2024, 2, 1)], dtype=pl.Datetime("us", zone))
    table = pl.DataFrame({"t": days, "day": days.dt.date(), "ok": [False, True]})
    assert keep_where(table, where, "log").equals(table.head(1))


def test_a_number_is_no_earliest_date(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    log = pl.DataFrame({"user_id": [1, 1], "item_id": [1, 2], "date": ["20231230", "20240105"]})
    with pytest.raises(InputError, match="data.since: 20240101 is no date"):
        recsys.prepare(log, out=tmp_path / "out", since=20240101)
    serial = log.with_columns(date=pl.Series([45290.25, 45296.5]))  # days of a spreadsheet
    until = GlobalTime(test_until="2024-01-01")
    with pytest.raises(InputError, match="data.test_until: 2024-01-01 is a date, the log's times"):
        recsys.prepare(serial, out=tmp_path / "out", split=until)
    assert "column 'date': fractions of times count for the order" in caplog.text
    days = pl.DataFrame({"date": ["30.12.2023", "05.01.2024"], "time": [1830, 930]})
    log = log.drop("date").hstack(days)
    with pytest.raises(InputError, match="which column is the time, date or time"):
        recsys.prepare(log, out=tmp_path / "out")


def test_conditions_and_times_are_settings_of_the_dataset(tmp_path: Path) -> None:
    out = tmp_path / "out"
    plain = prepare(FRAME, out=out)
    assert not {"where", "since", "header"} & plain.manifest.settings.keys(), "as before they were"
    chosen = prepare(FRAME, out=out, where="sku <> 'b'")
    assert chosen.fingerprint != plain.fingerprint
    assert chosen.config.where == "sku <> 'b'"
    dated = FRAME.with_columns(pl.col("bought_at") + 1_700_000_000)
    prepare(dated, out=out, since=datetime(2023, 11, 14, 22, 13, 23, tzinfo=UTC))
    late = PreparedDataset.open(out)
    assert (late.manifest.counts["interactions"], late.manifest.dropped["since"]) == (2, 2)
    assert late.config.since == "2023-11-14T22:13:23+00:00"


FRAME = pl.DataFrame(
    {"customer": [1, 1, 1, 2], "sku": ["a", "b", "c", "a"], "bought_at": [1, 2, 3, 4], "n": 1}
)


def test_words_are_settings_and_win_over_the_config(tmp_path: Path) -> None:
    config = DataConfig(min_user_interactions=3, columns=Columns(user_id="customer"))
    dataset = prepare(
        FRAME,
        config,
        tmp_path / "out",
        item="sku",
        time="bought_at",
        where="n = 1",
        since=2,
        user_minimum=2,
        item_minimum=1,
        keep=["n"],
        split="leave_last_out",
    )
    assert dataset.user_ids.to_list() == [1]
    config = dataset.config
    assert config.columns == Columns(user_id="customer", item_id="sku", timestamp="bought_at")
    assert (config.where, config.since, config.min_user_interactions) == ("n = 1", 2, 2)
    assert (config.keep, config.min_item_interactions) == (("n",), 1)
    split = prepare(FRAME, out=tmp_path / "s", split=GlobalTime(test_fraction=0.25))
    assert split.config.split == GlobalTime(test_fraction=0.25)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ({"user_minimum": 0}, "min_user_interactions: input should be greater than"),
        ({"since": "soon"}, "since: a time must be a number or an ISO 8601 date"),
        ({"split": "last"}, "data: split: the kind must be 'leave_last_out'"),
        ({"customer": "x"}, "customer: no such setting of a log; they are user, item, time"),
    ],
)
def test_wrong_words(words: dict[str, Any], message: str, tmp_path: Path) -> None:
    with pytest.raises(InputError) as caught:
        prepare(FRAME, out=tmp_path / "out", **words)
    assert message in str(caught.value)
    assert not (tmp_path / "out").exists()


@pytest.fixture
def terminal(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Terminal:
    monkeypatch.chdir(tmp_path)
    return Terminal(monkeypatch, capsys)


def test_the_options_of_prepare(terminal: Terminal, tmp_path: Path) -> None:
    Path("log.csv").write_text(DROPS.partition("\n")[2])
    options = ["--no-header", "--user", "1", "--item", "2", "--time", "3"]
    rules = ["--since", "2024-01-03", "--user-minimum", "2", "--item-minimum", "1"]
    conditions = {"no item": '"2" is not null', "where": "\"4\" != 'view'"}
    where = ["--set", f"data.where={json.dumps(conditions)}"]
    words = ["prepare", "log.csv", "--out", "out", *options, *rules, *where]
    status, out, err = terminal(*words, "--json")
    assert status == 0, err
    (row,) = json.loads(out)
    assert row["rows_read"] == 11
    assert row["dropped"] == {"no item": 1, "where": 1, "since": 1, "min_user_interactions": 2}
    assert row["interactions"] == 6
