"""The user, item and time column of a log, found by name and type where both leave no doubt."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Literal

import polars as pl

from recsys.config import Columns
from recsys.data.log_columns import dates_in, numbers_in
from recsys.data.missing import without_missing_words
from recsys.data.time_format import as_iso, form_hint
from recsys.data.times_of_day import refuse_times_of_day
from recsys.errors import InputError, did_you_mean

Role = Literal["user_id", "item_id", "timestamp"]

WORDS: dict[Role, str] = {"user_id": "user", "item_id": "item", "timestamp": "time"}
"""The word of each role: --user, --item and --time, and the same in Python."""

# A name is compared without case, blanks and marks: CustomerID is customerid. Each line is a
# standing: two columns of one standing are a doubt, and an earlier line wins over a later one.
_NAMES: dict[Role, tuple[str, ...]] = {
    "user_id": (
        (
            "userid customerid visitorid clientid memberid uid buyerid shopperid viewerid readerid "
            "listenerid subscriberid consumerid guestid playerid learnerid patronid householdid "
            "usercode customercode customernumber customerno custid customerkey userkey reviewerid "
            "msno kundenid kundennr kundennummer nutzerid benutzerid idclient clienteid idcliente "
            "usuarioid idusuario utilisateurid idutilisateur utenteid idutente"
        ),
        (
            "user customer visitor client member buyer shopper viewer reader listener subscriber "
            "consumer guest player learner household householdkey username reviewer "
            "kunde nutzer benutzer cliente usuario utilisateur utente"
        ),
        "fullvisitorid userpseudoid accountid",
        "sessionid session",
    ),
    "item_id": (
        (
            "itemid productid movieid trackid articleid sku skuid asin stockcode isbn isbn10 "
            "isbn13 songid bookid videoid filmid gameid appid newsid recipeid contentid showid "
            "courseid postid podcastid goodsid materialid itemcode productcode articlecode "
            "itemnumber productnumber itemno ean gtin upc placeid poiid venueid businessid "
            "artikelid artikelnr artikelnummer produktid produktnr produktnummer productoid "
            "idproducto produitid idproduit prodottoid idprodotto produtoid idproduto articuloid "
            "idarticulo animeid mangaid gmapid"
        ),
        (
            "item product movie track article song book video film game app recipe show course "
            "goods artikel produkt producto produit prodotto produto articulo"
        ),
        "parentasin aid",
    ),
    "timestamp": (
        (
            "timestamp ts eventtime eventtimestamp datetime unixtime unixtimestamp createdat "
            "boughtat purchasedat orderedat viewedat playedat watchedat ratedat listenedat readat "
            "clickedat occurredat happenedat purchasetime ordertime invoicedatetime orderdatetime "
            "transactiontime transactiontimestamp clicktime reviewtime unixreviewtime ratingtime "
            "transactiondt dateadded timestampms timestampus timestampns epoch zeitstempel "
            "zeitpunkt eventts utctimestamp timems timeus"
        ),
        (
            "invoicedate orderdate purchasedate transactiondate eventdate date time tdat "
            "ratingdate reviewdate orderpurchasetimestamp datum bestelldatum kaufdatum "
            "rechnungsdatum dateachat datecommande fecha fechacompra"
        ),
    ),
}

_FIRST_UNIX_TIME = 100_000_000
"""Numbers from here on, early 1973 in seconds, look like a time in a file without a header."""


@dataclass(frozen=True, slots=True)
class GuessedColumns:
    """The columns of a log, and those of them that nobody named."""

    columns: Columns
    guessed: dict[str, str]
    """The column of each guessed role, by the role's word; empty if nothing had to be guessed.
    Columns that have the default names of their roles do not count."""
    examples: dict[str, object] = field(default_factory=dict)
    """A value of each guessed column, by the role's word, if the columns have numbers for names."""

    def __str__(self) -> str:
        """Return one line of what was guessed."""
        return ", ".join(
            f"{word} {column!r}"
            + (f" (such as {self.examples[word]!r})" if word in self.examples else "")
            for word, column in self.guessed.items()
        )


def guess_columns(
    sample: pl.DataFrame,
    given: Columns | None = None,
    origin: str = "the log",
    hint: str = "",
    time_format: str | None = None,
) -> GuessedColumns:
    """Find the user, item and time column of a log by name and type.

    A column that is given, or has the default name of its role and values, is taken. Else a column
    is taken if its name is a known name of the role, its type and the values of the sample fit, and
    no other column is as good. Files without a header, with columns 1, 2, …, are user, item and
    time, or user, item, rating and time, if only the last one looks like a time.

    Args:
        sample: the first rows of the log, with all of its columns.
        given: the columns that are known; unset fields are guessed.
        origin: the name of the log in messages.
        hint: what a refusal adds.
        time_format: the form of times that are text, in the codes of strftime; ISO 8601 if None.

    Raises:
        InputError: a given column is missing; no column fits a role, or several do.

    >>> sample = pl.DataFrame({"CustomerID": [7], "sku": ["A"], "ts": [3], "price": [1.5]})
    >>> print(guess_columns(sample))
    user 'CustomerID', item 'sku', time 'ts'
    """
    known = {} if given is None else given.model_dump(exclude_unset=True)
    for name in filter(None, known.values()):
        if name not in sample.columns:
            near = hint or did_you_mean(name, sample.columns)
            raise InputError(
                f"{origin}: no column {name!r} among {', '.join(sample.columns)}{near}"
            )
    if time_format is not None:
        sample = sample.select(as_iso(column, time_format) for column in sample)
    found: dict[str, str] = {}
    doubts: list[Role] = []
    by_position = _by_position(sample)
    for role in WORDS:
        if role in known:
            continue
        taken = {name for other, name in (known | found).items() if other != "position"}
        candidates = [name for name in _candidates(role, sample) if name not in taken]
        candidates = candidates or [name for name in by_position.get(role, ()) if name not in taken]
        if len(candidates) == 1:
            found[role] = candidates[0]
            if role == "timestamp":
                refuse_times_of_day(sample, candidates[0], origin)
        else:
            doubts.append(role)
    if doubts:
        raise InputError(f"{origin}: {_refusal(sample, doubts)}{hint}")
    guessed = {WORDS[role]: found[role] for role in WORDS if found.get(role, role) != role}
    columns = (given or Columns()).model_copy(update=found)
    examples = {word: sample[name][0] for word, name in guessed.items() if name.isdigit()}
    return GuessedColumns(columns, guessed, examples)


