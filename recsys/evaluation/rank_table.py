"""The rank of every evaluated target: all that comparing models needs."""

from __future__ import annotations

import json
import os
from dataclasses import asdict, dataclass, fields
from pathlib import Path

import numpy as np
import polars as pl
from numpy.typing import NDArray

from recsys.data.files import new_file
from recsys.data.prepared import Holdout, Part
from recsys.errors import InputError
from recsys.evaluation.ranking import Seen, Ties, rank_targets
from recsys.evaluation.scorer import Scorer

_METADATA_KEY = "recsys.rank_table"
_SCHEMA = {"user": pl.Int64, "target": pl.Int32, "rank": pl.Int64, "history_length": pl.Int32}


@dataclass(frozen=True, slots=True)
class Protocol:
    """What must be equal for two rank tables to be compared, beside users and targets."""

    part: Part
    """Which targets of the split."""
    num_items: int
    """Size of the catalogue that was ranked, I."""
    seen: Seen
    """Whether items of the user's history were left out of the ranking."""
    ties: Ties
    """How equal scores were ordered."""
    dropped: int
    """Targets left out because the catalogue does not hold them."""


@dataclass(frozen=True, slots=True)
class RankTable:
    """One row per evaluated target, in the order of the holdout, and how the ranks were taken."""

    frame: pl.DataFrame
    """user (row of the user in the dataset), target (item token), rank (1 = best; I + 1 = never
    recommended), history_length (items before the target), then any segment columns."""
    protocol: Protocol

    @property
    def ranks(self) -> NDArray[np.int64]:
        """The ranks [Q], as `recsys.evaluation.metrics` takes them."""
        ranks: NDArray[np.int64] = self.frame["rank"].to_numpy()
        return ranks

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write one Parquet file, the protocol in its key-value metadata; whole or not at all.

        Raises:
            InputError: the file cannot be written.
        """
        metadata = {_METADATA_KEY: json.dumps(asdict(self.protocol))}
        with new_file(Path(path)) as file:
            self.frame.write_parquet(file, metadata=metadata)

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> RankTable:
        """Read what `save` wrote.

        Raises:
            InputError: the file cannot be read, or is no rank table.
        """
        try:
            metadata = pl.read_parquet_metadata(Path(path))
            frame = pl.read_parquet(Path(path))
        # A damaged Parquet page can make polars panic instead of raising.
        except (OSError, pl.exceptions.PolarsError, pl.exceptions.PanicException) as error:
            raise InputError(f"{path}: cannot read the rank table: {error}") from error
        tree = json.loads(metadata.get(_METADATA_KEY, "{}"))
        names = [field.name for field in fields(Protocol)]
        missing = (set(names) - set(tree)) | (set(_SCHEMA) - set(frame.columns))
        if missing:
            raise InputError(f"{path}: not a rank table: {', '.join(sorted(missing))} missing")
        return cls(frame, Protocol(**{name: tree[name] for name in names}))


def evaluate(
    scorer: Scorer,
    holdout: Holdout,
    part: Part,
    seen: Seen,
    ties: Ties = "against_target",
) -> RankTable:
    """Rank every target of a holdout over the whole catalogue; see `rank_targets`."""
    ranks = rank_targets(scorer, holdout.histories, holdout.targets, seen, ties)
    frame = pl.DataFrame(
        {
            "user": holdout.users,
            "target": holdout.targets,
            "rank": ranks,
            "history_length": holdout.histories.lengths,
        },
        schema=_SCHEMA,
    )
    return RankTable(frame, Protocol(part, scorer.num_items, seen, ties, holdout.dropped))
