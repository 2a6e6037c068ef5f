"""The server: its paths, as a FastAPI application, and its processes: sockets and signals."""

import asyncio
import hmac
import logging
import multiprocessing
import os
import signal
import socket
import sys
import tempfile
import threading
import time
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from functools import partial
from typing import Annotated, Any

import uvicorn
from fastapi import Depends, FastAPI, HTTPException, Request, Response, Security
from fastapi.exceptions import RequestValidationError
from fastapi.security import APIKeyHeader, HTTPAuthorizationCredentials, HTTPBearer
from prometheus_client import CONTENT_TYPE_LATEST
from prometheus_client.multiprocess import mark_process_dead
from pydantic_core import to_json
from starlette.exceptions import HTTPException as AnyHTTPException
from starlette.types import ASGIApp, Message, Receive, Scope, Send
from uvicorn.config import STARTUP_FAILURE
from uvicorn.supervisors import Multiprocess

from recsys.errors import InputError, one_line
from recsys.folders import library_version
from recsys.loading import open_bundle
from recsys.machine import usable_processors
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
from recsys.server.service import ServedModel, ServerSettings, Service
from recsys.server.telemetry import FACTS, SHARED_METRICS, write_json_lines

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


# --- Processes: one, or several that uvicorn watches over -----------------------------------------

_OPTIONS: dict[str, Any] = {
    "log_config": None,
    "access_log": False,
    "server_header": False,
    "timeout_graceful_shutdown": 30,
}
_LOADING_SECONDS = 600
"""What a worker has to load its model, and to say that it is alive."""


def serve(
    settings: ServerSettings, host: str, port: int, threads: int | None = None, workers: int = 1
) -> None:
    """Serve until SIGTERM or SIGINT; then answer what was asked, and return.

    Several workers are uvicorn's: each has a model of its own, one that dies is replaced, and on
    SIGHUP one after the other is. Each has so many ``threads`` of torch; by default workers divide
    the cores, and one process alone leaves a core to HTTP. Port 0 is any free one.

    Raises:
        InputError: the model cannot be opened, or the address cannot be listened on.
    """
    threads = threads or max(1, usable_processors() // workers - (workers == 1))
    # Nothing here keeps a model that is replaced, or that each of several workers has.
    service = Service(ServedModel.load(settings), threads) if workers == 1 else None
    items = (service.model.bundle if service else open_bundle(settings.bundle)).num_items
    with listen(host, port) as listener:
        write_json_lines()
        host, port = listener.getsockname()[:2]
        facts = {"host": host, "port": port, "items": items, "threads": threads}
        facts |= {"workers": workers, "key": settings.api_key is not None}
        logger.info("serving", extra={FACTS: facts})
        if service is not None:
            _run_alone(service, listener)
        else:
            _watch_over_workers(settings, listener, threads, workers)
    logger.info("ended")


def _run_alone(service: Service, listener: socket.socket) -> None:
    """Answer requests at a listening socket until a signal ends it."""
    server = uvicorn.Server(uvicorn.Config(make_app(service), **_OPTIONS))
    # A signal may come before uvicorn listens to signals; and when it has shut down, uvicorn raises
    # those again that it got: neither is a kill.
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: setattr(server, "should_exit", True))
    server.run(sockets=[listener])


def _watch_over_workers(
    settings: ServerSettings, listener: socket.socket, threads: int, workers: int
) -> None:
    """Run several workers until a signal ends them."""
    logging.getLogger("uvicorn.error").setLevel(logging.INFO)  # a worker that died, or is replaced
    with tempfile.TemporaryDirectory(prefix="recsys-") as folder:
        os.environ[SHARED_METRICS] = folder  # the workers inherit it
        worker = partial(_worker, settings, threads)
        waits: dict[str, Any] = {"timeout_worker_healthcheck": _LOADING_SECONDS}
        config = uvicorn.Config(worker, factory=True, workers=workers, **_OPTIONS, **waits)
        team = _Team(config, sockets=[listener])
        team.run()
    if any(worker.exitcode == STARTUP_FAILURE for worker in team.processes):
        raise InputError(f"{settings.bundle}: a worker could not start: its log says why")


class _Team(Multiprocess):
    def keep_subprocess_alive(self) -> None:
        """Replace workers that died; that one did is not seen while its end of the pipe is open."""
        for worker in (before := [*self.processes]):
            worker.child_conn.close()
        super().keep_subprocess_alive()
        for worker in before:
            if worker.exitcode is not None:
                mark_process_dead(worker.pid)  # type: ignore[no-untyped-call]


def _worker(settings: ServerSettings, threads: int) -> FastAPI:
    """Return the application of a worker, in its own process."""
    write_json_lines()
    threading.Thread(target=_end_with_parent, daemon=True).start()
    try:
        return make_app(Service(ServedModel.load(settings), threads))
    except InputError as error:
        logger.error("the model cannot be loaded", extra={FACTS: {"reason": str(error)}})
        sys.exit(STARTUP_FAILURE)


def _end_with_parent() -> None:
    """End this worker in good order when the process that watches over it is gone."""
    parent = multiprocessing.parent_process()
    if parent is not None:
        parent.join()
        os.kill(os.getpid(), signal.SIGTERM)


def listen(host: str, port: int) -> socket.socket:
    """Return a listening socket; port 0 is any free one."""
    try:
        addresses = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
        family, *_, address = addresses[0]
        # By name, since asyncio sends without delay (TCP_NODELAY) only where it sees the protocol:
        # without, each answer waits 40 ms for an acknowledgement.
        with socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP) as listener:
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            listener.bind(address)
            listener.listen(2048)
            return listener.dup()
    except (OSError, UnicodeError) as error:  # a name that cannot be one
        raise InputError(f"--host {host} --port {port}: cannot listen there: {error}") from error
