"""Training: it learns rules but no noise, is reproducible, and stops correctly."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from recsys.config.experiment import Experiment
from recsys.config.files import parse_experiment
from recsys.data.batches import SequenceBatch, TrainingBatches
from recsys.data.histories import Histories
from recsys.data.splits import Holdout
from recsys.errors import InputError
from recsys.evaluation.metrics import metric_values
from recsys.evaluation.tables import evaluate
from recsys.inference.catalogue import Catalogue
from recsys.inference.model_scorer import ModelScorer
from recsys.inference.ranking import rank_targets
from recsys.training.checkpoints import TrainingState
from recsys.training.loop import new_module, train
from recsys.training.module import Schedule, TrainingModule

ITEMS = 30
HEADS = ["dot_product", "target_attention"]


def make_experiment(head: str, *overrides: str) -> Experiment:
    tree = {
        "model": {
            "embedding_dim": 32,
            "feed_forward_dim": 32,
            "max_sequence_length": 10,
            "dropout": 0.0,
            "head": {"kind": head},
        },
        "training": {
            "max_epochs": 12,
            "learning_rate": 5e-3,
            "batch_tokens": 1000,
            "precision": "float32",
        },
        "evaluation": {"seen": "allow"},
    }
    return parse_experiment(tree, overrides)


def walks(users: int, seed: int, *, planted: bool) -> tuple[Histories, Holdout]:
    rng = np.random.default_rng(seed)
    follower = np.random.default_rng(0).permutation(ITEMS)
    rows = []
    for _ in range(users):
        row = [int(rng.integers(ITEMS))]
        while len(row) < 9:
            row.append(int(follower[row[-1]] if planted else rng.integers(ITEMS)))
        rows.append([item + 1 for item in row])
    targets = np.array([row[-1] for row in rows], dtype=np.int32)
    before = Histories.from_lists([row[:-1] for row in rows])
    each = np.arange(users)
    return before, Holdout(each, targets, each, before, dropped=0)


def recall(experiment: Experiment, *, planted: bool) -> float:
    histories, _ = walks(400, seed=1, planted=planted)
    _, unseen = walks(300, seed=2, planted=planted)
    model, _ = train(experiment, Catalogue(ITEMS), histories, None, 30, lambda *_: None)
    ranks = rank_targets(ModelScorer(model, 10), unseen.histories, unseen.targets, "allow")
    return float(metric_values(ranks, "recall_at_1").mean())


@pytest.mark.slow
@pytest.mark.parametrize("head", HEADS)
def test_a_planted_rule_is_learnt_and_noise_is_not(head: str) -> None:
    """recall@1 near 1 where each item decides the next; at chance, 1 in 30, in noise."""
    experiment = make_experiment(head)
    assert recall(experiment, planted=True) > 0.95
    assert recall(experiment, planted=False) < 0.1


@pytest.mark.parametrize(
    ("seen", "setting", "excluded"),
    [
        ("filter", "null", True),
        ("filter", "false", False),
        ("allow", "null", False),
        ("allow", "true", True),
    ],
)
def test_seen_items_are_left_out_of_the_loss_where_the_config_says_so(
    seen: str, setting: str, excluded: bool
) -> None:
    settings = f"evaluation.seen={seen}", f"training.exclude_seen={setting}"
    experiment = make_experiment("dot_product", *settings)
    histories = Histories.from_lists([[1, 2, 3]])
    schedule = Schedule.plan(experiment.training, 1, 1)
    module = new_module(experiment, Catalogue(3), histories, schedule)
    (batch,) = TrainingBatches(histories, 10, 100, 0)
    # After 1 and 2 only 3 is left, whose loss is 0; of three equal logits, each costs log 3.
    with torch.no_grad():
        module.model.items.weight.zero_()
    history, before = module.teacher_forced(batch)
    loss = module.loss(history, before, batch).item()
    expected = [math.log(2), 0.0] if excluded else [math.log(3)] * 2
    assert loss == pytest.approx(sum(expected) / 2, abs=1e-6)


@pytest.mark.parametrize("head", HEADS)
def test_the_same_seed_gives_the_same_weights(head: str) -> None:
    experiment = make_experiment(head, "model.dropout=0.2")
    histories, holdout = walks(100, seed=1, planted=True)
    first, second, other = (
        train(
            experiment.model_copy(update={"seed": seed}),
            Catalogue(ITEMS),
            histories,
            holdout,
            2,
            lambda *_: None,
        )[0].state_dict()
        for seed in (0, 0, 1)
    )
    assert all(torch.equal(first[name], second[name]) for name in first)
    assert not torch.equal(first["items.weight"], other["items.weight"])


def test_exhausted_patience_starts_the_decay_which_ends_the_training(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """It starts ahead of schedule and takes as many epochs as planned: a tenth of 40."""
    experiment = make_experiment(
        "dot_product",
        "training.patience=4",
        "training.decay_fraction=0.1",
        "training.warmup_steps=1",
    )
    histories, holdout = walks(200, seed=1, planted=False)
    rates: list[float] = []
    step = TrainingModule.training_step

    def watched(self: TrainingModule, batch: SequenceBatch, batch_idx: int) -> torch.Tensor:
        rates.append(self.trainer.optimizers[0].param_groups[0]["lr"] / 5e-3)
        return step(self, batch, batch_idx)

    monkeypatch.setattr(TrainingModule, "training_step", watched)
    _, curve = train(experiment, Catalogue(ITEMS), histories, holdout, 40, lambda *_: None)
    assert curve.early_decay is not None
    epoch, began = curve.early_decay
    assert epoch < 36
    assert len(curve.epochs) == epoch + 4
    assert "epoch/valid_ndcg_at_10" in curve.epochs[-1]
    steps = began // epoch
    assert began == epoch * steps
    assert rates[began // 2 : began + 1] == [1.0] * (began - began // 2 + 1)
    expected = np.linspace(1, 0, 4 * steps, endpoint=False).clip(0.01)
    assert rates[began:] == pytest.approx(expected)


@pytest.mark.parametrize(("patience", "every"), [(5, 1), (4, 1), (2, 3), (9, 3)])
def test_no_training_ends_before_the_learning_rate_decays(patience: int, every: int) -> None:
    """It decays over 4 of 10 epochs, from the sixth or earlier, and is validated at the end."""
    experiment = make_experiment(
        "dot_product",
        f"training.patience={patience}",
        f"training.validate_every={every}",
        "training.decay_fraction=0.4",
        "training.learning_rate=1e-9",
    )
    histories, holdout = walks(100, seed=1, planted=False)
    _, curve = train(experiment, Catalogue(ITEMS), histories, holdout, 10, lambda *_: None)
    assert curve.best_epoch is not None
    assert curve.best_epoch <= every  # this learning rate changes nothing
    held = 6 if curve.early_decay is None else curve.early_decay[0]
    assert held <= 6
    assert held + min(patience, 4) <= len(curve.epochs) <= held + 4
    is_validated = ["epoch/valid_ndcg_at_10" in epoch for epoch in curve.epochs]
    last = len(is_validated)
    assert is_validated == [epoch % every == 0 or epoch == last for epoch in range(1, last + 1)]


def test_ctrl_c_returns_the_best_epoch_so_far() -> None:
    experiment = make_experiment("dot_product")
    histories, holdout = walks(100, seed=1, planted=True)

    def interrupt(epoch: int, _: dict[str, float]) -> None:
        if epoch == 2:
            raise KeyboardInterrupt

    states: list[TrainingState] = []
    _, curve = train(
        *(experiment, Catalogue(ITEMS), histories, holdout, 9, interrupt),
        save=lambda state: states.append(state.copy()),
    )
    assert len(curve.epochs) == 2
    assert curve.interrupted
    with pytest.raises(KeyboardInterrupt):  # the best epoch so far is that of another training
        train(experiment, Catalogue(ITEMS), histories, None, 9, interrupt, start=states[0])
    rarely = make_experiment("dot_product", "training.validate_every=4")
    for config, validation in ((rarely, holdout), (experiment, None)):  # nothing was validated
        with pytest.raises(KeyboardInterrupt):
            train(config, Catalogue(ITEMS), histories, validation, 9, interrupt)


def test_a_training_leaves_no_gradients_and_the_random_state_of_the_caller() -> None:
    histories, _ = walks(20, seed=1, planted=True)
    torch.manual_seed(5)
    expected = torch.rand(3)
    torch.manual_seed(5)
    model, _ = train(
        make_experiment("dot_product"), Catalogue(ITEMS), histories, None, 1, lambda *_: None
    )
    assert torch.equal(torch.rand(3), expected)
    assert all(weight.grad is None for weight in model.parameters())


def test_every_batch_of_every_epoch_is_trained_on(monkeypatch: pytest.MonkeyPatch) -> None:
    """Epochs differ in their number of batches; Lightning must not assume that of the first."""
    planned: list[int] = []
    served: list[int] = []
    plan, start = TrainingBatches.plan, TrainingModule.training_step

    def uneven(self: TrainingBatches, epoch: int) -> list[NDArray[np.int64]]:
        batches = plan(self, epoch)
        return batches[:2] if epoch == 0 else batches

    def counted(self: TrainingModule, batch: SequenceBatch, batch_idx: int) -> torch.Tensor:
        served.append(len(batch.items))
        return start(self, batch, batch_idx)

    monkeypatch.setattr(TrainingBatches, "plan", uneven)
    monkeypatch.setattr(TrainingModule, "training_step", counted)
    experiment = make_experiment("dot_product", "training.batch_tokens=100")
    histories, _ = walks(100, seed=1, planted=True)
    train(
        experiment,
        Catalogue(ITEMS),
        histories,
        None,
        3,
        lambda epoch, _: planned.append(len(served)),
    )
    count = len(plan(TrainingBatches(histories, 10, 100, 0), 1))
    assert count > 2
    assert np.diff([0, *planned]).tolist() == [2, count, count]


def test_nothing_to_train_on_is_refused() -> None:
    with pytest.raises(InputError, match="nothing to train on"):
        train(
            make_experiment("dot_product"),
            Catalogue(ITEMS),
            Histories.from_lists([[1], [2]]),
            None,
            1,
            lambda *_: None,
        )


def test_the_optimiser_is_adamw_at_the_rates_of_the_schedule(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    rates: list[float] = []
    step = TrainingModule.training_step

    def watched(self: TrainingModule, batch: SequenceBatch, batch_idx: int) -> torch.Tensor:
        (optimizer,) = self.trainer.optimizers
        assert isinstance(optimizer, torch.optim.AdamW)
        (group,) = optimizer.param_groups
        assert (group["betas"], group["eps"], group["weight_decay"]) == ((0.9, 0.98), 1e-8, 0.3)
        rates.append(group["lr"])
        return step(self, batch, batch_idx)

    monkeypatch.setattr(TrainingModule, "training_step", watched)
    settings = "training.weight_decay=0.3", "training.batch_tokens=100", "training.warmup_steps=4"
    experiment = make_experiment("dot_product", *settings)
    histories, _ = walks(50, seed=1, planted=True)
    train(experiment, Catalogue(ITEMS), histories, None, 2, lambda *_: None)
    total = len(rates)
    factor = Schedule(min(4, -(-total // 10)), round(0.3 * total), total)
    assert rates == pytest.approx([5e-3 * factor(step) for step in range(total)])


def test_the_figures_of_the_epochs_are_true_and_the_model_is_that_of_the_best(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The loss is the mean over that epoch's targets; the weights are not those of the last one."""
    steps: list[list[tuple[float, int]]] = [[]]
    step = TrainingModule.training_step

    def watched(self: TrainingModule, batch: SequenceBatch, batch_idx: int) -> torch.Tensor:
        loss = step(self, batch, batch_idx)
        steps[-1].append((loss.item(), int((batch.targets > 0).sum())))
        return loss

    monkeypatch.setattr(TrainingModule, "training_step", watched)
    settings = "training.batch_tokens=200", "training.patience=2", "training.decay_fraction=0"
    experiment = make_experiment("dot_product", *settings)
    histories, holdout = walks(50, seed=1, planted=False)
    report = lambda *_: steps.append([])  # noqa: E731
    model, curve = train(experiment, Catalogue(ITEMS), histories, holdout, 20, report)
    for epoch, those in zip(curve.epochs, steps, strict=False):
        whole = sum(loss * targets for loss, targets in those)
        assert epoch["train/loss"] == pytest.approx(whole / sum(count for _, count in those))
    assert curve.best_epoch is not None
    assert curve.best_epoch + 2 == len(curve.epochs) < 20
    best = curve.epochs[curve.best_epoch - 1]
    validated = [epoch["epoch/valid_ndcg_at_10"] for epoch in curve.epochs]
    assert best["epoch/valid_ndcg_at_10"] == max(validated) == curve.best
    found = evaluate(ModelScorer(model, 10), holdout, "valid", "allow")
    for name in ("ndcg_at_10", "recall_at_10"):
        assert best[f"epoch/valid_{name}"] == found.values(name).mean()
    assert curve.best_ranks is not None
    assert curve.best_ranks.tolist() == found.frame["rank"].to_list()
