"""A candidate in training, which is paused, resumed, and at the end refitted."""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import cached_property

from rich.progress import Progress

from recsys.automatic.candidates import Candidate
from recsys.automatic.speed import UNKNOWN, Speed
from recsys.config import Experiment
from recsys.data.features.encoders import NO_ENCODERS, Encoders
from recsys.data.holdout import Holdout
from recsys.data.prepared import Part, PreparedDataset
from recsys.errors import InputError, first_line
from recsys.inference.catalogue import Catalogue
from recsys.model.models import Model
from recsys.reports.run_page import RacePoint
from recsys.training.checkpoints import TrainingState
from recsys.training.curve import MONITOR, Curve
from recsys.training.device import training_device
from recsys.training.epochs import Report
from recsys.training.loop import ENDLESS, build_batches, train

logger = logging.getLogger(__name__)

VALIDATION_SHARE = 0.2
"""Share of the time that validations take at most."""
PATIENCE = 4
"""Validations without a gain after which a constant learning rate has nothing more to give. Those
of the average vary little: on Sports its last eleven lay between .0438 and .0447."""
_MORE_PATIENCE = 4
"""So many times as many for a model that is no match for the best baseline: over a large catalogue
a model first learns what is popular, and gets worse before it learns what follows what."""
_NO_MATCH = 0.5
"""Below this share of the best baseline's NDCG@10. A model that is closer gains by its refit and by
its counts."""
_MARGIN = 1.15
"""Epochs vary: a plan counts them this much longer than measured."""
_REFIT_SHARE = 0.5
"""Epochs of the refit that time is kept for, as a share of those before it. NDCG@10 with counts was
.0442, .0451 and .0450 after about a quarter, half and as many on Sports; .0764, .0774, .0776 on
Beauty."""

_CONSTANT: dict[str, object] = {"decay_fraction": 0.0, "average_weights": True}
"""The learning rate is constant, and the weights of the epochs are averaged."""


