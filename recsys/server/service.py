"""Requests, answered by the recommender of the moment, several at a time."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
from numpy.typing import NDArray

from recsys.config import Columns
from recsys.data.histories import Features, Histories
from recsys.data.prepared import PreparedDataset
from recsys.errors import InputError, one_line
from recsys.folders.manifest import MANIFEST
from recsys.inference.model_scorer import StateCache
from recsys.server.metrics import Metrics
from recsys.server.model_thread import Batch, Job, ModelThread
from recsys.server.schemas import (
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
from recsys.server.settings import ServerSettings
from recsys.serving.bundle import ModelBundle
from recsys.serving.histories import UserHistories
from recsys.serving.index import BundleIndex
from recsys.serving.recommender import Recommender

_INT64 = np.iinfo(np.int64)


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

        Args:
            folder: that of the model.
            settings: what else the server serves, and how.

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
        recommender = Recommender(bundle, dataset, index=index, states=states)
        model = cls(recommender, settings.retrieve, state)
        if dataset is not None:
            _ = recommender.source.known
        if bundle.times == "none" and not bundle.encoders.reads_inputs:
            someone = model.read(User(history=bundle.vocabulary.ids.head(1).to_list()))
            recommender.recommend(someone, k=1, seen="allow", retrieve=model.retrieve)
            recommender.score(someone, [bundle.vocabulary.ids[0]])
            states.hits = states.misses = 0  # nobody asked yet
        return model

    @property
    def bundle(self) -> ModelBundle:
        """The bundle that answers."""
        return self.recommender.bundle

    def read(self, asked: User) -> UserHistories:
        """Read the history of the user of a request: of one user, B = 1.

        Raises:
            InputError: the fields contradict each other; the user is unknown; a time is no time, or
                is missing; see `UserHistories.from_raw` for the rows of a log.
        """
        items, times = asked.history or [], None
        if asked.times is not None:
            if len(asked.times) != len(items):
                raise InputError(
                    f"times: one for each of the {len(items)} items, not {len(asked.times)}"
                )
            times = np.array([self._time("times", time) for time in asked.times], dtype=np.int64)
        if asked.log is not None:
            if asked.history is not None or asked.user_id is not None:
                raise InputError("log: give no history and no user_id with it")
            read = self._of_log(asked.log)
        elif asked.user_id is not None:
            if self.recommender.dataset is None:
                raise InputError(
                    "user_id: users are looked up in a prepared dataset, and the server has none: "
                    "recsys serve BUNDLE --data DATA"
                )
            self._check_reads(items, timed=times is not None)
            known, gap = self.recommender.source.known, self.bundle.usual_gap
            try:
                read = (
                    known.read_longer(asked.user_id, _series(items), times, gap)
                    if items
                    else known.read([asked.user_id])
                )
            except InputError as error:
                who = one_line(repr(asked.user_id), 60)
                raise InputError(f"user_id {who} is not in the dataset") from error
        elif asked.history is not None:
            self._check_reads(items, timed=times is not None)
            read = self._of_items(items, times)
        else:
            raise InputError("give the history, the log or the user_id of a user")
        at = None if asked.at is None else self._time("at", asked.at)
        return read.with_request_time(self.bundle.times, at)  # on the scale of the log already

    def _of_items(self, items: list[Id], times: NDArray[np.int64] | None) -> UserHistories:
        """The history of given items, sorted by their times, if they have any."""
        ids = _series(items)
        if times is None:
            return self.bundle.read_histories([ids])
        order = np.argsort(times, kind="stable")
        return UserHistories.from_lists(
            [0], [ids.gather(order)], self.bundle.vocabulary, times=[times[order]]
        )

    def _of_log(self, rows: list[dict[str, Cell]]) -> UserHistories:
        """The history of the rows of a raw log, by the rules of the training data."""
        if not rows:
            return self._of_items([], np.empty(0, dtype=np.int64))
        trained = self.bundle.experiment.data.columns or Columns()
        try:
            log = pl.DataFrame(rows, infer_schema_length=None)
        except (pl.exceptions.PolarsError, TypeError, ValueError, OverflowError) as error:
            raise InputError("log: the values of a column are not of one kind") from error
        user = trained.user_id if trained.item_id in log.columns else "user_id"
        return self.bundle.read_histories(log.with_columns(pl.lit("user").alias(user)))

    def _check_reads(self, items: list[Id], *, timed: bool) -> None:
        """Refuse items without what the model reads of each interaction.

        Raises:
            InputError: the model reads features; or it reads times, there are none, and the usual
                time between two interactions cannot stand for them.
        """
        bundle, encoders = self.bundle, self.bundle.encoders
        if items and encoders.reads_inputs:
            raise InputError(
                f"history: the model reads {', '.join(encoders.input_columns)} too: give the "
                "user's rows of the log, with these columns, as log"
            )
        if items and not timed and bundle.times != "none" and bundle.usual_gap is None:
            raise InputError("history: the model reads the times of interactions: give times")

    def _time(self, place: str, given: Time) -> int:
        """Return a time on the scale of the training log.

        Raises:
            InputError: it is no time, or out of range.
        """
        shown = one_line(repr(given), 60)
        try:
            value = self.bundle.time_scale.value(given, place)
        except InputError as error:
            raise InputError(f"{place}: {shown}: a number or an ISO 8601 date") from error
        if not _INT64.min <= value <= _INT64.max:
            raise InputError(f"{place}: {shown} is out of range")
        return value


def folder_state(bundle: Path, settings: ServerSettings) -> list[tuple[int, int, int] | None]:
    """Return what changes when a folder is replaced: inode, size and time of its manifest."""
    folders = bundle, bundle / "bundle", settings.data, settings.index
    state: list[tuple[int, int, int] | None] = []
    for folder in folders:
        try:
            found = None if folder is None else (folder / MANIFEST).stat()
        except OSError:
            found = None
        state.append(found and (found.st_ino, found.st_size, found.st_mtime_ns))
    return state


class Service:
    """Answers requests with a model that may be replaced between two of them.

    A request is read and answered by one and the same model, that of the moment it came. Questions
    of equal options about histories of one kind are answered together.

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
        self.serve(model)

    def serve(self, model: ServedModel) -> None:
        """Answer with this model from now on; requests that wait keep theirs."""
        self.model = model
        self.metrics.serves(model.bundle)

    def _observe(self, batch: Batch) -> None:
        """Take in a batch, in the thread of the model."""
        self.metrics.observe(batch)
        self.metrics.waiting.set(self.thread.waiting)
        if (states := self.model.recommender.states) is not None:
            self.metrics.looked_up(states)

    async def recommend(self, asked: RecommendRequest) -> Recommendations:
        """See `Recommender.recommend`."""
        model = self.model
        self._check_counts(asked, "allow", "deny")
        user = await self._history(model, asked)
        options: dict[str, Any] = {
            "k": asked.k if "k" in asked.model_fields_set else model.bundle.usual_k,
            "retrieve": model.retrieve,
            "seen": asked.seen,
            "allow": None if asked.allow is None else _known(model, asked.allow)[0].to_list(),
            "deny": _same_kind(asked.deny) if asked.deny else None,
            "diversity": asked.diversity,
            "at_most": asked.at_most,
            "probabilities": asked.probabilities,
        }
        if model.retrieve is not None and options["k"] > model.retrieve:
            raise InputError(
                f"k={asked.k}: must be at most {model.retrieve}, the items that are ranked"
            )
        items = await self._ask("recommend", model, user, options, partial(_recommend, options))
        return Recommendations.model_construct(items=items, **_facts(user))

    async def score(self, asked: ScoreRequest) -> Scores:
        """See `Recommender.score`."""
        model = self.model
        self._check_counts(asked, "candidates")
        user = await self._history(model, asked)
        known, unknown = _known(model, asked.candidates, strict=asked.strict)
        options = {"probabilities": asked.probabilities}
        items = await self._ask("score", model, (user, known), options, partial(_score, options))
        return Scores.model_construct(items=items, unknown=unknown, **_facts(user))

    async def similar(self, asked: SimilarRequest) -> SimilarItems:
        """See `Recommender.similar_items`."""
        self._check_counts(asked)
        model = self.model
        (item,), _ = _known(model, [asked.item_id])

        def answer() -> SimilarItems:
            found = model.recommender.similar_items(item, asked.k)
            columns = (found[name].to_list() for name in ("item_id", "similarity", "rank"))
            rows = zip(*columns, strict=True)
            return SimilarItems.model_construct(items=[SimilarItem(*row) for row in rows])

        return await self._ask_alone("similar", answer)  # type: ignore[no-any-return]

    async def explain(self, asked: ExplainRequest) -> Explanation:
        """See `Recommender.explain`."""
        model = self.model
        user = await self._history(model, asked)
        (item,), _ = _known(model, [asked.item_id])

        def answer() -> Explanation:
            parts = pl.DataFrame(model.recommender.explain(user, item))
            rest = float(parts["rest"][0])
            wanted = parts.select("position", "item_id", "contribution", "share").to_dicts()
            return Explanation.model_construct(
                item_id=asked.item_id,
                score=float(parts["contribution"].sum()) + rest,
                rest=rest,
                purchases=[Contribution(**row) for row in wanted],
                skipped=int(user.skipped[0]),
                assumed_gap=user.assumed_gap,
            )

        return await self._ask_alone("explain", answer)  # type: ignore[no-any-return]

    async def _history(self, model: ServedModel, asked: User) -> UserHistories:
        """Read the history of a request; a log, which takes milliseconds, in another thread."""
        count, most = len(asked.log or asked.history or []), self.settings.limits.history
        if count > most:
            raise InputError(f"history: {count} items: at most {most} are read")
        if asked.log is not None:
            return await asyncio.to_thread(model.read, asked)
        return model.read(asked)

    async def _ask(
        self,
        question: str,
        model: ServedModel,
        query: Any,
        options: dict[str, Any],
        answer: Callable[[Recommender, Sequence[Any]], list[Any]],
    ) -> Any:
        """Wait for the answer to a question, which is asked together with others like it."""
        user = query if isinstance(query, UserHistories) else query[0]
        key = (question, model, _kind_of(user), tuple(map(str, options.values())))
        (found,) = await self.thread.ask(Job(key, query, partial(answer, model.recommender)))
        return found

    async def _ask_alone(self, question: str, answer: Callable[[], Any]) -> Any:
        """Wait for the answer to a question that shares nothing with others."""
        (found,) = await self.thread.ask(Job((question, object()), None, lambda _: [answer()]))
        return found

    def _check_counts(self, asked: Any, *lists: str) -> None:
        """Refuse lists, or k, above the limit."""
        counts = {name: len(getattr(asked, name) or ()) for name in lists}
        counts["k"] = getattr(asked, "k", 0)
        for name, count in counts.items():
            if count > self.settings.limits.candidates:
                most = self.settings.limits.candidates
                raise InputError(f"{name}: {count}: at most {most} in one request")


