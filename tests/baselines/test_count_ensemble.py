"""The count ensemble: how it is weighted, saved, scored and explained."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest
import torch
from mlflow import MlflowClient
from safetensors import safe_open
from safetensors.numpy import save_file

from recsys.baselines.count_ensemble import CountEnsemble, choose_count_ensemble
from recsys.baselines.transitions import PCTM, PCTMSettings
from recsys.config.files import parse_experiment
from recsys.config.model import DotProduct, TargetAttention
from recsys.data.histories import Histories
from recsys.data.prepared import PreparedDataset, prepare
from recsys.data.splits import Holdout
from recsys.errors import InputError
from recsys.evaluation.tables import RankTable, evaluate
from recsys.experiments.fit import fit
from recsys.reports.comparison import compare
from recsys.serving.bundle import ModelBundle
from recsys.serving.recommender import Recommender
from tests.conftest import tiny_experiment
from tests.helpers.logs import log_of_histories
from tests.helpers.random_models import random_bundle

HISTORIES = Histories.from_lists([[1, 2, 3], [1, 2], [4, 1, 2], [2, 5]])
SETTINGS = PCTMSettings(prior=0.5, recent_mass=1.0)


class Fixed:
    def __init__(self, *scores: float) -> None:
        self._scores = torch.tensor([-math.inf, *scores])
        self.scored = 0

    @property
    def num_items(self) -> int:
        return len(self._scores) - 1

    def score(self, histories: Histories, candidates: object = None) -> torch.Tensor:
        assert candidates is None
        self.scored += len(histories)
        return self._scores.repeat(len(histories), 1)


def holdout(histories: list[list[int]], targets: list[int]) -> Holdout:
    users = np.arange(len(targets))
    known = Histories.from_lists(histories)
    return Holdout(users, np.array(targets, dtype=np.int32), users, known, dropped=0)


@pytest.fixture
def logged(tmp_path: Path) -> Callable[[Histories], PreparedDataset]:
    def prepared(histories: Histories) -> PreparedDataset:
        lists = [histories[user : user + 1].items.tolist() for user in range(len(histories))]
        log = log_of_histories({user: [*items, 1, 1] for user, items in enumerate(lists)})
        dataset = prepare(log, out=tmp_path / "data")
        assert np.array_equal(dataset.histories("valid").items, histories.items)
        return dataset

    return prepared


@pytest.fixture
def dataset(logged: Callable[[Histories], PreparedDataset]) -> PreparedDataset:
    return logged(HISTORIES)


def count_ensemble(
    weight: float = 2.0, settings: PCTMSettings = SETTINGS, repeat_weight: float = 0.0
) -> CountEnsemble:
    return CountEnsemble(PCTM.fit(HISTORIES, 5, settings), weight, repeat_weight)


def test_pairs_of_known_items_keep_their_counts_as_the_catalogue_grows() -> None:
    known = CountEnsemble(PCTM.fit(Histories.from_lists([[1, 2, 1]]), 2, PCTMSettings()), 1.0)
    grown = Histories.from_lists([[1, 2, 1], [2, 1, 3]])
    counts = known.with_new_items(3, grown, grown).counts.log_counts.toarray()
    assert np.array_equal(counts[:3, :3], known.counts.log_counts.toarray())
    assert counts[1, 3] > 0


@pytest.mark.parametrize("weight", [0.0, 2.0])
def test_scores_are_those_of_the_model_plus_weighted_counts(weight: float) -> None:
    model, history = Fixed(0.1, 0.2, 0.3, 0.4, 0.5), Histories.from_lists([[4, 1, 4]])
    # 2 followed 1 three times at distance 1, and 1 is the whole history: log(1 + 3 / .5) = log 7.
    followed = count_ensemble().added_to(model).score(Histories.from_lists([[1]]))[0]
    assert followed[2].item() == pytest.approx(0.2 + 2 * math.log(7))
    assert followed[4].item() == pytest.approx(0.4)
    assert count_ensemble(weight=0).added_to(model) is model  # 0 times -inf is NaN
    without = count_ensemble(weight).added_to(model).score(history)[0]
    both = count_ensemble(weight, repeat_weight=3.0)
    scores = both.added_to(model).score(history)[0]
    expected = [0, 3 * math.log(2), 0, 0, 3 * math.log(3), 0]
    assert (scores - without)[1:].tolist() == pytest.approx(expected[1:], abs=1e-6)
    assert scores[0].item() == -math.inf
    parts = both.contributions(history.items, 4)
    assert parts.sum() == pytest.approx((scores - model.score(history)[0])[4].item(), abs=1e-5)


def test_repeat_counts_are_weighted_only_if_seen_items_are_ranked(dataset: PreparedDataset) -> None:
    model = Fixed(0.0, 0.0, 0.9, 0.8, 1.0)
    again = holdout([[1, 1, 4], [4, 4]], [1, 4])
    chosen, ranks = choose_count_ensemble(model, dataset, again, "allow", [0.01, 8.0], [SETTINGS])
    assert chosen.repeat_weight == 8
    assert ranks.values("ndcg_at_10").tolist() == [1, 1]
    new = holdout([[1], [4, 1]], [2, 2])
    chosen, _ = choose_count_ensemble(model, dataset, new, "filter", [0.01, 8.0], [SETTINGS])
    assert chosen.repeat_weight == 0


def test_validation_chooses_the_weight(dataset: PreparedDataset) -> None:
    model = Fixed(0.0, 0.0, 0.9, 0.8, 1.0)
    valid = holdout([[1], [4, 1]], [2, 2])
    chosen, ranks = choose_count_ensemble(model, dataset, valid, "filter", [0.01, 1.0], [SETTINGS])
    assert chosen.counts.settings == SETTINGS
    assert chosen.weight == 1.0  # log 7 outweighs .9; a hundredth does not
    assert model.scored == 4 * len(valid.histories)  # transitions, recent, their sum, again
    best = CountEnsemble(PCTM.fit(HISTORIES, 5, SETTINGS), 1.0).added_to(model)
    expected = evaluate(best, valid, "valid", "filter")
    assert ranks.frame.equals(expected.frame)
    assert ranks.protocol == expected.protocol


def test_what_sells_of_late_is_weighted_where_tastes_move_on(
    logged: Callable[[Histories], PreparedDataset], tmp_path: Path
) -> None:
    old, new = [[1, 2, 3, 4]] * 30, [[1, 2, 3, 4, 5]] * 30  # 5 is bought last, and follows all
    dataset = logged(Histories.from_lists([*old, *new]))
    model, valid = Fixed(0.0, 0.0, 0.9, 0.8, 0.5), holdout([[1], [4]], [5, 5])
    ensemble, ranks = choose_count_ensemble(
        model, dataset, valid, "allow", [0.01, 1.0], [SETTINGS], [1.0, 0.1]
    )
    assert ensemble.recent_share == 0.1
    scorer = ensemble.added_to(model)
    assert evaluate(scorer, valid, "valid", "allow").frame.equals(ranks.frame)
    candidates = np.array([5, 4], dtype=np.int32)
    added = ensemble.for_all(candidates)
    assert added[0] > added[1] + 1
    ensemble.save(tmp_path / "counts.safetensors")
    again = CountEnsemble.load(tmp_path / "counts.safetensors", 5)
    assert np.array_equal(again.for_all(candidates), added)


def forged(name: str, change: Callable[[Any], Any]) -> dict[str, Any]:
    counts = count_ensemble().counts
    tensors = {
        "log_counts.offsets": counts.log_counts.indptr.astype(np.int64),
        "log_counts.columns": counts.log_counts.indices.astype(np.int32),
        "log_counts.values": counts.log_counts.data,
        "log_popularity": counts.log_popularity,
    }
    return tensors | {name: np.ascontiguousarray(change(tensors[name]))}


@pytest.mark.parametrize(
    ("name", "change", "words"),
    [
        ("log_counts.columns", lambda a: np.append(a[:-1], np.int32(2**30)), "must be < 6"),
        ("log_counts.values", lambda a: np.append(a[:-1], np.nan), "values must be finite"),
        ("log_counts.offsets", lambda a: a[:-1], "pointer size 6 should be 7"),
        ("log_counts.offsets", lambda a: a[::-1], "offsets must ascend to"),
        ("log_popularity", lambda a: a[:-1], "log_popularity must have a row for each of 5"),
    ],
)
def test_an_index_outside_its_array_is_found_before_it_is_used(
    name: str, change: Callable[[Any], Any], words: str, tmp_path: Path
) -> None:
    """scipy does not look: a column of 2**30 ended the process."""
    file = tmp_path / "count_ensemble.safetensors"
    count_ensemble().save(file)
    with safe_open(file, framework="numpy") as opened:
        metadata = opened.metadata()
    save_file(forged(name, change), file, metadata)
    with pytest.raises(InputError, match=f"cannot be read as a count ensemble: .*{words}"):
        CountEnsemble.load(file, 5)


@pytest.mark.parametrize("head", [TargetAttention(num_heads=2, head_dim=4), DotProduct()])
def test_a_bundle_scores_and_explains_with_its_count_ensemble(
    head: TargetAttention | DotProduct, tiny_dataset: PreparedDataset, tmp_path: Path
) -> None:
    experiment = tiny_experiment(head)
    counts = PCTM.fit(tiny_dataset.histories("valid"), tiny_dataset.num_items, SETTINGS)
    alone = random_bundle(tmp_path / "alone", experiment, tiny_dataset)
    given = CountEnsemble(counts, 2.0, recent_weight=0.5)
    bundle = random_bundle(tmp_path / "both", experiment, tiny_dataset, count_ensemble=given)
    history = ["hat", "boots", "gloves", "boots", "jacket"]  # the model reads the newest three
    tokens = bundle.vocabulary.encode(pl.Series(history))
    followed = counts.score(Histories.from_lists([tokens]))[0].numpy()
    counted = 2 * followed + 0.5 * counts.log_popularity
    for item in ["boots", "socks"]:
        token = bundle.vocabulary.encode(pl.Series([item])).item()
        score = Recommender(bundle).score([history], [item])["score"].item()
        without = Recommender(alone).score([history], [item])["score"].item()
        assert score == pytest.approx(without + counted[token].item(), abs=1e-5)
        parts = Recommender(bundle).explain(history, item)
        assert len(parts) == 5
        whole = parts["contribution"].sum() + parts["rest"][0]
        assert whole == pytest.approx(score, abs=1e-5)


def test_a_run_saves_the_ensemble_and_the_metrics_without_it(
    tiny_dataset: PreparedDataset, tmp_path: Path
) -> None:
    experiment = parse_experiment(
        {
            "model": {"embedding_dim": 8, "num_blocks": 1, "feed_forward_dim": 8},
            "training": {"max_epochs": 1, "refit": True},
            "count_ensemble": {"weights": [1.0]},
            "tracking": {"uri": f"sqlite:///{tmp_path}/mlflow.db"},
        }
    )
    run = fit(experiment, tiny_dataset, tmp_path / "out")
    bundle = ModelBundle.open(run.bundle)
    logged = MlflowClient(experiment.tracking.absolute_uri).get_run(run.run_id).data
    assert bundle.count_ensemble is not None
    assert logged.metrics["count_ensemble_weight"] == bundle.count_ensemble.weight
    assert logged.tags["model"] == "target_attention + counts"
    # Counted, like the refit, on all but the test targets.
    expected = PCTM.fit(tiny_dataset.histories("test"), 5, bundle.count_ensemble.counts.settings)
    assert abs(bundle.count_ensemble.counts.log_counts - expected.log_counts).sum() == 0
    alone = RankTable.load(tmp_path / "out" / "ranks_test_model_alone.parquet")
    assert logged.metrics["test/model_alone_ndcg_at_10"] == alone.values("ndcg_at_10").mean()
    both, model = compare([run.run_id], experiment.tracking).rows
    assert (model.name, model.model) == (f"{both.name}, model alone", "target_attention")
    assert both.metrics["ndcg_at_10"] == logged.metrics["test/ndcg_at_10"]
    assert model.metrics["ndcg_at_10"] == logged.metrics["test/model_alone_ndcg_at_10"]
