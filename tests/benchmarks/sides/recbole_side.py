"""The side of RecBole 1.2: `SASRec`, its data and its trainer. It has one row for every target."""

from __future__ import annotations

import sys
import time
from pathlib import Path
from unittest.mock import patch

import numpy as np
import torch
from numpy.typing import NDArray
from recbole.config import Config
from recbole.data import create_dataset, data_preparation
from recbole.data.interaction import Interaction
from recbole.data.utils import get_dataloader
from recbole.model.sequential_recommender import SASRec
from recbole.trainer import Trainer
from side import K, Problem, Settings, Stopwatch, TimeUp, emit, main, peak_mib, save_lists

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


def quality(problem: Problem, settings: Settings) -> None:
    """Lists of recommendations after every epoch, and the seconds of training so far."""
    chosen = config(problem, settings)
    dataset = create_dataset(chosen)
    tokens = dataset.field2id_token["item_id"]  # by the library's own numbers; [0] is padding
    ids = np.zeros(problem.num_items + 1, dtype=np.int64)
    ids[tokens[1:].astype(np.int64)] = np.arange(1, len(tokens))
    dataset._change_feat_format()
    rows = get_dataloader(chosen, "train")(chosen, dataset, None, shuffle=True)
    model = SASRec(chosen, dataset)
    trainer = Trainer(chosen, model)
    seconds, epoch = 0.0, 0
    while True:
        started = time.perf_counter()
        model.train()
        loss = trainer._train_epoch(rows, epoch)
        seconds += time.perf_counter() - started
        epoch += 1
        best = best_items(model, problem, ids[problem.items], settings)
        known = tokens[1:].astype(np.int64)
        lists = save_lists(known[best - 1])
        found = {"epoch": epoch, "seconds": seconds, "loss": float(loss) / len(rows)}
        emit({**found, "peak_mib": peak_mib(), **lists})


@torch.inference_mode()
def best_items(
    model: SASRec, problem: Problem, items: NDArray[np.int64], settings: Settings
) -> NDArray[np.int64]:
    """The library's numbers of the best items [U, K]."""
    model.eval()
    longest, lists = settings.max_sequence_length, []
    for start in range(0, len(problem.targets), 512):
        histories = [
            items[problem.offsets[user] : problem.offsets[user + 1]]
            for user in range(start, min(start + 512, len(problem.targets)))
        ]
        latest = [torch.from_numpy(history[-longest:]) for history in histories]
        padded = torch.nn.utils.rnn.pad_sequence(latest, batch_first=True)
        padded = torch.nn.functional.pad(padded, (0, longest - padded.shape[1]))
        lengths = torch.tensor([len(history) for history in latest])
        asked = Interaction({"item_id_list": padded, "item_length": lengths})
        scores = model.full_sort_predict(asked)
        scores[:, 0] = -torch.inf
        if settings.seen == "filter":
            for row, history in enumerate(histories):
                scores[row, torch.from_numpy(history)] = -torch.inf
        lists.append(scores.topk(K).indices.numpy())
    return np.concatenate(lists)


if __name__ == "__main__":
    main(train, quality)
