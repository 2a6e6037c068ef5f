"""Recommending and scoring: raw ids in, raw ids out."""

from __future__ import annotations

import logging
import multiprocessing
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import polars as pl
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from polars.testing import assert_frame_equal

from recsys.config.data import Columns, DataConfig
from recsys.data.prepared import PreparedDataset
from recsys.errors import InputError
from recsys.inference import model_scorer
from recsys.inference import scorer as scorer_module
from recsys.model.heads import CandidateRepresentation, TargetAttentionHead
from recsys.model.models import ModelInputs
from recsys.serving.bundle import ModelBundle
from recsys.serving.recommender import Recommender

ITEMS = ["boots", "gloves", "hat", "jacket", "socks"]
HISTORY = st.lists(st.sampled_from(ITEMS), max_size=6)


def model_scores(recommender: Recommender, history: list[str]) -> dict[str, float]:
    tokens = torch.tensor([[ITEMS.index(item) + 1 for item in history[-3:]]])
    model, lengths = recommender.bundle.model, torch.tensor([tokens.shape[1]])
    with torch.inference_mode():
        candidates = model.head.represent_candidates(model.items.weight)
        last = model.head.select_last(model(ModelInputs(tokens, lengths)), lengths)
        scores = model.head.score_last(last, candidates)
    return dict(zip(ITEMS, scores[0, 1:].tolist(), strict=True))


def test_the_best_of_the_model_come_first(recommender: Recommender) -> None:
    history = ["gloves", "hat", "boots", "hat"]
    expected = model_scores(recommender, history)
    best = sorted(ITEMS, key=lambda item: -expected[item])
    answer = recommender.recommend({"zoe": history}, k=5, seen="allow")
    assert answer.columns == ["user_id", "item_id", "score", "rank", "source"]
    assert answer["item_id"].to_list() == best
    assert answer["score"].to_list() == pytest.approx([expected[item] for item in best], abs=1e-5)
    assert answer["rank"].to_list() == [1, 2, 3, 4, 5]
    assert set(answer["source"]) == {"model"}
    assert set(answer["user_id"]) == {"zoe"}
    assert_frame_equal(recommender.recommend({"zoe": history}, seen="allow"), answer)


def test_names_of_items_are_found(tiny_bundle: ModelBundle) -> None:
    for columns, shown in (
        (["name", "title", "price"], ["name", "title"]),
        (["Title", "description"], ["Title"]),
        (["price", "Product Name"], ["Product Name"]),
        (["price", "description"], []),
    ):
        table = pl.DataFrame({column: ["x"] for column in columns})
        assert replace(tiny_bundle, item_table=table).name_columns == shown


def test_seen_items_are_left_out_unless_allowed(
    recommender: Recommender, tiny_bundle: ModelBundle
) -> None:
    history = ["gloves", "hat", "boots", "hat"]  # gloves lie outside the window of three
    filtered = recommender.recommend([history], k=5)
    assert sorted(filtered["item_id"]) == ["jacket", "socks"]
    assert filtered["rank"].to_list() == [1, 2]
    experiment = tiny_bundle.experiment
    evaluation = experiment.evaluation.model_copy(update={"seen": "allow"})
    allowed = experiment.model_copy(update={"evaluation": evaluation})
    allowing = Recommender(replace(tiny_bundle, experiment=allowed))
    assert len(allowing.recommend([history], k=5)) == 5
    assert_frame_equal(allowing.recommend([history], k=5, seen="filter"), filtered)


@given(histories=st.lists(HISTORY, max_size=6), k=st.integers(1, 5))
def test_a_batch_equals_one_by_one_and_holds_no_padding(
    recommender: Recommender, histories: list[list[str]], k: int
) -> None:
    batch = recommender.recommend(dict(enumerate(histories)), k=k, seen="allow")
    assert len(batch) == k * len(histories)
    assert batch["item_id"].null_count() == 0
    for user, history in enumerate(histories):
        alone = recommender.recommend({user: history}, k=k, seen="allow")
        together = batch.filter(pl.col("user_id") == user)
        assert_frame_equal(alone, together, abs_tol=1e-5)


