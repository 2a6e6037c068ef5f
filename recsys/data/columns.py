"""Which column of a log is the user, the item and the time: by name, where it leaves no doubt."""

from __future__ import annotations

import re
import shlex
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Literal

import polars as pl

from recsys.config import ROW_ORDER, TIME_IS_NUMBER, Columns
from recsys.data.database import dates_in, numbers_in, present
from recsys.data.times import as_iso, compact_form, fitting_forms, form_hint, holds_days, is_clock
from recsys.errors import InputError, did_you_mean

Role = Literal["user_id", "item_id", "timestamp"]

WORDS: dict[Role, str] = {"user_id": "user", "item_id": "item", "timestamp": "time"}
"""The word of each role: --user, --item and --time, and the same in Python."""

# A name is compared without case, blanks and marks: CustomerID is customerid. Each line is a
# standing: two columns of one standing are a doubt, and an earlier line wins over a later one.
_NAMES: dict[Role, tuple[str, ...]] = {
    "user_id": (
        # At Olist, customer_id is new in every order.
        "customeruniqueid uniquecustomerid useruniqueid uniqueuserid",
        (
            "userid customerid visitorid clientid memberid uid buyerid shopperid viewerid readerid "
            "listenerid subscriberid consumerid guestid playerid learnerid patronid householdid "
            "usercode customercode customernumber customerno custid customerkey userkey reviewerid "
            "msno kundenid kundennr kundennummer nutzerid benutzerid idclient clienteid idcliente "
            "usuarioid idusuario utilisateurid idutilisateur utenteid idutente personid "
            "membernumber custcode custkey idcustomer iduser steamid authorsteamid msisdn kunnr "
            "reviewuserid gplususerid useridhash useruid"
        ),
        (
            "user customer visitor client member buyer shopper viewer reader listener subscriber "
            "consumer guest player learner household householdkey username reviewer "
            "kunde nutzer benutzer cliente usuario utilisateur utente person customername "
            "profilename reviewprofilename buyerusername"
        ),
        (
            "fullvisitorid userpseudoid accountid domainuserid anonymousid distinctid amplitudeid "
            "idvisitor cookieid profileid cardid loyaltyid loyaltycardid loyaltycardnumber "
            "lyltycardnbr"
        ),
        "email useremail customeremail emailaddress buyeremail emailbilling billingemail",
        "deviceid",
        "sessionid session usersession visitid sessionidhash",
    ),
    "item_id": (
        (
            "itemid productid movieid trackid articleid sku skuid asin stockcode isbn isbn10 "
            "isbn13 songid bookid videoid filmid gameid appid newsid recipeid contentid showid "
            "courseid postid podcastid goodsid materialid itemcode productcode articlecode "
            "itemnumber productnumber itemno ean gtin upc placeid poiid venueid businessid "
            "artikelid artikelnr artikelnummer produktid produktnr produktnummer productoid "
            "idproducto produitid idproduit prodottoid idprodotto produtoid idproduto articuloid "
            "idarticulo animeid mangaid gmapid gplusplaceid bookmarkid elementuid "
            "musicbrainztrackid"
        ),
        (
            "productsku itemsku variantsku lineitemsku productkey itemkey prodid prodcode prodnbr "
            "productnbr idproduct iditem idarticle articlenumber articleno clickarticleid trackuri "
            "spotifytrackuri beerid beerbeerid wineid winewineid productproductid matnr isin "
            "productskuhash tisku idactionsku trackidclean couponidhash viewcouponidhash"
        ),
        (
            "item product movie track article song book video film game app recipe show course "
            "goods artikel produkt producto produit prodotto produto articulo"
        ),
        "parentasin aid",
        (
            "documentid hotelid hotelcluster propertyid propid listingid restaurantid jobid "
            "episodeid programid programmeid albumid locationid"
        ),
        "trackname songname",
        "artistid musicbrainzartistid",
        "itemname productname itemdescription lineitemname",
    ),
    "timestamp": (
        (
            "timestamp ts eventtime eventtimestamp datetime unixtime unixtimestamp createdat "
            "boughtat purchasedat orderedat viewedat playedat watchedat ratedat listenedat readat "
            "clickedat occurredat happenedat purchasetime ordertime invoicedatetime orderdatetime "
            "transactiontime transactiontimestamp clicktime reviewtime unixreviewtime ratingtime "
            "transactiondt dateadded timestampms timestampus timestampns epoch zeitstempel "
            "zeitpunkt eventts utctimestamp timems timeus derivedtstamp servertimestampepochms"
        ),
        (
            "invoicedate orderdate purchasedate transactiondate eventdate date time tdat "
            "ratingdate reviewdate orderpurchasetimestamp datum bestelldatum kaufdatum "
            "rechnungsdatum dateachat datecommande fecha fechacompra"
        ),
        (
            "eventdatetime transactiondatetime purchasedatetime checkoutdatetime clickdatetime "
            "purchasetimestamp ordertimestamp clicktimestamp viewtimestamp ratingtimestamp "
            "reviewtimestamp interactiontimestamp impressiontimestamp actiontimestamp actiontime "
            "interactiontime impressiontime checkintime actiondate interactiondate shopdate "
            "saledate salesdate paymentdate bookingdate postingdate applicationdate visitstarttime "
            "utctime lastwatchdt idate"
        ),
        (
            "timestampcreated createdtime createtime createdate createddate createdon datecreated "
            "datecreatedgmt creationdate creationtime createdutc createddateutc dateadd servertime "
            "collectortstamp recordedat loggedat receivedat datekey orderdatekey erdat "
            "mylastupdated"
        ),
        "dt ds startdate starttime",
    ),
}

