"""Commands to start with: from a log to compared runs, the demo, the presets; and those on logs."""

import shlex
import sys
from dataclasses import asdict
from pathlib import Path
from time import monotonic
from typing import Annotated, Literal

from rich.console import Console
from typer import Argument, Option

from recsys.cli.options import (
    Fresh,
    Items,
    LogOptions,
    Set,
    Uri,
    command,
    count_warnings,
    find_dataset,
    read_experiment,
    read_preparation,
    store_of,
)
from recsys.config.data import DataConfig
from recsys.config.experiment import TrackingConfig
from recsys.config.files import find_config, presets, read_config
from recsys.console import AS_JSON, say, show_comparison, show_rows
from recsys.data.audit import audit
from recsys.data.preparation import Manifest
from recsys.data.prepared import PreparedDataset, prepare
from recsys.data.sources import DATASETS, find_named_dataset
from recsys.errors import InputError


@command("run", "Start here")
def run(
    source: Annotated[str, Argument(metavar="LOG|EXPERIMENT")],
    *,
    log: LogOptions,
    time_limit: str | None = None,
    preset: Literal["fast", "balanced", "best"] | None = None,
    name: str | None = None,
    items: Items = None,
    seed: Annotated[int | None, Option(min=0)] = None,
    overrides: Set = None,
    fresh: Fresh = False,
    uri: Uri = None,
) -> None:
    """Make a recommender of a log; or run an experiment and its baselines.

    Of a log: finds its columns, prepares it, tunes baselines, races models within the time limit,
    tests the winner, and writes runs/NAME: a bundle, report.html and the settings as YAML.

    Of an experiment: prepares the data, trains, evaluates, fits the baselines and compares.

    If it is interrupted, the same command resumes it.

    Options:
        source: A log: a file, a folder of parts or a quoted pattern. Or an experiment: a YAML file,
            or a preset's name (recsys configs).
        time_limit: Time of the whole run, e.g. 90s, 30m, 1.5h; default: the preset's.
        preset: fast: 5 minutes; balanced (default): 15 minutes; best: an hour.
        name: Name of the run and its folder; default: the file's.
        seed: Seed; default: 0.
    """
    if find_config(source) is not None or Path(source).suffix in (".yaml", ".yml"):
        if log.words or time_limit or preset or items or name:
            raise InputError(
                f"{source}: is an experiment: change it with --set, and not with options for a log"
            )
        changes = [*(overrides or []), *([] if seed is None else [f"seed={seed}"])]
        experiment = read_experiment(source, changes, uri)
        from recsys.experiments.baselines import baselines_of, fit_baselines
        from recsys.experiments.fit import fit

        dataset = find_dataset(experiment)
        trained = fit(experiment, dataset, fresh=fresh)  # may refuse: hence first
        names = [name for name in baselines_of(experiment, dataset) if name != experiment.baseline]
        runs = fit_baselines(names, experiment, dataset, trained.run_id)
        _show_runs([trained.run_id, *runs[::-1]], experiment.tracking)
        return
    if stray := [change for change in overrides or [] if not change.startswith("data.")]:
        raise InputError(
            f"--set {stray[0]}: of a log, only settings of data: those of models follow from it"
        )
    find_named_dataset(source)  # refuses what is not there at once
    data = read_preparation(source, log, overrides).data
    started = monotonic()  # before torch, Lightning and MLflow are loaded, which takes seconds
    from recsys.automatic.rules import Plan
    from recsys.automatic.run import fit_log, name_of
    from recsys.tracking.artifacts import REPORT, SETTINGS

    facts = name or name_of(source), preset or "balanced", seed or 0, store_of(uri), fresh
    plan = Plan(*facts, shlex.join(["recsys", *sys.argv[1:]]))
    answer = fit_log(source, plan, time_limit, items=items, config=data, started=started)
    seconds, made = round(answer.context.clock.spent), answer.run
    _show_runs([made.run_id, *answer.other_runs], made.tracking)
    if AS_JSON.get():
        return
    say(answer.sentence)
    paths = {"settings": made.bundle.with_name(SETTINGS), "page": made.bundle.with_name(REPORT)}
    show_rows([{"bundle": made.bundle, **paths, "seconds": seconds}])
    words = [str(made.bundle), "--data", str(answer.context.dataset.path)]
    best = shlex.join(["recsys", "recommend", *words, "--out", "best.parquet"])
    say(f"The best items of all users:\n{best}")


