"""Several processes that answer at one port, and the one that watches over them."""

from __future__ import annotations

import logging
import multiprocessing
import os
import signal
import tempfile
import threading
import time
from contextlib import suppress
from dataclasses import dataclass, field
from multiprocessing.connection import Connection, wait
from multiprocessing.context import SpawnProcess
from types import FrameType

from prometheus_client.multiprocess import mark_process_dead

from recsys.errors import InputError
from recsys.server.logs import FACTS, say_serving, write_json_lines
from recsys.server.settings import ServerSettings
from recsys.server.sockets import GRACE, listen_beside, reserve

logger = logging.getLogger(__name__)

_FOLDER = "PROMETHEUS_MULTIPROC_DIR"
"""Where workers share their metrics; prometheus-client reads it when it is imported."""
_PAUSE = 1.0
"""Seconds before a worker that died takes its place again: it may die of the same at once."""
_SPAWN = multiprocessing.get_context("spawn")  # torch's threads do not survive a fork


def serve_with_workers(
    settings: ServerSettings, host: str, port: int, threads: int, workers: int
) -> None:
    """Serve with several processes until SIGTERM or SIGINT; then let them end in good order.

    Each worker has the model, and follows its folder, by itself. One that dies is replaced. SIGHUP
    is handed on to all.

    Args:
        settings: what they serve, and how.
        host: the address.
        port: the port that they share; 0 for any free one.
        threads: the threads of torch of each.
        workers: their number.

    Raises:
        InputError: the model cannot be opened, or the address cannot be listened on.
    """
    with reserve(host, port) as place, tempfile.TemporaryDirectory(prefix="recsys-") as folder:
        os.environ[_FOLDER] = folder  # the workers inherit it
        work = _Work(settings, host, place.getsockname()[1], threads)
        team = _Team(work)
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, team.end)
        signal.signal(signal.SIGHUP, team.hand_on)
        try:
            items = team.start(workers)
            write_json_lines()
            say_serving(place, items, threads, workers, key=settings.api_key is not None)
            team.watch()
        except InputError:
            if not team.ending:  # else the workers ended because they were told to
                raise
        finally:
            team.close()
    logger.info("ended")


@dataclass(frozen=True, slots=True)
class _Work:
    """What each worker does."""

    settings: ServerSettings
    host: str
    port: int
    threads: int


@dataclass(slots=True, eq=False)
class _Worker:
    """A process, and the line on which it says that it answers."""

    process: SpawnProcess
    line: Connection

    @classmethod
    def start(cls, work: _Work) -> _Worker:
        """Start a process, which opens the model."""
        line, its_line = _SPAWN.Pipe()
        process = _SPAWN.Process(target=_answer, args=(work, its_line), name="recsys-worker")
        process.start()
        its_line.close()
        return cls(process, line)

    def wait_until_ready(self) -> int:
        """Return the size of the catalogue once the worker listens.

        Raises:
            InputError: it cannot.
        """
        try:
            found = self.line.recv()
        except (EOFError, OSError):
            self.process.join()
            found = f"a worker ended before it listened, with status {self.process.exitcode}"
        if isinstance(found, str):
            raise InputError(found)
        return int(found)

    def refusal(self) -> str | None:
        """Return why an ended worker could not listen; None if it did."""
        try:
            found = self.line.recv() if self.line.poll() else None
        except (EOFError, OSError):
            return None
        return found if isinstance(found, str) else None

    def send(self, number: int) -> None:
        """Send a signal, unless it has ended."""
        if self.process.is_alive() and self.process.pid is not None:
            os.kill(self.process.pid, number)


@dataclass(slots=True, eq=False)
class _Team:
    """The workers of one port."""

    work: _Work
    workers: list[_Worker] = field(default_factory=list)
    ending: bool = False

    def start(self, count: int) -> int:
        """Start the workers; return the size of the catalogue once all of them listen.

        Raises:
            InputError: one of them cannot.
        """
        for _ in range(count):
            self.workers.append(_Worker.start(self.work))
        return max(worker.wait_until_ready() for worker in self.workers)

    def watch(self) -> None:
        """Replace workers that die, until told to end."""
        while not self.ending:
            died = wait([worker.process.sentinel for worker in self.workers], timeout=0.5)
            for place, worker in enumerate(self.workers):
                if worker.process.sentinel in died and not self.ending:
                    self._replace(place, worker)

    def end(self, number: int, frame: FrameType | None) -> None:
        """Have all workers answer what they have, and end."""
        self.ending = True
        self.hand_on(signal.SIGTERM, frame)

    def hand_on(self, number: int, frame: FrameType | None) -> None:
        """Send a signal to all workers."""
        for worker in self.workers:
            worker.send(number)

    def close(self) -> None:
        """Wait for all workers to end; kill those that do not."""
        self.end(signal.SIGTERM, None)
        until = time.monotonic() + GRACE + 5
        for worker in self.workers:
            worker.process.join(max(0.0, until - time.monotonic()))
            if worker.process.is_alive():
                worker.process.kill()
                worker.process.join()
            worker.line.close()

    def _replace(self, place: int, worker: _Worker) -> None:
        worker.process.join()
        facts = {"status": worker.process.exitcode, "reason": worker.refusal()}
        logger.error("a worker ended; another takes its place", extra={FACTS: facts})
        mark_process_dead(worker.process.pid)  # type: ignore[no-untyped-call]
        worker.line.close()
        time.sleep(_PAUSE)
        if not self.ending:
            self.workers[place] = _Worker.start(self.work)
        if self.ending:  # the signal came while it was being started
            self.workers[place].send(signal.SIGTERM)


def _answer(work: _Work, line: Connection) -> None:
    """Be a worker: open the model, say so, and answer."""
    threading.Thread(target=_end_with, args=(line,), daemon=True).start()
    # Here, since the process that watches over the workers needs neither torch nor FastAPI.
    from recsys.server.process import answer  # noqa: PLC0415
    from recsys.server.served_model import ServedModel  # noqa: PLC0415

    os.setpgrp()  # a Ctrl-C is for the process that watches, which ends the workers in good order
    signal.signal(signal.SIGHUP, signal.SIG_IGN)  # until the application can load again
    write_json_lines()
    try:
        model = ServedModel.load(work.settings.bundle, work.settings)
        place = listen_beside(work.host, work.port)
        line.send(model.bundle.num_items)
    except InputError as error:
        with suppress(BrokenPipeError):
            line.send(str(error))
        return
    except BrokenPipeError:  # nobody watches over it any more
        return
    with place:
        answer(work.settings, model, place, work.threads)


def _end_with(line: Connection) -> None:
    """End this process in good order when the one that watches over it is gone."""
    try:
        line.recv()
    except (EOFError, OSError):
        os.kill(os.getpid(), signal.SIGTERM)