_POSSIBLE: dict[Role, str] = {
    "user_id": "uuid cookie hash deviceidhash ipaddress ip pid",
    "item_id": (
        "reference adgroupid adid campaignid campaign merchantid sellerid cityid storeid work "
        "title name description url"
    ),
    "timestamp": (
        "ordernumber orderno ordersequence orderseq orderindex sequence sequencenumber sequenceid "
        "seq seqno position step stepnumber rankinsession positioninsession sessionposition "
        "eventnumber eventindex eventorder visitnumber interactionnumber day daynumber week "
        "weeknumber weekno"
    ),
}
"""Names that have a role in some logs and something else in others, best ones first; as times,
numbers that may be in order of time."""
_FIRST_UNIX_TIME = 100_000_000
"""Numbers from here on, early 1973 in seconds, look like a time in a file without a header."""
_RATINGS = 21
"""Different ratings: 0 to 10 in halves."""
_LISTED, _SHOWN = 20, 40
"""Columns without names that a refusal shows with values, and the characters of each value."""
_DATE_PARTS = {"year": (1900, 2200), "month": (1, 12), "day": (1, 31), "date": (1, 31)}
"""How the names of the parts of a date end, and what these are between."""


@dataclass(frozen=True, slots=True)
class GuessedColumns:
    """The columns of a log, and those of them that nobody named."""

    columns: Columns
    guessed: dict[str, str]
    """The column of each guessed role, by the role's word; empty if nothing had to be guessed.
    Columns that have the default names of their roles do not count."""
    examples: dict[str, str] = field(default_factory=dict)
    """A value of each guessed column that has a number for a name, by the role's word."""

    def __str__(self) -> str:
        """Return one line of what was guessed."""
        return ", ".join(
            f"{word} {column!r}" + (f" (such as {value})" if value else "")
            for word, column in self.guessed.items()
            for value in [self.examples.get(word)]
        )


