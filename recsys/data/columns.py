"""Which column of a log is the user, the item and the time: by name, where it leaves no doubt."""

from __future__ import annotations

import re
import shlex
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Literal

import polars as pl

from recsys.config import ROW_ORDER, TIME_IS_NUMBER, Columns
from recsys.data.times import (
    as_iso,
    compact_form,
    fitting_forms,
    form_hint,
    joined,
    refuse_times_of_day,
)
from recsys.data.values import dates_in, numbers_in, present
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
}
"""Names of columns that have a role in some logs and something else in others, best ones first."""

_ORDERS = (
    "ordernumber orderno ordersequence orderseq orderindex sequence sequencenumber sequenceid seq "
    "seqno position step stepnumber rankinsession positioninsession sessionposition eventnumber "
    "eventindex eventorder visitnumber interactionnumber day daynumber week weeknumber weekno"
)
"""Names of numbers that may be in order of time, likely ones first."""


@lru_cache(maxsize=1 << 17)
def plain_name(name: str) -> str:
    """Return the name of a column without case, blanks and marks, nor the types of RecBole.

    >>> plain_name("Kunden-Nr."), plain_name("user_id:token")
    ('kundennr', 'userid')
    """
    name = re.sub(r":(?:token|float)(?:_seq)?$", "", name)
    return re.sub(r"[\W_]", "", name.lower())


def standings(role: Role, columns: Sequence[str]) -> list[list[str]]:
    """Return the columns with a name of a role: best names first, equally good ones together.

    >>> standings("item_id", ["sku", "user", "asin", "product", "item_id"])
    [['item_id'], ['sku', 'asin'], ['product']]
    """
    default: list[str] = [name for name in columns if name == role]
    others = [name for name in columns if name != role]
    found = [default]
    for names in _NAMES[role]:
        known = names.split()
        found.append([name for name in others if plain_name(name) in known])
    return [alike for alike in found if alike]


def possible_columns(role: Role, columns: Sequence[str]) -> list[str]:
    """Return the columns whose names may be those of a role, likely ones first.

    >>> possible_columns("item_id", ["title", "reference", "price"])
    ['reference', 'title']
    """
    return _in_order_of(_POSSIBLE.get(role, ""), columns)


def order_columns(columns: Sequence[str]) -> list[str]:
    """Return the columns whose names say that they may be in order of time, likely ones first.

    >>> order_columns(["user_id", "step", "order_number"])
    ['order_number', 'step']
    """
    return _in_order_of(_ORDERS, columns)


def _in_order_of(names: str, columns: Sequence[str]) -> list[str]:
    """Return the columns that have one of the plain names, in the order of these."""
    known = names.split()
    found = [name for name in columns if plain_name(name) in known]
    return sorted(found, key=lambda name: known.index(plain_name(name)))


# --- The choice -----------------------------------------------------------------------------------

MoreRows = Callable[[str, int], pl.Series]
"""Reads a column of so many first rows of a log."""

CLOSER_LOOKS = (100_000, 1_000_000)
"""Rows that are read where those of a sample tell nothing."""
_LISTED = 20
"""Columns without names that a refusal shows with values."""
_FIRST_UNIX_TIME = 100_000_000
"""Numbers from here on, early 1973 in seconds, look like a time in a file without a header."""
_RATINGS = 21
"""Different ratings: 0 to 10 in halves."""
_SHOWN = 40
"""Characters of a value in a message."""
_PARTS = {"year": (1900, 2200), "month": (1, 12), "day": (1, 31), "date": (1, 31)}
"""How the names of the parts of a date end, and what these are between."""


@dataclass(frozen=True, slots=True)
class GuessedColumns:
    """The columns of a log, and those of them that nobody named."""

    columns: Columns
    guessed: dict[str, str]
    """The column of each guessed role, by the role's word; empty if nothing had to be guessed.
    Columns that have the default names of their roles do not count."""
    notes: dict[str, str] = field(default_factory=dict)
    """A value of each guessed column that has a number for a name, by the role's word."""

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
        more: reads more rows of a column; None if there are none.

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
    found: dict[str, str] = {}
    doubted: dict[Role, list[str]] = {}
    by_position = _by_position(rows)
    for role in WORDS:
        if role in known:
            continue
        taken = {name for other, name in (known | found).items() if other != "position"}
        placed = [name for name in by_position.get(role, ()) if name not in taken]
        choice = placed or _choose(role, rows, taken, more)
        if len(choice) == 1:
            found[role] = choice[0]
        else:
            doubted[role] = choice
    time = found.get("timestamp")
    if time is not None and time_format != TIME_IS_NUMBER:
        refuse_times_of_day(rows, time, origin)
        if time in (parts := _date_parts(rows)):
            raise InputError(f"{origin}: {time} is no time of its own: {joined(parts)}")
    if doubted:
        raise InputError(f"{origin}: {_refusal(rows, doubted)}{hint}")
    guessed = {WORDS[role]: found[role] for role in WORDS if found.get(role, role) != role}
    examples = {
        word: f"such as {_shown(rows[name][0])}" for word, name in guessed.items() if name.isdigit()
    }
    return GuessedColumns((given or Columns()).model_copy(update=found), guessed, examples)


