"""The model that answers: its thread, its batches, and its replacement by a newer one."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Hashable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import polars as pl
import torch
from fastapi import HTTPException

from recsys.config.data import Columns
from recsys.data.prepared import PreparedDataset
from recsys.errors import InputError, first_line, one_line
from recsys.folders import MANIFEST
from recsys.inference.model_scorer import StateCache
from recsys.loading import bundle_folder, is_model_name, stored_at
from recsys.server.schemas import (
    OPTIONS,
    ExplainRequest,
    Id,
    RecommendRequest,
    ScoreRequest,
    SimilarRequest,
)
from recsys.server.telemetry import FACTS, Metrics
from recsys.serving.bundle import ModelBundle
from recsys.serving.histories import UserHistories
from recsys.serving.index import open_index
from recsys.serving.raw_values import id_series
from recsys.serving.recommender import Recommender

logger = logging.getLogger(__name__)

_BATCH = 64
"""The largest number of requests that are answered together."""


@dataclass(frozen=True, slots=True)
class ServerSettings:
    """What a server serves, and how; see `recsys serve`."""

    bundle: str | Path
    """The folder of a trained model or of the run that has it, or a model's name in the store."""
    data: Path | None = None
    gather_ms: float = 4.0
    retrieve: int | None = None
    index: Path | None = None
    gpu: bool = False
    cache_bytes: int = 256 << 20
    api_key: str | None = field(default=None, repr=False)
    body_bytes: int = 1 << 20
    """The largest size of a request's body (413)."""
    queue: int = 1024
    """Requests that may wait for the model (429)."""
    reload_seconds: float | None = None
    """How often a new model is looked for; if None every 2 seconds, 30 for a name in the store."""


# --- Answers --------------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class ServedModel:
    """A recommender that was opened once, is never changed, and is replaced as a whole."""

    recommender: Recommender
    settings: ServerSettings
    state: Sequence[object]
    """The `state_of` the folders before they were read."""

    @classmethod
    def load(cls, settings: ServerSettings) -> ServedModel:
        """Open the folders, and answer once: a model that cannot answer is refused here.

        The first request is then no slower than others. A model that reads features is not asked.
        """
        state, states = state_of(settings), StateCache(settings.cache_bytes)
        folder = bundle_folder(settings.bundle)
        bundle = replace(ModelBundle.open(folder), states=states)
        if settings.gpu:
            bundle.move_to_gpu()
        index = None if settings.index is None else open_index(settings.index, bundle)
        dataset = None if settings.data is None else PreparedDataset.open(settings.data)
        model = cls(Recommender(bundle, dataset, index=index), settings, state)
        if dataset is not None:
            model.recommender.reader.read(users=dataset.user_ids[:1])
        if not bundle.encoders.input_columns:
            newest, one_item = bundle.manifest.trained_until or 0, [bundle.vocabulary.ids[:1]]
            times = None if bundle.times == "none" else [[newest]]
            users = model.recommender.read_histories(one_item, times=times)
            at, retrieve = newest if bundle.times == "request" else None, settings.retrieve
            model.recommender.recommend(users, k=1, seen="allow", at=at, retrieve=retrieve)
            states.hits = states.misses = 0  # nobody asked yet
        return model

    @property
    def bundle(self) -> ModelBundle:
        return self.recommender.bundle

    def read_log(self, rows: list[dict[str, Any]]) -> UserHistories:
        """Read the rows of a raw log of one user by the rules of the training data."""
        if not rows:
            return self.recommender.read_histories([[]])
        trained = self.bundle.experiment.data.columns or Columns()
        try:
            log = pl.DataFrame(rows, infer_schema_length=None)
        except (pl.exceptions.PolarsError, TypeError, ValueError, OverflowError) as error:
            raise InputError("log: the values of a column are not of one kind") from error
        user = trained.user_id if trained.item_id in log.columns else "user_id"
        return self.recommender.read_histories(log.with_columns(pl.lit("user").alias(user)))

    def answer(self, asked: Sequence[Any]) -> list[dict[str, Any]]:
        """Answer requests of one question, equal options and users who are given in one way."""
        first = asked[0]
        if isinstance(first, SimilarRequest):
            best = self.recommender.similar_items(first.item_id, first.k)
            return [{"items": best.select("item_id", "similarity", "rank").to_dicts()}]
        users, unknown = self._users(asked), tuple[list[Id], ...]()
        facts = [
            {"skipped": skipped, "assumed_gap": users.assumed_gap}
            for skipped in users.skipped.tolist()
        ]
        if isinstance(first, ExplainRequest):
            parts: Any = self.recommender.explain(users, first.item_id)
            rest = float(parts["rest"][0])
            score = float(parts["contribution"].sum()) + rest
            purchases = parts.select("position", "item_id", "contribution", "share").to_dicts()
            explanation = {"item_id": first.item_id, "score": score, "rest": rest}
            return [explanation | {"purchases": purchases} | facts[0]]
        options = _options(first)
        if isinstance(first, RecommendRequest):
            rows = self.recommender.recommend(users, retrieve=self.settings.retrieve, **options)
        else:
            lists, unknown = zip(*map(self._known, asked), strict=True)
            candidates = lists if len(lists) > 1 else lists[0]  # those of all users are read sooner
            rows = self.recommender.score(users, candidates, **options)
        answers: list[dict[str, Any]] = [
            {"items": [], "source": "model" if length else "popularity", **said}
            for length, said in zip(users.histories.lengths, facts, strict=True)
        ]
        for row in rows.drop("source").iter_rows(named=True):
            answers[row.pop("user_id")]["items"].append(row)
        for answer, items in zip(answers, unknown, strict=False):
            answer["unknown"] = items
        return answers

    def _users(self, asked: Sequence[Any]) -> UserHistories:
        """Read the histories of requests [B], as users 0, 1, …."""
        first, reader = asked[0], self.recommender.reader
        if (log := getattr(first, "log", None)) is not None:
            users = self.read_log(log)
        else:
            users = reader.read(
                [request.history or [] for request in asked],
                None if first.user_id is None else [request.user_id for request in asked],
                None if first.times is None else [request.times for request in asked],
            )
        users = replace(users, user_ids=pl.Series(range(len(asked))))
        at = None if first.at is None else [request.at for request in asked]
        return reader.with_request_time(users, at)

    def _known(self, asked: ScoreRequest) -> tuple[list[Id], list[Id]]:
        """Return the candidates in the catalogue, as it has them, and the others."""
        ids, catalogue = asked.candidates, self.bundle.vocabulary
        tokens = catalogue.encode(id_series(ids, "items"))
        unknown = [item for item, token in zip(ids, tokens.tolist(), strict=True) if not token]
        if len(unknown) == len(ids) or (asked.strict and unknown):
            raise InputError(f"item {one_line(repr(unknown[0]), 60)} is not in the catalogue")
        return catalogue.decode(tokens[tokens > 0]).to_list(), unknown


