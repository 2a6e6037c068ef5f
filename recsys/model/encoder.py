"""The encoder: maps embedded histories to hidden states."""

from __future__ import annotations

from collections.abc import Iterable

from torch import Tensor, nn

from recsys.model.attention import last_states, padding_mask
from recsys.model.blocks import EncoderBlock
from recsys.model.dropout import Dropout
from recsys.model.model_inputs import TimesRead
from recsys.model.positions import positions_from_end


class Encoder(nn.Module):
    """Positions, dropout, a stack of blocks, a last norm (as in `torch.nn.Transformer`).

    Args:
        positions: maps position numbers [B, L] to vectors [B, L, D].
        blocks: the stack.
        embedding_dim: D.
        dropout: of the sum of item embeddings and positions.
        causal: whether each position sees only the items up to itself, not the entire sequence.

    Source: Kang and McAuley 2018 (SASRec, causal), https://arxiv.org/abs/1808.09781; Vaswani et
    al. 2017, section 3.1
    """

    times: TimesRead = "none"

    def __init__(
        self,
        positions: nn.Module,
        blocks: Iterable[EncoderBlock],
        embedding_dim: int,
        dropout: float,
        *,
        causal: bool = True,
    ) -> None:
        super().__init__()
        self.positions = positions
        self.blocks = nn.ModuleList(blocks)
        self.norm = nn.LayerNorm(embedding_dim)
        self.dropout = Dropout(dropout)
        self.causal = causal

    def forward(self, embedded: Tensor, lengths: Tensor, times: Tensor | None = None) -> Tensor:
        """Hidden states [B, L, D] of item embeddings [B, L, D] with the given lengths [B].

        Times are ignored; `HSTUEncoder` reads them.

        The state at position t depends on the items that it sees and, where positions are added
        (they count from the end), on the sequence's length; on nothing else. States on padding have
        no meaning.
        """
        return self.norm(self._through(self.blocks, embedded, lengths))  # type: ignore[no-any-return]

    def encode_last(self, embedded: Tensor, lengths: Tensor, times: Tensor | None = None) -> Tensor:
        """`forward` at the last item of each sequence only, [B, D].

        It skips most of the last block, which needs only keys and values of the other items.
        """
        if not len(self.blocks):
            return last_states(self(embedded, lengths), lengths)
        last: EncoderBlock = self.blocks[-1]  # type: ignore[assignment]
        x = self._through(self.blocks[:-1], embedded, lengths)
        return self.norm(last.encode_last(x, lengths))  # type: ignore[no-any-return]

    def _through(self, blocks: nn.ModuleList, embedded: Tensor, lengths: Tensor) -> Tensor:
        """The output of the last of the blocks [B, L, D]."""
        width = embedded.shape[1]
        x: Tensor = self.dropout(embedded + self.positions(positions_from_end(lengths, width)))
        # Sequences are right-padded: the causal mask alone keeps tokens from seeing padding.
        mask = None if self.causal else padding_mask(lengths, width)[:, None, None]
        for block in blocks:
            x = block(x, mask, causal=self.causal)
        return x
