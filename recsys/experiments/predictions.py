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
from scipy.sparse import csr_array
from torch import Tensor

from recsys.config.experiment import Experiment
from recsys.config.files import flatten
from recsys.data.histories import PAD, Features, FeatureTable, Histories, Int32s
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

    levels: csr_array
    """Shape [U, I + 1]: the dense rank of each score among those of its user, 1 the lowest."""

    @property
    def num_items(self) -> int:
        return int(self.levels.shape[1]) - 1

    def score(self, histories: Histories, candidates: Int32s | None = None) -> Tensor:
        """Score items; see `Scorer.score`."""
        assert histories.user_features is not None  # noqa: S101 - `numbered` gave them
        scores = self.levels[histories.user_features.rows].toarray()
        scores[:, PAD] = -np.inf
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
    frame = pl.DataFrame({"user": users, "item": items, "score": scores})
    frame = frame.filter(pl.col("user") >= 0, pl.col("item") != PAD)
    if lacking := len(table) - len(frame):
        message = "%s: %d of %d rows are of users or items that the dataset lacks: left out"
        logger.warning(message, origin, lacking, len(table))
    twice = frame.filter(pl.struct("user", "item").is_duplicated())
    if len(twice):
        user, item, _ = twice.row(0)
        item_id, user_id = dataset.vocabulary.decode([item])[0], dataset.user_ids[user]
        raise InputError(f"{origin}: user_id {user_id!r} has item_id {item_id!r} twice")
    levels = frame.select(pl.col("score").rank("dense").over("user").cast(pl.Float32))["score"]
    shape = dataset.num_users, dataset.num_items + 1
    return GivenScores(csr_array((levels.to_numpy(), (frame["user"], frame["item"])), shape=shape))


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
    given, scored = scorer.levels, scorer.levels[holdout.users, holdout.targets] > 0
    content = sha256(given.indptr.tobytes() + given.indices.tobytes() + given.data.tobytes())
    kept = ("data.", "evaluation.")
    settings = {key: value for key, value in flatten(experiment).items() if key.startswith(kept)}
    settings["predictions"] = content.hexdigest()
    with track(experiment, dataset, "predictions", settings, candidates) as tracker:
        test = evaluate_held_out(scorer, dataset, holdout, "test", evaluation, candidates)
        results, unscored = Results(evaluation.cutoffs, test, {}), int(np.count_nonzero(~scored))
        results.log_alone(tracker, {"targets_unscored": float(unscored)})
    return Predicted(tracker.run_id, results.test_metrics, len(scored), unscored)
