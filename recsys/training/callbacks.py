"""What happens around an epoch: validation, keeping the best weights, checkpoints."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable

import pytorch_lightning as pl
from pytorch_lightning.utilities.exceptions import SIGTERMException

from recsys.config import TrainingConfig
from recsys.data.sharded_batches import ShardedBatches
from recsys.evaluation.tables.rank import RankTable
from recsys.training import processes
from recsys.training.cost import matrix_speed
from recsys.training.module import TrainingModule
from recsys.training.precision import working_dtype
from recsys.training.state import (
    MONITOR,
    Curve,
    EarlyDecay,
    EpochSoFar,
    TrainingState,
    random_state,
)

logger = logging.getLogger(__name__)

Report = Callable[[int, dict[str, float]], None]
"""Takes an epoch's number, from 1, and its figures."""


class EpochRecorder(pl.Callback):
    """Validates, keeps the best weights, hands the figures on, says when it is enough.

    When the best weights stay the best, the learning rate falls, if it is one that falls at the
    end; only after that does it stop.

    Args:
        module: whose weights are kept.
        validate: ranks the validation targets under the current weights; None: no validation, the
            last epoch counts as the best.
        config: the training section.
        epochs: the most of them.
        batches: what an epoch reads.
        tokens_per_epoch: real tokens, for the throughput.
        report: called with the epoch number (from 1) and its figures.
        start: where to go on; None: at the beginning.
    """

    def __init__(
        self,
        module: TrainingModule,
        validate: Callable[[], RankTable] | None,
        config: TrainingConfig,
        epochs: int,
        batches: ShardedBatches,
        tokens_per_epoch: int,
        report: Report,
        start: TrainingState | None,
    ) -> None:
        self.curve = Curve() if start is None else start.curve
        self._module = module
        self._validate = validate
        self._config = config
        self._epochs = epochs
        self._batches = batches
        self._tokens = tokens_per_epoch
        self._report = report
        self._steps_before = 0 if start is None else start.step
        self._seconds_before = 0.0 if start is None else start.epoch.seconds
        self._started = 0.0
        if self.curve.early_decay is not None:
            self._let_fall(self.curve.early_decay)

    @property
    def should_stop(self) -> bool:
        """Whether there are no more epochs, or patience is at its end."""
        return len(self.curve.epochs) >= self._last_epoch or self.patience_exhausted

    @property
    def total_steps(self) -> int:
        """Of the whole training, as far as is known."""
        return self._module.schedule.total_steps

    @property
    def _falling(self) -> int:
        """Epochs at the end over which the learning rate falls; 0: it is not one that does so."""
        held = self._config.schedule == "hold_decay"
        return round(self._epochs * self._config.decay_fraction) if held else 0

    @property
    def _held(self) -> int:
        """Epochs before the learning rate falls."""
        fall = self.curve.early_decay
        return self._epochs - self._falling if fall is None else fall.epoch

    @property
    def _last_epoch(self) -> int:
        return self._held + self._falling

    @property
    def patience_exhausted(self) -> bool:
        """Validation has just said that it long gained nothing, though the rate falls if it can."""
        done, since = len(self.curve.epochs), self.curve.best_epoch
        if since is None or MONITOR not in self.curve.epochs[-1]:
            return False
        if self._falling and done >= self._held:
            since = max(since, self._held)
        return done - since >= self._config.patience

    def _let_fall(self, fall: EarlyDecay) -> None:
        """From there on, over as many epochs as it would have later."""
        steps = self._falling * fall.step // fall.epoch
        self.curve.early_decay = fall
        self._module.schedule = self._module.schedule.falling(fall.step, steps)

    @property
    def seconds(self) -> float:
        """Of the epoch so far."""
        return self._seconds_before + time.perf_counter() - self._started

    def interrupt(self) -> bool:
        """End the training here: whether there are weights to go on with.

        Without validation there are none: the training was to run to its end. If no epoch was
        validated yet, the weights as they are now are.
        """
        self.curve.interrupted = True
        if self._validate is None or not self.curve.epochs:
            return False
        if self.curve.best_epoch is None:
            self.curve.epochs[-1].pop(MONITOR, None)  # of a validation that was cut off
            self._keep(len(self.curve.epochs), self.curve.epochs[-1])
        return True

    def on_train_epoch_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Start the clock."""
        self._started = time.perf_counter()

    def on_train_epoch_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Validate, compare with the best so far, report."""
        seconds = self.seconds
        loss, targets = processes.all_reduce_sum(self._module.sums).tolist()
        self._module.sums.zero_()
        self._seconds_before = 0.0
        figures = {"train/loss": loss / targets, **self._cost(seconds)}
        epoch = len(self.curve.epochs) + 1
        self.curve.epochs.append(figures)
        every = self._config.validate_every
        if self._validate is None or epoch % every == 0 or epoch == self._last_epoch:
            self._keep(epoch, figures)
        if self.patience_exhausted and self._falling and epoch < self._held:
            self._let_fall(EarlyDecay(epoch, self._steps_before + trainer.global_step))
            logger.info(
                "validation gains no more: the learning rate falls, over %d epochs", self._falling
            )
        trainer.should_stop = self.should_stop
        self._report(epoch, figures)

    def _cost(self, seconds: float) -> dict[str, float]:
        """Of an epoch that took so long; the seconds of the parts are this process's."""
        meter, tokens_per_second = self._module.meter, self._tokens / seconds
        found = {
            "train/seconds": seconds,
            "train/tokens_per_second": tokens_per_second,
            "train/padding_share": self._batches.padding_share,
        }
        found |= {f"train/seconds_{part}": of_it for part, of_it in meter.take().items()}
        if meter.operations_per_token is not None:
            speed = matrix_speed(self._module.device.type, working_dtype(self._config.precision))
            operations = meter.operations_per_token * tokens_per_second / processes.count()
            found["train/share_of_matrix_peak"] = operations / speed
        return found

    def _keep(self, epoch: int, figures: dict[str, float]) -> None:
        """Validate the weights as they are, and keep them if they are the best."""
        best, table = self.curve.best, None
        if self._validate is not None:
            started = time.perf_counter()
            table = self._validate()
            figures[MONITOR] = float(table.values("ndcg_at_10").mean())
            figures["epoch/valid_recall_at_10"] = float(table.values("recall_at_10").mean())
            figures["epoch/valid_seconds"] = time.perf_counter() - started
        if self._validate is None or figures[MONITOR] > best:
            self.curve.best_epoch = epoch
            self.curve.best_ranks = table
            self.curve.best_weights = {
                name: weight.detach().to("cpu", copy=True)
                for name, weight in self._module.model.state_dict().items()
            }


