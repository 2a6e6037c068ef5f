"""The answer of an automatic run: it is named, tested once, and shown on a page."""

from __future__ import annotations

import logging
import platform
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path

from recsys.automatic.facts import describe_machine
from recsys.automatic.race import Finished
from recsys.automatic.racer import Context
from recsys.automatic.state import MeasuredBaseline
from recsys.config import Experiment, flatten
from recsys.data.audit import audit
from recsys.data.prepared import PreparedDataset
from recsys.evaluation.tables import RankTable
from recsys.experiments.baselines import fit_baseline, fit_baseline_bundle
from recsys.experiments.fit import FinalScorer, evaluate_and_write
from recsys.experiments.results import Run
from recsys.machine import peak_memory_mib
from recsys.reports.comparison import compare
from recsys.reports.run_page import (
    Choice,
    RacePoint,
    Racer,
    RunReport,
    examples_of,
    write_run_report,
)
from recsys.serving.recommender import Recommender
from recsys.tracking import artifacts
from recsys.tracking.runs import nest_run
from recsys.tracking.tracker import track
from recsys.training.epochs import MONITOR

logger = logging.getLogger(__name__)

_GAIN = 0.01
"""The share by which a model with counts must be better on validation than the best baseline: less
may be chance, and a baseline takes less time and memory."""
_LIBRARIES = ("recsys-target-attention", "torch", "pytorch-lightning", "polars", "mlflow")


@dataclass(frozen=True, slots=True)
class Answer:
    """The model or the baseline that was chosen, after its test."""

    run: Run
    sentence: str
    """What was chosen, and why."""
    experiment: Experiment
    """The settings that repeat it."""
    baseline: str | None = None
    """The name of the baseline, if that is the answer."""
    beaten: str | None = None
    """The id of the run of the model, if a baseline is better."""


def answer_with_model(context: Context, finished: Finished, protocol: Experiment) -> Answer:
    """Test and write the model, or the best baseline where no model is better on validation."""
    experiment, fitted = finished.experiment, finished.fitted
    best, verdict = next(iter(context.state.baselines), None), list[tuple[str | None, str]]()

    def name(final: FinalScorer) -> str | None:
        verdict.append(_judge(finished.name, final, best))
        return verdict[0][0]

    with track(experiment, context.dataset, experiment.family, flatten(experiment)) as tracker:
        for number, metrics in enumerate(fitted.curve.epochs, 1):
            if MONITOR in metrics:
                tracker.log_metrics(metrics, number)
        words = experiment, context.dataset, context.held_out, fitted, None, context.phases
        run = evaluate_and_write(*words, context.plan.out, tracker, context.progress, name)
    ((called, figures),) = verdict
    if called is None and best is not None:
        return answer_with_baseline(context, best, protocol, figures, run)
    sentence = f"The answer is {called}: validation NDCG@10 {figures}"
    if best is not None:
        sentence += f", and {best.ndcg_at_10:.4f} of the best baseline, {words_for(best.name)}"
    return Answer(run, f"{sentence}.", experiment)


def _judge(name: str, final: FinalScorer, best: MeasuredBaseline | None) -> tuple[str | None, str]:
    """Return the name of the answer, None if no model beats the best baseline, and the figures.

    If the model alone is worse than the baseline, the answer is named after the counts first.
    """
    quality, alone, counts = _ndcg(final.valid), _ndcg(final.valid_alone), final.count_ensemble
    figures = f"{quality:.4f} of {name} with counts, {alone:.4f} of it alone"
    if best is not None and quality < (1 + _GAIN) * best.ndcg_at_10:
        return None, figures
    if best is None or counts is None or alone >= best.ndcg_at_10:
        return name, figures
    counted = "transitions_and_repeats" if final.valid.protocol.seen == "allow" else "pctm"
    if not (counts.weight or counts.repeat_weight):
        counted = "recent_popularity"
    return f"{words_for(counted)} with {name}", figures


def answer_with_baseline(
    context: Context,
    best: MeasuredBaseline,
    protocol: Experiment,
    reason: str,
    model: Run | None = None,
) -> Answer:
    """Answer with a baseline, for a reason, and rename the run of the model that it beats."""
    name, out = words_for(best.name), context.plan.out
    shared = protocol.model_dump(include={"name", "seed", "data", "evaluation", "tracking"})
    tree = {**shared, "baseline": best.name, "training": {"refit": True}}
    chosen, test = Experiment.model_validate(tree), context.held_out.test
    run = fit_baseline_bundle(
        chosen, context.dataset, out, tuned=best.tuned, test=test, answer=name
    )
    if model is not None:  # else both have the name of the answer
        nest_run(model.run_id, f"{out.name}-model", run.run_id, run.tracking)
    for entry in context.state.racers:
        if entry.chosen:
            entry.chosen, entry.outcome = False, "the best model, but a baseline is better"
    quality = f"validation NDCG@10 {best.ndcg_at_10:.4f}"
    sentence = f"The answer is {name}, a baseline: {quality}, and {reason}."
    return Answer(run, sentence, chosen, best.name, None if model is None else model.run_id)


