"""Commands that train, evaluate and compare."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Annotated, Literal

import typer

from recsys.cli.options import (
    Config,
    Data,
    Fresh,
    Json,
    Set,
    Uri,
    app,
    find_dataset,
    read_experiment,
)
from recsys.comparison.formats import title
from recsys.config import TrackingConfig
from recsys.console import show_comparison, show_rows, show_segments
from recsys.errors import InputError

logger = logging.getLogger(__name__)


@app.command("train")
def train_model(
    config: Config,
    data: Data = None,
    overrides: Set = None,
    fresh: Fresh = False,
    uri: Uri = None,
    as_json: Json = False,
) -> None:
    """Train, choose the best epoch on validation, test once; write runs/NAME and an MLflow run.

    If training is interrupted, the same command resumes it. On several devices:
    torchrun --nproc-per-node 2 -m recsys train ...
    """
    from recsys.experiments.fit import fit
    from recsys.experiments.headline import simplest_baselines
    from recsys.experiments.phases import Phases
    from recsys.tracking.links import mlflow_link
    from recsys.training import processes  # torch and mlflow take seconds to load

    experiment = read_experiment(config, overrides, uri)
    if data is not None and (stray := [o for o in overrides or [] if o.startswith("data.")]):
        raise InputError(
            f"--set {stray[0]}: the dataset of --data has its own settings: prepare it again"
        )
    phases = Phases()
    with phases.timed("preparation"), processes.rank_zero_first():
        dataset = find_dataset(experiment, data)
    if data is not None:  # it takes the place of the config's data section
        experiment = experiment.model_copy(update={"data": dataset.config})
    run = fit(experiment, dataset, fresh=fresh, phases=phases)
    with phases.timed("baselines"):
        baselines = simplest_baselines(experiment, dataset)
    phases.log()
    row = {"run": run.run_id, "bundle": str(run.bundle), "best_epoch": run.best_epoch}
    if as_json:
        means = {name: figure.mean for name, figure in run.test.items()}
        show_rows([row | means | {"baselines": baselines}], as_json)
        return
    show_rows([row], as_json)
    tested = {experiment.name: run.headline} | baselines
    print("\nTest metrics beside counts without settings, one protocol (all metrics: --json):")
    show_rows(
        [
            {"name": name} | {title(metric): metrics.get(metric) for metric in run.headline}
            for name, metrics in tested.items()
        ],
        as_json,
    )
    print(f"\nThe run in MLflow:\n{mlflow_link(run.tracking, run.run_id)}")


@app.command("compare")
def compare_runs(
    runs: Annotated[
        list[str] | None, typer.Argument(help="Ids or names of runs; default: all.")
    ] = None,
    experiment: Annotated[str, typer.Option(help="MLflow experiment.")] = "recsys",
    metric: Annotated[
        list[str] | None,
        typer.Option(help="E.g. recall_at_20, mrr, next_f1_at_5, coverage_at_10; repeatable."),
    ] = None,
    pooled: Annotated[
        bool,
        typer.Option("--pool-seeds", help="Show runs that differ only in their seed as one row."),
    ] = False,
    test: Annotated[
        Literal["randomisation", "t"], typer.Option(help="Paired test for the p-values.")
    ] = "randomisation",
    by: Annotated[
        str | None,
        typer.Option(
            help="Show metrics by segment instead: history, customer, purchase, popularity_decile, "
            "gap."
        ),
    ] = None,
    report: Annotated[
        Path | None,
        typer.Option(help="Folder to write: an HTML page, its pictures as SVG, CSV and LaTeX."),
    ] = None,
    across_protocols: Annotated[
        bool, typer.Option("--across-protocols", help="Allow runs of different protocols.")
    ] = False,
    uri: Uri = None,
    as_json: Json = False,
) -> None:
    """Compare MLflow runs: metrics with intervals, and paired tests against the first run."""
    from recsys.api import compare

    tracking = TrackingConfig(experiment=experiment)
    if uri is not None:
        tracking = tracking.model_copy(update={"uri": uri})
    comparison = compare(
        runs or [],
        tracking,
        metrics=metric,
        across_protocols=across_protocols,
        pooled=pooled,
        method=test,
        report=report,
    )
    if by is None:
        show_comparison(comparison, as_json)
    else:
        show_segments(comparison, by, as_json)
    if report is not None:
        typer.echo(f"written: {report / 'comparison.html'}", err=True)
