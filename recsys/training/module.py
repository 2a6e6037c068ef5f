"""The LightningModule: model, loss and optimiser, glued."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal, cast

import pytorch_lightning as pl
import torch
from pytorch_lightning.utilities.types import OptimizerLRScheduler
from torch import Tensor
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn

from recsys.config import TrainingConfig
from recsys.data.batches import SequenceBatch
from recsys.data.histories import PAD
from recsys.model.recommender import Model
from recsys.training.losses import chunked_cross_entropy
from recsys.training.schedule import inverse_square_root, warmup_cosine, warmup_hold_decay


@dataclass(frozen=True, slots=True)
class Schedule:
    """The learning-rate schedule of a training, in steps."""

    kind: Literal["hold_decay", "inverse_square_root", "cosine"]
    warmup_steps: int
    decay_steps: int
    total_steps: int

    @classmethod
    def plan(cls, config: TrainingConfig, epochs: int, steps_per_epoch: int) -> Schedule:
        """The schedule of a training over a number of epochs; warm-up takes a tenth at most."""
        total = epochs * steps_per_epoch
        decay = round(total * config.decay_fraction)
        return cls(config.schedule, min(config.warmup_steps, -(-total // 10)), decay, total)

    def __call__(self, step: int) -> float:
        """The factor of the learning rate at a step."""
        if self.kind == "inverse_square_root":
            return inverse_square_root(step, self.warmup_steps)
        if self.kind == "cosine":
            return warmup_cosine(step, self.warmup_steps, self.total_steps)
        return warmup_hold_decay(step, self.warmup_steps, self.decay_steps, self.total_steps)


class TrainingModule(pl.LightningModule):
    """Prediction of every target over the whole catalogue.

    The moving average of the weights, where there is one, is a part of it: it moves with it, and
    checkpoints hold it.
    """

    def __init__(
        self,
        model: Model,
        config: TrainingConfig,
        schedule: Schedule,
        *,
        exclude_seen: bool,
    ) -> None:
        super().__init__()
        self.model = model
        self._average: AveragedModel | None = None
        if config.ema_decay:
            average = get_ema_multi_avg_fn(config.ema_decay)
            self._average = AveragedModel(model, multi_avg_fn=average).requires_grad_(False)
        self._config = config
        self._schedule = schedule
        self._exclude_seen = exclude_seen

    @property
    def evaluated(self) -> Model:
        """The model with the weights to validate and to keep: averaged ones, if there are."""
        return self.model if self._average is None else cast("Model", self._average.module)

    def on_train_batch_end(self, outputs: object, batch: SequenceBatch, batch_idx: int) -> None:
        """Move the average towards the new weights."""
        if self._average is not None:
            self._average.update_parameters(self.model)

    def training_step(self, batch: SequenceBatch, batch_idx: int) -> Tensor:
        """Mean cross-entropy per target."""
        head = self.model.head
        history, had = self.model.teacher_forced(
            batch.items, batch.lengths, batch.targets, batch.times
        )
        candidates = head.candidate_side(self.model.items.weight)
        loss = chunked_cross_entropy(
            head.logits,
            history,
            candidates,
            batch.targets,
            had if self._exclude_seen else None,
            label_smoothing=self._config.label_smoothing,
        )
        targets = int((batch.targets != PAD).sum())
        self.log("loss", loss.detach(), on_step=True, on_epoch=False)
        self.log("train/loss", loss.detach(), on_step=False, on_epoch=True, batch_size=targets)
        return loss

    def configure_optimizers(self) -> OptimizerLRScheduler:
        """AdamW (fused), the schedule stepped after every batch."""
        optimizer = torch.optim.AdamW(
            self.model.parameters(),
            lr=self._config.learning_rate,
            betas=(0.9, 0.98),
            weight_decay=self._config.weight_decay,
            fused=True,
        )
        scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, self._schedule)
        return {
            "optimizer": optimizer,
            "lr_scheduler": {"scheduler": scheduler, "interval": "step"},
        }

    def configure_gradient_clipping(
        self,
        optimizer: torch.optim.Optimizer,
        gradient_clip_val: float | None = None,
        gradient_clip_algorithm: str | None = None,
    ) -> None:
        """Clip by norm.

        Lightning's own way refuses fused optimisers, whose float16 scaling it would undo twice;
        bf16 needs no scaling.
        """
        torch.nn.utils.clip_grad_norm_(self.model.parameters(), self._config.gradient_clip)

    def transfer_batch_to_device(
        self, batch: SequenceBatch, device: torch.device, dataloader_idx: int
    ) -> Any:
        """Lightning's own way does not take frozen dataclasses."""
        return SequenceBatch(
            items=batch.items.to(device, non_blocking=True),
            lengths=batch.lengths.to(device, non_blocking=True),
            targets=batch.targets.to(device, non_blocking=True),
            times=None if batch.times is None else batch.times.to(device, non_blocking=True),
        )
