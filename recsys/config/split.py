"""Which interactions are held out."""

from __future__ import annotations

from datetime import UTC, date, datetime
from itertools import pairwise
from typing import Annotated, Any, Literal, Self

from pydantic import BeforeValidator, Field, model_validator

from recsys.config.section import Section

ChosenTargets = Literal["first", "last", "every"]
"""Which of a user's interactions in a part of the split are targets."""

KnownHistory = Literal["frozen", "advancing"]
"""What is known before a target. frozen: what the user did before the part that the target is in;
advancing: all that the user did at earlier times than the target's, in that part too. What happened
at the very time of the target (the rest of its basket) is not known before it."""


def _as_time(value: object) -> object:
    """Dates of YAML and ISO 8601 text as ISO text; numbers as they are."""
    if isinstance(value, date):  # a datetime is one too
        return value.isoformat()
    if isinstance(value, str):
        try:
            datetime.fromisoformat(value)
        except ValueError:
            raise ValueError("a time is a number or an ISO 8601 date") from None
    return value


Time = Annotated[int | float | str, BeforeValidator(_as_time)]
"""A date or date-time in ISO 8601 (UTC if it names no zone), or a number in the log's own unit."""


def time_value(time: float | str) -> float:
    """A `Time` on the scale of a prepared log, where dates are seconds since 1970 UTC.

    >>> time_value("1970-01-02"), time_value(7)
    (86400.0, 7.0)
    """
    if not isinstance(time, str):
        return float(time)
    moment = datetime.fromisoformat(time)
    return (moment if moment.tzinfo else moment.replace(tzinfo=UTC)).timestamp()


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


class GlobalTime(Section):
    """One date for all users: what is at or after it is test; validation is just before it.

    Rows of one time are never torn: all of them are on the same side of a cut.
    """

    kind: Literal["global_time"] = "global_time"
    test_from: Time | None = None
    """Where the test part begins; None: `test_fraction` says it."""
    valid_from: Time | None = None
    """Where the validation part begins; None: `valid_fraction` says it."""
    test_until: Time | None = None
    """What is at or after this time is not part of the dataset; None: nothing is left out."""
    test_fraction: float = Field(0.1, gt=0, lt=1)
    """The newest share of the interactions."""
    valid_fraction: float = Field(0.1, gt=0, lt=1)
    """The share of all interactions that is just before the test part."""
    targets: ChosenTargets = "first"
    history: KnownHistory = "frozen"

    @model_validator(mode="after")
    def _is_one_split(self) -> Self:
        for part in ("test", "valid"):
            fraction = f"{part}_fraction"
            if getattr(self, f"{part}_from") is not None and (
                getattr(self, fraction) != type(self).model_fields[fraction].default
            ):
                raise ValueError(f"{part}_from and {fraction} are two ways to say one thing")
        given = [t for t in (self.valid_from, self.test_from, self.test_until) if t is not None]
        times = [time_value(time) for time in given]
        if any(late <= early for early, late in pairwise(times)):
            raise ValueError("valid_from, test_from and test_until must ascend")
        return self

    def __str__(self) -> str:
        """As protocols name it."""
        valid = self.valid_from if self.valid_from is not None else f"{self.valid_fraction:.4g}"
        test = self.test_from if self.test_from is not None else f"{self.test_fraction:.4g}"
        until = "" if self.test_until is None else f" until {self.test_until}"
        parts = f"validation {valid}, test {test}{until}"
        return f"{self.kind} ({parts}; {self.targets} targets, {self.history} history)"


class UserHoldout(Section):
    """Whole users are held out: of each the last interaction, foretold from earlier times.

    The catalogue is that of the training and validation users.
    """

    kind: Literal["user_holdout"] = "user_holdout"
    test_fraction: float = Field(0.1, gt=0, lt=1)
    """Share of the users."""
    valid_fraction: float = Field(0.1, gt=0, lt=1)
    """Share of the users."""
    seed: int = Field(0, ge=0)
    """Of the draw of users."""

    def __str__(self) -> str:
        """As protocols name it."""
        shares = f"validation {self.valid_fraction:.4g}, test {self.test_fraction:.4g}"
        return f"{self.kind} ({shares} of the users, seed {self.seed})"


class Backtest(Section):
    """Several `GlobalTime` splits of one log, each a dataset of its own: a rolling origin.

    The test part of a fold ends where that of the next one begins, and its log ends there too: a
    fold knows of no item, and counts in no filter, what comes later.
    """

    kind: Literal["backtest"] = "backtest"
    cuts: tuple[Time, ...] = ()
    """Where the test part of each fold begins, ascending; none: `folds` and `test_fraction`."""
    folds: int = Field(3, ge=1)
    """How many test parts of equal numbers of interactions there are at the end of the log."""
    test_fraction: float = Field(0.1, gt=0, lt=1)
    """The share of the log's interactions in each of them."""
    valid_fraction: float = Field(0.1, gt=0, lt=1)
    """The share of the fold's interactions that is just before its test part."""
    targets: ChosenTargets = "first"
    history: KnownHistory = "frozen"

    @model_validator(mode="after")
    def _has_room(self) -> Self:
        times = [time_value(cut) for cut in self.cuts]
        if any(late <= early for early, late in pairwise(times)):
            raise ValueError("the cuts must ascend")
        if not self.cuts and self.folds * self.test_fraction >= 1:
            raise ValueError("folds times test_fraction must be below 1")
        return self

    def __str__(self) -> str:
        """As protocols name it."""
        folds = len(self.cuts) or f"{self.folds} of {self.test_fraction:.4g}"
        return f"{self.kind} ({folds} folds; {self.targets} targets, {self.history} history)"


def _with_kind(section: object) -> object:
    """``leave_last_out`` is short for ``{kind: leave_last_out}``, the kind that needs no name."""
    if isinstance(section, dict):
        return {"kind": "leave_last_out", **section}
    return {"kind": section} if isinstance(section, str) else section


Split = Annotated[
    LeaveLastOut | LeaveLastBasketOut | GlobalTime | UserHoldout | Backtest,
    Field(discriminator="kind"),
    BeforeValidator(_with_kind),
]


def in_short(split: Split) -> str | dict[str, Any]:
    """A split as configs write it: its kind alone where all else is as usual."""
    changed = split.model_dump(mode="json", exclude_defaults=True)
    return {"kind": split.kind, **changed} if changed else split.kind
