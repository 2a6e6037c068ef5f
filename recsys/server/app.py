"""The paths of the server, as a FastAPI application."""

import asyncio
import hmac
import logging
import signal
import threading
import time
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from functools import partial
from typing import Annotated, Any

from fastapi import Depends, FastAPI, HTTPException, Request, Response, Security
from fastapi.exceptions import RequestValidationError
from fastapi.security import APIKeyHeader, HTTPAuthorizationCredentials, HTTPBearer
from prometheus_client import CONTENT_TYPE_LATEST
from pydantic_core import to_json
from starlette.exceptions import HTTPException as AnyHTTPException
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from recsys.errors import InputError, one_line
from recsys.folders.manifest import library_version
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
_PROBLEM = {"model": Problem, "description": "Why there is no answer, in one line."}
_PROBLEMS: dict[int | str, dict[str, Any]] = {"4XX": _PROBLEM, "5XX": _PROBLEM}
_QUIET_PATHS = frozenset({"/healthz", "/readyz", "/metrics"})
"""The paths that are asked for all the time, and logged only if they fail."""


def make_app(service: Service) -> FastAPI:
    """Return the application of a service; it starts and stops the thread of the model."""

    @asynccontextmanager
    async def life(_: FastAPI) -> AsyncIterator[None]:
        service.answering = asyncio.create_task(service.answer_all())
        tasks = service.answering, asyncio.create_task(service.watch())
        if threading.current_thread() is threading.main_thread():
            asyncio.get_running_loop().add_signal_handler(signal.SIGHUP, service.reload)
        yield
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    app = FastAPI(
        title="recsys",
        version=library_version(),
        description=_ABOUT,
        lifespan=life,
        redoc_url=None,
        telemetry=None,
    )
    app.add_middleware(_watched, service=service)
    for kind in (InputError, AnyHTTPException, RequestValidationError, Exception):
        app.add_exception_handler(kind, _refuse)
    key = service.settings.api_key
    _add_paths(app, service, [] if key is None else [Depends(_key_check(key))])
    return app


def _add_paths(app: FastAPI, service: Service, closed: list[Any]) -> None:
    post = partial(app.post, dependencies=closed, responses=_PROBLEMS, tags=["questions"])
    get = partial(app.get, responses=_PROBLEMS, tags=["operation"])

    async def answer(question: str, asked: object) -> Response:
        found = await service.ask(question, asked)
        # A score of −∞, of an item that is never recommended, becomes null.
        return Response(to_json(found, inf_nan_mode="null"), media_type="application/json")

    @post("/v1/recommend", summary="The best items of a user", response_model=Items)
    async def recommend(asked: RecommendRequest) -> Response:
        return await answer("recommend", asked)

    @post("/v1/score", summary="The scores of given items", response_model=Items)
    async def score(asked: ScoreRequest) -> Response:
        return await answer("score", asked)

    @post("/v1/similar", summary="The most similar items", response_model=SimilarItems)
    async def similar(asked: SimilarRequest) -> Response:
        return await answer("similar", asked)

    @post("/v1/explain", summary="The parts of a score", response_model=Explanation)
    async def explain(asked: ExplainRequest) -> Response:
        return await answer("explain", asked)

    @get("/healthz", summary="Whether the process is alive")
    async def alive() -> dict[str, str]:  # while the last requests are answered, too
        return {"status": "ok"}

    @get("/readyz", summary="Whether requests are answered")
    async def ready() -> dict[str, str]:
        service.check_running()
        return await alive()

    text: dict[int | str, Any] = {200: {"content": {"text/plain": {}}}, **_PROBLEMS}

    @get("/metrics", dependencies=closed, response_class=Response, responses=text)
    async def metrics() -> Response:
        return Response(service.metrics.page(), media_type=CONTENT_TYPE_LATEST)


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


def _watched(app: ASGIApp, service: Service) -> ASGIApp:
    """Return an application that bounds the body of every request, counts and logs it."""
    most, metrics = service.settings.body_bytes, service.metrics

    async def handle(scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":  # an event of the server's life
            await app(scope, receive, send)
            return
        size, status, began = 0, 500, time.monotonic()

        async def bounded() -> Message:
            nonlocal size, began
            message = await receive()
            size += len(message.get("body", b""))
            if size > most:
                raise HTTPException(413, f"the body is larger than {most} bytes")
            began = time.monotonic()
            return message

        async def counted(message: Message) -> None:
            nonlocal status
            status = message.get("status", status)
            await send(message)

        try:
            await app(scope, bounded, counted)
        finally:
            seconds = time.monotonic() - began
            path = getattr(scope.get("route"), "path", "other")
            metrics.requests.labels(path, str(status)).inc()
            metrics.seconds.labels(path).observe(seconds)
            if scope["path"] not in _QUIET_PATHS or status >= 500:
                facts = {"method": scope["method"], "path": path, "status": status}
                logger.info("request", extra={FACTS: {**facts, "ms": round(seconds * 1_000, 2)}})

    return handle


async def _refuse(_: Request, error: Exception) -> Response:
    """Return the one line of an error, with its status."""
    status, line = 500, "the server failed; its log says where"
    headers: Mapping[str, str] | None = None
    if isinstance(error, InputError):
        status, line = 422, str(error)
    elif isinstance(error, AnyHTTPException):
        status, line, headers = error.status_code, str(error.detail), error.headers
    elif isinstance(error, RequestValidationError):
        first = error.errors()[0]
        status, line = 422, rule_broken(error.errors())
        if first["type"] == "json_invalid":
            status, line = 400, f"the body is not JSON: {first['ctx']['error']}"
    problem = Problem(error=one_line(line, 500)).model_dump_json()
    return Response(problem, status, headers, media_type="application/json")
