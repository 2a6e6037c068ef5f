"""The thread that owns the model: it answers what is asked together, one batch after the other."""

from __future__ import annotations

import asyncio
import threading
import time
from collections import deque
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch


class QueueFullError(Exception):
    """Too many requests wait for the model."""


class StoppedError(Exception):
    """The server is shutting down."""


def _new_future() -> asyncio.Future[Any]:
    return asyncio.get_running_loop().create_future()


@dataclass(frozen=True, slots=True, eq=False)
class Job:
    """A question, and how to answer it together with others of its key."""

    key: Hashable
    """Jobs of equal keys are answered together, by the function of the first of them."""
    query: Any
    answer: Callable[[Sequence[Any]], Sequence[Any]]
    """Queries [N] to answers [N]."""
    future: asyncio.Future[Any] = field(default_factory=_new_future)
    asked: float = field(default_factory=time.monotonic)
    """When, in seconds of the monotonic clock."""


@dataclass(frozen=True, slots=True)
class Batch:
    """What one call of the model took, for the metrics."""

    key: Hashable
    size: int
    """The number of jobs."""
    seconds: float
    waited: float
    """How long the oldest job waited in the queue, in seconds."""


class ModelThread:
    """Answers jobs in a thread of its own, in batches, in the order in which they came.

    A batch waits for as many jobs as the one before it had, but at most ``gather_ms``: while few
    ask, nobody waits, and while many do, jobs that come within moments share a pass of the model.

    Args:
        gather_ms: how long a batch waits at most, in milliseconds.
        largest: the largest number of jobs that are answered together.
        most_waiting: the number of jobs that may wait.
        threads: the threads of torch.
        observe: is called with each batch, in the thread.
    """

    def __init__(
        self,
        *,
        gather_ms: float,
        largest: int,
        most_waiting: int,
        threads: int | None = None,
        observe: Callable[[Batch], object] = lambda batch: None,
    ) -> None:
        self._gather = gather_ms / 1_000
        self._largest = largest
        self._most_waiting = most_waiting
        self._threads = threads
        self._observe = observe
        self._jobs: deque[Job] = deque()
        self._changed = threading.Condition()
        self._stopping = False
        self._expected = 1
        self._thread = threading.Thread(target=self._run, name="recsys-model", daemon=True)

    def start(self) -> None:
        """Begin to answer."""
        self._thread.start()

    def stop(self) -> None:
        """Answer what waits, then end."""
        with self._changed:
            self._stopping = True
            self._changed.notify()
        if self._thread.is_alive():
            self._thread.join()

    @property
    def waiting(self) -> int:
        """The number of jobs that wait."""
        return len(self._jobs)

    def check_running(self) -> None:
        """Return if the thread answers.

        Raises:
            StoppedError: it is stopping.
        """
        if self._stopping or not self._thread.is_alive():
            raise StoppedError

    async def ask(self, *jobs: Job) -> list[Any]:
        """Wait for the answers of jobs, in their order; all of them are taken, or none.

        Raises:
            QueueFullError: too many jobs wait.
            StoppedError: the thread is stopping.
            Exception: what answering the first failed job raised.
        """
        with self._changed:
            if self._stopping:
                raise StoppedError
            if len(self._jobs) + len(jobs) > self._most_waiting:
                raise QueueFullError
            self._jobs.extend(jobs)
            self._changed.notify()
        answers = await asyncio.gather(*(job.future for job in jobs), return_exceptions=True)
        for answer in answers:
            if isinstance(answer, BaseException):
                raise answer
        return answers

    def _run(self) -> None:
        if self._threads is not None:
            torch.set_num_threads(self._threads)
        while batch := self._next():
            by_key: dict[Hashable, list[Job]] = {}
            for job in batch:
                by_key.setdefault(job.key, []).append(job)
            for jobs in by_key.values():
                self._answer(jobs)

    def _next(self) -> list[Job]:
        """Wait for the next batch; it is empty if the thread is to end."""
        with self._changed:
            while not self._jobs and not self._stopping:
                self._changed.wait()
            until = time.monotonic() + self._gather
            while len(self._jobs) < self._expected and not self._stopping:
                if (left := until - time.monotonic()) <= 0:
                    break
                self._changed.wait(left)
            size = min(len(self._jobs), self._largest)
            self._expected = max(1, size)
            return [self._jobs.popleft() for _ in range(size)]

    def _answer(self, jobs: Sequence[Job]) -> None:
        """Answer jobs of one key; if that fails, one by one, so that each fails for itself."""
        begin = time.monotonic()
        try:
            results = list(jobs[0].answer([job.query for job in jobs]))
        except Exception as error:  # noqa: BLE001 - whoever asked gets it
            if len(jobs) > 1:
                for job in jobs:
                    self._answer([job])
                return
            _tell(jobs, [error])
        else:
            _tell(jobs, results)
        waited = begin - min(job.asked for job in jobs)
        self._observe(Batch(jobs[0].key, len(jobs), time.monotonic() - begin, waited))


def _tell(jobs: Sequence[Job], results: Sequence[Any]) -> None:
    """Hand results to those who asked, in their event loop; all at once, since that wakes it."""
    loop = jobs[0].future.get_loop()
    loop.call_soon_threadsafe(_settle, jobs, results)


def _settle(jobs: Sequence[Job], results: Sequence[Any]) -> None:
    for job, result in zip(jobs, results, strict=True):
        if job.future.done():  # whoever asked has gone
            continue
        if isinstance(result, Exception):
            job.future.set_exception(result)
        else:
            job.future.set_result(result)
