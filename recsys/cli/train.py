"""Commands that train models and judge them: one, a grown one, searches, suites, comparisons."""

import logging
from pathlib import Path
from typing import Annotated, Literal

import typer
from typer import Argument, Option

from recsys.cli.options import (
    Bundle,
    BundleData,
    Config,
    Data,
    Fresh,
    Retrieve,
    Set,
    Uri,
    command,
    find_dataset,
    prepared_for,
    read_experiment,
    store_of,
    with_uri,
)
from recsys.config.experiment import GivenItems
from recsys.config.files import load_section
from recsys.console import AS_JSON, say, show_comparison, show_rows
from recsys.data.prepared import PreparedDataset
from recsys.errors import InputError
from recsys.loading import experiment_to_train, open_bundle
from recsys.progress import stage

logger = logging.getLogger(__name__)


@command("train", "Train")
def train_model(
    config: Annotated[str | None, Argument()] = None,
    data: Data = None,
    start: Annotated[str | None, Option("--from")] = None,
    overrides: Set = None,
    fresh: Fresh = False,
    uri: Uri = None,
) -> None:
    """Train, choose the best epoch on validation, test once; write runs/NAME and an MLflow run.

    If training is interrupted, the same command resumes it. On several GPUs:
    torchrun --nproc-per-node 2 -m recsys train ...

    When the log has grown: recsys train --from runs/NAME --data DATA. New items start from their
    neighbours, and the training is shorter, on new and old histories (--set start.epochs=0.25,
    start.learning_rate=0.3, start.replay=0.5). The run is called NAME-2, then NAME-3.

    Options:
        config: An experiment: a YAML file, or a preset's name (recsys configs). With --from it is
            not needed, and what it sets wins over the settings of the model.
        start: Start from this trained model: runs/NAME, or models:/NAME@ALIAS. Its settings stay,
            unless --set changes them.
    """
    if start is not None and data is None:
        raise InputError("--from: needs --data and the folder of the dataset to train on")
    experiment = experiment_to_train(config, start, with_uri(overrides, uri))
    from recsys.experiments.fit import fit
    from recsys.tracking.store import mlflow_link

    experiment, dataset = prepared_for(experiment, data, overrides)
    run = fit(experiment, dataset, fresh=fresh)
    row: dict[str, object] = {"run": run.run_id, "bundle": str(run.bundle)}
    if experiment.model.kind != "averaged":  # the members of a mean have their own
        row["best_epoch"] = run.best_epoch
    if AS_JSON.get():
        show_rows([row | {name: figure.mean for name, figure in run.test.items()}])
        return
    show_rows([row])
    say("\nTest metrics (all of them: --json):")
    show_rows([run.headline])
    say(f"\nThe run in MLflow:\n{mlflow_link(run.tracking, run.run_id)}")


@command("extend", "Train")
def extend_bundle(bundle: Bundle, data: BundleData, out: Path) -> None:
    """Add the items of a dataset that a trained model lacks, without training.

    A new item is known by its features if the model reads item features, else by its neighbours in
    the histories. To learn from new interactions too: recsys train --from BUNDLE --data DATA.

    Options:
        out: Folder of the new bundle to write.
    """
    from recsys.serving.new_items import extend

    known = open_bundle(bundle)
    items = extend(known, PreparedDataset.open(data), out).num_items
    show_rows([{"bundle": str(out), "items": items, "new_items": items - known.num_items}])


@command("tune", "Train")
def tune_model(
    config: Config,
    search: str = "tune",
    trials: Annotated[int | None, Option(min=1)] = None,
    minutes: Annotated[float | None, Option(min=0.01)] = None,
    out: Path | None = None,
    data: Data = None,
    overrides: Set = None,
    uri: Uri = None,
) -> None:
    """Search for the best settings on validation with Optuna; run it again to resume.

    Options:
        search: Settings to search and budget: a YAML file, or a preset's name.
        trials: Total number of trials; overrides the search.
        minutes: Minutes that this call may take; overrides the search.
        out: File for the best config; default: runs/NAME-tuned.yaml.
    """
    experiment = read_experiment(config, overrides, uri)
    budget = {"trials": trials, "minutes": minutes}
    changes = {name: value for name, value in budget.items() if value is not None}
    from recsys.experiments.tune import Search, tune

    experiment, dataset = prepared_for(experiment, data, overrides)
    best = tune(experiment, dataset, load_section(search, Search).model_copy(update=changes))
    out = out or Path("runs") / f"{best.experiment.name}.yaml"
    best.write(out)
    facts = {name: getattr(best, name) for name in ("trials", "pruned", "study", "storage")}
    show_rows([{"config": str(out), "valid_ndcg_at_10": best.ndcg_at_10} | facts])


