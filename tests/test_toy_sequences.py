"""The encoder-decoder learns exact rules exactly, and nothing from random sequences."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from recsys.config import SequenceToSequenceConfig
from recsys.model.build import build_model
from recsys.model.generation import Greedy
from recsys.model.models import ModelInputs
from recsys.model.sequence_to_sequence import SequenceToSequence
from recsys.training.losses import chunked_cross_entropy

ITEMS, LONGEST = 20, 8


def shift(items: Tensor) -> Tensor:
    """Each item's successor in the catalogue; the last one's is the first."""
    return torch.where(items == 0, 0, items % ITEMS + 1)


def draw(rows: int, generator: torch.Generator) -> tuple[Tensor, Tensor]:
    """Right-padded random items [rows, LONGEST], and lengths."""
    items = torch.randint(1, ITEMS + 1, (rows, LONGEST), generator=generator)
    lengths = torch.randint(2, LONGEST + 1, (rows,), generator=generator)
    return items * (torch.arange(LONGEST) < lengths[:, None]), lengths


def reverse(items: Tensor) -> Tensor:
    """The real items of each row from the last to the first."""
    flipped = items.flip(1)
    order = (flipped == 0).int().argsort(dim=1, stable=True)
    return flipped.gather(1, order)


def learn(task: Callable[[Tensor], Tensor], steps: int) -> SequenceToSequence:
    torch.manual_seed(0)
    config = SequenceToSequenceConfig(
        kind="sequence_to_sequence",
        embedding_dim=32,
        feed_forward_dim=64,
        num_encoder_blocks=1,
        num_decoder_blocks=1,
        max_sequence_length=LONGEST,
        max_generated=LONGEST,
        dropout=0.0,
    )
    model = build_model(config, ITEMS)
    assert isinstance(model, SequenceToSequence)
    optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, 3e-3, steps)
    generator = torch.Generator().manual_seed(1)
    for _ in range(steps):
        items, lengths = draw(128, generator)
        targets = task(items)
        history, _ = model.teacher_forced(ModelInputs(items, lengths), targets)
        candidates = model.head.represent_candidates(model.items.weight)
        loss = chunked_cross_entropy(model.head.logits, history, candidates, targets, None)
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        schedule.step()
    return model.eval()


@torch.inference_mode()
def exact_matches(
    model: SequenceToSequence, task: Callable[[Tensor], Tensor]
) -> tuple[float, float]:
    """Shares of unseen sequences, and of their items, that greedy generation gets right."""
    items, lengths = draw(1_000, torch.Generator().manual_seed(2))
    allowed = torch.ones(len(items), ITEMS + 1, dtype=torch.bool)
    encoded = model.encode(items, lengths)
    generated = Greedy()(model, encoded, allowed, LONGEST, repeats=True).tokens[:, 0]
    targets = task(items)
    right = generated.eq(targets) | (targets == 0)  # tokens generated after the end do not matter
    return right.all(1).float().mean().item(), right[targets != 0].float().mean().item()


@pytest.mark.slow
@pytest.mark.parametrize("task", [torch.clone, reverse, shift], ids=["copy", "reverse", "shift"])
def test_toy_sequences_are_learned_exactly(task: Callable[[Tensor], Tensor]) -> None:
    exact, _ = exact_matches(learn(task, 2_000), task)
    assert exact >= 0.99


@pytest.mark.slow
def test_random_continuations_stay_at_chance() -> None:
    noise = torch.Generator().manual_seed(3)

    def unrelated(items: Tensor) -> Tensor:
        return torch.randint(1, ITEMS + 1, items.shape, generator=noise)

    _, each = exact_matches(learn(unrelated, 300), unrelated)
    assert each == pytest.approx(1 / ITEMS, abs=0.01)
