"""The LightningModule: model, loss and optimiser, glued."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, Literal

import numpy as np
import pytorch_lightning as pl
import torch
from pytorch_lightning.utilities.types import OptimizerLRScheduler
from torch import Tensor, float64

from recsys.config import TrainingConfig
from recsys.data.histories import PAD
from recsys.data.sequence_batch import SequenceBatch
from recsys.model.model_inputs import ModelInputs
from recsys.model.protocols import HistoryRepresentation, Model
from recsys.training import processes
from recsys.training.cost import StepMeter
from recsys.training.objective import SampledObjective, build_objective, use_sparse_gradients
from recsys.training.optimiser import RowwiseAdamW, clip_gradients
from recsys.training.schedule import inverse_square_root, warmup_hold_decay
from recsys.training.state import TrainingState, restore_random


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

    def falling(self, step: int, over: int) -> Schedule:
        """The same up to a step, from which on it falls over so many steps."""
        return replace(self, decay_steps=over, total_steps=step + over)

    def __call__(self, step: int) -> float:
        """The factor of the learning rate at a step."""
        if self.kind == "inverse_square_root":
            return inverse_square_root(step, self.warmup_steps)
        return warmup_hold_decay(step, self.warmup_steps, self.decay_steps, self.total_steps)


class TrainingModule(pl.LightningModule):
    """Prediction of every target.

    Args:
        model: what is trained; it takes on the weights of ``start``.
        config: loss and optimiser.
        schedule: of the learning rate.
        interactions: of each item in training [I + 1], by item token.
        exclude_seen: what was had before a target is no wrong answer.
        start: where to go on; None: at the beginning.
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
        self.model = model
        self.objective = build_objective(config, interactions)
        if isinstance(self.objective, SampledObjective):
            use_sparse_gradients(model)
        self._config = config
        self.schedule = schedule
        """Read at every step."""
        self._exclude_seen = exclude_seen
        self._start = start
        self.sums = torch.zeros(2, dtype=float64)
        """Loss and targets of the epoch so far, in this process."""
        self.meter = StepMeter(counts=start is None)
        """Of the steps in this process."""
        self._lengths = torch.empty(0)
        if start is not None:
            model.load_state_dict(start.weights)
            if processes.is_first():
                self.sums += torch.tensor([start.epoch.loss, start.epoch.targets], dtype=float64)

    def on_train_start(self) -> None:
        """Draw what would have been drawn next; a process that is new draws on its own."""
        self.sums = self.sums.to(self.device)
        number, start = processes.index(), self._start
        if start is not None and number < len(start.random):
            restore_random(start.random[number])
        elif number > 0:
            step = 0 if start is None else start.step
            seeds = np.random.SeedSequence([torch.initial_seed(), number, step])
            torch.manual_seed(int(seeds.generate_state(1)[0]))

    def optimizer_step(self, *args: Any, **kwargs: Any) -> None:
        """A step, measured."""
        with self.meter.counting(self._lengths):
            super().optimizer_step(*args, **kwargs)
        self.meter.lap("optimiser")

    def on_train_epoch_start(self) -> None:
        """What is before it, such as a validation, is not of a step."""
        self.meter.start()

    def on_train_batch_start(self, batch: SequenceBatch, batch_idx: int) -> None:
        """The batch is there."""
        self._lengths = batch.lengths
        self.meter.lap("data")

    def on_before_backward(self, loss: Tensor) -> None:
        """The loss is found, and with it the gradients of the head."""
        self.meter.lap("forward")

    def on_after_backward(self) -> None:
        """All gradients are."""
        self.meter.lap("backward")

    def on_train_batch_end(self, outputs: Any, batch: SequenceBatch, batch_idx: int) -> None:
        """What callbacks did, such as writing a checkpoint, is not of a step."""
        self.meter.start()

    def training_step(self, batch: SequenceBatch, batch_idx: int) -> Tensor:
        """Mean loss per target, of all processes' targets."""
        history, had = self.teacher_forced(batch)
        loss = self.loss(history, batch.targets, had)
        self.log("loss", loss.detach(), on_step=True, on_epoch=False)
        targets = (batch.targets != PAD).sum()
        self.sums += torch.stack([loss.detach().double() * targets, targets])
        if processes.count() == 1:
            return loss
        # Lightning takes the mean of the processes' gradients, but some have more targets.
        return loss * (targets * processes.count() / processes.all_reduce_sum(targets))

    def teacher_forced(self, batch: SequenceBatch) -> tuple[HistoryRepresentation, Tensor]:
        """See `NextItemModel`."""
        inputs = ModelInputs(batch.items, batch.lengths, batch.times, batch.features)
        return self.model.teacher_forced(inputs, batch.targets)

    def loss(self, history: HistoryRepresentation, targets: Tensor, had: Tensor) -> Tensor:
        """Of what the model's `teacher_forced` gives for targets [B, L]: the mean over them."""
        value: Tensor = self.objective(
            self.model, history, targets, had if self._exclude_seen else None
        )
        return value

    def configure_optimizers(self) -> OptimizerLRScheduler:
        """AdamW (fused), the schedule stepped after every batch."""
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
        """What is remembered of each weight: ``WEIGHT.exp_avg`` and so on."""
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
        clip_gradients(self.model.parameters(), self._config.gradient_clip)

    def transfer_batch_to_device(
        self, batch: SequenceBatch, device: torch.device, dataloader_idx: int
    ) -> Any:
        """Lightning's own way does not take frozen dataclasses."""
        return batch.to(device)
