"""Hints at rows that may be no interactions: views, returns, items that nobody clicked."""

from __future__ import annotations

import re
from collections.abc import Sequence

import polars as pl

from recsys.data.column_names import plain_name
from recsys.data.missing import without_missing_words

_KINDS = {
    *("event", "eventtype", "eventname", "action", "actiontype", "interaction", "interactiontype"),
    *("behavior", "behaviour", "behaviortype", "behaviourtype", "activity", "activitytype", "type"),
    *("status", "orderstatus", "itemstatus", "paymentstatus", "financialstatus"),
}
_AMOUNTS = {"quantity", "qty", "orderquantity", "orderqty", "quantityordered", "units"}
_MARKS = {
    *("click", "clicked", "isclick", "isclicked", "like", "liked", "islike", "isliked", "label"),
    *("bought", "purchased", "ispurchase", "ispurchased", "converted", "conversion", "watched"),
}
_PURCHASES = {
    *("purchase", "purchased", "buy", "bought", "transaction", "order", "ordered", "sale", "sold"),
    *("checkout", "payment"),
}
_VIEWS = {
    *("view", "viewed", "click", "clicked", "pv", "pageview", "impression", "detail", "browse"),
    *("productview", "itemview", "seen", "cart", "addtocart"),
}
_UNDONE = {
    *("cancelled", "canceled", "cancel", "returned", "return", "refunded", "refund", "voided"),
    *("removefromcart", "remove", "dislike", "disliked", "unlike", "skip", "skipped"),
}
_FEW_KINDS = 20
_TEXTS = (pl.String, pl.Categorical, pl.Enum)


def hinted_columns(names: Sequence[str]) -> list[str]:
    """Return the columns whose names say that they tell interactions from other rows.

    >>> hinted_columns(["user_id", "Event_Type", "price", "Quantity"])
    ['Event_Type', 'Quantity']
    """
    return [name for name in names if plain_name(name) in _KINDS | _AMOUNTS | _MARKS]


def tells_kinds(dtype: pl.DataType) -> bool:
    """Return whether a column of a type may tell interactions from other rows.

    >>> tells_kinds(pl.Int64()), tells_kinds(pl.List(pl.Int64))
    (True, False)
    """
    return dtype.is_numeric() or isinstance(dtype, (pl.Boolean, *_TEXTS))


def row_hint(values: pl.Series) -> str | None:
    """Return a line on rows that may be no interactions, with a condition that keeps the others.

    >>> print(row_hint(pl.Series("event", ["view", "buy", "view"])))
    column 'event' has view (2), buy (1); to keep purchases alone: --where "event == 'buy'"
    >>> print(row_hint(pl.Series("Quantity", [1, -1, 3])))
    column 'Quantity' is 0 or below in 1 of 3 rows; to leave them out: --where "Quantity > 0"
    >>> row_hint(pl.Series("event", ["buy", "buy"]))
    """
    name = plain_name(values.name)
    if not tells_kinds(values.dtype):
        return None
    if name in _AMOUNTS:
        return _hint_at_amounts(values)
    return _hint_at_marks(values) if name in _MARKS else _hint_at_kinds(values)


def _hint_at_amounts(values: pl.Series) -> str | None:
    numbers = _numbers(values)
    below = 0 if numbers is None else int((numbers <= 0).sum())
    if not 0 < below < len(values):
        return None
    rows = f"{below:,} of {len(values):,} rows"
    kept = _where(values.name, "> 0")
    return f"column {values.name!r} is 0 or below in {rows}; to leave them out: {kept}"


def _hint_at_marks(values: pl.Series) -> str | None:
    numbers = _numbers(values)
    if numbers is None or set(numbers.drop_nulls().unique()) != {0.0, 1.0}:
        return None
    rows = f"{int((numbers == 0).sum()):,} of {len(values):,} rows"
    value = "true" if values.dtype == pl.Boolean else "1"
    kept = _where(values.name, f"= {value}")
    return f"column {values.name!r} is 0 or false in {rows}; to keep the others alone: {kept}"


def _hint_at_kinds(values: pl.Series) -> str | None:
    if not isinstance(values.dtype, _TEXTS):
        return None
    counts = values.cast(pl.String).drop_nulls().value_counts(sort=True).rows()
    if not 1 < len(counts) <= _FEW_KINDS:
        return None
    bought = [value for value, _ in counts if plain_name(value) in _PURCHASES]
    undone = [value for value, _ in counts if plain_name(value) in _UNDONE]
    kinds = ", ".join(f"{value} ({count:,})" for value, count in counts)
    if len(bought) == 1 and any(plain_name(value) in _VIEWS for value, _ in counts):
        kept = _where(values.name, f"== '{bought[0]}'")
        return f"column {values.name!r} has {kinds}; to keep purchases alone: {kept}"
    if undone and len(undone) < len(counts):
        listed = ", ".join(f"'{value}'" for value in undone)
        left = _where(values.name, f"not in ({listed})")
        return f"column {values.name!r} has {kinds}; to leave out {', '.join(undone)}: {left}"
    return None


def _numbers(values: pl.Series) -> pl.Series | None:
    """Return a column as floats; None if it holds other text."""
    found = without_missing_words(values)
    numbers = found.cast(pl.Float64, strict=False)
    return None if numbers.null_count() > found.null_count() else numbers


def _where(name: str, condition: str) -> str:
    """Return the option that keeps the rows for which a condition on a column holds."""
    column = name if re.fullmatch(r"[A-Za-z_]\w*", name) else f'"{name}"'
    text = f"{column} {condition}"
    return f"--where '{text}'" if '"' in text and "'" not in text else f'--where "{text}"'
