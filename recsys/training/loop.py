"""One training: a model, Lightning's loop around it, the weights of the best epoch back."""

from __future__ import annotations

import logging
import signal
import sys
import threading
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Literal

import numpy as np
import pytorch_lightning as pl
import torch
from pytorch_lightning.trainer.states import TrainerStatus
from pytorch_lightning.utilities.exceptions import SIGTERMException
from rich.progress import Progress

from recsys.config import Experiment, MaskedItemConfig, SequenceToSequenceConfig
from recsys.data.batches import MaskedBatches, SequenceToSequenceBatches, TrainingBatches
from recsys.data.histories import Histories
from recsys.data.holdout import Holdout
from recsys.data.sharded_batches import Batches, ShardedBatches
from recsys.errors import InputError
from recsys.evaluation.tables.rank import RankTable
from recsys.inference.catalogue import Catalogue
from recsys.model.build import Model
from recsys.training import processes
from recsys.training.callbacks import EpochRecorder, Report, StateKeeper
from recsys.training.module import Schedule, TrainingModule
from recsys.training.precision import choose_precision
from recsys.training.process_memory import keep_freed_memory
from recsys.training.progress import ProgressLine
from recsys.training.state import Curve, TrainingState
from recsys.training.validation import rank_together

logger = logging.getLogger(__name__)


def train(
    experiment: Experiment,
    catalogue: Catalogue,
    histories: Histories,
    validation: Holdout | None,
    epochs: int,
    report: Report,
    progress: Progress | None = None,
    start: TrainingState | None = None,
    keep: Callable[[TrainingState], None] | None = None,
) -> tuple[Model, Curve]:
    """Train a model on the histories, a fresh one or from where another training stood.

    Args:
        experiment: model, training, protocol and seed.
        catalogue: the items.
        histories: what is learned from.
        validation: targets that choose the best epoch and stop early; None: train to the end.
        epochs: the most passes over the histories.
        report: called after each epoch with its number and figures.
        progress: the view that shows it; None: one of its own.
        start: a state of a training with the same arguments; None: at the beginning.
        keep: called with the state now and then, and after each epoch, in the first process.

    Returns:
        The model with the weights of the best epoch (the last one without validation). With
        validation Ctrl-C only ends the training early: the best epoch so far is returned, and
        the curve says that it was interrupted. The caller's random state is left as it was.

    Raises:
        InputError: no history has two items.
        KeyboardInterrupt: by Ctrl-C before the first epoch has ended, without validation, or where
            several processes train.
    """
    keep_freed_memory()
    batches = epochs_of(experiment, histories)
    config = experiment.training
    if config.loss.kind != "cross_entropy" and processes.count() > 1 and torch.cuda.is_available():
        raise InputError(
            f"training.loss={config.loss.kind}: item embeddings change row by row, which several "
            "GPUs cannot exchange (NCCL): train on one, or with cross_entropy"
        )
    schedule = Schedule.plan(config, epochs, len(batches))
    with torch.random.fork_rng(_gpus()):
        torch.manual_seed(experiment.seed)
        module = new_module(experiment, catalogue, histories, schedule, start)
        validate = _validate(experiment, module.model, validation)
        tokens = batches.num_tokens
        shared = _share(batches, start)
        recorder = EpochRecorder(module, validate, config, epochs, shared, tokens, report, start)
        callbacks: list[pl.Callback] = [recorder]
        if keep is not None:
            callbacks.append(StateKeeper(module, recorder, keep, config, start))
        if processes.is_first():
            steps = 0 if start is None else start.step
            callbacks.append(ProgressLine(experiment.name, steps, recorder, progress))
        if not (recorder.should_stop or (start is not None and start.ended)):
            trainer = _trainer(config.precision, epochs, callbacks)
            with _ctrl_c_ends_early(trainer, recorder):
                trainer.fit(module, shared)
    model = module.model
    model.load_state_dict(recorder.curve.best_weights)
    return model.to(_device()).eval(), recorder.curve


def new_module(
    experiment: Experiment,
    catalogue: Catalogue,
    histories: Histories,
    schedule: Schedule,
    start: TrainingState | None = None,
) -> TrainingModule:
    """A model with fresh weights, or those of ``start``, and how it is trained on the histories.

    Seed torch before calling.
    """
    interactions = np.bincount(histories.items, minlength=catalogue.num_items + 1)
    return TrainingModule(
        catalogue.new_model(experiment.model, interactions),
        experiment.training,
        schedule,
        torch.from_numpy(interactions),
        exclude_seen=experiment.evaluation.seen == "filter",
        start=start,
    )


def _validate(
    experiment: Experiment, model: Model, validation: Holdout | None
) -> Callable[[], RankTable] | None:
    if validation is None:
        return None
    length, seen = experiment.model.max_sequence_length, experiment.evaluation.seen
    return lambda: rank_together(model, length, validation, seen)


def epochs_of(experiment: Experiment, histories: Histories) -> Batches:
    """What the model of the experiment is trained on, epoch after epoch.

    Raises:
        InputError: no history has two items.
    """
    batches = _epochs_of(experiment, histories)
    if batches.num_sequences == 0:
        raise InputError("nothing to train on: no user has two interactions before the held-out")
    return batches


def _epochs_of(experiment: Experiment, histories: Histories) -> Batches:
    model, training, seed = experiment.model, experiment.training, experiment.seed
    length, tokens = model.max_sequence_length, training.batch_tokens
    if isinstance(model, SequenceToSequenceConfig):
        return SequenceToSequenceBatches(histories, length, model.max_generated, tokens, seed)
    sequences = TrainingBatches(histories, length, tokens, seed, training.windows)
    if isinstance(model, MaskedItemConfig):
        return MaskedBatches(sequences, model.mask_probability, seed)
    return sequences


def _share(batches: Batches, start: TrainingState | None) -> ShardedBatches:
    epoch, done = (0, 0) if start is None else (len(start.curve.epochs), start.epoch.batches)
    return ShardedBatches(batches, epoch, done, processes.index(), processes.count())


def _trainer(
    precision: Literal["auto", "bf16", "float32"], epochs: int, callbacks: list[pl.Callback]
) -> pl.Trainer:
    # Lightning logs tips and advertisements as news; what users need to know, we say.
    logging.getLogger("pytorch_lightning").setLevel(logging.WARNING)
    chosen, reason = choose_precision(precision)
    logger.info("precision %s: %s", chosen, reason)
    return pl.Trainer(
        max_epochs=epochs,  # the recorder says when they are over
        accelerator=_device(),
        devices=processes.count_here(),
        num_nodes=processes.count() // processes.count_here(),
        strategy="ddp" if processes.count() > 1 else "auto",
        reload_dataloaders_every_n_epochs=1,  # epochs differ by a batch or so
        precision=chosen,
        callbacks=callbacks,
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )


def _device() -> str:
    return "cuda" if torch.cuda.is_available() else "cpu"


def _gpus() -> list[int]:
    """The one that this process computes on, if any."""
    return [torch.cuda.current_device()] if torch.cuda.is_available() else []


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
    except SIGTERMException:
        sys.exit(128 + signal.SIGTERM)  # as a shell has it; Lightning would say that all is well
    except SystemExit:
        if trainer.state.status != TrainerStatus.INTERRUPTED:
            raise
        if processes.count() > 1 or not recorder.interrupt():
            raise KeyboardInterrupt from None
        logger.warning("stopped by Ctrl-C: going on with epoch %d", recorder.curve.best_epoch)
    finally:
        if main:
            signal.signal(signal.SIGINT, handler)
