"""What cannot be prepared or written has a clear one-line message, and nothing is written."""

from __future__ import annotations

import contextlib
import os
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import polars as pl
import pytest

from recsys.config import DataConfig
from recsys.data.prepared import prepare
from recsys.errors import InputError
from tests.read_logs import read_plain

LOG = pl.DataFrame({"user_id": 1, "item_id": range(3), "timestamp": range(3)})


def refused(source: Any, out: Path, config: DataConfig | None = None) -> str:
    """Return the message with which `prepare` refuses a source."""
    before = sorted(out.parent.rglob("*"))
    with pytest.raises(InputError) as caught:
        prepare(source, config, out)
    assert sorted(out.parent.rglob("*")) == before, "something was written"
    message = str(caught.value)
    assert "\n" not in message
    return message


def test_damaged_parquet(tmp_path: Path) -> None:
    """A file cut anywhere, or with any byte flipped, is read completely or refused in one line."""
    path = tmp_path / "log.parquet"
    table = pl.DataFrame({"user_id": range(50), "item_id": range(50), "timestamp": range(50)})
    table.write_parquet(path)
    content = path.read_bytes()
    for length in range(1, len(content), 97):
        path.write_bytes(content[:length])
        assert f"{path}: cannot be read as Parquet" in refused(path, tmp_path / "out")
    for index in range(0, len(content), 61):
        damaged = bytearray(content)
        damaged[index] ^= 0xFF
        path.write_bytes(damaged)
        with contextlib.suppress(InputError):  # no other exception
            read_plain(path)


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


def test_readonly_output(readonly_folder: Path) -> None:
    message = refused(LOG, readonly_folder / "deep" / "out")
    assert message == f"{readonly_folder / 'deep' / 'out'}: cannot be written: Permission denied"


@pytest.mark.parametrize("content", [None, "other.txt", "manifest.json"])
def test_output_is_something_else(content: str | None, tmp_path: Path) -> None:
    out = tmp_path / "mine"
    if content is None:
        out.write_text("work")
    else:
        out.mkdir()
        (out / content).write_text("{}")
    assert f"{out}: exists and is left alone" in refused(LOG, out)