def guess_columns(
    rows: pl.DataFrame,
    given: Columns | None = None,
    origin: str = "the log",
    hint: str = "",
    time_format: str | None = None,
) -> GuessedColumns:
    """Find the user, item and time column of a log by name and type.

    A column that is given is taken. Else one is taken that has the default name of the role, or a
    known name and a type that fits, if no other one is as good. A column without a value is only
    taken if there is no other.

    Files without a header, with columns 1, 2, …, are user, item and time, or user, item, rating and
    time, if only the last one looks like a time and the third has ratings.

    Args:
        rows: the first rows of the log, with all of its columns.
        given: the columns that are known; unset fields are guessed.
        origin: the name of the log in messages.
        hint: what a refusal adds.
        time_format: the form of times, as in the settings; ISO 8601 if None.

    Raises:
        InputError: a given column is missing; no column fits a role, or several do.

    >>> rows = pl.DataFrame({"CustomerID": [7], "sku": ["A"], "ts": [3], "price": [1.5]})
    >>> print(guess_columns(rows))
    user 'CustomerID', item 'sku', time 'ts'
    """
    known = {} if given is None else given.model_dump(exclude_unset=True)
    for role, name in known.items():
        if name and name not in rows.columns and (role, name) != ("timestamp", ROW_ORDER):
            near = hint or did_you_mean(name, rows.columns)
            raise InputError(f"{origin}: no column {name!r} among {', '.join(rows.columns)}{near}")
    if time_format not in (None, TIME_IS_NUMBER):
        rows = rows.select(as_iso(column, time_format) for column in rows)
    if rows.width:
        rows = rows.filter(~pl.all_horizontal(pl.all().is_null()))  # blank lines
    found: dict[str, str] = {}
    doubted: dict[Role, list[str]] = {}
    by_position = _by_position(rows)
    for role in WORDS:
        if role in known:
            continue
        taken = {name for other, name in (known | found).items() if other != "position"}
        placed = by_position.get(role)
        choice = [placed] if placed and placed not in taken else _best(role, rows, taken)
        if len(choice) == 1:
            found[role] = choice[0]
        else:
            doubted[role] = choice
    if (time := found.get("timestamp")) is not None and time_format != TIME_IS_NUMBER:
        _refuse_parts_of_times(rows, time, origin)
    if doubted:
        raise InputError(f"{origin}: {_refusal(rows, doubted)}{hint}")
    guessed = {WORDS[role]: found[role] for role in WORDS if found.get(role, role) != role}
    examples = {word: _shown(rows[name][0]) for word, name in guessed.items() if name.isdigit()}
    return GuessedColumns((given or Columns()).model_copy(update=found), guessed, examples)


@lru_cache(maxsize=1 << 17)
def plain_name(name: str) -> str:
    """Return the name of a column without case, blanks and marks, nor the types of RecBole.

    >>> plain_name("Kunden-Nr."), plain_name("user_id:token")
    ('kundennr', 'userid')
    """
    name = re.sub(r":(?:token|float)(?:_seq)?$", "", name)
    return re.sub(r"[\W_]", "", name.lower())


def _standings(role: Role, columns: Sequence[str]) -> Iterator[list[str]]:
    """Yield the columns with a name of a role: best names first, equally good ones together."""
    yield [name for name in columns if name == role]
    for names in _NAMES[role]:
        yield [name for name in columns if name != role and plain_name(name) in names.split()]


def _best(role: Role, rows: pl.DataFrame, taken: Collection[str]) -> list[str]:
    """Return the columns of the best name whose type fits, without empty ones if there are others.

    The default name needs no fitting type: a refusal will name the row. Unix times are preferred to
    dates of a form of their own.
    """
    fitting = [
        [n for n in alike if n not in taken and (n == role or _misfit(role, rows[n]) is None)]
        for alike in _standings(role, rows.columns)
    ]
    for alike in fitting:
        if filled := [name for name in alike if len(_known(rows[name])) or rows.is_empty()]:
            plain = [n for n in filled if role != "timestamp" or not fitting_forms(rows[n])]
            return plain or filled
    return next(filter(None, fitting), [])


