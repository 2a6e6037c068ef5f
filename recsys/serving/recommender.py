"""The recommender: histories in raw ids to recommended or scored items in raw ids."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from functools import cached_property, partial
from pathlib import Path
from typing import Any, Literal

import narwhals as nw
import numpy as np
import polars as pl
import torch

from recsys.config.data import Columns
from recsys.data.frames import Frame, frame_like
from recsys.data.histories import PAD, Bools, Float32s, Int32s, Int64s
from recsys.data.prepared import PreparedDataset, Vocabulary
from recsys.data.tables import TableSource
from recsys.errors import InputError
from recsys.inference.diversity import diverse_top_k
from recsys.inference.model_scorer import ModelScorer, StateCache, generate_lists
from recsys.inference.ranking import AllowedItems, TwoStages, no_items, top_k
from recsys.inference.scorer import Scored, Scorer, Seen, user_batches
from recsys.model.sequence_to_sequence import SequenceToSequence, Strategy
from recsys.serving.bundle import ModelBundle, refuse_fork
from recsys.serving.candidates import (
    Candidates,
    chosen_diversity,
    chosen_items,
    pair_batches,
    pairs_of,
    read_candidates,
)
from recsys.serving.explain import explain_items
from recsys.serving.histories import HistoryReader, RawHistories, Times, UserHistories
from recsys.serving.index import STATES, IndexedScorer, needs_ranking, open_index, query_encoder
from recsys.serving.new_items import with_new_items
from recsys.serving.raw_values import RequestTime, id_series, integer_of, known_tokens, lists_of


@dataclass(frozen=True, eq=False)
class Recommender:
    """Recommends, scores, generates and explains with a trained model.

    Users need not occur in the training log. One whose history has no item of the catalogue gets
    the most popular items, marked as such.
    """

    bundle: ModelBundle
    dataset: PreparedDataset | None = None
    """The dataset in which users given by id are looked up."""
    like: Frame = None
    """A frame of the library that answers come in where no frame is asked with; polars if None."""
    index: Any = None
    """Finds the items to recommend; all are scored if None."""

    def __getattribute__(self, name: str) -> Any:
        """Refuse every call, but those of unpickling, in a fork: see `refuse_fork`."""
        if not name.startswith("__"):
            refuse_fork()
        return super().__getattribute__(name)

    @classmethod
    def load(
        cls,
        path: str | os.PathLike[str],
        dataset: PreparedDataset | str | os.PathLike[str] | None = None,
    ) -> Recommender:
        """Open a bundle, and a prepared dataset to look users up in."""
        opened = None if dataset is None else PreparedDataset.open(dataset)
        return cls(ModelBundle.open(path), opened)

    def with_new_items(self, items: TableSource) -> Recommender:
        """Add items that are newer than the model: see `recsys.serving.new_items`."""
        if self.index is not None:
            raise InputError("an index has no items that are newer than the model")
        return replace(self, bundle=with_new_items(self.bundle, items))

    def with_index(self, path: str | os.PathLike[str]) -> Recommender:
        """Recommend by the index that ``recsys index`` wrote: see `make_index`."""
        states = self.bundle.states or StateCache(STATES)  # queries and scores encode once
        bundle = replace(self.bundle, states=states)
        return replace(self, bundle=bundle, index=open_index(path, bundle))

    def read_histories(
        self,
        histories: RawHistories | UserHistories | None = None,
        users: Iterable[Any] | None = None,
        times: Times | None = None,
    ) -> UserHistories:
        """Read histories as the model sees them, and count their unknown items.

        Args:
            histories: a log (a frame, or the path of a file) with the columns of the training log
                or user_id, item_id, timestamp; or item ids by user id, or a list of lists for users
                0, 1, …, oldest item first. A model that reads features of interactions or users
                needs a log with their columns.
            users: ids of users, looked up in the dataset: their full history there, the test
                target included. With lists too, each list is what a user did after that. If neither
                is given, all users of the dataset.
            times: the times of the items of lists, which are sorted by them.

        Raises:
            InputError: the histories cannot be read; a user is unknown, or there is no dataset.
        """
        if histories is None and users is None and self.dataset is None:
            raise InputError("give either histories or users, or load a dataset")
        if isinstance(histories, UserHistories) and users is None:
            return histories
        if users is not None:
            ids = id_series(users, "users")
            users = ids.unique(maintain_order=True)
            if histories is not None and len(users) < len(ids):
                raise InputError("users: with histories, each may be given once")
        return self.reader.read(histories, users, times)  # type: ignore[arg-type]

    @cached_property
    def reader(self) -> HistoryReader:
        """Reads histories, also of users of the dataset."""
        data, newest = self.bundle.experiment.data, self.bundle.manifest.trained_until
        times = self.bundle.times, self.bundle.usual_gap
        return HistoryReader(
            data, self.bundle.vocabulary, self.bundle.encoders, newest, *times, self.dataset
        )

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
            at: the request time, which models with ``times=request`` read.
            retrieve: how many items per user target attention ranks, the best by the dot product
                (plus the count ensemble, if any), or it and the counts, of those that an index
                finds: faster for a large catalogue, but good items outside them are missed. All
                items if None.
            allow: ids of the only items to recommend.
            deny: ids of items that are not recommended.
            where: a condition in SQL over the columns of the item table that recommended items
                meet, ``"category == 'boots' and price < 80"``.
            diversity: the weight of dissimilarity, 0 to 1: see `Diversity`.
            at_most: how many items of a list may have the same value in a column of the item
                table, ``{"category": 2}``.
            probabilities: add the column probability: see `with_probabilities`.

        Returns:
            user_id, item_id, score, rank (from 1) and source, best item first. The source is
            "model", or "popularity" for an empty history: its scores are counts of interactions.

        Raises:
            InputError: ``retrieve`` is below k, or the model has no target attention (behind an
                index: nor counts).
        """
        allowed = chosen_items(self.bundle, allow, deny, where)
        diverse = chosen_diversity(self.bundle, diversity, at_most)
        queries = self._queries(histories, users, at)
        k = self.bundle.usual_k if k is None else integer_of("k", k, 1)
        retrieve = None if retrieve is None else integer_of("retrieve", retrieve, k)
        policy = self._seen(seen)
        scorer = self._ranking_scorer(policy, retrieve, allowed)
        find = top_k if diverse is None else partial(diverse_top_k, diversity=diverse)
        lengths = queries.histories.lengths
        known, new = np.flatnonzero(lengths), np.flatnonzero(lengths == 0)
        tokens, scores = no_items(len(lengths), min(k, self.bundle.num_items))
        if len(known):
            tokens[known], scores[known] = find(scorer, queries.histories.take(known), k, policy)
        if len(new):  # all of them get the same
            counts = np.append(np.float32(-np.inf), self.bundle.popularity)
            scorer = Scored(torch.from_numpy(counts)[None])
            scorer = scorer if allowed is None else AllowedItems(scorer, allowed)
            tokens[new], scores[new] = find(scorer, queries.histories.take(new[:1]), k, policy)
        rows, columns = np.nonzero(tokens != PAD)
        answer = self._table(queries, rows, tokens[rows, columns], scores[rows, columns])
        answer.insert_column(3, pl.Series("rank", columns + 1, dtype=pl.Int32))
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
                this one column; or lists of item ids by user id, or for users 0, 1, ….
            users: see `read_histories`. If neither is given, the users of the candidates.
            at: see `recommend`.
            strict: refuse a candidate whose item or user is unknown. Else it is left out, and a
                warning counts and names such candidates.
            probabilities: see `recommend`.

        Returns:
            user_id, item_id, score and source as in `recommend`, in the order of the candidates; a
            frame of pandas has the index of theirs.

        Raises:
            InputError: no candidate is known, or with ``strict`` one is not.
        """
        raw = read_candidates(candidates, self.bundle.experiment.data.columns or Columns())
        if histories is None and users is None and self.dataset is not None:
            users = raw[1]
            if users is not None:  # those that the dataset has; all if it has none of them
                users = users.unique(maintain_order=True)
                is_there = Vocabulary(self.dataset.user_ids).encode(users) != PAD
                users = users.filter(is_there) if is_there.any() else users
        queries = self._queries(histories, users, at)
        catalogue = self.bundle.vocabulary
        owners, items, rows = pairs_of(raw, queries.user_ids, catalogue, strict=strict)
        scores = self.bundle.popularity[items - 1]
        known = np.flatnonzero(queries.histories.lengths[owners])
        for batch, tokens, pairs in pair_batches(owners[known], items[known]):
            found = self.bundle.scorer.score(queries.histories.take(batch), tokens).cpu().numpy()
            scores[known[pairs]] = found[tokens != PAD]
        answer = self._table(queries, owners, items, scores)
        answer = with_probabilities(self.bundle, queries, answer) if probabilities else answer
        indexed = (None, ()) if rows is None else (lists_of(candidates), rows)
        return frame_like(answer, histories, candidates, self.like, rows=indexed)

    def generate(
        self,
        histories: RawHistories | UserHistories | None = None,
        *,
        users: Iterable[Any] | None = None,
        n: int = 5,
        strategy: Strategy | None = None,
        candidates: Candidates | None = None,
        seen: Seen | None = None,
        repeats: bool = False,
    ) -> Frame:
        """Generate the next n purchases of each user, in order.

        ``candidates`` are the only items to generate, and ``repeats`` says whether a list may hold
        an item more than once. For the others see `recommend`.

        Returns:
            user_id, item_id, step (from 1), log_probability (of the entire list; null for
            popularity) and source ("model" or "popularity"), in the order of the users and of
            purchase. A user for whom too few items are left has fewer than n rows.

        Raises:
            InputError: the model has no decoder or cannot generate so many.
        """
        bundle, chosen = self.bundle, chosen_items(self.bundle, candidates, None, None)
        allowed = None if chosen is None else np.flatnonzero(chosen).astype(np.int32)
        if allowed is not None and not len(allowed):
            raise InputError("candidates: name at least one item")
        queries = self.read_histories(histories, users)
        policy, n = self._seen(seen), integer_of("n", n)
        if not isinstance(model := bundle.model, SequenceToSequence):
            raise InputError(
                f"{bundle.path}: a model of kind {bundle.experiment.model.kind} generates nothing; "
                "train one with model.kind=sequence_to_sequence"
            )
        longest = bundle.experiment.model.max_sequence_length
        known = np.flatnonzero(queries.histories.lengths)
        generated, log_probabilities = generate_lists(
            *(model, longest, queries.histories.take(known), n, policy),
            strategy=strategy,
            candidates=allowed,
            repeats=repeats,
        )
        choices = np.arange(1, bundle.num_items + 1) if allowed is None else allowed
        popular = choices[np.argsort(-bundle.popularity[choices - 1], kind="stable")[:n]]
        lists = np.full((len(queries.user_ids), n), PAD, dtype=np.int32)
        lists[:, : len(popular)] = popular
        scores = np.full(len(lists), np.nan, dtype=np.float32)
        lists[known], scores[known] = generated, log_probabilities
        rows, steps = np.nonzero(lists != PAD)
        answer = self._table(queries, rows, lists[rows, steps], scores[rows]).select(
            *("user_id", "item_id"),
            pl.Series("step", steps + 1, dtype=pl.Int32),
            pl.col("score").fill_nan(None).alias("log_probability"),
            "source",
        )
        return frame_like(answer, histories, self.like)

    def similar_items(self, item: Any, k: int = 10) -> pl.DataFrame:
        """Find the k other items whose embeddings have the largest cosine with that of an item.

        Returns:
            item_id, the item's name or title if the item table has them, similarity and rank (from
            1), the most similar first; equal ones in the order of the catalogue.
        """
        k, bundle = integer_of("k", k, 1), self.bundle
        token = int(known_tokens([item], bundle.vocabulary, "item", "catalogue").item())
        cosines = (bundle.directions[1:] @ bundle.directions[token]).cpu().numpy()
        cosines[token - 1] = -np.inf
        best = np.argsort(-cosines, kind="stable")[: min(k, len(cosines) - 1)]
        return bundle.item_table.select("item_id", *bundle.name_columns)[best].with_columns(
            pl.Series("similarity", cosines[best]),
            pl.Series("rank", np.arange(1, len(best) + 1), dtype=pl.Int32),
        )

    def embeddings(
        self,
        of: Literal["items"] | RawHistories | UserHistories = "items",
        *,
        at: RequestTime | None = None,
    ) -> pl.DataFrame:
        """Return ids and embedding, an array of D float32, of all items or of histories.

        That of a history is the last hidden state, which the head compares with a candidate: by a
        dot product, to which target attention adds. It is null without an item of the catalogue.
        """
        scorer = ModelScorer(self.bundle.model, self.bundle.experiment.model.max_sequence_length)
        if isinstance(of, str) and of == "items":
            table = scorer.vectors().float().cpu().numpy()
            return self.bundle.item_table.select("item_id").with_columns(_vectors(table))
        queries = self._queries(of, None, at)
        known = np.flatnonzero(queries.histories.lengths)
        some = scorer.states(queries.histories.take(known)) if len(known) else scorer.vectors()[:0]
        states = some.float().cpu().numpy()
        vectors = pl.DataFrame({"user_id": queries.user_ids[known]}).with_columns(_vectors(states))
        users = pl.DataFrame({"user_id": queries.user_ids})
        return users.join(vectors, on="user_id", how="left", maintain_order="left")

    def explain(
        self,
        history: Iterable[Any] | TableSource | UserHistories | None = None,
        item: Any = None,
        *,
        user: Any = None,
        at: RequestTime | None = None,
    ) -> Frame:
        """Show what each purchase of a history adds to the score of an item: see `explain_items`.

        The history is a list of item ids, oldest first, a log of one user, or the user's in the
        dataset. The largest contribution comes first; equal ones by position.
        """
        if item is None or (history is None) == (user is None):
            raise InputError("give either a history or a user, and the item to explain")
        source: Any = nw.from_native(history, pass_through=True)
        if isinstance(source, (UserHistories, Mapping, nw.DataFrame, nw.LazyFrame, os.PathLike)):
            source = history
        else:
            source = None if history is None else [id_series(source, "history")]
        queries = self._queries(source, None if user is None else [user], at)
        (parts,) = explain_items(self.bundle, queries, [item])
        best = parts.sort("contribution", descending=True, maintain_order=True)
        return frame_like(best, history, self.like)

    def save(self, path: str | os.PathLike[str]) -> None:
        """Copy the bundle to another folder, atomically; a bundle there is replaced."""
        self.bundle.copy_to(path)

    def report(self) -> Path:
        """Return the page that `recsys.fit` and `recsys run` write beside the bundle."""
        self.bundle.check_not_replaced()
        page = self.bundle.path.resolve().with_name("report.html")
        if not page.is_file():
            raise InputError(f"{page}: no such page; recsys.fit and recsys run write it")
        return page

    def _ranking_scorer(self, seen: Seen, retrieve: int | None, allowed: Bools | None) -> Scorer:
        """Return the scorer that finds the best items of `recommend`."""
        bundle, index = self.bundle, self.index
        if index is not None and needs_ranking(bundle) and retrieve is None:
            raise InputError(
                "an index finds items by the dot product, and target attention or counts rank "
                "them: say how many (--retrieve, retrieve=)"
            )
        scorer = bundle.scorer
        # Counts alone rank what an index finds, or all items where it finds too few.
        by_counts = index is not None and needs_ranking(bundle) and not bundle.model.head.attends
        if retrieve is not None and not by_counts:
            first = bundle.retriever if allowed is None else AllowedItems(bundle.retriever, allowed)
            scorer = TwoStages(first, scorer, retrieve, seen)
        if allowed is not None:
            return AllowedItems(scorer, allowed)
        if index is None:
            return scorer
        return IndexedScorer(scorer, bundle.scorer, query_encoder(bundle), index, retrieve)

    def _queries(
        self,
        histories: RawHistories | UserHistories | None,
        users: Iterable[Any] | None,
        at: RequestTime | None,
    ) -> UserHistories:
        """Read histories, with the times that the model reads."""
        return self.reader.with_request_time(self.read_histories(histories, users), at)

    def _seen(self, seen: Seen | None) -> Seen:
        """Return the given policy for seen items, or that of training."""
        seen = self.bundle.experiment.evaluation.seen if seen is None else seen
        if str(seen) not in ("filter", "allow"):
            raise InputError(f"seen={seen!r}: must be 'filter' or 'allow'")
        return seen

    def _table(
        self, queries: UserHistories, rows: Int64s, tokens: Int32s, scores: Float32s
    ) -> pl.DataFrame:
        """Return one line per pair [N] of a user, given by row, and an item, with its source."""
        sources = np.where(queries.histories.lengths == 0, "popularity", "model")
        return pl.DataFrame(
            {
                "user_id": queries.user_ids.gather(rows),
                "item_id": self.bundle.vocabulary.decode(tokens),
                "score": scores,
                "source": pl.Series(sources, dtype=pl.String).gather(rows),
            }
        )


def with_probabilities(
    bundle: ModelBundle, queries: UserHistories, answer: pl.DataFrame
) -> pl.DataFrame:
    """Add the column probability to an answer; null where the scores are counts of interactions."""
    temperature = bundle.manifest.temperature
    if temperature is None:
        raise InputError(
            f"{bundle.path}: has no temperature, which probabilities need: train the model again"
        )
    rows = np.flatnonzero(queries.histories.lengths)
    totals = np.full(len(queries.user_ids), np.nan)
    with torch.inference_mode():
        for batch in user_batches(len(rows), bundle.num_items):
            chosen = rows[batch]
            scores = bundle.scorer.score(queries.histories.take(chosen))
            totals[chosen] = (scores / temperature).logsumexp(dim=1).cpu().numpy()
    users = pl.DataFrame({"user_id": queries.user_ids, "__total": totals})
    joined = answer.join(users, on="user_id", how="left", maintain_order="left")
    probability = (pl.col("score") / temperature - pl.col("__total")).exp().fill_nan(None)
    return joined.with_columns(probability=probability.cast(pl.Float32)).drop("__total")


def _vectors(rows: Float32s) -> pl.Series:
    return pl.Series("embedding", rows, dtype=pl.Array(pl.Float32, rows.shape[1]))