def _options(asked: Any) -> dict[str, Any]:
    return {name: getattr(asked, name) for name in OPTIONS if hasattr(asked, name)}


def state_of(settings: ServerSettings) -> list[object]:
    """Return what changes when a folder is replaced, or a name means another model."""
    place = stored_at(settings.bundle)
    state: list[object] = [place]
    for folder in (Path(place), Path(place, "bundle"), settings.data, settings.index):
        try:
            file = None if folder is None else (folder / MANIFEST).stat()
        except OSError:
            file = None
        state.append(file and (file.st_ino, file.st_size, file.st_mtime_ns))
    return state


# --- The service ----------------------------------------------------------------------------------


class _Job(NamedTuple):
    key: tuple[str, Hashable]
    """The question, and what requests that are answered together have in common."""
    asked: Any
    model: ServedModel
    """That of the moment when the request came: it reads and answers it."""
    future: asyncio.Future[Any]


def _answers(model: ServedModel, asked: Sequence[Any]) -> list[Any]:
    """Answer requests, or each by itself if they fail together; an error is an answer."""
    try:
        return [*model.answer(asked)]
    except BaseException as error:  # noqa: BLE001 - whoever asked gets it; polars may panic
        if len(asked) == 1:
            return [error if isinstance(error, Exception) else RuntimeError(first_line(error))]
        return [_answers(model, [request])[0] for request in asked]


