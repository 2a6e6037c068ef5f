"""A log that is appended day after day is the log prepared anew, with the tokens it had."""

from __future__ import annotations

import logging
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest

import recsys
from recsys.config.data import Columns, DataConfig
from recsys.data.appending import append
from recsys.data.histories import PAD
from recsys.data.log import log_of_rows
from recsys.data.preparation import build, put_in_place
from recsys.data.prepared import PreparedDataset, prepare
from recsys.errors import InputError
from recsys.serving.bundle import ModelBundle
from recsys.serving.recommender import Recommender
from tests.helpers.commands import refused, run, run_json
from tests.helpers.logs import log_of
from tests.read_logs import filtered, read

SPLITS: list[Any] = [
    "leave_last_out",
    {"kind": "leave_last_out", "targets": 2},
    "leave_last_basket_out",
    "global_time",
    {"kind": "global_time", "valid_from": 15, "test_from": 20, "test_until": 28},
    "user_holdout",
]
RETURNS = {"returns": "price >= 1", "other events": "event = 'buy'"}
FORM = "%d.%m.%Y %H:%M:%S"


def days_of(config: DataConfig, late: bool) -> list[pl.DataFrame]:
    """A log in three days, by time, or else at random: then rows come late."""
    rng = np.random.default_rng(2)
    columns = {"user_id": 12, "item_id": 6, "timestamp": 31, "event": 4, "price": 4, "day": 3}
    log = pl.DataFrame({name: rng.integers(high, size=120) for name, high in columns.items()})
    events = pl.Series(["buy", "buy", "view", None])
    log = log.with_columns(
        pl.format("u{}", "user_id"),  # as text, "u10" comes before "u2"
        pl.format("i{}", "item_id"),
        events.gather(log["event"]).alias("event"),
        pl.col("day") if late else (pl.col("timestamp") * 3 // 31).alias("day"),
    )
    if config.time_format is not None:
        dates = pl.from_epoch("timestamp").dt.strftime(config.time_format)
        log = log.with_columns(dates.alias("timestamp"))
    named = {} if config.columns is None else config.columns.model_dump(exclude_none=True)
    return [log.filter(day=day).drop("day").rename(named) for day in range(3)]


def read_anew(
    log: pl.DataFrame, config: DataConfig, known: PreparedDataset, folder: Path
) -> PreparedDataset:
    """Prepare a whole log with the ids that a dataset knows at the front."""
    kept = filtered(read(log, config), config)
    ids = {"user_id": known.user_ids, "item_id": known.vocabulary.ids}
    numbered = log_of_rows(kept.table(), kept.columns, kept.origin, kept.keep, known=ids)
    kept = replace(kept, connection=numbered.connection)
    files = folder.with_name(f"{folder.name}-files")
    put_in_place(build(kept, config, files, None, None, known.num_items), files, folder)
    return PreparedDataset.open(folder)


def assert_same(grown: PreparedDataset, anew: PreparedDataset) -> None:
    for name in anew.manifest.files:
        assert (grown.path / name).read_bytes() == (anew.path / name).read_bytes(), name
    chain = {"appended", "log_fingerprint", "digest"}
    assert grown.manifest.model_dump(exclude=chain) == anew.manifest.model_dump(exclude=chain)


def by_ids(dataset: PreparedDataset) -> dict[Any, Any]:
    """The times, kept columns and cuts of each user, whatever the tokens."""
    table = dataset.interaction_table.drop("user_id", "item_id")
    return {
        user: (
            dataset.timestamps[start:end].tolist(),
            table[int(start) : int(end)].rows(),
            dataset.cuts[row].tolist(),
        )
        for row, (user, start, end) in enumerate(
            zip(dataset.user_ids, dataset.offsets, dataset.offsets[1:], strict=False)
        )
    }


FIXED: dict[str, dict[str, Any]] = {
    "nothing": {},
    "two targets": {"split": SPLITS[1], "keep": ("price", "event")},
    "baskets": {"split": "leave_last_basket_out", "duplicates": "drop_exact"},
    "fractions": {"split": "global_time", "where": "event = 'buy'"},
    "dates": {
        "split": {"kind": "global_time", "valid_from": 6, "test_from": 8, "test_until": 28},
        "since": 3,
        "duplicates": "first",
    },
    "users": {"split": "user_holdout", "duplicates": "last"},
    "sessions": {"session_gap": 2, "where": RETURNS},
    "names": {"columns": Columns(user_id="who", item_id="what", timestamp="at"), "k_core": True},
    "another form of dates": {"time_format": FORM},
    "minimums": {"min_user_interactions": 1, "min_item_interactions": 2},
}


@pytest.mark.parametrize("fields", FIXED.values(), ids=FIXED)
@pytest.mark.parametrize("late", [False, True], ids=["in time", "late"])
def test_day_after_day_is_anew(fields: dict[str, Any], late: bool, tmp_path: Path) -> None:
    config = DataConfig.model_validate(fields)
    whole, *days = days_of(config, late)
    grown = known = prepare(whole, config, tmp_path / "grown")
    for number, day in enumerate(days):
        whole = pl.concat([whole, day])
        expected = read_anew(whole, grown.config, known, tmp_path / f"{number}")
        before, grown = grown.fingerprint, append(day, grown.path)
        assert_same(grown, expected)
        assert grown.vocabulary.ids[: known.num_items].equals(known.vocabulary.ids)
        entry = grown.manifest.appended[-1]
        assert (entry.rows_read, entry.fingerprint_before) == (len(day), before)
        if config.split.kind != "user_holdout":  # it draws by the order of the users
            plain = prepare(whole, config, tmp_path / f"plain{number}")
            assert by_ids(grown) == by_ids(plain)
        known = expected


def test_every_setting_of_data_is_tried() -> None:
    """A new setting must be applied to new rows alone, or refused."""
    tried = {name for fields in FIXED.values() for name in fields}
    assert tried | {"source", "header", "encoding"} == set(DataConfig.model_fields)


OLD = log_of([("a", 5, 10), ("a", 3, 20), ("a", 9, 30), ("b", 3, 10), ("b", 5, 25)])
# Item 9 was a test target alone; a late row, a tie, a new item that sorts first, a new user.
NEW = log_of([("a", 9, 40), ("b", 5, 12), ("b", 1, 25), ("0", 3, 50), ("0", 5, 60)])


@pytest.fixture
def dataset(tmp_path: Path) -> PreparedDataset:
    return prepare(OLD, out=tmp_path / "data")


def test_by_hand(dataset: PreparedDataset) -> None:
    assert dataset.vocabulary.ids.to_list() == [3, 5]
    grown = recsys.append(NEW, dataset.path)
    assert grown.vocabulary.ids.to_list() == [3, 5, 9]
    assert grown.user_ids.to_list() == ["a", "b", "0"]
    assert grown.items.tolist() == [2, 1, 3, 3, 1, 2, 2, PAD, 1, 2]
    assert grown.timestamps.tolist() == [10, 20, 30, 40, 10, 12, 25, 25, 50, 60]
    assert grown.cuts.tolist() == [[2, 3, 4], [2, 3, 4], [1, 1, 2]]
    assert grown.manifest.counts["rows_read"] == 10
    assert dataset.items.tolist() == [2, 1, PAD, 1, 2], "what is open stays readable"


def test_rows_that_are_there_already_change_nothing(
    dataset: PreparedDataset, caplog: pytest.LogCaptureFixture
) -> None:
    once = append(NEW, dataset.path)
    inode = (dataset.path / "items.npy").stat().st_ino
    with caplog.at_level(logging.WARNING):
        for log in (NEW, OLD):
            assert append(log, dataset.path).fingerprint == once.fingerprint
    assert "its rows are in" in caplog.text
    assert (dataset.path / "items.npy").stat().st_ino == inode
    assert len(PreparedDataset.open(dataset.path).manifest.appended) == 1


@pytest.mark.parametrize(
    ("fields", "name"),
    [
        ({"min_user_interactions": 3}, "min_user_interactions dropped 2 rows"),
        ({"min_item_interactions": 2}, "min_item_interactions dropped 1 rows"),
        ({"session_gap": 12, "since": 15}, "since dropped 2 rows, which new ones may"),
    ],
)
def test_settings_that_need_old_rows_are_refused(
    fields: dict[str, Any], name: str, tmp_path: Path
) -> None:
    before = prepare(OLD, DataConfig(**fields), tmp_path / "data").fingerprint
    with pytest.raises(InputError, match=name) as caught:
        append(NEW, tmp_path / "data")
    assert "prepare the whole log anew" in str(caught.value)
    assert PreparedDataset.open(tmp_path / "data").fingerprint == before


def test_ties_of_a_position_column_are_refused_and_others_ordered(tmp_path: Path) -> None:
    config = DataConfig(columns=Columns(position="line"))
    old, new = (log.with_columns(line=pl.int_range(len(log), 0, -1)) for log in (OLD, NEW))
    prepare(old, config, tmp_path / "data")
    with pytest.raises(
        InputError, match=r"\('b', 1, 25\) is at the time of a row .* column 'line'"
    ):
        append(new, tmp_path / "data")
    two = pl.concat(
        [new[:1], new[:1].with_columns(item_id=pl.lit(3, pl.Int64), line=pl.lit(0, pl.Int64))]
    )
    grown = append(two, tmp_path / "data")
    assert grown.items[:5].tolist() == [2, 1, 3, 1, 3], "the lower line comes first"


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"item_id": pl.lit("x")}, "column 'item_id': is String, and Int64 in"),
        ({"price": pl.lit("dear")}, "column 'price': is String, and Int64 in"),
        ({"timestamp": pl.lit(None)}, "data row 1: a value is missing"),
    ],
)
def test_other_types_are_refused(changes: dict[str, Any], words: str, tmp_path: Path) -> None:
    old = OLD.with_columns(price=7)
    prepare(old, DataConfig(keep=("price",)), tmp_path / "data")
    with pytest.raises(InputError, match=words):
        append(NEW.with_columns(price=8).with_columns(**changes), tmp_path / "data")