@command("suite", "Train")
def run_many(
    suite: Annotated[str, Argument(help="A suite: a YAML file, or a preset's name.")],
    uri: Uri = None,
) -> None:
    """Run every model and baseline of a suite on every dataset.

    If it is interrupted, the same command resumes it.
    """
    from recsys.experiments.suite import load_suite, run_suite
    from recsys.reports.comparison import compare

    loaded = load_suite(suite)
    if uri is not None:
        tracking = loaded.tracking.model_copy(update={"uri": uri})
        loaded = loaded.model_copy(update={"tracking": tracking})
    for name, runs in run_suite(loaded, find_dataset).items():
        if runs:
            show_comparison(compare(runs, loaded.tracking, pooled=True))
        else:
            logger.warning("%s: no run finished", name)


@command("backtest", "Train")
def run_backtest(
    config: Config, of: list[str] | None = None, overrides: Set = None, uri: Uri = None
) -> None:
    """Train and test at several dates; show metrics of each fold and of all folds together.

    The config needs a split of kind backtest: --set "data.split={kind: backtest, folds: 4}".

    Options:
        of: model (the default), or the name of a baseline; repeatable.
    """
    from recsys.baselines.tuned import BASELINES
    from recsys.data.preparation import fold_configs
    from recsys.evaluation.metrics import by_end, metric_names
    from recsys.experiments.suite import MODEL, backtest

    experiment = read_experiment(config, overrides, uri)
    names = of or [MODEL]
    for name in names:
        if name not in (known := [MODEL, *BASELINES]):
            raise InputError(f"--of {name}: must be one of {', '.join(known)}")
    folds = fold_configs(experiment.data)
    datasets = [find_dataset(experiment.model_copy(update={"data": fold})) for fold in folds]
    metrics = metric_names(cutoffs := experiment.evaluation.cutoffs)
    rows = []
    for name in names:
        ranks, pooled = backtest(name, experiment, datasets)
        tables = {str(number): table for number, table in enumerate(ranks, 1)}
        for fold, table in {**tables, "pooled": pooled}.items():
            users = table.frame["user"].n_unique()
            row = {"model": name, "fold": fold, "users": users, "targets": len(table.frame)}
            rows.append(row | by_end(table.summary(metrics)))
    k = 10 if 10 in cutoffs else next(iter(cutoffs), 10)
    shown = {"model", "fold", "users", "targets"}
    shown |= {f"{kind}_at_{k}{end}" for kind in ("recall", "ndcg") for end in ("", "_low", "_high")}
    show_rows(rows, hidden=[name for name in rows[0] if name not in shown])


