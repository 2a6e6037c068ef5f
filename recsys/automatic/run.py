"""The whole automatic run: facts, baselines, race, refit, test, and the record of it all."""

from __future__ import annotations

import logging
import shlex
from collections.abc import Callable, Sequence

from rich.progress import Progress

from recsys.automatic.answer import Answer
from recsys.automatic.budget import Budget
from recsys.automatic.candidates import Candidate, Plan, choose_shared, propose
from recsys.automatic.facts import LogFacts, Machine
from recsys.automatic.journal import Journal
from recsys.automatic.kept_columns import choose_features
from recsys.automatic.result import AutomaticRun
from recsys.automatic.speed import Speed, for_speed
from recsys.automatic.targets import Targets
from recsys.automatic.trials import Trials
from recsys.config import Experiment, dump_experiment
from recsys.data.audit import audit, warnings_in
from recsys.data.features.encoders import Encoders
from recsys.data.prepared import PreparedDataset
from recsys.experiments.results import Phases
from recsys.folders.atomic import new_file
from recsys.reports.run_page import Choice
from recsys.tracking import artifacts

logger = logging.getLogger(__name__)


def run_automatically(
    dataset: PreparedDataset,
    plan: Plan,
    budget: Budget,
    of_data: Sequence[Choice] = (),
    *,
    progress: Progress | None = None,
    announce: Callable[[str], None] = lambda _: None,
    phases: Phases | None = None,
) -> AutomaticRun:
    """Choose settings for a log on its validation part, train, test once, and log everything.

    Ctrl-C ends the race, and the best model so far is tested and kept; while that or baselines are
    tested, it leaves out the other baselines. A run that was killed resumes from its journal,
    ``.NAME.race``, when it is started again, with the time that was left; the caller removes the
    journal when the page is written.

    Args:
        dataset: the prepared dataset.
        plan: name, preset, seed and store.
        budget: the time limit; it is kept but for the last epoch.
        of_data: settings of the data that were chosen for the log, with their reasons.
        progress: a progress display that is shown already; a new one for each training if None.
        announce: called with one line about what is tried next.
        phases: where the time went before; what the run takes is added.

    Raises:
        InputError: nothing is held out to choose or to test on, or there is nothing to train on.
    """
    facts = LogFacts.of(dataset)
    shared = choose_shared(facts)
    candidates = propose(facts, shared, dataset.config, plan)
    protocol = candidates[0].experiment
    encoders = Encoders.fit(protocol.model, dataset)  # all candidates read the same
    dataset = encoders.read(dataset)
    journal = _open_journal(plan, dataset, candidates, budget)
    if journal.speed is None:
        announce("measuring how fast a model is")
        journal.speed = Speed.measure(candidates, dataset, encoders)
    shared = for_speed(shared, journal.speed, facts, budget.limit)
    candidates = propose(facts, shared, dataset.config, plan)
    choices = [*of_data, *shared]
    if facts.kept:
        choices.append(choose_features(facts.kept))
    targets = Targets.choose(
        dataset,
        protocol.evaluation,
        budget.limit,
        plan.seed,
        journal.targets,
        journal.speed.ranking,
    )
    journal.targets = list(targets.sizes)
    _log_start(choices, dataset, protocol)

    def say(what: str) -> None:
        journal.note(budget.spent)
        announce(what)

    phases = Phases() if phases is None else phases
    averages = plan.averages and not facts.features  # models with features have no mean
    trials = Trials(
        dataset, targets.held_out, journal.speed, budget, progress, say, phases, averages, encoders
    )
    if journal.answer is None and journal.training is None:
        _train(trials, candidates, targets, journal)
    else:
        step = "the training" if journal.answer is None else "the test of the answer"
        logger.info("resuming after %s", step)
        trials.restore(candidates, journal)
    answer = journal.answer or _find_answer(trials, protocol, journal, plan)
    with phases.timed("baselines"):
        runs = trials.test_baselines(protocol, journal, answer)
    return AutomaticRun(
        answer.run,
        [*answer.beaten, *runs],
        choices,
        trials.baselines,
        trials.contenders,
        answer.sentence,
        answer.baseline is None,
        trials.averaging,
    )


def _open_journal(
    plan: Plan, dataset: PreparedDataset, candidates: Sequence[Candidate], budget: Budget
) -> Journal:
    """Return the journal of an interrupted run, whose time is spent, or a new one."""
    settings = {one.name: one.experiment.model_dump(mode="json") for one in candidates}
    journal = Journal.beside(plan.out, {"dataset": dataset.fingerprint} | settings)
    if plan.fresh:
        journal.remove()
    budget.before = journal.seconds_spent()
    return journal


def _log_start(choices: Sequence[Choice], dataset: PreparedDataset, protocol: Experiment) -> None:
    """Log the machine, the settings that follow from the log, and warnings of the audit."""
    logger.debug("machine: %s", Machine.here())
    for choice in choices:
        logger.debug("%s: %s (%s)", choice.setting, choice.value, choice.reason)
    for one in warnings_in(audit(dataset, protocol.evaluation.seen)):  # worth knowing before
        logger.info("audit: %s: %s %s", one.name, f"{one.count:,}", one.sentence)


def _train(
    trials: Trials, candidates: Sequence[Candidate], targets: Targets, journal: Journal
) -> None:
    """Tune baselines, and race and train models."""
    phases = trials.phases
    with phases.timed("baselines"):
        trials.tune_baselines(candidates[0].experiment, journal)
    with phases.timed("training"):
        trials.race(candidates, journal, targets)
    validating = sum(one.seconds_validating for one in trials.contenders)
    # With what an interrupted run took.
    phases.add("training", trials.budget.before - validating)
    phases.add("validation", validating)


def _find_answer(trials: Trials, protocol: Experiment, journal: Journal, plan: Plan) -> Answer:
    """Test the best of all that was tried; the journal keeps it."""
    with trials.answering():
        answer, chosen = trials.answer(protocol, plan.out)
        logger.debug("%s", answer.sentence)
        _write_settings(chosen, answer.sentence, plan, trials.dataset)
        journal.keep_answer(answer, trials.contenders, trials.budget.spent)
    return answer


def _write_settings(chosen: Experiment, answer: str, plan: Plan, dataset: PreparedDataset) -> None:
    """Write the settings of the answer, and how to train with them."""
    path = plan.out / artifacts.SETTINGS
    words = "train", str(path), "--data", str(dataset.path), "--set", f"name={plan.name}-again"
    again = shlex.join(["recsys", *words])
    with new_file(path) as file:
        file.write_text(f"# {answer}\n# {again}\n{dump_experiment(chosen)}", encoding="utf-8")
