"""A racer: the training of one kind of model, which is paused, resumed, and at the end refitted."""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cached_property

from rich.progress import Progress

from recsys.automatic.clock import Clock, Speed
from recsys.automatic.rules import Kind, Plan
from recsys.automatic.state import Entry, State
from recsys.config import Experiment
from recsys.data.histories import Histories
from recsys.data.prepared import PreparedDataset
from recsys.data.splits import Holdout
from recsys.errors import InputError, first_line
from recsys.evaluation.held_out import HeldOutParts
from recsys.experiments.results import Phases
from recsys.inference.catalogue import Catalogue
from recsys.model.models import Model
from recsys.reports.run_page import RacePoint
from recsys.serving.calibration import CALIBRATING
from recsys.training.checkpoints import TrainingState
from recsys.training.curve import MONITOR, Curve
from recsys.training.device import training_device, with_precision
from recsys.training.epochs import Report
from recsys.training.loop import ENDLESS, build_batches, train
from recsys.training.refit import Fitted

logger = logging.getLogger(__name__)

PATIENCE = 4
"""Validations without a gain after which a constant learning rate has nothing more to give. Those
of the average vary little: on Sports its last eleven lay between .0438 and .0447."""
_MORE_PATIENCE = 4
"""So many times as many for a model that is no match for the best baseline: over a large catalogue
a model first learns what is popular, and gets worse before it learns what follows what."""
_NO_MATCH = 0.5
"""Below this share of the best baseline's NDCG@10. A model that is closer gains by its refit and by
its counts."""
_LATE = 0.8
"""A refit is begun if this share of an epoch's time is left: it is worth a little more than the
limit."""
_MODEL_TESTS, _TEMPERATURES = 3, 8
"""Rankings of a test target by the model, and scorings of some validation histories, to test it."""
_BASELINE_TESTS, _REFIT_COST, _STORE_SECONDS = 2, 1.2, 1.0
"""Rankings of a test target by a baseline, fits, and seconds of the tracking store, to test it."""
_BASELINES_SHARE = 0.05
"""The share of the limit that is kept for the tests of baselines at most."""


@dataclass
class Course:
    """What all steps of a run share."""

    plan: Plan
    dataset: PreparedDataset
    """With the features that the models read."""
    catalogue: Catalogue
    held_out: HeldOutParts
    """Samples of the targets, as time allows."""
    speed: Speed
    clock: Clock
    state: State
    phases: Phases = field(default_factory=Phases)
    progress: Progress | None = None
    announce: Callable[[str], None] = lambda _: None
    averages: bool = False
    """Whether the answer may be a mean of several models."""
    skips_tests: bool = False
    """Whether Ctrl-C came after the training: baselines that are not tested yet are left out."""

    @property
    def valid(self) -> Holdout:
        """The targets that choose."""
        return self.held_out.valid

    def moment(self, share: float, *members: Racer) -> float:
        """Return when a share of the training time is over; after all of it come the tests.

        Args:
            share: 1 is the end of the refit.
            *members: what will be tested, if it is known: its rankings have been timed.
        """
        begun = self.state.begin("race", self.clock.spent)
        ranking = sum(member.seconds_per_ranking for member in members) or self.speed.ranking
        valid, test, weighed = (
            len(part.histories)
            for part in (self.valid, self.held_out.test, self.held_out.weighed_on)
        )
        slowness = max([1.0, *(member.slowness for member in members)])  # on a busy machine
        seconds = self.speed.seconds_to_weigh(weighed, ranking / slowness) * slowness
        seconds += (slowness - 1) * self.clock.seconds_of_page
        seconds += ranking * (_MODEL_TESTS * test + _TEMPERATURES * min(CALIBRATING, valid))
        baselines = sum(
            _REFIT_COST * baseline.fit_seconds
            + _BASELINE_TESTS * baseline.rank_seconds / valid * test
            + _STORE_SECONDS
            for baseline in self.state.baselines
        )
        seconds += min(baselines, _BASELINES_SHARE * self.clock.limit)
        return begun + share * (self.clock.end_of_training(seconds) - begun)

    def say(self, what: str) -> None:
        """Announce what is tried next, and the best so far: narrow terminals cut off its name."""
        self.state.note(self.clock.spent)
        tried = [(baseline.ndcg_at_10, baseline.name) for baseline in self.state.baselines]
        tried += [(entry.quality, entry.name) for entry in self.state.racers if entry.points]
        quality, name = max(tried, default=(0.0, ""))
        self.announce(f"{what}, best {quality:.4f} ({name})" if tried else what)