def _recommend(
    options: dict[str, Any], recommender: Recommender, users: Sequence[UserHistories]
) -> list[list[RecommendedItem]]:
    """Return the best items of each user [B]."""
    answer = pl.DataFrame(recommender.recommend(_joined(users), **options))
    items: list[list[RecommendedItem]] = [[] for _ in users]
    names = ("user_id", "item_id", "score", "rank", "probability")
    for user, *row in answer.select(pl.col(names[:4]), pl.col(f"^{names[4]}$")).iter_rows():
        items[user].append(RecommendedItem(*row))
    return items


def _score(
    options: dict[str, Any],
    recommender: Recommender,
    asked: Sequence[tuple[UserHistories, pl.Series]],
) -> list[list[ScoredItem]]:
    """Return the scores of the candidates of each user [B]."""
    candidates = [ids.to_list() for _, ids in asked]
    queries = _joined([user for user, _ in asked])
    answer = pl.DataFrame(recommender.score(queries, candidates, **options))
    rows = answer.select("item_id", "score", pl.col("^probability$")).iter_rows()
    scored = [
        ScoredItem(item, None if math.isinf(score) else score, *others)
        for item, score, *others in rows
    ]
    ends = np.cumsum([len(ids) for ids in candidates]).tolist()
    return [scored[end - len(ids) : end] for ids, end in zip(candidates, ends, strict=True)]


