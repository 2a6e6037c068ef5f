"""The side of RecBole 1.2: `SASRec`, its data and its trainer. It has one row for every target."""

from __future__ import annotations

import sys
from pathlib import Path
from unittest.mock import patch

import numpy as np
import torch
from recbole.config import Config
from recbole.data import create_dataset, data_preparation
from recbole.data.interaction import Interaction
from recbole.model.sequential_recommender import SASRec
from recbole.trainer import Trainer
from side import Problem, Settings, Stopwatch, TimeUp, emit, main

ROWS = 50_000
"""More than it trains on in the time; those of all users would fill the memory."""


def config(problem: Problem, settings: Settings) -> Config:
    """Full cross-entropy and Adam; all that is not named is the library's default."""
    folder = Path(sys.argv[2]) / "recbole"
    (folder / "log").mkdir(parents=True, exist_ok=True)
    rows = np.column_stack([problem.users, problem.items, np.arange(len(problem.items))])
    header = "user_id:token\titem_id:token\ttimestamp:float"
    np.savetxt(folder / "log" / "log.inter", rows, "%d", "\t", header=header, comments="")
    fields = {
        "data_path": str(folder),
        "checkpoint_dir": str(folder),
        "load_col": {"inter": ["user_id", "item_id", "timestamp"]},
        "MAX_ITEM_LIST_LENGTH": settings.max_sequence_length,
        "n_layers": settings.num_blocks,
        "n_heads": settings.num_heads,
        "hidden_size": settings.embedding_dim,
        "inner_size": 4 * settings.embedding_dim,  # as its default of 256 is to 64
        "hidden_dropout_prob": settings.dropout,
        "attn_dropout_prob": settings.dropout,
        "loss_type": "CE",
        "train_neg_sample_args": None,
        "learning_rate": settings.learning_rate,
        "train_batch_size": settings.batch_size,
        "use_gpu": False,
        "show_progress": False,
    }
    return Config(model="SASRec", dataset="log", config_dict=fields)


def train(problem: Problem, settings: Settings) -> None:
    """Training throughput; tokens are rows, for each has one target."""
    stopwatch = Stopwatch(settings)
    calculate_loss = SASRec.calculate_loss
    before: list[tuple[int, torch.Tensor]] = []

    def counting(model: SASRec, rows: Interaction) -> torch.Tensor:
        if before:  # that batch is done: its step came before this one
            done, loss = before.pop()
            stopwatch.describe(model, trainer.optimizer, rows["item_id_list"].shape)
            stopwatch.batch(done, loss.item())
        fresh: torch.Tensor = calculate_loss(model, rows)
        before.append((len(rows), fresh.detach()))
        return fresh

    few = problem.first(int(np.searchsorted(problem.offsets, ROWS)))
    settings_of_recbole = config(few, settings)
    dataset = create_dataset(settings_of_recbole)
    # The items of the few users are not the catalogue, which the cross-entropy runs over.
    dataset.field2id_token["item_id"] = np.arange(problem.num_items + 1).astype(str)
    rows, _, _ = data_preparation(settings_of_recbole, dataset)
    with patch.object(SASRec, "calculate_loss", counting):
        trainer = Trainer(settings_of_recbole, SASRec(settings_of_recbole, dataset))
        try:
            trainer.fit(rows, saved=False, verbose=False)
        except TimeUp:
            emit(stopwatch.answer())


if __name__ == "__main__":
    main(train=train)
