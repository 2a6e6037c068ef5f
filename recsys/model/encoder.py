"""The encoder: embedded histories in, hidden states out."""

from __future__ import annotations

from collections.abc import Iterable

from torch import Tensor, nn

from recsys.model.dropout import Dropout


class Encoder(nn.Module):
    """Positions, dropout, a stack of blocks, a last norm.

    Args:
        positions: lengths [B] and a width L to position vectors [B, L, D].
        blocks: each [B, L, D] to [B, L, D], causal.
        embedding_dim: D.
        dropout: of the sum of items and positions.

    Source: Kang and McAuley 2018 (SASRec), https://arxiv.org/abs/1808.09781
    """

    def __init__(
        self,
        positions: nn.Module,
        blocks: Iterable[nn.Module],
        embedding_dim: int,
        dropout: float,
    ) -> None:
        super().__init__()
        self.positions = positions
        self.blocks = nn.ModuleList(blocks)
        self.norm = nn.LayerNorm(embedding_dim)
        self.dropout = Dropout(dropout)

    def forward(self, embedded: Tensor, lengths: Tensor) -> Tensor:
        """Hidden states [B, L, D] of item embeddings [B, L, D] with the given lengths [B].

        The state at position t depends on the items up to t and on the sequence's length (positions
        count from the end), on nothing else. States on padding mean nothing.
        """
        x = self.dropout(embedded + self.positions(lengths, embedded.shape[1]))
        for block in self.blocks:
            x = block(x)
        return self.norm(x)  # type: ignore[no-any-return]
