"""Online Retail II from its raw lines: what the shipped config leaves out, and its split."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path

import numpy as np
import polars as pl
import pytest

from recsys.config.files import load_experiment
from recsys.data.audit import audit
from recsys.data.prepared import PreparedDataset, prepare

pytestmark = pytest.mark.realdata

CONFIG = Path(__file__).parents[2] / "configs" / "online-retail-ii.yaml"


@pytest.fixture(scope="module")
def dataset(mirror: Path, tmp_path_factory: pytest.TempPathFactory) -> PreparedDataset:
    config = load_experiment(CONFIG).data
    return prepare(config.source, config, tmp_path_factory.mktemp("retail") / "out")


def test_what_is_left_out_and_what_stays(dataset: PreparedDataset, mirror: Path) -> None:
    lines = pl.read_parquet(mirror / "online-retail-ii.parquet")
    counts = dataset.manifest.counts
    assert counts["rows_read"] == len(lines)
    assert counts["interactions"] + sum(dataset.manifest.dropped.values()) == len(lines)
    dropped = dict(dataset.manifest.dropped)
    assert dropped.pop("duplicates") > 0
    assert dropped == {
        "no customer": 235_287,
        "cancellation": 18_446,
        "returned or written off": 0,
        "postage and carriage": 2_066,
        "discount, fee or entry by hand": 769,
        "test entry": 12,
        "given away": 61,
    }
    assert (dataset.num_users, dataset.num_items) == (5_852, 4_600)
    codes = dataset.item_table["item_id"]
    # PADS (to match all cushions) and SP1002 (a child's chalkboard) are products without digits.
    odd = codes.filter(~codes.str.contains(r"^\d{5}"))
    assert odd.to_list() == ["PADS", "SP1002"]


def test_the_last_month_is_test(dataset: PreparedDataset) -> None:
    cut = datetime(2011, 11, 10, tzinfo=UTC).timestamp()
    _, targets, _ = dataset.target_positions("test")
    assert (dataset.timestamps[targets] >= cut).all()
    assert len(targets) == np.count_nonzero(dataset.timestamps >= cut) == 61_471
    holdout = dataset.holdout("test")
    assert (len(holdout.targets), holdout.dropped, holdout.without_history) == (55_939, 517, 5_015)


def test_the_audit_warns_of_nothing_where_goods_are_bought_again(dataset: PreparedDataset) -> None:
    experiment = load_experiment(CONFIG)
    findings = {f.name: f for f in audit(dataset, experiment.evaluation.seen)}
    assert [f.name for f in findings.values() if f.severity == "warn"] == []
    assert findings["repeat_targets"].share == pytest.approx(0.468, abs=5e-4)
    strict = {f.name: f.severity for f in audit(dataset, "filter")}
    assert strict["repeat_targets"] == "warn"
