"""What an automatic run tries: baselines, the race, the end of the training, and the answer."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

from rich.progress import Progress

from recsys.automatic.averaging import Averaging, end_training, name_of
from recsys.automatic.budget import Budget
from recsys.automatic.candidates import Candidate
from recsys.automatic.contender import Contender
from recsys.automatic.finish import Finished
from recsys.automatic.journal import Journal
from recsys.automatic.race import choose_field, race
from recsys.automatic.reserve import reserve
from recsys.automatic.second_chances import train_on
from recsys.automatic.targets import Targets
from recsys.automatic.tuned_baselines import MeasuredBaseline, tune_baselines
from recsys.config import Experiment, flatten
from recsys.data.features.encoders import NO_ENCODERS, Encoders
from recsys.data.prepared import PreparedDataset
from recsys.errors import InputError
from recsys.evaluation.held_out import HeldOutParts
from recsys.experiments.baseline import fit_baseline, fit_baseline_bundle
from recsys.experiments.fit import evaluate_and_write
from recsys.experiments.phases import Phases
from recsys.experiments.results import Run
from recsys.tracking.runs import rename_run
from recsys.tracking.tracker import track
from recsys.training.state import MONITOR

logger = logging.getLogger(__name__)

_RACE_SHARE = 0.4
"""Share of the training time for the race; the winner takes the rest."""


@dataclass
class Trials:
    """What has been tried so far."""

    dataset: PreparedDataset
    """With the features that the models read."""
    held_out: HeldOutParts
    budget: Budget
    progress: Progress | None
    announce: Callable[[str], None]
    phases: Phases
    averages: bool = False
    """Whether the winner may be averaged with another kind of model."""
    encoders: Encoders = NO_ENCODERS
    """Those of the features that the models read."""
    baselines: list[MeasuredBaseline] = field(default_factory=list)
    """Best first."""
    contenders: list[Contender] = field(default_factory=list)
    """After the race best first."""
    finished: Finished | None = None
    """The winner of the race after its training; None if there is no model."""
    no_model: str = ""
    """Why there is no model."""
    averaging: Averaging | None = None
    """What came of a mean with another kind of model; None if it was not to be tried."""

    def say(self, what: str) -> None:
        """Announce what is tried next, and the best so far: narrow terminals cut off its name."""
        found = [(one.ndcg_at_10, one.name) for one in self.baselines]
        found += [(one.quality, one.candidate.name) for one in self.contenders if one.points]
        quality, name = max(found, default=(0.0, ""))
        self.announce(f"{what}, best {quality:.4f} ({name})" if found else what)

    def tune_baselines(self, protocol: Experiment, journal: Journal) -> None:
        """Tune the baselines within their share of the time, or take them from the journal.

        Ctrl-C ends it, and no model is trained.
        """
        valid = self.held_out.valid
        if not journal.has_all_baselines:
            try:
                for one in tune_baselines(
                    protocol, self.dataset, valid, self.budget, self.say, journal.baselines
                ):
                    journal.baselines.append(one)
                    journal.write(self.budget.spent)
            except KeyboardInterrupt:
                if not journal.baselines:
                    raise
                self.no_model = "Ctrl-C stopped the run before a model was trained"
                logger.warning("%s: the best baseline is used", self.no_model)
            else:
                journal.has_all_baselines = True
                journal.write(self.budget.spent)
        self.baselines = sorted(journal.baselines, key=lambda one: one.ndcg_at_10, reverse=True)

    def race(self, candidates: Sequence[Candidate], journal: Journal, targets: Targets) -> None:
        """Race the candidates, and train the winner to the end of its time, unless Ctrl-C was.

        If no model can be trained, it is said why; the best baseline will be the answer.

        Args:
            candidates: the most promising first.
            journal: of an interrupted race, or a new one.
            targets: those that time is kept for.
        """
        if self.no_model:
            return
        try:
            contenders = [
                Contender.ready(
                    each,
                    self.dataset,
                    self.held_out.valid,
                    lambda: self.budget.spent,
                    self.progress,
                    self.encoders,
                )
                for each in candidates
            ]
        except InputError as error:  # no user has two interactions before the held-out ones
            self._none_can_be_trained(error)
            return
        journal.restore(contenders)
        self.contenders = contenders
        for one in contenders:
            one.best_baseline = self.baselines[0].ndcg_at_10 if self.baselines else 0.0
            one.saved = lambda each: journal.save(each, self.budget.spent)
            one.goes_on = lambda: journal.note(self.budget.spent)
        seconds = (self.budget.left - reserve(targets, self.baselines)) * _RACE_SHARE
        started = [
            one
            for one in contenders
            if one.points or (one.dropped_in is not None and not one.failure)
        ]
        try:
            if len(started) < 2:  # else an interrupted race has chosen its field
                self.say("timing the cheapest model")
                choose_field(contenders, seconds)
            self.contenders = race(contenders, seconds, self.say, averages=self.averages)
        except KeyboardInterrupt:  # no model was validated
            if not self.baselines:
                raise
            self.no_model = "Ctrl-C stopped the run before a model was validated"
            logger.warning("%s: the best baseline is used", self.no_model)
            self.contenders = []
            return
        except InputError as error:
            self._none_can_be_trained(error)
            return
        left = partial(self._left_before_tests, targets)
        self.contenders = train_on(self.contenders, left, self.say, averages=self.averages)
        kept = reserve(targets, self.baselines, self.contenders[0])
        logger.info("kept for the evaluation: %.0f s (time limit: %.0f s)", kept, self.budget.limit)
        self.contenders, self.finished, self.averaging = end_training(
            self.contenders, left, self.held_out.valid, self.say, averages=self.averages
        )
        self.say("testing")

    def _none_can_be_trained(self, error: InputError) -> None:
        if not self.baselines:
            raise error
        logger.warning("no model can be trained: %s", error)
        self.no_model = "no model could be trained"

    def _left_before_tests(self, targets: Targets, *models: Contender) -> float:
        return self.budget.left - reserve(targets, self.baselines, *models)

    def answer(self, protocol: Experiment, out: Path) -> tuple[Run, Experiment, str, list[str]]:
        """Choose between the model and the best baseline on validation; the bundle is the answer.

        Returns:
            The run, its settings, a sentence on the choice, and the id of the run of the model if
            the baseline is better.
        """
        best, beaten = self.baselines[0] if self.baselines else None, []
        if self.finished is None:
            ours = self.no_model
        else:
            name = name_of(self.contenders[0], self.averaging)
            model = self._write_model(self.finished, out)
            quality = model.valid["ndcg_at_10"].mean
            if best is None or best.ndcg_at_10 < quality:
                sentence = f"The answer is {name}: validation NDCG@10 {quality:.4f}"
                if best is not None:
                    sentence += f", and {best.ndcg_at_10:.4f} of the best baseline, {best.name}"
                sentence += "." if self.averaging is None else f". {self.averaging.sentence}"
                return model, self.finished.experiment, sentence, []
            beaten = [model.run_id]
            ours = f"{quality:.4f} of the best model, {name}"
        if best is None:
            raise ValueError("neither a model nor a baseline was tried")
        chosen = _baseline_experiment(best.name, protocol)
        test = self.held_out.test
        run = fit_baseline_bundle(chosen, self.dataset, out, tuned=best.tuned, test=test)
        for run_id in beaten:  # else both have the name of the answer
            rename_run(run_id, f"{protocol.name}-model", protocol.tracking)
        sentence = (
            f"The answer is a baseline, {best.name}: validation NDCG@10 {best.ndcg_at_10:.4f}, "
            f"and {ours}."
        )
        return run, chosen, sentence, beaten

    def test_baselines(self, protocol: Experiment, besides: str | None) -> list[str]:
        """Test all baselines but the one that is the answer, best first; return their runs' ids.

        Ctrl-C leaves out the rest.
        """
        others = [one for one in self.baselines if one.name != besides]
        runs: list[str] = []
        try:
            for number, one in enumerate(others, 1):
                self.say(f"testing baseline {number} of {len(others)}: {one.name}")
                test = self.held_out.test
                runs.append(
                    fit_baseline(one.name, protocol, self.dataset, tuned=one.tuned, test=test)
                )
        except KeyboardInterrupt:
            logger.warning("Ctrl-C: %d of %d baselines are tested", len(runs), len(others))
        return runs

    def _write_model(self, finished: Finished, out: Path) -> Run:
        experiment, dataset = finished.experiment, self.contenders[0].dataset
        with track(experiment, dataset, experiment.family, flatten(experiment)) as tracker:
            for number, metrics in enumerate(finished.fitted.curve.epochs, 1):
                if MONITOR in metrics:
                    tracker.log_epoch(number, metrics)
            return evaluate_and_write(
                experiment,
                dataset,
                self.held_out,
                finished.fitted,
                None,
                self.phases,
                out,
                tracker,
                self.progress,
            )


def _baseline_experiment(name: str, protocol: Experiment) -> Experiment:
    """Return the settings of a baseline under the protocol of a model."""
    kept = protocol.model_dump(include={"name", "seed", "data", "evaluation", "tracking"})
    return Experiment.model_validate({**kept, "baseline": name, "training": {"refit": True}})
