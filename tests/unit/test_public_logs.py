"""The columns of public datasets and of shops' exports are found, or refused with advice."""

from __future__ import annotations

from typing import Any

import polars as pl
import pytest

from recsys.data.guess import guess_columns
from recsys.errors import InputError

FOUND: dict[str, tuple[str, tuple[str, str, str]]] = {
    "Amazon 2018": (
        "overall,reviewTime=01 5,reviewerID,asin,reviewerName=Al,reviewText=ok,unixReviewTime",
        ("reviewerID", "asin", "unixReviewTime"),
    ),
    "Amazon 2023": (
        "rating,title=ok,text=ok,asin,parent_asin,user_id,timestamp,verified_purchase",
        ("user_id", "asin", "timestamp"),
    ),
    "Amazon 2013 of SNAP": (
        "product/productId,product/title=A,review/userId,review/score,review/time",
        ("review/userId", "product/productId", "review/time"),
    ),
    "AdventureWorks": (
        "ProductKey,OrderDateKey,CustomerKey,SalesOrderNumber,OrderQuantity,OrderDate",
        ("CustomerKey", "ProductKey", "OrderDate"),
    ),
    "Airbnb": ("listing_id,id,date,reviewer_id,comments", ("reviewer_id", "listing_id", "date")),
    "Beer Advocate": (
        "brewery_id,review_time,review_overall,review_profilename=Al,beer_style=IPA,beer_beerid",
        ("review_profilename", "beer_beerid", "review_time"),
    ),
    "BigBasket": (
        "Member=M1,Order,SKU,Created On,Description=Beans",
        ("Member", "SKU", "Created On"),
    ),
    "CareerBuilder": (
        "UserID,WindowID,Split=Train,ApplicationDate,JobID",
        ("UserID", "JobID", "ApplicationDate"),
    ),
    "Deskdrop": (
        "timestamp,eventType=VIEW,contentId,personId,sessionId,userAgent=Mozilla",
        ("personId", "contentId", "timestamp"),
    ),
    "Diginetica": (
        "sessionId,userId,itemId,timeframe,eventdate",
        ("userId", "itemId", "eventdate"),
    ),
    "Dunnhumby, Let's get sort-of-real": (
        "SHOP_WEEK,SHOP_DATE,SHOP_HOUR,QUANTITY,SPEND,PROD_CODE=P,CUST_CODE=C,BASKET_ID,STORE_CODE",
        ("CUST_CODE", "PROD_CODE", "SHOP_DATE"),
    ),
    "EB-NeRD": (
        "impression_id,user_id,article_id,impression_time,session_id",
        ("user_id", "article_id", "impression_time"),
    ),
    "Food.com": (
        "user_id,recipe_id,date,rating,review=ok",
        ("user_id", "recipe_id", "date"),
    ),
    "Foursquare": (
        "userId,venueId,venueCategoryId,latitude,longitude,timezoneOffset,utcTimestamp",
        ("userId", "venueId", "utcTimestamp"),
    ),
    "GA4, unnested": (
        "event_date,event_timestamp,event_name=view_item,user_pseudo_id,item_id,item_name=Hat",
        ("user_pseudo_id", "item_id", "event_timestamp"),
    ),
    "Globo": (
        "user_id,session_id,session_start,session_size,click_article_id,click_timestamp",
        ("user_id", "click_article_id", "click_timestamp"),
    ),
    "Google Merchandise Store": (
        "fullVisitorId,visitId,date,productSKU=GGOE,v2ProductName=Hat",
        ("fullVisitorId", "productSKU", "date"),
    ),
    "Goodreads": (
        "user_id,book_id,review_id,rating,date_added,read_at=,started_at=",
        ("user_id", "book_id", "date_added"),
    ),
    "Groceries": (
        "Member_number,Date,itemDescription=milk",
        ("Member_number", "itemDescription", "Date"),
    ),
    "H&M": (
        "t_dat,customer_id,article_id,price,sales_channel_id",
        ("customer_id", "article_id", "t_dat"),
    ),
    "JD": ("user_id,sku_id,action_time,module_id,type", ("user_id", "sku_id", "action_time")),
    "KuaiRand": (
        "user_id,video_id,date,hourmin,time_ms,is_click,play_time_ms",
        ("user_id", "video_id", "time_ms"),
    ),
    "KuaiRec": (
        "user_id,video_id,play_duration,time,date,timestamp,watch_ratio",
        ("user_id", "video_id", "timestamp"),
    ),
    "Last.fm 1K": (
        "user_id,timestamp,artist_id,artist_name=A,track_id,track_name=B",
        ("user_id", "track_id", "timestamp"),
    ),
    "Magento": (
        "item_id,order_id,store_id,customer_id,name=Hat,created_at,updated_at",
        ("customer_id", "item_id", "created_at"),
    ),
    "MovieLens": ("userId,movieId,rating,timestamp", ("userId", "movieId", "timestamp")),
    "Netflix": ("Cust_Id,Rating,Date,Movie_Id", ("Cust_Id", "Movie_Id", "Date")),
    "Olist": (
        "customer_id,customer_unique_id,order_purchase_timestamp,order_item_id,product_id",
        ("customer_unique_id", "product_id", "order_purchase_timestamp"),
    ),
    "Online Retail": (
        "InvoiceNo,StockCode=85A,Description=Hat,Quantity,InvoiceDate,UnitPrice,CustomerID,Country",
        ("CustomerID", "StockCode", "InvoiceDate"),
    ),
    "OTTO, a row for each event": ("session,aid,ts,type=clicks", ("session", "aid", "ts")),
    "PrestaShop": (
        "id_order,id_customer,id_product,date_add",
        ("id_customer", "id_product", "date_add"),
    ),
    "Quantium": (
        "DATE,STORE_NBR,LYLTY_CARD_NBR,TXN_ID,PROD_NBR,PROD_NAME=Chips",
        ("LYLTY_CARD_NBR", "PROD_NBR", "DATE"),
    ),
    "REES46": (
        "event_time=2019-11-01 00:00:00 UTC,event_type=view,product_id,user_id,user_session=a-b",
        ("user_id", "product_id", "event_time"),
    ),
    "RetailRocket": (
        "timestamp,visitorid,event=view,itemid,transactionid=",
        ("visitorid", "itemid", "timestamp"),
    ),
    "SAP": ("VBELN,KUNNR,MATNR,ERDAT", ("KUNNR", "MATNR", "ERDAT")),
    "Segment": (
        "anonymous_id=a-b,user_id=,product_id,event=Viewed,timestamp,received_at",
        ("anonymous_id", "product_id", "timestamp"),
    ),
    "Shopify": (
        "Name=#1001,Email=a@b.c,Paid at,Created at,Lineitem name=Hat,Lineitem price,Lineitem sku",
        ("Email", "Lineitem sku", "Created at"),
    ),
    "Steam recommendations": (
        "app_id,helpful,funny,date,is_recommended=true,hours,user_id,review_id",
        ("user_id", "app_id", "date"),
    ),
    "Steam reviews": (
        "app_id,app_name=x,timestamp_created,timestamp_updated,author.steamid,author.num_reviews",
        ("author.steamid", "app_id", "timestamp_created"),
    ),
    "Superstore": (
        "Row ID,Order ID,Order Date,Ship Date,Customer ID,Customer Name,Product ID,Product Name",
        ("Customer ID", "Product ID", "Order Date"),
    ),
    "Ta-Feng": (
        "TRANSACTION_DT,CUSTOMER_ID,AGE_GROUP,PIN_CODE,PRODUCT_SUBCLASS,PRODUCT_ID,AMOUNT",
        ("CUSTOMER_ID", "PRODUCT_ID", "TRANSACTION_DT"),
    ),
    "Tmall": (
        "user_id,item_id,cat_id,merchant_id,brand_id,time_stamp,action_type",
        ("user_id", "item_id", "time_stamp"),
    ),
    "WooCommerce": (
        "order_item_id,order_id,product_id,variation_id,customer_id,date_created,product_qty",
        ("customer_id", "product_id", "date_created"),
    ),
    "XING": (
        "user_id,item_id,interaction_type,created_at",
        ("user_id", "item_id", "created_at"),
    ),
    "Yelp": (
        "review_id,user_id,business_id,stars,date,text=ok",
        ("user_id", "business_id", "date"),
    ),
    "YooChoose": (
        "Session ID,Timestamp,Item ID,Category",
        ("Session ID", "Item ID", "Timestamp"),
    ),
}

