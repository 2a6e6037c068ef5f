"""The held-out targets of an automatic run: all, or a random sample that its time allows."""

from __future__ import annotations

import logging
import time
from collections.abc import Sequence
from dataclasses import dataclass

from recsys.baselines.popularity import Popularity
from recsys.config import EvaluationConfig
from recsys.data.prepared import PreparedDataset
from recsys.evaluation.held_out import HeldOutParts
from recsys.evaluation.tables import evaluate

logger = logging.getLogger(__name__)

_MOST_VALID, _LEAST_VALID, _LEAST_TEST = 5_000, 500, 1_000
_COUNT_TRIALS, _TESTS = 50, 10
"""Rankings of a target to weight the counts on validation, and to test the model and the baselines,
each in units of a ranking by popularity."""
_VALID_SHARE, _TEST_SHARE = 0.05, 0.05
"""Shares of the time limit for the first, and for the other."""
_WEIGHING_SHARE = 0.03
"""The share of the time limit for weighting the counts once more, on more targets. On Sports 5,000
chose the weight 4, with .0427 on test, where 8 is better."""
_MODEL_SHARE = 0.01
"""The share of the time limit in which the cheapest model ranks the validation targets."""
_MODEL_TESTS = 6
"""Rankings of a test target by a model of twice the cost of the cheapest, to test it."""
_MEASURED = 500


@dataclass(frozen=True, slots=True)
class Targets:
    """The targets that choices are made on, and those that are tested on."""

    held_out: HeldOutParts
    sizes: Sequence[int]
    """The numbers of histories that the samples have at most: of validation, of test, and of the
    validation targets that weights are chosen on."""
    unit: float
    """Seconds of ranking the targets of a history by popularity."""

    @classmethod
    def choose(
        cls,
        dataset: PreparedDataset,
        evaluation: EvaluationConfig,
        limit: float,
        seed: int,
        sizes: Sequence[int] | None = None,
        ranking: float = 0.0,
    ) -> Targets:
        """Choose as many targets as a time limit allows: at most 5,000 for validation.

        More of them are chosen to weight counts on, as a model that is cheap to score allows.

        Args:
            dataset: the prepared dataset.
            evaluation: the protocol.
            limit: seconds of the whole run.
            seed: of the samples.
            sizes: the numbers of histories of the samples, where they were chosen before.
            ranking: seconds in which the cheapest model ranks the targets of a history.

        Raises:
            InputError: there are no targets; see `find_holdout`.
        """
        found = HeldOutParts.find(dataset, evaluation.request_time)
        unit = _seconds_per_history(dataset, found, evaluation)
        if sizes is None:
            valid_size = int(_VALID_SHARE * limit / (unit * _COUNT_TRIALS))
            test_size = int(_TEST_SHARE * limit / (unit * _TESTS))
            if ranking:
                valid_size = min(valid_size, int(_MODEL_SHARE * limit / ranking))
                test_size = min(test_size, int(_TEST_SHARE * limit / (ranking * _MODEL_TESTS)))
            valid_size = min(max(valid_size, _LEAST_VALID), _MOST_VALID)
            weighed = int(_WEIGHING_SHARE * limit / (unit * _COUNT_TRIALS))
            sizes = valid_size, max(test_size, _LEAST_TEST), max(weighed, valid_size)
        valid, test = found.valid.sample(sizes[0], seed), found.test.sample(sizes[1], seed)
        weighing = found.valid.sample(sizes[2], seed) if sizes[2] > sizes[0] else None
        for does, part, all_of_it in (
            ("models are chosen", valid, found.valid),
            ("tested", test, found.test),
        ):
            if len(part.targets) < len(all_of_it.targets):
                logger.info(
                    "%s on a random %d of %d targets, for want of time",
                    *(does, len(part.targets), len(all_of_it.targets)),
                )
        return cls(HeldOutParts(valid, test, weighing), sizes, unit)


def _seconds_per_history(
    dataset: PreparedDataset, held_out: HeldOutParts, evaluation: EvaluationConfig
) -> float:
    """Measure how long it takes to rank the targets of a history by popularity.

    The least of three times counts: the first ranking of a process loads code, and other work on
    the machine only adds to a time.
    """
    sample = held_out.valid.sample(_MEASURED, 0)
    popularity = Popularity.fit(dataset.histories("valid"), dataset.num_items)
    seconds = []
    for _ in range(3):
        started = time.monotonic()
        evaluate(popularity, sample, "valid", evaluation.seen)
        seconds.append(time.monotonic() - started)
    return min(seconds) / len(sample.histories)
