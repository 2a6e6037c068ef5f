"""The command that goes the whole way: from a log, or from an experiment, to compared runs."""

from __future__ import annotations

import shlex
import sys
from pathlib import Path
from time import monotonic
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from recsys.cli.options import (
    Encoding,
    Fresh,
    Item,
    ItemMinimum,
    Json,
    Keep,
    NoHeader,
    Set,
    Since,
    Time,
    TimeFormat,
    Uri,
    User,
    UserMinimum,
    Where,
    app,
    find_dataset,
    read_experiment,
    read_preparation,
)
from recsys.config import TrackingConfig, find_config
from recsys.console import show_comparison, show_rows
from recsys.data.settings import LogWords
from recsys.errors import InputError
from recsys.progress import shown

if TYPE_CHECKING:
    from recsys.automatic.fit_log import FittedLog


@app.command("run")
def run(
    source: Annotated[
        str,
        typer.Argument(
            metavar="LOG|EXPERIMENT",
            help="A log: a file, a folder of parts or a quoted pattern. Or an experiment: a YAML "
            "file, or a preset's name (recsys configs).",
        ),
    ],
    user: User = None,
    item: Item = None,
    time: Time = None,
    time_format: TimeFormat = None,
    time_limit: Annotated[
        str | None,
        typer.Option(help="Time of the whole run, e.g. 90s, 30m, 1.5h; default: the preset's."),
    ] = None,
    preset: Annotated[
        Literal["fast", "balanced", "best"] | None,
        typer.Option(help="fast: 5 minutes; balanced (default): 15 minutes; best: an hour."),
    ] = None,
    name: Annotated[
        str | None, typer.Option(help="Name of the run and its folder; default: the file's.")
    ] = None,
    items: Annotated[
        Path | None,
        typer.Option(help="Table of item features: item_id and a column per feature."),
    ] = None,
    keep: Keep = None,
    no_header: NoHeader = False,
    encoding: Encoding = None,
    where: Where = None,
    since: Since = None,
    user_minimum: UserMinimum = None,
    item_minimum: ItemMinimum = None,
    seed: Annotated[int | None, typer.Option(min=0, help="Seed; default: 0.")] = None,
    overrides: Set = None,
    fresh: Fresh = False,
    uri: Uri = None,
    as_json: Json = False,
) -> None:
    """Make a recommender of a log; or run an experiment and its baselines.

    Of a log: finds its columns, prepares it, tunes baselines, races models within the time limit,
    tests the winner, and writes runs/NAME: a bundle, report.html and the settings as YAML. Only
    settings of data can be set with --set.

    Of an experiment: prepares the data, trains, evaluates, fits the baselines and compares.

    If it is interrupted, the same command resumes it.
    """
    words: LogWords = {
        "user": user,
        "item": item,
        "time": time,
        "time_format": time_format,
        "header": False if no_header else None,
        "encoding": encoding,
        "where": where,
        "since": since,
        "user_minimum": user_minimum,
        "item_minimum": item_minimum,
        "keep": keep or None,
    }
    if find_config(source) is not None or Path(source).suffix in (".yaml", ".yml"):
        given = {**words, "time_limit": time_limit, "preset": preset, "items": items, "name": name}
        given["no_header"] = given.pop("header")
        if stray := [word for word, value in given.items() if value is not None]:
            option = stray[0].replace("_", "-")
            raise InputError(
                f"--{option}: is an option for a log, and {source} is an experiment: change the "
                "experiment with --set"
            )
        changes = [*(overrides or []), *([] if seed is None else [f"seed={seed}"])]
        _run_experiment(source, changes, fresh, uri, as_json)
        return
    if stray := [each for each in overrides or [] if not each.startswith("data.")]:
        raise InputError(
            f"--set {stray[0]}: the settings of models follow from the log; only those of data can "
            "be set"
        )
    started = monotonic()  # before torch, Lightning and MLflow are loaded, which takes seconds
    from recsys.automatic.candidates import Plan
    from recsys.automatic.fit_log import fit_log, name_of

    plan = Plan(
        name or name_of(source),
        preset or "balanced",
        seed or 0,
        TrackingConfig() if uri is None else TrackingConfig(uri=uri),
        fresh,
    )
    data = read_preparation(source, words, overrides).data
    command = shlex.join(["recsys", *sys.argv[1:]])
    fitted = fit_log(
        source, plan, time_limit, items=items, config=data, command=command, started=started
    )
    _show(fitted, as_json)


def _show(fitted: FittedLog, as_json: bool) -> None:
    """Print the answer, its figures beside those of the baselines, and what was written."""
    from recsys.reports.comparison import compare
    from recsys.tracking.links import mlflow_link

    automatic, run = fitted.automatic, fitted.automatic.run
    comparison = compare([run.run_id, *automatic.other_runs], run.tracking)
    show_comparison(comparison, as_json)
    if as_json:
        return
    print(automatic.answer)
    show_rows(
        [
            {
                "bundle": str(run.bundle),
                "settings": str(run.bundle.with_name("experiment.yaml")),
                "page": str(fitted.page),
                "seconds": round(fitted.seconds),
            }
        ],
        as_json,
    )
    words = [str(run.bundle), "--data", str(fitted.dataset.path), "--out", "best.parquet"]
    print(f"The best items of all users:\n{shlex.join(['recsys', 'recommend', *words])}")
    print(f"All runs in MLflow:\n{mlflow_link(run.tracking)}")


def _run_experiment(
    config: str, overrides: list[str], fresh: bool, uri: str | None, as_json: bool
) -> None:
    from recsys.experiments.baseline import baselines_of, fit_baselines
    from recsys.experiments.fit import fit
    from recsys.reports.comparison import compare
    from recsys.tracking.links import mlflow_link
    from recsys.training import processes

    experiment = read_experiment(config, overrides, uri)
    with processes.rank_zero_first():
        dataset = find_dataset(experiment, None)
    with shown() as view:
        run = fit(experiment, dataset, progress=view, fresh=fresh)  # may refuse: hence first
        names = [each for each in baselines_of(experiment, dataset) if each != experiment.baseline]
        runs = fit_baselines(names, experiment, dataset, view, run.run_id)
    show_comparison(compare([run.run_id, *runs[::-1]], experiment.tracking), as_json)
    if not as_json:
        print(f"All runs in MLflow:\n{mlflow_link(experiment.tracking)}")
