"""Every metric by name: refused if unknown, and reachable from the command line."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import polars as pl
import pytest
from mlflow import MlflowClient
from typer.testing import CliRunner

import recsys
from recsys.cli import app
from recsys.config import Experiment, parse_experiment
from recsys.data.prepared import PreparedDataset
from recsys.errors import InputError
from recsys.evaluation.metrics import SOURCES, find_metric
from recsys.experiments.baselines import fit_baseline


@pytest.mark.parametrize(
    ("name", "source"),
    [
        ("recall_at_10", "ranks"),
        ("hit_rate_at_1", "ranks"),
        ("mrr", "ranks"),
        ("mrr_at_10", "ranks"),
        ("next_ordered_ndcg_at_5", "next_lists"),
        ("gini_at_100", "top_k"),
        ("popularity_lift_at_10", "logged"),
    ],
)
def test_a_metric_is_computed_from_its_table(name: str, source: str) -> None:
    assert find_metric(name) == (name, source)
    assert find_metric(name).per_user == (source in {"ranks", "next_lists"})


@pytest.mark.parametrize(
    "name", ["", "recall", "recall_at_0", "recall_at_x", "at_5", "mrr_at_", "x"]
)
def test_unknown_metrics_are_refused_with_the_known_ones(name: str) -> None:
    with pytest.raises(InputError, match=f"^metric {name!r}: must be recall_at_K, ") as refused:
        find_metric(name)
    assert all(f"{kind}_at_K" in str(refused.value) for kind in SOURCES)
    assert str(refused.value).endswith(" or mrr")


@pytest.fixture(scope="module")
def experiment(tmp_path_factory: pytest.TempPathFactory) -> Experiment:
    uri = f"sqlite:///{tmp_path_factory.mktemp('store') / 'mlflow.db'}"
    tree: dict[str, Any] = {"name": "tiny", "tracking": {"uri": uri}}
    return parse_experiment({**tree, "evaluation": {"cutoffs": [1, 3], "seen": "allow"}})


@pytest.fixture(scope="module")
def runs(experiment: Experiment, tiny_dataset: PreparedDataset) -> list[str]:
    return [fit_baseline(name, experiment, tiny_dataset) for name in ("popularity", "markov")]


def shown(experiment: Experiment, *words: str) -> str:
    command = ["compare", *words, "--tracking-uri", experiment.tracking.uri]
    result = CliRunner().invoke(app, command, catch_exceptions=False)
    assert result.exit_code == 0
    return result.stdout


def test_the_command_compares_by_metrics_of_every_source(
    experiment: Experiment, runs: list[str], tmp_path: Path
) -> None:
    names = ["ndcg_at_3", "coverage_at_3", "gini_at_1", "novelty_at_3", "popularity_lift_at_3"]
    options = [word for name in names for word in ("--metric", name)]
    rows = json.loads(shown(experiment, *runs, *options, "--json"))
    client = MlflowClient(experiment.tracking.absolute_uri)
    for run, row in zip(runs, rows, strict=True):
        logged = client.get_run(run).data.metrics
        assert [row[name] for name in names] == [logged[f"test/{name}"] for name in names]
        assert row["ndcg_at_3_low"] <= row["ndcg_at_3"]
        assert row["coverage_at_3_low"] is None
    # A cut-off that was not logged, from the top-k table.
    name, out = "coverage_at_2", tmp_path / "out"
    comparison = recsys.compare(runs, experiment.tracking, metrics=[name], report=out)
    table = pl.read_csv(out / "comparison.csv")
    assert table[name].to_list() == [row.metrics[name] for row in comparison.rows]
    assert "coverage@2" in (out / "comparison.html").read_text().lower()


def test_the_command_shows_metrics_by_segment(experiment: Experiment, runs: list[str]) -> None:
    text = shown(experiment, *runs, "--by", "popularity_decile", "--metric", "recall_at_3")
    assert "popularity" in text
    assert "recall@3" in text
    rows = json.loads(shown(experiment, *runs, "--by", "popularity_decile", "--json"))
    assert len({row["popularity_decile"] for row in rows}) > 1
    assert {row["name"] for row in rows} == {"tiny-popularity", "tiny-markov"}
    assert sum(row["targets"] for row in rows) == 2 * 5
