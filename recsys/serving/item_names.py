"""The columns of an item table that name its items for people."""

from __future__ import annotations

import polars as pl

from recsys.data.column_names import plain_name

_NAMES = (
    *("itemname", "itemtitle", "productname", "producttitle", "prodname", "articlename"),
    *("movietitle", "moviename", "booktitle", "bookname", "songname", "trackname", "description"),
)
"""Names of such columns, without case, blanks and marks."""
_LONGEST = 80
"""Letters of a name, on average."""


def name_columns(item_table: pl.DataFrame) -> list[str]:
    """Return the columns name, title or both; else one such as product_name, if there is one.

    >>> name_columns(pl.DataFrame({"item_id": [7], "product_name": ["Tea"], "description": ["x"]}))
    ['product_name']
    """
    columns = {plain_name(name): name for name in item_table.columns}
    exact = [columns[name] for name in ("name", "title") if name in columns]
    others = [columns[name] for name in _NAMES if name in columns]
    return exact or [name for name in others if _is_short_text(item_table[name])][:1]


def _is_short_text(column: pl.Series) -> bool:
    """Return whether a column may name items: no lists, and no texts of several sentences."""
    if column.dtype != pl.String:
        return False
    letters = column.str.len_chars().drop_nulls().to_numpy()
    return len(letters) > 0 and float(letters.mean()) <= _LONGEST
