"""What is held out of a prepared dataset, by hand, and that nothing is lost between the parts."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import polars as pl
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from recsys.config import DataConfig, LeaveLastBasketOut, LeaveLastOut, Split
from recsys.data.histories import Histories
from recsys.data.holdout import Holdout
from recsys.data.prepared import Part, prepare

PARTS: tuple[Part, ...] = ("valid", "test")

# Under leave_last_basket_out, item 9 occurs as a test target only.
BASKETS = pl.DataFrame(
    [
        *[("a", 5, 1), ("a", 3, 2), ("a", 5, 2), ("a", 9, 3), ("a", 5, 3)],
        *[("b", 3, 1), ("b", 7, 2), ("b", 3, 2)],
        *[("c", 7, 1), ("c", 3, 1)],
        *[("d", 7, 1), ("d", 9, 2)],
    ],
    schema=["user_id", "item_id", "timestamp"],
    orient="row",
)


def lists(histories: Histories) -> list[list[int]]:
    return [histories[b : b + 1].items.tolist() for b in range(len(histories))]


def test_continuations_are_the_last_baskets_of_users(tmp_path: Path) -> None:
    config = DataConfig(split=LeaveLastBasketOut())
    dataset = prepare(BASKETS, config, tmp_path / "out")
    assert dataset.item_table["item_id"].to_list() == [3, 5, 7]
    assert dataset.cuts.tolist() == [[1, 3, 5], [1, 1, 3], [2, 2, 2], [1, 1, 2]]
    valid, test = dataset.next_purchases("valid"), dataset.next_purchases("test")
    assert valid.users.tolist() == [0]
    assert (lists(valid.histories), lists(valid.targets)) == ([[2]], [[1, 2]])
    assert test.users.tolist() == [0, 1]  # all that d bought is outside the catalogue
    assert (lists(test.histories), lists(test.targets)) == ([[2, 1, 2], [1]], [[2], [3, 1]])
    assert (valid.dropped, test.dropped) == (0, 2)


def test_targets_of_one_user_are_rows_with_the_same_history(tmp_path: Path) -> None:
    dataset = prepare(BASKETS, DataConfig(split=LeaveLastOut(targets=2)), tmp_path / "out")
    assert dataset.item_table["item_id"].to_list() == [3, 5, 7, 9]
    assert dataset.cuts.tolist() == [[1, 3, 5], [1, 1, 3], [2, 2, 2], [2, 2, 2]]
    test = dataset.holdout("test")
    assert test.users.tolist() == [0, 0, 1, 1]
    assert (lists(test.histories), test.history_rows.tolist()) == ([[2, 1, 2], [1]], [0, 0, 1, 1])
    assert test.targets.tolist() == [4, 2, 3, 1]
    assert test.dropped == 0


@pytest.mark.parametrize(
    "split", [LeaveLastOut(), LeaveLastOut(targets=3), LeaveLastBasketOut()], ids=str
)
@given(st.lists(st.tuples(*[st.integers(0, 6)] * 3), min_size=1, max_size=50))
@settings(max_examples=40, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_parts_partition_the_log(
    split: Split, tmp_path: Path, rows: list[tuple[int, int, int]]
) -> None:
    """History before test plus test targets is the user's log, in order; nothing is lost."""
    table = pl.DataFrame(rows, schema=["user_id", "item_id", "timestamp"], orient="row")
    dataset = prepare(table, DataConfig(split=split), tmp_path / "out")
    known, train = lists(dataset.histories("test")), lists(dataset.histories("valid"))
    catalogue = {item for history in known for item in history}
    assert catalogue == set(range(1, dataset.num_items + 1))
    targets: dict[Part, dict[int, list[int]]] = {}
    for part in PARTS:
        together, single = dataset.next_purchases(part), dataset.holdout(part)
        assert len(together.targets.items) + together.dropped == dataset.manifest.counts[part]
        targets[part] = dict(zip(together.users.tolist(), lists(together.targets), strict=True))
        each = [(user, item) for user, items in targets[part].items() for item in items]
        assert list(zip(single.users.tolist(), single.targets.tolist(), strict=True)) == each
        assert single.dropped == together.dropped
        before = train if part == "valid" else known
        assert lists(together.histories) == [before[user] for user in targets[part]]
        assert lists(single.histories.take(single.history_rows)) == [
            before[user] for user, _ in each
        ]
    for user, user_id in enumerate(dataset.user_ids):
        bought = sorted((row for row in rows if row[0] == user_id), key=lambda row: row[2])
        tokens = dataset.vocabulary.encode([item for _, item, _ in bought]).tolist()
        assert train[user] + targets["valid"].get(user, []) == known[user]
        assert known[user] + targets["test"].get(user, []) == [t for t in tokens if t != 0]


@given(
    st.lists(st.integers(0, 3), min_size=1, max_size=12).filter(any),
    st.integers(1, 5),
)
def test_shares_have_every_target_with_its_history_once(counts: list[int], parts: int) -> None:
    """Some histories come before several targets, some before none."""
    rows = np.repeat(np.arange(len(counts)), counts)
    whole = Holdout(
        users=rows + 100,
        targets=np.arange(1, len(rows) + 1, dtype=np.int32),
        positions=np.arange(len(rows)),
        history_rows=rows,
        histories=Histories.from_lists([[row + 1] * (row + 1) for row in range(len(counts))]),
        dropped=3,
    )
    found, ends = [], [0]
    for part in range(parts):
        places, share = whole.shard(part, parts)
        assert places.start == ends[-1]
        ends.append(places.stop)
        assert share.dropped == 3
        histories = lists(share.histories)
        found += [
            (int(user), int(target), histories[row])
            for user, target, row in zip(
                share.users, share.targets, share.history_rows, strict=True
            )
        ]
    histories = lists(whole.histories)
    expected = [(row + 100, place + 1, histories[row]) for place, row in enumerate(rows.tolist())]
    assert found == expected
    assert ends[-1] == len(rows)
