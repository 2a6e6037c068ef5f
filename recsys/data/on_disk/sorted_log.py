"""A log in its total order, in files of consecutive users, each of which fits in memory."""

from __future__ import annotations

import shutil
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

import polars as pl

from recsys.data.log import KEPT, whole_times
from recsys.data.log_columns import whole_ids
from recsys.data.on_disk.staging import StagedLog
from recsys.folders.digests import table_sha256_of_parts
from recsys.progress import Stage


@dataclass(frozen=True)
class SortedLog:
    """The rows of a log, sorted by user and time.

    The files have user_id and item_id (numbers of ids), timestamp (int64) and kept columns; those
    of Spark also have order, the number of each row. Users ascend from file to file, and a user's
    rows are in one file.
    """

    files: tuple[Path, ...]
    user_ids: pl.Series
    """The ids of the users, ascending; user number u is ``user_ids[u]``."""
    item_ids: pl.Series
    """The ids of the items, ascending."""
    rows: int

    def parts(self, *columns: str) -> Iterator[pl.DataFrame]:
        """Yield the rows of each file, in order."""
        for file in self.files:
            read = pl.read_parquet if file.suffix == ".parquet" else pl.read_ipc
            yield read(file, columns=list(columns) or None)

    def fingerprint(self) -> str:
        """Return the fingerprint of the log with ids in place of numbers; see `log.fingerprint`."""
        ids = {"user_id": self.user_ids, "item_id": self.item_ids}
        schema = next(self.parts()).drop("order", strict=False).schema
        types = {name: ids[name].dtype if name in ids else schema[name] for name in schema}

        def parts(name: str) -> Iterator[pl.Series]:
            for part in self.parts(name):
                yield ids[name].gather(part[name]) if name in ids else part[name]

        return table_sha256_of_parts(types, self.rows, parts)


def sort_log(staged: StagedLog, folder: Path, part_rows: int, stage: Stage) -> SortedLog:
    """Sort the staged rows: into partitions of users first, then each partition in memory.

    Raises:
        InputError: an id is written in two ways, or a time breaks its column's rule.
    """
    rows = pl.scan_ipc(staged.files)
    sizes, items = pl.collect_all(
        [rows.group_by("user_id").len(), rows.select(pl.col("item_id").unique())],
        engine="streaming",
    )
    users, user_ids = number_ids(sizes, "user_id", staged.origin, staged.columns.roles)
    items, item_ids = number_ids(items, "item_id", staged.origin, staged.columns.roles)
    spans = users.group_by("user").agg(pl.col("len").sum().alias("rows"))
    spans = spans.select("user", partition_of("user", "rows", part_rows))
    users = users.drop("len").join(spans, on="user")
    kept = [name for name in rows.collect_schema() if name.startswith(KEPT)]
    numbered = rows.join(users.lazy(), on="user_id").join(items.lazy(), on="item_id")
    times = [role for role in ("timestamp", "position") if role in staged.columns.roles]
    columns = [pl.col("user").alias("user_id"), pl.col("item").alias("item_id"), *times, *kept]
    unsorted = folder / "unsorted"
    unsorted.mkdir()
    chosen = numbered.select("partition", "row", *columns)
    for number, batch in enumerate(chosen.collect_batches(chunk_size=part_rows)):
        typed = batch.with_columns(staged.checked(batch, role) for role in times)
        write_partitions(typed, unsorted, number)
        stage.advance(len(batch))
    for file in staged.files:
        file.unlink()
    files = []
    for partition in partitions_in(unsorted):
        part = read_partition(partition).sort("user_id", *times, "row")
        time = whole_times(pl.col("timestamp"), part["timestamp"].dtype)
        path = folder / f"sorted-{partition.name}.arrow"
        part.with_columns(time).select("user_id", "item_id", "timestamp", *kept).write_ipc(path)
        shutil.rmtree(partition)
        files.append(path)
        stage.advance(len(part))
    return SortedLog(tuple(files), user_ids, item_ids, staged.rows)


