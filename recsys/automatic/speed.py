"""How fast a model trains and ranks on this machine, which decides what a time limit allows."""

from __future__ import annotations

import logging
import time
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

from rich.console import Console
from rich.progress import Progress

from recsys.automatic.candidates import Candidate
from recsys.automatic.facts import LogFacts
from recsys.data.features.encoders import NO_ENCODERS, Encoders
from recsys.data.prepared import PreparedDataset
from recsys.evaluation.held_out import find_holdout
from recsys.inference.catalogue import Catalogue
from recsys.reports.run_page import Choice
from recsys.training.loop import ENDLESS, build_batches, train

logger = logging.getLogger(__name__)

_STEPS, _SECONDS = 2, 1.0
"""Steps of an epoch, and how long epochs are timed: two at least, without the first one. The
fastest counts: other work on the machine, and what happens once, only add to a time."""
_RANKED = 100
"""Validation histories that are ranked after each."""
MOST_STEPS = 50
"""Steps of an epoch at most, which is a share of a pass over a large log; a small log has several
epochs between two validations."""
_STEPS_OF_A_PART = 5_000
"""Steps that the time limit has at least, if it is too short for one pass over the log: a model
learns by the number of steps then (see the lab log)."""
_FEWEST_TOKENS = 512
_EPOCH_SHARE = 1 / 60
"""The share of the time limit that an epoch of the cheapest kind takes at most. Four kinds that
cost eight times as much together have time for three epochs in each of two rounds then."""


@dataclass(frozen=True, slots=True)
class Speed:
    """What the cheapest kind of model takes."""

    token: float
    """Seconds of training on a token of a batch."""
    ranking: float
    """Seconds of ranking the validation targets of a history."""

    def batch_tokens(self, proposed: int, interactions: int, limit: float) -> int:
        """Return the tokens of a batch: fewer if the limit is too short for a pass over the log.

        Args:
            proposed: what the log alone would have.
            interactions: those of the log.
            limit: seconds of the whole run.

        >>> [Speed(1e-4, 0.0).batch_tokens(8192, logged, 600) for logged in (10**6, 10**8)]
        [8192, 1024]
        """
        affordable = limit / max(self.token, 1e-12)
        if affordable >= interactions:
            return proposed
        tokens = max(_FEWEST_TOKENS, int(affordable / _STEPS_OF_A_PART))
        return min(proposed, 1 << (tokens.bit_length() - 1))

    def steps_per_epoch(self, batch_tokens: int, limit: float) -> int:
        """Return how many steps lie between two validations, for a time limit in seconds.

        >>> [Speed(token, 0.0).steps_per_epoch(1000, 600) for token in (1e-5, 1e-3, 2e-2)]
        [50, 10, 1]
        """
        affordable = _EPOCH_SHARE * limit / max(self.token * batch_tokens, 1e-9)
        return int(max(1, min(MOST_STEPS, affordable)))

    @classmethod
    def measure(
        cls,
        candidates: Sequence[Candidate],
        dataset: PreparedDataset,
        encoders: Encoders = NO_ENCODERS,
    ) -> Speed:
        """Train a new model for a few steps, and rank some validation targets.

        The cheapest candidate that can be trained is measured, as if its cost were 1. If none can,
        all are taken for fast: the race will say why.

        Args:
            candidates: those of a race.
            dataset: the prepared dataset, with the features that the model reads.
            encoders: those of the features.

        Raises:
            KeyboardInterrupt: Ctrl-C.
        """
        catalogue = Catalogue.read(dataset.num_items, encoders, dataset.item_table)
        histories = dataset.histories("valid")
        for candidate in sorted(candidates, key=lambda one: one.cost):
            experiment, ends = candidate.experiment, list[float]()
            holdout = find_holdout(dataset, "valid", experiment.evaluation.request_time)
            sample = holdout.sample(_RANKED, experiment.seed)
            try:
                batches = len(build_batches(experiment, histories))
                shares = max(1, batches // _STEPS)
                changes = {"epochs_per_pass": shares, "validate_every": 1, "patience": ENDLESS}
                training = experiment.training.model_copy(update=changes)
                _, curve = train(
                    experiment.model_copy(update={"training": training}),
                    catalogue,
                    histories,
                    sample,
                    ENDLESS,
                    partial(_were_timed, ends),
                    Progress(console=Console(quiet=True), disable=True),
                )
            except Exception as error:  # noqa: BLE001 - the race says why
                logger.debug("%s could not be timed: %s", candidate.name, error)
                continue
            if curve.interrupted:
                raise KeyboardInterrupt
            timed = curve.epochs[1:]
            step = min(epoch["train/seconds"] for epoch in timed) * shares / batches
            ranking = min(epoch["epoch/valid_seconds"] for epoch in timed) / len(sample.histories)
            tokens = candidate.cost * training.batch_tokens
            return cls(step / tokens, ranking)
        return UNKNOWN


UNKNOWN = Speed(0.0, 0.0)
"""The speed of models none of which could be trained."""


def _were_timed(ends: list[float], epoch: int, _: object) -> bool:
    """Note the end of an epoch, and return whether enough were timed after the first."""
    ends.append(time.monotonic())
    return epoch > 1 and ends[-1] - ends[0] > _SECONDS


def for_speed(
    choices: Sequence[Choice], speed: Speed, facts: LogFacts, limit: float
) -> list[Choice]:
    """Return the choices for a log as the speed and a time limit in seconds change them."""
    name = "training.batch_tokens"
    proposed = next(int(one.value) for one in choices if one.setting == name)
    tokens = speed.batch_tokens(proposed, facts.interactions, limit)
    reason = "the time is too short for a pass over the log: more steps, each of fewer tokens"
    changed = Choice(name, str(tokens), reason) if tokens < proposed else None
    return [changed if changed and one.setting == name else one for one in choices]
