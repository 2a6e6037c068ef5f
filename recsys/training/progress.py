"""The progress display of a training."""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Callable

import pytorch_lightning as pl
from rich.progress import Progress, TaskID

from recsys.progress import new_progress
from recsys.training.callbacks import EpochRecorder
from recsys.training.state import MONITOR, Curve

logger = logging.getLogger(__name__)

_REFRESH = 0.1
"""Seconds between updates of the line by steps: showing the loss waits for a GPU to compute it."""
_QUIET = 60.0
"""Seconds between epochs that are shown without a terminal: a small log has thousands of them."""
_ENDLESS = 10_000
"""Epochs: who asks for as many ends the training by a report, at a time that no plan tells."""


class Pace:
    """Measures steps and validations, and estimates the time that the rest of both will take.

    Args:
        clock: returns seconds.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._last = clock()
        self._seconds = {"steps": 0.0, "ranked": 0.0}
        self._units = {"steps": 0, "ranked": 0}

    def restart(self) -> None:
        """Start the clock: the time before was neither a step nor a validation."""
        self._last = self._clock()

    def step(self) -> None:
        """Count a step that ends now."""
        self._count("steps", 1)

    def rank(self, histories: int) -> None:
        """Count validation histories that were ranked until now."""
        self._count("ranked", histories)

    def _count(self, kind: str, units: int) -> None:
        now = self._clock()
        self._seconds[kind] += now - self._last
        self._units[kind] += units
        self._last = now

    def seconds_of(self, steps: int, ranked: int) -> tuple[float, bool]:
        """Return how long steps and validation histories take, and whether that is all of it.

        It is not where one of the two was never measured.
        """
        left, known = 0.0, True
        for kind, units in (("steps", steps), ("ranked", ranked)):
            if self._units[kind]:
                left += units * self._seconds[kind] / self._units[kind]
            elif units:
                known = False
        return left, known


class ProgressLine(pl.Callback):
    """Shows one line for the entire training, or logs epochs if there is no terminal.

    One a minute is logged for all to see, the others for debugging.

    The time left is that of the planned steps and validations. The validation reports to `rank`.

    Args:
        name: the name of the training.
        steps: number of steps completed before.
        validated: number of histories that a validation ranks.
        progress: a view that is already shown, to which the line is added during the training. If
            None, a new one is shown.
    """

    def __init__(self, name: str, steps: int, validated: int, progress: Progress | None) -> None:
        self._name = name
        self._steps = steps
        self._validated = validated
        self._ranked = 0
        self._pace = Pace()
        self._shared = progress is not None
        self._progress = progress or new_progress()
        self._shown, self._logged = -math.inf, self._progress.get_time()
        self._task: TaskID | None = None
        self._recorder: EpochRecorder | None = None

    def follow(self, recorder: EpochRecorder) -> None:
        """Show the epochs of a recorder; call it before the training starts."""
        self._recorder = recorder

    def on_train_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Show the line."""
        if not self._shared:
            self._progress.start()
        self._task = self._progress.add_task(f"training {self._name}", total=None, status="")
        self._pace.restart()

    def on_train_batch_end(
        self,
        trainer: pl.Trainer,
        pl_module: pl.LightningModule,
        outputs: object,
        batch: object,
        batch_idx: int,
    ) -> None:
        """Count a step."""
        self._steps += 1
        self._pace.step()
        now = self._progress.get_time()
        if now - self._shown >= _REFRESH:
            self._shown = now
            self._show(trainer)

    def rank(self, histories: int) -> None:
        """Count histories whose validation targets were ranked."""
        self._ranked += histories
        self._pace.rank(histories)
        self._show()

    def on_train_epoch_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Show the metrics of the epoch."""
        self._ranked = 0
        self._show()
        if self._recorder is None:
            return
        now, level = self._progress.get_time(), logging.DEBUG
        if now - self._logged >= _QUIET and not self._progress.console.is_terminal:
            self._logged, level = now, logging.INFO
        logger.log(level, "%s: %s", self._name, _describe(self._recorder.curve))

    def _show(self, trainer: pl.Trainer | None = None) -> None:
        """Update the line; with the loss, if a trainer is given."""
        if self._recorder is None or self._task is None or self._progress.disable:
            return
        recorder, curve = self._recorder, self._recorder.curve
        validations = recorder.validations_left * self._validated - self._ranked
        left, known = self._pace.seconds_of(recorder.total_steps - self._steps, validations)
        done, _ = self._pace.seconds_of(
            self._steps, recorder.validations_done * self._validated + self._ranked
        )
        epoch = min(len(curve.epochs) + (not self._ranked), recorder.last_epoch)
        planned = recorder.last_epoch < _ENDLESS
        status = f"epoch {epoch}" + (f"/{recorder.last_epoch}" if planned else "")
        if self._ranked:
            status += f", validating {self._ranked / self._validated:.0%}"
        elif curve.best >= 0:
            status += f", best {curve.best:.4f}".replace("0.", ".")
        if trainer is not None:
            status += f", loss {float(trainer.callback_metrics['loss']):.2f}"
        self._progress.update(
            self._task,
            completed=done,
            total=done + left if planned else None,
            status=status,
            ends=self._progress.get_time() + left if planned else None,
            at_least=not known,
        )

    def on_fit_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Remove the line."""
        self._close()

    def on_exception(
        self, trainer: pl.Trainer, pl_module: pl.LightningModule, exception: BaseException
    ) -> None:
        """Remove the line of an interrupted training."""
        self._close()

    def _close(self) -> None:
        if self._task is not None:
            self._progress.remove_task(self._task)
            self._task = None
        if not self._shared:
            self._progress.stop()


def _describe(curve: Curve) -> str:
    metrics = curve.epochs[-1]
    line = f"epoch {len(curve.epochs)}  loss {metrics['train/loss']:.3f}"
    if MONITOR in metrics:
        line += f"  valid NDCG@10 {metrics[MONITOR]:.4f} (best {curve.best:.4f})"
    return f"{line}  {metrics['train/seconds']:.1f} s"
