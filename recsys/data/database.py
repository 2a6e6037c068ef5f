"""DuckDB as this library uses it: closed to the outside, in UTC, with the rules for text as macros.

Conditions come from strangers (a file of settings, a request). So a database reads the paths of its
log alone, loads no extension, and its settings are locked.
"""

import errno
import glob
import os
import re
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import cache
from pathlib import Path
from typing import Any, cast

import duckdb
import polars as pl
from pydantic import ByteSize, TypeAdapter, ValidationError

from recsys.errors import InputError, one_line
from recsys.machine import usable_processors

MISSING_WORDS = (
    *("", "NULL", "Null", "null", "NA", "N/A", "n/a", "#N/A", "<NA>"),
    *("None", "NaN", "nan", "-nan", "NaT", r"\N", "undefined", "(not set)"),
)
"""The words that stand for a missing id or time, as pandas, databases and trackers write them."""
PLAIN_INTEGER = "0|-?[1-9][0-9]{0,17}"
"""Text that is an integer of 64 bits; 007 is none."""
WHOLE_TEXT = rf"{PLAIN_INTEGER}|-?[0-9]{{1,15}}\.0"
"""A whole number, also as pandas writes it where some are missing in the column: 7.0."""
WHOLE = {"TINYINT", "SMALLINT", "INTEGER", "BIGINT", "HUGEINT"}
WHOLE |= {"UTINYINT", "USMALLINT", "UINTEGER", "UBIGINT", "UHUGEINT"}
"""The types of integers."""
_BLANKS = "".join(filter(str.isspace, map(chr, range(0x3001))))
_CODES = ", ".join(str(ord(blank)) for blank in _BLANKS)
_BEGINNINGS = f"{_CODES}, -1, " + ", ".join({str(ord(word[0])) for word in MISSING_WORDS if word})
_LEAST_MEMORY, _PER_THREAD = 1 << 27, 1 << 26
_CLOSED = {
    "autoinstall_known_extensions": "false",
    "autoload_known_extensions": "false",
    "python_enable_replacements": "false",  # a name is never a variable of Python
    "preserve_insertion_order": "true",  # ties are broken by the order of the rows
}


def name(column: str) -> str:
    """Return the name of a column in SQL."""
    return '"' + column.replace('"', '""') + '"'


def text(value: object) -> str:
    """Return text in SQL."""
    return "'" + str(value).replace("'", "''") + "'"


def texts(values: Iterable[object]) -> str:
    """Return a list of texts in SQL, in brackets."""
    return "[" + ", ".join(map(text, values)) + "]"


def patterns(paths: Iterable[Path], *more: Path) -> str:
    """Return paths in SQL as DuckDB's functions read them, to which log[1].csv is a pattern."""
    return texts([*(glob.escape(str(path.absolute())) for path in paths), *more])


def check_names(names: Iterable[str], origin: str) -> None:
    """Refuse names that are one in SQL, where case does not count, and patterns of polars."""
    known: dict[str, str] = {}
    for column in names:
        if column.startswith("^") and column.endswith("$"):
            raise InputError(f"{origin}: column {column!r}: rename it: it would mean many columns")
        if (other := known.get(column.lower())) is not None:
            same = f"{column!r}" if other == column else f"{other!r} and {column!r}"
            raise InputError(f"{origin}: two columns are named {same}")
        known[column.lower()] = column


_ISO = (
    r"\d{4}-\d{1,2}-\d{1,2}(?:(?:T| +)\d{1,2}:\d{2}(?::\d{2}(?:[.,]\d+)?)?"
    r"(?: *(?:Z|UTC|GMT|[+-]\d{2}(?::?\d{2})?))?)?"
)
"""Times of ISO 8601, as databases write them too. DuckDB's own cast also takes other texts."""
_NUMBER = r"[+-]?(?:(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:e[+-]?[0-9]+)?|inf|infinity|nan)"

