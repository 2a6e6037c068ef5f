"""The page of an automatic run: its log, its race, its figures and what to try next."""

from __future__ import annotations

import platform
from dataclasses import asdict
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path

from recsys.automatic.budget import Budget
from recsys.automatic.contender import Contender
from recsys.automatic.facts import Machine
from recsys.automatic.result import AutomaticRun
from recsys.automatic.tuned_baselines import MeasuredBaseline
from recsys.data.audit import audit
from recsys.data.prepared import PreparedDataset
from recsys.machine import peak_memory_mib
from recsys.reports.comparison import compare
from recsys.reports.run_page import (
    Choice,
    Racer,
    RunReport,
    TunedBaseline,
    examples_of,
    write_run_report,
)
from recsys.serving.recommender import Recommender
from recsys.tracking import artifacts

_LIBRARIES = ("recsys-target-attention", "torch", "pytorch-lightning", "polars", "mlflow")


def write_page(
    automatic: AutomaticRun,
    dataset: PreparedDataset,
    out: Path,
    command: str,
    budget: Budget,
) -> Path:
    """Write ``report.html`` into the folder of the run.

    Args:
        automatic: the finished run.
        dataset: the dataset that it was made for.
        out: the folder of the run.
        command: the command that makes it again.
        budget: the time of the whole run.
    """
    run = automatic.run
    comparison = compare([run.run_id, *automatic.other_runs], run.tracking)
    recommender = Recommender.load(run.bundle, dataset)
    seen = recommender.bundle.manifest.protocol.seen
    examples = examples_of(recommender, dataset, seconds=budget.seconds_of_page / 2)
    report = RunReport(
        name=out.name,
        dataset=dataset,
        findings=audit(dataset, seen),
        comparison=comparison,
        command=command,
        date=datetime.now(UTC),
        seconds=budget.spent,
        answer=run.run_id,
        choices=_choices(automatic),
        racers=tuple(
            Racer(
                one.candidate.name,
                one.candidate.description,
                tuple(one.points),
                _outcome(one, automatic),
                one in automatic.chosen,
            )
            for one in automatic.contenders
        ),
        baselines=tuple(_shown(one) for one in automatic.baselines),
        examples=examples,
        next_steps=tuple(next_steps(automatic, dataset)),
        versions={
            "peak memory": f"{peak_memory_mib()[artifacts.PEAK_MEMORY]:,.0f} MiB",
            "machine": str(Machine.here()),
            "Python": platform.python_version(),
            **{name: version(name) for name in _LIBRARIES},
        },
    )
    return write_run_report(out / artifacts.REPORT, report)


def next_steps(automatic: AutomaticRun, dataset: PreparedDataset) -> list[str]:
    """Return what a user may try next, in sentences, the most promising first."""
    steps, first = [], next(iter(automatic.contenders), None)
    if first is not None and first.ended_rising:
        reached = "was still rising" if len(first.points) > 1 else "had been validated once"
        steps.append(
            f"{first.candidate.name} {reached} when its time was over: give the run more with "
            "--time-limit."
        )
    tried = [one for one in automatic.contenders if one.points]
    if automatic.winner is None and tried and not any(one.interrupted for one in tried):
        steps.append(
            "No model beat the best baseline: there may be too few interactions to learn from, or "
            "too little time. A longer log (--since, --user-minimum 1) or more time may change it."
        )
    if len(dataset.item_table.columns) == 1:
        steps.append(
            "The items have no features: with --items TABLE, pages and explanations show their "
            "names, and models may read them (model.item_features)."
        )
    steps.append(
        f"The settings are in {artifacts.SETTINGS}: change one, train it with recsys train under "
        "another name, and put both runs side by side with recsys compare."
    )
    return steps


def _shown(baseline: MeasuredBaseline) -> TunedBaseline:
    tuned = baseline.tuned
    settings = {} if tuned.settings is None else asdict(tuned.settings)
    words = (f"{name.replace('_', ' ')} {_in_words(value)}" for name, value in settings.items())
    return TunedBaseline(baseline.name, ", ".join(words), baseline.ndcg_at_10, tuned.seconds)


def _in_words(value: object) -> str:
    """Return a setting as text, with four digits of a number that has many.

    >>> _in_words(0.040474905558553695), _in_words(2.0), _in_words(None), _in_words(True)
    ('0.04047', '2', 'all', 'true')
    """
    if isinstance(value, float):
        return f"{value:.4g}"
    return "all" if value is None else str(value).lower()


def _choices(automatic: AutomaticRun) -> tuple[Choice, ...]:
    """Return the settings that were chosen; whether models were averaged comes last."""
    averaging = automatic.averaging
    if averaging is None:
        return tuple(automatic.choices)
    kind = "averaged" if averaging.chosen and automatic.winner is not None else "one model"
    return (*automatic.choices, Choice("model.kind", kind, averaging.sentence))


def _outcome(one: Contender, automatic: AutomaticRun) -> str:
    """Return what became of a contender of the race."""
    if one.failure and not one.points:
        reason, _, _ = one.failure.partition(": choose ")  # settings, which follow from the log
        return f"not trained: {reason}"
    if one.dropped_in == 0 and one not in automatic.contenders[:1]:
        return "not raced: the time was too short to compare it"
    return _outcome_of_race(one, automatic)


def _outcome_of_race(one: Contender, automatic: AutomaticRun) -> str:
    averaging = None if automatic.winner is None else automatic.averaging
    averaged = "" if averaging is None else averaging.outcome(one.candidate.name)
    if one is automatic.winner:
        return f"won{averaged}"
    if one is automatic.contenders[0]:
        return "the best model, but a baseline is better"
    if one.dropped_in:
        return f"dropped in round {one.dropped_in}{averaged}"
    if any(other.interrupted for other in automatic.contenders):
        return "stopped by Ctrl-C"
    return f"won the race{averaged}"
