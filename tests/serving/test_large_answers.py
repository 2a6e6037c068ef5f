"""Answers for any number of users, some at a time: those of all at once, in their order."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import polars as pl
import pytest
from polars.testing import assert_frame_equal
from typer.testing import CliRunner

from recsys.cli import app
from recsys.errors import InputError
from recsys.serving import files
from recsys.serving.recommender import Recommender

ITEMS = ["boots", "gloves", "hat", "jacket", "socks", "scarf"]


@pytest.fixture(autouse=True)
def two_users_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(files, "_USERS", 2)


def run(*words: object) -> str:
    result = CliRunner().invoke(app, [str(word) for word in words], catch_exceptions=False)
    assert result.exit_code == 0, result.output
    return result.stdout


@pytest.mark.parametrize("suffix", ["parquet", "csv"])
@pytest.mark.parametrize("users", [list(range(98, 109)), [f"u{n}" for n in range(11)]])
def test_the_users_of_a_log_are_answered(
    recommender: Recommender, suffix: str, users: list[Any], tmp_path: Path
) -> None:
    rows = [(user, ITEMS[(5 * n + n // 4) % 6], n // 2) for n, user in enumerate(6 * users[::-1])]
    log = pl.DataFrame(rows, schema=["user_id", "item_id", "timestamp"], orient="row")
    source, out = tmp_path / "log.parquet", tmp_path / f"best.{suffix}"
    log.write_parquet(source)
    shown = run("recommend", recommender.bundle.path, source, "-k", 3, "--out", out, "--json")
    expected = recommender.recommend(log, k=3)
    assert json.loads(shown) == [{"file": str(out), "rows": len(expected)}]
    found = pl.read_csv(out) if suffix == "csv" else pl.read_parquet(out)
    assert_frame_equal(found, expected, abs_tol=1e-5, check_dtypes=suffix == "parquet")


@pytest.mark.parametrize("users", [None, ["eve", "ann", "dan"]])
def test_users_of_a_dataset_are_answered(
    recommender: Recommender, users: list[str] | None, tmp_path: Path
) -> None:
    assert recommender.dataset is not None
    out, words = tmp_path / "best.parquet", [f"--user={user}" for user in users or ()]
    data = ["--data", recommender.dataset.path]
    run("recommend", recommender.bundle.path, *data, *words, "-k", 4, "--seen=allow", "--out", out)
    expected = recommender.recommend(users=users, k=4, seen="allow")
    assert_frame_equal(pl.read_parquet(out), expected, abs_tol=1e-5)


def test_what_cannot_be_written_is_refused_before_the_work(
    recommender: Recommender, tmp_path: Path
) -> None:
    words = ["recommend", str(recommender.bundle.path), "--out", str(tmp_path / "best.txt")]
    result = CliRunner().invoke(app, words)
    assert isinstance(result.exception, InputError)
    assert "can write .parquet, .csv, not .txt" in str(result.exception)
    result = CliRunner().invoke(app, [*words[:-1], str(tmp_path / "best.csv")])
    assert "give either histories or users, or load a dataset" in str(result.exception)
    assert not list(tmp_path.iterdir())
