"""The folds of a backtest: by hand, separate, and pooled."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path

import numpy as np
import polars as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st

from recsys.config.data import Backtest, DataConfig, GlobalTime
from recsys.data.preparation import fold_configs
from recsys.data.prepared import PreparedDataset, prepare
from recsys.data.splits import folds
from recsys.errors import InputError
from recsys.evaluation.tables import RankTable, TableProtocol, pool_folds
from tests.helpers.logs import log_of
from tests.helpers.rank_tables import SCHEMA

NO_TIMES = np.empty(0, dtype=np.int64)


def test_folds_at_dates_by_hand() -> None:
    backtest = Backtest(cuts=("2011-01-01", "2011-02-01"), valid_fraction=0.2, targets="every")
    assert folds(backtest, NO_TIMES) == (
        GlobalTime(
            test_from="2011-01-01", test_until="2011-02-01", valid_fraction=0.2, targets="every"
        ),
        GlobalTime(test_from="2011-02-01", valid_fraction=0.2, targets="every"),
    )


def test_times_too_coarse_for_the_folds() -> None:
    with pytest.raises(InputError, match="must begin one after the other"):
        folds(Backtest(folds=3, test_fraction=0.1), np.repeat([1, 2], 10))


def test_folds_are_cut_among_the_rows_since_a_time(tmp_path: Path) -> None:
    log_of([("a", n, n) for n in range(100)]).write_csv(tmp_path / "log.csv")
    split = Backtest(folds=2, test_fraction=0.1)
    config = DataConfig(source=str(tmp_path / "log.csv"), since=80, split=split)
    assert [fold.split for fold in fold_configs(config)] == [*folds(split, np.arange(80, 100))]


def test_only_a_backtest_has_folds() -> None:
    with pytest.raises(InputError, match="must be of kind backtest, not leave_last_out"):
        fold_configs(DataConfig())


@given(
    st.lists(st.integers(0, 1000), min_size=40, max_size=80, unique=True),
    st.integers(1, 4),
    st.sampled_from([0.05, 0.1, 0.2]),
)
def test_each_later_interaction_is_tested_once(times: list[int], count: int, share: float) -> None:
    split = Backtest(folds=count, test_fraction=share, history="advancing")
    made = folds(split, np.sort(times))
    assert len(made) == count
    assert {fold.history for fold in made} == {"advancing"}
    assert made[-1].test_until is None
    assert all(early.test_until == late.test_from for early, late in pairwise(made))
    begin = made[0].test_from
    assert isinstance(begin, int)
    assert sum(time >= begin for time in times) == round(share * len(times) * count)


@pytest.fixture
def datasets(tmp_path: Path) -> list[PreparedDataset]:
    """Return two folds of a log in which users a and b buy ten items, and c joins late."""
    rows = [(user, time, 2 * time + (user == "b")) for user in "ab" for time in range(10)]
    rows += [("c", 1, 14), ("c", 2, 19)]
    log_of(rows).write_csv(tmp_path / "log.csv")
    split = Backtest(cuts=(12, 16), valid_fraction=0.2)
    config = DataConfig(source=str(tmp_path / "log.csv"), split=split)
    return [
        prepare(fold.source, fold, tmp_path / str(n)) for n, fold in enumerate(fold_configs(config))
    ]


def test_a_fold_has_no_later_interactions(datasets: list[PreparedDataset]) -> None:
    first, second = datasets
    assert first.timestamps.max() == 15
    assert first.item_table["item_id"].to_list() == [0, 1, 2, 3, 4, 5]
    assert second.timestamps.max() == 19
    assert second.item_table["item_id"].to_list() == list(range(8))
    assert first.manifest.counts["test"] == 5
    assert [dataset.manifest.log_fingerprint for dataset in datasets] == [
        first.manifest.log_fingerprint
    ] * 2


def test_users_of_several_folds_count_once(datasets: list[PreparedDataset]) -> None:
    """User 0 is a and user 1 is b in both folds; user 2, c, is only in the second."""

    def table(users: list[int], ranks: list[int], num_items: int, dropped: int) -> RankTable:
        lengths = [num_items] * len(users)  # histories are longer in the second fold
        frame = pl.DataFrame(
            {"user": users, "target": ranks, "rank": ranks, "history_length": lengths},
            schema=SCHEMA,
        )
        return RankTable(frame, TableProtocol("test", num_items, "allow", dropped))

    tables = [table([0, 1], [1, 5], 6, 1), table([1, 0, 0, 2], [1, 9, 1, 9], 8, 2)]
    pooled = pool_folds(tables, [dataset.user_ids for dataset in datasets])
    assert pooled.frame["user"].to_list() == [0, 1, 1, 0, 0, 2]
    assert pooled.values("recall_at_1").tolist() == [3 / 4, 1 / 2, 0]
    assert pooled.summary(["recall_at_1"])["recall_at_1"].mean == pytest.approx((3 / 4 + 1 / 2) / 3)
    assert (pooled.protocol.num_items, pooled.protocol.dropped) == (8, 3)


def test_users_are_identified_by_their_ids_not_their_rows() -> None:
    frame = pl.DataFrame({"user": [0], "target": [1], "rank": [1], "history_length": [3]})
    one = RankTable(frame, TableProtocol("test", 6, "allow", 0))
    pooled = pool_folds([one, one], [pl.Series(["b"]), pl.Series(["a", "b"])])
    assert pooled.frame["user"].to_list() == [1, 0]


def test_equal_histories_of_two_folds_are_two_lists() -> None:
    """Each fold has its own item tokens: the same token and length may be another list."""
    schema = {"user": [0], "target": [1], "history_length": [3]}
    hit, miss = (
        RankTable(
            pl.DataFrame({**schema, "rank": [rank]}),
            TableProtocol("test", 20, "allow", 0),
        )
        for rank in (1, 20)
    )
    pooled = pool_folds([hit, miss], [pl.Series(["a"])] * 2)
    assert pooled.values("recall_at_1").tolist() == [0.5]
