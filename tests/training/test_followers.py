"""Soft labels: the items drawn, against all ways to draw them, and the gradient they make."""

from __future__ import annotations

from collections import Counter, defaultdict
from typing import Any

import pytest
import torch

from recsys.config.experiment import CrossEntropy
from recsys.config.files import parse_experiment
from recsys.config.model import DotProduct, NextItemConfig, TargetAttention
from recsys.data.histories import Histories
from recsys.errors import InputError
from recsys.model.build import build_model
from recsys.model.models import ModelInputs
from recsys.training.followers import Followers
from recsys.training.losses import mean_loss

HISTORIES = [
    [1, 2, 3, 1, 4],
    [2, 3, 5],
    [4, 1],
    [6],
    [3, 7],
    [1, 2, 8, 9, 4, 5, 6, 7, 3, 2, 8, 1, 5],
]


def expected_shares(read: list[int], target: int, *, allow_seen: bool) -> dict[int, float]:
    """The probability of each label: an item of the history, one of its places, a later one."""
    shares: dict[int, float] = defaultdict(float)
    recent = read[::-1][:10]
    ages = [0.7**age for age in range(len(recent))]
    for item, weight in zip(recent, ages, strict=True):
        places = [(h, i) for h in HISTORIES for i, x in enumerate(h[:-1]) if x == item]
        if not places:
            shares[target] += weight / sum(ages)
        for history, index in places:
            later = history[index + 1 : index + 11]
            powers = [distance**-0.5 for distance in range(1, len(later) + 1)]
            for follower, power in zip(later, powers, strict=True):
                label = follower if allow_seen or follower not in read else target
                shares[label] += weight / sum(ages) / len(places) * power / sum(powers)
    return shares


@pytest.mark.parametrize("allow_seen", [False, True])
def test_labels_are_drawn_as_often_as_items_follow_others(*, allow_seen: bool) -> None:
    """Of the newest items newer ones count more, near followers more; an item of the history, if it
    may not be recommended again, and one that nothing follows leave the label to the target."""
    followers = Followers(Histories.from_lists(HISTORIES), 9, 0.5, allow_seen=allow_seen)
    read = [[2, 1, 3, 4, 9, 5, 1, 4, 8, 2, 7, 3], [6, 4, 9], [6]]
    width = max(map(len, read))
    items = torch.tensor([row + [0] * (width - len(row)) for row in read])
    positions = torch.tensor([[11], [width + 2], [2 * width], [3]])  # the last is inside the first
    targets = torch.tensor([[6], [1], [5], [9]])
    known = [*read, read[0][:4]]
    torch.manual_seed(0)
    drawn = [followers.draw(items, positions, targets) for _ in range(800)]
    for row, labels in enumerate(torch.cat(drawn, dim=-1).squeeze(1).tolist()):
        expected = expected_shares(known[row], int(targets[row]), allow_seen=allow_seen)
        counted = Counter(labels)
        assert set(counted) == {item for item, share in expected.items() if share > 0}
        for item, share in expected.items():
            assert counted[item] / len(labels) == pytest.approx(share, abs=0.02)


@pytest.mark.parametrize("head", [DotProduct(), TargetAttention()])
def test_the_gradient_is_that_of_a_cross_entropy_with_soft_labels(head: Any) -> None:
    """The labels have a share of it in place of the target; the value is that of the targets."""
    torch.manual_seed(0)
    model = build_model(NextItemConfig(dropout=0.0, head=head), num_items=9).double()
    torch.nn.init.normal_(model.items.weight)
    followers = Followers(Histories.from_lists(HISTORIES), 9, 0.4, allow_seen=False)
    items = torch.tensor([[1, 2, 3], [4, 5, 0]])
    targets, lengths = torch.tensor([[2, 3, 4], [5, 0, 0]]), torch.tensor([3, 1])
    history, seen = model.teacher_forced(ModelInputs(items, lengths), targets)
    words = CrossEntropy(), model, history, targets, seen, None
    weights = [weight for weight in model.parameters() if weight.requires_grad]
    options: Any = {"retain_graph": True, "allow_unused": True, "materialize_grads": True}
    torch.manual_seed(1)
    found = mean_loss(*words, (followers, items))
    ours = torch.autograd.grad(found, weights, **options)
    torch.manual_seed(1)
    places = torch.arange(6).view(2, 3)
    if isinstance(head, DotProduct):  # without padding
        places = torch.tensor([[0], [1], [2], [3]])
    labels = followers.draw(items, places, targets.flatten()[places]).view(-1, 16)
    scores = model.head.logits(history, model.head.represent_candidates(model.items.table()))
    expected, value = torch.zeros((), dtype=torch.float64), 0.0
    for n, (row, t) in enumerate(((0, 0), (0, 1), (0, 2), (1, 0))):
        target = int(targets[row, t])
        left = [i for i in range(1, 10) if i == target or i not in items[row, : t + 1].tolist()]
        logs = torch.log_softmax(scores[row, t, left], 0)
        soft = Counter(labels[n].tolist())
        assert len(soft) > 1
        for item, count in soft.items():
            expected = expected - 0.4 * count / 16 * logs[left.index(item)] / 4
        expected = expected - 0.6 * logs[left.index(target)] / 4
        value -= logs[left.index(target)].item() / 4
    assert found.item() == pytest.approx(value)
    assert not ours[0][0].any()  # PAD's row of the item table
    for mine, other in zip(ours, torch.autograd.grad(expected, weights, **options), strict=True):
        torch.testing.assert_close(mine, other, rtol=1e-5, atol=1e-7)


@pytest.mark.parametrize(
    "change",
    [
        "model.kind=masked_item",
        "training.loss.kind=bce",
        "training.teachers=[{model: {head: {kind: dot_product}}}]",
        "model={kind: averaged, members: [{model: {kind: masked_item}}, {model: {}}]}",
    ],
)
def test_models_and_losses_without_soft_labels_refuse_them(change: str) -> None:
    with pytest.raises(InputError, match="training.soft_labels: need models of next items"):
        parse_experiment({}, ["training.soft_labels=.5", change], "x")
