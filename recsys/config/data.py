"""Which log, and how it becomes a prepared dataset."""

from __future__ import annotations

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
from recsys.config.split import LeaveLastOut, Split, in_short


class Columns(Section):
    """What the log calls its columns."""

    user_id: str = "user_id"
    """Who."""
    item_id: str = "item_id"
    """What."""
    timestamp: str = "timestamp"
    """When: integers, floats, dates, date-times or ISO text; a mere sequence number will do."""
    position: str | None = None
    """Orders rows of one user at the same time; without it their order in the log does."""
    weight: str | None = None
    """A number kept beside each interaction (rating, quantity)."""


class DropRows(Section):
    """Rows of the source that are no interactions, told by one column: one of the three rules."""

    reason: str
    """What they are; their number is kept under it."""
    column: str
    missing: bool = False
    """Rows without a value."""
    matches: str | None = None
    """Rows whose value, as text, has a match of this regular expression."""
    below: float | None = None
    """Rows whose number is lower."""

    @model_validator(mode="after")
    def _has_one_rule(self) -> Self:
        if self.missing + (self.matches is not None) + (self.below is not None) != 1:
            raise ValueError("needs one of missing: true, matches and below")
        return self


class DataConfig(Section):
    """Which log, and how it becomes a prepared dataset."""

    source: str = "shop"
    """A named dataset (`recsys data` lists them) or the path of a log (CSV, TSV, Parquet, JSON
    lines)."""
    mirror: str | None = None
    """Folder or base URL that holds the named datasets; the variable RECSYS_MIRROR if not given."""
    columns: Columns | None = None
    """Column names of the log; None: those of the named dataset, or user_id, item_id, timestamp."""
    drop: tuple[DropRows, ...] = ()
    """Rows of the source that are left out before anything else."""
    keep: tuple[str, ...] = ()
    """Columns of the source that are kept beside each interaction, for
    ``model.interaction_features``; without them a dataset is smaller."""
    session_gap: int | None = Field(None, gt=0)
    """A pause longer than this, in the unit of the log's times (dates: seconds), ends a session;
    each session of USER is then a user of its own, USER#1, USER#2 and so on, in every way: in
    filters, splits and figures. None: users are not taken apart."""
    duplicates: Literal["keep", "drop_exact", "first", "last"] = "keep"
    """Same user and item again: keep all (repeat purchases are real), drop rows equal in user, item
    and time, or keep only the first or last of each user and item."""
    min_user_interactions: int = Field(1, ge=1)
    """Users with fewer interactions are dropped."""
    min_item_interactions: int = Field(1, ge=1)
    """Items with fewer interactions are dropped."""
    k_core: bool = False
    """Apply the two filters until both hold, instead of once (items first, then users)."""
    split: Split = LeaveLastOut()
    """Which interactions are held out for validation and test."""

    @field_validator("keep")
    @classmethod
    def _each_once(cls, keep: tuple[str, ...]) -> tuple[str, ...]:
        for name in keep:
            if name in ("user_id", "item_id"):
                raise ValueError(f"{name} is no column of an interaction's own")
            if keep.count(name) > 1:
                raise ValueError(f"{name} is there twice")
        return keep

    @field_serializer("split")
    def _in_short(self, split: Split) -> str | dict[str, Any]:
        return in_short(split)

    @model_serializer(mode="wrap")
    def _without_what_is_off(self, handler: SerializerFunctionWrapHandler) -> dict[str, Any]:
        """Datasets prepared before there were these settings keep their fingerprint."""
        tree: dict[str, Any] = handler(self)
        return {k: v for k, v in tree.items() if v or k not in ("drop", "keep", "session_gap")}