MACROS = {
    # To trim other characters than the space takes a microsecond, to see that there are none .1.
    "stripped(t)": f"case when unicode(t) in ({_CODES}) or unicode(right(t, 1)) in ({_CODES}) "
    f"then trim(t, {text(_BLANKS)}) else t end",
    # Seventeen words are looked for only where a text begins as one of them, with a blank, or not.
    "present(t)": f"case when unicode(t) not in ({_BEGINNINGS}) then stripped(t) "
    f"when stripped(t) not in ({', '.join(map(text, MISSING_WORDS))}) then stripped(t) end",
    # Null if missing.
    "is_whole(t)": f"case when regexp_full_match(t, {text(WHOLE_TEXT)}) then true "
    f"else regexp_full_match(present(t), {text(WHOLE_TEXT)}) end",
    "whole_in(t)": f"coalesce(try_cast(t as bigint), try_cast(trim(t, {text(_BLANKS)}) as bigint))",
    "integer_in(t)": f"case when regexp_full_match(t, {text('[+-]?[0-9]+')}) "
    "then try_cast(t as bigint) end",
    "number_in(t)": f"case when regexp_full_match(t, {text(_NUMBER)}, 'i') "
    "then try_cast(t as double) end",
    # DuckDB reads neither decimal commas nor blanks before a zone, nor 03:04UTC.
    "date_in(t)": f"case when regexp_full_match(t, {text(_ISO)}) then try_cast(regexp_replace("
    "replace(replace(replace(t, ',', '.'), 'UTC', 'Z'), 'GMT', 'Z'), "
    r"' +([-+Z])', '\1') as timestamptz) at time zone 'UTC' end",
    # // rounds to zero
    "floored(n, units)": "(n - (n % units + units) % units) // units",
}
"""The rules for text, by name and argument, in SQL: dates are timestamps in UTC."""


