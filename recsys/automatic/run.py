"""The whole automatic run: facts, baselines, race, refit, test, and the record of it all."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from rich.progress import Progress

from recsys.automatic.budget import Budget
from recsys.automatic.candidates import Plan, choose_seen, choose_sizes, propose
from recsys.automatic.contender import Contender
from recsys.automatic.facts import LogFacts, Machine
from recsys.automatic.finish import Finished, finish
from recsys.automatic.journal import Journal
from recsys.automatic.race import choose_field, race
from recsys.automatic.targets import Targets
from recsys.automatic.tuned_baselines import MeasuredBaseline, tune_baselines
from recsys.config import EvaluationConfig, Experiment, dump_experiment, flatten
from recsys.data.files import new_file
from recsys.data.holdout import Holdout
from recsys.data.prepared import PreparedDataset
from recsys.evaluation.held_out import HeldOutParts
from recsys.experiments.baseline import fit_baseline, fit_baseline_bundle
from recsys.experiments.fit import evaluate_and_write
from recsys.experiments.results import Run, check_out
from recsys.report.run_page import Choice
from recsys.tracking import artifacts
from recsys.tracking.tracker import track

logger = logging.getLogger(__name__)

_RACE_SHARE = 0.4
"""Share of the training time for the race; the winner takes the rest."""


@dataclass(frozen=True, slots=True)
class AutomaticRun:
    """What an automatic run tried, and what it chose."""

    run: Run
    """The answer: the model, or the baseline that no model beats."""
    baseline_runs: list[str]
    """Ids of the MLflow runs of the other baselines, best on validation first."""
    choices: list[Choice]
    """The settings that follow from the log, with their reasons."""
    baselines: list[MeasuredBaseline]
    """Best first."""
    contenders: list[Contender]
    """The models of the race, best first."""
    answer: str
    """One sentence on what was chosen, and why."""
    answer_is_model: bool
    """Whether a model is the answer, and not a baseline."""
    seconds: float

    @property
    def winner(self) -> Contender | None:
        """The contender that is the answer; None if a baseline is."""
        return self.contenders[0] if self.answer_is_model else None


def run_automatically(
    dataset: PreparedDataset,
    plan: Plan,
    budget: Budget,
    *,
    progress: Progress | None = None,
    announce: Callable[[str], None] = lambda _: None,
) -> AutomaticRun:
    """Choose settings for a log on its validation part, train, test once, and log everything.

    Ctrl-C ends the race, and the best model so far is tested and kept. A run that was killed
    resumes from its journal, ``OUT.race``, when it is started again, with the time that was left.

    Args:
        dataset: the prepared dataset.
        plan: name, preset, seed and store.
        budget: the time limit; it is kept but for the last epoch.
        progress: a progress display that is shown already; a new one for each training if None.
        announce: called with one line about what is tried next.

    Raises:
        InputError: nothing is held out to choose or to test on, there is nothing to train on, or
            ``out`` or the store cannot be used.
    """
    out = plan.out
    check_out(out)
    decisive = {"dataset": dataset.fingerprint, "preset": plan.preset, "seed": plan.seed}
    journal = Journal(out.with_name(f"{out.name}.race"), decisive)
    if plan.fresh:
        journal.remove()
    budget.before = journal.seconds_spent()
    facts = LogFacts.of(dataset)
    choices = [choose_seen(facts), *choose_sizes(facts)]
    logger.info("machine: %s", Machine.here())
    for choice in choices:
        logger.info("%s: %s (%s)", choice.setting, choice.value, choice.reason)
    evaluation = EvaluationConfig.model_validate({"seen": choices[0].value})
    targets = Targets.choose(dataset, evaluation, budget.limit, plan.seed)
    held_out = targets.held_out
    candidates = propose(facts, dataset.config, plan)
    protocol = candidates[0].experiment
    contenders: list[Contender] = []
    baselines: list[MeasuredBaseline] = []

    def say(what: str) -> None:
        found = [(one.ndcg_at_10, one.name) for one in baselines]
        found += [(one.quality, one.candidate.name) for one in contenders if one.points]
        quality, name = max(found, default=(0.0, ""))
        announce(f"{what}; best {quality:.4f}, {name}" if found else what)

    baselines += tune_baselines(protocol, dataset, held_out.valid, budget, say)
    reserve = targets.seconds + sum(one.tuned.seconds / 3 for one in baselines)  # their refits
    logger.info("kept for the evaluation: %.0f of the %.0f s", reserve, budget.limit)
    started = time.monotonic()
    contenders += [
        Contender.ready(each, dataset, held_out.valid, lambda: time.monotonic() - started, progress)
        for each in candidates
    ]
    journal.restore(contenders)
    for one in contenders:
        one.saved = lambda contender: journal.save(contender, contenders, lambda: budget.spent)
    for_race = (budget.left - reserve) * _RACE_SHARE
    ranked = race(choose_field(contenders, for_race), for_race, say)
    say(f"training {ranked[0].candidate.name}")
    finished = finish(ranked[0], lambda: budget.left - reserve)
    say("testing")
    seconds = time.monotonic() - started
    model = _write_model(finished, ranked[0], held_out, seconds, out)
    run, chosen, answer = _answer(
        model, finished, ranked[0].candidate.name, baselines, protocol, dataset, held_out.test
    )
    logger.info("%s", answer)
    with new_file(out / artifacts.SETTINGS) as file:
        file.write_text(f"# {answer}\n{dump_experiment(chosen)}", encoding="utf-8")
    others = [one for one in baselines if one.name != chosen.baseline]
    runs = []
    for number, other in enumerate(others, 1):
        announce(f"testing baseline {number} of {len(others)}: {other.name}")
        runs.append(
            fit_baseline(other.name, protocol, dataset, tuned=other.tuned, test=held_out.test)
        )
    journal.remove()
    return AutomaticRun(
        run, runs, choices, baselines, ranked, answer, chosen.baseline is None, budget.spent
    )


def _answer(
    model: Run,
    finished: Finished,
    name: str,
    baselines: list[MeasuredBaseline],
    protocol: Experiment,
    dataset: PreparedDataset,
    test: Holdout,
) -> tuple[Run, Experiment, str]:
    """Choose between the model and the best baseline on validation; the bundle is the answer.

    Returns:
        The run, its settings, and a sentence on the choice.
    """
    quality = model.valid["ndcg_at_10"].mean
    found = f"validation NDCG@10 {quality:.4f}"
    if not baselines:
        return model, finished.experiment, f"The answer is {name}: {found}."
    best = baselines[0]
    theirs = f"{best.ndcg_at_10:.4f}"
    if best.ndcg_at_10 < quality:
        sentence = f"The answer is {name}: {found}, and {theirs} of the best baseline, {best.name}."
        return model, finished.experiment, sentence
    chosen = _baseline_experiment(best.name, protocol)
    run = fit_baseline_bundle(chosen, dataset, model.bundle.parent, tuned=best.tuned, test=test)
    sentence = (
        f"The answer is a baseline, {best.name}: validation NDCG@10 {theirs}, and {quality:.4f} of "
        f"the best model, {name}."
    )
    return run, chosen, sentence


def _baseline_experiment(name: str, protocol: Experiment) -> Experiment:
    """Return the settings of a baseline under the protocol of a model."""
    kept = protocol.model_dump(include={"name", "seed", "data", "evaluation", "tracking"})
    return Experiment.model_validate({**kept, "baseline": name, "training": {"refit": True}})


def _write_model(
    finished: Finished, winner: Contender, held_out: HeldOutParts, seconds: float, out: Path
) -> Run:
    experiment, dataset = finished.experiment, winner.dataset
    with track(experiment, dataset, experiment.family, flatten(experiment)) as tracker:
        for number, metrics in enumerate(finished.fitted.curve.epochs, 1):
            tracker.log_epoch(number, metrics)
        return evaluate_and_write(
            experiment, dataset, held_out, finished.fitted, None, seconds, out, tracker
        )
