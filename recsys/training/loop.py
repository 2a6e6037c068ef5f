"""Train a model with Lightning, choose its best epoch, and refit it on all but the test targets."""

from __future__ import annotations

import logging
import math
import os
import signal
import threading
import warnings
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from types import FrameType

import numpy as np
import pytorch_lightning as pl
import torch
from lightning_fabric.plugins.environments.lightning import LightningEnvironment
from numpy.typing import NDArray
from pytorch_lightning.strategies import DDPStrategy
from pytorch_lightning.trainer.states import TrainerStatus
from pytorch_lightning.utilities.exceptions import SIGTERMException
from torch import Tensor

from recsys.config.experiment import Experiment
from recsys.config.model import MaskedItemConfig, SequenceToSequenceConfig
from recsys.data.batches import Replay, TrainingBatches, histories_after
from recsys.data.histories import PAD, Histories
from recsys.data.prepared import PreparedDataset, TrainedOn
from recsys.data.splits import Holdout
from recsys.errors import InputError, Terminated, terminate
from recsys.evaluation.tables import RankTable, evaluate
from recsys.inference.catalogue import Catalogue, grown_weights
from recsys.inference.model_scorer import ModelScorer
from recsys.machine import keep_freed_memory
from recsys.model.models import Model
from recsys.progress import stage
from recsys.training.checkpoints import StateIO, TrainingState
from recsys.training.device import (
    NO_CUBLAS_CONTEXT,
    gpu_memory,
    gpus,
    process,
    processes,
    settle_precision,
    training_device,
)
from recsys.training.epochs import Curve, EpochRecorder, ProgressLine, Report
from recsys.training.followers import Followers
from recsys.training.module import Schedule, TrainingModule

logger = logging.getLogger(__name__)

_COPIES = 5
"""Of the weights in training: themselves, their gradients, two moments, and the best so far."""


@dataclass(frozen=True, slots=True, eq=False)
class WarmStart:
    """The model that a training starts from, and the mixture of histories that it reads."""

    weights: Mapping[str, Tensor]
    tokens: NDArray[np.int32]
    """Shape [I + 1]: the token that each item of the catalogue has in that model; PAD if none."""
    untrained: NDArray[np.bool_]
    """Shape [I + 1]: whether the model has the item, but was never trained on an interaction with
    it: its row learned that nobody wants it, and with its first interactions the item is new."""
    until: int | None
    """The time of the newest interaction that the model was trained on. If None, every history is
    read in each epoch."""
    replay: float
    """The share of the histories of an epoch that have no later interaction."""
    may_win: bool
    """Whether the start may be the best epoch: not if it was trained on validation targets."""

    def of_member(self, index: int) -> WarmStart:
        """The start of a member of a mean."""
        start = f"members.{index}."
        own = ((name, weight) for name, weight in self.weights.items() if name.startswith(start))
        return replace(self, weights={name.removeprefix(start): weight for name, weight in own})

    def has_new(self, histories: Histories) -> bool:
        return bool(histories_after(histories, self.until).any())


