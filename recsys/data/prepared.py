"""The prepared dataset: a folder of flat arrays, written atomically and memory-mapped."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any, Literal, TypedDict, Unpack

import numpy as np
import polars as pl
from narwhals.typing import IntoSeries
from numpy.typing import ArrayLike, NDArray

from recsys.config.data import Columns, DataConfig, Split
from recsys.config.experiment import RequestTime
from recsys.data.database import check_memory
from recsys.data.histories import PAD, Bools, Features, Histories, Int32s, Int64s
from recsys.data.preparation import INTERACTIONS, OUTSIDE, Manifest, count_copies, write_dataset
from recsys.data.splits import BLOCK, Holdout, find_targets
from recsys.data.tables import TableSource
from recsys.errors import InputError, checked_path

TrainedOn = tuple[Literal["train"]] | tuple[Literal["train"], Literal["valid"]]
"""The parts of the split that weights or counts were fitted on; "valid" only after a refit."""
Part = Literal["valid", "test"]
_INT32, _INT64 = np.dtype(np.int32), np.dtype(np.int64)
_ARRAYS = {"items": _INT32, "timestamps": _INT64, "offsets": _INT64, "cuts": _INT32}
"""The arrays of a prepared dataset, each in a file NAME.npy, and their types."""
_FEW = 1_000
"""Ids that are looked up one by one."""
_START: dict[Part, int] = {"valid": 0, "test": 1}
"""The column of the cuts at which a part of the split starts; the next one is its end."""


@dataclass(frozen=True)
class Vocabulary:
    """The catalogue of I items: item token t, from 1 to I, is the item ``ids[t - 1]``.

    >>> vocabulary = Vocabulary(pl.Series(["boots", "gloves"]))
    >>> vocabulary.encode(["gloves", "hat", "boots"])
    array([2, 0, 1], dtype=int32)
    >>> vocabulary.decode([2, 1]).to_list()
    ['gloves', 'boots']
    """

    ids: pl.Series
    """Shape [I]: unique item ids, int64 or text."""

    def __len__(self) -> int:
        """The number of items, I."""
        return len(self.ids)

    def encode(self, ids: IntoSeries | Sequence[Any] | NDArray[Any]) -> Int32s:
        """Return item tokens [N] of item ids [N]; PAD for an id outside the catalogue.

        Integers and text are compared as text: 12 equals "12", but not "012".
        """
        wanted = pl.Series(ids) if len(ids) else self.ids.head(0)
        own = wanted.cast(self.ids.dtype, strict=False)
        if own.dtype.is_integer() and not wanted.dtype.is_integer():  # "012" is no id, nor "+12"
            own = own.set(own.cast(pl.String) != wanted.cast(pl.String), None)
        if len(own) <= _FEW:  # a join reads all ids that are known
            return np.array([self._tokens.get(item, PAD) for item in own.to_list()], dtype=np.int32)
        tokens = pl.int_range(1, len(self) + 1, dtype=pl.Int32, eager=True)
        encoded = own.replace_strict(self.ids, tokens, default=PAD, return_dtype=pl.Int32)
        return encoded.to_numpy().copy()

    def tokens_of(self, other: Vocabulary) -> Int32s:
        """Return the tokens, or PAD, of another catalogue's items by their tokens there [I + 1]."""
        return np.insert(self.encode(other.ids), 0, PAD)

    @cached_property
    def _tokens(self) -> dict[int | str, int]:
        return {item: token for token, item in enumerate(self.ids.to_list(), start=1)}

    def decode(self, tokens: ArrayLike) -> pl.Series:
        """Return item ids [N] of item tokens [N]; null for PAD, IndexError for other tokens."""
        rows = np.asarray(tokens, dtype=np.int64).ravel() - 1
        if rows.size and not (rows.min() >= -1 and rows.max() < len(self)):
            raise IndexError(
                f"item tokens must be 0 to {len(self)}, not {rows.min() + 1} to {rows.max() + 1}"
            )
        return self.ids.gather(pl.Series(rows).replace(PAD - 1, None))


