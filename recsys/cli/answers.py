"""What the commands that use a trained bundle share: arguments, opening it, and showing answers."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import polars as pl
import typer

from recsys.console import ids_like, show_frame, show_rows
from recsys.data.prepared import PreparedDataset
from recsys.errors import InputError

if TYPE_CHECKING:
    from recsys.serving.large_answers import LargeAnswer
    from recsys.serving.recommender import Recommender

logger = logging.getLogger(__name__)

Histories = Annotated[
    Path | None,
    typer.Argument(
        help="Log of the users' histories: user_id, item_id, timestamp, and the columns of "
        "interaction and user features."
    ),
]
At = Annotated[
    str | None,
    typer.Option(
        help="Request time: a date, or a number on the scale of the log. Only models with "
        "model.times=request need it."
    ),
]
NewItems = Annotated[
    Path | None,
    typer.Option(
        help="Table of items newer than the model: item_id and the columns of "
        "model.item_features, vectors as lists of numbers. They can be recommended by their "
        "features."
    ),
]
Probabilities = Annotated[
    bool,
    typer.Option(
        "--probabilities",
        help="Add the calibrated probability of each item.",
    ),
]
Users = Annotated[list[str] | None, typer.Option("--user", help="A user of --data; repeatable.")]


def show_answer(
    answer: pl.DataFrame, recommender: Recommender, as_json: bool, out: Path | None = None
) -> None:
    """Print an answer, on a terminal with the names of the items; or write it to a file."""
    names = recommender.bundle.name_columns
    if names and out is None and not as_json:
        table, at = recommender.bundle.item_table, answer.columns.index("item_id") + 1
        found = answer.join(table, on="item_id", how="left", maintain_order="left")
        for place, name in enumerate(names, at):
            answer.insert_column(place, found[name].fill_null(""))
    show_frame(answer, out, as_json)
    if "score" in answer.columns and answer["source"].n_unique() > 1:
        logger.warning(
            "scores of source popularity are counts of interactions, for users without a history: "
            "do not compare them with scores of the model"
        )


def write_answer(
    recommender: Recommender,
    out: Path,
    as_json: bool,
    write: Callable[[LargeAnswer], int],
    *,
    request: Mapping[str, Any],
    histories: Path | None,
    users: Sequence[Any] | None,
) -> None:
    """Write an answer of any size to a file, and show the number of its rows.

    Args:
        recommender: the bundle, and the dataset of the users.
        out: the file.
        as_json: whether the number of rows is printed as JSON.
        write: writes the answer, and returns the number of rows.
        request: the options that the answer depends on.
        histories: a log, or None.
        users: ids of users of the dataset, or None.

    Raises:
        InputError: neither histories nor a dataset are given; or see `LargeAnswer`.
    """
    from recsys.serving.answer_parts import file_facts
    from recsys.serving.large_answers import LargeAnswer

    dataset, bundle = recommender.dataset, recommender.bundle
    if histories is None and dataset is None:
        recommender.read_histories()  # raises
    if histories is not None and users is not None:
        recommender.read_histories(histories, users)  # raises
    files = [value for value in (histories, *request.values()) if isinstance(value, Path)]
    facts: dict[str, Any] = {
        **request,
        "bundle": {**bundle.manifest.files, "temperature": bundle.manifest.temperature},
        "files": [file_facts(file) for file in files],
        "dataset": None if dataset is None or histories is not None else dataset.fingerprint,
        "users": users,
    }
    rows = write(LargeAnswer(recommender, out, facts, histories, users))
    show_rows([{"file": str(out), "rows": rows}], as_json)


def request_time(at: str | None) -> str | int | None:
    """Return a request time as a whole number if it is one, else as the text of a date."""
    return int(at) if at is not None and at.lstrip("-").isdecimal() else at


def open_recommender(
    bundle: Path, data: Path | None, user: list[str] | None
) -> tuple[Recommender, list[Any] | None]:
    """Open a recommender, and turn users' ids into the type of the dataset's ids."""
    from recsys.loading import load

    dataset = None if data is None else PreparedDataset.open(data)
    recommender = load(bundle, dataset)
    if user is None:
        return recommender, None
    if dataset is None:
        raise InputError("--user: users are looked up in a dataset: give its folder as --data")
    return recommender, ids_like(user, dataset.user_ids)
