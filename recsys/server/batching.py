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

Answer = Callable[[Sequence[Any]], Sequence[Any]]
"""Queries [N] to answers [N]."""


class QueueFullError(Exception):
    """Too many requests wait for the model."""


class StoppedError(Exception):
    """The server is shutting down."""


@dataclass(frozen=True, slots=True, eq=False)
class _Job:
    key: Hashable
    query: Any
    answer: Answer
    future: asyncio.Future[Any]
    asked: float = field(default_factory=time.monotonic)


class ModelThread:
    """Answers in a thread of its own, in batches, in the order in which requests came.

    A batch waits for as many requests as the one before it had, but at most ``gather_ms``: a
    request that comes alone never waits, and those that come within moments share a pass.

    Args:
        gather_ms: milliseconds that a batch waits at most.
        largest: the largest number of requests that are answered together.
        most_waiting: the number of requests that may wait.
        threads: the threads of torch; its default if None.
        observe: is called, in the thread, with the key of each batch that was answered, its size,
            the seconds that it took, and those that its oldest request had waited.
    """

    def __init__(
        self,
        *,
        gather_ms: float,
        largest: int,
        most_waiting: int,
        threads: int | None = None,
        observe: Callable[[Any, int, float, float], object] = lambda *_: None,
    ) -> None:
        self._gather = gather_ms / 1_000
        self._largest = largest
        self._most_waiting = most_waiting
        self._threads = threads
        self.observe = observe
        self._jobs: deque[_Job] = deque()
        self._changed = threading.Condition()
        self._stopping = False
        self._expected = 1
        self._thread = threading.Thread(target=self._run, name="recsys-model", daemon=True)
        self.start = self._thread.start

    def stop(self) -> None:
        """Answer what waits, then end."""
        with self._changed:
            self._stopping = True
            self._changed.notify()
        if self._thread.is_alive():
            self._thread.join()

    @property
    def waiting(self) -> int:
        """The number of requests that wait."""
        return len(self._jobs)

    @property
    def is_running(self) -> bool:
        """Whether requests are answered."""
        return self._thread.is_alive() and not self._stopping

    async def ask(self, key: Hashable, query: Any, answer: Answer) -> Any:
        """Wait for the answer to a query, which is answered together with others of its key.

        Raises:
            QueueFullError: too many requests wait.
            StoppedError: the thread is stopping.
            Exception: what answering this query raised.
        """
        job = _Job(key, query, answer, asyncio.get_running_loop().create_future())
        with self._changed:
            if self._stopping:
                raise StoppedError
            if len(self._jobs) >= self._most_waiting:
                raise QueueFullError
            self._jobs.append(job)
            self._changed.notify()
        return await job.future

    def _run(self) -> None:
        if self._threads is not None:
            torch.set_num_threads(self._threads)
        while batch := self._next():
            by_key: dict[Hashable, list[_Job]] = {}
            for job in batch:
                by_key.setdefault(job.key, []).append(job)
            for jobs in by_key.values():
                self._answer(jobs)

    def _next(self) -> list[_Job]:
        """Wait for the next batch; it is empty if the thread is to end."""
        with self._changed:
            self._changed.wait_for(lambda: self._jobs or self._stopping)
            self._changed.wait_for(
                lambda: len(self._jobs) >= self._expected or self._stopping, self._gather
            )
            size = min(len(self._jobs), self._largest)
            self._expected = max(1, size)
            return [self._jobs.popleft() for _ in range(size)]

    def _answer(self, jobs: Sequence[_Job]) -> None:
        begin = time.monotonic()
        try:
            results = list(jobs[0].answer([job.query for job in jobs]))
        except Exception as error:  # noqa: BLE001 - whoever asked gets it
            if len(jobs) > 1:
                for job in jobs:
                    self._answer([job])
                return
            results = [error]
        # All at once, since each call wakes the event loop.
        jobs[0].future.get_loop().call_soon_threadsafe(_settle, jobs, results)
        now, oldest = time.monotonic(), min(job.asked for job in jobs)
        self.observe(jobs[0].key, len(jobs), now - begin, begin - oldest)


def _settle(jobs: Sequence[_Job], results: Sequence[Any]) -> None:
    for job, result in zip(jobs, results, strict=True):
        if job.future.done():  # whoever asked has gone
            continue
        if isinstance(result, Exception):
            job.future.set_exception(result)
        else:
            job.future.set_result(result)
