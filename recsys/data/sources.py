"""Where tables come from: named datasets with checksums; paths, folders, patterns and formats."""

import glob
import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import NamedTuple

import polars as pl

from recsys.config.data import Columns
from recsys.errors import InputError, checked_path, did_you_mean
from recsys.folders import file_sha256
from recsys.shop.simulation import make_shop

Tables = tuple[pl.DataFrame, pl.DataFrame | None]
"""A log and, if there is one, its item table (item_id and features)."""
_MIRROR = "RECSYS_MIRROR"


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
    files: tuple[str, ...]
    """The names of its files on the mirror, which are in `SHA256`."""
    read: Callable[..., Tables]
    """Reads the log and the item table from the paths of the files, in their order."""
    columns: Columns = field(default_factory=Columns)


def read_named(dataset: NamedDataset, mirror: str | None = None) -> Tables:
    """Return the log and the item table of a dataset, from the folder of RECSYS_MIRROR if None."""
    folder = Path(mirror or os.environ.get(_MIRROR, "data"))
    for name in dataset.files:
        path = folder / name
        if not path.is_file():
            raise InputError(
                f"{dataset.name}: {name} is not in {folder}; set {_MIRROR} to a folder that has it "
                f"(the data come from {dataset.homepage})"
            )
        if (actual := file_sha256(path)) != SHA256[name]:
            raise InputError(f"{path}: SHA-256 {actual} is not {SHA256[name]}: not the file {name}")
    return dataset.read(*(folder / name for name in dataset.files))


def find_named_dataset(source: str) -> NamedDataset | None:
    """Return the dataset of that name; None if it is a path or a pattern, not that of nothing."""
    named = {dataset.name: dataset for dataset in DATASETS}
    if source in named:
        return named[source]
    if checked_path(source).exists() or is_pattern(source):
        return None
    if os.sep in source:
        raise InputError(f"{source}: no such file or folder")
    hint = did_you_mean(source, named) or f"; the datasets are {', '.join(named)}"
    raise InputError(f"{source}: neither a file nor a named dataset{hint}")


def _parquet(log: Path, items: Path | None = None) -> Tables:
    return pl.read_parquet(log), None if items is None else pl.read_parquet(items)


def _movielens_100k(log: Path) -> Tables:
    names = ["user_id", "item_id", "rating", "timestamp"]
    return pl.read_csv(log, separator="\t", has_header=False, new_columns=names), None


def _online_retail(log: Path, *, cleaned: bool = True) -> Tables:
    """Read purchase lines, and the names of the products: the most frequent description of each."""
    lines = pl.read_parquet(log)
    purchases = lines.filter(
        pl.col("CustomerID").is_not_null(),
        ~pl.col("InvoiceNo").str.starts_with("C"),  # a cancellation
        pl.col("Quantity") > 0,
    )
    items = (
        purchases.filter(pl.col("Description").is_not_null())
        .group_by(pl.col("StockCode").alias("item_id"), pl.col("Description").alias("description"))
        .len()
        .sort("len", "description", descending=[True, False])
        .unique("item_id", keep="first", maintain_order=True)
        .drop("len")
        .sort("item_id")
    )
    return purchases if cleaned else lines, items


def _shop() -> Tables:
    made = make_shop()
    return made.interactions, made.products


def _amazon(name: str, category: str, counts: tuple[int, int, int]) -> Iterator[NamedDataset]:
    """Yield Amazon reviews as sequences, as in most papers, and by day (with other item ids)."""
    for timed, times, columns in (
        ("", "as sequences: times are positions", Columns(timestamp="position")),
        ("-timed", "by day; other item ids", Columns()),
    ):
        yield NamedDataset(
            f"amazon-{name}{timed}",
            f"Amazon reviews 2014, {category}, 5-core, {times}",
            "https://cseweb.ucsd.edu/~jmcauley/datasets/amazon/links.html",
            "research; cite McAuley et al. 2015",
            *counts,
            (f"amazon-{name}{timed}.parquet",),
            _parquet,
            columns,
        )


def _retail(
    name: str, description: str, counts: tuple[int, int, int], read: Callable[..., Tables]
) -> NamedDataset:
    return NamedDataset(
        name,
        description,
        "https://archive.ics.uci.edu/dataset/502/online+retail+ii",
        "CC BY 4.0",
        *counts,
        ("online-retail-ii.parquet",),
        read,
        Columns(user_id="CustomerID", item_id="StockCode", timestamp="InvoiceDate"),
    )


_FILES = """
6edab6475013c91cb628ca18b2b6ac877a47ee539f22626b6671c6a5ba00fc45 ml-1m.parquet
e115705a19919842d8cf749300954f5de87b3e399bcfec6ca4dafd3561fa9973 ml-1m-items.parquet
06416e597f82b7342361e41163890c81036900f418ad91315590814211dca490 ml-100k.tsv
8743320d07cfadb532d061badad6e2fc7745e256168a734c49a29aacafdbb04c amazon-beauty.parquet
b10b1e9ef624567211e6387fe281a4719390b953ff8f2838aec9b1e41fb2afeb amazon-beauty-timed.parquet
16047ab4d44ba268d627448611b444e48b46115058fb6b1086bf5e5d7345b97e amazon-sports.parquet
1c8d679dc84b919d7c2291d1ce0b0e09796a00fef70211f8d22b3e03dcc93a03 amazon-sports-timed.parquet
60562c701f5423252d1429ddb5fc7a35a5bbc2da3319773110fe4abed93f518f online-retail-ii.parquet
"""
SHA256 = {name: sha256 for sha256, name in map(str.split, _FILES.strip().splitlines())}
"""The checksum of each file, by its name."""

