"""Any other system under our protocol: its scores, ranked and tracked as those of a model are."""

from __future__ import annotations

import logging
import os
from dataclasses import dataclass, replace
from hashlib import sha256
from typing import NamedTuple

import numpy as np
import polars as pl
import torch
from numpy.typing import NDArray

from recsys.config import Experiment, flatten
from recsys.data.histories import PAD, Features, FeatureTable, Histories
from recsys.data.prepared import PreparedDataset, Vocabulary
from recsys.data.splits import Holdout
from recsys.data.tables import TableSource, read_table
from recsys.errors import InputError
from recsys.evaluation.candidates import choose_candidates
from recsys.evaluation.held_out import evaluate_held_out, find_holdout
from recsys.evaluation.metrics import Interval
from recsys.experiments.results import Results
from recsys.inference.scorer import Scored
from recsys.tracking.tracker import track

logger = logging.getLogger(__name__)


class Predicted(NamedTuple):
    """The figures of another system; targets without a score rank below all that have one."""

    run_id: str
    metrics: dict[str, Interval]
    targets: int
    unscored: int


@dataclass(frozen=True, eq=False)
class GivenScores:
    """The scores of another system, as a `Scorer` of users whose feature is their own number."""

    num_items: int
    offsets: NDArray[np.int64]
    """Shape [U + 1]: where each user's scores start."""
    items: NDArray[np.int64]
    """Shape [N]: item tokens."""
    levels: NDArray[np.float32]
    """Shape [N]: the dense rank of each score among those of its user, 1 the lowest; else 0."""

    def score(
        self, histories: Histories, candidates: NDArray[np.int32] | None = None
    ) -> torch.Tensor:
        """Score items; see `Scorer.score`."""
        assert histories.user_features is not None  # noqa: S101 - `numbered` gave them
        scores = np.zeros((len(histories), self.num_items + 1), dtype=np.float32)
        scores[:, PAD] = -np.inf
        for row, user in enumerate(histories.user_features.rows):
            own = slice(self.offsets[user], self.offsets[user + 1])
            scores[row, self.items[own]] = self.levels[own]
        return Scored(torch.from_numpy(scores)).score(histories, candidates)


def numbered(holdout: Holdout) -> Holdout:
    """Return the holdout with histories that know their user's row in the dataset."""
    users = np.zeros(len(holdout.histories), dtype=np.int64)
    users[holdout.history_rows] = holdout.users
    nothing = np.zeros((1, 0), dtype=np.float32)
    table = FeatureTable(nothing.astype(np.int64), nothing, nothing)
    return replace(
        holdout, histories=replace(holdout.histories, user_features=Features(table, users))
    )


def read_scores(source: TableSource, dataset: PreparedDataset) -> GivenScores:
    """Read a table of user_id, item_id and score in any order, with lists of any length.

    Rows of users or items that the dataset lacks are left out, with a warning.

    Raises:
        InputError: the table cannot be read, a score is no number, or a pair has two.
    """
    origin = str(source) if isinstance(source, str | os.PathLike) else "the predictions"
    table = read_table(source, ["user_id", "item_id", "score"], origin)
    scores = table["score"].cast(pl.Float64, strict=False)
    if len(wrong := (scores.is_null() | scores.is_nan()).arg_true()):
        row = int(wrong[0])
        raise InputError(f"{origin}: row {row + 1}: score {table['score'][row]!r} is no number")
    users = Vocabulary(dataset.user_ids).encode(table["user_id"]).astype(np.int64) - 1
    items = dataset.vocabulary.encode(table["item_id"]).astype(np.int64)
    known = (users >= 0) & (items != PAD)
    if not known.all():
        message = "%s: %d of %d rows are of users or items that the dataset lacks: left out"
        logger.warning(message, origin, np.count_nonzero(~known), len(known))
    frame = pl.DataFrame({"user": users, "item": items, "score": scores}).filter(pl.Series(known))
    twice = frame.filter(pl.struct("user", "item").is_duplicated())
    if len(twice):
        user, item, _ = twice.row(0)
        item_id, user_id = dataset.vocabulary.decode([item])[0], dataset.user_ids[user]
        raise InputError(f"{origin}: user_id {user_id!r} has item_id {item_id!r} twice")
    frame = frame.sort("user", maintain_order=True)
    levels = frame.select(pl.col("score").rank("dense").over("user"))["score"]
    counts = np.bincount(frame["user"].to_numpy(), minlength=dataset.num_users)
    offsets = np.concatenate([[0], np.cumsum(counts)])
    ranked = levels.to_numpy().astype(np.float32)
    return GivenScores(dataset.num_items, offsets, frame["item"].to_numpy(), ranked)


def evaluate_predictions(
    source: TableSource, experiment: Experiment, dataset: PreparedDataset
) -> Predicted:
    """Rank the test targets by the scores of another system, and log a run to compare with others.

    The experiment has the name of the run, the protocol and the store.

    Raises:
        InputError: see `read_scores`; or there is nothing to evaluate on, or the store cannot be
            used.
    """
    experiment = experiment.with_data(dataset.config)
    evaluation, scorer = experiment.evaluation, read_scores(source, dataset)
    holdout = numbered(find_holdout(dataset, "test", evaluation.request_time))
    candidates = choose_candidates(evaluation, dataset, "test", holdout)
    width = dataset.num_items + 1
    users = np.repeat(np.arange(dataset.num_users), np.diff(scorer.offsets))
    scored = np.isin(holdout.users * width + holdout.targets, users * width + scorer.items)
    content = sha256(scorer.offsets.tobytes() + scorer.items.tobytes() + scorer.levels.tobytes())
    kept = ("data.", "evaluation.")
    settings = {key: value for key, value in flatten(experiment).items() if key.startswith(kept)}
    settings["predictions"] = content.hexdigest()
    with track(experiment, dataset, "predictions", settings, candidates) as tracker:
        test = evaluate_held_out(scorer, dataset, holdout, "test", evaluation, candidates)
        results, unscored = Results(evaluation.cutoffs, test, {}), int(np.count_nonzero(~scored))
        results.log_alone(tracker, {"targets_unscored": float(unscored)})
    return Predicted(tracker.run_id, results.test_metrics, len(scored), unscored)
