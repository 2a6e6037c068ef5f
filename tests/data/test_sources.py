"""Named datasets: read from a folder or a URL, verified by checksum, cleaned as described."""

from __future__ import annotations

import hashlib
from datetime import datetime
from pathlib import Path

import polars as pl
import pytest

from recsys.config.data import Columns, DataConfig
from recsys.data import sources
from recsys.data.sources import DATASETS, NamedDataset, find_named_dataset, read_named
from recsys.errors import InputError
from tests.read_logs import read

LOG = pl.DataFrame({"user_id": [1, 1], "item_id": [2, 3], "when": [5, 4]})
NAMES = [dataset.name for dataset in DATASETS]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Return a mirror with the file tiny.parquet."""
    path = tmp_path / "mirror"
    path.mkdir()
    LOG.write_parquet(path / "tiny.parquet")
    return path


@pytest.fixture
def tiny(folder: Path, monkeypatch: pytest.MonkeyPatch) -> NamedDataset:
    """Add a named dataset; the environment names no mirror."""
    checksum = hashlib.sha256((folder / "tiny.parquet").read_bytes()).hexdigest()
    dataset = NamedDataset(
        name="tiny",
        description="two rows",
        homepage="https://example.org/tiny",
        licence="none",
        interactions=2,
        users=1,
        items=2,
        files=("tiny.parquet",),
        read=lambda path: (pl.read_parquet(path), None),
        columns=Columns(timestamp="when"),
    )
    monkeypatch.setattr(sources, "DATASETS", (*DATASETS, dataset))
    monkeypatch.setitem(sources.SHA256, "tiny.parquet", checksum)
    monkeypatch.delenv("RECSYS_MIRROR", raising=False)
    return dataset


def items_of(mirror: Path | str | None) -> list[int]:
    log, items = read_named(named("tiny"), None if mirror is None else str(mirror))
    assert items is None
    return log.sort("user_id", "when")["item_id"].to_list()


def named(name: str) -> NamedDataset:
    dataset = find_named_dataset(name)
    assert dataset is not None
    return dataset


def test_files_are_those_of_a_folder(
    tiny: NamedDataset, folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(InputError) as caught:
        items_of(tmp_path)
    for word in ["tiny.parquet", str(tmp_path), "RECSYS_MIRROR", "https://example.org/tiny"]:
        assert word in str(caught.value)
    assert items_of(folder) == [3, 2]
    monkeypatch.setenv("RECSYS_MIRROR", str(folder))
    assert items_of(None) == [3, 2]
    LOG.head(1).write_parquet(folder / "tiny.parquet")
    found = hashlib.sha256((folder / "tiny.parquet").read_bytes()).hexdigest()
    with pytest.raises(InputError, match=f"{found} is not {sources.SHA256['tiny.parquet']}"):
        items_of(None)


@pytest.mark.parametrize(
    ("wrong", "hint"),
    [
        ("ml1m", "did you mean 'ml-1m'?"),
        ("amazon-beuty", "did you mean 'amazon-beauty'?"),
        ("qqq", f"the datasets are {', '.join(NAMES)}"),
    ],
)
def test_unknown_name(wrong: str, hint: str) -> None:
    with pytest.raises(InputError) as caught:
        find_named_dataset(wrong)
    assert str(caught.value) == f"{wrong}: neither a file nor a named dataset; {hint}"


def test_online_retail_cleaning(tmp_path: Path) -> None:
    day = datetime(2010, 1, 1)
    lines = [
        ("1", "A", "LAMP", 1, day, 7),
        ("1", "B", None, 1, day, 7),
        ("2", "A", "lamp?", 2, day, 8),
        ("3", "A", "LAMP", 1, day, 8),
        ("C4", "A", "LAMP", -1, day, 8),
        ("C5", "D", "odd", 1, day, 8),
        ("6", "E", "gone", 0, day, 8),
        ("7", "F", "guest", 1, day, None),
    ]
    names = ["InvoiceNo", "StockCode", "Description", "Quantity", "InvoiceDate", "CustomerID"]
    pl.DataFrame(lines, schema=names, orient="row").write_parquet(tmp_path / "log.parquet")
    dataset = DATASETS[NAMES.index("online-retail-ii")]
    log, items = dataset.read(tmp_path / "log.parquet")
    assert log["InvoiceNo"].to_list() == ["1", "1", "2", "3"]
    assert items is not None
    assert items.rows(named=True) == [{"item_id": "A", "description": "LAMP"}]


@pytest.mark.realdata
@pytest.mark.parametrize(
    "name", [name for name in NAMES if name not in ("shop", "online-retail-ii-lines")]
)
def test_counts_as_described(name: str, mirror: Path) -> None:
    dataset = DATASETS[NAMES.index(name)]
    _, items = read_named(dataset, str(mirror))
    table = read(name, DataConfig()).table()
    assert len(table) == dataset.interactions
    assert table["user_id"].n_unique() == dataset.users
    assert table["item_id"].n_unique() == dataset.items
    assert (items is not None) == (name in ("ml-1m", "online-retail-ii"))
