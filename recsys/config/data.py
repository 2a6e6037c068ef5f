"""The log of an experiment: how it is read and filtered, and which interactions are held out."""

from contextlib import suppress
from datetime import UTC, date, datetime
from typing import Annotated, Any, Literal, Self

from pydantic import BeforeValidator, Field, field_serializer, field_validator, model_validator

from recsys.config.section import MAX_SEED, Section, with_kind

ChosenTargets = Literal["first", "last", "every"]
KnownHistory = Literal["frozen", "advancing"]


def _as_time(value: object) -> object:
    """Return dates as ISO 8601 text, and check text; numbers are unchanged."""
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


# --- Splits: __str__ is the split's name in a protocol -------------------------------------------


class LeaveLastOut(Section):
    """Test targets are each user's last interactions; validation targets are those before them."""

    kind: Literal["leave_last_out"] = "leave_last_out"
    targets: int = Field(1, ge=1, lt=2**31)
    """Number of targets per user in each part."""

    def __str__(self) -> str:
        return self.kind if self.targets == 1 else f"{self.kind} of {self.targets}"


class LeaveLastBasketOut(Section):
    """Test targets are a user's interactions at the last time; validation, at the time before."""

    kind: Literal["leave_last_basket_out"] = "leave_last_basket_out"

    def __str__(self) -> str:
        return self.kind


class _ByTime(Section):
    test_fraction: float = Field(0.1, gt=0, lt=1)
    """Fraction of the log's interactions, the newest ones, in a test part."""
    valid_fraction: float = Field(0.1, gt=0, lt=1)
    """Fraction of all interactions, those just before the test part, in the validation part."""
    targets: ChosenTargets = "first"
    """Which of a user's interactions in a part are targets."""
    history: KnownHistory = "frozen"
    """What is known before a target: what came before its part, or all at earlier times."""


class GlobalTime(_ByTime):
    """The test part begins at one date for all users, the validation part at an earlier one."""

    kind: Literal["global_time"] = "global_time"
    test_from: Time | None = None
    """Start of the test part; if None, `test_fraction` decides it."""
    valid_from: Time | None = None
    """Start of the validation part; if None, `valid_fraction` decides it."""
    test_until: Time | None = None
    """End of the dataset: rows at or after this time are dropped. If None, no row is."""

    def __str__(self) -> str:
        valid = self.valid_from if self.valid_from is not None else f"{self.valid_fraction:.4g}"
        test = self.test_from if self.test_from is not None else f"{self.test_fraction:.4g}"
        until = "" if self.test_until is None else f" until {self.test_until}"
        parts = f"validation {valid}, test {test}{until}"
        return f"{self.kind} ({parts}; {self.targets} targets, {self.history} history)"


class UserHoldout(Section):
    """Users are held out: the target is the last interaction of each."""

    kind: Literal["user_holdout"] = "user_holdout"
    test_fraction: float = Field(0.1, gt=0, lt=1)
    """Fraction of the users in the test part."""
    valid_fraction: float = Field(0.1, gt=0, lt=1)
    """Fraction of the users in the validation part."""
    seed: int = Field(0, ge=0, le=MAX_SEED)
    """Seed of the random choice of users."""

    def __str__(self) -> str:
        shares = f"validation {self.valid_fraction:.4g}, test {self.test_fraction:.4g}"
        return f"{self.kind} ({shares} of the users, seed {self.seed})"


class Backtest(_ByTime):
    """Several `GlobalTime` splits of one log with a rolling origin, each a separate dataset.

    The test part and the log of a fold end where the test part of the next one begins.
    """

    kind: Literal["backtest"] = "backtest"
    cuts: tuple[Time, ...] = ()
    """Starts of the test parts, ascending; if empty, `folds` and `test_fraction` decide them."""
    folds: int = Field(3, ge=1, le=1_000)
    """Number of test parts, equally large, at the end of the log."""

    @model_validator(mode="after")
    def _has_room(self) -> Self:
        if not self.cuts and self.folds * self.test_fraction >= 1:
            raise ValueError("folds times test_fraction must be below 1")
        return self

    def __str__(self) -> str:
        folds = len(self.cuts) or f"{self.folds} of {self.test_fraction:.4g}"
        return f"{self.kind} ({folds} folds; {self.targets} targets, {self.history} history)"