def _choose(
    role: Role, rows: pl.DataFrame, taken: Collection[str], more: MoreRows | None
) -> list[str]:
    """Return the columns of the best name whose type fits, without empty ones if there are others.

    The default name needs no fitting type: a refusal will name the row.
    """
    fitting = [
        [name for name in alike if name not in taken] for alike in standings(role, rows.columns)
    ]
    fitting = [
        [name for name in alike if name == role or _misfit(role, rows[name]) is None]
        for alike in fitting
    ]
    for alike in fitting:
        if filled := [name for name in alike if not _is_empty(rows[name], more)]:
            plain = (
                filled if role != "timestamp" else [n for n in filled if not fitting_forms(rows[n])]
            )
            return plain or filled  # Unix times are preferred to dates of a form of their own
    return next(filter(None, fitting), [])


def _is_empty(values: pl.Series, more: MoreRows | None) -> bool:
    """Return whether a column has no value, in more than the first rows if these have none."""
    for count in CLOSER_LOOKS:
        if len(_known(values)) or more is None:
            break
        values, read = more(values.name, count), len(values)
        if len(values) == read:
            break
    return len(values) > 0 and not len(_known(values))


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
    ids = all(_misfit("user_id", rows[name]) is None for name in names[:2])
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
    found = [column for column in rows if _looks_like_time(column)]
    found = [column for column in found if not fitting_forms(column)] or found
    return [
        column.name
        for column in found
        if lack or not column.dtype.is_numeric() or compact_form(column) is not None
    ]


def _third_is_no_rating(rows: pl.DataFrame) -> bool:
    return _lack_names(rows) and rows.width == 4 and not _looks_like_rating(rows["3"])


def _named(role: Role, rows: pl.DataFrame) -> list[str]:
    """Return the columns that have a name of the role, whatever they hold."""
    return [name for alike in standings(role, rows.columns) for name in alike]


def _refusal(rows: pl.DataFrame, doubted: Mapping[Role, Sequence[str]]) -> str:
    options = ", ".join(f"--{WORDS[role]}" for role in doubted)
    words = ", ".join(f"{WORDS[role]}=" for role in doubted)
    questions = "; ".join(_question(role, columns, rows) for role, columns in doubted.items())
    return (
        f"cannot tell {questions}; its columns are {', '.join(_listed(rows))}: "
        f"name them with {options} (in Python {words}){''.join(_hints(rows, doubted))}"
    )


def _question(role: Role, columns: Sequence[str], rows: pl.DataFrame) -> str:
    """Return which column is in doubt, and why."""
    question = f"which column is the {WORDS[role]}"
    if columns:
        return f"{question}, {' or '.join(columns)}"
    reasons = [text for name in _named(role, rows) if (text := _complaint(role, rows[name]))]
    return question + (f" ({', '.join(reasons)})" if reasons else "")


def _complaint(role: Role, values: pl.Series) -> str:
    """Return why a column is not that of a role, with a value that shows it; empty if it fits."""
    why = _misfit(role, values)
    if why is None:
        return ""
    text = f"{values.name} has {why}"
    values = present(values)
    if role == "timestamp" and values.dtype == pl.String:
        dates = dates_in(values).is_not_null()
        neither = values.filter(~dates & numbers_in(values).is_null())
        if neither.is_empty():
            examples = (_shown(values.filter(chosen)[0]) for chosen in (dates, ~dates))
            return f"{values.name} has both dates and numbers: {' and '.join(examples)}"
        values = neither
        text += form_hint(values)
    return f"{text}: {_shown(values[0])}" if len(values) else text


