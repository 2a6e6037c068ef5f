"""The progress display of a training: one line with the time left of all its epochs.

Lightning's bars show the time left of an epoch.
"""

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

    One a minute is logged for all to see, the others for debugging. The time left is that of the
    planned steps and validations, by what each has taken. The validation reports to `rank`.

    Args:
        name: the name of the training.
        validated: number of histories that a validation ranks.
        progress: a view that is already shown, to which the line is added during the training. If
            None, a new one is shown.
    """

    def __init__(self, name: str, validated: int, progress: Progress | None) -> None:
        self._name = name
        self._validated = max(1, validated)
        self._step = self._ranked = 0
        self._seconds, self._units = {"steps": 0.0, "ranked": 0.0}, {"steps": 0, "ranked": 0}
        self._shared = progress is not None
        self._progress = progress or new_progress()
        self._last = self._logged = self._progress.get_time()
        self._shown = -math.inf
        self._task: TaskID | None = None
        self._recorder: EpochRecorder

    def follow(self, recorder: EpochRecorder) -> None:
        """Show the epochs of a recorder; call it before the training starts."""
        self._recorder = recorder

    def on_train_start(self, *_: object) -> None:
        """Show the line."""
        if not self._shared:
            self._progress.start()
        self._task = self._progress.add_task(f"training {self._name}", total=None, status="")
        self._last = self._progress.get_time()

    def on_train_batch_end(self, trainer: pl.Trainer, _: object, outputs: Any, *__: object) -> None:
        """Count a step."""
        self._step = trainer.global_step
        self._count("steps", 1)
        if self._last - self._shown >= _REFRESH:
            self._shown = self._last
            self._show(outputs["loss"])

    def rank(self, histories: int) -> None:
        """Count histories whose validation targets were ranked."""
        self._ranked += histories
        self._count("ranked", histories)
        self._show()

    def _count(self, kind: str, units: int) -> None:
        """Count units that took the time since the last ones."""
        now = self._progress.get_time()
        self._seconds[kind] += now - self._last
        self._units[kind] += units
        self._last = now

    def _seconds_of(self, steps: int, ranked: int) -> float:
        """Return how long steps and validation histories take; of what was never measured, 0."""
        return sum(
            units * self._seconds[kind] / max(self._units[kind], 1)
            for kind, units in (("steps", steps), ("ranked", ranked))
        )

    def on_train_epoch_end(self, *_: object) -> None:
        """Show the metrics of the epoch."""
        self._ranked = 0
        self._show()
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

    def _show(self, loss: Tensor | None = None) -> None:
        if self._task is None or self._progress.disable:
            return
        recorder, curve = self._recorder, self._recorder.curve
        to_rank = recorder.validations_left * self._validated - self._ranked
        left = self._seconds_of(recorder.total_steps - self._step, to_rank)
        validations = sum(MONITOR in epoch for epoch in curve.epochs)
        done = self._seconds_of(self._step, validations * self._validated + self._ranked)
        epoch = min(len(curve.epochs) + (not self._ranked), recorder.last_epoch)
        planned = recorder.last_epoch < _ENDLESS
        status = f"epoch {epoch}" + (f"/{recorder.last_epoch}" if planned else "")
        if self._ranked:
            status += f", validating {self._ranked / self._validated:.0%}"
        elif curve.best >= 0:
            status += f", best {curve.best:.4f}".replace("0.", ".")
        if loss is not None:
            status += f", loss {float(loss):.2f}"
        self._progress.update(
            self._task,
            completed=done,
            total=done + left if planned else None,
            status=status,
            ends=self._progress.get_time() + left if planned else None,
            at_least=to_rank > 0 and not self._units["ranked"],
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
