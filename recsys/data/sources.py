"""Where tables come from: named datasets with checksums; paths, folders, patterns and formats."""

from __future__ import annotations

import glob
import hashlib
import http.client
import os
import sys
import tempfile
import urllib.request
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

import polars as pl
from rich.console import Console
from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TransferSpeedColumn

from recsys.config import Columns
from recsys.errors import InputError, checked_path, did_you_mean
from recsys.folders.digests import file_sha256
from recsys.shop.simulation import make_shop

Tables = tuple[pl.DataFrame, pl.DataFrame | None]
"""A log and, if there is one, its item table."""

Engine = Literal["spark"]
"""What reads and filters a log before this process does; this process alone if it is not named."""

MIRROR_VARIABLE = "RECSYS_MIRROR"
"""Environment variable: the folder or base URL that holds the files of the named datasets."""


@dataclass(frozen=True, slots=True)
class RemoteFile:
    """A file of a dataset, stored on the mirror under its name."""

    name: str
    sha256: str


@dataclass(frozen=True, slots=True)
class NamedDataset:
    """A public log with a short name. The counts are those of the log as it is read."""

    name: str
    description: str
    homepage: str
    licence: str
    interactions: int
    users: int
    items: int
    files: tuple[RemoteFile, ...]
    read: Callable[..., Tables]
    """Reads the log and the item table from the paths of the files, in their order."""
    columns: Columns = field(default_factory=Columns)


def read_named(
    dataset: NamedDataset, mirror: str | None = None, cache: Path = Path("data")
) -> Tables:
    """Return the log of a named dataset, and its item table (item_id and features) if it has one.

    Args:
        dataset: the dataset.
        mirror: the folder or base URL of its files; the variable RECSYS_MIRROR if None.
        cache: folder for downloaded files.

    Raises:
        InputError: no mirror has its files, or one of them is another file.
    """
    return dataset.read(*(_locate(file, dataset, mirror, cache) for file in dataset.files))


def find_named_dataset(source: str) -> NamedDataset | None:
    """Return the dataset of that name; None if it is a path or a pattern.

    Raises:
        InputError: the source is neither a dataset nor a file.
    """
    names = [dataset.name for dataset in DATASETS]
    if source in names:
        return DATASETS[names.index(source)]
    if checked_path(source).exists() or is_pattern(source):
        return None
    if os.sep in source:
        raise InputError(f"{source}: no such file or folder")
    hint = did_you_mean(source, names) or f"; the datasets are {', '.join(names)}"
    raise InputError(f"{source}: neither a file nor a named dataset{hint}")


def _locate(file: RemoteFile, dataset: NamedDataset, mirror: str | None, cache: Path) -> Path:
    """Return the path of the verified file; download it if the mirror is a URL."""
    mirror = mirror or os.environ.get(MIRROR_VARIABLE, "")
    is_url = mirror.startswith(("http://", "https://"))
    folders = [cache] if is_url or not mirror else [Path(mirror), cache]
    for folder in folders:
        if (path := folder / file.name).is_file():
            _check(file, file_sha256(path), str(path))
            return path
    if is_url:
        return _download(f"{mirror.rstrip('/')}/{file.name}", file, cache)
    searched = " nor in ".join(str(folder) for folder in folders)
    raise InputError(
        f"{dataset.name}: {file.name} is not in {searched}; set {MIRROR_VARIABLE} to a folder or "
        f"base URL that has it (the data come from {dataset.homepage})"
    )


def _check(file: RemoteFile, found: str, origin: str) -> None:
    if found != file.sha256:
        raise InputError(
            f"{origin}: SHA-256 {found} is not {file.sha256}: not the file {file.name}"
        )


def _download(url: str, file: RemoteFile, cache: Path) -> Path:
    """Download into the cache; the file appears there once complete and verified."""
    bars = (TextColumn("{task.description}"), BarColumn(), DownloadColumn(), TransferSpeedColumn())
    digest = hashlib.sha256()
    try:
        cache.mkdir(parents=True, exist_ok=True)
        with (
            urllib.request.urlopen(url, timeout=60) as response,  # noqa: S310 (http or https only)  # nosec B310
            tempfile.TemporaryDirectory(dir=cache, prefix=f".{file.name}.") as folder,
            Progress(*bars, console=Console(stderr=True), transient=True) as progress,
        ):
            size = int(response.headers.get("Content-Length", 0)) or None
            task = progress.add_task(file.name, total=size)
            part = Path(folder, file.name)
            with part.open("wb") as target:
                while block := response.read(1 << 18):
                    target.write(block)
                    digest.update(block)
                    progress.advance(task, len(block))
            _check(file, digest.hexdigest(), url)
            return part.replace(cache / file.name)
    except (OSError, http.client.HTTPException) as error:
        raise InputError(f"{url}: cannot be fetched into {cache}: {error}") from error


