"""A racer: the training of one kind of model, which pauses, resumes, and at the end is refitted."""

from __future__ import annotations

import json
import logging
import math
import shutil
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from pydantic import TypeAdapter

from recsys.automatic.clock import MODEL_TESTS, Clock, Speed
from recsys.automatic.rules import Kind, Plan
from recsys.baselines.tuned import BASELINES
from recsys.config.experiment import Experiment
from recsys.config.model import TargetAttention
from recsys.data.histories import Histories
from recsys.data.prepared import PreparedDataset
from recsys.data.splits import Holdout
from recsys.errors import InputError, first_line
from recsys.evaluation.held_out import CALIBRATING, HeldOutParts
from recsys.folders import new_file, tree_sha256
from recsys.inference.catalogue import Catalogue
from recsys.inference.model_scorer import can_sum_pairs
from recsys.model.models import Model
from recsys.progress import Stage
from recsys.reports.run_page import RacePoint
from recsys.training.checkpoints import CheckpointError, CheckpointFile, TrainingState
from recsys.training.device import training_device
from recsys.training.epochs import ENDLESS, MONITOR, Curve, Report
from recsys.training.loop import Fitted, build_batches, train

logger = logging.getLogger(__name__)

PATIENCE, _MORE_PATIENCE, _NO_MATCH = 4, 4, 0.5
"""Validations without a gain that end a training; and so many times as many for a model below this
share of the best baseline's NDCG@10, which may get worse before it learns what follows what."""
_SAVE_SECONDS = 60.0
_END_SHARE, _MARGIN = 0.35, 0.02
"""Shares of the limit: for what follows the training, at most; and that nothing is planned for."""
_TEMPERATURES, _STORE_SECONDS, _BASELINES_SHARE = 8, 1.0, 0.05
"""Scorings of some validation histories to test a model; seconds of the store for the test of a
baseline, and what all of these have of the limit."""


@dataclass(frozen=True, slots=True)
class MeasuredBaseline:
    """A baseline with the settings that validation chose, as Python prints them."""

    name: str
    settings: str
    seconds: float
    """Of choosing them."""
    ndcg_at_10: float
    trial_seconds: float
    """Of fitting it once, and ranking the validation targets."""

    @property
    def tuned(self) -> tuple[Any, float]:
        """The settings themselves, and the seconds of choosing them."""
        baseline = BASELINES[self.name]
        grid = (*baseline.grid, *baseline.published.values())
        return next(known for known in grid if repr(known) == self.settings), self.seconds


@dataclass
class State:
    """The finished steps of a run, in ``.NAME.race`` with the checkpoints of racers: it resumes."""

    folder: Path
    facts: str
    """The digest of all that decides the race."""
    seconds: float = 0.0
    """Spent until the last save."""
    race_began: float | None = None
    speed: Speed | None = None
    baselines: list[MeasuredBaseline] = field(default_factory=list)
    """Best first."""
    rungs: dict[str, int] = field(default_factory=dict)
    """The rung after which each racer was dropped, 0 if it was not raced; the others race."""

    @classmethod
    def open(cls, out: Path, facts: Mapping[str, Any], *, fresh: bool) -> State:
        """Return the state of an interrupted run of the same facts; else a new one."""
        new = cls(out.with_name(f".{out.name}.race"), tree_sha256(facts))
        try:
            tree = json.loads((new.folder / "state.json").read_text(encoding="utf-8"))
            if tree.pop("digest") != tree_sha256(tree):
                raise ValueError("damaged")
            state = _ADAPTER.validate_python(tree | {"folder": new.folder})
            if state.facts == new.facts and not fresh:
                return state
        except FileNotFoundError:
            pass
        except (OSError, ValueError, TypeError, LookupError, AttributeError):
            logger.warning("%s: damaged: it starts anew", new.folder)
        new.remove()
        return new

    def write(self, spent: float) -> None:
        """Write what has ended, and the seconds of the whole run so far."""
        self.seconds = spent
        tree = _ADAPTER.dump_python(self, mode="json", exclude={"folder"})
        tree["digest"] = tree_sha256(tree)
        with new_file(self.folder / "state.json") as file:
            file.write_text(json.dumps(tree), encoding="utf-8")

    def remove(self) -> None:
        """Delete the folder, if there is one."""
        shutil.rmtree(self.folder, ignore_errors=True)


