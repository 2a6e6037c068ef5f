"""The thread that owns the model: it answers what is asked together, one batch after the other."""

from __future__ import annotations

import asyncio
import threading
import time
from collections import deque
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from fastapi import HTTPException

_BATCH = 64
"""The largest number of requests that are answered together."""
Answer = Callable[[Sequence[Any]], Sequence[Any]]
"""Queries [N] to answers [N]."""


@dataclass(frozen=True, slots=True, eq=False)
class _Job:
    key: Hashable
    query: Any
    answer: Answer
    future: asyncio.Future[Any]


class ModelThread:
    """Answers in a thread of its own, in batches, in the order in which requests came.

    A batch waits for as many requests as the one before it had, but at most ``gather_ms``: a
    request that comes alone never waits, and those that come within moments share a pass.
    ``observe`` is called with the key of each batch that was answered, its size, and the seconds
    that it took.
    """

    def __init__(
        self,
        gather_ms: float,
        most_waiting: int,
        threads: int | None,
        observe: Callable[[Any, int, float], object],
    ) -> None:
        self._gather = gather_ms / 1_000
        self._most_waiting = most_waiting
        self._threads = threads
        self.observe = observe
        self.jobs: deque[_Job] = deque()
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

    def check_running(self) -> None:
        """Raise an `HTTPException` (503) unless requests are answered."""
        if self._stopping or not self._thread.is_alive():
            raise HTTPException(503, "the server is shutting down")

    async def ask(self, key: Hashable, query: Any, answer: Answer) -> Any:
        """Wait for the answer to a query, which is answered together with others of its key.

        Raises:
            HTTPException: too many requests wait (429), or the thread is stopping (503).
        """
        job = _Job(key, query, answer, asyncio.get_running_loop().create_future())
        with self._changed:
            self.check_running()
            if len(self.jobs) >= self._most_waiting:
                line = "too many requests wait: try again in a second"
                raise HTTPException(429, line, {"retry-after": "1"})
            self.jobs.append(job)
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
            self._changed.wait_for(lambda: self.jobs or self._stopping)
            self._changed.wait_for(
                lambda: len(self.jobs) >= self._expected or self._stopping, self._gather
            )
            size = min(len(self.jobs), _BATCH)
            self._expected = max(1, size)
            return [self.jobs.popleft() for _ in range(size)]

    def _answer(self, jobs: Sequence[_Job]) -> None:
        began = time.monotonic()
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
        self.observe(jobs[0].key, len(jobs), time.monotonic() - began)


def _settle(jobs: Sequence[_Job], results: Sequence[Any]) -> None:
    for job, result in zip(jobs, results, strict=True):
        if job.future.done():  # whoever asked has gone
            continue
        if isinstance(result, Exception):
            job.future.set_exception(result)
        else:
            job.future.set_result(result)