def _parquet(log: Path, items: Path | None = None) -> Tables:
    return pl.read_parquet(log), None if items is None else pl.read_parquet(items)


def _movielens_100k(log: Path) -> Tables:
    """Read a tab-separated log without a header."""
    names = ["user_id", "item_id", "rating", "timestamp"]
    return pl.read_csv(log, separator="\t", has_header=False, new_columns=names), None


def _online_retail(log: Path) -> Tables:
    """Read the purchases of known customers, and the names of the products."""
    lines = pl.read_parquet(log).filter(
        pl.col("CustomerID").is_not_null(),
        ~pl.col("InvoiceNo").str.starts_with("C"),  # a cancellation
        pl.col("Quantity") > 0,
    )
    # Descriptions vary: the most frequent one is the name; ties go to the first in the alphabet.
    items = (
        lines.filter(pl.col("Description").is_not_null())
        .group_by(pl.col("StockCode").alias("item_id"), pl.col("Description").alias("description"))
        .len()
        .sort("len", "description", descending=[True, False])
        .unique("item_id", keep="first", maintain_order=True)
        .drop("len")
        .sort("item_id")
    )
    return lines, items


def _online_retail_lines(log: Path) -> Tables:
    """Read all lines, and the names of the products."""
    return pl.read_parquet(log), _online_retail(log)[1]


def _shop() -> Tables:
    """Simulate the shop."""
    made = make_shop()
    return made.interactions, made.products


_ONLINE_RETAIL_FILE = RemoteFile(
    "online-retail-ii.parquet", "60562c701f5423252d1429ddb5fc7a35a5bbc2da3319773110fe4abed93f518f"
)
_ONLINE_RETAIL_COLUMNS = Columns(user_id="CustomerID", item_id="StockCode", timestamp="InvoiceDate")

_BEAUTY = ("Beauty", 198_502, 22_363, 12_101)
_SPORTS = ("Sports and Outdoors", 296_337, 35_598, 18_357)
"""The category's name at Amazon, and the interactions, users and items of its 5-core."""


def _amazon(name: str, log: tuple[str, int, int, int], sha256: str) -> NamedDataset:
    """Describe Amazon reviews as sequences, as in most papers, or by day (with other item ids)."""
    category, interactions, users, items = log
    timed = name.endswith("-timed")
    times = "by day; other item ids" if timed else "as sequences: times are positions"
    return NamedDataset(
        name=f"amazon-{name}",
        description=f"Amazon reviews 2014, {category}, 5-core, {times}",
        homepage="https://cseweb.ucsd.edu/~jmcauley/datasets/amazon/links.html",
        licence="research; cite McAuley et al. 2015",
        interactions=interactions,
        users=users,
        items=items,
        files=(RemoteFile(f"amazon-{name}.parquet", sha256),),
        read=_parquet,
        columns=Columns() if timed else Columns(timestamp="position"),
    )


