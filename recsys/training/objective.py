"""Training objectives: the targets against the full catalogue or against sampled negatives."""

from __future__ import annotations

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
    SampledLoss,
    SeenItems,
    binary_cross_entropy,
    calibrated_weight,
    chunked_cross_entropy,
    chunked_sampled_loss,
    sampled_softmax,
)
from recsys.training.negatives import InBatchNegatives, PopularNegatives, UniformNegatives


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
        if head.kv_source is None:
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
        self._corrected = isinstance(config, SampledSoftmax)
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
        if not self._corrected:
            negatives = replace(negatives, log_expected=None)
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
    """Return the M positions with a target as sequences of length 1: [M, 1, D], [M, 1].

    No logits are computed for positions without a target, which are most of them where a model
    predicts masked items. A few such positions fill the end, so that the last chunk of
    ``chunk_rows`` has one of few sizes: oneDNN compiles and caches kernels for each size, which
    took .5 GiB of memory an epoch on MovieLens-1M.
    """
    indices = targets.flatten().nonzero().squeeze(1)
    count = len(indices)
    indices = F.pad(indices, (0, _padded_count(count, chunk_rows) - count))
    sides = tuple(side.flatten(0, 1).index_select(0, indices)[:, None] for side in history)
    selected = targets.flatten()[indices, None]
    selected[count:] = PAD
    return sides, selected, None if seen is None else seen.at(indices)


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