@dataclass(frozen=True, eq=False)
class PreparedDataset:
    """The N interactions of U users with a catalogue of I items, split into three parts.

    User u has the interactions ``offsets[u]`` to ``offsets[u + 1]``, oldest first.
    """

    path: Path
    manifest: Manifest
    items: Int32s
    """Shape [N]: item tokens; PAD for items that occur only in the test part."""
    timestamps: Int64s
    """Shape [N]."""
    offsets: Int64s
    """Shape [U + 1]: where each user's interactions start; the last entry is N."""
    cuts: Int32s
    """Shape [U, 3]: where training, validation and test end, counted from the user's first
    interaction."""
    user_table: pl.DataFrame
    """user_id and features [U rows]; ids ascend, but those of each append follow the earlier."""
    item_table: pl.DataFrame
    """item_id and features [I rows], in the same order; row i is item token i + 1."""
    features: tuple[Features, ...] = ()
    """The features of the N interactions that a model reads; see `Encoders.read`."""

    @classmethod
    def open(cls, path: PreparedDataset | str | os.PathLike[str]) -> PreparedDataset:
        """Open a folder that `prepare` wrote, and map its files; a changed one is refused."""
        if isinstance(path, PreparedDataset):  # it is open already
            return path
        folder = checked_path(path)

        def load(manifest: Manifest) -> PreparedDataset:
            paths = folder / "users.parquet", folder / "items.parquet"
            users, items = (pl.read_parquet(path, glob=False) for path in paths)
            arrays: dict[str, Any] = {
                name: np.load(folder / f"{name}.npy", mmap_mode="r", allow_pickle=False)
                for name in _ARRAYS
            }
            if rule := _broken_rule(arrays, len(users), len(items)):
                raise InputError(f"{folder}/{rule}")
            return cls(folder, manifest, **arrays, user_table=users, item_table=items)

        return Manifest.load(folder, load)

    @property
    def num_users(self) -> int:
        """U."""
        return len(self.cuts)

    @property
    def num_items(self) -> int:
        """The size of the catalogue, I: the items of training and validation interactions."""
        return len(self.item_table)

    @property
    def fingerprint(self) -> str:
        """SHA-256 of the settings and the content."""
        return self.manifest.fingerprint

    @cached_property
    def config(self) -> DataConfig:
        """The settings that it was prepared with."""
        manifest = self.manifest
        return DataConfig(source=manifest.origin, columns=manifest.columns, **manifest.settings)

    @cached_property
    def copies(self) -> tuple[int, int]:
        """The copies of interactions; see `count_copies`."""
        return count_copies(self.items, self.timestamps, self.offsets, self.cuts)

    @cached_property
    def vocabulary(self) -> Vocabulary:
        """The mapping between item ids and item tokens."""
        return Vocabulary(self.item_table["item_id"])

    @property
    def user_ids(self) -> pl.Series:
        """The ids of the U users, in the order of `user_table`."""
        return self.user_table["user_id"]

    @property
    def outside(self) -> pl.DataFrame:
        """The items, with features, of the interactions outside the catalogue, in order.

        Raises:
            InputError: another dataset is in the folder by now.
        """
        return self._read(OUTSIDE) if OUTSIDE in self.manifest.files else self.item_table[:0]

    @cached_property
    def interaction_table(self) -> pl.DataFrame:
        """user_id, item_id (null outside the catalogue) and kept columns of the log [N rows].

        Raises:
            InputError: another dataset is in the folder by now.
        """
        users = np.repeat(np.arange(self.num_users), np.diff(self.offsets))
        ids = self.user_ids.gather(users), self.vocabulary.decode(self.items).alias("item_id")
        if INTERACTIONS not in self.manifest.files:
            return pl.DataFrame(ids)
        return pl.DataFrame(ids).hstack(self._read(INTERACTIONS))

    def _read(self, name: str) -> pl.DataFrame:
        if Manifest.read(self.path).files != self.manifest.files:
            raise InputError(
                f"{self.path}: has been written anew since it was opened: open it again"
            )
        return pl.read_parquet(self.path / name, glob=False)

    @property
    def in_training(self) -> Bools:
        """Shape [N]: whether each interaction belongs to the training part."""
        ends = np.repeat(self.offsets[:-1] + self.cuts[:, 0], np.diff(self.offsets))
        return np.less(np.arange(len(ends)), ends)

    def histories_between(self, starts: Int64s, ends: Int64s) -> Histories:
        """Return interactions ``starts[b]`` to ``ends[b]`` as history b [B]."""
        log = Histories(self.items, self.offsets, self.timestamps, None, self.features)
        return log.spans(starts, ends)

    def histories(self, before: Part) -> Histories:
        """Return the history of every user before a part of the split [U histories]."""
        starts = self.offsets[:-1]
        return self.histories_between(starts, starts + self.cuts[:, _START[before]])

    def target_positions(self, part: Part) -> tuple[Int64s, Int64s, Int64s]:
        """Return user, position and end of history of a part's targets; see `find_targets`."""
        bounds = self.offsets[:-1, None] + self.cuts[:, _START[part] : _START[part] + 2]
        return find_targets(self.config.split, self.timestamps, self.offsets, *bounds.T)

    def holdout(self, part: Part, request_time: RequestTime = "unknown") -> Holdout:
        """Return the targets of a part of the split one by one, in user order, oldest first.

        With ``request_time: known`` histories have the times of their targets, and targets at
        different times have histories of their own. More than fit into the memory are refused.
        """
        users, targets, ends = self.target_positions(part)
        known = np.concatenate([[0], np.cumsum(self.items != PAD)])
        inside = self.items[targets] != PAD
        kept = inside & (known[ends] > known[self.offsets[users]])
        users, targets, ends = users[kept], targets[kept], ends[kept]
        differs = np.diff(users, prepend=-1) != 0
        differs |= np.diff(known[ends], prepend=-1) != 0
        request_times = None
        if request_time == "known":
            times = self.timestamps[targets]
            differs[1:] |= np.diff(times) != 0
            request_times = times[differs]
        owners, ends = users[differs], ends[differs]
        starts = self.offsets[owners]
        check_memory(
            24 * int((ends - starts).sum()),
            f"{self.path}: the histories of the {len(users):,} {part} targets",
            "let the split choose fewer (targets: first), or freeze them (history: frozen)",
        )
        return Holdout(
            users=users,
            targets=self.items[targets],
            history_rows=np.cumsum(differs) - 1,
            histories=replace(self.histories_between(starts, ends), request_times=request_times),
            dropped=int(np.count_nonzero(~inside)),
            without_history=int(np.count_nonzero(inside & ~kept)),
        )


