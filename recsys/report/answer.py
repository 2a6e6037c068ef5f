"""Which run is the answer, and how it compares with the best baseline, in a sentence."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import polars as pl

from recsys.baselines.tuned import BASELINES
from recsys.comparison.formats import decimals, heading, with_interval
from recsys.comparison.merit import RankedRun, by_merit, headline
from recsys.comparison.significance import ALPHA, PairedResult, holm
from recsys.comparison.table import Comparison
from recsys.errors import InputError
from recsys.evaluation.tables import RankTable
from recsys.tracking.artifacts import ANSWER


@dataclass(frozen=True, slots=True)
class Answer:
    """The run that is the answer, beside its strongest rival."""

    run: RankedRun
    metric: str
    """The metric that runs are compared in, NDCG@10 unless the comparison lacks it."""
    is_baseline: bool
    rival: RankedRun | None
    """The best baseline or, if the answer is one, the best trained model; None without one."""
    difference: PairedResult | None
    """The answer minus its rival, p-values Holm-corrected for all other runs, as those of the
    table; None if the two have other targets, or if there is no rival."""

    @classmethod
    def of(cls, comparison: Comparison, run_id: str | None = None) -> Answer:
        """Compare the answer with its rivals.

        Args:
            comparison: the answer, and baselines or models to compare it with.
            run_id: the id of the answer; the best of the comparison if None.

        Raises:
            InputError: the comparison has no such run.
        """
        runs = by_merit(comparison)
        found = [
            run
            for run in runs
            if run_id is None or (run.row.run_id == run_id and not run.model.first.model_alone)
        ]
        if not found:
            raise InputError(f"run {run_id}: is not in the comparison")
        answer, metric = found[0], headline(comparison)
        is_baseline = _is_baseline(answer)
        rivals = [
            run
            for run in runs
            if _is_baseline(run) != is_baseline and not run.model.first.model_alone
        ]
        same = [run for run in rivals if run.model.first.shares_targets(answer.model.first)]
        if not same:
            return cls(answer, metric, is_baseline, rivals[0] if rivals else None, None)
        others = [
            run
            for run in runs
            if run is not answer and run.model.first.shares_targets(answer.model.first)
        ]
        # Drawn as the tests of the table, each run against the answer: the p-values are the same.
        tests = [
            run.model.test(answer.model, metric, method=comparison.method, across_protocols=True)
            for run in others
        ]
        place = others.index(same[0])
        p_value = holm([each.p_value for each in tests])[place]
        difference = tests[place]._replace(p_value=p_value).of_b_against_a
        return cls(answer, metric, is_baseline, same[0], difference)

    @property
    def figure(self) -> str:
        """The metric of the answer with its interval."""
        return f"{heading(self.metric)} {with_interval(self.run.interval)}"

    @property
    def verdict(self) -> str:
        """How the answer compares with its rival; empty without one."""
        if self.rival is None:
            return ""
        kind = "trained model" if self.is_baseline else "baseline"
        than = f"the best {kind}, {self.rival.label}"
        if self.difference is None:
            return f"on other targets than {than}, so that the two cannot be compared"
        change, p = _change(self.difference.difference, self.rival.interval.mean), self.p_value
        if self.difference.p_value >= ALPHA:
            return f"{change} against {than}, which may be chance ({p})"
        if self.difference.difference > 0:
            return f"{change} over {than} ({p})"
        return f"{change} against {than}, which did better on the test users ({p})"

    @property
    def p_value(self) -> str:
        """The p-value of the difference as text."""
        if self.difference is None:
            return ""
        # The spaces keep it on one line.
        return f"p = {decimals(self.difference.p_value)}".replace(" ", "\N{NO-BREAK SPACE}")

    @property
    def name(self) -> str:
        """What the answer is, in words; the name of its run if nobody gave it any."""
        name: str = self.run.model.first.run.data.tags.get(ANSWER, self.run.label)
        return name

    @property
    def random_order(self) -> float | None:
        """NDCG@10 that a random order of the items reaches; None for other metrics."""
        if self.metric != "ndcg_at_10":
            return None
        return random_ndcg_at_10(self.run.model.first.ranks)

    @property
    def headline(self) -> str:
        """What the answer is."""
        if self.random_order is not None and self.run.interval.low <= self.random_order:
            return "Nothing here orders the items better than chance"
        if self.difference is not None and self.difference.difference < 0:
            kind = "trained model" if self.is_baseline else "baseline"
            return f"{self.name} was chosen, but a {kind} scored higher on the test users"
        if self.is_baseline:
            return f"{self.name}, a baseline, is the answer, not a trained model"
        if self.difference is None or self.difference.p_value >= ALPHA:
            return f"{self.name} was chosen; no test shows that it is better than the baselines"
        return f"{self.name} is the model to use"


def random_ndcg_at_10(ranks: RankTable) -> float:
    """Return the expected NDCG@10 of a random order of the items that targets were ranked among.

    An item in the history that is not ranked counts as one less, also if it is there twice.
    """
    gains = 1 / np.log2(np.arange(2, 12))
    lists = ranks.frame.group_by("user", "history_length").agg(targets=pl.col("target").n_unique())
    ranked = np.full(len(lists), ranks.protocol.num_items)
    if ranks.protocol.seen == "filter":
        ranked = np.maximum(1, ranked - lists["history_length"].to_numpy())
    best = np.cumsum(gains)[np.minimum(lists["targets"].to_numpy(), 10) - 1]
    reached = np.cumsum(gains)[np.minimum(ranked, 10) - 1] * lists["targets"].to_numpy() / ranked
    values = lists.with_columns(value=np.minimum(1, reached / best))
    return float(values.group_by("user").agg(pl.col("value").mean())["value"].mean())  # type: ignore[arg-type]


def sentence(answer: Answer, targets: int) -> str:
    """Say how good the answer is.

    Args:
        answer: the answer.
        targets: the number of held-out targets.
    """
    text = f"{answer.figure} on {targets:,} held-out purchases"
    text += f", {answer.verdict}." if answer.verdict else "."
    if answer.random_order is None:
        return text
    return f"{text} A random order of the items reaches {decimals(answer.random_order)}."


def _is_baseline(run: RankedRun) -> bool:
    return run.row.model in BASELINES


def _change(difference: float, rival: float) -> str:
    """Return a difference relative to the metric of the rival.

    >>> _change(0.0123, 0.1), _change(-0.01, 0.1), _change(0.1, 0)
    ('+12%', '−10%', '+.1000')
    """
    if not rival:
        return decimals(difference, "+")
    share = round(100 * difference / rival)
    return f"{share:+d}%".replace("-", "−")
