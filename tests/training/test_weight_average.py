"""The running average of the weights: its values, and what is validated with them."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from recsys.config.experiment import TrainingConfig
from recsys.config.model import DotProduct
from recsys.data.prepared import PreparedDataset, prepare
from recsys.evaluation.tables import evaluate
from recsys.inference.catalogue import Catalogue
from recsys.inference.model_scorer import ModelScorer
from recsys.model.build import build_model
from recsys.training.checkpoints import TrainingState
from recsys.training.epochs import MONITOR
from recsys.training.loop import train
from tests.conftest import chains, tiny_experiment


@pytest.fixture(scope="module")
def dataset(tmp_path_factory: pytest.TempPathFactory) -> PreparedDataset:
    return prepare(chains(60, 8, items=20), out=tmp_path_factory.mktemp("data") / "chains")


def states(dataset: PreparedDataset, *, average: bool) -> list[TrainingState]:
    training = TrainingConfig(
        decay_fraction=0, warmup_steps=0, learning_rate=0.02, average_weights=average
    )
    saved: list[TrainingState] = []
    train(
        tiny_experiment(DotProduct()).model_copy(update={"training": training}),
        Catalogue(dataset.num_items),
        dataset.histories("valid"),
        dataset.holdout("valid"),
        4,
        lambda *_: None,
        save=lambda state: saved.append(state.copy()),
    )
    return [state for state in saved if state.epoch_has_ended]


def weights(state: TrainingState, key: str = "state_dict") -> dict[str, Tensor]:
    return {name.removeprefix("model."): weight for name, weight in state.checkpoint[key].items()}


def test_training_is_the_same_and_validation_is_that_of_the_average(
    dataset: PreparedDataset,
) -> None:
    """With η = 5 the t-th epoch gets 6 / (t + 5): 1, 6/7, 6/8."""
    plain, averaged = states(dataset, average=False), states(dataset, average=True)
    expected = weights(plain[0])
    for number, (state, other) in enumerate(zip(plain, averaged, strict=True), 1):
        latest, share = weights(state), 6 / (number + 5)
        expected = {
            name: (1 - share) * expected[name] + share * weight for name, weight in latest.items()
        }
        for name, weight in latest.items():
            assert torch.equal(weight, weights(other, "current_model_state")[name]), name
            torch.testing.assert_close(weights(other)[name], expected[name])
    last = averaged[-1]
    model = build_model(tiny_experiment(DotProduct()).model, dataset.num_items)
    model.load_state_dict(weights(last))
    table = evaluate(ModelScorer(model.eval(), 3), dataset.holdout("valid"), "valid", "filter")
    assert last.curve.epochs[-1][MONITOR] == pytest.approx(table.values("ndcg_at_10").mean())
    best = averaged[(last.curve.best_epoch or 0) - 1]
    for name, weight in last.curve.best_weights.items():
        assert torch.equal(weight, weights(best)[name]), name
