"""Which column of a log is the user, the item and the time: by name, where it leaves no doubt."""

import re
from collections.abc import Collection
from functools import lru_cache
from typing import Any, Literal

import polars as pl

from recsys.config.data import ROW_ORDER, Columns
from recsys.data.database import dates_in, numbers_in, present
from recsys.data.times import fitting_forms
from recsys.errors import InputError

Role = Literal["user_id", "item_id", "timestamp"]

WORDS: dict[Role, str] = {"user_id": "user", "item_id": "item", "timestamp": "time"}
"""The word of each role: --user, --item and --time, and the same in Python."""

_USERS = (
    "user|customer|cust|visitor|client|member|buyer|shopper|viewer|reader|listener|subscriber|"
    "consumer|guest|player|learner|patron|household|reviewer|person|kunden?|nutzer|benutzer|"
    "cliente|usuario|utilisateur|utente"
)
_PRODUCTS = "item|product|article|artikel|produkt"
_ITEMS = (
    f"{_PRODUCTS}|movie|track|song|book|video|film|game|app|recipe|show|course|goods|producto|"
    "produit|prodotto|produto|articulo"
)
_EVENTS = "event|order|purchase|transaction|rating|review|click|view"
_ACTIONS = "action|interaction|impression"


def _ranks(patterns: str) -> list[str]:
    return ["|".join(rank.split()) for rank in patterns.split(";")]


# Of plain names. Two columns of one rank are a doubt, and an earlier rank wins over a later one.
_NAMES: dict[Role, list[str]] = {
    "user_id": _ranks(
        f"""(?:customer|user)uniqueid unique(?:customer|user)id;
        (?:review|gplus)?(?:{_USERS})(?:id|code|number|no|nr|nummer|key|uid|idhash) id(?:{_USERS})
        uid msno (?:author)?steamid msisdn kunnr;
        {_USERS} (?:user|customer|profile|reviewprofile|buyeruser)name;
        fullvisitorid userpseudoid accountid domainuserid anonymousid distinctid amplitudeid
        idvisitor cookieid profileid cardid loyaltyid loyaltycardid loyaltycardnumber lyltycardnbr;
        (?:user|customer|buyer)?email emailaddress emailbilling billingemail;
        deviceid;
        sessionid session usersession visitid sessionidhash"""
    ),
    "item_id": _ranks(
        f"""(?:{_ITEMS}|news|content|post|podcast|material|anime|manga|gmap|bookmark|sku)id
        (?:(?:gplus)?place|poi|venue|business|musicbrainztrack)id (?:{_PRODUCTS})(?:code|nr|nummer)
        (?:item|product)(?:number|no) sku asin stockcode isbn isbn1[03] ean gtin upc elementuid
        id(?:producto|produit|prodotto|produto|articulo);
        (?:product|item|variant|lineitem|ti|idaction)sku (?:product|item)key prod(?:id|code|nbr)
        productnbr id(?:product|item|article) article(?:number|no) clickarticleid matnr isin
        (?:spotify)?trackuri (?:beer)?beerid (?:wine)?wineid productproductid productskuhash
        trackidclean (?:view)?couponidhash;
        {_ITEMS};
        parentasin aid;
        (?:document|hotel|property|prop|listing|restaurant|job|episode|program|programme)id
        (?:album|location)id hotelcluster;
        trackname songname;
        (?:musicbrainz)?artistid;
        itemname productname itemdescription lineitemname"""
    ),
    "timestamp": _ranks(
        f"""timestamp(?:ms|us|ns)? time(?:ms|us) ts eventts event(?:time|timestamp) datetime
        (?:created|bought|purchased|ordered|viewed|played|watched|rated|listened|read|clicked)at
        (?:occurred|happened)at (?:purchase|order|transaction|click|(?:unix)?review|rating)time
        (?:invoice|order)datetime transactiontimestamp transactiondt dateadded epoch zeitstempel
        zeitpunkt unixtime unixtimestamp utctimestamp derivedtstamp servertimestampepochms;
        (?:invoice|order|purchase|transaction|event|rating|review)?date time tdat
        orderpurchasetimestamp (?:bestell|kauf|rechnungs)?datum date(?:achat|commande)
        fecha fechacompra;
        (?:{_EVENTS}|checkout)datetime (?:{_EVENTS}|{_ACTIONS})timestamp
        (?:{_ACTIONS}|checkin)time visitstarttime utctime lastwatchdt idate
        (?:{_ACTIONS}|shop|sales?|payment|booking|posting|application)date when;
        timestampcreated (?:created?|creation)(?:time|date) created?(?:on|utc) createddateutc
        date(?:created|createdgmt|add) servertime collectortstamp (?:recorded|logged|received)at
        (?:order)?datekey erdat mylastupdated;
        dt ds startdate starttime"""
    ),
}

