"""The model that answers, and its replacement: a newer one is loaded beside it, then takes over."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Hashable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import polars as pl
import torch

from recsys.config import Columns, TrackingConfig
from recsys.data.prepared import PreparedDataset
from recsys.errors import InputError, first_line, one_line
from recsys.folders.manifest import MANIFEST
from recsys.inference.model_scorer import StateCache
from recsys.loading import bundle_folder, stored_at
from recsys.server.batching import ModelThread
from recsys.server.schemas import (
    ExplainRequest,
    Id,
    RecommendRequest,
    ScoreRequest,
    SimilarRequest,
    User,
)
from recsys.server.telemetry import FACTS, Metrics
from recsys.serving.bundle import ModelBundle
from recsys.serving.histories import UserHistories
from recsys.serving.index import BundleIndex
from recsys.serving.raw_values import id_series
from recsys.serving.recommender import Recommender

logger = logging.getLogger(__name__)

_BATCH = 64
"""The largest number of requests that are answered together."""
_OPTIONS = ("k", "seen", "allow", "deny", "where", "diversity", "at_most", "probabilities")
"""Those of `Recommender.recommend` that a request has; those of `score` are among them."""


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
    body_seconds: float = 30.0
    """Time until a body has arrived (408)."""
    queue: int = 1024
    """Requests that may wait for the model (429)."""
    reload_seconds: float = 2.0
    """How often the folders are looked at, to load them again once they were replaced."""
    registry_seconds: float = 30.0
    """How often the store is asked whether the model's name means another model."""
    tracking: TrackingConfig | None = None
    """The store of the name; the default one if None."""


@dataclass(frozen=True, slots=True, eq=False)
class Query:
    """A request whose user and items were read."""

    asked: Any
    options: dict[str, Any]
    items: Sequence[Id] = ()
    """The items asked about that are in the catalogue, as it has them."""
    unknown: Sequence[Id] = ()
    """The others."""
    log: UserHistories | None = None
    """What was read of the rows of a log."""

    @property
    def kind(self) -> tuple[bool, ...]:
        """What users have in common whose histories are read together."""
        asked = self.asked
        return asked.user_id is None, bool(asked.history), asked.times is None, asked.at is None