def _listed(rows: pl.DataFrame) -> Iterator[str]:
    """Yield the columns, with a value each if their names are numbers."""
    for number, name in enumerate(rows.columns):
        known = rows[name].drop_nulls()
        numbered = name.isdigit() and number < _LISTED and len(known) > 0
        yield f"{name} (such as {_shown(known[0])})" if numbered else name


def _hints(rows: pl.DataFrame, doubted: Mapping[Role, Sequence[str]]) -> Iterator[str]:
    """Yield what may help to name the columns."""
    nested = [column.name for column in rows if column.dtype.is_nested()]
    if nested and "item_id" in doubted:
        yield f"; {nested[0]} is nested: a log has a row for each interaction"
    if _third_is_no_rating(rows) and _likely_times(rows) == ["4"]:
        yield "; four columns are user, item, rating and time if the third has ratings"
    for role, columns in doubted.items():
        unknown = not (columns or _named(role, rows) or nested)
        if unknown and (possible := possible_columns(role, rows.columns)):
            name = shlex.quote(possible[0])
            yield f"; if {name} tells the {WORDS[role]}s, --{WORDS[role]} {name} takes it"
    if "timestamp" in doubted and not doubted["timestamp"]:
        yield _hint_at_times(rows)


def _hint_at_times(rows: pl.DataFrame) -> str:
    """Return what may be the time, or its parts, or its order; empty if nothing may."""
    if parts := _date_parts(rows):
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


def _misfit(role: Role, values: pl.Series) -> str | None:
    """Return what a column of the role must not hold, or None if its values fit."""
    values = _known(values)
    if values.is_empty():
        return None
    if role == "timestamp":
        return None if _is_time(values) else "neither numbers nor ISO 8601 dates"
    if values.dtype == pl.String or values.dtype.is_integer():
        return None
    if values.dtype.is_numeric() and (values.cast(pl.Float64) % 1 == 0).all():
        return None
    return "neither integers nor text"


def _looks_like_time(values: pl.Series) -> bool:
    """Return whether values without a telling name are dates or epochs.

    >>> _looks_like_time(pl.Series([20241231])), _looks_like_time(pl.Series([20241232]))
    (True, False)
    """
    values = _known(values)
    if values.is_empty() or not _is_time(values):
        return False
    if compact_form(values) is not None:
        return True
    if values.dtype == pl.String:
        values = numbers_in(values)
        if values.null_count():
            return True  # dates
    if values.dtype.is_numeric():
        return bool((values >= _FIRST_UNIX_TIME).all())
    return True


def _looks_like_rating(values: pl.Series) -> bool:
    """Return whether values without a telling name are ratings: few different, small numbers.

    >>> _looks_like_rating(pl.Series([4.5, 5, 3])), _looks_like_rating(pl.Series([1042, 5]))
    (True, False)
    """
    values = _known(values)
    numbers = numbers_in(values) if values.dtype == pl.String else values
    if not numbers.dtype.is_numeric() or numbers.null_count():
        return False
    return bool(numbers.is_between(-10, 100).all()) and numbers.n_unique() <= _RATINGS


def _shown(value: object) -> str:
    """Return a value for a message, cut if it is long.

    >>> _shown("N55689-1 N17059-0 N35729-0 N38779-1 N42597-0")
    "'N55689-1 N17059-0 N35729-0 N38779-1 N4…"
    """
    text = repr(value)
    return text if len(text) <= _SHOWN else f"{text[: _SHOWN - 1]}…"


def _known(values: pl.Series) -> pl.Series:
    """Return the values that are not missing."""
    values = present(values)
    return values.drop_nans() if values.dtype.is_float() else values


def _is_time(values: pl.Series) -> bool:
    if values.dtype == pl.String:
        missing = min(numbers_in(values).null_count(), dates_in(values).null_count())
        return not missing or bool(fitting_forms(values))
    return values.dtype.is_numeric() or values.dtype in (pl.Date, pl.Datetime)


def _date_parts(sample: pl.DataFrame) -> list[str]:
    """Return the columns of the month and the day of the month, and of the year if there is one.

    >>> _date_parts(pl.DataFrame({"user": [1], "Year": [2020], "Month": [12], "Day": [31]}))
    ['Year', 'Month', 'Day']
    """
    found = {
        word: column.name
        for column in reversed(sample.get_columns())
        for word, (low, high) in _PARTS.items()
        if plain_name(column.name).endswith(word)
        and column.dtype.is_integer()
        and column.is_between(low, high).all()
    }
    day = found.get("day") or found.get("date")
    if day is None or "month" not in found:
        return []
    return [found[word] for word in ("year", "month") if word in found] + [day]