def test_unknown_items_are_counted_and_an_empty_history_is_answered_from_popularity(
    recommender: Recommender, caplog: pytest.LogCaptureFixture
) -> None:
    histories = {"new": [], "ann": ["boots", "scarf", "hat"], "odd": ["scarf", "tie"]}
    with caplog.at_level(logging.WARNING):
        read = recommender.read_histories(histories)
    assert read.skipped.tolist() == [0, 1, 2]
    assert caplog.messages == ["3 of 5 history items are not in the catalogue and were skipped"]
    answer = recommender.recommend(read, k=4)
    for user in ("new", "odd"):
        popular = answer.filter(pl.col("user_id") == user)
        assert popular["item_id"].to_list() == ["boots", "gloves", "hat", "jacket"]
        assert popular["score"].to_list() == [2, 2, 2, 1]
        assert set(popular["source"]) == {"popularity"}
    clean = recommender.recommend({"ann": ["boots", "hat"]}, k=4)
    assert_frame_equal(answer.filter(user_id="ann"), clean)


def test_frames_come_back_as_the_callers_kind(
    recommender: Recommender, tiny_log: pl.DataFrame
) -> None:
    answer = recommender.recommend(tiny_log, k=2)
    assert isinstance(answer, pl.DataFrame)
    assert isinstance(recommender.recommend(tiny_log.lazy(), k=2), pl.DataFrame)
    panda = recommender.recommend(tiny_log.to_pandas(), k=2)
    assert isinstance(panda, pd.DataFrame)
    assert_frame_equal(pl.from_pandas(panda), answer)
    arrow = recommender.recommend(tiny_log.to_arrow(), k=2)
    assert_frame_equal(pl.DataFrame(arrow), answer)
    pairs = pd.DataFrame({"user_id": [0], "item_id": ["hat"]})
    assert isinstance(recommender.score([["boots"]], pairs), pd.DataFrame)
    assert isinstance(recommender.score(tiny_log, pairs.assign(user_id="ann")), pl.DataFrame)


def test_users_of_the_dataset_have_their_full_history(
    recommender: Recommender, tiny_log: pl.DataFrame
) -> None:
    answer = recommender.recommend(users=["cat", "ann", "cat"], k=3)
    expected = recommender.recommend(
        {"cat": ["gloves", "boots", "jacket"], "ann": ["boots", "gloves", "hat", "jacket"]}, k=3
    )
    assert_frame_equal(answer, expected)
    assert recommender.read_histories(users=["eve"]).skipped.tolist() == [1]  # the scarf
    later = recommender.recommend([["socks"], []], users=["cat", "eve"], k=2, seen="allow")
    alone = {"cat": ["gloves", "boots", "jacket", "socks"]}
    expected = recommender.recommend(alone, k=2, seen="allow")
    assert_frame_equal(later.filter(user_id="cat"), expected)
    assert len(recommender.recommend(users=[], k=3)) == 0


def test_scores_are_the_models_in_the_order_of_the_candidates(recommender: Recommender) -> None:
    histories = {"x": ["hat", "boots"], "y": ["socks"], "new": []}
    pairs = pl.DataFrame(
        {"user_id": ["y", "x", "new", "x", "y"], "item_id": ["hat", "hat", "hat", "socks", "boots"]}
    )
    answer = recommender.score(histories, pairs)
    assert_frame_equal(answer.select("user_id", "item_id"), pairs)
    assert answer["source"].to_list() == ["model", "model", "popularity", "model", "model"]
    expected = [
        2.0 if user == "new" else model_scores(recommender, histories[user])[item]
        for user, item in pairs.iter_rows()
    ]
    assert answer["score"].to_list() == pytest.approx(expected, abs=1e-5)
    for_all = recommender.score(histories, ["jacket", "boots"])
    assert for_all["item_id"].to_list() == ["jacket", "boots"] * 3
    by_id = recommender.score(users=["dan"], candidates=["boots"])["score"].item()
    assert by_id == pytest.approx(model_scores(recommender, ["socks", "jacket"])["boots"], abs=1e-5)
    assert len(recommender.score([["hat"]])) == 0


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"users": ["anne"]}, "user 'anne' is not in the dataset$"),
        ({"histories": [["hat"]], "users": ["ann", "bob"]}, "1 lists for 2 users"),
        ({"histories": {"a": ["hat"]}, "users": ["ann"]}, "with users, give a list of item ids"),
        ({"histories": [[], []], "users": ["ann", "ann"]}, "each may be given once"),
        ({"histories": [["hat"]], "k": 6}, "k=6: must be from 1 to 5, the size of the catalogue"),
        ({"histories": [["hat"]], "k": 5.0}, "k=5.0: must be a whole number"),
        ({"histories": [["hat"]], "k": True}, "k=True: must be a whole number"),
        ({"histories": [["hat"]], "k": 2, "retrieve": "3"}, "retrieve='3': must be a whole number"),
        ({"histories": [["hat"]], "seen": "alow"}, "seen='alow': must be 'filter' or 'allow'"),
        ({"histories": [["hat"]], "deny": {"ann": ["hat"]}}, "generate: items for all users"),
        (
            {"histories": [["hat"]], "allow": pl.DataFrame({"user_id": ["x"], "item_id": ["hat"]})},
            "allow, deny, generate: items for all users",
        ),
        ({"histories": ["hat"]}, "history of user 0: a list of item ids, not 'hat'"),
        ({"histories": [["hat", None]]}, "histories: an id is missing"),
        ({"histories": [[1.5]]}, "histories: ids are integers or text, not 1.5"),
        ({"histories": 3}, "histories: cannot be read: "),
        ({"histories": pl.DataFrame({"user_id": [1]})}, "histories: no column 'item_id'"),
        ({"candidates": ["hat", None]}, "candidate items: an id is missing"),
        ({"candidates": [["hat"], "hat"]}, "candidates of user 1: a list of item ids, not .hat."),
        ({"candidates": {"x": ["hat"]}}, "user 'x' is not in the histories"),
        ({"candidates": pl.DataFrame({"item_id": ["hat"], "x": 1})}, "no column 'user_id' among"),
    ],
)
def test_wrong_arguments_are_refused_in_one_line(
    recommender: Recommender, arguments: dict[str, Any], message: str
) -> None:
    ask: Any = recommender.recommend
    if "candidates" in arguments:
        ask, arguments = recommender.score, {"histories": [["hat"]], **arguments}
    with pytest.raises(InputError, match=message) as error:
        ask(**arguments)
    assert "\n" not in str(error.value)