def train(  # noqa: PLR0913, PLR0917 - all that decides a training
    experiment: Experiment,
    catalogue: Catalogue,
    histories: Histories,
    validation: Holdout | None,
    epochs: int,
    report: Report,
    start: TrainingState | None = None,
    save: Callable[[TrainingState], None] | None = None,
    warm: WarmStart | None = None,
    teacher: Model | None = None,
) -> tuple[Model, Curve]:
    """Train a new model on the histories, or resume a training.

    Args:
        experiment: model, training, protocol and seed.
        catalogue: the items.
        histories: the histories to train on.
        validation: the targets that choose the best epoch; without them all epochs are trained.
        epochs: the maximum number of epochs; 0 only validates a trained model.
        report: see `Report`.
        start: the state of a training with the same arguments to resume from; it is changed.
        save: called with the state from time to time and after each epoch.
        warm: the trained model to start from, as epoch 0. If None, the weights are random.
        teacher: the trained model whose scores are learned too; see `TrainingModule`.

    Returns:
        The model with the weights of the best epoch (the last one without validation), or their
        average; the curve says whether Ctrl-C ended the training early. The caller's random state
        is restored.

    Raises:
        InputError: nothing to train on; too little memory; it diverged; negatives in processes.
        KeyboardInterrupt: Ctrl-C without a validated epoch, or with several processes.
        Terminated: SIGTERM; a single process has saved its state.
    """
    keep_freed_memory()
    batches = build_batches(experiment, histories, warm)
    config, curve = experiment.training, Curve() if start is None else start.curve
    if processes() > 1 and config.loss.kind != "cross_entropy":
        raise InputError(f"training.loss.kind={config.loss.kind}: trains in one process")
    schedule = Schedule.plan(config, epochs, len(batches))
    with torch.random.fork_rng(gpus()):
        torch.manual_seed(experiment.seed)
        new_weights = warm if start is None else None
        module = new_module(experiment, catalogue, histories, schedule, new_weights, teacher)
        curve.precision = curve.precision or settle_precision(experiment)
        validate = None
        if validation is not None:
            longest, seen = experiment.model.max_sequence_length, experiment.evaluation.seen

            def validate() -> RankTable:
                scorer = ModelScorer(module.model, longest)
                return evaluate(scorer, validation, "valid", seen)

        batches.epoch, batches.shard = len(curve.epochs), (process(), processes())
        words = module, validate, config, epochs, batches, report, curve
        recorder = EpochRecorder(*words, saves=save is not None)
        if warm is not None and start is None and validate is not None:
            module.to(training_device())
            recorder.validate_start(may_win=warm.may_win or epochs == 0)
        callbacks: list[pl.Callback] = [] if recorder.average is None else [recorder.average]
        callbacks.append(recorder)
        if not recorder.should_stop:
            usable = validation is not None and processes() == 1
            with ExitStack() as view:
                if process() == 0:
                    line = view.enter_context(stage(f"training {experiment.name}"))
                    callbacks.append(ProgressLine(experiment.name, recorder, line))
                trainer = _trainer(curve, epochs, callbacks, StateIO(curve, start, save))
                with _signals_end_it(trainer, curve, usable=usable):
                    trainer.fit(module, batches, ckpt_path=None if start is None else "state")
            module.zero_grad()  # the gradients of the last step
    module.model.load_state_dict(curve.best_weights)
    return module.model.to(training_device()).eval(), curve


def new_module(
    experiment: Experiment,
    catalogue: Catalogue,
    histories: Histories,
    schedule: Schedule,
    warm: WarmStart | None = None,
    teacher: Model | None = None,
) -> TrainingModule:
    """Return the module that trains a new model, or that of a warm start; seed torch before."""
    config = experiment.training
    exclude_seen = config.exclude_seen
    if exclude_seen is None:
        exclude_seen = experiment.evaluation.seen == "filter"
    # Gradients of sampled losses are those of the rows that a step has read.
    copies = _COPIES + config.average_weights - (config.loss.kind != "cross_entropy")
    catalogue.check_memory(experiment.model, copies, gpu_memory=gpu_memory())
    interactions = np.bincount(histories.items, minlength=catalogue.num_items + 1)
    model = catalogue.new_model(experiment.model, interactions)
    if warm is not None:
        # New items get their weights from neighbours in the histories.
        tokens = np.where(warm.untrained & (interactions > 0), np.int32(PAD), warm.tokens)
        model.load_state_dict(grown_weights(warm.weights, tokens, model, histories))
    share, allow = config.soft_labels, experiment.evaluation.seen == "allow" and not exclude_seen
    known = histories, catalogue.num_items, share
    followers = Followers(*known, allow_seen=allow) if share else None
    words = model, config, schedule
    return TrainingModule(*words, exclude_seen=exclude_seen, teacher=teacher, followers=followers)


