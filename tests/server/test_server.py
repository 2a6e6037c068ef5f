"""Answers over HTTP: those of Python, whoever else asks at the same time."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import polars as pl
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from recsys.config import (
    Columns,
    DataConfig,
    DotProduct,
    EvaluationConfig,
    Experiment,
    HSTUConfig,
)
from recsys.data.prepared import PreparedDataset, prepare
from recsys.model.build import build_model
from recsys.server.model import ServerSettings
from recsys.serving.bundle import ModelBundle
from recsys.serving.calibration import save_temperature
from recsys.serving.recommender import Recommender
from tests.conftest import PURCHASES, tiny_experiment, tiny_model
from tests.helpers.running_server import Running, running

ITEMS = ["boots", "gloves", "hat", "jacket", "socks"]
HISTORIES = st.lists(st.sampled_from([*ITEMS, "unknown"]), max_size=6)


@pytest.fixture(scope="module")
def server(tiny_bundle: ModelBundle, tiny_dataset: PreparedDataset) -> Iterator[Running]:
    with running(ServerSettings(tiny_bundle.path, tiny_dataset.path)) as found:
        yield found


def rows_of(answer: pl.DataFrame, *columns: str) -> list[dict[str, Any]]:
    rows = answer.select(columns).to_dicts()
    if "score" in columns and "probability" not in columns:
        return [row | {"probability": None} for row in rows]
    return rows


def assert_same(found: list[dict[str, Any]], expected: list[dict[str, Any]]) -> None:
    """Equal rows; numbers up to the rounding of another batch."""
    assert [set(row) for row in found] == [set(row) for row in expected]
    for one, other in zip(found, expected, strict=True):
        for name, value in other.items():
            assert one[name] == (
                pytest.approx(value, abs=1e-5) if isinstance(value, float) else value
            )


# --- REST = Python -------------------------------------------------------------------------------


@settings(max_examples=20, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(history=HISTORIES, k=st.integers(1, 5), seen=st.sampled_from(["filter", "allow", None]))
def test_recommendations_are_those_of_python(
    server: Running, recommender: Recommender, history: list[str], k: int, seen: Any
) -> None:
    found = server.get("/v1/recommend", {"history": history, "k": k, "seen": seen})
    expected = recommender.recommend([history], k=k, seen=seen)
    assert_same(found["items"], rows_of(expected, "item_id", "score", "rank"))
    assert [found["source"]] * len(expected) == expected["source"].to_list()
    assert found["skipped"] == history.count("unknown")


@settings(max_examples=20, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(history=HISTORIES, candidates=st.lists(st.sampled_from(ITEMS), min_size=1, max_size=8))
def test_scores_are_those_of_python(
    server: Running, recommender: Recommender, history: list[str], candidates: list[str]
) -> None:
    found = server.get("/v1/score", {"history": history, "candidates": [*candidates, "unknown"]})
    expected = recommender.score([history], candidates)
    assert_same(found["items"], rows_of(expected, "item_id", "score"))
    assert found["unknown"] == ["unknown"]


RULES: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "allowed items": (
        {},
        {"allow": ["hat", "socks", "unknown"], "deny": ["socks"], "seen": "allow"},
    ),
    "all of a small catalogue": ({}, {"seen": "allow"}),
    "diversity": ({}, {"diversity": 0.5, "at_most": {"name": 1}, "k": 3}),
    "a condition": ({}, {"where": "item_id <> 'gloves'", "k": 3}),
    "probabilities": ({}, {"probabilities": True, "k": 3}),
    "times that are not in order": (
        {"history": ["hat", "boots"], "times": [30, "1970-01-01T00:00:20.5"]},
        {"k": 5, "seen": "allow"},
    ),
}
"""What a request has beside the history of boots and hat, in this order, and the options."""


@pytest.mark.parametrize("name", RULES)
def test_options_of_requests_are_those_of_python(
    name: str, tiny_bundle: ModelBundle, tmp_path: Path
) -> None:
    given, options = RULES[name]
    copy = shutil.copytree(tiny_bundle.path, tmp_path / "bundle")
    bundle = save_temperature(ModelBundle.open(copy), 2.0)
    columns = ["item_id", "score", "rank", *(["probability"] * (name == "probabilities"))]
    with running(ServerSettings(bundle.path)) as server:
        found = server.get("/v1/recommend", {"history": ["boots", "hat"], **given, **options})
        expected = Recommender(bundle).recommend([["boots", "hat"]], **options)
        assert len(expected)
        assert_same(found["items"], rows_of(expected, *columns))
        asked = {"history": ["hat"], "candidates": ITEMS, "probabilities": True}
        expected = Recommender(bundle).score([["hat"]], ITEMS, probabilities=True)
        found = server.get("/v1/score", asked)
        assert_same(found["items"], rows_of(expected, "item_id", "score", "probability"))


def test_users_are_known_by_id_and_go_on(server: Running, recommender: Recommender) -> None:
    for user in recommender.dataset.user_ids if recommender.dataset else ():
        found = server.get("/v1/recommend", {"user_id": user, "k": 5, "seen": "allow"})
        expected = recommender.recommend(users=[user], k=5, seen="allow")
        assert_same(found["items"], rows_of(expected, "item_id", "score", "rank"))
        new = ["socks", "hat"]
        found = server.get(
            "/v1/recommend", {"user_id": user, "history": new, "k": 5, "seen": "allow"}
        )
        known = [item for item in PURCHASES[user] if item != "scarf"]
        expected = recommender.recommend([[*known, *new]], k=5, seen="allow")
        assert_same(found["items"], rows_of(expected, "item_id", "score", "rank"))


def test_explanations_are_those_of_python(server: Running, recommender: Recommender) -> None:
    history = ["gloves", "unknown", "boots", "hat"]
    found = server.get("/v1/explain", {"history": history, "item_id": "socks"})
    expected = recommender.explain(history, "socks")
    assert_same(
        found["purchases"], rows_of(expected, "position", "item_id", "contribution", "share")
    )
    score = recommender.score([history], ["socks"])["score"][0]
    assert found["score"] == pytest.approx(score, abs=1e-5)
    assert found["skipped"] == 1


def test_similar_items_are_those_of_python(server: Running, recommender: Recommender) -> None:
    found = server.get("/v1/similar", {"item_id": "hat", "k": 3})
    expected = recommender.similar_items("hat", 3)
    assert_same(found["items"], rows_of(expected, "item_id", "similarity", "rank"))


def test_rows_of_a_log_are_read_by_the_rules_of_the_dataset(tmp_path: Path) -> None:
    log = pl.DataFrame(
        {
            "customer": ["a", "a", "b", "b", "b", "c", "c"] * 2,
            "sku": ["x", "y", "y", "z", "x", "z", "y"] * 2,
            "at": list(range(14)),
            "event": (["buy"] * 7) + (["view"] * 7),
        }
    )
    data = DataConfig(
        columns=Columns(user_id="customer", item_id="sku", timestamp="at"),
        where={"views": "event <> 'view'"},
    )
    dataset = prepare(log, data, tmp_path / "data")
    experiment = Experiment(model=tiny_experiment(DotProduct()).model, data=data)
    model = tiny_model(experiment, dataset.num_items)
    bundle = ModelBundle.write(tmp_path / "bundle", model, experiment, dataset, ("train",))
    mine = [
        {"sku": "y", "at": 3, "event": "buy"},
        {"sku": "z", "at": 2, "event": "view"},
        {"sku": "x", "at": 1, "event": "buy"},
    ]
    with running(ServerSettings(bundle.path)) as server:
        found = server.get("/v1/recommend", {"log": mine, "k": 3, "seen": "allow"})
        frame = pl.DataFrame(mine).with_columns(customer=pl.lit("me"))
        expected = Recommender(bundle).recommend(frame, k=3, seen="allow")
        assert_same(found["items"], rows_of(expected, "item_id", "score", "rank"))
        same = Recommender(bundle).recommend([["x", "y"]], k=3, seen="allow")
        assert_same(found["items"], rows_of(same, "item_id", "score", "rank"))
        without = [{"sku": "y", "at": 3}]
        status, answer = server.ask("/v1/recommend", {"log": without, "k": 3})
        assert status == 422
        assert "event" in answer["error"]


@pytest.mark.parametrize("times", ["past", "request"])
def test_models_that_read_times_get_them(times: Any, tmp_path: Path) -> None:
    rows = [(u, i, 10 * t) for u, items in PURCHASES.items() for t, i in enumerate(items)]
    log = pl.DataFrame(rows, schema=["user_id", "item_id", "timestamp"], orient="row")
    dataset = prepare(log, out=tmp_path / "data")
    config = HSTUConfig(
        kind="hstu", embedding_dim=8, num_blocks=1, max_sequence_length=3, times=times
    )
    torch.manual_seed(3)
    known = EvaluationConfig(request_time="known")
    experiment = Experiment(model=config, evaluation=known)
    model = build_model(config, dataset.num_items)
    bundle = ModelBundle.write(tmp_path / "bundle", model, experiment, dataset, ("train",))
    mine = {"history": ["hat", "boots", "socks"], "times": [3, 50, 70]}
    frame = pl.DataFrame({"user_id": 1, "item_id": mine["history"], "timestamp": mine["times"]})
    at: dict[str, Any] = {"at": 100} if times == "request" else {}
    with running(ServerSettings(bundle.path, dataset.path)) as server:
        found = server.get("/v1/score", {**mine, **at, "candidates": ITEMS})
        expected = Recommender(bundle).score(frame, ITEMS, **at)
        assert_same(found["items"], rows_of(expected, "item_id", "score"))
        found = server.get(
            "/v1/score",
            {"user_id": "ann", "history": ["hat"], "times": [90], **at, "candidates": ITEMS},
        )
        more = pl.concat([log, pl.DataFrame([("ann", "hat", 90)], schema=log.schema, orient="row")])
        expected = Recommender(bundle).score(more.filter(user_id="ann"), ITEMS, **at)
        assert_same(found["items"], rows_of(expected, "item_id", "score"))
        assert found["assumed_gap"] is None
        if times == "request":
            asked: dict[str, Any] = {"history": ["hat", "socks"], **at, "candidates": ITEMS}
            for user in ({}, {"user_id": "ann"}):
                status, answer = server.ask("/v1/score", {**asked, **user})
                assert (status, "give times" in answer["error"]) == (422, True)
            status, answer = server.ask("/v1/recommend", {**mine, "k": 2})
            assert (status, answer["error"][:3]) == (422, "at:")


def test_missing_times_are_the_usual_ones(tmp_path: Path) -> None:
    """After those of the dataset, if the user is in it; the answer says so."""
    rows = [(u, i, 10 * t) for u, items in PURCHASES.items() for t, i in enumerate(items)]
    log = pl.DataFrame(rows, schema=["user_id", "item_id", "timestamp"], orient="row")
    dataset = prepare(log, out=tmp_path / "data")
    config = HSTUConfig(
        kind="hstu", embedding_dim=8, num_blocks=1, max_sequence_length=4, times="past"
    )
    torch.manual_seed(3)
    model = build_model(config, dataset.num_items)
    bundle = ModelBundle.write(
        tmp_path / "bundle", model, Experiment(model=config), dataset, ("train",)
    )
    assert bundle.manifest.usual_gap == 10
    last = 10 * (len(PURCHASES["ann"]) - 1)
    later = [("ann", "hat", last + 10), ("ann", "socks", last + 20)]
    timed = pl.concat([log, pl.DataFrame(later, schema=log.schema, orient="row")])
    untimed = {"history": ["hat", "socks"]}
    with running(ServerSettings(bundle.path, dataset.path)) as server:
        found = server.get("/v1/score", {**untimed, "candidates": ITEMS})
        expected = Recommender(bundle).score([["hat", "socks"]], ITEMS)
        assert_same(found["items"], rows_of(expected, "item_id", "score"))
        assert found["assumed_gap"] == 10
        known = {**untimed, "user_id": "ann"}
        found = server.get("/v1/score", {**known, "candidates": ITEMS})
        expected = Recommender(bundle).score(timed.filter(user_id="ann"), ITEMS)
        assert_same(found["items"], rows_of(expected, "item_id", "score"))
        assert found["assumed_gap"] == 10
        assert server.get("/v1/recommend", {**known, "k": 1})["assumed_gap"] == 10
        assert server.get("/v1/recommend", {"user_id": "ann", "k": 1})["assumed_gap"] is None


def test_integer_ids_stay_integers(tmp_path: Path) -> None:
    log = pl.DataFrame({"user_id": [1, 1, 2, 2], "item_id": [5, 70, 70, 5], "timestamp": range(4)})
    dataset = prepare(log, out=tmp_path / "data")
    experiment = tiny_experiment(DotProduct())
    model = tiny_model(experiment, dataset.num_items)
    bundle = ModelBundle.write(tmp_path / "bundle", model, experiment, dataset, ("train",))
    asked = {"k": 2, "seen": "allow"}
    with running(ServerSettings(bundle.path, dataset.path)) as server:
        one = server.get("/v1/recommend", {"history": [5, 1 << 62, "007"], **asked})
        assert {row["item_id"] for row in one["items"]} == {5, 70}
        assert one["skipped"] == 2
        two = server.get("/v1/recommend", {"history": ["5"], **asked})
        assert two["items"] == one["items"]
        by_id = server.get("/v1/recommend", {"user_id": "1", **asked})
        assert by_id == server.get("/v1/recommend", {"user_id": 1, **asked})


# --- Many at a time ------------------------------------------------------------------------------


def test_a_batch_answers_as_one_by_one(server: Running) -> None:
    questions: list[tuple[str, dict[str, Any]]] = []
    for number in range(60):
        history = [ITEMS[(number * step) % 5] for step in range(number % 7)]
        questions += [
            ("/v1/recommend", {"history": history, "k": 1 + number % 4}),
            ("/v1/score", {"history": history, "candidates": ITEMS[: 1 + number % 5]}),
        ]
    alone = [server.get(*question) for question in questions]
    sizes: list[int] = []
    observe = server.service.thread.observe
    server.service.thread.observe = lambda key, size, *seconds: sizes.append(size)
    try:
        with ThreadPoolExecutor(16) as pool:
            together = list(pool.map(lambda question: server.get(*question), questions))
    finally:
        server.service.thread.observe = observe
    assert max(sizes) > 1
    for one, other in zip(together, alone, strict=True):
        assert_same(one["items"], other["items"])
        assert {**one, "items": []} == {**other, "items": []}


def test_a_question_that_fails_fails_alone(server: Running) -> None:
    def ask(k: int) -> int:
        return server.ask("/v1/recommend", {"history": ["hat"], "k": k})[0]

    with ThreadPoolExecutor(8) as pool:
        assert list(pool.map(ask, [3, 9, 3, 9, 3, 9, 3, 9])) == [200, 422] * 4