DATASETS = (
    NamedDataset(
        name="shop",
        description="a simulated shop with planted rules, generated from a seed",
        homepage="recsys.shop.simulation",
        licence="Apache-2.0, as this library",
        interactions=259_813,
        users=10_000,
        items=1_000,
        files=(),
        read=_shop,
    ),
    NamedDataset(
        name="ml-1m",
        description="MovieLens-1M: film ratings of 2000 to 2003",
        homepage="https://grouplens.org/datasets/movielens/1m/",
        licence="research only, no redistribution; cite Harper and Konstan 2015",
        interactions=1_000_209,
        users=6_040,
        items=3_706,
        files=(
            RemoteFile(
                "ml-1m.parquet", "6edab6475013c91cb628ca18b2b6ac877a47ee539f22626b6671c6a5ba00fc45"
            ),
            RemoteFile(
                "ml-1m-items.parquet",
                "e115705a19919842d8cf749300954f5de87b3e399bcfec6ca4dafd3561fa9973",
            ),
        ),
        read=_parquet,
    ),
    NamedDataset(
        name="ml-100k",
        description="MovieLens-100K: film ratings of 1997 and 1998",
        homepage="https://grouplens.org/datasets/movielens/100k/",
        licence="research only, no redistribution; cite Harper and Konstan 2015",
        interactions=100_000,
        users=943,
        items=1_682,
        files=(
            RemoteFile(
                "ml-100k.tsv", "06416e597f82b7342361e41163890c81036900f418ad91315590814211dca490"
            ),
        ),
        read=_movielens_100k,
    ),
    _amazon("beauty", _BEAUTY, "8743320d07cfadb532d061badad6e2fc7745e256168a734c49a29aacafdbb04c"),
    _amazon(
        "beauty-timed", _BEAUTY, "b10b1e9ef624567211e6387fe281a4719390b953ff8f2838aec9b1e41fb2afeb"
    ),
    _amazon("sports", _SPORTS, "16047ab4d44ba268d627448611b444e48b46115058fb6b1086bf5e5d7345b97e"),
    _amazon(
        "sports-timed", _SPORTS, "1c8d679dc84b919d7c2291d1ce0b0e09796a00fef70211f8d22b3e03dcc93a03"
    ),
    NamedDataset(
        name="online-retail-ii",
        description=(
            "UCI Online Retail II: purchase lines of a British gift wholesaler, 2009 to 2011, less "
            "lines without a customer, cancellations (InvoiceNo C…) and quantities not above 0; "
            "postage and similar codes (POST, D, M) remain as items"
        ),
        homepage="https://archive.ics.uci.edu/dataset/502/online+retail+ii",
        licence="CC BY 4.0",
        interactions=791_114,
        users=5_881,
        items=4_631,
        files=(_ONLINE_RETAIL_FILE,),
        read=_online_retail,
        columns=_ONLINE_RETAIL_COLUMNS,
    ),
    NamedDataset(
        name="online-retail-ii-lines",
        description=(
            "UCI Online Retail II as published: all lines, including those that are not purchases "
            "of a product by a known customer; data.where can drop these, as in "
            "configs/online-retail-ii.yaml"
        ),
        homepage="https://archive.ics.uci.edu/dataset/502/online+retail+ii",
        licence="CC BY 4.0",
        interactions=1_044_847,
        users=5_942,
        items=5_305,
        files=(_ONLINE_RETAIL_FILE,),
        read=_online_retail_lines,
        columns=_ONLINE_RETAIL_COLUMNS,
    ),
)


def is_spark_frame(source: object) -> bool:
    """Return whether this is a frame of Spark, of a session in this process or of Spark Connect."""
    sql = sys.modules.get("pyspark.sql")  # who has a frame has loaded it
    return sql is not None and isinstance(source, sql.DataFrame)


# --- Files ----------------------------------------------------------------------------------------

ATOMIC = "atomic"
"""The kind of RecBole's atomic files, whose headers have types, as in user_id:token."""
_KINDS = {
    ".csv": "CSV",
    ".tsv": "TSV",
    ".txt": "text",
    ".dat": "text",
    ".inter": ATOMIC,
    ".item": ATOMIC,
    ".user": ATOMIC,
    ".parquet": "Parquet",
    ".jsonl": "JSON lines",
    ".ndjson": "JSON lines",
}
_COMPRESSIONS = {".gz": "gzip", ".zst": "zstd"}
_TABLES = {
    "a Delta": ("_delta_log", "DeltaTable(path).to_pyarrow_table()"),
    "a Hudi": (".hoodie", "spark.read.format('hudi').load(path)"),
    "an Iceberg": ("metadata/*.metadata.json", "catalog.load_table(name).scan().to_arrow()"),
}
"""What marks the folder of a table, and what reads it."""
_DATASET_MANIFEST = "manifest.json"
_EXCEL = (".xlsx", ".xls", ".xlsm", ".xlsb", ".ods")


@dataclass(frozen=True, slots=True)
class SourceFile:
    """A file to read."""

    path: Path
    kind: str
    """CSV, TSV, text, atomic, Parquet or JSON lines."""
    compression: str | None = None
    """gzip or zstd; None if the name has no such ending."""


def find_files(source: str | os.PathLike[str]) -> tuple[SourceFile, ...]:
    """Return the files of a path, of a folder with parts, or of a pattern such as logs/*.parquet.

    Files of a folder are all that have a known ending, subfolders included, except those whose name
    or folder begins with ``_`` or ``.``; they are read in the order of their paths.

    Raises:
        InputError: there is no such file, or its extension is unknown; a folder or pattern has no
            files to read, or files of several kinds.
    """
    path = checked_path(source)
    if path.is_file():
        return (_known_file(path),)
    if path.is_dir():
        return _parts(path)
    if path.exists():
        raise InputError(
            f"{source}: is a pipe or device, which cannot be read twice: write it to a file first"
        )
    if not is_pattern(source):
        raise InputError(f"{source}: no such file or folder")
    matched = [Path(name) for name in sorted(glob.glob(str(source), recursive=True))]  # noqa: PTH207
    _refuse_tables({match if match.is_dir() else match.parent for match in matched})
    found = [
        file
        for match in matched
        for file in (_parts(match) if match.is_dir() else (_known_file(match),))
    ]
    if not found:
        raise InputError(f"{source}: no file matches the pattern")
    return _of_one_kind(found, str(source))


