"""The recommender: histories in raw ids to recommended or scored items in raw ids."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any, Literal

import polars as pl
from torch import Tensor

from recsys.config import Columns
from recsys.data.frames import Frame, frame_like
from recsys.data.prepared import PreparedDataset
from recsys.data.tables import TableSource
from recsys.errors import InputError
from recsys.inference.model_scorer import StateCache
from recsys.inference.scorer import Seen
from recsys.model.generation import Greedy, Strategy
from recsys.serving.answers import recommend, score
from recsys.serving.bundle import ModelBundle, refuse_lost_threads
from recsys.serving.calibration import with_probabilities
from recsys.serving.candidates import Candidates, RawCandidates, UserItemPairs
from recsys.serving.embeddings import history_embeddings, item_embeddings
from recsys.serving.explain import explain
from recsys.serving.fallback import Stages, seen_policy
from recsys.serving.generate import generate, generated_items
from recsys.serving.histories import OneHistory, RawHistories, UserHistories, users_of
from recsys.serving.history_source import HistorySource
from recsys.serving.index import BundleIndex
from recsys.serving.item_choice import chosen_diversity, chosen_items
from recsys.serving.new_items import with_new_items
from recsys.serving.raw_values import RequestTime, lists_of, whole_number
from recsys.serving.similar import item_directions, similar_items


@dataclass(frozen=True, eq=False)
class Recommender:
    """Recommends, scores, generates and explains with a trained model.

    Users need not occur in the training log: the model reads nothing but their history. A user
    whose history has no item of the catalogue gets the most popular items, marked as such.
    """

    bundle: ModelBundle
    dataset: PreparedDataset | None = None
    """The dataset in which users given by id are looked up."""
    like: Frame = None
    """A frame of the library that answers come in where no frame is asked with; polars if None."""
    index: BundleIndex | None = None
    """Finds the items to recommend; all are scored if None."""
    states: StateCache | None = None
    """Keeps encoded histories between calls, for one thread at a time; none are kept if None."""

    def __getattribute__(self, name: str) -> Any:
        """Refuse every call in a process that would wait for ever: see `refuse_lost_threads`."""
        if not name.startswith("__"):  # which unpickling asks for
            refuse_lost_threads()
        return super().__getattribute__(name)

    @classmethod
    def load(
        cls,
        path: str | os.PathLike[str],
        dataset: PreparedDataset | str | os.PathLike[str] | None = None,
    ) -> Recommender:
        """Open a bundle, and a prepared dataset to look users up in.

        Raises:
            InputError: one of the folders cannot be opened.
        """
        if isinstance(dataset, str | os.PathLike):
            dataset = PreparedDataset.open(dataset)
        return cls(ModelBundle.open(path), dataset)

    def with_new_items(self, items: TableSource) -> Recommender:
        """Add items that are newer than the model: see `with_new_items`."""
        return replace(self, bundle=with_new_items(self.bundle, items), states=None)

    def with_index(self, path: str | os.PathLike[str]) -> Recommender:
        """Recommend by the index that ``recsys index`` wrote: see `BundleIndex`."""
        return replace(self, index=BundleIndex.open(path, self.bundle))

    def read_histories(
        self,
        histories: RawHistories | UserHistories | None = None,
        users: Iterable[Any] | None = None,
    ) -> UserHistories:
        """Read histories as the model sees them, and count their unknown items.

        Args:
            histories: a log (a frame, or the path of a file) with the columns of the training log
                or user_id, item_id, timestamp, sorted as in training; or item ids by user id, or a
                list of lists of item ids for users 0, 1, …, oldest item first. A model that reads
                features of interactions or users needs a log with their columns.
            users: ids of users, looked up in the dataset: their full history there, the test
                target included. If neither is given, all users of the dataset.

        Raises:
            InputError: both arguments are given; or neither is, and no dataset was loaded; the
                histories cannot be read; a user is unknown.
        """
        return self.source.read(histories, users)

    def recommend(  # noqa: PLR0913 - what is recommended, to whom and by which rules
        self,
        histories: RawHistories | UserHistories | None = None,
        *,
        users: Iterable[Any] | None = None,
        k: int | None = None,
        seen: Seen | None = None,
        at: RequestTime | None = None,
        retrieve: int | None = None,
        allow: Candidates | None = None,
        deny: Candidates | None = None,
        where: str | None = None,
        diversity: float | None = None,
        at_most: Mapping[str, int] | None = None,
        probabilities: bool = False,
    ) -> Frame:
        """Recommend the k best items to each user.

        Args:
            histories: see `read_histories`.
            users: see `read_histories`.
            k: items per user, fewer if filtering leaves fewer; if None 10, or all items of a
                smaller catalogue.
            seen: "filter" recommends no item of the history, "allow" any; as in training if None.
            at: the request time; only models with ``times=request`` need it, others ignore it.
            retrieve: how many items per user target attention ranks, the best by the dot product
                (plus the count ensemble, if any): faster for a large catalogue, but good items
                outside them are missed. All items if None.
            allow: ids of the only items to recommend; a warning counts unknown ones. If None, all.
            deny: ids of items that are not recommended.
            where: a condition in SQL over the columns of the item table that recommended items
                meet, ``"category == 'boots' and price < 80"``: see `keep_where`.
            diversity: the weight of dissimilarity, 0 to 1: see `Diversity`.
            at_most: how many items of a list may have the same value in a column of the item
                table, ``{"category": 2}``.
            probabilities: add the column probability: see `with_probabilities`.

        Returns:
            user_id, item_id, score, rank (from 1) and source, best item first. The source is
            "model", or "popularity" for an empty history: its scores are counts of interactions.

        Raises:
            InputError: k is not between 1 and the size of the catalogue; no item is allowed; a
                column is unknown; ``retrieve`` is below k, or the model has no target attention;
                the model reads times and gets none; see `read_histories`.
        """
        allowed = chosen_items(self.bundle, allow, deny, where)
        diverse = chosen_diversity(self.bundle, diversity, at_most)
        queries = self._queries(histories, users, at)
        k = self.bundle.usual_k if k is None else whole_number("k", k)
        if retrieve is not None and whole_number("retrieve", retrieve) < k:
            raise InputError(f"retrieve={retrieve}: must be at least k={k}, the items to recommend")
        policy = seen_policy(self.bundle, seen)
        scorer = self._stages(retrieve, self.index).scorer(policy, allowed)
        answer = recommend(self.bundle, scorer, queries, k, policy, diverse)
        answer = with_probabilities(self.bundle, queries, answer) if probabilities else answer
        return frame_like(answer, histories, self.like)

    def score(
        self,
        histories: RawHistories | UserHistories | None = None,
        candidates: Candidates = (),
        *,
        users: Iterable[Any] | None = None,
        at: RequestTime | None = None,
        strict: bool = False,
        probabilities: bool = False,
    ) -> Frame:
        """Score candidate items; no other item is scored.

        Args:
            histories: see `read_histories`.
            candidates: user_id and item_id (a frame, or the path of a file), by these names or
                those of the training log; or item ids for all users, as a list or as a table of
                this one column; or a list of item ids for each user, by user id or in the order of
                the histories.
            users: see `read_histories`. If neither is given, the users of the candidates.
            at: see `recommend`.
            strict: refuse a candidate that is not in the catalogue, or whose user is not among the
                histories. Else it is left out, and a warning counts and names such candidates.
            probabilities: see `recommend`.

        Returns:
            user_id, item_id, score and source as in `recommend`, in the order of the candidates; a
            frame of pandas has the index of theirs.

        Raises:
            InputError: no candidate is known, or with ``strict`` one is not; the model reads times
                and gets none; see `read_histories`.
        """
        raw = RawCandidates.read(candidates, self.bundle.experiment.data.columns or Columns())
        if histories is None and users is None and self.dataset is not None:
            users = None if raw.users is None else users_of(raw.users, self.dataset)
        queries = self._queries(histories, users, at)
        pairs = UserItemPairs.from_raw(raw, queries.user_ids, self.bundle.vocabulary, strict=strict)
        answer = score(self.bundle, self._stages(None, None).candidates, queries, pairs)
        answer = with_probabilities(self.bundle, queries, answer) if probabilities else answer
        rows = (None, ()) if pairs.rows is None else (lists_of(candidates), pairs.rows)
        return frame_like(answer, histories, candidates, self.like, rows=rows)

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
        """Generate the next n purchases of each user, in order: see `generate`.

        Args:
            histories: see `read_histories`.
            users: see `read_histories`.
            n: purchases per user.
            strategy: `Greedy`, `Beam` or `Sampling`; greedy if None.
            candidates: ids of the items that may be generated; all items if None.
            seen: see `recommend`.
            repeats: whether a list may hold an item more than once.

        Raises:
            InputError: the model has no decoder or cannot generate so many; a candidate is not in
                the catalogue; see `read_histories`.
        """
        tokens = generated_items(self.bundle, candidates)
        queries = self.read_histories(histories, users)
        policy, how = seen_policy(self.bundle, seen), strategy or Greedy()
        answer = generate(
            self.bundle, queries, n, how, seen=policy, candidates=tokens, repeats=repeats
        )
        return frame_like(answer, histories, self.like)

    def similar_items(self, item: Any, k: int = 10) -> pl.DataFrame:
        """Find the items with the most similar embeddings: see `similar_items`."""
        return similar_items(self.bundle, self._directions, item, k)

    def embeddings(
        self,
        of: Literal["items"] | RawHistories | UserHistories = "items",
        *,
        at: RequestTime | None = None,
    ) -> pl.DataFrame:
        """Return ids and embedding, an array of float32, of all items or of histories.

        Args:
            of: "items" (see `item_embeddings`), or histories (see `history_embeddings`).
            at: see `recommend`.
        """
        if isinstance(of, str) and of == "items":
            return item_embeddings(self.bundle)
        queries = self._queries(of, None, at)
        return history_embeddings(self.bundle, queries)

    def explain(
        self,
        history: OneHistory | None = None,
        item: Any = None,
        *,
        user: Any = None,
        at: RequestTime | None = None,
    ) -> Frame:
        """Show what each purchase of a history adds to the score of an item: see `explain`.

        Args:
            history: see `explain`.
            item: the id of the item to explain.
            user: in place of a history, the id of a user of the dataset.
            at: see `recommend`.

        Returns:
            As `explain`, the largest contribution first; equal ones by position.
        """
        if item is None or (history is None) == (user is None):
            raise InputError("give either a history or a user, and the item to explain")
        given = self.read_histories(users=[user]) if history is None else history
        parts = explain(self.bundle, given, item, at=at)
        best = parts.sort("contribution", descending=True, maintain_order=True)
        return frame_like(best, history, self.like)

    def save(self, path: str | os.PathLike[str]) -> None:
        """Copy the bundle: see `ModelBundle.copy_to`."""
        self.bundle.copy_to(path)

    def report(self) -> Path:
        """Return the page that `recsys.fit` wrote: see `ModelBundle.report`."""
        return self.bundle.report

    def _queries(
        self,
        histories: RawHistories | UserHistories | None,
        users: Iterable[Any] | None,
        at: RequestTime | None,
    ) -> UserHistories:
        """Read histories, with the times that the model reads."""
        queries = self.read_histories(histories, users)
        return queries.with_request_time(self.bundle.times, at, self.bundle.time_scale)

    def _stages(self, retrieve: int | None, index: BundleIndex | None) -> Stages:
        """The scorers; with kept states, those of the calls before, which share one ranker."""
        if self.states is None:
            return Stages.of(self.bundle, retrieve, None, index)
        key = retrieve, index is None
        if key not in self._kept_stages:
            made = Stages.of(self.bundle, retrieve, self.states, index)
            first = next(iter(self._kept_stages.values()), made)
            self._kept_stages[key] = replace(made, ranker=first.ranker)
        return self._kept_stages[key]

    @cached_property
    def _kept_stages(self) -> dict[tuple[int | None, bool], Stages]:
        return {}

    @cached_property
    def _directions(self) -> Tensor:
        return item_directions(self.bundle)

    @cached_property
    def source(self) -> HistorySource:
        """Where the histories of users come from."""
        return HistorySource(self.bundle, self.dataset)
