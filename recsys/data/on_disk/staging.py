"""A log is read part by part; its checked rows go to files, in the order of the source."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import polars as pl

from recsys.config import Columns, DataConfig
from recsys.data.log import BLANK, KEPT, ROW
from recsys.data.log_columns import (
    LogColumn,
    checked_ids_of_part,
    checked_times,
    convert_kept,
    roles_of,
    times_of_part,
)
from recsys.data.missing import without_missing_words
from recsys.data.reading import sum_counts
from recsys.data.row_hints import hinted_columns, row_hint, tells_kinds
from recsys.data.row_order import RowOrder
from recsys.data.row_rules import facts_of_condition, keep_interactions, rule_columns
from recsys.data.tables import OpenTable
from recsys.data.text_values import TextFacts, text_facts
from recsys.data.where import holds_nowhere
from recsys.errors import InputError
from recsys.progress import Stage

logger = logging.getLogger(__name__)

_IDS = ("user_id", "item_id")
_TIMES = ("timestamp", "position")
_FEW_ROWS = 1_000


@dataclass
class StagedLog:
    """The checked rows of a log, in files: row, user_id, item_id, times as read, kept columns."""

    origin: str
    columns: Columns
    files: list[Path] = field(default_factory=list)
    rows: int = 0
    facts: dict[str, TextFacts] = field(default_factory=dict)
    """What decides on the types of times that are text, by role."""
    dropped: dict[str, int] = field(default_factory=dict)

    def checked(self, part: pl.DataFrame, role: str) -> pl.Series:
        """Return the times of a role in a part of the staged rows, in their final type.

        Raises:
            InputError: a value breaks its column's rule.
        """
        times = times_of_part(part[role])
        column = LogColumn(times, part["row"], self.origin, self.columns.roles[role])
        return checked_times(column, self.facts.get(role))


def stage_log(
    table: OpenTable,
    config: DataConfig,
    columns: Columns,
    folder: Path,
    part_rows: int,
    stage: Stage,
) -> StagedLog:
    """Write the rows that are interactions into files of a folder; see `read_source` for the rules.

    Raises:
        InputError: a rule or condition does not fit, or a value breaks its column's rule.
    """
    staged = StagedLog(table.origin, columns)
    names = roles_of(columns, table.origin)
    ruled = rule_columns(config, table.names, table.origin)
    kinds = [] if config.where or config.drop else hinted_columns(table.sure_names)
    wanted = [*names.values(), *config.keep, *ruled, *kinds]
    tested = _facts_of_condition(table, config, columns, wanted, part_rows)
    read, blanks, dropped, order = 0, 0, dict[str, int](), RowOrder()
    first: pl.DataFrame | None = None
    counts: dict[str, pl.DataFrame] = {}
    for part in table.parts(wanted, part_rows):
        rows = part.with_row_index(ROW, offset=1 + read)
        read += len(part)
        filled = rows.filter(~pl.all_horizontal(pl.exclude(ROW).is_null()))
        blanks += len(rows) - len(filled)
        first = filled.head(_FEW_ROWS) if first is None or first.is_empty() else first
        for values in filled.select(kinds):
            if tells_kinds(values.dtype):
                counts[values.name] = _add_counts(counts.get(values.name, pl.DataFrame()), values)
        kept, gone = keep_interactions(filled, config, columns, table.origin, tested)
        dropped = sum_counts(dropped, gone)
        order += RowOrder.of(kept, columns)
        _stage_part(staged, kept, config, folder)
        stage.advance(len(part))
    for name, found in counts.items():
        if len(found) and (hint := row_hint(_expanded(found, name))):
            logger.info("%s: %s", table.origin, hint)
    if not staged.rows:
        if config.where is not None and dropped["where"] and first is not None:
            raise holds_nowhere(first, config.where, table.origin, read - blanks)
        raise InputError(f"{table.origin}: no rows")
    order.warn(table.origin)
    blank = {BLANK: blanks} if blanks else {}
    staged.dropped = sum_counts(blank, dropped, staged.dropped)
    return staged


def _facts_of_condition(
    table: OpenTable, config: DataConfig, columns: Columns, wanted: list[str], part_rows: int
) -> dict[str, TextFacts]:
    """Return the facts of the text columns that the condition reads, if there is one."""
    facts: dict[str, TextFacts] = {}
    if config.where is None:  # then the log is not read for it
        return facts
    for part in table.parts(wanted, part_rows):
        facts = add_facts(facts, facts_of_condition(part, config, columns, table.origin))
    return facts


def _stage_part(staged: StagedLog, kept: pl.DataFrame, config: DataConfig, folder: Path) -> None:
    """Check the ids of a part, and write its rows."""
    filled, facts = check_ids(kept, staged.columns.roles, config.keep, staged.origin)
    if len(kept) > len(filled):
        staged.dropped = sum_counts(staged.dropped, {BLANK: len(kept) - len(filled)})
    if filled.is_empty():
        return
    staged.facts = add_facts(staged.facts, facts)
    path = folder / f"{len(staged.files):06}.arrow"
    filled.write_ipc(path)
    staged.files.append(path)
    staged.rows += len(filled)


def check_ids(
    rows: pl.DataFrame, names: Mapping[str, str], keep: Sequence[str], origin: str
) -> tuple[pl.DataFrame, dict[str, TextFacts]]:
    """Check the ids of a part of a log; times remain as they are.

    Args:
        rows: the columns of the log, and `ROW`.
        names: the column of each role.
        keep: the names of further columns to keep.
        origin: the name of the log in messages.

    Returns:
        The rows that are not blank, with the columns row, the roles and the kept ones, and the
        facts of times that are text. Ids remain text until all of them are known.

    Raises:
        InputError: an id is missing or invalid, or a column cannot be kept.
    """
    part = rows.select(
        pl.col(ROW).cast(pl.UInt64).alias("row"),
        *(pl.col(name).alias(role) for role, name in names.items()),
        *(
            convert_kept(rows[name], f"{origin}: column {name!r}").alias(KEPT + name)
            for name in keep
        ),
    )
    filled = part.filter(~pl.all_horizontal(pl.exclude("row").is_null()))
    found = {}
    for role, name in names.items():
        if role in _IDS:
            rule = LogColumn(filled[role], filled["row"], origin, name)
            filled = filled.with_columns(checked_ids_of_part(rule).alias(role))
            continue
        values = without_missing_words(filled[role])
        if values.dtype == pl.String and len(values):
            found[role] = text_facts(values)
    return filled, found


def add_facts(
    facts: Mapping[str, TextFacts], more: Mapping[str, TextFacts]
) -> dict[str, TextFacts]:
    """Add up the facts of text columns, by role or name."""
    return {
        name: facts.get(name, TextFacts()) + more.get(name, TextFacts())
        for name in dict.fromkeys([*facts, *more])
    }


def _add_counts(counts: pl.DataFrame, values: pl.Series) -> pl.DataFrame:
    """Add the counts of a column's values to those of earlier parts."""
    found = (
        values.to_frame().group_by(values.name, maintain_order=True).agg(pl.len().cast(pl.Int64))
    )
    if counts.is_empty():
        return found
    both = pl.concat([counts, found])
    return both.group_by(values.name, maintain_order=True).agg(pl.col("len").sum())


def _expanded(counts: pl.DataFrame, name: str) -> pl.Series:
    """Return a column with such counts."""
    return counts.select(pl.col(name).repeat_by("len").explode(empty_as_null=False)).to_series()