def split_sorted_sessions(log: SortedLog, gap: int, folder: Path, part_rows: int) -> SortedLog:
    """Make each session a separate user; see `recsys.data.sessions.split_sessions`."""
    folder.mkdir()
    counted = []
    for file, part in zip(log.files, log.parts(), strict=True):
        pause = pl.col("timestamp") - pl.col("timestamp").shift(1).over("user_id")
        begun = (pause > gap).fill_null(value=False).cast(pl.Int64)
        numbered = part.with_columns(session=begun.cum_sum().over("user_id") + 1)
        counted.append(numbered.group_by("user_id", "session").agg(pl.len().alias("rows")))
        replace_file(file, numbered)
    sessions = pl.concat(counted)
    sessions = (
        sessions.with_columns(session_names(log.user_ids, sessions))
        .sort("name")
        .with_row_index("user")
    )
    session_ids = sessions["name"].alias("user_id")
    sessions = sessions.drop("name").with_columns(partition_of("user", "rows", part_rows))
    unsorted = folder / "unsorted"
    unsorted.mkdir()
    for number, (file, part) in enumerate(zip(log.files, log.parts(), strict=True)):
        joined = part.join(
            sessions, on=["user_id", "session"], how="left", maintain_order="left"
        ).with_columns(user_id="user")
        write_partitions(joined.drop("session", "rows", "user"), unsorted, number)
        file.unlink()
    files = []
    for partition in partitions_in(unsorted):
        path = folder / f"sorted-{partition.name}.arrow"
        read_partition(partition).sort("user_id", maintain_order=True).write_ipc(path)
        shutil.rmtree(partition)
        files.append(path)
    return replace(log, files=tuple(files), user_ids=session_ids)


def session_names(user_ids: pl.Series, sessions: pl.DataFrame) -> pl.Expr:
    """Return the name USER#1 of each session, from user_id (the user's number) and session."""
    names = user_ids.gather(sessions["user_id"]).cast(pl.String)
    return pl.concat_str(names, pl.col("session").cast(pl.String), separator="#").alias("name")


def partition_of(user: str, rows: str, part_rows: int) -> pl.Expr:
    """Return the partition of users with so many rows: consecutive ones share it as they fit."""
    sizes = pl.col(rows).cast(pl.Int64)
    before = sizes.cum_sum().over(pl.lit(1), order_by=user) - sizes
    return (before // part_rows).cast(pl.Int64).alias("partition")


def write_partitions(rows: pl.DataFrame, folder: Path, number: int) -> None:
    """Add rows to the folders of their partitions, as a file of this number."""
    for (partition,), part in rows.partition_by(
        "partition", as_dict=True, include_key=False
    ).items():
        path = folder / f"{partition:08}"
        path.mkdir(exist_ok=True)
        part.write_ipc(path / f"{number:08}.arrow")


def partitions_in(folder: Path) -> list[Path]:
    """Return the folders of the partitions, in order."""
    return sorted(folder.iterdir())


def read_partition(folder: Path) -> pl.DataFrame:
    """Return the rows of a partition, in the order in which they were added."""
    files = sorted(folder.iterdir())
    return pl.concat([pl.read_ipc(file) for file in files])


def replace_file(path: Path, rows: pl.DataFrame) -> None:
    """Write rows to a file that they may be mapped from."""
    new = path.with_suffix(".new")
    rows.write_ipc(new)
    new.replace(path)


def number_ids(
    table: pl.DataFrame, role: str, origin: str, names: Mapping[str, str]
) -> tuple[pl.DataFrame, pl.Series]:
    """Number the ids of a table along their order; return the table with numbers, and the ids.

    Args:
        table: the distinct ids of a role, as read, and other columns.
        role: user_id or item_id.
        origin: the name of the log in messages.
        names: the column of each role.

    Raises:
        InputError: an id is written in two ways; see `whole_ids`.
    """
    word = role.removesuffix("_id")
    ids = whole_ids(table[role], f"{origin}: column {names[role]!r}")
    raw = table.with_columns(ids.alias("id"))
    ids = raw["id"].unique().sort()
    numbers = ids.to_frame().with_row_index(word)
    return raw.join(numbers, on="id").drop("id"), ids.alias(role)
