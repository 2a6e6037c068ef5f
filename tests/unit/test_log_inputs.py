"""The ways a log may look: each is read to the interactions of the plain CSV, or refused."""

from __future__ import annotations

import bz2
import gzip
from collections.abc import Callable
from datetime import UTC, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any, NamedTuple, Unpack

import duckdb
import pandas as pd
import polars as pl
import pyarrow as pa  # type: ignore[import-untyped]
import pyarrow.dataset  # type: ignore[import-untyped]
import pytest

from recsys.config import DataConfig
from recsys.data.appending import append
from recsys.data.log import Log
from recsys.data.prepared import prepare
from recsys.data.settings import LogWords, with_words
from recsys.errors import InputError
from tests import read_logs

START = 1_700_000_000
"""2023-11-14 22:13:20 UTC."""

ROWS = [
    ("C02", "P-7", START + 30),
    ("C01", "P-1", START + 20),
    ("C02", "P-1", START + 10),
    ("C01", "P-3", START + 20),
    ("C01", "P-2", START + 5),
    ("C10", "P-9", START + 90),
]
NAMES = ["customer_id", "sku", "bought_at"]
ACCENTS = pl.DataFrame([("Jürgen", "Käse", START)], schema=NAMES, orient="row")
LOG = pl.DataFrame(ROWS, schema=NAMES, orient="row")
DATED = LOG.with_columns(pl.from_epoch("bought_at"))


class Source(NamedTuple):
    """A source, and the words that it is read with."""

    source: Any
    words: LogWords = LogWords()


Writer = Callable[[Path], Source]


def read(given: Source) -> Log:
    source = str(given.source) if isinstance(given.source, Path) else given.source
    return read_logs.read(source, with_words(DataConfig(), given.words))


def text(
    table: pl.DataFrame = LOG,
    separator: str = ",",
    newline: str = "\n",
    stored_as: str = "utf-8",
    name: str = "log.csv",
    **words: Unpack[LogWords],
) -> Writer:
    """Write a text file as these settings say."""

    def write(folder: Path) -> Source:
        written = table.write_csv(separator=separator, line_terminator=newline)
        (folder / name).write_bytes(written.encode(stored_as))
        return Source(folder / name, words)

    return write


def lines(written: str, name: str = "log.csv", **words: Unpack[LogWords]) -> Writer:
    """Write lines as they are."""

    def write(folder: Path) -> Source:
        (folder / name).write_text(written, encoding="utf-8")
        return Source(folder / name, words)

    return write


def titled(titles: list[str]) -> Writer:
    """The log with titles that are written as they are, without marks around them."""
    return lines(
        LOG.with_columns(title=pl.Series(titles))
        .select("title", *NAMES)
        .write_csv(quote_style="never")
    )


def content(written: bytes, name: str = "log.csv", **words: Unpack[LogWords]) -> Writer:
    """Write a file of these bytes."""

    def write(folder: Path) -> Source:
        (folder / name).write_bytes(written)
        return Source(folder / name, words)

    return write


def part(written: str) -> Writer:
    """Write a third part of a log."""

    def write(folder: Path) -> Source:
        (folder / "day-3.csv").write_text(written, encoding="utf-8")
        return csv_parts(folder)

    return write


def two_kinds(folder: Path) -> Source:
    csv_parts(folder)
    parquet()(folder)
    return Source(folder)


def prepared_folder(folder: Path) -> Source:
    (folder / "manifest.json").write_text("{}", encoding="utf-8")
    return Source(folder)


def frame(made: Any) -> Writer:
    return lambda _: Source(made() if callable(made) else made)


def compressed(compress: Callable[[bytes], bytes], name: str) -> Writer:
    def write(folder: Path) -> Source:
        written = LOG.write_csv() if ".csv" in name else LOG.write_ndjson()
        (folder / name).write_bytes(compress(written.encode()))
        return Source(folder / name)

    return write


def zstandard(plain: bytes) -> bytes:
    sink = pa.BufferOutputStream()
    with pa.CompressedOutputStream(sink, "zstd") as stream:
        stream.write(plain)
    return bytes(sink.getvalue())


