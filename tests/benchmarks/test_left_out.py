"""The rule of automatic runs without what a log has taught it, on that log.

Beauty and Sports taught it the same, so without either of them it stays as it is; Online Retail II
taught it a half-life of a kind that other kinds beat there. Run test_automatic.py for those. The
variables are those of test_automatic.py.
"""

from __future__ import annotations

import pytest

from recsys.automatic import candidates
from recsys.automatic.facts import LogFacts
from recsys.reports.run_page import Choice
from tests.benchmarks.test_automatic import run_log

OTHER_SIZES = {"ml-1m": {"model.embedding_dim": "64", "model.dropout": "0.2"}}
"""Width 128 and dropout .25 are MovieLens-1M's alone: the other dense logs were tuned to these."""
OTHER_KINDS = {"shop": "target-attention-average"}
"""The kind that the simulated shop brought in."""


@pytest.mark.benchmark
@pytest.mark.parametrize("name", ["ml-1m", "shop"])
def test_a_log_with_the_rule_that_the_others_make(
    name: str, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest
) -> None:
    sizes, left_out = OTHER_SIZES.get(name, {}), OTHER_KINDS.get(name)
    choose = candidates.choose_sizes

    def choose_without(facts: LogFacts) -> list[Choice]:
        return [
            one._replace(value=sizes[one.setting], reason="of the other logs")
            if one.setting in sizes
            else one
            for one in choose(facts)
        ]

    monkeypatch.setattr(candidates, "choose_sizes", choose_without)
    order = tuple(kind for kind in candidates._DENSE_ORDER if kind != left_out)
    monkeypatch.setattr(candidates, "_DENSE_ORDER", order)
    run_log(name, "without", monkeypatch, request)
