"""Any other system under our protocol: its scores, ranked and tracked as those of a model are."""

import logging
import os
from hashlib import sha256
from typing import Any

import numpy as np
import polars as pl
import torch
from scipy.sparse import csr_array
from torch import Tensor

from recsys.config.experiment import Experiment
from recsys.config.files import flatten
from recsys.data.entity_tables import plain_ids
from recsys.data.histories import PAD
from recsys.data.prepared import PreparedDataset, Vocabulary
from recsys.data.splits import Holdout
from recsys.data.tables import TableSource, read_table
from recsys.errors import InputError
from recsys.evaluation.held_out import evaluate_held_out, find_holdout
from recsys.evaluation.tables import choose_candidates
from recsys.experiments.results import Results
from recsys.tracking.tracker import track

logger = logging.getLogger(__name__)


def read_scores(source: TableSource, dataset: PreparedDataset) -> csr_array:
    """Read a table of user_id, item_id and score in any order, with lists of any length.

    Rows of users or items that the dataset lacks are left out, with a warning. Returned are the
    levels [U, I + 1]: the dense rank of each score among those of its user, 1 the lowest.

    Raises:
        InputError: the table cannot be read, or has other ids than the dataset; a score is no
            number, or a pair has two.
    """
    origin = str(source) if isinstance(source, str | os.PathLike) else "the predictions"
    table = read_table(source, ["user_id", "item_id", "score"], origin)
    scores = table["score"].cast(pl.Float64, strict=False)
    if len(wrong := (scores.is_null() | scores.is_nan()).arg_true()):
        row = int(wrong[0])
        raise InputError(f"{origin}: row {row + 1}: score {table['score'][row]!r} is no number")
    users = Vocabulary(dataset.user_ids).encode(plain_ids(table["user_id"])).astype(np.int64) - 1
    items = dataset.vocabulary.encode(plain_ids(table["item_id"])).astype(np.int64)
    frame = pl.DataFrame({"user": users, "item": items, "score": scores})
    frame = frame.filter(pl.col("user") >= 0, pl.col("item") != PAD)
    if frame.is_empty():
        first = ", ".join(map(repr, table.head(1).rows()))
        raise InputError(
            f"{origin}: no row is of a user and an item of the dataset; row 1: {first}"
        )
    if lacking := len(table) - len(frame):
        message = "%s: %d of %d rows are of users or items that the dataset lacks: left out"
        logger.warning(message, origin, lacking, len(table))
    if len(twice := frame.filter(pl.struct("user", "item").is_duplicated())):
        user, item, _ = twice.row(0)
        item_id, user_id = dataset.vocabulary.decode([item])[0], dataset.user_ids[user]
        raise InputError(f"{origin}: user_id {user_id!r} has item_id {item_id!r} twice")
    frame = frame.filter(pl.col("score") > -np.inf)  # of a model: never recommended
    levels = frame.select(pl.col("score").rank("dense").over("user").cast(pl.Float32))["score"]
    shape = dataset.num_users, dataset.num_items + 1
    return csr_array((levels.to_numpy(), (frame["user"], frame["item"])), shape=shape)


def evaluate_predictions(
    source: TableSource, experiment: Experiment, dataset: PreparedDataset
) -> dict[str, Any]:
    """Rank the test targets by the scores of another system, and log a run to compare with others.

    The experiment has the name of the run, the protocol and the store. Returned are the id of the
    run, the numbers of targets and of those without a score, which are missed, and all metrics.

    Raises:
        InputError: see `read_scores`; or there is nothing to evaluate on, or the store cannot be
            used.
    """
    experiment = experiment.with_data(dataset.config)
    evaluation, levels = experiment.evaluation, read_scores(source, dataset)
    holdout = find_holdout(dataset, "test", evaluation.request_time)
    candidates = choose_candidates(evaluation, dataset, "test", holdout)
    scored = levels[holdout.users, holdout.targets] > 0
    content = sha256(levels.indptr.tobytes() + levels.indices.tobytes() + levels.data.tobytes())
    kept = ("data.", "evaluation.")
    settings = {key: value for key, value in flatten(experiment).items() if key.startswith(kept)}
    settings["predictions"] = content.hexdigest()

    def score(some: Holdout) -> Tensor:
        scores = levels[some.owners].toarray()
        scores[scores == 0] = -np.inf  # PAD, and what the system has not scored
        return torch.from_numpy(scores)

    with track(experiment, dataset, "predictions", settings, candidates) as tracker:
        found = evaluate_held_out(score, dataset, holdout, evaluation, candidates)
        results, unscored = Results(evaluation.cutoffs, *found), int(np.count_nonzero(~scored))
        results.log_alone(tracker, {"targets_unscored": float(unscored)})
    row = {"run": tracker.run_id, "targets": len(scored), "without_score": unscored}
    return row | {metric: figure.mean for metric, figure in results.of_part("test").items()}
