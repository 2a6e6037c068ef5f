"""Answers over HTTP: those of Python, whoever else asks; and what is refused, in one line."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from recsys.config.data import Columns, DataConfig
from recsys.config.experiment import EvaluationConfig, Experiment
from recsys.config.model import DotProduct, HSTUConfig
from recsys.data.prepared import PreparedDataset, prepare
from recsys.server.service import ServerSettings
from recsys.serving.bundle import ModelBundle
from recsys.serving.recommender import Recommender
from tests.conftest import PURCHASES, tiny_experiment
from tests.helpers.random_models import random_bundle
from tests.helpers.running_server import Running, running
from tests.helpers.server_process import metrics, wait_for

ITEMS = ["boots", "gloves", "hat", "jacket", "socks"]
HISTORIES = st.lists(st.sampled_from([*ITEMS, "unknown"]), max_size=6)
HAT = {"history": ["hat"], "k": 2}


@pytest.fixture(scope="module")
def model(
    tiny_bundle: ModelBundle, tiny_dataset: PreparedDataset, tmp_path_factory: Any
) -> Recommender:
    """With probabilities."""
    path = tmp_path_factory.mktemp("server") / "bundle"
    parts = path, tiny_bundle.model, tiny_bundle.experiment, tiny_dataset
    bundle = ModelBundle.write(*parts, ("train",), temperature=2.0)
    return Recommender(bundle, tiny_dataset)


@pytest.fixture(scope="module")
def server(model: Recommender, tiny_dataset: PreparedDataset) -> Iterator[Running]:
    options = ServerSettings(model.bundle.path, tiny_dataset.path, body_bytes=200_000)
    with running(options) as started:
        yield started


def assert_same(found: list[dict[str, Any]], answer: Any) -> None:
    """Equal rows; numbers up to the rounding of another batch."""
    expected = answer if isinstance(answer, list) else answer.to_dicts()
    assert len(found) == len(expected)
    for row, other in zip(found, expected, strict=True):
        for name, value in row.items():
            close = isinstance(value, float)
            assert value == (pytest.approx(other[name], abs=1e-5) if close else other[name])


# --- REST = Python -------------------------------------------------------------------------------


@settings(max_examples=20)
@given(history=HISTORIES, k=st.integers(1, 5), seen=st.sampled_from(["filter", "allow", None]))
def test_recommendations_are_those_of_python(
    server: Running, model: Recommender, history: list[str], k: int, seen: Any
) -> None:
    found = server.get("/v1/recommend", {"history": history, "k": k, "seen": seen})
    expected = model.recommend([history], k=k, seen=seen)
    assert_same(found["items"], expected)
    assert [found["source"]] * len(expected) == expected["source"].to_list()
    assert found["skipped"] == history.count("unknown")


@settings(max_examples=20)
@given(history=HISTORIES, candidates=st.lists(st.sampled_from(ITEMS), min_size=1, max_size=8))
def test_scores_are_those_of_python(
    server: Running, model: Recommender, history: list[str], candidates: list[str]
) -> None:
    asked = {"history": history, "candidates": [*candidates, "unknown"], "probabilities": True}
    found = server.get("/v1/score", asked)
    assert_same(found["items"], model.score([history], candidates, probabilities=True))
    assert found["unknown"] == ["unknown"]


@pytest.mark.parametrize(
    ("given", "options"),
    [
        ({}, {"allow": ["hat", "socks", "unknown"], "deny": ["socks"], "seen": "allow"}),
        ({}, {"seen": "allow"}),
        ({}, {"diversity": 0.5, "at_most": {"name": 1}, "k": 3}),
        ({}, {"where": "item_id <> 'gloves'", "k": 3}),
        ({}, {"probabilities": True, "k": 3}),
        (
            {"history": ["hat", "boots"], "times": [30, "1970-01-01T00:00:20.5"]},
            {"k": 5, "seen": "allow"},
        ),
    ],
)
def test_options_of_requests_are_those_of_python(
    given: dict[str, Any], options: dict[str, Any], server: Running, model: Recommender
) -> None:
    found = server.get("/v1/recommend", {"history": ["boots", "hat"], **given, **options})
    expected = model.recommend([["boots", "hat"]], **options)
    assert len(expected)
    assert_same(found["items"], expected)
    for row in found["items"]:
        assert {"item_id", "score", "rank"} <= row.keys()
        assert ("probability" in row) == ("probabilities" in options)


def test_users_are_known_by_id_and_go_on(server: Running, model: Recommender) -> None:
    rules: dict[str, Any] = {"k": 5, "seen": "allow"}
    for user in model.dataset.user_ids if model.dataset else ():
        found = server.get("/v1/recommend", {"user_id": user, **rules})
        assert_same(found["items"], model.recommend(users=[user], **rules))
        later = ["socks", "hat"]
        found = server.get("/v1/recommend", {"user_id": user, "history": later, **rules})
        known = [item for item in PURCHASES[user] if item != "scarf"]
        assert_same(found["items"], model.recommend([[*known, *later]], **rules))


def test_explanations_and_similar_items_are_those_of_python(
    server: Running, model: Recommender
) -> None:
    history = ["gloves", "unknown", "boots", "hat"]
    found = server.get("/v1/explain", {"history": history, "item_id": "socks"})
    assert_same(found["purchases"], model.explain(history, "socks"))
    score = model.score([history], ["socks"])["score"][0]
    assert (found["score"], found["skipped"]) == (pytest.approx(score, abs=1e-5), 1)
    found = server.get("/v1/similar", {"item_id": "hat", "k": 3})
    assert_same(found["items"], model.similar_items("hat", 3))


def test_rows_of_a_log_are_read_by_the_rules_of_the_dataset(tmp_path: Path) -> None:
    """The ids of users and items are integers, which may come as text."""
    log = pl.DataFrame(
        {
            "customer": [1, 1, 2, 2, 2, 3, 3] * 2,
            "sku": [7, 70, 70, 5, 7, 5, 70] * 2,
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
    bundle = random_bundle(tmp_path / "bundle", experiment, dataset)
    mine = [
        {"sku": 70, "at": 3, "event": "buy"},
        {"sku": 5, "at": 2, "event": "view"},
        {"sku": 7, "at": 1, "event": "buy"},
    ]
    rules: dict[str, Any] = {"k": 3, "seen": "allow"}
    with running(ServerSettings(bundle.path, dataset.path)) as server:
        found = server.get("/v1/recommend", {"log": mine, **rules})
        model = Recommender(bundle, dataset)
        frame = pl.DataFrame(mine).with_columns(customer=pl.lit("me"))
        assert_same(found["items"], model.recommend(frame, **rules))
        mixed = server.get("/v1/recommend", {"history": ["7", 1 << 62, "007", 70], **rules})
        assert_same(mixed["items"], found["items"])
        assert mixed["skipped"] == 2
        by_id = server.get("/v1/recommend", {"user_id": "1", **rules})
        assert by_id == server.get("/v1/recommend", {"user_id": 1, **rules})
        status, answer = server.ask("/v1/recommend", {"log": [{"sku": 7, "at": 3}], **rules})
        assert (status, "event" in answer["error"]) == (422, True)


@pytest.mark.parametrize("times", ["past", "request"])
def test_models_that_read_times_get_them_or_assume_the_usual_ones(
    times: Any, tmp_path: Path
) -> None:
    rows = [(u, i, 10 * t) for u, items in PURCHASES.items() for t, i in enumerate(items)]
    log = pl.DataFrame(rows, schema=["user_id", "item_id", "timestamp"], orient="row")
    dataset = prepare(log, out=tmp_path / "data")
    config = HSTUConfig(
        kind="hstu", embedding_dim=8, num_blocks=1, max_sequence_length=4, times=times
    )
    experiment = Experiment(model=config, evaluation=EvaluationConfig(request_time="known"))
    bundle = random_bundle(tmp_path / "bundle", experiment, dataset)
    at: dict[str, Any] = {"at": 100} if times == "request" else {}
    new = pl.DataFrame([("ann", "hat", 90)], schema=log.schema, orient="row")
    longer = pl.concat([log, new]).filter(user_id="ann")
    with running(ServerSettings(bundle.path, dataset.path)) as server:
        known = {"user_id": "ann", "history": ["hat"], "times": [90], "candidates": ITEMS, **at}
        found = server.get("/v1/score", known)
        assert_same(found["items"], Recommender(bundle).score(longer, ITEMS, **at))
        assert found["assumed_gap"] is None
        status, found = server.ask("/v1/score", {**known, "times": None})
        if times == "past":
            assert (status, found["assumed_gap"]) == (200, 10)
        else:
            assert (status, "give times" in found["error"]) == (422, True)
            status, found = server.ask("/v1/score", {**known, "at": None})
            assert (status, found["error"][:3]) == (422, "at:")


# --- Many at a time ------------------------------------------------------------------------------


def test_a_batch_answers_as_one_by_one_and_errors_are_of_one(server: Running) -> None:
    questions: list[tuple[str, dict[str, Any]]] = []
    rules: list[Any] = [{}, {"k": 2}, {"allow": ITEMS[:3]}, {"deny": ITEMS[:2], "seen": "allow"}]
    for number in range(60):
        history = [ITEMS[(number * step) % 5] for step in range(number % 7)]
        user: dict[str, Any] = {"history": history}
        if number % 3 == 0:  # users who are given in several ways come together
            user = {"user_id": "ann", "history": history} if number % 2 else {"user_id": "ann"}
        elif number % 5 == 0:
            user |= {"times": list(range(len(history)))}
        questions += [
            ("/v1/recommend", {**user, "k": 3, **rules[number % 4]}),
            ("/v1/score", {**user, "candidates": ITEMS[: 1 + number % 5]}),
        ]
    questions += [("/v1/recommend", {"history": ["hat"], "k": 9}), ("/v1/score", {**HAT})] * 2
    alone = [server.ask(*question) for question in questions]
    with ThreadPoolExecutor(16) as pool:
        together = list(pool.map(lambda question: server.ask(*question), questions))
    figures = metrics(server.port)
    requests, batches = (
        figures[f'recsys_batch_size_{name}{{question="score"}}'] for name in ("sum", "count")
    )
    assert requests > batches, "some were answered together"
    for (status, batched), (expected, single) in zip(together, alone, strict=True):
        assert status == expected
        assert_same(batched.pop("items", []), single.pop("items", []))
        assert batched == single


# --- Refusals ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("raw", "status", "rule"),
    [
        (b'{"history":', 400, "not JSON"),
        (b'{"history": [1' + b"0" * 6_000 + b"]}", 400, "parsing the body"),
        (b"\xff", 400, "parsing the body"),
        (b"{}", 422, "give the history"),
        (b'{"history": [1.5]}', 422, "history.0"),
        (b'{"history": ["\\ud800"]}', 422, "history.0"),
        (b'{"history": ["hat"], "times": [NaN]}', 422, "times.0"),
        (b'{"history": ["hat"], "times": ["noon"]}', 422, "ISO 8601"),
        (b'{"history": ["hat"], "times": []}', 422, "one for each"),
        (b'{"history": ["hat"], "at": Infinity}', 422, "at:"),
        (b'{"history": ["hat"], "k": 6}', 422, "size of the catalogue"),
        (b'{"history": ["hat"], "K": 3}', 422, "not permitted"),
        (b'{"history": ["hat"], "log": []}', 422, "no history"),
        (b'{"user_id": "zoe"}', 422, "'zoe' is not in the dataset"),
        (b'{"log": [{}]}', 422, "item_id"),
        (b'{"history": ["hat"], "allow": ["unknown"], "k": 1}', 422, "'unknown' is not in the"),
        (b'{"history": [' + b'"hat",' * 10_000 + b'"hat"]}', 422, "at most 10000"),
        (b'{"history": ["' + b"a" * 300_000 + b'"]}', 413, "larger than 200000 bytes"),
    ],
)
def test_what_is_wrong_is_said_in_one_line(
    server: Running, raw: bytes, status: int, rule: str
) -> None:
    found, answer = server.ask("/v1/recommend", raw=raw)
    assert found == status, answer
    assert set(answer) == {"error"}
    assert rule in answer["error"]
    assert "\n" not in answer["error"]


def test_unknown_items_are_refused_where_nothing_is_left(server: Running) -> None:
    unknown = {"history": ["hat"], "candidates": ["nix", "hat"]}
    assert server.ask("/v1/score", {**unknown, "strict": True})[0] == 422
    assert server.ask("/v1/score", {**unknown, "candidates": ["nix"]})[0] == 422
    assert server.ask("/v1/similar", {"item_id": "nix"})[0] == 422
    assert server.ask("/v1/explain", {"history": ["hat"], "item_id": "nix"})[0] == 422
    assert server.ask("/v1/explain", {"history": ["nix"], "item_id": "hat"})[0] == 422
    assert server.ask("/v1/nothing", {})[0] == 404
    assert server.ask("/v1/score", method="GET")[0] == 405


def test_a_full_queue_refuses(tiny_bundle: ModelBundle) -> None:
    with running(ServerSettings(tiny_bundle.path, queue=2)) as server:
        busy, free = threading.Event(), threading.Event()
        recommender, plain = server.service.model.recommender, Recommender.recommend

        def held(*args: Any, **options: Any) -> Any:  # the model takes its time
            busy.set()
            free.wait(10)
            return plain(recommender, *args, **options)

        vars(recommender)["recommend"] = held
        with ThreadPoolExecutor(9) as pool:
            first = pool.submit(server.ask, "/v1/recommend", HAT)
            assert busy.wait(10)
            others = [pool.submit(server.ask, "/v1/recommend", HAT) for _ in range(8)]
            while sum(request.done() for request in others) < 6:
                time.sleep(0.005)
            free.set()
            assert first.result()[0] == 200
            answers = [request.result() for request in others]
    assert sorted(status for status, _ in answers) == [200] * 2 + [429] * 6
    assert all("try again" in answer["error"] for status, answer in answers if status == 429)


def test_a_key_is_asked_for(tiny_bundle: ModelBundle) -> None:
    with running(ServerSettings(tiny_bundle.path, api_key="s3cret")) as server:
        status, answer = server.ask("/v1/recommend", HAT)
        assert (status, "API key" in answer["error"]) == (401, True)
        for headers, expected in (
            ({"x-api-key": "s3cre"}, 401),
            ({"x-api-key": "s3cret"}, 200),
            ({"authorization": "Bearer s3cret"}, 200),
        ):
            assert server.ask("/v1/recommend", HAT, headers=headers)[0] == expected
        for path, expected in (("/metrics", 401), ("/healthz", 200), ("/readyz", 200)):
            assert server.ask(path, method="GET")[0] == expected
        answering = server.service.answering
        answering.get_loop().call_soon_threadsafe(answering.cancel)
        wait_for(answering.done)
        for path, expected in (("/healthz", 200), ("/readyz", 503)):
            assert server.ask(path, method="GET")[0] == expected
        assert "s3cret" not in repr(server.service.settings)
