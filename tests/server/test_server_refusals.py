"""What a server refuses: in one line, with the right status, and never with 500."""

from __future__ import annotations

import http.client
import json
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from recsys.data.prepared import PreparedDataset
from recsys.server.model import Limits, ServerSettings
from recsys.serving.bundle import ModelBundle
from recsys.serving.recommender import Recommender
from tests.helpers.running_server import Running, running


@pytest.fixture(scope="module")
def server(tiny_bundle: ModelBundle, tiny_dataset: PreparedDataset) -> Iterator[Running]:
    limits = Limits(history=50, candidates=20, body_bytes=20_000, body_seconds=1)
    with running(ServerSettings(tiny_bundle.path, tiny_dataset.path, limits=limits)) as found:
        yield found


@pytest.mark.parametrize(
    ("raw", "status", "rule"),
    [
        (b'{"history":', 400, "not JSON"),
        (b"[" * 10_000, 400, "parsing the body"),
        (b'{"history": [1' + b"0" * 6_000 + b"]}", 400, "parsing the body"),
        (b"\xff", 400, "parsing the body"),
        (b"null", 422, "dictionary"),
        (b"{}", 422, "give the history"),
        (b'{"history": "hat"}', 422, "list"),
        (b'{"history": [1.5]}', 422, "history.0"),
        (b'{"history": ["\\ud800"]}', 422, "history.0"),
        (b'{"history": ["hat"], "times": [NaN]}', 422, "times.0"),
        (b'{"history": ["hat"], "times": [1e300]}', 422, "out of range"),
        (b'{"history": ["hat"], "times": ["noon"]}', 422, "ISO 8601"),
        (b'{"history": ["hat"], "times": []}', 422, "one for each"),
        (b'{"history": ["hat"], "at": Infinity}', 422, "at:"),
        (b'{"history": ["hat"], "k": 0}', 422, "k:"),
        (b'{"history": ["hat"], "k": 6}', 422, "size of the catalogue"),
        (b'{"history": ["hat"], "K": 3}', 422, "not permitted"),
        (b'{"history": ["hat"], "log": []}', 422, "no history"),
        (b'{"user_id": "zoe"}', 422, "'zoe' is not in the dataset"),
        (b'{"log": [{}]}', 422, "item_id"),
        (b'{"log": [{"item_id": 1.5, "timestamp": 1}]}', 422, "ids must be integers or text"),
        (b'{"log": [{"item_id": "hat", "timestamp": null}]}', 422, "missing"),
        (b'{"history": ["hat"], "allow": ["unknown"], "k": 1}', 422, "'unknown' is not in the"),
        (b'{"history": [' + b'"hat",' * 50 + b'"hat"]}', 422, "at most 50"),
        (b'{"history": ["hat"], "k": 21}', 422, "at most 20"),
        (b'{"history": ["' + b"a" * 30_000 + b'"]}', 413, "larger than 20000 bytes"),
        (b'{"history": ["' + b"a" * 10_000_000 + b'"]}', 413, "larger than 20000 bytes"),
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


def test_slow_clients_are_sent_away_and_disturb_nobody(server: Running) -> None:
    slow = http.client.HTTPConnection("127.0.0.1", server.port, timeout=10)
    slow.putrequest("POST", "/v1/recommend")
    slow.putheader("content-length", "100")
    slow.putheader("content-type", "application/json")
    slow.endheaders(b'{"history":')
    begin = time.monotonic()
    server.get("/v1/recommend", {"history": ["hat"], "k": 2})
    assert time.monotonic() - begin < 1
    response = slow.getresponse()
    assert response.status == 408
    assert "did not arrive" in json.loads(response.read())["error"]
    slow.close()


def test_a_full_queue_refuses(tiny_bundle: ModelBundle) -> None:
    with running(ServerSettings(tiny_bundle.path, limits=Limits(queue=2))) as server:
        busy, free = threading.Event(), threading.Event()
        recommender, plain = server.service.model.recommender, Recommender.recommend

        def held(*args: Any, **options: Any) -> Any:  # the model takes its time
            busy.set()
            free.wait(10)
            return plain(recommender, *args, **options)

        vars(recommender)["recommend"] = held
        asked = {"history": ["hat"], "k": 2}
        with ThreadPoolExecutor(9) as pool:
            first = pool.submit(server.ask, "/v1/recommend", asked)
            assert busy.wait(10)
            others = [pool.submit(server.ask, "/v1/recommend", asked) for _ in range(8)]
            while sum(one.done() for one in others) < 6:
                time.sleep(0.005)
            free.set()
            assert first.result()[0] == 200
            answers = [one.result() for one in others]
    assert sorted(status for status, _ in answers) == [200] * 2 + [429] * 6
    assert all("try again" in answer["error"] for status, answer in answers if status == 429)


def test_a_key_is_asked_for(tiny_bundle: ModelBundle) -> None:
    with running(ServerSettings(tiny_bundle.path, api_key="s3cret")) as server:
        ask: Callable[..., tuple[int, Any]] = server.ask
        asked = {"history": ["hat"], "k": 2}
        status, answer = ask("/v1/recommend", asked)
        assert (status, "API key" in answer["error"]) == (401, True)
        assert ask("/v1/recommend", asked, headers={"x-api-key": "s3cre"})[0] == 401
        assert ask("/v1/recommend", asked, headers={"x-api-key": "s3cret"})[0] == 200
        assert ask("/v1/recommend", asked, headers={"authorization": "Bearer s3cret"})[0] == 200
        assert ask("/metrics", method="GET")[0] == 401
        assert ask("/healthz", method="GET")[0] == 200
        assert ask("/readyz", method="GET")[0] == 200
        assert "s3cret" not in repr(server.service.settings)
