"""What the sides are asked: MovieLens-1M, Beauty, their shapes, a large catalogue."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from contest import from_environment
from numpy.typing import NDArray
from side import Problem, Settings

from recsys.config.experiment import Experiment
from recsys.config.files import load_experiment
from recsys.config.model import NextItemConfig
from recsys.data.prepared import prepare

CONFIGS = Path(__file__).resolve().parents[3] / "configs"

# Users, items, and lengths of the training histories under protocol P at these shares of the users.
_SHARES = (0, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 0.95, 0.98, 0.99, 1)
_SHAPES = {
    "ml-1m": (6_040, 3_704, (18, 25, 36, 49, 68, 94, 124, 171, 251, 398, 554, 782, 905, 2312)),
    "amazon-beauty": (22_363, 12_092, (3, 3, 3, 3, 4, 4, 5, 6, 8, 12, 19, 30, 41, 202)),
}


_SASREC = {"ml-1m": "ml-1m-sasrec", "amazon-beauty": "amazon-beauty-dot-product"}
"""The configs with the peers' encoder, SASRec's."""


def config_path(log: str, head: str) -> str:
    """The config of the repository for a log and a head.

    On MovieLens-1M target attention has another encoder, gated and with rotary positions: the two
    side by side do not tell what the head costs (`test_heads.py` does).
    """
    return str(CONFIGS / f"{_SASREC[log] if head == 'dot product' else log}.yaml")


def settings_of(log: str) -> Settings:
    """What our config of the log says, for all sides."""
    model = _experiment(log).model
    assert isinstance(model, NextItemConfig)
    return Settings(
        embedding_dim=model.embedding_dim,
        num_heads=model.num_heads,
        max_sequence_length=model.max_sequence_length,
        dropout=model.dropout,
        num_blocks=model.num_blocks,
        config=config_path(log, "dot product"),
    )


def large_settings(users: int) -> Settings:
    """Those of a large catalogue: width 64, histories of 50."""
    shape: dict[str, Any] = {"embedding_dim": 64, "num_heads": 1, "max_sequence_length": 50}
    overrides = tuple(f"model.{name}={value}" for name, value in shape.items())
    memory = from_environment("MEMORY_GIB", 16)
    return replace(
        settings_of("ml-1m"), **shape, users=users, memory_gib=memory, overrides=overrides
    )


def problem_of(log: str, folder: Path) -> Problem:
    """Training histories and validation targets: real where RECSYS_MIRROR is set."""
    if "RECSYS_MIRROR" not in os.environ:
        return _alike(*_SHAPES[log])
    data = _experiment(log).data
    dataset = prepare(data.source, data, folder / "data")
    held_out = dataset.holdout("valid")
    histories = held_out.histories.take(held_out.history_rows)
    return Problem(histories.items, histories.offsets, held_out.targets, dataset.num_items)


def large(users: int, items: int) -> Problem:
    """Histories that hold every item of the catalogue once, all equally long."""
    random = np.random.default_rng(0)
    shuffled = random.permutation(items).astype(np.int32) + 1
    offsets = np.arange(users + 1) * (items // users)
    return Problem(shuffled[: offsets[-1]], offsets, shuffled[:users], items)


def _experiment(log: str, overrides: list[str] | None = None) -> Experiment:
    return load_experiment(config_path(log, "dot product"), overrides or [])


def _alike(users: int, num_items: int, quantiles: tuple[int, ...]) -> Problem:
    """Histories of such lengths, of distinct items that are popular by Zipf's law."""
    random = np.random.default_rng(0)
    shares = (random.permutation(users) + 0.5) / users
    lengths = np.interp(shares, _SHARES, quantiles).astype(np.int64)
    weights = 1 / np.arange(1, num_items + 1)
    # The items of the smallest exponential waiting times: a draw without replacement.
    rows = [_smallest(random.exponential(size=num_items) / weights, n + 1) for n in lengths]
    items = np.concatenate([row[:-1] for row in rows])
    targets = np.array([row[-1] for row in rows], dtype=np.int32)
    offsets = np.concatenate([[0], np.cumsum(lengths)])
    return Problem(items, offsets, targets, num_items)


def _smallest(times: NDArray[np.float64], count: int) -> NDArray[np.int32]:
    """The tokens of the first so many items, in the order of their times."""
    first = np.argpartition(times, count)[:count]
    return (first[np.argsort(times[first])] + 1).astype(np.int32)