def _show_runs(runs: list[str], tracking: TrackingConfig) -> None:
    from recsys.reports.comparison import compare
    from recsys.tracking.store import mlflow_link

    show_comparison(compare(runs, tracking))
    say(f"All runs in MLflow:\n{mlflow_link(tracking)}")


@command("demo", "Start here", prints_rows=False)
def run_demo(
    config: Annotated[
        str, Argument(help="An experiment on the shop: a YAML file, or a preset.")
    ] = "shop",
    overrides: Set = None,
    uri: Uri = None,
) -> None:
    """Train on the simulated shop and show metrics, explanations and recovered rules.

    Takes about five minutes.
    """
    from recsys.demo import demo

    demo(read_experiment(config, overrides, uri), Console(highlight=False))


@command("configs", "Start here")
def show_configs(
    name: Annotated[str | None, Argument(help="A preset to print as YAML.")] = None,
) -> None:
    """List the presets, which run, train, suite and tune take by name; or print one."""
    if name is not None:
        print(read_config(name), end="")
        return
    texts = {preset: read_config(path) for preset, path in presets().items()}
    comments = {preset: text.partition("\n")[0].lstrip("# ") for preset, text in texts.items()}
    show_rows([{"name": preset, "description": comments[preset]} for preset in comments])


# --- Logs ----------------------------------------------------------------------------------------


@command("prepare", "Logs")
def prepare_data(
    source: Annotated[str, Argument()],
    out: Path | None = None,
    append_to: Annotated[Path | None, Option("--append")] = None,
    *,
    log: LogOptions,
    items: Items = None,
    users: Path | None = None,
    memory: str | None = None,
    overrides: Set = None,
) -> None:
    """Check, sort, split and encode a log, or add one to a prepared dataset.

    All settings of data can be set, e.g. --set data.k_core=true. A dataset that grows has its own.

    Options:
        source: A log (.csv, .tsv, .txt, .parquet, .jsonl, also .gz or .zst), a folder of parts, a
            quoted pattern such as 'logs/*.parquet', a dataset's name, or a config.
        out: Folder of the prepared dataset.
        append_to: Folder of a prepared dataset that the log is added to, by its settings; with
            --items and --users for features of new items and users.
        users: Table of user features: user_id and a column per feature.
        memory: Memory for the rows of a log, e.g. 4GiB; the rest goes to the disk. Default: half.
    """
    experiment = read_preparation(source, log, overrides)
    if append_to is not None and out is None:
        if memory or experiment.data != DataConfig(source=source, encoding=log.encoding):
            raise InputError(
                f"--append {append_to}: a dataset keeps its own settings: give only the log, "
                "--encoding, --items and --users, or prepare the whole log anew"
            )
        from recsys.data.appending import append

        earlier = len(Manifest.read(append_to).appended)
        manifest = append(source, append_to, items, users, encoding=log.encoding).manifest
        shown: dict[str, object] = {"dataset": str(append_to)}
        for entry in manifest.appended[earlier:]:  # none if the log was there already
            shown |= {"appended": entry.source, "appended_rows": entry.rows_read}
        show_rows([{**shown, **manifest.counts}])
        return
    if out is None or append_to is not None:
        raise InputError("give one of --out FOLDER, to prepare anew, and --append DATASET")
    data = experiment.data
    dataset = prepare(data.source, data, out, items, users, memory)
    warnings = count_warnings(dataset, experiment)
    counts, dropped = dict(dataset.manifest.counts), dataset.manifest.dropped
    row = {"dataset": str(out), "rows_read": counts.pop("rows_read"), "dropped": dropped}
    if not AS_JSON.get():
        row["dropped"] = ", ".join(f"{why}: {count:,}" for why, count in dropped.items()) or "0"
    show_rows([{**row, **counts, "warnings": warnings}])


@command("audit", "Logs")
def audit_data(
    data: Annotated[Path, Argument()], seen: Literal["filter", "allow"] = "filter"
) -> None:
    """Look for leaks between the parts of a split, and say how large and how serious they are.

    Options:
        data: The folder of a prepared dataset.
        seen: Whether items of the history are left out when models are evaluated.
    """
    findings = audit(PreparedDataset.open(data), seen)
    show_rows([asdict(finding) for finding in findings])


@command("data", "Logs")
def list_data() -> None:
    """List the datasets that have a name.

    Their files are read from the folder that the variable RECSYS_MIRROR names.
    """
    columns = ("name", "interactions", "users", "items", "description", "homepage", "licence")
    rows = [{column: getattr(dataset, column) for column in columns} for dataset in DATASETS]
    show_rows(rows, hidden=("homepage", "licence"))
