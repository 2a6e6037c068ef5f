"""The audit finds a planted leak of each kind, and has no warnings about a clean log."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest

from recsys.config import (
    Columns,
    DataConfig,
    GlobalTime,
    LeaveLastOut,
    Split,
    UserHoldout,
)
from recsys.data import audit as audit_module
from recsys.data.audit import Finding, audit
from recsys.data.prepared import PreparedDataset, prepare

BY_TIME = GlobalTime(valid_from=40, test_from=50)
"""The clean log has times 0 to 39 in training, 40 to 49 in validation and 50 to 59 in test."""


def clean_log(users: int = 10) -> pl.DataFrame:
    """Return six interactions of each user with six of seven items, all at different times."""
    rows = [
        (user, (user + step) % 7, 10 * step + user) for step in range(6) for user in range(users)
    ]
    return pl.DataFrame(rows, schema=["user_id", "item_id", "timestamp"], orient="row")


def audited(log: pl.DataFrame, folder: Path, seen: Any = "filter", **config: Any) -> dict[str, Any]:
    dataset = prepare(log, DataConfig(**{"split": BY_TIME, **config}), folder / "out")
    return {finding.name: finding for finding in audit(dataset, seen)}


def warnings(findings: dict[str, Finding]) -> list[str]:
    return [finding.name for finding in findings.values() if finding.severity == "warn"]


def with_rows(*rows: tuple[int, int, int]) -> pl.DataFrame:
    log = clean_log()
    return pl.concat([log, pl.DataFrame(rows, schema=log.schema, orient="row")])


@pytest.mark.parametrize("split", [BY_TIME, LeaveLastOut()], ids=["global_time", "leave_last_out"])
def test_a_clean_log_has_no_warnings(split: Split, tmp_path: Path) -> None:
    """All users buy at the same pace, so leave_last_out trains on no later interactions either."""
    findings = audited(clean_log(), tmp_path, split=split)
    assert warnings(findings) == []
    assert all(finding.count == 0 for finding in findings.values() if finding.name != "few_times")
    assert (findings["few_times"].count, findings["few_times"].share) == (60, 1.0)


def test_training_after_a_test_target(tmp_path: Path) -> None:
    """User 9 has three interactions from time 100 on, one in each part."""
    log = with_rows((9, 6, 100), (9, 0, 101), (9, 1, 102))
    findings = audited(log, tmp_path, split=LeaveLastOut())
    assert warnings(findings) == [], "leave_last_out cannot but do so"
    # Of 43 training interactions, two of user 9, at 59 and 100, are later than the targets at 50 to
    # 58; none is later than that of user 9 at 102: 1.8 on average.
    future = findings["future_training"]
    assert (future.count, future.share) == (2, 2 / 43)
    assert "4% are later than the average one: leave_last_out does not" in future.sentence
    assert audited(log, tmp_path)["future_training"].count == 0


def test_the_average_target_is_estimated_from_samples(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Histories of like length: no position in them is sampled more often than another."""
    users = np.repeat(np.arange(500), 12)
    times = 2 * users + np.random.default_rng(0).integers(1_000, size=len(users))
    log = pl.DataFrame({"user_id": users, "item_id": users % 7, "timestamp": times})
    dataset = prepare(log, out=tmp_path / "out")

    def share() -> int:
        audit.cache_clear()
        sentence = next(f.sentence for f in audit(dataset) if f.name == "future_training")
        return int(sentence.split("and ")[1].split("%")[0])

    exact = share()
    monkeypatch.setattr(audit_module, "_SAMPLED_TRAINING", 500)
    assert 10 < exact == pytest.approx(share(), abs=4)


def test_training_at_the_time_of_a_test_target_is_not_later(tmp_path: Path) -> None:
    log = pl.DataFrame(
        {
            "user_id": [1, 1, 1, 2, 2, 2],
            "item_id": [1, 2, 3, 3, 1, 2],
            "timestamp": [1, 2, 3, 3, 4, 5],
        }
    )
    assert audited(log, tmp_path, split=LeaveLastOut())["future_training"].count == 0


def test_held_out_users_have_later_training_interactions(tmp_path: Path) -> None:
    split = UserHoldout(valid_fraction=0.2, test_fraction=0.2)
    findings = audited(clean_log(), tmp_path, split=split)
    assert findings["future_training"].count > 0
    assert "future_training" not in warnings(findings), "held-out users cannot but do so"
    assert (findings["new_users"].count, findings["new_users"].share) == (2, 1.0)


@pytest.mark.parametrize(
    ("filters", "words"),
    [
        ({"min_item_interactions": 2}, "min_item_interactions=2: counted"),
        (
            {"min_item_interactions": 2, "min_user_interactions": 3, "k_core": True},
            "min_item_interactions=2, min_user_interactions=3, k_core: counted",
        ),
        ({"duplicates": "last"}, "duplicates=last: counted"),
    ],
)
def test_filters_on_test_rows(filters: dict[str, Any], words: str, tmp_path: Path) -> None:
    findings = audited(clean_log(), tmp_path, **filters)
    assert warnings(findings) == ["filters_on_test_rows"]
    found = findings["filters_on_test_rows"]
    assert (found.count, found.share) == (10, 1 / 6)
    assert words in found.sentence
    assert "including validation and test targets" in found.sentence


def test_a_core_of_one_does_not_filter(tmp_path: Path) -> None:
    assert warnings(audited(clean_log(), tmp_path, k_core=True)) == []


