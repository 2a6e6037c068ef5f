"""Commands that prepare, train, evaluate and compare."""

from __future__ import annotations

import json
import logging
import tempfile
from dataclasses import asdict
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
    Item,
    Json,
    Keep,
    Log,
    Set,
    Time,
    Uri,
    User,
    app,
    count_warnings,
    find_dataset,
    open_beside,
    read_experiment,
    read_preparation,
)
from recsys.config import DataConfig, GivenItems, TrackingConfig
from recsys.console import show_comparison, show_rows, show_segments
from recsys.data.audit import audit
from recsys.data.prepared import PreparedDataset, prepare
from recsys.data.sources import DATASETS
from recsys.errors import InputError

logger = logging.getLogger(__name__)


@app.command("data")
def list_data(as_json: Json = False) -> None:
    """List the named datasets. Their files are found through the variable RECSYS_MIRROR."""
    rows = [
        {
            "name": dataset.name,
            "interactions": dataset.interactions,
            "users": dataset.users,
            "items": dataset.items,
            "description": dataset.description,
            "homepage": dataset.homepage,
            "licence": dataset.licence,
        }
        for dataset in DATASETS
    ]
    show_rows(rows, as_json, hidden=("homepage", "licence"))


@app.command("prepare")
def prepare_data(
    source: Log,
    out: Annotated[Path, typer.Option(help="Folder of the prepared dataset.")],
    user: User = None,
    item: Item = None,
    time: Time = None,
    items: Annotated[
        Path | None,
        typer.Option(help="Table of the items: item_id, and what else is known of them."),
    ] = None,
    users: Annotated[
        Path | None,
        typer.Option(help="Table of the users: user_id, and what else is known of them."),
    ] = None,
    keep: Keep = None,
    overrides: Set = None,
    as_json: Json = False,
) -> None:
    """Check, order, split and encode a log. Further settings: --set data.k_core=true and so on."""
    columns = {"user_id": user, "item_id": item, "timestamp": time}
    changes = [*(overrides or []), *([f"data.keep={json.dumps(keep)}"] if keep else [])]
    experiment = read_preparation(source, columns, changes)
    dataset = prepare(experiment.data.source, experiment.data, out, items, users)
    warnings = count_warnings(dataset, experiment)
    show_rows([{"dataset": str(out), **dataset.manifest.counts, "warnings": warnings}], as_json)


@app.command("audit")
def audit_data(
    source: Annotated[
        str, typer.Argument(help="A log, a dataset, a config, or a prepared dataset's folder.")
    ],
    user: User = None,
    item: Item = None,
    time: Time = None,
    overrides: Set = None,
    as_json: Json = False,
) -> None:
    """Look for leaks between the parts of a split: what is found, how much of it, what it means."""
    columns = {"user_id": user, "item_id": item, "timestamp": time}
    is_prepared = Path(source).is_dir()
    experiment = read_preparation(source, columns, overrides)
    if is_prepared and experiment.data != DataConfig(source=source):
        raise InputError(f"{source}: is prepared: its own settings count; prepare it anew")
    with tempfile.TemporaryDirectory() as folder:
        if is_prepared:
            dataset = PreparedDataset.open(source)
        else:
            dataset = prepare(experiment.data.source, experiment.data, Path(folder, "audited"))
        findings = audit(dataset, experiment.evaluation.seen)
    show_rows([asdict(finding) for finding in findings], as_json)


@app.command("train")
def train_model(
    config: Config,
    data: Data = None,
    overrides: Set = None,
    fresh: Fresh = False,
    uri: Uri = None,
    as_json: Json = False,
) -> None:
    """Train, validate every epoch, test once; write runs/NAME and an MLflow run.

    Cut off on the way, the same command goes on where it was. On several devices:
    torchrun --nproc-per-node 2 -m recsys train ...
    """
    from recsys.experiments.fit import fit
    from recsys.training import processes  # torch and mlflow take seconds to load

    experiment = read_experiment(config, overrides, uri)
    if data is not None and (stray := [o for o in overrides or [] if o.startswith("data.")]):
        raise InputError(f"--set {stray[0]}: with --data its own settings count; prepare it anew")
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
    """The whole way: prepare, train, evaluate, fit the baselines, compare.

    Cut off while it trains, the same command goes on where it was.
    """
    from recsys.comparison.compare import compare
    from recsys.experiments.baseline import baselines_of, fit_baseline
    from recsys.experiments.fit import fit
    from recsys.training import processes

    experiment = read_experiment(config, overrides, uri)
    with processes.rank_zero_first():
        dataset = find_dataset(experiment, None)
    model = fit(
        experiment, dataset, fresh=fresh
    ).run_id  # first: it is the one that may refuse the config
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
            help="Items to rank among, in place of the config's: a table with user_id and item_id, "
            "every user's targets among them."
        ),
    ] = None,
    out: Annotated[Path | None, typer.Option(help="Rank table to write (.parquet).")] = None,
    as_json: Json = False,
) -> None:
    """Exact ranks of a bundle's model, over the full catalogue unless its config says otherwise.

    Shows recall, NDCG and MRR with their intervals.
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
    runs: Annotated[list[str] | None, typer.Argument(help="Run ids or names; all if none.")] = None,
    experiment: Annotated[str, typer.Option(help="MLflow experiment.")] = "recsys",
    metric: Annotated[
        list[str] | None,
        typer.Option(help="E.g. recall_at_20, mrr, next_f1_at_5, coverage_at_10; repeatable."),
    ] = None,
    pooled: Annotated[
        bool, typer.Option("--pool-seeds", help="One row for runs that differ in their seed alone.")
    ] = False,
    test: Annotated[
        Literal["randomisation", "t"], typer.Option(help="The paired test that p-values are of.")
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
        typer.Option(help="Folder to write as well: one HTML page, pictures, CSV and LaTeX."),
    ] = None,
    across_protocols: Annotated[
        bool, typer.Option("--across-protocols", help="Show runs of different protocols too.")
    ] = False,
    uri: Uri = None,
    as_json: Json = False,
) -> None:
    """Compare MLflow runs of one protocol: metrics, intervals, paired tests."""
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
    config: Annotated[Path, typer.Argument(help="Experiment on the shop.")] = Path(
        "configs/shop.yaml"
    ),
    overrides: Set = None,
    uri: Uri = None,
) -> None:
    """The simulated shop, end to end, in about five minutes: table, reasons, recovered rules."""
    from recsys.demo import demo

    demo(read_experiment(config, overrides, uri), Console())
