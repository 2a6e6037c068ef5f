"""The epochs of a training: their curve, what happens at the end of each one, their display."""

import logging
import math
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field, replace
from typing import Any

import pytorch_lightning as pl
from pytorch_lightning.callbacks import WeightAveraging
from pytorch_lightning.utilities.exceptions import SIGTERMException
from torch import Tensor

from recsys.config.experiment import TrainingConfig
from recsys.data.batches import TrainingBatches
from recsys.errors import InputError, undivided
from recsys.evaluation.tables import RankTable
from recsys.inference.ranking import NotANumberError
from recsys.progress import Stage
from recsys.training.device import Precision
from recsys.training.module import TrainingModule

logger = logging.getLogger(__name__)

MONITOR = "epoch/valid_ndcg_at_10"
"""The metric that chooses the best epoch."""

ENDLESS = 100_000
"""More epochs than any training has: something else ends it."""
Report = Callable[[int, dict[str, float]], bool | None]
"""Reports the metrics of an epoch, whose number counts from 1, and of a warm start as epoch 0;
returns true to end the training."""

_EMPHASIS = 5
"""η: after t epochs the average is about t / (η + 2) epochs old."""


@dataclass
class Curve:
    """The learning curve: the metrics of each epoch and the weights of the best one."""

    epochs: list[dict[str, float]] = field(default_factory=list)
    """Metrics of each epoch: train/loss, costs as train/…, and, if it was validated, epoch/…"""
    early_decay: Sequence[int] | None = None
    """The epoch and the step at which patience was exhausted and the learning rate began to decay
    ahead of schedule."""
    best_epoch: int | None = None
    """Number of the epoch with the best validation, from 1; 0 for a warm start."""
    best_weights: Mapping[str, Tensor] = field(default_factory=dict)
    best_ranks: Tensor | None = None
    """Ranks [Q] of the validation targets under those weights; None without validation."""
    precision: Precision | None = None
    """The precision that was settled on; None before the first step."""
    interrupted: bool = False
    start: dict[str, float] = field(default_factory=dict)
    """Metrics of a warm start, which is epoch 0, where it may be the best; empty otherwise."""

    @property
    def best(self) -> float:
        """The best validation NDCG@10 so far; -1 before the first validation."""
        all_epochs = (self.start, *self.epochs)
        return max((epoch[MONITOR] for epoch in all_epochs if MONITOR in epoch), default=-1.0)

    def validated(self) -> tuple[int, Tensor]:
        """Return the best epoch and its ranks; a ValueError without validation."""
        if self.best_epoch is None or self.best_ranks is None:
            raise ValueError("no epoch was validated")
        return self.best_epoch, self.best_ranks


class EpochAverage(WeightAveraging):
    """The running average of the weights after each epoch, which the last epochs count most in.

    It is (1 - a) times the one before plus a times the weights, a = (η + 1) / (t + η) after t
    epochs (polynomial-decay averaging: Shamir and Zhang 2013, https://arxiv.org/abs/1212.1824). As
    a callback it precedes the one that validates.
    """

    def __init__(self) -> None:
        super().__init__(use_buffers=False, avg_fn=_averaged)

    def should_update(self, step_idx: int | None = None, epoch_idx: int | None = None) -> bool:
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
    return average.lerp(weight, (_EMPHASIS + 1) / (int(before) + 1 + _EMPHASIS))


