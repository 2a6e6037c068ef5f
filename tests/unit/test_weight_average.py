"""The running average of the weights: its values, and what is validated with them."""

from __future__ import annotations

import pytest
import torch

from recsys.config import DotProduct, Experiment, TrainingConfig
from recsys.data.prepared import PreparedDataset, prepare
from recsys.evaluation.tables import evaluate
from recsys.inference.catalogue import Catalogue
from recsys.inference.model_scorer import ModelScorer
from recsys.training.loop import train
from recsys.training.state import MONITOR, TrainingState
from recsys.training.weight_average import averaged, with_weights
from tests.unit.conftest import chains, tiny_experiment, tiny_model


@pytest.fixture(scope="module")
def dataset(tmp_path_factory: pytest.TempPathFactory) -> PreparedDataset:
    return prepare(chains(60, 8, items=20), out=tmp_path_factory.mktemp("data") / "chains")


def experiment(*, average: bool) -> Experiment:
    training = TrainingConfig(
        decay_fraction=0, warmup_steps=0, learning_rate=0.02, average_weights=average
    )
    return tiny_experiment(DotProduct()).model_copy(update={"training": training})


def states(dataset: PreparedDataset, *, average: bool, epochs: int = 4) -> list[TrainingState]:
    """Train, and return the state after each epoch."""
    saved: list[TrainingState] = []
    catalogue = Catalogue(dataset.num_items)
    histories, valid = dataset.histories("valid"), dataset.holdout("valid")
    train(
        experiment(average=average),
        catalogue,
        histories,
        valid,
        epochs,
        lambda *_: None,
        save=lambda state: saved.append(state.copy()),
    )
    return [state for state in saved if not state.epoch.batches]


def test_recent_epochs_count_most() -> None:
    """With η = 5 the t-th epoch gets 6 / (t + 5): 1, 6/7, 6/8."""
    average: dict[str, torch.Tensor] = {}
    for epoch, value in enumerate([1.0, 8.0, 16.0], 1):
        average = averaged(average, {"w": torch.tensor(value)}, epoch)
    assert float(average["w"]) == pytest.approx((1 / 7 + 8 * 6 / 7) / 4 + 16 * 3 / 4)


def test_an_average_of_equal_weights_is_these() -> None:
    weights = {"w": torch.randn(3, 2), "count": torch.tensor(7)}
    after = averaged(weights, weights, 9)
    assert torch.allclose(after["w"], weights["w"])
    assert torch.equal(after["count"], weights["count"])
    after["w"] += 1
    assert not torch.equal(after["w"], weights["w"])  # a copy


def test_a_model_gets_its_own_weights_back() -> None:
    model = tiny_model(tiny_experiment(DotProduct()), 5)
    own = {name: weight.clone() for name, weight in model.state_dict().items()}
    other = {name: torch.zeros_like(weight) for name, weight in own.items()}
    seen = []

    def stopped() -> None:
        with with_weights(model, other):
            seen.append(bool(model.items.weight.any()))
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        stopped()
    assert seen == [False]
    assert all(torch.equal(weight, own[name]) for name, weight in model.state_dict().items())


def test_training_is_the_same_and_validation_is_that_of_the_average(
    dataset: PreparedDataset,
) -> None:
    plain, average = states(dataset, average=False), states(dataset, average=True)
    expected: dict[str, torch.Tensor] = {}
    for number, (one, other) in enumerate(zip(plain, average, strict=True), 1):
        assert not one.average
        expected = averaged(expected, one.weights, number)
        for name, weight in one.weights.items():
            assert torch.equal(weight, other.weights[name]), name
            assert torch.equal(expected[name], other.average[name]), name
    last = average[-1]
    model = tiny_model(tiny_experiment(DotProduct()), dataset.num_items)
    model.load_state_dict(last.average)
    scorer = ModelScorer(model.eval(), 3)
    table = evaluate(scorer, dataset.holdout("valid"), "valid", "filter")
    assert last.curve.epochs[-1][MONITOR] == pytest.approx(table.values("ndcg_at_10").mean())
    best = average[(last.curve.best_epoch or 0) - 1]
    for name, weight in last.curve.best_weights.items():
        assert torch.equal(weight, best.average[name]), name
