"""Histories of a raw log: the bundle reads what the dataset was prepared of."""

from __future__ import annotations

import tempfile
from datetime import UTC, datetime, timedelta
from itertools import pairwise
from pathlib import Path
from typing import Any

import polars as pl
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from recsys.config.data import Columns, DataConfig, GlobalTime
from recsys.data.prepared import Vocabulary, prepare
from recsys.errors import InputError
from recsys.serving.candidates import read_candidates
from recsys.serving.histories import HistoryReader, UserHistories
from tests.helpers.logs import log_of_columns

VIEWS = {"views": "event is null or event <> 'view'"}
RULES = [*VIEWS.items(), ("no event", "event is not null"), ("returns", "quantity >= 1")]
BOUGHT, SOLD = "event = 'buy'", "quantity > 0 or event is null"
RENAMED = Columns(user_id="who", item_id="what", timestamp="at")
BEGIN = datetime(2024, 1, 1, tzinfo=UTC)
SPLITS = ["leave_last_out", "leave_last_basket_out", "user_holdout", "global_time"]

DRAWN: dict[str, st.SearchStrategy[Any]] = {
    "columns": st.sampled_from(
        [None, RENAMED, Columns(position="line"), RENAMED.model_copy(update={"position": "line"})]
    ),
    "where": st.sampled_from([None, BOUGHT, SOLD])
    | st.sets(st.sampled_from(RULES), min_size=1).map(dict),
    "time_format": st.sampled_from([None, "%d.%m.%Y %H:%M:%S"]),
    "since": st.none() | st.integers(0, 10),
    "keep": st.sampled_from([(), ("quantity",)]),
    "session_gap": st.none() | st.integers(1, 8),
    "duplicates": st.sampled_from(["keep", "drop_exact", "first", "last"]),
    "min_user_interactions": st.integers(1, 2),
    "min_item_interactions": st.integers(1, 2),
    "k_core": st.booleans(),
    "split": st.sampled_from(SPLITS),
}
NOT_OF_A_HISTORY = {"source", "header", "encoding"}
"""Settings that say where the log is, and how it is written."""


def rows(size: int = 25) -> st.SearchStrategy[list[tuple[Any, ...]]]:
    row = st.tuples(
        st.integers(1, 11),  # users; as text, "u10" comes before "u2"
        st.sampled_from("abcd"),
        st.integers(0, 30),
        st.sampled_from(["buy", "view", None]),
        st.integers(0, 3),
    )
    return st.lists(row, min_size=8, max_size=size)


def raw_log(
    drawn: list[tuple[Any, ...]], times: str, ids: str, form: str | None = None
) -> pl.DataFrame:
    schema = ["user_id", "item_id", "timestamp", "event", "quantity"]
    log = pl.DataFrame(drawn, schema=schema, orient="row", infer_schema_length=None)
    dates = [BEGIN + timedelta(seconds=time) for time in log["timestamp"]]
    forms: dict[str, Any] = {
        "integers": log["timestamp"],
        "numbers": log["timestamp"] + 0.5,
        "dates": dates,
        "text": [date.strftime(form) if form else date.isoformat() for date in dates],
    }
    line = pl.Series(range(len(log) - 1, -1, -1))
    return log.with_columns(
        pl.Series("timestamp", forms[times]),
        pl.col("event").cast(pl.String),
        pl.col("user_id") if ids == "integers" else pl.format("u{}", "user_id"),
        line=line,
    )


def kept_times(log: pl.DataFrame, data: DataConfig) -> dict[Any, list[int]]:
    """The times of each user's rows that no rule drops, ascending: written once more, plainly."""
    times: dict[Any, list[int]] = {}
    rules = data.where if isinstance(data.where, dict) else {}
    for row, time in zip(log.to_dicts(), log["second"], strict=True):
        dropped = (
            ("views" in rules and row["event"] == "view")
            or ("no event" in rules and row["event"] is None)
            or ("returns" in rules and row["quantity"] < 1)
            or (data.where == BOUGHT and row["event"] != "buy")
            or (data.where == SOLD and not (row["quantity"] > 0 or row["event"] is None))
        )
        if not dropped:
            times.setdefault(row["user_id"], []).append(time)
    return {user: sorted(seconds) for user, seconds in times.items()}


