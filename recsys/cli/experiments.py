"""Commands that train, evaluate and compare."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Annotated, Literal

import typer
from rich.console import Console

from recsys.cli.options import (
    Bundle,
    BundleData,
    Config,
    Data,
    Fresh,
    HeldOutPart,
    Json,
    Set,
    Uri,
    app,
    find_dataset,
    open_beside,
    read_experiment,
)
from recsys.config import GivenItems, TrackingConfig
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
    from recsys.training import processes  # torch and mlflow take seconds to load

    experiment = read_experiment(config, overrides, uri)
    if data is not None and (stray := [o for o in overrides or [] if o.startswith("data.")]):
        raise InputError(
            f"--set {stray[0]}: the dataset of --data has its own settings: prepare it again"
        )
    with processes.rank_zero_first():
        dataset = find_dataset(experiment, data)
    if data is not None:  # it takes the place of the config's data section
        experiment = experiment.model_copy(update={"data": dataset.config})
    run = fit(experiment, dataset, fresh=fresh)
    row = {"run": run.run_id, "bundle": str(run.bundle), "best_epoch": run.best_epoch}
    show_rows([row | {name: figure.mean for name, figure in run.test.items()}], as_json)


@app.command("run")
def run_experiment(
    config: Config,
    overrides: Set = None,
    fresh: Fresh = False,
    uri: Uri = None,
    as_json: Json = False,
) -> None:
    """Prepare the data, train, evaluate, fit the baselines and compare, in one command.

    If training is interrupted, the same command resumes it.
    """
    from recsys.comparison.compare import compare
    from recsys.experiments.baseline import baselines_of, fit_baseline
    from recsys.experiments.fit import fit
    from recsys.training import processes

    experiment = read_experiment(config, overrides, uri)
    with processes.rank_zero_first():
        dataset = find_dataset(experiment, None)
    model = fit(experiment, dataset, fresh=fresh).run_id  # first, because it may refuse the config
    runs = [fit_baseline(name, experiment, dataset) for name in baselines_of(experiment, dataset)]
    show_comparison(compare([model, *runs[::-1]], experiment.tracking), as_json)


@app.command("evaluate")
def evaluate_bundle(
    bundle: Bundle,
    data: BundleData,
    part: HeldOutPart = "test",
    candidates: Annotated[
        Path | None,
        typer.Option(
            help="Table of user_id and item_id: the items to rank for each user, the targets "
            "included; overrides the config."
        ),
    ] = None,
    out: Annotated[Path | None, typer.Option(help="File for the rank table: .parquet.")] = None,
    as_json: Json = False,
) -> None:
    """Rank held-out targets with a trained model; show recall, NDCG and MRR with intervals.

    Ranks are exact and over the full catalogue, unless the config names candidates.
    """
    from recsys.evaluation.candidates import SAMPLED_WARNING, choose_candidates, is_sampled
    from recsys.evaluation.held_out import find_holdout
    from recsys.evaluation.metrics.ranks import metric_names
    from recsys.evaluation.segments import with_segments
    from recsys.evaluation.tables.rank import evaluate

    if out is not None and out.suffix != ".parquet":
        raise InputError(f"{out}: a rank table is a .parquet file")
    loaded, dataset = open_beside(bundle, data, part)
    config = loaded.experiment.evaluation
    if candidates is not None:
        config = config.model_copy(update={"candidates": GivenItems(file=candidates)})
    holdout = find_holdout(dataset, part, config.request_time)
    among = choose_candidates(config, dataset, part, holdout)
    table = evaluate(loaded.scorer, holdout, part, config.seen, candidates=among)
    table = with_segments(table, dataset, holdout)
    if is_sampled(table.protocol.candidates):
        logger.warning(SAMPLED_WARNING)
    if out is not None:
        table.save(out)
    figures = table.summary(metric_names(config.cutoffs))
    show_rows(
        [{"metric": name, **interval._asdict()} for name, interval in figures.items()], as_json
    )


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


@app.command("demo")
def run_demo(
    config: Annotated[
        Path, typer.Argument(help="Config of an experiment on the simulated shop.")
    ] = Path("configs/shop.yaml"),
    overrides: Set = None,
    uri: Uri = None,
) -> None:
    """Train on the simulated shop and show metrics, explanations and recovered rules.

    Takes about five minutes.
    """
    from recsys.demo import demo

    demo(read_experiment(config, overrides, uri), Console())