_CLOCK = r"^\d{1,2}:\d\d(?::\d\d(?:\.\d+)?)?(?: ?[AaPp][Mm])?$"
"""A time of day, which makes of a column of times a doubt beside one of days."""


def guess_columns(
    rows: pl.DataFrame,
    given: Columns | None = None,
    origin: str = "the log",
    time_format: str | None = None,
) -> Columns:
    """Find the user, item and time column of a log by name and type, if they are not given.

    The first rows tell the types; with a form of dates any column may be the time. The column with
    the default name of a role is taken, or one with a known name, if no other one is as good; one
    without a value if there is no other. No such column, and several, are an `InputError`.

    >>> rows = pl.DataFrame({"CustomerID": [7], "sku": ["A"], "ts": [3], "price": [1.5]})
    >>> guess_columns(rows).roles
    {'user_id': 'CustomerID', 'item_id': 'sku', 'timestamp': 'ts'}
    """
    known = {} if given is None else given.model_dump(exclude_unset=True)
    if rows.width:
        rows = rows.filter(~pl.all_horizontal(pl.all().is_null()))  # blank lines
    doubts: dict[Role, list[str]] = {}
    for role in [role for role in WORDS if role not in known]:
        taken = {name for other, name in known.items() if other != "position"}
        doubts[role] = _best(role, rows, taken, time_format)
        if len(doubts[role]) == 1:
            known[role] = doubts.pop(role)[0]
    if doubts:
        raise InputError(f"{origin}: {_refusal(rows, doubts)}")
    return (given or Columns()).model_copy(update=known)


@lru_cache(maxsize=1 << 17)
def plain_name(name: str) -> str:
    """Return the name of a column without case, blanks and marks: kundennr of Kunden-Nr."""
    return re.sub(r"[\W_]", "", name.lower())


def _best(
    role: Role, rows: pl.DataFrame, taken: Collection[str], time_format: str | None
) -> list[str]:
    """Return the columns of the best name whose type fits; filled ones, and Unix times, if any."""
    free = [name for name in rows.columns if name not in taken]
    ranks: list[list[str]] = [[name for name in free if name == role]]
    ranks += [
        [name for name in free if name != role and re.fullmatch(pattern, plain_name(name))]
        for pattern in _NAMES[role]
    ]
    empty: list[str] = []
    for alike in ranks:
        fitting = [n for n in alike if n == role or _fits(role, rows[n], time_format)]
        filled = [name for name in fitting if len(present(rows[name])) or rows.is_empty()]
        if filled:
            if role != "timestamp" or len(filled) == 1:
                return filled
            plain = [name for name in filled if not fitting_forms(rows[name])]
            largest: list[Any] = [numbers_in(rows[n].cast(pl.String)).max() for n in plain]
            # Small numbers may be times of day, such as 93000, which are no times beside dates.
            return filled if any(0 < (n or 0) < 240_000 for n in largest) else plain or filled
        empty = empty or fitting
    return empty


def _fits(role: Role, values: pl.Series, time_format: str | None) -> bool:
    """Return whether the values of a column may be those of a role."""
    values = present(values)
    if values.is_empty():
        return True
    if role == "timestamp":
        return time_format is not None or _is_time(values)
    if values.dtype == pl.String or values.dtype.is_integer():
        return True
    return values.dtype.is_numeric() and bool((values.cast(pl.Float64) % 1 == 0).all())


def _is_time(values: pl.Series) -> bool:
    """Return whether all values are numbers, dates or times of day."""
    if values.dtype == pl.String:
        missing = min(numbers_in(values).null_count(), dates_in(values).null_count())
        is_clock = bool(values.str.contains(_CLOCK).all())
        return not missing or is_clock or bool(fitting_forms(values))
    return values.dtype.is_numeric() or values.dtype in (pl.Date, pl.Datetime, pl.Time)


def _refusal(rows: pl.DataFrame, doubts: dict[Role, list[str]]) -> str:
    questions = "; ".join(
        f"which column is the {WORDS[role]}{', ' if names else ''}{' or '.join(names)}"
        for role, names in doubts.items()
    )
    options, words = (
        ", ".join(form.format(WORDS[role]) for role in doubts) for form in ("--{}", "{}=")
    )
    order = f"; --time {ROW_ORDER} takes the order of the rows" if "timestamp" in doubts else ""
    return (
        f"cannot tell {questions}; its columns are {', '.join(rows.columns)}: name them with "
        f"{options} (in Python {words}){order}"
    )
