"""Any `max_sequence_length` works with any model: no batch is wider than the model."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

from recsys.config import Experiment
from recsys.data.histories import Histories
from recsys.model.build import build_model
from recsys.model.models import ModelInputs
from recsys.training.loop import build_batches

SMALL = {"embedding_dim": 4, "num_heads": 2}
BLOCK = {**SMALL, "feed_forward_dim": 4}
ATTENTION = {"kind": "target_attention", "num_heads": 2, "head_dim": 2}
KINDS: dict[str, dict[str, Any]] = {
    "dot product": {**BLOCK, "num_blocks": 1, "head": {"kind": "dot_product"}},
    "rotary": {**BLOCK, "num_blocks": 1, "positions": "rotary"},
    "target attention": {**BLOCK, "num_blocks": 1, "head": ATTENTION},
    "sum of target attention": {**BLOCK, "num_blocks": 1, "head": {**ATTENTION, "pooling": "sum"}},
    "masked items": {**BLOCK, "num_blocks": 1, "kind": "masked_item"},
    "HSTU": {**SMALL, "num_blocks": 1, "kind": "hstu"},
    "HSTU with times": {**SMALL, "num_blocks": 1, "kind": "hstu", "times": "past"},
    "encoder and decoder": {
        **BLOCK, "kind": "sequence_to_sequence", "max_generated": 3,
        "num_encoder_blocks": 1, "num_decoder_blocks": 1,
    },
    "factorisation machine": {"embedding_dim": 4, "kind": "factorisation_machine"},
}  # fmt: skip


def experiment_of(kind: str, length: int) -> Experiment:
    sections = {
        "name": "small",
        "model": {**KINDS[kind], "max_sequence_length": length},
        "training": {"max_epochs": 1, "batch_tokens": 2_000, "precision": "float32"},
        "evaluation": {"seen": "allow"},
    }
    return Experiment.model_validate(sections)


@pytest.mark.parametrize("kind", KINDS)
@torch.no_grad()
def test_a_batch_of_any_length_scores_as_its_histories_alone(kind: str) -> None:
    rng = np.random.default_rng(0)
    for length in (1, 2, 3, 7, 8, 9, 31, 75, 128, 201):
        sizes = length + 3, length // 2 + 2
        rows = [rng.integers(1, 6, size).tolist() for size in sizes]
        times = np.concatenate([np.arange(size) * 1_000 for size in sizes])
        histories = replace(Histories.from_lists(rows), times=times)
        experiment = experiment_of(kind, length)
        torch.manual_seed(length)
        model = build_model(experiment.model, 5).eval()
        candidates = model.head.represent_candidates(model.items.table())
        for batch in build_batches(experiment, histories):
            inputs = ModelInputs(batch.items, batch.lengths, batch.times)
            history, _ = model.teacher_forced(inputs, batch.targets)
            together = model.head.logits(history, candidates)
            for row, size in enumerate(batch.lengths.tolist()):
                alone = ModelInputs(
                    batch.items[row : row + 1, :size],
                    batch.lengths[row : row + 1],
                    None if batch.times is None else batch.times[row : row + 1, : size + 1],
                )
                targets = batch.targets[row : row + 1, : int((batch.targets[row] > 0).sum())]
                history, _ = model.teacher_forced(alone, targets)
                expected = model.head.logits(history, candidates)[0, : targets.shape[1]]
                found = together[row, : targets.shape[1]]
                assert torch.allclose(found, expected, atol=1e-5), length
