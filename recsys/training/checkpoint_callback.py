"""The Lightning callback that saves checkpoints."""

from __future__ import annotations

import time
from collections.abc import Callable

import pytorch_lightning as pl
from pytorch_lightning.utilities.exceptions import SIGTERMException

from recsys.config import TrainingConfig
from recsys.training import processes
from recsys.training.callbacks import EpochRecorder
from recsys.training.divergence import check_finite
from recsys.training.module import TrainingModule
from recsys.training.state import PartialEpoch, TrainingState, random_state


class CheckpointCallback(pl.Callback):
    """Saves the state of the training from time to time, after each epoch, and at a SIGTERM.

    Args:
        module: the module that is trained.
        recorder: the recorder of the epochs; it precedes this callback.
        save: called in the first process, with tensors that the next step changes.
        config: the training section.
        start: the state to resume from. If None, training starts from the beginning.
    """

    def __init__(
        self,
        module: TrainingModule,
        recorder: EpochRecorder,
        save: Callable[[TrainingState], None],
        config: TrainingConfig,
        start: TrainingState | None,
    ) -> None:
        self._module = module
        self._recorder = recorder
        self._save_state = save
        self._config = config
        self._interval = config.checkpoint_minutes * 60
        self._step = 0 if start is None else start.step
        self._batches = 0 if start is None else start.epoch.batches
        self._last = time.monotonic()

    def on_train_batch_end(
        self,
        trainer: pl.Trainer,
        pl_module: pl.LightningModule,
        outputs: object,
        batch: object,
        batch_idx: int,
    ) -> None:
        """Count the step; save the state if it is due and the epoch is not over."""
        self._step += 1
        self._batches += 1
        due = time.monotonic() - self._last >= self._interval
        if not trainer.is_last_batch and processes.broadcast_from_rank0(due):
            self._save(self._recorder.seconds)

    def on_train_epoch_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Save the state."""
        self._batches = 0
        self._save(0.0)

    def on_exception(
        self, trainer: pl.Trainer, pl_module: pl.LightningModule, exception: BaseException
    ) -> None:
        """Save the state at a SIGTERM, which Lightning handles between two steps.

        Several processes may handle it at different steps, and would wait for each other.
        """
        if isinstance(exception, SIGTERMException) and processes.count() == 1:
            self._save(self._recorder.seconds if self._batches else 0.0)

    def _save(self, seconds: float) -> None:
        module = self._module
        loss, targets = processes.all_reduce_sum(module.sums).tolist()
        check_finite(module.model, loss, len(self._recorder.curve.epochs) + 1, self._config)
        random = processes.all_gather(random_state())
        state = TrainingState(
            module.model.state_dict(),
            module.moments(),
            random,
            self._step,
            PartialEpoch(self._batches, loss, int(targets), seconds),
            self._recorder.curve,
            self._recorder.average,
        )
        if processes.is_first():
            self._save_state(state)
        self._last = time.monotonic()
