"""The page of an automatic run: its log, its race, its figures and what to try next."""

from __future__ import annotations

import platform
from dataclasses import asdict
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path

from recsys.automatic.clock import Clock
from recsys.automatic.facts import describe_machine
from recsys.automatic.state import MeasuredBaseline, State
from recsys.data.audit import audit
from recsys.data.prepared import PreparedDataset
from recsys.machine import peak_memory_mib
from recsys.reports.comparison import compare
from recsys.reports.run_page import (
    RacePoint,
    Racer,
    RunReport,
    examples_of,
    write_run_report,
)
from recsys.serving.recommender import Recommender
from recsys.tracking import artifacts

_LIBRARIES = ("recsys-target-attention", "torch", "pytorch-lightning", "polars", "mlflow")


def write_page(
    state: State, dataset: PreparedDataset, out: Path, command: str, clock: Clock
) -> Path:
    """Write ``report.html`` into the folder of the run.

    Args:
        state: the finished run.
        dataset: the dataset that it was made for.
        out: the folder of the run.
        command: the command that makes it again.
        clock: the time of the whole run.
    """
    run = state.chosen_answer.run
    comparison = compare([run.run_id, *state.other_runs], run.tracking)
    recommender = Recommender.load(run.bundle, dataset)
    report = RunReport(
        name=out.name,
        dataset=dataset,
        findings=audit(dataset, recommender.bundle.manifest.protocol.seen),
        comparison=comparison,
        command=command,
        date=datetime.now(UTC),
        seconds=clock.spent,
        choices=tuple(state.choices),
        racers=(
            *(
                Racer(
                    racer.name, racer.description, tuple(racer.points), racer.outcome, racer.chosen
                )
                for racer in state.racers
            ),
            *map(_baseline, state.baselines),
        ),
        examples=examples_of(recommender, dataset, seconds=clock.seconds_of_page / 2),
        next_steps=tuple(next_steps(state, dataset)),
        versions={
            "peak memory": f"{peak_memory_mib()[artifacts.PEAK_MEMORY]:,.0f} MiB",
            "machine": describe_machine(),
            "Python": platform.python_version(),
            **{name: version(name) for name in _LIBRARIES},
        },
    )
    return write_run_report(out / artifacts.REPORT, report)


def next_steps(state: State, dataset: PreparedDataset) -> list[str]:
    """Return what a user may try next, in sentences, the most promising first."""
    steps, tried = [], [entry for entry in state.racers if entry.points]
    if state.trained is not None and state.trained.rising:
        reached = "was still rising" if len(tried[0].points) > 1 else "had been validated once"
        steps.append(
            f"{tried[0].name} {reached} when its time was over: give the run more with "
            "--time-limit."
        )
    if state.chosen_answer.baseline and tried and not state.stopped:
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


def _baseline(baseline: MeasuredBaseline) -> Racer:
    settings = baseline.tuned.settings
    fields = {} if settings is None else asdict(settings)
    words = (f"{name.replace('_', ' ')} {_in_words(value)}" for name, value in fields.items())
    point = RacePoint(baseline.seconds, 0, baseline.ndcg_at_10)
    return Racer(baseline.name, ", ".join(words), (point,), "a baseline, tuned")


def _in_words(value: object) -> str:
    """Return a setting as text, with four digits of a number that has many.

    >>> _in_words(0.040474905558553695), _in_words(2.0), _in_words(None), _in_words(True)
    ('0.04047', '2', 'all', 'true')
    """
    if isinstance(value, float):
        return f"{value:.4g}"
    return "all" if value is None else str(value).lower()
