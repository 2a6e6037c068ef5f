"""The rule of automatic runs without what a log has taught it, on that log.

Beauty and Sports taught it the same, so without either of them it stays as it is; Online Retail II
taught it a half-life of a kind that other kinds beat there. Run test_automatic.py for those. The
variables are those of test_automatic.py.
"""

from __future__ import annotations

from typing import Any

import pytest

from recsys.automatic import rules, run
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
    choose = rules.choose_settings

    def choose_without(*words: Any) -> list[Choice]:
        return [
            Choice(choice.setting, sizes[choice.setting], "of the other logs")
            if choice.setting in sizes
            else choice
            for choice in choose(*words)
        ]

    monkeypatch.setattr(run, "choose_settings", choose_without)
    order = tuple(kind for kind in rules._DENSE_ORDER if kind != left_out)
    monkeypatch.setattr(rules, "_DENSE_ORDER", order)
    run_log(name, "without", monkeypatch, request)