REFUSED: dict[str, tuple[str, list[str]]] = {
    "Book-Crossing": ("User-ID,ISBN,Book-Rating", ["the time;", "in order of time"]),
    "Dunnhumby, The complete journey": (
        "household_key,BASKET_ID,DAY,PRODUCT_ID,QUANTITY,STORE_ID,TRANS_TIME,WEEK_NO",
        ["the time;", "if DAY is in order of time, --time DAY takes it for the time"],
    ),
    "Gowalla": (
        "user,check-in time,latitude,longitude,location id",
        ["tell which column is the item"],
    ),
    "Instacart": (
        "order_id,user_id,order_number,order_dow,product_id,add_to_cart_order,reordered",
        ["the time;", "if order_number is in order of time, --time order_number takes it"],
    ),
    "MyAnimeList": ("user_id,anime_id,rating", ["tell which column is the time"]),
    "Stripe": (
        "id=ch_1,Created date (UTC),Amount,Currency=eur,Customer ID=cus_1,Customer Email=a@b.c",
        ["tell which column is the item;"],
    ),
    "Taobao's advertisements": ("user,time_stamp,adgroup_id,pid,nonclk,clk", ["is the item;"]),
    "Trivago": (
        "user_id=A,session_id=B,timestamp,step,action_type=click,reference,platform=DE",
        ["tell which column is the item;", "--item"],
    ),
}


def first_row(header: str) -> pl.DataFrame:
    """A row with 7 in each column, or the value that follows a name."""
    fields = (field.partition("=") for field in header.split(","))
    values: dict[str, Any] = {name: value if given else 7 for name, given, value in fields}
    return pl.DataFrame({name: [value] for name, value in values.items()})


@pytest.mark.parametrize(("header", "columns"), FOUND.values(), ids=FOUND)
def test_columns_are_found(header: str, columns: tuple[str, str, str]) -> None:
    found = guess_columns(first_row(header)).columns
    assert (found.user_id, found.item_id, found.timestamp) == columns


@pytest.mark.parametrize(("header", "words"), REFUSED.values(), ids=REFUSED)
def test_others_are_refused_with_advice(header: str, words: list[str]) -> None:
    with pytest.raises(InputError) as caught:
        guess_columns(first_row(header))
    for word in words:
        assert word in str(caught.value)
