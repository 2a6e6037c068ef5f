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
from recsys.model.model_inputs import ModelInputs
from recsys.model.protocols import HistoryRepresentation, Model
from recsys.training import processes
from recsys.training.cost import StepMeter
from recsys.training.losses import count_targets
from recsys.training.objective import SampledObjective, build_objective
from recsys.training.optimiser import RowwiseAdamW
from recsys.training.schedule import Schedule
from recsys.training.sparse_gradients import mean_over_processes, use_sparse_gradients
from recsys.training.state import TrainingState, restore_random


class TrainingModule(pl.LightningModule):
    """Trains a model to predict every target.

    Args:
        model: the model; it is given the weights of ``start``.
        config: objective and optimiser.
        schedule: the learning-rate schedule.
        interactions: number of interactions of each item in training [I + 1], by item token.
        exclude_seen: whether items seen before a target are excluded from its negatives.
        start: the state to resume from. If None, training starts from the beginning.

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
        start: TrainingState | None = None,
    ) -> None:
        super().__init__()
        if isinstance(model, AveragedModel):
            raise InputError("model.kind=averaged: its members are trained one by one")
        self.model = model
        self.objective = build_objective(config, interactions)
        self._config = config
        self.schedule = schedule
        """The learning-rate schedule, read at every step."""
        self._exclude_seen = exclude_seen
        sampled = isinstance(self.objective, SampledObjective)
        self._sparse = use_sparse_gradients(model) if sampled else {}
        if self._sparse:
            # These gradients are averaged below. torch has no public way to say so.
            ignore = DistributedDataParallel._set_params_and_buffers_to_ignore_for_model  # noqa: SLF001
            ignore(self, [f"model.{name}" for name in self._sparse])  # type: ignore[no-untyped-call]
        self._start = start
        self.sums = torch.zeros(2, dtype=float64)
        """The sum of the losses and the number of targets of the epoch so far, in this process."""
        self.meter = StepMeter(counts=start is None)
        """Measures the steps of this process."""
        self._lengths = torch.empty(0)
        if start is not None:
            model.load_state_dict(start.weights)
            if processes.is_first():
                self.sums += torch.tensor([start.epoch.loss, start.epoch.targets], dtype=float64)

    def on_train_start(self) -> None:
        """Restore the random state; a process without a saved one gets a seed of its own."""
        self.sums = self.sums.to(self.device)
        number, start = processes.index(), self._start
        if start is not None and number < len(start.random):
            restore_random(start.random[number])
        elif number > 0:
            step = 0 if start is None else start.step
            seeds = np.random.SeedSequence([torch.initial_seed(), number, step])
            torch.manual_seed(int(seeds.generate_state(1)[0]))

    def optimizer_step(self, *args: Any, **kwargs: Any) -> None:
        """Take an optimiser step and measure it."""
        with self.meter.counting(self._lengths):
            super().optimizer_step(*args, **kwargs)
        self.meter.lap("optimiser")

    def on_train_epoch_start(self) -> None:
        """Restart the clock: time before the epoch, such as a validation, belongs to no step."""
        self.meter.start()

    def on_train_batch_start(self, batch: SequenceBatch, batch_idx: int) -> None:
        """Record the time that loading the batch took."""
        self._lengths = batch.lengths
        self.meter.lap("data")

    def on_before_backward(self, loss: Tensor) -> None:
        """Record the time of the forward pass, which computes the gradients of the head too."""
        self.meter.lap("forward")

    def on_after_backward(self) -> None:
        """Average the gradients that DistributedDataParallel does not; record the time."""
        if processes.count() > 1:
            for weight in self._sparse.values():
                if weight.grad is not None:
                    weight.grad = mean_over_processes(weight.grad)
        self.meter.lap("backward")

    def on_train_batch_end(self, outputs: Any, batch: SequenceBatch, batch_idx: int) -> None:
        """Restart the clock: time in callbacks, such as saving a checkpoint, belongs to no step."""
        self.meter.start()

    def training_step(self, batch: SequenceBatch, batch_idx: int) -> Tensor:
        """Return the mean loss per target, over the targets of all processes."""
        history, seen = self.teacher_forced(batch)
        loss = self.loss(history, batch.targets, seen)
        self.log("loss", loss.detach(), on_step=True, on_epoch=False)
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

    def configure_optimizers(self) -> OptimizerLRScheduler:
        """Return fused AdamW and a schedule that is stepped after every batch."""
        optimizer = RowwiseAdamW(
            self.model.parameters(),
            lr=self._config.learning_rate,
            betas=(0.9, 0.98),
            weight_decay=self._config.weight_decay,
            fused=True,
        )
        done = 0
        if self._start is not None:
            done = self._start.step
            self._restore_moments(optimizer, self._start.moments)
        scheduler = torch.optim.lr_scheduler.LambdaLR(
            optimizer, lambda step: self.schedule(done + step)
        )
        return {
            "optimizer": optimizer,
            "lr_scheduler": {"scheduler": scheduler, "interval": "step"},
        }

    def moments(self) -> dict[str, Tensor]:
        """Return the optimiser state of each weight: ``WEIGHT.exp_avg`` and so on."""
        state = self.trainer.optimizers[0].state_dict()["state"]
        return {
            f"{name}.{moment}": value
            for number, (name, _) in enumerate(self.model.named_parameters())
            for moment, value in state.get(number, {}).items()
        }

    def _restore_moments(
        self, optimizer: torch.optim.Optimizer, moments: dict[str, Tensor]
    ) -> None:
        numbers = {name: number for number, (name, _) in enumerate(self.model.named_parameters())}
        state: dict[int, dict[str, Tensor]] = {}
        for key, value in moments.items():
            name, moment = key.rsplit(".", 1)
            state.setdefault(numbers[name], {})[moment] = value
        groups = optimizer.state_dict()["param_groups"]
        optimizer.load_state_dict({"state": state, "param_groups": groups})

    def transfer_batch_to_device(
        self, batch: SequenceBatch, device: torch.device, dataloader_idx: int
    ) -> Any:
        """Move a batch; Lightning's implementation does not support frozen dataclasses."""
        return batch.to(device)
