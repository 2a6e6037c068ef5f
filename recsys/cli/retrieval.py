"""The command that measures the loss of two-stage ranking."""

from __future__ import annotations

from dataclasses import asdict
from typing import Annotated

import typer

from recsys.cli.options import Bundle, BundleData, HeldOutPart, Json, app, open_beside
from recsys.console import show_rows
from recsys.progress import stage

_SIZES = [10, 20, 50, 100, 200, 500, 1000]


@app.command("retrieval")
def show_retrieval(
    bundle: Bundle,
    data: BundleData,
    part: HeldOutPart = "test",
    retrieve: Annotated[
        list[int] | None,
        typer.Option(help="Items that the second stage ranks; repeatable; default: 10 to 1,000."),
    ] = None,
    as_json: Json = False,
) -> None:
    """Measure what recommend --retrieve N misses: targets not retrieved, and lower metrics.

    One line for each N; the last line ranks all items, in one stage.
    """
    from recsys.evaluation.held_out import find_holdout
    from recsys.evaluation.search_metrics import retrieval_metrics

    loaded, dataset = open_beside(bundle, data, part)
    config = loaded.experiment.evaluation
    holdout = find_holdout(dataset, part, config.request_time)
    with stage(f"ranking the {part} targets"):
        metrics = retrieval_metrics(
            loaded.retriever, loaded.scorer, holdout, part, config.seen, retrieve or _SIZES
        )
    show_rows([asdict(row) for row in metrics], as_json)
