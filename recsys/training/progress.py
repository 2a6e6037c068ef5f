"""The progress display of a training: one line with the time left of all its epochs."""

from __future__ import annotations

import logging
import math
from contextlib import ExitStack
from typing import Any

import pytorch_lightning as pl
from rich.progress import Progress

from recsys.progress import Stage, new_progress, stage
from recsys.training.epochs import ENDLESS, MONITOR, EpochRecorder

logger = logging.getLogger(__name__)

_REFRESH = 0.1
"""Seconds between updates of the line by steps: showing the loss waits for a GPU to compute it."""
_QUIET = 60.0
"""Seconds between epochs that are shown without a terminal: a small log has thousands of them."""


class ProgressLine(pl.Callback):
    """Shows one line for the entire training, or logs epochs if there is no terminal.

    The time left is that of the epochs left, by the mean of the complete ones; in the first, by its
    steps. The recorder precedes this callback. If no ``progress`` is shown already, a new one is.
    """

    def __init__(self, name: str, recorder: EpochRecorder, progress: Progress | None) -> None:
        self._name, self._recorder, self._open = name, recorder, ExitStack()
        self._progress, self._shared = progress or new_progress(), progress is not None
        self._shown, self._logged = -math.inf, self._progress.get_time()
        self._line: Stage | None = None

    def on_train_start(self, *_: object) -> None:
        if not self._shared:
            self._open.enter_context(self._progress)
        line = stage(f"training {self._name}", None, self._progress)
        self._line = self._open.enter_context(line)

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
        if self._line is None:
            return
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
        self._progress.update(
            self._line.task,
            completed=done + steps_done,
            total=last if planned else None,
            status=status + loss,
            ends=self._progress.get_time() + left if planned else None,
        )

    def on_fit_end(self, *_: object) -> None:
        self._open.close()

    def on_exception(self, *_: object) -> None:
        self._open.close()
