"""Commands that run many experiments."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Annotated

import typer

from recsys.cli.options import Config, Data, Json, Set, Uri, app, find_dataset, read_experiment
from recsys.config import load_search, load_suite
from recsys.console import show_comparison, show_rows

logger = logging.getLogger(__name__)


@app.command("suite")
def run_many(
    suite: Annotated[str, typer.Argument(help="A suite: a YAML file, or a preset's name.")],
    uri: Uri = None,
    as_json: Json = False,
) -> None:
    """Run every model and baseline of a suite on every dataset.

    If it is interrupted, the same command resumes it.
    """
    from recsys.experiments.suite import run_suite
    from recsys.reports.comparison import compare  # torch and mlflow take seconds to load
    from recsys.training import processes

    processes.refuse_several("suite")
    loaded = load_suite(suite)
    if uri is not None:
        tracking = loaded.tracking.model_copy(update={"uri": uri})
        loaded = loaded.model_copy(update={"tracking": tracking})
    runs = run_suite(loaded, lambda experiment: find_dataset(experiment, None))
    for name, found in runs.items():
        if not found:
            logger.warning("%s: no run finished", name)
            continue
        show_comparison(compare(found, loaded.tracking, pooled=True), as_json)


@app.command("tune")
def tune_model(
    config: Config,
    search: Annotated[
        str,
        typer.Option(
            "--search", help="Settings to search and budget: a YAML file, or a preset's name."
        ),
    ] = "tune",
    trials: Annotated[
        int | None, typer.Option(min=1, help="Total number of trials; overrides the search.")
    ] = None,
    minutes: Annotated[
        float | None,
        typer.Option(min=0.01, help="Minutes that this call may take; overrides the search."),
    ] = None,
    out: Annotated[
        Path | None, typer.Option(help="File for the best config; default: runs/NAME-tuned.yaml.")
    ] = None,
    data: Data = None,
    overrides: Set = None,
    uri: Uri = None,
    as_json: Json = False,
) -> None:
    """Search for the best settings on validation with Optuna.

    Run it again to resume the search.
    """
    from recsys.experiments.tune import tune
    from recsys.training import processes

    processes.refuse_several("tune")
    experiment = read_experiment(config, overrides, uri)
    given = {"trials": trials, "minutes": minutes}
    budget = {name: value for name, value in given.items() if value is not None}
    dataset = find_dataset(experiment, data)
    if data is not None:  # it takes the place of the config's data section
        experiment = experiment.model_copy(update={"data": dataset.config})
    found = tune(experiment, dataset, load_search(search).model_copy(update=budget))
    out = out or Path("runs") / f"{found.experiment.name}.yaml"
    found.write(out)
    row = {
        "config": str(out),
        "valid_ndcg_at_10": found.ndcg_at_10,
        "trials": found.trials,
        "pruned": found.pruned,
        "study": found.study,
        "storage": found.storage,
    }
    show_rows([row], as_json)