class EpochRecorder(pl.Callback):
    """Validates, keeps the best weights, reports the metrics, and decides when to stop and to save.

    When patience is exhausted, a schedule that ends with a decay starts that decay early; training
    stops once the decay gains nothing either. ``validate`` ranks the validation targets under the
    weights of the module; if None, the last of ``epochs`` counts as the best. If it ``saves``, the
    state is saved from time to time, after each epoch, and at a SIGTERM.
    """

    def __init__(
        self,
        module: TrainingModule,
        validate: Callable[[], RankTable] | None,
        config: TrainingConfig,
        epochs: int,
        batches: TrainingBatches,
        report: Report,
        curve: Curve,
        *,
        saves: bool,
    ) -> None:
        self.curve, self._saves = curve, saves
        self.average = EpochAverage() if config.average_weights else None
        self._module, self._validate, self._config = module, validate, config
        self._epochs, self._tokens, self._report = epochs, batches.num_tokens, report
        self._decay_epochs = round(epochs * config.decay_fraction)
        self._started: float | None = None
        self._saved = time.monotonic()
        if curve.early_decay is not None:
            self._start_decay(*curve.early_decay)

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
        early = self.curve.early_decay
        return self._epochs - self._decay_epochs if early is None else early[0]

    @property
    def _patience_exhausted(self) -> bool:
        """Whether ``patience`` epochs had no gain; in the decay, from its start at the earliest."""
        done, since = len(self.curve.epochs), self.curve.best_epoch
        if since is None or not done or MONITOR not in self.curve.epochs[-1]:
            return False
        if self._decay_epochs and done >= self._hold_epochs:
            since = max(since, self._hold_epochs)
        return done - since >= self._config.patience

    def _start_decay(self, epoch: int, step: int) -> None:
        """Decay from there over as many epochs as planned for the end."""
        steps = self._decay_epochs * step // epoch
        self.curve.early_decay = epoch, step
        schedule = self._module.schedule
        self._module.schedule = replace(schedule, decay_steps=steps, total_steps=step + steps)

    def validate_start(self, *, may_win: bool) -> None:
        """Validate the weights before the first epoch, and report them as epoch 0."""
        metrics: dict[str, float] = {}
        self._keep_if_best(0, metrics, may_win=may_win)
        if may_win:
            self.curve.start = metrics
        self._report(0, metrics)

    def state_dict(self) -> dict[str, Any]:
        return {"seconds": self.seconds}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        if state_dict["seconds"]:
            self._started = time.perf_counter() - state_dict["seconds"]

    def on_train_batch_start(self, *_: object) -> None:
        if self._started is None:  # else the epoch is resumed
            self._started = time.perf_counter()

    def check_finite(self) -> tuple[float, float]:
        """Return the loss and the number of targets of the epoch so far.

        Raises:
            InputError: the loss or a weight is infinite or not a number.
        """
        loss, targets = self._module.sums.tolist()
        epoch = len(self.curve.epochs) + 1
        if not math.isfinite(loss):
            raise self._diverged(f"the loss is {loss}", epoch)
        for name, weight in self._module.model.state_dict().items():
            if not weight.isfinite().all():
                raise self._diverged(f"the weight {name} is not finite", epoch)
        return loss, targets

    def _diverged(self, what: str, epoch: int) -> InputError:
        return InputError(
            f"training diverged in epoch {epoch}: {what} with training.learning_rate="
            f"{self._config.learning_rate:g}: choose a lower one, and start over with --fresh"
        )

    def on_train_epoch_end(self, trainer: pl.Trainer, *_: object) -> None:
        loss, targets = self.check_finite()
        seconds = self.seconds  # a GPU has finished: its numbers have been read
        self._module.sums.zero_()
        metrics = {
            "train/loss": loss / targets,
            "train/seconds": seconds,
            "train/tokens_per_second": self._tokens / seconds,
        }
        self.curve.epochs.append(metrics)
        epoch, every = len(self.curve.epochs), self._config.validate_every
        if self._validate is None or epoch % every == 0 or epoch == self.last_epoch:
            self._keep_if_best(epoch, metrics)
        if self._patience_exhausted and self._decay_epochs and epoch < self._hold_epochs:
            self._start_decay(epoch, trainer.global_step)
        with undivided():  # what is reported is saved
            trainer.should_stop = bool(self._report(epoch, metrics)) or self.should_stop
            self._started = None
            self._save(trainer)

    def on_train_batch_end(self, trainer: pl.Trainer, *_: object) -> None:
        due = time.monotonic() - self._saved >= self._config.checkpoint_minutes * 60
        if self._saves and not trainer.is_last_batch and trainer.strategy.broadcast(due):
            self._save(trainer)

    def on_exception(self, trainer: pl.Trainer, _: object, exception: BaseException) -> None:
        # Several processes may handle a SIGTERM at different steps, and would wait for each other.
        if isinstance(exception, SIGTERMException) and trainer.world_size == 1:
            self._save(trainer)

    def _save(self, trainer: pl.Trainer) -> None:
        if not self._saves:
            return
        self.check_finite()
        trainer.save_checkpoint("state")
        self._saved = time.monotonic()

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
                weights = {
                    name: weight.detach().to("cpu", copy=True)
                    for name, weight in self._module.model.state_dict().items()
                }
                ranks = None if table is None else table.frame["rank"].to_torch()
                with undivided():  # weights and ranks are those of one epoch
                    self.curve.best_epoch, self.curve.best_weights = epoch, weights
                    self.curve.best_ranks = ranks


