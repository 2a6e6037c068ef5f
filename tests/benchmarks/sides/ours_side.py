"""Our side: the training loop and the evaluation that `recsys run` calls."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import Any
from unittest.mock import patch

import numpy as np
import torch
from numpy.typing import NDArray
from side import K, Problem, Settings, Stopwatch, TimeUp, emit, emit_timed, main, peak_mib

from recsys.config.experiment import Experiment
from recsys.config.files import load_experiment
from recsys.data.histories import PAD, Histories
from recsys.data.splits import Holdout
from recsys.evaluation.tables import evaluate
from recsys.inference.catalogue import Catalogue
from recsys.inference.model_scorer import ModelScorer
from recsys.inference.ranking import top_k
from recsys.inference.scorer import user_batches
from recsys.model.build import build_model
from recsys.training import loop
from recsys.training.module import TrainingModule

MANY = 1_000_000
"""Epochs: more than there is time for."""


def experiment(settings: Settings) -> Experiment:
    """The config of the repository, changed where the benchmark says so."""
    precision = {"bf16-mixed": "bf16", "32-true": "float32", "": "auto"}[settings.precision]
    changes = [f"training.precision={precision}", *settings.overrides]
    return load_experiment(settings.config, changes)


def holdout(problem: Problem) -> Holdout:
    """The targets, as our evaluation takes them."""
    rows = np.arange(len(problem.targets))
    histories = Histories(problem.items, problem.offsets)
    return Holdout(rows, problem.targets, rows, histories, dropped=0)


def train(problem: Problem, settings: Settings) -> None:
    """Training throughput of the loop as it is; its module counts."""
    stopwatch = Stopwatch(settings)

    class Counting(TrainingModule):
        def on_train_batch_end(
            self, outputs: torch.Tensor | Mapping[str, Any] | None, batch: Any, batch_idx: int
        ) -> None:
            assert isinstance(outputs, Mapping)
            stopwatch.describe(self.model, self.trainer.optimizers[0], batch.items.shape)
            stopwatch.batch(int((batch.targets != PAD).sum()), outputs["loss"].item())

    histories = Histories(problem.items, problem.offsets)
    try:
        with patch.object(loop, "TrainingModule", Counting):
            loop.train(
                experiment(settings),
                Catalogue(problem.num_items),
                histories,
                None,
                MANY,
                lambda *_: None,
            )
    except TimeUp:
        emit(stopwatch.answer())


def quality(problem: Problem, settings: Settings) -> None:
    """An answer after every epoch: seconds of training so far and validation NDCG@10."""
    seconds = 0.0

    def report(epoch: int, figures: dict[str, float]) -> None:
        nonlocal seconds
        seconds += figures["train/seconds"]
        found = {"loss": figures["train/loss"], "ndcg": figures["epoch/valid_ndcg_at_10"]}
        emit({"epoch": epoch, "seconds": seconds, "peak_mib": peak_mib(), **found})

    config = experiment(settings)
    histories = Histories(problem.items, problem.offsets)
    loop.train(
        config,
        Catalogue(problem.num_items),
        histories,
        holdout(problem),
        config.training.max_epochs,
        report,
    )


def scorer(problem: Problem, settings: Settings) -> ModelScorer:
    """A model with random weights, scored as those of a bundle are."""
    torch.manual_seed(0)
    model = build_model(experiment(settings).model, problem.num_items).eval()
    return ModelScorer(model, settings.max_sequence_length)


def recommend(problem: Problem, settings: Settings) -> None:
    """The best items of all users, seen ones left out."""
    model = scorer(problem, settings)

    def ask(some: Problem) -> Callable[[], NDArray[np.int64]]:
        histories = Histories(some.items, some.offsets)
        return lambda: top_k(model, histories, K, "filter")[0].astype(np.int64)

    emit_timed(ask, problem, settings)


def candidates(problem: Problem, settings: Settings) -> None:
    """The candidates of all users, by score."""
    model = scorer(problem, settings)
    tokens = np.arange(1, settings.candidates + 1, dtype=np.int32)

    def ask(some: Problem) -> Callable[[], NDArray[np.int64]]:
        histories = Histories(some.items, some.offsets)

        def lists() -> NDArray[np.int64]:
            found = np.empty((len(histories), len(tokens)), dtype=np.int64)
            for rows in user_batches(len(histories), len(tokens)):
                batch = histories[rows]
                scores = model.score(batch, np.tile(tokens, (len(batch), 1)))
                found[rows] = scores.argsort(dim=1, descending=True).numpy() + 1
            return found

        return lists

    emit_timed(ask, problem, settings)


def evaluation(problem: Problem, settings: Settings) -> None:
    """Exact ranks of all targets over the whole catalogue and NDCG@10."""
    model = scorer(problem, settings)
    evaluate(model, holdout(problem.first(256)), "valid", "filter")
    started = time.perf_counter()
    table = evaluate(model, holdout(problem), "valid", "filter")
    ndcg = float(table.values("ndcg_at_10").mean())
    emit({"seconds": time.perf_counter() - started, "peak_mib": peak_mib(), "ndcg": ndcg})


if __name__ == "__main__":
    main(train, quality, recommend, candidates, evaluation)
