"""Calibrated probabilities: the temperature, its measures, and where they appear."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest
import torch
from scipy.optimize import minimize_scalar
from typer.testing import CliRunner

from recsys.cli import app
from recsys.config import parse_experiment
from recsys.data.prepared import PreparedDataset, prepare
from recsys.errors import InputError
from recsys.evaluation.held_out import find_holdout
from recsys.experiments.fit import fit
from recsys.inference.scorer import Scored
from recsys.serving.bundle import ModelBundle
from recsys.serving.calibration import (
    expected_calibration_error,
    fit_temperature,
    measure_calibration,
    save_temperature,
    temperature_of,
)
from recsys.serving.recommender import Recommender
from recsys.shop.simulation import make_shop

ITEMS = ["boots", "gloves", "hat", "jacket", "socks"]


@pytest.fixture
def bundle(tiny_dot_bundle: ModelBundle, tmp_path: Path) -> ModelBundle:
    shutil.copytree(tiny_dot_bundle.path, tmp_path / "bundle")
    return ModelBundle.open(tmp_path / "bundle")


def run(*arguments: object) -> Any:
    result = CliRunner().invoke(app, [str(argument) for argument in (*arguments, "--json")])
    assert result.exit_code == 0, result.output or result.exception
    return json.loads(result.stdout)


def log_loss(bundle: ModelBundle, dataset: PreparedDataset, temperature: float) -> float:
    holdout = find_holdout(dataset, "valid", "unknown")
    scores = bundle.scorer.score(holdout.histories)[:, 1:][torch.from_numpy(holdout.history_rows)]
    targets = torch.from_numpy(holdout.targets.astype(np.int64)) - 1
    return float(torch.nn.functional.cross_entropy(scores.double() / temperature, targets))


def test_the_temperature_has_the_least_log_loss(
    bundle: ModelBundle, tiny_dataset: PreparedDataset
) -> None:
    best = minimize_scalar(
        lambda logarithm: log_loss(bundle, tiny_dataset, float(np.exp(logarithm))), (-1, 1)
    )
    found = fit_temperature(bundle, tiny_dataset)
    before, after = (
        measure_calibration(bundle, tiny_dataset, "valid", temperature).log_loss
        for temperature in (1.0, found)
    )
    assert after == pytest.approx(best.fun, abs=1e-6)
    assert before == pytest.approx(log_loss(bundle, tiny_dataset, 1.0), abs=1e-6)
    assert after <= before


def test_the_temperature_of_known_probabilities_is_found(
    bundle: ModelBundle, tiny_dataset: PreparedDataset, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Targets are drawn from the softmax of the scores over 2.5.
    holdout = find_holdout(tiny_dataset, "valid", "unknown")
    many = np.sort(np.arange(20_000) % len(holdout.histories))
    scores = bundle.scorer.score(holdout.histories)[:, 1:][torch.from_numpy(many)]
    generator = torch.Generator().manual_seed(1)
    drawn = torch.multinomial((scores / 2.5).softmax(1), 1, generator=generator)[:, 0] + 1
    targets = drawn.numpy().astype(np.int32)
    places = np.arange(len(many))
    known = replace(holdout, targets=targets, history_rows=many, users=many, positions=places)
    monkeypatch.setattr("recsys.serving.calibration._holdout", lambda *_: known)
    assert fit_temperature(bundle, tiny_dataset) == pytest.approx(2.5, rel=0.1)
    errors = [
        measure_calibration(bundle, tiny_dataset, "valid", temperature).calibration_error
        for temperature in (0.5, 2.5)
    ]
    assert errors[1] < 0.02 < errors[0]


@pytest.mark.parametrize("scale", [1e8, 5.0, 1e-9, -1.0, 0.0])
def test_a_temperature_stays_finite(
    bundle: ModelBundle, tiny_dataset: PreparedDataset, scale: float
) -> None:
    """For scores that put every target first, or last, or are equal."""
    holdout = find_holdout(tiny_dataset, "valid", "unknown")
    one = holdout.sample(1, 0)
    scores = torch.full((len(one.histories), bundle.num_items + 1), 0.0, dtype=torch.float32)
    scores[:, 0] = -torch.inf
    scores[torch.arange(len(scores)), torch.from_numpy(one.targets.astype(np.int64))] = scale
    found = temperature_of(Scored(scores), one)
    assert found is not None
    assert 1e-6 <= found <= 1e6
    assert (found == 1) == (scale in (0, 1e8))


def test_the_calibration_error_by_hand() -> None:
    confidence = np.array([0.9, 0.1, 0.2, 0.8])
    hit = np.array([1.0, 0.0, 1.0, 0.0])
    # Bins (.1, .2) and (.8, .9): accuracy 1/2 and 1/2, confidence .15 and .85.
    assert expected_calibration_error(confidence, hit, bins=2) == pytest.approx(0.35)
    assert expected_calibration_error(confidence, hit, bins=1) == 0


def test_probabilities_are_the_softmax_over_the_catalogue(
    bundle: ModelBundle, tiny_dataset: PreparedDataset
) -> None:
    recommender = Recommender(save_temperature(bundle, 0.7))
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


def test_probabilities_need_a_temperature(bundle: ModelBundle) -> None:
    with pytest.raises(InputError, match="has no temperature, which probabilities need: recsys"):
        Recommender(bundle).score([["hat"]], ["boots"], probabilities=True)
    protocol = bundle.manifest.protocol.model_copy(update={"trained_on": ("train", "valid")})
    refitted = replace(bundle, manifest=bundle.manifest.model_copy(update={"protocol": protocol}))
    with pytest.raises(InputError, match="none can be fitted, since it was fitted on the valid"):
        Recommender(refitted).score([["hat"]], ["boots"], probabilities=True)


def test_the_command_keeps_the_temperature(
    bundle: ModelBundle, tiny_dataset: PreparedDataset, tmp_path: Path
) -> None:
    known = ["--data", tiny_dataset.path]
    rows = run("calibrate", bundle.path, *known)
    assert [(row["part"], row["temperature"] == 1) for row in rows] == [
        *(("valid", True), ("valid", False), ("test", True), ("test", False))
    ]
    fitted = fit_temperature(bundle, tiny_dataset)
    assert ModelBundle.open(bundle.path).manifest.temperature == pytest.approx(fitted)
    options = [*known, "--user", "ann", "--probabilities"]
    best = run("recommend", bundle.path, *options, "-k", 1)
    scored = run("score", bundle.path, *options, "--item", best[0]["item_id"])
    assert best[0]["probability"] == pytest.approx(scored[0]["probability"])
    out = tmp_path / "scores.parquet"
    run("score", bundle.path, *options, "--item", best[0]["item_id"], "--out", out)
    assert pl.read_parquet(out)["probability"][0] == pytest.approx(best[0]["probability"])


@pytest.mark.slow
@pytest.mark.parametrize("counts", [False, True], ids=["alone", "with counts"])
def test_a_refitted_model_keeps_the_temperature_of_the_model_before(
    counts: bool, tmp_path: Path
) -> None:
    """Of the same training without a refit, by the targets that it has not seen."""
    shop = make_shop(num_customers=150, num_products=220)
    dataset = prepare(shop.interactions, out=tmp_path / "data")
    bundles = []
    for refit in (False, True):
        settings = {
            "name": f"refit-{refit}",
            "model": {
                "embedding_dim": 16,
                "num_blocks": 1,
                "max_sequence_length": 8,
                "head": {"kind": "dot_product"},
            },
            "training": {"max_epochs": 3, "refit": refit, "precision": "float32"},
            "count_ensemble": {} if counts else None,
            "tracking": {"uri": f"sqlite:///{tmp_path}/mlflow.db"},
        }
        run_of = fit(parse_experiment(settings), dataset, tmp_path / str(refit))
        bundles.append(ModelBundle.open(run_of.bundle))
    before, refitted = bundles
    assert before.manifest.temperature == refitted.manifest.temperature
    assert before.manifest.temperature == pytest.approx(fit_temperature(before, dataset), rel=1e-4)
    rows = run("calibrate", refitted.path, "--data", dataset.path)
    assert [row["part"] for row in rows] == ["test", "test"]
    assert rows[1]["temperature"] == refitted.manifest.temperature
    assert ModelBundle.open(refitted.path).manifest == refitted.manifest
    user = dataset.user_ids[0]
    best = Recommender(refitted, dataset).recommend(users=[user], k=3, probabilities=True)
    assert best["probability"].is_between(0, 1).all()
