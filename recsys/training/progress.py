"""The progress display of a training: one line with the time left of all its epochs."""

from __future__ import annotations

import logging
import math
from typing import Any

import pytorch_lightning as pl
from rich.progress import Progress, TaskID
from torch import Tensor

from recsys.progress import new_progress
from recsys.training.curve import MONITOR
from recsys.training.epochs import EpochRecorder

logger = logging.getLogger(__name__)

_REFRESH = 0.1
"""Seconds between updates of the line by steps: showing the loss waits for a GPU to compute it."""
_QUIET = 60.0
"""Seconds between epochs that are shown without a terminal: a small log has thousands of them."""
_ENDLESS = 10_000
"""Epochs: who asks for as many ends the training by a report, at a time that no plan tells."""


class ProgressLine(pl.Callback):
    """Shows one line for the entire training, or logs epochs if there is no terminal.

    The time left is that of the epochs left, by the mean of the complete ones; in the first, which
    has not been validated, by its steps.

    Args:
        name: the name of the training.
        validated: number of histories that a validation ranks.
        progress: a view that is already shown, to which the line is added during the training. If
            None, a new one is shown.
    """

    recorder: EpochRecorder
    """The recorder of the epochs, which precedes this callback; set before the training starts."""

    def __init__(self, name: str, validated: int, progress: Progress | None) -> None:
        self._name = name
        self._validated, self._ranked = validated, 0
        self._shared = progress is not None
        self._progress = progress or new_progress()
        self._shown, self._logged = -math.inf, self._progress.get_time()
        self._task: TaskID | None = None

    def on_train_start(self, *_: object) -> None:
        """Show the line."""
        self._ranked = 0  # by the validation of a warm start
        if not self._shared:
            self._progress.start()
        self._task = self._progress.add_task(f"training {self._name}", total=None, status="")

    def on_train_batch_end(
        self, trainer: pl.Trainer, _: object, outputs: Any, __: object, batch_idx: int
    ) -> None:
        """Show a step."""
        if (now := self._progress.get_time()) - self._shown >= _REFRESH:
            self._shown = now
            self._show((batch_idx + 1) / trainer.num_training_batches, outputs["loss"])

    def rank(self, histories: int) -> None:
        """Show that the validation targets of so many more histories were ranked."""
        self._ranked += histories
        self._show(1.0)

    def on_train_epoch_end(self, *_: object) -> None:
        """Show the metrics of the epoch, and log them: one epoch a minute for all to see."""
        self._ranked = 0
        self._show(0.0)
        now, level = self._progress.get_time(), logging.DEBUG
        if now - self._logged >= _QUIET and not self._progress.console.is_terminal:
            self._logged, level = now, logging.INFO
        curve = self.recorder.curve
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

    def _show(self, share: float, loss: Tensor | None = None) -> None:
        """Show that a share of the steps of the current epoch is done."""
        if self._task is None or self._progress.disable:
            return
        recorder, curve = self.recorder, self.recorder.curve
        complete = curve.epochs[:-1] if self._ranked else curve.epochs
        planned, last = recorder.last_epoch < _ENDLESS, recorder.last_epoch
        epoch = min(len(complete) + 1, last)
        status = f"epoch {epoch}" + (f"/{last}" if planned else "")
        if self._ranked:
            status += f", validating {self._ranked / self._validated:.0%}"
        elif curve.best >= 0:
            status += f", best {curve.best:.4f}".replace("0.", ".")
        if loss is not None:
            status += f", loss {float(loss):.2f}"
        spent = recorder.seconds
        if complete:
            seconds = [
                metrics["train/seconds"] + metrics.get("epoch/valid_seconds", 0.0)
                for metrics in complete
            ]
            left = max(sum(seconds) / len(seconds) * (last - len(complete)) - spent, 0.0)
        else:
            left = spent * (last / max(share, 1e-9) - 1)
        self._progress.update(
            self._task,
            completed=len(complete) + share,
            total=last if planned else None,
            status=status,
            ends=self._progress.get_time() + left if planned else None,
            at_least=not complete and self._validated > 0,
        )

    def on_fit_end(self, *_: object) -> None:
        """Remove the line."""
        if self._task is not None:
            self._progress.remove_task(self._task)
            self._task = None
        if not self._shared:
            self._progress.stop()

    def on_exception(self, *_: object) -> None:
        """Remove the line of an interrupted training."""
        self.on_fit_end()