def _known(
    model: ServedModel, ids: Sequence[Id], *, strict: bool = False
) -> tuple[pl.Series, list[Id]]:
    """Return those of some items that are in the catalogue, as it has them, and the others.

    Raises:
        InputError: none is, or with ``strict`` one is not.
    """
    tokens = model.bundle.vocabulary.encode(_series(ids))
    unknown = [item for item, token in zip(ids, tokens.tolist(), strict=True) if not token]
    if len(unknown) == len(ids) or (strict and unknown):
        raise InputError(f"item {one_line(repr(unknown[0]), 60)} is not in the catalogue")
    return model.bundle.vocabulary.decode(tokens[tokens > 0]), unknown


def _facts(user: UserHistories) -> dict[str, Any]:
    """What every answer says of the history that it was made of."""
    return {
        "source": "model" if len(user.histories.items) else "popularity",
        "skipped": int(user.skipped[0]),
        "assumed_gap": user.assumed_gap,
    }


def _same_kind(ids: Sequence[Id]) -> list[Any]:
    """Return ids that are all integers, or all text; they are compared as text."""
    integers = all(isinstance(item, int) for item in ids)
    return list(ids) if integers else [str(item) for item in ids]


def _series(ids: Sequence[Id]) -> pl.Series:
    """Return ids of a request."""
    return pl.Series(_same_kind(ids)) if ids else pl.Series([], dtype=pl.String)


