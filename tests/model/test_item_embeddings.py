"""Item embeddings: of tokens only, and with features by hand."""

from __future__ import annotations

import pytest
import torch

from recsys.config.experiment import CrossEntropy, SampledSoftmax, TrainingConfig
from recsys.config.model import DotProduct, HSTUConfig, NextItemConfig, TargetAttention
from recsys.model.build import build_model
from recsys.model.embeddings import ItemFeatureEmbeddings
from recsys.model.models import Model, ModelInputs
from recsys.training.losses import mean_loss
from recsys.training.module import Schedule, TrainingModule
from tests.helpers.random_models import drawn

NEXT_ITEM = NextItemConfig(
    embedding_dim=8, num_blocks=1, feed_forward_dim=16, head=TargetAttention(head_dim=4)
)
CONFIGS = [
    NEXT_ITEM,
    NEXT_ITEM.model_copy(update={"head": DotProduct()}),
    HSTUConfig(kind="hstu", embedding_dim=8),
]

SAMPLED = SampledSoftmax(kind="sampled_softmax", num_negatives=4)


def features(dim: int = 8) -> ItemFeatureEmbeddings:
    """Of four items, the third without training; three categories, two numbers."""
    categories = torch.tensor([[0, 0], [1, 0], [2, 3], [1, 3], [0, 0]])
    shares = torch.tensor([[0, 0], [1, 0], [0.5, 0.5], [1, 1], [0, 0]])
    numbers = torch.tensor([[0, 0], [0, 2.0], [-1, 0], [0.5, 1], [0, 0]])
    return ItemFeatureEmbeddings(
        (categories, shares, numbers),
        rows=torch.tensor([0, 1, 2, 0, 4]),
        num_categories=3,
        embedding_dim=dim,
    )


def random_model(config: NextItemConfig | HSTUConfig = NEXT_ITEM) -> Model:
    torch.manual_seed(1)
    return drawn(build_model(config, 4, features())).eval()


def test_features_add_up() -> None:
    """e_2 = E[2] + (C[2] + C[3]) / 2 - W[0]; item 3 has no row of its own, item 4 no features."""
    items = random_model().items
    assert items.features is not None
    own, of, by = items.weight, items.features.category_weight, items.features.number_weight
    expected = torch.stack(
        [
            torch.zeros(8),
            own[1] + of[1] + 2 * by[1],
            own[2] + (of[2] + of[3]) / 2 - by[0],
            of[1] + of[3] + by[0] / 2 + by[1],
            own[4],
        ]
    )
    assert torch.allclose(items.table(), expected, atol=1e-6)
    tokens = torch.tensor([[4, 2, 0], [3, 3, 1]])
    assert torch.allclose(items(tokens), expected[tokens], atol=1e-6)


@pytest.mark.parametrize("config", CONFIGS)
def test_training_with_features_starts_like_training_without(
    config: NextItemConfig | HSTUConfig,
) -> None:
    torch.manual_seed(2)
    plain = build_model(config, 4).eval()
    drawn = torch.rand(1)
    torch.manual_seed(2)
    ours = build_model(config, 4, features()).eval()
    assert torch.equal(torch.rand(1), drawn)
    weights = ours.state_dict()
    assert weights.keys() - plain.state_dict().keys() == {
        "items.features.category_weight",
        "items.features.number_weight",
    }
    for name, weight in plain.state_dict().items():
        assert torch.equal(weights[name], weight)
    tokens, lengths = torch.tensor([[1, 4, 2]]), torch.tensor([3])  # all of them with rows
    for ours_side, plain_side in zip(
        ours(ModelInputs(tokens, lengths)), plain(ModelInputs(tokens, lengths)), strict=True
    ):
        assert torch.equal(ours_side, plain_side)


@pytest.mark.parametrize("config", CONFIGS)
@pytest.mark.parametrize("loss", [CrossEntropy(), SAMPLED], ids=lambda loss: loss.kind)
def test_features_of_inputs_and_candidates_are_learned(
    config: NextItemConfig | HSTUConfig, loss: CrossEntropy | SampledSoftmax
) -> None:
    """Category 2 is only of an input, 1 only of a target; categories of no trained item stay."""
    model = random_model(config)
    tokens, lengths, targets = torch.tensor([[2, 4]]), torch.tensor([2]), torch.tensor([[4, 1]])
    if isinstance(loss, SampledSoftmax):
        TrainingModule(model, TrainingConfig(loss=loss), Schedule(1, 1, 1), exclude_seen=False)
    history, _ = model.teacher_forced(ModelInputs(tokens, lengths), targets)
    mean_loss(loss, model, history, targets, None).backward()
    found = model.items.features
    assert found is not None
    for weight in (found.category_weight, found.number_weight):
        assert weight.grad is not None
        assert not weight.grad.is_sparse
        assert weight.grad.isfinite().all()
        assert (weight.grad[-1] != 0).any()
    assert found.category_weight.grad is not None
    assert (found.category_weight.grad[1:] != 0).any(dim=1).all()
    assert not found.category_weight.grad[0].any()
    own = model.items.weight.grad
    assert own is not None
    assert own.is_sparse == isinstance(loss, SampledSoftmax)
    own = own.to_dense()
    assert (own != 0).any(dim=1).tolist() == [False, True, True, False, True]
