"""Commands on logs: list the named ones, prepare one, audit one."""

from __future__ import annotations

import tempfile
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer

from recsys.cli.options import (
    Item,
    ItemMinimum,
    Json,
    Keep,
    Log,
    Memory,
    NoHeader,
    Set,
    Since,
    Time,
    User,
    UserMinimum,
    Where,
    app,
    count_warnings,
    read_preparation,
)
from recsys.config import DataConfig
from recsys.console import show_rows
from recsys.data.audit import audit
from recsys.data.manifest import MANIFEST
from recsys.data.prepared import PreparedDataset, prepare
from recsys.data.settings import LogWords
from recsys.data.sources import DATASETS
from recsys.errors import InputError


@app.command("data")
def list_data(as_json: Json = False) -> None:
    """List the datasets that have a name.

    Their files are read from the folder that the variable RECSYS_MIRROR names.
    """
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
        typer.Option(help="Table of item features: item_id and a column per feature."),
    ] = None,
    users: Annotated[
        Path | None,
        typer.Option(help="Table of user features: user_id and a column per feature."),
    ] = None,
    item_vectors: Annotated[
        list[str] | None,
        typer.Option(
            metavar="COLUMN=FILE",
            help="Vectors of the items as a further column of --items: a .npy or .safetensors file "
            "with a row for each of its rows, in its order; repeatable.",
        ),
    ] = None,
    keep: Keep = None,
    no_header: NoHeader = False,
    where: Where = None,
    since: Since = None,
    user_minimum: UserMinimum = None,
    item_minimum: ItemMinimum = None,
    memory: Memory = None,
    overrides: Set = None,
    as_json: Json = False,
) -> None:
    """Check, sort, split and encode a log.

    All settings of data can be set, e.g. --set data.k_core=true.
    """
    words: LogWords = {
        "user": user,
        "item": item,
        "time": time,
        "header": False if no_header else None,
        "where": where,
        "since": since,
        "user_minimum": user_minimum,
        "item_minimum": item_minimum,
        "keep": keep or None,
    }
    experiment = read_preparation(source, words, overrides)
    vectors = _named_files(item_vectors or [])
    data = experiment.data
    dataset = prepare(data.source, data, out, items, users, memory, item_vectors=vectors)
    warnings = count_warnings(dataset, experiment)
    counts, dropped = dict(dataset.manifest.counts), dataset.manifest.dropped
    row = {"dataset": str(out), "rows_read": counts.pop("rows_read"), "dropped": dropped}
    if not as_json:
        row["dropped"] = ", ".join(f"{why}: {count:,}" for why, count in dropped.items()) or "0"
    show_rows([{**row, **counts, "warnings": warnings}], as_json)


def _named_files(options: list[str]) -> dict[str, str]:
    """Return the files of ``--item-vectors`` by column."""
    files: dict[str, str] = {}
    for option in options:
        column, _, file = option.partition("=")
        if not column or not file:
            raise InputError(f"--item-vectors: must be COLUMN=FILE, not {option!r}")
        if column in files:
            raise InputError(f"--item-vectors: {column!r} is given twice")
        files[column] = file
    return files


@app.command("audit")
def audit_data(
    source: Annotated[
        str,
        typer.Argument(
            help="A log, a dataset's name, a config, or the folder of a prepared dataset."
        ),
    ],
    user: User = None,
    item: Item = None,
    time: Time = None,
    no_header: NoHeader = False,
    where: Where = None,
    since: Since = None,
    memory: Memory = None,
    overrides: Set = None,
    as_json: Json = False,
) -> None:
    """Look for leaks between the parts of a split, and say how large and how serious they are."""
    words: LogWords = {
        "user": user,
        "item": item,
        "time": time,
        "header": False if no_header else None,
        "where": where,
        "since": since,
    }
    is_prepared = Path(source, MANIFEST).is_file()
    experiment = read_preparation(source, words, overrides)
    if is_prepared and experiment.data != DataConfig(source=source):
        raise InputError(f"{source}: a prepared dataset has its own settings: prepare it again")
    with tempfile.TemporaryDirectory() as folder:
        if is_prepared:
            dataset = PreparedDataset.open(source)
        else:
            out = Path(folder, "audited")
            dataset = prepare(experiment.data.source, experiment.data, out, memory=memory)
        findings = audit(dataset, experiment.evaluation.seen)
    show_rows([asdict(finding) for finding in findings], as_json)