_ADAPTER = TypeAdapter(State)


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
    """Whether the answer may be a mean of models."""
    line: Stage | None = None
    racers: list[Racer] = field(default_factory=list)
    members: Sequence[Racer] = ()
    """Those that the model is made of in the end."""
    is_beaten: bool = False
    """Whether a baseline is better than it."""

    def moment(self, share: float, members: Sequence[Racer] = ()) -> float:
        """Return when a share of the time from the race to the tests, of the members, is over."""
        state, clock, limit = self.state, self.clock, self.clock.limit
        if state.race_began is None:
            state.race_began = clock.spent
        valid, test = len(self.held_out.valid.histories), len(self.held_out.test.histories)
        ranking = sum(racer.ranking for racer in members) or self.speed.ranking
        again = valid if len(members) > 1 else 0  # a mean, after the refits
        testing = ranking * (MODEL_TESTS * test + _TEMPERATURES * min(CALIBRATING, valid) + again)
        testing += self.speed.seconds_to_weigh(len(self.held_out.weighing.histories), ranking)
        baselines = sum(2 * tuned.trial_seconds + _STORE_SECONDS for tuned in state.baselines)
        testing += min(baselines, _BASELINES_SHARE * limit)
        kept = min(_END_SHARE * limit, testing + clock.seconds_of_page + _MARGIN * limit)
        return state.race_began + share * (limit - kept - state.race_began)

    def say(self, what: str) -> None:
        """Show the time left, what is tried next, and the best so far."""
        tried = [(baseline.ndcg_at_10, baseline.name) for baseline in self.state.baselines]
        tried += [(racer.quality, racer.name) for racer in self.racers if racer.points]
        if tried:
            what = "{}, best {:.4f} ({})".format(what, *max(tried))
        logger.debug("%s: %s; %.0f s left", self.plan.name, what, self.clock.left)
        if self.line is not None:
            ends = self.line.progress.get_time() + self.clock.left
            self.line.say(what, completed=self.clock.spent, ends=ends)


