"""Filters over item columns, caps and diversity, similar items, embeddings, and their commands."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest
from polars.testing import assert_frame_equal

from recsys.baselines.transitions import MARKOV_CHAIN
from recsys.baselines.tuned import BASELINES
from recsys.data.prepared import PreparedDataset, prepare
from recsys.errors import InputError
from recsys.serving.bundle import ModelBundle
from recsys.serving.recommender import Recommender
from tests.helpers.commands import refused, run_json
from tests.helpers.logs import log_of_histories

ITEMS = pl.DataFrame(
    {
        "item_id": ["boots", "gloves", "hat", "jacket", "socks"],
        "kind": ["shoe", "hand", None, "coat", "shoe"],
        "price": [80.0, 20.5, 30.0, None, 5.0],
        "code": ["1", "20", "3", "4", "x"],
        "tags": [["warm"], ["warm"], ["red"], ["red"], ["warm", "red"]],
    }
)
HISTORIES: dict[str, list[str]] = {"ann": ["hat", "gloves"], "bob": ["socks"], "new": []}


@pytest.fixture(scope="module")
def bundle(
    tiny_bundle: ModelBundle, tiny_log: pl.DataFrame, tmp_path_factory: pytest.TempPathFactory
) -> ModelBundle:
    folder = tmp_path_factory.mktemp("described")
    dataset = prepare(tiny_log, out=folder / "data", items=ITEMS)
    model, experiment = tiny_bundle.model, tiny_bundle.experiment
    return ModelBundle.write(folder / "bundle", model, experiment, dataset, ("train",))


@pytest.fixture(scope="module")
def recommender(bundle: ModelBundle) -> Recommender:
    return Recommender(bundle)


@pytest.fixture
def log(tmp_path: Path) -> Path:
    log_of_histories(HISTORIES).write_csv(tmp_path / "log.csv")
    return tmp_path / "log.csv"


@pytest.mark.parametrize(
    ("where", "expected"),
    [
        ("kind == 'shoe'", ["boots", "socks"]),
        ("kind == 'shoe' and price < 80", ["socks"]),
        ("kind != 'shoe'", ["gloves", "jacket"]),  # the kind of the hat is missing
        ("price >= 20.5", ["boots", "gloves", "hat"]),
        ("item_id in ('hat', 'socks') or price > 79.9", ["boots", "hat", "socks"]),
        ("count > 1", ["boots", "gloves", "hat"]),
    ],
)
def test_a_condition_over_columns_of_the_items(
    recommender: Recommender, where: str, expected: list[str]
) -> None:
    everything = recommender.recommend(HISTORIES, k=5, seen="allow")
    answer = recommender.recommend(HISTORIES, k=5, seen="allow", where=where)
    wanted = everything.filter(pl.col("item_id").is_in(expected))
    assert_frame_equal(answer.drop("rank"), wanted.drop("rank"), abs_tol=1e-5)
    allowed = recommender.recommend(HISTORIES, k=5, seen="allow", where=where, deny=["boots"])
    assert set(allowed["item_id"]) == {*expected} - {"boots"}


@pytest.mark.parametrize(
    ("where", "message"),
    [
        (
            "kynd == 'shoe'",
            r"^where .*no column 'kynd' \(text stands in single quotes\)",
        ),
        ("price <", "^where 'price <': cannot be read as SQL"),
        ("price > 100", "^where 'price > 100': holds for none of the 5 items"),
    ],
)
def test_a_wrong_condition_is_refused_in_one_line(
    recommender: Recommender, where: str, message: str
) -> None:
    with pytest.raises(InputError, match=message) as error:
        recommender.recommend(HISTORIES, k=2, where=where)
    assert "\n" not in str(error.value)


def test_the_command_filters_by_condition_and_files(
    recommender: Recommender, log: Path, tmp_path: Path
) -> None:
    table = pl.DataFrame({"item_id": ["boots", "socks", "gloves"], "why": ["a", "b", "c"]})
    table.write_csv(tmp_path / "allow.csv")
    table.filter(item_id="gloves").write_parquet(tmp_path / "deny.parquet")
    shown = run_json(
        *("recommend", recommender.bundle.path, log, "-k", 4, "--where", "price > 1"),
        *("--allow", tmp_path / "allow.csv", "--deny", tmp_path / "deny.parquet"),
    )
    expected = recommender.recommend(
        pl.read_csv(log), k=4, where="price > 1", allow=["boots", "socks"]
    )
    assert_frame_equal(pl.DataFrame(shown), expected, check_dtypes=False, abs_tol=1e-5)
    assert set(expected["item_id"]) == {"boots", "socks"}


def test_caps_leave_the_best_items_of_each_value(recommender: Recommender, log: Path) -> None:
    everything = recommender.recommend(HISTORIES, k=5, seen="allow")
    capped = recommender.recommend(HISTORIES, k=5, seen="allow", at_most={"kind": 1})
    for user in HISTORIES:
        best, own = (table.filter(user_id=user) for table in (everything, capped))
        shoes = best.filter(pl.col("item_id").is_in(["boots", "socks"]))["item_id"]
        left = best.filter(pl.col("item_id") != shoes[1])
        assert own["item_id"].to_list() == left["item_id"].to_list()
        assert own["rank"].to_list() == [1, 2, 3, 4]
    shown = run_json("recommend", recommender.bundle.path, log, "-k", 5, "--at-most", "kind=1")
    expected = recommender.recommend(pl.read_csv(log), k=5, at_most={"kind": 1})
    assert_frame_equal(pl.DataFrame(shown), expected, check_dtypes=False, abs_tol=1e-5)
    for value in ("kind", "kind=two"):
        message = refused("recommend", recommender.bundle.path, log, "--at-most", value)
        assert message.startswith(f"--at-most {value}: give a column and a whole number")


def test_diversity_follows_its_definition(recommender: Recommender, log: Path) -> None:
    vectors = recommender.embeddings("items")["embedding"].to_numpy()
    vectors = vectors / np.linalg.norm(vectors, axis=1, keepdims=True)
    ids = ITEMS["item_id"].to_list()
    for user, history in HISTORIES.items():
        everything = recommender.recommend({user: history}, k=5, seen="allow")
        scores = dict(zip(everything["item_id"], everything["score"], strict=True))
        low, high = min(scores.values()), max(scores.values())
        chosen = [everything["item_id"][0]]
        while len(chosen) < 5:
            merits = {
                item: 0.4 * (score - low) / (high - low)
                - 0.6 * max(float(vectors[ids.index(item)] @ vectors[ids.index(o)]) for o in chosen)
                for item, score in scores.items()
                if item not in chosen
            }
            chosen.append(max(merits, key=lambda item: merits[item]))
        answer = recommender.recommend({user: history}, k=5, seen="allow", diversity=0.6)
        assert answer["item_id"].to_list() == chosen
        assert answer["score"].to_list() == pytest.approx([scores[item] for item in chosen])
    shown = run_json("recommend", recommender.bundle.path, log, "-k", 3, "--diversity", 0.6)
    expected = recommender.recommend(pl.read_csv(log), k=3, diversity=0.6)
    assert_frame_equal(pl.DataFrame(shown), expected, check_dtypes=False, abs_tol=1e-5)


@pytest.mark.parametrize(
    ("rules", "message"),
    [
        ({"diversity": 1.5}, "diversity=1.5: must be from 0 to 1"),
        ({"at_most": {"kynd": 2}}, "at_most: no column 'kynd' among"),
        ({"at_most": {"kind": 1.5}}, "at_most: kind=1.5: must be a whole number"),
        ({"at_most": {"tags": 1}}, "at_most: tags=1: .* of single values"),
    ],
)
def test_wrong_rules_of_diversity_are_refused(
    recommender: Recommender, rules: dict[str, Any], message: str
) -> None:
    with pytest.raises(InputError, match=message):
        recommender.recommend(HISTORIES, k=2, **rules)


def test_a_baseline_has_caps_but_no_embeddings(
    bundle: ModelBundle, tiny_dataset: PreparedDataset
) -> None:
    baseline = BASELINES["markov"].fit(tiny_dataset, "test", MARKOV_CHAIN)
    counts = Recommender(replace(bundle, trained=None, baseline=baseline))
    assert counts.recommend([["hat"]], k=2, at_most={"kind": 1})["item_id"].len() == 2
    with pytest.raises(InputError, match="holds the baseline"):
        counts.recommend([["hat"]], k=2, diversity=0.1)
    for of in ("items", [["hat"]]):
        with pytest.raises(InputError, match="holds the baseline"):
            counts.embeddings(of)


def test_embeddings_of_histories_score_items_by_dot_products(tiny_dot_bundle: ModelBundle) -> None:
    recommender = Recommender(tiny_dot_bundle)
    items = recommender.embeddings("items")["embedding"].to_numpy()
    table = recommender.embeddings(HISTORIES)
    assert table["user_id"].to_list() == ["ann", "bob", "new"]
    assert table["embedding"].is_null().to_list() == [False, False, True]
    found = table["embedding"].drop_nulls().to_numpy() @ items.T
    scores = recommender.score({"ann": HISTORIES["ann"], "bob": ["socks"]}, ITEMS["item_id"])
    np.testing.assert_allclose(found.ravel(), scores["score"].to_numpy(), atol=1e-5)


def test_the_command_writes_embeddings(recommender: Recommender, log: Path, tmp_path: Path) -> None:
    items, users = recommender.embeddings(), recommender.embeddings(log)
    for given, table in (([], items), ([log], users)):
        missing = [float("nan")] * 8
        matrix = np.array([row or missing for row in table["embedding"].to_list()], np.float32)
        for suffix in ("csv", "parquet"):
            out = tmp_path / f"vectors.{suffix}"
            shown = run_json("embeddings", recommender.bundle.path, *given, "--out", out)
            assert shown == [{"file": str(out), "rows": len(table)}]
        assert_frame_equal(pl.read_parquet(tmp_path / "vectors.parquet"), table, abs_tol=1e-5)
        flat = pl.read_csv(tmp_path / "vectors.csv")
        assert flat.columns == [table.columns[0], *(f"e{d}" for d in range(8))]
        numbers = flat.drop(table.columns[0]).cast(pl.Float32).fill_null(float("nan")).to_numpy()
        np.testing.assert_allclose(numbers, matrix, atol=1e-5)
    out = tmp_path / "vectors.txt"
    message = refused("embeddings", recommender.bundle.path, "--out", out)
    assert message == f"{out}: can write .parquet, .csv, not .txt"


def test_the_command_shows_similar_items(recommender: Recommender) -> None:
    shown = run_json("similar", recommender.bundle.path, "hat", "-k", 2)
    expected = recommender.similar_items("hat", k=2)
    assert_frame_equal(pl.DataFrame(shown), expected, check_dtypes=False, abs_tol=1e-6)
    assert "'hats' is not in" in refused("similar", recommender.bundle.path, "hats")
