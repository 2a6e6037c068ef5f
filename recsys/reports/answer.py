"""Which run is the answer, and how it compares with the best baseline, in a sentence."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import polars as pl

from recsys.baselines.tuned import BASELINES
from recsys.errors import InputError
from recsys.evaluation.tables import RankTable
from recsys.reports.comparison_charts import RankedRun, by_merit, headline
from recsys.reports.statistics import ALPHA, PairedResult, holm
from recsys.reports.tables import Comparison, decimals, heading, with_interval
from recsys.tracking.artifacts import ANSWER


@dataclass(frozen=True, slots=True)
class Answer:
    """The run that is the answer, beside its strongest rival."""

    run: RankedRun
    metric: str
    """The metric that runs are compared in, NDCG@10 unless the comparison lacks it."""
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
        runs, metric = by_merit(comparison), headline(comparison)
        whole = [run for run in runs if not run.model.first.model_alone]
        chosen = runs[:1] if run_id is None else [run for run in whole if run.row.run_id == run_id]
        if not chosen:
            raise InputError(f"run {run_id}: is not in the comparison")
        answer = chosen[0]
        rivals = [run for run in whole if _is_baseline(run) != _is_baseline(answer)]
        same = [run for run in runs if run.model.first.shares_targets(answer.model.first)]
        others = [run for run in same if run is not answer]
        for rival in rivals:
            if rival not in others:
                continue
            # Drawn as the tests of the table, each run against the answer: with the same p-values.
            tests = [
                run.model.test(
                    answer.model, metric, method=comparison.method, across_protocols=True
                )
                for run in others
            ]
            place = others.index(rival)
            p_value = holm([test.p_value for test in tests])[place]
            difference = tests[place]._replace(p_value=p_value).of_b_against_a
            return cls(answer, metric, rival, difference)
        return cls(answer, metric, rivals[0] if rivals else None, None)

    @property
    def name(self) -> str:
        """What the answer is, in words; the name of its run if nobody gave it any."""
        name: str = self.run.model.first.run.data.tags.get(ANSWER, self.run.row.label)
        return name

    @property
    def is_baseline(self) -> bool:
        """Is it none of the trained models?"""
        return _is_baseline(self.run)

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

    @property
    def verdict(self) -> str:
        """How the answer compares with its rival; empty without one."""
        if self.rival is None:
            return ""
        kind = "trained model" if self.is_baseline else "baseline"
        than = f"the best {kind}, {self.rival.row.label}"
        if self.difference is None:
            return f"on other targets than {than}, so that the two cannot be compared"
        difference, _, _, p_value = self.difference
        # The spaces keep it on one line.
        p = f"p = {decimals(p_value)}".replace(" ", "\N{NO-BREAK SPACE}")
        change = _change(difference, self.rival.interval.mean)
        if p_value >= ALPHA:
            return f"{change} against {than}, which may be chance ({p})"
        if difference > 0:
            return f"{change} over {than} ({p})"
        return f"{change} against {than}, which did better on the test users ({p})"

    @property
    def random_order(self) -> float | None:
        """NDCG@10 that a random order of the items reaches; None for other metrics."""
        ranks = self.run.model.first.ranks
        return random_ndcg_at_10(ranks) if self.metric == "ndcg_at_10" else None

    def sentence(self, targets: int) -> str:
        """Say how good the answer is.

        Args:
            targets: the number of held-out targets.
        """
        text = f"{heading(self.metric)} {with_interval(self.run.interval)} on {targets:,} held-out "
        text += f"purchases, {self.verdict}." if self.verdict else "purchases."
        if self.random_order is None:
            return text
        return f"{text} A random order of the items reaches {decimals(self.random_order)}."


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


def _is_baseline(run: RankedRun) -> bool:
    return run.row.model in BASELINES


def _change(difference: float, rival: float) -> str:
    """Return a difference relative to the metric of the rival.

    >>> _change(0.0123, 0.1), _change(-0.01, 0.1), _change(0.1, 0)
    ('+12%', '−10%', '+.1000')
    """
    if not rival:
        return decimals(difference, "+")
    return f"{round(100 * difference / rival):+d}%".replace("-", "−")
