"""What a step minimises: the targets against the whole catalogue, or against a few of its items."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial

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
from recsys.model.protocols import HistoryRepresentation, Model
from recsys.training.losses import (
    binary_cross_entropy,
    calibrated_weight,
    chunked_cross_entropy,
    chunked_sampled,
    sampled_softmax,
    seen_items,
)
from recsys.training.negatives import InBatchNegatives, PopularNegatives, UniformNegatives


class CatalogueObjective(nn.Module):
    """Cross-entropy over every item."""

    def __init__(self, label_smoothing: float) -> None:
        super().__init__()
        self._label_smoothing = label_smoothing

    def forward(
        self, model: Model, history: HistoryRepresentation, targets: Tensor, had: Tensor | None
    ) -> Tensor:
        """Mean over the targets [B, L]; what was had [B, N] before each is left out.

        See `chunked_cross_entropy`.
        """
        head, table = model.head, model.items.table()
        if head.kv_source is None:
            rows = head.chunk_rows(1, len(table))
            history, targets, had = drop_padding(history, targets, had, rows)
        return chunked_cross_entropy(
            head.logits,
            history,
            head.represent_candidates(table),
            targets,
            had,
            chunk_rows=head.chunk_rows(targets.shape[1], len(table)),
            label_smoothing=self._label_smoothing,
        )


class SampledObjective(nn.Module):
    """A loss of the target and negatives that are drawn anew for each step.

    The model's item embeddings are read row by row, so their gradient is sparse.

    Args:
        config: the loss, and how its negatives are drawn.
        interactions: of each item in training [I + 1], by item token.
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
        self._corrected = isinstance(config, SampledSoftmax)
        self._loss: Callable[[Tensor], Tensor] = binary_cross_entropy
        if isinstance(config, SampledSoftmax):
            self._loss = sampled_softmax
        elif isinstance(config, GeneralisedBinaryCrossEntropy):
            weight = calibrated_weight(count, num_items, config.calibration)
            self._loss = partial(binary_cross_entropy, target_weight=weight)

    def forward(
        self, model: Model, history: HistoryRepresentation, targets: Tensor, had: Tensor | None
    ) -> Tensor:
        """As `CatalogueObjective`; see `chunked_sampled`."""
        head, negatives = model.head, self.negatives(targets)
        if not self._corrected:
            negatives = replace(negatives, log_expected=None)
        return chunked_sampled(
            self._loss,
            head.logits,
            history,
            head.represent_candidates(model.items(negatives.items)),
            head.score_targets(history, head.represent_candidates(model.items(targets))),
            targets,
            negatives,
            had,
            chunk_rows=head.chunk_rows(targets.shape[1], len(negatives.items)),
        )


def drop_padding(
    history: HistoryRepresentation, targets: Tensor, had: Tensor | None, chunk_rows: int
) -> tuple[HistoryRepresentation, Tensor, Tensor | None]:
    """The M positions with a target, as sequences of one: [M, 1, D], [M, 1], [M, N].

    Where most positions have none, as in filling in hidden items, no logits are made for those.
    Some positions without a target make up the end, so that the last chunk of ``chunk_rows`` has
    one of few sizes: oneDNN compiles its kernels for each and keeps them. With any size, memory
    grew by .5 GiB an epoch on MovieLens-1M.
    """
    there = targets.flatten().nonzero().squeeze(1)
    count = len(there)
    there = F.pad(there, (0, _few_sizes(count, chunk_rows) - count))
    sides = tuple(side.flatten(0, 1).index_select(0, there)[:, None] for side in history)
    if had is not None:
        had = seen_items(had, targets.shape[1]).flatten(0, 1).index_select(0, there)
    wanted = targets.flatten()[there, None]
    wanted[count:] = PAD
    return sides, wanted, had


def _few_sizes(count: int, chunk_rows: int) -> int:
    """At least ``count``: the last chunk is up by at most a sixteenth, of a whole one if there are.

    >>> [_few_sizes(count, 1000) for count in (7, 33, 199, 5000, 5001, 5999)]
    [7, 34, 200, 5000, 5032, 6000]
    """
    whole, rest = divmod(count, chunk_rows)
    last = batch_width(rest, chunk_rows if whole else rest)
    return whole * chunk_rows + min(last, chunk_rows)


def build_objective(
    config: TrainingConfig, interactions: Tensor
) -> CatalogueObjective | SampledObjective:
    """What the config asks for; for ``interactions`` see `SampledObjective`."""
    if isinstance(config.loss, CrossEntropy):
        return CatalogueObjective(config.label_smoothing)
    return SampledObjective(config.loss, interactions)


def use_sparse_gradients(model: Model) -> None:
    """Let the gradients of tables that have a row per item be sparse: they are read row by row."""
    for table in model.modules():
        if isinstance(table, nn.Embedding) and table.num_embeddings == model.num_items + 1:
            table.sparse = True
