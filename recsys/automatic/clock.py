"""The time of an automatic run: what has passed, how fast the machine is, and what fits in."""

from __future__ import annotations

import logging
import re
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import partial

from rich.console import Console
from rich.progress import Progress

from recsys.baselines.popularity import Popularity
from recsys.config import Experiment
from recsys.data.prepared import PreparedDataset
from recsys.data.splits import Holdout
from recsys.errors import InputError
from recsys.evaluation.held_out import HeldOutParts
from recsys.evaluation.tables import evaluate
from recsys.experiments.count_weights import GRID, RECENT
from recsys.inference.catalogue import Catalogue
from recsys.training.loop import ENDLESS, build_batches, train

logger = logging.getLogger(__name__)

_UNITS = {"": 1, "s": 1, "m": 60, "h": 3600}
_END_SHARE = 0.35
"""Share of the limit that is kept for what follows the training, at most."""
_PAGE_SECONDS, _PAGE_SHARE = 10.0, 0.07
"""Seconds for the page and the bundle, and the share of the limit that they have at most."""

_STEPS, _SECONDS, _RANKED = 2, 1.0, 100
"""Steps of an epoch, how long epochs are timed, and validation histories ranked after each. The
fastest counts: other work on the machine, and what happens once, only add to a time."""
_COUNTED = 500
"""Histories that are ranked by popularity."""

_MOST_STEPS = 50
"""Steps between two validations at most, unless these are slow beside the training."""
_BETWEEN_SHARE = 1 / 60
"""The share of the limit that the cheapest kind trains between two validations at most."""
_VALIDATION_SHARE = 0.25
"""Share of the training time that validations take at most: two kinds that cost three times the
cheapest one together have time for three validations each in a race."""
_STEPS_OF_A_PART = 5_000
"""Steps that the limit has at least, if it is too short for one pass over the log: a model learns
by the number of steps then (see the lab log)."""
_FEWEST_TOKENS = 512

WAYS_AGAIN = 3
"""All counts together, and each once more, in as many rankings as those of a way to count."""
WAYS_TO_COUNT, _WEIGHTS = len(GRID) + len(RECENT) + WAYS_AGAIN, 9
"""Rankings by counts of a validation target, to weight them: each way to count what followed what,
each share of the interactions that are the newest, and again; nine weights for each."""
_MOST_VALID, _LEAST_VALID, _LEAST_TEST = 5_000, 500, 1_000
_VALID_SHARE, _TEST_SHARE, _WEIGHING_SHARE, _MODEL_SHARE = 0.05, 0.05, 0.03, 0.007
"""Shares of the limit: for weighting counts on the validation targets; for the tests; for weighting
the counts of the answer on more targets (on Sports 5,000 chose the weight 4, with .0427 on test,
where 8 is better); and for one validation of the cheapest model."""


@dataclass
class Clock:
    """The seconds of a run, which pass from a moment on: by default from when it is made."""

    limit: float
    """Seconds of the whole run."""
    before: float = 0.0
    """Seconds that an interrupted run had used already."""
    started: float = field(default_factory=time.monotonic, repr=False)
    """The moment, by `time.monotonic`."""
    stopped: bool = False
    """Whether Ctrl-C has ended the training: the best so far is tested."""

    @property
    def spent(self) -> float:
        """Seconds used so far."""
        return self.before + time.monotonic() - self.started

    @property
    def left(self) -> float:
        """Seconds left; negative once the limit is exceeded."""
        return self.limit - self.spent

    @property
    def seconds_of_page(self) -> float:
        """Seconds that are kept for the page."""
        return min(_PAGE_SECONDS, _PAGE_SHARE * self.limit)

    def end_of_training(self, testing: float) -> float:
        """Return the moment when training must end, if what follows takes so many seconds."""
        end = self.limit - min(_END_SHARE * self.limit, testing + self.seconds_of_page)
        logger.debug("the tests take %.1f s: training ends at %.1f s", testing, end)
        return end


def parse_time_limit(limit: str | float) -> float:
    """Return a time limit in seconds.

    >>> [parse_time_limit(limit) for limit in ("30m", "1.5h", "90", 5)]
    [1800.0, 5400.0, 90.0, 5.0]

    Raises:
        InputError: it is not a positive number with the unit s, m or h.
    """
    units = r"(?:(s)(?:ec(?:onds?)?)?|(m)(?:in(?:utes?)?)?|(h)(?:ours?)?|)"
    match = re.fullmatch(rf"\s*(\d+(?:\.\d*)?|\.\d+)\s*{units}\s*", str(limit))
    unit = next(filter(None, match.groups()[1:]), "") if match else ""
    seconds = float(match[1]) * _UNITS[unit] if match else 0.0
    if not seconds > 0:
        raise InputError(f"time limit {limit!r}: must be a time such as 90s, 30m or 1.5h")
    return seconds


