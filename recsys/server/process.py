"""The server as a process, or as several that uvicorn watches over: sockets and signals."""

import logging
import multiprocessing
import os
import signal
import socket
import sys
import tempfile
import threading
from functools import partial
from pathlib import Path
from typing import Any

import uvicorn
from fastapi import FastAPI
from prometheus_client.multiprocess import mark_process_dead
from uvicorn.config import STARTUP_FAILURE
from uvicorn.supervisors import Multiprocess

from recsys.errors import InputError
from recsys.loading import open_bundle
from recsys.machine import usable_processors
from recsys.server.app import make_app
from recsys.server.service import ServedModel, ServerSettings, Service
from recsys.server.telemetry import FACTS, SHARED_METRICS, write_json_lines

logger = logging.getLogger(__name__)

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
            answer(service, listener)
        else:
            _watch_over_workers(settings, listener, threads, workers)
    logger.info("ended")


def answer(service: Service, listener: socket.socket) -> None:
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
        for worker in self.processes:
            worker.child_conn.close()
        super().keep_subprocess_alive()


def _worker(settings: ServerSettings, threads: int) -> FastAPI:
    """Return the application of a worker, in its own process."""
    write_json_lines()
    threading.Thread(target=_end_with_parent, daemon=True).start()
    for file in Path(os.environ[SHARED_METRICS]).glob("gauge_live*_*.db"):
        number = int(file.stem.rpartition("_")[2])
        try:
            os.kill(number, 0)
        except OSError:  # nobody's, or another user's by now
            mark_process_dead(number)  # type: ignore[no-untyped-call]
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
    except OSError as error:
        raise InputError(f"--host {host} --port {port}: cannot listen there: {error}") from error
