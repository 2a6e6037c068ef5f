"""The model that answers, and its replacement: a newer one is loaded beside it, then takes over."""

from __future__ import annotations

import asyncio
import logging
import math
import time
from collections.abc import Callable, Hashable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

import numpy as np
import polars as pl
import torch

from recsys.config import Columns
from recsys.data.prepared import PreparedDataset
from recsys.errors import InputError, first_line, one_line
from recsys.folders.manifest import MANIFEST
from recsys.inference.model_scorer import StateCache
from recsys.server.batching import ModelThread
from recsys.server.metrics import FACTS, Metrics
from recsys.server.schemas import (
    Answer,
    Cell,
    Contribution,
    ExplainRequest,
    Explanation,
    Id,
    Recommendations,
    RecommendedItem,
    RecommendRequest,
    ScoredItem,
    ScoreRequest,
    Scores,
    SimilarItem,
    SimilarItems,
    SimilarRequest,
    Time,
    User,
)
from recsys.serving.bundle import ModelBundle
from recsys.serving.histories import UserHistories, Visitor
from recsys.serving.index import BundleIndex
from recsys.serving.raw_values import ids_of_one_kind
from recsys.serving.recommender import Recommender

logger = logging.getLogger(__name__)

_INT64 = np.iinfo(np.int64)
_OPTIONS = ("k", "seen", "allow", "deny", "where", "diversity", "at_most", "probabilities")
"""Those of `Recommender.recommend` that a request has; those of `score` are among them."""


@dataclass(frozen=True, slots=True)
class Limits:
    """How much a server takes; what exceeds it is refused in one line."""

    history: int = 10_000
    """Items of a history that one request gives (422)."""
    candidates: int = 10_000
    """Candidates, allowed or denied items, or items to return, of one request (422)."""
    body_bytes: int = 1 << 20
    """Size of a request's body (413)."""
    body_seconds: float = 30.0
    """Time until a body has arrived (408)."""
    queue: int = 1024
    """Requests that wait for the model (429)."""


@dataclass(frozen=True, slots=True)
class NamedModel:
    """A model by its name in a registry; the name may move on to another model."""

    stored_at: str
    """Where the model that the server begins with is stored."""
    find: Callable[[], str]
    """Returns where the model of the moment is stored."""
    folder: Callable[[], Path]
    """Returns its folder, downloaded if it is stored elsewhere."""
    seconds: float = 30.0
    """How often the registry is asked."""


@dataclass(frozen=True, slots=True)
class ServerSettings:
    """What a server serves, and how."""

    bundle: Path
    """The folder of a trained model, or of the run that has it."""
    data: Path | None = None
    """The prepared dataset in which users are looked up by id."""
    gather_ms: float = 4.0
    """How long a batch waits at most for as many requests as the batch before it had."""
    batch: int = 64
    """The largest number of requests that are answered together."""
    retrieve: int | None = None
    """How many items per user target attention ranks (see `Recommender.recommend`); all if None."""
    index: Path | None = None
    """The folder of an index of the items, which finds the best; all items are scored if None."""
    gpu: bool = False
    """Whether the model answers on the GPU."""
    cache_bytes: int = 256 << 20
    """The memory of encoded histories that are kept for requests with the same one; 0 for none."""
    named: NamedModel | None = None
    """The name by which a registry knows the model of the bundle, to follow it; None if none."""
    reload_seconds: float = 2.0
    """How often the folders are looked at, to load them again once they were replaced."""
    api_key: str | None = field(default=None, repr=False)
    """The key that requests must bring; no key if None."""
    limits: Limits = Limits()


@dataclass(frozen=True, slots=True, eq=False)
class Query:
    """A request whose user was read."""

    asked: Any
    user: Visitor
    options: dict[str, Any]
    candidates: tuple[list[Id], list[Id]] = ([], [])
    """The items asked about that are in the catalogue, as it has them, and the others."""


