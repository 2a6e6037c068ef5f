"""The paths of the server, as a FastAPI application."""

from __future__ import annotations

import asyncio
import hmac
import logging
import signal
import threading
import time
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager, suppress
from typing import Annotated, Any

from fastapi import APIRouter, Depends, FastAPI, Request, Response, Security
from fastapi.exceptions import RequestValidationError
from fastapi.security import APIKeyHeader, HTTPAuthorizationCredentials, HTTPBearer
from prometheus_client import CONTENT_TYPE_LATEST
from pydantic import BaseModel
from pydantic_core import to_json
from starlette.exceptions import HTTPException
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from recsys.errors import InputError, one_line
from recsys.folders.manifest import library_version
from recsys.server.batching import QueueFullError, StoppedError
from recsys.server.schemas import (
    ExplainRequest,
    Explanation,
    Items,
    Problem,
    RecommendRequest,
    ScoreRequest,
    SimilarItems,
    SimilarRequest,
    rule_broken,
)
from recsys.server.service import Service
from recsys.server.telemetry import FACTS

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
    ("recommend", RecommendRequest, Items, "The best items of a user"),
    ("score", ScoreRequest, Items, "The scores of given items"),
    ("similar", SimilarRequest, SimilarItems, "The most similar items"),
    ("explain", ExplainRequest, Explanation, "The parts of a score"),
)
"""Of each question its path, body, answer and summary."""
_QUIET_PATHS = frozenset({"/healthz", "/readyz", "/metrics"})
"""The paths that are asked for all the time, and logged only if they fail."""


def make_app(service: Service) -> FastAPI:
    """Return the application of a service; it starts and stops the thread of the model."""

    @asynccontextmanager
    async def life(_: FastAPI) -> AsyncIterator[None]:
        service.thread.start()
        watch = asyncio.create_task(service.watch())
        if threading.current_thread() is threading.main_thread():
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
    kinds = (InputError, QueueFullError, StoppedError, HTTPException, RequestValidationError)
    for kind in (*kinds, Exception):
        app.add_exception_handler(kind, _refuse)
    return app


def _routes(service: Service) -> APIRouter:
    key = service.settings.api_key
    closed = [] if key is None else [Depends(_key_check(key))]
    router = APIRouter()
    for question, request, answer, summary in _QUESTIONS:
        router.add_api_route(
            f"/v1/{question}",
            _endpoint(service, question, request),
            methods=["POST"],
            response_model=answer,
            summary=summary,
            dependencies=closed,
            responses=_PROBLEMS,
            tags=["questions"],
        )

    @router.get("/healthz", summary="Whether the process is alive", tags=["operation"])
    async def healthz() -> dict[str, str]:
        return {"status": "ok"}

    @router.get(
        "/readyz",
        summary="Whether requests are answered",
        tags=["operation"],
        responses={503: _PROBLEMS[503]},
    )
    async def readyz() -> dict[str, str]:
        if not service.thread.is_running:
            raise StoppedError
        return {"status": "ok"}

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
        # A score of −∞, of an item that is never recommended, becomes null.
        return Response(to_json(answer, inf_nan_mode="null"), media_type="application/json")

    endpoint.__annotations__["asked"] = kind  # which FastAPI reads and validates
    endpoint.__name__ = question  # its name in the documentation of the paths
    return endpoint


_Bearer = Annotated[HTTPAuthorizationCredentials | None, Security(HTTPBearer(auto_error=False))]
_Header = Annotated[str | None, Security(APIKeyHeader(name="x-api-key", auto_error=False))]


def _key_check(key: str) -> Callable[..., Any]:
    """Return a dependency of FastAPI that refuses a request without the API key."""

    async def check(bearer: _Bearer, header: _Header) -> None:
        sent = header or "" if bearer is None else bearer.credentials
        if not hmac.compare_digest(sent.encode("latin-1"), key.encode()):
            line = "give the API key, as Authorization: Bearer KEY or X-API-Key"
            raise HTTPException(401, line, {"www-authenticate": "Bearer"})

    return check


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
        settings, metrics = self._service.settings, self._service.metrics
        deadline = asyncio.get_running_loop().time() + settings.body_seconds
        size, is_complete, status = 0, False, 500
        complete_at = time.monotonic()

        async def bounded() -> Message:
            nonlocal size, is_complete, complete_at
            if is_complete:
                return await receive()
            try:
                async with asyncio.timeout_at(deadline):
                    message = await receive()
                    size += len(message.get("body", b""))
                    is_complete = not message.get("more_body", False)
            except TimeoutError as error:
                line = f"the body did not arrive in {settings.body_seconds:g} s"
                raise HTTPException(408, line) from error
            if size > settings.body_bytes:
                raise HTTPException(413, f"the body is larger than {settings.body_bytes} bytes")
            complete_at = time.monotonic()
            return message

        async def counted(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
            await send(message)

        try:
            await self._app(scope, bounded, counted)
        finally:
            seconds = time.monotonic() - complete_at
            path = getattr(scope.get("route"), "path", "other")
            metrics.answered(path, status, seconds)
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
        status, line, headers = 429, _PROBLEMS[429]["description"], {"retry-after": "1"}
    elif isinstance(error, StoppedError):
        status, line = 503, _PROBLEMS[503]["description"]
    elif isinstance(error, HTTPException):
        status, line, headers = error.status_code, str(error.detail), error.headers
    elif isinstance(error, RequestValidationError):
        first = error.errors()[0]
        if first["type"] == "json_invalid":
            status, line = 400, f"the body is not JSON: {first['ctx']['error']}"
        else:
            status, line = 422, rule_broken(error.errors())
    problem = Problem(error=one_line(line, 500)).model_dump_json()
    return Response(problem, status, headers, media_type="application/json")
