"""How fast a model trains and ranks on this machine, which decides what a time limit allows."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass

from rich.console import Console
from rich.progress import Progress

from recsys.automatic.candidates import Candidate
from recsys.data.features.encoders import NO_ENCODERS, Encoders
from recsys.data.prepared import PreparedDataset
from recsys.errors import InputError
from recsys.evaluation.held_out import find_holdout
from recsys.inference.catalogue import Catalogue
from recsys.training.loop import ENDLESS, build_batches, train

logger = logging.getLogger(__name__)

_STEPS = 2
"""Steps of each of the two epochs that are timed; the second counts."""
_RANKED = 100
"""Validation histories that are ranked after each."""
MOST_STEPS = 50
"""Steps of an epoch at most, which is a share of a pass over a large log; a small log has several
epochs between two validations."""
_EPOCH_SHARE = 1 / 60
"""The share of the time limit that an epoch of the cheapest kind takes at most. Four kinds that
cost eight times as much together have time for three epochs in each of two rounds then."""


@dataclass(frozen=True, slots=True)
class Speed:
    """What the cheapest kind of model takes."""

    step: float
    """Seconds of a training step."""
    ranking: float
    """Seconds of ranking the validation targets of a history."""

    def steps_per_epoch(self, limit: float) -> int:
        """Return how many steps lie between two validations, for a time limit in seconds.

        >>> [Speed(step, 0.0).steps_per_epoch(600) for step in (0.01, 1.0, 20.0)]
        [50, 10, 1]
        """
        affordable = _EPOCH_SHARE * limit / max(self.step, 1e-9)
        return max(1, min(MOST_STEPS, int(affordable)))

    @classmethod
    def measure(
        cls,
        candidates: Sequence[Candidate],
        dataset: PreparedDataset,
        encoders: Encoders = NO_ENCODERS,
    ) -> Speed:
        """Train a new model for a few steps, and rank some validation targets.

        If it cannot be trained, all is taken for fast: the race will say why.

        Args:
            candidates: those of a race, of which the cheapest is trained.
            dataset: the prepared dataset, with the features that the model reads.
            encoders: those of the features.

        Raises:
            KeyboardInterrupt: Ctrl-C.
        """
        cheapest = min(candidates, key=lambda one: one.cost)
        experiment, histories = cheapest.experiment, dataset.histories("valid")
        holdout = find_holdout(dataset, "valid", experiment.evaluation.request_time)
        sample = holdout.sample(_RANKED, experiment.seed)
        catalogue = Catalogue.read(dataset.num_items, encoders, dataset.item_table)
        try:
            batches = len(build_batches(experiment, histories))
            shares = max(1, batches // _STEPS)
            changes = {"epochs_per_pass": shares, "validate_every": 1, "patience": ENDLESS}
            training = experiment.training.model_copy(update=changes)
            experiment = experiment.model_copy(update={"training": training})
            _, curve = train(
                experiment,
                catalogue,
                histories,
                sample,
                ENDLESS,
                lambda epoch, _: epoch > 1,
                Progress(console=Console(quiet=True), disable=True),
            )
        except InputError as error:
            logger.debug("the speed could not be measured: %s", error)
            return cls(0.0, 0.0)
        if curve.interrupted:
            raise KeyboardInterrupt
        timed = curve.epochs[-1]
        step = timed["train/seconds"] * shares / batches
        return cls(step, timed["epoch/valid_seconds"] / len(sample.histories))
