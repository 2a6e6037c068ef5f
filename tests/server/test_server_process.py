"""The server as processes: reloads, signals, logs, its description of itself, its image."""

from __future__ import annotations

import http.client
import json
import os
import shutil
import signal
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest
import schemathesis
import torch
import typer.main
from hypothesis import HealthCheck, Phase, given, settings
from schemathesis import checks
from schemathesis.core.result import Ok
from schemathesis.specs.openapi import checks as openapi_checks

from recsys.cli import app
from recsys.data.prepared import PreparedDataset
from recsys.errors import InputError
from recsys.machine import usable_processors
from recsys.server.service import ServedModel, ServerSettings
from recsys.serving.bundle import ModelBundle
from tests.helpers.commands import refused
from tests.helpers.running_server import Running, running
from tests.helpers.server_process import ASKED, metrics, process, wait_for, write_other

ROOT = Path(__file__).parents[2]
Write = Callable[[float], object]


@pytest.fixture
def bundle(tiny_bundle: ModelBundle, tmp_path: Path) -> Path:
    """A copy that a test may replace."""
    return shutil.copytree(tiny_bundle.path, tmp_path / "bundle")


@pytest.fixture
def write(bundle: Path, tiny_bundle: ModelBundle, tiny_dataset: PreparedDataset) -> Write:
    """Replaces the copy by a model with other scores."""
    return lambda shift: write_other(bundle, tiny_bundle, tiny_dataset, shift)


def under_load(ask: Callable[[], tuple[int, Any]], write: Write, shifts: list[float]) -> list[int]:
    """Ask while the bundle is replaced, until only new answers come; return the statuses."""
    stop, answers = threading.Event(), list[tuple[int, float]]()

    def keep_asking() -> None:
        while not stop.is_set():
            status, answer = ask()
            answers.append((status, answer["items"][0]["score"]))

    clients = [threading.Thread(target=keep_asking) for _ in range(4)]
    for client in clients:
        client.start()
    try:
        wait_for(lambda: len(answers) > 20)
        for shift in shifts:
            before = answers[-1][1]
            write(shift)
            # By more than rounding, which differs from batch to batch.
            wait_for(lambda old=before: all(abs(score - old) > 0.01 for _, score in answers[-40:]))
    finally:
        stop.set()
        for client in clients:
            client.join()
    return [status for status, _ in answers]


def test_a_replaced_bundle_answers_without_a_lost_request(bundle: Path, write: Write) -> None:
    with running(ServerSettings(bundle, reload_seconds=0.02)) as server:
        statuses = under_load(lambda: server.ask("/v1/recommend", ASKED), write, [0.5, 1.0])
    assert set(statuses) == {200}