def newest_session(times: list[int], gap: int | None) -> str:
    if gap is None:
        return ""
    later = sum(b - a > gap for a, b in pairwise(times))
    return f"#{1 + later}"


def history(read: UserHistories, user: int) -> list[tuple[int, int]]:
    one = read.histories[user : user + 1]
    assert one.times is not None
    return list(zip(one.items.tolist(), one.times.tolist(), strict=True))


@settings(max_examples=10)
@given(
    drawn=rows(),
    data=st.fixed_dictionaries(DRAWN).map(lambda fields: DataConfig(**fields)),
    times=st.sampled_from(["integers", "numbers", "dates", "text"]),
    ids=st.sampled_from(["integers", "text"]),
    plain=st.booleans(),
)
def test_a_raw_log_gives_the_histories_of_the_dataset(
    drawn: list[tuple[Any, ...]], data: DataConfig, times: str, ids: str, plain: bool
) -> None:
    if times != "text":
        data = data.model_copy(update={"time_format": None})
    if isinstance(data.since, int) and times in ("dates", "text"):
        data = data.model_copy(update={"since": BEGIN.timestamp() + data.since})
    log = raw_log(drawn, times, ids, data.time_format)
    names = {"user_id": "who", "item_id": "what", "timestamp": "at"}
    trained = log.rename(names) if data.columns and data.columns.user_id == "who" else log
    seconds = log.with_columns(second=pl.Series([row[2] for row in drawn]))
    with tempfile.TemporaryDirectory() as folder:
        try:
            dataset = prepare(trained, data, Path(folder, "data"))
        except InputError:
            assume(False)
        reader = HistoryReader(dataset.config, dataset.vocabulary, dataset=dataset)
        read = reader.read(log if plain else trained)
        known = set(dataset.user_ids)
        users = {
            user: str(user) + session if (session := newest_session(of, data.session_gap)) else user
            for user, of in kept_times(seconds, data).items()
        }
        assert read.user_ids.to_list() == sorted(set(log["user_id"]))
        for number, user in enumerate(read.user_ids):
            if users.get(user) in known:  # else filtered for its rarity
                assert history(read, number) == history(reader.read(users=[users[user]]), 0)


def test_every_setting_of_data_is_drawn() -> None:
    """A new setting either changes histories, and must be drawn, or it does not."""
    assert DRAWN.keys() | NOT_OF_A_HISTORY == set(DataConfig.model_fields)


CATALOGUE = Vocabulary(pl.Series(["a", "b", "c"]))


def read(log: pl.DataFrame, **fields: Any) -> UserHistories:
    return HistoryReader(DataConfig(**fields), CATALOGUE).read(log)


def test_views_are_no_purchases() -> None:
    log = log_of_columns([7, 7, 7, 5], ["a", "b", "c", "a"], [1, 2, 3, 4])
    log = log.with_columns(event=pl.Series(["buy", "view"] * 2))
    found = read(log, where=VIEWS)
    assert found.user_ids.to_list() == [5, 7]
    assert found.histories.offsets.tolist() == [0, 0, 2]
    assert found.histories.items.tolist() == [1, 3]
    for nothing in ({"since": 9}, {"where": "event = 'return'"}):
        nobody = read(log, **nothing)
        assert nobody.user_ids.to_list() == [5, 7]
        assert nobody.histories.lengths.tolist() == [0, 0]