def parquet(table: pl.DataFrame = LOG) -> Writer:
    def write(folder: Path) -> Source:
        table.write_parquet(folder / "log.parquet")
        return Source(folder / "log.parquet")

    return write


def parquet_parts(pattern: str = "", nested: str = "") -> Writer:
    """Write a part per two rows, with the files that Spark leaves beside them."""

    def write(folder: Path) -> Source:
        (folder / "logs").mkdir()
        (folder / "logs" / "_SUCCESS").touch()
        (folder / "logs" / "._SUCCESS.crc").touch()
        for number in range(3):
            below = folder / "logs" / nested.format(number)
            below.mkdir(exist_ok=True)
            LOG[2 * number : 2 * number + 2].write_parquet(below / f"part-{number}.parquet")
        return Source(f"{folder}/logs{pattern}")

    return write


def csv_parts(folder: Path) -> Source:
    """The columns of the second part have another order."""
    LOG[:4].write_csv(folder / "day-1.csv")
    LOG[4:].select(NAMES[::-1]).write_csv(folder / "day-2.csv")
    return Source(f"{folder}/day-*.csv")


def hive_times(folder: Path) -> Source:
    """The time is the name of a folder; the order of the rows breaks ties."""
    for row, (user, item, time) in enumerate(ROWS):
        below = folder / "logs" / f"bought_at={time}"
        below.mkdir(parents=True, exist_ok=True)
        part = pl.DataFrame({"customer_id": [user], "sku": [item]})
        part.write_parquet(below / f"{row}.parquet")
    return Source(folder / "logs")


def arrow_dataset(folder: Path) -> Source:
    parquet_parts()(folder)
    return Source(pa.dataset.dataset(str(folder / "logs"), format="parquet"))


def duckdb_file(folder: Path) -> Source:
    LOG.write_csv(folder / "log.csv")
    return Source(duckdb.read_csv(str(folder / "log.csv")))


class OnlyArrowStream:
    """What a library that nobody has heard of hands over."""

    def __arrow_c_stream__(self, requested_schema: object = None) -> object:
        return LOG.__arrow_c_stream__(requested_schema)


def renamed(*names: str) -> pl.DataFrame:
    return LOG.rename(dict(zip(NAMES, names, strict=True)))


def iso(suffix: str, hours: int = 0, form: str = "%Y-%m-%dT%H:%M:%S") -> pl.DataFrame:
    moment = pl.from_epoch(pl.col("bought_at") + 3600 * hours).dt.strftime(form)
    return LOG.with_columns(bought_at=moment + suffix)


VIEWS = pl.concat(
    [
        LOG.with_columns(event_type=pl.lit("purchase"), price=pl.lit("9.5")),
        LOG.with_columns(event_type=pl.lit("view"), price=pl.lit("20")),
    ]
)
RATED = LOG.select("customer_id", "sku", pl.lit(4).alias("rating"), "bought_at")
GAPS = pd.DataFrame(
    {"customer_id": [r[0] for r in ROWS], "sku": [r[1] for r in ROWS]}
    | {"bought_at": [float(r[2]) for r in ROWS]}
)

