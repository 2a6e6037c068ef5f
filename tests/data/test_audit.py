"""The audit finds a planted leak of each kind, and has no warnings about a clean log."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest

from recsys.config.data import Columns, DataConfig, GlobalTime, LeaveLastOut, Split, UserHoldout
from recsys.data import audit as audit_module
from recsys.data.audit import Finding, audit
from recsys.data.prepared import prepare
from tests.helpers.logs import log_of

# The clean log has times 0 to 39 in training, 40 to 49 in validation and 50 to 59 in test.
BY_TIME = GlobalTime(valid_from=40, test_from=50)
EVERY = GlobalTime(valid_from=40, test_from=50, targets="every")
LAST = LeaveLastOut()


def clean_log(users: int = 10) -> pl.DataFrame:
    """Return six interactions of each user with six of seven items, all at different times."""
    return log_of(
        (user, (user + step) % 7, 10 * step + user) for step in range(6) for user in range(users)
    )


def audited(log: pl.DataFrame, folder: Path, seen: Any = "filter", **config: Any) -> dict[str, Any]:
    dataset = prepare(log, DataConfig(**{"split": BY_TIME, **config}), folder / "out")
    return {finding.name: finding for finding in audit(dataset, seen)}


def warnings(findings: dict[str, Finding]) -> list[str]:
    return [finding.name for finding in findings.values() if finding.severity == "warn"]


def with_rows(*rows: tuple[int, int, int]) -> pl.DataFrame:
    return pl.concat([clean_log(), log_of(rows)])


@pytest.mark.parametrize("config", [{}, {"split": LAST}, {"k_core": True}])
def test_a_clean_log_has_no_warnings(config: dict[str, Any], tmp_path: Path) -> None:
    """All users buy at the same pace, so leave_last_out trains on no later interactions either."""
    findings = audited(clean_log(), tmp_path, **config)
    assert warnings(findings) == []
    assert all(finding.count == 0 for finding in findings.values() if finding.name != "few_times")
    assert (findings["few_times"].count, findings["few_times"].share) == (60, 1.0)


def test_training_after_a_test_target(tmp_path: Path) -> None:
    """Of 43 training interactions two of user 9, at 59 and 100, are later than the first target."""
    log = with_rows((9, 6, 100), (9, 0, 101), (9, 1, 102))
    findings = audited(log, tmp_path, split=LAST)
    assert warnings(findings) == [], "leave_last_out cannot but do so"
    future = findings["future_training"]
    assert (future.count, future.share) == (2, 2 / 43)
    assert "leave_last_out does not split at a common time" in future.sentence
    assert audited(log, tmp_path)["future_training"].count == 0
    held_out = audited(clean_log(), tmp_path, split=UserHoldout(test_fraction=0.2))
    assert held_out["future_training"].count > 0
    assert "future_training" not in warnings(held_out), "held-out users cannot but do so"


FILTERED: dict[str, dict[str, Any]] = {
    "min_item_interactions=2, min_user_interactions=3, k_core: counted": {
        "min_item_interactions": 2,
        "min_user_interactions": 3,
        "k_core": True,
    },
    "duplicates=last: counted": {"duplicates": "last"},
}
COPY = with_rows((3, (3 + 5) % 7, 53))  # user 3's last interaction again: one is in validation
TIED = clean_log().with_columns(
    timestamp=pl.when(pl.col("user_id") < 4)
    .then(pl.col("timestamp").clip(upper_bound=pl.col("user_id") + 40))
    .otherwise("timestamp")
)
AGAIN = with_rows((0, 5, 5))  # user 0 buys item 5 at time 50 too
BY_LINE: dict[str, Any] = {"split": LAST, "columns": Columns(position="n")}
OUTSIDE = with_rows((0, 77, 45), (1, 77, 59), (1, 88, 58))


@pytest.mark.parametrize(
    ("name", "log", "config", "count", "among", "words"),
    [
        *(
            ("filters_on_test_rows", clean_log(), config, 10, 60, words)
            for words, config in FILTERED.items()
        ),
        ("duplicates_across_cuts", COPY, {"split": LAST, "seen": "allow"}, 1, 20, "drop_exact"),
        ("ties_at_cut", TIED, {"split": LAST}, 4, 10, "only on the order of the rows"),
        ("ties_at_cut", TIED.with_row_index("n"), BY_LINE, 4, 10, "on column 'n', then the order"),
        ("repeat_targets", AGAIN, {}, 1, 10, "duplicates=first"),
        ("outside_catalogue", OUTSIDE, {"split": EVERY}, 1, 12, "in no earlier part"),
    ],
)
def test_what_is_warned_of(
    name: str,
    log: pl.DataFrame,
    config: dict[str, Any],
    count: int,
    among: int,
    words: str,
    tmp_path: Path,
) -> None:
    findings = audited(log, tmp_path, **config)
    assert name in warnings(findings)
    assert (findings[name].count, findings[name].share) == (count, count / among)
    assert words in findings[name].sentence


@pytest.mark.parametrize(
    ("log", "config"),
    [
        (COPY, {"split": LAST, "duplicates": "drop_exact"}),
        (TIED, {}),
        (AGAIN, {"seen": "allow"}),
    ],
)
def test_what_is_not_warned_of(log: pl.DataFrame, config: dict[str, Any], tmp_path: Path) -> None:
    assert warnings(audited(log, tmp_path, **config)) == []


@pytest.mark.parametrize(("users", "coarse"), [(10, 10), (2000, 100)])
def test_times_that_hardly_differ(users: int, coarse: int, tmp_path: Path) -> None:
    log = clean_log(users)
    split = GlobalTime()
    assert "few_times" not in warnings(audited(log, tmp_path, split=split))
    log = log.with_columns(pl.col("timestamp") // coarse)
    assert "few_times" in warnings(audited(log, tmp_path, split=split))


@pytest.mark.parametrize("split", [LeaveLastOut(targets=2), GlobalTime(targets="every")])
def test_large_logs_have_the_same_findings(
    split: Split, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They are read in blocks, and distinct times are estimated."""
    rng = np.random.default_rng(0)
    columns = {"user_id": 30, "item_id": 3, "timestamp": 99}
    log = pl.DataFrame({name: rng.integers(high, size=400) for name, high in columns.items()})
    dataset = prepare(log, DataConfig(split=split), tmp_path / "out")
    whole = {finding.name: finding for finding in audit(dataset)}
    assert whole["repeat_targets"].count
    monkeypatch.setattr("recsys.data.splits.BLOCK", 7)
    monkeypatch.setattr(audit_module, "EXACT", 100)
    again = {finding.name: finding for finding in audit(dataset)}
    exact, estimated = whole.pop("few_times"), again.pop("few_times")
    assert again == whole
    assert estimated.count == pytest.approx(exact.count, rel=0.03)
