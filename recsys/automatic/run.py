"""The whole automatic run: facts, baselines, race, refit, test, and the record of it all."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from rich.progress import Progress

from recsys.automatic.budget import Budget
from recsys.automatic.candidates import Choice, Preset, choose_seen, choose_sizes, propose
from recsys.automatic.contender import Contender
from recsys.automatic.facts import LogFacts, Machine
from recsys.automatic.finish import Finished, finish
from recsys.automatic.race import race
from recsys.automatic.tuned_baselines import MeasuredBaseline, tune_baselines
from recsys.baselines.popularity import Popularity
from recsys.config import EvaluationConfig, Experiment, TrackingConfig, dump_experiment, flatten
from recsys.data.files import new_file
from recsys.data.prepared import PreparedDataset
from recsys.evaluation.held_out import HeldOutParts
from recsys.evaluation.tables.rank import evaluate
from recsys.experiments.baseline import fit_baseline, fit_baseline_bundle
from recsys.experiments.fit import evaluate_and_write
from recsys.experiments.results import Run, check_out
from recsys.tracking import artifacts
from recsys.tracking.tracker import track

logger = logging.getLogger(__name__)

RACE_TARGETS = 5_000
"""Validation targets that choices are made on at most: a random sample of them."""
_RACE_SHARE = 0.45
"""Share of the training time for the race; the winner takes the rest."""
_COUNT_TRIALS, _MODEL_TESTS = 40, 6
"""Rankings of a target to weight the counts on validation, and to test a model, each in units of a
ranking by popularity."""
_OTHER_SECONDS = 8.0
"""Seconds for the tables, the tracking store and the page."""


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
    seconds: float


def run_automatically(
    dataset: PreparedDataset,
    budget: Budget,
    *,
    name: str,
    preset: Preset = "balanced",
    seed: int = 0,
    tracking: TrackingConfig | None = None,
    out: Path | None = None,
    progress: Progress | None = None,
    announce: Callable[[str], None] = lambda _: None,
) -> AutomaticRun:
    """Choose settings for a log on its validation part, train, test once, and log everything.

    Args:
        dataset: the prepared dataset.
        budget: the time limit; it is kept but for the last epoch.
        name: of the MLflow run; those of the baselines are called NAME-BASELINE.
        preset: how many kinds of model are raced.
        seed: of the weights, the batches and the samples.
        tracking: the MLflow store; the default one if None.
        out: folder of the results; ``runs/NAME`` if None.
        progress: a progress display that is shown already; a new one for each training if None.
        announce: called with one line about what is tried next.

    Raises:
        InputError: nothing is held out to choose or to test on, there is nothing to train on, or
            ``out`` or the store cannot be used.
    """
    out = out or Path("runs") / name
    check_out(out)
    facts = LogFacts.of(dataset)
    choices = [choose_seen(facts), *choose_sizes(facts)]
    logger.info("machine: %s", Machine.here())
    for choice in choices:
        logger.info("%s: %s (%s)", choice.setting, choice.value, choice.reason)
    evaluation = EvaluationConfig.model_validate({"seen": choices[0].value})
    held_out = HeldOutParts.find(dataset, evaluation.request_time)
    held_out = held_out._replace(valid=held_out.valid.sample(RACE_TARGETS, seed))
    candidates = propose(
        facts, dataset.config, preset, name=name, seed=seed, tracking=tracking or TrackingConfig()
    )
    protocol = candidates[0].experiment
    baselines = tune_baselines(protocol, dataset, held_out.valid, budget, announce)
    reserve = _evaluation_seconds(dataset, held_out, baselines, evaluation)
    logger.info("kept for the evaluation: %.0f of the %.0f s", reserve, budget.limit)
    started = time.monotonic()
    contenders = [
        Contender.ready(each, dataset, held_out.valid, lambda: time.monotonic() - started, progress)
        for each in candidates
    ]
    ranked = race(contenders, (budget.left - reserve) * _RACE_SHARE, announce)
    announce(f"training {ranked[0].candidate.name}")
    finished = finish(ranked[0], lambda: budget.left - reserve)
    announce("testing")
    model = _write_model(finished, ranked[0], held_out, time.monotonic() - started, out)
    best = baselines[0] if baselines else None
    if best is not None and best.ndcg_at_10 >= model.valid["ndcg_at_10"].mean:
        answer = _answer(best.name, best.ndcg_at_10, "no model", model.valid["ndcg_at_10"].mean)
        protocol = _baseline_experiment(best.name, protocol)
        run = fit_baseline_bundle(protocol, dataset, out, tuned=best.tuned)
        others, chosen = baselines[1:], protocol
    else:
        quality = model.valid["ndcg_at_10"].mean
        rival = "no baseline" if best is None else f"the best baseline, {best.name},"
        answer = _answer(
            ranked[0].candidate.name, quality, rival, 0.0 if best is None else best.ndcg_at_10
        )
        run, others, chosen = model, baselines, finished.experiment
    logger.info("%s", answer)
    with new_file(out / artifacts.SETTINGS) as file:
        file.write_text(f"# {answer}\n{dump_experiment(chosen)}", encoding="utf-8")
    runs = []
    for number, one in enumerate(others, 1):
        announce(f"testing baseline {number} of {len(others)}: {one.name}")
        runs.append(fit_baseline(one.name, protocol, dataset, tuned=one.tuned))
    return AutomaticRun(run, runs, choices, baselines, ranked, answer, budget.spent)


def _answer(name: str, quality: float, rival: str, rival_quality: float) -> str:
    return (
        f"The answer is {name}: validation NDCG@10 {quality:.4f}, {rival} has {rival_quality:.4f}."
    )


def _baseline_experiment(name: str, protocol: Experiment) -> Experiment:
    """Return the settings of a baseline under the protocol of a model."""
    kept = protocol.model_dump(include={"name", "seed", "data", "evaluation", "tracking"})
    refit = {"refit": protocol.training.refit}
    return Experiment.model_validate({**kept, "baseline": name, "training": refit})


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


def _evaluation_seconds(
    dataset: PreparedDataset,
    held_out: HeldOutParts,
    baselines: list[MeasuredBaseline],
    evaluation: EvaluationConfig,
) -> float:
    """Estimate the seconds that the weights of the counts, the tests and the refits will take."""
    sample = held_out.valid.sample(500, 0)
    popularity = Popularity.fit(dataset.histories("valid"), dataset.num_items)
    started = time.monotonic()
    evaluate(popularity, sample, "valid", evaluation.seen)
    per_target = (time.monotonic() - started) / max(len(sample.targets), 1)
    tests, valid = len(held_out.test.targets), len(held_out.valid.targets)
    rankings = _COUNT_TRIALS * valid + (_MODEL_TESTS + 2 * len(baselines)) * tests
    fits = sum(one.tuned.seconds / 3 for one in baselines)
    return _OTHER_SECONDS + per_target * rankings + fits