@dataclass(frozen=True, eq=False)
class ServedModel:
    """A recommender that was opened once, is never changed, and is replaced as a whole."""

    recommender: Recommender
    settings: ServerSettings
    folder: Path
    stored_at: str
    """Where the store keeps the model that its name meant."""
    state: Sequence[object]
    """The `_folder_state` before the folders were read."""

    @classmethod
    def load(cls, settings: ServerSettings) -> ServedModel:
        """Open the folders, and answer once, so that the first request is no slower than others.

        Raises:
            InputError: a folder cannot be opened, the model cannot retrieve, or the index is of
                another model.
        """
        # Before the model is read, which may be replaced meanwhile.
        place = stored_at(settings.bundle, settings.tracking)
        folder = bundle_folder(settings.bundle, settings.tracking)
        state = _folder_state(folder, settings)
        states = StateCache(settings.cache_bytes)
        bundle = replace(ModelBundle.open(folder), states=states)
        if settings.gpu:
            bundle.move_to_gpu()
        index = None if settings.index is None else BundleIndex.open(settings.index, bundle)
        dataset = None if settings.data is None else PreparedDataset.open(settings.data)
        recommender = Recommender(bundle, dataset, index=index)
        model = cls(recommender, settings, folder, place, state)
        if dataset is not None:
            recommender.reader.rows(dataset.user_ids[:1])
        if bundle.times == "none" and not bundle.encoders.reads_inputs:
            item = bundle.vocabulary.ids[0]
            model.answer([model.read(RecommendRequest(history=[item], k=1, seen="allow"))])
            model.answer([model.read(ScoreRequest(history=[item], candidates=[item]))])
            states.hits = states.misses = 0  # nobody asked yet
        return model

    @property
    def bundle(self) -> ModelBundle:
        """The bundle that answers."""
        return self.recommender.bundle

    def is_replaced(self, *, ask_store: bool) -> bool:
        """Return whether its folders were replaced, or its name means another model by now."""
        if _folder_state(self.folder, self.settings) != self.state:
            return True
        settings = self.settings
        return ask_store and stored_at(settings.bundle, settings.tracking) != self.stored_at

    # --- Reading a request ---

    def read(self, asked: Any) -> Query:
        """Check what a request says of its user and its items.

        Raises:
            InputError: the fields contradict each other; the user or an item is unknown; see
                `HistoryReader.read` for the rows of a log.
        """
        options = {name: getattr(asked, name) for name in _OPTIONS if hasattr(asked, name)}
        items: Sequence[Id] = ()
        unknown: Sequence[Id] = ()
        if isinstance(asked, ExplainRequest | SimilarRequest):
            items, unknown = self._known([asked.item_id], strict=True)
        elif isinstance(asked, ScoreRequest):
            items, unknown = self._known(asked.candidates, strict=asked.strict)
        log = self._read_user(asked) if isinstance(asked, User) else None
        return Query(asked, options, items, unknown, log)

    def _known(self, ids: Sequence[Id], *, strict: bool) -> tuple[list[Id], list[Id]]:
        """Return those of some items that are in the catalogue, as it has them, and the others."""
        tokens = self.bundle.vocabulary.encode(id_series(ids, "items"))
        unknown = [item for item, token in zip(ids, tokens.tolist(), strict=True) if not token]
        if len(unknown) == len(ids) or (strict and unknown):
            raise InputError(f"item {one_line(repr(unknown[0]), 60)} is not in the catalogue")
        return self.bundle.vocabulary.decode(tokens[tokens > 0]).to_list(), unknown

    def _read_user(self, asked: User) -> UserHistories | None:
        """Check the user of a request, and read the rows of a log, which takes milliseconds."""
        if asked.log is not None:
            if asked.history is not None or asked.user_id is not None:
                raise InputError("log: give no history and no user_id with it")
            return self._read_log(asked.log)
        if asked.history is None and asked.user_id is None:
            raise InputError("give the history, the log or the user_id of a user")
        if asked.user_id is not None:
            self.recommender.reader.rows([asked.user_id])  # raises if it is unknown
        return None

    def _read_log(self, rows: list[dict[str, Any]]) -> UserHistories:
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

    def _users(self, queries: Sequence[Query]) -> UserHistories:
        """Read the histories of queries [B] of one kind, as users 0, 1, …."""
        asked, reader = [query.asked for query in queries], self.recommender.reader
        first, users = asked[0], queries[0].log
        if users is None:
            users = reader.read(
                [request.history or [] for request in asked],
                None if first.user_id is None else [request.user_id for request in asked],
                None if first.times is None else [request.times for request in asked],
            )
        users = replace(users, user_ids=pl.Series(range(len(asked))))
        at = None if first.at is None else [request.at for request in asked]
        return reader.with_request_time(users, at)

    # --- Answering ---

    def answer(self, queries: Sequence[Query]) -> list[dict[str, Any]]:
        """Answer queries of one question, equal options and users of one kind."""
        first = queries[0]
        if isinstance(first.asked, SimilarRequest):
            best = self.recommender.similar_items(first.items[0], first.asked.k)
            return [{"items": best.select("item_id", "similarity", "rank").to_dicts()}]
        users = self._users(queries)
        if isinstance(first.asked, ExplainRequest):
            return [self._explain(first, users)]
        rows: Any
        if isinstance(first.asked, RecommendRequest):
            rows = self.recommender.recommend(
                users, retrieve=self.settings.retrieve, **first.options
            )
        else:
            candidates = [query.items for query in queries]
            rows = self.recommender.score(users, candidates, **first.options)
        answers = [
            {"items": [], "source": "model" if length else "popularity", **facts}
            for length, facts in zip(users.histories.lengths, _facts(users), strict=True)
        ]
        for row in rows.drop("source").iter_rows(named=True):
            answers[row.pop("user_id")]["items"].append(row)
        if isinstance(first.asked, ScoreRequest):
            for query, answer in zip(queries, answers, strict=True):
                answer["unknown"] = query.unknown
        return answers

    def _explain(self, query: Query, users: UserHistories) -> dict[str, Any]:
        parts: Any = self.recommender.explain(users, query.items[0])
        rest = float(parts["rest"][0])
        return {
            "item_id": query.asked.item_id,
            "score": float(parts["contribution"].sum()) + rest,
            "rest": rest,
            "purchases": parts.select("position", "item_id", "contribution", "share").to_dicts(),
            **_facts(users)[0],
        }


