"""The command that tests a model at several dates."""

from __future__ import annotations

from typing import Annotated

import typer

from recsys.cli.options import Config, Json, Set, Uri, app, find_dataset, read_experiment
from recsys.console import show_rows
from recsys.data.splits import fold_configs
from recsys.errors import InputError


@app.command("backtest")
def run_backtest(
    config: Config,
    of: Annotated[
        list[str] | None,
        typer.Option(help="model (the default), or the name of a baseline; repeatable."),
    ] = None,
    overrides: Set = None,
    uri: Uri = None,
    as_json: Json = False,
) -> None:
    """Train and test at several dates; show metrics of each fold and of all folds together.

    The config needs a split of kind backtest: --set "data.split={kind: backtest, folds: 4}".
    """
    from recsys.baselines.tuned import BASELINES
    from recsys.evaluation.metrics import metric_names
    from recsys.experiments.backtest import MODEL, backtest
    from recsys.training import processes

    processes.refuse_several("backtest")
    experiment = read_experiment(config, overrides, uri)
    names = of or [MODEL]
    for name in names:
        if name not in (known := [MODEL, *BASELINES]):
            raise InputError(f"--of {name}: must be one of {', '.join(known)}")
    datasets = [
        find_dataset(experiment.model_copy(update={"data": fold}), None)
        for fold in fold_configs(experiment.data)
    ]
    metrics = metric_names(cutoffs := experiment.evaluation.cutoffs)
    rows = []
    for name in names:
        tested = backtest(name, experiment, datasets)
        tables = {str(number): table for number, table in enumerate(tested.folds, 1)}
        for fold, table in {**tables, "pooled": tested.pooled}.items():
            users = table.frame["user"].n_unique()
            row = {"model": name, "fold": fold, "users": users, "targets": len(table.ranks)}
            for metric, (mean, low, high) in table.summary(metrics).items():
                row |= {metric: mean, f"{metric}_low": low, f"{metric}_high": high}
            rows.append(row)
    k = 10 if 10 in cutoffs else cutoffs[0]
    shown = {"model", "fold", "users", "targets"}
    shown |= {f"{kind}_at_{k}{end}" for kind in ("recall", "ndcg") for end in ("", "_low", "_high")}
    show_rows(rows, as_json, hidden=[name for name in rows[0] if name not in shown])