@dataclass(eq=False)
class Racer:
    """The training of one kind of model, whose checkpoints are on disk while it waits.

    The learning rate is constant: it can pause after any epoch, and be refitted from the best one.
    """

    kind: Kind
    context: Context = field(repr=False)
    experiment: Experiment
    """The settings of its training: epochs are shares of a pass over a large log."""
    steps: int
    """Of a pass over the training part."""
    points: list[RacePoint] = field(default_factory=list)
    """Its validations."""
    seconds: float = 0.0
    """Of its training, those of validation included."""
    validating: float = 0.0
    failure: str = ""
    """Why its training cannot go on: it diverged, or does not fit into the memory."""
    _kept: dict[str, TrainingState] = field(default_factory=dict, repr=False)
    _saved: float = 0.0

    @classmethod
    def ready(cls, kind: Kind, context: Context) -> Racer:
        """Return a racer that has not started, or as an interrupted run has saved it.

        Raises:
            InputError: there is nothing to train on.
        """
        training, targets = kind.experiment.training, len(context.held_out.valid.histories)
        steps = len(build_batches(kind.experiment, context.dataset.histories("valid")))
        between = context.speed.steps_between(training.batch_tokens, targets, context.clock.limit)
        passes, every = max(1, steps // between), math.ceil(between / steps)
        named = kind.experiment.model_copy(update={"name": kind.name})
        own = named.with_training(epochs_per_pass=passes, validate_every=every, patience=ENDLESS)
        racer = cls(kind, context, own, steps)
        latest = racer.read("latest")
        for epoch, metrics in enumerate([] if latest is None else latest.curve.epochs, 1):
            racer._note(epoch, metrics)
        if racer.points:
            logger.info("resuming %s after %d epochs", racer.name, racer.epochs)
        context.racers.append(racer)
        return racer

    def _note(self, epoch: int, metrics: dict[str, float]) -> None:
        validating = metrics.get("epoch/valid_seconds", 0.0)
        self.seconds += metrics["train/seconds"] + validating
        self.validating += validating
        if MONITOR in metrics:
            self.points.append(RacePoint(self.seconds, epoch, metrics[MONITOR]))

    @property
    def name(self) -> str:
        """The name of its kind."""
        return self.kind.name

    @property
    def rung(self) -> int | None:
        """The rung after which it was dropped, 0 if it was not raced; None if it is in the race."""
        return self.context.state.rungs.get(self.name)

    @property
    def won(self) -> bool:
        """Whether it is the answer, or a member of it."""
        return self in self.context.members and not self.context.is_beaten

    @property
    def outcome(self) -> str:
        """What became of it, once the training has ended."""
        if self in self.context.members:
            others = names_of([member for member in self.context.members if member is not self])
            won = f"won, averaged with {others}" if others else "won"
            return won if self.won else "the best model, but a baseline is better"
        if self.failure and not self.points:
            return f"not trained: {self.failure.partition(': choose ')[0]}"
        if self.rung:
            return f"dropped in rung {self.rung}"
        if self.rung == 0 and not self.points:
            return "not raced: no time"
        return "stopped by Ctrl-C" if self.context.clock.stopped else "adds nothing"

    @property
    def quality(self) -> float:
        """Best validation NDCG@10 so far; -1 before the first."""
        return max((point.ndcg for point in self.points), default=-1.0)

    @property
    def epochs(self) -> int:
        """Epochs so far."""
        return self.points[-1].epochs if self.points else 0

    @property
    def best_epoch(self) -> int:
        """Epochs before the best validation."""
        return next((point.epochs for point in self.points if point.ndcg == self.quality), 0)

    @property
    def interval(self) -> float:
        """Seconds from one validation to the next, as its own ones took, or the speed tells."""
        training, speed = self.experiment.training, self.context.speed
        if self.points:
            return self.seconds / self.epochs * training.validate_every
        steps = self.steps * training.validate_every / training.epochs_per_pass
        ranking = len(self.context.held_out.valid.histories) * speed.ranking
        return self.kind.cost * (steps * training.batch_tokens * speed.token + ranking)

    @property
    def ranking(self) -> float:
        """Seconds to rank a target in a test, without the matrix that target attention makes."""
        model, cheapest = self.experiment.model, self.context.speed.ranking
        head = getattr(model, "head", None)
        if isinstance(head, TargetAttention) and not getattr(model, "interaction_features", ()):
            pooled, num_items = [head.pooling] * head.num_heads, self.context.dataset.num_items
            if cheapest and can_sum_pairs(pooled, num_items, training_device()):
                return self.kind.cost * cheapest
        targets = len(self.context.held_out.valid.histories)
        return self.validating / max(len(self.points), 1) / targets

    @property
    def seconds_of_refit(self) -> float:
        """Seconds of a refit of as many epochs: more steps, and no validations."""
        training = max(self.seconds - self.validating, 1e-3) / max(self.epochs, 1)
        steps = len(build_batches(self.kind.experiment, self.context.dataset.histories("test")))
        return self.best_epoch * training * steps / self.steps

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
        late = bool(self.points) and self.context.clock.spent + self.interval / 2 >= until
        return self.exhausted or late

    def train(self, until: float) -> None:
        """Train on until a moment, to one validation at least, unless it gains nothing or fails.

        At Ctrl-C (`KeyboardInterrupt`) the best epoch is kept.
        """
        if self.is_over(until):
            return
        context, interrupted, before = self.context, False, self.seconds
        started = self._saved = time.monotonic()

        def record(epoch: int, metrics: dict[str, float]) -> bool:
            self._note(epoch, metrics)
            return MONITOR in metrics and self.is_over(until)

        try:
            start, histories = self.read("latest"), context.dataset.histories("valid")
            _, curve = self._train(histories, context.held_out.valid, record, start, self._keep)
            interrupted = curve.interrupted
        except CheckpointError:
            raise
        except InputError as error:  # it diverged, does not fit into memory, or has a fault
            self.failure = str(error)
            end = ": the best epoch before is used" if self.points else " drops out"
            logger.warning("%s%s: %s", self.name, end, error)
        self._save()
        self.seconds = before + time.monotonic() - started  # with all that is no epoch
        if interrupted:
            raise KeyboardInterrupt

    def _keep(self, training: TrainingState) -> None:
        """Keep the state of a whole epoch, whose tensors the next step changes."""
        if training.epoch_has_ended:
            self._kept["latest"] = training.copy()
            if training.curve.best_epoch == len(training.curve.epochs):
                self._kept["best"] = self._kept["latest"]
            if time.monotonic() - self._saved > _SAVE_SECONDS:
                self._save()

    def _save(self) -> None:
        """Write the best before the latest: who is killed in between repeats an epoch."""
        state = self.context.state
        for name in sorted(self._kept):
            self._checkpoint(name).write(self._kept[name])
        self._kept.clear()
        state.write(self.context.clock.spent)
        self._saved = time.monotonic()

    def _checkpoint(self, name: str) -> CheckpointFile:
        facts = {"facts": self.context.state.facts, "name": f"{self.name}.{name}"}
        return CheckpointFile(self.context.state.folder / facts["name"], facts)

    def read(self, name: str) -> TrainingState | None:
        """Return the ``best`` or ``latest`` state on disk; None if there is none, or damaged."""
        try:
            return self._checkpoint(name).read()
        except CheckpointError as error:
            logger.warning("%s", first_line(error))
            return None

    def refit(self, until: float) -> Fitted:
        """Train on from the best epoch with the validation part too, and return the model.

        It takes as many epochs again, or fewer if the moment comes before. If there is no time for
        one, or it fails, the model is that of the best epoch.
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
        return replace(validated, model=model, trained_on=("train", "valid"), interrupted=False)

    def validated(self) -> Fitted:
        """Return the model of the best epoch."""
        context, curve = self.context, self._best_state().curve
        words = self.experiment.model, context.dataset.histories("valid"), curve.best_weights
        model = context.catalogue.restored_model(*words).to(training_device())
        return Fitted(model, model, ("train",), curve, context.clock.stopped, context.catalogue)

    def chosen_experiment(self, fitted: Fitted) -> Experiment:
        """Return the settings that repeat its training from the beginning, by themselves."""
        changes = {"max_epochs": self.best_epoch, "patience": self.best_epoch, "refit": True}
        named = self.experiment.model_copy(update={"name": self.context.plan.name})
        return named.with_training(**changes, precision=fitted.curve.precision)

    def _best_state(self) -> TrainingState:
        if (best := self.read("best")) is None:
            raise InputError(f"{self.name}: its checkpoint is damaged: start over with --fresh")
        return best

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
            return train(*words, report, start, save)
        except InputError:
            raise
        except Exception as error:
            logger.debug("%s", self.name, exc_info=True)
            raise InputError(f"{type(error).__name__}: {first_line(error)}") from error


def names_of(racers: Sequence[Racer]) -> str:
    """Return the names of racers as people read them."""
    return " and ".join(racer.name for racer in racers)
