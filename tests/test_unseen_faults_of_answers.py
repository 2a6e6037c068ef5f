"""Answers of a model in Python and over HTTP, where a small fault would go unnoticed."""

from __future__ import annotations

import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import polars as pl
import pytest
from polars.testing import assert_frame_equal

import recsys
from recsys import PreparedDataset, Recommender
from tests.helpers.server_process import Process, process
from tests.small_models import ACTIONS, HISTORIES, ITEMS, LOG, train

USERS = list(HISTORIES)


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> PreparedDataset:
    folder = tmp_path_factory.mktemp("answers")
    return recsys.prepare(LOG, out=folder / "data", keep=["action"])


@pytest.fixture(scope="module")
def other_data(data: PreparedDataset) -> PreparedDataset:
    """The same purchases, and earlier in the order of the ids some items that the model lacks."""
    rows = [(f"visitor-{n}", f"a-{n}", 0, "view") for n in range(3)]
    log = pl.concat([LOG, pl.DataFrame(rows, schema=LOG.schema, orient="row")])
    return recsys.prepare(log, out=data.path.parent / "other", keep=["action"])


@pytest.fixture(scope="module")
def bundle(data: PreparedDataset) -> Path:
    """A model that reads what users did with the items, with counts of transitions and repeats."""
    features = "model.interaction_features=[action]"
    return train(data, "counting", features, "count_ensemble={weights: [0.5, 1.0]}").bundle


@pytest.fixture(scope="module")
def model(bundle: Path, other_data: PreparedDataset) -> Recommender:
    return recsys.load(bundle, other_data)


@pytest.fixture(scope="module")
def server(bundle: Path, other_data: PreparedDataset) -> Iterator[Process]:
    with process(bundle, "--data", other_data.path, "--gather-ms", 200) as started:
        yield started


def log_of(items: list[str], actions: list[str] = ACTIONS) -> pl.DataFrame:
    """The log of one user, who repeats these actions."""
    done = [actions[place % len(actions)] for place in range(len(items))]
    columns = {"user_id": "user", "item_id": items, "timestamp": range(len(items)), "action": done}
    return pl.DataFrame(columns)


def ask(server: Process, path: str, **body: Any) -> Any:
    status, answer = server.answer(f"/v1/{path}", body)
    assert status == 200, answer
    return answer


def rows_of(log: pl.DataFrame) -> list[dict[str, Any]]:
    return log.drop("user_id").to_dicts()


def by_item(answer: Any) -> dict[str, float]:
    """The scores of an answer of either kind, by item."""
    rows = answer.to_dicts() if isinstance(answer, pl.DataFrame) else answer["items"]
    return {row["item_id"]: row["score"] for row in rows}


def close(scores: dict[str, float]) -> Any:
    return pytest.approx(scores, abs=1e-5)


def test_a_kept_state_is_of_one_history_with_its_features(
    server: Process, model: Recommender
) -> None:
    answers = []
    for actions in (["view"], ["buy"], ["view", "buy"], ["view"]):
        log = log_of(ITEMS[:4], actions)
        answers.append(by_item(ask(server, "recommend", log=rows_of(log), k=12)))
        assert answers[-1] == close(by_item(model.recommend(log, k=12)))
    assert answers[0] != close(answers[1])


def test_repeats_are_counted_in_the_whole_history(server: Process, model: Recommender) -> None:
    """Beyond what the model and the counts of transitions read, log(1 + n) alone grows."""
    item, tail = ITEMS[0], ITEMS[1:6]
    scores = []
    for count in (400, 800, 1600):
        log = log_of([item] * count + tail, ["view"])
        (score,) = model.score(log, [item])["score"]
        assert by_item(model.recommend(log, k=12))[item] == pytest.approx(score, abs=1e-5)
        answer = ask(server, "score", log=rows_of(log), candidates=[item])
        assert by_item(answer) == close({item: score})
        why = model.explain(log, item)
        assert why["contribution"].sum() + why["rest"][0] == pytest.approx(score, abs=1e-4)
        scores.append(score)
    growth = (scores[1] - scores[0]) / math.log(801 / 401)
    assert growth > 0.1
    assert (scores[2] - scores[1]) / math.log(1601 / 801) == pytest.approx(growth, rel=1e-3)


def test_users_of_another_dataset_have_the_items_of_their_ids(
    server: Process, model: Recommender
) -> None:
    logs = {user: LOG.filter(user_id=user) for user in USERS[:5]}
    best = model.recommend(users=USERS[:5], k=12).partition_by("user_id", maintain_order=True)
    for (user, log), own in zip(logs.items(), best, strict=True):
        expected = close(by_item(model.recommend(log, k=12)))
        assert by_item(own) == expected
        assert by_item(model.score(users=[user], candidates=ITEMS)) == expected
        assert by_item(ask(server, "recommend", user_id=user, k=12)) == expected
        assert by_item(ask(server, "score", user_id=user, candidates=ITEMS)) == expected
        why, theirs = model.explain(log, ITEMS[0]), model.explain(user=user, item=ITEMS[0])
        assert_frame_equal(why, theirs)
