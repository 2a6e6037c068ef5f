"""Commands that run many experiments."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from recsys.cli.options import Json, Uri, app, find_dataset
from recsys.config import load_suite
from recsys.console import show_comparison


@app.command("suite")
def run_many(
    suite: Annotated[Path, typer.Argument(help="A suite, e.g. configs/suite.yaml.")],
    uri: Uri = None,
    as_json: Json = False,
) -> None:
    """Every model and baseline of a suite on every dataset; run again, it goes on where it was."""
    from recsys.evaluation.compare import compare  # torch and mlflow take seconds to load
    from recsys.training.suite import run_suite

    loaded = load_suite(suite)
    if uri is not None:
        tracking = loaded.tracking.model_copy(update={"uri": uri})
        loaded = loaded.model_copy(update={"tracking": tracking})
    runs = run_suite(loaded, lambda experiment: find_dataset(experiment, None))
    for found in runs.values():
        show_comparison(compare(found, loaded.tracking), as_json)
