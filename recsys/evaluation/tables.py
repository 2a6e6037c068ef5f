"""The protocol of an evaluation, and the tables that a run saves under it.

Metrics are computed from these, and runs compared, without a model. Each is one Parquet file with
its protocol, sealed by its SHA-256.
"""

import hashlib
import json
import logging
import os
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, ClassVar, Self

import numpy as np
import polars as pl
from numpy.typing import NDArray

from recsys.config.experiment import AllItems, EvaluationConfig, GivenItems, SampledItems
from recsys.data.entity_tables import plain_ids
from recsys.data.histories import PAD, Float32s, Histories, Int32s, Int64s
from recsys.data.prepared import Part, PreparedDataset, Vocabulary
from recsys.data.splits import Holdout
from recsys.data.tables import TableSource, read_table
from recsys.errors import InputError
from recsys.evaluation.metrics import (
    Interval,
    bootstrap_means,
    next_list_metrics,
    summarise,
    user_values,
)
from recsys.folders import BLANK, check_seal, new_file, seal
from recsys.inference.ranking import rank_targets
from recsys.inference.scorer import Scorer, Seen, user_batches

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


# --- The tables -----------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class TableProtocol:
    """The facts that two tables must share to be compared, besides users and targets."""

    part: Part
    num_items: int
    """The size of the catalogue that was ranked, I."""
    seen: Seen
    dropped: int
    """The number of targets outside the catalogue, which are not in the table."""
    candidates: str = CATALOGUE
    """The items that targets were ranked among; see `choose_candidates`."""
    without_history: int = 0
    """The number of targets without a history, which are not in the table."""
    length: int = 0
    """The number of positions in each list, n, of a table of lists."""


@dataclass(frozen=True, slots=True)
class SavedTable:
    """A table with its protocol; one Parquet file."""

    frame: pl.DataFrame
    protocol: TableProtocol

    noun: ClassVar[str]
    """The kind of table, e.g. ``rank table``; it names the protocol in the file's metadata."""

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write one Parquet file atomically, with the protocol and its SHA-256 in its metadata."""
        metadata = {self._key(): json.dumps(asdict(self.protocol)), "recsys.seal": BLANK}
        with new_file(Path(path)) as file:
            self.frame.write_parquet(file, metadata=metadata)
            seal(file)

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> Self:
        """Read what `save` wrote; an InputError if the file is damaged or another kind of table."""
        try:
            check_seal(Path(path))
            metadata = pl.read_parquet_metadata(Path(path))
            frame = pl.read_parquet(Path(path), glob=False)
        except (OSError, ValueError, pl.exceptions.PolarsError) as error:
            raise InputError(f"{path}: cannot read the {cls.noun}: {error}") from error
        if cls._key() not in metadata:
            raise InputError(f"{path}: not a {cls.noun}")
        return cls(frame, TableProtocol(**json.loads(metadata[cls._key()])))

    def summary(self, metrics: Sequence[str]) -> dict[str, Interval]:
        """Average metrics over the users, with intervals; none of a table without such metrics."""
        return {}

    @classmethod
    def _key(cls) -> str:
        return f"recsys.{cls.noun.replace(' ', '_')}"


@dataclass(frozen=True, slots=True)
class RankTable(SavedTable):
    """One row per evaluated target, in the order of the holdout.

    The columns are user (row of the user in the dataset), target (item token), rank (1 = best;
    `NEVER` if it cannot be recommended), history_length (items before the target), any segments
    and, for pooled folds, fold.
    """

    noun = "rank table"

    def values(self, metric: str) -> NDArray[np.float64]:
        """Return one metric of every user [U], users ascending: the mean over the user's lists."""
        ranks, users, lists = self._listed()
        return user_values(ranks, users, metric, lists)

    def summary(self, metrics: Sequence[str]) -> dict[str, Interval]:
        """Average metrics over the users, with intervals over them; see `summarise`."""
        ranks, users, lists = self._listed()
        return summarise(ranks, users, metrics, lists)

    def _listed(self) -> tuple[Int64s, Int64s, Int64s]:
        """Return rank, user and list of every target; a target repeated in a list counts once.

        A user's histories in one fold differ exactly if their lengths do.
        """
        keys = [name for name in ("user", "history_length", "fold") if name in self.frame.columns]
        frame = self.frame
        if frame["user"].is_duplicated().any():
            frame = frame.unique([*keys, "target"], keep="first", maintain_order=True)
        lists = users = frame["user"].to_numpy()
        for numbers in (frame[key].to_numpy() for key in keys[1:]):
            lists = lists * (int(numbers.max(initial=0)) + 1) + numbers
        return frame["rank"].to_numpy(), users, lists


def evaluate(
    scorer: Scorer, holdout: Holdout, part: Part, seen: Seen, candidates: Candidates | None = None
) -> RankTable:
    """Rank every target of a holdout, over the full catalogue or among its candidates."""
    sets = None if candidates is None else candidates.sets
    histories, rows = holdout.histories, holdout.history_rows
    ranks = rank_targets(scorer, histories, holdout.targets, seen, sets, rows)
    return rank_table(ranks, holdout, part, scorer.num_items, seen, candidates)