def is_pattern(source: str | os.PathLike[str]) -> bool:
    """Return whether a path has wildcards and is no file itself."""
    return glob.has_magic(str(source)) and not Path(source).exists()


def source_name(source: str) -> str:
    """Return a short name for what was read.

    >>> source_name("logs/clicks.csv.gz"), source_name("logs/2024-*.parquet"), source_name("ml-1m")
    ('clicks', 'logs', 'ml-1m')
    """
    path = Path(source)
    if is_pattern(source):
        fixed = [part for part in path.parts if not glob.has_magic(part) and part != os.sep]
        return fixed[-1] if fixed else "log"
    return _unpacked(path).stem


def _parts(folder: Path) -> tuple[SourceFile, ...]:
    if (folder / _DATASET_MANIFEST).is_file():
        raise InputError(f"{folder}: has a {_DATASET_MANIFEST}: a prepared dataset is not a log")
    every = sorted(folder.rglob("*"))
    _refuse_tables({folder, *(path for path in every if path.is_dir())})
    below = (path for path in every if path.is_file())
    visible = [
        path
        for path in below
        if not any(part.startswith(("_", ".")) for part in path.relative_to(folder).parts)
        and _unpacked(path).suffix not in (".item", ".user")  # tables beside a log
    ]
    known = [file for path in visible if (file := _file(path)) is not None]
    if not known:
        raise InputError(f"{folder}: the folder has no files to read ({', '.join(_KINDS)})")
    return _of_one_kind(known, str(folder))


def _refuse_tables(folders: set[Path]) -> None:
    """Refuse tables whose files are not their rows: a log beside them says which still count.

    Folders above count, too: day=2024-01-05 may be a part of such a table.

    Raises:
        InputError: one of the folders is, or is in, a table of Delta Lake, Hudi or Iceberg.
    """
    for folder in sorted({above for path in folders for above in (path, *path.absolute().parents)}):
        for kind, (mark, reader) in _TABLES.items():
            if next(folder.glob(mark), None) is not None:
                raise InputError(
                    f"{folder}: is {kind} table, whose files also have rows that were removed or "
                    f"rewritten: read it with its own library and pass the frame, e.g. {reader}, "
                    "or write that frame to Parquet"
                )


def _of_one_kind(files: list[SourceFile], origin: str) -> tuple[SourceFile, ...]:
    for file in files:
        if file.kind != files[0].kind:
            raise InputError(
                f"{origin}: has {files[0].kind} and {file.kind} ({files[0].path.name}, "
                f"{file.path.name}): name the files of one kind, as in '{origin}/*.parquet'"
            )
    return tuple(files)


def _known_file(path: Path) -> SourceFile:
    file = _file(path)
    if file is None:
        if path.suffix.lower() in _EXCEL:
            raise InputError(
                f"{path}: is an Excel workbook: save its sheet as CSV, or in Python pass the frame "
                f"of pandas.read_excel({path.name!r})"
            )
        known = f"{', '.join(_KINDS)}, also with {', '.join(_COMPRESSIONS)}"
        inner = _unpacked(path)
        ending = inner.suffix + path.name.removeprefix(inner.name)
        hint = (
            "if it has an object on each line, name it .jsonl"
            if inner.suffix.lower() == ".json"
            else "if it is text with a delimiter, name it .csv or .tsv"
        )
        raise InputError(f"{path}: unknown extension {ending!r}, not {known}: {hint}")
    return file


def _file(path: Path) -> SourceFile | None:
    """Return the file with the format that its name tells, None if it tells none."""
    kind = _KINDS.get(_unpacked(path).suffix.lower())
    compression = _COMPRESSIONS.get(path.suffix.lower())
    return None if kind is None else SourceFile(path, kind, compression)


def _unpacked(path: Path) -> Path:
    """Return the path without the ending of a compression."""
    return path.with_suffix("") if path.suffix.lower() in _COMPRESSIONS else path