class Service:
    """Answers in a thread, in batches, by a model that may be replaced between two of them.

    A batch waits for as many requests as the one before it had, but at most ``gather_ms``: a
    request that comes alone never waits, and those that come within moments share a pass.
    """

    answering: asyncio.Task[None]
    """That of `answer_all`, which the application starts and ends."""

    def __init__(self, model: ServedModel, threads: int | None = None) -> None:
        self.model, self.settings, self.metrics = model, model.settings, Metrics()
        limits = None if threads is None else partial(torch.set_num_threads, threads)
        self._thread = ThreadPoolExecutor(1, "recsys-model", limits)
        self._jobs: asyncio.Queue[_Job] = asyncio.Queue()
        self._demand, self._failure = asyncio.Event(), ""
        self.reload = self._demand.set
        """Has the model loaded again now, whether or not it was replaced."""

    def check_running(self) -> None:
        """Raise an `HTTPException` (503) unless requests are answered."""
        if self.answering.done():
            raise HTTPException(503, "the server is shutting down")

    async def ask(self, question: str, asked: Any) -> dict[str, Any]:
        """Answer a request, with others of equal options whose users are given in the same way.

        Raises:
            HTTPException: too many requests wait (429), or the server is shutting down (503).
        """
        self.check_running()
        if self._jobs.qsize() >= self.settings.queue:
            line = "too many requests wait: try again in a second"
            raise HTTPException(429, line, {"retry-after": "1"})
        model, shared = self.model, object()
        if isinstance(asked, RecommendRequest | ScoreRequest) and asked.log is None:
            user = asked.user_id is None, bool(asked.history), asked.times is None
            shared = (model, user, asked.at is None, str(_options(asked)))
        future: asyncio.Future[dict[str, Any]] = asyncio.get_running_loop().create_future()
        self._jobs.put_nowait(_Job((question, shared), asked, model, future))
        return await future

    async def answer_all(self) -> None:
        """Answer batch after batch, until cancelled."""
        batch: list[_Job] = []
        while True:
            expected, batch = max(1, len(batch)), [await self._jobs.get()]
            with suppress(TimeoutError):
                async with asyncio.timeout(self.settings.gather_ms / 1_000):
                    while len(batch) < expected:
                        batch.append(await self._jobs.get())
            while len(batch) < _BATCH and not self._jobs.empty():
                batch.append(self._jobs.get_nowait())
            by_key: dict[Hashable, list[_Job]] = {}
            for job in batch:
                by_key.setdefault(job.key, []).append(job)
            for jobs in by_key.values():
                await self._answer(jobs)

    async def _answer(self, jobs: Sequence[_Job]) -> None:
        first, began = jobs[0], time.monotonic()
        work = partial(_answers, first.model, [job.asked for job in jobs])
        results = await asyncio.get_running_loop().run_in_executor(self._thread, work)
        for job, result in zip(jobs, results, strict=True):
            if job.future.done():  # whoever asked has gone
                continue
            if isinstance(result, Exception):
                job.future.set_exception(result)
            else:
                job.future.set_result(result)
        metrics, states, question = self.metrics, self.model.bundle.states, first.key[0]
        metrics.batches.labels(question).observe(len(jobs))
        metrics.model_seconds.labels(question).observe(time.monotonic() - began)
        metrics.waiting.set(self._jobs.qsize())
        if states is not None:
            metrics.histories.labels("hit").inc(states.hits)
            metrics.histories.labels("miss").inc(states.misses)
            states.hits = states.misses = 0

    async def watch(self) -> None:
        """Look for a new model from time to time, until cancelled; the old one answers meanwhile.

        A model that cannot be loaded is reported once, and tried again until it can.
        """
        settings = self.settings
        seconds = settings.reload_seconds or (30.0 if is_model_name(settings.bundle) else 2.0)
        while True:
            with suppress(TimeoutError):
                wait = 5 * seconds if self._failure else seconds  # loading slows answers
                await asyncio.wait_for(self._demand.wait(), wait)
            demanded = self._demand.is_set()
            self._demand.clear()
            try:
                if demanded or await asyncio.to_thread(state_of, settings) != self.model.state:
                    self.model = await asyncio.to_thread(ServedModel.load, settings)
                    self.metrics.reloads.labels("loaded").inc()
                    facts = {"weights": self.model.bundle.manifest.digest}
                    logger.info("a new model answers", extra={FACTS: facts})
                self._failure = ""
            except asyncio.CancelledError:
                raise
            except BaseException as error:
                known = isinstance(error, InputError)
                reason = first_line(error) if known else type(error).__name__
                if demanded or reason != self._failure:
                    self.metrics.reloads.labels("failed").inc()
                    line = "the new model cannot be loaded; the old one answers"
                    trace = None if known else error
                    logger.error(line, extra={FACTS: {"reason": reason}}, exc_info=trace)
                self._failure = reason
