"""What the user sees of a training."""

from __future__ import annotations

import pytorch_lightning as pl
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from recsys.training.callbacks import EpochRecorder
from recsys.training.state import MONITOR, Curve


def training_progress() -> Progress:
    """Bars on standard error, ``figures`` behind each; nothing where that is no terminal."""
    console = Console(stderr=True)
    return Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("steps, left"),
        TimeRemainingColumn(),
        TextColumn("{task.fields[figures]}"),
        console=console,
        disable=not console.is_terminal,
    )


class ProgressLine(pl.Callback):
    """One bar over the whole training, or one line per epoch where there is no terminal.

    Args:
        title: what the bar is of.
        steps: done before.
        recorder: has the figures.
        progress: a view that is already shown, where the bar stands while the training lasts; None:
            a view of its own.
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
        self._task = self._progress.add_task(title, completed=steps, total=total, figures="")

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
        """One step further."""
        curve = self._recorder.curve
        loss = f"epoch {len(curve.epochs) + 1}  loss {float(trainer.callback_metrics['loss']):.3f}"
        best = f"  best valid NDCG@10 {curve.best:.4f}" if curve.best >= 0 else ""
        self._progress.update(self._task, advance=1, figures=loss + best)

    def on_train_epoch_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Show the figures of the epoch."""
        curve = self._recorder.curve
        line = _describe(len(curve.epochs), curve)
        self._progress.update(self._task, total=self._recorder.total_steps, figures=line)
        if not self._console.is_terminal:
            self._console.print(f"{self._title}: {line}", soft_wrap=True, highlight=False)

    def on_fit_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Leave the last state of the bar on the screen, unless others stand there too."""
        self._leave()

    def on_exception(
        self, trainer: pl.Trainer, pl_module: pl.LightningModule, exception: BaseException
    ) -> None:
        """The same when training is cut short."""
        self._leave()

    def _leave(self) -> None:
        if self._shared:
            self._progress.remove_task(self._task)
        else:
            self._progress.stop()


def _describe(epoch: int, curve: Curve) -> str:
    figures = curve.epochs[-1]
    line = f"epoch {epoch}  loss {figures['train/loss']:.3f}"
    if MONITOR in figures:
        line += f"  valid NDCG@10 {figures[MONITOR]:.4f} (best {curve.best:.4f})"
    return f"{line}  {figures['train/seconds']:.1f} s"
