"""The names that logs give to their users, items and times."""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import lru_cache
from typing import Literal

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

_AMBIGUOUS = {
    *("client", "member", "buyer", "shopper", "viewer", "reader", "listener", "subscriber"),
    *("consumer", "guest", "player", "learner", "person", "email", "app", "locationid"),
    *("dt", "ds"),
}
"""Names that also tell kinds: a client is 'web' or 'ios', a member 'yes' or 'no', a location a
shop; and names of times that also tell spans of time."""
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


def is_ambiguous(name: str) -> bool:
    """Return whether a name of users or items may be that of their kind.

    >>> is_ambiguous("Client"), is_ambiguous("client_id")
    (True, False)
    """
    return plain_name(name) in _AMBIGUOUS


def is_sure(role: Role, name: str) -> bool:
    """Return whether a column of this name has the role whatever its values are.

    >>> is_sure("user_id", "CustomerID"), is_sure("user_id", "customer")
    (True, False)
    """
    sure = role == "user_id" and plain_name(name) in " ".join(_NAMES[role][:2]).split()
    return name == role or sure


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
