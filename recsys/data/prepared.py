"""The prepared dataset: a folder of flat arrays, written atomically, opened memory-mapped."""

from __future__ import annotations

import os
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Literal

import numpy as np
import polars as pl
from numpy.typing import NDArray

from recsys.config import DataConfig, RequestTime
from recsys.data.encoding import dataset_fingerprint, encode_log
from recsys.data.files import file_sha256, new_folder
from recsys.data.histories import PAD, Histories
from recsys.data.holdout import Continuations, Holdout
from recsys.data.log import InteractionLog, filter_log
from recsys.data.manifest import MANIFEST, Manifest
from recsys.data.sessions import split_sessions
from recsys.data.sources import load_source
from recsys.data.tables import TableSource, read_table
from recsys.data.targets import TargetPlaces, find_targets, target_policy
from recsys.data.vocabulary import Vocabulary
from recsys.errors import InputError

Part = Literal["valid", "test"]
_START: dict[Part, int] = {"valid": 0, "test": 1}
"""The column of the cuts where a part of the split starts; it ends at the next one."""
_FILES = {
    *("items.npy", "timestamps.npy", "offsets.npy", "cuts.npy"),
    *("users.parquet", "items.parquet"),
}
"""What every prepared dataset has; weights.npy may be beside them."""


@dataclass(frozen=True, eq=False)
class PreparedDataset:
    """Interaction sequences of U users over a catalogue of I items, split into three parts.

    Row u of the dataset has the interactions ``offsets[u]`` to ``offsets[u + 1]``, oldest first.
    """

    path: Path
    manifest: Manifest
    items: NDArray[np.int32]
    """Item tokens [N]; PAD for items that occur as test targets only."""
    timestamps: NDArray[np.int64]
    """[N], as in the log."""
    weights: NDArray[np.float32] | None
    """[N], if the log has them."""
    offsets: NDArray[np.int64]
    """[U + 1]."""
    cuts: NDArray[np.int32]
    """Where training, validation and test end, counted from the user's first interaction [U, 3]."""
    user_ids: pl.Series
    """[U], ascending."""
    item_table: pl.DataFrame
    """item_id and the features of the items [I rows]; row i is item token i + 1."""

    @classmethod
    def open(cls, path: str | os.PathLike[str]) -> PreparedDataset:
        """Open a folder written by `prepare`: every file is held against its checksum, then mapped.

        Raises:
            InputError: it is none, of another format version, or a file is not what was written.
        """
        path = Path(path)
        manifest = Manifest.read(path)
        manifest.verify(path)
        if lacking := _FILES - manifest.files.keys():
            raise InputError(f"{path / MANIFEST} lists no {min(lacking)}; {Manifest.remedy}")
        arrays = {
            name.removesuffix(".npy"): np.load(path / name, mmap_mode="r", allow_pickle=False)
            for name in manifest.files
            if name.endswith(".npy")
        }
        return cls(
            path=path,
            manifest=manifest,
            items=arrays["items"],
            timestamps=arrays["timestamps"],
            weights=arrays.get("weights"),
            offsets=arrays["offsets"],
            cuts=arrays["cuts"],
            user_ids=pl.read_parquet(path / "users.parquet")["user_id"],
            item_table=pl.read_parquet(path / "items.parquet"),
        )

    @property
    def num_users(self) -> int:
        """U."""
        return len(self.cuts)

    @property
    def num_items(self) -> int:
        """I, the size of the catalogue: the items of training and validation interactions."""
        return len(self.item_table)

    @property
    def fingerprint(self) -> str:
        """SHA-256 of the settings and all content."""
        return self.manifest.fingerprint

    @cached_property
    def config(self) -> DataConfig:
        """The settings it was prepared with."""
        manifest = self.manifest
        return DataConfig(source=manifest.origin, columns=manifest.columns, **manifest.settings)

    @cached_property
    def vocabulary(self) -> Vocabulary:
        """Item ids to item tokens and back."""
        return Vocabulary(self.item_table["item_id"])

    def histories(self, before: Part) -> Histories:
        """What is known of every user before a part of the split [U histories]."""
        starts = self.offsets[:-1]
        ends = starts + self.cuts[:, _START[before]]
        return Histories.from_spans(self.items, starts, ends, self.timestamps)

    def places(self, part: Part) -> TargetPlaces:
        """Where the targets of a part are, in user order, oldest first, and their histories.

        Those that `holdout` leaves out are among them.
        """
        start = _START[part]
        cuts = self.cuts[:, start], self.cuts[:, start + 1]
        return find_targets(self.timestamps, self.offsets, cuts, *target_policy(self.config.split))

    def holdout(self, part: Part, request_time: RequestTime = "unknown") -> Holdout:
        """The targets of a part of the split one by one, in user order, oldest first.

        Histories take 12 bytes per item. Advancing ones differ: of a user with n targets and as
        many interactions before them they are up to 2n² items.

        Args:
            part: of the split.
            request_time: known: histories say when their targets were had, and are one for each
                time of these.
        """
        places = self.places(part)
        inside = places[self.items[places.targets] != PAD]
        known = np.concatenate([[0], np.cumsum(self.items != PAD)])
        told = inside[known[inside.ends] > known[inside.starts]]
        other = np.diff(told.users, prepend=-1) != 0
        other |= np.diff(known[told.ends], prepend=-1) != 0
        asked = None
        if request_time == "known":
            when = self.timestamps[told.targets]
            other[1:] |= np.diff(when) != 0
            asked = when[other]
        starts, ends = told.starts[other], told.ends[other]
        return Holdout(
            users=told.users,
            targets=self.items[told.targets],
            places=told.targets,
            rows=np.cumsum(other) - 1,
            histories=Histories.from_spans(self.items, starts, ends, self.timestamps, asked),
            dropped=len(places.users) - len(inside.users),
            without_history=len(inside.users) - len(told.users),
        )

    def continuations(self, part: Part, request_time: RequestTime = "unknown") -> Continuations:
        """All that users with a history did in a part of the split, that of a user together.

        Histories end where the part begins, whatever targets and histories the split chooses; with
        ``request_time: known`` they say when the first purchase of the part was.
        """
        starts = self.offsets[:-1] + self.cuts[:, _START[part]]
        ends = self.offsets[:-1] + self.cuts[:, _START[part] + 1]
        targets = Histories.from_spans(self.items, starts, ends)
        histories = self.histories(part)
        users = np.flatnonzero((targets.lengths > 0) & (histories.lengths > 0))
        asked = self.timestamps[starts[users]] if request_time == "known" else None
        return Continuations(
            users=users,
            histories=replace(histories.take(users), asked=asked),
            targets=targets.take(users),
            dropped=int((ends - starts).sum()) - len(targets.items),
            without_history=int(targets.lengths[histories.lengths == 0].sum()),
        )


