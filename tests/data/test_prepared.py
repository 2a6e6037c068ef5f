"""The prepared dataset: its content by hand, and that damaged folders are refused."""

from __future__ import annotations

import errno
import json
import os
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import numpy as np
import pandas as pd
import polars as pl
import pytest

from recsys.config.data import DataConfig
from recsys.data.prepared import PreparedDataset, prepare
from recsys.errors import InputError
from recsys.folders import file_sha256, tree_sha256
from tests.helpers.logs import log_of, log_of_columns

# Users a, b, c, d have 4, 3, 2 and 1 interactions. Items 8 and 9 occur only as test targets.
LOG = log_of(
    [
        *[("a", 5, 1), ("a", 3, 2), ("a", 5, 3), ("a", 9, 4)],
        *[("b", 3, 1), ("b", 7, 2), ("b", 3, 3)],
        *[("c", 7, 1), ("c", 8, 2)],
        ("d", 3, 1),
    ]
)


@pytest.fixture
def dataset(tmp_path: Path) -> PreparedDataset:
    return prepare(LOG, DataConfig(), tmp_path / "out")


def lists(histories: Any) -> list[list[int]]:
    return [histories[b : b + 1].items.tolist() for b in range(len(histories))]


def test_content_by_hand(dataset: PreparedDataset) -> None:
    assert dataset.item_table.to_dict(as_series=False) == {"item_id": [3, 5, 7]}
    assert dataset.user_ids.to_list() == ["a", "b", "c", "d"]
    assert dataset.items.tolist() == [2, 1, 2, 0, 1, 3, 1, 3, 0, 1]
    assert dataset.timestamps.tolist() == [1, 2, 3, 4, 1, 2, 3, 1, 2, 1]
    assert dataset.offsets.tolist() == [0, 4, 7, 9, 10]
    assert dataset.cuts.tolist() == [[2, 3, 4], [1, 2, 3], [1, 1, 2], [1, 1, 1]]
    sizes = {"rows_read": 10, "interactions": 10, "users": 4, "items": 3, "outside_catalogue": 2}
    assert dataset.manifest.counts == {**sizes, "train": 5, "valid": 2, "test": 3}
    assert (dataset.num_users, dataset.num_items) == (4, 3)
    assert dataset.vocabulary.encode([7, 9]).tolist() == [3, 0]
    for array in (dataset.items, dataset.timestamps, dataset.offsets, dataset.cuts):
        assert isinstance(array, np.memmap)
        assert not array.flags.writeable
    assert lists(dataset.histories("valid")) == [[2, 1], [1], [3], [1]]
    assert lists(dataset.histories("test")) == [[2, 1, 2], [1, 3], [3], [1]]
    valid, test = dataset.holdout("valid"), dataset.holdout("test")
    assert (valid.users.tolist(), valid.targets.tolist(), valid.dropped) == ([0, 1], [2, 3], 0)
    assert (test.users.tolist(), test.targets.tolist(), test.dropped) == ([1], [1], 2)
    assert (lists(valid.histories), lists(test.histories)) == ([[2, 1], [1]], [[1, 3]])


def test_a_dataset_is_reused_or_replaced(dataset: PreparedDataset) -> None:
    before = (dataset.path / "items.npy").stat().st_ino
    prepare(LOG, DataConfig(), dataset.path)
    assert (dataset.path / "items.npy").stat().st_ino == before
    sku = prepare(LOG.rename({"item_id": "sku"}), DataConfig(encoding="cp1252"), dataset.path)
    assert (sku.manifest.columns.item_id, sku.config.encoding) == ("sku", "cp1252")
    again = prepare(LOG, DataConfig(min_user_interactions=3), dataset.path)
    assert again.user_ids.to_list() == ["a", "b"]
    assert dataset.items.tolist()[:4] == [2, 1, 2, 0], "what is open stays readable"
    assert [path.name for path in dataset.path.parent.iterdir()] == ["out"]
    for name in ("late", "later"):  # of item 9, which only the test part has
        items = pl.DataFrame({"item_id": [3, 9], "name": ["early", name]})
        again = prepare(LOG.with_columns(n=1), DataConfig(keep=("n",)), dataset.path, items=items)
        assert name in again.outside["name"].to_list()
    prepare(LOG.with_columns(n=2), DataConfig(keep=("n",)), dataset.path)
    with pytest.raises(InputError, match="has been written anew since it was opened"):
        _ = again.interaction_table
    skus, items = LOG.rename({"item_id": "sku"}), items.with_columns(sku=9)
    with pytest.raises(InputError, match="leave out 'item_id' or 'sku': only one can hold"):
        prepare(skus, out=dataset.path, items=items, item="sku")


