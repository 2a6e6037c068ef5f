"""The best items of a large catalogue by dot products, in the precision that is faster here."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor
from torch.nn import functional as F

from recsys.inference.best_scores import Groups, joined, places, within
from recsys.inference.scorer import GROUP
from recsys.timing import WORTHWHILE, median_share

_BYTES, _MOST_ITEMS = 1 << 23, 1 << 18
"""The size of the products that are held at once, and the number of their items."""
_WIDE = 16
"""From so many users on, items are rows and users columns: products in bf16 are faster so, and the
best of a group of items is found for all users at once."""
_TIMED_ITEMS, _TIMED_USERS = 1 << 14, 64
_MOST_KEPT = 32
"""Groups of items for each of the k best that users have at once, on average."""
_MOST_SCORED = 1 << 10
"""Items of a user that are scored again at most, unless k is larger."""


class ProductSearch:
    """Finds the items with the largest dot products, exactly, among those of a large catalogue.

    All products are made in bf16 where that is faster on this machine, else in float32, with a
    bound of their rounding. The items that may be among the best by these bounds, a few dozen, are
    scored again, one by one in float32. So neither the precision of the first pass nor the other
    users of a batch change a score.

    Source of the bounds: Higham 2002, Accuracy and Stability of Numerical Algorithms, chapter 3.

    Args:
        vectors: of PAD and all items [I + 1, D], float32, on the CPU. They must stay as they are.
    """

    def __init__(self, vectors: Tensor) -> None:
        self._vectors = vectors
        lengths = vectors.norm(dim=1)
        lengths = F.pad(lengths, (0, -len(lengths) % GROUP))
        self._longest = lengths.unflatten(0, (-1, GROUP)).amax(1)
        self._rounded = vectors.bfloat16() if bf16_is_faster(vectors) else vectors

    def best(
        self, states: Tensor, k: int, excluded: tuple[Tensor, Tensor]
    ) -> tuple[Tensor, Tensor] | None:
        """Find the k best items of each of B users, best first; equal scores by ascending token.

        Args:
            states: [B, D].
            k: the number of items.
            excluded: the rows and the item tokens that do not count, tokens ascending.

        Returns:
            Scores [B, k] and item tokens [B, k]; at the end scores of -inf where fewer than k items
            count. None if too many items are as good as the k-th for the bound, or a number is
            not finite.
        """
        lengths = states.norm(dim=1)
        if not (lengths.max() * self._longest.max()).isfinite():
            return None
        best = torch.full((len(states), k), -torch.inf)
        kept: list[Groups] = []
        count, most = 0, _MOST_KEPT * k * len(states)
        for start, groups, highest in self._blocks(states.to(self._rounded.dtype), excluded):
            first = start // GROUP
            reach = lengths[:, None] * self._longest[first : first + highest.shape[1]]
            error = self._error(highest, reach)
            best = torch.cat([best, highest - error], dim=1).topk(k).values
            row, group = (highest + error >= best[:, -1:]).nonzero().T
            kept.append(Groups(row, start + group * GROUP, groups[row, group].float()))
            count += len(row)
            if count > most:
                kept = [self._reaching(joined(kept), lengths, best[:, -1])]
                count = len(kept[0].rows)
                if count > most // 2:
                    return None
        return self._scored(states, k, joined(kept), best[:, -1])

    def _blocks(
        self, states: Tensor, excluded: tuple[Tensor, Tensor]
    ) -> Iterator[tuple[int, Tensor, Tensor]]:
        """Yield the token of a first item, products of groups [B, G, 64] and their maxima [B, G].

        Where items are rows, the maxima are taken before the dimensions are moved: that is ten
        times as fast as after it.
        """
        step = min(_BYTES // (states.element_size() * len(states)), _MOST_ITEMS)
        step = max(GROUP, step - step % GROUP)
        wide = len(states) >= _WIDE
        # One memory for all blocks: new pages cost as much as the products.
        memory = states.new_empty((step, len(states)) if wide else (len(states), step))
        for start in range(0, len(self._rounded), step):
            items = self._rounded[start : start + step]
            rows, columns = within(excluded, start, start + step)
            whole = len(items) + -len(items) % GROUP  # more than there are, but at the end
            if wide:
                torch.mm(items, states.T, out=memory[: len(items)])
                memory[len(items) :] = memory[columns, rows] = -torch.inf
                groups = memory[:whole].unflatten(0, (-1, GROUP))
                yield start, groups.movedim(2, 0), groups.amax(1).T
            else:
                memory[:, : len(items)] = F.linear(states, items)
                memory[:, len(items) :] = memory[rows, columns] = -torch.inf
                groups = memory[:, :whole].unflatten(1, (-1, GROUP))
                yield start, groups, groups.amax(2)

    def _error(self, products: Tensor, reach: Tensor) -> Tensor:
        """Bound how far products are from those of the vectors, where they can be so large.

        A product of -inf has an error that is no smaller, and so is never kept.
        """
        sums = self._vectors.shape[1] * 2.0**-23  # of both passes, in float32
        whole = self._rounded.dtype == torch.float32
        if not (whole and torch.get_float32_matmul_precision() == "highest"):
            # Both factors are rounded to bf16, and the product.
            return (2 * 2.0**-8 + 2.0**-16 + sums) * 1.01 * reach + 1.01 * 2.0**-8 * products.abs()
        return sums * reach + 2.0**-23 * products.abs()

    def _reaching(self, groups: Groups, lengths: Tensor, least: Tensor) -> Groups:
        """Return the groups with items that `_may_reach` the least score of their user [B]."""
        kept = self._may_reach(groups, lengths, least).any(1)
        return Groups(*(part[kept] for part in groups))

    def _may_reach(self, groups: Groups, lengths: Tensor, least: Tensor) -> Tensor:
        """Whether items [N, 64] may have the least score [B] of users with states so long [B]."""
        reach = lengths[groups.rows] * self._longest[groups.starts // GROUP]
        upper = groups.scores + self._error(groups.scores, reach[:, None])
        return upper >= least[groups.rows, None]

    def _scored(
        self, states: Tensor, k: int, groups: Groups, least: Tensor
    ) -> tuple[Tensor, Tensor] | None:
        """Score the items that may have the least score of their user [B]; see `best`."""
        group, item = self._may_reach(groups, states.norm(dim=1), least).nonzero().T
        row, token = groups.rows[group], groups.starts[group] + item
        width = max(k, int(torch.bincount(row).max()) if len(row) else 0)
        if width > max(k, _MOST_SCORED):
            return None
        order = (row * len(self._vectors) + token).argsort()
        row, token = row[order], token[order]
        place = places(row)
        tokens = torch.zeros(len(states), width, dtype=torch.long)
        tokens[row, place] = token
        scores = torch.full(tokens.shape, -torch.inf)
        # Sums of one row each: a product of matrices rounds as its shape wants.
        scores[row, place] = (self._vectors[token] * states[row]).sum(1)
        chosen, index = scores.sort(dim=1, descending=True, stable=True)
        return chosen[:, :k], tokens.gather(1, index[:, :k])


def bf16_is_faster(vectors: Tensor) -> bool:
    """Measure whether products and their maxima take clearly less time in bf16, for some users."""
    items = vectors[:_TIMED_ITEMS]
    items = items[: len(items) - len(items) % GROUP]
    rounded = items.bfloat16()

    def products(items: Tensor) -> None:
        (items @ items[:_TIMED_USERS].T).unflatten(0, (-1, GROUP)).amax(1)

    share = median_share(lambda: products(rounded), lambda: products(items), seconds=0.0)
    return share < WORTHWHILE