def prepare(
    source: TableSource | InteractionLog,
    config: DataConfig | None = None,
    out: str | os.PathLike[str] = "data/prepared",
    items: TableSource | None = None,
) -> PreparedDataset:
    """Order, filter, split and encode a log, and write it as a prepared dataset.

    A dataset already at ``out`` is reused if it has the same settings and content, and replaced in
    one step if not; anything else at ``out`` is left alone and refused.

    Args:
        source: a named dataset, a file, a frame, or a log already read.
        config: how to read and prepare it; ``config.source`` gives way to ``source``.
        out: the folder to write.
        items: features of the items: a table with the column item_id, one row per item.

    Raises:
        InputError: the log, the item table or the folder will not do; nothing is written then.
    """
    config = config or DataConfig()
    out = Path(out)
    previous = _previous(out)
    features: pl.DataFrame | None = None
    if isinstance(source, InteractionLog):
        if config.drop:
            raise InputError(f"data.drop: {source.origin} is a log already read: drop rows before")
        log = source
    else:
        log, features = load_source(source, config)
    if items is not None:
        features = read_table(items, origin="the item table")
    settings = config.model_dump(mode="json", exclude={"source", "mirror", "columns"})
    sessions = log if config.session_gap is None else split_sessions(log, config.session_gap)
    filtered = filter_log(sessions, config)
    arrays, tables = encode_log(filtered, features, config.split)
    identity = dataset_fingerprint(settings, arrays, tables)
    if previous is None or previous.fingerprint != identity:
        with new_folder(out) as folder:
            for name, array in arrays.items():
                np.save(folder / f"{name}.npy", array, allow_pickle=False)
            for name, table in tables.items():
                table.write_parquet(folder / f"{name}.parquet")
            manifest = Manifest(
                origin=log.origin,
                log_fingerprint=log.fingerprint,
                fingerprint=identity,
                settings=settings,
                columns=log.columns,
                ordered_by=log.ordered_by,
                filtered_on="all rows, those of validation and test targets too",
                counts=_counts(log, arrays, tables),
                dropped=dict(log.dropped),
                files={file.name: file_sha256(file) for file in sorted(folder.iterdir())},
            )
            manifest.write(folder)
    return PreparedDataset.open(out)


def _previous(out: Path) -> Manifest | None:
    """The sound prepared dataset that is already there, if any; what may not be lost is refused."""
    manifest = Manifest.previous(out)
    if manifest is None:
        return None
    try:
        manifest.verify(out)
    except InputError:
        return None
    return manifest


def _counts(
    log: InteractionLog, arrays: dict[str, NDArray[np.generic]], tables: dict[str, pl.DataFrame]
) -> dict[str, int]:
    ends = arrays["cuts"].sum(axis=0).tolist()
    return {
        "rows_read": log.rows,
        "interactions": len(arrays["items"]),
        "users": len(tables["users"]),
        "items": len(tables["items"]),
        "train": ends[0],
        "valid": ends[1] - ends[0],
        "test": ends[2] - ends[1],
        "outside_catalogue": int(np.count_nonzero(arrays["items"] == PAD)),
    }