def test_unknown_candidates_are_counted_named_and_left_out(
    recommender: Recommender, caplog: pytest.LogCaptureFixture
) -> None:
    pairs = pl.DataFrame(
        [(0, "scarf"), (0, "hat"), (4, "hat"), (0, "tie"), (0, "cap"), (0, "tie"), (0, "gown")],
        schema=["user_id", "item_id"],
        orient="row",
    )
    with caplog.at_level(logging.WARNING):
        answer = recommender.score([["boots"]], pairs)
    assert answer.select("user_id", "item_id").rows() == [(0, "hat")]
    items, users = caplog.messages
    assert "5 of 7 candidates are left out: candidate item 'scarf', 'tie', 'cap', … is not" in items
    assert users == "1 of 7 candidates are left out: user 4 is not in the histories"
    assert len(recommender.score([["boots"], ["hat"]], ["scarf", "hat"])) == 2
    with pytest.raises(InputError, match="user 4 is not in the histories"):
        recommender.score([["hat"]], pairs.filter(item_id="hat"), strict=True)
    for nothing_known in (["scarf", "tie"], pairs.with_columns(user_id=7)):
        with pytest.raises(InputError, match="is not in the"):
            recommender.score([["hat"]], nothing_known)


BASKETS = {
    "ann": ["hat"],
    "bob": ["boots", "gloves"],
    "new": [],
    "dan": ["socks", "socks", "hat"],
    "eve": ["gloves", "jacket"],
}
PAIR = {"user_id": pl.String, "item_id": pl.String}