def test_duplicates_across_cuts(tmp_path: Path) -> None:
    """User 3's last interaction is in the log twice: one is in test, the other in validation."""
    duplicate = (3, (3 + 5) % 7, 53)
    findings = audited(with_rows(duplicate), tmp_path, split=LeaveLastOut(), seen="allow")
    found = findings["duplicates_across_cuts"]
    assert (found.severity, found.count, found.share) == ("warn", 1, 1 / 20)
    assert audited(with_rows(duplicate), tmp_path)["duplicates_across_cuts"].count == 0
    cleaned = audited(with_rows(duplicate), tmp_path, split=LeaveLastOut(), duplicates="drop_exact")
    assert warnings(cleaned) == []


def test_ties_at_the_cut(tmp_path: Path) -> None:
    log = clean_log().with_columns(
        timestamp=pl.when(pl.col("user_id") < 4)
        .then(pl.col("timestamp").clip(upper_bound=pl.col("user_id") + 40))
        .otherwise("timestamp")
    )
    findings = audited(log, tmp_path, split=LeaveLastOut())
    ties = findings["ties_at_cut"]
    assert (ties.severity, ties.count, ties.share) == ("warn", 4, 0.4)
    assert "ties broken by the order of the rows" in ties.sentence
    assert "data.split=leave_last_basket_out" in ties.sentence
    assert audited(log, tmp_path)["ties_at_cut"].count == 0


def test_a_user_with_most_rows_may_be_a_placeholder(tmp_path: Path) -> None:
    guests = [(-1, item % 7, 200 + item) for item in range(60)]
    findings = audited(with_rows(*guests), tmp_path, split=LeaveLastOut())
    guest = findings["dominant_user"]
    assert (guest.severity, guest.count, guest.share) == ("warn", 60, 0.5)
    assert "user -1, and the next one has 6" in guest.sentence
    assert "user_id != -1" in guest.sentence
    few = audited(with_rows(*guests[:30]), tmp_path, split=LeaveLastOut())["dominant_user"]
    assert few.count == 0


@pytest.mark.parametrize(("users", "coarse"), [(10, 10), (2000, 100)])
def test_times_that_hardly_differ(users: int, coarse: int, tmp_path: Path) -> None:
    log = clean_log(users)
    split = GlobalTime()
    assert "few_times" not in warnings(audited(log, tmp_path, split=split))
    log = log.with_columns(pl.col("timestamp") // coarse)
    assert "few_times" in warnings(audited(log, tmp_path, split=split))


def test_repeat_targets(tmp_path: Path) -> None:
    """User 0 buys item 5 at time 50, and in this log also at time 5."""
    log = with_rows((0, 5, 5))
    findings = audited(log, tmp_path)
    assert warnings(findings) == ["repeat_targets"]
    assert (findings["repeat_targets"].count, findings["repeat_targets"].share) == (1, 0.1)
    assert warnings(audited(log, tmp_path, seen="allow")) == []
    assert warnings(audited(log, tmp_path, duplicates="first")) == []


def test_targets_outside_the_catalogue_and_unknown_to_training(tmp_path: Path) -> None:
    """Item 77 is in validation and test, item 88 only in test."""
    findings = audited(with_rows((0, 77, 45), (1, 77, 49), (1, 88, 51)), tmp_path)
    split = GlobalTime(valid_from=40, test_from=50, targets="every")
    every = audited(with_rows((0, 77, 45), (1, 77, 59), (1, 88, 58)), tmp_path, split=split)
    assert warnings(findings) == []
    assert (every["outside_catalogue"].count, every["outside_catalogue"].share) == (1, 1 / 12)
    assert warnings(every) == ["outside_catalogue"]
    assert (every["new_items"].count, every["new_items"].share) == (2, 1 / 6)


def test_new_users_have_no_history(tmp_path: Path) -> None:
    findings = audited(with_rows((70, 1, 55), (71, 2, 45), (71, 3, 56)), tmp_path)
    assert (findings["new_users"].count, findings["new_users"].share) == (2, 2 / 12)
    assert (findings["without_history"].count, findings["without_history"].share) == (1, 1 / 12)
    assert warnings(findings) == []


def test_dropped_rows_are_named(tmp_path: Path) -> None:
    where = {"too old": "timestamp >= 5"}
    found = audited(clean_log(), tmp_path, where=where, columns=Columns())["dropped_rows"]
    assert (found.severity, found.count, found.share) == ("info", 5, 5 / 60)
    assert found.sentence.endswith("(too old: 5)")


@pytest.mark.parametrize("split", [LeaveLastOut(targets=2), GlobalTime(targets="every")])
def test_small_blocks_find_the_same(
    split: Split, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rng = np.random.default_rng(0)
    columns = {"user_id": 30, "item_id": 3, "timestamp": 9}
    log = pl.DataFrame({name: rng.integers(high, size=400) for name, high in columns.items()})
    dataset = prepare(log, DataConfig(split=split), tmp_path / "out")
    whole = audit(dataset)
    found = {finding.name: finding.count for finding in whole}
    assert found["repeat_targets"]
    assert found["duplicates_across_cuts"] or split.kind == "global_time"
    monkeypatch.setattr(audit_module, "BLOCK", 7)
    audit.cache_clear()
    assert audit(dataset) == whole


def test_many_distinct_times_are_estimated(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    dataset = prepare(clean_log(2_000), DataConfig(), tmp_path / "out")
    exact = found(dataset, "few_times")
    monkeypatch.setattr(audit_module, "EXACT", 100)
    audit.cache_clear()
    estimated = found(dataset, "few_times")
    assert estimated.count == pytest.approx(exact.count, rel=0.03)
    assert "estimated" in estimated.sentence
    assert "estimated" not in exact.sentence


def found(dataset: PreparedDataset, name: str) -> Finding:
    return next(finding for finding in audit(dataset) if finding.name == name)