class StateKeeper(pl.Callback):
    """Hands on where the training stands: now and then, after each epoch, and at a SIGTERM.

    Args:
        module: what is trained.
        recorder: of the epochs; it comes before this one among the callbacks.
        keep: called in the first process, with tensors that the next step changes.
        config: the training section.
        start: where to go on; None: at the beginning.
    """

    def __init__(
        self,
        module: TrainingModule,
        recorder: EpochRecorder,
        keep: Callable[[TrainingState], None],
        config: TrainingConfig,
        start: TrainingState | None,
    ) -> None:
        self._module = module
        self._recorder = recorder
        self._keep = keep
        self._seconds = config.checkpoint_minutes * 60
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
        """Count; and keep the state if it is time and more of the epoch is to come."""
        self._step += 1
        self._batches += 1
        due = time.monotonic() - self._last >= self._seconds
        if not trainer.is_last_batch and processes.broadcast_from_rank0(due):
            self._hand_on(self._recorder.seconds)

    def on_train_epoch_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Keep the state."""
        self._batches = 0
        self._hand_on(0.0)

    def on_exception(
        self, trainer: pl.Trainer, pl_module: pl.LightningModule, exception: BaseException
    ) -> None:
        """Keep the state if someone wants the machine back: Lightning says so between two steps.

        Several processes may hear of it at different steps: they would wait for each other.
        """
        if isinstance(exception, SIGTERMException) and processes.count() == 1:
            self._hand_on(self._recorder.seconds if self._batches else 0.0)

    def _hand_on(self, seconds: float) -> None:
        module = self._module
        loss, targets = processes.all_reduce_sum(module.sums).tolist()
        random = processes.all_gather(random_state())
        if processes.is_first():
            self._keep(
                TrainingState(
                    module.model.state_dict(),
                    module.moments(),
                    random,
                    self._step,
                    EpochSoFar(self._batches, loss, int(targets), seconds),
                    self._recorder.curve,
                )
            )
        self._last = time.monotonic()