@pytest.fixture
def items_scored(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How many items the head has read, call by call; a catalogue is read once for all users."""
    counts: list[int] = []
    represent: Callable[..., CandidateRepresentation] = TargetAttentionHead.represent_candidates

    def count(head: TargetAttentionHead, embeddings: torch.Tensor) -> CandidateRepresentation:
        counts.append(embeddings.shape[:-1].numel())
        return represent(head, embeddings)

    monkeypatch.setattr(TargetAttentionHead, "represent_candidates", count)
    monkeypatch.setattr(model_scorer, "MOST_CANDIDATES", 1)
    return counts


def test_only_the_candidates_are_scored(recommender: Recommender, items_scored: list[int]) -> None:
    fresh = Recommender.load(recommender.bundle.path)  # has represented no catalogue yet
    pairs = [("dan", "hat"), ("ann", "boots"), ("dan", "socks"), ("dan", "boots"), ("new", "hat")]
    fresh.score(BASKETS, pl.DataFrame(pairs, schema=PAIR, orient="row"))
    assert sum(items_scored) == 4  # the pair of the empty history needs no model
    items_scored.clear()
    fresh.score(BASKETS, ["hat", "socks"])
    assert sum(items_scored) == 2  # the same for all users, so once
    items_scored.clear()
    fresh.recommend(BASKETS, k=1)
    assert sum(items_scored) == 5 + 1  # the catalogue and PAD


@given(
    pairs=st.lists(
        st.tuples(st.sampled_from(sorted(BASKETS)), st.sampled_from(ITEMS)), max_size=20
    ),
    users_per_batch=st.integers(1, 3),
)
def test_scores_of_pairs_are_those_of_the_catalogue(
    recommender: Recommender, pairs: list[tuple[str, str]], users_per_batch: int
) -> None:
    candidates = pl.DataFrame(pairs, schema=PAIR, orient="row")
    best = recommender.recommend(BASKETS, k=5, seen="allow")
    scores = {(user, item): score for user, item, score in best.select(best.columns[:3]).rows()}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(scorer_module, "ELEMENTS_PER_BATCH", 1)
        patch.setattr(scorer_module, "FEWEST_USERS", users_per_batch)
        answer = recommender.score(BASKETS, candidates)
    assert_frame_equal(answer.select("user_id", "item_id"), candidates)
    assert answer["score"].to_list() == pytest.approx([scores[pair] for pair in pairs], abs=1e-5)


HISTORIES = {"x": ["hat", "boots"], "y": ["socks"], "new": []}
PAIRS = [("x", "socks"), ("x", "hat"), ("y", "boots")]


@pytest.mark.parametrize(
    "candidates",
    [
        {"x": ["socks", "hat"], "new": [], "y": ("boots",)},
        pl.DataFrame(PAIRS, schema=["user_id", "item_id"], orient="row"),
        pl.DataFrame(PAIRS, schema=["who", "what"], orient="row").with_columns(query=1),
        pd.DataFrame(PAIRS, columns=["who", "item_id"]),
    ],
)
def test_candidates_come_for_each_user_in_any_form(
    tiny_bundle: ModelBundle, candidates: Any
) -> None:
    data = DataConfig(columns=Columns(user_id="who", item_id="what", timestamp="at"))
    experiment = tiny_bundle.experiment.model_copy(update={"data": data})
    answer = pl.DataFrame(
        Recommender(replace(tiny_bundle, experiment=experiment)).score(HISTORIES, candidates)
    )
    assert answer.select("user_id", "item_id").rows() == PAIRS
    expected = Recommender(tiny_bundle).score(HISTORIES, ["socks", "hat", "boots"])
    scores = {(user, item): score for user, item, score, _ in expected.rows()}
    assert answer["score"].to_list() == pytest.approx([scores[pair] for pair in PAIRS], abs=1e-5)


def test_all_users_of_the_dataset_are_answered(
    recommender: Recommender, tiny_dataset: PreparedDataset
) -> None:
    answer = recommender.recommend(k=1)
    assert answer["user_id"].to_list() == tiny_dataset.user_ids.to_list()
    pairs = pl.DataFrame({"user_id": ["eve", "nobody", "ann"], "item_id": ["hat", "hat", "socks"]})
    scored = recommender.score(candidates=pairs)
    assert scored["user_id"].to_list() == ["eve", "ann"]
    assert_frame_equal(scored, recommender.score(users=["ann", "eve"], candidates=pairs))
    with pytest.raises(InputError, match="give either histories or users, or load a dataset"):
        Recommender(recommender.bundle).recommend()
    with pytest.raises(InputError, match="users are looked up in a prepared dataset"):
        Recommender(recommender.bundle).recommend(users=["ann"])
    with pytest.raises(InputError, match="users are looked up in a prepared dataset"):
        Recommender(recommender.bundle).recommend("log.csv", users=["ann"])


def test_a_user_of_the_dataset_is_explained(recommender: Recommender) -> None:
    parts = recommender.explain(user="bob", item="socks")
    assert parts["contribution"].is_sorted(descending=True)
    history = ["boots", "hat", "boots", "socks"]
    assert_frame_equal(parts, recommender.explain(history, "socks"))
    log = pl.DataFrame({"user_id": 1, "item_id": history, "timestamp": range(4)})
    assert_frame_equal(parts, pl.DataFrame(recommender.explain(log.to_pandas(), "socks")))
    for arguments in ({"item": "socks"}, {"history": history, "user": "bob", "item": "hat"}):
        with pytest.raises(InputError, match="give either a history or a user, and the item"):
            recommender.explain(**arguments)
    with pytest.raises(InputError, match="history: of one user, not of 6"):
        recommender.explain(recommender.read_histories(), "socks")


@pytest.mark.parametrize("retrieve", [None, 3])
def test_only_allowed_items_are_recommended(
    recommender: Recommender, retrieve: int | None, caplog: pytest.LogCaptureFixture
) -> None:
    histories: dict[str, list[str]] = {"ann": ["hat"], "new": []}
    everything = recommender.recommend(histories, k=5, seen="allow")
    for arguments, allowed in (
        ({"allow": ["boots"]}, ["boots"]),
        ({"allow": pl.Series(["boots", "hat", "socks"])}, ["boots", "hat", "socks"]),
        ({"allow": ["boots", "hat", "socks"], "deny": ["hat", "tie"]}, ["boots", "socks"]),
        ({"deny": pl.DataFrame({"item_id": ["hat", "gloves"]})}, ["boots", "jacket", "socks"]),
    ):
        answer = recommender.recommend(
            histories,
            k=3,
            seen="allow",
            retrieve=retrieve,
            **arguments,
        )
        expected = everything.filter(pl.col("item_id").is_in(allowed))
        assert_frame_equal(answer.drop("rank"), expected.drop("rank"), abs_tol=1e-5)
        assert answer["rank"].to_list() == list(range(1, len(allowed) + 1)) * 2
    assert "1 denied items are unknown, such as 'tie'" in caplog.text
    assert len(recommender.recommend({"ann": ["hat"]}, k=3, allow=["hat"])) == 0  # seen
    with pytest.raises(InputError, match="allowed item 'scarf' is not in the catalogue"):
        recommender.recommend(histories, k=3, allow=["scarf"])


def test_similar_items_have_the_largest_cosine(recommender: Recommender) -> None:
    table = recommender.embeddings("items")
    assert table["item_id"].to_list() == ITEMS
    weights = recommender.bundle.model.items.weight[1:].detach().numpy()
    np.testing.assert_array_equal(table["embedding"].to_numpy(), weights)
    lengths = np.linalg.norm(weights, axis=1)
    cosines = weights @ weights[1] / (lengths * lengths[1])
    best = [item for item in np.argsort(-cosines) if item != 1]
    similar = recommender.similar_items("gloves", k=3)
    assert similar.columns == ["item_id", "name", "similarity", "rank"]
    assert similar["item_id"].to_list() == [ITEMS[item] for item in best[:3]]
    assert similar["similarity"].to_list() == pytest.approx(cosines[best[:3]].tolist(), abs=1e-6)
    assert len(recommender.similar_items("gloves")) == 4
    with pytest.raises(InputError, match="k=0: must be at least 1"):
        recommender.similar_items("gloves", k=0)
    with pytest.raises(InputError, match="k='5': must be a whole number"):
        recommender.similar_items("gloves", k="5")  # type: ignore[arg-type]
    with pytest.raises(InputError, match="item 'glove' is not in the catalogue"):
        recommender.similar_items("glove")


def test_pandas_keeps_its_index_and_gives_series_of_lists(
    recommender: Recommender, tiny_log: pl.DataFrame
) -> None:
    log = tiny_log.to_pandas()
    rows = {"user_id": ["ann", "bob", "cat"], "item_id": ["hat", "tie", "socks"]}
    candidates = pd.DataFrame(rows, index=[9, 4, 0])
    assert recommender.score(log, candidates).index.tolist() == [9, 0], "the tie is unknown"
    of_one = recommender.score([["hat"]], candidates[["item_id"]])
    assert of_one.index.tolist() == [9, 0]
    lists = log.groupby("user_id")["item_id"].apply(list)
    answer = recommender.recommend(lists, k=2)
    assert_frame_equal(pl.DataFrame(answer), recommender.recommend(lists.to_dict(), k=2))
    joined = lists.head(1).reindex(["ann", "nobody"])
    assert recommender.recommend(joined, k=1)["source"].tolist() == ["model", "popularity"]
    with pytest.raises(InputError, match="'ann' is twice in the index"):
        recommender.recommend(pd.concat([lists, lists.head(1)]))


def _ask(model: Recommender | Path, method: str, *arguments: Any) -> int:
    model = Recommender.load(model) if isinstance(model, Path) else model
    return len(getattr(model, method)(*arguments))


@pytest.mark.filterwarnings("ignore:.*multi-threaded, use of fork:DeprecationWarning")
def test_a_forked_process_says_that_it_would_wait_for_ever(recommender: Recommender) -> None:
    assert _ask(recommender, "recommend", [["hat"]]) == 4
    with multiprocessing.get_context("fork").Pool(1) as pool:
        for arguments in (
            (recommender, "recommend", [["hat"]]),
            (recommender.bundle.path, "recommend", [["hat"]]),
            (recommender, "similar_items", "hat"),
            (recommender, "embeddings"),
        ):
            with pytest.raises(InputError, match=r"get_context\('spawn'\)"):
                pool.apply_async(_ask, arguments).get(timeout=60)