def test_a_bundle_that_cannot_be_loaded_does_not_replace_the_model(
    bundle: Path,
    write: Write,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with running(ServerSettings(bundle, reload_seconds=0.02)) as server:
        expected, model = server.get("/v1/recommend", ASKED), server.service.model
        (bundle / "manifest.json").write_text("{}")
        wait_for(lambda: "cannot be loaded" in caplog.text)
        time.sleep(0.1)
        assert caplog.text.count("cannot be loaded") == 1
        shutil.rmtree(bundle)
        plain = ServedModel.load
        monkeypatch.setattr(ServedModel, "load", Mock(side_effect=torch.OutOfMemoryError))
        write(0.5)
        wait_for(lambda: "OutOfMemoryError" in caplog.text)
        assert server.get("/v1/recommend", ASKED) == expected
        assert server.service.model is model
        monkeypatch.setattr(ServedModel, "load", plain)
        wait_for(lambda: server.service.model is not model)
        assert server.get("/v1/recommend", ASKED) != expected


def test_a_model_that_cannot_answer_is_not_served(bundle: Path) -> None:
    with pytest.raises(InputError, match="retrieve"):
        ServedModel.load(ServerSettings(bundle, retrieve=0))


# --- A process of its own ------------------------------------------------------------------------


@pytest.mark.slow
def test_signals_reload_and_end_it_in_good_order(
    tiny_bundle: ModelBundle, tiny_dataset: PreparedDataset
) -> None:
    with process(tiny_bundle.path, "--data", tiny_dataset.path, "--threads", 1) as server:
        secret = {"user_id": "ann", "history": ["socks", "hat"], "k": 2, "seen": "allow"}
        assert server.ask("/v1/recommend", secret) == 200
        assert server.ask("/v1/recommend", {**secret, "k": "gloves"}) == 422
        assert server.ask("/v1/similar", {"item_id": "scarf"}) == 422
        server.process.send_signal(signal.SIGHUP)
        wait_for(lambda: any("a new model answers" in line for line in server.log))
        # A request that is under way when the signal comes is answered.
        late = http.client.HTTPConnection("127.0.0.1", server.port, timeout=20)
        body = json.dumps(secret).encode()
        late.putrequest("POST", "/v1/recommend")
        late.putheader("content-type", "application/json")
        late.putheader("content-length", str(len(body)))
        late.endheaders(body[:5])
        time.sleep(0.2)
        server.process.send_signal(signal.SIGTERM)
        time.sleep(0.3)
        late.send(body[5:])
        response = late.getresponse()
        assert response.status == 200
        assert len(json.loads(response.read())["items"]) == 2
        late.close()
        assert server.process.wait(20) == 0
    lines = [json.loads(line) for line in server.log]
    events = [line["event"] for line in lines if line["event"] != "request"]
    assert events == ["serving", "a new model answers", "ended"]
    requests = [line for line in lines if line["event"] == "request"]
    assert [(line["path"], line["status"]) for line in requests] == [
        ("/v1/recommend", 200),
        ("/v1/recommend", 422),
        ("/v1/similar", 422),
        ("/v1/recommend", 200),
    ]
    for word in ("ann", "socks", "hat", "gloves", "scarf"):
        assert f'"{word}' not in "".join(server.log)
        assert f"'{word}" not in "".join(server.log)


several_cores = pytest.mark.skipif(usable_processors() < 2, reason="two workers need two cores")


@pytest.mark.slow
@several_cores
def test_two_workers_answer_reload_survive_and_end(bundle: Path, write: Write) -> None:
    with process(bundle, "--workers", 2) as server:
        first = json.loads(server.log[0])
        assert (first["event"], first["workers"], first["items"]) == ("serving", 2, 5)
        # A new model under load: no request is dropped, and both workers change.
        statuses = under_load(lambda: server.answer("/v1/recommend", ASKED), write, [0.5])
        assert set(statuses) == {200}
        # The metrics are those of both.
        name = 'recsys_requests_total{path="/v1/recommend",status="200"}'
        wait_for(lambda: metrics(server.port)[name] == len(statuses))
        known = metrics(server.port)
        hits, misses = (
            known[f'recsys_state_cache_histories_total{{result="{result}"}}']
            for result in ("hit", "miss")
        )
        assert hits > misses > 0
        # A worker that is killed is replaced, even one that loads; the other answers meanwhile.
        children = server.workers()
        os.kill(children[0], signal.SIGKILL)
        wait_for(lambda: any(f"[{children[0]}] died" in line for line in server.log))
        wait_for(lambda: {*server.workers()} - {*children})
        os.kill(({*server.workers()} - {*children}).pop(), signal.SIGKILL)
        assert server.ask("/v1/recommend", ASKED) == 200
        wait_for(lambda: sum(" died" in line for line in server.log) == 2)
        wait_for(lambda: len(server.workers()) == 2 and children[0] not in server.workers())
        # SIGHUP replaces one after the other.
        children = server.workers()
        server.process.send_signal(signal.SIGHUP)
        wait_for(lambda: not {*children} & {*server.workers()})
        assert server.ask("/v1/recommend", ASKED) == 200
        # The end answers what it has.
        children = server.workers()
        server.process.send_signal(signal.SIGTERM)
        assert server.process.wait(60) == 0
    assert json.loads(server.log[-1])["event"] == "ended"
    for child in children:
        assert not Path(f"/proc/{child}").exists()


def test_what_cannot_be_served_ends_in_one_line(tiny_bundle: ModelBundle, tmp_path: Path) -> None:
    serve = ("serve", tiny_bundle.path)
    assert "not a model bundle" in refused("serve", tmp_path)
    assert "not a prepared dataset" in refused(*serve, "--data", tmp_path)
    assert "cannot listen" in refused(*serve, "--host", "256.1.1.1")
    assert "cannot listen" in refused(*serve, "--host", "127..0.0.1")


def test_the_model_answers_metrics(tiny_bundle: ModelBundle) -> None:
    with running(ServerSettings(tiny_bundle.path)) as server:
        server.get("/v1/recommend", ASKED)
        server.get("/v1/score", {"history": ASKED["history"], "candidates": ["hat"]})
        server.ask("/v1/recommend", {})
        expected = {
            'recsys_requests_total{path="/v1/recommend",status="200"}': 1,
            'recsys_requests_total{path="/v1/recommend",status="422"}': 1,
            'recsys_batch_size_count{question="recommend"}': 1,
            "recsys_queue_length": 0,
            'recsys_state_cache_histories_total{result="hit"}': 1,
        }
        # They are noted once the answer is on its way.
        wait_for(lambda: expected.items() <= metrics(server.port).items())


# --- What it says of itself ----------------------------------------------------------------------


@pytest.fixture(scope="module")
def server(tiny_bundle: ModelBundle, tiny_dataset: PreparedDataset) -> Iterator[Running]:
    with running(ServerSettings(tiny_bundle.path, tiny_dataset.path)) as found:
        yield found


def test_each_question_has_examples_that_are_answered_and_each_error_a_description(
    server: Running,
) -> None:
    """The examples name items of the documentation's shop: they are unknown here, but well made."""
    _, about = server.ask("/openapi.json", method="GET")
    for path, methods in about["paths"].items():
        for method, operation in methods.items():
            assert operation["summary"], path
            if method != "post":
                continue
            assert {"4XX", "5XX"} <= set(operation["responses"])
            body = operation["requestBody"]["content"]["application/json"]["schema"]
            kind = about["components"]["schemas"][body["$ref"].rpartition("/")[2]]
            assert all("description" in field for field in kind["properties"].values())
            assert kind["examples"], path
            for example in kind["examples"]:
                status, answer = server.ask(path, example)
                assert status == 200 or (status, "is not in the" in answer["error"]) == (422, True)


@pytest.mark.slow
def test_no_request_that_the_description_allows_breaks_it(server: Running) -> None:
    url = f"http://127.0.0.1:{server.port}/openapi.json"
    schema = schemathesis.openapi.from_url(url)
    wanted = [
        checks.not_a_server_error,
        openapi_checks.status_code_conformance,
        openapi_checks.content_type_conformance,
        openapi_checks.response_schema_conformance,
        openapi_checks.negative_data_rejection,
    ]

    for operation in schema.get_all_operations():
        assert isinstance(operation, Ok)
        ask = operation.ok()

        @settings(
            max_examples=25,
            phases=[Phase.generate],
            suppress_health_check=list(HealthCheck),
            derandomize=True,
            database=None,
        )
        @given(case=ask.as_strategy())
        def check(case: schemathesis.Case[Any]) -> None:
            case.call_and_validate(checks=wanted)

        check()


# --- The image -----------------------------------------------------------------------------------


def test_the_image_installs_what_there_is_and_runs_a_command_that_exists() -> None:
    """No daemon runs here: the text of the file is checked against the repository."""
    text = (ROOT / "docs" / "deploy" / "Dockerfile").read_text(encoding="utf-8")
    lines = [line.partition(" ") for line in text.replace("\\\n", " ").splitlines()]
    commands = {name: words for name, _, words in lines}
    for source in (words for name, _, words in lines if name == "COPY"):
        for path in source.split()[:-1]:
            assert (ROOT / path).exists(), path
    assert "[serve]" in text
    assert commands["USER"] == "recsys"
    assert json.loads(commands["ENTRYPOINT"]) == ["recsys", "serve"]
    command = typer.main.get_command(app).commands["serve"]  # type: ignore[attr-defined]
    options = {name for parameter in command.params for name in parameter.opts}
    words = json.loads(commands["CMD"])
    assert {word for word in words if word.startswith("--")} <= options
    assert commands["EXPOSE"] == words[-1]
