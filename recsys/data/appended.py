"""What a manifest says of each log that was appended to its dataset."""

from __future__ import annotations

from recsys.config import Section


class Drift(Section):
    """How an appended log differs from the dataset before it.

    It describes the interactions that the append added: rows that the settings drop do not count.
    """

    interactions: int
    """The number of interactions added."""
    interaction_share: float
    """Their share of all interactions, from 0 to 1; likewise:"""
    new_users: int
    """The users that the dataset did not have."""
    new_user_share: float
    """Their share of the users of the added interactions."""
    new_items: int
    """The items that the dataset did not have, in no part of its split."""
    new_item_share: float
    """Their share of the items of the added interactions."""
    late: int
    """The added interactions that are older than the newest one of the dataset."""
    late_share: float
    """Their share of the added interactions."""
    since_last: int | None
    """The time from the newest interaction of the dataset to the newest one added, in the unit of
    the log's times (dates: seconds); None if nothing was added."""
    popularity_shift: float | None
    """The Jensen-Shannon distance (base 2) of the items' shares of the interactions, before and
    in the appended log: 0 if they are equal, 1 if no item is in both; None if nothing was added."""
    shift_by_chance: float | None
    """The same distance for as many interactions that are drawn from the dataset's own shares: a
    shift that is not larger says nothing."""


class AppendedLog(Section):
    """A log that was appended to a dataset."""

    source: str
    """The name or path of the log."""
    appended_at: str
    """The date and time, UTC."""
    rows_read: int
    """The rows of the source."""
    log_fingerprint: str
    """The SHA-256 of the rows of the log, before any filter."""
    fingerprint_before: str
    """The fingerprint of the dataset before it was appended."""
    drift: Drift
    """How the log differs from the dataset before it."""
