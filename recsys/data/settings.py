"""The settings of a log in the words of the command line: user, item, time, where and so on."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Literal, TypedDict

from recsys.config import Columns, DataConfig, Section, Split, with_changes
from recsys.errors import InputError

Engine = Literal["spark"]
"""What reads and filters a log before this process does; this process alone if it is not named."""


class LogWords(TypedDict, total=False):
    """The words; those that are None or absent change nothing."""

    user: str | None
    """Column of user ids."""
    item: str | None
    """Column of item ids."""
    time: str | None
    """Column of times."""
    header: bool | None
    """Whether the first line of a text file names the columns."""
    encoding: str | None
    """Encoding of text files that are neither UTF-8 nor UTF-16."""
    where: str | dict[str, str] | None
    """A condition in SQL that rows must meet, or several by name; see `recsys.data.where.parse`."""
    time_format: str | None
    """Form of dates that are not ISO 8601, in the codes of strftime; or ``number``."""
    since: Any
    """Rows before this date, date-time or number are dropped."""
    user_minimum: int | None
    """Users with fewer interactions are dropped."""
    item_minimum: int | None
    """Items with fewer interactions are dropped."""
    keep: Sequence[str] | None
    """Further columns to store."""
    duplicates: str | None
    """What to do with several interactions of a user with an item."""
    split: Split | str | Mapping[str, Any] | None
    """Which interactions are held out: a kind, a mapping with its settings, or an object."""


_COLUMNS = {"user": "user_id", "item": "item_id", "time": "timestamp"}
_FIELDS = {"user_minimum": "min_user_interactions", "item_minimum": "min_item_interactions"}


def with_words(config: DataConfig, words: LogWords) -> DataConfig:
    """Return settings changed by words, which win over what the settings say.

    Raises:
        InputError: a word is unknown, or its value is wrong.
    """
    if unknown := words.keys() - LogWords.__annotations__.keys():
        known = ", ".join(LogWords.__annotations__)
        raise InputError(f"{min(unknown)}: no such setting of a log; they are {known}")
    given = {word: value for word, value in words.items() if value is not None}
    fields = {_FIELDS.get(word, word): given[word] for word in given if word not in _COLUMNS}
    if columns := {_COLUMNS[word]: given[word] for word in given if word in _COLUMNS}:
        named = Columns() if config.columns is None else config.columns
        fields["columns"] = named.model_dump(exclude_unset=True) | columns
    return with_changes(config, fields, "data") if fields else config


def completed(config: DataConfig | None, words: LogWords) -> DataConfig:
    """Return settings changed by words that do not say otherwise than what was given in them.

    Raises:
        InputError: a field of the settings was given, and the word gives it another value; or as
            `with_words`.
    """
    config = config or DataConfig()
    changed = with_words(config, words)
    for word, value in words.items():
        if value is None:
            continue
        before: Section | None = config.columns if word in _COLUMNS else config
        after = changed.columns if word in _COLUMNS else changed
        field = _COLUMNS.get(word) or _FIELDS.get(word, word)
        if before is None or field not in before.model_fields_set:
            continue
        if (old := getattr(before, field)) != getattr(after, field):
            raise InputError(f"{word}={value!r}: config says {field}={old!r}: give one of them")
    return changed