READ: dict[str, Writer] = {
    "tabs": text(separator="\t", name="log.tsv"),
    "tabs in a .csv": text(separator="\t"),
    "commas in a .tsv": text(name="log.tsv"),
    "semicolons": text(separator=";"),
    "bars": text(separator="|", name="log.txt"),
    "double colons": lines(
        "".join(f"{u}::{i}::5::{t}\n" for u, i, t in ROWS), "ratings.dat", header=False
    ),
    "Windows line ends": text(newline="\r\n"),
    "old Macintosh line ends": text(newline="\r"),
    "byte order mark": text(stored_as="utf-8-sig"),
    "UTF-16": text(stored_as="utf-16"),
    "UTF-16 without mark": text(stored_as="utf-16-le"),
    "big-endian UTF-16 without mark": text(stored_as="utf-16-be"),
    "gzip": compressed(gzip.compress, "log.csv.gz"),
    "zstandard": compressed(zstandard, "log.csv.zst"),
    "gzip JSON lines": compressed(gzip.compress, "log.jsonl.gz"),
    "gzip in two members": compressed(
        lambda c: gzip.compress(c[:50]) + gzip.compress(c[50:]), "log.csv.gz"
    ),
    "no header": lines(LOG.write_csv(include_header=False), header=False),
    "no header, with ratings": lines(
        RATED.write_csv(include_header=False, separator="\t"), "u.data.tsv", header=False
    ),
    "no header, by position": lines(
        RATED.select("rating", "bought_at", "sku", "customer_id").write_csv(include_header=False),
        header=False,
        user="4",
        item="3",
        time="2",
    ),
    "blanks around values": lines(
        " customer_id , sku , bought_at \n" + "".join(f" {u} , {i}, {t} \n" for u, i, t in ROWS)
    ),
    "quoted values": lines(
        '"customer_id","sku","bought_at","note"\n'
        + "".join(f'"{u}","{i}","{t}","a, ""b""\nc"\n' for u, i, t in ROWS)
    ),
    "an index column": lines(LOG.with_row_index("").write_csv()),
    "columns without names": lines(
        ",,customer_id,sku,bought_at, ,\n"
        + "".join(f"{n},{n},{u},{i},{t},a note,\n" for n, (u, i, t) in enumerate(ROWS))
    ),
    "blank lines": lines(LOG.write_csv().replace("\n", "\n\n")),
    "times in UTC": text(iso("Z")),
    "times with UTC in words": text(iso(" UTC", form="%Y-%m-%d %H:%M:%S")),
    "times of Tokyo": text(iso("+09:00", hours=9)),
    "times of New York, as PostgreSQL writes them": text(
        iso("-05", hours=-5, form="%Y-%m-%d %H:%M:%S%.6f")
    ),
    "times with decimal commas": text(iso(",250")),
    "days before months": text(iso("", form="%d.%m.%Y %H:%M:%S"), time_format="%d.%m.%Y %H:%M:%S"),
    "months before days, in the afternoon": text(
        iso("", form="%m/%d/%Y %I:%M:%S %p"), time_format="%m/%d/%Y %I:%M:%S %p"
    ),
    "dates as numbers, of one day": text(
        LOG.with_columns(bought_at=pl.from_epoch("bought_at").dt.strftime("%Y%m%d%H%M%S")),
        time_format="%Y%m%d%H%M%S",
    ),
    "dates as numbers": text(
        LOG.with_columns(bought_at=pl.from_epoch("bought_at").dt.strftime("%Y%m%d%H%M%S"))
    ),
    "times without marks": text(iso("Z", form="%Y%m%dT%H%M%S")),
    "fractions of seconds": text(
        iso(".250", form="%d.%m.%Y, %H:%M:%S"), time_format="%d.%m.%Y, %H:%M:%S.%f"
    ),
    "the first line of Excel": lines("sep=;\n" + LOG.write_csv(separator=";")),
    "the first line of Excel, with a comma": lines('"sep=,"\r\n' + LOG.write_csv()),
    "quotes in titles, divided by tabs": lines(
        LOG.with_columns(title=pl.Series(['"Heroes', "a", "b", '"Heroes', '"W" A', 'x"']))
        .select("title", *NAMES)
        .write_csv(separator="\t", quote_style="never"),
        "log.tsv",
    ),
    "inches in titles": titled(['12" vinyl', "a", '7" single', "b", '12" x 7"', "c"]),
    "a quoted header alone": lines(
        '"customer_id","sku","bought_at","title"\n'
        + "".join(f'{u},{i},{t},12" vinyl\n' for u, i, t in ROWS)
    ),
    "quoted fields, divided by tabs": lines(
        LOG.with_columns(title=pl.lit("a\tb"))
        .select("title", *NAMES)
        .write_csv(separator="\t", quote_style="non_numeric"),
        "log.tsv",
    ),
    "times of a stream of messages": text(
        iso("", hours=-5, form="%a %b %d %H:%M:%S -0500 %Y"),
        time_format="%a %b %d %H:%M:%S %z %Y",
    ),
    "whole floats": text(LOG.with_columns(pl.col("bought_at").cast(pl.Float64))),
    "Parquet": parquet(),
    "Parquet with dates": parquet(DATED),
    "Parquet with decimals": parquet(LOG.with_columns(pl.col("bought_at").cast(pl.Decimal(18, 0)))),
    "Parquet with bytes for text": parquet(LOG.cast({"sku": pl.Binary, "customer_id": pl.Binary})),
    "a folder of Parquet parts": parquet_parts(),
    "a folder of folders of Parquet parts": parquet_parts(nested="region={}"),
    "a pattern of Parquet parts": parquet_parts(pattern="/part-*.parquet"),
    "a pattern of folders": parquet_parts(pattern="/region=*", nested="region={}"),
    "a pattern of CSV parts": csv_parts,
    "the time as a folder": hive_times,
    "pandas": frame(LOG.to_pandas),
    "pandas with nullable types": frame(lambda: LOG.to_pandas().convert_dtypes()),
    "pandas with Arrow types": frame(lambda: LOG.to_pandas(use_pyarrow_extension_array=True)),
    "pandas with categories": frame(
        lambda: LOG.to_pandas().astype({"customer_id": "category", "sku": "category"})
    ),
    "pandas with floats": frame(GAPS),
    "pandas with times of a zone": frame(
        lambda: DATED.with_columns(
            pl.col("bought_at").dt.replace_time_zone("UTC").dt.convert_time_zone("Asia/Tokyo")
        ).to_pandas()
    ),
    "pandas with objects": frame(
        pd.DataFrame([(u, i, datetime.fromtimestamp(t, UTC)) for u, i, t in ROWS], columns=NAMES)
    ),
    "polars": frame(LOG),
    "polars, lazy": frame(LOG.lazy()),
    "polars with categories": frame(LOG.with_columns(pl.col("sku").cast(pl.Categorical))),
    "polars with decimals": frame(
        LOG.with_columns(pl.Series("bought_at", [Decimal(row[2]) for row in ROWS]))
    ),
    "Arrow": frame(LOG.to_arrow()),
    "Arrow with bytes for text": frame(LOG.cast({"sku": pl.Binary}).to_arrow()),
    "Arrow with large strings": frame(
        LOG.to_arrow().cast(
            pa.schema(zip(NAMES, [pa.large_string(), pa.large_string(), pa.int64()], strict=True))
        )
    ),
    "Arrow with dictionaries": frame(
        lambda: pa.table({name: LOG.to_arrow()[name] for name in NAMES}).set_column(
            1, "sku", LOG.to_arrow()["sku"].cast(pa.string()).dictionary_encode()
        )
    ),
    "Arrow dataset": arrow_dataset,
    "Arrow record batches": frame(
        lambda: pa.RecordBatchReader.from_batches(
            LOG.to_arrow().schema, LOG.to_arrow().to_batches()
        )
    ),
    "DuckDB relation": duckdb_file,
    "a stream of Arrow data": frame(OnlyArrowStream),
    "names of a shop": text(renamed("CustomerID", "StockCode", "InvoiceDate")),
    "names of a film site": text(renamed("userId", "movieId", "timestamp")),
    "names of a web log": text(renamed("visitorid", "itemid", "event_time")),
    "names of the library": text(renamed("user_id", "item_id", "timestamp")),
    "names that words tell": text(renamed("who", "what", "at"), user="who", item="what", time="at"),
    "purchases among views": text(VIEWS, where="event_type == 'purchase'"),
    "purchases, as pandas has it": text(VIEWS, where='event_type == "purchase" and price < 9.75'),
    "rows with a user": lines(LOG.write_csv() + ",P-7,5\n", where='"customer_id" is not null'),
    "the latest rows": text(
        pl.concat([LOG, LOG.with_columns(pl.col("bought_at") - 10**6)]),
        where=f"bought_at >= {START}",
    ),
}


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory) -> Log:
    return read(text()(tmp_path_factory.mktemp("plain")))