def database(
    paths: Sequence[Path] = (),
    work: Path | None = None,
    memory: int | None = None,
    *,
    is_small: bool = False,
) -> duckdb.DuckDBPyConnection:
    """Return a database in memory that reads ``paths`` alone and spills to the folder ``work``.

    ``memory`` is the bytes that its tables may take; for a small one, one thread is enough.
    """
    threads = 1 if is_small else usable_processors()
    config: dict[str, Any] = dict(_CLOSED)
    if memory is not None:
        memory = max(memory, _LEAST_MEMORY)
        threads = max(1, min(threads, memory // _PER_THREAD // 2))
        config["memory_limit"] = f"{memory}B"
    base = duckdb.connect(config=config | {"threads": str(threads)})
    allowed = [path.resolve() for path in paths]
    folders = [*(path for path in allowed if path.is_dir()), *([work] if work else [])]
    files = [path for path in allowed if not path.is_dir()]
    base.execute("set global TimeZone = 'UTC'")
    with suppress(duckdb.Error):  # a notebook without ipywidgets has no bar, and refuses
        base.execute("set enable_progress_bar = false")
    base.execute(f"set temp_directory = {text(work / 'spilled' if work else '')}")
    base.execute(f"set allowed_directories = {patterns(folders, *folders)}")
    base.execute(f"set allowed_paths = {patterns(paths, *files)}")
    base.execute("set enable_external_access = false")
    base.execute("set lock_configuration = true")
    for macro, rule in MACROS.items():
        base.execute(f"create macro {macro} as {rule}")
    return base


@cache
def _shared() -> duckdb.DuckDBPyConnection:
    return database(is_small=True)


def cursor() -> duckdb.DuckDBPyConnection:
    """Return a connection to a shared database that reads no path; its tables must be temporary.

    A database takes 50 ms to make and to leave, and a connection to one that is there nothing.
    """
    return _shared().cursor()


def computed(values: pl.Series, expression: str) -> pl.Series:
    """Return a SQL expression of each value, which is called ``v``, in their order."""
    with cursor() as connection:
        connection.register("given", pl.DataFrame({"v": values}).to_arrow())
        found = connection.sql(f"select {expression} as v from given").to_arrow_table()
    return cast("pl.DataFrame", pl.from_arrow(found))["v"].alias(values.name)


def reason(said: object) -> str:
    """Return what an error of DuckDB says, without its kind and its advice on settings."""
    said = re.split(r"\n\n|Possible (?:fixes|Solution)|LINE 1|\n  file = ", str(said))[0]
    kind, colon, rest = said.partition(" Error: ")
    return one_line(rest if colon and "\n" not in kind and len(kind) < 40 else said, 500)


@contextmanager
def in_one_line(
    origin: str, what: str = "cannot be prepared", *others: type[Exception]
) -> Iterator[None]:
    """Make one line of what goes wrong in DuckDB, or of other errors: the file, what, and why."""
    errors: tuple[type[Exception], ...] = (duckdb.Error, *others)
    try:
        yield
    except errors as error:
        said = str(error)
        file = re.search(r"^  file = (.*)$", said, re.MULTILINE)
        place = file[1] if file and "/decoded-" not in file[1] else origin
        message = f"{place}: {what}: {reason(said)}"
        if os.strerror(errno.ENOSPC) in said or "max_temp_directory_size" in said:
            message = f"{origin}: cannot be prepared: the disk is full"
        elif isinstance(error, duckdb.OutOfMemoryException):
            message = (
                f"{origin}: cannot be prepared in the memory that it may take: allow more with "
                "--memory (in Python memory=)"
            )
        elif "not utf-8" in said or "Invalid unicode" in said:
            line = re.search(r"CSV Error on Line: (\d+)", said)
            number = f", in line {line[1]}" if line else ""
            message = (
                f"{place}: is neither UTF-8 nor UTF-16 text{number}: convert it to UTF-8, or "
                "prepare the log with --encoding, such as cp1252 (in Python encoding=)"
            )
        raise InputError(message) from error


# --- Memory ---------------------------------------------------------------------------------------

_LIMITS = ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory/memory.limit_in_bytes")
"""The limit of a container, of the two versions of control groups."""
_GIB = 1 << 30


def memory_limit() -> int:
    """Return the bytes of memory of this machine, or of the container that limits it."""
    limit = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    for file in _LIMITS:
        with suppress(OSError, ValueError):  # no such limit, or the word max
            limit = min(limit, int(Path(file).read_text(encoding="ascii")))
    return limit


def check_memory(needed: int, purpose: str, remedy: str, gpu_memory: int | None = None) -> None:
    """Refuse what needs more bytes than half of the memory, which the work itself needs too.

    ``purpose`` is in the plural; ``gpu_memory`` is the bytes that are free on the GPU, if it is the
    memory.
    """
    limit = memory_limit() if gpu_memory is None else gpu_memory
    if needed > limit // 2:
        raise InputError(
            f"{purpose} need {needed / _GIB:,.1f} GiB of memory, more than half of the "
            f"{limit / _GIB:,.1f} {'there are' if gpu_memory is None else 'free on the GPU'}: "
            f"{remedy}"
        )


def memory_setting(memory: int | str | None) -> int:
    """Return the bytes that a setting such as "4GiB" allows; half of the memory if None.

    >>> memory_setting("1.5 GiB"), memory_setting("200MB"), memory_setting(1000)
    (1610612736, 200000000, 1000)
    """
    if memory is None:
        return memory_limit() // 2
    with suppress(ValidationError):
        if (size := TypeAdapter(ByteSize).validate_python(memory)) > 0:
            return int(size)
    raise InputError(f"memory: must be a number of bytes such as 4GiB or 500MB, not {memory!r}")


# --- The same rules for frames --------------------------------------------------------------------


def dates_in(values: pl.Series) -> pl.Series:
    """Parse ISO 8601 text as UTC date-times, null if invalid; times without a zone are UTC.

    >>> dates_in(pl.Series(["2024-01-02 03:04", "15-03-24"])).dt.hour().to_list()
    [3, None]
    """
    return computed(values, "date_in(v)").cast(pl.Datetime("us"))


def numbers_in(values: pl.Series) -> pl.Series:
    """Parse text as int64 if all of it is, else as float64; null if invalid."""
    integers = computed(values, "integer_in(v)").cast(pl.Int64)
    if integers.null_count() > values.null_count():
        return computed(values, "number_in(v)").cast(pl.Float64)
    return integers


def present(values: pl.Series) -> pl.Series:
    """Return values that are not missing; see `with_nulls`."""
    return with_nulls(values).drop_nulls()


def with_nulls(values: pl.Series) -> pl.Series:
    """Strip blanks around text, and make words for missing values, and NaN, null.

    >>> with_nulls(pl.Series(["  u1 ", "NULL", " ", "nano", None])).to_list()
    ['u1', None, None, 'nano', None]
    """
    if values.dtype in (pl.Categorical, pl.Enum):
        values = values.cast(pl.String)
    if values.dtype.is_float():
        return values.fill_nan(None)
    if values.dtype != pl.String:
        return values
    return values.str.strip_chars().replace(dict.fromkeys(MISSING_WORDS))