@dataclass(frozen=True, eq=False)
class ServedModel:
    """A recommender that was opened once, is never changed, and is replaced as a whole."""

    recommender: Recommender
    retrieve: int | None = None
    """How many items per user target attention ranks; all if None."""
    state: Sequence[object] = ()
    """The `folder_state` before the folders were read."""

    @classmethod
    def load(cls, folder: Path, settings: ServerSettings) -> ServedModel:
        """Open the folders, and answer once, so that the first request is no slower than others.

        Raises:
            InputError: a folder cannot be opened, the model cannot retrieve, or the index is of
                another model.
        """
        state = folder_state(folder, settings)  # they may be replaced while they are read
        bundle = ModelBundle.open(folder)
        if settings.gpu:
            bundle.move_to_gpu()
        index = None if settings.index is None else BundleIndex.open(settings.index, bundle)
        dataset = None if settings.data is None else PreparedDataset.open(settings.data)
        states = StateCache(settings.cache_bytes)
        model = cls(
            Recommender(bundle, dataset, index=index, states=states), settings.retrieve, state
        )
        if dataset is not None:
            _ = model.recommender.known.rows(dataset.user_ids[:1])
        if bundle.times == "none" and not bundle.encoders.reads_inputs:
            item = bundle.vocabulary.ids[0]
            for asked in (
                RecommendRequest(history=[item], k=1, seen="allow"),
                ScoreRequest(history=[item], candidates=[item]),
            ):
                model.answer([model.query(asked)])
            states.hits = states.misses = 0  # nobody asked yet
        return model

    @property
    def bundle(self) -> ModelBundle:
        """The bundle that answers."""
        return self.recommender.bundle

    def query(self, asked: Any) -> Query:
        """Check what a request says of its user and its items.

        Raises:
            InputError: the fields contradict each other; the user or an item is unknown; a time is
                no time; see `ModelBundle.read_histories` for the rows of a log.
        """
        options = {name: getattr(asked, name) for name in _OPTIONS if hasattr(asked, name)}
        for name in ("allow", "deny"):
            if options.get(name):
                options[name] = ids_of_one_kind(options[name])
        candidates: tuple[list[Id], list[Id]] = ([], [])
        if isinstance(asked, ExplainRequest | SimilarRequest):
            candidates = self.known([asked.item_id], strict=True)
        elif isinstance(asked, ScoreRequest):
            candidates = self.known(asked.candidates, strict=asked.strict)
        user = self.visitor(asked) if isinstance(asked, User) else Visitor()
        return Query(asked, user, options, candidates)

    def visitor(self, asked: User) -> Visitor:
        """Return the user of a request; a log is read, which takes milliseconds."""
        items, times, who, row = asked.history or [], None, asked.user_id, None
        if asked.times is not None:
            if len(asked.times) != len(items):
                raise InputError(
                    f"times: one for each of the {len(items)} items, not {len(asked.times)}"
                )
            times = np.array([self._time("times", time) for time in asked.times], dtype=np.int64)
            order = np.argsort(times, kind="stable")
            items, times = [items[row] for row in order], times[order]
        at = None if asked.at is None else self._time("at", asked.at)
        if asked.log is not None:
            if asked.history is not None or who is not None:
                raise InputError("log: give no history and no user_id with it")
            return Visitor(log=self._of_log(asked.log), at=at)
        if asked.history is None and who is None:
            raise InputError("give the history, the log or the user_id of a user")
        if items and self.bundle.encoders.reads_inputs:
            columns = ", ".join(self.bundle.encoders.input_columns)
            raise InputError(
                f"history: the model reads {columns} too: give the user's rows of the log, with "
                "these columns, as log"
            )
        if who is not None:
            if self.recommender.dataset is None:
                raise InputError(
                    "user_id: users are looked up in a prepared dataset, and the server has none: "
                    "recsys serve BUNDLE --data DATA"
                )
            try:
                (row,) = self.recommender.known.rows([who]).tolist()
            except InputError as error:  # whose message names others
                shown = one_line(repr(who), 60)
                raise InputError(f"user_id {shown} is not in the dataset") from error
        return Visitor(row, items, times, at)

    def _of_log(self, rows: list[dict[str, Cell]]) -> UserHistories:
        """Read the rows of a raw log of one user by the rules of the training data."""
        if not rows:
            return self.bundle.read_histories([[]])
        trained = self.bundle.experiment.data.columns or Columns()
        try:
            log = pl.DataFrame(rows, infer_schema_length=None)
        except (pl.exceptions.PolarsError, TypeError, ValueError, OverflowError) as error:
            raise InputError("log: the values of a column are not of one kind") from error
        user = trained.user_id if trained.item_id in log.columns else "user_id"
        read = self.bundle.read_histories(log.with_columns(pl.lit("user").alias(user)))
        return replace(read, user_ids=pl.Series([0]))

    def _time(self, name: str, given: Time) -> int:
        """Return a time on the scale of the training log."""
        shown = one_line(repr(given), 60)
        try:
            value = self.bundle.time_scale.value(given, name)
        except InputError as error:
            raise InputError(f"{name}: {shown}: a number or an ISO 8601 date") from error
        if not _INT64.min <= value <= _INT64.max:
            raise InputError(f"{name}: {shown} is out of range")
        return value

    def known(self, ids: Sequence[Id], *, strict: bool = False) -> tuple[list[Id], list[Id]]:
        """Return those of some items that are in the catalogue, as it has them, and the others.

        Raises:
            InputError: none is, or with ``strict`` one is not.
        """
        tokens = self.bundle.vocabulary.encode(ids_of_one_kind(ids))
        unknown = [item for item, token in zip(ids, tokens.tolist(), strict=True) if not token]
        if len(unknown) == len(ids) or (strict and unknown):
            raise InputError(f"item {one_line(repr(unknown[0]), 60)} is not in the catalogue")
        return self.bundle.vocabulary.decode(tokens[tokens > 0]).to_list(), unknown

    def answer(self, queries: Sequence[Query]) -> list[Answer]:
        """Answer queries of one question, equal options and users of one kind."""
        first = queries[0].asked
        if isinstance(first, SimilarRequest):
            return [self._similar(queries[0])]
        users = self.recommender.read_visitors([query.user for query in queries])
        if isinstance(first, ExplainRequest):
            return [self._explain(queries[0], users)]
        best = isinstance(first, RecommendRequest)
        return (self._recommend if best else self._score)(queries, users)

    def _recommend(self, queries: Sequence[Query], users: UserHistories) -> list[Answer]:
        found = self.recommender.recommend(users, retrieve=self.retrieve, **queries[0].options)
        items: list[list[RecommendedItem]] = [[] for _ in queries]
        for user, item, score, rank, _source, *probability in pl.DataFrame(found).iter_rows():
            items[user].append(RecommendedItem(item, score, rank, *probability))
        facts = zip(items, _sources(users), _facts(users), strict=True)
        return [
            Recommendations.model_construct(items=best, source=source, **fact)
            for best, source, fact in facts
        ]

    def _score(self, queries: Sequence[Query], users: UserHistories) -> list[Answer]:
        lists = [query.candidates for query in queries]
        candidates = [known for known, _ in lists]
        found = self.recommender.score(users, candidates, **queries[0].options)
        rows = pl.DataFrame(found).iter_rows()
        answers: list[Answer] = []
        for (known, unknown), source, fact in zip(
            lists, _sources(users), _facts(users), strict=True
        ):
            items = [
                ScoredItem(item, None if math.isinf(score) else score, *probability)
                for _, (_user, item, score, _source, *probability) in zip(known, rows, strict=False)
            ]
            answers.append(
                Scores.model_construct(items=items, source=source, unknown=unknown, **fact)
            )
        return answers

    def _explain(self, query: Query, users: UserHistories) -> Answer:
        (item,), _ = query.candidates
        parts = pl.DataFrame(self.recommender.explain(users, item))
        rest = float(parts["rest"][0])
        wanted = parts.select("position", "item_id", "contribution", "share").iter_rows()
        return Explanation.model_construct(
            item_id=query.asked.item_id,
            score=float(parts["contribution"].sum()) + rest,
            rest=rest,
            purchases=[Contribution(*row) for row in wanted],
            **_facts(users)[0],
        )

    def _similar(self, query: Query) -> Answer:
        (item,), _ = query.candidates
        found = self.recommender.similar_items(item, query.asked.k)
        rows = found.select("item_id", "similarity", "rank").iter_rows()
        return SimilarItems.model_construct(items=[SimilarItem(*row) for row in rows])