@command("evaluate", "Evaluate and compare")
def evaluate_held_out(
    bundle: Annotated[Path | None, Argument()] = None,
    *,
    data: BundleData,
    part: Literal["valid", "test"] = "test",
    candidates: Path | None = None,
    retrieve: Retrieve = None,
    out: Path | None = None,
    predictions: Path | None = None,
    name: str | None = None,
    overrides: Set = None,
    uri: Uri = None,
) -> None:
    """Rank held-out targets with a trained model; show recall, NDCG and MRR with intervals.

    Ranks are exact and over the full catalogue, unless the config names candidates.

    With --predictions the test targets are ranked by the scores of another system, under the
    protocol of the dataset and --set evaluation.seen=allow. Targets without a score are missed.

    Options:
        bundle: Folder of a trained model, runs/NAME, or models:/NAME@ALIAS.
        part: Which held-out targets.
        candidates: Table of user_id and item_id: the items to rank for each user, the targets
            included; overrides the config.
        retrieve: Rank as recommend --retrieve does: what is lower than without it is what the
            first stage misses.
        out: File for the rank table: .parquet.
        predictions: Scores of another system in place of a model: a table of user_id, item_id and
            score, with lists of any length. They are tracked as a run, for recsys compare.
        name: With --predictions: name of the run; default: the file's.
    """
    if predictions is not None:
        if bundle is not None or out or candidates or retrieve or part != "test":
            raise InputError(
                "evaluate: --predictions takes --data, --name, --set and --tracking-uri, and ranks "
                "the test targets"
            )
        from recsys.experiments.predictions import evaluate_predictions

        named = [f"name={name or predictions.stem}", *(overrides or [])]
        experiment, dataset = prepared_for(read_experiment(None, named, uri), data, overrides)
        with stage("ranking the test targets"):
            row = evaluate_predictions(predictions, experiment, dataset)
        show_rows([row])
        return
    if bundle is None or name is not None or overrides or uri is not None:
        raise InputError("evaluate: needs a trained model, or --predictions FILE and its options")
    from recsys.evaluation.held_out import find_holdout, with_segments
    from recsys.evaluation.metrics import metric_names
    from recsys.evaluation.tables import choose_candidates, evaluate
    from recsys.inference.ranking import TwoStages
    from recsys.inference.scorer import ReportingScorer, Scorer
    from recsys.serving.bundle import for_evaluation

    if out is not None and out.suffix != ".parquet":
        raise InputError(f"{out}: a rank table is a .parquet file")
    opened = open_bundle(bundle)
    dataset = for_evaluation(opened, PreparedDataset.open(data), part)
    opened.use_gpu()
    config = opened.experiment.evaluation
    if candidates is not None:
        config = config.model_copy(update={"candidates": GivenItems(file=candidates)})
    scorer: Scorer = opened.scorer
    holdout = find_holdout(dataset, part, config.request_time)
    among = choose_candidates(config, dataset, part, holdout)
    if retrieve is not None:
        if among is not None:
            raise InputError("--retrieve: finds items of the whole catalogue, not among candidates")
        scorer = TwoStages(opened.retriever, scorer, retrieve, config.seen)
    with stage(f"ranking the {part} targets", len(holdout.histories)) as line:
        counted = ReportingScorer(scorer, line.advance)
        table = evaluate(counted, holdout, part, config.seen, candidates=among)
    table = with_segments(table, dataset, holdout)
    if out is not None:
        table.save(out)
    figures = table.summary(metric_names(config.cutoffs))
    show_rows([{"metric": name, **interval._asdict()} for name, interval in figures.items()])


@command("compare", "Evaluate and compare")
def compare_runs(
    runs: Annotated[list[str] | None, Argument()] = None,
    experiment: str = "recsys",
    metric: list[str] | None = None,
    pooled: Annotated[bool, Option("--pool-seeds")] = False,
    by: str | None = None,
    report: Path | None = None,
    uri: Uri = None,
) -> None:
    """Compare MLflow runs: metrics with intervals, and paired tests against the first run.

    Options:
        runs: Ids or names of runs; default: all.
        experiment: MLflow experiment.
        metric: E.g. recall_at_20, mrr, next_f1_at_5, coverage_at_10; repeatable.
        pooled: Show runs that differ only in their seed as one row.
        by: Show metrics by segment instead: history, purchase, popularity_decile.
        report: Folder to write: an HTML page, its pictures as SVG, CSV and LaTeX.
    """
    from recsys.api import compare
    from recsys.reports.comparison import how_measured

    store = store_of(uri, experiment)
    comparison = compare(runs or [], store, metrics=metric, pooled=pooled, report=report)
    if by is None:
        show_comparison(comparison)
    else:
        show_rows(comparison.by_segment(by).to_dicts())
        say(how_measured(comparison))
    if report is not None:
        typer.echo(f"written: {report / 'comparison.html'}", err=True)
