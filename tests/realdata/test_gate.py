"""The evaluator's gate: published figures of deterministic models, to the fourth decimal.

From github.com/spotify-research/sequential-capacity-probes (RecSys 2026), rerun on these very logs
with equal scores ordered by item id. If one fails, nothing measured here counts.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from recsys.baselines.transitions import (
    MARKOV_CHAIN,
    PCTM,
    PUBLISHED_PCTM,
    PUBLISHED_RULES,
    SequentialRules,
)
from recsys.config.data import DataConfig
from recsys.data.histories import Histories
from recsys.data.prepared import prepare
from recsys.evaluation.tables import evaluate
from recsys.inference.scorer import Scorer

pytestmark = [pytest.mark.realdata, pytest.mark.slow]
Figures = dict[str, tuple[float, float]]
MARKOV: Figures = {
    "ml-1m": (0.1241, 0.2113),
    "amazon-beauty": (0.0492, 0.0723),
    "amazon-sports": (0.0251, 0.0390),
}
PUBLISHED: Figures = {
    "ml-1m": (0.1815, 0.3057),
    "amazon-beauty": (0.0635, 0.0999),
    "amazon-sports": (0.0368, 0.0618),
}
# Of the 200 rules kept per item of ML-1M, the last ones tie, and no order is said for those: the
# published .1505 (.2577) lacks one hit that ours has, a user of 6,038.
RULES: Figures = {
    "ml-1m": (0.1506, 0.2579),
    "amazon-beauty": (0.0605, 0.0956),
    "amazon-sports": (0.0371, 0.0626),
}


@dataclass
class InOrder:
    """The order of another scorer, equal scores by item token. A `Scorer`."""

    scorer: Scorer

    @property
    def num_items(self) -> int:
        return self.scorer.num_items

    def score(
        self, histories: Histories, candidates: NDArray[np.int32] | None = None
    ) -> torch.Tensor:
        scores = self.scorer.score(histories)
        order = scores.sort(dim=1, descending=True, stable=True).indices
        places = -torch.arange(scores.shape[1], dtype=torch.float32).expand_as(scores)
        return torch.empty_like(scores).scatter(1, order, places).where(scores > -math.inf, scores)


@pytest.mark.parametrize("name", PUBLISHED_PCTM)
def test_published_figures(name: str, mirror: Path, tmp_path: Path) -> None:
    """NDCG@10 and HR@10 under protocol P."""
    data = prepare(name, DataConfig(source=name), tmp_path / "data")
    holdout = data.holdout("test")
    users = {"ml-1m": (6_038, 2), "amazon-beauty": (22_311, 52), "amazon-sports": (35_539, 59)}
    assert (len(holdout.targets), holdout.dropped) == users[name]

    def figures(scorer: Scorer) -> tuple[float, float]:
        ranks = evaluate(InOrder(scorer), holdout, "test", "filter")
        ndcg, recall = (ranks.values(f"{kind}_at_10").mean() for kind in ("ndcg", "recall"))
        return round(float(ndcg), 4), round(float(recall), 4)

    fitted = data.histories("test"), data.num_items
    assert figures(SequentialRules.fit(*fitted, MARKOV_CHAIN)) == MARKOV[name]
    assert figures(PCTM.fit(*fitted, PUBLISHED_PCTM[name])) == PUBLISHED[name]
    assert figures(SequentialRules.fit(*fitted, PUBLISHED_RULES[name])) == RULES[name]
