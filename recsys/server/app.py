"""The paths of the server, as a FastAPI application."""

from __future__ import annotations

import asyncio
import hmac
import logging
import signal
import threading
import time
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from typing import Annotated, Any

from fastapi import APIRouter, Depends, FastAPI, Request, Response, Security
from fastapi.exceptions import RequestValidationError
from fastapi.security import APIKeyHeader, HTTPAuthorizationCredentials, HTTPBearer
from prometheus_client import CONTENT_TYPE_LATEST
from pydantic import BaseModel
from starlette.exceptions import HTTPException
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from recsys.errors import InputError, one_line
from recsys.folders.manifest import library_version
from recsys.server.batching import QueueFullError, StoppedError
from recsys.server.metrics import FACTS
from recsys.server.model import Limits, Service
from recsys.server.schemas import (
    ExplainRequest,
    Explanation,
    Health,
    Problem,
    Recommendations,
    RecommendRequest,
    ScoreRequest,
    Scores,
    SimilarItems,
    SimilarRequest,
    rule_broken,
)

logger = logging.getLogger(__name__)

_ABOUT = """Next-item recommendations, scores and explanations from a trained bundle.

A user is given by a `history` (item ids, oldest first), by rows of the raw `log`, or by the
`user_id` of a prepared dataset, with what is new as `history`. Every error is
`{"error": "one line"}`."""
_PROBLEMS: dict[int | str, dict[str, Any]] = {
    status: {"model": Problem, "description": description}
    for status, description in (
        (400, "The body is not JSON."),
        (401, "The API key is missing or wrong."),
        (408, "The body did not arrive in time."),
        (413, "The body is too large."),
        (422, "A field is wrong, or too long."),
        (429, "Too many requests wait: try again in a second."),
        (503, "The server is shutting down."),
    )
}
_QUESTIONS: tuple[tuple[str, type[BaseModel], type[BaseModel], str], ...] = (
    ("recommend", RecommendRequest, Recommendations, "The best items of a user"),
    ("score", ScoreRequest, Scores, "The scores of given items"),
    ("similar", SimilarRequest, SimilarItems, "The most similar items"),
    ("explain", ExplainRequest, Explanation, "The parts of a score"),
)
"""Of each question its path, body, answer and summary."""
_QUIET_PATHS = frozenset({"/healthz", "/readyz", "/metrics"})
"""The paths that are asked for all the time, and logged only if they fail."""
_DRAINED = 64 << 20
"""Bytes of a refused body that are read all the same: a client reads no answer while it sends."""


def make_app(service: Service) -> FastAPI:
    """Return the application of a service; it starts and stops the thread of the model."""

    @asynccontextmanager
    async def life(_: FastAPI) -> AsyncIterator[None]:
        service.thread.start()
        watch = asyncio.create_task(service.watch())
        if hasattr(signal, "SIGHUP") and threading.current_thread() is threading.main_thread():
            asyncio.get_running_loop().add_signal_handler(signal.SIGHUP, service.reload)
        yield
        watch.cancel()
        with suppress(asyncio.CancelledError):
            await watch
        await asyncio.to_thread(service.thread.stop)

    app = FastAPI(
        title="recsys",
        version=library_version(),
        description=_ABOUT,
        lifespan=life,
        redoc_url=None,
        telemetry=None,
    )
    app.add_middleware(_Watched, service=service)
    app.include_router(_routes(service))
    for kind in (InputError, QueueFullError, StoppedError, HTTPException):
        app.add_exception_handler(kind, _refuse)
    app.add_exception_handler(RequestValidationError, _refuse)
    app.add_exception_handler(Exception, _refuse)
    return app


def _routes(service: Service) -> APIRouter:
    key = service.settings.api_key
    closed = [] if key is None else [Depends(_KeyCheck(key))]
    router = APIRouter()
    for question, asked, answer, summary in _QUESTIONS:
        router.add_api_route(
            f"/v1/{question}",
            _endpoint(service, question, asked),
            methods=["POST"],
            response_model=answer,
            summary=summary,
            dependencies=closed,
            responses=_PROBLEMS,
            tags=["questions"],
        )

    @router.get("/healthz", summary="Whether the process is alive", tags=["operation"])
    async def healthz() -> Health:
        return Health()

    @router.get(
        "/readyz",
        summary="Whether requests are answered",
        tags=["operation"],
        responses={503: _PROBLEMS[503]},
    )
    async def readyz() -> Health:
        service.thread.check_running()
        return Health()

    @router.get(
        "/metrics",
        summary="Metrics for Prometheus",
        tags=["operation"],
        dependencies=closed,
        response_class=Response,
        responses={200: {"content": {"text/plain": {}}}, 401: _PROBLEMS[401]},
    )
    async def metrics() -> Response:
        return Response(service.metrics.page(), media_type=CONTENT_TYPE_LATEST)

    return router