def _kind_of(user: UserHistories) -> Hashable:
    """Return what histories must have in common to be joined."""
    histories = user.histories
    features, own = histories.interaction_features, histories.user_features
    return (
        histories.times is None,
        histories.request_times is None,
        None if features is None else id(features.table),
        None if own is None else id(own.table),
    )


def _joined(users: Sequence[UserHistories]) -> UserHistories:
    """Return the histories of several users, 0, 1, …, whose histories are of one kind."""
    user_ids = pl.Series(range(len(users)), dtype=pl.Int64)
    if len(users) == 1:
        return replace(users[0], user_ids=user_ids)
    parts = [user.histories for user in users]
    histories = Histories(
        np.concatenate([part.items for part in parts]),
        np.cumsum([0, *(len(part.items) for part in parts)], dtype=np.int64),
        _concatenated([part.times for part in parts]),
        _concatenated([part.request_times for part in parts]),
        interaction_features=_features([part.interaction_features for part in parts]),
        user_features=_features([part.user_features for part in parts]),
    )
    return UserHistories(
        user_ids,
        histories,
        np.concatenate([user.skipped for user in users]),
        np.concatenate([user.positions for user in users]),
    )


def _concatenated(parts: Sequence[NDArray[np.int64] | None]) -> NDArray[np.int64] | None:
    arrays = [part for part in parts if part is not None]
    return np.concatenate(arrays) if arrays else None


def _features(parts: Sequence[Features | None]) -> Features | None:
    tables = [part for part in parts if part is not None]
    if not tables:
        return None
    return Features(tables[0].table, np.concatenate([part.rows for part in tables]))
