"""The end of each epoch: average, validate, keep the best weights, report, and stop early."""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from typing import Any

import pytorch_lightning as pl
from pytorch_lightning.callbacks import WeightAveraging
from torch import Tensor

from recsys.config import TrainingConfig
from recsys.data.batches import ShardedBatches
from recsys.errors import InputError
from recsys.evaluation.tables import RankTable
from recsys.inference.ranking import NotANumberError
from recsys.training import processes
from recsys.training.curve import MONITOR, Curve, EarlyDecay
from recsys.training.module import TrainingModule

logger = logging.getLogger(__name__)

Report = Callable[[int, dict[str, float]], bool | None]
"""Reports the metrics of an epoch, whose number counts from 1, and of a warm start as epoch 0;
returns true to end the training."""

_EMPHASIS = 5
"""η: after t epochs the average is about t / (η + 2) epochs old."""


class EpochAverage(WeightAveraging):
    """The running average of the weights after each epoch, which the last epochs count most in.

    It is (1 - a) times the one before plus a times the weights, a = (η + 1) / (t + η) after t
    epochs: the weights themselves after the first. Shamir and Zhang 2013, "Stochastic gradient
    descent for non-smooth optimization" (polynomial-decay averaging),
    https://arxiv.org/abs/1212.1824. As a callback it precedes the one that validates.
    """

    def __init__(self) -> None:
        super().__init__(use_buffers=False, avg_fn=_averaged)

    def should_update(self, step_idx: int | None = None, epoch_idx: int | None = None) -> bool:
        """Return whether an epoch has ended."""
        return epoch_idx is not None

    @contextmanager
    def given_to(self, module: pl.LightningModule) -> Iterator[None]:
        """Give a module the average, and its own weights again at the end."""
        self._swap_models(module)
        try:
            yield
        finally:
            self._swap_models(module)


def _averaged(average: Tensor, weight: Tensor, before: Tensor | int) -> Tensor:
    """Return the average of a weight after another epoch than the number ``before``.

    >>> import torch
    >>> float(_averaged(torch.tensor(0.0), torch.tensor(7.0), 1))
    6.0
    """
    return average.lerp(weight, (_EMPHASIS + 1) / (int(before) + 1 + _EMPHASIS))


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
        report: see `Report`.
        curve: the completed epochs.
    """

    def __init__(
        self,
        module: TrainingModule,
        validate: Callable[[], RankTable] | None,
        config: TrainingConfig,
        epochs: int,
        batches: ShardedBatches,
        report: Report,
        curve: Curve,
    ) -> None:
        self.curve = curve
        self.average = EpochAverage() if config.average_weights else None
        self._module, self._validate, self._config = module, validate, config
        self._epochs, self._batches, self._report = epochs, batches, report
        self._decay_epochs = 0
        if config.schedule == "hold_decay":
            self._decay_epochs = round(epochs * config.decay_fraction)
        self._started: float | None = None
        if curve.early_decay is not None:
            self._start_decay(curve.early_decay)

    @property
    def should_stop(self) -> bool:
        """Whether the last epoch is over or patience is exhausted."""
        return len(self.curve.epochs) >= self.last_epoch or self._patience_exhausted

    @property
    def last_epoch(self) -> int:
        """Number of the last epoch, as currently planned."""
        return self._hold_epochs + self._decay_epochs

    @property
    def seconds(self) -> float:
        """Seconds of the epoch so far; 0 between two epochs."""
        return 0.0 if self._started is None else time.perf_counter() - self._started

    @property
    def _hold_epochs(self) -> int:
        """Number of epochs before the decay."""
        early = self.curve.early_decay
        return self._epochs - self._decay_epochs if early is None else early.epoch

    @property
    def _patience_exhausted(self) -> bool:
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

    def validate_start(self, *, may_win: bool) -> None:
        """Validate the weights before the first epoch, and report them as epoch 0.

        Args:
            may_win: whether they may be the best.
        """
        metrics: dict[str, float] = {}
        self._keep_if_best(0, metrics, may_win=may_win)
        if may_win:
            self.curve.start = metrics
        self._report(0, metrics)

    def state_dict(self) -> dict[str, Any]:
        """Return what a checkpoint keeps beside the curve."""
        return {"seconds": self.seconds}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Take what `state_dict` returned."""
        if state_dict["seconds"]:
            self._started = time.perf_counter() - state_dict["seconds"]

    def on_train_batch_start(self, *_: object) -> None:
        """Start the clock, unless the epoch is resumed."""
        if self._started is None:
            self._started = time.perf_counter()

    def check_finite(self) -> tuple[float, int]:
        """Return the loss and the number of targets of the epoch so far, in all processes.

        Raises:
            InputError: the loss or a weight is infinite or not a number.
        """
        loss, targets = processes.all_reduce_sum(self._module.sums).tolist()
        epoch = len(self.curve.epochs) + 1
        if not math.isfinite(loss):
            raise self._diverged(f"the loss is {loss}", epoch)
        for name, weight in self._module.model.state_dict().items():
            if not weight.isfinite().all():
                raise self._diverged(f"the weight {name} is not finite", epoch)
        return loss, int(targets)

    def _diverged(self, what: str, epoch: int) -> InputError:
        return InputError(
            f"training diverged in epoch {epoch}: {what} with training.learning_rate="
            f"{self._config.learning_rate:g}: choose a lower one, and start over with --fresh"
        )

    def on_train_epoch_end(self, trainer: pl.Trainer, *_: object) -> None:
        """Validate, compare with the best epoch so far, and report."""
        loss, targets = self.check_finite()
        seconds = self.seconds  # a GPU has finished: its numbers have been read
        self._module.sums.zero_()
        metrics = {
            "train/loss": loss / targets,
            "train/seconds": seconds,
            "train/tokens_per_second": self._batches.num_tokens / seconds,
            "train/padding_share": self._batches.padding_share,
        }
        self.curve.epochs.append(metrics)
        epoch = len(self.curve.epochs)
        every = self._config.validate_every
        if self._validate is None or epoch % every == 0 or epoch == self.last_epoch:
            self._keep_if_best(epoch, metrics)
        if self._patience_exhausted and self._decay_epochs and epoch < self._hold_epochs:
            self._start_decay(EarlyDecay(epoch, trainer.global_step))
            logger.debug(
                "no better validation for %d epochs: the learning rate decays over %d epochs",
                *(self._config.patience, self._decay_epochs),
            )
        trainer.should_stop = bool(self._report(epoch, metrics)) or self.should_stop
        self._started = None

    def _keep_if_best(self, epoch: int, metrics: dict[str, float], *, may_win: bool = True) -> None:
        """Validate the weights, or their average, and keep a copy of the best that may be."""
        with self.average.given_to(self._module) if self.average and epoch else nullcontext():
            started, best, table = time.perf_counter(), self.curve.best, None
            if self._validate is not None:
                try:
                    table = self._validate()
                except NotANumberError as error:
                    raise self._diverged("a score is not a number", epoch) from error
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