@pytest.mark.parametrize("write", READ.values(), ids=READ)
def test_prepared_as_the_plain_csv(write: Writer, plain: Log, tmp_path: Path) -> None:
    """Which looks at a log's size first, and may read a stream only once."""
    given = write(tmp_path)
    dataset = prepare(given.source, out=tmp_path / "data", **given.words)
    assert dataset.manifest.counts["interactions"] == len(ROWS)
    assert dataset.manifest.log_fingerprint == plain.fingerprint


def test_the_plain_csv(plain: Log) -> None:
    rows = plain.table().select("user_id", "item_id", "timestamp")
    assert rows.rows() == sorted(ROWS, key=lambda row: (row[0], row[2]))


BASE = LOG.write_csv()
WHERE = BASE + "C03,P-7,soon\n"
WITHOUT = "(drop such rows with --where '\"customer_id\" is not null', in Python where=)"
TIES = "customer_id,sku,product_id,ts\n1,2,3,4\n"

REFUSED: dict[str, tuple[Writer, list[str]]] = {
    "titles that begin with a quote": (
        titled(['"Heroes', "a", "b", '"Heroes"ch', "c", '"W']),
        ["cannot be read as CSV: line 2: has a quote that is neither"],
    ),
    "two users": (
        lines("userId,customer_id,sku,ts\n1,2,3,4\n"),
        ["which column is the user, userId or customer_id", "--user", "in Python user="],
    ),
    "two items": (lines(TIES), ["which column is the item, sku or product_id;", "--item"]),
    "date and time apart": (
        lines("customer_id,sku,date,time\n1,2,2024-01-05,7\n"),
        ["which column is the time, date or time", "--time"],
    ),
    "no time": (
        lines("customer_id,sku\n1,2\n"),
        ["which column is the time;", "in order of time, --time row-order takes their order"],
    ),
    "times of another form": (
        lines("customer_id,sku,InvoiceDate\n1,2,12/1/2010 8:26\n"),
        [
            "column 'InvoiceDate', data row 1: neither a number nor an ISO 8601 date (a date of",
            "with --time-format '%m/%d/%Y %H:%M' or '%d/%m/%Y %H:%M', in Python time_format=)",
            ": '12/1/2010 8:26'",
        ],
    ),
    "a time that is not in the form": (
        lines(
            "customer_id,sku,date\n1,2,31.12.2024\n1,3,2024-12-31\n1,3,12/31/2024\n",
            time_format="%d.%m.%Y",
        ),
        ["column 'date', data row 3: neither a number", "'%m/%d/%Y'", "'12/31/2024'"],
    ),
    "a time of a named column that is not in the form": (
        lines(
            "customer_id,sku,date\n1,2,31.12.2024\n1,3,12/31/2024\n",
            user="customer_id",
            item="sku",
            time="date",
            time_format="%d.%m.%Y",
        ),
        ["column 'date', data row 2: neither a number", "'%m/%d/%Y'", "'12/31/2024'"],
    ),
    "numbers among dates": (
        lines("customer_id,sku,date\n1,2,2024-12-31\n1,3,0\n"),
        ["the time (date has both dates and numbers: '2024-12-31' and '0'); its columns"],
    ),
    "a number that is not in the form": (
        lines(BASE, time_format="%d.%m.%Y"),
        [
            "column 'bought_at', data row 1: is neither in the form '%d.%m.%Y' of data.time_format",
            "nor in that of ISO 8601 (drop such rows with --where",
            f"in Python where=): '{START + 30}'",
        ],
    ),
    "a form with the name of a zone": (
        lines(BASE, time_format="%d.%m.%Y %H:%M %Z"),
        ["names of zones are not read, offsets such as +0100 are, by %z"],
    ),
    "columns of two levels": (
        frame(
            lambda: pd.DataFrame(list(ROWS), columns=pd.MultiIndex.from_product([["log"], NAMES]))
        ),
        ["the frame: names of columns must be text, not of 2 levels"],
    ),
    "a form without a day": (
        lines(BASE, time_format="%Y-%m"),
        ["time_format: must give year, month and day, such as %d.%m.%Y %H:%M, or be number, not"],
    ),
    "a form that is none": (lines(BASE, time_format="DD.MM.YYYY"), ["must give year, month"]),
    "an id that a spreadsheet has rounded": (
        lines(f"customer_id,sku,ts\n1,8.9012E+12,{START}\n1,71053,{START}\n"),
        ["'sku': '8.9012E+12' is a long number that a spreadsheet has rounded", "as text"],
    ),
    "unknown names": (
        lines("a,b,c\n1,2,3\n"),
        ["which column is the user; which column is the item; which", "its columns are a, b, c"],
    ),
    "a dated column of an unknown name": (
        lines("customer_id,sku,released\n1,2,2024-01-05\n"),
        ["which column is the time;"],
    ),
    "an unknown word": (lines(BASE, user="costumer_id"), ["'costumer_id'", "mean 'customer_id'?"]),
    "no header, not said": (
        lines(BASE.partition("\n")[2]),
        ["which column is the time", "looks like data", "--no-header"],
    ),
    "no header, positions only": (
        lines(BASE.partition("\n")[2], user="1", item="2", time="3"),
        ["no column '1' among C02, P-7, 1700000030", "--no-header"],
    ),
    "no header and no doubtless time": (
        lines("1,2,3\n4,5,6\n", header=False),
        [
            "which column is the user; which column is the item; which column is the time",
            "its columns are 1 (such as 1), 2 (such as 2), 3 (such as 3): name them with --user",
        ],
    ),
    "no header and two times": (
        lines("1,1700000000,1700000001\n", header=False),
        ["which column is the time", "--time"],
    ),
    "a header without names": (
        lines(",,\n" + BASE),
        ["log.csv: its first line names no column: delete the line, or give --no-header if"],
    ),
    "sessions with lists of events": (
        lines('{"session": 1, "events": [{"aid": 2, "ts": 3}]}\n', "log.jsonl"),
        ["which column is the item", "events is nested: a log has a row for each interaction"],
    ),
    "a ragged row": (
        lines(BASE + "C03,P-7,5,6\n"),
        ["log.csv: cannot be read as CSV: line 8: expected number of columns: 3 found: 4"],
    ),
    "a ragged row, compressed": (
        content(gzip.compress(f"{BASE}a,b,c,d\n".encode()), "log.csv.gz"),
        ["line 8: expected number of columns: 3 found: 4"],
    ),
    "a ragged part": (
        part(BASE + "1,2,3,4,5\n"),
        ["day-3.csv: cannot be read as CSV: line"],
    ),
    "a part of another form": (
        part("who,sku,at\n1,2,3\n"),
        ["day-3.csv: no column 'customer_id', which other files of ", "leave the file out"],
    ),
    "a short row": (lines(BASE + "C03,P-7\n"), ["line 8: expected number of columns: 3 found: 2"]),
    "a missing id": (lines(BASE + ",P-7,5\n"), ["data row 7: an id is missing", WITHOUT]),
    "NULL for an id": (lines(BASE + "NULL,P-7,5\n"), ["'customer_id', data row 7: an id is"]),
    "NA for an id": (lines(BASE + "C03,NA,5\n"), ["'sku', data row 7: an id is missing"]),
    "blanks for an id": (lines(BASE + "   ,P-7,5\n"), ["data row 7: an id is missing"]),
    "None for a time": (lines(BASE + "C03,P-7,None\n"), ["data row 7: a value is missing"]),
    "NULL among numbers": (
        lines("customer_id,sku,ts\n1,2,3\nNULL,2,3\n"),
        ["'customer_id', data row 2: an id is missing"],
    ),
    "a word for a time": (lines(WHERE, time="bought_at"), ["data row 7", "ISO 8601", "'soon'"]),
    "a cut gzip file": (
        content(gzip.compress(BASE.encode())[:-9], "log.csv.gz"),
        ["log.csv.gz: cannot be read as CSV: "],
    ),
    "Latin-1": (
        content(f"{BASE}C03,Käse,5\n".encode("latin-1")),
        [
            "neither UTF-8 nor UTF-16 text, in line 8: convert it to UTF-8",
            "--encoding, such as",
        ],
    ),
    "another encoding than the given one": (
        content(ACCENTS.write_csv().encode("latin-1"), encoding="ascii"),
        ["log.csv: has the byte 0xfc, which is neither UTF-8 nor ascii"],
    ),
    "no encoding": (
        lines(BASE, encoding="windows"),
        ["encoding: must be an encoding with ASCII in it, such as cp1252", "not 'windows'"],
    ),
    "an empty encoding": (lines(BASE, encoding=""), ["must be an encoding", "not ''"]),
    "an encoding without ASCII": (lines(BASE, encoding="utf-32"), ["must be an encoding with"]),
    "UTF-8 with one other byte": (
        content(
            "".join([BASE, *["C03,Käse,5\n"] * 9]).encode() + b"C04,Th\xe9,6\n", encoding="cp1252"
        ),
        ["log.csv: some of it is not UTF-8, but most of it is"],
    ),
    "gzip, named as text": (content(gzip.compress(BASE.encode())), ["name it .csv.gz"]),
    "bzip2, named as text": (content(bz2.compress(BASE.encode())), ["is compressed: extract it"]),
    "zstandard, named as text": (content(zstandard(BASE.encode())), ["name it .csv.zst"]),
    "Parquet, named as text": (content(b"PAR1\x15\x04"), ["is a Parquet file: name it .parquet"]),
    "a workbook, named as text": (content(b"PK\x03\x04\x14"), ["zip archive or Excel workbook"]),
    "text, named as gzip": (content(BASE.encode(), "log.csv.gz"), ["cannot be read as CSV: "]),
    "blanks as delimiters": (
        lines(BASE.replace(",", " ")),
        ["fields are divided by comma, tab, semicolon, bar or ::"],
    ),
    "Excel's first line alone": (lines("sep=;\n"), ["log.csv: the file is empty"]),
    "JSON by another name": (lines(BASE, "log.json.gz"), ["'.json.gz'", "name it .jsonl"]),
    "another name of text": (lines(BASE, "u.data"), ["'.data'", "name it .csv or .tsv"]),
    "an archive": (lines(BASE, "log.zip"), ["unknown extension '.zip'", ".csv", ".gz"]),
    "a prepared dataset": (
        prepared_folder,
        ["has a manifest.json: a prepared dataset is not a log"],
    ),
    "two kinds of parts": (
        two_kinds,
        ["CSV and Parquet (day-1.csv, log.parquet)", "/*.parquet'"],
    ),
    "a pattern without files": (
        lambda folder: Source(f"{folder}/*.csv"),
        ["/*.csv: no file matches the pattern"],
    ),
    "no such folder": (
        lambda folder: Source(f"{folder}/gone/log.csv"),
        ["log.csv: no such file or folder"],
    ),
    "fractions as ids": (
        frame(LOG.with_columns(sku=pl.Series([1.5, 2, 3, 4, 5, 6]))),
        ["which column is the item (sku has neither integers nor text: 1.5)"],
    ),
    "pandas with the time as index": (
        frame(lambda: LOG.to_pandas().set_index("bought_at")),
        ["which column is the time;", "'bought_at' is the index: reset_index() makes it a column"],
    ),
    "pandas without names": (
        frame(pd.DataFrame(list(ROWS))),
        ["which column is the user", "its columns are 0 (such as 'C02'), 1 (such as 'P-7'), 2 ("],
    ),
    "pandas with a name that is no text": (
        frame(lambda: LOG.to_pandas().rename(columns={"sku": 1.5})),
        ["the frame: names of columns must be text or integers, not 1.5"],
    ),
    "a condition on an unknown column": (
        lines(BASE, where="evnt = 'x'"),
        ["data.where \"evnt = 'x'\": no column 'evnt'", "are customer_id, sku, bought_at"],
    ),
    "a condition that is none": (
        lines(BASE, where="sku =="),
        ["data.where 'sku ==': cannot be read as SQL", "are customer_id, sku, bought_at"],
    ),
    "a condition with Python's marks": (
        lines(BASE, where="(sku == 'P-1') & (bought_at > 5)"),
        ["write and, or and not in place of &"],
    ),
    "a condition on another type": (
        lines(BASE, where="sku > 9.9"),
        [
            "data.where 'sku > 9.9': Cannot compare values of type VARCHAR",
            "'sku' of VARCHAR has 'P-7'",
        ],
    ),
    "a condition on a date beside numbers": (
        lines(BASE, where="bought_at > date '2020-01-01'"),
        ["a date is written as date '2024-01-31'", "'bought_at' of VARCHAR has"],
    ),
    "a condition that never holds": (
        lines(BASE, where="sku = 'p-1'"),
        ["holds for none of the 6 rows", "'sku' of VARCHAR has 'P-7', 'P-1'"],
    ),
    "a number as a condition": (lines(BASE, where="bought_at"), ["must be true or false for each"]),
}


