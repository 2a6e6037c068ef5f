"""The user, item and time column of a log, found by name and type where both leave no doubt."""

from __future__ import annotations

import shlex
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field

import polars as pl

from recsys.config import ROW_ORDER, TIME_IS_NUMBER, Columns
from recsys.data.column_choice import Choice, MoreRows, Sample
from recsys.data.column_names import WORDS, Role, order_columns, possible_columns, standings
from recsys.data.missing import present_values
from recsys.data.plausible import looks_like_rating, looks_like_time, misfit, shown
from recsys.data.text_values import dates_in, numbers_in
from recsys.data.time_format import as_iso, compact_form, fitting_forms, form_hint
from recsys.data.times_of_day import date_parts, joined, refuse_times_of_day
from recsys.errors import InputError, did_you_mean

_LISTED = 20
"""Columns without names that a refusal shows with values."""


@dataclass(frozen=True, slots=True)
class GuessedColumns:
    """The columns of a log, and those of them that nobody named."""

    columns: Columns
    guessed: dict[str, str]
    """The column of each guessed role, by the role's word; empty if nothing had to be guessed.
    Columns that have the default names of their roles do not count."""
    notes: dict[str, str] = field(default_factory=dict)
    """What is to be known of guessed columns, by the role's word: why one with a better name was
    passed over, or a value if the columns have numbers for names."""

    def __str__(self) -> str:
        """Return one line of what was guessed."""
        return ", ".join(
            f"{word} {column!r}" + (f" ({self.notes[word]})" if word in self.notes else "")
            for word, column in self.guessed.items()
        )


def guess_columns(
    rows: pl.DataFrame,
    given: Columns | None = None,
    origin: str = "the log",
    hint: str = "",
    time_format: str | None = None,
    more: MoreRows | None = None,
    tested: Collection[str] = (),
) -> GuessedColumns:
    """Find the user, item and time column of a log by name and type.

    A column that is given is taken. Else one is taken that has the default name of the role, or a
    known name and a type that fits, if its values leave no doubt (`doubt_about`) and no other one
    is as good. If there are doubts about all, the best name is taken, unless its doubt is grave.

    Files without a header, with columns 1, 2, …, are user, item and time, or user, item, rating and
    time, if only the last one looks like a time and the third has ratings.

    Args:
        rows: the first rows of the log, with all of its columns.
        given: the columns that are known; unset fields are guessed.
        origin: the name of the log in messages.
        hint: what a refusal adds.
        time_format: the form of times, as in the settings; ISO 8601 if None.
        more: reads more rows of a column; None if there are none.
        tested: columns that a condition reads, which may leave out rows without a value.

    Raises:
        InputError: a given column is missing; no column fits a role, or several do.

    >>> rows = pl.DataFrame({"CustomerID": [7], "sku": ["A"], "ts": [3], "price": [1.5]})
    >>> print(guess_columns(rows))
    user 'CustomerID', item 'sku', time 'ts'
    """
    known = {} if given is None else given.model_dump(exclude_unset=True)
    _refuse_unknown(known, rows, origin, hint)
    if time_format not in (None, TIME_IS_NUMBER):
        rows = rows.select(as_iso(column, time_format) for column in rows)
    if rows.width:
        rows = rows.filter(~pl.all_horizontal(pl.all().is_null()))  # blank lines
    sample = Sample(rows, more, tested)
    found: dict[str, str] = {}
    doubted: dict[Role, Choice] = {}
    notes: dict[str, str] = {}
    by_position = _by_position(rows)
    for role in WORDS:
        if role in known:
            continue
        taken = {name for other, name in (known | found).items() if other != "position"}
        placed = [name for name in by_position.get(role, ()) if name not in taken]
        choice = Choice(placed) if placed else sample.choose(role, taken)
        if len(choice.columns) != 1:
            doubted[role] = choice
            continue
        found[role] = name = choice.columns[0]
        if name != role and (note := _note(name, choice, rows)):
            notes[WORDS[role]] = note
    time = found.get("timestamp")
    if time is not None and time_format != TIME_IS_NUMBER:
        refuse_times_of_day(rows, time, origin)
        if time in (parts := date_parts(rows)):
            raise InputError(f"{origin}: {time} is no time of its own: {joined(parts)}")
    if doubted:
        raise InputError(f"{origin}: {_refusal(rows, doubted)}{hint}")
    guessed = {WORDS[role]: found[role] for role in WORDS if found.get(role, role) != role}
    return GuessedColumns((given or Columns()).model_copy(update=found), guessed, notes)


def _refuse_unknown(
    given: Mapping[str, str | None], rows: pl.DataFrame, origin: str, hint: str
) -> None:
    """Refuse columns that the log does not have.

    Raises:
        InputError: a column is missing.
    """
    for role, name in given.items():
        if name and name not in rows.columns and (role, name) != ("timestamp", ROW_ORDER):
            near = hint or did_you_mean(name, rows.columns)
            raise InputError(f"{origin}: no column {name!r} among {', '.join(rows.columns)}{near}")


def _by_position(rows: pl.DataFrame) -> dict[Role, list[str]]:
    """Return the columns of a file without a header, if their types leave no doubt."""
    names = rows.columns
    if not _lack_names(rows) or len(names) not in (3, 4):
        return {}
    ids = all(misfit("user_id", rows[name]) is None for name in names[:2])
    if not ids or _likely_times(rows) != names[-1:] or _third_is_no_rating(rows):
        return {}
    return {"user_id": names[:1], "item_id": names[1:2], "timestamp": names[-1:]}


def _lack_names(rows: pl.DataFrame) -> bool:
    """Return whether columns are called 1, 2, … since a file has no header."""
    return rows.columns == [str(number) for number in range(1, rows.width + 1)]