def test_plain_integers_are_text_where_ids_are_text(tmp_path: Path) -> None:
    old = OLD.with_columns(item_id=pl.format("{}x", "item_id"))
    prepare(old, out=tmp_path / "data")
    grown = append(NEW, tmp_path / "data")
    assert grown.vocabulary.ids.to_list() == ["3x", "5x", "3", "5", "9x"]


def test_features_of_new_items_and_users(tmp_path: Path) -> None:
    items = pl.DataFrame({"item_id": [3, 5, 9], "name": ["three", "five", "nine"]})
    users = pl.DataFrame({"user_id": ["a"], "age": [40]})
    prepare(OLD, out=tmp_path / "data", items=items, users=users)
    grown = append(NEW, tmp_path / "data")
    assert grown.item_table["name"].to_list() == ["three", "five", "nine"]
    assert grown.user_table["age"].to_list() == [40, None, None]
    more = pl.DataFrame({"name": ["neuf", "cinq"], "item_id": ["9", "5"]})
    ages = pl.DataFrame({"user_id": ["0"], "age": [7]})
    last = append(NEW.with_columns(pl.col("timestamp") + 99), tmp_path / "data", more, ages)
    assert last.item_table["name"].to_list() == ["three", "cinq", "neuf", None]
    assert last.user_table["age"].to_list() == [40, None, 7]
    for table, words in (
        (more.rename({"name": "title"}), "has the columns title, item_id, and .* item_id, name"),
        (more.with_columns(name=pl.concat_list("name")), "'name': is List.String., and String in"),
        (pl.concat([more, more]), "has more than one row"),
    ):
        with pytest.raises(InputError, match=words):
            append(OLD.with_columns(pl.col("timestamp") + 999), tmp_path / "data", table)


