"""The simplest counts, to judge the metrics of a run by."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from recsys.baselines.tuned import BASELINES
from recsys.config import Experiment
from recsys.data.prepared import Part, PreparedDataset
from recsys.evaluation.candidates import choose_candidates
from recsys.evaluation.held_out import find_holdout
from recsys.evaluation.tables import evaluate
from recsys.experiments.results import headline_metrics
from recsys.progress import stage

SIMPLEST = ("markov", "popularity")
"""Baselines without settings, which are fitted in a moment."""
_MOST_SCORES = 200_000_000
"""Histories times items that are ranked in some seconds."""
_FEWEST = 1_000
"""Histories of a sample at least, for a recall within some hundredths; among a million items they
take ten seconds, and a training takes an hour."""


class SimplestBaselines(NamedTuple):
    """The metrics of the simplest baselines, and what they were measured on."""

    metrics: dict[str, Mapping[str, float]]
    """The headline metrics without coverage, by the name of the baseline."""
    sampled: int | None
    """The number of histories whose targets were ranked, chosen at random; None if it was all."""


def simplest_baselines(
    experiment: Experiment, dataset: PreparedDataset, names: Sequence[str] = SIMPLEST
) -> SimplestBaselines:
    """Evaluate the simplest baselines on the test targets of an experiment, without logging.

    They are fitted on the same parts as the experiment's model and ranked under its protocol. Where
    there are so many users and items that this takes more than a moment, on those of a sample.

    Args:
        experiment: the protocol, and the seed of the sample.
        dataset: the prepared dataset.
        names: baselines without settings.

    Raises:
        InputError: there is nothing to evaluate on.
    """
    experiment = experiment.with_data(dataset.config)
    evaluation = experiment.evaluation
    everything = find_holdout(dataset, "test", evaluation.request_time)
    most = max(_MOST_SCORES // dataset.num_items, _FEWEST)
    holdout = everything.sample(most, experiment.seed)
    candidates = choose_candidates(evaluation, dataset, "test", holdout)
    before: Part = "test" if experiment.training.refit else "valid"
    found: dict[str, Mapping[str, float]] = {}
    with stage("simplest baselines", len(names)) as line:
        for name in names:
            scorer = BASELINES[name].fit(dataset, before, None)
            ranks = evaluate(scorer, holdout, "test", evaluation.seen, candidates=candidates)
            found[name] = headline_metrics(ranks, evaluation.cutoffs)
            line.advance()
    return SimplestBaselines(found, None if holdout is everything else len(holdout.histories))