# --- The progress display -------------------------------------------------------------------------

_REFRESH = 0.1
"""Seconds between updates of the line by steps: showing the loss waits for a GPU to compute it."""
_QUIET = 60.0
"""Seconds between epochs that are shown without a terminal: a small log has thousands of them."""


class ProgressLine(pl.Callback):
    """Fills the line of a training, or logs epochs if there is no terminal.

    The time left is that of the epochs left, by the mean of the complete ones; in the first, by its
    steps. The recorder precedes this callback.
    """

    def __init__(self, name: str, recorder: EpochRecorder, line: Stage) -> None:
        self._name, self._recorder, self._line, self._progress = name, recorder, line, line.progress
        self._shown, self._logged = -math.inf, self._progress.get_time()

    def on_train_batch_end(
        self, trainer: pl.Trainer, _: object, outputs: Any, __: object, batch_idx: int
    ) -> None:
        now = self._progress.get_time()
        if now - self._shown >= _REFRESH and not self._progress.disable:
            self._shown = now
            loss = f", loss {float(outputs['loss']):.2f}"
            self._show((batch_idx + 1) / trainer.num_training_batches, loss)

    def on_train_epoch_end(self, *_: object) -> None:
        self._show(0.0)
        now, level = self._progress.get_time(), logging.DEBUG
        if now - self._logged >= _QUIET and not self._progress.console.is_terminal:
            self._logged, level = now, logging.INFO
        curve = self._recorder.curve
        metrics = curve.epochs[-1]
        validated = ""
        if MONITOR in metrics:
            validated = f"valid NDCG@10 {metrics[MONITOR]:.4f} (best {curve.best:.4f})  "
        logger.log(
            level,
            "%s: epoch %d  loss %.3f  %s%.1f s",
            *(self._name, len(curve.epochs), metrics["train/loss"]),
            *(validated, metrics["train/seconds"]),
        )

    def _show(self, steps_done: float, loss: str = "") -> None:
        curve, last, spent = self._recorder.curve, self._recorder.last_epoch, self._recorder.seconds
        done, planned = len(curve.epochs), last < ENDLESS
        status = f"epoch {min(done + 1, last)}" + (f"/{last}" if planned else "")
        if curve.best >= 0:
            status += f", best {curve.best:.4f}".replace("0.", ".")
        left = spent * (last / max(steps_done, 1e-9) - 1)
        if done:
            seconds = sum(
                epoch["train/seconds"] + epoch.get("epoch/valid_seconds", 0.0)
                for epoch in curve.epochs
            )
            left = max(seconds / done * (last - done) - spent, 0.0)
        self._line.say(
            status + loss,
            completed=done + steps_done,
            total=last if planned else None,
            ends=self._progress.get_time() + left if planned else None,
        )
