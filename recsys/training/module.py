"""The LightningModule: model, objective, optimiser and schedule."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytorch_lightning as pl
import torch
from pytorch_lightning.utilities.types import OptimizerLRScheduler
from torch import Tensor, float64
from torch.nn.parallel import DistributedDataParallel

from recsys.config import TrainingConfig
from recsys.data.batches import SequenceBatch
from recsys.data.histories import PAD
from recsys.errors import InputError
from recsys.model.averaged import AveragedModel
from recsys.model.heads import HistoryRepresentation
from recsys.model.models import Model, ModelInputs
from recsys.training import processes
from recsys.training.losses import count_targets
from recsys.training.objective import (
    SampledObjective,
    build_objective,
    mean_over_processes,
    use_sparse_gradients,
)
from recsys.training.optimiser import RowwiseAdamW, Schedule


class TrainingModule(pl.LightningModule):
    """Trains a model to predict every target.

    Its state in a checkpoint decides how a training resumes, to the last bit on a CPU.

    Args:
        model: the model.
        config: objective and optimiser.
        schedule: the learning-rate schedule.
        interactions: number of interactions of each item in training [I + 1], by item token.
        exclude_seen: whether items seen before a target are excluded from its negatives.

    Raises:
        InputError: the model is a mean of others, which are trained one by one.
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
        if isinstance(model, AveragedModel):
            raise InputError("model.kind=averaged: its members are trained one by one")
        self.model = model
        self.objective = build_objective(config, interactions)
        self.schedule = schedule
        """The learning-rate schedule, read at every step."""
        self.sums = torch.zeros(2, dtype=float64)
        """The sum of the losses and the number of targets of the epoch so far, in this process."""
        self._config = config
        self._exclude_seen = exclude_seen
        self._random = torch.empty(0, 0, dtype=torch.uint8)
        sampled = isinstance(self.objective, SampledObjective)
        self._sparse = use_sparse_gradients(model) if sampled else {}
        if self._sparse:
            # These gradients are averaged below. torch has no public way to say so.
            ignore = DistributedDataParallel._set_params_and_buffers_to_ignore_for_model  # noqa: SLF001
            ignore(self, [f"model.{name}" for name in self._sparse])  # type: ignore[no-untyped-call]

    def on_save_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        """Add the sums of all processes, and the random state of each [P, bytes]."""
        checkpoint["sums"] = processes.all_reduce_sum(self.sums).tolist()
        random = torch.get_rng_state()
        if torch.cuda.is_available():
            random = torch.cat([random, torch.cuda.get_rng_state()])
        checkpoint["random"] = processes.all_gather_rows(random[None])

    def on_load_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        """Take the sums, and the random state of this process when the training starts."""
        self._random = checkpoint["random"]
        if processes.is_first():
            self.sums = torch.tensor(checkpoint["sums"], dtype=float64)

    def on_train_start(self) -> None:
        """Restore the random state; a process without a saved one gets a seed of its own."""
        self.sums = self.sums.to(self.device)
        number, size = processes.index(), len(torch.get_rng_state())
        if number < len(self._random):
            # Copies: of the row of a second process, which does not begin where its memory does,
            # torch 2.13 reads what is before it, and crashes.
            saved = self._random[number].clone()
            torch.set_rng_state(saved[:size].clone())
            if torch.cuda.is_available() and len(saved) > size:
                torch.cuda.set_rng_state(saved[size:].clone())
        elif number > 0:
            seeds = np.random.SeedSequence([torch.initial_seed(), number, self.global_step])
            torch.manual_seed(int(seeds.generate_state(1)[0]))

    def training_step(self, batch: SequenceBatch, batch_idx: int) -> Tensor:
        """Return the mean loss per target, over the targets of all processes."""
        history, seen = self.teacher_forced(batch)
        loss = self.loss(history, batch.targets, seen)
        targets = (batch.targets != PAD).sum()
        self.sums += torch.stack([loss.detach().double() * targets, targets])
        if processes.count() == 1:
            return loss
        # Lightning averages the gradients of the processes, but some have more targets than others.
        # One without targets multiplies its loss, which is 0, by the factor of one with a target.
        counted = count_targets(batch.targets)
        return loss * (counted * processes.count() / processes.all_reduce_sum(targets))

    def teacher_forced(self, batch: SequenceBatch) -> tuple[HistoryRepresentation, Tensor]:
        """Return the model's history representation and the seen items; see `NextItemModel`."""
        inputs = ModelInputs(batch.items, batch.lengths, batch.times, batch.features)
        return self.model.teacher_forced(inputs, batch.targets)

    def loss(self, history: HistoryRepresentation, targets: Tensor, seen: Tensor) -> Tensor:
        """Return the mean loss of the targets [B, L], given what `teacher_forced` returned."""
        excluded = seen if self._exclude_seen else None
        value: Tensor = self.objective(self.model, history, targets, excluded)
        return value

    def on_after_backward(self) -> None:
        """Average the gradients that DistributedDataParallel does not."""
        if processes.count() > 1:
            for weight in self._sparse.values():
                if weight.grad is not None:
                    weight.grad = mean_over_processes(weight.grad)

    def configure_optimizers(self) -> OptimizerLRScheduler:
        """Return fused AdamW and a schedule that is stepped after every batch."""
        optimizer = RowwiseAdamW(
            self.model.parameters(),
            lr=self._config.learning_rate,
            betas=(0.9, 0.98),
            weight_decay=self._config.weight_decay,
            fused=True,
        )
        rates = torch.optim.lr_scheduler.LambdaLR(
            optimizer,
            lambda step: self.schedule(step),  # noqa: PLW0108 - an early decay replaces it
        )
        return {"optimizer": optimizer, "lr_scheduler": {"scheduler": rates, "interval": "step"}}

    def transfer_batch_to_device(
        self, batch: SequenceBatch, device: torch.device, dataloader_idx: int
    ) -> Any:
        """Move a batch; Lightning's implementation does not support frozen dataclasses."""
        return batch.to(device)