def test_a_user_whose_rows_are_dropped_may_be_text_among_numbers(tmp_path: Path) -> None:
    """The rows that are left have numbers, of which 9 comes before 10."""
    rows, file = ["user_id,item_id,timestamp", "9,a,1", "10,c,2", "9,b,3"], tmp_path / "log.csv"
    file.write_text("\n".join([*rows, "guest,a,4"]))
    reader = HistoryReader(DataConfig(where="user_id <> 'guest'"), CATALOGUE)
    found = reader.read(file)
    assert found.user_ids.to_list() == ["10", "9", "guest"]
    assert found.histories.offsets.tolist() == [0, 1, 3, 3]
    assert found.histories.items.tolist() == [3, 1, 2]
    file.write_text("\n".join([*rows, "guest,a,4"]).replace("9,", "9.0,"))
    with pytest.raises(InputError, match="log.csv: user ids are numbers.*such as 'guest'"):
        reader.read(file)


def test_a_missing_column_of_a_rule_is_refused_by_name() -> None:
    log = pl.DataFrame({"user_id": [7], "item_id": ["a"], "timestamp": [1]})
    with pytest.raises(InputError, match="no column 'event'.*the columns of histories") as error:
        read(log, where=VIEWS)
    assert "\n" not in str(error.value)
    lists = HistoryReader(DataConfig(where=VIEWS), CATALOGUE).read({7: ["a"]})
    assert lists.histories.items.tolist() == [1]
    with pytest.raises(InputError, match="histories: user '1' has two"):
        HistoryReader(DataConfig(), CATALOGUE).read({1: ["a"], "1": ["b"]})


def test_new_items_without_times_come_after_the_past(tmp_path: Path) -> None:
    log = log_of_columns([5, 5, 5, 7, 7, 7], list("abcabc"), range(6))
    dataset = prepare(log, out=tmp_path / "data")
    reader = HistoryReader(dataset.config, dataset.vocabulary, dataset=dataset)
    found = reader.read([["a"], ["b"]], users=[5, 7], times=[[9], None]).histories
    assert found.items.tolist() == [1, 2, 1, 1, 2, 2]


def test_the_tenth_session_is_newer_than_the_ninth() -> None:
    log = log_of_columns(["u"] * 11 + ["u!"], ["a"] * 10 + ["c", "b"], range(0, 120, 10))
    found = read(log, session_gap=5)
    assert found.user_ids.to_list() == ["u", "u!"]
    assert found.histories.items.tolist() == [3, 2]


def test_rows_after_the_end_of_the_split_are_read() -> None:
    log = pl.DataFrame({"user_id": [7, 7], "item_id": ["a", "b"], "timestamp": [1, 9]})
    split = GlobalTime(test_from=3, valid_from=2, test_until=5)
    assert read(log, split=split).histories.items.tolist() == [1, 2]


@pytest.mark.parametrize("form", ["text", "numbers"])
def test_ids_with_zeros_behind_a_point_are_those_of_the_dataset(form: str, tmp_path: Path) -> None:
    """As pandas writes integers if some of them are missing."""
    log = log_of_columns([12, 12, 12, 7, 7, 7], [1, 2, 3, 3, 2, 1], range(6))
    pointed = log.with_columns(pl.col("user_id", "item_id").cast(pl.Float64))
    dataset = prepare(pointed, out=tmp_path / "data")
    assert dataset.user_ids.to_list() == [7, 12]
    reader = HistoryReader(dataset.config, dataset.vocabulary)
    pointed.write_csv(tmp_path / "log.csv")
    found = reader.read(tmp_path / "log.csv" if form == "text" else pointed.to_pandas())
    plain = reader.read(log)
    assert found.user_ids.to_list() == [7, 12]
    assert found.histories.items.tolist() == plain.histories.items.tolist()
    items, users = read_candidates(pointed.select("user_id", "item_id"), Columns())
    assert items.to_list() == log["item_id"].to_list()
    assert users is not None
    assert users.to_list() == log["user_id"].to_list()
