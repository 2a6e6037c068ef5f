"""The side of RecTools 0.19: `SASRecModel`, its Lightning trainer, its recommend and metrics.

For training there is its `FlatSASRecNet` too, with RecTools' sequences and dataset; the library has
no trainer for that net, so the loop is Lightning's and the loss that of `UniSRecLightning`.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import numpy as np
import pandas as pd
import torch
from numpy.typing import NDArray
from pytorch_lightning import Callback, LightningModule, Trainer
from rectools import Columns
from rectools.dataset import Dataset
from rectools.fast_transformers import FlatSASRecNet, SequenceBatchDataset, build_sequences
from rectools.metrics import NDCG, calc_metrics
from rectools.models import SASRecModel
from side import (
    K,
    Problem,
    Settings,
    Stopwatch,
    TimeUp,
    emit,
    emit_timed,
    main,
    peak_mib,
    save_lists,
)
from torch.nn.functional import cross_entropy
from torch.utils.data import DataLoader


class Counter(Callback):
    """Tells a stopwatch of each batch."""

    def __init__(self, stopwatch: Stopwatch) -> None:
        self._stopwatch = stopwatch

    def __deepcopy__(self, memo: object) -> Counter:
        """The model copies its trainer: all copies tell the same stopwatch."""
        return self

    def on_train_batch_end(
        self, trainer: Trainer, pl_module: Any, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        optimizer = trainer.optimizers[0]
        self._stopwatch.describe(pl_module.torch_model, optimizer, batch["x"].shape)
        real = (batch["x"] != 0) & (batch["y"] != 0)
        self._stopwatch.batch(int(real.sum()), outputs["loss"].item())


class EpochClock(Callback):
    """Seconds of all epochs so far, and the loss of the last one."""

    def __init__(self) -> None:
        self.seconds = self._started = self.loss = 0.0

    def __deepcopy__(self, memo: object) -> EpochClock:
        return self

    def on_train_epoch_start(self, trainer: Trainer, pl_module: Any) -> None:
        self._started = time.perf_counter()

    def on_train_epoch_end(self, trainer: Trainer, pl_module: Any) -> None:
        self.seconds += time.perf_counter() - self._started
        self.loss = float(trainer.callback_metrics["train_loss"])


def dataset(problem: Problem) -> Dataset:
    """Histories as interactions of ascending time."""
    frame = pd.DataFrame({Columns.User: problem.users, Columns.Item: problem.items})
    frame[Columns.Weight] = 1.0
    frame[Columns.Datetime] = pd.to_datetime(np.arange(len(frame)), unit="s")
    return Dataset.construct(frame)


def sasrec(settings: Settings, callbacks: list[Callback], epochs: int = -1) -> SASRecModel:
    """Cross-entropy and Adam; all that is not named is the library's default."""

    def trainer() -> Trainer:
        return Trainer(max_epochs=epochs, callbacks=callbacks, **settings.trainer)

    return SASRecModel(
        n_factors=settings.embedding_dim,
        n_blocks=settings.num_blocks,
        n_heads=settings.num_heads,
        session_max_len=settings.max_sequence_length,
        dropout_rate=settings.dropout,
        loss="sampled_softmax" if settings.negatives else "softmax",
        n_negatives=settings.negatives or 1,
        lr=settings.learning_rate,
        batch_size=settings.batch_size,
        get_trainer_func=trainer,
    )


def train(problem: Problem, settings: Settings) -> None:
    """Training throughput."""
    stopwatch = Stopwatch(settings)
    if settings.fast:
        return train_fast(problem, settings, stopwatch)
    try:
        sasrec(settings, [Counter(stopwatch)]).fit(dataset(problem))
    except TimeUp:
        emit(stopwatch.answer())


class FastTraining(LightningModule):
    """Full cross-entropy and Adam, as those of `SASRecModel` above."""

    def __init__(self, net: FlatSASRecNet, learning_rate: float) -> None:
        super().__init__()
        self.torch_model = net
        self._learning_rate = learning_rate

    def training_step(self, batch: dict[str, torch.Tensor], batch_idx: int) -> torch.Tensor:
        logits = self.torch_model(batch)  # of the items 1 to I
        classes = batch["y"].flatten() - 1
        return cross_entropy(logits.flatten(0, 1), classes, ignore_index=-1)

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.Adam(self.parameters(), lr=self._learning_rate, betas=(0.9, 0.98))


