"""The log of an experiment, and how it becomes a prepared dataset."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any, Literal, Self

from pydantic import (
    Field,
    SerializerFunctionWrapHandler,
    field_serializer,
    field_validator,
    model_serializer,
    model_validator,
)

from recsys.config.section import Section
from recsys.config.split import LeaveLastOut, Split, Time, in_short

TIME_IS_NUMBER = "number"
"""The value of ``time_format`` that says that no time is a date."""

ROW_ORDER = "row-order"
"""The column of the time of a log without one, whose rows are in order of time."""

_PRINTABLE = "\n" + "".join(map(chr, range(32, 127)))


class Columns(Section):
    """The names of the log's columns."""

    user_id: str = "user_id"
    """Column of the user's id: integers or text."""
    item_id: str = "item_id"
    """Column of the item's id: integers or text."""
    timestamp: str = "timestamp"
    """Column of the time: integers, floats, dates, date-times or ISO 8601 text; sequence numbers
    are accepted too. ``row-order`` takes the number of the row, if no column has that name."""
    position: str | None = None
    """Column that orders a user's rows at the same time; their order in the log if None."""

    @field_validator("user_id", "item_id", "position")
    @classmethod
    def _is_a_column(cls, name: str | None) -> str | None:
        if name == ROW_ORDER:
            raise ValueError(f"{ROW_ORDER} is an order of time: it is for timestamp alone")
        return name

    @property
    def roles(self) -> dict[str, str]:
        """The column of each role that the log has."""
        return {role: name for role, name in self.model_dump().items() if name is not None}


class DropRows(Section):
    """A rule that drops rows which are not interactions, by one column and one condition."""

    reason: str
    """What the rows are; the manifest counts them under this name."""
    column: str
    """Column that the condition applies to."""
    missing: bool = False
    """Drop rows without a value."""
    matches: str | None = None
    """Drop rows whose value, as text, matches this regular expression anywhere."""
    below: float | None = None
    """Drop rows whose number is lower than this."""

    @model_validator(mode="after")
    def _has_one_rule(self) -> Self:
        if self.missing + (self.matches is not None) + (self.below is not None) != 1:
            raise ValueError("needs one of missing: true, matches and below")
        return self


class DataConfig(Section):
    """The log of an experiment, and how it becomes a prepared dataset."""

    source: str = "shop"
    """A named dataset (`recsys data` lists them), the path of a log (CSV, TSV, Parquet, JSON lines,
    also with .gz, .zst or .bz2), a folder of parts, or a pattern such as logs/*.parquet."""
    mirror: str | None = None
    """Folder or base URL of the files of named datasets; the variable RECSYS_MIRROR if None."""
    columns: Columns | None = None
    """Column names of the log. Names that are not given are those of the named dataset, or user_id,
    item_id, timestamp, or are guessed where names and types leave no doubt."""
    header: bool = True
    """Whether the first line of a text file names the columns. If not, they are called 1, 2, …."""
    encoding: str | None = None
    """Encoding of text files that are neither UTF-8 nor UTF-16, such as cp1252 or latin-1."""
    drop: tuple[DropRows, ...] = ()
    """Rules that drop rows of the source before all other steps."""
    where: str | None = None
    """A condition in SQL: rows for which it does not hold are dropped, e.g. ``event_type =
    'purchase' and price > 5``; ``==`` is understood too. It follows ``drop``."""
    time_format: str | None = None
    """Form of dates in the log that are not ISO 8601, in the codes of strftime, such as ``%d.%m.%Y
    %H:%M``. Dates of ISO 8601 are read as well. If None, it is found where the first rows leave no
    doubt, also of numbers that are dates, such as 20241231 or 202412312359; ``number`` says that
    they are none."""
    since: Time | None = None
    """Rows before this time are dropped: a date or date-time in ISO 8601 (UTC if it names no zone),
    or a number in the log's own unit. Epochs in milli-, micro- or nanoseconds are compared with a
    date in their unit."""
    keep: tuple[str, ...] = ()
    """Further columns of the source to store with each interaction, for
    ``model.interaction_features``; without them a dataset is smaller."""
    session_gap: int | None = Field(None, gt=0, lt=2**63)
    """A pause longer than this, in the unit of the log's times (dates: seconds), ends a session.
    Each session of USER is then a separate user, USER#1, USER#2 and so on, in filters, splits and
    metrics. If None, users are not split into sessions."""
    duplicates: Literal["keep", "drop_exact", "first", "last"] = "keep"
    """What to do with several interactions of a user with an item: keep all (repeat purchases are
    real), drop rows equal in user, item and time, or keep only the first or last of each pair."""
    min_user_interactions: int = Field(1, ge=1, lt=2**31)
    """Users with fewer interactions are dropped."""
    min_item_interactions: int = Field(1, ge=1, lt=2**31)
    """Items with fewer interactions are dropped."""
    k_core: bool = False
    """Apply the two filters until both hold, instead of once (items first, then users)."""
    split: Split = LeaveLastOut()
    """Which interactions are held out for validation and test."""

    @field_validator("encoding")
    @classmethod
    def _is_known(cls, encoding: str | None) -> str | None:
        try:
            known = encoding is None or _PRINTABLE.encode(encoding) == _PRINTABLE.encode()
        except (LookupError, ValueError):
            known = False
        if not known:
            raise ValueError("must be an encoding with ASCII in it, such as cp1252 or latin-1")
        return encoding

    @field_validator("time_format")
    @classmethod
    def _names_a_day(cls, form: str | None) -> str | None:
        if form == TIME_IS_NUMBER:
            return form
        day = datetime(2001, 2, 3, tzinfo=UTC)
        try:
            read = day if form is None else datetime.strptime(f"{day:{form}}", form)  # noqa: DTZ007
        except ValueError:
            read = None
        if read is None or read.date() != day.date():
            raise ValueError("must give year, month and day, such as %d.%m.%Y %H:%M, or be number")
        if form is not None and "%Z" in form:
            raise ValueError("names of zones are not read, offsets such as +0100 are, by %z")
        return form

    @field_validator("keep")
    @classmethod
    def _each_once(cls, keep: tuple[str, ...]) -> tuple[str, ...]:
        for name in keep:
            if name in ("user_id", "item_id"):
                raise ValueError(f"{name} is stored anyway and cannot be kept as a further column")
            if keep.count(name) > 1:
                raise ValueError(f"{name} is listed twice")
        return keep

    @model_serializer(mode="wrap")
    def _without_later_defaults(self, dump: SerializerFunctionWrapHandler) -> dict[str, Any]:
        """Leave out settings that came later, at their defaults: fingerprints stay as they were."""
        tree: dict[str, Any] = dump(self)
        later = dict.fromkeys(("encoding", "where", "since", "time_format")) | {"header": True}
        return {name: value for name, value in tree.items() if later.get(name, ...) != value}

    @field_serializer("split")
    def _in_short(self, split: Split) -> str | dict[str, Any]:
        return in_short(split)