def _sources(users: UserHistories) -> list[Literal["model", "popularity"]]:
    return ["model" if length else "popularity" for length in users.histories.lengths.tolist()]


def _facts(users: UserHistories) -> list[dict[str, Any]]:
    gap = users.assumed_gap
    return [{"skipped": skipped, "assumed_gap": gap} for skipped in users.skipped.tolist()]


def folder_state(bundle: Path, settings: ServerSettings) -> list[tuple[int, int, int] | None]:
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
        settings: the settings of the server.
        model: the model to begin with.
        threads: the threads of torch.
    """

    def __init__(
        self, settings: ServerSettings, model: ServedModel, threads: int | None = None
    ) -> None:
        self.settings = settings
        self.metrics = Metrics()
        self.thread = ModelThread(
            gather_ms=settings.gather_ms,
            largest=settings.batch,
            most_waiting=settings.limits.queue,
            threads=threads,
            observe=self._observe,
        )
        self._serve(model)
        self._bundle, named = settings.bundle, settings.named
        self._stored_at = None if named is None else named.stored_at
        self._ask_registry_at = 0.0 if named is None else time.monotonic() + named.seconds
        self._failure: str | None = None
        self._reload = asyncio.Event()

    def _serve(self, model: ServedModel) -> None:
        """Answer with this model from now on; requests that wait keep theirs."""
        self.model = model
        self.metrics.serves(model.bundle)

    def _observe(self, key: Hashable, size: int, seconds: float, waited: float) -> None:
        question = str(key[0]) if isinstance(key, tuple) else str(key)
        self.metrics.batched(question, size, seconds, waited)
        self.metrics.waiting.set(self.thread.waiting)
        if (states := self.model.recommender.states) is not None:
            self.metrics.looked_up(states)

    async def ask(self, question: str, asked: Any) -> Answer:
        """Answer a request, with others of equal options whose users are given in the same way."""
        limits, model = self.settings.limits, self.model
        given = len(getattr(asked, "log", None) or getattr(asked, "history", None) or ())
        if given > limits.history:
            raise InputError(f"history: {given} items: at most {limits.history} are read")
        counts = {name: len(getattr(asked, name, None) or ()) for name in _LISTS}
        for name, count in (counts | {"k": getattr(asked, "k", None) or 0}).items():
            if count > limits.candidates:
                raise InputError(f"{name}: {count}: at most {limits.candidates} in one request")
        if getattr(asked, "log", None) is None:
            query = model.query(asked)
        else:
            query = await asyncio.to_thread(model.query, asked)
        key: Hashable = object()
        if isinstance(asked, RecommendRequest | ScoreRequest) and query.user.log is None:
            key = (model, query.user.kind, str(query.options))
        return await self.thread.ask((question, key), query, model.answer)  # type: ignore[no-any-return]

    # --- Replacement ---

    def reload(self) -> None:
        """Load the model again now, whether or not a folder was replaced."""
        self._reload.set()

    async def watch(self) -> None:
        """Look for a new model from time to time, until cancelled; the old one answers meanwhile.

        A folder that cannot be loaded is reported once, and tried again until it can.
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
        bundle, stored_at = await asyncio.to_thread(self._find, demanded)
        state = await asyncio.to_thread(folder_state, bundle, self.settings)
        if demanded or bundle != self._bundle or state != self.model.state:
            model = await asyncio.to_thread(ServedModel.load, bundle, self.settings)
            self._serve(model)
            self.metrics.reloads.labels("loaded").inc()
            facts = {FACTS: {"weights": model.bundle.manifest.digest}}
            logger.info("a new model answers", extra=facts)
            self._failure = None
        self._bundle, self._stored_at = bundle, stored_at

    def _find(self, demanded: bool) -> tuple[Path, str | None]:
        """Return the folder of the model and, if its name is in a registry, where it is stored."""
        named = self.settings.named
        if named is None or not (demanded or time.monotonic() >= self._ask_registry_at):
            return self._bundle, self._stored_at
        self._ask_registry_at = time.monotonic() + named.seconds
        if (stored_at := named.find()) != self._stored_at:
            return named.folder(), stored_at
        self._failure = None  # the registry can be asked again, if it could not
        return self._bundle, stored_at

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


_LISTS = ("candidates", "allow", "deny")
