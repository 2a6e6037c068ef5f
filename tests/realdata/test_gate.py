"""The evaluator's gate: published figures of deterministic models, to the fourth decimal.

From github.com/spotify-research/sequential-capacity-probes (RecSys 2026), rerun on these very logs
with equal scores ordered by item id. If one fails, nothing measured here counts.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from recsys.baselines.transitions import (
    PCTM,
    PUBLISHED_PCTM,
    PUBLISHED_RULES,
    MarkovChain,
    SequentialRules,
)
from recsys.config import DataConfig
from recsys.data.prepared import PreparedDataset, prepare
from recsys.evaluation.metrics import metric_values
from recsys.evaluation.tables import evaluate
from recsys.inference.scorer import Scorer

pytestmark = [pytest.mark.realdata, pytest.mark.slow]


@pytest.fixture(scope="module", params=list(PUBLISHED_PCTM))
def dataset(
    request: pytest.FixtureRequest, mirror: Path, tmp_path_factory: pytest.TempPathFactory
) -> PreparedDataset:
    """Each log in turn, prepared under protocol P."""
    out = tmp_path_factory.mktemp("gate") / request.param
    return prepare(request.param, DataConfig(source=request.param, mirror=str(mirror)), out)


def figures(scorer: Scorer, dataset: PreparedDataset) -> tuple[float, float]:
    """NDCG@10 and HR@10."""
    ranks = evaluate(scorer, dataset.holdout("test"), "test", "filter", "item_id").ranks
    return round(float(metric_values(ranks, "ndcg_at_10").mean()), 4), round(
        float(metric_values(ranks, "recall_at_10").mean()), 4
    )


def test_users_and_dropped_targets(dataset: PreparedDataset) -> None:
    holdout = dataset.holdout("test")
    expected = {"ml-1m": (6_038, 2), "amazon-beauty": (22_311, 52), "amazon-sports": (35_539, 59)}
    assert (len(holdout.targets), holdout.dropped) == expected[dataset.path.name]


def test_markov_chain(dataset: PreparedDataset) -> None:
    expected = {
        "ml-1m": (0.1241, 0.2113),
        "amazon-beauty": (0.0492, 0.0723),
        "amazon-sports": (0.0251, 0.0390),
    }
    scorer = MarkovChain.fit(dataset.histories("test"), dataset.num_items)
    assert figures(scorer, dataset) == expected[dataset.path.name]


def test_pctm(dataset: PreparedDataset) -> None:
    expected = {
        "ml-1m": (0.1815, 0.3057),
        "amazon-beauty": (0.0635, 0.0999),
        "amazon-sports": (0.0368, 0.0618),
    }
    scorer = PCTM.fit(
        dataset.histories("test"), dataset.num_items, PUBLISHED_PCTM[dataset.path.name]
    )
    assert figures(scorer, dataset) == expected[dataset.path.name]


def test_sequential_rules(dataset: PreparedDataset) -> None:
    """Of the 200 rules kept per item of ML-1M, the last ones tie, and no order is said for those.

    The published .1505 (.2577) lacks one hit that ours has: a user of 6,038.
    """
    expected = {
        "ml-1m": (0.1506, 0.2579),
        "amazon-beauty": (0.0605, 0.0956),
        "amazon-sports": (0.0371, 0.0626),
    }
    settings = PUBLISHED_RULES[dataset.path.name]
    scorer = SequentialRules.fit(dataset.histories("test"), dataset.num_items, settings)
    assert figures(scorer, dataset) == expected[dataset.path.name]
