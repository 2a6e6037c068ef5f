"""The commands that answer with a trained bundle, and the dataset that one is evaluated on."""

from __future__ import annotations

import logging
from dataclasses import replace
from pathlib import Path
from typing import Any

import polars as pl
import pytest
from polars.testing import assert_frame_equal

from recsys.cli import answers
from recsys.data.prepared import PreparedDataset, prepare
from recsys.errors import InputError
from recsys.evaluation.held_out import find_holdout
from recsys.evaluation.tables import evaluate
from recsys.serving.bundle import ModelBundle, for_evaluation
from recsys.serving.recommender import Recommender
from tests.helpers.commands import refused, run, run_json
from tests.helpers.logs import log_of, log_of_histories

ITEMS = ["boots", "gloves", "hat", "jacket", "socks", "scarf"]


@pytest.mark.parametrize("suffix", ["parquet", "csv"])
def test_users_are_answered_some_at_a_time(
    recommender: Recommender,
    tiny_dataset: PreparedDataset,
    suffix: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(answers, "_USERS", 2)
    users = range(98, 109)
    rows = [(user, ITEMS[(5 * n + n // 4) % 6], n // 2) for n, user in enumerate([*users] * 6)]
    log = log_of(rows)
    source, out = tmp_path / "log.parquet", tmp_path / f"best.{suffix}"
    log.write_parquet(source)
    data, few = ("--data", tiny_dataset.path), ["eve", "ann", "dan"]
    sources: list[tuple[tuple[object, ...], dict[str, Any]]] = [
        ((source,), {"histories": log}),
        (data, {}),
        ((*data, *(f"--user={user}" for user in few)), {"users": few}),
    ]
    for words, arguments in sources:
        shown = run_json("recommend", recommender.bundle.path, *words, "-k", 3, "--out", out)
        expected = recommender.recommend(**arguments, k=3)
        assert shown == [{"file": str(out), "rows": len(expected)}]
        found = pl.read_csv(out) if suffix == "csv" else pl.read_parquet(out)
        assert_frame_equal(found, expected, abs_tol=1e-5, check_dtypes=suffix == "parquet")


def test_commands_refuse_in_one_line(
    tiny_bundle: ModelBundle, tiny_dataset: PreparedDataset, tmp_path: Path
) -> None:
    best, score = ("recommend", tiny_bundle.path, "--out"), ("score", tiny_bundle.path)
    assert "can write .parquet, .csv, not .txt" in refused(*best, tmp_path / "best.txt")
    assert "give either histories or users, or load" in refused(*best, tmp_path / "best.csv")
    assert not list(tmp_path.iterdir())
    data = ("--data", tiny_dataset.path)
    assert "give HISTORIES and CANDIDATES here, not 0 files" in refused(*score)
    assert "give HISTORIES here, not 2 files" in refused(*score, "a", "b", "--item", "hat")
    assert "give CANDIDATES here" in refused(*score, *data)
    known = (*score, *data, "--user", "ann", "--item", "boots", "--item", "scarf")
    assert len(run_json(*known)) == 1
    assert "'scarf' is not in the catalogue" in refused(*known, "--strict")


def test_a_table_is_cut_and_names_the_items(
    tiny_bundle: ModelBundle, tiny_dataset: PreparedDataset
) -> None:
    shown = run("recommend", tiny_bundle.path, "--data", tiny_dataset.path, "-k", 5)
    lines = shown.splitlines()
    rows = len(Recommender.load(tiny_bundle.path, tiny_dataset.path).recommend(k=5))
    assert rows < 20
    assert len(lines) == 1 + rows
    assert "Snow boots" in shown
    many = [argument for n in range(7) for argument in ("--item", ["hat", "boots", "socks"][n % 3])]
    shown = run("score", tiny_bundle.path, "--data", tiny_dataset.path, *many)
    lines = shown.splitlines()
    assert len(lines) == 1 + 20 + 1
    assert lines[-1] == "… 22 more rows: --out FILE"
    one = [argument for _ in range(25) for argument in ("--item", "hat")]
    shown = run("score", tiny_bundle.path, "--data", tiny_dataset.path, "--user", "ann", *one)
    assert len(shown.splitlines()) == 1 + 25  # all of the first user
    assert len(run_json("score", tiny_bundle.path, "--data", tiny_dataset.path, *many)) == 42


@pytest.fixture
def later(tmp_path: Path) -> PreparedDataset:
    """Other users at later times; tokens differ, since the anorak comes first in the alphabet."""
    purchases = {
        7: ["anorak", "socks", "hat", "anorak"],
        8: ["hat", "socks", "boots"],
        9: ["anorak", "hat", "anorak"],
    }
    return prepare(log_of_histories(purchases, start=100), out=tmp_path / "later")


def test_a_bundle_is_evaluated_on_a_later_log(
    tiny_bundle: ModelBundle, later: PreparedDataset, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING):
        mapped = for_evaluation(tiny_bundle, later, "test")
    (message,) = caplog.messages
    assert "2 of 3 test targets are not in the model's catalogue and are left out" in message
    holdout = find_holdout(mapped, "test", "unknown")
    assert tiny_bundle.vocabulary.decode(holdout.targets).to_list() == ["boots"]
    assert tiny_bundle.vocabulary.decode(holdout.histories.items).to_list() == ["hat", "socks"]
    table = evaluate(tiny_bundle.scorer, holdout, "test", "allow")
    best = Recommender(tiny_bundle).recommend([["hat", "socks"]], k=5, seen="allow")
    assert table.frame["rank"].to_list() == best.filter(item_id="boots")["rank"].to_list()
    assert run_json("evaluate", tiny_bundle.path, "--data", later.path)[0]["metric"]


def test_targets_that_training_may_have_seen_are_warned_of(
    tiny_bundle: ModelBundle,
    tiny_dataset: PreparedDataset,
    later: PreparedDataset,
    caplog: pytest.LogCaptureFixture,
) -> None:
    assert tiny_bundle.manifest.trained_until == 1  # the newest of the training part
    earlier = replace(later, timestamps=later.timestamps - 101)
    unknown = tiny_bundle.manifest.model_copy(update={"trained_until": None})
    for bundle, dataset in (
        (tiny_bundle, earlier),
        (replace(tiny_bundle, manifest=unknown), later),
    ):
        caplog.clear()
        with caplog.at_level(logging.WARNING):
            for_evaluation(bundle, dataset, "test")
        assert "it may have seen some of them" in caplog.messages[-1]
    refitted = tiny_bundle.manifest.model_copy(update={"trained_on": ("train", "valid")})
    with pytest.raises(InputError, match="trained on the validation targets too"):
        for_evaluation(replace(tiny_bundle, manifest=refitted), tiny_dataset, "valid")
