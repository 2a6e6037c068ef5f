"""Training objectives: the targets against the full catalogue or against sampled negatives."""

from __future__ import annotations

from functools import partial

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from recsys.config import (
    CrossEntropy,
    GeneralisedBinaryCrossEntropy,
    SampledLossConfig,
    SampledSoftmax,
    TrainingConfig,
)
from recsys.data.batches import batch_width
from recsys.data.histories import PAD
from recsys.model.heads import HistoryRepresentation
from recsys.model.models import Model
from recsys.training import processes
from recsys.training.losses import (
    InBatchNegatives,
    PopularNegatives,
    SampledLoss,
    SeenItems,
    UniformNegatives,
    binary_cross_entropy,
    calibrated_weight,
    chunked_cross_entropy,
    chunked_sampled_loss,
    sampled_softmax,
)


class CatalogueObjective(nn.Module):
    """Cross-entropy over the full catalogue."""

    def forward(
        self, model: Model, history: HistoryRepresentation, targets: Tensor, seen: Tensor | None
    ) -> Tensor:
        """Return the mean loss of the targets [B, L], each without the items seen before it.

        Args:
            model: the model, whose head computes the logits.
            history: the representation that the model's `teacher_forced` returns.
            targets: item tokens [B, L], PAD for none.
            seen: item tokens [B, N], of which the first N - L + 1 + t were seen before target t. If
                None, seen items are wrong answers like any other.
        """
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


class SampledObjective(nn.Module):
    """A loss of the targets against negatives, which are redrawn for each step.

    The model's item embeddings are read row by row, so their gradient is sparse.

    Args:
        config: the loss and how its negatives are drawn.
        interactions: number of interactions of each item in training [I + 1], by item token.
    """

    def __init__(self, config: SampledLossConfig, interactions: Tensor) -> None:
        super().__init__()
        count, num_items = config.num_negatives, len(interactions) - 1
        if config.negatives == "uniform":
            self.negatives: nn.Module = UniformNegatives(num_items, count)
        elif config.negatives == "popularity":
            self.negatives = PopularNegatives(interactions, count)
        else:
            self.negatives = InBatchNegatives(interactions, count)
        self._is_corrected = isinstance(config, SampledSoftmax)
        self._loss: SampledLoss = binary_cross_entropy
        if isinstance(config, SampledSoftmax):
            self._loss = sampled_softmax
        elif isinstance(config, GeneralisedBinaryCrossEntropy):
            weight = calibrated_weight(count, num_items, config.calibration)
            self._loss = partial(binary_cross_entropy, target_weight=weight)

    def forward(
        self, model: Model, history: HistoryRepresentation, targets: Tensor, seen: Tensor | None
    ) -> Tensor:
        """Return the mean loss of the targets; the arguments are those of `CatalogueObjective`."""
        head, negatives = model.head, self.negatives(targets)
        if not self._is_corrected:
            negatives = negatives._replace(log_expected=None)
        return chunked_sampled_loss(
            self._loss,
            head.logits,
            history,
            head.represent_candidates(model.items(negatives.items)),
            head.score_targets(history, head.represent_candidates(model.items(targets))),
            targets,
            negatives,
            seen,
            chunk_rows=head.chunk_rows(targets.shape[1], len(negatives.items), targets.device),
        )


def drop_padding(
    history: HistoryRepresentation, targets: Tensor, seen: SeenItems | None, chunk_rows: int
) -> tuple[HistoryRepresentation, Tensor, SeenItems | None]:
    """Return the M positions with a target as sequences of length 1: states [M, 1, D], [M, 1].

    For a head without attention: no logits are computed for positions without a target, which are
    most of them where a model predicts masked items. A few such positions fill the end, so that the
    last chunk of ``chunk_rows`` has one of few sizes: oneDNN compiles and caches kernels for each
    size, which took .5 GiB of memory an epoch on MovieLens-1M.
    """
    indices = targets.flatten().nonzero().squeeze(1)
    count = len(indices)
    indices = F.pad(indices, (0, _padded_count(count, chunk_rows) - count))
    states = history.states.flatten(0, 1).index_select(0, indices)[:, None]
    selected = targets.flatten()[indices, None]
    selected[count:] = PAD
    return history._replace(states=states), selected, None if seen is None else seen.at(indices)


def _padded_count(count: int, chunk_rows: int) -> int:
    """Round a count up so that the last chunk has one of few sizes.

    The chunk grows by at most a sixteenth of a full chunk, or of itself if it is the only one.

    >>> [_padded_count(count, 1000) for count in (7, 33, 199, 5000, 5001, 5999)]
    [7, 34, 200, 5000, 5032, 6000]
    """
    full, rest = divmod(count, chunk_rows)
    return full * chunk_rows + batch_width(rest, chunk_rows, chunk_rows if full else rest)


def build_objective(
    config: TrainingConfig, interactions: Tensor
) -> CatalogueObjective | SampledObjective:
    """Build the objective of a config; for ``interactions`` see `SampledObjective`."""
    if isinstance(config.loss, CrossEntropy):
        return CatalogueObjective()
    return SampledObjective(config.loss, interactions)


def use_sparse_gradients(model: Model) -> dict[str, Tensor]:
    """Make the gradients of all embedding tables with a row per item sparse.

    Returns:
        Their weights by name.
    """
    weights: dict[str, Tensor] = {}
    for name, table in model.named_modules():
        if isinstance(table, nn.Embedding) and table.num_embeddings == model.num_items + 1:
            table.sparse = True
            weights[f"{name}.weight"] = table.weight
    return weights


def mean_over_processes(gradient: Tensor) -> Tensor:
    """Return the mean of the sparse gradients [I + 1, D] of all processes, in each of them.

    The rows are exchanged and added up here, because NCCL cannot add sparse tensors. The sums have
    the same order in all processes, so that their tables stay equal.
    """
    own = gradient.coalesce()
    rows = processes.all_gather_rows(own.indices()[0])
    values = processes.all_gather_rows(own.values()) / processes.count()
    return torch.sparse_coo_tensor(rows[None], values, own.shape).coalesce()
