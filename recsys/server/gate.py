"""What every request passes on its way in and out: key, size, time, metrics, log."""

from __future__ import annotations

import asyncio
import hmac
import json
import logging
import time
from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any

from recsys.server.logs import FACTS
from recsys.server.metrics import Metrics
from recsys.server.settings import Limits

logger = logging.getLogger(__name__)

Scope = MutableMapping[str, Any]
Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
App = Callable[[Scope, Receive, Send], Awaitable[None]]

OPEN_PATHS = frozenset({"/healthz", "/readyz", "/docs", "/openapi.json"})
"""The paths that need no key."""
_QUIET_PATHS = frozenset({"/healthz", "/readyz", "/metrics"})
"""The paths that are asked for all the time, and logged only if they fail."""
_DRAINED = 64 << 20
"""Bytes of a refused body that are read all the same: a client reads no answer while it sends."""


class _RefusedError(Exception):
    """A request that does not get in."""

    def __init__(self, status: int, line: str) -> None:
        super().__init__(line)
        self.status = status


class _GoneError(Exception):
    """The client closed the connection before its body was complete."""


class Gate:
    """An ASGI application around another one, which gets only whole and permitted requests.

    Args:
        app: the application.
        limits: the size of a body, and the time that it may take to arrive.
        api_key: the key that a request brings as ``Authorization: Bearer KEY`` or ``X-API-Key``.
        metrics: counts requests and their time.
    """

    def __init__(self, app: App, limits: Limits, api_key: str | None, metrics: Metrics) -> None:
        self._app = app
        self._limits = limits
        self._key = None if api_key is None else api_key.encode()
        self._metrics = metrics

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handle one connection, request or event of the server's life."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        begin = time.monotonic()
        status = 500

        async def watched(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
            await send(message)

        try:
            self._check_key(scope)
            body = await self._body(scope, receive)
            begin = time.monotonic()
            await self._app(scope, _replay(body, receive), watched)
        except _RefusedError as refused:
            await _answer(watched, refused.status, str(refused))
        except _GoneError:
            status = 499  # as others count it
        finally:
            self._record(scope, status, time.monotonic() - begin)

    def _check_key(self, scope: Scope) -> None:
        if self._key is None or scope["path"] in OPEN_PATHS:
            return
        headers = dict(scope["headers"])
        kind, _, token = headers.get(b"authorization", b"").partition(b" ")
        given = token.strip() if kind.lower() == b"bearer" else headers.get(b"x-api-key", b"")
        if not hmac.compare_digest(given, self._key):
            raise _RefusedError(401, "give the API key, as Authorization: Bearer KEY or X-API-Key")

    async def _body(self, scope: Scope, receive: Receive) -> bytes:
        """Return the entire body.

        Raises:
            _RefusedError: it is too large, or takes too long.
            _GoneError: the client has gone.
        """
        largest = self._limits.body_bytes
        declared = dict(scope["headers"]).get(b"content-length", b"0")
        size = int(declared) if declared.isdigit() else 0
        too_large = _RefusedError(413, f"the body is larger than {largest} bytes")
        if size > _DRAINED:
            raise too_large
        chunks: list[bytes] = []
        read = 0
        try:
            async with asyncio.timeout(self._limits.body_seconds):
                while True:
                    message = await receive()
                    if message["type"] == "http.disconnect":
                        raise _GoneError
                    chunk = message.get("body", b"")
                    read += len(chunk)
                    if read <= largest:
                        chunks.append(chunk)
                    if not message.get("more_body", False) or read > _DRAINED:
                        break
        except TimeoutError as error:
            seconds = self._limits.body_seconds
            raise _RefusedError(408, f"the body did not arrive in {seconds:g} s") from error
        if read > largest:
            raise too_large
        return b"".join(chunks)

    def _record(self, scope: Scope, status: int, seconds: float) -> None:
        route = getattr(scope.get("route"), "path", None)
        self._metrics.answered(route or "other", status, seconds)
        if scope["path"] in _QUIET_PATHS and status < 500:
            return
        facts = {
            "method": scope["method"],
            "path": route or "other",
            "status": status,
            "ms": round(seconds * 1_000, 2),
        }
        logger.info("request", extra={FACTS: facts})


def _replay(body: bytes, receive: Receive) -> Receive:
    """Return a channel that gives the body, then what the connection says."""
    given = False

    async def replayed() -> Message:
        nonlocal given
        if given:
            return await receive()
        given = True
        return {"type": "http.request", "body": body, "more_body": False}

    return replayed


async def _answer(send: Send, status: int, line: str) -> None:
    body = json.dumps({"error": line}).encode()
    headers = [(b"content-type", b"application/json"), (b"content-length", str(len(body)).encode())]
    if status == 401:
        headers.append((b"www-authenticate", b"Bearer"))
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": body})
