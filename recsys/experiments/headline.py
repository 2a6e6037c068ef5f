"""The few metrics that a run is judged by first, and the simplest counts beside them."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence

from recsys.baselines.tuned import BASELINES
from recsys.config import Experiment
from recsys.data.prepared import Part, PreparedDataset
from recsys.evaluation.candidates import choose_candidates
from recsys.evaluation.held_out import find_holdout
from recsys.evaluation.tables.rank import evaluate
from recsys.experiments.results import headline_metrics
from recsys.progress import stage

logger = logging.getLogger(__name__)

SIMPLEST = ("markov", "popularity")
"""Baselines without settings, which are fitted in a moment."""
_MOST_SCORES = 200_000_000
"""Histories times items that are ranked in some seconds."""


def simplest_baselines(
    experiment: Experiment, dataset: PreparedDataset, names: Sequence[str] = SIMPLEST
) -> dict[str, Mapping[str, float]]:
    """Evaluate the simplest baselines on the test targets of an experiment, without logging.

    They are fitted on the same parts as the experiment's model and ranked under its protocol.

    Args:
        experiment: the protocol.
        dataset: the prepared dataset.
        names: baselines without settings.

    Returns:
        The headline metrics without coverage, by the name of the baseline; empty if there are so
        many users and items that ranking takes more than a moment.

    Raises:
        InputError: there is nothing to evaluate on.
    """
    experiment = experiment.with_data(dataset.config)
    evaluation = experiment.evaluation
    holdout = find_holdout(dataset, "test", evaluation.request_time)
    if len(holdout.histories) * dataset.num_items > _MOST_SCORES:
        logger.info("no baselines beside so many users and items: recsys run tunes and tests them")
        return {}
    candidates = choose_candidates(evaluation, dataset, "test", holdout)
    before: Part = "test" if experiment.training.refit else "valid"
    found: dict[str, Mapping[str, float]] = {}
    with stage("simplest baselines", len(names)) as line:
        for name in names:
            scorer = BASELINES[name].fit(dataset, before, None)
            ranks = evaluate(scorer, holdout, "test", evaluation.seen, candidates=candidates)
            found[name] = headline_metrics(ranks, evaluation.cutoffs)
            line.advance()
    return found
