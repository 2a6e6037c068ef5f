"""Public datasets and shops' exports whose columns leave a doubt are refused with advice."""

from __future__ import annotations

import pytest

from recsys.data.columns import guess_columns
from recsys.errors import InputError
from tests.unit.first_row import first_row

REFUSED: dict[str, tuple[str, list[str]]] = {
    "Amazon, a seller's orders": (
        (
            "amazon-order-id=1-2,merchant-order-id=3,purchase-date=2024-01-05T10:00:00+00:00,"
            "order-status=Shipped,product-name=Hat,sku=A,asin=B,quantity,item-price"
        ),
        ["tell which column is the user;"],
    ),
    "Avazu": (
        "id,click,hour=14102100,C1,banner_pos,site_id,app_id,device_id,device_ip,device_model",
        ["tell which column is the time"],
    ),
    "Bakery": ("TransactionNo,Items=Bread,DateTime=2016-10-30 09:58:11", ["is the user;"]),
    "Booking.com": (
        (
            "user_id,checkin=2016-04-09,checkout=2016-04-11,city_id,device_class=d,affiliate_id,"
            "booker_country=G,hotel_country=G,utrip_id=1_1"
        ),
        ["is the item;", "if city_id tells the items, --item city_id takes it"],
    ),
    "Book-Crossing": ("User-ID,ISBN,Book-Rating", ["the time;", "in order of time"]),
    "Criteo, attribution": (
        "timestamp,uid,campaign,conversion,conversion_timestamp,click,click_pos,cost,cat1,cat2",
        ["is the item;", "if campaign tells the items, --item campaign takes it"],
    ),
    "Dunnhumby, Carbo-Loading": (
        "upc,dollar_sales,units,time_of_transaction,geography,week,household,store,basket,day",
        ["the time;", "if day is in order of time, --time day takes it for the time"],
    ),
    "Dunnhumby, The complete journey": (
        "household_key,BASKET_ID,DAY,PRODUCT_ID,QUANTITY,STORE_ID,TRANS_TIME,WEEK_NO",
        ["the time;", "if DAY is in order of time, --time DAY takes it for the time"],
    ),
    "Elo": (
        (
            "authorized_flag=Y,card_id=C,city_id,installments,merchant_id=M,month_lag,purchase_amount,"
            "purchase_date=2017-06-25 15:33:07,state_id,subsector_id"
        ),
        ["is the item;", "if merchant_id tells the items, --item merchant_id takes it"],
    ),
    "Frappe": (
        "user,item,cnt,daytime=morning,weekday=sunday,weather=sunny",
        ["tell which column is the time"],
    ),
    "Goodreads, CSV": (
        "user_id,book_id,is_read,rating,is_reviewed",
        ["tell which column is the time"],
    ),
    "Instacart": (
        "order_id,user_id,order_number,order_dow,product_id,add_to_cart_order,reordered",
        ["the time;", "if order_number is in order of time, --time order_number takes it"],
    ),
    "KKBox": (
        "msno=a,song_id=b,source_system_tab=c,source_screen_name=d,source_type=e,target",
        ["tell which column is the time"],
    ),
    "Million playlists, a row for each track": (
        "pid,pos,track_uri=spotify:track:1",
        ["is the user;", "if pid tells the users, --user pid takes it"],
    ),
    "MIND": (
        "impression_id,user_id=U1,time=2019-11-11 09:05:58,history=N1 N2,impressions=N3-1 N4-0",
        ["tell which column is the item;"],
    ),
    "MyAnimeList": ("user_id,anime_id,rating", ["tell which column is the time"]),
    "Open Bandit": (
        "timestamp=2019-11-24 00:00:00,item_id,position,click,propensity_score,user_feature_0=a",
        ["tell which column is the user;"],
    ),
    "Outbrain": (
        "uuid=a1,document_id,timestamp,platform,geo_location=US>SC,traffic_source",
        ["is the user;", "if uuid tells the users, --user uuid takes it"],
    ),
    "PostHog": (
        "uuid=a1,event=$pageview,properties={},timestamp=2024-01-05T10:00:00Z,distinct_id=b",
        ["tell which column is the item;"],
    ),
    "PrestaShop, orders": (
        (
            "ID,Reference=XKBKNABJK,New client=Yes,Customer=J. DOE,Total,Payment=Card,"
            "Date=2024-01-05 10:00:00"
        ),
        ["is the item;", "if Reference tells the items, --item Reference takes it"],
    ),
    "Square": (
        (
            "Date=2024-01-05,Time=10:20:30,Category=Tea,Item=Chai,Qty,SKU=A,Gross Sales,"
            "Transaction ID=b,Location=Main St,Customer ID=c,Customer Name=Al"
        ),
        ["Date has days, and Time has times of day: join them"],
    ),
    "Stripe": (
        "id=ch_1,Created date (UTC),Amount,Currency=eur,Customer ID=cus_1,Customer Email=a@b.c",
        ["tell which column is the item;"],
    ),
    "Taobao's advertisements": (
        "user,time_stamp,adgroup_id,pid,nonclk,clk",
        ["is the item;", "if adgroup_id tells the items, --item adgroup_id takes it"],
    ),
    "Tenrec": ("user_id,item_id,click,follow,like,share,watching_times,gender,age", ["the time"]),
    "Valued shoppers": (
        "id,chain,dept,category,company,brand,date=2012-03-02,productsize,purchasequantity",
        ["which column is the user;", "which column is the item;"],
    ),
    "Trivago": (
        "user_id=A,session_id=B,timestamp,step,action_type=click,reference,platform=DE",
        ["tell which column is the item;", "if reference tells the items, --item reference takes"],
    ),
}


@pytest.mark.parametrize(("header", "words"), REFUSED.values(), ids=REFUSED)
def test_others_are_refused_with_advice(header: str, words: list[str]) -> None:
    with pytest.raises(InputError) as caught:
        guess_columns(first_row(header))
    for word in words:
        assert word in str(caught.value)
