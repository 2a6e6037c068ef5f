"""The questions of requests, asked of the model of the moment."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Sequence
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from recsys.data.histories import PAD
from recsys.errors import InputError
from recsys.server.answers import (
    Explanation,
    Recommendations,
    ScoredItem,
    Scores,
    SimilarItems,
    Source,
)
from recsys.server.metrics import Metrics
from recsys.server.model_thread import Batch, Job, ModelThread
from recsys.server.questions import (
    Candidates,
    explanation,
    kind_of_history,
    recommend,
    score,
    similar,
)
from recsys.server.requests import (
    ExplainRequest,
    Id,
    RecommendRequest,
    ScoreRequest,
    SimilarRequest,
    User,
)
from recsys.server.served_model import ServedModel
from recsys.server.settings import Limits, ServerSettings
from recsys.serving.fallback import seen_policy
from recsys.serving.inputs import UserHistories


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
        self.serve(model)

    def serve(self, model: ServedModel) -> None:
        """Answer with this model from now on; requests that wait keep theirs."""
        self.model = model
        self.metrics.serves(model)

    def _observe(self, batch: Batch) -> None:
        """Take in a batch, in the thread of the model."""
        self.metrics.observe(batch)
        self.metrics.waiting.set(self.thread.waiting)
        if (states := self.model.states) is not None:
            self.metrics.looked_up(states)

    async def recommend(self, asked: RecommendRequest) -> Recommendations:
        """See `Recommender.recommend`."""
        model = self.model
        _check_count("k", asked.k, self._limits)
        user = await self._history(model, asked)
        allowed = self._allowed(model, asked.allow, asked.deny)
        k = asked.k if "k" in asked.model_fields_set else model.bundle.usual_k
        job = recommend_job(model, user, k, seen_policy(model.bundle, asked.seen), allowed)
        (items,) = await self.thread.ask(job)
        return Recommendations.model_construct(
            items=items,
            source=source_of(user),
            skipped=int(user.skipped[0]),
            assumed_gap=user.assumed_gap,
        )

    async def score(self, asked: ScoreRequest) -> Scores:
        """See `Recommender.score`."""
        model = self.model
        _check_count("candidates", len(asked.candidates), self._limits)
        user = await self._history(model, asked)
        tokens = model.items.tokens(asked.candidates)
        unknown = [item for item, token in zip(asked.candidates, tokens, strict=True) if not token]
        if unknown and (asked.strict or len(unknown) == len(tokens)):
            model.items.token(unknown[0])  # raises
        (scores,) = await self.thread.ask(score_job(model, user, tokens[tokens != PAD]))
        known = [item for item, token in zip(asked.candidates, tokens, strict=True) if token]
        return Scores.model_construct(
            items=[
                ScoredItem(item, None if math.isinf(one) else one)
                for item, one in zip(known, scores, strict=True)
            ],
            source=source_of(user),
            skipped=int(user.skipped[0]),
            assumed_gap=user.assumed_gap,
            unknown=unknown,
        )

    async def similar(self, asked: SimilarRequest) -> SimilarItems:
        """See `Recommender.similar_items`."""
        _check_count("k", asked.k, self._limits)
        answer = partial(_each, partial(similar, self.model, asked.item_id, asked.k))
        (found,) = await self.thread.ask(Job(("similar", object()), None, answer))
        return found  # type: ignore[no-any-return]

    async def explain(self, asked: ExplainRequest) -> Explanation:
        """See `Recommender.explain`."""
        model = self.model
        user = await self._history(model, asked)
        answer = partial(_each, partial(explanation, model, user, asked.item_id))
        (found,) = await self.thread.ask(Job(("explain", object()), None, answer))
        return found  # type: ignore[no-any-return]

    @property
    def _limits(self) -> Limits:
        return self.settings.limits

    async def _history(self, model: ServedModel, asked: User) -> UserHistories:
        """Read the history of a request; a log, which takes milliseconds, in another thread."""
        given = len(asked.log or asked.history or [])
        if given > self._limits.history:
            raise InputError(f"history: {given} items: at most {self._limits.history} are read")
        if asked.log is not None:
            return await asyncio.to_thread(model.history, asked)
        return model.history(asked)

    def _allowed(
        self, model: ServedModel, allow: Sequence[Id] | None, deny: Sequence[Id] | None
    ) -> NDArray[np.bool_] | None:
        """Return whether each item token may be recommended [I + 1]; None if all may."""
        if allow is None and not deny:
            return None
        _check_count("allow", len(allow or ()), self._limits)
        _check_count("deny", len(deny or ()), self._limits)
        allowed = np.full(model.bundle.num_items + 1, allow is None)
        if allow is not None:
            tokens = model.items.tokens(allow)
            if not tokens.any():
                model.items.token(allow[0])  # raises
            allowed[tokens] = True
        allowed[model.items.tokens(deny or ())] = False
        allowed[PAD] = False
        return allowed


def recommend_job(
    model: ServedModel,
    user: UserHistories,
    k: int,
    seen: Any,
    allowed: NDArray[np.bool_] | None = None,
) -> Job:
    """Return the job of finding the best items; answered together if all but the user is equal."""
    own = None if allowed is None else object()
    key = ("recommend", model, k, seen, kind_of_history(user), own)
    return Job(key, user, partial(recommend, model, k, seen, allowed))


def score_job(model: ServedModel, user: UserHistories, tokens: NDArray[np.int32]) -> Job:
    """Return the job of scoring candidates [C], of which none is PAD."""
    return Job(
        ("score", model, kind_of_history(user)), Candidates(user, tokens), partial(score, model)
    )


def source_of(user: UserHistories) -> Source:
    """Return where the scores of a user come from."""
    return "model" if len(user.histories.items) else "popularity"


def _each(answer: Any, queries: Sequence[Any]) -> list[Any]:
    """Answer jobs that share nothing."""
    return [answer() for _ in queries]


def _check_count(name: str, count: int, limits: Limits) -> None:
    if count > limits.candidates:
        raise InputError(f"{name}: {count}: at most {limits.candidates} in one request")