def _candidates(role: Role, sample: pl.DataFrame) -> list[str]:
    """Return the best columns of a role: one, several of equal standing, or none."""
    default: list[str] = [role] if role in sample.columns else []
    if default and not _is_missing(sample[role]):
        return default
    missing = default
    for names in _NAMES[role]:
        alike = [name for name in sample.columns if plain_name(name) in names.split()]
        fitting = [name for name in alike if _misfit(role, sample[name]) is None]
        if filled := [name for name in fitting if not _is_missing(sample[name])]:
            return [*default, *filled]  # empty where the sample was drawn: who knows
        missing = missing or fitting
    return missing


def _named(role: Role, sample: pl.DataFrame) -> list[str]:
    """Return the columns that have a name of the role, whatever they hold."""
    known = {name for names in _NAMES[role] for name in names.split()}
    return [name for name in sample.columns if plain_name(name) in known]


def plain_name(name: str) -> str:
    """Return the name of a column without case, blanks and marks."""
    return re.sub(r"[\W_]", "", name.lower())


def _misfit(role: Role, values: pl.Series) -> str | None:
    """Return what a column of the role must not hold, or None if its values fit."""
    values = without_missing_words(values).drop_nulls()
    if values.is_empty():
        return None
    if role == "timestamp":
        return None if _is_time(values) else "neither numbers nor ISO 8601 dates"
    if values.dtype == pl.String or values.dtype.is_integer():
        return None
    if values.dtype.is_numeric() and (values.cast(pl.Float64) % 1 == 0).all():
        return None
    return "neither integers nor text"


def _is_missing(values: pl.Series) -> bool:
    return without_missing_words(values).null_count() == len(values)


def _is_time(values: pl.Series) -> bool:
    if values.dtype == pl.String:
        return not min(numbers_in(values).null_count(), dates_in(values).null_count())
    return values.dtype.is_numeric() or values.dtype in (pl.Date, pl.Datetime)


def _by_position(sample: pl.DataFrame) -> dict[Role, list[str]]:
    """Return the columns of a file without a header, if their types leave no doubt."""
    names = sample.columns
    if names not in (["1", "2", "3"], ["1", "2", "3", "4"]):
        return {}
    times = [name for name in names if _looks_like_time(sample[name])]
    ids = all(_misfit("user_id", sample[name]) is None for name in names[:2])
    if times != names[-1:] or not ids:
        return {}
    return {"user_id": names[:1], "item_id": names[1:2], "timestamp": times}


def _looks_like_time(values: pl.Series) -> bool:
    values = without_missing_words(values).drop_nulls()
    if values.is_empty() or not _is_time(values):
        return False
    if values.dtype == pl.String:
        values = numbers_in(values)
        if values.null_count():
            return True  # dates
    if values.dtype.is_numeric():
        return bool((values >= _FIRST_UNIX_TIME).all())
    return True


def _refusal(sample: pl.DataFrame, doubts: Sequence[Role]) -> str:
    options = ", ".join(f"--{WORDS[role]}" for role in doubts)
    words = ", ".join(f"{WORDS[role]}=" for role in doubts)
    text = (
        f"cannot tell {'; '.join(_doubts(sample, doubts))}; its columns are "
        f"{', '.join(sample.columns)}: name them with {options} (in Python {words})"
    )
    nested = [column.name for column in sample if column.dtype.is_nested()]
    if nested and "item_id" in doubts:
        text += f"; {nested[0]} is nested: a log has a row for each interaction"
    dated = [name for name in sample.columns if not sample[name].dtype.is_numeric()]
    times = [name for name in dated if _looks_like_time(sample[name])]
    if "timestamp" in doubts and times and not _candidates("timestamp", sample):
        text += f"; {' and '.join(times)} may be times"
    elif "timestamp" in doubts and not _named("timestamp", sample):
        text += "; if its rows are in order of time, add a column that numbers them"
    return text


def _doubts(sample: pl.DataFrame, doubts: Sequence[Role]) -> Iterator[str]:
    for role in doubts:
        question = f"which column is the {WORDS[role]}"
        if several := _candidates(role, sample):
            yield f"{question}, {' or '.join(several)}"
            continue
        alike = _named(role, sample)
        wrong = [_complaint(role, sample[name]) for name in alike]
        yield question + (f" ({', '.join(wrong)})" if wrong else "")


def _complaint(role: Role, values: pl.Series) -> str:
    """Return why a column is not that of a role, with a value that shows it."""
    text = f"{values.name} has {_misfit(role, values)}"
    values = values.drop_nulls()
    if role == "timestamp" and values.dtype == pl.String:
        values = values.filter(dates_in(values).is_null() & numbers_in(values).is_null())
        text += form_hint(values)
    return f"{text}: {values[0]!r}" if len(values) else text
