"""The condition that chooses the rows of a log: one expression of DuckDB's SQL.

Conditions come from strangers. What DuckDB's own parser finds in one must be columns, constants,
comparisons and functions that compute from their arguments alone: no subquery, no table, no file,
no setting, no clock.
"""

import json
import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from itertools import islice, product
from typing import Any, NamedTuple

import duckdb
import polars as pl

from recsys.data.database import cursor, name, reason, text
from recsys.errors import InputError

_CLASSES = {
    *("COLUMN_REF", "CONSTANT", "COMPARISON", "CONJUNCTION", "OPERATOR", "FUNCTION", "CAST"),
    *("BETWEEN", "CASE", "TYPE"),
}
"""What a condition may consist of, in the words of DuckDB's parser."""
_ORDERS = {f"COMPARE_{order}THAN" for order in ("GREATER", "LESS")}
_ORDERS |= {f"{order}OREQUALTO" for order in _ORDERS} | {"COMPARE_BETWEEN"}
_MOST_CHOICES = 64
_OF_UNITS = frozenset(
    "date_part datepart date_trunc datetrunc date_diff datediff strftime".split()  # noqa: SIM905
)
"""Functions of dates with a word or a form."""
_COMPUTING = _OF_UNITS | frozenset(
    """
    + - * / // % ^ ** || ~~ !~~ ~~* !~~* ~~~ abs sign round floor ceil trunc sqrt exp ln log pow
    power mod greatest least nullif if isnan isinf isfinite lower upper length left right substr
    substring trim ltrim rtrim concat starts_with ends_with prefix suffix contains instr
    strpos position string_split split_part like_escape not_like_escape ilike_escape
    not_ilike_escape regexp_matches regexp_full_match regexp_extract year month day
    hour minute second quarter week weekday dayofweek dayofmonth dayofyear epoch epoch_ms date_add
    last_day dayname monthname make_date make_timestamp to_timestamp strptime try_strptime to_years
    to_months to_weeks to_days to_hours to_minutes to_seconds list_value list_contains list_has
    list_has_any list_has_all list_extract list_element array_length array_contains array_has
    """.split()  # noqa: SIM905 - to be read
)
"""Functions that compute from their arguments alone. `replace` in `replace` could fill memory."""
_ROW = "number of the row"
_READ_TEXT = "BOOLEAN", "DATE", "TIME", "INTERVAL"  # and TIMESTAMP: text beside them is one of them


class NoRowsLeftError(InputError):
    """A condition holds for no row of a log."""

    def __init__(self, where: str, rows: int, origin: str) -> None:
        super().__init__(f"data.where {where!r}: holds for none of the {rows:,} rows of {origin}")


class Condition(NamedTuple):
    """A condition that was found to be harmless."""

    written: str
    sql: str
    columns: tuple[str, ...]
    beside_text: frozenset[str]
    """The columns that it compares with text, so that 007 is not 7."""
    ordered: frozenset[str]
    """The columns that it orders by a number in quotes, which text cannot be: '9' > '10'."""


def _refused(where: str, why: str) -> InputError:
    return InputError(f"data.where {where!r}: {why}")


def parse(where: str, names: Sequence[str], origin: str) -> Condition:
    """Return a condition on the named columns of a table; anything else is an `InputError`.

    >>> parse("price > 5 and kind == 'new'", ["price", "kind"], "log").columns
    ('price', 'kind')
    """
    sql = f"(\n{where}\n)"
    known = f"the columns of {origin} are {', '.join(names)}"
    try:
        with cursor() as connection:
            query = f"select json_serialize_sql({text(f'select {sql}')})"
            tree = json.loads(connection.execute(query).fetchall()[0][0])
        nodes = list(_expressions(tree))
    except RuntimeError as error:  # a RecursionError, or text that is no Unicode
        raise _refused(where, "is too long, or has characters that are none") from error
    if "error_message" in tree:
        why = f"cannot be read as SQL: {reason(tree['error_message'])}; {known}"
        raise _refused(where, why)
    if not _is_one_expression(tree) or any(node["class"] not in _CLASSES for node in nodes):
        raise _refused(
            where, "must be one expression over the columns, without subqueries, windows, stars"
        )
    for node in nodes:
        called = node.get("function_name")
        named = called is None or called in _COMPUTING
        if not named or node.get("schema") or node.get("catalog"):
            raise _refused(where, f"{called} is no function that a condition may call")
    columns = dict.fromkeys(n["column_names"][0] for n in nodes if n["class"] == "COLUMN_REF")
    if unknown := columns.keys() - {*names}:
        why = f"no column {min(unknown)!r} (text stands in single quotes); {known}"
        raise _refused(where, why)
    if "rowid" in map(str.lower, columns):
        raise _refused(where, "rename the column rowid, as which DuckDB numbers rows")
    beside = {pair for node in nodes for pair in _beside_text(node)}
    ordered = frozenset(column for column, by_number in beside if by_number)
    beside_text = frozenset(column for column, _ in beside) - ordered
    return Condition(where, sql, tuple(columns), beside_text, ordered)


def _is_one_expression(tree: Mapping[str, Any]) -> bool:
    """Return whether a query selects one expression of no table, and does nothing else."""
    query = dict(tree["statements"][0]["node"])
    no_table = query.pop("from_table", {}).get("type") == "EMPTY"
    kind, chosen = query.pop("type", None), query.pop("select_list", ())
    clauses = any(query[clause] for clause in query.keys() - {"aggregate_handling", "cte_map"})
    is_select = kind == "SELECT_NODE" and len(tree["statements"]) == len(chosen) == 1
    return is_select and no_table and not clauses