def test_features_of_users_are_those_of_their_new_sessions(tmp_path: Path) -> None:
    users = pl.DataFrame({"user_id": ["a", "b"], "age": [40, 50]})
    prepare(OLD, DataConfig(session_gap=12), tmp_path / "data", users=users)
    late = pl.DataFrame({"user_id": ["a", "a"], "item_id": [3, 3], "timestamp": [99, 199]})
    grown = append(late, tmp_path / "data")
    assert grown.user_table.rows() == [
        *[("a#1", 40), ("b#1", 50), ("b#2", 50)],
        *[("a#2", 40), ("a#3", 40)],
    ]


def test_other_items_outside_the_catalogue_are_another_dataset(dataset: PreparedDataset) -> None:
    other = OLD.with_columns(pl.col("item_id").replace(9, 8))
    again = prepare(other, out=dataset.path)
    assert again.fingerprint == dataset.fingerprint
    assert append(NEW[:1], dataset.path).vocabulary.ids.to_list() == [3, 5, 8]


def test_a_bundle_answers_on_the_dataset_that_has_grown(
    tiny_bundle: ModelBundle, tiny_log: pl.DataFrame, tmp_path: Path
) -> None:
    """Items are matched by their ids, and users by theirs, though neither ascend any more."""
    prepare(tiny_log, out=tmp_path / "data")
    rows = [("zoe", "hat", 50), ("ann", "anorak", 60), ("ann", "boots", 61)]
    rows += [("abe", "socks", 62), ("abe", "hat", 63), ("abe", "boots", 64), ("zoe", "boots", 65)]
    later = log_of(rows)
    grown = append(later, tmp_path / "data")
    users = ["abe", "ann", "zoe"]
    log = pl.concat([tiny_log, later]).filter(item_id=pl.col("item_id").replace("anorak", None))
    histories = {user: log.filter(user_id=user)["item_id"].to_list() for user in users}
    found = Recommender(tiny_bundle, grown).recommend(users=users, k=3)
    expected = Recommender(tiny_bundle).recommend(histories, k=3)
    assert found.sort("user_id", "rank").equals(expected.sort("user_id", "rank"))


def test_the_command(dataset: PreparedDataset, tmp_path: Path) -> None:
    NEW.write_csv(tmp_path / "new.csv")
    words = ["prepare", tmp_path / "new.csv", "--append", dataset.path]
    (row,) = run_json(*words)
    assert (row["appended_rows"], row["interactions"], row["items"]) == (5, 10, 3)
    assert "appended rows" not in run(*words)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ([], "give one of --out FOLDER"),
        (["--append", "data", "--user-minimum", "3"], "a dataset keeps its own settings"),
    ],
)
def test_other_options_are_refused(options: list[str], words: str, tmp_path: Path) -> None:
    NEW.write_csv(tmp_path / "new.csv")
    assert words in refused("prepare", tmp_path / "new.csv", *options)
