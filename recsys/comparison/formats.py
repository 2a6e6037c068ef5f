"""The numbers and names of a comparison as tables and pages show them."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

if TYPE_CHECKING:  # the console prints with these words, and not all it prints was computed
    from recsys.comparison.significance import Method
    from recsys.evaluation.metrics.intervals import Interval

TESTS: dict[Method, str] = {
    "randomisation": "paired randomisation test",
    "t": "paired t-test",
}
"""The tests that p-values come from, in words."""


def explained(metric: str) -> str:
    """Say in a sentence what a metric counts; empty for those beyond recall, NDCG and MRR.

    >>> explained("recall_at_5")
    'Recall@5 is the share of held-out items that are among the first 5 of the list.'
    """
    name, _, k = metric.partition("_at_")
    words = {
        "ndcg": "is 1 where the held-out item is the first of the list, less the lower it stands "
        f"(.63 for the second, .39 for the fifth), and 0 where it is not among the first {k}.",
        "recall": f"is the share of held-out items that are among the first {k} of the list.",
        "mrr": "is 1 where the held-out item is the first of the list, ½ for the second, ⅓ for the "
        "third, and so on.",
    }
    return f"{heading(metric)} {words[name]}" if name in words else ""


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


def in_brackets(low: float, high: float, sign: str = "-") -> str:
    """Format the ends of an interval.

    >>> in_brackets(0.1, 0.25), in_brackets(-0.5, 0.5, sign="+")
    ('[.1000, .2500]', '[-.5000, +.5000]')
    """
    return f"[{decimals(low, sign)}, {decimals(high, sign)}]"


def with_interval(interval: Interval) -> str:
    """Format a mean and its interval.

    >>> from recsys.evaluation.metrics.intervals import Interval
    >>> with_interval(Interval(0.2, 0.1, 0.25))
    '.2000 [.1000, .2500]'
    """
    return f"{decimals(interval.mean)} {in_brackets(interval.low, interval.high)}"


def heading(metric: str) -> str:
    """Return the name of a metric as it stands over a picture.

    >>> heading("ndcg_at_10"), heading("recall_at_k")
    ('NDCG@10', 'Recall@k')
    """
    text = title(metric).replace("_", " ").replace("ndcg", "NDCG").replace("mrr", "MRR")
    return text[:1].upper() + text[1:]
