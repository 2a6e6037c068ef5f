"""Commands that train, evaluate and compare."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Annotated, Literal

import typer

from recsys.cli.options import (
    Data,
    Fresh,
    Json,
    Set,
    Uri,
    app,
    find_dataset,
    read_experiment,
)
from recsys.config import Experiment, TrackingConfig
from recsys.console import show_comparison, show_rows, show_segments
from recsys.errors import InputError
from recsys.reports.tables import title

logger = logging.getLogger(__name__)


@app.command("train")
def train_model(
    config: Annotated[
        str | None,
        typer.Argument(
            help="An experiment: a YAML file, or a preset's name (recsys configs). With --from it "
            "is not needed, and what it sets wins over the settings of the model."
        ),
    ] = None,
    data: Data = None,
    start: Annotated[
        str | None,
        typer.Option(
            "--from",
            help="Start from the weights of this trained model, on the dataset of --data: "
            "runs/NAME, or models:/NAME@ALIAS. Its settings stay, unless --set changes them.",
        ),
    ] = None,
    overrides: Set = None,
    fresh: Fresh = False,
    uri: Uri = None,
    as_json: Json = False,
) -> None:
    """Train, choose the best epoch on validation, test once; write runs/NAME and an MLflow run.

    If training is interrupted, the same command resumes it. On several devices:
    torchrun --nproc-per-node 2 -m recsys train ...

    When the log has grown: recsys train --from runs/NAME --data DATA. It matches items by their
    ids, gives new ones a start from their neighbours, and trains for a share of the epochs on new
    and old histories: --set start.epochs=0.25, start.learning_rate=0.3, start.replay=0.5. The run
    is called NAME-2, then NAME-3, unless --set name=... says otherwise.
    """
    from recsys.experiments.fit import fit
    from recsys.experiments.headline import simplest_baselines
    from recsys.experiments.phases import Phases
    from recsys.tracking.links import mlflow_link
    from recsys.training import processes  # torch and mlflow take seconds to load

    experiment = _experiment(config, overrides, uri, start, data)
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
        beside = {"baselines": baselines.metrics, "baselines_sampled": baselines.sampled}
        show_rows([row | means | beside], as_json)
        return
    show_rows([row], as_json)
    tested = {experiment.name: run.headline} | baselines.metrics
    counts = "counts without settings"
    if baselines.sampled is not None:
        counts += f" (these on {baselines.sampled:,} random histories, for want of time)"
    print(f"\nTest metrics beside {counts}, one protocol (all metrics: --json):")
    show_rows(
        [
            {"name": name} | {title(metric): metrics.get(metric) for metric in run.headline}
            for name, metrics in tested.items()
        ],
        as_json,
    )
    print(f"\nThe run in MLflow:\n{mlflow_link(run.tracking, run.run_id)}")


def _experiment(
    config: str | None,
    overrides: list[str] | None,
    uri: str | None,
    start: str | None,
    data: Path | None,
) -> Experiment:
    """Read the experiment to train, or that of the model to start from."""
    if start is None:
        if config is None:
            raise InputError("train: needs an experiment, or --from and the model to start from")
        return read_experiment(config, overrides, uri)
    from recsys.experiments.start import continue_bundle
    from recsys.loading import bundle_folder

    if data is None:
        raise InputError("--from: needs --data and the folder of the dataset to train on")
    changes = None if config is None else read_experiment(config, None)
    more = [] if uri is None else [f"tracking.uri={uri}"]
    return continue_bundle(bundle_folder(start), changes, [*(overrides or []), *more])


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
