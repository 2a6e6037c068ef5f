"""The side of RePlay 0.22: `replay.nn` SasRec, its data module, its Lightning module."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import lightning
import numpy as np
import pyarrow as pa  # type: ignore[import-untyped]
import pyarrow.parquet as pq  # type: ignore[import-untyped]
import torch
from numpy.typing import NDArray
from replay.data import FeatureHint, FeatureSource, FeatureType
from replay.data.nn import ParquetModule, TensorFeatureInfo, TensorFeatureSource, TensorSchema
from replay.nn.lightning import LightningModule
from replay.nn.lightning.callback import ComputeMetricsCallback, TorchTopItemsCallback
from replay.nn.lightning.optimizer import OptimizerFactory
from replay.nn.lightning.postprocessor import SeenItemsFilter
from replay.nn.loss import CESampled
from replay.nn.sequential import SasRec
from replay.nn.transform import UniformNegativeSamplingTransform
from replay.nn.transform.template import make_default_sasrec_transforms
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


class Counter(lightning.Callback):
    """Tells a stopwatch of each batch."""

    def __init__(self, stopwatch: Stopwatch) -> None:
        self._stopwatch = stopwatch

    def on_train_batch_end(
        self, trainer: Any, pl_module: Any, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        shape = batch["padding_mask"].shape
        self._stopwatch.describe(pl_module.model, trainer.optimizers[0], shape)
        real = batch["padding_mask"] & batch["target_padding_mask"][..., 0]
        self._stopwatch.batch(int(real.sum()), outputs["loss"].item())


class EpochLists(lightning.Callback):
    """Stops the clock for validation; writes the lists of best items that it finds there."""

    def __init__(self, seen: SeenItemsFilter | None) -> None:
        self._seen = seen
        self._seconds = self._started = 0.0
        self._epoch = 0
        self._losses: list[float] = []
        self._lists: list[torch.Tensor] = []

    def on_train_epoch_start(self, trainer: Any, pl_module: Any) -> None:
        self._started = time.perf_counter()
        self._losses = []

    def on_train_batch_end(
        self, trainer: Any, pl_module: Any, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        self._losses.append(outputs["loss"].item())

    def on_validation_epoch_start(self, trainer: Any, pl_module: Any) -> None:
        self._seconds += time.perf_counter() - self._started
        self._epoch += 1
        self._lists = []

    def on_validation_batch_end(
        self,
        trainer: Any,
        pl_module: Any,
        outputs: Any,
        batch: Any,
        batch_idx: int,
        dataloader_idx: int = 0,
    ) -> None:
        logits = outputs["logits"]
        if self._seen is not None:
            logits = self._seen.on_validation(batch, logits)
        self._lists.append(logits.topk(K).indices + 1)

    def on_validation_epoch_end(self, trainer: Any, pl_module: Any) -> None:
        lists = save_lists(torch.cat(self._lists).numpy())
        found = {"epoch": self._epoch, "seconds": self._seconds, "loss": np.mean(self._losses)}
        emit({**found, "peak_mib": peak_mib(), **lists})
        self._started = time.perf_counter()


def schema(problem: Problem, settings: Settings) -> TensorSchema:
    """Items 0 to I - 1, I for padding."""
    item = TensorFeatureInfo(
        "item_id",
        is_seq=True,
        feature_type=FeatureType.CATEGORICAL,
        embedding_dim=settings.embedding_dim,
        padding_value=problem.num_items,
        cardinality=problem.num_items,
        feature_hint=FeatureHint.ITEM_ID,
        feature_sources=[TensorFeatureSource(FeatureSource.INTERACTIONS, "item_id")],
    )
    return TensorSchema([item])


def data_module(problem: Problem, settings: Settings, *stages: str) -> ParquetModule:
    """The histories as a Parquet file, in the stages named."""
    path = str(Path(sys.argv[2]) / "replay.parquet")
    histories = pa.LargeListArray.from_arrays(problem.offsets, problem.items.astype(np.int64) - 1)
    targets = pa.LargeListArray.from_arrays(
        np.arange(len(problem.targets) + 1), problem.targets.astype(np.int64) - 1
    )
    columns = {"item_id": histories, "seen_ids": histories, "ground_truth": targets}
    users = {"user_id": np.arange(len(problem.targets))}
    pq.write_table(pa.table({**users, **columns}), path)
    longest, length = int(np.diff(problem.offsets).max()), settings.max_sequence_length
    metadata = {"user_id": {}, "item_id": {"shape": length, "padding": problem.num_items}}
    asked = {
        **metadata,
        "seen_ids": {"shape": longest, "padding": -1},
        "ground_truth": {"shape": 1, "padding": -1},
    }
    # One item more for training: inputs and targets are cut from the same sequence.
    taught = {"user_id": {}, "item_id": {"shape": length + 1, "padding": problem.num_items}}
    items = schema(problem, settings)
    transforms = make_default_sasrec_transforms(items)
    if settings.negatives:
        # The last transform keeps what it is told of: features, and all that is no feature.
        sampling = UniformNegativeSamplingTransform(problem.num_items, settings.negatives)
        transforms["train"].insert(-1, sampling)
    return ParquetModule(
        batch_size=settings.batch_size,
        metadata={stage: taught if stage == "train" else asked for stage in stages},
        transforms=transforms,
        **{f"{stage}_path": path for stage in stages},
    )


def sasrec(problem: Problem, settings: Settings) -> LightningModule:
    """Cross-entropy and Adam; all that is not named is the library's default."""
    model = SasRec.from_params(
        schema(problem, settings),
        embedding_dim=settings.embedding_dim,
        num_heads=settings.num_heads,
        num_blocks=settings.num_blocks,
        max_sequence_length=settings.max_sequence_length,
        dropout=settings.dropout,
    )
    if settings.negatives:
        model.loss = CESampled()
        model.loss.logits_callback = model.get_logits
    return LightningModule(model, OptimizerFactory(learning_rate=settings.learning_rate))


