"""Commands that judge models: held-out targets, and comparisons of runs."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Annotated

import typer
from typer import Argument, Option

from recsys.cli.options import (
    BundleData,
    HeldOutPart,
    Retrieve,
    Set,
    Uri,
    command,
    open_beside,
    read_experiment,
    store_of,
)
from recsys.config import GivenItems
from recsys.console import AS_JSON, show_comparison, show_rows, show_segments
from recsys.data.prepared import PreparedDataset
from recsys.errors import InputError
from recsys.progress import stage

logger = logging.getLogger(__name__)


@command("evaluate", "Evaluate and compare")
def evaluate_held_out(
    bundle: Annotated[Path | None, Argument()] = None,
    *,
    data: BundleData,
    part: HeldOutPart = "test",
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
    protocol of the dataset and --set evaluation.seen=allow. Items without a score rank below all
    with one, and tie.

    Options:
        bundle: Folder of a trained model, runs/NAME, or models:/NAME@ALIAS.
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
        _evaluate_predictions(predictions, data, name, overrides, uri)
        return
    if bundle is None or name is not None or overrides or uri is not None:
        raise InputError("evaluate: needs a trained model, or --predictions FILE and its options")
    from recsys.evaluation.candidates import choose_candidates
    from recsys.evaluation.held_out import find_holdout
    from recsys.evaluation.metrics import metric_names
    from recsys.evaluation.segments import with_segments
    from recsys.evaluation.tables import evaluate
    from recsys.inference.ranking import TwoStages
    from recsys.inference.scorer import ReportingScorer, Scorer

    if out is not None and out.suffix != ".parquet":
        raise InputError(f"{out}: a rank table is a .parquet file")
    opened, dataset = open_beside(bundle, data, part)
    config = opened.experiment.evaluation
    if candidates is not None:
        config = config.model_copy(update={"candidates": GivenItems(file=candidates)})
    scorer: Scorer = opened.scorer
    if retrieve is not None:
        scorer = TwoStages(opened.retriever, scorer, retrieve, config.seen)
    holdout = find_holdout(dataset, part, config.request_time)
    among = choose_candidates(config, dataset, part, holdout)
    with stage(f"ranking the {part} targets", len(holdout.histories)) as line:
        counted = ReportingScorer(scorer, line.advance)
        table = evaluate(counted, holdout, part, config.seen, candidates=among)
    table = with_segments(table, dataset, holdout)
    if out is not None:
        table.save(out)
    figures = table.summary(metric_names(config.cutoffs))
    show_rows([{"metric": name, **interval._asdict()} for name, interval in figures.items()])


def _evaluate_predictions(
    file: Path, data: Path, name: str | None, overrides: list[str] | None, uri: str | None
) -> None:
    from recsys.experiments.predictions import evaluate_predictions

    dataset = PreparedDataset.open(data)
    named = [f"name={name or file.name.partition('.')[0]}"]
    experiment = read_experiment(None, [*named, *(overrides or [])], uri)
    experiment = experiment.model_copy(update={"data": dataset.config})
    with stage("ranking the test targets"):
        ranked = evaluate_predictions(file, experiment, dataset)
    if ranked.unscored:
        logger.warning(
            "%s: %d of %d test targets have no score: they rank below all items that have one",
            *(file, ranked.unscored, ranked.targets),
        )
    row = {"run": ranked.run_id, "targets": ranked.targets, "without_score": ranked.unscored}
    if AS_JSON.get():
        show_rows([row | {metric: figure.mean for metric, figure in ranked.metrics.items()}])
    else:
        show_rows([row])
        show_rows([{"metric": metric, **f._asdict()} for metric, f in ranked.metrics.items()])


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
        by: Show metrics by segment instead: history, customer, purchase, popularity_decile, gap.
        report: Folder to write: an HTML page, its pictures as SVG, CSV and LaTeX.
    """
    from recsys.api import compare

    store = store_of(uri, experiment)
    comparison = compare(runs or [], store, metrics=metric, pooled=pooled, report=report)
    if by is None:
        show_comparison(comparison)
    else:
        show_segments(comparison, by)
    if report is not None:
        typer.echo(f"written: {report / 'comparison.html'}", err=True)
