"""What an automatic run tries: baselines, the race, the end of the training, and the answer."""

from __future__ import annotations

import logging
import signal
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

from rich.progress import Progress

from recsys.automatic.answer import Answer, Naming, baseline_experiment, words_for
from recsys.automatic.averaging import Averaging, end_training, name_of
from recsys.automatic.budget import Budget
from recsys.automatic.candidates import Candidate
from recsys.automatic.contender import Contender
from recsys.automatic.finish import Finished
from recsys.automatic.journal import Journal
from recsys.automatic.race import choose_field, race
from recsys.automatic.speed import Speed
from recsys.automatic.targets import Targets
from recsys.automatic.tuned_baselines import STORE_SECONDS, MeasuredBaseline, tune_baselines
from recsys.config import Experiment, flatten
from recsys.data.features.encoders import NO_ENCODERS, Encoders
from recsys.data.prepared import PreparedDataset
from recsys.errors import InputError, first_line, first_waits
from recsys.evaluation.held_out import HeldOutParts
from recsys.experiments.baselines import fit_baseline, fit_baseline_bundle
from recsys.experiments.fit import CALIBRATING, FinalScorer, evaluate_and_write
from recsys.experiments.results import Phases, Run
from recsys.tracking.runs import nest_run
from recsys.tracking.tracker import track
from recsys.training.curve import MONITOR

logger = logging.getLogger(__name__)

_RACE_SHARE = 0.4
"""Share of the training time for the race; the winner takes the rest."""
_COUNT_TRIALS, _COUNT_PASSES = 45, 2
"""Rankings of a validation target by popularity, and by the model, to weight the counts."""
_MODEL_TESTS, _TEMPERATURES = 3, 8
"""Rankings of a test target by the model, and scorings of some validation histories, to test it."""
_BASELINE_TESTS, _REFIT_COST = 2, 1.2
"""Rankings of a test target by a baseline, and fits, to test it."""
_COMPARED = 3
"""Models that counts are added to before it is known whether a mean of two is better."""

_AGAIN = "Ctrl-C again ends the run at once, and the same command resumes it"


