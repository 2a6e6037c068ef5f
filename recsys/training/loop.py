"""One training: a fresh model, Lightning's loop around it, the weights of the best epoch back."""

from __future__ import annotations

import logging
import signal
import threading
import warnings
from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
import pytorch_lightning as pl
import torch
from pytorch_lightning.trainer.states import TrainerStatus
from rich.progress import Progress

from recsys.config import Experiment, MaskedItemConfig, SequenceToSequenceConfig
from recsys.data.batches import ContinuationBatches, MaskedBatches, TrainingBatches
from recsys.data.histories import Histories
from recsys.data.holdout import Holdout
from recsys.errors import InputError
from recsys.evaluation.model_scorer import ModelScorer
from recsys.evaluation.rank_table import RankTable, evaluate
from recsys.model.recommender import Model, build_model
from recsys.training.callbacks import Curve, EpochRecorder, ProgressLine, Report
from recsys.training.module import Schedule, TrainingModule
from recsys.training.precision import choose_precision

logger = logging.getLogger(__name__)

Batches = TrainingBatches | MaskedBatches | ContinuationBatches


def train(
    experiment: Experiment,
    num_items: int,
    histories: Histories,
    validation: Holdout | None,
    epochs: int,
    report: Report,
    progress: Progress | None = None,
) -> tuple[Model, Curve]:
    """Train a fresh model on the histories.

    Args:
        experiment: model, training, protocol and seed.
        num_items: size of the catalogue.
        histories: what is learned from.
        validation: targets that choose the best epoch and stop early; None: train to the end.
        epochs: the most passes over the histories.
        report: called after each epoch with its number and figures.
        progress: the view that shows it; None: one of its own.

    Returns:
        The model with the weights of the best epoch (the last one without validation). With
        validation Ctrl-C only ends the training early: the best epoch so far is returned, and
        the curve says that it was interrupted. The caller's random state is left as it was.

    Raises:
        InputError: no history has two items.
        KeyboardInterrupt: by Ctrl-C before the first epoch has ended, or without validation.
    """
    batches = _batches(experiment, histories)
    if batches.num_sequences == 0:
        raise InputError("nothing to train on: no user has two interactions before the held-out")
    with torch.random.fork_rng():
        torch.manual_seed(experiment.seed)
        return _fit(experiment, num_items, histories, batches, validation, epochs, report, progress)


def _batches(experiment: Experiment, histories: Histories) -> Batches:
    model, tokens, seed = experiment.model, experiment.training.batch_tokens, experiment.seed
    length = model.max_sequence_length
    if isinstance(model, SequenceToSequenceConfig):
        return ContinuationBatches(histories, length, model.max_generated, tokens, seed)
    sequences = TrainingBatches(histories, length, tokens, seed)
    if isinstance(model, MaskedItemConfig):
        return MaskedBatches(sequences, model.mask_probability, seed)
    return sequences


def _fit(
    experiment: Experiment,
    num_items: int,
    histories: Histories,
    batches: Batches,
    validation: Holdout | None,
    epochs: int,
    report: Report,
    progress: Progress | None,
) -> tuple[Model, Curve]:
    config, length = experiment.training, experiment.model.max_sequence_length
    model = build_model(experiment.model, num_items)
    schedule = Schedule.plan(config, epochs, len(batches))
    exclude_seen = experiment.evaluation.seen == "filter"
    interactions = torch.from_numpy(np.bincount(histories.items, minlength=num_items + 1))
    module = TrainingModule(model, config, schedule, interactions, exclude_seen=exclude_seen)

    def validate(holdout: Holdout) -> RankTable:
        scorer = ModelScorer(model, length)
        return evaluate(scorer, holdout, "valid", experiment.evaluation.seen)

    recorder = EpochRecorder(
        model,
        None if validation is None else lambda: validate(validation),
        config.validate_every,
        config.patience,
        batches.num_tokens,
        report,
    )
    line = ProgressLine(experiment.name, schedule.total_steps, recorder, progress)
    # Lightning logs tips and advertisements as news; what users need to know, we say.
    logging.getLogger("pytorch_lightning").setLevel(logging.WARNING)
    precision, reason = choose_precision(config.precision)
    logger.info("precision %s: %s", precision, reason)
    device = "cuda" if torch.cuda.is_available() else "cpu"
    trainer = pl.Trainer(
        max_epochs=epochs,
        accelerator=device,
        devices=1,
        reload_dataloaders_every_n_epochs=1,  # epochs differ by a batch or so
        precision=precision,
        callbacks=[recorder, line],
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    with _ctrl_c_ends_early(trainer, recorder):
        trainer.fit(module, batches)
    model.load_state_dict(recorder.curve.best_weights)
    return model.to(device).eval(), recorder.curve


@contextmanager
def _ctrl_c_ends_early(trainer: pl.Trainer, recorder: EpochRecorder) -> Iterator[None]:
    """Lightning turns Ctrl-C into an exit; turn it into an early end of the training."""
    main = threading.current_thread() is threading.main_thread()
    handler = signal.getsignal(signal.SIGINT)
    try:
        with warnings.catch_warnings():
            # Lightning 2.6 still asks torch in the old way; nothing that a user could mend.
            warnings.filterwarnings("ignore", message=".*LeafSpec.*", category=FutureWarning)
            yield
    except SystemExit:
        if trainer.state.status != TrainerStatus.INTERRUPTED:
            raise
        if not recorder.interrupt():
            raise KeyboardInterrupt from None
        logger.warning("stopped by Ctrl-C: going on with epoch %d", recorder.curve.best_epoch)
    finally:
        if main:
            signal.signal(signal.SIGINT, handler)
