"""The protocol of an evaluation: the items that targets are ranked among, and its tags."""

import hashlib
import logging
import os
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from recsys.config.experiment import AllItems, EvaluationConfig, GivenItems, SampledItems
from recsys.data.entity_tables import plain_ids
from recsys.data.histories import PAD, Histories
from recsys.data.prepared import Part, PreparedDataset, Vocabulary
from recsys.data.splits import Holdout
from recsys.data.tables import TableSource, read_table
from recsys.errors import InputError
from recsys.inference.scorer import Seen, user_batches

logger = logging.getLogger(__name__)

CATALOGUE = "catalogue"

_SAMPLED = "sampled"
_SAMPLED_WARNING = (
    "SAMPLED: metrics of sampled candidates do not order models as the full catalogue does "
    "(Krichene and Rendle 2020)"
)


def candidates_in_words(name: str, num_items: int) -> str:
    """Describe the items that targets were ranked among, with a warning for samples.

    >>> candidates_in_words("catalogue", 3_416)
    'all 3,416 items'
    """
    if name == CATALOGUE:
        return f"all {num_items:,} items"
    warning = f" ({_SAMPLED_WARNING})" if name.startswith(_SAMPLED) else ""
    return f"{name} candidates{warning}"


@dataclass(frozen=True, slots=True)
class Candidates:
    """The items that each of the Q targets of a holdout is ranked among."""

    name: str
    """The name in protocols: two sets of one name and dataset are equal."""
    sets: Histories
    """The item tokens for each target [Q sets], ascending, including its own."""


def choose_candidates(
    config: EvaluationConfig, dataset: PreparedDataset, part: Part, holdout: Holdout
) -> Candidates | None:
    """Return the candidates of a part's targets that a config chooses; None for all items."""
    chosen = config.candidates
    if isinstance(chosen, AllItems):
        return None
    if isinstance(chosen, GivenItems):
        return read_candidates(chosen.file, dataset, holdout)
    logger.warning(_SAMPLED_WARNING)
    return sample_candidates(chosen, dataset, part, holdout, config.seen)


def sample_candidates(
    config: SampledItems, dataset: PreparedDataset, part: Part, holdout: Holdout, seen: Seen
) -> Candidates:
    """Draw random items for each history, and add the targets of the part after it.

    Targets of the same user and history have the same candidates: they are in one list. Popularity
    is that before the part. If seen items are filtered, those of the history are not drawn.
    """
    num_items, histories, rows = dataset.num_items, holdout.histories, holdout.history_rows
    targets = _sets(holdout.targets, np.bincount(rows))
    weights = np.ones(num_items + 1, dtype=np.float32)
    if config.by == "popularity":
        weights = np.bincount(dataset.histories(part).items, minlength=num_items + 1).astype("f4")
    weights[PAD] = 0
    generator, num = np.random.default_rng(config.seed), min(config.num, num_items)
    counts, items = [], []
    for users in user_batches(len(histories), num_items):
        # Each item gets a random waiting time, and the shortest are drawn: without replacement,
        # in proportion to the weights.
        shape = (len(histories[users]), num_items + 1)
        waits = generator.standard_exponential(shape, dtype=np.float32) / np.maximum(weights, 1)
        waits[:, weights == 0] = np.inf
        for excluded in (targets[users], histories[users])[: 2 if seen == "filter" else 1]:
            waits[excluded.users, excluded.items] = np.inf
        drawn = np.argpartition(waits, num - 1, axis=1)[:, :num]
        chosen = np.zeros(shape, dtype=np.bool_)
        np.put_along_axis(chosen, drawn, np.isfinite(np.take_along_axis(waits, drawn, 1)), 1)
        chosen[targets[users].users, targets[users].items] = True
        counts.append(chosen.sum(axis=1))
        items.append(np.nonzero(chosen)[1])
    sets = _sets(np.concatenate(items), np.concatenate(counts))
    name = f"{_SAMPLED} {config.num} ({config.by}, seed {config.seed})"
    return Candidates(name, sets.take(rows))


def read_candidates(source: TableSource, dataset: PreparedDataset, holdout: Holdout) -> Candidates:
    """Read the candidates of each user from a table of raw ids.

    Every target must be among its user's candidates: adding it would rank among other items than
    those given, and leaving it out would mix the merit of the candidates into that of the model.
    Candidates outside the catalogue are dropped, with a warning; users without targets are ignored.

    Raises:
        InputError: the table cannot be read, or a target is not among its user's candidates.
    """
    origin = str(source) if isinstance(source, str | os.PathLike) else "the candidates"
    table = read_table(source, ["user_id", "item_id"], origin)
    rows = Vocabulary(dataset.user_ids).encode(plain_ids(table["user_id"])).astype(np.int64) - 1
    tokens = dataset.vocabulary.encode(plain_ids(table["item_id"]))
    if unknown := int(np.count_nonzero(tokens == PAD)):
        logger.warning("%s: %d candidates outside the catalogue dropped", origin, unknown)
    width = dataset.num_items + 1  # one number per user and item
    pairs = np.unique((rows * width + tokens)[(rows >= 0) & (tokens != PAD)])
    lacking = np.flatnonzero(~np.isin(holdout.users * width + holdout.targets, pairs))
    if len(lacking):
        user, target = holdout.users[lacking[0]], holdout.targets[lacking[0]]
        item = dataset.vocabulary.decode([target])[0]
        raise InputError(
            f"{origin}: item_id {item!r}, a target of user_id {dataset.user_ids[int(user)]!r}, is "
            f"not among the user's candidates ({len(lacking):,} of {len(holdout.targets):,} "
            "targets are missing): every target must be a candidate"
        )
    counts = np.bincount(pairs // width, minlength=dataset.num_users)
    sets = _sets(pairs % width, counts).take(holdout.users)
    digest = hashlib.sha256(sets.items.tobytes() + sets.offsets.tobytes()).hexdigest()
    return Candidates(f"given {digest[:12]}", sets)


def _sets(items: NDArray[Any], counts: NDArray[np.int64]) -> Histories:
    return Histories(items.astype(np.int32), np.concatenate([[0], np.cumsum(counts)]))


def protocol_tags(
    dataset: PreparedDataset, evaluation: EvaluationConfig, candidates: Candidates | None = None
) -> dict[str, str]:
    """Return the facts that two runs on one dataset must share to be compared, by their tags."""
    return {
        "protocol.split": str(dataset.config.split),
        "protocol.seen": evaluation.seen,
        "protocol.candidates": CATALOGUE if candidates is None else candidates.name,
        "protocol.ties": "against_target",
        "protocol.request_time": evaluation.request_time,
    }