@dataclass
class Trials:
    """What has been tried so far."""

    dataset: PreparedDataset
    """With the features that the models read."""
    held_out: HeldOutParts
    speed: Speed
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
    stopped: bool = False
    """Whether Ctrl-C ended the training, or what is before it."""
    leaves_out_tests: bool = False
    """Whether Ctrl-C came later: the baselines that are not tested yet are left out."""

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
                self.stopped = True
                self.no_model = "Ctrl-C stopped the run before a model was trained"
                logger.warning("%s: the best baseline is used", self.no_model)
            else:
                journal.has_all_baselines = True
                journal.write(self.budget.spent)
        self._take_baselines(journal)

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
            contenders = [self._contender(each) for each in candidates]
        except InputError as error:  # no user has two interactions before the held-out ones
            self._none_can_be_trained(error)
            return
        journal.restore(contenders)
        self.contenders = contenders
        for one in contenders:
            one.best_baseline = self.baselines[0].ndcg_at_10 if self.baselines else 0.0
            one.saved = lambda each: journal.save(each, self.budget.spent)
            one.goes_on = lambda: journal.note(self.budget.spent)
        left = partial(self._left_to_train, targets)
        try:
            if not any(one.points or one.dropped_in is not None for one in contenders):
                choose_field(contenders, left() * _RACE_SHARE)  # else that was done before
            seconds = left() * _RACE_SHARE
            self.contenders = race(contenders, seconds, self.say, averages=self.averages)
        except KeyboardInterrupt:  # no model was validated
            if not self.baselines:
                raise
            self.stopped = True
            self.no_model = "Ctrl-C stopped the run before a model was validated"
            logger.warning("%s: the best baseline is used", self.no_model)
            self.contenders = []
            return
        except InputError as error:
            self._none_can_be_trained(error)
            return
        self.contenders, self.finished, self.averaging = end_training(
            self.contenders, left, self.held_out.valid, self.say, averages=self.averages
        )
        self.stopped = any(one.interrupted for one in self.contenders)
        if not self.stopped:  # else a run that a second Ctrl-C ends resumes the race
            spent = self.budget.spent
            journal.keep_training(self.finished, self.averaging, self.contenders, spent)

    def restore(self, candidates: Sequence[Candidate], journal: Journal) -> None:
        """Take what an interrupted run had tried from its journal, if its training has ended."""
        self._take_baselines(journal)
        by_name = {each.name: each for each in candidates}
        self.contenders = [self._contender(by_name[name]) for name in journal.raced]
        journal.restore(self.contenders)
        if journal.answer is not None:
            self.averaging = journal.answer.averaging
        elif journal.training is not None and journal.model is not None:
            self.averaging = journal.training.averaging
            self.finished = journal.training.finished(journal.model, self.dataset, self.encoders)

    def _contender(self, candidate: Candidate) -> Contender:
        return Contender.ready(
            candidate,
            self.dataset,
            self.held_out.valid,
            lambda: self.budget.spent,
            self.progress,
            self.encoders,
            self.speed,
            self.budget.limit,
        )

    def _take_baselines(self, journal: Journal) -> None:
        self.baselines = sorted(journal.baselines, key=lambda one: one.ndcg_at_10, reverse=True)

    def _none_can_be_trained(self, error: InputError) -> None:
        if not self.baselines:
            raise error
        logger.warning("no model can be trained: %s", error)
        self.no_model = "no model could be trained"

    def _left_to_train(self, targets: Targets, *models: Contender) -> float:
        """Return the seconds that are left beside what the tests will take, as measured so far.

        Args:
            targets: those of both parts.
            *models: the one that is tested, if it is known; of two, their mean is tested.
        """
        valid, test = len(self.held_out.valid.histories), len(self.held_out.test.histories)
        timed = [one.seconds_validating / len(one.points) / valid for one in models if one.points]
        per_history = sum(timed) if timed else self.speed.ranking
        weighed = len(self.held_out.weighed_on.histories)
        weighed += valid * _COMPARED * (len(models) > 1)
        counts = weighed * (_COUNT_TRIALS * targets.unit + _COUNT_PASSES * per_history)
        tests = per_history * (_MODEL_TESTS * test + _TEMPERATURES * min(CALIBRATING, valid))
        others = sum(
            _REFIT_COST * one.fit_seconds
            + _BASELINE_TESTS * one.rank_seconds / valid * test
            + STORE_SECONDS
            for one in self.baselines
        )
        return self.budget.left_to_train(counts + tests + others)

    @contextmanager
    def answering(self) -> Iterator[None]:
        """Test the answer to the end at the first Ctrl-C of the run; a second one ends the run."""
        self.say("testing")
        if self.stopped:
            logger.warning("Ctrl-C: the best so far is tested; %s", _AGAIN)
            yield
            return
        with first_waits(signal.SIGINT, say=_tell_what_is_left_out) as came:
            yield
        self.leaves_out_tests = bool(came)

    def answer(self, protocol: Experiment, out: Path) -> tuple[Answer, Experiment]:
        """Choose between the model and the best baseline on validation; test and write the answer.

        Returns:
            The answer, and its settings.
        """
        best = self.baselines[0] if self.baselines else None
        if self.finished is None:
            return self._answer_baseline(best, protocol, out, self.no_model)
        had_time = not self.contenders[0].ended_rising
        model = name_of(self.contenders[0], self.averaging)
        valid = self.held_out.valid
        naming = Naming(model, had_time, best, self.dataset, valid)
        try:
            run, name = self._write_model(self.finished, out, naming)
        except (InputError, OSError):
            raise
        except Exception as error:
            if best is None:
                raise
            logger.warning("%s cannot be tested: %s", model, first_line(error), exc_info=True)
            return self._answer_baseline(best, protocol, out, f"{model} could not be tested")
        if name is None:
            return self._answer_baseline(best, protocol, out, naming.figures, run)
        sentence = f"The answer is {name}: validation NDCG@10 {naming.figures}"
        if best is not None:
            sentence += f", and {best.ndcg_at_10:.4f} of the best baseline, {words_for(best.name)}"
        sentence += "." if self.averaging is None else f". {self.averaging.sentence}"
        return Answer.of(run, sentence, averaging=self.averaging), self.finished.experiment

    def _answer_baseline(
        self,
        best: MeasuredBaseline | None,
        protocol: Experiment,
        out: Path,
        ours: str,
        model: Run | None = None,
    ) -> tuple[Answer, Experiment]:
        """Answer with a baseline, and rename the run of the model that it beats, if there is one.

        Args:
            best: the baseline.
            protocol: settings of any candidate.
            out: the folder of the results.
            ours: what is said of the models.
            model: the run of the best model.
        """
        if best is None:
            raise ValueError("neither a model nor a baseline was tried")
        name, chosen = words_for(best.name), baseline_experiment(best.name, protocol)
        run = fit_baseline_bundle(
            chosen, self.dataset, out, tuned=best.tuned, test=self.held_out.test, answer=name
        )
        if model is not None:  # else both have the name of the answer
            nest_run(model.run_id, f"{out.name}-model", run.run_id, run.tracking)
        beaten = [] if model is None else [model.run_id]
        sentence = (
            f"The answer is {name}, a baseline: validation NDCG@10 {best.ndcg_at_10:.4f}, and "
            f"{ours}."
        )
        return Answer.of(run, sentence, best.name, beaten, self.averaging), chosen

    def test_baselines(self, protocol: Experiment, journal: Journal, answer: Answer) -> list[str]:
        """Test all baselines but the one that is the answer, best first; return their runs' ids.

        Those that the journal has are not tested again. The rest is left out when the time for it
        is over, but the best one; and at Ctrl-C, also where it came while the answer was tested.
        """
        others = [one for one in self.baselines if one.name != answer.baseline]
        left = [] if self.leaves_out_tests else others
        try:
            for number, one in enumerate(left, 1):
                if one.name in journal.tested:
                    continue
                if number > 1 and self.budget.left < self.budget.seconds_of_page:
                    logger.debug("%d of %d baselines are tested: no time", number - 1, len(others))
                    break
                self.say(f"testing baseline {number} of {len(others)}: {one.name}")
                test = self.held_out.test
                run_id = fit_baseline(
                    one.name,
                    protocol,
                    self.dataset,
                    tuned=one.tuned,
                    test=test,
                    parent=answer.run.run_id,
                )
                journal.keep_test(one.name, run_id, self.budget.spent)
        except KeyboardInterrupt:
            self.leaves_out_tests = True
        tested = [journal.tested[one.name] for one in others if one.name in journal.tested]
        if self.leaves_out_tests:
            logger.warning("Ctrl-C: %d of %d baselines are tested", len(tested), len(others))
        return tested

    def _write_model(self, finished: Finished, out: Path, naming: Naming) -> tuple[Run, str | None]:
        """Test and write the model; return its name too, None if a baseline is better."""
        names: list[str | None] = []

        def named(final: FinalScorer) -> str | None:
            names.append(naming(final))
            return names[0]

        experiment, dataset = finished.experiment, self.contenders[0].dataset
        with track(experiment, dataset, experiment.family, flatten(experiment)) as tracker:
            for number, metrics in enumerate(finished.fitted.curve.epochs, 1):
                if MONITOR in metrics:
                    tracker.log_epoch(number, metrics)
            run = evaluate_and_write(
                experiment,
                dataset,
                self.held_out,
                finished.fitted,
                None,
                self.phases,
                out,
                tracker,
                self.progress,
                named,
            )
        return run, names[0]


def _tell_what_is_left_out() -> None:
    logger.warning(
        "Ctrl-C: the test of the best model ends, those of baselines are left out; %s", _AGAIN
    )
