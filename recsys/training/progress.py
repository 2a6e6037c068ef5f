"""The progress display of a training."""

from __future__ import annotations

import pytorch_lightning as pl
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from recsys.training.callbacks import EpochRecorder
from recsys.training.state import MONITOR, Curve


def training_progress() -> Progress:
    """Return bars on standard error with a ``status`` behind each; hidden without a terminal."""
    console = Console(stderr=True)
    return Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("steps, left"),
        TimeRemainingColumn(),
        TextColumn("{task.fields[status]}"),
        console=console,
        disable=not console.is_terminal,
    )


class ProgressLine(pl.Callback):
    """Shows one bar for the entire training, or one line per epoch if there is no terminal.

    Args:
        title: the title of the bar.
        steps: number of steps completed before.
        recorder: the recorder of the metrics.
        progress: a display that is already shown, to which the bar is added during the training.
            If None, a new one is shown.
    """

    def __init__(
        self,
        title: str,
        steps: int,
        recorder: EpochRecorder,
        progress: Progress | None,
    ) -> None:
        self._title = title
        self._recorder = recorder
        self._shared = progress is not None
        self._progress = progress or training_progress()
        self._console = self._progress.console
        total = recorder.total_steps
        self._task = self._progress.add_task(title, completed=steps, total=total, status="")

    def on_train_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Show the bar."""
        if not self._shared:
            self._progress.start()

    def on_train_batch_end(
        self,
        trainer: pl.Trainer,
        pl_module: pl.LightningModule,
        outputs: object,
        batch: object,
        batch_idx: int,
    ) -> None:
        """Advance the bar by a step."""
        curve = self._recorder.curve
        loss = f"epoch {len(curve.epochs) + 1}  loss {float(trainer.callback_metrics['loss']):.3f}"
        best = f"  best valid NDCG@10 {curve.best:.4f}" if curve.best >= 0 else ""
        self._progress.update(self._task, advance=1, status=loss + best)

    def on_train_epoch_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Show the metrics of the epoch."""
        curve = self._recorder.curve
        line = _describe(len(curve.epochs), curve)
        self._progress.update(self._task, total=self._recorder.total_steps, status=line)
        if not self._console.is_terminal:
            self._console.print(f"{self._title}: {line}", soft_wrap=True, highlight=False)

    def on_fit_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Leave the final bar on the screen, unless it is part of a shared display."""
        self._close()

    def on_exception(
        self, trainer: pl.Trainer, pl_module: pl.LightningModule, exception: BaseException
    ) -> None:
        """Close the bar of an interrupted training."""
        self._close()

    def _close(self) -> None:
        if self._shared:
            self._progress.remove_task(self._task)
        else:
            self._progress.stop()


def _describe(epoch: int, curve: Curve) -> str:
    metrics = curve.epochs[-1]
    line = f"epoch {epoch}  loss {metrics['train/loss']:.3f}"
    if MONITOR in metrics:
        line += f"  valid NDCG@10 {metrics[MONITOR]:.4f} (best {curve.best:.4f})"
    return f"{line}  {metrics['train/seconds']:.1f} s"
