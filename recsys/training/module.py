"""A step of training: the objective, the optimiser with its schedule, and the LightningModule."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Literal

import numpy as np
import pytorch_lightning as pl
import torch
from pytorch_lightning.utilities.types import OptimizerLRScheduler
from torch import Tensor, float64, nn
from torch.nn import functional as F
from torch.nn.parallel import DistributedDataParallel

from recsys.config import (
    CrossEntropy,
    GeneralisedBinaryCrossEntropy,
    LossConfig,
    SampledSoftmax,
    TrainingConfig,
)
from recsys.data.batches import SequenceBatch, batch_width
from recsys.data.histories import PAD
from recsys.errors import InputError
from recsys.model.averaged import AveragedModel
from recsys.model.heads import HistoryRepresentation
from recsys.model.models import Model, ModelInputs
from recsys.training import processes
from recsys.training.losses import (
    NegativeSampler,
    SampledLoss,
    SeenItems,
    binary_cross_entropy,
    calibrated_weight,
    chunked_cross_entropy,
    chunked_sum,
    count_targets,
    exact,
    mask_negatives,
    sampled_softmax,
)


class Objective(nn.Module):
    """The mean loss of targets, over the full catalogue or against negatives drawn for each step.

    Against negatives the model's item embeddings are read row by row, so their gradient is sparse.

    Args:
        config: the loss, and how its negatives are drawn.
        interactions: number of interactions of each item in training [I + 1], by item token.
    """

    def __init__(self, config: LossConfig, interactions: Tensor) -> None:
        super().__init__()
        self.negatives: NegativeSampler | None = None
        self._loss: SampledLoss = binary_cross_entropy
        self._is_corrected = isinstance(config, SampledSoftmax)
        if isinstance(config, CrossEntropy):
            return
        count = config.num_negatives
        self.negatives = NegativeSampler(config.negatives, interactions, count)
        if isinstance(config, SampledSoftmax):
            self._loss = sampled_softmax
        elif isinstance(config, GeneralisedBinaryCrossEntropy):
            weight = calibrated_weight(count, len(interactions) - 1, config.calibration)
            self._loss = partial(binary_cross_entropy, target_weight=weight)

    def forward(
        self, model: Model, history: HistoryRepresentation, targets: Tensor, seen: Tensor | None
    ) -> Tensor:
        """Return the mean loss of the targets [B, L], PAD for none.

        ``history`` and ``seen`` are what `Model.teacher_forced` returns; if ``seen`` is None, seen
        items are wrong answers like any other.
        """
        if self.negatives is not None:
            return self._sampled(self.negatives, model, history, targets, seen)
        head, table = model.head, model.items.table()
        before = None if seen is None else SeenItems.up_to(seen, targets.shape[1])
        if not head.attends:
            rows = head.chunk_rows(1, len(table), table.device)
            history, targets, before = drop_padding(history, targets, before, rows)
        return chunked_cross_entropy(
            head.logits,
            history,
            head.represent_candidates(table),
            targets,
            before,
            chunk_rows=head.chunk_rows(targets.shape[1], len(table), table.device),
        )

    def _sampled(
        self,
        sampler: NegativeSampler,
        model: Model,
        history: HistoryRepresentation,
        targets: Tensor,
        seen: Tensor | None,
    ) -> Tensor:
        """`forward` against negatives that all positions share."""
        head, (items, log_expected) = model.head, sampler(targets)
        candidates = head.represent_candidates(model.items(items))
        of_targets = head.represent_candidates(model.items(targets))
        target_logits = exact(head.score_targets(history, of_targets))
        gradients = torch.empty_like(target_logits, requires_grad=False)

        def loss(scores: Tensor, rows: slice) -> tuple[Tensor, Tensor]:
            logits = exact(scores).contiguous()
            if self._is_corrected:
                logits -= log_expected
            mask_negatives(logits, items, targets[rows], None if seen is None else seen[rows])
            losses, gradient = self._loss(target_logits.detach()[rows], logits)
            empty = targets[rows] == PAD
            logits.flatten(0, 1).index_fill_(0, empty.flatten().nonzero().squeeze(1), 0)
            gradients[rows] = gradient.masked_fill_(empty, 0)
            return losses.masked_fill_(empty, 0).sum(), logits.to(scores.dtype)

        chunk_rows = head.chunk_rows(targets.shape[1], len(items), targets.device)
        total = chunked_sum(head.logits, loss, history, candidates, chunk_rows)
        # A zero whose gradient is that of the loss by the logits of the targets.
        zero = ((target_logits - target_logits.detach()) * gradients).sum()
        return (total + zero) / count_targets(targets)


def drop_padding(
    history: HistoryRepresentation, targets: Tensor, seen: SeenItems | None, chunk_rows: int
) -> tuple[HistoryRepresentation, Tensor, SeenItems | None]:
    """Return the M positions with a target as sequences of length 1: states [M, 1, D], [M, 1].

    No logits are then computed for the others, which are most where a model predicts masked items.
    A few fill the end, so that the last chunk of ``chunk_rows`` has one of few sizes: oneDNN caches
    kernels for each size, which took .5 GiB of memory an epoch on MovieLens-1M.
    """
    indices = targets.flatten().nonzero().squeeze(1)
    count = len(indices)
    indices = F.pad(indices, (0, _padded_count(count, chunk_rows) - count))
    states = history.states.flatten(0, 1).index_select(0, indices)[:, None]
    selected = targets.flatten()[indices, None]
    selected[count:] = PAD
    return history._replace(states=states), selected, None if seen is None else seen.at(indices)


def _padded_count(count: int, chunk_rows: int) -> int:
    """Round a count up so that the last chunk, which grows by a sixteenth at most, has a few sizes.

    >>> [_padded_count(count, 1000) for count in (7, 33, 199, 5000, 5001, 5999)]
    [7, 34, 200, 5000, 5032, 6000]
    """
    full, rest = divmod(count, chunk_rows)
    return full * chunk_rows + batch_width(rest, chunk_rows, chunk_rows if full else rest)


def use_sparse_gradients(model: Model) -> dict[str, Tensor]:
    """Make the gradients of all tables with a row per item sparse; return their weights by name."""
    weights: dict[str, Tensor] = {}
    for name, table in model.named_modules():
        if isinstance(table, nn.Embedding) and table.num_embeddings == model.num_items + 1:
            table.sparse = True
            weights[f"{name}.weight"] = table.weight
    return weights


def mean_over_processes(gradient: Tensor) -> Tensor:
    """Return the mean of the sparse gradients [I + 1, D] of all processes, in each of them.

    NCCL cannot add sparse tensors. The sums have the same order in all processes, so that their
    tables stay equal.
    """
    own = gradient.coalesce()
    rows = processes.all_gather_rows(own.indices()[0])
    values = processes.all_gather_rows(own.values()) / processes.count()
    return torch.sparse_coo_tensor(rows[None], values, own.shape).coalesce()


class RowwiseAdamW(torch.optim.AdamW):
    """`torch.optim.AdamW` that updates only the rows of a sparse gradient.

    A row that was not read keeps its moments and has no weight decay until it is read again, as in
    `torch.optim.SparseAdam`, which supports neither weight decay nor dense parameters.
    """

    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """Take one step; see `torch.optim.Optimizer.step`."""
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
    """The learning-rate schedule of a training: from the step to a factor of the learning rate.

    ``hold_decay`` rises linearly, holds, then decays linearly to a hundredth at the end.
    ``inverse_square_root`` rises linearly, then decays with the square root of the step: the rate
    of Vaswani et al. 2017, equation 3, as a share of its peak, (D · warmup)^-0.5.

    >>> [Schedule("hold_decay", 2, 4, 8)(step) for step in range(9)]
    [0.5, 1.0, 1.0, 1.0, 1.0, 0.75, 0.5, 0.25, 0.01]
    >>> [round(Schedule("inverse_square_root", 4, 0, 99)(step), 3) for step in (0, 1, 3, 15)]
    [0.25, 0.5, 1.0, 0.5]
    """

    kind: Literal["hold_decay", "inverse_square_root"]
    warmup_steps: int
    decay_steps: int
    total_steps: int

    @classmethod
    def plan(cls, config: TrainingConfig, epochs: int, steps_per_epoch: int) -> Schedule:
        """Return the schedule of a number of epochs; warm-up takes at most a tenth of the steps."""
        total = epochs * steps_per_epoch
        decay = round(total * config.decay_fraction)
        return cls(config.schedule, min(config.warmup_steps, -(-total // 10)), decay, total)

    def decay_from(self, step: int, decay_steps: int) -> Schedule:
        """Return the same schedule with the decay starting at a given step."""
        return replace(self, decay_steps=decay_steps, total_steps=step + decay_steps)

    def __call__(self, step: int) -> float:
        """Return the factor of the learning rate at a step."""
        warmup = max(self.warmup_steps, 1)
        rise = (step + 1) / warmup
        if self.kind == "inverse_square_root":
            return min(rise, math.sqrt(warmup / (step + 1)))
        decay = (self.total_steps - step) / max(self.decay_steps, 1)
        return max(0.01, min(1.0, rise, decay))


class TrainingModule(pl.LightningModule):
    """Trains a model to predict every target.

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
        self.objective = Objective(config.loss, interactions)
        self.schedule = schedule
        """The learning-rate schedule, read at every step."""
        self.sums = torch.zeros(2, dtype=float64)
        """The sum of the losses and the number of targets of the epoch so far, in this process."""
        self._config = config
        self._exclude_seen = exclude_seen
        self._random = torch.empty(0, 0, dtype=torch.uint8)
        sampled = self.objective.negatives is not None
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
        """Return what `Model.teacher_forced` makes of a batch."""
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
