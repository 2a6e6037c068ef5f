"""The paths of the server, as a FastAPI application behind its gate."""

from __future__ import annotations

import asyncio
import signal
import threading
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from typing import Any

from fastapi import APIRouter, FastAPI, Request, Response
from fastapi.exceptions import RequestValidationError
from prometheus_client import CONTENT_TYPE_LATEST
from pydantic import BaseModel
from starlette.exceptions import HTTPException

from recsys.errors import InputError, one_line
from recsys.folders.manifest import library_version
from recsys.server.gate import Gate
from recsys.server.model_thread import QueueFullError, StoppedError
from recsys.server.replacement import Replacement
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
from recsys.server.service import Service

_ABOUT = """Next-item recommendations, scores and explanations from a trained bundle.

A user is given by a `history` (item ids, oldest first), by rows of the raw `log`, or by the
`user_id` of a prepared dataset, with what is new as `history`. Every error is
`{"error": "one line"}`."""
PROBLEMS: dict[int | str, dict[str, Any]] = {
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


def make_app(service: Service) -> Gate:
    """Return the application of a service; it starts and stops the thread of the model."""

    @asynccontextmanager
    async def life(_: FastAPI) -> AsyncIterator[None]:
        service.thread.start()
        replacement = Replacement(service)
        watch = asyncio.create_task(replacement.watch())
        if hasattr(signal, "SIGHUP") and threading.current_thread() is threading.main_thread():
            asyncio.get_running_loop().add_signal_handler(signal.SIGHUP, replacement.ask)
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
    app.include_router(_questions(service))
    app.include_router(_health(service))
    for kind, status in ((InputError, 422), (QueueFullError, 429), (StoppedError, 503)):
        app.add_exception_handler(kind, _refusal(status))
    app.add_exception_handler(RequestValidationError, _invalid)
    app.add_exception_handler(HTTPException, _http_error)
    app.add_exception_handler(Exception, _broken)
    settings = service.settings
    return Gate(app, settings.limits, settings.api_key, service.metrics)


def _questions(service: Service) -> APIRouter:
    """The questions that users of recsys know from Python."""
    router = APIRouter(prefix="/v1", tags=["questions"], responses=PROBLEMS)

    @router.post("/recommend", response_model=Recommendations, summary="The best items of a user")
    async def recommend(asked: RecommendRequest) -> Response:
        return json_of(await service.recommend(asked))

    @router.post("/score", response_model=Scores, summary="The scores of given items")
    async def score(asked: ScoreRequest) -> Response:
        return json_of(await service.score(asked))

    @router.post("/similar", response_model=SimilarItems, summary="The most similar items")
    async def similar(asked: SimilarRequest) -> Response:
        return json_of(await service.similar(asked))

    @router.post("/explain", response_model=Explanation, summary="The parts of a score")
    async def explain(asked: ExplainRequest) -> Response:
        return json_of(await service.explain(asked))

    return router


def _health(service: Service) -> APIRouter:
    router = APIRouter(tags=["operation"])

    @router.get("/healthz", summary="Whether the process is alive")
    async def healthz() -> Health:
        return Health(status="ok")

    @router.get("/readyz", summary="Whether requests are answered", responses={503: PROBLEMS[503]})
    async def readyz() -> Health:
        service.thread.check_running()
        return Health(status="ok")

    @router.get(
        "/metrics",
        summary="Metrics for Prometheus",
        response_class=Response,
        responses={200: {"content": {"text/plain": {}}}, 401: PROBLEMS[401]},
    )
    async def metrics() -> Response:
        return Response(service.metrics.page(), media_type=CONTENT_TYPE_LATEST)

    return router


def json_of(answer: BaseModel) -> Response:
    """Return an answer as it is, without validating it again."""
    return Response(answer.model_dump_json(), media_type="application/json")


def _problem(status: int, line: str, headers: dict[str, str] | None = None) -> Response:
    problem = Problem(error=one_line(line, 500)).model_dump_json()
    return Response(problem, status, headers, media_type="application/json")


def _refusal(status: int) -> Any:
    async def refuse(_: Request, error: Exception) -> Response:
        if status == 429:
            line, headers = "too many requests wait: try again in a second", {"retry-after": "1"}
            return _problem(status, line, headers)
        return _problem(status, str(error) or "the server is shutting down")

    return refuse


async def _invalid(_: Request, error: Exception) -> Response:
    """Name the first wrong field and its rule."""
    assert isinstance(error, RequestValidationError)  # noqa: S101 - it is registered for these
    wrong = error.errors()
    if wrong[0]["type"] == "json_invalid":
        return _problem(400, f"the body is not JSON: {wrong[0]['ctx']['error']}")
    return _problem(422, rule_broken(wrong))


async def _http_error(_: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)  # noqa: S101 - it is registered for these
    headers = None if error.headers is None else dict(error.headers)
    return _problem(error.status_code, str(error.detail).lower(), headers)


async def _broken(_: Request, error: Exception) -> Response:
    return _problem(500, "the server failed; its log says where")
