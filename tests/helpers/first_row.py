"""A row of a log for its header."""

from __future__ import annotations

import re
from typing import Any

import polars as pl


def first_row(header: str) -> pl.DataFrame:
    r"""A row with 7 in each column, or the value that follows a name; "\\," is a comma in it."""
    fields = (field.replace("\\", "").partition("=") for field in re.split(r"(?<!\\),", header))
    values: dict[str, Any] = {name: value if given else 7 for name, given, value in fields}
    return pl.DataFrame({name: [value] for name, value in values.items()})
