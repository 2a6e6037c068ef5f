"""The numbers and names of a comparison as tables and pages show them."""

from __future__ import annotations

import re

from recsys.comparison.significance import Method

TESTS: dict[Method, str] = {
    "randomisation": "paired randomisation test",
    "t": "paired t-test",
}
"""The tests that p-values come from, in words."""


def title(metric: str) -> str:
    """Return the name of a metric as text.

    >>> title("ndcg_at_10")
    'ndcg@10'
    """
    return metric.replace("_at_", "@")


def decimals(value: float, sign: str = "-") -> str:
    """Format a number with four decimals and without the zero before the point.

    >>> decimals(0.19), decimals(-0.5), decimals(0.5, sign="+"), decimals(10.25)
    ('.1900', '-.5000', '+.5000', '10.2500')
    """
    return re.sub(r"^([+-]?)0\.", r"\1.", f"{value:{sign}.4f}")


def heading(metric: str) -> str:
    """Return the name of a metric as it stands over a picture.

    >>> heading("ndcg_at_10"), heading("recall_at_k")
    ('NDCG@10', 'Recall@k')
    """
    text = title(metric).replace("_", " ").replace("ndcg", "NDCG").replace("mrr", "MRR")
    return text[:1].upper() + text[1:]