@dataclass(frozen=True, slots=True)
class Speed:
    """What the cheapest kind of model, and counting, take on this machine, in seconds."""

    token: float
    """Of training on a token of a batch."""
    ranking: float
    """Of ranking the targets of a history by the model."""
    counting: float
    """Of ranking them by popularity."""

    def batch_tokens(self, usual: int, interactions: int, limit: float) -> int:
        """Return the tokens of a batch: fewer if the limit is too short for a pass over the log.

        >>> [Speed(1e-4, 0.0, 0.0).batch_tokens(8192, logged, 600) for logged in (10**6, 10**8)]
        [8192, 1024]
        """
        affordable = limit / max(self.token, 1e-12)
        if affordable >= interactions:
            return usual
        tokens = max(_FEWEST_TOKENS, int(affordable / _STEPS_OF_A_PART))
        return min(usual, 1 << (tokens.bit_length() - 1))

    def steps_between(self, batch_tokens: int, targets: int, limit: float) -> int:
        """Return the steps from one validation to the next, as validations of so many take.

        >>> [Speed(token, 0.0, 0.0).steps_between(1000, 500, 600) for token in (1e-5, 1e-3, 2e-2)]
        [50, 10, 1]
        >>> Speed(1e-5, 1e-2, 0.0).steps_between(1000, 500, 600)  # 15 s of steps, 5 s of ranking
        1500
        """
        step = max(self.token * batch_tokens, 1e-9)
        seconds = min(_MOST_STEPS * step, _BETWEEN_SHARE * limit)
        validating = self.ranking * targets * (1 / _VALIDATION_SHARE - 1)
        return max(1, int(max(seconds, validating) / step + 1e-6))

    def sample_sizes(self, limit: float) -> tuple[int, int, int]:
        """Return how many histories a limit allows: to validate, to test, to weight counts on."""
        counting, ranking = max(self.counting, 1e-12), max(self.ranking, 1e-12)
        weighing = 1.1 * WAYS_TO_COUNT * _WEIGHTS * counting
        valid = min(_VALID_SHARE * limit / weighing, _MODEL_SHARE * limit / ranking)
        valid = int(min(max(valid, _LEAST_VALID), _MOST_VALID))
        test = min(_TEST_SHARE * limit / (10 * counting), _TEST_SHARE * limit / (6 * ranking))
        return (
            valid,
            int(max(test, _LEAST_TEST)),
            int(max(_WEIGHING_SHARE * limit / weighing, valid)),
        )

    def seconds_to_weigh(self, histories: int, ranking: float, ways: int = WAYS_TO_COUNT) -> float:
        """Estimate the seconds in which counts are weighted, for a model that ranks so fast."""
        return histories * (ways * _WEIGHTS * self.counting + 7 * ranking)


UNKNOWN = Speed(0.0, 0.0, 0.0)
"""The speed of models none of which could be trained: the race will say why."""


def measure(
    kinds: Sequence[tuple[float, Experiment]],
    dataset: PreparedDataset,
    catalogue: Catalogue,
    valid: Holdout,
) -> Speed:
    """Train a new model for a few steps, and rank some validation targets by it and by counts.

    The cheapest kind that can be trained is measured, as if its cost were 1.

    Args:
        kinds: the cost and the settings of each kind.
        dataset: the prepared dataset, with the features that the models read.
        catalogue: its items.
        valid: the validation targets.

    Raises:
        KeyboardInterrupt: Ctrl-C.
    """
    histories = dataset.histories("valid")
    popularity = Popularity.fit(histories, dataset.num_items)
    sample, seconds = valid.sample(_COUNTED, 0), list[float]()
    for _ in range(3):
        started = time.monotonic()
        evaluate(popularity, sample, "valid", kinds[0][1].evaluation.seen)
        seconds.append(time.monotonic() - started)
    counting = min(seconds) / len(sample.histories)
    sample = valid.sample(_RANKED, 0)
    for cost, experiment in sorted(kinds, key=lambda kind: kind[0]):
        ends = list[float]()
        try:
            batches = len(build_batches(experiment, histories))
            parts = max(1, batches // _STEPS)
            changes = {"epochs_per_pass": parts, "validate_every": 1, "patience": ENDLESS}
            training = experiment.training.model_copy(update=changes)
            _, curve = train(
                experiment.model_copy(update={"training": training}),
                *(catalogue, histories, sample, ENDLESS, partial(_are_timed, ends)),
                Progress(console=Console(quiet=True), disable=True),
            )
        except Exception as error:  # noqa: BLE001 - the race says why
            logger.debug("%s could not be timed: %s", experiment.family, error)
            continue
        if curve.interrupted:
            raise KeyboardInterrupt
        timed = curve.epochs[1:]
        step = min(epoch["train/seconds"] for epoch in timed) * parts / batches
        ranking = min(epoch["epoch/valid_seconds"] for epoch in timed) / len(sample.histories)
        return Speed(step / (cost * training.batch_tokens), ranking, counting)
    return Speed(0.0, 0.0, counting)


def _are_timed(ends: list[float], epoch: int, _: object) -> bool:
    """Note the end of an epoch, and return whether enough were timed after the first."""
    ends.append(time.monotonic())
    return epoch > 1 and ends[-1] - ends[0] > _SECONDS


def sampled(held_out: HeldOutParts, sizes: tuple[int, int, int], seed: int) -> HeldOutParts:
    """Return random samples of the targets of so many histories; say where they are fewer."""
    valid, test = held_out.valid.sample(sizes[0], seed), held_out.test.sample(sizes[1], seed)
    weighing = held_out.valid.sample(sizes[2], seed) if sizes[2] > sizes[0] else None
    for does, sample, everything in (
        ("models are chosen", valid, held_out.valid),
        ("tested", test, held_out.test),
    ):
        if len(sample.targets) < len(everything.targets):
            logger.info(
                "%s on a random %d of %d targets, for want of time",
                *(does, len(sample.targets), len(everything.targets)),
            )
    return HeldOutParts(valid, test, weighing)