def _misfit(role: Role, values: pl.Series) -> str | None:
    """Return what a column of the role must not hold, or None if its values fit."""
    values = _known(values)
    if role == "timestamp":
        is_time = values.is_empty() or _is_time(values)
        return None if is_time else "neither numbers nor ISO 8601 dates"
    fits = values.is_empty() or values.dtype == pl.String or values.dtype.is_integer()
    if fits or (values.dtype.is_numeric() and (values.cast(pl.Float64) % 1 == 0).all()):
        return None
    return "neither integers nor text"


def _known(values: pl.Series) -> pl.Series:
    """Return the values that are not missing."""
    values = present(values)
    return values.drop_nans() if values.dtype.is_float() else values


def _is_time(values: pl.Series) -> bool:
    if values.dtype == pl.String:
        missing = min(numbers_in(values).null_count(), dates_in(values).null_count())
        return not missing or bool(fitting_forms(values))
    return values.dtype.is_numeric() or values.dtype in (pl.Date, pl.Datetime)


# --- Files without a header -----------------------------------------------------------------------


def _by_position(rows: pl.DataFrame) -> dict[Role, str]:
    """Return the columns of a file without a header, if their types leave no doubt."""
    names = rows.columns
    if not _lack_names(rows) or len(names) not in (3, 4):
        return {}
    ids = all(_misfit("user_id", rows[name]) is None for name in names[:2])
    rated = len(names) == 3 or _looks_like_rating(rows["3"])
    if not (ids and rated and _likely_times(rows) == names[-1:]):
        return {}
    return {"user_id": names[0], "item_id": names[1], "timestamp": names[-1]}


def _lack_names(rows: pl.DataFrame) -> bool:
    """Return whether columns are called 1, 2, … since a file has no header."""
    return rows.columns == [str(number) for number in range(1, rows.width + 1)]


def _likely_times(rows: pl.DataFrame) -> list[str]:
    """Return the columns whose values look like times; epochs only if columns lack names.

    Dates of another form than ISO 8601 only count where no others do: ids such as 1-2-2024 have it.
    """
    found = [column for column in rows if _looks_like_time(column)]
    found = [column for column in found if not fitting_forms(column)] or found
    return [
        column.name
        for column in found
        if _lack_names(rows) or not column.dtype.is_numeric() or compact_form(column) is not None
    ]


def _looks_like_time(values: pl.Series) -> bool:
    """Return whether values without a telling name are dates or epochs."""
    values = _known(values)
    if values.is_empty() or not _is_time(values):
        return False
    if compact_form(values) is not None:
        return True
    numbers = numbers_in(values) if values.dtype == pl.String else values
    if not numbers.dtype.is_numeric() or numbers.null_count():
        return True  # dates
    return bool((numbers >= _FIRST_UNIX_TIME).all())


def _looks_like_rating(values: pl.Series) -> bool:
    """Return whether values without a telling name are ratings: few different, small numbers."""
    values = _known(values)
    numbers = numbers_in(values) if values.dtype == pl.String else values
    if not numbers.dtype.is_numeric() or numbers.null_count():
        return False
    return bool(numbers.is_between(-10, 100).all()) and numbers.n_unique() <= _RATINGS


# --- Times in several columns ---------------------------------------------------------------------


def _refuse_parts_of_times(rows: pl.DataFrame, time: str, origin: str) -> None:
    """Refuse a column of days whose times of day are in another one, and a part of a date.

    Raises:
        InputError: the log has such columns.
    """
    if holds_days(rows[time]):
        for column in rows:
            if column.name != time and is_clock(column):
                raise InputError(
                    f"{origin}: {time} has days, and {column.name} has times of day: join them "
                    f"into one column, or take the days alone with --time {time} (in Python "
                    f"time={time!r})"
                )
    if time in (parts := _date_parts(rows)):
        raise InputError(f"{origin}: {time} is no time of its own: {_joined(parts)}")


def _date_parts(rows: pl.DataFrame) -> list[str]:
    """Return the columns of the month and the day of the month, and of the year if there is one."""
    found = {
        word: column.name
        for column in reversed(rows.get_columns())
        for word, (low, high) in _DATE_PARTS.items()
        if plain_name(column.name).endswith(word)
        and column.dtype.is_integer()
        and column.is_between(low, high).all()
    }
    day = found.get("day") or found.get("date")
    if day is None or "month" not in found:
        return []
    return [found[word] for word in ("year", "month") if word in found] + [day]


