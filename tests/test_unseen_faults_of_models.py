"""Refits and probabilities, judged by hand where a small fault would go unnoticed."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import polars as pl
import pytest
from numpy.typing import NDArray
from scipy.optimize import minimize_scalar
from scipy.special import logsumexp, softmax

import recsys
from recsys import PreparedDataset
from tests.small_models import HISTORIES, ITEMS, LOG, WINDOW, command, train

if TYPE_CHECKING:
    from recsys.experiments.results import Run


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> PreparedDataset:
    return recsys.prepare(LOG, out=tmp_path_factory.mktemp("models") / "data")


@pytest.fixture(scope="module")
def attention(data: PreparedDataset) -> Run:
    """Target attention, seen items allowed."""
    return train(data, "attention")


def scores_of(bundle: Path, histories: dict[str, list[str]] = HISTORIES) -> NDArray[np.float64]:
    """The scores of all items for each user [B, I]."""
    scores = recsys.load(bundle).score(histories, ITEMS)["score"].to_list()
    return np.array(scores, dtype=np.float64).reshape(len(histories), len(ITEMS))


def before(held_out: int) -> tuple[dict[str, list[str]], list[int]]:
    """The histories before the target of a part, and the number of each target among the items."""
    histories = {user: items[:-held_out] for user, items in HISTORIES.items()}
    return histories, [ITEMS.index(items[-held_out]) for items in HISTORIES.values()]


# --- Refits --------------------------------------------------------------------------------------


def test_the_refit_of_a_warm_start_begins_with_its_model_too(data: PreparedDataset) -> None:
    """At a rate of next to nothing, the refitted model is the one that it started from."""
    first = train(data, "refitted", "training.refit=true")
    later = LOG.tail(1).with_columns(pl.col("timestamp") + 100)
    grown = recsys.prepare(pl.concat([LOG, later]), out=data.path.parent / "grown")
    again = train(grown, "again", "training.learning_rate=1e-9", start=first.bundle)
    assert recsys.compare([again]).rows[0].trained_on == "train, valid"
    np.testing.assert_allclose(scores_of(again.bundle), scores_of(first.bundle), atol=1e-5)


def test_a_mean_is_validated_without_the_refit_of_its_members(data: PreparedDataset) -> None:
    heads = [{"kind": "dot_product"}, {"kind": "target_attention", "num_heads": 1}]
    sizes = {"embedding_dim": 8, "num_blocks": 1, "num_heads": 1, "max_sequence_length": WINDOW}
    members = [{"model": {**sizes, "head": head}} for head in heads]
    model = f"model={json.dumps({'kind': 'averaged', 'members': members})}"
    mean, refitted = (
        train(data, f"mean-{refit}", model, f"training.refit={refit}")
        for refit in ("false", "true")
    )
    assert refitted.valid == mean.valid
    measured = command("evaluate", mean.bundle, "--data", data.path, "--part", "valid")
    by_name = {row["metric"]: row["mean"] for row in measured}
    assert mean.valid["ndcg_at_10"].mean == pytest.approx(by_name["ndcg_at_10"])
    assert np.abs(scores_of(refitted.bundle) - scores_of(mean.bundle)).max() > 1e-3


# --- Probabilities -------------------------------------------------------------------------------


def temperature_by_hand(scores: NDArray[np.float64], targets: list[int]) -> float:
    """The temperature with the least log loss; items of -inf are as good as absent."""

    def log_loss(logarithm: float) -> float:
        scaled = scores / np.exp(logarithm)
        return float((logsumexp(scaled, axis=1) - scaled[np.arange(len(targets)), targets]).mean())

    return float(np.exp(minimize_scalar(log_loss, (-3.0, 3.0)).x))


def test_the_temperature_is_that_of_the_validation_targets(attention: Run) -> None:
    histories, targets = before(2)
    expected = temperature_by_hand(scores_of(attention.bundle, histories), targets)
    fitted = recsys.load(attention.bundle).bundle.manifest.temperature
    assert fitted == pytest.approx(expected, rel=1e-2)


def test_probabilities_are_those_among_all_items(attention: Run) -> None:
    model = recsys.load(attention.bundle)
    temperature = json.loads((attention.bundle / "manifest.json").read_text())["temperature"]
    probabilities = softmax(scores_of(attention.bundle) / temperature, axis=1)
    best = model.recommend(HISTORIES, k=3, probabilities=True)["probability"].to_numpy()
    expected = -np.sort(-probabilities, axis=1)[:, :3]
    np.testing.assert_allclose(best.reshape(-1, 3), expected, rtol=1e-4)
    some = model.score(HISTORIES, ITEMS[4:6], probabilities=True)["probability"].to_numpy()
    np.testing.assert_allclose(some.reshape(-1, 2), probabilities[:, 4:6], rtol=1e-4)
    allowed = model.recommend(HISTORIES, k=1, allow=ITEMS[4:5], probabilities=True)["probability"]
    np.testing.assert_allclose(allowed, probabilities[:, 4], rtol=1e-4)
