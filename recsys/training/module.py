"""The LightningModule: model, loss and optimiser, glued."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

import pytorch_lightning as pl
import torch
from pytorch_lightning.utilities.types import OptimizerLRScheduler
from torch import Tensor

from recsys.config import TrainingConfig
from recsys.data.batches import SequenceBatch
from recsys.data.histories import PAD
from recsys.model.heads import HistorySide
from recsys.model.recommender import Model
from recsys.training.objective import SampledObjective, build_objective, read_rows_alone
from recsys.training.optimiser import RowwiseAdamW, clip_gradients
from recsys.training.schedule import inverse_square_root, warmup_hold_decay


@dataclass(frozen=True, slots=True)
class Schedule:
    """The learning-rate schedule of a training, in steps."""

    kind: Literal["hold_decay", "inverse_square_root"]
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
        return warmup_hold_decay(step, self.warmup_steps, self.decay_steps, self.total_steps)


class TrainingModule(pl.LightningModule):
    """Prediction of every target.

    Args:
        model: whose weights are found.
        config: loss and optimiser.
        schedule: of the learning rate.
        interactions: of each item in training [I + 1], by item token.
        exclude_seen: what was had before a target is no wrong answer.
    """

    def __init__(
        self,
        model: Model,
        config: TrainingConfig,
        schedule: Schedule,
        interactions: Tensor,
        *,
        exclude_seen: bool,
    ) -> None:
        super().__init__()
        self.model = model
        self.objective = build_objective(config, interactions)
        if isinstance(self.objective, SampledObjective):
            read_rows_alone(model)
        self._config = config
        self._schedule = schedule
        self._exclude_seen = exclude_seen

    def training_step(self, batch: SequenceBatch, batch_idx: int) -> Tensor:
        """Mean loss per target."""
        history, had = self.model.teacher_forced(batch.items, batch.lengths, batch.targets)
        loss = self.loss(history, batch.targets, had)
        targets = int((batch.targets != PAD).sum())
        self.log("loss", loss.detach(), on_step=True, on_epoch=False)
        self.log("train/loss", loss.detach(), on_step=False, on_epoch=True, batch_size=targets)
        return loss

    def loss(self, history: HistorySide, targets: Tensor, had: Tensor) -> Tensor:
        """Of what the model's `teacher_forced` gives for targets [B, L]: the mean over them."""
        value: Tensor = self.objective(
            self.model, history, targets, had if self._exclude_seen else None
        )
        return value

    def configure_optimizers(self) -> OptimizerLRScheduler:
        """AdamW (fused), the schedule stepped after every batch."""
        optimizer = RowwiseAdamW(
            self.parameters(),
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
        """Clip by norm, sparse gradients too.

        Lightning's own way refuses fused optimisers, whose float16 scaling it would undo twice;
        bf16 needs no scaling.
        """
        clip_gradients(self.parameters(), self._config.gradient_clip)

    def transfer_batch_to_device(
        self, batch: SequenceBatch, device: torch.device, dataloader_idx: int
    ) -> Any:
        """Lightning's own way does not take frozen dataclasses."""
        return SequenceBatch(
            items=batch.items.to(device, non_blocking=True),
            lengths=batch.lengths.to(device, non_blocking=True),
            targets=batch.targets.to(device, non_blocking=True),
        )
