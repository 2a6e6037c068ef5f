"""A log prepared in many parts on disk is, to the byte, the dataset that is prepared at once."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest

from recsys.config import (
    Columns,
    DataConfig,
    DropRows,
    GlobalTime,
    LeaveLastBasketOut,
    UserHoldout,
)
from recsys.data.engines import Engine
from recsys.data.prepared import PreparedDataset, prepare
from recsys.errors import InputError

TINY = 40_000
"""Bytes: 17 to 52 of the rows at a time."""


def random_log(seed: int, rows: int = 240, text: bool = False) -> pl.DataFrame:
    rng = np.random.default_rng(seed)
    log = pl.DataFrame(
        {
            "user_id": rng.integers(14, size=rows),
            "item_id": (rng.random(rows) ** 2 * 20).astype(int),
            "timestamp": rng.integers(60, size=rows) * 10 - 100,
            "price": rng.integers(50, size=rows) / 4,
            "kind": rng.choice(["buy", "view", "return"], size=rows),
            "line": rng.integers(5, size=rows),
        }
    ).with_columns(price=pl.when(pl.col("price") > 1).then("price"))
    if not text:
        return log
    return log.with_columns(
        user_id=pl.format("Ü{}", "user_id"),
        item_id=pl.format(" {}", pl.col("item_id") + 5),
        tags=pl.col("kind").str.split("e"),
    )


def same_files(first: PreparedDataset, second: PreparedDataset) -> None:
    names = {path.name for path in first.path.iterdir()}
    assert {path.name for path in second.path.iterdir()} == names
    for name in sorted(names):
        assert (first.path / name).read_bytes() == (second.path / name).read_bytes(), name


def both(log: Any, folder: Path, config: DataConfig, **tables: Any) -> PreparedDataset:
    parts = prepare(log, config, folder / "parts", memory=TINY, **tables)
    whole = prepare(log, config, folder / "whole", **tables)
    same_files(whole, parts)
    assert {path.name for path in folder.iterdir()} - {"source.csv"} == {"parts", "whole"}
    return parts


SETTINGS: dict[str, dict[str, Any]] = {
    "nothing": {},
    "position": {"columns": {"position": "line"}},
    "drop": {
        "drop": (
            DropRows(reason="returns", column="kind", matches="^ret"),
            DropRows(reason="free", column="price", missing=True),
        )
    },
    "where": {"where": "price > 3.5 and kind <> 'view'"},
    "where with an average": {"where": "price > avg(price)"},
    "since": {"since": 50},
    "keep": {"keep": ("price", "kind", "line")},
    "sessions": {"session_gap": 40, "keep": ("kind",)},
    "sessions and core": {"session_gap": 60, "k_core": True, "min_user_interactions": 3},
    "exact duplicates": {"duplicates": "drop_exact"},
    "first": {"duplicates": "first", "min_user_interactions": 2},
    "last": {"duplicates": "last", "session_gap": 100},
    "minimums": {"min_user_interactions": 14, "min_item_interactions": 12},
    "core": {"min_user_interactions": 14, "min_item_interactions": 5, "k_core": True},
    "baskets": {"split": LeaveLastBasketOut()},
    "dates": {"split": GlobalTime(valid_from=300, test_from=400, test_until=450)},
    "fractions": {"split": GlobalTime(), "min_item_interactions": 20},
    "users": {"split": UserHoldout(), "keep": ("line",)},
}


@pytest.mark.parametrize("settings", SETTINGS.values(), ids=SETTINGS)
@pytest.mark.parametrize("text", [False, True], ids=["numbers", "text"])
def test_every_setting(settings: dict[str, Any], text: bool, tmp_path: Path) -> None:
    config = DataConfig.model_validate(settings)
    both(random_log(3, text=text), tmp_path, config)


def test_tables_may_name_ids_as_a_log_whose_columns_are_guessed(tmp_path: Path) -> None:
    log = random_log(3, text=False).select("user_id", "item_id", "timestamp")
    log = log.rename({"user_id": "userId", "item_id": "movieId", "timestamp": "ts"})
    items = pl.DataFrame({"movieId": log["movieId"].unique().sort()}).with_row_index("genre")
    users = pl.DataFrame({"userId": log["userId"].unique().sort()}).with_row_index("age")
    found = both(log, tmp_path, DataConfig(), items=items, users=users)
    assert found.item_table["genre"].null_count() == 0
    assert found.user_table["age"].null_count() == 0


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("kind", ["csv", "csv.gz", "parquet", "folder"])
def test_files(kind: str, seed: int, tmp_path: Path) -> None:
    log = random_log(seed, text=bool(seed % 2))
    (tmp_path / "source.csv").mkdir()
    path = tmp_path / "source.csv" / f"log.{kind}"
    if kind == "parquet":
        log.write_parquet(path)
    elif kind == "folder":
        path.mkdir()
        for part in range(3):
            log[part * 80 : part * 80 + 80].write_parquet(path / f"{part}.parquet")
    else:
        flat = log.select(pl.exclude("tags")) if "tags" in log.columns else log
        flat.write_csv(path, compression="gzip" if kind == "csv.gz" else "uncompressed")
    config = DataConfig(keep=("price",), where="price >= 2", split=GlobalTime())
    found = both(str(path), tmp_path, config)
    assert found.manifest.dropped["where"] > 0


TEXTS: dict[str, dict[str, list[str]]] = {
    "whole floats": {"user_id": ["7.0", "07.0", "12.0"], "item_id": ["3.0", "4.0"]},
    "mixed ids": {"user_id": ["7", "7.0", " 8 "], "item_id": ["007", "7"]},
    "text ids": {"user_id": ["7.0", "8.0", "C"], "item_id": ["7.0", "007"]},
    "dates": {"timestamp": ["2024-01-05", "2024-01-05 10:00:03.5", "2024-01-06T00:00+02:00"]},
    "floats": {"timestamp": ["3", "4.5", "1e2"]},
    "numbers with zeros": {"timestamp": ["007", "5", "12"]},
}


@pytest.mark.parametrize("columns", TEXTS.values(), ids=TEXTS)
def test_types_are_those_of_the_whole_column(columns: dict[str, list[str]], tmp_path: Path) -> None:
    """The odd value comes last, in a part of its own."""
    log = random_log(1).cast(pl.String)
    for name, (*_, odd) in columns.items():
        usual = columns[name][0]
        several = pl.Series(
            [*columns[name] * 80][:230] if len(columns[name]) > 2 else [usual] * 230
        )
        values = pl.concat([several, pl.Series([odd] * 10)])
        log = log.with_columns(values.alias(name))
    log = log.with_columns(
        line=pl.when(pl.int_range(240) > 230).then(pl.lit(None)).otherwise("line")
    )
    path = tmp_path / "source.csv"
    log.write_csv(path)
    both(str(path), tmp_path, DataConfig(keep=("line", "price")))


@pytest.mark.parametrize(
    ("odd", "words"),
    [
        (["7.0", "9", "9.0", "C"], "has both '7' and '7.0', which may be one id"),
        (["1.23457E+11", "8,9E+12", "8,9E+12", "C"], "'1.23457E+11' is a long number"),
        (["8.9E+12", "8.9E+12", "8.9E+12", "12"], "'8.9E+12' is a long number"),
    ],
)
def test_an_id_that_may_be_another_is_refused_as_in_memory(
    odd: list[str], words: str, tmp_path: Path
) -> None:
    log = random_log(1).with_columns(pl.format("{}", "item_id").alias("item_id"))
    log = log.with_columns(pl.concat([log["item_id"].head(236), pl.Series(odd)]))
    messages = []
    for memory in (TINY, None):
        with pytest.raises(InputError) as caught:
            prepare(log, DataConfig(), tmp_path / "out", memory=memory)
        messages.append(str(caught.value))
    assert messages[0] == messages[1]
    assert f"column 'item_id': {words}" in messages[0]


def test_codes_that_are_like_rounded_numbers(tmp_path: Path) -> None:
    log = random_log(1).with_columns(pl.format("{}", "item_id").alias("item_id"))
    odd = pl.Series(["1E5", "1.5E+07", "C", "1.5E+02"])
    log = log.with_columns(pl.concat([log["item_id"].head(236), odd]))
    assert both(log, tmp_path, DataConfig()).manifest.counts["interactions"] == len(log)


def test_dates_of_another_form(tmp_path: Path) -> None:
    times = pl.from_epoch("timestamp").dt.strftime("%m/%d/%Y %H:%M:%S")
    log = random_log(2).with_columns(times)
    config = DataConfig(
        time_format="%m/%d/%Y %H:%M:%S", where="timestamp like '01/01/%'", keep=("line",)
    )
    found = both(log, tmp_path, config)
    plain = prepare(random_log(2).filter(pl.col("timestamp") >= 0), out=tmp_path / "plain")
    assert found.timestamps.tolist() == plain.timestamps.tolist()


def test_types_of_frames(tmp_path: Path) -> None:
    times = pl.from_epoch("timestamp", time_unit="s").dt.replace_time_zone("Europe/Berlin")
    log = random_log(5).with_columns(times, pl.col("price").cast(pl.Decimal(8, 2)))
    log = log.with_columns(pl.col("line").replace(3, None), pl.col("user_id").cast(pl.Float64))
    both(log, tmp_path, DataConfig(keep=("price", "line"), split=GlobalTime()))
    both(log.to_pandas(), tmp_path, DataConfig(keep=("kind",)))


@pytest.mark.parametrize("role", ["timestamp", "position"])
def test_decimals_of_which_one_part_alone_has_fractions(role: str, tmp_path: Path) -> None:
    tenth = pl.when(pl.int_range(240) > 230).then(0.5).otherwise(0.0)
    times = (pl.col("timestamp") + tenth).cast(pl.Decimal(12, 1)).alias(role)
    columns = {"position": role} if role == "position" else {}
    both(
        random_log(5).with_columns(times), tmp_path, DataConfig.model_validate({"columns": columns})
    )


def test_a_condition_reads_the_rows_that_no_rule_drops(tmp_path: Path) -> None:
    unpriced = pl.when(pl.col("kind") == "return").then(pl.lit("none")).otherwise("price")
    log = (
        random_log(4)
        .with_columns(pl.col("price").cast(pl.String))
        .with_columns(unpriced.alias("price"))
    )
    returns = DropRows(reason="returns", column="kind", matches="^ret")
    found = both(log, tmp_path, DataConfig(drop=(returns,), where="price > 3.5"))
    assert found.manifest.dropped["where"] > 0


def test_features_of_items_and_users(tmp_path: Path) -> None:
    items = pl.DataFrame({"item_id": range(15), "name": [f"item {n}" for n in range(15)]})
    users = pl.DataFrame({"user_id": range(3, 15), "age": range(12)})
    config = DataConfig(session_gap=50)
    found = both(random_log(2), tmp_path, config, items=items, users=users)
    assert found.user_table["age"].drop_nulls().n_unique() > 5


@pytest.mark.parametrize(
    ("column", "value", "words"),
    [
        ("user_id", "NULL", "data row 231: an id is missing"),
        ("timestamp", "soon", "data row 231: neither a number nor an ISO 8601 date"),
        ("timestamp", "", "data row 231: a value is missing"),
    ],
)
def test_errors_name_the_row(column: str, value: str, words: str, tmp_path: Path) -> None:
    odd = pl.when(pl.int_range(240) == 230).then(pl.lit(value)).otherwise(column).alias(column)
    path = tmp_path / "log.csv"
    random_log(4).cast(pl.String).with_columns(odd).write_csv(path)
    messages = []
    for memory in (TINY, None):
        with pytest.raises(InputError, match=words) as caught:
            prepare(str(path), out=tmp_path / "out", memory=memory)
        messages.append(str(caught.value))
    assert messages[0] == messages[1]
    assert {file.name for file in tmp_path.iterdir()} == {"log.csv"}


@pytest.mark.parametrize("engine", ["memory", "disk"])
def test_a_column_with_two_roles_is_refused(engine: Engine, tmp_path: Path) -> None:
    columns = Columns(item_id="line", position="line")
    with pytest.raises(InputError, match="column 'line' cannot be both item_id and position"):
        prepare(random_log(4), DataConfig(columns=columns), tmp_path / "out", engine=engine)


@pytest.mark.parametrize(
    "settings", [{"where": "price > 99"}, {"min_user_interactions": 99}, {"since": 10**9}]
)
def test_nobody_left(settings: dict[str, Any], tmp_path: Path) -> None:
    messages = []
    for memory in (TINY, "1 GiB"):
        with pytest.raises(InputError) as caught:
            prepare(random_log(4), DataConfig(**settings), tmp_path / "out", memory=memory)
        messages.append(str(caught.value))
    assert messages[0] == messages[1]


@pytest.mark.parametrize("memory", ["many", "0", "-3GB", "4 XiB"])
def test_memory_is_a_number_of_bytes(memory: str, tmp_path: Path) -> None:
    with pytest.raises(InputError, match="must be a number of bytes such as 4GiB"):
        prepare(random_log(4), out=tmp_path / "out", memory=memory)


KILLED = """
import os, signal, sys
from recsys.data.on_disk import preparation
from recsys.data.prepared import prepare
preparation.filter_sorted = lambda *_: os.kill(os.getpid(), signal.SIGKILL)
prepare(sys.argv[1], out=sys.argv[2], memory=40_000)
"""


def test_a_kill_loses_nothing_and_leaves_nothing(tmp_path: Path) -> None:
    log, out = tmp_path / "log.parquet", tmp_path / "out"
    random_log(6).write_parquet(log)
    before = prepare(random_log(7), out=out).fingerprint
    killed = subprocess.run([sys.executable, "-c", KILLED, str(log), str(out)], check=False)
    assert killed.returncode == -signal.SIGKILL
    assert PreparedDataset.open(out).fingerprint == before
    assert len(list(tmp_path.iterdir())) == 3, "the killed process left its work"
    prepare(str(log), out=out, memory=TINY)
    assert {path.name for path in tmp_path.iterdir()} == {"log.parquet", "out"}
