"""The server as a process: its socket, its signals and its logs."""

from __future__ import annotations

import logging
import signal
import socket
from types import FrameType

import uvicorn

from recsys.server.app import make_app
from recsys.server.logs import say_serving, write_json_lines
from recsys.server.served_model import ServedModel
from recsys.server.service import Service
from recsys.server.settings import ServerSettings
from recsys.server.sockets import GRACE, listen

logger = logging.getLogger(__name__)


def serve(settings: ServerSettings, host: str, port: int, threads: int) -> None:
    """Serve until SIGTERM or SIGINT; then answer what was asked, and return.

    Raises:
        InputError: the model cannot be opened, or the address cannot be listened on.
    """
    model = ServedModel.load(settings.bundle, settings)
    with listen(host, port) as place:
        write_json_lines()
        key = settings.api_key is not None
        say_serving(place, model.bundle.num_items, threads, workers=1, key=key)
        answer(settings, model, place, threads)
    logger.info("ended")


def answer(
    settings: ServerSettings, model: ServedModel, place: socket.socket, threads: int
) -> None:
    """Answer requests at a listening socket until a signal ends it."""
    server = uvicorn.Server(
        uvicorn.Config(
            make_app(Service(settings, model, threads)),
            log_config=None,
            access_log=False,
            server_header=False,
            timeout_graceful_shutdown=GRACE,
        )
    )

    def end(number: int, frame: FrameType | None) -> None:
        server.should_exit = True

    # A signal may come before uvicorn listens to signals; and when it has shut down, uvicorn raises
    # those again that it got: neither is a kill.
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, end)
    server.run(sockets=[place])
