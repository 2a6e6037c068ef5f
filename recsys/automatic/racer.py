"""A racer: the training of one kind of model, which pauses, resumes, and at the end is refitted."""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Callable, Sequence
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
from recsys.training.checkpoints import CheckpointError, TrainingState
from recsys.training.device import training_device, with_precision
from recsys.training.epochs import MONITOR, Curve, Report
from recsys.training.loop import ENDLESS, build_batches, train
from recsys.training.refit import Fitted

logger = logging.getLogger(__name__)

PATIENCE = 4
"""Validations without a gain after which a constant learning rate has nothing more to give. Those
of the average vary little: on Sports its last eleven lay between .0438 and .0447."""
_MORE_PATIENCE, _NO_MATCH = 4, 0.5
"""So many times as many for a model below this share of the best baseline's NDCG@10: over a large
catalogue a model first learns what is popular, and gets worse before it learns what follows."""
_SAVE_SECONDS = 60.0
"""Seconds between two saves within a turn."""
_MODEL_TESTS, _TEMPERATURES = 3, 8
"""Rankings of a test target by the model, and scorings of some validation histories, to test it."""
_STORE_SECONDS, _BASELINES_SHARE = 1.0, 0.05
"""Of the tracking store, for the test of a baseline; and what those of all have of the limit."""


@dataclass
class Context:
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
    averages: bool = False
    """Whether the answer may be a mean of several models."""
    phases: Phases = field(default_factory=Phases)
    progress: Progress | None = None
    announce: Callable[[str], None] = lambda _: None

    @property
    def valid(self) -> Holdout:
        """The targets that choose."""
        return self.held_out.valid

    def moment(self, share: float, members: Sequence[Racer] = ()) -> float:
        """Return when a share of the time from the race to the tests, of the members, is over."""
        state, limit = self.state, self.clock.limit
        if state.race_began is None:
            state.race_began = self.clock.spent
        ranking = sum(member.seconds_per_ranking for member in members) or self.speed.ranking
        valid, test = len(self.valid.histories), len(self.held_out.test.histories)
        testing = ranking * (_MODEL_TESTS * test + _TEMPERATURES * min(CALIBRATING, valid))
        testing += self.speed.seconds_to_weigh(len(self.held_out.weighed_on.histories), ranking)
        baselines = sum(2 * tuned.trial_seconds + _STORE_SECONDS for tuned in state.baselines)
        testing += min(baselines, _BASELINES_SHARE * limit)
        return state.race_began + share * (self.clock.end_of_training(testing) - state.race_began)

    def say(self, what: str) -> None:
        """Announce what is tried next, and the best so far: narrow terminals cut off its name."""
        tried = [(baseline.ndcg_at_10, baseline.name) for baseline in self.state.baselines]
        tried += [(entry.quality, entry.name) for entry in self.state.racers if entry.points]
        quality, name = max(tried, default=(0.0, ""))
        self.announce(f"{what}, best {quality:.4f} ({name})" if tried else what)


