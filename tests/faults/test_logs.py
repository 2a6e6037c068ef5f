"""Logs that no program wrote: each ends in a dataset, or in one line."""

from __future__ import annotations

import random
import tempfile
from collections.abc import Callable
from pathlib import Path

import polars as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st

from recsys.data.prepared import PreparedDataset, prepare
from recsys.errors import InputError

CELLS = st.one_of(
    st.sampled_from(["u1", "u2", "1", "2", "", "NULL", "2020-01-01", "1e9", "-0", "inf", "007"]),
    st.text(max_size=6),
    st.integers().map(str),
)


def try_to_prepare(file: Path, out: Path) -> None:
    try:
        assert isinstance(prepare(file, out=out), PreparedDataset)
    except InputError as error:
        assert str(error).isprintable()  # noqa: PT017 - either outcome is right


@given(
    rows=st.lists(st.lists(CELLS, min_size=2, max_size=4), max_size=12),
    header=st.sampled_from(["user_id,item_id,timestamp", "user,item,time", "a,b,c", ""]),
    ending=st.sampled_from([".csv", ".tsv", ".txt", ".jsonl"]),
)
def test_any_rows(rows: list[list[str]], header: str, ending: str) -> None:
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder, f"log{ending}")
        lines = [header, *map(",".join, rows)]
        file.write_text("\n".join(lines), encoding="utf-8", errors="replace")
        try_to_prepare(file, Path(folder, "data"))


@pytest.mark.parametrize("ending", [".parquet", ".csv", ".jsonl"])
def test_damaged_logs(
    ending: str, tiny_log: pl.DataFrame, tmp_path: Path, budget: Callable[[int, int], int]
) -> None:
    file, chance, trials = tmp_path / f"log{ending}", random.Random(0), budget(40, 2000)  # noqa: S311
    if ending == ".parquet":
        tiny_log.write_parquet(file)
    elif ending == ".csv":
        tiny_log.write_csv(file)
    else:
        tiny_log.write_ndjson(file)
    content = file.read_bytes()
    for trial in range(trials):
        damaged = bytearray(content)
        for _ in range(chance.randint(1, 3)):
            damaged[chance.randrange(len(content))] ^= 1 << chance.randrange(8)
        file.write_bytes(damaged[: chance.randrange(len(content))] if trial % 5 == 0 else damaged)
        try_to_prepare(file, tmp_path / "data")