Split = Annotated[
    LeaveLastOut | LeaveLastBasketOut | GlobalTime | UserHoldout | Backtest,
    Field(discriminator="kind"),
    BeforeValidator(lambda split: with_kind(split, "leave_last_out")),
]

# --- The log -------------------------------------------------------------------------------------

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
    """Column of the time: numbers, dates, date-times or ISO 8601 text; ``row-order`` takes the
    number of the row, if no column has that name."""
    position: str | None = None
    """Column that orders a user's rows at the same time; by default their order in the log."""

    @property
    def roles(self) -> dict[str, str]:
        """The column of each role that the log has."""
        return {role: name for role, name in self.model_dump().items() if name is not None}


def _is_none(value: object) -> bool:
    return value is None


class DataConfig(Section):
    """The log of an experiment, and how it becomes a prepared dataset."""

    source: str = "shop"
    """A named dataset (see `recsys data`), the path of a log (CSV, TSV or JSON lines, also with
    .gz or .zst, or Parquet), a folder of parts, or a pattern such as logs/*.parquet."""
    columns: Columns | None = None
    """Column names of the log; by default those of the named dataset, or user_id, item_id,
    timestamp, or what names and types leave no doubt of."""
    header: bool = Field(True, exclude_if=bool)
    """Whether the first line of a text file names the columns. If not, they are called 1, 2, …."""
    encoding: str | None = Field(None, exclude_if=_is_none)
    """Encoding of text files that are neither UTF-8 nor UTF-16, such as cp1252 or latin-1."""
    where: str | dict[str, str] | None = Field(None, exclude_if=_is_none)
    """A condition in SQL, e.g. ``event_type = 'purchase' and price > 5``: other rows are dropped
    before all other steps. Several have names, and count the rows they drop."""
    time_format: str | None = Field(None, exclude_if=_is_none)
    """Form of dates that are not ISO 8601, in the codes of strftime, such as ``%d.%m.%Y %H:%M``, or
    ``number`` if numbers are no dates. If None, it is found where rows leave no doubt."""
    since: Time | None = Field(None, exclude_if=_is_none)
    """Rows before this time are dropped: ISO 8601 (UTC if it names no zone), or a number in the
    log's own unit."""
    keep: tuple[str, ...] = ()
    """Further columns to store with each interaction, for ``model.interaction_features``."""
    session_gap: int | None = Field(None, gt=0, lt=2**63)
    """A pause longer than this, in the unit of the log's times (dates: seconds), ends a session;
    the sessions of USER are the users USER#1, USER#2 and so on."""
    duplicates: Literal["keep", "drop_exact", "first", "last"] = "keep"
    """What to do with several interactions of a user with an item: keep all, drop rows equal in
    user, item and time, or keep only the first or last of each pair."""
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
    def _has_ascii(cls, encoding: str | None) -> str | None:
        with suppress(LookupError, ValueError):
            if encoding is None or _PRINTABLE.encode(encoding) == _PRINTABLE.encode():
                return encoding
        raise ValueError("must be an encoding with ASCII in it, such as cp1252 or latin-1")

    @field_validator("time_format")
    @classmethod
    def _names_a_day(cls, form: str | None) -> str | None:
        if form is None or form == TIME_IS_NUMBER:
            return form
        if "%Z" in form:
            raise ValueError("names of zones are not read, offsets such as +0100 are, by %z")
        day = datetime(2001, 2, 3, tzinfo=UTC)
        with suppress(ValueError):
            if datetime.strptime(f"{day:{form}}", form).date() == day.date():  # noqa: DTZ007
                return form
        raise ValueError("must give year, month and day, such as %d.%m.%Y %H:%M, or be number")

    @field_validator("keep")
    @classmethod
    def _each_once(cls, keep: tuple[str, ...]) -> tuple[str, ...]:
        for name in keep:
            if name in ("user_id", "item_id") or keep.count(name) > 1:
                raise ValueError(f"{name} is stored once: leave it out")
        return keep

    @field_serializer("split")
    def _in_short(self, split: Split) -> str | dict[str, Any]:
        changed = split.model_dump(mode="json", exclude_defaults=True)
        return {"kind": split.kind, **changed} if changed else split.kind