def build_batches(
    experiment: Experiment, histories: Histories, warm: WarmStart | None = None
) -> TrainingBatches:
    """Return the training batches of the experiment's model, reshuffled in each epoch.

    Those of a warm start are a mixture of new and old histories, unless all or none are new. An
    InputError if no history has two items.
    """
    model, training, replay = experiment.model, experiment.training, None
    passes, masked, max_targets = training.epochs_per_pass, None, None
    if isinstance(model, SequenceToSequenceConfig):
        passes, max_targets = 1, model.max_generated
    if isinstance(model, MaskedItemConfig):
        masked = model.mask_probability
    if warm is not None:
        is_new = histories_after(histories, warm.until)
        replay = Replay(is_new, warm.replay) if is_new.any() and not is_new.all() else None
    seed, windows = experiment.seed, training.windows
    sizes = model.max_sequence_length, training.batch_tokens
    batches = TrainingBatches(histories, *sizes, seed, windows, passes, masked, max_targets, replay)
    if batches.num_tokens == 0:
        raise InputError(
            "nothing to train on: no user has two interactions before the held-out ones"
        )
    return batches


def _trainer(
    curve: Curve, epochs: int, callbacks: list[pl.Callback], states: StateIO
) -> pl.Trainer:
    # Lightning logs tips and advertisements; this module logs what users need to know.
    logging.getLogger("pytorch_lightning").setLevel(logging.WARNING)
    several = processes() > 1
    here = int(os.environ["LOCAL_WORLD_SIZE"]) if several else 1
    return pl.Trainer(
        max_epochs=epochs,  # the recorder may stop earlier
        accelerator=training_device(),
        devices=here if several else gpus() or 1,
        num_nodes=processes() // here,
        # All processes make the same buffers, which nothing changes: none are sent in a step.
        strategy=DDPStrategy(forward_sync_buffers=False) if several else "auto",
        reload_dataloaders_every_n_epochs=1,  # epochs differ by a batch or so
        precision="bf16-mixed" if curve.precision == "bf16" else "32-true",
        callbacks=callbacks,
        # One process is no part of a job of Slurm or MPI that it may run in.
        plugins=[states] if several else [states, LightningEnvironment()],
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )


