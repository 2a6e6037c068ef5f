"""What strangers give to a trained model: other spellings, types, units and nulls."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import mlflow
import numpy as np
import pandas as pd
import polars as pl
import pytest
from polars.testing import assert_frame_equal

import recsys
from recsys.config.experiment import TrackingConfig
from recsys.errors import InputError
from recsys.experiments.results import register

DAY = 86_400_000
BEGIN = 1_700_000_000_000
"""Times are in milliseconds."""


@pytest.fixture(scope="module")
def here(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    folder = tmp_path_factory.mktemp("strangers")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        yield folder


@pytest.fixture(scope="module")
def log() -> pl.DataFrame:
    """A log with two kept columns: the codes 1 to 3, and a flag."""
    rng, rows = np.random.default_rng(5), []
    for user in range(1, 41):
        for number in range(int(rng.choice([3, 5, 8]))):
            time = BEGIN + number * DAY + 60_000 * int(rng.integers(100))
            rows.append(
                (user * 7, 1000 + int(rng.integers(20)), time, int(rng.integers(3)), number % 2)
            )
    names = ["user_id", "item_id", "timestamp", "code", "flag"]
    log = pl.DataFrame(rows, schema=names, orient="row")
    return log.with_columns(pl.col("code") + 1, pl.col("flag").cast(pl.Boolean))


@pytest.fixture(scope="module")
def items() -> pl.DataFrame:
    ids = range(1000, 1020)
    return pl.DataFrame(
        {
            "item_id": ids,
            "shelf": [i % 4 for i in ids],
            "fresh": [i % 3 == 0 for i in ids],
            "tags": [[1, 2] if i % 2 else [2, 3] for i in ids],
            "price": [i % 7 + 0.5 for i in ids],
        }
    )


def train(name: str, dataset: recsys.PreparedDataset, **model: Any) -> recsys.Recommender:
    base = {"embedding_dim": 8, "max_sequence_length": 6, "num_blocks": 1}
    timed = model.get("times") == "request"
    tree = {
        "name": name,
        "model": base | model,
        "training": {"max_epochs": 1, "batch_tokens": 512, "precision": "float32"},
        "evaluation": {"seen": "allow", "request_time": "known" if timed else "unknown"},
    }
    experiment = recsys.Experiment.model_validate(tree)
    run = recsys.train(experiment, dataset)
    return recsys.load(run.bundle, dataset)


@pytest.fixture(scope="module")
def reader(here: Path, log: pl.DataFrame, items: pl.DataFrame) -> recsys.Recommender:
    """Reads categories of interactions and items, and a number."""
    dataset = recsys.prepare(log, out="read", items=items, keep=("code", "flag"))
    return train(
        "reader",
        dataset,
        head={"kind": "dot_product"},
        feed_forward_dim=16,
        interaction_features=["code", "flag"],
        item_features=[
            "shelf",
            "fresh",
            {"kind": "categories", "column": "tags"},
            {"kind": "number", "column": "price"},
        ],
    )


@pytest.fixture(scope="module")
def timed(here: Path, log: pl.DataFrame) -> recsys.Recommender:
    """Reads the time of each purchase, and of the request."""
    dataset = recsys.prepare(log.drop("code", "flag"), out="timed")
    return train("timed", dataset, kind="hstu", times="request")


@contextmanager
def no_warning(caplog: pytest.LogCaptureFixture) -> Iterator[None]:
    caplog.clear()
    yield
    assert not [record.getMessage() for record in caplog.records if record.levelno > logging.INFO]


SPELLINGS = {
    "floats": (pl.col("code").cast(pl.Float64), pl.col("flag").cast(pl.Float64)),
    "text": (pl.col("code").cast(pl.String), pl.col("flag").cast(pl.String)),
    "decimals": (pl.col("code").cast(pl.Decimal(6, 2)), pl.col("flag").cast(pl.Int8)),
    "text of floats": (
        pl.format("{}.0", "code"),
        pl.when("flag").then(pl.lit("True")).otherwise(pl.lit("False")),
    ),
}


@pytest.mark.parametrize("spelling", SPELLINGS)
@pytest.mark.parametrize("form", ["frame", "csv", "later dataset"])
def test_categories_of_interactions_are_equal_however_they_are_spelled(
    reader: recsys.Recommender,
    log: pl.DataFrame,
    spelling: str,
    form: str,
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
) -> None:
    other = log.with_columns(SPELLINGS[spelling])
    right = reader.recommend(log, k=3)
    with no_warning(caplog):
        if form == "frame":
            answer = reader.recommend(other, k=3)
        elif form == "csv":
            other.write_csv(tmp_path / "log.csv")
            answer = reader.recommend(tmp_path / "log.csv", k=3)
        else:
            dataset = recsys.prepare(other, out=tmp_path / "later", keep=("code", "flag"))
            answer = recsys.load(reader.bundle.path, dataset).recommend(k=3)
    assert_frame_equal(answer, right, abs_tol=1e-5)


NEW = pl.DataFrame(
    {"item_id": [7, 8], "shelf": [1, 2], "fresh": [True, False], "tags": [[1], [2, 3]]}
).with_columns(price=pl.Series([1.5, 2.0]))


@pytest.mark.parametrize(
    "changes",
    [
        [pl.col("item_id", "shelf").cast(pl.Float64), pl.col("fresh").cast(pl.Int64)],
        [pl.col("item_id", "shelf", "fresh", "price").cast(pl.String)],
        [pl.col("price").cast(pl.Decimal(4, 2)), pl.col("tags").cast(pl.List(pl.Float64))],
        [pl.format("{}.0", "shelf").alias("shelf"), pl.col("tags").cast(pl.List(pl.String))],
    ],
)
def test_new_items_take_the_types_of_the_catalogue(
    reader: recsys.Recommender, changes: list[pl.Expr], caplog: pytest.LogCaptureFixture
) -> None:
    history = reader.read_histories(users=[7])
    right = reader.with_new_items(NEW).score(history, [7, 8, 1003])
    with no_warning(caplog):
        found = reader.with_new_items(NEW.with_columns(changes))
    assert_frame_equal(found.score(history, [7, 8, 1003]), right, abs_tol=1e-5)
    assert found.bundle.item_table.schema == reader.bundle.item_table.schema


def test_dates_are_put_on_the_scale_of_the_log_and_other_units_are_refused(
    timed: recsys.Recommender, log: pl.DataFrame, caplog: pytest.LogCaptureFixture
) -> None:
    """The log has milliseconds."""
    histories = log.drop("code", "flag").with_columns(pl.col("timestamp") // 1000 * 1000)
    at = BEGIN + 30 * DAY
    right = timed.recommend(histories, k=3, at=at)
    assert not right.equals(timed.recommend(histories, k=3, at=at + 90 * DAY)), "times matter"
    moment = datetime.fromtimestamp(at / 1000, UTC)
    dates = histories.with_columns(pl.from_epoch("timestamp", time_unit="ms"))
    seconds = histories.with_columns(pl.col("timestamp") // 1000)
    text = dates.with_columns(pl.col("timestamp").dt.strftime("%Y-%m-%dT%H:%M:%S"))
    with no_warning(caplog):
        for given, when in ((histories, moment), (dates, moment.isoformat()), (text, at)):
            assert_frame_equal(timed.recommend(given, k=3, at=when), right)
    mixed = pl.concat([histories, seconds.tail(1)])
    for given, when in ((seconds, at), (mixed, at), (histories, at // 1000)):
        with pytest.raises(InputError, match="is a time in seconds, and those of the training log"):
            timed.recommend(given, k=3, at=when)
    later = recsys.prepare(seconds, out="seconds")
    with pytest.raises(InputError, match="is a time in seconds, and those of the training log"):
        recsys.train(None, later, start=timed.bundle.path)
    small = histories.with_columns((pl.col("timestamp") - BEGIN) // 1000)
    timed.recommend(small, k=1, at=at)
    assert "is compared with the times of the training log" in caplog.text


def test_dates_in_digits_are_read_as_those_of_the_log(here: Path, log: pl.DataFrame) -> None:
    hours = pl.from_epoch("timestamp", time_unit="ms").dt.strftime("%Y%m%d%H").cast(pl.Int64)
    dataset = recsys.prepare(log.drop("code", "flag").with_columns(hours), out="hours")
    model, answers = train("hours", dataset, kind="hstu", times="request"), []
    spellings: list[list[Any]] = [
        ["2023-11-15", np.datetime64("2023-11-15T07"), datetime(2023, 11, 16, 9, tzinfo=UTC)],
        [2023111500, 2023111507.0, 2023111609.0],
        ["2023111500", "2023111507", "2023111609"],
    ]
    for *times, at in spellings:
        histories = model.read_histories([[1001, 1002]], times=[times])
        answers.append(model.recommend(histories, k=3, at=at))
    assert answers[0].equals(answers[1])
    assert answers[0].equals(answers[2])


def served(model: recsys.Recommender) -> Any:
    """The registered model as MLflow loads it."""
    store = f"sqlite:///{Path('mlflow.db').resolve()}"
    mlflow.set_tracking_uri(store)
    mlflow.set_registry_uri(store)
    registered = register(model.bundle.path, "served", tracking=TrackingConfig(uri=store))
    return mlflow.pyfunc.load_model(registered.uri)


def test_a_registered_model_answers_what_is_missing(timed: recsys.Recommender) -> None:
    """A left join leaves None, or NaN; rows keep their index, whatever is in other rows."""
    model, at = served(timed), str(BEGIN + 30 * DAY)
    columns: dict[str, Any] = {
        "user_id": ["a", None, "c", "d"],
        "items": [[1001, 1002], None, float("nan"), []],
        "times": [[BEGIN, BEGIN + 60_000], None, float("nan"), None],
        "candidates": [None, [1001], float("nan"), [1002, 1003]],
    }
    frame = pd.DataFrame(columns, index=[3, 1, 2, 1])
    answer = model.predict(frame, params={"k": 2, "at": at})
    assert answer["source"].tolist() == ["model", *["popularity"] * 3]
    assert answer.index.tolist() == [3, 1, 2, 1]
    assert [user for user in answer["user_id"] if isinstance(user, str)] == ["a", "c", "d"]
    assert [list(ids) for ids in answer["item_id"]][1::2] == [[1001], [1002, 1003]]
    right = model.predict(frame.head(1), params={"k": 2, "at": at})
    assert answer["item_id"].tolist()[0] == right["item_id"].tolist()[0]
    assert answer["score"].tolist()[0] == pytest.approx(right["score"].tolist()[0])
    dates: list[Any] = [np.array([BEGIN, BEGIN + 60_000], "M8[ms]").astype("M8[ns]")]
    dated = model.predict(frame.head(1).assign(times=dates), params={"k": 2, "at": at})
    assert dated["score"].tolist() == right["score"].tolist()


def test_usual_times_stay_usual_beside_histories_with_times(here: Path, log: pl.DataFrame) -> None:
    """Six times the usual day, in milliseconds, could be seconds of the year 1986."""
    dataset = recsys.prepare(log.drop("code", "flag"), out="usual")
    model = served(train("usual", dataset, kind="hstu", times="past"))
    untimed: dict[str, Any] = {"items": [list(range(1001, 1013))], "times": [None]}
    candidates = {"candidates": [[1015, 1016]]}
    alone = model.predict(pd.DataFrame(untimed | candidates))
    rows = {"items": [*untimed["items"], [1001]], "times": [None, [BEGIN]]}
    beside = model.predict(pd.DataFrame(rows | {"candidates": [[1015, 1016]] * 2}))
    assert beside["score"].tolist()[0] == pytest.approx(alone["score"].tolist()[0], rel=1e-6)