@dataclass(eq=False)
class Contender:
    """A candidate, and how far its training has come.

    The learning rate is constant: so the training can be paused at any epoch, and the refit can
    start from the state of the best one. What is validated, and what the refit returns, is the
    average of the weights after each epoch, which needs no decay to be judged (see the lab log).
    """

    candidate: Candidate
    dataset: PreparedDataset
    """With the features that the model reads."""
    catalogue: Catalogue
    validation: Holdout
    clock: Callable[[], float]
    """Returns the seconds since the race began."""
    progress: Progress | None = None
    points: list[RacePoint] = field(default_factory=list)
    seconds: float = 0.0
    """Seconds that its training has taken."""
    seconds_of_first: float = 0.0
    """Seconds of its first epoch, which is slower: memory is touched for the first time."""
    seconds_validating: float = 0.0
    """Seconds of its validations."""
    rarely: int = 1
    """How many times as many epochs as planned lie between two validations, because these are slow
    beside the training."""
    latest: TrainingState | None = None
    best: TrainingState | None = None
    """The state after the best epoch."""
    dropped_in: int | None = None
    """The round of the race after which it was dropped, 0 if it was not raced; else None."""
    interrupted: bool = False
    """Whether Ctrl-C ended its training."""
    is_partner: bool = False
    """Whether it trains for a mean with the winner."""
    failure: str = ""
    """Why its training cannot go on: it diverged, or does not fit into the memory."""
    ended_rising: bool = False
    """Whether time ended its training, and not a lack of gains."""
    best_baseline: float = 0.0
    """Validation NDCG@10 of the best baseline."""
    expected_seconds: float = 0.0
    """Seconds from one validation to the next, as the measured speed lets expect."""
    saved: Callable[[Contender], None] = lambda _: None
    """Called when its state may be saved: after every epoch of the race and of the training on."""
    goes_on: Callable[[], None] = lambda: None
    """Called after every epoch, also of the refit."""

    @property
    def quality(self) -> float:
        """Best validation NDCG@10 so far; -1 before the first."""
        return max((point.ndcg for point in self.points), default=-1.0)

    @property
    def epochs(self) -> int:
        """Epochs so far."""
        return max((point.epochs for point in self.points), default=0)

    @property
    def best_epoch(self) -> int:
        """Epochs before the best validation."""
        return 0 if self.best is None else len(self.best.curve.epochs)

    @property
    def best_state(self) -> TrainingState:
        """The state after the best epoch; there must have been a validation."""
        if self.best is None:
            raise ValueError("no epoch was validated")
        return self.best

    @property
    def seconds_per_epoch(self) -> float:
        """Seconds of an epoch with its validation; without the first, once there are others."""
        if self.epochs < 2:
            return self.seconds
        return (self.seconds - self.seconds_of_first) / (self.epochs - 1)

    def seconds_to_end(self, hold: int, refit: int | None = None) -> float:
        """Estimate the seconds of training up to ``hold`` epochs, and of the refit.

        Args:
            hold: epochs before the refit, all in all.
            refit: those of the refit; by default as many as time is kept for.
        """
        refit = max(1, round(_REFIT_SHARE * hold)) if refit is None else refit
        return self.seconds_of(max(0, hold - self.epochs)) + self.seconds_of_refit(refit)

    def seconds_of_refit(self, epochs: int) -> float:
        """Estimate the seconds of so many epochs of the refit: more steps, and no validations."""
        validating = self.seconds_validating / max(self.epochs, 1)
        training = max(self.seconds_per_epoch - validating, 1e-3)
        return epochs * training * self.cost_of_refit * _MARGIN

    def seconds_of(self, epochs: float) -> float:
        """Estimate the seconds of so many epochs."""
        return epochs * max(self.seconds_per_epoch, 1e-3) * _MARGIN

    def epochs_to(self, share: float) -> int:
        """Return the epochs after which it first had a share of its best validation NDCG@10."""
        least = share * self.quality
        return min((point.epochs for point in self.points if point.ndcg >= least), default=0)

    def quality_after(self, epochs: int) -> float:
        """Best validation NDCG@10 of the first epochs; -1 without a validation."""
        return max((one.ndcg for one in self.points if one.epochs <= epochs), default=-1.0)

    @property
    def exhausted(self) -> bool:
        """Whether it can gain nothing more.

        The last `PATIENCE` validations gained nothing, or more below the baselines; or it failed.
        """
        if self.failure:
            return True
        behind = self.quality < _NO_MATCH * self.best_baseline
        patience = PATIENCE * _MORE_PATIENCE if behind else PATIENCE
        qualities = [point.ndcg for point in self.points]
        before, since = qualities[:-patience], qualities[-patience:]
        return bool(before) and max(before) >= max(since)

    @property
    def experiment(self) -> Experiment:
        """The settings of its training, and of its refit."""
        return self._with_training(_CONSTANT)

    @classmethod
    def ready(
        cls,
        candidate: Candidate,
        dataset: PreparedDataset,
        validation: Holdout,
        clock: Callable[[], float],
        progress: Progress | None = None,
        encoders: Encoders = NO_ENCODERS,
        speed: Speed = UNKNOWN,
        limit: float = math.inf,
    ) -> Contender:
        """Return a contender that has not started, with epochs of like numbers of steps.

        An epoch is a share of a pass over a large log; over a small log several epochs of a pass
        each lie between two validations. The encoders are those of the features that its model
        reads, which dataset and validation have. The time limit is in seconds.
        """
        experiment = candidate.experiment
        catalogue = Catalogue.read(dataset.num_items, encoders, dataset.item_table)
        steps = max(len(build_batches(experiment, dataset.histories("valid"))), 1)
        tokens = experiment.training.batch_tokens
        steps_per_epoch = speed.steps_per_epoch(tokens, limit)
        changes = {
            "epochs_per_pass": max(1, steps // steps_per_epoch),
            "validate_every": math.ceil(steps_per_epoch / steps),
        }
        training = experiment.training.model_copy(update=changes)
        candidate = replace(
            candidate, experiment=experiment.model_copy(update={"training": training})
        )
        between = max(steps_per_epoch, steps // changes["epochs_per_pass"]) * tokens * speed.token
        expected = candidate.cost * (between + len(validation.histories) * speed.ranking)
        ready = cls(candidate, dataset, catalogue, validation, clock, progress)
        ready.expected_seconds = expected
        return ready

    def forget(self) -> None:
        """Free the memory of its states: it is not trained on."""
        self.latest = self.best = None

    def refit(self, enough: Callable[[int], bool]) -> Model:
        """Train on with the training and validation parts together; return the model.

        It starts from the state of the best epoch, at the same constant learning rate, and goes on
        with the average of the weights. ``enough`` is asked after each epoch, with their number.

        Raises:
            InputError: the training failed.
            KeyboardInterrupt: Ctrl-C.
        """
        best = self.best_state
        hold = len(best.curve.epochs)

        def is_over(epoch: int, _: dict[str, float]) -> bool:
            self.goes_on()
            return enough(epoch - hold)

        return self._train("test", None, is_over, best.copy(), None)[0]

    def advance(self, enough: Callable[[Contender], bool]) -> None:
        """Train on, with a constant learning rate, until ``enough`` of it or without a gain.

        ``enough`` is asked after each validation.
        """
        if self.latest is None:
            self._advance(lambda _: True)  # measures the speed of training and validation
            self.rarely = self._affordable_validations()
            if enough(self) or self.interrupted:
                return
        self._advance(enough)

    def _advance(self, enough: Callable[[Contender], bool]) -> None:
        started, before = time.monotonic(), self.seconds

        def record(epoch: int, metrics: dict[str, float]) -> bool:
            self.goes_on()
            if MONITOR in metrics:
                self.points.append(RacePoint(self.clock(), epoch, metrics[MONITOR]))
                self.seconds_validating += metrics["epoch/valid_seconds"]
            self.seconds = before + time.monotonic() - started
            if epoch == 1:
                self.seconds_of_first = self.seconds
            return MONITOR in metrics and (enough(self) or self.exhausted)

        start = None if self.latest is None else self.latest.copy()
        _, curve = self._train("valid", self.validation, record, start, self._keep)
        self.interrupted = curve.interrupted
        if self.interrupted and self.best is None:
            raise KeyboardInterrupt
        self.seconds = before + time.monotonic() - started

    def _train(
        self,
        before: Part,
        validation: Holdout | None,
        report: Report,
        start: TrainingState | None,
        save: Callable[[TrainingState], None] | None,
    ) -> tuple[Model, Curve]:
        """Train on all interactions before a part.

        Raises:
            InputError: the training failed, for whatever reason: other kinds of model go on.
        """
        histories = self.dataset.histories(before)
        words = self.experiment, self.catalogue, histories, validation, ENDLESS
        try:
            return train(*words, report, self.progress, start, save)
        except InputError:
            raise
        except Exception as error:
            logger.debug("%s", self.candidate.name, exc_info=True)
            raise InputError(f"{type(error).__name__}: {first_line(error)}") from error

    @cached_property
    def cost_of_refit(self) -> float:
        """Steps of an epoch of its refit, in epochs of its training."""
        experiment, dataset = self.candidate.experiment, self.dataset
        before, after = (
            len(build_batches(experiment, dataset.histories(part))) for part in ("valid", "test")
        )
        return after / max(before, 1)

    @property
    def best_curve(self) -> Curve:
        """The curve up to the best epoch, with its weights."""
        return self.best_state.copy().curve

    def best_model(self) -> tuple[Model, Curve]:
        """Return the model of the best epoch, averaged, and its curve."""
        curve, histories = self.best_curve, self.dataset.histories("valid")
        model = self.catalogue.restored_model(self.experiment.model, histories, curve.best_weights)
        return model.to(training_device()), curve

    @property
    def chosen_experiment(self) -> Experiment:
        """The settings that repeat this training from the beginning, by themselves."""
        hold = self.best_epoch
        changes = {"max_epochs": hold, "patience": hold, "refit": True}
        repeated = self._with_training({**_CONSTANT, **changes})
        return repeated.model_copy(update={"name": self.candidate.experiment.name})

    def _with_training(self, changes: dict[str, object]) -> Experiment:
        experiment = self.candidate.experiment
        every = experiment.training.validate_every * self.rarely
        usual: dict[str, object] = {"patience": ENDLESS, "validate_every": every}
        if self.best is not None:
            usual["precision"] = self.best.curve.precision
        training = experiment.training.model_copy(update=usual | changes)
        return experiment.model_copy(update={"name": self.candidate.name, "training": training})

    def _affordable_validations(self) -> int:
        """Return `rarely`, such that validations take their share of the time at most."""
        if self.latest is None:
            return 1
        epochs = self.latest.curve.epochs
        training = sum(epoch["train/seconds"] for epoch in epochs)
        validation = epochs[-1].get("epoch/valid_seconds", 0.0)
        return max(1, math.ceil(validation / max(training, 1e-3) * (1 / VALIDATION_SHARE - 1)))

    def _keep(self, state: TrainingState) -> None:
        """Keep the state of a whole epoch, whose tensors the next step changes."""
        if not state.epoch_has_ended:
            return
        self.latest = state.copy()
        if state.curve.best_epoch == len(state.curve.epochs):
            self.best = self.latest
        self.saved(self)
