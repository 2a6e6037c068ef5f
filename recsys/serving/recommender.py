"""The recommender as users meet it: raw ids in, raw ids out."""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import polars as pl
import torch
from numpy.typing import NDArray

from recsys.data.histories import PAD
from recsys.data.prepared import PreparedDataset
from recsys.data.tables import TableSource, frame_like, read_table
from recsys.data.vocabulary import Vocabulary
from recsys.errors import InputError
from recsys.inference.ranking import Seen, top_k
from recsys.inference.scorer import Scorer, user_batches
from recsys.inference.two_stages import TwoStages
from recsys.model.generation import Greedy, Strategy
from recsys.serving.attention_maps import AttentionMap, inspect
from recsys.serving.bundle import ModelBundle
from recsys.serving.explain import explain
from recsys.serving.generate import generate
from recsys.serving.inputs import Moment, RawHistories, UserHistories, known_tokens
from recsys.serving.new_items import with_new_items
from recsys.serving.one_history import OneHistory
from recsys.serving.serving_scorer import ServingScorer

Frame = Any
"""A data frame of the caller's kind: pandas for pandas, and so on; polars where none was given."""


@dataclass(frozen=True, eq=False)
class Recommender:
    """Recommends, scores, generates, explains and inspects with a trained model.

    Users need not have been seen in training: their history is all the model reads. A history
    without any item of the catalogue is answered from popularity, and marked so.
    """

    bundle: ModelBundle
    dataset: PreparedDataset | None = None
    """Where users are looked up who are given by their id alone."""

    @classmethod
    def load(
        cls,
        path: str | os.PathLike[str],
        dataset: PreparedDataset | str | os.PathLike[str] | None = None,
    ) -> Recommender:
        """Open a bundle, and a prepared dataset if users are to be asked for by id.

        Raises:
            InputError: one of the folders will not do.
        """
        if isinstance(dataset, str | os.PathLike):
            dataset = PreparedDataset.open(dataset)
        return cls(ModelBundle.open(path), dataset)

    def with_new_items(self, items: TableSource) -> Recommender:
        """For new items too, which the model knows by their features alone: see `with_new_items`.

        Args:
            items: item_id and the columns of ``model.item_features`` (a frame, or the path of a
                file), one row for each new item.
        """
        return Recommender(with_new_items(self.bundle, items), self.dataset)

    def read_histories(
        self,
        histories: RawHistories | UserHistories | None = None,
        users: Iterable[Any] | None = None,
    ) -> UserHistories:
        """The histories as the model reads them, and how many of their items it does not know.

        Args:
            histories: a log (a frame, or the path of a file) in the columns of the training log or
                user_id, item_id, timestamp, ordered as in training; or item ids by user id, or a
                list of lists of item ids for users 0, 1, …, oldest item first. A model that reads
                interactions or users wants a log, with their columns.
            users: ids of users, looked up in the dataset: their whole history there, the test
                target included.

        Raises:
            InputError: not exactly one of the two is given, or it will not do; an unknown user.
        """
        if (histories is None) == (users is None):
            raise InputError("give either histories or users")
        if isinstance(histories, UserHistories):
            return histories
        if histories is not None:
            return self.bundle.read_histories(histories)
        if self._read_dataset is None or users is None:
            raise InputError("users are looked up in a prepared dataset, and none was loaded")
        return UserHistories.from_dataset(users, self._read_dataset, self.bundle.vocabulary)

    def recommend(
        self,
        histories: RawHistories | UserHistories | None = None,
        *,
        users: Iterable[Any] | None = None,
        k: int = 10,
        seen: Seen | None = None,
        at: Moment | None = None,
        retrieve: int | None = None,
    ) -> Frame:
        """The k best items for each user.

        Args:
            histories: see `read_histories`.
            users: see `read_histories`.
            k: items per user; fewer where filtering leaves fewer.
            seen: filter: no item of the history is recommended; allow: any may be. None: as in
                training.
            at: when the recommendation is asked for; for the models that read it, and only they
                need it.
            retrieve: target attention ranks only so many items for each user, the best by the
                dot product (and the counts, where the bundle has them): faster where the catalogue
                is large, and what that misses is missed. None: it ranks all.

        Returns:
            user_id, item_id, score, rank (from 1), source ("model", or "popularity" for an empty
            history: its score is the number of interactions in training), best item first.

        Raises:
            InputError: k is not between 1 and the size of the catalogue; fewer than k are to be
                retrieved, or the model has no target attention to rank them by; the model reads
                times, and there are none; see `read_histories`.
        """
        seen = self._seen(seen)
        scorer = self._scorer if retrieve is None else self._two_stages(retrieve, k, seen)
        asked = self.read_histories(histories, users).told(self.bundle.times, at)
        tokens, scores = top_k(scorer, asked.histories, k, seen)
        rows, columns = np.nonzero(tokens != PAD)
        answer = _answer(
            asked, rows, self.bundle.vocabulary.decode(tokens[rows, columns]), scores[rows, columns]
        )
        rank = pl.Series("rank", columns + 1, dtype=pl.Int32)
        return frame_like(answer.insert_column(3, rank), histories)

    def score(
        self,
        histories: RawHistories | UserHistories | None = None,
        candidates: TableSource | Sequence[Any] = (),
        *,
        users: Iterable[Any] | None = None,
        at: Moment | None = None,
    ) -> Frame:
        """The scores of candidate items.

        Args:
            histories: see `read_histories`.
            candidates: user_id and item_id (a frame, or the path of a file); or a list of item ids
                for all users.
            users: see `read_histories`.
            at: see `recommend`.

        Returns:
            user_id, item_id, score, source, as in `recommend`, in the order of the candidates.

        Raises:
            InputError: a candidate is not in the catalogue, or its user not among the histories;
                the model reads times, and there are none; see `read_histories`.
        """
        asked = self.read_histories(histories, users).told(self.bundle.times, at)
        rows, tokens = self._pairs(asked, candidates)
        scores = np.empty(len(rows), dtype=np.float32)
        wanted, pair_rows = np.unique(rows, return_inverse=True)
        order = np.argsort(pair_rows, kind="stable")
        for batch in user_batches(len(wanted), self.bundle.num_items):
            start, stop = np.searchsorted(pair_rows[order], [batch.start, batch.stop])
            pairs = order[start:stop]
            part = self._scorer.score(asked.histories.take(wanted[batch])).cpu().numpy()
            scores[pairs] = part[pair_rows[pairs] - batch.start, tokens[pairs]]
        answer = _answer(asked, rows, self.bundle.vocabulary.decode(tokens), scores)
        return frame_like(answer, histories, candidates)

    def generate(
        self,
        histories: RawHistories | UserHistories | None = None,
        *,
        users: Iterable[Any] | None = None,
        n: int = 5,
        strategy: Strategy | None = None,
        candidates: Sequence[Any] | None = None,
        seen: Seen | None = None,
        repeats: bool = False,
    ) -> Frame:
        """The next n purchases of each user, in order: see `generate`.

        Args:
            histories: see `read_histories`.
            users: see `read_histories`.
            n: purchases for each user.
            strategy: `Greedy` (None), `Beam` or `Sampling`.
            candidates: ids of the items that may be generated; None: the whole catalogue.
            seen: see `recommend`.
            repeats: an item may be generated more than once.

        Raises:
            InputError: the model has no decoder or cannot write so many; a candidate is not in the
                catalogue; see `read_histories`.
        """
        seen = self._seen(seen)
        tokens = None
        if candidates is not None:
            if not len(candidates):
                raise InputError("candidates: name at least one item")
            tokens = known_tokens(candidates, self.bundle.vocabulary, "candidate item", "catalogue")
        asked = self.read_histories(histories, users)
        answer = generate(
            self.bundle,
            asked,
            n,
            strategy or Greedy(),
            seen=seen,
            candidates=tokens,
            repeats=repeats,
        )
        return frame_like(answer, histories)

    def explain(self, history: OneHistory, item: Any, *, at: Moment | None = None) -> pl.DataFrame:
        """What each purchase of a history adds to the score of an item: see `explain`."""
        return explain(self.bundle, history, item, at=at)

    def inspect(
        self,
        history: OneHistory,
        *,
        items: Sequence[Any] = (),
        n: int | None = None,
        at: Moment | None = None,
    ) -> list[AttentionMap]:
        """Where each block and head of the model looks for a history: see `inspect`."""
        return inspect(self.bundle, history, items=items, n=n, at=at)

    def _seen(self, seen: Seen | None) -> Seen:
        """The policy asked for, or that of training."""
        seen = seen or self.bundle.manifest.protocol.seen
        if seen not in ("filter", "allow"):
            raise InputError(f"seen={seen!r}: must be 'filter' or 'allow'")
        return seen

    def _pairs(
        self, asked: UserHistories, candidates: TableSource | Sequence[Any]
    ) -> tuple[NDArray[np.int64], NDArray[np.int32]]:
        """Rows of users and item tokens [N] of the candidates."""
        vocabulary, place = self.bundle.vocabulary, "catalogue"
        if isinstance(candidates, Sequence) and not isinstance(candidates, str):
            tokens = known_tokens(candidates, vocabulary, "candidate item", place)
            everyone = np.arange(len(asked.user_ids))
            return np.repeat(everyone, len(tokens)), np.tile(tokens, len(everyone))
        table = read_table(candidates, ["user_id", "item_id"], _origin(candidates))
        tokens = known_tokens(table["item_id"], vocabulary, "candidate item", place)
        users = known_tokens(table["user_id"], Vocabulary(asked.user_ids), "user", "histories")
        return users.astype(np.int64) - 1, tokens

    @cached_property
    def _read_dataset(self) -> PreparedDataset | None:
        """The dataset as the model reads it."""
        return None if self.dataset is None else self.bundle.encoders.read(self.dataset)

    @cached_property
    def _scorer(self) -> ServingScorer:
        return self._serving(self.bundle.scorer)

    def _two_stages(self, retrieve: int, k: int, seen: Seen) -> ServingScorer:
        """Only the best by the retriever are ranked."""
        if retrieve < k:
            raise InputError(f"retrieve={retrieve}: must be at least k={k}, the items to recommend")
        bundle = self.bundle
        return self._serving(TwoStages(bundle.retriever, bundle.scorer, retrieve, seen))

    def _serving(self, scorer: Scorer) -> ServingScorer:
        counts = torch.from_numpy(self.bundle.popularity)
        return ServingScorer(scorer, torch.cat([torch.tensor([-torch.inf]), counts]))


def _answer(
    asked: UserHistories, rows: NDArray[np.int64], items: pl.Series, scores: NDArray[np.float32]
) -> pl.DataFrame:
    """One line per pair of a user, given by row, and an item [N]."""
    sources = np.where(asked.histories.lengths == 0, "popularity", "model")
    return pl.DataFrame(
        {
            "user_id": asked.user_ids.gather(rows),
            "item_id": items,
            "score": scores,
            "source": pl.Series(sources, dtype=pl.String).gather(rows),
        }
    )


def _origin(candidates: object) -> str:
    return str(candidates) if isinstance(candidates, str | os.PathLike) else "candidates"