@pytest.mark.parametrize(
    ("name", "written"),
    {
        "log.csv": lambda text: text.encode("latin-1"),
        "log.csv.gz": lambda text: gzip.compress(text.encode("latin-1")),
        "utf-8.csv": str.encode,  # as it is, whatever the settings say
        "utf-16.csv": lambda text: text.encode("utf-16"),
    }.items(),
)
def test_another_encoding(name: str, written: Callable[[str], bytes], tmp_path: Path) -> None:
    log = pl.concat([ACCENTS, LOG])
    items = pl.DataFrame({"item_id": log["sku"].unique(), "name": "Größe"})
    (tmp_path / name).write_bytes(written(log.write_csv()))
    (tmp_path / "items.csv").write_bytes(items.write_csv().encode("latin-1"))
    dataset = prepare(
        tmp_path / name,
        out=tmp_path / "data",
        items=tmp_path / "items.csv",
        encoding="latin-1",
    )
    assert "Jürgen" in dataset.user_ids
    assert "Käse" in dataset.item_table["item_id"]
    assert set(dataset.item_table["name"]) == {"Größe"}
    added = pl.DataFrame(
        [("Zoë", item, START + 100 + n) for n, item in enumerate(["Brötchen", "P-1", "P-2"])],
        schema=NAMES,
        orient="row",
    )
    (tmp_path / "day.csv").write_bytes(added.write_csv().encode("latin-1"))
    grown = append(tmp_path / "day.csv", tmp_path / "data")
    assert "Brötchen" in grown.item_table["item_id"]