def _joined(parts: Sequence[str]) -> str:
    """Return how the columns of the parts of a date become a time, for a message."""
    named = ", ".join(map(repr, parts if len(parts) > 2 else ("YEAR", *parts)))
    return (
        f"{' and '.join(parts)} are parts of a date: join them into one column, in polars with "
        f"frame.with_columns(date=pl.date({named})); --time {ROW_ORDER} takes the order of the rows"
    )


# --- What a refusal says --------------------------------------------------------------------------


def _refusal(rows: pl.DataFrame, doubted: Mapping[Role, Sequence[str]]) -> str:
    options = ", ".join(f"--{WORDS[role]}" for role in doubted)
    words = ", ".join(f"{WORDS[role]}=" for role in doubted)
    questions = []
    for role, columns in doubted.items():
        named = [name for alike in _standings(role, rows.columns) for name in alike]
        reasons = ", ".join(filter(None, (_complaint(role, rows[name]) for name in named)))
        why = f", {' or '.join(columns)}" if columns else reasons and f" ({reasons})"
        questions.append(f"which column is the {WORDS[role]}{why}")
    return (
        f"cannot tell {'; '.join(questions)}; its columns are {', '.join(_listed(rows))}: "
        f"name them with {options} (in Python {words}){''.join(_hints(rows, doubted))}"
    )


def _complaint(role: Role, values: pl.Series) -> str:
    """Return why a column is not that of a role, with a value that shows it; empty if it fits."""
    why = _misfit(role, values)
    if why is None:
        return ""
    text, values = f"{values.name} has {why}", present(values)
    if role == "timestamp" and values.dtype == pl.String:
        values = values.filter(dates_in(values).is_null() & numbers_in(values).is_null())
        text += form_hint(values)
    return f"{text}: {_shown(values[0])}" if len(values) else text


def _listed(rows: pl.DataFrame) -> Iterator[str]:
    """Yield the columns, with a value each if their names are numbers."""
    for number, name in enumerate(rows.columns):
        known = rows[name].drop_nulls()
        numbered = name.isdigit() and number < _LISTED and len(known) > 0
        yield f"{name} (such as {_shown(known[0])})" if numbered else name


def _hints(rows: pl.DataFrame, doubted: Mapping[Role, Sequence[str]]) -> Iterator[str]:
    """Yield what may help to name the columns for which there is no candidate."""
    for role in (role for role, columns in doubted.items() if not columns):
        names = _POSSIBLE[role].split()
        possible = [name for name in rows.columns if plain_name(name) in names]
        if role == "timestamp":
            possible = [name for name in possible if rows[name].dtype.is_numeric()]
            if parts := _date_parts(rows):
                yield f"; {_joined(parts)}"
                continue
            if times := _likely_times(rows):
                yield f"; {' and '.join(times)} may be times"
                continue
        elif nested := [column.name for column in rows if column.dtype.is_nested()]:
            yield f"; {nested[0]} is nested: a log has a row for each interaction"
            continue
        if possible:
            name = shlex.quote(min(possible, key=lambda name: names.index(plain_name(name))))
            tells = "is in order of time" if role == "timestamp" else f"tells the {WORDS[role]}s"
            yield f"; if {name} {tells}, --{WORDS[role]} {name} takes it"
        elif role == "timestamp":
            yield f"; if its rows are in order of time, --time {ROW_ORDER} takes their order"


def _shown(value: object) -> str:
    """Return a value for a message, cut if it is long.

    >>> _shown("N55689-1 N17059-0 N35729-0 N38779-1 N42597-0")
    "'N55689-1 N17059-0 N35729-0 N38779-1 N4…"
    """
    text = repr(value)
    return text if len(text) <= _SHOWN else f"{text[: _SHOWN - 1]}…"