def _expressions(tree: object) -> Iterator[dict[str, Any]]:
    if isinstance(tree, dict):
        if "class" in tree:
            yield tree
        for child in tree.values():
            yield from _expressions(child)
    elif isinstance(tree, list):
        for child in tree:
            yield from _expressions(child)


def _beside_text(node: Mapping[str, Any]) -> list[tuple[str, bool]]:
    """Return the columns that a node compares with text, and whether it orders by a number."""
    if node["class"] in ("CAST", "CASE", "CONJUNCTION") or node.get("function_name") in _OF_UNITS:
        return []
    sides = [value for value in node.values() if isinstance(value, dict)]
    sides += node.get("children") or []
    sides += [argument["expression"] for argument in node.get("arguments") or []]
    literals = [side["literal"] for side in sides if side.get("class") == "CONSTANT"]
    texts = [literal["text"] for literal in literals if literal.get("kind") == "STRING"]
    by_number = node["type"] in _ORDERS and any(re.fullmatch(r" *[+-]?[\d.,]+ *", t) for t in texts)
    columns = [side["column_names"][0] for side in sides if side.get("class") == "COLUMN_REF"]
    return [(column, by_number) for column in columns if texts]


def keep_rows(
    connection: duckdb.DuckDBPyConnection,
    table: str,
    condition: Condition,
    origin: str,
    ids: Collection[str] = (),
) -> int:
    """Delete the rows of a table for which a condition does not hold, and return their number.

    A column of text is what all its values look like, integers, numbers or dates, and text if the
    condition compares it with text or fits nothing else. Where it is unknown, it does not hold.
    In the columns of ``ids``, words such as NULL are missing values. A condition that fits no type
    of its columns, or is neither true nor false, is an `InputError`.
    """
    relation = connection.table(table)
    kinds = dict(zip(relation.columns, map(str, relation.types), strict=True))
    choices = []
    for column in condition.columns:
        looks, plain = name(column), _as_text(name(column), kinds[column])
        beside_text = column in condition.beside_text
        if kinds[column] == "VARCHAR":
            plain = f"{'present' if column in ids else 'stripped'}({name(column)})"
            if not beside_text:
                looks = _looks(connection, table, name(column)) or plain
            if column in condition.ordered and looks == plain:
                raise _refused(condition.written, f"{column} is text, in no order of numbers")
        elif kinds[column] in ("DOUBLE", "FLOAT"):  # NaN is a missing value
            looks = f"nullif({looks}, 'nan')"
        elif kinds[column] == "DATE" and beside_text:  # DuckDB would cut off its time of day
            looks += "::timestamp"
        as_text = beside_text and not kinds[column].startswith(_READ_TEXT)
        either = [plain, looks] if as_text else [looks, plain]
        choices.append([looks] if column in condition.ordered else either)
    failed: list[duckdb.Error] = []
    for chosen in islice(product(*choices), _MOST_CHOICES):
        typed = [f"{sql} as {name(c)}" for c, sql in zip(condition.columns, chosen, strict=True)]
        inner = f"select {', '.join([*typed, f'rowid as {name(_ROW)}'])} from {table}"
        query = f"select {name(_ROW)}, {condition.sql} as holds from ({inner})"
        held = f"select {name(_ROW)} from ({query}) where holds"
        try:
            if str(connection.sql(query).types[1]) not in ("BOOLEAN", '"NULL"'):
                raise _refused(condition.written, f"must be true or false for each row of {origin}")
            dropped = connection.execute(f"delete from {table} where rowid not in ({held})")
            return int(dropped.fetchall()[0][0])
        except duckdb.Error as error:
            failed.append(error)
    raise _refused(condition.written, reason(failed[0])) from failed[0]


def _looks(connection: duckdb.DuckDBPyConnection, table: str, column: str) -> str:
    """Return a column of text as its values look, in SQL; nothing if as text."""
    forms = [f"{rule}(present({column}))" for rule in ("integer_in", "number_in", "date_in")]
    counts = ", ".join(f"count({value})" for value in (f"present({column})", *forms))
    total, *fitting = connection.execute(f"select {counts} from {table}").fetchall()[0]
    return next((f for f, count in zip(forms, fitting, strict=True) if count == total), "")


def keep_where(
    table: pl.DataFrame, where: str, origin: str, names: Sequence[str] = ()
) -> pl.DataFrame:
    """Keep the rows of a frame for which a condition on columns, all or the named ones, holds.

    >>> log = pl.DataFrame({"event": ["view", "purchase", None], "price": ["9.5", "20", "1"]})
    >>> keep_where(log, "event == 'purchase' and price > 9.9", "log").rows()
    [('purchase', '20')]
    """
    condition = parse(where, names or table.columns, origin)
    used = table.select(condition.columns or pl.int_range(pl.len()))
    with cursor() as connection:
        connection.register("given", used.to_arrow())
        connection.execute("create temp table tested as select * from given")
        keep_rows(connection, "tested", condition, origin)
        kept: pl.DataFrame = table[connection.sql("select rowid from tested").fetchnumpy()["rowid"]]
    return kept


def _as_text(sql: str, kind: str) -> str:
    """Return values of a type as text in SQL, in one way: 12.0 is 12, a date at midnight a day."""
    if kind in ("DOUBLE", "FLOAT") or kind.startswith("DECIMAL"):
        return f"regexp_replace({sql}::varchar, '\\.0+$', '')"
    if kind.startswith("TIMESTAMP"):
        return f"regexp_replace({sql}::varchar, ' 00:00:00$', '')"
    return f"{sql}::varchar"
