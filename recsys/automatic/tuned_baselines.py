"""The baselines of an automatic run, tuned on validation while their share of the time lasts."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from recsys.automatic.budget import Budget
from recsys.baselines.tuned import BASELINES
from recsys.config import Experiment
from recsys.data.holdout import Holdout
from recsys.data.prepared import PreparedDataset
from recsys.experiments.baselines import Tuned, baselines_of

logger = logging.getLogger(__name__)

SHARE = 0.06
"""Share of the time limit for tuning baselines; those that cost more than counting begin in the
first quarter of it alone."""
_FIRST = ("transitions_and_repeats", "pctm")
"""Those that are most often the best, if time is short."""
_COSTLY = ("item_knn", "ease", "matrix_factorisation")
STORE_SECONDS = 1.0
"""Seconds to record the test of a baseline in the tracking store."""
_SLOW_ITEMS = {"ease": 6_000, "item_knn": 30_000, "matrix_factorisation": 100_000}
"""The catalogues above which a baseline is not tried, because its fit alone takes minutes."""


@dataclass(frozen=True, slots=True)
class MeasuredBaseline:
    """A baseline with the settings that validation chose."""

    name: str
    tuned: Tuned
    ndcg_at_10: float
    """On the validation targets of the race."""
    fit_seconds: float
    """Of one fit on the training part."""
    rank_seconds: float
    """Of ranking the validation targets of the race."""

    def plain(self) -> dict[str, Any]:
        """Return it as a journal writes it; see `parse`."""
        return {
            "name": self.name,
            "settings": repr(self.tuned.settings),
            "seconds": self.tuned.seconds,
            "ndcg_at_10": self.ndcg_at_10,
            "fit_seconds": self.fit_seconds,
            "rank_seconds": self.rank_seconds,
        }

    @classmethod
    def parse(cls, fields: Mapping[str, Any]) -> MeasuredBaseline:
        """Return what `plain` wrote.

        Raises:
            LookupError: that baseline has no such settings.
        """
        baseline = BASELINES[fields["name"]]
        known = {repr(one): one for one in (*baseline.grid, *baseline.published.values())}
        tuned = Tuned(known[fields["settings"]], fields["seconds"])
        measured = (fields[name] for name in ("ndcg_at_10", "fit_seconds", "rank_seconds"))
        return cls(fields["name"], tuned, *measured)


def tune_baselines(
    protocol: Experiment,
    dataset: PreparedDataset,
    valid: Holdout,
    budget: Budget,
    announce: Callable[[str], None],
    known: Sequence[MeasuredBaseline] = (),
) -> Iterator[MeasuredBaseline]:
    """Tune the baselines, the most promising first; those that time is too short for are named.

    When the time is over, the settings of the last one that were not tried yet are left out.

    Args:
        protocol: the experiment whose protocol they are tuned under.
        dataset: the prepared dataset.
        valid: the validation targets.
        budget: the time of the whole run.
        announce: called with one line about what is tried next.
        known: those that were tuned before.
    """
    deadline = budget.spent + budget.limit * SHARE - sum(one.tuned.seconds for one in known)
    names = sorted(baselines_of(protocol, dataset), key=lambda name: name not in _FIRST)
    tuned_before = {one.name for one in known}
    for number, name in enumerate(names, 1):
        if name in tuned_before:
            continue
        if budget.spent > deadline - (name in _COSTLY) * budget.limit * SHARE * 0.75:
            logger.debug("baseline %s: not tried, the time of the baselines is over", name)
            continue
        if dataset.num_items > _SLOW_ITEMS.get(name, dataset.num_items):
            logger.debug("baseline %s: not tried with %d items", name, dataset.num_items)
            continue
        announce(f"baseline {number} of {len(names)}: {name}")
        started = time.monotonic()
        best = BASELINES[name].measure(
            dataset, valid, protocol.evaluation.seen, lambda: budget.spent > deadline
        )
        seconds = time.monotonic() - started
        tuned = Tuned(best.settings, seconds)
        logger.debug("baseline %s: validation NDCG@10 %.4f, %.1f s", name, best.ndcg_at_10, seconds)
        yield MeasuredBaseline(name, tuned, best.ndcg_at_10, best.fit_seconds, best.rank_seconds)