def rank_table(
    ranks: Int64s,
    holdout: Holdout,
    part: Part,
    num_items: int,
    seen: Seen,
    candidates: Candidates | None = None,
) -> RankTable:
    """Make the table of the ranks [Q] of the targets of a holdout; the rest is the protocol."""
    frame = pl.DataFrame(
        {
            "user": holdout.users,
            "target": holdout.targets,
            "rank": ranks,
            "history_length": holdout.histories.lengths[holdout.history_rows].astype(np.int32),
        }
    )
    name = CATALOGUE if candidates is None else candidates.name
    dropped, without = holdout.dropped, holdout.without_history
    return RankTable(frame, TableProtocol(part, num_items, seen, dropped, name, without))


def pool_folds(tables: Sequence[RankTable], user_ids: Sequence[pl.Series]) -> RankTable:
    """Put the targets of several folds of one log into one table, so that a user counts once.

    Users are renumbered in the order of their ids; target tokens remain those of their own
    datasets. The protocol has the largest catalogue and all dropped targets. ``user_ids`` are those
    of each fold's dataset, in the order of its rows.
    """
    frames, ids = [], []
    for fold, (table, of_fold) in enumerate(zip(tables, user_ids, strict=True), 1):
        frames.append(table.frame.with_columns(fold=pl.lit(fold)))
        ids.append(of_fold.gather(table.frame["user"]))
    users = pl.concat(ids).rank("dense").cast(pl.Int64) - 1
    protocol = replace(
        tables[0].protocol,
        num_items=max(table.protocol.num_items for table in tables),
        dropped=sum(table.protocol.dropped for table in tables),
        without_history=sum(table.protocol.without_history for table in tables),
    )
    return RankTable(pl.concat(frames).with_columns(user=users), protocol)


@dataclass(frozen=True, slots=True)
class NextListTable(SavedTable):
    """One row per user: the list made for the user, and the purchases that the user made.

    The columns are user (row of the user in the dataset), generated (n item tokens, PAD for an
    empty position) and targets (item tokens, oldest first, at least one).
    """

    noun = "next-list table"

    def metrics(self) -> dict[str, NDArray[np.float64]]:
        """Return every metric of every user [Q], by name; see `next_list_metrics`."""
        targets = self.frame["targets"]
        offsets = np.append(0, targets.list.len().to_numpy().cumsum(dtype=np.int64))
        purchases = Histories(targets.explode().to_numpy(), offsets)
        generated = self.frame["generated"].list.to_array(self.protocol.length)
        return next_list_metrics(generated.to_numpy(), purchases)

    def values(self, metric: str) -> NDArray[np.float64]:
        """Return one metric of every user [Q], or raise InputError."""
        if metric not in (metrics := self.metrics()):
            raise InputError(f"metric {metric!r}: must be one of {', '.join(metrics)}")
        return metrics[metric]

    def summary(self, metrics: Sequence[str] = ()) -> dict[str, Interval]:
        """Average all of its metrics over the users, with intervals over them; see `summarise`."""
        own = self.metrics()
        values, counts = np.unique(np.stack([*own.values()]), axis=1, return_counts=True)
        intervals = bootstrap_means(values, counts, np.random.default_rng(0))
        return dict(zip(own, intervals, strict=True))


@dataclass(frozen=True, slots=True)
class TopKTable(SavedTable):
    """One row per list: the best items of the catalogue after one history of one user.

    The columns are user (row of the user in the dataset), history_length, items (k item tokens,
    best first; PAD for an empty position) and their scores.
    """

    noun = "top-k table"

    @property
    def items(self) -> Int32s:
        """Item tokens [N, k], best first."""
        return self.frame["items"].list.to_array(self.protocol.length).to_numpy()


def next_list_table(lists: Int32s, holdout: Holdout, num_items: int, seen: Seen) -> NextListTable:
    """Make the table of one list for each history [H, n], beside the test targets after it."""
    rows = pl.DataFrame({"row": holdout.history_rows, "item": holdout.targets})
    frame = pl.DataFrame(
        {
            "user": holdout.owners,
            "generated": pl.Series(lists).arr.to_list(),
            "targets": rows.group_by("row", maintain_order=True).agg("item")["item"],
        }
    )
    protocol = TableProtocol("test", num_items, seen, holdout.dropped, length=lists.shape[1])
    return NextListTable(frame, protocol)


def top_k_table(
    items: Int32s, scores: Float32s, holdout: Holdout, num_items: int, seen: Seen
) -> TopKTable:
    """Make the table of the best items [H, k] before the test targets, with their scores [H, k]."""
    frame = pl.DataFrame(
        {
            "user": holdout.owners,
            "history_length": holdout.histories.lengths.astype(np.int32),
            "items": pl.Series(items).arr.to_list(),
            "scores": pl.Series(scores).arr.to_list(),
        }
    )
    protocol = TableProtocol("test", num_items, seen, holdout.dropped, length=items.shape[1])
    return TopKTable(frame, protocol)