def _facts(users: UserHistories) -> list[dict[str, Any]]:
    gap = users.assumed_gap
    return [{"skipped": skipped, "assumed_gap": gap} for skipped in users.skipped.tolist()]


def _folder_state(bundle: Path, settings: ServerSettings) -> list[tuple[int, int, int] | None]:
    """Return what changes when a folder is replaced: inode, size and time of its manifest."""
    state: list[tuple[int, int, int] | None] = []
    for folder in (bundle, bundle / "bundle", settings.data, settings.index):
        try:
            file = None if folder is None else (folder / MANIFEST).stat()
        except OSError:
            file = None
        state.append(file and (file.st_ino, file.st_size, file.st_mtime_ns))
    return state


class Service:
    """Answers requests with a model that may be replaced between two of them.

    A request is read and answered by one and the same model, that of the moment it came.

    Args:
        model: the model to begin with.
        threads: the threads of torch; its default if None.
    """

    def __init__(self, model: ServedModel, threads: int | None = None) -> None:
        self.settings = settings = model.settings
        self.metrics = Metrics()
        self.thread = ModelThread(
            gather_ms=settings.gather_ms,
            largest=_BATCH,
            most_waiting=settings.queue,
            threads=threads,
            observe=self._observe,
        )
        self._serve(model)
        self._ask_store_at = time.monotonic() + settings.registry_seconds
        self._failure: str | None = None
        self._reload = asyncio.Event()

    def _serve(self, model: ServedModel) -> None:
        """Answer with this model from now on; requests that wait keep theirs."""
        self.model = model
        self.metrics.serves(model.bundle)

    def _observe(self, key: Any, size: int, seconds: float, waited: float) -> None:
        self.metrics.batched(key[0], size, seconds, waited, self.model.bundle.states)
        self.metrics.waiting.set(self.thread.waiting)

    async def ask(self, question: str, asked: Any) -> dict[str, Any]:
        """Answer a request, with others of equal options whose users are given in the same way."""
        model = self.model
        if getattr(asked, "log", None) is None:
            query = model.read(asked)
        else:
            query = await asyncio.to_thread(model.read, asked)
        shared: Hashable = object()
        if isinstance(asked, RecommendRequest | ScoreRequest) and query.log is None:
            shared = (model, query.kind, str(query.options))
        answer: dict[str, Any] = await self.thread.ask((question, shared), query, model.answer)
        return answer

    def reload(self) -> None:
        """Load the model again now, whether or not it was replaced."""
        self._reload.set()

    async def watch(self) -> None:
        """Look for a new model from time to time, until cancelled; the old one answers meanwhile.

        A model that cannot be loaded is reported once, and tried again until it can.
        """
        while True:
            with suppress(TimeoutError):
                await asyncio.wait_for(self._reload.wait(), self.settings.reload_seconds)
            demanded = self._reload.is_set()
            self._reload.clear()
            try:
                await self._look(demanded)
            except asyncio.CancelledError:
                raise
            except BaseException as error:  # noqa: BLE001 - a panic of Rust is no Exception
                self._report(error, demanded)

    async def _look(self, demanded: bool) -> None:
        """Load what is new, or anything on demand."""
        ask_store = time.monotonic() >= self._ask_store_at
        if ask_store:
            self._ask_store_at = time.monotonic() + self.settings.registry_seconds
        if demanded or await asyncio.to_thread(self.model.is_replaced, ask_store=ask_store):
            self._serve(await asyncio.to_thread(ServedModel.load, self.settings))
            self.metrics.reloads.labels("loaded").inc()
            facts = {"weights": self.model.bundle.manifest.digest}
            logger.info("a new model answers", extra={FACTS: facts})
        elif not ask_store:
            return
        self._failure = None

    def _report(self, error: BaseException, demanded: bool) -> None:
        reason = first_line(error)
        if isinstance(error, MemoryError | torch.OutOfMemoryError):  # torch counts free bytes
            where = "the GPU" if isinstance(error, torch.OutOfMemoryError) else "this machine"
            reason = f"{where} has too little memory for it beside the old one"
        if demanded or reason != self._failure:
            self.metrics.reloads.labels("failed").inc()
            logger.error(
                "the new model cannot be loaded; the old one answers",
                extra={FACTS: {"reason": reason}},
                exc_info=None if isinstance(error, InputError) else error,
            )
        self._failure = reason
