"""A step of training: the objective, the optimiser with its schedule, and the LightningModule."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytorch_lightning as pl
import torch
from pytorch_lightning.utilities.types import OptimizerLRScheduler
from torch import Tensor, distributed, float64, nn

from recsys.config.experiment import TrainingConfig
from recsys.data.batches import SequenceBatch
from recsys.data.histories import PAD
from recsys.model.heads import HistoryRepresentation
from recsys.model.models import Model, ModelInputs
from recsys.training.followers import Followers
from recsys.training.losses import mean_loss


class RowwiseAdamW(torch.optim.AdamW):
    """`torch.optim.AdamW` that updates only the rows of a sparse gradient.

    A row that was not read keeps its moments and has no weight decay until it is read again, as in
    `torch.optim.SparseAdam`, which supports neither weight decay nor dense parameters.
    """

    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        sparse: list[tuple[Tensor, Tensor]] = []
        for group in self.param_groups:
            for table in group["params"]:
                if table.grad is not None and table.grad.is_sparse:
                    self._step_rows(table, table.grad.coalesce(), group)
                    sparse.append((table, table.grad))
                    table.grad = None
        super().step()
        for table, gradient in sparse:
            table.grad = gradient
        return loss

    def _step_rows(self, table: Tensor, gradient: Tensor, group: dict[str, Any]) -> None:
        state = self.state[table]
        if not state:
            state["step"] = torch.zeros(())
            state["exp_avg"] = torch.zeros_like(table)
            state["exp_avg_sq"] = torch.zeros_like(table)
        state["step"] += 1
        step, (beta1, beta2), rate = float(state["step"]), group["betas"], float(group["lr"])
        rows, values = gradient.indices()[0], gradient.values().to(table.dtype)
        mean = state["exp_avg"][rows].lerp_(values, 1 - beta1)
        square = state["exp_avg_sq"][rows].lerp_(values.square(), 1 - beta2)
        state["exp_avg"][rows], state["exp_avg_sq"][rows] = mean, square
        spread = square.sqrt_().div_(math.sqrt(1 - beta2**step)).add_(group["eps"])
        kept = table[rows] * (1 - rate * group["weight_decay"])
        table[rows] = kept.addcdiv_(mean, spread, value=-rate / (1 - beta1**step))


@dataclass(frozen=True, slots=True)
class Schedule:
    """The factor of the learning rate: it rises linearly, holds, and decays to a hundredth.

    >>> [Schedule(2, 4, 8)(step) for step in range(9)]
    [0.5, 1.0, 1.0, 1.0, 1.0, 0.75, 0.5, 0.25, 0.01]
    """

    warmup_steps: int
    decay_steps: int
    total_steps: int

    @classmethod
    def plan(cls, config: TrainingConfig, epochs: int, steps_per_epoch: int) -> Schedule:
        """Return the schedule of epochs; before a decay, a tenth of the steps warm up at most."""
        total = epochs * steps_per_epoch
        decay = round(total * config.decay_fraction)
        # Without a decay epochs may be added, and must not change those before them.
        most = -(-total // 10) if config.decay_fraction else config.warmup_steps
        return cls(min(config.warmup_steps, most), decay, total)

    def __call__(self, step: int) -> float:
        rise = (step + 1) / max(self.warmup_steps, 1)
        decay = (self.total_steps - step) / max(self.decay_steps, 1)
        return max(0.01, min(1.0, rise, decay))


class TrainingModule(pl.LightningModule):
    """Trains a model to predict every target.

    ``exclude_seen`` says whether items seen before a target are excluded from its negatives. A
    ``teacher`` has been trained, its scores are dot products, and the model learns them too.
    ``followers`` soften the labels of its targets.
    """

    def __init__(
        self,
        model: Model,
        config: TrainingConfig,
        schedule: Schedule,
        *,
        exclude_seen: bool,
        teacher: Model | None = None,
        followers: Followers | None = None,
    ) -> None:
        super().__init__()
        self.model = model
        self.schedule = schedule
        """The learning-rate schedule, read at every step."""
        self.sums = torch.zeros(2, dtype=float64)
        """The sum of the losses and the number of targets of the epoch so far."""
        self._config = config
        self._exclude_seen = exclude_seen
        self._random: Tensor | None = None
        self.followers = followers  # a module: its tensors move to the device
        self._teacher: tuple[Model, Tensor] | None = None  # is no part of this module
        if teacher is not None:
            with torch.no_grad():
                items = teacher.head.represent_candidates(teacher.items.table()).embeddings
            self._teacher = teacher.eval(), items
        if config.loss.kind != "cross_entropy":  # the tables with a row per item: few rows are read
            for table in model.modules():
                if isinstance(table, nn.Embedding) and table.num_embeddings == model.num_items + 1:
                    table.sparse = True

    def on_save_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        checkpoint["sums"] = self.sums.tolist()
        random = torch.get_rng_state()
        if torch.cuda.is_available():
            random = torch.cat([random, torch.cuda.get_rng_state()])
        checkpoint["random"] = random

    def on_load_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        self._random = checkpoint["random"]
        self.sums = torch.tensor(checkpoint["sums"], dtype=float64)

    def on_train_start(self) -> None:
        self.sums = self.sums.to(self.device)
        if self.global_rank > 0:  # of several processes each has its own random state
            facts = [torch.initial_seed(), self.global_rank, self.global_step]
            torch.manual_seed(int(np.random.SeedSequence(facts).generate_state(1)[0]))
        elif self._random is not None:
            size = len(torch.get_rng_state())
            torch.set_rng_state(self._random[:size].clone())
            if torch.cuda.is_available() and len(self._random) > size:
                torch.cuda.set_rng_state(self._random[size:].clone())

    def training_step(self, batch: SequenceBatch, batch_idx: int) -> Tensor:
        loss = self.loss(*self.teacher_forced(batch), batch)
        targets = (batch.targets != PAD).sum()
        sums = torch.stack([loss.detach().double() * targets, targets])
        if self.trainer.world_size > 1:  # the gradients are averaged, but not by the targets
            distributed.all_reduce(sums)
            loss *= targets * self.trainer.world_size / sums[1]
        self.sums += sums
        return loss

    def teacher_forced(self, batch: SequenceBatch) -> tuple[HistoryRepresentation, Tensor]:
        return self.model.teacher_forced(_inputs(batch), batch.targets)

    def loss(self, history: HistoryRepresentation, seen: Tensor, batch: SequenceBatch) -> Tensor:
        """Return the mean loss of the targets [B, L], given what `teacher_forced` returned."""
        excluded, taught = seen if self._exclude_seen else None, None
        if self._teacher is not None:
            teacher, items = self._teacher
            with torch.no_grad():
                states = teacher.teacher_forced(_inputs(batch), batch.targets)[0].states
            taught = states, items
        soft = None if self.followers is None else (self.followers, batch.items)
        words = self._config.loss, self.model, history, batch.targets, excluded
        return mean_loss(*words, taught, soft)

    def configure_optimizers(self) -> OptimizerLRScheduler:
        optimizer = RowwiseAdamW(
            self.model.parameters(),
            lr=self._config.learning_rate,
            betas=(0.9, 0.98),
            weight_decay=self._config.weight_decay,
            fused=True,
        )
        # An early decay replaces the schedule.
        rates = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: self.schedule(step))  # noqa: PLW0108
        return {"optimizer": optimizer, "lr_scheduler": {"scheduler": rates, "interval": "step"}}


def _inputs(batch: SequenceBatch) -> ModelInputs:
    return ModelInputs(batch.items, batch.lengths, batch.times, batch.features)