def test_the_fingerprint_is_stable(tmp_path: Path) -> None:
    """Runs are compared by their fingerprints, which change only with the format version."""
    users, times = [1, 1, 1, 1, 2, 2, 2, 3, 3, 4], [1, 1, 2, 3, 1, 2, 3, 4, 5, 6]
    log = log_of_columns(users, list("abcaabdcde"), times)
    expected = "105dfcb3a38802b76739c2104eee47ccd6b8bdab7c9eea773bb263f3eb50f3fc"
    assert prepare(log, DataConfig(), tmp_path / "out").fingerprint == expected


def test_the_fingerprint_covers_only_settings_and_content(tmp_path: Path) -> None:
    LOG.write_csv(tmp_path / "log.csv")
    LOG.write_parquet(tmp_path / "log.parquet")
    frames = [LOG, pd.DataFrame(LOG.to_dict(as_series=False)), LOG.lazy()]
    sources: list[Any] = [*frames, tmp_path / "log.csv", str(tmp_path / "log.parquet")]
    config = DataConfig(source="unused")
    prints = {prepare(s, config, tmp_path / f"{n}").fingerprint for n, s in enumerate(sources)}
    assert len(prints) == 1
    more = DataConfig(min_user_interactions=2)
    assert prepare(LOG, more, tmp_path / "more").fingerprint not in prints


@pytest.mark.parametrize("harm", ["truncate", "version"])
def test_a_damaged_or_old_dataset_is_replaced(harm: str, dataset: PreparedDataset) -> None:
    expected = dataset.items.tolist()
    damage(dataset.path, harm)
    assert prepare(LOG, DataConfig(), dataset.path).items.tolist() == expected


def test_a_dataset_with_other_files_is_not_replaced(dataset: PreparedDataset) -> None:
    (dataset.path / "notes.txt").write_text("mine")
    with pytest.raises(InputError, match=r"left alone: notes\.txt is not part of a prepared"):
        prepare(LOG, DataConfig(min_user_interactions=2), dataset.path)
    assert PreparedDataset.open(dataset.path).num_users == 4
    damage(dataset.path, "empty")
    with pytest.raises(InputError, match="left alone: .* not the manifest"):
        prepare(LOG, out=dataset.path)


@pytest.mark.parametrize("content", [None, "other.txt", "manifest.json"])
def test_something_else_is_left_alone(content: str | None, tmp_path: Path) -> None:
    out = tmp_path / "mine"
    if content is None:
        out.write_text("work")
    else:
        out.mkdir()
        (out / content).write_text("{}")
    before = sorted(tmp_path.rglob("*"))
    with pytest.raises(InputError, match="mine: exists and is left alone"):
        prepare(LOG, out=out)
    assert sorted(tmp_path.rglob("*")) == before


@pytest.fixture
def readonly_folder() -> Iterator[Path]:
    """Return a folder that the process may not write in, even if tests run as root."""
    with tempfile.TemporaryDirectory(dir="/tmp") as name:
        folder = Path(name)
        folder.chmod(0o555)
        user = os.geteuid()
        if user == 0:
            os.seteuid(65_534)
        yield folder
        if user == 0:
            os.seteuid(0)
        folder.chmod(0o755)


def test_a_folder_that_cannot_be_written(readonly_folder: Path) -> None:
    out = readonly_folder / "deep" / "out"
    with pytest.raises(InputError) as caught:
        prepare(LOG, out=out)
    assert str(caught.value) == f"{out}: cannot be written: Permission denied"


def test_a_full_disk_leaves_the_old_dataset(
    dataset: PreparedDataset, monkeypatch: pytest.MonkeyPatch
) -> None:
    full = OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
    monkeypatch.setattr(np, "save", Mock(side_effect=full))
    with pytest.raises(InputError, match="out: cannot be written: the disk is full"):
        prepare(LOG, DataConfig(min_user_interactions=2), dataset.path)
    assert [path.name for path in dataset.path.parent.iterdir()] == ["out"]
    assert PreparedDataset.open(dataset.path).num_users == 4