def _broken_rule(arrays: Mapping[str, NDArray[Any]], users: int, items: int) -> str:
    """Return how arrays do not fit each other, or so many users and items; empty if they do."""
    rows, offsets, cuts = arrays["items"].size, arrays["offsets"], arrays["cuts"]
    shapes = {"items": (rows,), "timestamps": (rows,), "offsets": (users + 1,), "cuts": (users, 3)}
    for name, dtype in _ARRAYS.items():
        actual = arrays[name].dtype, arrays[name].shape
        if actual != (dtype, shapes[name]):
            return f"{name}.npy: must be {dtype} {shapes[name]}, not {actual[0]} {actual[1]}"
    lengths = np.diff(offsets)
    if offsets[0] != 0 or offsets[-1] != rows or (lengths < 0).any():
        return f"offsets.npy: must ascend from 0 to {rows}"
    if (np.diff(cuts, axis=1, prepend=0, append=lengths[:, None]) < 0).any():
        return "cuts.npy: must ascend from 0 to the number of the user's interactions"
    blocks = (arrays["items"][start : start + BLOCK] for start in range(0, rows, BLOCK))
    if any(block.min() < 0 or block.max() > items for block in blocks):
        return f"items.npy: item tokens must be from 0 to {items}"
    return ""


def prepare(
    source: TableSource,
    config: DataConfig | None = None,
    out: str | os.PathLike[str] = "data/prepared",
    items: TableSource | None = None,
    users: TableSource | None = None,
    memory: int | str | None = None,
    **words: Unpack[LogWords],
) -> PreparedDataset:
    """Sort, filter, split and encode a log, and write it as a prepared dataset.

    A dataset already at ``out`` is reused if it has the same settings and content, and replaced in
    one step otherwise; anything else there is refused.

    Args:
        source: a named dataset, a file, a folder of parts, a pattern, or a frame (also of Spark).
        config: how to read and prepare it; ``source`` and words win over what it says.
        out: the folder to write.
        items: a table with the column item_id, item features, and one row per item.
        users: the same of users, with user_id.
        memory: bytes, or "4GiB" and the like, that the rows may take; what needs more goes to the
            disk of ``out``, with the same result. Half of the memory if None.
        **words: settings in the words of the command line, e.g. ``user="customer"``; `LogWords`.

    Raises:
        InputError: the log, a table, a word or the folder is invalid; nothing is written then.
    """
    config = with_words(config, words)
    write_dataset(source, config, checked_path(out), items, users, memory)
    return PreparedDataset.open(out)


# --- Settings in words ----------------------------------------------------------------------------


class LogWords(TypedDict, total=False):
    """Settings of `DataConfig` in the words of the command line; None or absent changes nothing.

    ``user``, ``item`` and ``time`` are columns; users and items with fewer interactions than
    ``user_minimum`` and ``item_minimum`` are dropped.
    """

    user: str | None
    item: str | None
    time: str | None
    header: bool | None
    encoding: str | None
    where: str | dict[str, str] | None
    time_format: str | None
    since: Any
    user_minimum: int | None
    item_minimum: int | None
    keep: Sequence[str] | None
    duplicates: str | None
    split: Split | str | Mapping[str, Any] | None


_COLUMNS = {"user": "user_id", "item": "item_id", "time": "timestamp"}
_FIELDS = {"user_minimum": "min_user_interactions", "item_minimum": "min_item_interactions"}


def with_words(config: DataConfig | None, words: LogWords) -> DataConfig:
    """Return settings changed by words; an unknown word or a wrong value is refused."""
    if unknown := words.keys() - LogWords.__annotations__.keys():
        known = ", ".join(LogWords.__annotations__)
        raise InputError(f"{min(unknown)}: no such setting of a log; they are {known}")
    config = config or DataConfig()
    changes = {word: value for word, value in words.items() if value is not None}
    fields = {_FIELDS.get(word, word): changes[word] for word in changes if word not in _COLUMNS}
    if columns := {_COLUMNS[word]: changes[word] for word in changes if word in _COLUMNS}:
        named = Columns() if config.columns is None else config.columns
        fields["columns"] = named.model_dump(exclude_unset=True) | columns
    try:
        return DataConfig(**(config.model_dump(exclude_unset=True) | fields)) if fields else config
    except InputError as error:
        raise InputError(f"data{str(error).removeprefix(DataConfig.__name__)}") from error