@dataclass(eq=False, kw_only=True)
class Racer(Entry):
    """The training of one kind of model, whose checkpoints are on disk while it waits.

    The learning rate is constant: so it can pause after any epoch, and be refitted from the best
    one. The average of the weights after each epoch is validated, and what the refit returns.
    """

    kind: Kind = field(repr=False)
    context: Context = field(repr=False)

    @classmethod
    def ready(cls, kind: Kind, context: Context) -> Racer:
        """Return a racer that has not started, or as an interrupted run has saved it."""
        known = {entry.name: vars(entry) for entry in context.state.racers}
        entry = known.get(kind.name, {"name": kind.name, "description": kind.description})
        racer = cls(**entry, kind=kind, context=context)
        _ = racer.experiment  # raises if there is nothing to train on
        latest = context.state.read(f"{kind.name}.latest")
        epochs = [] if latest is None else latest.curve.epochs
        moments = {point.epochs: point.seconds for point in racer.points}
        racer.points = [  # the checkpoint may be older or newer than the entry
            RacePoint(moments.get(number, context.state.seconds), number, epoch[MONITOR])
            for number, epoch in enumerate(epochs, 1)
            if MONITOR in epoch
        ]
        racer.validating = sum(epoch.get("epoch/valid_seconds", 0.0) for epoch in epochs)
        racer.seconds = racer.validating + sum(epoch["train/seconds"] for epoch in epochs)
        if epochs:
            logger.info("resuming %s after %d epochs", kind.name, len(epochs))
        return racer

    @cached_property
    def experiment(self) -> Experiment:
        """The settings of its training: epochs are shares of a pass over a large log.

        Over a small log several epochs lie between two validations.
        """
        experiment, targets = self.kind.experiment, len(self.context.valid.histories)
        tokens, steps = experiment.training.batch_tokens, self._steps
        between = self.context.speed.steps_between(tokens, targets, self.context.clock.limit)
        changes = {
            "epochs_per_pass": max(1, steps // between),
            "validate_every": math.ceil(between / steps),
            "patience": ENDLESS,
        }
        training = experiment.training.model_copy(update=changes)
        return experiment.model_copy(update={"name": self.kind.name, "training": training})

    @property
    def expected_interval(self) -> float:
        """Seconds from one validation to the next, as the measured speed lets expect."""
        training, speed = self.experiment.training, self.context.speed
        steps = self._steps * training.validate_every
        seconds = steps / training.epochs_per_pass * training.batch_tokens * speed.token
        return self.kind.cost * (seconds + len(self.context.valid.histories) * speed.ranking)

    @property
    def family(self) -> str:
        """Models of one family, such as two with a dot product, err alike."""
        return self.kind.experiment.model.family

    @property
    def epochs(self) -> int:
        """Epochs so far."""
        return self.points[-1].epochs if self.points else 0

    @property
    def best_epoch(self) -> int:
        """Epochs before the best validation."""
        return next((point.epochs for point in self.points if point.ndcg == self.quality), 0)

    def quality_after(self, epochs: int) -> float:
        """Best validation NDCG@10 of the first epochs; -1 without a validation."""
        return max((point.ndcg for point in self.points if point.epochs <= epochs), default=-1.0)

    @property
    def seconds_per_epoch(self) -> float:
        """Seconds of an epoch with its validation."""
        return self.seconds / max(self.epochs, 1)

    @property
    def seconds_per_ranking(self) -> float:
        """Seconds of ranking the targets of a history."""
        return self.validating / max(len(self.points), 1) / len(self.context.valid.histories)

    @property
    def seconds_of_refit(self) -> float:
        """Estimate the seconds of a refit of as many epochs: more steps, and no validations."""
        training = max(self.seconds - self.validating, 1e-3) / max(self.epochs, 1)
        steps = self._num_steps(self.context.dataset.histories("test"))
        return self.best_epoch * training * steps / self._steps

    @property
    def exhausted(self) -> bool:
        """Whether its last validations gained nothing (see `PATIENCE`), or it failed."""
        baseline = max((b.ndcg_at_10 for b in self.context.state.baselines), default=0.0)
        patience = PATIENCE * (_MORE_PATIENCE if self.quality < _NO_MATCH * baseline else 1)
        qualities = [point.ndcg for point in self.points]
        before, since = qualities[:-patience], qualities[-patience:]
        return bool(self.failure) or (bool(before) and max(before) >= max(since))

    def is_over(self, until: float) -> bool:
        """Return whether it gains nothing more, or its next validation is farther from a moment."""
        half = self.seconds_per_epoch * self.experiment.training.validate_every / 2
        return self.exhausted or (bool(self.points) and self.context.clock.spent + half >= until)

    def train(self, until: float) -> None:
        """Train on until a moment, to one validation at least, unless it gains nothing or fails.

        Ctrl-C is a KeyboardInterrupt, a full disk a `CheckpointError`; the best epoch is kept.
        """
        if self.is_over(until):
            return
        clock, before, started = self.context.clock, self.seconds, time.monotonic()
        kept, curve = _Kept(self), None

        def record(epoch: int, metrics: dict[str, float]) -> bool:
            self.seconds = before + time.monotonic() - started
            if MONITOR not in metrics:
                return False
            self.points.append(RacePoint(clock.spent, epoch, metrics[MONITOR]))
            self.validating += metrics["epoch/valid_seconds"]
            return self.is_over(until)

        try:
            start = self.context.state.read(f"{self.name}.latest")
            _, curve = self._train(self._histories, self.context.valid, record, start, kept.keep)
        except CheckpointError:
            raise
        except InputError as error:  # it diverged, does not fit into memory, or has a fault
            self.failure = str(error)
            end = ": the best epoch before is used" if self.points else " drops out"
            logger.warning("%s%s: %s", self.name, end, error)
        kept.save()
        if curve is not None and curve.interrupted:
            raise KeyboardInterrupt

    def refit(self, until: float) -> Fitted:
        """Train on with the training and validation parts together, and return the model.

        It starts from the state of the best epoch, for as many epochs again, or fewer if the moment
        comes before. If there is no time for one, or it fails, the model is that of the best epoch.
        """
        validated, clock, epochs = self.validated(), self.context.clock, self.best_epoch
        if clock.stopped:
            return validated
        if clock.spent + self.seconds_of_refit / epochs > until:
            logger.warning("no time left for the refit: the validation part is not trained on")
            return validated
        started = time.monotonic()

        def is_over(epoch: int, _: dict[str, float]) -> bool:
            done = epoch - epochs
            return done >= epochs or clock.spent + (time.monotonic() - started) / done > until

        try:
            histories = self.context.dataset.histories("test")
            model, _ = self._train(histories, None, is_over, self._best_state(), None)
        except InputError as error:  # it diverged
            logger.warning("the validation part is not trained on: %s", error)
            return validated
        return Fitted(model, ("train", "valid"), validated.curve, False, self.context.catalogue)

    def validated(self) -> Fitted:
        """Return the model of the best epoch."""
        curve, catalogue = self._best_state().curve, self.context.catalogue
        model = catalogue.restored_model(self.experiment.model, self._histories, curve.best_weights)
        stopped = self.context.clock.stopped
        return Fitted(model.to(training_device()), ("train",), curve, stopped, catalogue)

    def chosen_experiment(self, fitted: Fitted) -> Experiment:
        """Return the settings that repeat its training from the beginning, by themselves."""
        changes = {"max_epochs": self.best_epoch, "patience": self.best_epoch, "refit": True}
        training = self.experiment.training.model_copy(update=changes)
        named = {"name": self.context.plan.name, "training": training}
        return with_precision(self.experiment.model_copy(update=named), fitted.curve.precision)

    def _best_state(self) -> TrainingState:
        best = self.context.state.read(f"{self.name}.best")
        if best is None:
            raise InputError(f"{self.name}: its checkpoint is damaged: start over with --fresh")
        return best

    @cached_property
    def _histories(self) -> Histories:
        return self.context.dataset.histories("valid")

    @cached_property
    def _steps(self) -> int:
        """Steps of a pass over the training part."""
        return self._num_steps(self._histories)

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
        """Train or go on; whatever fails is an `InputError`, since other kinds of model go on."""
        words = self.experiment, self.context.catalogue, histories, validation, ENDLESS
        try:
            return train(*words, report, self.context.progress, start, save)
        except InputError:
            raise
        except Exception as error:
            logger.debug("%s", self.name, exc_info=True)
            raise InputError(f"{type(error).__name__}: {first_line(error)}") from error


class _Kept:
    """The checkpoints of a racer that trains, which are written a minute after the last ones."""

    def __init__(self, racer: Racer) -> None:
        self._racer, self._saved = racer, time.monotonic()
        self._states: dict[str, TrainingState] = {}

    def keep(self, training: TrainingState) -> None:
        """Keep the state of a whole epoch, whose tensors the next step changes."""
        if training.epoch_has_ended:
            self._states["latest"] = training.copy()
            if training.curve.best_epoch == len(training.curve.epochs):
                self._states["best"] = self._states["latest"]
            if time.monotonic() - self._saved > _SAVE_SECONDS:
                self.save()

    def save(self) -> None:
        """Write the best before the latest: who is killed in between repeats an epoch."""
        state, clock = self._racer.context.state, self._racer.context.clock
        for name, training in sorted(self._states.items()):
            state.save(f"{self._racer.name}.{name}", training)
        state.write(clock.spent)
        self._saved = time.monotonic()
