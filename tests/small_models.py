"""A small log, and models that train on it in half a second, through the public functions."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import polars as pl

import recsys
from recsys import PreparedDataset
from tests.helpers.logs import log_of_histories

if TYPE_CHECKING:
    from recsys.experiments.results import Run

ITEMS = [f"item-{number:02}" for number in range(12)]
WINDOW = 4
"""The items of a history that the models read."""
ACTIONS = ["view", "cart", "buy"]
CONFIG = f"""
model:
  embedding_dim: 8
  num_blocks: 1
  num_heads: 1
  feed_forward_dim: 8
  max_sequence_length: {WINDOW}
  head: {{kind: target_attention, num_heads: 2, head_dim: 4}}
training: {{max_epochs: 2, batch_tokens: 64, learning_rate: 0.02, precision: float32}}
evaluation: {{seen: allow, cutoffs: [3, 10]}}
"""


def _histories() -> dict[str, list[str]]:
    """Users mostly return to a few items; every eighth ends with two of an item new to them."""
    rng = np.random.default_rng(0)
    popularity = 1 / np.arange(2, len(ITEMS) + 2)
    popularity /= popularity.sum()
    histories = {}
    for user in range(40):
        own = rng.choice(len(ITEMS), 3, replace=False, p=popularity)
        length = 5 + user % 8
        anything = rng.choice(len(ITEMS), length, p=popularity)
        chosen = np.where(rng.random(length) < 0.85, rng.choice(own, length), anything)
        if user % 8 == 0:
            chosen[-2:] = np.setdiff1d(np.arange(len(ITEMS)), chosen[:-2])[0]
        histories[f"user-{user:02}"] = [ITEMS[number] for number in chosen]
    return histories


HISTORIES = _histories()
LOG = log_of_histories(HISTORIES)
LOG = LOG.with_columns(
    action=pl.Series(ACTIONS[(time + int(user[-1])) % len(ACTIONS)] for user, _, time in LOG.rows())
)


def train(data: PreparedDataset, name: str, *overrides: str, **more: Any) -> Run:
    """Train a model, with its runs and their store beside the dataset."""
    folder = data.path.parent
    config = folder / "config.yaml"
    config.write_text(CONFIG)
    own = [f"name={name}", f"tracking.uri=sqlite:///{folder / 'mlflow.db'}"]
    start = more.get("start")
    return recsys.train(
        config if start is None else None,
        data,
        overrides=[*own, *overrides],
        out=folder / "runs" / name,
        **more,
    )