def damage(folder: Path, harm: str) -> None:
    manifest = folder / "manifest.json"
    match harm:
        case "truncate":
            (folder / "items.npy").write_bytes((folder / "items.npy").read_bytes()[:-4])
        case "version":
            tree = json.loads(manifest.read_text()) | {"format_version": 0, "of_old": True}
            manifest.write_text(json.dumps(tree))
        case "manifest":
            manifest.write_text(manifest.read_text()[:99])
        case "empty":  # what a power cut can leave
            manifest.write_text("")
        case "flip":
            manifest.write_text(manifest.read_text().replace('"rows_read": 10', '"rows_read": 90'))
        case "outside":
            tree = json.loads(manifest.read_text())
            tree["files"] = {"../../etc/passwd": "0"} | tree["files"]
            manifest.write_text(json.dumps(tree | {"digest": tree_sha256(tree)}))
        case "link":
            (folder / "cuts.npy").unlink()
            (folder / "cuts.npy").symlink_to("/proc/kmsg")  # reading it never ends
        case "none":
            manifest.unlink()


@pytest.mark.parametrize(
    ("harm", "words"),
    [
        ("truncate", r"items\.npy: SHA-256 [0-9a-f]{64} is not [0-9a-f]{64} of manifest\.json"),
        ("version", r"format version 0, and this library reads 3; prepare the dataset again"),
        ("manifest", r"manifest\.json: not the manifest of a prepared dataset"),
        ("flip", r"manifest\.json: the manifest was changed or is damaged; prepare the dataset"),
        ("outside", r"etc/passwd: missing, or no regular file"),
        ("link", r"cuts\.npy: missing, or no regular file"),
        ("none", r"not a prepared dataset: it has no manifest\.json"),
    ],
)
def test_open_refuses_damaged_datasets(harm: str, words: str, dataset: PreparedDataset) -> None:
    damage(dataset.path, harm)
    with pytest.raises(InputError, match=words) as caught:
        PreparedDataset.open(dataset.path)
    assert str(dataset.path) in str(caught.value)
    assert "\n" not in str(caught.value)


def forge(folder: Path, name: str, array: np.ndarray[Any, Any]) -> None:
    """Replace an array, and make the manifest fit."""
    np.save(folder / name, array)
    manifest = folder / "manifest.json"
    tree = json.loads(manifest.read_text())
    tree["files"][name] = file_sha256(folder / name)
    manifest.write_text(json.dumps(tree | {"digest": tree_sha256(tree)}))


@pytest.mark.parametrize(
    ("name", "change", "words"),
    [
        ("items", lambda a: a - 6, r"items\.npy: item tokens must be from 0 to 3"),
        ("items", lambda a: a.astype(np.int64), r"items\.npy: must be int32 .*, not int64"),
        ("timestamps", lambda a: a[:-1], r"timestamps\.npy: must be int64 \(10,\), not int64 \(9,"),
        ("offsets", lambda a: a + 1, r"offsets\.npy: must ascend from 0 to 10"),
        ("offsets", lambda a: a[:-1], r"offsets\.npy: must be int64 \(5,\), not int64 \(4,\)"),
        ("offsets", lambda a: a[[0, 2, 1, 3, 4]], r"offsets\.npy: must ascend from 0 to 10"),
        ("cuts", lambda a: a[:, :2], r"cuts\.npy: must be int32 \(4, 3\), not int32 \(4, 2\)"),
        ("cuts", lambda a: a[:, ::-1], r"cuts\.npy: must ascend from 0 to"),
    ],
)
def test_open_refuses_arrays_that_do_not_fit(
    name: str,
    change: Callable[[np.ndarray[Any, Any]], np.ndarray[Any, Any]],
    words: str,
    dataset: PreparedDataset,
) -> None:
    """The checksums fit: only the structure says that an index would leave its array."""
    forge(dataset.path, f"{name}.npy", change(np.load(dataset.path / f"{name}.npy")))
    with pytest.raises(InputError, match=words) as caught:
        PreparedDataset.open(dataset.path)
    assert "\n" not in str(caught.value)


@pytest.mark.realdata
@pytest.mark.parametrize(
    ("name", "users", "items", "targets", "dropped"),
    [("ml-100k", 943, 1_679, 940, 3), ("online-retail-ii", 5_881, 4_630, 5_762, 1)],
)
def test_real_logs(
    name: str, users: int, items: int, targets: int, dropped: int, mirror: Path, tmp_path: Path
) -> None:
    dataset = prepare(name, DataConfig(), tmp_path / "out")
    test = dataset.holdout("test")
    assert (dataset.num_users, dataset.num_items) == (users, items)
    assert (len(test.targets), test.dropped, len(test.histories)) == (targets, dropped, targets)