def _endpoint(service: Service, question: str, kind: type[BaseModel]) -> Callable[..., Any]:
    async def endpoint(asked: Any) -> Response:
        answer = await service.ask(question, asked)
        return Response(answer.model_dump_json(), media_type="application/json")  # is valid

    endpoint.__annotations__["asked"] = kind  # which FastAPI reads and validates
    endpoint.__name__ = question  # its name in the documentation of the paths
    return endpoint


class _KeyCheck:
    """Refuses a request without the API key. A dependency of FastAPI."""

    def __init__(self, key: str) -> None:
        self._key = key.encode()

    async def __call__(
        self,
        bearer: Annotated[
            HTTPAuthorizationCredentials | None, Security(HTTPBearer(auto_error=False))
        ],
        header: Annotated[str | None, Security(APIKeyHeader(name="x-api-key", auto_error=False))],
    ) -> None:
        given = header or "" if bearer is None else bearer.credentials
        if not hmac.compare_digest(given.encode("latin-1"), self._key):
            line = "give the API key, as Authorization: Bearer KEY or X-API-Key"
            raise HTTPException(401, line, {"www-authenticate": "Bearer"})


class _Body:
    """The body of a request, chunk by chunk, refused if it is too large or takes too long."""

    def __init__(self, receive: Receive, limits: Limits) -> None:
        self._receive = receive
        self._limits = limits
        self._deadline = asyncio.get_running_loop().time() + limits.body_seconds
        self._size = 0
        self._is_complete = False
        self.complete_at = time.monotonic()

    async def __call__(self) -> Message:
        """Return the next message of the connection."""
        if self._is_complete:
            return await self._receive()
        largest = self._limits.body_bytes
        try:
            async with asyncio.timeout_at(self._deadline):
                while True:
                    message = await self._receive()
                    self._size += len(message.get("body", b""))
                    self._is_complete = not message.get("more_body", False)
                    if self._size <= largest or self._is_complete or self._size > _DRAINED:
                        break
        except TimeoutError as error:
            line = f"the body did not arrive in {self._limits.body_seconds:g} s"
            raise HTTPException(408, line) from error
        if self._size > largest:
            raise HTTPException(413, f"the body is larger than {largest} bytes")
        self.complete_at = time.monotonic()
        return message


class _Watched:
    """Bounds the body of every request, counts and logs it."""

    def __init__(self, app: ASGIApp, service: Service) -> None:
        self._app = app
        self._service = service

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handle a request, or an event of the server's life."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        body, status = _Body(receive, self._service.settings.limits), 500

        async def counted(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
            await send(message)

        try:
            await self._app(scope, body, counted)
        finally:
            seconds = time.monotonic() - body.complete_at
            path = getattr(scope.get("route"), "path", "other")
            self._service.metrics.answered(path, status, seconds)
            if scope["path"] not in _QUIET_PATHS or status >= 500:
                facts = {"method": scope["method"], "path": path, "status": status}
                logger.info("request", extra={FACTS: {**facts, "ms": round(seconds * 1_000, 2)}})


async def _refuse(_: Request, error: Exception) -> Response:
    """Return the one line of an error, with its status."""
    status, line = 500, "the server failed; its log says where"
    headers: Mapping[str, str] | None = None
    if isinstance(error, InputError):
        status, line = 422, str(error)
    elif isinstance(error, QueueFullError):
        status, line = 429, "too many requests wait: try again in a second"
        headers = {"retry-after": "1"}
    elif isinstance(error, StoppedError):
        status, line = 503, "the server is shutting down"
    elif isinstance(error, HTTPException):
        status, line, headers = error.status_code, str(error.detail), error.headers
        line = line if status == 401 else line.lower()
    elif isinstance(error, RequestValidationError):
        status, line = _rule(error.errors())
    problem = Problem(error=one_line(line, 500)).model_dump_json()
    return Response(problem, status, headers, media_type="application/json")


def _rule(wrong: Sequence[Any]) -> tuple[int, str]:
    if wrong[0]["type"] == "json_invalid":
        return 400, f"the body is not JSON: {wrong[0]['ctx']['error']}"
    return 422, rule_broken(wrong)
