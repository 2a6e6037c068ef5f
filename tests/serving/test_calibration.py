"""Calibrated probabilities: the temperature, and where probabilities appear."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from scipy.optimize import minimize_scalar

from recsys.config.files import parse_experiment
from recsys.data.prepared import PreparedDataset, prepare
from recsys.errors import InputError
from recsys.evaluation.held_out import temperature_of
from recsys.experiments.baselines import fit_baseline
from recsys.experiments.fit import fit
from recsys.inference.scorer import Scored
from recsys.serving.bundle import ModelBundle
from recsys.serving.recommender import Recommender
from recsys.shop.simulation import make_shop

ITEMS = ["boots", "gloves", "hat", "jacket", "socks"]


def test_the_temperature_has_the_least_log_loss(
    tiny_dot_bundle: ModelBundle, tiny_dataset: PreparedDataset
) -> None:
    holdout = tiny_dataset.holdout("valid", "unknown")
    scores = tiny_dot_bundle.scorer.score(holdout.histories)[:, 1:].double()
    scores = scores[torch.from_numpy(holdout.history_rows)]
    targets = torch.from_numpy(holdout.targets.astype(np.int64)) - 1

    def log_loss(logarithm: float) -> float:
        scaled = scores / float(np.exp(logarithm))
        return float(torch.nn.functional.cross_entropy(scaled, targets))

    best = minimize_scalar(log_loss, (-1, 1))
    found = temperature_of(tiny_dot_bundle.scorer, holdout, seed=0)
    assert found is not None
    assert log_loss(float(np.log(found))) == pytest.approx(best.fun, abs=1e-6)


@pytest.mark.parametrize("scale", [1e8, 5.0, 1e-9, -1.0, 0.0])
def test_a_temperature_stays_finite(tiny_dataset: PreparedDataset, scale: float) -> None:
    """For scores that put every target first, or last, or are equal."""
    holdout = tiny_dataset.holdout("valid", "unknown").sample(1, 0)
    scores = torch.zeros((len(holdout.histories), len(ITEMS) + 1))
    scores[:, 0] = -torch.inf
    scores[torch.arange(len(scores)), torch.from_numpy(holdout.targets.astype(np.int64))] = scale
    found = temperature_of(Scored(scores), holdout, seed=0)
    assert found is not None
    assert 1e-6 <= found <= 1e6
    assert (found == 1) == (scale in (0, 1e8))


def test_probabilities_are_the_softmax_over_the_catalogue(tiny_dot_bundle: ModelBundle) -> None:
    manifest = tiny_dot_bundle.manifest.model_copy(update={"temperature": 0.7})
    recommender = Recommender(replace(tiny_dot_bundle, manifest=manifest))
    histories: dict[str, list[str]] = {"ann": ["hat", "boots"], "bob": ["socks"], "new": []}
    everything = recommender.score(histories, ITEMS, probabilities=True)
    for user in ("ann", "bob"):
        own = everything.filter(user_id=user)
        expected = np.exp(own["score"].to_numpy() / 0.7)
        np.testing.assert_allclose(own["probability"], expected / expected.sum(), rtol=1e-4)
    assert everything.filter(user_id="new")["probability"].null_count() == len(ITEMS)
    best = recommender.recommend(histories, k=2, allow=["hat", "socks"], probabilities=True)
    wanted = best.join(everything, on=["user_id", "item_id"], how="left", maintain_order="left")
    np.testing.assert_allclose(
        best["probability"].fill_null(-1), wanted["probability_right"].fill_null(-1), rtol=1e-4
    )
    with pytest.raises(InputError, match="has no temperature, which probabilities need"):
        Recommender(tiny_dot_bundle).score([["hat"]], ["boots"], probabilities=True)


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["model", "counts", "baseline"])
def test_a_refit_keeps_the_temperature_of_the_model_before(kind: str, tmp_path: Path) -> None:
    """Of the same training without a refit, by the targets that it has not seen."""
    dataset = prepare(
        make_shop(num_customers=150, num_products=220).interactions, out=tmp_path / "data"
    )
    model: Any = {"embedding_dim": 16, "max_sequence_length": 8, "head": {"kind": "dot_product"}}
    answer = {
        "model": {"model": model},
        "counts": {"model": model, "count_ensemble": {}},
        "baseline": {"baseline": "markov"},
    }
    temperatures = []
    for refit in (False, True):
        settings = {
            **answer[kind],
            "name": f"refit-{refit}",
            "training": {"max_epochs": 3, "refit": refit, "precision": "float32"},
            "tracking": {"uri": f"sqlite:///{tmp_path}/mlflow.db"},
        }
        written = fit_baseline if kind == "baseline" else fit
        experiment = parse_experiment(settings)
        bundle = ModelBundle.open(written(experiment, dataset, tmp_path / str(refit)).bundle)
        temperatures.append(bundle.manifest.temperature)
        if not refit:
            holdout = dataset.holdout("valid", "unknown")
            expected = temperature_of(bundle.scorer, holdout, experiment.seed)
    assert expected is not None
    assert temperatures == pytest.approx([expected] * 2, rel=1e-4)
