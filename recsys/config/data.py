"""Which log, and how it becomes a prepared dataset."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field, field_serializer

from recsys.config.section import Section


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


class LeaveLastOut(Section):
    """Last interactions of each user: test targets; those before: validation targets."""

    kind: Literal["leave_last_out"] = "leave_last_out"
    targets: int = Field(1, ge=1)
    """How many in each part."""

    def __str__(self) -> str:
        """As protocols name it."""
        return self.kind if self.targets == 1 else f"{self.kind} of {self.targets}"


class LeaveLastBasketOut(Section):
    """All interactions at a user's last time: test targets; at the time before: validation's."""

    kind: Literal["leave_last_basket_out"] = "leave_last_basket_out"

    def __str__(self) -> str:
        """As protocols name it."""
        return self.kind


def _with_kind(section: object) -> object:
    """``leave_last_out`` is short for ``{kind: leave_last_out}``, the kind that needs no name."""
    if isinstance(section, dict):
        return {"kind": "leave_last_out", **section}
    return {"kind": section} if isinstance(section, str) else section


Split = Annotated[
    LeaveLastOut | LeaveLastBasketOut, Field(discriminator="kind"), BeforeValidator(_with_kind)
]


class DataConfig(Section):
    """Which log, and how it becomes a prepared dataset."""

    source: str = "shop"
    """A named dataset (`recsys data` lists them) or the path of a log (CSV, TSV, Parquet, JSON
    lines)."""
    mirror: str | None = None
    """Folder or base URL that holds the named datasets; the variable RECSYS_MIRROR if not given."""
    columns: Columns | None = None
    """Column names of the log; None: those of the named dataset, or user_id, item_id, timestamp."""
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

    @field_serializer("split")
    def _in_short(self, split: LeaveLastOut | LeaveLastBasketOut) -> str | dict[str, Any]:
        """Its kind alone where all else is as usual."""
        changed = split.model_dump(exclude_defaults=True)
        return {"kind": split.kind, **changed} if changed else split.kind
