"""What DuckDB does silently with logs of strangers, and this library does not."""

from __future__ import annotations

import time
from datetime import datetime
from pathlib import Path

import duckdb
import numpy as np
import polars as pl
import pytest
import yaml

import recsys
from recsys.data.tables import open_table
from recsys.data.where import keep_where
from recsys.errors import InputError
from tests.read_logs import read

LOG = pl.DataFrame({"user_id": [1, 1, 1, 2], "item_id": [5, 6, 7, 5], "timestamp": [1, 2, 3, 4]})

ATTACKS = [
    "price in (select content from read_text('/etc/hostname'))",
    "price = (select 1)",
    "exists(select 1 from read_csv('/etc/passwd'))",
    "price > any(select 1)",
    "1 = 1) from read_text('/etc/hostname') --",
    "price > 1 union select true",
    "true; drop table staged",
    "price > 1; copy (select 1) to '/tmp/stolen'",
    "price > 1 from given",
    "price > 1 limit 1",
    "* > 1",
    "price > ?",
    "read_text('/etc/hostname') is null",
    "system.main.lower(kind) = 'x'",
    "getenv('HOME') = 'x'",
    "current_setting('threads') > 0",
    "now() > date '2020-01-01'",
    "current_date > date '2020-01-01'",
    "age(date '2020-01-01') > interval 1 day",
    "json_serialize_plan('select 1') = 'x'",
    "__internal_decompress_string(1) = 'x'",
    "to_json(price) = 'x'",
    "price > avg(price)",
    "random() > .5",
    "sleep_ms(100000) = 1",
    "error('x')",
    "repeat('x', 4000000000) = 'x'",
    "printf('%1000000000d', 1) = 'x'",
    "list_transform([1], x -> x) = [1]",
    "given.price > 1",
    "rowid > 1",
]


@pytest.mark.parametrize("where", ATTACKS)
def test_a_condition_is_an_expression_over_columns(where: str) -> None:
    table = pl.DataFrame({"price": [1, 2], "kind": ["a", "b"]})
    with pytest.raises(InputError, match=r"^data\.where ") as refusal:
        keep_where(table, where, "the log")
    assert "\n" not in str(refusal.value)


def test_the_database_itself_reads_no_other_path(tmp_path: Path) -> None:
    """Also without the gate: what a condition may not say, its database would not do."""
    LOG.write_csv(tmp_path / "log.csv")
    table = open_table(tmp_path / "log.csv")
    attacks = {
        "select * from read_text('/etc/hostname')": "disabled by configuration",
        "select * from read_csv('/etc/passwd')": "disabled by configuration",
        "select * from glob('/etc/*')": "disabled by configuration",
        "set enable_external_access = true": "locked",
        "set allowed_paths = ['/etc/hostname']": "locked",
        "install httpfs": ".",
    }
    for attack, says in attacks.items():
        with pytest.raises(duckdb.Error, match=says):
            table.connection.execute(attack)


def test_memory_that_is_exhausted_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("recsys.data.database._LEAST_MEMORY", 1 << 23)
    numbers = np.arange(100_000)
    log = pl.DataFrame({"user_id": numbers // 4, "item_id": numbers % 9, "timestamp": numbers})
    with pytest.raises(InputError, match=r"the frame: .* the memory that it may take: allow more"):
        recsys.prepare(log, out=tmp_path / "out", memory=1)
    assert not (tmp_path / "out").exists()


def test_times_are_the_same_in_every_zone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also those that are no times there, since clocks change."""
    monkeypatch.setenv("TZ", "America/New_York")
    time.tzset()
    try:
        times = yaml.safe_load((Path(__file__).parents[1] / "logs" / "times.yaml").read_text())
        forms = [*times["found"].items()][::4]
        for written in (times["iso"], *({text: moment} for text, (_, moment) in forms)):
            moments = [datetime.fromisoformat(f"{moment}+00:00") for moment in written.values()]
            log = (
                LOG.head(1)
                .drop("timestamp")
                .join(pl.DataFrame({"timestamp": [*written]}), how="cross")
            )
            expected = sorted(int(moment.timestamp()) for moment in moments)
            assert read(log).table()["timestamp"].to_list() == expected, written
        skipped = LOG.head(1).with_columns(timestamp=pl.datetime(2024, 3, 10, 2, 30))
        skipped.write_parquet(tmp_path / "log.parquet")
        for source in (skipped, skipped.to_pandas(), tmp_path / "log.parquet"):
            assert read(source).table()["timestamp"].to_list() == [1_710_037_800]
    finally:
        monkeypatch.undo()
        time.tzset()


@pytest.mark.parametrize(("parts", "memory"), [(0, None), (1, None), (7, "128MiB")])
def test_ties_follow_the_order_of_the_file(parts: int, memory: str | None, tmp_path: Path) -> None:
    """With enough rows for several threads, which keep no order of rows whose text they strip."""
    rows = 400_000
    numbers = np.arange(rows)
    users = [f"u{100 + user}" for user in numbers * 7919 % 97]
    log = pl.DataFrame({"user_id": users, "item_id": numbers, "timestamp": 0})
    (tmp_path / "log").mkdir()
    for number in range(parts):
        share = log[number * rows // parts : (number + 1) * rows // parts]
        share.write_csv(tmp_path / "log" / f"{number}.csv")
    source = tmp_path / "log" if parts else log
    found = recsys.prepare(source, out=tmp_path / "out", memory=memory, split="user_holdout")
    ids = found.item_table["item_id"].to_numpy()
    items = found.items[: found.offsets[5]]
    inside = items > 0
    expected = np.concatenate([numbers[numbers * 7919 % 97 == user] for user in range(5)])
    np.testing.assert_array_equal(ids[items[inside] - 1], expected[inside])


def test_no_rule_depends_on_how_a_log_is_divided(tmp_path: Path) -> None:
    """Each part alone would be of other types, and its dates of another form."""
    texts = [
        "user_id,item_id,timestamp,price\n7,1,01/02/2024,1\n7,2,02/02/2024,\n",
        "user_id,item_id,timestamp,price\n7.0,3,03/13/2024,2.5\n8,4,03/14/2024,\n",
        "user_id,item_id,timestamp,price\n8.0,x,2024-03-15,3\n",
    ]
    (tmp_path / "log").mkdir()
    for number, text in enumerate(texts):
        (tmp_path / "log" / f"{number}.csv").write_text(text)
    lines = texts[0] + "".join(text.partition("\n")[2] for text in texts[1:])
    (tmp_path / "log.csv").write_text(lines)
    whole, divided = (
        recsys.prepare(tmp_path / name, out=tmp_path / f"{name}-out", where="price is not null")
        for name in ("log.csv", "log")
    )
    assert whole.fingerprint == divided.fingerprint
    assert whole.manifest.log_fingerprint == divided.manifest.log_fingerprint
    assert whole.user_ids.to_list() == [7, 8]