@dataclass(eq=False, kw_only=True)
class Racer(Entry):
    """The training of one kind of model, and how far it has come.

    The learning rate is constant: so the training can be paused at any epoch, and the refit can
    start from the state of the best one. What is validated, and what the refit returns, is the
    average of the weights after each epoch, which needs no decay to be judged (see the lab log).
    """

    kind: Kind = field(repr=False)
    course: Course = field(repr=False)
    seconds: float = 0.0
    """Seconds that its training has taken."""
    seconds_of_first: float = 0.0
    """Seconds of its first epoch, which is slower: memory is touched for the first time."""
    seconds_validating: float = 0.0
    latest: TrainingState | None = field(default=None, repr=False)
    best: TrainingState | None = field(default=None, repr=False)
    """The state after the best epoch."""

    @classmethod
    def ready(cls, kind: Kind, course: Course) -> Racer:
        """Return a racer that has not started, or as an interrupted run has saved it.

        Raises:
            InputError: no user has two interactions before the held-out ones.
        """
        known = {entry.name: vars(entry) for entry in course.state.racers}
        entry = known.get(kind.name, {"name": kind.name, "description": kind.description})
        racer = cls(**entry, kind=kind, course=course)
        _ = racer.experiment  # raises if there is nothing to train on
        if racer.rung is None or course.averages:  # else it is not trained on
            racer.latest, racer.best = course.state.read(kind.name)
        epochs = [] if racer.latest is None else racer.latest.curve.epochs
        if epochs or racer.rung is None:  # the state may be older than the last validation
            racer.points = [point for point in racer.points if point.epochs <= len(epochs)]
        if epochs:
            validating = [epoch.get("epoch/valid_seconds", 0.0) for epoch in epochs]
            training = [epoch["train/seconds"] for epoch in epochs]
            racer.seconds, racer.seconds_validating = sum(training + validating), sum(validating)
            racer.seconds_of_first = training[0] + validating[0]
            logger.info("resuming %s after %d epochs", kind.name, len(epochs))
        return racer

    @cached_property
    def experiment(self) -> Experiment:
        """The settings of its training: epochs are shares of a pass over a large log.

        Over a small log several epochs of a pass each lie between two validations.
        """
        experiment, speed = self.kind.experiment, self.course.speed
        tokens, targets = experiment.training.batch_tokens, len(self.course.valid.histories)
        between = speed.steps_between(tokens, targets, self.course.clock.limit)
        changes = {
            "epochs_per_pass": max(1, self._num_steps(self._histories) // between),
            "validate_every": math.ceil(between / self._num_steps(self._histories)),
            "patience": ENDLESS,
        }
        training = experiment.training.model_copy(update=changes)
        return experiment.model_copy(update={"name": self.kind.name, "training": training})

    @property
    def expected_interval(self) -> float:
        """Seconds from one validation to the next, as the measured speed lets expect."""
        training, speed = self.experiment.training, self.course.speed
        steps = self._num_steps(self._histories) * training.validate_every
        seconds = steps / training.epochs_per_pass * training.batch_tokens * speed.token
        return self.kind.cost * (seconds + len(self.course.valid.histories) * speed.ranking)

    @property
    def slowness(self) -> float:
        """Seconds from one validation to the next, as a multiple of those expected."""
        seconds = self.seconds_per_epoch * self.experiment.training.validate_every
        return seconds / self.expected_interval if self.expected_interval else 1.0

    @property
    def family(self) -> str:
        """Models of one family, such as two with a dot product, err alike."""
        return self.kind.experiment.model.family

    @property
    def epochs(self) -> int:
        """Epochs so far."""
        return self.points[-1].epochs if self.points else 0

    def epochs_to(self, share: float) -> int:
        """Return the epochs after which it first had a share of its best validation NDCG@10."""
        least = share * self.quality
        return next((point.epochs for point in self.points if point.ndcg >= least), 0)

    def quality_after(self, epochs: int) -> float:
        """Best validation NDCG@10 of the first epochs; -1 without a validation."""
        return max((point.ndcg for point in self.points if point.epochs <= epochs), default=-1.0)

    @property
    def best_epoch(self) -> int:
        """Epochs before the best validation."""
        return 0 if self.best is None else len(self.best.curve.epochs)

    @property
    def seconds_per_epoch(self) -> float:
        """Seconds of an epoch with its validation; without the first, once there are others."""
        if self.epochs < 2:
            return self.seconds
        return (self.seconds - self.seconds_of_first) / (self.epochs - 1)

    @property
    def seconds_per_refit_epoch(self) -> float:
        """Estimate the seconds of an epoch of the refit: more steps, and no validations."""
        training = self.seconds_per_epoch - self.seconds_validating / max(self.epochs, 1)
        steps = self._num_steps(self.course.dataset.histories("test"))
        return max(training, 1e-3) * steps / self._num_steps(self._histories)

    @property
    def seconds_per_ranking(self) -> float:
        """Seconds of ranking the targets of a history."""
        return self.seconds_validating / max(len(self.points), 1) / len(self.course.valid.histories)

    @property
    def exhausted(self) -> bool:
        """Whether it can gain nothing more.

        The last `PATIENCE` validations gained nothing, or more below the baselines; or it failed.
        """
        if self.failure:
            return True
        baseline = max((b.ndcg_at_10 for b in self.course.state.baselines), default=0.0)
        patience = PATIENCE * (_MORE_PATIENCE if self.quality < _NO_MATCH * baseline else 1)
        qualities = [point.ndcg for point in self.points]
        before, since = qualities[:-patience], qualities[-patience:]
        return bool(before) and max(before) >= max(since)

    def train(self, until: float, fewest: int = 1, latest: float = math.inf) -> None:
        """Train on until a moment, unless it gains nothing more, or fails.

        It ends after a validation, at the one that is nearest to the moment.

        Args:
            until: the moment.
            fewest: validations that it has at least, all in all, if ``latest`` allows them.
            latest: the moment that counts before that.

        Raises:
            KeyboardInterrupt: Ctrl-C; the best state so far is kept.
        """
        clock = self.course.clock

        def is_over() -> bool:
            ends = until if len(self.points) >= fewest else latest
            half = self.seconds_per_epoch * self.experiment.training.validate_every / 2
            return self.exhausted or clock.spent + half >= ends

        def record(epoch: int, metrics: dict[str, float]) -> bool:
            self.course.state.note(clock.spent)
            if MONITOR in metrics:
                self.points.append(RacePoint(clock.spent, epoch, metrics[MONITOR]))
                self.seconds_validating += metrics["epoch/valid_seconds"]
            self.seconds = before + time.monotonic() - started
            if epoch == 1:
                self.seconds_of_first = self.seconds
            return MONITOR in metrics and is_over()

        if self.failure or (self.points and is_over()):
            return
        started, before = time.monotonic(), self.seconds
        try:
            start = None if self.latest is None else self.latest.copy()
            _, curve = self._train(self._histories, self.course.valid, record, start, self._keep)
            if curve.interrupted:
                raise KeyboardInterrupt
        except InputError as error:  # it diverged, does not fit into memory, or has a fault
            self.failure = str(error)
            end = ": the best epoch before is used" if self.best else " drops out"
            logger.warning("%s%s: %s", self.name, end, error)
        self.seconds = before + time.monotonic() - started

    def refit(self, until: float) -> Fitted:
        """Train on with the training and validation parts together, and return the model.

        It starts from the state of the best epoch, at the same constant rate, and goes on with the
        average of the weights, for as many epochs again, or fewer if the moment comes before. If
        there is no time for one, or it fails, the model is that of the best epoch.

        Raises:
            KeyboardInterrupt: Ctrl-C.
        """
        model, clock = None, self.course.clock
        if not clock.stopped and clock.spent + _LATE * self.seconds_per_refit_epoch > until:
            logger.warning("no time left for the refit: the validation part is not trained on")
        elif not clock.stopped:
            started = time.monotonic()

            def record(epoch: int, _: dict[str, float]) -> bool:
                self.course.state.note(clock.spent)
                done = epoch - self.best_epoch
                per_epoch = (time.monotonic() - started) / done
                return done >= self.best_epoch or clock.spent + per_epoch > until

            try:
                histories = self.course.dataset.histories("test")
                start = self.best_state.copy()
                model, _ = self._train(histories, None, record, start, None)
            except InputError as error:  # it diverged
                logger.warning("the validation part is not trained on: %s", error)
        if model is None:
            return self.validated()
        curve = self.best_state.copy().curve
        return Fitted(model, ("train", "valid"), curve, clock.stopped, self.course.catalogue)

    def validated(self) -> Fitted:
        """Return the model of the best epoch."""
        curve, catalogue = self.best_state.copy().curve, self.course.catalogue
        model = catalogue.restored_model(self.experiment.model, self._histories, curve.best_weights)
        stopped = self.course.clock.stopped
        return Fitted(model.to(training_device()), ("train",), curve, stopped, catalogue)

    @property
    def best_state(self) -> TrainingState:
        """The state after the best epoch; there must have been a validation."""
        if self.best is None:
            raise ValueError("no epoch was validated")
        return self.best

    @property
    def chosen_experiment(self) -> Experiment:
        """The settings that repeat this training from the beginning, by themselves."""
        hold = self.best_epoch
        training = self.experiment.training.model_copy(
            update={"max_epochs": hold, "patience": hold, "refit": True}
        )
        changes = {"name": self.course.plan.name, "training": training}
        chosen = self.experiment.model_copy(update=changes)
        return with_precision(chosen, self.best_state.curve.precision)

    def forget(self) -> None:
        """Free the memory of its states: it is not trained on."""
        self.latest = self.best = None

    @cached_property
    def _histories(self) -> Histories:
        return self.course.dataset.histories("valid")

    def _num_steps(self, histories: Histories) -> int:
        return max(len(build_batches(self.kind.experiment, histories)), 1)

    def _train(
        self,
        histories: Histories,
        validation: Holdout | None,
        report: Report,
        start: TrainingState | None,
        save: Callable[[TrainingState], None] | None,
    ) -> tuple[Model, Curve]:
        """Train or go on.

        Raises:
            InputError: the training failed, for whatever reason: other kinds of model go on.
        """
        words = self.experiment, self.course.catalogue, histories, validation, ENDLESS
        try:
            return train(*words, report, self.course.progress, start, save)
        except InputError:
            raise
        except Exception as error:
            logger.debug("%s", self.name, exc_info=True)
            raise InputError(f"{type(error).__name__}: {first_line(error)}") from error

    def _keep(self, state: TrainingState) -> None:
        """Keep the state of a whole epoch, whose tensors the next step changes."""
        if not state.epoch_has_ended:
            return
        self.latest = state.copy()
        if state.curve.best_epoch == len(state.curve.epochs):
            self.best = self.latest
        if self.best is not None:
            self.course.state.save(self.name, self.latest, self.best, self.course.clock.spent)
