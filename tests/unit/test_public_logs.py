"""The columns of public datasets and of shops' exports are found."""

from __future__ import annotations

import pytest

from recsys.data.columns import guess_columns
from tests.unit.first_row import first_row

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
    "Amazon 2023, ratings": (
        "user_id,parent_asin,rating,timestamp",
        ("user_id", "parent_asin", "timestamp"),
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
    "Brightkite and Gowalla": (
        "user,check-in time,latitude,longitude,location id",
        ("user", "location id", "check-in time"),
    ),
    "CareerBuilder": (
        "UserID,WindowID,Split=Train,ApplicationDate,JobID",
        ("UserID", "JobID", "ApplicationDate"),
    ),
    "Coveo": (
        (
            "session_id_hash,event_type=pageview,product_action=view,product_sku_hash=ab,"
            "server_timestamp_epoch_ms,hashed_url=cd"
        ),
        ("session_id_hash", "product_sku_hash", "server_timestamp_epoch_ms"),
    ),
    "Delicious": ("userID,bookmarkID,tagID,timestamp", ("userID", "bookmarkID", "timestamp")),
    "Deskdrop": (
        "timestamp,eventType=VIEW,contentId,personId,sessionId,userAgent=Mozilla",
        ("personId", "contentId", "timestamp"),
    ),
    "Diginetica": (
        "sessionId,userId,itemId,timeframe,eventdate",
        ("userId", "itemId", "eventdate"),
    ),
    "Dressipi": (
        "session_id,item_id,date=2020-12-18 21:25:00.373",
        ("session_id", "item_id", "date"),
    ),
    "Dunnhumby, Let's get sort-of-real": (
        "SHOP_WEEK,SHOP_DATE,SHOP_HOUR,QUANTITY,SPEND,PROD_CODE=P,CUST_CODE=C,BASKET_ID,STORE_CODE",
        ("CUST_CODE", "PROD_CODE", "SHOP_DATE"),
    ),
    "EB-NeRD": (
        "impression_id,user_id,article_id,impression_time,session_id",
        ("user_id", "article_id", "impression_time"),
    ),
    "Etsy": (
        "Sale Date=01/15/24,Item Name=Hat,Buyer=al,Quantity,Price,Transaction ID,Listing ID,SKU=A",
        ("Buyer", "SKU", "Sale Date"),
    ),
    "Expedia": (
        (
            "date_time=2014-08-11 07:46:59,site_name,user_location_country,user_id,"
            "is_mobile,channel,srch_ci=2014-08-27,srch_destination_id,is_booking,hotel_market,"
            "hotel_cluster"
        ),
        ("user_id", "hotel_cluster", "date_time"),
    ),
    "Flixster": ("userid,movieid,rating,date=2007-10-09", ("userid", "movieid", "date")),
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
    "Google Local 2018": (
        (
            "rating,reviewerName=Al,reviewText=ok,gPlusPlaceId=1a,unixReviewTime,"
            "reviewTime=Dec 1 2013,gPlusUserId=1b"
        ),
        ("gPlusUserId", "gPlusPlaceId", "unixReviewTime"),
    ),
    "Google Local 2021": (
        "user_id,name=Al,time,rating,text=ok,pics=,resp=,gmap_id=0x8",
        ("user_id", "gmap_id", "time"),
    ),
    "Google Merchandise Store": (
        "fullVisitorId,visitId,date,productSKU=GGOE,v2ProductName=Hat",
        ("fullVisitorId", "productSKU", "date"),
    ),
    "Goodreads, spoilers": (
        "user_id,timestamp=2017-08-30,rating,has_spoiler=true,book_id,review_id",
        ("user_id", "book_id", "timestamp"),
    ),
    "Gowalla and Weeplaces": (
        "userid,placeid,datetime=2010-10-22T23:44:29,lat,lon,city=NY,category=Bar",
        ("userid", "placeid", "datetime"),
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
    "JODIE": (
        "user_id,item_id,timestamp,state_label,comma_separated_list_of_features",
        ("user_id", "item_id", "timestamp"),
    ),
    "Kion": (
        "user_id,item_id,last_watch_dt=2021-05-11,total_dur,watched_pct",
        ("user_id", "item_id", "last_watch_dt"),
    ),
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
    "Last.fm 1K as its readme has it": (
        (
            "userid=user_000001,timestamp,musicbrainz-artist-id=a-b,artist-name=A,"
            "musicbrainz-track-id=c-d,track-name=B"
        ),
        ("userid", "musicbrainz-track-id", "timestamp"),
    ),
    "Last.fm of HetRec": ("userID,artistID,tagID,timestamp", ("userID", "artistID", "timestamp")),
    "LFM-2b": ("user_id,track_id,album_id,timestamp", ("user_id", "track_id", "timestamp")),
    "Magento": (
        "item_id,order_id,store_id,customer_id,name=Hat,created_at,updated_at",
        ("customer_id", "item_id", "created_at"),
    ),
    "Matomo": (
        (
            "idsite,idvisitor=ab,server_time=2024-01-05 10:00:00,idvisit,idorder,idaction_sku,"
            "idaction_name,idaction_category,price,quantity,deleted"
        ),
        ("idvisitor", "idaction_sku", "server_time"),
    ),
    "Mixpanel": (
        "event=Purchase,time,distinct_id=ab,$insert_id=cd,product_id",
        ("distinct_id", "product_id", "time"),
    ),
    "MovieTweetings": (
        "user_id,movie_id,rating,rating_timestamp",
        ("user_id", "movie_id", "rating_timestamp"),
    ),
    "MTS Library": (
        "user_id,item_id,progress,rating,start_date=2018-01-01",
        ("user_id", "item_id", "start_date"),
    ),
    "MyAnimeList 2018": (
        (
            "username=al,anime_id,my_watched_episodes,my_start_date=0000-00-00,my_score,my_status,"
            "my_last_updated,my_tags="
        ),
        ("username", "anime_id", "my_last_updated"),
    ),
    "MovieLens": ("userId,movieId,rating,timestamp", ("userId", "movieId", "timestamp")),
    "Netflix": ("Cust_Id,Rating,Date,Movie_Id", ("Cust_Id", "Movie_Id", "Date")),
    "Netflix in the UK": (
        (
            "datetime=2017-01-01 01:15:09,duration,title=A,genres=B,release_date=2011-11-11,"
            "movie_id=1a,user_id=1b"
        ),
        ("user_id", "movie_id", "datetime"),
    ),
    "NowPlaying-RS": (
        "user_id,track_id=ab,hashtag=np,created_at=2014-01-01 05:54:21",
        ("user_id", "track_id", "created_at"),
    ),
    "Okko": (
        "element_uid,user_uid,consumption_mode=S,ts,watched_time,device_type,device_manufacturer",
        ("user_uid", "element_uid", "ts"),
    ),
    "Olist": (
        "customer_id,customer_unique_id,order_purchase_timestamp,order_item_id,product_id",
        ("customer_unique_id", "product_id", "order_purchase_timestamp"),
    ),
    "Online Retail": (
        "InvoiceNo,StockCode=85A,Description=Hat,Quantity,InvoiceDate,UnitPrice,CustomerID,Country",
        ("CustomerID", "StockCode", "InvoiceDate"),
    ),
    "Online Retail II": (
        "Invoice,StockCode=85A,Description=Hat,Quantity,InvoiceDate,Price,Customer ID,Country=UK",
        ("Customer ID", "StockCode", "InvoiceDate"),
    ),
    "OTTO, a row for each event": ("session,aid,ts,type=clicks", ("session", "aid", "ts")),
    "Ponpare": (
        (
            "ITEM_COUNT,I_DATE=2012-03-28 14:15:00,SMALL_AREA_NAME=A,PURCHASEID_hash=b,"
            "USER_ID_hash=c,COUPON_ID_hash=d"
        ),
        ("USER_ID_hash", "COUPON_ID_hash", "I_DATE"),
    ),
    "PrestaShop": (
        "id_order,id_customer,id_product,date_add",
        ("id_customer", "id_product", "date_add"),
    ),
    "Quantium": (
        "DATE,STORE_NBR,LYLTY_CARD_NBR,TXN_ID,PROD_NBR,PROD_NAME=Chips",
        ("LYLTY_CARD_NBR", "PROD_NBR", "DATE"),
    ),
    "RecBole": (
        "user_id:token,item_id:token,rating:float,timestamp:float",
        ("user_id:token", "item_id:token", "timestamp:float"),
    ),
    "RentTheRunway": (
        "fit=fit,user_id,item_id,weight=137lbs,rating,review_date=April 20\\, 2016",
        ("user_id", "item_id", "review_date"),
    ),
    "REES46": (
        "event_time=2019-11-01 00:00:00 UTC,event_type=view,product_id,user_id,user_session=a-b",
        ("user_id", "product_id", "event_time"),
    ),
    "RetailRocket": (
        "timestamp,visitorid,event=view,itemid,transactionid=",
        ("visitorid", "itemid", "timestamp"),
    ),
    "RetailHero": (
        (
            "client_id,transaction_id,transaction_datetime=2018-12-01 07:12:45,store_id,"
            "product_id,product_quantity,trn_sum_from_iss,trn_sum_from_red"
        ),
        ("client_id", "product_id", "transaction_datetime"),
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
    "Spotify, skips": (
        (
            "session_id=0_a,session_position,session_length,track_id_clean=t_b,skip_1=true,"
            "hour_of_day,date=2018-07-15,premium=true,context_type=charts"
        ),
        ("session_id", "track_id_clean", "date"),
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
    "Tianchi, mobile": (
        "user_id,item_id,behavior_type,user_geohash=,item_category,time=2014-12-06 02",
        ("user_id", "item_id", "time"),
    ),
    "Tmall": (
        "user_id,item_id,cat_id,merchant_id,brand_id,time_stamp,action_type",
        ("user_id", "item_id", "time_stamp"),
    ),
    "WooCommerce": (
        "order_item_id,order_id,product_id,variation_id,customer_id,date_created,product_qty",
        ("customer_id", "product_id", "date_created"),
    ),
    "WooCommerce, orders": (
        (
            "Order Number,Order Status=Done,Order Date=2024-01-05 10:00,First Name (Billing)=Al,"
            "Email (Billing)=a@b.c,Order Total Amount,SKU,Item #,Item Name=Hat,Item Cost"
        ),
        ("Email (Billing)", "SKU", "Order Date"),
    ),
    "XING": (
        "user_id,item_id,interaction_type,created_at",
        ("user_id", "item_id", "created_at"),
    ),
    "Yambda": (
        "uid,timestamp,item_id,is_organic,played_ratio_pct,track_length_seconds",
        ("uid", "item_id", "timestamp"),
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


@pytest.mark.parametrize(("header", "columns"), FOUND.values(), ids=FOUND)
def test_columns_are_found(header: str, columns: tuple[str, str, str]) -> None:
    found = guess_columns(first_row(header)).columns
    assert (found.user_id, found.item_id, found.timestamp) == columns