@contextmanager
def _signals_end_it(trainer: pl.Trainer, curve: Curve, *, usable: bool) -> Iterator[None]:
    """End a training early at Ctrl-C, which Lightning turns into an exit; at SIGTERM between steps.

    ``usable`` says whether the best epoch so far is a result; else Ctrl-C ends the program.
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
        curve.interrupted = True
        if not (usable and curve.epochs) or curve.best_epoch is None:
            raise KeyboardInterrupt from None
        logger.warning("stopped by Ctrl-C; the best epoch so far: %d", curve.best_epoch)
    finally:
        if main:
            signal.signal(signal.SIGINT, handler)
            signal.signal(signal.SIGTERM, on_term)


# --- Two steps: choose the epoch on validation, then refit on all but the test targets ------------

_ENOUGH_STEPS = 2_000
"""The steps of a training for which no epochs are named; it ends earlier without gains."""
_STEPS_TO_VALIDATION = 50


def with_enough_epochs(
    experiment: Experiment, dataset: PreparedDataset, named: Collection[str] | None = None
) -> Experiment:
    """Return an experiment with as many epochs as have 2,000 steps, if it does not name fewer.

    ``validate_every`` and ``patience`` grow with them, to some 50 steps and ten times as many,
    unless one of them is named. ``named`` are the fields of ``training`` that count as named; if
    None, those that were set.
    """
    training = experiment.training
    named = training.model_fields_set if named is None else named
    if "max_epochs" in named or any(one.max_epochs is not None for one in experiment.members):
        return experiment
    steps = len(build_batches(experiment, dataset.histories("valid")))
    epochs = math.ceil(_ENOUGH_STEPS / steps)
    if epochs <= training.max_epochs:
        return experiment
    changes = {"max_epochs": epochs}
    if not {"validate_every", "patience"} & set(named):
        every = math.ceil(_STEPS_TO_VALIDATION / steps)
        changes |= {"validate_every": every, "patience": training.patience * every}
    return experiment.with_training(**changes)


@dataclass(frozen=True, slots=True)
class Fitted:
    """A trained model and how it was trained."""

    model: Model
    validated: Model
    """That of the best epoch, which has not seen the validation targets; itself without a refit."""
    trained_on: TrainedOn
    curve: Curve
    """The curve of the training that chose the epoch."""
    interrupted: bool
    """Whether Ctrl-C ended the training early or skipped the refit."""
    catalogue: Catalogue


def train_and_refit(
    experiment: Experiment,
    dataset: PreparedDataset,
    catalogue: Catalogue,
    valid: Holdout,
    found: TrainingState | None,
    report: Report,
    save: Callable[[TrainingState], None],
    warm: WarmStart | None = None,
    teacher: Fitted | None = None,
) -> Fitted:
    """Train and choose the epoch; with ``training.refit`` train again for as many epochs.

    Both trainings of a warm start begin with its weights. If no epoch is better than these, there
    is no refit. If only the validation part has new interactions, no epoch can be chosen, and the
    refit takes all that are planned. ``found`` is resumed from; ``report`` gets the epochs of the
    first training. A ``teacher`` teaches each with what that may know. See `train`.
    """
    planned, state = experiment.planned, found
    histories, epochs = dataset.histories("valid"), planned.training.max_epochs
    only_refit = (
        warm is not None
        and experiment.training.refit
        and warm.has_new(dataset.histories("test"))
        and not warm.has_new(histories)
    )
    if found is not None:
        _report_again(found, report)
    if found is not None and found.chosen is not None:
        curve = found.chosen
        model = catalogue.restored_model(experiment.model, histories, curve.best_weights)
        model = model.to(training_device())
    else:
        planned_epochs = 0 if only_refit else epochs
        model, curve = train(
            *(planned, catalogue, histories, valid, planned_epochs, report, state, save, warm),
            None if teacher is None else teacher.validated,
        )
        state = None
    decayed = curve.early_decay is not None
    if not (only_refit or decayed or curve.interrupted) and curve.best_epoch == epochs:
        logger.info(
            "%s: still rising: the best epoch, %d, was the last: raise its training.max_epochs",
            *(experiment.name, epochs),
        )
    fitted = Fitted(model, model, ("train",), curve, curve.interrupted, catalogue)
    if not experiment.training.refit or curve.interrupted:
        return fitted
    if not only_refit:
        epochs, _ = curve.validated()
    if epochs == 0:
        logger.warning("no epoch was better than the start: its weights are used, without a refit")
        return fitted
    logger.debug("refitting on all but the test targets for %d epochs", epochs)
    again = planned.with_training(precision=curve.precision)
    try:
        model, _ = train(
            again.model_copy(update={"name": f"{experiment.name} refit"}),
            *(catalogue, dataset.histories("test"), None, epochs, lambda *_: None, state),
            save=lambda state: save(replace(state, chosen=curve)),
            warm=warm,
            teacher=None if teacher is None else teacher.model,
        )
    except KeyboardInterrupt:
        if processes() > 1:
            raise
        logger.warning("refit stopped by Ctrl-C: the model from before the refit is used")
        return replace(fitted, interrupted=True)
    return replace(fitted, model=model, trained_on=("train", "valid"))


def _report_again(found: TrainingState, report: Report) -> None:
    """Report the epochs before a resumption, which the store may have lost."""
    curve, phase = found.curve, "the training"
    if found.chosen is not None:
        curve, phase = found.chosen, "the refit"
    for epoch, metrics in enumerate((curve.start, *curve.epochs)):
        if metrics:
            report(epoch, metrics)
    done = len(found.curve.epochs)
    logger.info("resuming %s from the checkpoint, after epoch %d", phase, done)
