"""The command that evaluates a trained bundle."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Annotated

import typer

from recsys.cli.options import Bundle, BundleData, HeldOutPart, Json, app, open_beside
from recsys.config import GivenItems
from recsys.console import show_rows
from recsys.errors import InputError
from recsys.progress import stage

logger = logging.getLogger(__name__)


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
    from recsys.evaluation.metrics import metric_names
    from recsys.evaluation.segments import with_segments
    from recsys.evaluation.tables import evaluate
    from recsys.inference.scorer import ReportingScorer

    if out is not None and out.suffix != ".parquet":
        raise InputError(f"{out}: a rank table is a .parquet file")
    loaded, dataset = open_beside(bundle, data, part)
    config = loaded.experiment.evaluation
    if candidates is not None:
        config = config.model_copy(update={"candidates": GivenItems(file=candidates)})
    holdout = find_holdout(dataset, part, config.request_time)
    among = choose_candidates(config, dataset, part, holdout)
    with stage(f"ranking the {part} targets", len(holdout.histories)) as line:
        scorer = ReportingScorer(loaded.scorer, line.advance)
        table = evaluate(scorer, holdout, part, config.seen, candidates=among)
    table = with_segments(table, dataset, holdout)
    if is_sampled(table.protocol.candidates):
        logger.warning(SAMPLED_WARNING)
    if out is not None:
        table.save(out)
    figures = table.summary(metric_names(config.cutoffs))
    show_rows(
        [{"metric": name, **interval._asdict()} for name, interval in figures.items()], as_json
    )