_MOVIELENS = "https://grouplens.org/datasets/movielens"
_HARPER = "research only, no redistribution; cite Harper and Konstan 2015"

DATASETS = (
    NamedDataset(
        "shop",
        "a simulated shop with planted rules, generated from a seed",
        "recsys.shop.simulation",
        "Apache-2.0, as this library",
        *(259_813, 10_000, 1_000),
        (),
        _shop,
    ),
    NamedDataset(
        "ml-1m",
        "MovieLens-1M: film ratings of 2000 to 2003",
        f"{_MOVIELENS}/1m/",
        _HARPER,
        *(1_000_209, 6_040, 3_706),
        ("ml-1m.parquet", "ml-1m-items.parquet"),
        _parquet,
    ),
    NamedDataset(
        "ml-100k",
        "MovieLens-100K: film ratings of 1997 and 1998",
        f"{_MOVIELENS}/100k/",
        _HARPER,
        *(100_000, 943, 1_682),
        ("ml-100k.tsv",),
        _movielens_100k,
    ),
    *_amazon("beauty", "Beauty", (198_502, 22_363, 12_101)),
    *_amazon("sports", "Sports and Outdoors", (296_337, 35_598, 18_357)),
    _retail(
        "online-retail-ii",
        "UCI Online Retail II: purchase lines of a British gift wholesaler, 2009 to 2011, less "
        "lines without a customer, cancellations (InvoiceNo C…) and quantities not above 0; "
        "postage and similar codes (POST, D, M) remain as items",
        (791_114, 5_881, 4_631),
        _online_retail,
    ),
    _retail(
        "online-retail-ii-lines",
        "UCI Online Retail II as published: all lines, including those that are not purchases of a "
        "product by a known customer; data.where can drop these, as in "
        "configs/online-retail-ii.yaml",
        (1_044_847, 5_942, 5_305),
        partial(_online_retail, cleaned=False),
    ),
)


# --- Files ----------------------------------------------------------------------------------------

_KINDS = {
    ".csv": "CSV",
    **dict.fromkeys((".tsv", ".inter", ".item", ".user"), "TSV"),  # the latter ones of RecBole
    **dict.fromkeys((".txt", ".dat"), "text"),
    ".parquet": "Parquet",
    **dict.fromkeys((".jsonl", ".ndjson"), "JSON lines"),
}
_COMPRESSIONS = {".gz": "gzip", ".zst": "zstd"}
_TABLES = {"Delta": "_delta_log", "Hudi": ".hoodie", "Iceberg": "metadata/*.metadata.json"}
"""What marks the folder of a table whose log says which of its files still count."""


class SourceFile(NamedTuple):
    """A file to read, of a kind of `_KINDS`, with its compression if its name has one."""

    path: Path
    kind: str
    compression: str | None


def find_files(source: str | os.PathLike[str]) -> tuple[SourceFile, ...]:
    """Return the files of a path, of a folder, or of a pattern such as logs/*.parquet.

    Files of a folder are all that have a known ending, subfolders included, except those whose name
    or folder begins with ``_`` or ``.``; they are read in the order of their paths.
    """
    path = checked_path(source)
    matches = [path]
    if is_pattern(source):
        matches = [Path(name) for name in sorted(glob.glob(str(source), recursive=True))]  # noqa: PTH207
    elif not (path.is_file() or path.is_dir()):  # nor a pipe or device
        raise InputError(f"{source}: no such file or folder")
    if (path / "manifest.json").is_file():
        raise InputError(f"{path}: has a manifest.json: a prepared dataset is not a log")
    for match in matches if path.is_dir() or is_pattern(source) else ():
        _refuse_table(match)
    files = [*dict.fromkeys(file for match in matches for file in _files_at(match))]
    if not files:
        raise InputError(f"{source}: no file to read is there ({', '.join(_KINDS)})")
    for file in files:
        if file.kind != files[0].kind:
            raise InputError(
                f"{source}: has {files[0].kind} and {file.kind} ({files[0].path.name}, "
                f"{file.path.name}): name the files of one kind, as in '{source}/*.parquet'"
            )
    return tuple(files)


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


def _files_at(path: Path) -> Iterator[SourceFile]:
    """Yield a file, or those of a folder, with the formats that their names tell."""
    if not path.is_dir() and _unpacked(path).suffix.lower() not in _KINDS:
        known = f"{', '.join(_KINDS)}, also with {', '.join(_COMPRESSIONS)}"
        raise InputError(f"{path}: unknown extension {''.join(path.suffixes)!r}, not {known}")
    for file in sorted(path.rglob("*")) if path.is_dir() else [path]:
        ending, names = _unpacked(file).suffix.lower(), file.relative_to(path).parts
        is_log = ending in _KINDS.keys() - {".item", ".user"} and file.is_file()
        if file == path or (is_log and not any(name.startswith(("_", ".")) for name in names)):
            yield SourceFile(file, _KINDS[ending], _COMPRESSIONS.get(file.suffix.lower()))


def _refuse_table(path: Path) -> None:
    for folder in (path, *path.absolute().parents, *filter(Path.is_dir, path.rglob("*"))):
        for kind, mark in _TABLES.items():
            if next(folder.glob(mark), None) is not None:
                raise InputError(
                    f"{folder}: is a table of {kind}, whose files also have rows that were removed "
                    "or rewritten: read it with its own library and pass the frame"
                )


def _unpacked(path: Path) -> Path:
    """Return the path without the ending of a compression."""
    return path.with_suffix("") if path.suffix.lower() in _COMPRESSIONS else path
