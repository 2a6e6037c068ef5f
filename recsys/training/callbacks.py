"""The Lightning callback that validates, keeps the best weights and stops early."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping

import pytorch_lightning as pl
from torch import Tensor

from recsys.config import TrainingConfig
from recsys.data.sharded_batches import ShardedBatches
from recsys.evaluation.tables import RankTable
from recsys.inference.ranking import NotANumberError
from recsys.training import processes
from recsys.training.cost import matrix_speed
from recsys.training.divergence import DivergedError, check_finite
from recsys.training.module import TrainingModule
from recsys.training.precision import product_dtype
from recsys.training.state import MONITOR, Curve, EarlyDecay, TrainingState
from recsys.training.weight_average import averaged, with_weights

logger = logging.getLogger(__name__)

Report = Callable[[int, dict[str, float]], bool | None]
"""Reports the metrics of an epoch, whose number counts from 1, and of a warm start as epoch 0;
returns true to end the training."""


class EpochRecorder(pl.Callback):
    """Validates, keeps the best weights, reports the metrics, and decides when to stop.

    When patience is exhausted, a schedule that ends with a decay starts that decay early; training
    stops once the decay gains nothing either.

    Args:
        module: the module whose weights are validated.
        validate: ranks the validation targets under the weights of the module. If None, there is no
            validation, and the last epoch counts as the best.
        config: the training section.
        epochs: the maximum number of epochs.
        batches: the batches of an epoch.
        tokens_per_epoch: number of tokens without padding, for the throughput.
        report: called with the number of an epoch (from 1) and its metrics.
        start: the state to resume from. If None, training starts from the beginning.
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
        self.average: Mapping[str, Tensor] = {} if start is None else start.average
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
            self._start_decay(self.curve.early_decay)

    @property
    def should_stop(self) -> bool:
        """Whether the last epoch is over or patience is exhausted."""
        return len(self.curve.epochs) >= self.last_epoch or self.patience_exhausted

    @property
    def total_steps(self) -> int:
        """Number of steps of the entire training, as currently planned."""
        return self._module.schedule.total_steps

    @property
    def _decay_epochs(self) -> int:
        """Number of epochs at the end over which the learning rate decays; 0 if it does not."""
        decays = self._config.schedule == "hold_decay"
        return round(self._epochs * self._config.decay_fraction) if decays else 0

    @property
    def _hold_epochs(self) -> int:
        """Number of epochs before the decay."""
        early = self.curve.early_decay
        return self._epochs - self._decay_epochs if early is None else early.epoch

    @property
    def last_epoch(self) -> int:
        """Number of the last epoch, as currently planned."""
        return self._hold_epochs + self._decay_epochs

    @property
    def validations_done(self) -> int:
        """Number of complete validations."""
        return sum(MONITOR in epoch for epoch in self.curve.epochs)

    @property
    def validations_left(self) -> int:
        """Number of planned validations that are not complete."""
        if self._validate is None:
            return 0
        every, done, last = self._config.validate_every, len(self.curve.epochs), self.last_epoch
        if done and MONITOR not in self.curve.epochs[-1]:  # it may be under way
            done -= 1
        between = last // every - done // every
        return between + (last % every != 0 and done < last)

    @property
    def patience_exhausted(self) -> bool:
        """Whether the latest validation completes ``patience`` epochs without a gain.

        During the decay, patience counts from its start at the earliest.
        """
        done, since = len(self.curve.epochs), self.curve.best_epoch
        if since is None or not done or MONITOR not in self.curve.epochs[-1]:
            return False
        if self._decay_epochs and done >= self._hold_epochs:
            since = max(since, self._hold_epochs)
        return done - since >= self._config.patience

    def _start_decay(self, early: EarlyDecay) -> None:
        """Decay from there over as many epochs as planned for the end."""
        steps = self._decay_epochs * early.step // early.epoch
        self.curve.early_decay = early
        self._module.schedule = self._module.schedule.decay_from(early.step, steps)

    @property
    def seconds(self) -> float:
        """Seconds of the epoch so far."""
        return self._seconds_before + time.perf_counter() - self._started

    def interrupt(self) -> bool:
        """End the training here, and return whether there are weights to use.

        Without validation there are none, because only the final weights count. If no epoch has
        been validated yet, the current weights, or their average, are.
        """
        self.curve.interrupted = True
        if self._validate is None or not self.curve.epochs:
            return False
        if self.curve.best_epoch is None:
            self.curve.epochs[-1].pop(MONITOR, None)  # from an interrupted validation
            self._validate_epoch(len(self.curve.epochs), self.curve.epochs[-1])
        return True

    def validate_start(self, *, may_win: bool) -> None:
        """Validate the weights before the first epoch, and report them as epoch 0.

        Args:
            may_win: whether they may be the best.
        """
        metrics: dict[str, float] = {}
        self._validate_epoch(0, metrics, may_win=may_win)
        if may_win:
            self.curve.start = metrics
        logger.debug("the start: validation NDCG@10 %.4f", metrics[MONITOR])
        self._report(0, metrics)

    def on_train_epoch_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Start the clock."""
        self._started = time.perf_counter()

    def on_train_epoch_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Validate, compare with the best epoch so far, and report."""
        epoch = len(self.curve.epochs) + 1
        if self._config.average_weights:
            self.average = averaged(self.average, self._module.model.state_dict(), epoch)
        loss, targets = processes.all_reduce_sum(self._module.sums).tolist()
        seconds = self.seconds  # a GPU has finished: its numbers have been read
        self._module.sums.zero_()
        self._seconds_before = 0.0
        check_finite(self._module.model, loss, epoch, self._config)
        metrics = {"train/loss": loss / targets, **self._cost(seconds)}
        self.curve.epochs.append(metrics)
        every = self._config.validate_every
        if self._validate is None or epoch % every == 0 or epoch == self.last_epoch:
            self._validate_epoch(epoch, metrics)
        if self.patience_exhausted and self._decay_epochs and epoch < self._hold_epochs:
            self._start_decay(EarlyDecay(epoch, self._steps_before + trainer.global_step))
            logger.debug(
                "no better validation for %d epochs: the learning rate decays over %d epochs",
                *(self._config.patience, self._decay_epochs),
            )
        trainer.should_stop = bool(self._report(epoch, metrics)) or self.should_stop

    def _cost(self, seconds: float) -> dict[str, float]:
        """Return the costs of an epoch; the seconds of its parts are those of this process."""
        meter, tokens_per_second = self._module.meter, self._tokens / seconds
        cost = {
            "train/seconds": seconds,
            "train/tokens_per_second": tokens_per_second,
            "train/padding_share": self._batches.padding_share,
        }
        cost |= {f"train/seconds_{part}": spent for part, spent in meter.take().items()}
        if meter.operations_per_token is not None:
            speed = matrix_speed(self._module.device.type, product_dtype(self.curve.precision))
            operations = meter.operations_per_token * tokens_per_second / processes.count()
            cost["train/share_of_matrix_peak"] = operations / speed
        return cost

    def _validate_epoch(
        self, epoch: int, metrics: dict[str, float], *, may_win: bool = True
    ) -> None:
        """Validate the weights, or their average, and keep a copy of the best that may be."""
        started = time.perf_counter()
        with with_weights(self._module.model, self.average):
            self._validate_weights(epoch, metrics, started, may_win=may_win)

    def _validate_weights(
        self, epoch: int, metrics: dict[str, float], started: float, *, may_win: bool
    ) -> None:
        best, table = self.curve.best, None
        if self._validate is not None:
            try:
                table = self._validate()
            except NotANumberError as error:
                what = "a score is not a number"
                raise DivergedError.of(what, epoch, self._config) from error
            metrics[MONITOR] = float(table.values("ndcg_at_10").mean())
            metrics["epoch/valid_recall_at_10"] = float(table.values("recall_at_10").mean())
            metrics["epoch/valid_seconds"] = time.perf_counter() - started
        if may_win and (self._validate is None or metrics[MONITOR] > best):
            self.curve.best_epoch = epoch
            self.curve.best_ranks = table
            self.curve.best_weights = {
                name: weight.detach().to("cpu", copy=True)
                for name, weight in self._module.model.state_dict().items()
            }
