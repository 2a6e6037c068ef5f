"""Answers for any number of users: by parts, in bounded memory, and resumed after a kill."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import polars as pl
import pytest
from polars.testing import assert_frame_equal
from typer.testing import CliRunner

from recsys.cli import app
from recsys.data.prepared import PreparedDataset
from recsys.errors import InputError
from recsys.serving import answer_parts, large_answers, user_ranges
from recsys.serving.bundle import ModelBundle
from recsys.serving.large_answers import LargeAnswer
from recsys.serving.large_scores import LargeScores
from recsys.serving.recommender import Recommender

ITEMS = ["boots", "gloves", "hat", "jacket", "socks", "scarf"]


def run(*arguments: object) -> str:
    result = CliRunner().invoke(app, [str(argument) for argument in arguments])
    assert result.exit_code == 0, result.output or result.exception
    return result.stdout


def refused(*arguments: object) -> str:
    result = CliRunner().invoke(app, [str(argument) for argument in arguments])
    assert isinstance(result.exception, InputError), result.output
    return str(result.exception)


def shuffled_log(users: list[Any]) -> pl.DataFrame:
    """Rows of all users among each other; times ascend, with some equal ones."""
    rows = [
        (users[(7 * n) % len(users)], ITEMS[(5 * n + n // 4) % len(ITEMS)], n // 2)
        for n in range(6 * len(users))
    ]
    return pl.DataFrame(rows, schema=["user_id", "item_id", "timestamp"], orient="row")


@pytest.fixture
def recommender(tiny_bundle: ModelBundle, tiny_dataset: PreparedDataset) -> Recommender:
    return Recommender.load(tiny_bundle.path, tiny_dataset.path)


@pytest.fixture
def small_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(user_ranges, "ROWS_PER_PART", 16)
    monkeypatch.setattr(user_ranges, "_BATCH", 7)
    monkeypatch.setattr(user_ranges, "_SAMPLED", 3)
    monkeypatch.setattr(large_answers, "_ANSWER_ROWS", 6)
    monkeypatch.setattr(large_answers, "_MOST_USERS", 2)


@pytest.mark.usefixtures("small_parts")
@pytest.mark.parametrize("suffix", ["parquet", "csv"])
@pytest.mark.parametrize("users", [list(range(98, 109)), [f"u{n}" for n in range(11)]])
def test_a_divided_log_gets_the_answer_of_the_whole_log(
    recommender: Recommender, suffix: str, users: list[Any], tmp_path: Path
) -> None:
    log, out = shuffled_log(users), tmp_path / f"best.{suffix}"
    source = tmp_path / f"log.{suffix}"
    log.write_csv(source) if suffix == "csv" else log.write_parquet(source)
    shown = run("recommend", recommender.bundle.path, source, "-k", 3, "--out", out, "--json")
    expected = recommender.recommend(log, k=3)
    found = pl.read_csv(out) if suffix == "csv" else pl.read_parquet(out)
    assert json.loads(shown) == [{"file": str(out), "rows": len(expected)}]
    assert_frame_equal(found, expected, abs_tol=1e-5, check_dtypes=suffix == "parquet")
    assert not list(tmp_path.glob("*.parts"))


@pytest.mark.usefixtures("small_parts")
def test_all_users_of_a_dataset_are_answered_by_parts(
    recommender: Recommender, tmp_path: Path
) -> None:
    assert recommender.dataset is not None
    out = tmp_path / "best.parquet"
    known = ["--data", recommender.dataset.path, "-k", 4]
    run("recommend", recommender.bundle.path, *known, "--out", out)
    assert_frame_equal(pl.read_parquet(out), recommender.recommend(k=4), abs_tol=1e-5)


@pytest.mark.usefixtures("small_parts")
def test_a_run_that_was_ended_goes_on(recommender: Recommender, tmp_path: Path) -> None:
    log, source, out = (
        shuffled_log(list(range(11))),
        tmp_path / "log.csv",
        tmp_path / "best.parquet",
    )
    log.write_csv(source)
    answered: list[Any] = []

    def answer(queries: Any) -> pl.DataFrame:
        answered.extend(queries.user_ids)
        if len(answered) == ends_at:
            raise KeyboardInterrupt
        return pl.DataFrame(recommender.recommend(queries, k=3))

    large = LargeAnswer(recommender, out, {"k": 3}, source)
    ends_at = 8
    with pytest.raises(KeyboardInterrupt):
        large.by_user("recommending", answer, 3)
    assert not out.exists()
    first, ends_at = len(answered), -1
    large.by_user("recommending", answer, 3)
    assert first < len(answered) < first + 11  # the finished parts were not made again
    assert_frame_equal(pl.read_parquet(out), recommender.recommend(log, k=3), abs_tol=1e-5)


@pytest.mark.usefixtures("small_parts")
def test_parts_of_another_request_are_refused(recommender: Recommender, tmp_path: Path) -> None:
    source, out = tmp_path / "log.csv", tmp_path / "best.parquet"
    shuffled_log(list(range(11))).write_csv(source)

    def interrupt(_: Any) -> pl.DataFrame:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        LargeAnswer(recommender, out, {"k": 3}, source).by_user("recommending", interrupt, 3)
    with pytest.raises(InputError, match=r"best.parquet.parts: holds parts of another answer \(k"):
        LargeAnswer(recommender, out, {"k": 4}, source).by_user("recommending", interrupt, 4)
    assert "holds parts of another answer (" in refused(
        "recommend", recommender.bundle.path, source, "--out", out
    )


@pytest.mark.usefixtures("small_parts")
def test_a_corrected_request_need_not_delete_anything(
    recommender: Recommender, tmp_path: Path
) -> None:
    source, out = tmp_path / "log.csv", tmp_path / "best.parquet"
    shuffled_log(list(range(11))).write_csv(source)
    known = ["recommend", recommender.bundle.path, source, "--out", out]
    assert "k=9: must be from 1 to 5" in refused(*known, "-k", 9)
    run(*known, "-k", 3)


@pytest.mark.usefixtures("small_parts")
def test_an_error_in_a_part_names_the_log_and_the_users(
    recommender: Recommender, tmp_path: Path
) -> None:
    source = tmp_path / "log.csv"
    log = shuffled_log(list(range(11))).cast({"timestamp": pl.String})
    times = [*log["timestamp"][:-1], "soon"]
    log.with_columns(timestamp=pl.Series(times)).write_csv(source)
    message = refused(
        "recommend", recommender.bundle.path, source, "-k", 3, "--out", tmp_path / "b.csv"
    )
    assert message.startswith(f"{source}, among the rows of users")
    assert "neither a number nor an ISO 8601 date: 'soon'" in message
    assert not (tmp_path / "b.csv").exists()


@pytest.mark.usefixtures("small_parts")
@pytest.mark.parametrize("users", [list(range(98, 109)), [f"u{n}" for n in range(11)]])
def test_scores_come_in_the_order_of_the_candidates(
    recommender: Recommender,
    users: list[Any],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(answer_parts, "_ROWS", 10)
    log, source, out = shuffled_log(users), tmp_path / "log.csv", tmp_path / "scores.csv"
    log.write_csv(source)
    pairs = log.select("user_id", "item_id").reverse()
    strangers = pl.DataFrame({"user_id": [users[0]], "item_id": ["tie"]})
    pairs = pl.concat([strangers, pairs, strangers])
    pairs.write_parquet(tmp_path / "pairs.parquet")
    files = [source, tmp_path / "pairs.parquet"]
    run("score", recommender.bundle.path, *files, "--out", out)
    expected = recommender.score(log, pairs)
    assert_frame_equal(pl.read_csv(out), expected, abs_tol=1e-5, check_dtypes=False)
    message = refused("score", recommender.bundle.path, *files, "--strict", "--out", out)
    assert "candidate item 'tie' is not in the catalogue" in message
    out.unlink()
    items = ["--item", "hat", "--item", "boots"]
    run("score", recommender.bundle.path, source, *items, "--out", out)
    expected = recommender.score(log, ["hat", "boots"])
    assert_frame_equal(pl.read_csv(out), expected, abs_tol=1e-5, check_dtypes=False)


@pytest.mark.usefixtures("small_parts")
def test_candidates_of_users_of_a_dataset_are_scored_by_parts(
    recommender: Recommender, tiny_log: pl.DataFrame, tmp_path: Path
) -> None:
    assert recommender.dataset is not None
    pairs, out = tmp_path / "pairs.csv", tmp_path / "scores.parquet"
    wanted = pl.concat(
        [
            tiny_log.select("user_id", "item_id").reverse(),
            pl.DataFrame({"user_id": ["zoe"], "item_id": ["hat"]}),
        ]
    )
    wanted.write_csv(pairs)
    known = ["score", recommender.bundle.path, "--data", recommender.dataset.path]
    run(*known, pairs, "--out", out)
    expected = recommender.score(candidates=wanted)
    assert_frame_equal(pl.read_parquet(out), expected, abs_tol=1e-5)
    run(*known, "--user", "ann", pairs, "--out", out)
    expected = recommender.score(users=["ann"], candidates=wanted)
    assert_frame_equal(pl.read_parquet(out), expected, abs_tol=1e-5)


@pytest.mark.parametrize("command", ["recommend", "score"])
def test_a_column_that_the_division_needs_is_refused(
    recommender: Recommender, command: str, tmp_path: Path
) -> None:
    log = tmp_path / "log.csv"
    shuffled_log([1, 2]).with_columns(__row=1).write_csv(log)
    files = [log, log] if command == "score" else [log]
    message = refused(command, recommender.bundle.path, *files, "--out", tmp_path / "out.csv")
    assert message == f"{log}: rename the column '__row': the name is needed here"


@pytest.mark.usefixtures("small_parts")
def test_scores_go_on_where_a_run_was_ended(
    recommender: Recommender, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    log, out = shuffled_log(list(range(11))), tmp_path / "scores.parquet"
    log.write_csv(tmp_path / "log.csv")
    pairs = log.select("user_id", "item_id").filter(pl.col("item_id") != "scarf")
    pairs.write_csv(tmp_path / "pairs.csv")
    large = LargeAnswer(recommender, out, {}, tmp_path / "log.csv")
    scored = Recommender.score
    calls: list[int] = []

    def score(self: Recommender, *arguments: Any, **options: Any) -> Any:
        calls.append(1)
        if len(calls) == 3:
            raise KeyboardInterrupt
        return scored(self, *arguments, **options)

    with monkeypatch.context() as patch:
        patch.setattr(Recommender, "score", score)
        with pytest.raises(KeyboardInterrupt):
            LargeScores(large).of_table(tmp_path / "pairs.csv")
        parts = len(list((tmp_path / "scores.parquet.parts").glob("candidates/candidates-*")))
        LargeScores(large).of_table(tmp_path / "pairs.csv")
    assert parts > 3
    assert len(calls) == parts + 1  # the two finished parts were not scored again
    assert_frame_equal(pl.read_parquet(out), recommender.score(log, pairs), abs_tol=1e-5)


def test_an_answer_needs_users(recommender: Recommender, tmp_path: Path) -> None:
    assert recommender.dataset is not None
    out = ["--out", tmp_path / "best.parquet"]
    assert "give either histories or users" in refused("recommend", recommender.bundle.path, *out)
    assert "can write .parquet and .csv" in refused(
        *("recommend", recommender.bundle.path, "--data", recommender.dataset.path),
        *("--out", tmp_path / "best.xlsx"),
    )
