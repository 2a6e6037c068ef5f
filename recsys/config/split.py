"""Splits: which interactions are held out for validation and test."""

from __future__ import annotations

from datetime import UTC, date, datetime
from itertools import pairwise
from typing import Annotated, Any, Literal, Self

from pydantic import BeforeValidator, Field, model_validator

from recsys.config.section import MAX_SEED, Section

ChosenTargets = Literal["first", "last", "every"]
"""Which of a user's interactions in a part of the split are targets."""

KnownHistory = Literal["frozen", "advancing"]
"""Which interactions are the history of a target. frozen: the user's interactions before the part
that the target is in; advancing: all interactions of the user at earlier times, in that part too.
Interactions at the time of the target (the rest of its basket) are never part of its history."""


def _as_time(value: object) -> object:
    """Convert dates to ISO 8601 text, and check text; numbers are unchanged."""
    if isinstance(value, date):  # a datetime is one too
        return value.isoformat()
    if isinstance(value, str):
        try:
            time_value(value)
        except (ValueError, OverflowError):
            raise ValueError("a time must be a number or an ISO 8601 date") from None
    return value


Time = Annotated[
    Annotated[int, Field(ge=-(2**63), lt=2**63)] | float | str, BeforeValidator(_as_time)
]
"""A date or date-time in ISO 8601 (UTC if it names no zone), or a number in the log's own unit."""


def time_value(time: float | str) -> float:
    """Return a `Time` on the scale of a prepared log, where dates are seconds since 1970 UTC.

    >>> time_value("1970-01-02"), time_value(7)
    (86400.0, 7.0)
    """
    if not isinstance(time, str):
        return float(time)
    moment = datetime.fromisoformat(time)
    return (moment if moment.tzinfo else moment.replace(tzinfo=UTC)).timestamp()


class LeaveLastOut(Section):
    """Test targets are each user's last interactions; validation targets are those before them."""

    kind: Literal["leave_last_out"] = "leave_last_out"
    targets: int = Field(1, ge=1, lt=2**31)
    """Number of targets per user in each part."""

    def __str__(self) -> str:
        """Return the split's name in a protocol."""
        return self.kind if self.targets == 1 else f"{self.kind} of {self.targets}"


class LeaveLastBasketOut(Section):
    """Test targets are a user's interactions at the last time; validation, at the time before."""

    kind: Literal["leave_last_basket_out"] = "leave_last_basket_out"

    def __str__(self) -> str:
        """Return the split's name in a protocol."""
        return self.kind


class GlobalTime(Section):
    """The test part begins at one date for all users, the validation part at an earlier one.

    Rows of the same time are always on the same side of a cut.
    """

    kind: Literal["global_time"] = "global_time"
    test_from: Time | None = None
    """Start of the test part; if None, `test_fraction` decides it."""
    valid_from: Time | None = None
    """Start of the validation part; if None, `valid_fraction` decides it."""
    test_until: Time | None = None
    """End of the dataset: rows at or after this time are dropped. If None, no row is."""
    test_fraction: float = Field(0.1, gt=0, lt=1)
    """Fraction of the interactions, the newest ones, in the test part."""
    valid_fraction: float = Field(0.1, gt=0, lt=1)
    """Fraction of all interactions, those just before the test part, in the validation part."""
    targets: ChosenTargets = "first"
    """Which of a user's interactions in a part are targets."""
    history: KnownHistory = "frozen"
    """Which interactions are the history of a target."""

    @model_validator(mode="after")
    def _is_one_split(self) -> Self:
        for part in ("test", "valid"):
            fraction = f"{part}_fraction"
            if getattr(self, f"{part}_from") is not None and (
                getattr(self, fraction) != type(self).model_fields[fraction].default
            ):
                raise ValueError(f"{part}_from and {fraction} exclude each other: give one of them")
        given = [t for t in (self.valid_from, self.test_from, self.test_until) if t is not None]
        times = [time_value(time) for time in given]
        if any(late <= early for early, late in pairwise(times)):
            raise ValueError("valid_from, test_from and test_until must ascend")
        return self

    def __str__(self) -> str:
        """Return the split's name in a protocol."""
        valid = self.valid_from if self.valid_from is not None else f"{self.valid_fraction:.4g}"
        test = self.test_from if self.test_from is not None else f"{self.test_fraction:.4g}"
        until = "" if self.test_until is None else f" until {self.test_until}"
        parts = f"validation {valid}, test {test}{until}"
        return f"{self.kind} ({parts}; {self.targets} targets, {self.history} history)"


class UserHoldout(Section):
    """Users are held out: the target is the last interaction of each.

    The catalogue is that of the training and validation users.
    """

    kind: Literal["user_holdout"] = "user_holdout"
    test_fraction: float = Field(0.1, gt=0, lt=1)
    """Fraction of the users in the test part."""
    valid_fraction: float = Field(0.1, gt=0, lt=1)
    """Fraction of the users in the validation part."""
    seed: int = Field(0, ge=0, le=MAX_SEED)
    """Seed of the random choice of users."""

    def __str__(self) -> str:
        """Return the split's name in a protocol."""
        shares = f"validation {self.valid_fraction:.4g}, test {self.test_fraction:.4g}"
        return f"{self.kind} ({shares} of the users, seed {self.seed})"


class Backtest(Section):
    """Several `GlobalTime` splits of one log with a rolling origin, each a separate dataset.

    The test part of a fold ends where that of the next one begins, and its log ends there too: no
    later item or interaction enters a fold's catalogue or filters.
    """

    kind: Literal["backtest"] = "backtest"
    cuts: tuple[Time, ...] = ()
    """Starts of the test parts, ascending; if empty, `folds` and `test_fraction` decide them."""
    folds: int = Field(3, ge=1, le=1_000)
    """Number of test parts, equally large, at the end of the log."""
    test_fraction: float = Field(0.1, gt=0, lt=1)
    """Fraction of the log's interactions in each test part."""
    valid_fraction: float = Field(0.1, gt=0, lt=1)
    """Fraction of a fold's interactions, those just before its test part, for validation."""
    targets: ChosenTargets = "first"
    """Which of a user's interactions in a part are targets."""
    history: KnownHistory = "frozen"
    """Which interactions are the history of a target."""

    @model_validator(mode="after")
    def _has_room(self) -> Self:
        times = [time_value(cut) for cut in self.cuts]
        if any(late <= early for early, late in pairwise(times)):
            raise ValueError("the cuts must ascend")
        if not self.cuts and self.folds * self.test_fraction >= 1:
            raise ValueError("folds times test_fraction must be below 1")
        return self

    def __str__(self) -> str:
        """Return the split's name in a protocol."""
        folds = len(self.cuts) or f"{self.folds} of {self.test_fraction:.4g}"
        return f"{self.kind} ({folds} folds; {self.targets} targets, {self.history} history)"


def _with_kind(section: object) -> object:
    """Expand a kind's name to a section; without a kind it is leave_last_out."""
    if isinstance(section, dict):
        return {"kind": "leave_last_out", **section}
    return {"kind": section} if isinstance(section, str) else section


Split = Annotated[
    LeaveLastOut | LeaveLastBasketOut | GlobalTime | UserHoldout | Backtest,
    Field(discriminator="kind"),
    BeforeValidator(_with_kind),
]


def in_short(split: Split) -> str | dict[str, Any]:
    """Return a split as configs write it: only its kind if all other settings are the defaults."""
    changed = split.model_dump(mode="json", exclude_defaults=True)
    return {"kind": split.kind, **changed} if changed else split.kind
