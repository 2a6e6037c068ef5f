"""Effect sizes, and seeds pooled: by hand and against scipy."""

from __future__ import annotations

import math

import numpy as np
import polars as pl
import pytest
from numpy.typing import NDArray
from scipy import stats

from recsys.comparison.effect import paired_effect
from recsys.comparison.significance import paired_difference, paired_test
from recsys.evaluation.tables.rank import RankProtocol, RankTable


def table(ranks: list[int] | NDArray[np.int64]) -> RankTable:
    frame = pl.DataFrame(
        {
            "user": np.arange(len(ranks)),
            "target": np.ones(len(ranks), dtype=np.int32),
            "rank": np.array(ranks),
            "history_length": np.ones(len(ranks), dtype=np.int32),
        }
    )
    return RankTable(frame, RankProtocol("test", 100, "filter", "against_target", 0))


def test_effect_by_hand() -> None:
    # Differences 1, 0, 1, 0: mean .5, standard deviation 1 / sqrt(3).
    effect = paired_effect(np.array([1.0, 0, 1, 1]), np.array([0.0, 0, 0, 1]))
    assert effect.d_z == pytest.approx(0.5 * math.sqrt(3))
    assert effect.users_needed == math.ceil((1.959964 + 0.841621) ** 2 / 0.75 + 1.959964**2 / 2)


@pytest.mark.parametrize("d_z", [0.05, 0.2, 0.8])
def test_users_needed_are_those_of_the_noncentral_t_distribution(d_z: float) -> None:
    differences = np.array([1.0, -1.0]) * np.sqrt(0.5) + d_z  # standard deviation 1
    needed = paired_effect(differences, np.zeros(2)).users_needed

    def power(users: float) -> float:
        critical = stats.t.ppf(0.975, users - 1)
        return float(stats.nct.sf(critical, users - 1, d_z * math.sqrt(users)))

    assert power(needed - 2) < 0.8 < power(needed + 1)


def test_effects_at_the_edge() -> None:
    some = np.array([0.5, 1.0])
    assert paired_effect(some, some) == (0.0, math.inf)
    assert paired_effect(some, some - 0.5) == (math.inf, 2)
    assert paired_effect(some - 0.5, some).d_z == -math.inf
    with pytest.raises(ValueError, match="two users or more"):
        paired_effect(some[:1], some[:1])


def test_t_is_the_paired_t_test_of_scipy() -> None:
    generator = np.random.default_rng(0)
    a, b = (generator.geometric(p, 400) for p in (0.06, 0.05))
    ours, theirs = (table(ranks).values("ndcg_at_10") for ranks in (a, b))
    result = paired_test(table(a), table(b), "ndcg_at_10", method="t")
    assert result.p_value == pytest.approx(stats.ttest_rel(ours, theirs).pvalue, rel=1e-12)
    randomised = paired_test(table(a), table(b), "ndcg_at_10")
    assert result[:3] == randomised[:3]  # one interval
    assert result.p_value == pytest.approx(randomised.p_value, abs=0.02)


def test_t_of_equal_differences() -> None:
    some = np.array([0.1, 0.4, 0.7])
    assert paired_difference(some, some, method="t").p_value == 1
    assert paired_difference(some + 0.1, some, method="t").p_value == 0
