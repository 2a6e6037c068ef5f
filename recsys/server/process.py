"""The server as a process: its socket, its signals and its logs."""

from __future__ import annotations

import logging
import signal
import socket
from types import FrameType

import uvicorn

from recsys.errors import InputError
from recsys.server.app import make_app
from recsys.server.logs import FACTS, write_json_lines
from recsys.server.served_model import ServedModel
from recsys.server.service import Service
from recsys.server.settings import ServerSettings

logger = logging.getLogger(__name__)

_GRACE = 30
"""Seconds that open requests have to end after a SIGTERM."""


def listen(host: str, port: int) -> socket.socket:
    """Return a listening socket; port 0 is any free one.

    Raises:
        InputError: the address cannot be listened on.
    """
    try:
        family, *_, address = socket.getaddrinfo(
            host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
        # By name, since asyncio sends without delay (TCP_NODELAY) only where it sees the protocol:
        # without, each answer waits 40 ms for an acknowledgement.
        place = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
        place.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        place.bind(address)
        place.listen(2048)
    except OSError as error:
        reason = error.strerror or error
        raise InputError(f"--host {host} --port {port}: cannot listen there: {reason}") from error
    return place


def serve(settings: ServerSettings, host: str, port: int, threads: int) -> None:
    """Serve until SIGTERM or SIGINT; then answer what was asked, and return.

    Raises:
        InputError: the model cannot be opened, or the address cannot be listened on.
    """
    model = ServedModel.load(settings.bundle, settings)
    service = Service(settings, model, threads)
    with listen(host, port) as place:
        write_json_lines()
        bound = place.getsockname()
        facts = {
            "host": bound[0],
            "port": bound[1],
            "items": model.bundle.num_items,
            "threads": threads,
            "key": settings.api_key is not None,
        }
        logger.info("serving", extra={FACTS: facts})
        server = uvicorn.Server(
            uvicorn.Config(
                make_app(service),
                log_config=None,
                access_log=False,
                server_header=False,
                timeout_graceful_shutdown=_GRACE,
            )
        )
        # uvicorn raises the signal again when it has shut down: an orderly end is not a kill.
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, _nothing)
        server.run(sockets=[place])
    logger.info("ended")


def _nothing(number: int, frame: FrameType | None) -> None:
    """Let the process go on to its end."""
