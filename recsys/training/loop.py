"""The training loop: train a model with Lightning and return the weights of its best epoch."""

from __future__ import annotations

import logging
import signal
import threading
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from types import FrameType

import numpy as np
import pytorch_lightning as pl
import torch
from pytorch_lightning.strategies import DDPStrategy
from pytorch_lightning.trainer.states import TrainerStatus
from pytorch_lightning.utilities.exceptions import SIGTERMException
from rich.progress import Progress

from recsys.config import Experiment, MaskedItemConfig, SequenceToSequenceConfig
from recsys.data.batches import (
    MaskedBatches,
    PlainBatches,
    SequenceToSequenceBatches,
    TrainingBatches,
)
from recsys.data.histories import Histories
from recsys.data.holdout import Holdout
from recsys.data.sharded_batches import Batches, ShardedBatches
from recsys.errors import InputError, Terminated, terminate
from recsys.inference.catalogue import Catalogue
from recsys.model.protocols import Model
from recsys.process_memory import keep_freed_memory
from recsys.training import processes
from recsys.training.callbacks import EpochRecorder, Report
from recsys.training.checkpoint_callback import CheckpointCallback
from recsys.training.device import NO_CUBLAS_CONTEXT, gpus, lightning_devices, training_device
from recsys.training.divergence import warn_of_harm
from recsys.training.gpu_memory import gpu_memory, gpu_memory_suffices, release_gpu_memory
from recsys.training.module import TrainingModule
from recsys.training.precision import Precision, lightning_name, settle_precision
from recsys.training.progress import ProgressLine
from recsys.training.schedule import Schedule
from recsys.training.state import Curve, TrainingState
from recsys.training.validation import histories_here, validation_of
from recsys.training.warm_start import WarmStart

logger = logging.getLogger(__name__)

ENDLESS = 100_000
"""More epochs than any training has: something else ends it."""

_COPIES = 5
"""Of the weights in training: themselves, their gradients, two moments, and the best so far."""
_AVERAGE_COPIES = 2
"""Where they are averaged: their average, and themselves while it is validated."""


def train(
    experiment: Experiment,
    catalogue: Catalogue,
    histories: Histories,
    validation: Holdout | None,
    epochs: int,
    report: Report,
    progress: Progress | None = None,
    start: TrainingState | WarmStart | None = None,
    save: Callable[[TrainingState], None] | None = None,
) -> tuple[Model, Curve]:
    """Train a new model on the histories, or resume a training.

    Args:
        experiment: model, training, protocol and seed.
        catalogue: the items.
        histories: the histories to train on.
        validation: the targets that choose the best epoch and stop training early. If None, train
            for all epochs.
        epochs: the maximum number of passes over the histories; 0 only validates a trained model.
        report: called after each epoch with its number and metrics. If it returns true, training
            ends here, and may be resumed from the state that is saved last.
        progress: the progress display. If None, a new one is shown.
        start: the state of a training with the same arguments, whose precision is kept, or the
            trained model to start from, whose validation counts as epoch 0. If None, start from
            random weights.
        save: called with the state from time to time and after each epoch, in the first process.

    Returns:
        The model with the weights of the best epoch (the last one without validation), or their
        average. With validation, Ctrl-C ends the training early: the best epoch so far is returned,
        and the curve is marked as interrupted. The caller's random state is restored.

    Raises:
        InputError: no history has two items; the model does not fit into the memory; or the
            training diverged.
        KeyboardInterrupt: Ctrl-C before the end of the first epoch, without validation, or with
            several processes.
        Terminated: SIGTERM; a single process has saved its state.
    """
    keep_freed_memory()
    release_gpu_memory()
    warm = start if isinstance(start, WarmStart) else None
    start = start.state if isinstance(start, WarmStart) else start
    batches = build_batches(experiment, histories, warm)
    config = experiment.training
    schedule = Schedule.plan(config, epochs, len(batches))
    with torch.random.fork_rng(gpus()), gpu_memory_suffices(config):
        torch.manual_seed(experiment.seed)
        module = new_module(experiment, catalogue, histories, schedule, start, warm)
        settled = None if start is None else start.curve.precision
        precision = settled or settle_precision(experiment)
        line = None
        if processes.is_first():
            steps = 0 if start is None else start.step
            line = ProgressLine(experiment.name, steps, histories_here(validation), progress)
        shown = (lambda _: None) if line is None else line.rank
        validate = validation_of(experiment, module.model, validation, shown)
        tokens = batches.num_tokens
        shared = _share(batches, start)
        recorder = EpochRecorder(module, validate, config, epochs, shared, tokens, report, start)
        recorder.curve.precision = precision
        if warm is not None and start is None and validate is not None:
            module.to(training_device())
            recorder.validate_start(may_win=warm.may_win or epochs == 0)
        callbacks: list[pl.Callback] = [recorder]
        if save is not None:
            callbacks.append(CheckpointCallback(module, recorder, save, config, start))
        if line is not None:
            line.follow(recorder)
            callbacks.append(line)
        if not (recorder.should_stop or (start is not None and start.ended)):
            trainer = _trainer(precision, epochs, callbacks)
            with _ctrl_c_ends_early(trainer, recorder):
                trainer.fit(module, shared)
            module.zero_grad()  # the gradients of the last step
            if processes.is_first():
                warn_of_harm(recorder.curve, config, catalogue.num_items)
    module.model.load_state_dict(recorder.curve.best_weights)
    return module.model.to(training_device()).eval(), recorder.curve


