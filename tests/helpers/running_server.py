"""A server that listens in a thread of this process, and a client of it."""

from __future__ import annotations

import http.client
import json
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import uvicorn

from recsys.server.app import listen, make_app
from recsys.server.service import ServedModel, ServerSettings, Service


@dataclass(frozen=True)
class Running:
    port: int
    service: Service

    def ask(
        self,
        path: str,
        body: object = None,
        *,
        raw: bytes | None = None,
        method: str = "POST",
        headers: dict[str, str] | None = None,
    ) -> tuple[int, Any]:
        """Return the status and the body, read as JSON."""
        client = http.client.HTTPConnection("127.0.0.1", self.port, timeout=20)
        content = json.dumps(body).encode() if raw is None and body is not None else raw
        client.request(
            method, path, content, {"content-type": "application/json", **(headers or {})}
        )
        response = client.getresponse()
        text = response.read()
        client.close()
        return response.status, json.loads(text)

    def get(self, path: str, body: object) -> Any:
        status, answer = self.ask(path, body)
        assert status == 200, answer
        return answer


@contextmanager
def running(options: ServerSettings) -> Iterator[Running]:
    service = Service(ServedModel.load(options))
    listener = listen("127.0.0.1", 0)
    server = uvicorn.Server(uvicorn.Config(make_app(service), log_config=None, access_log=False))
    thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]})
    thread.start()
    try:
        while not server.started:
            time.sleep(0.005)
        yield Running(listener.getsockname()[1], service)
    finally:
        server.should_exit = True
        thread.join(20)
