"""Commands on logs: prepare one, audit one, list the named ones."""

from __future__ import annotations

import tempfile
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

from typer import Argument, Option

from recsys.cli.options import (
    EngineOption,
    Items,
    Json,
    Log,
    LogOptions,
    Memory,
    Set,
    command,
    count_warnings,
    read_preparation,
)
from recsys.config import DataConfig
from recsys.console import show_rows
from recsys.data.audit import audit
from recsys.data.manifest import Manifest
from recsys.data.prepared import PreparedDataset, prepare
from recsys.data.sources import DATASETS
from recsys.errors import InputError
from recsys.folders.manifest import MANIFEST


@command("prepare", "Logs")
def prepare_data(
    source: Log,
    out: Annotated[Path | None, Option(help="Folder of the prepared dataset.")] = None,
    append_to: Annotated[
        Path | None,
        Option(
            "--append",
            help="Folder of a prepared dataset that the log is added to, by its settings; with "
            "--items and --users for features of new items and users.",
        ),
    ] = None,
    *,
    log: LogOptions,
    items: Items = None,
    users: Annotated[
        Path | None,
        Option(help="Table of user features: user_id and a column per feature."),
    ] = None,
    item_vectors: Annotated[
        list[str] | None,
        Option(
            metavar="COLUMN=FILE",
            help="Vectors of the items as a further column of --items: a .npy or .safetensors file "
            "with a row for each of its rows, in its order; repeatable.",
        ),
    ] = None,
    memory: Memory = None,
    engine: EngineOption = None,
    overrides: Set = None,
    as_json: Json = False,
) -> None:
    """Check, sort, split and encode a log, or add one to a prepared dataset.

    All settings of data can be set, e.g. --set data.k_core=true. A dataset that grows has its own;
    after an append its drift is shown: what the new rows have that the old ones had not.
    """
    if (out is None) == (append_to is None):
        raise InputError("give one of --out FOLDER, to prepare anew, and --append DATASET")
    experiment = read_preparation(source, log, overrides)
    vectors = _named_files(item_vectors or [])
    if append_to is not None:
        if (
            memory is not None
            or vectors
            or experiment.data != DataConfig(source=source, encoding=log.encoding)
        ):
            raise InputError(
                f"--append {append_to}: a dataset keeps its own settings: give only the log, "
                "--encoding, --items and --users, or prepare the whole log anew"
            )
        _append(source, append_to, items, users, log.encoding, as_json)
        return
    assert out is not None  # noqa: S101 - one of the two was given
    data = experiment.data
    dataset = prepare(data.source, data, out, items, users, memory, engine, item_vectors=vectors)
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


def _append(
    source: str,
    path: Path,
    items: Path | None,
    users: Path | None,
    encoding: str | None,
    as_json: bool,
) -> None:
    """Append a log, and show how it differs from the dataset before and what the dataset has."""
    from recsys.data.appending import append

    earlier = len(Manifest.read(path).appended)
    manifest = append(source, path, items, users, encoding=encoding).manifest
    row: dict[str, object] = {"dataset": str(path)}
    for entry in manifest.appended[earlier:]:  # none if the log was there already
        drift = {
            f"added_{name}" if name == "interactions" else name: value
            for name, value in entry.drift.model_dump().items()
        }
        row |= {"appended": entry.source, "appended_rows": entry.rows_read, **drift}
    show_rows([{**row, **manifest.counts}], as_json)


@command("audit", "Logs")
def audit_data(
    source: Annotated[
        str,
        Argument(help="A log, a dataset's name, a config, or the folder of a prepared dataset."),
    ],
    *,
    log: LogOptions,
    memory: Memory = None,
    overrides: Set = None,
    as_json: Json = False,
) -> None:
    """Look for leaks between the parts of a split, and say how large and how serious they are."""
    is_prepared = Path(source, MANIFEST).is_file()
    experiment = read_preparation(source, log, overrides)
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


@command("data", "Logs")
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