def evaluate_baselines(context: Context, answer: Answer, protocol: Experiment) -> list[str]:
    """Test the baselines beside the answer, the best first and the others while time is left.

    Ctrl-C leaves out the rest. The ids of their MLflow runs are returned.
    """
    clock, test, parent = context.clock, context.held_out.test, answer.run.run_id
    others = [b for b in context.state.baselines if b.name != answer.baseline]
    runs: list[str] = []
    try:
        for baseline in others:
            if runs and clock.left < clock.seconds_of_page:
                break
            context.say(f"testing baseline {len(runs) + 1} of {len(others)}: {baseline.name}")
            words = baseline.name, protocol, context.dataset
            runs.append(fit_baseline(*words, tuned=baseline.tuned, test=test, parent=parent))
    except KeyboardInterrupt:
        logger.warning("Ctrl-C: %d of %d baselines are tested", len(runs), len(others))
    return runs


def words_for(baseline: str) -> str:
    """Return a baseline's name for people.

    >>> words_for("pctm"), words_for("item_knn")
    ('PCTM', 'item knn')
    """
    return "PCTM" if baseline == "pctm" else baseline.replace("_", " ")


def _ndcg(ranks: RankTable) -> float:
    return float(ranks.values("ndcg_at_10").mean())


# --- The page ------------------------------------------------------------------------------------


def write_page(
    context: Context,
    finished: Finished | None,
    answer: Answer,
    other_runs: Sequence[str],
    choices: Sequence[Choice],
    command: str,
) -> Path:
    """Write the page of a run; it shows the answer beside other runs, and how to make it again."""
    run, state, dataset, out = answer.run, context.state, context.dataset, context.plan.out
    recommender = Recommender.load(run.bundle, dataset)
    seconds_of_examples = context.clock.seconds_of_page / 2
    report = RunReport(
        name=out.name,
        dataset=dataset,
        findings=audit(dataset, recommender.bundle.manifest.protocol.seen),
        comparison=compare([run.run_id, *other_runs], run.tracking),
        command=command,
        date=datetime.now(UTC),
        seconds=context.clock.spent,
        choices=choices,
        racers=[
            Racer(entry.name, entry.description, tuple(entry.points), entry.outcome, entry.chosen)
            for entry in state.racers
        ]
        + [_baseline(baseline) for baseline in state.baselines],
        examples=examples_of(recommender, dataset, seconds=seconds_of_examples),
        next_steps=_next_steps(finished, answer, dataset),
        versions={
            "peak memory": f"{peak_memory_mib()[artifacts.PEAK_MEMORY]:,.0f} MiB",
            "machine": describe_machine(),
            "Python": platform.python_version(),
            **{name: version(name) for name in _LIBRARIES},
        },
    )
    return write_run_report(out / artifacts.REPORT, report)


def _next_steps(finished: Finished | None, answer: Answer, dataset: PreparedDataset) -> list[str]:
    """Return what a user may try next, in sentences, the most promising first."""
    text = f"The settings are in {artifacts.SETTINGS}: change one, train it with recsys train "
    steps = [f"{text}under another name, and put both runs side by side with recsys compare."]
    if len(dataset.item_table.columns) == 1:
        steps.insert(0, "With --items TABLE pages and explanations show the names of the items.")
    if answer.beaten:
        steps.insert(0, "No model beat the best baseline: a longer log or more time may change it.")
    if finished is not None and finished.rising:
        steps.insert(0, f"{finished.name} was still rising: give it more time with --time-limit.")
    return steps


def _baseline(baseline: MeasuredBaseline) -> Racer:
    settings = baseline.tuned.settings
    fields = {} if settings is None else asdict(settings)
    words = ", ".join(
        f"{name.replace('_', ' ')} {f'{value:.4g}' if isinstance(value, float) else value}"
        for name, value in fields.items()
    )
    point = RacePoint(baseline.seconds, 0, baseline.ndcg_at_10)
    return Racer(baseline.name, words, (point,), "a baseline, tuned")