def new_module(
    experiment: Experiment,
    catalogue: Catalogue,
    histories: Histories,
    schedule: Schedule,
    start: TrainingState | None = None,
    warm: WarmStart | None = None,
) -> TrainingModule:
    """Return the module that trains a new model, or the model of a start, on the histories.

    Seed torch before the call.
    """
    config = experiment.training
    exclude_seen = config.exclude_seen
    if exclude_seen is None:
        exclude_seen = experiment.evaluation.seen == "filter"
    copies = _COPIES + _AVERAGE_COPIES * config.average_weights
    if config.loss.kind != "cross_entropy":
        copies -= 1  # the gradients are those of the rows that a step has read
    catalogue.check_memory(experiment.model, copies, gpu_memory())
    interactions = np.bincount(histories.items, minlength=catalogue.num_items + 1)
    model = catalogue.new_model(experiment.model, interactions)
    if warm is not None and start is None:
        warm.initialise(model, histories)
    return TrainingModule(
        model,
        config,
        schedule,
        torch.from_numpy(interactions),
        exclude_seen=exclude_seen,
        start=start,
    )


def build_batches(
    experiment: Experiment, histories: Histories, warm: WarmStart | None = None
) -> Batches:
    """Return the training batches of the experiment's model, reshuffled in each epoch.

    Those of a warm start are a mixture of new and old histories.

    Raises:
        InputError: no history has two items.
    """
    build = partial(_batches_of, experiment)
    batches: Batches
    if warm is None:
        batches = build(histories)
    else:
        batches = warm.mixed(build, histories, experiment.seed, experiment.training.epochs_per_pass)
    if batches.num_sequences == 0:
        raise InputError(
            "nothing to train on: no user has two interactions before the held-out ones"
        )
    return batches


def _batches_of(experiment: Experiment, histories: Histories) -> PlainBatches:
    model, training, seed = experiment.model, experiment.training, experiment.seed
    length, tokens = model.max_sequence_length, training.batch_tokens
    if isinstance(model, SequenceToSequenceConfig):
        return SequenceToSequenceBatches(histories, length, model.max_generated, tokens, seed)
    sequences = TrainingBatches(
        histories, length, tokens, seed, training.windows, training.epochs_per_pass
    )
    if isinstance(model, MaskedItemConfig):
        return MaskedBatches(sequences, model.mask_probability, seed)
    return sequences


def _share(batches: Batches, start: TrainingState | None) -> ShardedBatches:
    epoch, done = (0, 0) if start is None else (len(start.curve.epochs), start.epoch.batches)
    return ShardedBatches(batches, epoch, done, processes.index(), processes.count())


def _trainer(precision: Precision, epochs: int, callbacks: list[pl.Callback]) -> pl.Trainer:
    # Lightning logs tips and advertisements; this module logs what users need to know.
    logging.getLogger("pytorch_lightning").setLevel(logging.WARNING)
    return pl.Trainer(
        max_epochs=epochs,  # the recorder may stop earlier
        accelerator=training_device(),
        devices=lightning_devices(),
        num_nodes=processes.count() // processes.count_here(),
        # All processes make the same buffers, which nothing changes: none are sent in a step.
        strategy=DDPStrategy(forward_sync_buffers=False) if processes.count() > 1 else "auto",
        reload_dataloaders_every_n_epochs=1,  # epochs differ by a batch or so
        precision=lightning_name(precision),
        callbacks=callbacks,
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )


@contextmanager
def _ctrl_c_ends_early(trainer: pl.Trainer, recorder: EpochRecorder) -> Iterator[None]:
    """End the training early at Ctrl-C, which Lightning turns into an exit.

    A SIGTERM during the training ends it between two steps, before and after it at once.

    Raises:
        Terminated: SIGTERM, which Lightning would treat as a normal end.
        KeyboardInterrupt: Ctrl-C, if there are no weights to use.
    """
    main = threading.current_thread() is threading.main_thread()
    handler, on_term = signal.getsignal(signal.SIGINT), signal.getsignal(signal.SIGTERM)

    def between_steps(number: int, frame: FrameType | None) -> None:
        if not trainer.received_sigterm:  # Lightning, whose handler is called first, does not train
            terminate(number, frame)

    try:
        if main and on_term is terminate:
            signal.signal(signal.SIGTERM, between_steps)
        with warnings.catch_warnings():
            # Lightning 2.6 uses a deprecated torch API, which users cannot fix.
            warnings.filterwarnings("ignore", message=".*LeafSpec.*", category=FutureWarning)
            warnings.filterwarnings("ignore", NO_CUBLAS_CONTEXT, UserWarning)
            yield
    except SIGTERMException:
        raise Terminated from None
    except SystemExit:
        if trainer.state.status != TrainerStatus.INTERRUPTED:
            raise
        if processes.count() > 1 or not recorder.interrupt():
            raise KeyboardInterrupt from None
        logger.warning("stopped by Ctrl-C; the best epoch so far: %d", recorder.curve.best_epoch)
    finally:
        if main:
            signal.signal(signal.SIGINT, handler)
            signal.signal(signal.SIGTERM, on_term)