def test_another_encoding_of_an_appended_log(tmp_path: Path) -> None:
    dataset = prepare(LOG, out=tmp_path / "data")
    path = tmp_path / "day.csv"
    path.write_bytes(ACCENTS.with_columns(pl.col("bought_at") + 99).write_csv().encode("latin-1"))
    with pytest.raises(InputError, match="in line 2"):
        append(path, tmp_path / "data")
    grown = append(path, tmp_path / "data", encoding="latin-1")
    assert "Jürgen" in grown.user_ids
    assert grown.config == dataset.config


@pytest.mark.parametrize(("write", "words"), REFUSED.values(), ids=REFUSED)
def test_refused_in_one_line(write: Writer, words: list[str], tmp_path: Path) -> None:
    source = write(tmp_path)
    with pytest.raises(InputError) as caught:
        read(source)
    message = str(caught.value)
    assert "\n" not in message
    for word in words:
        assert word in message


def test_text_mixed_with_integers_in_pandas_is_text(tmp_path: Path) -> None:
    """Spreadsheets are read so: a stock code is 71053 in one row and 85123A in another."""
    frame = LOG.to_pandas()
    codes: list[Any] = [71053, "85123A", 71053.0, "85123A", 22752, 71053]
    invoices: list[Any] = [536365, "C536379", None, 536366, 536367, 536368]
    frame = frame.assign(sku=codes, invoice=invoices)
    found = read(Source(frame))
    plain = LOG.with_columns(
        sku=pl.Series(["71053", "85123A", "71053", "85123A", "22752", "71053"])
    )
    assert found.fingerprint == read(Source(plain)).fingerprint