def _likely_times(rows: pl.DataFrame) -> list[str]:
    """Return the columns whose values look like times; epochs only if columns lack names.

    Dates of another form than ISO 8601 only count where no others do: ids such as 1-2-2024 have it.
    """
    lack = _lack_names(rows)
    found = [column for column in rows if looks_like_time(column)]
    found = [column for column in found if not fitting_forms(column)] or found
    return [
        column.name
        for column in found
        if lack or not column.dtype.is_numeric() or compact_form(column) is not None
    ]


def _third_is_no_rating(rows: pl.DataFrame) -> bool:
    return _lack_names(rows) and rows.width == 4 and not looks_like_rating(rows["3"])


def _note(name: str, choice: Choice, rows: pl.DataFrame) -> str:
    """Return what is to be known of a guessed column."""
    if name.isdigit():
        return f"such as {shown(rows[name][0])}"
    return "; ".join(f"{other} {doubt.reason}" for other, doubt in choice.doubts.items())


def _named(role: Role, rows: pl.DataFrame) -> list[str]:
    """Return the columns that have a name of the role, whatever they hold."""
    return [name for alike in standings(role, rows.columns) for name in alike]


def _refusal(rows: pl.DataFrame, doubted: Mapping[Role, Choice]) -> str:
    options = ", ".join(f"--{WORDS[role]}" for role in doubted)
    words = ", ".join(f"{WORDS[role]}=" for role in doubted)
    questions = "; ".join(_question(role, choice, rows) for role, choice in doubted.items())
    return (
        f"cannot tell {questions}; its columns are {', '.join(_listed(rows))}: "
        f"name them with {options} (in Python {words}){''.join(_hints(rows, doubted))}"
    )


def _question(role: Role, choice: Choice, rows: pl.DataFrame) -> str:
    """Return which column is in doubt, and why."""
    question = f"which column is the {WORDS[role]}"
    if choice.columns:
        return f"{question}, {' or '.join(choice.columns)}"
    reasons = [f"{name} {doubt.reason}" for name, doubt in choice.doubts.items()]
    if reasons:
        name = shlex.quote(next(iter(choice.doubts)))
        reasons[-1] += f"; --{WORDS[role]} {name} takes it all the same"
    named = [name for name in _named(role, rows) if name not in choice.doubts]
    wrong = (_complaint(role, rows[name]) for name in named)
    reasons += [complaint for complaint in wrong if complaint]
    return question + (f" ({', '.join(reasons)})" if reasons else "")


def _complaint(role: Role, values: pl.Series) -> str:
    """Return why a column is not that of a role, with a value that shows it; empty if it fits."""
    why = misfit(role, values)
    if why is None:
        return ""
    text = f"{values.name} has {why}"
    values = present_values(values)
    if role == "timestamp" and values.dtype == pl.String:
        dates = dates_in(values).is_not_null()
        neither = values.filter(~dates & numbers_in(values).is_null())
        if neither.is_empty():
            examples = (shown(values.filter(chosen)[0]) for chosen in (dates, ~dates))
            return f"{values.name} has both dates and numbers: {' and '.join(examples)}"
        values = neither
        text += form_hint(values)
    return f"{text}: {shown(values[0])}" if len(values) else text


def _listed(rows: pl.DataFrame) -> Iterator[str]:
    """Yield the columns, with a value each if their names are numbers."""
    for number, name in enumerate(rows.columns):
        known = rows[name].drop_nulls()
        numbered = name.isdigit() and number < _LISTED and len(known) > 0
        yield f"{name} (such as {shown(known[0])})" if numbered else name


def _hints(rows: pl.DataFrame, doubted: Mapping[Role, Choice]) -> Iterator[str]:
    """Yield what may help to name the columns."""
    nested = [column.name for column in rows if column.dtype.is_nested()]
    if nested and "item_id" in doubted:
        yield f"; {nested[0]} is nested: a log has a row for each interaction"
    if _third_is_no_rating(rows) and _likely_times(rows) == ["4"]:
        yield "; four columns are user, item, rating and time if the third has ratings"
    for role, choice in doubted.items():
        unknown = not (choice.columns or choice.doubts or _named(role, rows) or nested)
        if unknown and (possible := possible_columns(role, rows.columns)):
            name = shlex.quote(possible[0])
            yield f"; if {name} tells the {WORDS[role]}s, --{WORDS[role]} {name} takes it"
    if "timestamp" in doubted and not doubted["timestamp"].columns:
        yield _hint_at_times(rows)


def _hint_at_times(rows: pl.DataFrame) -> str:
    """Return what may be the time, or its parts, or its order; empty if nothing may."""
    if parts := date_parts(rows):
        return f"; {joined(parts)}"
    if times := _likely_times(rows):
        return f"; {' and '.join(times)} may be times"
    if orders := [name for name in order_columns(rows.columns) if _has_numbers(rows[name])]:
        name = shlex.quote(orders[0])
        return f"; if {name} is in order of time, --time {name} takes it for the time"
    if numbering := [column.name for column in rows if _numbers_rows(column)]:
        name = shlex.quote(numbering[0])
        return f"; {name} numbers the rows: if they are in order of time, --time {name} takes it"
    if _named("timestamp", rows):
        return ""
    return f"; if its rows are in order of time, --time {ROW_ORDER} takes their order"


def _numbers_rows(values: pl.Series) -> bool:
    return values.dtype.is_integer() and len(values) > 1 and bool((values.diff()[1:] == 1).all())


def _has_numbers(values: pl.Series) -> bool:
    return values.dtype.is_numeric() and values.null_count() < len(values)