def train_fast(problem: Problem, settings: Settings, stopwatch: Stopwatch) -> None:
    """Training throughput of `FlatSASRecNet`."""
    items = torch.from_numpy(problem.items).long()
    times, length = torch.arange(len(items)), settings.max_sequence_length
    x, y, unique, _ = build_sequences(torch.from_numpy(problem.users), items, times, length)
    net = FlatSASRecNet(
        len(unique),
        settings.embedding_dim,
        settings.num_blocks,
        settings.num_heads,
        length,
        settings.dropout,
    )
    batches = DataLoader(SequenceBatchDataset(x, y), settings.batch_size, shuffle=True)
    trainer = Trainer(max_epochs=-1, callbacks=[Counter(stopwatch)], **settings.trainer)
    try:
        trainer.fit(FastTraining(net, settings.learning_rate), batches)
    except TimeUp:
        emit(stopwatch.answer())


def quality(problem: Problem, settings: Settings) -> None:
    """Lists of recommendations after every epoch, and the seconds of training so far."""
    clock, data = EpochClock(), dataset(problem)
    model = sasrec(settings, [clock])
    epoch = 0
    while True:
        model.fit_partial(data, min_epochs=1, max_epochs=1)
        epoch += 1
        frame = frame_of(model, data, problem, settings.seen == "filter")
        lists = save_lists(as_lists(frame, problem))
        found = {"epoch": epoch, "seconds": clock.seconds, "loss": clock.loss}
        emit({**found, "peak_mib": peak_mib(), **lists})


def untrained(problem: Problem, settings: Settings) -> tuple[SASRecModel, Dataset]:
    """A model with random weights, and what it was made for."""
    data = dataset(problem)
    model = sasrec(settings, [], epochs=0)
    return model.fit(data), data


def frame_of(
    model: SASRecModel, data: Dataset, problem: Problem, filtered: bool = True, candidates: int = 0
) -> pd.DataFrame:
    """The best items of the users, seen ones left out if filtered; or all of the candidates."""
    users = np.arange(len(problem.targets))
    frame: pd.DataFrame = model.recommend(
        users=users,
        dataset=data,
        k=candidates or K,
        filter_viewed=filtered,
        items_to_recommend=np.arange(1, candidates + 1) if candidates else None,
    )
    return frame


def as_lists(frame: pd.DataFrame, problem: Problem, width: int = K) -> NDArray[np.int64]:
    """Item tokens [U, width]."""
    lists = np.zeros((len(problem.targets), width), dtype=np.int64)
    lists[frame[Columns.User], frame[Columns.Rank] - 1] = frame[Columns.Item]
    return lists


def recommend(problem: Problem, settings: Settings) -> None:
    """The best items of all users, seen ones left out."""
    model, data = untrained(problem, settings)
    emit_timed(lambda some: lambda: as_lists(frame_of(model, data, some), some), problem, settings)


def candidates(problem: Problem, settings: Settings) -> None:
    """The candidates of all users, by score."""
    model, data = untrained(problem, settings)
    count = settings.candidates

    def ask(some: Problem) -> Callable[[], NDArray[np.int64]]:
        return lambda: as_lists(frame_of(model, data, some, False, count), some, count)

    emit_timed(ask, problem, settings)


def evaluation(problem: Problem, settings: Settings) -> None:
    """Recommendations and NDCG@10."""
    model, data = untrained(problem, settings)
    frame_of(model, data, problem.first(256))
    started = time.perf_counter()
    users = np.arange(len(problem.targets))
    truth = pd.DataFrame({Columns.User: users, Columns.Item: problem.targets})
    frame = frame_of(model, data, problem)
    # One target: the same NDCG as ours once divided by what is achievable.
    metrics = {"ndcg": NDCG(k=K, divide_by_achievable=True)}
    found = calc_metrics(metrics, reco=frame, interactions=truth)
    seconds = time.perf_counter() - started
    lists = save_lists(as_lists(frame, problem))
    emit({"seconds": seconds, "peak_mib": peak_mib(), **found, **lists})


if __name__ == "__main__":
    main(train, quality, recommend, candidates, evaluation)