def trainer(settings: Settings, callback: lightning.Callback, **more: Any) -> lightning.Trainer:
    """Lightning's, as the library's examples have it."""
    return lightning.Trainer(
        max_epochs=-1, callbacks=[callback], num_sanity_val_steps=0, **more, **settings.trainer
    )


def train(problem: Problem, settings: Settings) -> None:
    """Training throughput."""
    stopwatch = Stopwatch(settings)
    data = data_module(problem, settings, "train")
    teacher = trainer(settings, Counter(stopwatch), limit_val_batches=0)
    try:
        teacher.fit(sasrec(problem, settings), datamodule=data)
    except TimeUp:
        emit(stopwatch.answer())


def quality(problem: Problem, settings: Settings) -> None:
    """Lists of recommendations after every epoch, and the seconds of training so far."""
    seen = SeenItemsFilter(problem.num_items) if settings.seen == "filter" else None
    callback = EpochLists(seen)
    data = data_module(problem, settings, "train", "validate")
    trainer(settings, callback).fit(sasrec(problem, settings), datamodule=data)


def emit_lists(
    problem: Problem, settings: Settings, model: LightningModule, width: int, *seen: SeenItemsFilter
) -> None:
    """Time the lists of so many items of all users."""

    def ask(some: Problem) -> Callable[[], NDArray[np.int64]]:
        best = TorchTopItemsCallback(width, "user_id", list(seen))
        data = data_module(some, settings, "predict")

        def lists() -> NDArray[np.int64]:
            trainer(settings, best).predict(model, datamodule=data, return_predictions=False)
            _, items, _ = best.get_result()
            return np.asarray(items + 1)

        return lists

    emit_timed(ask, problem, settings)


def recommend(problem: Problem, settings: Settings) -> None:
    """The best items of all users, seen ones left out."""
    seen = SeenItemsFilter(problem.num_items)
    emit_lists(problem, settings, sasrec(problem, settings), K, seen)


def candidates(problem: Problem, settings: Settings) -> None:
    """The candidates of all users, by score."""
    model = sasrec(problem, settings)
    model.candidates_to_score = torch.arange(settings.candidates)
    emit_lists(problem, settings, model, settings.candidates)


def evaluation(problem: Problem, settings: Settings) -> None:
    """NDCG@10 by the library's validation."""
    model = sasrec(problem, settings)
    seen = SeenItemsFilter(problem.num_items)

    def validate(data: ParquetModule) -> float:
        metrics = ComputeMetricsCallback(["ndcg"], ks=[K], postprocessors=[seen], verbose=False)
        (found,) = trainer(settings, metrics).validate(model, datamodule=data, verbose=False)
        return float(found[f"ndcg@{K}"])

    validate(data_module(problem.first(256), settings, "validate"))
    data = data_module(problem, settings, "validate")
    started = time.perf_counter()
    ndcg = validate(data)
    emit({"seconds": time.perf_counter() - started, "peak_mib": peak_mib(), "ndcg": ndcg})


if __name__ == "__main__":
    main(train, quality, recommend, candidates, evaluation)
