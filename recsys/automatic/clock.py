"""The time of an automatic run: its limit, how fast the machine is, and what fits in."""

import re
import time
from dataclasses import dataclass, field
from itertools import pairwise

from recsys.baselines.count_ensemble import GRID, RECENT
from recsys.baselines.counts import Popularity
from recsys.config.experiment import Experiment
from recsys.data.prepared import PreparedDataset
from recsys.data.splits import Holdout
from recsys.errors import InputError
from recsys.evaluation.held_out import HeldOutParts
from recsys.evaluation.tables import evaluate
from recsys.inference.catalogue import Catalogue
from recsys.training.epochs import ENDLESS
from recsys.training.loop import build_batches, train

_UNITS = {"": 1, "s": 1, "m": 60, "h": 3600}
_PAGE_SECONDS, _PAGE_SHARE = 10.0, 0.07
"""Seconds for the page and the bundle, and the share of the limit that they have at most."""
_STEPS, _SECONDS, _RANKED, _COUNTED = 2, 1.0, 100, 500
"""To measure the speed: steps of an epoch, seconds of epochs, validation histories that a model
ranks after each, and those that popularity ranks."""
_MOST_STEPS, _BETWEEN_SHARE, _VALIDATION_SHARE = 50, 1 / 60, 0.25
"""Steps between two validations, and the share of the limit that they take, at most; more where
validations would take more than that share of the training time."""
_WEIGHTINGS, MODEL_TESTS = 9 * (len(GRID) + len(RECENT) + 3), 2
"""Rankings of a validation target by counts, to weight them; of a test target by the model."""
_MOST_VALID, _LEAST_VALID, _LEAST_TEST = 5_000, 500, 1_000
_VALID_SHARE, _TEST_SHARE, _WEIGHING_SHARE, _MODEL_SHARE = 0.05, 0.05, 0.03, 0.007
"""Shares of the limit: for weighting counts on the validation targets; for the tests; for weighting
the counts of the answer on more targets; and for one validation of the cheapest model."""


@dataclass
class Clock:
    """The seconds of a run: of its limit, and those that an interrupted run had used before."""

    limit: float
    before: float = 0.0
    started: float = field(default_factory=time.monotonic, repr=False)
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


def parse_time_limit(limit: str | float) -> float:
    """Return a time limit in seconds; an `InputError` if it is no positive number of s, m or h.

    >>> [parse_time_limit(limit) for limit in ("30m", "1.5h", "90", 5)]
    [1800.0, 5400.0, 90.0, 5.0]
    """
    match = re.fullmatch(r"\s*(\d+(?:\.\d*)?|\.\d+)\s*([smh]?)\s*", str(limit))
    seconds = float(match[1]) * _UNITS[match[2]] if match else 0.0
    if not seconds > 0:
        raise InputError(f"time limit {limit!r}: must be a time such as 90s, 30m or 1.5h")
    return seconds


@dataclass(frozen=True, slots=True)
class Speed:
    """What a model whose cost is 1, and counting, take on this machine, in seconds."""

    token: float
    """Of training on a token of a batch."""
    ranking: float
    """Of ranking the targets of a history by the model."""
    counting: float
    """Of ranking them by popularity."""

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

    def seconds_to_weigh(self, histories: int, ranking: float) -> float:
        """Estimate the seconds in which counts are weighted, for a model that ranks so fast."""
        return histories * (_WEIGHTINGS * self.counting + 7 * ranking)

    def sample(self, held_out: HeldOutParts, limit: float, seed: int) -> HeldOutParts:
        """Return random samples of the targets as a limit allows."""
        counting, ranking = max(self.counting, 1e-12), max(self.ranking, 1e-12)
        weighing = 1.1 * _WEIGHTINGS * counting
        chosen = min(_VALID_SHARE * limit / weighing, _MODEL_SHARE * limit / ranking)
        chosen = min(max(chosen, _LEAST_VALID), _MOST_VALID)
        tested = max(_TEST_SHARE * limit / (10 * counting + MODEL_TESTS * ranking), _LEAST_TEST)
        weighed = _WEIGHING_SHARE * limit / weighing
        valid = held_out.valid.sample(int(chosen), seed)
        more = held_out.valid.sample(int(weighed), seed) if weighed > chosen else valid
        return HeldOutParts(valid, held_out.test.sample(int(tested), seed), more)


def measure(
    experiment: Experiment,
    cost: float,
    dataset: PreparedDataset,
    catalogue: Catalogue,
    valid: Holdout,
) -> Speed:
    """Train a new model, of a cost, for a few steps; rank validation targets by it and by counts.

    The speed of one that cannot be trained is 0; the race says why.
    """
    histories, sample = dataset.histories("valid"), valid.sample(_COUNTED, 0)
    popularity, ends = Popularity.fit(histories, dataset.num_items), [time.monotonic()]
    for _ in range(3):
        evaluate(popularity, sample, "valid", experiment.evaluation.seen)
        ends.append(time.monotonic())
    counting = min(end - start for start, end in pairwise(ends)) / len(sample.histories)
    started, sample = time.monotonic(), valid.sample(_RANKED, 0)

    def are_timed(epoch: int, _: object) -> bool:
        nonlocal started
        started = time.monotonic() if epoch == 1 else started
        return epoch > 1 and time.monotonic() - started > _SECONDS

    try:
        batches = len(build_batches(experiment, histories))
        passes = max(1, batches // _STEPS)
        timed = experiment.with_training(epochs_per_pass=passes, validate_every=1, patience=ENDLESS)
        _, curve = train(timed, catalogue, histories, sample, ENDLESS, are_timed)
    except Exception:  # noqa: BLE001 - the race says why
        return Speed(0.0, 0.0, counting)
    if curve.interrupted:
        raise KeyboardInterrupt
    epochs = curve.epochs[1:]  # the first is slower: memory is touched for the first time
    whole = min(epoch["train/seconds"] for epoch in epochs) * passes
    ranking = min(epoch["epoch/valid_seconds"] for epoch in epochs) / cost / len(sample.histories)
    return Speed(whole / batches / (cost * timed.training.batch_tokens), ranking, counting)
