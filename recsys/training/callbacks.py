"""What happens around an epoch: validation, keeping the best weights, telling the user."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field

import pytorch_lightning as pl
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from torch import Tensor, nn

from recsys.evaluation.rank_table import RankTable

MONITOR = "valid/ndcg_at_10"
"""What the best epoch is chosen by."""

Report = Callable[[int, dict[str, float]], None]
"""Takes an epoch's number, from 1, and its figures."""


@dataclass
class Curve:
    """What each epoch gave, and the weights of the best one."""

    epochs: list[dict[str, float]] = field(default_factory=list)
    """Per epoch: train/loss, train/tokens_per_second, train/seconds, valid/…"""
    best_epoch: int | None = None
    """Number of epochs after which validation was best (1 = after the first)."""
    best_weights: dict[str, Tensor] = field(default_factory=dict)
    best_ranks: RankTable | None = None
    """Of the validation targets under those weights; None without validation."""
    interrupted: bool = False
    """By Ctrl-C."""

    @property
    def best(self) -> float:
        """The best validation NDCG@10 so far; -1 before the first."""
        return max((epoch[MONITOR] for epoch in self.epochs if MONITOR in epoch), default=-1.0)

    def validated(self) -> tuple[int, RankTable]:
        """The best epoch and its ranks, of a training with validation.

        Raises:
            ValueError: it was without.
        """
        if self.best_epoch is None or self.best_ranks is None:
            raise ValueError("no epoch was validated")
        return self.best_epoch, self.best_ranks


class EpochRecorder(pl.Callback):
    """Validates, keeps the best weights, stops when they stay the best, hands the figures on.

    Args:
        model: whose weights are kept.
        validate: ranks the validation targets under the current weights; None: no validation, the
            last epoch counts as the best.
        every: epochs between validations; the last epoch is always validated.
        patience: epochs without a better validation before the training is stopped.
        tokens_per_epoch: real tokens, for the throughput.
        report: called with the epoch number (from 1) and its figures.
    """

    def __init__(
        self,
        model: nn.Module,
        validate: Callable[[], RankTable] | None,
        every: int,
        patience: int,
        tokens_per_epoch: int,
        report: Report,
    ) -> None:
        self.curve = Curve()
        self._model = model
        self._validate = validate
        self._every = every
        self._patience = patience
        self._tokens = tokens_per_epoch
        self._report = report
        self._started = 0.0

    def interrupt(self) -> bool:
        """End the training here: whether there are weights to go on with.

        Without validation there are none: the training was to run to its end. If no epoch was
        validated yet, the weights as they are now are.
        """
        self.curve.interrupted = True
        if self._validate is None or not self.curve.epochs:
            return False
        if self.curve.best_epoch is None:
            self._keep(len(self.curve.epochs), self.curve.epochs[-1])
        return True

    def on_train_epoch_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Start the clock."""
        self._started = time.perf_counter()

    def on_train_epoch_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Validate, compare with the best so far, report."""
        seconds = time.perf_counter() - self._started
        figures = {
            "train/loss": float(trainer.callback_metrics["train/loss"]),
            "train/seconds": seconds,
            "train/tokens_per_second": self._tokens / seconds,
        }
        curve = self.curve
        epoch = len(curve.epochs) + 1
        curve.epochs.append(figures)
        if self._validate is None or epoch % self._every == 0 or epoch == trainer.max_epochs:
            self._keep(epoch, figures)
        if epoch - (curve.best_epoch or epoch) >= self._patience:
            trainer.should_stop = True
        self._report(epoch, figures)

    def _keep(self, epoch: int, figures: dict[str, float]) -> None:
        """Validate the weights as they are, and keep them if they are the best."""
        best, table = self.curve.best, None
        if self._validate is not None:
            started = time.perf_counter()
            table = self._validate()
            figures[MONITOR] = float(table.values("ndcg_at_10").mean())
            figures["valid/recall_at_10"] = float(table.values("recall_at_10").mean())
            figures["valid/seconds"] = time.perf_counter() - started
        if self._validate is None or figures[MONITOR] > best:
            self.curve.best_epoch = epoch
            self.curve.best_ranks = table
            self.curve.best_weights = {
                name: weight.detach().to("cpu", copy=True)
                for name, weight in self._model.state_dict().items()
            }


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
        total_steps: of the whole training.
        recorder: has the figures.
        progress: a view that is already shown, where the bar stands while the training lasts; None:
            a view of its own.
    """

    def __init__(
        self, title: str, total_steps: int, recorder: EpochRecorder, progress: Progress | None
    ) -> None:
        self._title = title
        self._recorder = recorder
        self._shared = progress is not None
        self._progress = progress or training_progress()
        self._console = self._progress.console
        self._task = self._progress.add_task(title, total=total_steps, figures="")

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
        self._progress.update(self._task, figures=line)
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
